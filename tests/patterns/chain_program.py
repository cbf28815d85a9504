"""A chain that looks, reserves and pays in its phases, and is paused or terminated in one of them: to be killed.

`ANTIPHON_TEST_MOVE` says what is done to the thread, and in which phase: `pause@intention`. What is done has an id of its own
so that the next process, which does not know how far the last one got, does it again and means the same.
"""

import asyncio
import os
from typing import Any

from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import QUESTION
from tests.patterns.killed import Witness, serve

from antiphon.errors import ParkedError
from antiphon.ledger import Ledger, replay
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.postchain._context import thread_of_message
from antiphon.patterns.postchain._lifecycle import LIFE
from antiphon.protocol import AgentConfig

MOVE, _, PHASE = os.environ.get("ANTIPHON_TEST_MOVE", "none@").partition("@")
THREAD = thread_of_message("order")
TOOLS: Any = {"action": ("look", "pay"), "intention": ("reserve",), "understanding": ("pay",), "yield": ("look",)}
RESTS, STIRS = "rests", "stirs"
"""What the witness has before and after the time in which nothing may begin."""


class Program:
    """One life of the process."""

    def __init__(self, ledger: Ledger, witness: Witness) -> None:
        self._ledger = ledger
        self._witness = witness
        self._reached, self._released = asyncio.Event(), asyncio.Event()
        self._chain = PostChain(
            ledger,
            model=FunctionModel(self._answer, model_name="script"),
            config=ChainConfig(
                phases={phase: AgentConfig(tools=TOOLS.get(phase, ())) for phase in ("action", *TOOLS)}, max_sources=0
            ),
            tools=[self._tool("look", "none"), self._tool("reserve", "idempotent"), self._tool("pay", "once")],
            grace=0.05,
        )

    def _tool(self, name: str, effects: str) -> Tool[Any]:
        async def use(what: str) -> str:
            await self._witness.start(name)
            return f"{name}: {what}"

        return Tool[Any](use, name=name, metadata={"antiphon": {"effects": effects}})

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        phase = (info.instructions or "").partition("You are the ")[2].partition(" ")[0]
        await self._witness.start(f"model {phase}")
        if phase == PHASE:
            self._reached.set()
            await self._released.wait()
        if info.function_tools and not any(isinstance(message, ModelResponse) for message in messages):
            tools = [tool.name for tool in info.function_tools]
            return ModelResponse([ToolCallPart(tool, {"what": phase}, tool_call_id=f"{phase}-{tool}") for tool in tools])
        return ModelResponse([TextPart(f"the {phase} phase says so")])

    async def run(self) -> str:
        is_at_rest = await self._status() in ("paused", "terminated") and not await self._is_stirred()
        if is_at_rest:
            self._witness.say(RESTS)
        async with self._chain as chain:
            await chain.create(QUESTION, id="order")
            await self._send("start", "START_THREAD")
            if MOVE != "none":
                await self._move(MOVE)
            elif is_at_rest:
                await self._stir()  # a person has settled what was parked
            result = await chain.wait(THREAD)
            if result.status == "terminated":
                await self._until_nothing_is_open()
        if result.error_code == ParkedError.code:
            raise ParkedError(result.error_message or "")
        return f"{result.status} {result.response}".replace("\n", " ")

    async def _move(self, move: str) -> None:
        if not await self._ledger.find(invocation_id=move, thread_id=THREAD):
            await self._until_there()
        is_stirred = await self._is_stirred()  # looked at first: while it is taken up, it may be answered at any moment
        await self._send(move, f"{move.upper()}_THREAD")
        if not is_stirred and await self._status() in ("paused", "terminated"):
            self._witness.say(RESTS)
            self._released.set()
            await asyncio.sleep(0.02)  # that nothing happens is nothing to wait for
            if move == "pause":
                await self._stir()
        self._released.set()

    async def _until_there(self) -> None:
        """Wait until the phase is at work, or will not be: it has been, or nobody gets there."""
        ways = [asyncio.ensure_future(self._reached.wait()), asyncio.ensure_future(self._chain.wait(THREAD))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)

    async def _until_nothing_is_open(self) -> None:
        """Wait until what was under way is ended too, which must come to be by itself."""
        async with asyncio.timeout(20):
            while any(row.message.lane != "talk" for row in await self._ledger.open_calls(THREAD)):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _stir(self) -> None:
        self._witness.say(STIRS)
        await self._chain.resume(THREAD)

    async def _is_stirred(self) -> bool:
        """Whether the thread was asked to go on, by a process that did not see it do so: it does when it is taken up."""
        asked = [record.message.payload for record in await self._ledger.open_calls(THREAD)]
        return any(getattr(payload, "option_name", "") == "RESUME_THREAD" for payload in asked)

    async def _send(self, id: str, type: str) -> None:
        data = {"thread_id": THREAD, **({"reason": "enough"} if type == "TERMINATE_THREAD" else {})}
        answer = await self._chain.send({"id": id, "type": type, "data": data})
        if answer["type"] == "ERROR":
            assert answer["data"]["error_code"] == "INVALID_STATE", answer  # it has ended before

    async def _status(self) -> str:
        return (await replay(self._ledger, THREAD, LIFE.fold())).status


async def program(ledger: Ledger, witness: Witness) -> str:
    return await Program(ledger, witness).run()


if __name__ == "__main__":
    if MOVE == "terminate":  # a terminated thread leaves its last payment with an unknown outcome
        TOOLS.update(dict.fromkeys(TOOLS, ("look", "reserve")))
    serve(program)
