"""The short way for plain histories gives what the long way gives, and is taken where it should be."""

import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.conversations import conversations, orderly

from antiphon import Conversation, Message, decode, encode
from antiphon.dialects import Projection
from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects._order import NotPlainError
from antiphon.dialects._registry import get
from antiphon.messages import Tool

NAMES = ("openai-chat", "anthropic-messages", "gemini")
PROVIDERS = (*NAMES, "openai-responses", "pydantic-ai")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(conversation=conversations() | orderly(), as_policy=st.sampled_from([None, None, "assistant", "planner"]))
def test_both_ways_write_the_same(name: str, conversation: Conversation, as_policy: str | None) -> None:
    """To the order of keys, with the same aliases."""
    short, long = get(name), _the_long_way(name)
    ours, theirs = short.encode(conversation, as_policy=as_policy), long.encode(conversation, as_policy=as_policy)

    assert json.dumps(ours.value) == json.dumps(theirs.value)
    assert ours.aliases == theirs.aliases


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(conversation=conversations() | orderly(), data=st.data())
def test_both_ways_write_the_same_of_what_came_from_another_format(
    name: str, conversation: Conversation, data: st.DataObject
) -> None:
    other = data.draw(st.sampled_from([each for each in (*NAMES, "pydantic-ai") if each != name]))
    came = decode(encode(conversation, other).value, other)

    assert json.dumps(get(name).encode(came).value) == json.dumps(_the_long_way(name).encode(came).value)


def _the_long_way(name: str) -> BodyDialect:
    return replace(_provider(name), write_plain=None)


def _provider(name: str) -> BodyDialect:
    dialect = get(name)
    assert isinstance(dialect, BodyDialect)
    return dialect


# ---------------------------------------------------------------- which way


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


THOUGHT = {"kind": "reasoning", "text": "hm"}
IMAGE = {"kind": "media", "modality": "image", "url": "https://example.com/x.png"}
LEFT_OUT = {"metadata": {"checks": {"left_out": "AP101"}}}
ALIAS = next(iter(encode(Conversation(tools=[Tool(name="a b")]), "openai-chat").aliases))
ERROR = {"is_error": True, "error_type": "Timeout", "error_message": "too long"}

PLAIN = {
    "words and calls in one utterance, and a later one": [
        _words(0, "system", "Be brief."),
        _words(1, "user", "How warm is it?"),
        _words(2, "assistant", "I shall look.", turn_id="t"),
        _call(3, "c1", turn_id="t"),
        _call(4, "c2", turn_id="t"),
        _result(5, "c2", result={"heat": 18}),
        _result(6, "c1", **ERROR),
        _words(7, "assistant", "Warm."),
    ],
    "calls alone, and results that are nothing or a text": [
        _words(0, "user", "How warm is it?"),
        _call(1, "c1"),
        _call(2, "c2"),
        _result(3, "c1"),
        _result(4, "c2", result="warm"),
    ],
    "an option whose alias another one has for its name": [
        _words(0, "user", "How warm is it?"),
        *[_call(1, "c1", "a b"), _call(2, "c2", ALIAS), _result(3, "c1", "a b"), _result(4, "c2", ALIAS)],
    ],
    "words of several parts": [
        _said(
            0, "user", {"kind": "parts", "parts": [{"kind": "text", "text": "Which?"}, IMAGE, {"kind": "data", "data": [1]}]}
        ),
        _said(1, "assistant", {"kind": "parts", "parts": [THOUGHT, {"kind": "text", "text": "This."}]}, turn_id="t"),
        *[_call(2, "c1", turn_id="t"), _result(3, "c1")],
    ],
}

