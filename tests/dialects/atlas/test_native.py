"""Atlas as its users know it: messages, types, tools, factories, values that survive JSON, and threads."""

import copy
import json
import operator
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, Field, SecretStr
from tests.strategies import json_objects, json_values, names, scalars, texts

from antiphon.dialects._frozen import thawed
from antiphon.dialects.atlas import MessageType, StructuredMessage, ToolCall, ToolResult
from antiphon.messages import DataPart, Limits, use_limits, use_port
from antiphon.testing import CountingPort

FIELDS = [
    "content",
    "metadata",
    "task_id",
    "timestamp",
    "tool_calls",
    "tool_results",
    "source_agent",
    "target_agent",
    "message_id",
]


def query(**given: Any) -> StructuredMessage:
    return StructuredMessage(
        **{
            "content": "What's the weather in New York?",
            "metadata": {"type": MessageType.QUERY, "priority": "high"},
            "task_id": "weather-task-123",
            "source_agent": "user",
            "target_agent": "weather_agent",
            **given,
        }
    )


# ---------------------------------------------------------------- fields


def test_a_basic_message_has_what_it_was_given() -> None:
    """AT-001, AT-002, AT-003, AT-017"""
    message = StructuredMessage(
        content="What's the weather in New York?",
        metadata={"type": MessageType.QUERY, "priority": "high"},
        task_id="weather-task-123",
    )

    assert message.content == "What's the weather in New York?"
    assert message.metadata == {"type": "query", "priority": "high"}
    assert message.metadata["type"] == MessageType.QUERY
    assert message.task_id == "weather-task-123"


def test_missing_fields_come_from_the_port_or_are_empty() -> None:
    """AT-003, AT-004, AT-005, AT-006, AT-007, AT-008"""
    with use_port(CountingPort(start=datetime(2026, 1, 1, tzinfo=UTC))):
        message = StructuredMessage("hi")

    assert (message.task_id, message.message_id) == ("id-1", "id-2")
    assert message.timestamp == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert type(message.timestamp) is float
    assert (message.metadata, message.tool_calls, message.tool_results, message.extra) == ({}, [], [], {})
    assert (message.source_agent, message.target_agent) == (None, None)


def test_ids_differ_from_message_to_message() -> None:
    """AT-003"""
    first, second = StructuredMessage("x"), StructuredMessage("x")

    assert len({first.task_id, second.task_id, first.message_id, second.message_id}) == 4


def test_source_and_target_can_be_set_at_once_or_later() -> None:
    """AT-007, AT-008, AT-018, AT-056"""
    later = StructuredMessage("x")
    later.source_agent = "user"
    later.target_agent = "weather_agent"
    at_once = query()

    for message in (later, at_once):
        assert (message.source_agent, message.target_agent) == ("user", "weather_agent")
    later.target_agent = None
    assert later.target_agent is None


def test_every_field_can_be_changed_before_sending() -> None:
    message = query()
    message.content = "other"
    message.metadata = {"type": "own"}
    message.task_id = "t"
    message.timestamp = 5
    message.tool_calls = [ToolCall("a", id="c")]
    message.tool_results = [ToolResult("a", 1, "c")]
    message.message_id = "m"

    assert message.to_dict() == {
        "content": "other",
        "metadata": {"type": "own"},
        "task_id": "t",
        "timestamp": 5.0,
        "tool_calls": [{"id": "c", "name": "a", "arguments": {}}],
        "tool_results": [{"name": "a", "result": 1, "call_id": "c", "status": "success"}],
        "source_agent": "user",
        "target_agent": "weather_agent",
        "message_id": "m",
    }


def test_metadata_can_be_changed_key_by_key() -> None:
    message = query()
    message.update_metadata({"priority": "low", "route": ["a"]})

    assert message.metadata == {"type": "query", "priority": "low", "route": ["a"]}


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(AttributeError):
        query().sauce_agent = "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"content": None}, "content: must be text, not NoneType"),
        ({"content": 5}, "content: must be text, not int"),
        ({"metadata": ["type"]}, "metadata: must be a dict, not list"),
        ({"metadata": {1: 2}}, "metadata: the key 1 is not text"),
        ({"task_id": 5}, "task_id: must be text, not int"),
        ({"message_id": b"x"}, "message_id: must be text, not bytes"),
        ({"source_agent": 1}, "source_agent: must be text"),
        ({"target_agent": []}, "target_agent: must be text"),
        ({"timestamp": "now"}, "timestamp: must be seconds since 1970 as a number, not str"),
        ({"timestamp": True}, "timestamp: must be seconds"),
        ({"timestamp": float("nan")}, "timestamp: is too large or no number"),
        ({"timestamp": 10**400}, "timestamp: is too large or no number"),
        ({"tool_calls": {"name": "a"}}, "tool_calls: must be a list, not dict"),
        ({"tool_calls": 5}, "tool_calls: must be a list, not int"),
        ({"tool_results": "x"}, "tool_results: must be a list, not str"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        query(**given)


# ---------------------------------------------------------------- copies


def test_given_values_are_copied() -> None:
    metadata: dict[str, Any] = {"type": "query", "tags": ["a"]}
    call: dict[str, Any] = {"name": "get", "arguments": {"where": ["x"]}}
    message = StructuredMessage("x", metadata, tool_calls=[call])
    metadata["tags"].append("b")
    call["arguments"]["where"].append("y")

    assert message.metadata["tags"] == ["a"]
    assert message.tool_calls[0]["arguments"] == {"where": ["x"]}
    assert "id" not in call


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.metadata.update(tags="changed"),
        lambda message: operator.setitem(message.metadata, "tags", "changed"),
        lambda message: operator.delitem(message.metadata, "tags"),
        lambda message: operator.ior(message.metadata, {"tags": "changed"}),
        lambda message: message.metadata.setdefault("new", 1),
        lambda message: message.metadata.pop("tags"),
        lambda message: message.metadata.popitem(),
        lambda message: message.metadata.clear(),
        lambda message: message.metadata["seen"].add("changed"),
        lambda message: message.tool_calls.append({}),
        lambda message: message.tool_calls.clear(),
        lambda message: operator.iadd(message.tool_calls, [{}]),
        lambda message: message.tool_calls[0]["arguments"]["x"].append(2),
        lambda message: message.tool_calls[0]["arguments"]["x"].sort(key=str),
        lambda message: message.tool_results[0]["result"][0].append(2),
        lambda message: operator.setitem(message.extra, "new", 1),
    ],
)
def test_a_change_that_would_be_lost_raises(change: Callable[[StructuredMessage], object]) -> None:
    """AT-002, AT-034: what a message gives out cannot be changed, however deep; nothing is lost in silence."""
    calls = [ToolCall("a", {"x": [1]}, "c")]
    message = query(metadata={"tags": "old", "seen": {"a"}}, tool_calls=calls, tool_results=[ToolResult("a", ([1],), "c")])
    before = message.to_json()

    with pytest.raises(TypeError, match="is read-only, .*: assign a new value"):
        change(message)
    assert message.to_json() == before


