"""SQL: an agent writes a query, a validator has the database explain it, and a wrong one goes back to the model.

python examples/durable/sql.py [ledger.db]
"""

import sqlite3
from typing import Any

from outside import LOOKS, Outside, call, scripted, start
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "Write a SQLite query that answers the question."
SCHEMA = "CREATE TABLE records (day TEXT, level TEXT, message TEXT)"
ROWS = [("2026-01-01", "error", "disk full"), ("2026-01-01", "info", "started"), ("2026-01-02", "error", "no network")]


class Query(BaseModel):
    sql: str
    explanation: str


MODEL = scripted(
    [call("describe", "q1", table="records")],
    [call("final_result", "q2", sql="SELECT message FROM record", explanation="All messages.")],
    [call("final_result", "q3", sql="SELECT message FROM records WHERE level = 'error' ORDER BY day", explanation="Errors.")],
)


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute(SCHEMA)
    database.executemany("INSERT INTO records VALUES (?, ?, ?)", ROWS)
    return database


def make_agent(ledger: Ledger, instructions: str) -> Agent[sqlite3.Connection, Query]:
    agent = Agent(
        MODEL,
        name="sql",
        deps_type=sqlite3.Connection,
        output_type=Query,
        instructions=instructions,
        retries=2,
        capabilities=[LedgerDurability[sqlite3.Connection](ledger)],
    )

    @agent.tool(metadata=LOOKS)
    async def describe(ctx: RunContext[sqlite3.Connection], table: str) -> str:
        """Return the schema of a table."""
        found = ctx.deps.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        return str(found[0])

    @agent.output_validator
    async def explain(ctx: RunContext[sqlite3.Connection], query: Query) -> Query:
        try:
            ctx.deps.execute(f"EXPLAIN {query.sql}")
        except sqlite3.Error as exc:
            raise ModelRetry(f"The database says: {exc}") from exc
        return query

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    database = connect()
    async with ledger_run("logs", ledger=ledger, **options):
        result = await make_agent(ledger, instructions).run("Which errors were there?", deps=database)
    found = [row[0] for row in database.execute(result.output.sql)]
    return f"{result.output.sql}: {', '.join(found)}", result.usage


if __name__ == "__main__":
    start(main)
