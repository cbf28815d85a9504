"""Patterns that work together: a thread of one calls another; one ledger, one thread, and it survives."""

from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import run

from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload
from antiphon.patterns.cast import AgentSpec, together
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.patterns.workers import Workers


def calls(tool: str, **arguments: Any) -> Callable[[list[ModelMessage], AgentInfo], ModelResponse]:
    """Stand in for a model that calls a tool once, and says what came of it."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last: Any = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse([TextPart(f"They say: {last.content}")])
        return ModelResponse([ToolCallPart(tool, arguments, tool_call_id=f"call-{tool}")])

    return answer


def says(text: str) -> FunctionModel:
    return FunctionModel(lambda messages, info: ModelResponse([TextPart(text)]))


def test_a_peer_delegates_to_workers_in_the_same_thread() -> None:
    async def main() -> None:
        ledger = MemoryLedger()
        workers = Workers(ledger, AgentSpec(name="controller"), [AgentSpec(name="worker")], model=says("391"))
        team = workers.as_tool("bureau", "Have something worked out.")
        clerk = PeerSpec(name="clerk", tools=("bureau",))
        peers = Peers(ledger, [clerk], model=FunctionModel(calls("bureau", task="17*23?")), tools=[team])
        async with together(peers, workers):
            for _ in range(2):  # the second time it is what is recorded
                outcome = await peers.run("How much is it?", thread_id="t")
                assert outcome.response == "They say: 391"
        rows = [record.message async for record in ledger.read("t")]
        asked = [row.to for row in rows if row.lane == "control" and isinstance(row.payload, OptionCallPayload)]
        assert asked == [("peer/clerk",), ("controller/controller",)]
        threads = {head.thread_id for head in await ledger.heads() if not head.thread_id.startswith("system/")}
        assert threads == {"t"}

    run(main())
