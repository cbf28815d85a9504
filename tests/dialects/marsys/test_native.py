"""MARSYS as its users import it: messages, their forms, validation, chains and filters."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.strategies import json_objects, json_values, keys, names, scalars, texts
from typing_extensions import override

from antiphon.dialects.marsys import (
    VALID_ROLES,
    Message,
    MessageChain,
    error_message,
    filter_messages,
    process_for_llm,
    process_llm_response,
    sanitize_tool_name,
    validate_message,
    validate_tool_response,
    validation_errors,
)
from antiphon.dialects.marsys._message import FIELDS
from antiphon.messages import Limits, use_limits, use_port
from antiphon.testing import CountingPort

ROLES = ["system", "user", "assistant", "tool", "error", "agent_call", "agent_response"]
CALL: dict[str, Any] = {
    "id": "call_7",
    "type": "function",
    "function": {"name": "find_train", "arguments": '{"from": "Oslo", "to": "Bergen"}'},
}

zones: st.SearchStrategy[tzinfo | None] = st.one_of(
    st.none(), st.timezones(), st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
)
moments = st.datetimes(timezones=zones, allow_imaginary=True)
calls = st.one_of(
    st.dictionaries(keys, st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6), max_size=4),
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": texts}, optional={"arguments": texts | scalars})}),
)
messages = st.builds(
    Message,
    role=st.sampled_from(ROLES) | texts,
    content=texts,
    name=st.none() | texts,
    message_id=names,
    tool_calls=st.none() | st.lists(calls, max_size=3),
    tool_call_id=st.none() | texts,
    metadata=st.none() | json_objects,
    timestamp=moments,
    extra=st.dictionaries(texts.filter(lambda key: key not in FIELDS), json_values, max_size=2),
)


# ---------------------------------------------------------------- making messages


def test_two_arguments_make_a_message() -> None:
    """MA-001, MA-002, MA-003, MA-004, MA-005, MA-006, MA-007, MA-008, MA-017: the others have defaults."""
    with use_port(CountingPort()):
        message = Message("user", "Is it raining?")

    assert (message.role, message.content) == ("user", "Is it raining?")
    assert (message.name, message.tool_calls, message.tool_call_id, message.metadata) == (None, None, None, None)
    assert message.message_id == "id-1"
    assert message.timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert message.extra == {}


def test_each_message_has_an_id_of_its_own() -> None:
    """MA-004"""
    assert len({Message("user", "hi").message_id for _ in range(100)}) == 100


def test_the_fields_are_those_of_the_format() -> None:
    """MA-001 to MA-008, in the order in which they can be given."""
    assert [field.name for field in dataclasses.fields(Message)] == [*FIELDS, "extra"]
    message = Message("tool", "{}", "clock", "m-1", None, "call_1", {"a": 1}, datetime(2026, 1, 1, tzinfo=UTC))
    assert (message.name, message.message_id, message.tool_call_id) == ("clock", "m-1", "call_1")
    with pytest.raises(ValidationError):
        Message("user", "hi", "me", "m-1", None, None, None, datetime(2026, 1, 1, tzinfo=UTC), *[{}])


def test_the_first_examples_run_as_they_are() -> None:
    """MA-010, MA-011, MA-012, MA-018: basic messages."""
    user_msg = Message(role="user", content="Will I need a coat?")
    assistant_msg = Message(role="assistant", content="Let me look.", name="weather_agent")
    system_msg = Message(role="system", content="You know the weather.")

    assert [m.role for m in (user_msg, assistant_msg, system_msg)] == ["user", "assistant", "system"]
    assert assistant_msg.name == "weather_agent"
    assert all(map(validate_message, (user_msg, assistant_msg, system_msg)))


def test_a_tool_call_and_its_response_have_the_same_id() -> None:
    """MA-013, MA-019, MA-020"""
    tool_call_msg = Message(role="assistant", content="", tool_calls=[CALL])
    tool_response = Message(role="tool", content='{"leaves": "08:25"}', name="find_train", tool_call_id="call_7")

    assert tool_call_msg.tool_calls is not None
    assert tool_call_msg.tool_calls[0]["function"]["name"] == "find_train"
    assert json.loads(tool_call_msg.tool_calls[0]["function"]["arguments"])["to"] == "Bergen"
    assert tool_call_msg.tool_calls == [CALL]
    assert tool_response.tool_call_id == tool_call_msg.tool_calls[0]["id"]
    assert validate_message(tool_call_msg)
    assert validate_message(tool_response)
    assert validate_tool_response(tool_response)


def test_agents_call_each_other_by_name_and_task() -> None:
    """MA-015, MA-016, MA-021, MA-022: the name is the callee's, the caller is in the metadata."""
    agent_call = Message(
        role="agent_call",
        content="Sum up the report",
        name="reader_agent",
        metadata={"caller": "chief_agent", "task_id": "task_9"},
    )
    agent_response = Message(
        role="agent_response",
        content="It says yes.",
        name="reader_agent",
        metadata={"task_id": "task_9", "completion_time": 2.5},
    )

    assert validate_message(agent_call)
    assert validate_message(agent_response)
    assert (agent_call.name, agent_call.caller, agent_call.task_id) == ("reader_agent", "chief_agent", "task_9")
    assert agent_response.task_id == agent_call.task_id
    assert agent_response.metadata is not None
    assert agent_response.metadata["completion_time"] == 2.5


