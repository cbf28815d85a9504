"""A projection writes what `encode` writes, and the work grows with the length."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from antiphon import Conversation, Message, decode, encode
from antiphon.dialects import Projection

NAMES = ("openai-chat", "anthropic-messages", "gemini")
PROVIDERS = (*NAMES, "openai-responses", "pydantic-ai")


def _said(position: int, policy: str, payload: dict[str, Any], **fields: Any) -> Message:
    return Message.model_validate({"id": str(position), "policy": policy, "payload": payload, **fields})


def _words(position: int, policy: str, text: str, **fields: Any) -> Message:
    return _said(position, policy, {"kind": "parts", "parts": [{"kind": "text", "text": text}]}, **fields)


def _call(position: int, invocation: str, option: str = "weather", **fields: Any) -> Message:
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": option, "arguments": {"city": "Oslo"}}
    return _said(position, "assistant", payload, **fields)


def _result(position: int, invocation: str, option: str = "weather", **outcome: Any) -> Message:
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    return _said(position, option, payload)


HISTORY = [
    _words(0, "system", "Be brief."),
    _words(1, "user", "How warm is it?"),
    _words(2, "assistant", "I shall look.", turn_id="t"),
    _call(3, "c1", turn_id="t"),
    _call(4, "c2", turn_id="t"),
    _result(5, "c2", result={"heat": 18}),
    _result(6, "c1", is_error=True, error_type="Timeout", error_message="too long"),
    _words(7, "assistant", "Warm."),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_projection_writes_a_name_that_had_an_alias_and_then_comes_from_the_format_itself(name: str) -> None:
    """Then it is kept everywhere, as `encode` keeps it."""
    projection = Projection(name)
    history = Conversation([_words(0, "user", "hi"), _call(1, "c1", "a b"), _result(2, "c1", "a b")])
    assert projection.encode(history).aliases

    answers = (_call(3, "c2", "a b"), _result(4, "c2", "a b"))
    history = history.extend(each.model_copy(update={"metadata": {name: {}}}) for each in answers)

    assert projection.encode(history) == encode(history, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_projection_writes_only_what_is_new(name: str) -> None:
    history = Conversation(HISTORY)
    projection = Projection(name)
    before = _units(projection.encode(history).value)

    longer = history.append(_words(8, "user", "Thanks."))
    after = projection.encode(longer)

    assert after == encode(longer, name)
    assert all(one is other for one, other in zip(before, _units(after.value), strict=False))


def _units(value: Any) -> list[Any]:
    return value["contents"] if "contents" in value else value["messages"]


# ---------------------------------------------------------------- length


def _turns(count: int, names: str) -> Conversation:
    """A history of so many turns, five messages each."""
    return Conversation(
        message
        for turn in range(count)
        for message in (
            _words(5 * turn, "user", "How warm is it?"),
            _call(5 * turn + 1, f"{names}{turn} a", turn_id=f"turn {turn}"),
            _call(5 * turn + 2, f"{names}{turn} b", turn_id=f"turn {turn}"),
            _result(5 * turn + 3, f"{names}{turn} a", result={"heat": 18}),
            _result(5 * turn + 4, f"{names}{turn} b", result="warm"),
        )
    )


def _calls_made(work: Callable[[], object]) -> int:
    """Count calls, with no collection of garbage between: Hypothesis has it call functions."""
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("kind", ["plain", "with ids that are refused", "from the format itself"])
def test_eight_times_the_length_is_eight_times_the_work(name: str, kind: str) -> None:
    """Counted in calls, of which a machine with other things to do makes no more."""
    histories = [_turns(count, "ü" * 65 if kind == "with ids that are refused" else "c") for count in (10, 80)]
    if kind == "from the format itself":
        histories = [decode(encode(history, name).value, name) for history in histories]
    encode(histories[0], name)  # builds what is built once

    short, long = (_calls_made(partial(encode, history, name)) for history in histories)

    assert long <= 8.2 * short


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_projection_takes_the_same_work_for_a_turn_however_long_the_history_is(name: str) -> None:
    made: list[int] = []
    for count in (10, 80):
        history, projection = _turns(count, "c"), Projection(name)
        projection.encode(history[:-5])
        made.append(_calls_made(partial(projection.encode, history)))

    assert made[0] == made[1]
