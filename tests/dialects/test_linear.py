"""G21: reading, writing and folding take time in proportion to what there is, in every format."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from antiphon.dialects import Stream, decode, encode, names
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload

FEW, MANY = 160, 640  # fewer calls take a short cut in places


def parallel_calls(count: int) -> Conversation:
    """Return a turn that makes so many calls at once, and their results."""

    calls = [
        Message(
            id=f"c{number}",
            policy="assistant",
            role_hint_for_llm="assistant",
            turn_id="t",
            payload=OptionCallPayload(invocation_id=f"i{number}", option_name="look", arguments={"x": number}),
        )
        for number in range(count)
    ]
    results = [
        Message(
            id=f"r{number}",
            policy="look",
            role_hint_for_llm="tool",
            payload=OptionResultPayload(invocation_id=f"i{number}", option_name="look", result=number),
        )
        for number in range(count)
    ]
    return Conversation([*calls, *results])


def steps(work: Callable[[], Any]) -> int:
    """Return how many bytecode instructions this runs. A busy machine changes a time, but never this count.

    Garbage is not collected meanwhile: Hypothesis has the collector call functions.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def _is_linear(work: Callable[[int], Callable[[], Any]]) -> bool:
    """Whether four times as much takes about four times as many steps. Work that is quadratic takes up to 16 times."""
    work(8)()  # what the first call prepares for all later ones is not counted
    return steps(work(MANY)) <= 5 * steps(work(FEW))


def test_a_search_through_all_for_each_is_noticed() -> None:
    def searching(count: int) -> Callable[[], Any]:
        return lambda: [any(other == -1 for other in range(count)) for _ in range(count)]

    assert not _is_linear(searching)
    assert _is_linear(lambda count: lambda: [str(each) for each in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_parallel_calls_are_written_and_read_in_linear_time(name: str) -> None:
    """8,000 parallel calls took 8 s to write for Atlas, and 28 s to read from an OpenAI chat."""

    def writing(count: int) -> Callable[[], Any]:
        conversation = parallel_calls(count)
        return lambda: encode(conversation, name)

    def reading(count: int) -> Callable[[], Any]:
        value = encode(parallel_calls(count), name).value
        return lambda: decode(value, name)

    assert _is_linear(writing)
    assert _is_linear(reading)


def streamed_calls(name: str, count: int) -> list[dict[str, Any]]:
    """Return the events of an answer that begins so many calls."""
    if name == "openai-chat":
        calls = [{"index": n, "id": f"i{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(count)]
        return [{"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [each]}}]} for each in calls]
    parts = [{"part_kind": "tool-call", "tool_name": "f", "args": "{}", "tool_call_id": f"i{n}"} for n in range(count)]
    return [{"event_kind": "part_start", "index": n, "part": part} for n, part in enumerate(parts)]


def fold(name: str, events: list[dict[str, Any]]) -> None:
    stream = Stream(name)
    for event in events:
        stream.add(event)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openai-chat", "pydantic-ai"])
def test_streamed_calls_are_folded_in_linear_time(name: str) -> None:
    """The two folds that looked through all calls for each new one; and a stream that is resumed finds its calls again."""

    def folding(count: int) -> Callable[[], Any]:
        events = streamed_calls(name, count)
        return lambda: fold(name, events)

    assert _is_linear(folding)

    whole, begun = Stream(name), Stream(name)
    for number, event in enumerate(streamed_calls(name, 6)):
        whole.add(event)
        begun.add(event)
        if number == 3:
            begun = Stream.resume(begun.state)
            begun.add(event)  # a fragment of a call that is known
            whole.add(event)
    assert begun.body == whole.body
