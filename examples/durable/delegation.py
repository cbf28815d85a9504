"""Delegation: an agent has another one write jokes, twice at the same time, on one usage and one limit.

python examples/durable/delegation.py [ledger.db]
"""

from typing import Any

from outside import LOOKS, Outside, call, scripted, start
from pydantic_ai import Agent, RunContext
from pydantic_ai.usage import RunUsage, UsageLimits

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "Use the `jokes` tool, then choose the best joke."
LIMITS = UsageLimits(request_limit=6, total_tokens_limit=1_000)


def make_agent(ledger: Ledger, instructions: str) -> Agent[object, str]:
    writer = Agent(
        scripted([call("final_result", "w1", response=["Why did the tea cross the road?", "Because it was steep."])]),
        name="writer",
        output_type=list[str],
        capabilities=[LedgerDurability[object](ledger)],
    )
    model = scripted([call("jokes", "j1", count=2), call("jokes", "j2", count=3)], ["Because it was steep."])
    agent = Agent(model, name="chooser", instructions=instructions, capabilities=[LedgerDurability[object](ledger)])

    @agent.tool(metadata=LOOKS)
    async def jokes(ctx: RunContext[object], count: int) -> list[str]:
        """Get jokes."""
        return (await writer.run(f"Write {count} jokes.", usage=ctx.usage)).output

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    async with ledger_run("jokes", ledger=ledger, **options):
        result = await make_agent(ledger, instructions).run("Tell me a joke.", usage_limits=LIMITS)
    return result.output, result.usage


if __name__ == "__main__":
    start(main)
