"""A process that hosts the threads of one agent, in a version of the program that has its own prompt.

    python build_worker.py LEDGER NAME PROMPT BEGINS SECONDS

It begins so many threads, says `ready`, and hosts all threads until it is told to end. The agent asks its model twice; the
second answer takes so many seconds, and says the prompt.
"""

import asyncio
import os
import sys

from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.ledger import open_ledger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.runtime import Settings, run


def look(what: str) -> str:
    """Look something up."""
    return f"{what} is there"


LOOK = Tool(look, metadata={"antiphon": {"effects": "none"}})  # a kill in the middle of it parks nothing


async def main(path: str, name: str, prompt: str, begins: str, seconds: str) -> None:
    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("look", {"what": "it"})])
        await asyncio.sleep(float(seconds))
        return ModelResponse([TextPart(f"by {prompt}")])

    spec: AgentSpec = PeerSpec(name="clerk", instructions=f"Answer {prompt}.", tools=("look",))
    settings = Settings(host=name, build=prompt, heartbeat=0.3, poll=0.05, block_limit=None, mismatch_patience=60)
    async with open_ledger(f"sqlite:///{path}") as ledger:
        peers = Peers(ledger, [spec], model=FunctionModel(model), tools=[LOOK], settings=settings, recover=False)
        async with peers:
            tasks = [
                asyncio.ensure_future(peers.run("Is it there?", thread_id=f"{prompt}-{each}")) for each in range(int(begins))
            ]
            os.write(1, b"ready\n")
            await peers.system.host()
            await asyncio.gather(*tasks)


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
