"""Envelopes: messages, responses and error responses, frozen and open to keys that we do not know."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from tests.protocol.strategies import envelopes
from tests.strategies import json_objects

from antiphon.messages import Limits, thaw, use_limits, use_port
from antiphon.protocol import ErrorCode, ErrorResponse, Message, Response
from antiphon.testing import CountingPort

FIELDS = ["id", "type", "data", "sender", "receiver", "timestamp", "correlation_id"]
NOON = datetime(2023, 7, 15, 12, 30, tzinfo=UTC)


# ---------------------------------------------------------------- fields


def test_a_message_needs_a_type_and_nothing_else() -> None:
    """CH-001, CH-002, CH-003, CH-004, CH-005, CH-006, CH-007, CH-008"""
    with use_port(CountingPort()):
        message = Message(type="HEARTBEAT")

    assert isinstance(message, BaseModel)
    assert list(Message.model_fields) == FIELDS
    assert message.model_dump() == {
        "id": "id-1",
        "type": "HEARTBEAT",
        "data": {},
        "sender": None,
        "receiver": None,
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "correlation_id": None,
    }
    with pytest.raises(ValidationError, match=r"type\n  Field required"):
        Message()  # type: ignore[call-arg]


def test_ids_are_fresh_and_times_are_aware() -> None:
    """CH-002, CH-007"""
    first, second = Message(type="T"), Message(type="T")

    assert first.id != second.id
    assert first.timestamp.tzinfo is UTC
    assert first.timestamp <= second.timestamp


def test_a_response_has_the_fields_of_a_message_and_the_id_of_what_it_answers() -> None:
    """CH-030, CH-031"""
    response = Response(type="THREAD_CREATED", data={"thread_id": "t", "status": "created"}, message_id="m-1")

    assert list(Response.model_fields) == [*FIELDS, "message_id"]
    assert response.message_id == "m-1"
    assert Response(type="X").message_id is None
    assert not isinstance(response, Message)


@pytest.mark.parametrize("field", ["id", "type", "sender", "receiver", "correlation_id", "message_id"])
@pytest.mark.parametrize("wrong", [3, b"text", ["x"], "\ud800"])
def test_text_is_text(field: str, wrong: object) -> None:
    with pytest.raises(ValidationError, match=field):
        Response.model_validate({"type": "T", field: wrong})


# ---------------------------------------------------------------- time


@pytest.mark.parametrize(
    "given_time",
    [
        NOON,
        NOON.replace(tzinfo=None),
        NOON.astimezone(timezone(timedelta(hours=-5))),
        "2023-07-15T12:30:00Z",
        "2023-07-15T12:30:00",
        "2023-07-15T14:30:00+02:00",
    ],
)
def test_a_time_is_utc_and_is_written_with_a_z(given_time: Any) -> None:
    """CH-007: without a zone it is taken as UTC."""
    message = Message(type="T", timestamp=given_time)

    assert message.timestamp == NOON
    assert message.timestamp.tzinfo is UTC
    assert '"timestamp":"2023-07-15T12:30:00Z"' in message.model_dump_json()


@pytest.mark.parametrize(
    "wrong",
    [
        "noon",
        "",
        None,
        1689424200,
        True,
        "2023-07-15T12:30:00.1234567Z",
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59-01:00",
    ],
)
def test_an_invalid_time_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="A time"):
        Message(type="T", timestamp=wrong)


# ---------------------------------------------------------------- data


def test_data_is_a_copy_that_nobody_can_change() -> None:
    """CH-004"""
    data: dict[str, Any] = {"user": {"tags": ["a"]}}
    message = Message(type="T", data=data)
    data["user"]["tags"].append("b")
    view: Any = message.data

    assert message.data == {"user": {"tags": ["a"]}}
    assert view["user"]["tags"][0] == "a"
    assert dict(message.data) == {"user": {"tags": ["a"]}}
    for change in (
        lambda: view.update(x=1),
        lambda: view["user"].__setitem__("x", 1),
        lambda: view["user"]["tags"].append("b"),
        lambda: setattr(message, "data", {}),
        lambda: setattr(message, "type", "U"),
        lambda: setattr(message, "other", "U"),
    ):
        with pytest.raises((AttributeError, TypeError, ValidationError)):
            change()
    message.model_dump()["data"]["user"]["tags"].append("c")
    assert message.data == {"user": {"tags": ["a"]}}


@pytest.mark.parametrize("wrong", [None, [], "{}", {"x": float("nan")}, {"x": {1}}, {1: "x"}, {"x": b""}])
def test_data_is_a_json_object(wrong: Any) -> None:
    for make in (
        lambda: Message(type="T", data=wrong),
        lambda: Message.model_validate({"type": "T", "data": wrong}),
        lambda: ErrorResponse("failed", data=wrong),
    ):
        with pytest.raises(ValidationError, match="data"):
            make()


def test_data_is_held_to_the_limits() -> None:
    with use_limits(Limits(depth=2)), pytest.raises(ValidationError, match="nested deeper than 2"):
        Message(type="T", data={"a": {"b": {}}})


@pytest.mark.slow
@given(json_objects)
def test_data_is_given_out_as_it_came_in(data: dict[str, Any]) -> None:
    message = Message(type="T", data=data)

    assert message.data == data
    assert thaw(message.data) == message.model_dump()["data"] == data
    assert Message.model_validate_json(message.model_dump_json()) == message


# ---------------------------------------------------------------- keys that we do not know


def test_keys_that_we_do_not_know_are_kept_frozen() -> None:
    form: dict[str, Any] = {"type": "T", "priority": {"level": [1]}, "model_dump": 3, "reply": None, "": "x", "__class__": 1}
    message: Any = Message.model_validate(form)
    form["priority"]["level"].append(2)

    assert message.model_dump(exclude_unset=True) == {**form, "priority": {"level": [1]}}
    assert message.priority == {"level": [1]}
    assert message.model_extra["priority"]["level"] == [1]
    assert dict(message)["reply"] is None
    for view in (message.priority, message.model_extra["priority"], dict(message)["priority"]):
        with pytest.raises(TypeError):
            view["level"] = 2
    with pytest.raises(AttributeError, match="'Message' object has no attribute 'nothing'"):
        _ = message.nothing
    with pytest.raises(ValidationError, match="nan is not JSON"):
        Message.model_validate({"type": "T", "priority": float("nan")})


def test_fields_that_were_not_given_can_be_left_out() -> None:
    form = {"type": "T", "data": {"a": None}, "sender": None, "x": [1]}

    assert Message.model_validate(form).model_dump(exclude_unset=True) == form


# ---------------------------------------------------------------- values


@pytest.mark.slow
@given(envelopes)
def test_an_envelope_is_a_value(envelope: Message | Response) -> None:
    """Equal by content, copied without being changed, written and read."""
    for other in (
        type(envelope).model_validate(envelope.model_dump()),
        type(envelope).model_validate_json(envelope.model_dump_json()),
        type(envelope)(**envelope.model_dump()),
        pickle.loads(pickle.dumps(envelope)),
        copy.deepcopy(envelope),
        envelope.model_copy(),
    ):
        assert type(other) is type(envelope)
        assert other == envelope
        assert hash(other) == hash(envelope)
    assert envelope != envelope.model_copy(update={"id": envelope.id + "'"})
    assert envelope != envelope.model_dump()


def test_a_copy_is_checked_and_remembers_what_was_given() -> None:
    message = Message.model_validate({"type": "T", "extra": 1})
    other = message.model_copy(update={"sender": "a", "extra": 2})

    assert other.model_dump(exclude_unset=True) == {"type": "T", "sender": "a", "extra": 2}
    assert (other.id, other.timestamp) == (message.id, message.timestamp)
    with pytest.raises(ValidationError):
        message.model_copy(update={"sender": 3})


@pytest.mark.parametrize("other", [1.0, True, "1", None])
def test_content_that_differs_in_type_differs(other: Any) -> None:
    same = {"id": "m", "type": "T", "timestamp": NOON}

    assert Message.model_validate({**same, "x": 1}) != Message.model_validate({**same, "x": other})
    assert Message.model_validate({**same, "data": {"x": 1}}) != Message.model_validate({**same, "data": {"x": other}})
    assert Message.model_validate({**same, "data": {"x": 1, "y": 2}}) == Message.model_validate(
        {**same, "data": {"y": 2, "x": 1}}
    )


def test_there_is_no_unchecked_way_in() -> None:
    assert Message.model_construct(type="T", data={"a": 1}).data == {"a": 1}
    with pytest.raises(ValidationError):
        Message.model_construct(type=3)


def test_the_repr_shows_what_is_there() -> None:
    message = Message.model_validate({"id": "m", "type": "T", "timestamp": NOON, "data": {"a": 1}, "reply": True})

    assert repr(message).startswith("Message(id='m', type='T', data={'a': 1}, sender=None")
    assert repr(message).endswith("reply=True)")


# ---------------------------------------------------------------- error responses


def test_the_error_of_the_reference_can_be_made() -> None:
    """CH-032, CH-033, CH-034, CH-035, CH-036, CH-037, CH-091"""
    error = ErrorResponse(
        error_message="Failed to process phase",
        error_code="PHASE_PROCESSING_ERROR",
        message_id="original_message_id",
        data={"thread_id": "thread789", "phase_type": "action", "details": "API rate limit exceeded"},
    )

    assert isinstance(error, Response)
    assert error.type == "ERROR"
    assert error.message_id == "original_message_id"
    assert error.error_message == "Failed to process phase"
    assert error.error_code == ErrorCode.PHASE_PROCESSING_ERROR
    assert list(error.data.items()) == [
        ("error_message", "Failed to process phase"),
        ("error_code", "PHASE_PROCESSING_ERROR"),
        ("thread_id", "thread789"),
        ("phase_type", "action"),
        ("details", "API rate limit exceeded"),
    ]


def test_an_error_takes_its_arguments_in_order_and_other_fields_by_name() -> None:
    """CH-036"""
    error = ErrorResponse(
        "no", ErrorCode.TIMEOUT, "m-1", sender="a", receiver="b", correlation_id="c", id="e-1", timestamp=NOON
    )

    assert error.model_dump() == {
        "id": "e-1",
        "type": "ERROR",
        "data": {"error_message": "no", "error_code": "TIMEOUT"},
        "sender": "a",
        "receiver": "b",
        "timestamp": NOON,
        "correlation_id": "c",
        "message_id": "m-1",
    }


def test_a_code_that_is_not_given_is_left_out() -> None:
    """CH-035"""
    error = ErrorResponse("no")

    assert error.data == {"error_message": "no"}
    assert error.error_code is None


def test_an_argument_wins_over_data() -> None:
    """CH-037: and what no argument says stays."""
    extra: Any = {"error_message": "other", "error_code": "OTHER", "details": 1}

    assert ErrorResponse("no", "CODE", data=extra).data == {"error_message": "no", "error_code": "CODE", "details": 1}
    assert ErrorResponse("no", data=extra).data == {"error_message": "no", "error_code": "OTHER", "details": 1}
    assert ErrorResponse(data=extra).data == extra


def test_an_error_is_read_as_it_was_written() -> None:
    """CH-033, CH-045: data that comes from elsewhere is not touched, even where it has names of arguments."""
    form = {"type": "ERROR", "data": {"error_message": "no", "error_code": None}, "message_id": None, "error_message": "mine"}
    error = ErrorResponse.model_validate(form)

    assert error.model_dump(exclude_unset=True) == form
    assert error.error_message == "no"
    assert TypeAdapter(ErrorResponse).validate_python(form).model_dump(exclude_unset=True) == form
    assert ErrorResponse.model_validate({"data": {"error_message": "no"}}).type == "ERROR"
    assert ErrorResponse.model_validate({"data": {"error_message": "no"}}).model_dump(exclude_unset=True) == {
        "type": "ERROR",
        "data": {"error_message": "no"},
    }


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"type": "OTHER", "data": {"error_message": "no"}}, "type"),
        ({"data": {}}, "text under 'error_message'"),
        ({}, "text under 'error_message'"),
        ({"data": {"error_message": 3}}, "text under 'error_message'"),
        ({"data": {"error_message": "no", "error_code": 500}}, "text under 'error_code'"),
    ],
)
def test_an_error_says_what_failed(form: dict[str, Any], reason: str) -> None:
    """CH-033, CH-034: made, read, or made as a plain response."""
    with pytest.raises(ValidationError, match=reason):
        ErrorResponse.model_validate(form)
    with pytest.raises(ValidationError, match=reason):
        ErrorResponse(**form)
    if form.get("type") != "OTHER":
        with pytest.raises(ValidationError, match=reason):
            Response(type="ERROR", **form)


def test_a_message_is_no_response() -> None:
    with pytest.raises(ValidationError, match="A message has no message_id: make it a Response"):
        Message.model_validate({"type": "T", "message_id": None})


# ---------------------------------------------------------------- replies


def test_a_reply_goes_back_to_the_sender() -> None:
    """CH-116 (of a reply): the exchange is named by the first message of it."""
    message = Message(id="m-1", type="CREATE_THREAD", sender="client", receiver="threads")
    response = message.reply(data={"thread_id": "t", "status": "created"})

    assert type(response) is Response
    assert response.type == "THREAD_CREATED"
    assert response.data == {"thread_id": "t", "status": "created"}
    assert (response.sender, response.receiver) == ("threads", "client")
    assert (response.message_id, response.correlation_id) == ("m-1", "m-1")
    assert response.id != message.id


def test_a_reply_keeps_the_exchange_and_takes_other_fields() -> None:
    message = Message(type="T", correlation_id="c", sender="a", receiver="b")

    assert message.reply().correlation_id == "c"
    assert message.reply().type == "T_RESPONSE"
    assert message.reply("DONE", {"a": 1}).type == "DONE"
    assert message.reply(sender="deputy", id="r-1", timestamp=NOON).model_dump() == {
        "id": "r-1",
        "type": "T_RESPONSE",
        "data": {},
        "sender": "deputy",
        "receiver": "a",
        "timestamp": NOON,
        "correlation_id": "c",
        "message_id": message.id,
    }


def test_an_error_goes_back_to_the_sender() -> None:
    message = Message(type="PROCESS_PHASE", sender="threads", receiver="action", correlation_id="c")
    error = message.reply_error("no such phase", ErrorCode.VALIDATION_ERROR, data={"phase_type": "action"})

    assert type(error) is ErrorResponse
    assert error.data == {"error_message": "no such phase", "error_code": "VALIDATION_ERROR", "phase_type": "action"}
    assert (error.sender, error.receiver) == ("action", "threads")
    assert (error.message_id, error.correlation_id) == (message.id, "c")
    assert message.reply_error("no").data == {"error_message": "no"}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_unknown_type_is_answered_by_its_name_and_response(name: str) -> None:
    """CH-028"""
    assert Message(type=f"X-{name}").get_response_type() == f"X-{name}_RESPONSE"