def test_metadata_can_be_read_by_name() -> None:
    """MA-051: optional context; a value that is not text counts as missing."""
    full = Message("error", "x", metadata={"caller": "a", "task_id": "b", "chain_id": "c", "error_type": "d"})
    odd = Message("error", "x", metadata={"caller": 1, "task_id": None, "chain_id": ["c"]})

    assert (full.caller, full.task_id, full.chain_id, full.error_type) == ("a", "b", "c", "d")
    assert (odd.caller, odd.task_id, odd.chain_id, odd.error_type) == (None, None, None, None)
    assert Message("user", "x").caller is None


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("role", 3),
        ("role", None),
        ("content", None),
        ("content", ["text"]),
        ("content", "\ud800"),
        ("name", b"agent"),
        ("message_id", None),
        ("message_id", 7),
        ("tool_calls", {"id": "call_1"}),
        ("tool_calls", ["call_1"]),
        ("tool_calls", "call_1"),
        ("tool_call_id", 1),
        ("metadata", [1]),
        ("metadata", "caller"),
        ("timestamp", None),
        ("timestamp", 1700000000),
        ("timestamp", "yesterday"),
        ("timestamp", "2026-01-01T00:00:00.1234567Z"),
        ("timestamp", datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1)))),
        ("extra", None),
        ("extra", {"role": "user"}),
        ("colour", "blue"),
    ],
)
def test_a_wrong_type_is_refused_by_name(field: str, wrong: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Message(**dict[str, Any](role="user", content="hi") | {field: wrong})
    assert caught.value.errors()[0]["loc"][0] == field


def test_a_value_that_is_no_json_is_refused_with_its_place() -> None:
    with pytest.raises(ValidationError) as caught:
        Message("user", "hi", metadata={"points": [1.0, float("nan")]})
    assert caught.value.errors()[0]["loc"] == ("metadata", "points", 1)
    assert caught.value.errors()[0]["msg"] == "nan is not JSON; use None or text"

    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValidationError, match="nested deeper than 64"):
        Message("assistant", "", tool_calls=[{"deep": deep}])


# ---------------------------------------------------------------- time


def test_a_time_keeps_its_offset_and_one_without_is_utc() -> None:
    """MA-008"""
    oslo = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Oslo"))

    assert Message("user", "x", timestamp=oslo).to_dict()["timestamp"] == "2026-07-01T12:00:00+02:00"
    assert Message("user", "x", timestamp=datetime(2026, 7, 1)).timestamp == datetime(2026, 7, 1, tzinfo=UTC)
    for text in ("2026-07-01T12:00:00+02:00", "2026-07-01T10:00:00Z", "2026-07-01T10:00:00"):
        assert Message.from_dict({"role": "user", "timestamp": text}).timestamp == oslo


def test_a_zone_that_knows_no_offset_counts_as_none() -> None:
    class Nowhere(tzinfo):
        @override
        def utcoffset(self, dt: datetime | None) -> None: ...
        @override
        def dst(self, dt: datetime | None) -> None: ...
        @override
        def tzname(self, dt: datetime | None) -> None: ...

    assert Message("user", "x", timestamp=datetime(2026, 7, 1, tzinfo=Nowhere())).timestamp.tzinfo is UTC


# ---------------------------------------------------------------- immutable


@pytest.mark.parametrize("field", [*FIELDS, "extra", "colour"])
def test_no_field_can_be_changed(field: str) -> None:
    """MA-046"""
    message = Message("user", "hi")

    with pytest.raises((AttributeError, TypeError)):
        setattr(message, field, "other")
    with pytest.raises((AttributeError, TypeError)):
        delattr(message, field)
    assert not hasattr(message, "__dict__")


