"""G21: reading, writing and folding take time in proportion to what there is, in every format."""

import gc
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from antiphon.dialects import Stream, decode, encode, names
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload

FEW, MANY = 200, 1600


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


def seconds(work: Callable[[], Any]) -> float:
    """Return the least of three tries, without the collector, which takes its time when it likes."""
    gc.disable()
    try:
        return min(_once(work) for _ in range(2))
    finally:
        gc.enable()


def _once(work: Callable[[], Any]) -> float:
    began = process_time()
    work()
    return process_time() - began


def _is_linear(small: Callable[[], Any], large: Callable[[], Any]) -> bool:
    """Whether eight times as much takes far less than 64 times as long, in one of a few tries: others use the machine too."""
    return any(seconds(large) < 24 * max(seconds(small), 0.002) for _ in range(5))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_parallel_calls_are_written_and_read_in_linear_time(name: str) -> None:
    """8,000 parallel calls took 8 s to write for Atlas, and 28 s to read from an OpenAI chat; eight times as many may take
    24 times as long here, where what is quadratic takes 64.
    """
    few, many = parallel_calls(FEW), parallel_calls(MANY)
    less, more = encode(few, name).value, encode(many, name).value
    for small, large in (
        (lambda: encode(few, name), lambda: encode(many, name)),
        (lambda: decode(less, name), lambda: decode(more, name)),
    ):
        assert _is_linear(small, large)


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
    few, many = streamed_calls(name, 1000), streamed_calls(name, 8000)
    assert _is_linear(lambda: fold(name, few), lambda: fold(name, many))

    whole, begun = Stream(name), Stream(name)
    for number, event in enumerate(few[:6]):
        whole.add(event)
        begun.add(event)
        if number == 3:
            begun = Stream.resume(begun.state)
            begun.add(event)  # a fragment of a call that is known
            whole.add(event)
    assert begun.body == whole.body
