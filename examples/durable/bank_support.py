"""Bank support: dependencies, a structured answer, and a tool that must not run twice.

python examples/durable/bank_support.py [ledger.db]
"""

from dataclasses import dataclass
from typing import Any

from outside import LOOKS, Outside, call, scripted, start
from pydantic import BaseModel, Field
from pydantic_ai import Agent, RunContext
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "You are a support agent in our bank. Help the customer, and judge the risk of the query."


@dataclass
class Customer:
    id: int
    bank: Outside


class Support(BaseModel):
    advice: str
    card_is_blocked: bool
    risk: int = Field(ge=0, le=10)


MODEL = scripted(
    [call("balance", "b1", include_pending=True)],
    [call("block_card", "b2", reason="lost")],
    [call("final_result", "b3", advice="Your card is blocked.", card_is_blocked=True, risk=8)],
)


def make_agent(ledger: Ledger, bank: Outside, instructions: str) -> Agent[Customer, Support]:
    agent = Agent(
        MODEL,
        name="support",
        deps_type=Customer,
        output_type=Support,
        instructions=instructions,
        capabilities=[LedgerDurability[Customer](ledger, reconcile=bank.reconcile)],
    )

    @agent.instructions
    def add_name(ctx: RunContext[Customer]) -> str:
        return f"The customer has the number {ctx.deps.id}."

    @agent.tool(metadata=LOOKS)
    async def balance(ctx: RunContext[Customer], include_pending: bool) -> str:
        """Return the customer's balance."""
        return "123.45" if include_pending else "100.00"

    @agent.tool
    async def block_card(ctx: RunContext[Customer], reason: str) -> str:
        """Block the customer's card."""
        return ctx.deps.bank.do(f"block the card of {ctx.deps.id}", f"blocked: {reason}")

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    customer = Customer(123, outside)
    async with ledger_run("bank-123", ledger=ledger, **options):
        result = await make_agent(ledger, outside, instructions).run("I have lost my card!", deps=customer)
    return result.output.model_dump(), result.usage


if __name__ == "__main__":
    start(main)