def test_nothing_inside_can_be_changed() -> None:
    """MA-046: neither through what is read nor through what was given."""
    calls, extra = [copy.deepcopy(CALL)], {"seen": [1]}
    metadata: dict[str, Any] = {"path": ["a"], "deep": {"b": 1}}
    message = Message("assistant", "", tool_calls=calls, metadata=metadata, extra=extra)
    before = message.to_json()

    calls[0]["function"]["name"] = "other"
    calls.append({})
    metadata["path"].append("b")
    extra["seen"].append(2)
    shown: Any = message
    changes: list[Callable[[], Any]] = [
        lambda: shown.tool_calls.append({}),
        lambda: shown.tool_calls.__setitem__(0, {}),
        lambda: shown.tool_calls[0].__setitem__("id", "x"),
        lambda: shown.tool_calls[0]["function"].update(name="x"),
        lambda: shown.metadata.__setitem__("path", []),
        lambda: shown.metadata["path"].append("b"),
        lambda: shown.metadata["deep"].pop("b"),
        lambda: shown.extra["seen"].append(1),
    ]
    for change in changes:
        with pytest.raises((AttributeError, TypeError)):
            change()
    form = message.to_dict()
    form["tool_calls"][0]["id"] = form["metadata"]["path"] = "x"
    message.to_llm_dict()["tool_calls"][0]["function"]["name"] = "x"

    assert message.to_json() == before


@pytest.mark.slow
@given(messages)
def test_messages_are_values(message: Message) -> None:
    """MA-046: equal by content, hashable, the same after a copy."""
    again = Message(**{field.name: getattr(message, field.name) for field in dataclasses.fields(message)})

    assert again == message
    assert hash(again) == hash(message)
    assert copy.copy(message) == copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert message.replace(content=message.content + "!") != message


def test_metadata_and_calls_are_written_by_json_dumps_and_cannot_be_changed() -> None:
    """MA-046: readers get plain JSON; a change raises."""
    calls = [{"id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}]
    message = Message("assistant", "", tool_calls=calls, metadata={"path": ["a", {"b": 1}]})

    assert json.loads(json.dumps(message.metadata)) == {"path": ["a", {"b": 1}]}
    assert json.loads(json.dumps(message.tool_calls)) == calls
    assert message.metadata is not None
    with pytest.raises(TypeError, match="read-only"):
        message.metadata["path"][1].update(b=2)
    assert Message("user", "", message_id="1", timestamp=message.timestamp, metadata={"n": 1}) != Message(
        "user", "", message_id="1", timestamp=message.timestamp, metadata={"n": True}
    )


# ---------------------------------------------------------------- copies


def test_a_copy_keeps_id_and_time() -> None:
    """MA-047"""
    message = Message("assistant", "draft", name="writer", tool_calls=[CALL], metadata={"a": 1}, extra={"b": 2})
    for copied in (message.replace(content="final"), dataclasses.replace(message, content="final")):
        assert copied.to_dict() == {**message.to_dict(), "content": "final"}
    assert message.content == "draft"
    assert message.replace() == message
    with pytest.raises(ValidationError):
        message.replace(content=3)
    with pytest.raises((TypeError, ValidationError)):
        message.replace(colour="blue")


def test_a_forwarded_message_is_the_same_message() -> None:
    """MA-047: same id, with the way it went."""
    message = Message("user", "Where is my parcel?", name="ann", metadata={"lang": "en"})
    forwarded = message.forward("logistics", by="front_desk")

    assert (forwarded.message_id, forwarded.timestamp) == (message.message_id, message.timestamp)
    assert (forwarded.role, forwarded.content, forwarded.name) == (message.role, message.content, message.name)
    assert forwarded.metadata == {"lang": "en", "forwarded_to": "logistics", "forwarded_by": "front_desk"}
    assert message.metadata == {"lang": "en"}
    assert Message("user", "x").forward("logistics").metadata == {"forwarded_to": "logistics"}


def test_a_forwarded_agent_call_is_a_call_of_the_next_agent() -> None:
    """MA-047: the response still goes to the caller."""
    forwarded = Message("agent_call", "Sum up", name="reader", metadata={"caller": "chief"}).forward("writer", by="reader")

    assert (forwarded.name, forwarded.caller) == ("writer", "chief")


# ---------------------------------------------------------------- JSON


def test_the_json_form_has_the_names_of_the_format_and_no_none() -> None:
    """MA-001 to MA-009"""
    with use_port(CountingPort()):
        plain = Message("user", "hi")
        full = Message("assistant", "", name="planner", tool_calls=[CALL], tool_call_id="call_0", metadata={"a": None})

    assert plain.to_dict() == {
        "role": "user",
        "content": "hi",
        "message_id": "id-1",
        "timestamp": "2026-01-01T00:00:00+00:00",
    }
    assert list(full.to_dict()) == list(FIELDS)
    assert full.to_dict()["tool_calls"] == [CALL]
    assert full.to_dict()["metadata"] == {"a": None}
    assert json.loads(full.to_json()) == full.to_dict()


@pytest.mark.slow
@given(messages)
def test_a_message_survives_its_json_form(message: Message) -> None:
    assert Message.from_dict(message.to_dict()) == message
    assert Message.from_json(message.to_json()) == message
    assert Message.from_json(message.to_json().encode()).to_dict() == message.to_dict()


def test_other_keys_are_kept_and_given_back() -> None:
    data = {
        **Message("assistant", "hi").to_dict(),
        "extra": 1,
        "refusal": None,
        "__class__": {"type": ["x"]},
        "tool_calls": [{**CALL, "index": 0}],
        "metadata": {"nested": {"unknown": True}},
    }
    message = Message.from_dict(data)

    assert message.extra == {"extra": 1, "refusal": None, "__class__": {"type": ["x"]}}
    assert message.to_dict() == data
    assert message.replace(content="ho").to_dict() == {**data, "content": "ho"}


def test_missing_and_null_fields_are_the_same() -> None:
    """MA-009: providers write `null` as the content of a message that only calls tools."""
    with use_port(CountingPort()):
        message = Message.from_dict({"role": "assistant", "content": None, "name": None, "message_id": None})

    assert (message.content, message.name, message.message_id) == ("", None, "id-1")
    with pytest.raises(ValidationError) as caught:
        Message.from_dict({"content": "hi"})
    assert caught.value.errors()[0]["loc"] == ("role",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"role": "user", "role": "tool"}', "'role' stands twice"),
        ('{"role": "user", "content": NaN}', "not JSON"),
        ("[" * 10_000 + "]" * 10_000, "a message is JSON text"),
        ("[]", "must be an object"),
        ("null", "must be an object"),
        ('"\ud800"', "surrogates"),
        ('{"role":"user"}'.encode("utf-16"), "not UTF-8"),
        (b"\xff", "not JSON"),
        ('{"role": "user", "metadata": []}', "metadata"),
    ],
)
def test_text_that_is_no_message_is_a_value_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Message.from_json(text)