def test_returned_values_are_written_and_copied_like_any_value() -> None:
    message = query(metadata={"tags": ["a"], "seen": {"a"}}, tool_calls=[ToolCall("a", {"x": [1]}, "c")])

    assert json.loads(json.dumps(message.tool_calls)) == [{"id": "c", "name": "a", "arguments": {"x": [1]}}]
    for copied in (message.metadata.copy(), copy.copy(message.metadata), copy.deepcopy(message.metadata)):
        copied["tags"].append("b")
        copied["seen"].add("b")
        assert copied == {**message.metadata, "tags": ["a", "b"], "seen": {"a", "b"}}
    again = pickle.loads(pickle.dumps(message.tool_calls))
    assert again == message.tool_calls
    with pytest.raises(TypeError, match="read-only"):
        again.append({})
    message.metadata = {**message.metadata, "tags": ["b"]}
    assert message.metadata["tags"] == ["b"]


def test_a_written_dict_is_a_copy() -> None:
    message = query(tool_calls=[ToolCall("a", {"x": [1]}, "c")], tool_results=[ToolResult("a", [1], "c")])
    before = message.to_json()

    message.to_dict()["metadata"]["type"] = "changed"
    message.to_dict()["tool_calls"].clear()
    message.unmatched_results().append({})
    assert message.to_json() == before


def test_a_sent_message_cannot_be_changed() -> None:
    message = query()
    assert not message.sent
    assert message.seal() is message
    assert message.seal().sent
    before = message.to_json()

    def assign(name: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(message, name, value)

    changes: list[Callable[[], Any]] = [
        *(assign(name, "x") for name in ("content", "task_id", "message_id", "source_agent", "target_agent")),
        assign("metadata", {}),
        assign("timestamp", 0),
        assign("tool_calls", []),
        assign("tool_results", []),
        lambda: message.update_metadata({"x": 1}),
        lambda: message.add_tool_call("a"),
        lambda: message.add_tool_result("a", 1, "c"),
    ]
    for change in changes:
        with pytest.raises(RuntimeError, match=r"was sent and cannot be changed; change its copy\(\)"):
            change()
    assert message.to_json() == before


def test_a_copy_of_a_sent_message_is_open_and_its_own() -> None:
    message = query().seal()
    again = message.copy()

    assert again == message
    assert not again.sent
    again.content = "other"
    again.add_tool_call("a")
    assert again != message
    assert not message.has_tool_calls


def test_a_copy_does_not_depend_on_the_limits_in_use() -> None:
    message = query(metadata={"a": {"b": 1}})

    with use_limits(Limits(depth=1)):
        assert message.copy() == message


@pytest.mark.parametrize(
    "copier", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message)), StructuredMessage.copy]
)
def test_a_message_can_be_copied_by_every_usual_means(copier: Callable[[StructuredMessage], StructuredMessage]) -> None:
    message = query()
    again = copier(message)

    assert again == message
    assert again is not message
    again.content = "other"
    assert message.content != "other"


def test_messages_are_equal_when_their_content_is() -> None:
    """`1`, `1.0` and `True` are different content; the order of keys is not content. What changes has no hash."""

    class Other(StructuredMessage):
        pass

    message = query(metadata={"a": 1, "b": 2}, timestamp=0, message_id="m")

    assert message == query(metadata={"b": 2, "a": 1}, timestamp=0, message_id="m")
    for value in (1.0, True, "1"):
        assert message != query(metadata={"a": value, "b": 2}, timestamp=0, message_id="m")
    assert message != Other.from_dict(message.to_dict())
    assert message != message.to_dict()
    with pytest.raises(TypeError):
        hash(message)


def test_a_message_shows_who_says_what_to_whom() -> None:
    """Metadata and tool values, which may be secret, are not shown."""
    assert repr(query(content="hi", metadata={"key": "s3cret"}, tool_calls=[ToolCall("a", {"k": "s3cret"})])) == (
        "StructuredMessage(type='tool_request', content='hi', task_id='weather-task-123', "
        "source_agent='user', target_agent='weather_agent')"
    )


# ---------------------------------------------------------------- types


def test_the_standard_types_are_text() -> None:
    """AT-009, AT-010, AT-011, AT-012, AT-013, AT-014, AT-015, AT-016"""
    assert {each.name: each for each in MessageType} == {
        "QUERY": "query",
        "TASK": "task",
        "RESPONSE": "response",
        "RESULT": "result",
        "ERROR": "error",
        "STATUS": "status",
        "TOOL_REQUEST": "tool_request",
        "TOOL_RESPONSE": "tool_response",
    }
    assert f"{MessageType.QUERY}" == "query"


@pytest.mark.parametrize("kind", MessageType)
def test_a_message_is_of_the_type_its_metadata_say(kind: MessageType) -> None:
    """AT-048, AT-055"""
    message = StructuredMessage("x", {"type": kind}, tool_calls=[ToolCall("a")])

    assert message.message_type == kind
    assert type(message.message_type) is str
    assert message.to_dict()["metadata"] == {"type": kind.value}


def test_without_a_type_the_tools_say_what_it_is() -> None:
    """AT-048, AT-055: calls before results, else unknown."""
    assert StructuredMessage("x").message_type == "unknown"
    assert StructuredMessage("x", {"type": ""}).message_type == "unknown"
    assert StructuredMessage("x", {"type": 5}).message_type == "unknown"
    assert StructuredMessage("x", tool_calls=[ToolCall("a")]).message_type == "tool_request"
    assert StructuredMessage("x", tool_results=[ToolResult("a", 1, "c")]).message_type == "tool_response"
    both = StructuredMessage("x", tool_calls=[ToolCall("a")], tool_results=[ToolResult("a", 1, "c")])
    assert both.message_type == "tool_request"