NOT_PLAIN = {
    "a call is not answered": [_words(0, "user", "hi"), _call(1, "c1")],
    "a result answers nothing": [_words(0, "user", "hi"), _result(1, "c1")],
    "something is said before the result": [_words(0, "user", "hi"), _call(1, "c1"), _words(2, "user", "?"), _result(3, "c1")],
    "another utterance calls before the result": [
        _words(0, "user", "hi"),
        _call(1, "c1", turn_id="t"),
        _call(2, "c2", turn_id="u"),
        _result(3, "c1"),
        _result(4, "c2"),
    ],
    "an id is used twice": [
        _words(0, "user", "hi"),
        *[_call(1, "c1"), _result(2, "c1"), _words(3, "user", "again"), _call(4, "c1"), _result(5, "c1")],
    ],
    "an id is refused": [_words(0, "user", "hi"), _call(1, "ü" * 50), _result(2, "ü" * 50)],
    "a message is for actors": [_words(0, "user", "hi"), _words(1, "assistant", "started", lane="control")],
    "a repair left a message out": [
        _words(0, "user", "hi"),
        _words(1, "user", "hi", **LEFT_OUT),
    ],
    "a repair left a part out": [
        _said(0, "user", {"kind": "parts", "parts": [{"kind": "text", "text": "hi"}, {**IMAGE, **LEFT_OUT}]}),
    ],
    "a result shows something besides": [_words(0, "user", "hi"), _call(1, "c1"), _result(2, "c1", parts=[IMAGE])],
    "words with calls say nothing": [
        _words(0, "user", "hi"),
        _said(1, "assistant", {"kind": "parts", "parts": [THOUGHT]}, turn_id="t"),
        *[_call(2, "c1", turn_id="t"), _result(3, "c1")],
    ],
}

ONLY_HERE = {
    "anthropic-messages": [
        [_words(0, "assistant", "Hello!")],
        [_words(0, "user", "hi"), _words(1, "assistant", " ")],
        [_words(0, "user", "hi"), _words(1, "assistant", " ", turn_id="t"), _call(2, "c1", turn_id="t"), _result(3, "c1")],
    ],
    "gemini": [
        [_words(0, "assistant", "Hello!")],
        [_words(0, "user", "hi"), _words(1, "assistant", "I shall look."), _call(2, "c1"), _result(3, "c1")],
        [_words(0, "user", "hi"), _words(1, "assistant", "")],
    ],
}
"""What is not plain to one format: it wants something said before, or refuses it."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", PLAIN)
def test_plain_histories_go_the_short_way(name: str, case: str) -> None:
    assert _goes_short(name, PLAIN[case])


TAKES_ANY_ID = ("gemini", "an id is refused")


@pytest.mark.parametrize(("name", "case"), [each for each in product(NAMES, NOT_PLAIN) if each != TAKES_ANY_ID])
def test_all_others_go_the_long_way(name: str, case: str) -> None:
    assert not _goes_short(name, NOT_PLAIN[case])


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, cases in ONLY_HERE.items() for place in range(len(cases))]
)
def test_a_part_that_one_format_writes_differently_takes_the_long_way_there(name: str, place: int) -> None:
    assert not _goes_short(name, ONLY_HERE[name][place])


@pytest.mark.parametrize("name", NAMES)
def test_messages_from_the_format_itself_take_the_long_way(name: str) -> None:
    came = decode(encode(Conversation(PLAIN["calls alone, and results that are nothing or a text"]), name).value, name)

    assert not _goes_short(name, list(came))


def _goes_short(name: str, messages: Sequence[Message]) -> bool:
    dialect = _provider(name)
    written: list[Any] = []

    def write_plain(*given: Any) -> list[Any]:
        assert dialect.write_plain is not None
        written.append(dialect.write_plain(*given))
        return written[-1]

    encoded = replace(dialect, write_plain=write_plain).encode(Conversation(messages))

    assert json.dumps(encoded.value) == json.dumps(_the_long_way(name).encode(Conversation(messages)).value)
    return bool(written)


def test_a_dialect_may_say_at_any_time_that_a_history_is_not_plain() -> None:
    def give_up(*_: Any) -> list[Any]:
        raise NotPlainError

    conversation = Conversation(PLAIN["calls alone, and results that are nothing or a text"])

    assert replace(_provider("gemini"), write_plain=give_up).encode(conversation) == encode(conversation, "gemini")


# ---------------------------------------------------------------- a projection over both


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
def test_a_projection_goes_on_after_the_short_way(name: str) -> None:
    history = Conversation(PLAIN["words and calls in one utterance, and a later one"])
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
