"""Choir: every request and every response that the format's document shows, with the same fields, and what they do here."""

import json

import pytest

from antiphon.dialects import decode, encode
from antiphon.protocol import ErrorResponse, Message, Response, deserialize_message, serialize_message, validate_message
from antiphon.protocol._messages import response_type_of

EXCHANGES: list[tuple[Message, Response]] = [
    (
        Message(
            type="CREATE_THREAD",
            data={
                "user_id": "ada",
                "initial_input": "Where does the river rise?",
                "metadata": {"source": "phone", "session_id": "s-1"},
            },
        ),
        Response(type="THREAD_CREATED", data={"thread_id": "t-1", "status": "created"}, message_id="m-1"),
    ),
    (
        Message(type="START_THREAD", data={"thread_id": "t-1"}),
        Response(
            type="THREAD_STARTED",
            data={"thread_id": "t-1", "status": "processing", "started_at": "2026-02-03T08:00:00Z"},
            message_id="m-2",
        ),
    ),
    (
        Message(type="PAUSE_THREAD", data={"thread_id": "t-1"}),
        Response(
            type="THREAD_PAUSED",
            data={
                "thread_id": "t-1",
                "status": "paused",
                "paused_at": "2026-02-03T08:01:00Z",
                "current_phase": "intention",
            },
            message_id="m-3",
        ),
    ),
    (
        Message(type="RESUME_THREAD", data={"thread_id": "t-1"}),
        Response(
            type="THREAD_RESUMED",
            data={
                "thread_id": "t-1",
                "status": "processing",
                "resumed_at": "2026-02-03T08:02:00Z",
                "current_phase": "intention",
            },
            message_id="m-4",
        ),
    ),
    (
        Message(type="TERMINATE_THREAD", data={"thread_id": "t-1", "reason": "no longer needed"}),
        Response(
            type="THREAD_TERMINATED",
            data={
                "thread_id": "t-1",
                "status": "terminated",
                "terminated_at": "2026-02-03T08:03:00Z",
                "reason": "no longer needed",
            },
            message_id="m-5",
        ),
    ),
    (
        Message(type="GET_THREAD_STATUS", data={"thread_id": "t-1"}),
        Response(
            type="THREAD_STATUS",
            data={
                "thread_id": "t-1",
                "status": "processing",
                "current_phase": "observation",
                "created_at": "2026-02-03T08:00:00Z",
                "updated_at": "2026-02-03T08:04:00Z",
                "phases_completed": ["action", "experience", "intention"],
                "phases_remaining": ["observation", "understanding", "yield"],
            },
            message_id="m-6",
        ),
    ),
    (
        Message(
            type="PROCESS_PHASE",
            data={
                "thread_id": "t-1",
                "phase_type": "action",
                "input": "Where does the river rise?",
                "context": {"conversation_history": [], "user_id": "ada"},
            },
        ),
        Response(
            type="PHASE_PROCESSED",
            data={
                "thread_id": "t-1",
                "phase_type": "action",
                "output": {"response": "In the hills.", "next_phase": "experience", "confidence": 0.6},
                "processing_time": 0.25,
            },
            message_id="m-7",
        ),
    ),
    (
        Message(
            type="INITIALIZE_PHASE",
            data={
                "phase_type": "yield",
                "config": {"model": "scripted", "temperature": 0.2, "max_tokens": 300, "tools": ["calculator"]},
            },
        ),
        Response(
            type="PHASE_INITIALIZED",
            data={"phase_type": "yield", "status": "ready", "agent_id": "yield-agent"},
            message_id="m-8",
        ),
    ),
    (
        Message(
            type="PREPARE_CONTEXT",
            data={
                "thread_id": "t-1",
                "phase_type": "experience",
                "previous_phase_output": {"response": "In the hills.", "next_phase": "experience", "confidence": 0.6},
                "conversation_history": [
                    {"role": "user", "content": "Where does the river rise?"},
                    {"role": "assistant", "content": "In the hills."},
                ],
            },
        ),
        Response(
            type="CONTEXT_PREPARED",
            data={
                "thread_id": "t-1",
                "phase_type": "experience",
                "context": {
                    "messages": [
                        {"role": "system", "content": "Say what is known."},
                        {"role": "user", "content": "Where does the river rise?"},
                        {"role": "assistant", "content": "In the hills."},
                    ],
                    "tools": ["knowledge_base"],
                    "metadata": {"user_id": "ada", "session_id": "s-1"},
                },
            },
            message_id="m-9",
        ),
    ),
    (
        Message(
            type="INVOKE_AGENT",
            data={
                "agent_id": "yield-agent",
                "input": "Where does the river rise?",
                "context": {"user_id": "ada", "metadata": {"session_id": "s-1"}},
                "stream": False,
            },
        ),
        Response(
            type="AGENT_INVOKED",
            data={
                "agent_id": "yield-agent",
                "result": {"response": "In the hills.", "confidence": 0.6, "tool_calls": []},
                "processing_time": 0.5,
            },
            message_id="m-10",
        ),
    ),
    (
        Message(
            type="PROCESS_WITH_AGENT",
            data={
                "input": "Where does the river rise?",
                "context": {"user_id": "ada", "metadata": {"session_id": "s-1"}},
            },
        ),
        Response(
            type="AGENT_RESPONSE",
            data={
                "result": {"response": "At the spring.", "confidence": 0.9, "tool_calls": []},
                "processing_time": 0.5,
            },
            message_id="m-11",
        ),
    ),
    (
        Message(
            type="UPDATE_AGENT_CONFIG",
            data={
                "agent_id": "yield-agent",
                "config": {
                    "system_prompt": "Be brief.",
                    "model": "scripted",
                    "temperature": 0.1,
                    "tools": ["calculator"],
                },
            },
        ),
        Response(type="AGENT_CONFIG_UPDATED", data={"agent_id": "yield-agent", "status": "updated"}, message_id="m-12"),
    ),
    (
        Message(type="HEARTBEAT", data={}),
        Response(type="HEARTBEAT_RESPONSE", data={"status": "alive", "uptime": 90, "load": 0.1}, message_id="m-13"),
    ),
    (
        Message(type="SUPERVISE", data={"actor_id": "phase/yield"}),
        Response(type="SUPERVISION_STARTED", data={"actor_id": "phase/yield", "status": "supervised"}, message_id="m-14"),
    ),
    (
        Message(type="RESTART", data={"actor_id": "phase/yield", "reason": "it hung"}),
        Response(
            type="RESTART_COMPLETE",
            data={"actor_id": "phase/yield", "status": "restarted", "restarted_at": "2026-02-03T09:00:00Z"},
            message_id="m-15",
        ),
    ),
    (
        Message(type="STOP", data={"actor_id": "phase/yield", "reason": "night"}),
        Response(
            type="STOP_COMPLETE",
            data={"actor_id": "phase/yield", "status": "stopped", "stopped_at": "2026-02-03T23:00:00Z"},
            message_id="m-16",
        ),
    ),
    (
        Message(
            type="ERROR_NOTIFICATION",
            data={
                "actor_id": "phase/yield",
                "error_message": "the model did not answer",
                "error_code": "PHASE_PROCESSING_ERROR",
                "details": "three attempts",
            },
        ),
        Response(
            type="ERROR_ACKNOWLEDGED",
            data={"actor_id": "phase/yield", "action_taken": "restart", "error_logged": True},
            message_id="m-17",
        ),
    ),
]
RETRY = Message(type="RETRY", data={"original_message_id": "m-7", "attempt": 2, "max_attempts": 3})