def test_a_type_of_ones_own_is_text_too() -> None:
    """AT-057: given as text or as a member of any enumeration."""

    class Own(Enum):
        VOTE = "vote"

    class OwnText(StrEnum):
        VOTE = "vote"

    for kind in ("vote", Own.VOTE, OwnText.VOTE):
        message = StructuredMessage("x", {"type": kind})
        assert message.message_type == "vote"
        assert message.to_dict()["metadata"] == {"type": "vote"}
        assert message.validation_errors() == []
        message.update_metadata({"type": kind})
        assert message.to_dict()["metadata"] == {"type": "vote"}


# ---------------------------------------------------------------- tools


def test_adding_a_tool_call_returns_its_id() -> None:
    """AT-005, AT-026"""
    message = StructuredMessage(content="Check the weather forecast for London")
    assert not message.has_tool_calls

    call_id = message.add_tool_call(name="get_weather", arguments={"location": "London", "unit": "celsius"})
    other = message.add_tool_call("now", call_id="mine")

    assert other == "mine"
    assert message.has_tool_calls
    assert message.tool_calls == [
        {"id": call_id, "name": "get_weather", "arguments": {"location": "London", "unit": "celsius"}},
        {"id": "mine", "name": "now", "arguments": {}},
    ]


def test_a_call_id_is_used_once() -> None:
    message = StructuredMessage("x", tool_calls=[ToolCall("a", id="c")])

    with pytest.raises(ValueError, match="tool_calls: the call id 'c' is taken; give another, or none"):
        message.add_tool_call("b", call_id="c")
    assert len(message.tool_calls) == 1


def test_results_are_kept_beside_their_calls() -> None:
    """AT-006, AT-027, AT-028: the example of the format."""
    response = StructuredMessage(content="Here's the weather information you requested:")
    assert not response.has_tool_results
    response.add_tool_result(
        name="get_weather",
        result={"temp": 22, "conditions": "sunny", "humidity": 45},
        call_id="call",
        status="success",
    )
    response.add_tool_result(
        name="get_weather", result=None, call_id="failed-call-id", status="error", error="API connection timeout"
    )

    assert response.has_tool_results
    assert response.tool_results == [
        {
            "name": "get_weather",
            "result": {"temp": 22, "conditions": "sunny", "humidity": 45},
            "call_id": "call",
            "status": "success",
        },
        {
            "name": "get_weather",
            "result": None,
            "call_id": "failed-call-id",
            "status": "error",
            "error": "API connection timeout",
        },
    ]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"status": "failed"}, "the status must be 'success' or 'error', not 'failed'"),
        ({"status": None}, "the status must be 'success' or 'error', not None"),
        ({"status": "error"}, "the status 'error' needs the text of the error"),
        ({"status": "error", "error": ""}, "needs the text"),
        ({"status": "error", "error": 5}, "needs the text"),
        ({"status": "error", "error": "no", "result": 1}, "the status 'error' has no result"),
        ({"error": "no"}, "a result with an error must have the status 'error'"),
    ],
)
def test_an_outcome_is_a_result_or_an_error(outcome: dict[str, Any], error: str) -> None:
    """AT-027, AT-028: however it is said."""
    result = {"name": "a", "call_id": "c", "result": None, **outcome}
    message = StructuredMessage("x")

    with pytest.raises(ValueError, match=error):
        message.add_tool_result(**result)
    with pytest.raises(ValueError, match=error):
        ToolResult(**result)
    with pytest.raises(ValueError, match=r"tool_results\[0\]: .*" + error):
        StructuredMessage("x", tool_results=[result])
    with pytest.raises(ValueError, match=r"tool_results\[0\]: .*" + error):
        StructuredMessage.from_dict({"content": "x", "tool_results": [result]})
    assert not message.has_tool_results


def test_typed_calls_and_results_are_kept_as_dicts() -> None:
    """AT-005, AT-006"""
    with use_port(CountingPort()):
        call = ToolCall("get", {"x": 1})
    result = ToolResult("get", 2, call.id)
    failed = ToolResult("get", None, "c", "error", "no")
    message = StructuredMessage("x", tool_calls=[call], tool_results=[result, failed])

    assert message.tool_calls == [{"id": "id-1", "name": "get", "arguments": {"x": 1}}]
    assert message.tool_results == [
        {"name": "get", "result": 2, "call_id": "id-1", "status": "success"},
        {"name": "get", "result": None, "call_id": "c", "status": "error", "error": "no"},
    ]


def test_a_call_or_result_given_as_a_dict_keeps_its_other_keys() -> None:
    message = StructuredMessage(
        "x",
        tool_calls=[{"name": "get", "index": 0}],
        tool_results=[{"name": "get", "call_id": "c", "took": Decimal("0.5"), "error": None}],
    )

    call, result = message.tool_calls[0], message.tool_results[0]
    assert call == {"id": call["id"], "name": "get", "arguments": {}, "index": 0}
    assert call["id"]
    assert result == {
        "name": "get",
        "result": None,
        "call_id": "c",
        "status": "success",
        "took": Decimal("0.5"),
        "error": None,
    }
    assert StructuredMessage.from_json(message.to_json()) == message


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tool_calls": ["get"]}, r"tool_calls\[0\]: must be a ToolCall or a dict, not str"),
        ({"tool_calls": [{}]}, r"tool_calls\[0\]\.name: must be text, not NoneType"),
        ({"tool_calls": [{"name": "a", "id": 5}]}, r"tool_calls\[0\]\.id: must be text, not int"),
        ({"tool_calls": [{"name": "a", "arguments": "{}"}]}, r"tool_calls\[0\]\.arguments: must be a dict, not str"),
        ({"tool_calls": [ToolCall("a", {"x": [object()]})]}, r"tool_calls\[0\]\.arguments\.x\[0\]: object cannot be"),
        ({"tool_results": [5]}, r"tool_results\[0\]: must be a ToolResult or a dict, not int"),
        ({"tool_results": [{"name": "a"}]}, r"tool_results\[0\]\.call_id: must be text, not NoneType"),
        ({"tool_results": [{"call_id": "a"}]}, r"tool_results\[0\]\.name: must be text, not NoneType"),
        ({"tool_results": [ToolResult("a", {"x": 1e999}, "c")]}, r"tool_results\[0\]\.result\.x: inf is not JSON"),
    ],
)
def test_an_invalid_call_or_result_is_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        StructuredMessage("x", **given)


def test_results_without_their_call_are_allowed_and_named() -> None:
    """A result may answer a call of an earlier message."""
    request = StructuredMessage("x", tool_calls=[ToolCall("a", id="there")])
    message = StructuredMessage("x", tool_calls=[ToolCall("a", id="here")])
    for call_id in ("here", "there", "failed-call-id"):
        message.add_tool_result("a", 1, call_id)

    assert [result["call_id"] for result in message.unmatched_results()] == ["there", "failed-call-id"]
    assert [result["call_id"] for result in message.unmatched_results(request)] == ["failed-call-id"]


