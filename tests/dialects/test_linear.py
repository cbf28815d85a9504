"""G21: reading, writing and folding take time in proportion to what there is, in every format."""

import gc
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from antiphon.dialects import decode, encode, names
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
        assert seconds(large) < 24 * max(seconds(small), 0.002)