@pytest.mark.parametrize("data", [None, [], "user", 3, {1: 2, "role": "user"}])
def test_data_that_is_no_message_is_a_value_error(data: Any) -> None:
    with pytest.raises(ValueError, match="must be an object|is not text"):
        Message.from_dict(data)


def test_a_message_can_be_written_whatever_the_limits() -> None:
    deep = {"a": [[[[{"b": 1}]]]]}
    message = Message("assistant", "", tool_calls=[{"function": deep}], metadata=deep)

    with use_limits(Limits(depth=2)):
        assert message.to_dict()["metadata"] == deep
        assert message.to_llm_dict()["tool_calls"][0]["function"]["a"] == deep["a"]


# ---------------------------------------------------------------- for a model


def test_the_llm_form_has_role_content_and_name() -> None:
    """MA-009, MA-023, MA-025: and nothing else."""
    message = Message("assistant", "Gladly.", name="helper_agent", metadata={"secret": 1}, extra={"other": 2})

    assert message.to_llm_dict() == {"role": "assistant", "content": "Gladly.", "name": "helper_agent"}
    assert Message("user", "hi").to_llm_dict() == {"role": "user", "content": "hi"}
    assert Message("user", "hi", name="", tool_calls=[]).to_llm_dict() == {"role": "user", "content": "hi"}


def test_the_llm_form_keeps_tool_calls() -> None:
    """MA-024: the content is empty, not null, unless a provider wants it so."""
    message = Message("assistant", "", tool_calls=[CALL])

    assert message.to_llm_dict() == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert message.to_llm_dict(null_content=True) == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert message.replace(content="so").to_llm_dict(null_content=True)["content"] == "so"
    assert Message("user", "").to_llm_dict(null_content=True)["content"] == ""
    answer = Message("tool", "{}", name="find_train", tool_call_id="call_7")
    assert answer.to_llm_dict() == {"role": "tool", "content": "{}", "name": "find_train", "tool_call_id": "call_7"}


def test_the_llm_form_completes_tool_calls() -> None:
    """MA-024, MA-049: id, type and arguments as text; the message keeps what it was given."""
    given_calls: list[dict[str, Any]] = [
        {"function": {"name": "functions.find", "arguments": {"city": "Århus"}}},
        {"id": None, "type": "function", "function": {"name": "now"}, "index": 1},
        {"id": "c", "type": "custom", "custom": {"input": "x"}},
        {"id": "d", "function": {"name": 4, "arguments": [1]}},
    ]
    message = Message("assistant", "", message_id="m-1", tool_calls=given_calls)
    calls = message.to_llm_dict()["tool_calls"]

    first, second = calls[0].pop("id"), calls[1].pop("id")
    assert calls == [
        {"type": "function", "function": {"name": "find", "arguments": '{"city": "Århus"}'}},
        {"type": "function", "function": {"name": "now", "arguments": "{}"}, "index": 1},
        {"id": "c", "type": "custom", "custom": {"input": "x"}},
        {"id": "d", "type": "function", "function": {"name": 4, "arguments": "[1]"}},
    ]
    assert first.startswith("call_")
    assert first != second
    assert len(first) <= 40
    assert message.to_llm_dict()["tool_calls"][0]["id"] == first
    assert message.tool_calls == given_calls