# ---------------------------------------------------------------- strict check


def test_a_good_message_has_no_validation_errors() -> None:
    """AT-047, AT-048"""
    request = StructuredMessage.create_tool_request("x", [ToolCall("a", id="c")])
    response = StructuredMessage.create_tool_response("x", request, [ToolResult("a", 1, "c")])

    for message in (query(), request):
        assert message.validation_errors() == []
    assert response.validation_errors(request) == []


def test_the_strict_check_says_all_that_is_wrong() -> None:
    """AT-047, AT-048"""
    message = StructuredMessage(
        "x",
        task_id="",
        message_id="",
        tool_calls=[ToolCall("a", id="c"), ToolCall("a", id="d"), ToolCall("b", id="c")],
        tool_results=[ToolResult("a", 1, "c"), ToolResult("a", 2, "failed-call-id"), ToolResult("a", 3, "c")],
    )

    assert message.validation_errors() == [
        "metadata.type: is missing or no text; name a MessageType or a type of your own",
        "task_id: is empty",
        "message_id: is empty",
        "tool_calls: 2 calls have the id 'c'",
        "tool_results[1]: no call has the id 'failed-call-id'",
        "tool_results[2]: the call 'c' already has a result",
    ]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (5, "metadata.type: is missing or no text; name a MessageType or a type of your own"),
        ("tool_request", "tool_calls: a tool_request needs at least one"),
        ("tool_response", "tool_results: a tool_response needs at least one"),
    ],
)
def test_the_strict_check_looks_at_the_type(kind: Any, error: str) -> None:
    """AT-048"""
    assert StructuredMessage("x", {"type": kind}).validation_errors() == [error]


# ---------------------------------------------------------------- factories


def test_a_response_goes_back_to_the_sender() -> None:
    """AT-019, AT-020, AT-021, AT-022, AT-047"""
    message = query()
    response = StructuredMessage.create_response(
        content="The weather in New York is sunny and 72°F.", original_message=message
    )

    assert response.source_agent == "weather_agent"
    assert response.target_agent == "user"
    assert response.metadata["type"] == MessageType.RESPONSE
    assert response.metadata["in_reply_to"] == message.task_id
    assert response.metadata["in_reply_to_message"] == message.message_id
    assert response.task_id == message.task_id
    assert response.message_id != message.message_id


def test_an_error_needs_no_original() -> None:
    """AT-023"""
    message = query()
    answer = StructuredMessage.create_error(error_message="API unavailable", original_message=message)
    alone = StructuredMessage.create_error("API unavailable", source_agent="a", target_agent="b", task_id="t")

    assert answer.metadata == {
        "type": MessageType.ERROR,
        "in_reply_to": message.task_id,
        "in_reply_to_message": message.message_id,
    }
    assert (answer.source_agent, answer.target_agent, answer.task_id) == ("weather_agent", "user", message.task_id)
    assert alone.metadata == {"type": "error"}
    assert (alone.source_agent, alone.target_agent, alone.task_id) == ("a", "b", "t")
    assert answer.content == alone.content == "API unavailable"


def test_a_task_carries_its_data_in_the_metadata() -> None:
    """AT-024: and the data cannot claim to be another type."""
    task = StructuredMessage.create_task(
        content="Analyze the sentiment of these customer reviews",
        source_agent="controller",
        target_agent="sentiment_analysis_worker",
        task_data={"priority": "high", "deadline": "2h", "type": "query"},
    )

    assert task.metadata == {"type": "task", "priority": "high", "deadline": "2h"}
    assert (task.source_agent, task.target_agent) == ("controller", "sentiment_analysis_worker")
    assert StructuredMessage.create_task("x", "a", "b").metadata == {"type": "task"}


def test_every_type_has_its_factory() -> None:
    """AT-025"""
    original = query()
    call, result = ToolCall("a", id="c"), ToolResult("a", 1, "c")
    made = [
        StructuredMessage.create_query("x", "user", "agent", metadata={"priority": "low"}),
        StructuredMessage.create_task("x", "a", "b", metadata={"m": 1}, task_data={"d": 2}, message_id="m"),
        StructuredMessage.create_response("x", original, metadata={"type": "no", "in_reply_to": "no"}),
        StructuredMessage.create_result("x"),
        StructuredMessage.create_error("x"),
        StructuredMessage.create_status("x"),
        StructuredMessage.create_tool_request("x", [call], task_id=original.task_id, source_agent="a", target_agent="tools"),
        StructuredMessage.create_tool_response("x", original, [result]),
    ]

    assert [message.message_type for message in made] == list(MessageType)
    assert [message.metadata["type"] for message in made] == list(MessageType)
    asked, task, response, *_, request, answer = made
    assert (asked.source_agent, asked.target_agent, asked.metadata["priority"]) == ("user", "agent", "low")
    assert task.metadata == {"m": 1, "d": 2, "type": "task"}
    assert task.message_id == "m"
    assert response.metadata["in_reply_to"] == original.task_id
    assert (request.task_id, request.target_agent, request.tool_calls[0]["id"]) == (original.task_id, "tools", "c")
    assert (answer.task_id, answer.target_agent, answer.tool_results[0]["result"]) == (original.task_id, "user", 1)


@pytest.mark.parametrize(
    "create",
    [
        StructuredMessage.create_response,
        StructuredMessage.create_result,
        StructuredMessage.create_error,
        StructuredMessage.create_status,
        StructuredMessage.create_tool_response,
    ],
)
def test_every_answer_stays_in_its_task_and_goes_to_who_waits(create: Callable[..., StructuredMessage]) -> None:
    """AT-022, AT-025, AT-047, AT-056"""
    original = StructuredMessage.create_task("x", "controller", "worker")
    answer = create("y", original)
    elsewhere = create("y", StructuredMessage.create_task("x", "a", "worker", reply_to="controller"))
    own = create("y", original, task_id="t", source_agent="s", target_agent="controller")

    assert (answer.source_agent, answer.target_agent, answer.task_id) == ("worker", "controller", original.task_id)
    assert "reply_to" not in answer.metadata
    assert elsewhere.target_agent == "controller"
    assert (own.source_agent, own.target_agent, own.task_id) == ("s", "controller", "t")


