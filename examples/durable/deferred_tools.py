"""Deferred tools: a tool starts a job elsewhere and does not wait. The program waits, and gives the agent the result.

python examples/durable/deferred_tools.py [ledger.db]
"""

from typing import Any

from outside import Outside, call, last_result, scripted, start
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger
from antiphon.messages import Json

INSTRUCTIONS = "You have reports made."


def answer(messages: list[ModelMessage]) -> list[str]:
    return [f"Done: {last_result(messages)}"]


def make_agent(ledger: Ledger, outside: Outside, instructions: str) -> Agent[object, str | DeferredToolRequests]:
    agent = Agent(
        scripted([call("make_report", "d1", quarter=3)], answer),
        name="reporter",
        output_type=[str, DeferredToolRequests],
        instructions=instructions,
        capabilities=[LedgerDurability[object](ledger, reconcile=outside.reconcile)],
    )

    @agent.tool(metadata={"antiphon": {"effects": "idempotent"}})
    async def make_report(ctx: RunContext[object], quarter: int) -> str:
        """Have a report made, which takes hours."""
        raise CallDeferred(metadata={"job": f"job-{quarter}"})

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    agent, usage = make_agent(ledger, outside, instructions), RunUsage()
    async with ledger_run("report", ledger=ledger, **options) as run:
        first = await agent.run("The report of the third quarter, please.", usage=usage)
        assert isinstance(first.output, DeferredToolRequests)  # noqa: S101 (the script says so)
        results = DeferredToolResults()
        for asked in first.output.calls:
            job = first.output.metadata[asked.tool_call_id]["job"]

            async def wait(key: str, job: str = job) -> Json:
                return outside.do(f"finish {job}", f"{job} has 12 pages")

            results.calls[asked.tool_call_id] = await run.effect(f"wait-{job}", {"job": job}, wait, effects="idempotent")
        result = await agent.run(message_history=first.all_messages(), deferred_tool_results=results, usage=usage)
    return result.output, usage


if __name__ == "__main__":
    start(main)