@pytest.mark.slow
@given(messages)
def test_the_llm_form_says_nothing_more(message: Message) -> None:
    """MA-025"""
    form = message.to_llm_dict()

    assert set(form) <= {"role", "content", "name", "tool_calls", "tool_call_id"}
    assert None not in form.values()
    assert form == message.to_llm_dict()
    assert json.loads(json.dumps(form)) == form


# ---------------------------------------------------------------- from a model


def test_a_response_becomes_a_message() -> None:
    """MA-026, MA-027"""
    response = {"role": "assistant", "content": "Two trains.", "tool_calls": None}
    message = Message.from_response_dict(response, processor=lambda response: response)

    assert (message.role, message.content, message.tool_calls) == ("assistant", "Two trains.", None)
    assert Message.from_response_dict({"content": None, "tool_calls": [CALL]}).tool_calls == [CALL]
    assert Message.from_response_dict({"content": None, "tool_calls": [CALL]}).content == ""
    assert Message.from_response_dict({"content": "x", "tool_calls": []}).tool_calls is None
    assert Message.from_response_dict({"content": "x", "refusal": None}).extra == {"refusal": None}


def test_defaults_stand_in_for_what_a_response_does_not_say() -> None:
    """MA-026"""
    defaults: dict[str, Any] = {"default_id": "m-1", "default_role": "agent_response", "default_name": "reader"}

    for response in ({}, {"role": None, "name": None, "message_id": None}):
        message = Message.from_response_dict(response, **defaults)
        assert (message.message_id, message.role, message.name) == ("m-1", "agent_response", "reader")
    said = {"role": "assistant", "name": "other", "message_id": "m-2"}
    message = Message.from_response_dict(said, **defaults)
    assert (message.message_id, message.role, message.name) == ("m-2", "assistant", "other")
    with use_port(CountingPort()):
        assert Message.from_response_dict({}).message_id == "id-1"


def test_a_processor_sees_the_response_first() -> None:
    """MA-026: a dict is read as the response; a message is the answer as it is."""
    response = {"content": '{"thought": "ask"}', "tool_calls": [CALL]}

    def keep_thought(response: dict[str, Any]) -> dict[str, Any]:
        response["content"] = json.loads(response["content"])["thought"]
        response["tool_calls"].clear()
        return response

    ready = Message("error", "no")

    assert Message.from_response_dict(response, processor=keep_thought).content == "ask"
    assert response == {"content": '{"thought": "ask"}', "tool_calls": [CALL]}
    assert Message.from_response_dict(response, processor=lambda _: ready, default_name="x") is ready
    assert Message.from_response_dict(response, process_llm_response).tool_calls == [CALL]


@pytest.mark.parametrize("returned", [None, "text", [{}]])
def test_a_processor_that_returns_something_else_raises(returned: Any) -> None:
    """MA-026"""
    with pytest.raises(ValueError, match="what a processor returns, unless it is a Message, must be an object"):
        Message.from_response_dict({}, processor=lambda _: returned)
    with pytest.raises(ValueError, match="a response must be an object"):
        Message.from_response_dict(returned)


def test_a_response_is_processed_with_or_without_tool_calls() -> None:
    """MA-030, MA-031"""
    calling = process_llm_response({"content": None, "tool_calls": [CALL]})
    plain = process_llm_response({"role": "assistant", "content": "Two trains.", "tool_calls": None})

    assert (calling.role, calling.content, calling.tool_calls) == ("assistant", "", [CALL])
    assert (plain.role, plain.content, plain.tool_calls) == ("assistant", "Two trains.", None)
    assert process_llm_response({}).content == ""
    assert process_llm_response({"content": "x", "tool_calls": []}).tool_calls is None


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (Message("agent_call", "Sum up", name="reader", metadata={"caller": "chief"}), "[Request from chief]: Sum up"),
        (Message("agent_call", "Sum up", name="reader", metadata={"caller": None}), "[Request from unknown]: Sum up"),
        (Message("agent_call", "Sum up", name="reader"), "[Request from unknown]: Sum up"),
        (Message("agent_response", "Yes.", name="reader"), "[Response from reader]: Yes."),
        (Message("agent_response", "Yes."), "[Response from unknown]: Yes."),
        (
            Message("error", "no answer", name="reader", metadata={"error_type": "TimeoutError"}),
            "[Error from reader (TimeoutError)]: no answer",
        ),
        (Message("error", "no answer"), "[Error from unknown]: no answer"),
    ],
)
def test_messages_of_agents_are_user_messages_for_the_model(message: Message, content: str) -> None:
    """MA-032, MA-034: metadata or not."""
    assert process_for_llm(message) == {"role": "user", "content": content}


@pytest.mark.slow
@given(messages.filter(lambda message: message.role not in {"agent_call", "agent_response", "error"}))
def test_everything_else_is_converted_as_usual(message: Message) -> None:
    """MA-033"""
    assert process_for_llm(message) == message.to_llm_dict()


