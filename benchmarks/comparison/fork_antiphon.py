"""Fork onto another model, with antiphon: what the small model has found out is answered by the large one."""

from contextlib import suppress

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter
from scripts_pydantic_ai import scripted
from world import FOLDER, INSTRUCTIONS, ON_CHANGE, pay, start

from antiphon import encode, open_ledger
from antiphon.agents import LedgerDurability
from antiphon.durable import current_effect, ledger_run
from antiphon.ledger import replay

LEDGER = f"sqlite:///{FOLDER}/ledger.db"
small = scripted("small", [("measure", "c1", {"place": "Oslo"})], "Nine.")
large = scripted("large", "", "It is nine degrees in Oslo.")
agent = Agent(small, name="clerk", instructions=INSTRUCTIONS, capabilities=[LedgerDurability(LEDGER)])


@agent.tool_plain
async def measure(place: str) -> str:
    """Measure how warm it is. Each measurement costs money."""
    return pay(current_effect().key, place)


async def ask() -> str:
    async with ledger_run("question", ledger=LEDGER, on_change=ON_CHANGE):
        return (await agent.run("How warm is it in Oslo?")).output


async def fork() -> str:
    async with open_ledger(LEDGER) as ledger:
        with suppress(ValueError):  # it was forked before
            await ledger.fork("question", at_step=1, into="question-large")
        branch = await ledger.thread("question-large")
        shared = await replay(ledger, "question-large", upto=branch.forked_at)
        history = ModelMessagesTypeAdapter.validate_python(encode(shared, "pydantic-ai").value)
        async with ledger_run("question-large", ledger=ledger, on_change=ON_CHANGE):
            return (await agent.run(model=large, message_history=history)).output


start(ask=ask, fork=fork)
