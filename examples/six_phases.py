"""A question goes through six phases, with a tool of one's own; the thread is paused and goes on. Needs no network."""

import asyncio

from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.protocol import PHASES, AgentConfig
from antiphon.protocol.flows import find_flow
from antiphon.retrieval import KnowledgeBase

TEA = "Green tea is steeped at 80 degrees for two minutes. Black tea is steeped at 95 degrees for four."


def kettle(degrees: int) -> str:
    """Heat water."""
    return f"the water has {degrees} degrees"


async def main() -> None:
    ledger = MemoryLedger()
    await KnowledgeBase(ledger).add("tea.md", TEA)
    config = ChainConfig(phases={"action": AgentConfig(tools=("knowledge_base", "kettle"))})
    async with PostChain(ledger, model="scripted", config=config, tools=[kettle]) as chain:
        thread_id = await chain.create("How hot is green tea steeped?", user_id="ada")
        await chain.start(thread_id)
        paused = await chain.pause(thread_id)
        print(f"paused before or in the phase {paused.current_phase}; nothing begins until it is resumed")
        await chain.resume(thread_id)
        result = await chain.wait(thread_id)
        print(result.response)
        print()

        for phase in PHASES:
            print(f"{phase:14} confidence {result.outputs[phase]['confidence']}")
        messages = [record.message async for record in ledger.read(thread_id)]
        verdict = find_flow("phase-processing").check(messages)
        print(f"{len(messages)} messages; the flow of phases is {verdict.state}")


if __name__ == "__main__":
    asyncio.run(main())