@pytest.mark.parametrize("role", ROLES)
def test_a_provider_knows_every_role_it_is_told(role: str) -> None:
    """MA-034, MA-048"""
    told = process_for_llm(Message(role, "x", name="n", tool_call_id="c"))

    assert told["role"] in {"system", "user", "assistant", "tool"}


# ---------------------------------------------------------------- validation


def test_there_are_seven_roles() -> None:
    """MA-010, MA-011, MA-012, MA-013, MA-014, MA-015, MA-016, MA-035"""
    assert set(ROLES) == VALID_ROLES
    assert len(VALID_ROLES) == 7


@pytest.mark.parametrize("role", ROLES)
def test_a_good_message_of_each_role_is_valid(role: str) -> None:
    """MA-010 to MA-016, MA-039"""
    message = Message(role, "x", name="agent", tool_call_id="call_1" if role == "tool" else None)

    assert validate_message(message) is True
    assert validation_errors(message) == []


@pytest.mark.parametrize("role", ["human", "User", "", "agent_insight", " tool"])
def test_an_unknown_role_can_be_made_but_is_not_valid(role: str) -> None:
    """MA-036"""
    message = Message(role, "x")

    assert validate_message(message) is False
    assert validation_errors(message) == [
        f"role {role!r} is unknown; use one of agent_call, agent_response, assistant, error, system, tool, user"
    ]


def test_a_tool_message_needs_its_call_id() -> None:
    """MA-037"""
    for nothing in (None, ""):
        message = Message("tool", "{}", name="clock", tool_call_id=nothing)
        assert validate_message(message) is False
        assert validation_errors(message) == ["a tool message needs tool_call_id, the id of the call it answers"]


def test_a_tool_message_needs_the_name_of_its_tool() -> None:
    """MA-038"""
    for nothing in (None, ""):
        message = Message("tool", "{}", name=nothing, tool_call_id="call_1")
        assert validate_message(message) is False
        assert validation_errors(message) == ["a tool message needs name, the tool that ran"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("user", "x", tool_calls=[CALL]), "tool_calls belong to an assistant message, not to role 'user'"),
        (Message("agent_call", "x"), "an agent_call needs name, the agent that is called"),
        (Message("user", ""), "content is empty; only a message with tool_calls may have none"),
        (Message("assistant", "", tool_calls=[]), "content is empty; only a message with tool_calls may have none"),
        (Message("assistant", "", tool_calls=[CALL, {}]), "tool_calls[1].function must be an object with name and arguments"),
        (Message("assistant", "", tool_calls=[{**CALL, "id": ""}]), "tool_calls[0].id must be text that is not empty"),
        (Message("assistant", "", tool_calls=[{**CALL, "id": 7}]), "tool_calls[0].id must be text that is not empty"),
        (Message("assistant", "", tool_calls=[{**CALL, "type": "x"}]), "tool_calls[0].type must be 'function', not 'x'"),
        (
            Message("assistant", "", tool_calls=[{**CALL, "function": {"arguments": "{}"}}]),
            "tool_calls[0].function.name must be text that is not empty",
        ),
        (
            Message("assistant", "", tool_calls=[{**CALL, "function": {"name": "f", "arguments": [1]}}]),
            "tool_calls[0].function.arguments must be JSON text or an object",
        ),
    ],
)
def test_further_faults_are_reported(message: Message, error: str) -> None:
    """MA-048: each thing by its place."""
    assert validation_errors(message) == [error]
    assert validate_message(message) is False


def test_all_faults_are_reported() -> None:
    message = Message("tool", "", tool_calls=[{"id": 1, "function": {"name": ""}}])

    assert len(validation_errors(message)) == 5


@pytest.mark.parametrize("call", [CALL, {"function": {"name": "f"}}, {"function": {"name": "f", "arguments": {"a": 1}}}])
def test_a_tool_call_may_leave_out_what_is_filled_in(call: Mapping[str, Any]) -> None:
    """MA-019"""
    message = Message("assistant", "", tool_calls=[call])

    assert validate_message(message)
    assert validate_message(Message("assistant", "", tool_calls=message.to_llm_dict()["tool_calls"]))


@pytest.mark.slow
@given(messages)
def test_any_message_can_be_validated(message: Message) -> None:
    """MA-036"""
    assert validate_message(message) is (validation_errors(message) == [])


@pytest.mark.parametrize("role", [role for role in ROLES if role != "tool"])
def test_only_a_tool_gives_a_tool_response(role: str) -> None:
    """MA-040"""
    assert validate_tool_response(Message(role, "{}")) is False


@pytest.mark.parametrize("content", ["", "sunny", "{'a': 1}", "NaN", '{"a": Infinity}', "[" * 100_000, "{}{}", "\x00"])
def test_a_tool_response_that_is_no_json_is_not_valid(content: str) -> None:
    """MA-041"""
    assert validate_tool_response(Message("tool", content, name="t", tool_call_id="c")) is False


