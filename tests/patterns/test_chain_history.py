"""A chain goes on with what began elsewhere, and answers agents of other patterns; a process may die at any row of it."""

from typing import Any

import pytest
from pydantic_ai.messages import ImageUrl, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import NotingLedger

from antiphon.dialects import decode
from antiphon.errors import RefusedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import MediaPart, Message, PartsPayload, current_port
from antiphon.messages import TextPart as Words
from antiphon.patterns.cast import together
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.patterns.postchain import ChainConfig, PostChain, rerun
from antiphon.protocol import PHASES

EARLIER = [
    {"role": "user", "content": "Which city?"},
    {"role": "assistant", "content": "Lisbon."},
    {"role": "user", "content": "And the river?"},
]
PICTURE = Message(
    policy="user",
    role_hint_for_llm="user",
    payload=PartsPayload(parts=(Words(text="What is this?"), MediaPart(modality="image", url="https://example.org/a.png"))),
)
QUICK = ChainConfig(max_sources=0, backoff=0)


class Hearing(FunctionModel):
    """A model that notes what it is told, and answers every phase the same."""

    def __init__(self) -> None:
        self.told: list[list[ModelMessage]] = []
        super().__init__(self._answer, model_name="hearing")

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.told.append(messages)
        return ModelResponse([TextPart("The Tagus.")])


async def left_behind(ledger: Ledger, thread_id: str, upto: int, pattern: str | None) -> MemoryLedger:
    """Return the ledger of a process that dies when a thread has so many rows."""
    left = MemoryLedger()
    rows = [record.message async for record in ledger.read(thread_id, before=upto + 1)]
    epoch = await left.claim(thread_id, kind="thread")
    await left.append(thread_id, rows, epoch=epoch, pattern=pattern, allow_foreign=True)
    await left.release(thread_id, epoch=epoch, wake_at=current_port().now())
    return left


@pytest.mark.slow
async def test_a_conversation_begins_a_thread_and_the_next_turns_know_it_too() -> None:
    ledger, model = MemoryLedger(), Hearing()
    async with PostChain(ledger, model=model, config=QUICK) as chain:
        first = await chain.run(decode(EARLIER, "openai-chat"))
        model.told.clear()
        second = await chain.run("And its length?", thread_id=first.thread_id)
    assert (first.status, second.status) == ("completed", "completed")
    for told in model.told:
        assert "Lisbon." in str(told[:-1])
        assert "The Tagus." in str(told[-1]) or "Earlier in this conversation" in str(told[-1])


@pytest.mark.slow
async def test_a_picture_is_shown_once_in_its_own_turn_and_in_the_next() -> None:
    model = Hearing()
    async with PostChain(model=model, config=QUICK) as chain:
        first = await chain.run(PICTURE)
        assert [_pictures(told) for told in model.told] == [1] * len(PHASES)
        model.told.clear()
        await chain.run("Really?", thread_id=first.thread_id)
    assert [_pictures(told) for told in model.told] == [1] * len(PHASES)


@pytest.mark.slow
async def test_a_turn_with_a_history_runs_the_same_way_again() -> None:
    """G17: the history is read from the thread, so that nothing depends on the program that handed it over."""
    ledger = MemoryLedger()
    async with PostChain(ledger, model=Hearing(), config=QUICK) as chain:
        result = await chain.run(decode(EARLIER, "openai-chat"))
    assert await rerun(ledger, result.thread_id, config=QUICK, make_model=lambda name: Hearing()) is None


async def test_a_thread_of_another_pattern_is_not_made_one_of_a_chain() -> None:
    ledger = MemoryLedger()
    await ledger.append("t", decode(EARLIER, "openai-chat"), pattern="peers", outside=True)
    async with PostChain(ledger, model=Hearing(), config=QUICK) as chain:
        before = await ledger.head("t")
        with pytest.raises(RefusedError, match="one of the pattern 'peers'"):
            await chain.run("Go on.", thread_id="t")
        with pytest.raises(RefusedError, match="there is no thread"):
            await chain.start("t", "Go on.")
        assert await ledger.head("t") == before


@pytest.mark.slow
async def test_a_conversation_is_taken_up_again_wherever_the_process_died() -> None:
    ledger, task = NotingLedger(), decode(EARLIER, "openai-chat")
    async with PostChain(ledger, model=Hearing(), config=QUICK) as chain:
        whole = await chain.run(task, thread_id="t")
    for upto in ledger.ends["t"][::12]:
        left, model = await left_behind(ledger, "t", upto, "postchain" if upto > len(EARLIER) else None), Hearing()
        async with PostChain(left, model=model, config=QUICK) as chain:
            again = await chain.run(task, thread_id="t")
        assert (again.status, again.response) == ("completed", whole.response)
        assert len(model.told) <= len(PHASES)
        assert not await left.open_calls("t")
        rows = [record.message async for record in left.read("t")]
        assert [row.text for row in rows if row.parent_id is None].count("Lisbon.") == 1


@pytest.mark.slow
async def test_a_chain_that_is_a_tool_is_taken_up_again_wherever_the_process_died() -> None:
    ledger = NotingLedger()
    whole, _ = await _asked(ledger)
    assert whole == "They say: The Tagus."
    for upto in ledger.ends["t"][::16]:
        left = await left_behind(ledger, "t", upto, "peers")
        again, model = await _asked(left)
        assert again == whole
        assert len(model.told) <= len(PHASES)
        assert not await left.open_calls("t")


async def _asked(ledger: Ledger) -> tuple[str | None, Hearing]:
    """Have a peer ask a chain."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last: Any = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse([TextPart(f"They say: {last.content}")])
        return ModelResponse([ToolCallPart("rivers", {"task": "Which river?"}, tool_call_id="c")])

    chain = PostChain(ledger, model=(model := Hearing()), config=QUICK)
    clerk = PeerSpec(name="clerk", tools=("rivers",))
    peers = Peers(ledger, [clerk], model=FunctionModel(answer), tools=[chain.as_tool("rivers", "Ask about rivers.")])
    async with together(peers, chain):
        return (await peers.run("Which river is it?", thread_id="t")).response, model


def _pictures(messages: list[ModelMessage]) -> int:
    shown = [getattr(part, "content", None) for message in messages for part in message.parts]
    return sum(isinstance(each, ImageUrl) for content in shown if isinstance(content, list) for each in content)