def test_an_intermediate_result_says_who_waits_for_the_end() -> None:
    """AT-047, AT-056: controller to A, A to B, B to the controller, all in one task."""
    task = StructuredMessage.create_task("do", "controller", "A")
    step = StructuredMessage.create_result("half", task, target_agent="B")
    further = StructuredMessage.create_result("more", step, target_agent="C")
    final = StructuredMessage.create_result("done", further)

    assert (step.source_agent, step.target_agent, step.reply_to) == ("A", "B", "controller")
    assert step.metadata["reply_to"] == further.metadata["reply_to"] == "controller"
    assert (final.source_agent, final.target_agent) == ("C", "controller")
    assert "reply_to" not in final.metadata
    assert {step.task_id, further.task_id, final.task_id} == {task.task_id}


def test_reply_to_may_be_given_or_unknown() -> None:
    """AT-056"""
    unknown = StructuredMessage("x", {"reply_to": 5}, source_agent=None, target_agent="A")
    task = StructuredMessage.create_task("x", "controller", "A")
    said = StructuredMessage.create_result("x", task, target_agent="B", metadata={"reply_to": "user"})

    assert unknown.reply_to is None
    assert StructuredMessage.create_response("x", unknown).target_agent is None
    assert "reply_to" not in StructuredMessage.create_result("x", unknown, target_agent="B").metadata
    assert said.reply_to == "user"


# ---------------------------------------------------------------- in and out


def test_the_dict_has_the_same_fields_for_every_message() -> None:
    """AT-029, AT-054"""
    assert list(StructuredMessage("x").to_dict()) == list(query().to_dict()) == FIELDS


def test_a_message_as_json() -> None:
    """AT-030"""
    message = query(content="72°F", timestamp=1.5, message_id="m")

    assert message.to_json() == (
        '{"content": "72°F", "metadata": {"type": "query", "priority": "high"}, "task_id": "weather-task-123", '
        '"timestamp": 1.5, "tool_calls": [], "tool_results": [], "source_agent": "user", '
        '"target_agent": "weather_agent", "message_id": "m"}'
    )


def test_only_the_content_is_required() -> None:
    """AT-031: null is the same as nothing."""
    with use_port(CountingPort()):
        little = StructuredMessage.from_dict({"content": "x"})
    with use_port(CountingPort()):
        nulls = StructuredMessage.from_dict({**dict.fromkeys(FIELDS), "content": "x"})
    with use_port(CountingPort()):
        assert little == nulls == StructuredMessage("x")


def test_unknown_fields_are_kept_and_given_back() -> None:
    """AT-031, AT-033"""
    when = {"__atlas__": "date", "value": "2026-01-01"}
    data = {**query().to_dict(), "trace": {"id": [1]}, "when": when}
    message = StructuredMessage.from_dict(data)

    assert message.extra == {"trace": {"id": [1]}, "when": date(2026, 1, 1)}
    with pytest.raises(TypeError, match="read-only"):
        message.extra["trace"]["id"].append(2)
    assert message.to_dict() == message.copy().to_dict() == data
    assert message != query(message_id=message.message_id, timestamp=message.timestamp)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "a message is a dict, not list"),
        (None, "a message is a dict, not NoneType"),
        ({}, "content: is missing; a message has at least a content"),
        ({"content": "x", 5: 5}, "the key 5 is not text"),
        ({"content": "x", "own": object()}, "own: object cannot be written"),
        ({"content": "x", "metadata": {"a": "\ud800"}}, r"metadata\.a: a lone surrogate \(U\+D800\) at character 0"),
        ({"content": "\udfff"}, r"content: a lone surrogate \(U\+DFFF\)"),
        ({"content": "x", "metadata": {"\ud800": 1}}, r"metadata: a lone surrogate"),
    ],
)
def test_an_invalid_message_is_refused(data: Any, error: str) -> None:
    """AT-031"""
    with pytest.raises(ValueError, match=error):
        StructuredMessage.from_dict(data)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "not JSON in UTF-8: Expecting value"),
        ("[]", "a message is a dict, not list"),
        (b"\xff\xfe", "not JSON in UTF-8: 'utf-8' codec can't decode"),
        ('{"content": "x"', "not JSON in UTF-8: Expecting ',' delimiter"),
        ('{"content": "x", "content": "y"}', "the key 'content' stands twice in one object"),
        ('{"content": "x", "metadata": {"a": NaN}}', "not JSON: NaN; use null or text"),
        ('{"content": "x", "metadata": {"a": 1e999}}', r"metadata\.a: inf is not JSON"),
        ('{"content": "x", "metadata": {"a": "\\ud800"}}', r"metadata\.a: a lone surrogate"),
        ('{"content": "x", "metadata": ' + "9" * 5000 + "}", "not JSON in UTF-8: Exceeds the limit"),
        ("[" * 100_000, "nested too deep"),
        (5, "not JSON in UTF-8: the JSON object must be str"),
    ],
)
def test_invalid_json_is_refused(text: Any, error: str) -> None:
    """AT-032"""
    with pytest.raises(ValueError, match=error):
        StructuredMessage.from_json(text)


def test_json_may_come_as_bytes() -> None:
    """AT-032"""
    message = query(content="72°F")

    assert StructuredMessage.from_json(message.to_json().encode()) == message
    assert StructuredMessage.from_json(bytearray(message.to_json().encode())) == message


# ---------------------------------------------------------------- values


class Colour(Enum):
    RED = "red"
    BOTH = ("red", 1)


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Place:
    name: str
    since: date
    inside: "Place | None" = None


@dataclass(frozen=True)
class Coin:
    value: int


class User(BaseModel):
    name: str
    born: date
    home: AnyUrl
    password: SecretStr = SecretStr("hunter2")
    token: str = Field(default="t", exclude=True)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), {"__atlas__": "datetime", "value": "2026-01-02T03:04:05.000006+00:00"}),
        (datetime(2026, 1, 2), {"__atlas__": "datetime", "value": "2026-01-02T00:00:00"}),
        (date(2026, 1, 2), {"__atlas__": "date", "value": "2026-01-02"}),
        (Decimal("1.50"), {"__atlas__": "decimal", "value": "1.50"}),
        (UUID(int=1), {"__atlas__": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
        (b"\x00\xff", {"__atlas__": "bytes", "value": "AP8="}),
        ((1, (2,)), {"__atlas__": "tuple", "value": [1, {"__atlas__": "tuple", "value": [2]}]}),
        ({"b", "a"}, {"__atlas__": "set", "value": ["a", "b"]}),
        (frozenset({(2,), None}), {"__atlas__": "frozenset", "value": [None, {"__atlas__": "tuple", "value": [2]}][::-1]}),
        ({"__atlas__": "date"}, {"__atlas__": "dict", "value": {"__atlas__": "date"}}),
        ([1, {"a": None}], [1, {"a": None}]),
    ],
)
def test_a_tagged_value_comes_back_as_it_was(value: Any, written: Any) -> None:
    """AT-034"""
    message = StructuredMessage("x", {"value": value})

    assert message.to_dict()["metadata"]["value"] == written or isinstance(value, frozenset)
    again = StructuredMessage.from_json(message.to_json())
    assert again == message
    for each in (message, again):
        assert exact(thawed(each.metadata["value"])) == exact(value)