@given(json_values)
def test_a_tool_response_that_is_json_is_valid(value: Any) -> None:
    """MA-042"""
    assert validate_tool_response(Message("tool", json.dumps(value), name="t", tool_call_id="c")) is True


# ---------------------------------------------------------------- tool names


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("search", "search"),
        ("functions.search", "search"),
        ("functions.functions.search", "search"),
        ("my.functions.search", "my_functions_search"),
        ("get weather!", "get_weather_"),
        ("søk-2_a", "s_k-2_a"),
        ("functions.", "functions_"),
        ("", ""),
    ],
)
def test_a_tool_name_is_made_acceptable(name: str, clean: str) -> None:
    """MA-049"""
    assert sanitize_tool_name(name) == clean


@given(texts | texts.map("functions.".__add__))
def test_an_acceptable_name_stays(name: str) -> None:
    """MA-049"""
    clean = sanitize_tool_name(name)

    assert sanitize_tool_name(clean) == clean
    assert bool(clean) is bool(name)
    assert clean.isascii()


def test_names_are_made_acceptable_for_a_model_only() -> None:
    """MA-049"""
    message = Message("tool", "{}", name="functions.find train", tool_call_id="c")

    assert message.name == "functions.find train"
    assert message.to_llm_dict()["name"] == "find_train"


# ---------------------------------------------------------------- patterns


def test_a_conversation_is_a_list_of_messages() -> None:
    """MA-043"""
    roles = ["system", "user", "assistant", "user", "assistant"]
    said = ["Be brief.", "What is 6 times 7?", "42", "And 7 times 8?", "56"]
    conversation = [Message(role=role, content=content) for role, content in zip(roles, said, strict=True)]

    assert all(map(validate_message, conversation))
    assert [process_for_llm(message) for message in conversation] == [
        {"role": role, "content": content} for role, content in zip(roles, said, strict=True)
    ]
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(conversation))


def test_a_tool_is_used_in_four_messages() -> None:
    """MA-044: a call without `type` is completed for the model."""
    flow = [
        Message(role="user", content="How warm is it in Oslo?"),
        Message(
            role="assistant",
            content="I look it up.",
            tool_calls=[{"id": "call_1", "function": {"name": "temperature", "arguments": '{"city": "Oslo"}'}}],
        ),
        Message(role="tool", name="temperature", content='{"celsius": 18}', tool_call_id="call_1"),
        Message(role="assistant", content="It is 18°C in Oslo."),
    ]

    assert all(map(validate_message, flow))
    assert [validate_tool_response(message) for message in flow] == [False, False, True, False]
    sent = [process_for_llm(message) for message in flow]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant"]
    assert sent[1]["tool_calls"][0]["type"] == "function"
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]


async def _fail() -> Message:
    raise TimeoutError("no answer in 5 s")


def test_an_error_is_returned_as_a_message() -> None:
    """MA-014, MA-045, MA-050: by hand or by the helper, the same."""

    async def by_hand() -> Message:
        try:
            return await _fail()
        except Exception as e:  # noqa: BLE001
            now = datetime.now(UTC).isoformat()
            return Message("error", str(e), name="asker", metadata={"error_type": type(e).__name__, "timestamp": now})

    async def by_helper() -> Message:
        try:
            return await _fail()
        except TimeoutError as e:
            return error_message(e, "asker")

    for attempt in (by_hand, by_helper):
        message = _result(attempt)
        assert (message.role, message.content, message.name) == ("error", "no answer in 5 s", "asker")
        assert message.metadata is not None
        assert set(message.metadata) == {"error_type", "timestamp"}
        assert message.error_type == "TimeoutError"
        assert datetime.fromisoformat(message.metadata["timestamp"]).utcoffset() == timedelta(0)
        assert validate_message(message)


def _result(attempt: Callable[[], Any]) -> Message:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as done:
        attempt().send(None)
    assert isinstance(done.value.value, Message)
    return done.value.value


def test_an_error_has_one_time() -> None:
    """MA-045"""
    with use_port(CountingPort()):
        message = error_message(KeyError("x"), "asker")

    assert message.metadata == {"error_type": "KeyError", "timestamp": message.timestamp.isoformat()}


@pytest.mark.parametrize(
    ("exc", "content"), [(ValueError(), "ValueError"), (ValueError("a\udcffb"), "a\\udcffb"), (SystemExit(2), "2")]
)
def test_saying_an_error_never_fails(exc: BaseException, content: str) -> None:
    """MA-050"""
    message = error_message(exc)

    assert (message.content, message.name) == (content, None)
    assert validate_message(message)
    assert Message.from_json(message.to_json()) == message


def test_metadata_is_context_that_no_model_sees() -> None:
    """MA-051: removing it changes nothing of what is said."""
    message = Message("assistant", "x", name="a", tool_calls=[CALL], metadata={"trace": "t-1", "cost": 0.1})

    assert message.to_llm_dict() == message.replace(metadata=None).to_llm_dict()
    assert validate_message(message.replace(metadata=None))


