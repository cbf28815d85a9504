"""The protocol's own surface: `get_actor`, `receive`, `send_message`, with its errors (CH-046 to CH-055, CH-105)."""

import logging

import pytest
from tests.runtime.actors import Probe, rows, virtually

from antiphon.errors import UndeliverableError
from antiphon.protocol import ErrorCode, ErrorResponse, Message, ProcessPhase, Response
from antiphon.runtime import Actor, System, system_thread

pytestmark = pytest.mark.virtual_time


class Seed(Actor):
    """An actor as the document writes one: a `receive` that looks at the type."""

    async def receive(self, message: Message) -> Response:
        seen.append(message)
        if message.type == "HAIL":
            return message.reply(data={"greeting": f"hello {message.data['name']}"})
        if message.type == "BREAK":
            raise ValueError("it broke")
        if message.type == "PROCESS_PHASE":
            request = ProcessPhase.from_message(message)
            return message.reply_error("no phase here", "PHASE_PROCESSING_ERROR", data={"phase_type": request.phase_type})
        return await super().receive(message)


seen: list[Message] = []


def _send(*messages: Message) -> list[Response]:
    async def main() -> list[Response]:
        async with System() as system:
            system.spawn("seed_actor_1", Seed)
            system.register("probe", Probe)
            return [await system.send_message(message) for message in messages]

    seen.clear()
    return virtually(main())


def test_a_message_gets_its_response() -> None:
    """CH-047, CH-049, CH-105."""
    greet = Message(type="HAIL", data={"name": "you"}, sender="me", receiver="seed_actor_1", correlation_id="c")
    (response,) = _send(greet)

    assert (response.type, response.data) == ("HAIL_RESPONSE", {"greeting": "hello you"})
    assert (response.message_id, response.sender, response.receiver) == (greet.id, "seed_actor_1", "me")
    assert response.correlation_id == "c"
    assert (seen[0].id, seen[0].type, seen[0].data, seen[0].sender) == (greet.id, "HAIL", {"name": "you"}, "me")


def test_a_typed_handler_answers_the_same_messages() -> None:
    """CH-051."""
    (response,) = _send(Message(type="TEST_PING", data={"text": "hi"}, receiver="probe/1"))

    assert (response.type, response.data) == ("TEST_PONG", {"text": "hi!"})


def test_a_message_must_have_a_receiver() -> None:
    """CH-046."""
    with pytest.raises(ValueError, match="Message must have a receiver"):
        _send(Message(type="HAIL"))


async def test_an_unknown_receiver_is_an_error_response_and_a_dead_letter() -> None:
    """CH-048, C30."""
    async with System() as system:
        message = Message(type="HAIL", receiver="nobody")
        response = await system.send_message(message)

        assert isinstance(response, ErrorResponse)
        assert (response.error_code, response.message_id) == (ErrorCode.ACTOR_NOT_FOUND, message.id)
        assert [(letter.to, letter.message.id) for letter in system.dead_letters] == [("nobody", message.id)]
        with pytest.raises(UndeliverableError):
            await system.get_actor("nobody")


def test_data_is_validated_before_the_actor_sees_it() -> None:
    """CH-050, C28: it is answered, and nobody is restarted."""
    (response,) = _send(Message(type="PROCESS_PHASE", data={}, receiver="seed_actor_1"))

    assert isinstance(response, ErrorResponse)
    assert response.error_code == ErrorCode.VALIDATION_ERROR
    assert "must contain 'phase_type' field" in response.error_message
    assert not seen


def test_an_unknown_type_is_answered() -> None:
    """CH-052."""
    (response,) = _send(Message(type="DANCE", receiver="seed_actor_1"))

    assert isinstance(response, ErrorResponse)
    assert (response.error_message, response.error_code) == ("Unknown message type: DANCE", "UNKNOWN_MESSAGE_TYPE")
    assert response.message_id == seen[0].id


