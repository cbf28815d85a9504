"""Validation: what the table says of a type holds for its messages."""

import re
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from tests.protocol.samples import SAMPLES, Sample
from tests.protocol.strategies import envelopes
from tests.strategies import json_objects

from antiphon.protocol import PHASES, ErrorResponse, Message, Phase, Response, validate_message
from antiphon.protocol._messages import find_entry
from antiphon.protocol._values import required_fields

PHASE = {"thread_id": "t", "phase_type": "action", "input": "x"}


def test_the_phases_stand_in_order() -> None:
    """CH-041"""
    assert PHASES == ("action", "experience", "intention", "observation", "understanding", "yield")
    assert get_args(Phase) == PHASES


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type)
def test_the_examples_of_the_reference_are_valid(sample: Sample) -> None:
    """CH-038"""
    assert validate_message(Message(type=sample.type, data=sample.data)) is True
    if sample.response_type:
        response = Response(type=sample.response_type, data=sample.response_data, message_id="m")
        assert validate_message(response) is True


@pytest.mark.parametrize("data", [{}, {"thread_id": "t", "input": "x"}])
def test_a_phase_needs_its_type(data: dict[str, Any]) -> None:
    """CH-039"""
    with pytest.raises(ValueError, match="^PROCESS_PHASE message must contain 'phase_type' field$"):
        validate_message(Message(type="PROCESS_PHASE", data=data))


@pytest.mark.parametrize("data", [{"phase_type": "dance"}, {**PHASE, "phase_type": "dance"}])
def test_a_phase_is_one_of_the_six(data: dict[str, Any]) -> None:
    """CH-040"""
    with pytest.raises(ValueError, match="^Invalid phase_type: dance$"):
        validate_message(Message(type="PROCESS_PHASE", data=data))


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_valid(phase: Phase) -> None:
    """CH-041"""
    assert validate_message(Message(type="PROCESS_PHASE", data={**PHASE, "phase_type": phase}))


@pytest.mark.parametrize("wrong", [None, 3, ["action"], {"action": 1}, "Action", ""])
def test_an_invalid_phase_is_shown(wrong: Any) -> None:
    """CH-040"""
    with pytest.raises(ValueError, match="^" + re.escape(f"Invalid phase_type: {wrong}") + "$"):
        validate_message(Message(type="PROCESS_PHASE", data={**PHASE, "phase_type": wrong}))


@pytest.mark.parametrize("name", ["INITIALIZE_PHASE", "PREPARE_CONTEXT", "PHASE_PROCESSED", "HEARTBEAT", "ERROR"])
def test_a_phase_is_checked_wherever_there_is_one(name: str) -> None:
    """CH-042"""
    with pytest.raises(ValueError, match="^Invalid phase_type: dance$"):
        validate_message(Message(type=name, data={"phase_type": "dance", "error_message": "no"}))


def test_an_error_may_have_no_phase() -> None:
    assert validate_message(ErrorResponse("no", data={"phase_type": None}))
    assert validate_message(ErrorResponse("no"))


def _rows() -> list[tuple[str, dict[str, Any], str]]:
    """Every field that every type needs, with data that has all others."""
    rows: list[tuple[str, dict[str, Any], str]] = []
    for sample in SAMPLES:
        entry = find_entry(sample.type)
        assert entry is not None
        rows += [(sample.type, sample.data, name) for name in required_fields(entry.data)]
        if sample.response_type and entry.response:
            rows += [(sample.response_type, sample.response_data, name) for name in required_fields(entry.response)]
    return rows


@pytest.mark.parametrize(("name", "data", "missing"), _rows())
def test_a_field_that_is_needed_is_missed(name: str, data: dict[str, Any], missing: str) -> None:
    """CH-042: the table says of every type what it needs."""
    rest = {key: value for key, value in data.items() if key != missing}

    with pytest.raises(ValueError, match=f"^{name} message must contain '{missing}' field$"):
        validate_message(Message(type=name, data=rest))


@pytest.mark.parametrize("name", ["context", "metadata", "actor_id", "error_code"])
def test_some_fields_may_be_left_out(name: str) -> None:
    """CH-056, CH-069, CH-076, CH-079, CH-087, CH-089, CH-092"""
    samples = [sample for sample in SAMPLES if name in sample.data and sample.type not in {"SUPERVISE", "ERROR_NOTIFICATION"}]

    assert samples
    for sample in samples:
        rest = {key: value for key, value in sample.data.items() if key != name}
        assert validate_message(Message(type=sample.type, data=rest))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("CREATE_THREAD", {"user_id": 3}, "has a wrong 'user_id' field: Input should be a valid string"),
        ("CREATE_THREAD", {"metadata": []}, "has a wrong 'metadata' field: This must be a JSON object"),
        (
            "PROCESS_PHASE",
            {"context": {"conversation_history": [{"role": "user"}]}},
            r"'context.conversation_history\[0\].content'",
        ),
        ("INITIALIZE_PHASE", {"config": {"max_tokens": 0, "temperature": -1}}, r"'config.temperature' .* \(and 1 more\)"),
        ("INITIALIZE_PHASE", {"config": {"tools": "web_search"}}, "'config.tools'"),
        ("INVOKE_AGENT", {"stream": "maybe"}, "'stream'"),
        ("PREPARE_CONTEXT", {"previous_phase_output": {"next_phase": "dance", "response": ""}}, "next_phase"),
        ("RETRY", {"attempt": 0}, "'attempt'"),
        ("RETRY", {"max_attempts": "3"}, "'max_attempts'"),
        ("THREAD_RESULT", {"status": "paused"}, "'status'"),
        ("AGENT_STREAM_CHUNK", {"index": -1}, "'index'"),
    ],
)
def test_a_wrong_field_is_named(name: str, change: dict[str, Any], reason: str) -> None:
    """CH-042"""
    data = next(sample.data for sample in SAMPLES if sample.type == name)

    with pytest.raises(ValueError, match=f"^{name} message has a wrong .*{reason.removeprefix('has a wrong ')}"):
        validate_message(Message(type=name, data=data | change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("THREAD_CREATED", {"status": "done"}),
        ("THREAD_STARTED", {"started_at": "noon"}),
        ("THREAD_STATUS", {"phases_completed": ["dance"]}),
        ("HEARTBEAT_RESPONSE", {"uptime": -1}),
        ("HEARTBEAT_RESPONSE", {"uptime": True}),
        ("HEARTBEAT_RESPONSE", {"load": 1.5}),
        ("HEARTBEAT_RESPONSE", {"load": "full"}),
        ("ERROR_ACKNOWLEDGED", {"action_taken": "panic"}),
    ],
)
def test_a_wrong_field_of_a_response_is_named(name: str, change: dict[str, Any]) -> None:
    data = next(sample.response_data for sample in SAMPLES if sample.response_type == name)

    with pytest.raises(ValueError, match=f"^{name} message has a wrong '{next(iter(change))}"):
        validate_message(Response(type=name, data=data | change))


@pytest.mark.slow
@given(json_objects)
def test_a_type_that_nobody_declared_is_valid(data: dict[str, Any]) -> None:
    """CH-042: whatever its data, phase or not."""
    assert validate_message(Message(type="NOBODY", data=data)) is True
    assert validate_message(Response(type="NOBODY", data={**data, "phase_type": "dance"})) is True


@pytest.mark.slow
@given(envelopes)
def test_validation_says_yes_or_raises_a_value_error(envelope: Message | Response) -> None:
    """CH-038"""
    with suppress(ValueError):
        assert validate_message(envelope) is True
