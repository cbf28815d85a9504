"""Multi-agent: a planner, researchers at the same time, and a writer whose text is published once.

python examples/durable/multi_agent.py [ledger.db]
"""

import asyncio
from typing import Any

from outside import LOOKS, Outside, call, last_result, scripted, start
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "You plan articles."
FACTS = {"green tea": "80 degrees", "black tea": "95 degrees"}


def answer(messages: list[ModelMessage]) -> list[str]:
    return [f"It wants {last_result(messages)}."]


def make_researcher(ledger: Ledger, topic: str) -> Agent[object, str]:
    model = scripted([call("look_up", f"look-{topic}", topic=topic)], answer)
    researcher = Agent(model, name=f"researcher-{topic.partition(' ')[0]}", capabilities=[LedgerDurability[object](ledger)])

    @researcher.tool_plain(metadata=LOOKS)
    async def look_up(topic: str) -> str:
        """Look something up."""
        return FACTS[topic]

    return researcher


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    usage = RunUsage()
    planner = Agent(
        scripted([call("final_result", "p1", response=list(FACTS))]),
        name="planner",
        output_type=list[str],
        instructions=instructions,
        capabilities=[LedgerDurability[object](ledger)],
    )
    durability = LedgerDurability[object](ledger, reconcile=outside.reconcile)
    writer = Agent(scripted([call("publish", "w1", title="Tea")], ["Published."]), name="writer", capabilities=[durability])

    @writer.tool_plain
    async def publish(title: str) -> str:
        """Publish the article."""
        return outside.do(f"publish {title}", "it is on the front page")

    async with ledger_run("article", ledger=ledger, **options):
        plan = (await planner.run("An article about tea.", usage=usage)).output
        found = await asyncio.gather(*(make_researcher(ledger, topic).run(topic, usage=usage) for topic in plan))
        notes = " ".join(result.output for result in found)
        article = await writer.run(f"Write: {notes}", usage=usage)
    return f"{notes} {article.output}", usage


if __name__ == "__main__":
    start(main)