@pytest.mark.parametrize(
    ("value", "written", "plain"),
    [
        (Colour.RED, {"__atlas__": "enum", "type": "Colour", "value": "red"}, "red"),
        (
            Colour.BOTH,
            {"__atlas__": "enum", "type": "Colour", "value": {"__atlas__": "tuple", "value": ["red", 1]}},
            ("red", 1),
        ),
        (Level.HIGH, {"__atlas__": "enum", "type": "Level", "value": 3}, 3),
        (Point(1, 2), {"__atlas__": "tuple", "value": [1, 2]}, (1, 2)),
        (OrderedDict(a=1), {"a": 1}, {"a": 1}),
        (DataPart(data={"a": [1]}).data, {"a": [1]}, {"a": [1]}),
        (
            Place("Oxford", date(2026, 1, 1)),
            {
                "__atlas__": "dataclass",
                "type": "Place",
                "value": {"name": "Oxford", "since": {"__atlas__": "date", "value": "2026-01-01"}, "inside": None},
            },
            {"name": "Oxford", "since": date(2026, 1, 1), "inside": None},
        ),
        (
            User(name="Ada", born=date(1815, 12, 10), home=AnyUrl("https://example.com/")),
            {
                "__atlas__": "model",
                "type": "User",
                "value": {"name": "Ada", "born": "1815-12-10", "home": "https://example.com/", "password": "**********"},
            },
            {"name": "Ada", "born": "1815-12-10", "home": "https://example.com/", "password": "**********"},
        ),
    ],
)
def test_an_object_comes_back_as_its_plain_value_and_its_type_stays_a_name(value: Any, written: Any, plain: Any) -> None:
    """AT-034: the message holds data from the start, and passing it on loses nothing."""
    message = StructuredMessage("x", {"value": value})

    assert message.to_dict()["metadata"]["value"] == written
    again = StructuredMessage.from_json(message.to_json())
    assert again == again.copy() == message
    for each in (message, again):
        assert exact(thawed(each.metadata["value"])) == exact(plain)