# Mutant: Escalation.report leaves the id out of the text, or out of the fields, or logs nothing -> this test is red.
def test_an_exception_is_answered_logged_and_its_supervisor_notified(caplog: pytest.LogCaptureFixture) -> None:
    """CH-053, CH-054, CH-055: the record names the message in its text and in its fields."""
    message = Message(type="BREAK", receiver="seed_actor_1")

    async def main() -> None:
        async with System() as system:
            system.spawn("seed_actor_1", Seed)
            response = await system.send_message(message)
            again = await system.send_message(Message(type="HAIL", data={"name": "you"}, receiver="seed_actor_1"))
            notified, *_ = [record.message async for record in system.ledger.read(system_thread("seed_actor_1"))]

            assert isinstance(response, ErrorResponse)
            assert response.error_message == "Error processing message: ValueError: it broke"
            assert again.type == "HAIL_RESPONSE"
            assert notified.payload.arguments["failed_message_id"] == message.id
            assert (await rows(system.ledger, system_thread("seed_actor_1")))[0] == "ERROR_NOTIFICATION"

    with caplog.at_level(logging.ERROR, "antiphon.runtime"):
        virtually(main())
    (logged,) = [record for record in caplog.records if record.getMessage().startswith("seed_actor_1 failed")]
    assert f"seed_actor_1 failed on message {message.id}: ValueError" in logged.getMessage()
    assert vars(logged)["antiphon.message.id"] == message.id


def test_an_error_response_of_the_actor_keeps_its_code_and_details() -> None:
    """CH-091."""
    data = {"thread_id": "t", "phase_type": "action", "input": "x"}
    (response,) = _send(Message(type="PROCESS_PHASE", data=data, receiver="seed_actor_1"))

    assert isinstance(response, ErrorResponse)
    assert (response.error_message, response.error_code) == ("no phase here", "PHASE_PROCESSING_ERROR")
    assert response.data["phase_type"] == "action"


def test_the_same_message_gets_the_same_response() -> None:
    """CH-120."""
    greet = Message(type="HAIL", data={"name": "you"}, receiver="seed_actor_1")
    first, second = _send(greet, greet)

    assert first.data == second.data
    assert len(seen) == 1


async def test_a_message_that_names_a_thread_is_journaled_there() -> None:
    """CH-119."""
    async with System() as system:
        system.spawn("seed_actor_1", Seed)
        data = {"thread_id": "t9", "name": "you"}
        await system.send_message(Message(type="HAIL", data=data, receiver="seed_actor_1"))
        await system.send_message(Message(type="THREAD_RESULT", data=_result("t9"), receiver="seed_actor_1"))

        assert (await rows(system.ledger, "t9"))[:4] == ["HAIL", "=HAIL", '"', "DELIVER"]


def test_the_systems_messages_work_on_every_actor() -> None:
    """CH-083 to CH-090."""
    alive, restarted, stopped, refused = _send(
        Message(type="HEARTBEAT", receiver="seed_actor_1"),
        Message(type="RESTART", data={"actor_id": "seed_actor_1", "reason": "error_recovery"}, receiver="seed_actor_1"),
        Message(type="STOP", data={"actor_id": "seed_actor_1", "reason": "shutdown"}, receiver="seed_actor_1"),
        Message(type="HAIL", data={"name": "you"}, receiver="seed_actor_1"),
    )

    assert (alive.type, alive.data["status"]) == ("HEARTBEAT_RESPONSE", "alive")
    assert (restarted.type, restarted.data["status"]) == ("RESTART_COMPLETE", "restarted")
    assert (stopped.type, stopped.data["status"]) == ("STOP_COMPLETE", "stopped")
    assert (refused.type, refused.data["error_code"]) == ("ERROR", "ACTOR_STOPPED")


def test_a_retry_is_answered_as_its_original_is() -> None:
    """CH-029, C5."""
    ping = Message(type="TEST_PING", data={"text": "hi"}, receiver="probe/1")
    retry = {"original_message_id": ping.id, "attempt": 2, "max_attempts": 3}
    _, response = _send(ping, Message(type="RETRY", data=retry, receiver="probe/1"))

    assert (response.type, response.data) == ("TEST_PONG", {"text": "hi!"})


def _result(thread_id: str) -> dict[str, object]:
    return {"thread_id": thread_id, "status": "completed", "outputs": {}}
