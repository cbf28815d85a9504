"""Payloads: the three things a message can be."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from antiphon import MediaPart, Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.messages import Kind


def result(**fields: Any) -> OptionResultPayload:
    return OptionResultPayload(**{"invocation_id": "i-1", "option_name": "search", **fields})


def test_there_are_exactly_three_kinds() -> None:
    """OP-010, OP-011: parts, option_call, option_result; the words action_call and action_result are gone."""
    assert get_args(Kind) == ("parts", "option_call", "option_result")
    for kind in ("action_call", "action_result", "tool_call"):
        with pytest.raises(ValidationError, match="does not match any of the expected tags"):
            Message.model_validate({"policy": "x", "payload": {"kind": kind}})


@pytest.mark.parametrize(
    "payload",
    [
        PartsPayload(parts=(TextPart(text="hi"),)),
        OptionCallPayload(invocation_id="i-1", option_name="search", arguments={}),
        result(result=1),
    ],
)
def test_a_payload_is_typed_by_its_kind(payload: Any) -> None:
    """OP-012, OP-052"""
    message = Message.model_validate({"policy": "x", "payload": payload.model_dump()})

    assert type(message.payload) is type(payload)
    assert message.kind == payload.kind
    assert message.payload == payload


def test_an_option_call() -> None:
    """OP-024: kind, invocation_id, option_name, arguments."""
    written = '{"query": "x"}'
    call = OptionCallPayload(invocation_id="i-1", option_name="search", arguments={"query": "x"}, arguments_text=written)

    assert call.kind == "option_call"
    assert call.invocation_id == "i-1"
    assert call.option_name == "search"
    assert call.arguments == {"query": "x"}
    assert call.arguments_text == '{"query": "x"}'


@pytest.mark.parametrize("arguments", [None, [], "{}", 7])
def test_arguments_are_an_object(arguments: Any) -> None:
    with pytest.raises(ValidationError, match="arguments"):
        OptionCallPayload(invocation_id="i-1", option_name="search", arguments=arguments)


def test_an_option_result() -> None:
    """OP-025: result may be any JSON value, parts may come along."""
    shown = MediaPart(modality="image", url="https://example.com/plot.png")
    success = result(result=["a", None], parts=(shown,))

    assert success.kind == "option_result"
    assert success.result == ["a", None]
    assert success.parts == (shown,)
    assert not success.is_error
    assert success.retryable is None


def test_an_error_result() -> None:
    """OP-026: error_type, error_message, retryable; details may stand in result."""
    error = result(is_error=True, error_type="Timeout", error_message="", retryable=True, result={"after": 30})

    assert (error.error_type, error.error_message, error.retryable) == ("Timeout", "", True)
    assert error.result == {"after": 30}


@pytest.mark.parametrize(
    "wrong",
    [
        {"is_error": True},
        {"is_error": True, "error_type": "Timeout"},
        {"is_error": True, "error_message": "late"},
        {"is_error": True, "error_type": "", "error_message": "late"},
        {"error_type": "Timeout"},
        {"error_message": "late"},
        {"retryable": False},
    ],
)
def test_error_fields_go_with_an_error(wrong: dict[str, Any]) -> None:
    """OP-026: an error has a type and a message; a success has neither."""
    with pytest.raises(ValidationError, match="error_type"):
        result(**wrong)


@pytest.mark.parametrize("wrong", [{"is_error": 1}, {"is_error": "no"}, {"retryable": "yes", "is_error": True}])
def test_flags_are_not_guessed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="bool"):
        result(error_type="a", error_message="b", **wrong)