class Berlin(tzinfo):
    """The night on which the clock goes back, without a zone database."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1 if when is not None and when.fold else 2)


def test_a_time_in_a_named_zone_keeps_its_instant_and_offset() -> None:
    """AT-034: in both readings of an hour that comes twice."""
    for fold in (0, 1):
        when = datetime(2026, 10, 25, 2, 30, tzinfo=Berlin(), fold=fold)
        again = StructuredMessage.from_json(StructuredMessage("x", {"when": when}).to_json()).metadata["when"]

        assert again.timestamp() == when.timestamp()
        assert again.utcoffset() == when.utcoffset()


def test_no_class_is_revived_by_its_name() -> None:
    """AT-034: a name is text, whatever it names."""
    evil = {"__atlas__": "object", "type": "os.system", "value": "echo"}
    message = StructuredMessage.from_dict({"content": "x", "metadata": {"value": evil}})

    assert message.metadata == {"value": "echo"}
    assert message.to_dict()["metadata"] == {"value": evil}


def test_objects_of_the_format_itself_are_never_tags() -> None:
    """A plain dict may have any keys: as metadata, as arguments, as a call, as a value."""
    tag = {"__atlas__": "date", "value": "2026-01-01"}
    call = {"id": "c", "name": "a", "arguments": tag, **tag}
    message = StructuredMessage("x", {**tag, "inner": tag}, tool_calls=[call], tool_results=[ToolResult("a", tag, "c")])
    again = StructuredMessage.from_json(message.to_json())

    assert again == message
    assert again.metadata == {**tag, "inner": tag}
    assert again.tool_calls == [call]
    assert again.tool_results[0]["result"] == tag


@pytest.mark.parametrize(
    "data",
    [
        {"__atlas__": "later", "value": 1},
        {"__atlas__": "date", "value": "2026-01-01", "more": 1},
        {"__atlas__": "date"},
        {"__atlas__": "enum", "value": 1},
        {"__atlas__": "enum", "type": 5, "value": 1},
        {"__atlas__": ["date"], "value": "2026-01-01"},
        {"__atlas__": None},
    ],
)
def test_an_object_that_is_not_exactly_a_tag_is_plain(data: dict[str, Any]) -> None:
    """Read as it is and passed on as it is; taken as a value, it is escaped."""
    read = StructuredMessage.from_dict({"content": "x", "metadata": {"value": data}})
    made = StructuredMessage("x", read.metadata)

    assert read.metadata == made.metadata == {"value": data}
    assert read.to_dict()["metadata"] == {"value": data}
    assert made.to_dict()["metadata"] == {"value": {"__atlas__": "dict", "value": data}}


@pytest.mark.parametrize(
    ("tag", "value", "error"),
    [
        ("datetime", "tomorrow", "'tomorrow' is no datetime"),
        ("date", "2026-13-01", "'2026-13-01' is no date"),
        ("decimal", "ten", "'ten' is no decimal"),
        ("decimal", "NaN", "'NaN' is no decimal"),
        ("uuid", "1", "'1' is no uuid"),
        ("bytes", "@", "'@' is no bytes"),
        ("bytes", "é", "'é' is no bytes"),
        ("uuid", 1, "the value of 'uuid' must be text, not int"),
        ("set", "ab", "the value of 'set' must be a list, not str"),
        ("tuple", {}, "the value of 'tuple' must be a list, not dict"),
        ("dict", [], "the value of 'dict' must be an object, not list"),
        ("set", [[]], "a set holds something that comes back as a list, set or dict"),
        ("frozenset", [1, 1.0], "two elements of a set come back as one"),
    ],
)
def test_a_tag_with_a_wrong_value_is_refused_with_its_place(tag: str, value: Any, error: str) -> None:
    data = {"content": "x", "metadata": {"a": [{"__atlas__": tag, "value": value}]}}

    with pytest.raises(ValueError, match=rf"^metadata\.a\[0\]: {error}"):
        StructuredMessage.from_dict(data)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), "nan is not JSON; use None or text"),
        (float("-inf"), "-inf is not JSON"),
        (Decimal("Infinity"), "Decimal Infinity is not a number"),
        pytest.param(10**4300, "an integer of more than 4300 digits", id="10**4300"),
        (object(), "object cannot be written as JSON; convert it, or name an encoder for it"),
        (Coin, "type cannot be written"),
        (timedelta(1), "timedelta cannot be written"),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))), "a datetime whose offset from UTC has a fraction"),
        ({1: 2}, "the key 1 is not text"),
        ({Coin(1)}, "a set holds something that comes back as a list, set or dict; use a list"),
        ({"red", Colour.RED}, "two elements of a set come back as one; use a list"),
        ("\ud83d", r"a lone surrogate \(U\+D83D\)"),
    ],
)
def test_a_value_that_cannot_come_back_is_refused_at_once_with_its_place(value: Any, error: str) -> None:
    """AT-034"""
    message = StructuredMessage("x", {"kept": 1})

    with pytest.raises(ValueError, match=rf"^metadata\.a\[1\]: {error}"):
        message.update_metadata({"a": [0, value]})
    with pytest.raises(ValueError, match=rf"^tool_calls\.arguments\.a: {error}"):
        message.add_tool_call("x", {"a": value})
    with pytest.raises(ValueError, match=rf"^tool_results\.result: {error}"):
        message.add_tool_result("x", value, "c")
    assert message.to_dict()["metadata"] == {"kept": 1}
    assert not message.has_tool_calls
    assert not message.has_tool_results


def test_a_model_that_cannot_write_itself_is_refused() -> None:
    class Odd(BaseModel):
        data: bytes
        other: Any = None

    odd = Odd(data=b"x")
    odd.other = odd
    for value in (Odd(data=b"\xff"), Odd(data=b"", other=object()), odd):
        with pytest.raises(ValueError, match=r"^metadata\.a: Odd cannot be written as JSON: "):
            StructuredMessage("x", {"a": value})


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: dict[str, Any] = {"a": []}
    cycle["a"].append(cycle)
    place = Place("Oxford", date(2026, 1, 1))
    place.inside = place

    with pytest.raises(ValueError, match=r"^metadata\.x\.a\[0\]: contains itself"):
        StructuredMessage("x", {"x": cycle})
    with pytest.raises(ValueError, match=r"^metadata\.a\[0\]: contains itself"):
        StructuredMessage("x", cycle)
    with pytest.raises(ValueError, match=r"^metadata\.x\.inside: contains itself"):
        StructuredMessage("x", {"x": place})
    twice = [1]
    assert StructuredMessage("x", {"a": twice, "b": [twice, twice]}).metadata["b"] == [[1], [1]]


WRAPPERS: list[Callable[[Any], Any]] = [
    lambda inner: [inner],
    lambda inner: (inner,),
    lambda inner: {"__atlas__": inner},
    lambda inner: {"a": inner},
    lambda inner: frozenset({inner}) if not isinstance(inner, list | dict) else [inner],
    lambda inner: Place("x", date(2026, 1, 1), inner),
]


@given(st.lists(st.sampled_from(WRAPPERS), max_size=12), st.sampled_from([None, date(2026, 1, 1), Colour.BOTH, set[int]()]))
def test_every_depth_that_can_be_written_can_be_read(wraps: list[Any], value: Any) -> None:
    """What can be written has no more levels of JSON than the limit allows."""
    for wrap in wraps:
        try:
            value = wrap(value)
        except TypeError:
            value = [value]
    with use_limits(Limits(depth=8)):
        try:
            message = StructuredMessage("x", {"a": value}, tool_calls=[ToolCall("a", {"a": value})])
        except ValueError as exc:
            refused = str(exc)
        else:
            refused = ""
        if refused:
            assert "nested deeper than 8; flatten it" in refused or "a set holds" in refused
            return
        assert StructuredMessage.from_dict(message.to_dict()) == message
        assert depth(message.to_dict()["metadata"]) <= 8


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def test_deep_nesting_is_refused() -> None:
    """10,000 deep: an error, never a crash."""
    value: Any = 1
    for _ in range(10_000):
        value = [value]

    with pytest.raises(ValueError, match=r"^metadata\.a\[0\].*: is nested deeper than 64; flatten it"):
        StructuredMessage("x", {"a": value})
    with pytest.raises(ValueError, match="is nested deeper than 64"):
        StructuredMessage.from_dict({"content": "x", "own": value})


def test_other_classes_are_written_by_an_encoder_of_ones_own() -> None:
    """AT-057: a subclass names them, for every way in; they come back as plain values."""

    class Trip(StructuredMessage):
        encoders: ClassVar = {Path: str, timedelta: timedelta.total_seconds, Coin: lambda coin: {"coin": Decimal(coin.value)}}

    trip = Trip.create_task("go", "a", "b", {"map": Path("a/b"), "pay": [Coin(5)]})
    trip.add_tool_call("wait", {"for": timedelta(minutes=1)})
    again = Trip.from_json(trip.to_json())

    assert type(trip) is Trip
    assert again == trip
    assert again.metadata == {"map": "a/b", "pay": [{"coin": Decimal(5)}], "type": "task"}
    assert again.tool_calls[0]["arguments"] == {"for": 60.0}
    assert again.to_dict()["metadata"]["pay"][0] == {
        "__atlas__": "object",
        "type": "Coin",
        "value": {"coin": {"__atlas__": "decimal", "value": "5"}},
    }
    assert StructuredMessage.from_dict(trip.to_dict()).metadata == trip.metadata


def test_an_encoder_that_never_gets_plain_is_refused() -> None:
    class Endless(StructuredMessage):
        encoders: ClassVar = {Coin: lambda coin: Coin(coin.value + 1)}

    with pytest.raises(ValueError, match="nested deeper than 64"):
        Endless("x", {"a": Coin(1)})


# ---------------------------------------------------------------- round trips

offsets = st.integers(-86399, 86399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
leaves = st.one_of(
    scalars,
    st.datetimes(timezones=st.none() | offsets).map(lambda when: when.replace(fold=0)),
    st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.binary(max_size=20),
)
hashables = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=5
)
value_keys = st.one_of(st.sampled_from(["__atlas__", "value", "type"]), texts)
values = st.recursive(
    leaves | st.sets(hashables, max_size=3) | st.frozensets(hashables, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(value_keys, inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.dictionaries(value_keys, values, max_size=3)
calls = st.builds(ToolCall, name=texts, arguments=fields | json_objects, id=names)
results = st.one_of(
    st.builds(ToolResult, name=texts, result=values | json_values, call_id=names),
    st.builds(ToolResult, name=texts, result=st.none(), call_id=names, status=st.just("error"), error=texts.filter(bool)),
)
finite = st.floats(allow_nan=False, allow_infinity=False)
messages = st.builds(
    StructuredMessage,
    content=texts,
    metadata=st.none() | fields | st.dictionaries(value_keys, json_values.filter(lambda value: depth(value) < 64), max_size=2),
    task_id=st.none() | names,
    tool_calls=st.none() | st.lists(calls, max_size=3),
    tool_results=st.none() | st.lists(results, max_size=3),
    source_agent=st.none() | texts,
    target_agent=st.none() | texts,
    timestamp=st.none() | finite,
    message_id=st.none() | names,
)


def exact(value: Any) -> Any:
    """A value with the type of everything in it, so that `1`, `1.0` and `True` differ, and a tuple is no list."""
    if isinstance(value, dict):
        return dict, {key: exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [exact(each) for each in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(exact(each)) for each in value)
    return type(value), repr(value) if isinstance(value, float | Decimal) else value


def everything(message: StructuredMessage) -> Any:
    return exact({name: getattr(message, name) for name in [*FIELDS, "extra"]})


@pytest.mark.slow
@given(messages)
def test_a_message_survives_json(message: StructuredMessage) -> None:
    """AT-029, AT-030, AT-031, AT-032, AT-033, AT-034: every field, timestamp and agents too, to the type of every value."""
    as_dict = StructuredMessage.from_dict(message.to_dict())
    as_json = StructuredMessage.from_json(message.to_json())

    for again in (as_dict, as_json, message.copy()):
        assert again == message
        assert everything(again) == everything(message)
        assert again.to_json() == message.to_json()
    assert json.loads(message.to_json()) == message.to_dict()


@pytest.mark.slow
@given(fields, values)
def test_a_message_holds_the_values_it_is_given(metadata: dict[str, Any], result: Any) -> None:
    """AT-033, AT-034"""
    message = StructuredMessage("x", metadata, tool_results=[ToolResult("a", result, "c")])
    again = StructuredMessage.from_json(message.to_json())

    for each in (message, again):
        assert exact(thawed(each.metadata)) == exact(metadata)
        assert exact(thawed(each.tool_results[0]["result"])) == exact(result)


tag_names = ["datetime", "date", "decimal", "uuid", "bytes", "tuple", "set", "frozenset", "dict", "enum", "object", "x"]
tagged = st.recursive(
    scalars | st.sampled_from(["2026-01-01", "1e5", "AP8=", "inf"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(value_keys, inner, max_size=3),
        st.fixed_dictionaries({"__atlas__": st.sampled_from(tag_names), "value": inner}, optional={"type": inner}),
    ),
    max_leaves=8,
)
anything = st.dictionaries(st.sampled_from([*FIELDS, "__atlas__", "own"]), tagged | json_values, max_size=6)


@pytest.mark.slow
@given(
    anything | st.fixed_dictionaries({"content": texts}, optional={"metadata": st.dictionaries(texts, tagged), "own": tagged})
)
def test_any_data_is_a_message_or_is_refused(data: dict[str, Any]) -> None:
    """AT-031: and what is read is passed on as it came."""
    try:
        message = StructuredMessage.from_dict(data)
    except ValueError:
        return
    for name in data.keys() & {"content", "metadata", "own", "__atlas__"}:
        if data[name] is not None:
            assert exact(message.to_dict()[name]) == exact(data[name])
    everything(message)
    assert StructuredMessage.from_json(message.to_json()) == message


# ---------------------------------------------------------------- threads

THREADS = 8
EACH = 25


@pytest.fixture
def _restless() -> Any:
    """Threads are switched as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_restless")