# ---------------------------------------------------------------- chains


def test_a_chain_begins_with_a_message() -> None:
    """MA-052, MA-053"""
    initial = Message("user", "Where is my parcel?")
    chain = MessageChain(initial)

    assert chain.chain_id == initial.message_id
    assert chain.messages == [initial]
    assert chain.messages[0] is initial


def test_a_response_is_marked_in_the_chain_and_nowhere_else() -> None:
    """MA-054: the stored copy has the chain's id; the argument stays as it was."""
    chain = MessageChain(Message("user", "Where is my parcel?"))
    bare, full = Message("assistant", "On its way."), Message("assistant", "Here.", metadata={"a": [1]})
    stored = [chain.add_response(bare), chain.add_response(full)]

    assert stored == chain.messages[1:]
    assert [message.chain_id for message in stored] == [chain.chain_id, chain.chain_id]
    assert [message.message_id for message in stored] == [bare.message_id, full.message_id]
    assert stored[1].metadata == {"a": [1], "chain_id": chain.chain_id}
    assert (bare.metadata, full.metadata) == (None, {"a": [1]})
    assert chain.messages[0].metadata is None


def test_a_chain_is_given_out_as_a_copy() -> None:
    """MA-055"""
    chain = MessageChain(Message("user", "hi"))
    chain.get_chain().clear()
    chain.messages.clear()

    assert chain.get_chain() == chain.messages
    assert len(chain.get_chain()) == 1


# ---------------------------------------------------------------- filters


@pytest.fixture
def said() -> list[Message]:
    """Five messages, a second between each."""
    with use_port(CountingPort()):
        return [
            Message("user", "a", name="ann"),
            Message("assistant", "b", name="helper"),
            Message("assistant", "c", name="writer"),
            Message("user", "d"),
            Message("user", "e", name="ann", metadata={"chain_id": "id-2"}),
        ]


def _contents(messages: list[Message]) -> str:
    return "".join(message.content for message in messages)


def test_messages_are_found_by_role(said: list[Message]) -> None:
    """MA-056"""
    assert _contents(filter_messages(said, role="assistant")) == "bc"
    assert filter_messages(said, role="tool") == []


def test_messages_are_found_by_name(said: list[Message]) -> None:
    """MA-057: None finds those without."""
    assert _contents(filter_messages(said, name="ann")) == "ae"
    assert _contents(filter_messages(said, name=None)) == "d"


def test_messages_are_found_by_time(said: list[Message]) -> None:
    """MA-058: strictly later, in any zone or none."""
    third = said[2].timestamp

    assert _contents(filter_messages(said, after=third)) == "de"
    assert _contents(filter_messages(said, after=third.replace(tzinfo=None))) == "de"
    assert _contents(filter_messages(said, after=third.astimezone(timezone(timedelta(hours=9))))) == "de"
    assert _contents(filter_messages(said, after=third.isoformat())) == "de"
    assert _contents(filter_messages(said, before=third)) == "ab"
    assert _contents(filter_messages(said, after=said[0].timestamp, before=said[4].timestamp)) == "bcd"


def test_criteria_are_combined(said: list[Message]) -> None:
    """MA-059"""
    assert _contents(filter_messages(said, role="user", name="ann", after=said[0].timestamp)) == "e"
    assert filter_messages(said) == said
    assert filter_messages(said) is not said
    assert _contents(filter_messages(iter(said), role="user")) == "ade"


def test_messages_are_found_by_id_and_chain(said: list[Message]) -> None:
    assert _contents(filter_messages(said, message_id="id-3")) == "c"
    assert _contents(filter_messages(said, chain_id="id-2")) == "be"
    chain = MessageChain(said[0])
    chain.add_response(said[3])
    assert filter_messages(chain.get_chain(), chain_id=chain.chain_id) == chain.get_chain()


def test_a_criterion_that_does_not_exist_is_an_error(said: list[Message]) -> None:
    criteria: dict[str, Any] = {"colour": "blue"}

    with pytest.raises(TypeError, match="no criterion 'colour'; there are role, name, message_id, chain_id, after, before"):
        filter_messages(said, **criteria)
    with pytest.raises(ValueError, match="A time is a datetime"):
        filter_messages(said, after="yesterday")


@pytest.mark.slow
@given(st.lists(messages, max_size=3), st.sampled_from(ROLES), moments)
def test_filters_keep_the_order_and_split_by_time(messages: list[Message], role: str, moment: datetime) -> None:
    """MA-056, MA-058"""
    assert filter_messages(messages, role=role) == [message for message in messages if message.role == role]
    later, earlier = filter_messages(messages, after=moment), filter_messages(messages, before=moment)
    assert len(later) + len(earlier) <= len(messages)
