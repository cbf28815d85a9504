"""Limits and size: what a dialect reads is within the limits in force, and much of it takes no longer than it must."""

from contextlib import suppress
from datetime import UTC, datetime
from time import thread_time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import strategies
from tests.dialects import conversations
from tests.dialects.test_fuzz import BODIES

from antiphon import Conversation, Message, PartsPayload, TextPart, convert, decode, dumps, encode, loads
from antiphon.dialects._content import time_text
from antiphon.dialects._unit_dialect import Writing
from antiphon.errors import DecodeError
from antiphon.messages import Limits, use_limits

NUMBERS = '{"a":[' + ",".join(["1e15"] * 350) + "]}"
"""Arguments that take four times the bytes once they are parsed and written again."""
DEEP = '{"a":' * 100 + "1" + "}" * 100
MANY = [0] * 150_000
ACTION = {"type": "action", "tool": "search", "args": {}, "agent_key": "scout"}
OBSERVATION = {"type": "observation", "agent_key": "scout", "content": "found"}
SLOW = 3.0
"""Seconds of this thread; what is tested takes a tenth."""


def _tool_call(arguments: str, invocation: str = "c") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": invocation, "type": "function", "function": function}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "unit", "limits", "reason"),
    [
        ("marsys", _tool_call(NUMBERS), Limits(message_bytes=4000), "bytes, more than 4000"),
        ("marsys", _tool_call(DEEP), Limits(), "nested deeper than 64"),
        ("choir", {"type": "X"}, Limits(message_bytes=150), "bytes, more than 150"),
        ("choir", {"type": "X", "data": {"a": MANY}}, Limits(), "more than 100000 values"),
        ("choir", {"type": "HEARTBEAT_RESPONSE", "data": {"a": MANY}}, Limits(), "more than 100000 values"),
        ("agent-framework", {"type": "user_message", "content": MANY}, Limits(), "more than 100000 values"),
        ("atlas", {"content": "", "tool_results": [{"call_id": "c", "result": MANY}]}, Limits(), "more than 100000 values"),
        (
            "atlas",
            {"content": "x", "metadata": {"type": "x", **{f"{key:04}": 1 for key in range(1200)}}},
            Limits(message_bytes=10_000),
            "bytes, more than 10000",
        ),
    ],
)
def test_a_message_beyond_a_limit_is_refused(dialect: str, unit: Any, limits: Limits, reason: str) -> None:
    with use_limits(limits), pytest.raises(DecodeError, match=reason) as caught:
        decode(orjson.dumps([unit]), dialect)

    assert caught.value.where.startswith("[0]")


@pytest.mark.parametrize("dialect", BODIES)
@pytest.mark.parametrize("size", [100, 200, 400, 800, 1600, 3200])
@pytest.mark.parametrize("depth", [2, 4, 8, 16])
def test_everything_that_is_read_can_be_stored_and_loaded_within_the_same_limits(dialect: str, size: int, depth: int) -> None:
    with use_limits(Limits(message_bytes=size, depth=depth, nodes=size // 8)):
        for body in BODIES[dialect]:
            with suppress(DecodeError):
                read = decode(orjson.dumps(body), dialect)
                assert [loads(dumps(message), Message) for message in read] == list(read)


@pytest.mark.slow
def test_many_open_calls_may_be_answered_in_any_order() -> None:
    """Each answer finds its call at once (G21): to compare it with all that are open takes half a minute here."""
    count, start = 2_000, thread_time()
    calls = [{**ACTION, "call_id": f"c{number}"} for number in range(count)]
    answers = [{**OBSERVATION, "call_id": call["call_id"]} for call in reversed(calls)]

    read = decode([*calls, *answers], "agent-framework")

    assert read.pairs() == tuple((count - 1 - number, count + number) for number in range(count))
    assert thread_time() - start < SLOW


def test_an_answer_without_an_id_is_of_the_oldest_call_that_none_has_named() -> None:
    calls = [{**ACTION, "call_id": name} for name in ("a", "b", "c")]
    answers = [{**OBSERVATION, "call_id": "b"}, OBSERVATION, OBSERVATION, OBSERVATION]

    read = decode([*calls, *answers], "agent-framework")

    assert [message.invocation_id for message in read[3:]] == ["b", "a", "c", None]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["choir", "agent-framework"])
def test_many_results_of_another_option_are_each_reported(target: str) -> None:
    """Each is looked up (G21): to go through all calls for every one takes several times as long here."""
    count = 3_000
    calls = [_tool_call("{}", f"c{number}") for number in range(count)]
    results = [{"role": "tool", "content": "x", "name": "g", "tool_call_id": f"c{number}"} for number in range(count)]
    converted = convert(orjson.dumps([*calls, *results]), source="marsys", target=target)
    start = thread_time()

    assert sum(loss.what == "option" for loss in converted.losses) == count
    assert thread_time() - start < SLOW


@given(strategies.times)
def test_a_time_is_written_as_isoformat_writes_it(time: datetime) -> None:
    assert time_text(time) == time.isoformat()


@given(strategies.times)
def test_atlas_writes_every_time_so_that_it_can_be_read(time: datetime) -> None:
    said = Message(policy="user", payload=PartsPayload(parts=(TextPart(text="now"),)), created_at=time)
    written = encode(Conversation([said]), "atlas")

    (read,) = decode(written.value, "atlas")
    assert (read.created_at == time) == ("time" not in [loss.what for loss in written.losses])


def test_atlas_writes_the_last_moment_there_is() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    said = Message(policy="user", payload=PartsPayload(parts=(TextPart(text="late"),)), created_at=last)
    written = encode(Conversation([said]), "atlas")

    assert decode(written.value, "atlas")[0].created_at == datetime(9999, 12, 31, 23, 59, 59, 999969, tzinfo=UTC)
    assert [loss.what for loss in written.losses] == ["time"]


@pytest.mark.slow
@given(conversations.conversations(), st.sampled_from([None, "c0"]))
def test_a_writer_pairs_as_the_conversation_does(conversation: Conversation, again: str | None) -> None:
    said = Conversation(_renamed(message, again) for message in conversation if message.lane != "effect")
    writing = Writing(said)

    assert [writing.call_of(message) for message in said] == [_call_of(said, message) for message in said]


def _renamed(message: Message, invocation: str | None) -> Message:
    """The message under another invocation, if it is of one."""
    if invocation is None or message.invocation_id is None:
        return message
    return message.model_copy(update={"payload": message.payload.model_copy(update={"invocation_id": invocation})})


def _call_of(said: Conversation, message: Message) -> Message | None:
    return said.call_of(message) if message.kind == "option_result" else None
