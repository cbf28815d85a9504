"""Data analyst: tools put tables into the dependencies, and later ones use them. They are there when the run continues.

`load` runs again (`replay="run"`): it only reads. What `select` puts there is stored with the run (`state=`).

    python examples/durable/data_analyst.py [ledger.db]
"""

from dataclasses import dataclass, field
from typing import Any

from outside import LOOKS, Outside, call, last_result, scripted, start
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import DepsState, ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "Analyse the data. Tables have names such as Out[1]."
SALES = [{"region": "north", "amount": 3}, {"region": "south", "amount": 4}, {"region": "north", "amount": 5}]
Table = list[dict[str, Any]]


@dataclass
class Tables:
    stored: dict[str, Table] = field(default_factory=dict[str, Table])

    def keep(self, table: Table) -> str:
        name = f"Out[{len(self.stored) + 1}]"
        self.stored[name] = table
        return name

    def get(self, name: str) -> Table:
        if name not in self.stored:
            raise ModelRetry(f"There is no table {name}: there are {', '.join(self.stored) or 'none'}.")
        return self.stored[name]


def answer(messages: list[ModelMessage]) -> list[str]:
    return [f"The north has sold for {last_result(messages)}."]


MODEL = scripted(
    [call("load", "t1")],
    [call("select", "t2", table="Out[1]", region="north")],
    [call("select", "t3", table="Out[2]", region="north")],
    [call("total", "t4", table="Out[3]")],
    answer,
)


def make_agent(ledger: Ledger, instructions: str) -> Agent[Tables, str]:
    agent = Agent(
        MODEL, name="analyst", deps_type=Tables, instructions=instructions, capabilities=[LedgerDurability[Tables](ledger)]
    )

    @agent.tool(metadata={"antiphon": {"effects": "none", "replay": "run"}})
    def load(ctx: RunContext[Tables]) -> str:
        """Load the sales."""
        return f"{ctx.deps.keep(SALES)} has {len(SALES)} rows"

    @agent.tool(metadata=LOOKS)
    def select(ctx: RunContext[Tables], table: str, region: str) -> str:
        """Select the rows of a region."""
        return ctx.deps.keep([row for row in ctx.deps.get(table) if row["region"] == region])

    @agent.tool(metadata=LOOKS)
    def total(ctx: RunContext[Tables], table: str) -> int:
        """Add up the amounts of a table."""
        return sum(row["amount"] for row in ctx.deps.get(table))

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    tables = Tables()
    async with ledger_run("sales", ledger=ledger, state=DepsState(tables), **options):
        result = await make_agent(ledger, instructions).run("How much has the north sold for?", deps=tables)
    return f"{result.output} {sorted(tables.stored)}", result.usage


if __name__ == "__main__":
    start(main)
