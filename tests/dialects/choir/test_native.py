"""Choir as its users import it: the names of the reference, and its examples as they are written."""

import asyncio
import json
import logging

import pytest

from antiphon.protocol import ErrorResponse, Message, Response, deserialize_message, serialize_message, validate_message


def test_an_exchange_runs_as_in_the_reference() -> None:
    """CH-001, CH-009, CH-031, CH-044, CH-045"""
    message = Message(
        type="CREATE_THREAD",
        data={
            "user_id": "user123",
            "initial_input": "Hello, world!",
            "metadata": {"source": "web", "session_id": "session456"},
        },
    )
    response = Response(
        type=message.get_response_type(), data={"thread_id": "thread789", "status": "created"}, message_id=message.id
    )

    assert validate_message(message)
    assert deserialize_message(serialize_message(message)) == message
    assert deserialize_message(serialize_message(response)) == response
    assert json.loads(serialize_message(response))["message_id"] == message.id


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message(type="HEARTBEAT"), "HEARTBEAT_RESPONSE"),
        (Message(type="SING"), "Unknown message type: SING"),
        (Message(type="PROCESS_PHASE"), "Error processing message: PROCESS_PHASE message must contain 'phase_type' field"),
    ],
)
def test_an_actor_of_the_reference_can_be_written(message: Message, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    """CH-038, CH-039: an actor that validates, dispatches by type and answers a failure with an error."""

    async def receive(message: Message) -> Response:
        try:
            validate_message(message)
            if message.type == "HEARTBEAT":
                return Response(
                    type="HEARTBEAT_RESPONSE", data={"status": "alive", "uptime": 3600, "load": 0.5}, message_id=message.id
                )
            return ErrorResponse(error_message=f"Unknown message type: {message.type}", message_id=message.id)
        except ValueError as e:
            logging.getLogger("actor").error("Error processing message %s: %s", message.id, e)
            return ErrorResponse(error_message=f"Error processing message: {e}", message_id=message.id)

    response = asyncio.run(receive(message))

    assert response.message_id == message.id
    assert expected in (response.type, response.data.get("error_message"))