def _name(value: object) -> str:
    return value.type if isinstance(value, Message) else ""


@pytest.mark.parametrize(("request_", "response"), EXCHANGES, ids=_name)
def test_a_request_and_its_response_are_what_the_document_shows(request_: Message, response: Response) -> None:
    """CH-037: each is valid, comes back from JSON, and the request knows the type of its answer."""
    assert validate_message(request_) is True
    assert response_type_of(request_.type) == response.type
    assert request_.get_response_type() == response.type
    assert deserialize_message(serialize_message(request_)) == request_
    for each in (request_, response):
        unit = json.loads(each.model_dump_json())
        assert unit["data"] == each.data
        back = encode(decode([unit], "choir"), "choir")
        assert back.value == [unit]
        assert not back.losses


def test_a_retry_names_the_message_that_failed() -> None:
    """CH-037: its response depends on that message, so it has no type of its own."""
    assert validate_message(RETRY) is True
    assert deserialize_message(serialize_message(RETRY)).data == {
        "original_message_id": "m-7",
        "attempt": 2,
        "max_attempts": 3,
    }


def test_an_error_keeps_its_text_and_code_beside_the_data_that_it_is_given() -> None:
    """CH-037: the document gives `data` to an `ErrorResponse`, which has data of its own."""
    error = ErrorResponse(
        error_message="the phase failed",
        error_code="PHASE_PROCESSING_ERROR",
        message_id="m-7",
        data={"thread_id": "t-1", "phase_type": "action", "details": "too many requests"},
    )

    assert (error.type, error.message_id) == ("ERROR", "m-7")
    assert error.data == {
        "error_message": "the phase failed",
        "error_code": "PHASE_PROCESSING_ERROR",
        "thread_id": "t-1",
        "phase_type": "action",
        "details": "too many requests",
    }


def test_a_phase_that_is_none_is_refused() -> None:
    """CH-037: as the document's own check does."""
    for data in ({}, {"phase_type": "sleep"}):
        with pytest.raises(ValueError, match="phase_type"):
            validate_message(Message(type="PROCESS_PHASE", data=data))