def test_many_threads_add_to_one_message_and_nothing_is_lost() -> None:
    """AT-059: no call, result or key is lost, no id is given twice, and every reader sees a whole message."""
    message = StructuredMessage("x", {"type": "tool_request"})
    start = Barrier(THREADS)

    def work(number: int) -> list[str]:
        start.wait()
        ids: list[str] = []
        for count in range(EACH):
            call_id = message.add_tool_call("add", {"thread": number, "count": [count]})
            message.add_tool_result("add", {"sum": number + count}, call_id)
            message.update_metadata({f"{number}-{count}": count})
            ids.append(call_id)
            if count % 12 == 0:
                seen = StructuredMessage.from_json(message.to_json())
                assert seen.unmatched_results() == []  # a call is there before its result
                assert set(ids) <= {call["id"] for call in message.tool_calls}
        return ids

    with ThreadPoolExecutor(THREADS) as pool:
        ids = [call_id for made in pool.map(work, range(THREADS)) for call_id in made]

    assert len(set(ids)) == len(ids) == THREADS * EACH
    assert sorted(call["id"] for call in message.tool_calls) == sorted(ids)
    assert sorted(result["call_id"] for result in message.tool_results) == sorted(ids)
    assert len(message.metadata) == THREADS * EACH + 1
    assert message.validation_errors() == []
    for number in range(THREADS):
        mine = [call["arguments"]["count"][0] for call in message.tool_calls if call["arguments"]["thread"] == number]
        assert mine == list(range(EACH))


@pytest.mark.usefixtures("_restless")
def test_only_one_of_many_threads_gets_a_call_id() -> None:
    """AT-059"""
    message = StructuredMessage("x")
    start = Barrier(THREADS)

    def claim(_: int) -> bool:
        start.wait()
        try:
            message.add_tool_call("a", call_id="wanted")
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(claim, range(THREADS))) == 1
    assert len(message.tool_calls) == 1


@pytest.mark.usefixtures("_restless")
def test_a_change_is_before_the_sending_or_refused() -> None:
    """AT-059: what a thread was told is in, is in; nothing comes after."""
    message = StructuredMessage("x")
    start = Barrier(THREADS + 1)

    def add(_: int) -> list[str]:
        start.wait()
        ids: list[str] = []
        try:
            for _ in range(EACH):
                ids.append(message.add_tool_call("a"))  # noqa: PERF401 (the ids made before the refusal are wanted)
        except RuntimeError:
            pass
        return ids

    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(add, number) for number in range(THREADS)]
        start.wait()
        at_sending = message.seal().to_dict()
        ids = [call_id for each in running for call_id in each.result()]

    assert sorted(call["id"] for call in at_sending["tool_calls"]) == sorted(ids)
    assert message.to_dict() == at_sending
