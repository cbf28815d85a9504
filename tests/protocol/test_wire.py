"""JSON: an envelope is written as its fields, and read as the class it was."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.strategies import envelopes, error_forms, message_forms, response_forms
from tests.strategies import json_values

from antiphon.errors import DecodeError
from antiphon.protocol import ErrorResponse, Message, Response, deserialize_message, serialize_message


@pytest.mark.slow
@given(envelopes)
def test_an_envelope_is_read_as_it_was_written(envelope: Message | Response) -> None:
    """CH-043, CH-044, CH-045: the class and the message_id with it."""
    text = serialize_message(envelope)
    again = deserialize_message(text)

    assert type(again) is type(envelope)
    assert again == envelope
    assert serialize_message(again) == text
    assert deserialize_message(text.encode()) == envelope


@pytest.mark.slow
@given(st.one_of(message_forms, response_forms, error_forms))
def test_reading_adds_no_key_of_its_own(form: dict[str, Any]) -> None:
    """CH-045: and what is written says no class."""
    if "timestamp" in form:
        form["timestamp"] = form["timestamp"].isoformat().replace("+00:00", "Z")
    envelope = deserialize_message(json.dumps(form))

    assert envelope.model_dump(mode="json", exclude_unset=True) == form
    assert json.loads(serialize_message(envelope)).keys() == type(envelope).model_fields.keys() | form.keys()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "T"}, Message),
        ({"type": "T", "message_id": "m"}, Response),
        ({"type": "T", "message_id": None}, Response),
        ({"type": "ERROR", "message_id": "m", "data": {"error_message": "no"}}, ErrorResponse),
        ({"type": "ERROR", "message_id": None, "data": {"error_message": "no"}}, ErrorResponse),
        ({"type": "ERROR", "data": {"error_message": "no"}}, Message),
    ],
)
def test_the_keys_tell_the_class(form: dict[str, Any], expected: type) -> None:
    """CH-044, CH-045"""
    assert type(deserialize_message(json.dumps(form))) is expected


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("", "", "not JSON"),
        ("{", "", "not JSON"),
        ("[]", "", "not a JSON object"),
        ("null", "", "not a JSON object"),
        ('{"type":"T","type":"U"}', "", "stands twice"),
        ('{"type":"T","data":{"x":NaN}}', "", "not JSON"),
        ("\ud800", "", "lone surrogate"),
        (b"\xff\xfe{\x00", "", "UTF-16"),
        (b"\xff", "", "not JSON"),
        ("[" * 10_000, "", "not JSON"),
        ('{"type":"T","data":' + '{"a":' * 10_000 + "1" + "}" * 10_001, "", "not JSON"),
        ('{"type":"T","data":' + '{"a":' * 100 + "1" + "}" * 101, "data", "nested deeper"),
        ('{"type":"T","x":' + "[" * 100 + "]" * 100 + "}", "x", "nested deeper"),
        ("{}", "type", "Field required"),
        ('{"type":3}', "type", "valid string"),
        ('{"type":"T","data":[]}', "data", "a JSON object"),
        ('{"type":"T","timestamp":"noon"}', "timestamp", "A time is"),
        ('{"type":"T","sender":1,"receiver":2}', "sender", r"\(and 1 more\)"),
        ('{"type":"ERROR","message_id":"m","data":{}}', "data.error_message", "has text under 'error_message'"),
    ],
)
def test_an_invalid_envelope_is_refused_with_its_place(text: str | bytes, where: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        deserialize_message(text)

    assert caught.value.dialect == "choir"
    assert caught.value.where.startswith(where)
    assert bool(caught.value.where) == bool(where)


@given(st.one_of(st.text(), st.binary(), json_values.map(json.dumps)))
def test_reading_gives_an_envelope_or_a_decode_error(text: str | bytes) -> None:
    try:
        envelope = deserialize_message(text)
    except DecodeError:
        return
    assert isinstance(envelope, Message | Response)
