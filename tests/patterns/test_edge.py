"""The edge: every message of the seed, as JSON, is answered in the seed's shape."""

import json
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from tests.patterns.chains import QUESTION, Witness, chain_on
from tests.patterns.test_life import Held
from tests.protocol.samples import SAMPLES, Sample

from antiphon.patterns.postchain import ChainConfig
from antiphon.protocol import Response
from antiphon.protocol.flows import find_flow

BY_TYPE = {sample.type: sample for sample in SAMPLES}
MOVES = ("START_THREAD", "PAUSE_THREAD", "RESUME_THREAD", "GET_THREAD_STATUS", "TERMINATE_THREAD")
OWN = {"thread789": "", "action_agent_123": "agent/action", "action_phase_actor_123": "agent/action"}


def _message(sample: Sample, thread_id: str, id: str) -> str:
    """Return an example as it is written, with ids from the run."""
    text = json.dumps({"id": id, "type": sample.type, "data": sample.data})
    for old, new in {**OWN, "thread789": thread_id}.items():
        text = text.replace(old, new)
    return text


def _check_shape(sample: Sample, response: dict[str, Any], id: str) -> None:
    """See to it that a response has the type, the keys and the kinds of values that the example has."""
    assert response["type"] == sample.response_type, response
    assert response["message_id"] == id
    for name, shown in sample.response_data.items():
        assert type(response["data"][name]) in _kinds(shown), (name, response)
        if isinstance(shown, dict):
            missing = set(shown) - set(response["data"][name])
            assert missing <= {"user_id", "session_id", "confidence", "metadata"}, (name, missing)


def _kinds(shown: Any) -> tuple[type, ...]:
    return (int, float) if isinstance(shown, int | float) and not isinstance(shown, bool) else (type(shown),)


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.response_type and s.type not in (*MOVES, "RETRY")], ids=lambda s: s.type
)
async def test_an_example_of_the_seed_is_answered_in_its_shape(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-056, CH-057, CH-069 to CH-093; the actors CH-095, CH-096, CH-097, CH-098, CH-099, CH-100, CH-101, CH-102, CH-103."""
    monkeypatch.setenv("OPENAI_API_KEY", "for a model that is named, and not asked")

    async with chain_on() as chain:
        thread_id = await chain.create(QUESTION)
        if sample.type in ("INVOKE_AGENT", "PROCESS_WITH_AGENT", "RESTART", "STOP", "ERROR_NOTIFICATION", "SUPERVISE"):
            await chain.send({"type": "HEARTBEAT", "receiver": "agent/action"})  # so that there is an actor
        _check_shape(sample, await chain.send(_message(sample, thread_id, "m-1")), "m-1")


@pytest.mark.slow
async def test_the_moves_of_the_seed_are_answered_in_their_shapes_one_after_the_other() -> None:
    """CH-058 to CH-067."""
    witness = Witness(on_request=(held := Held("action")))
    async with chain_on(witness=witness) as chain:
        thread_id = await chain.create(QUESTION)
        for number, kind in enumerate(MOVES):
            response = await chain.send(_message(BY_TYPE[kind], thread_id, f"m-{number}"))
            _check_shape(BY_TYPE[kind], response, f"m-{number}")
            await held.reached.wait()


async def test_a_message_that_failed_is_tried_again_and_answered_as_it_would_have_been() -> None:
    """CH-094: over the limit it is RETRY_EXHAUSTED."""
    witness = Witness(failures=[ModelHTTPError(503, "teller")])
    async with chain_on(witness=witness, config=ChainConfig(attempts=1)) as chain:
        ask = {"id": "m-1", "type": "PROCESS_WITH_AGENT", "data": {"input": "Hello", "agent_id": "agent/intention"}}
        failed = await chain.send(ask)
        assert (failed["type"], failed["data"]["error_code"]) == ("ERROR", "AGENT_ERROR")
        assert "503" in failed["data"]["details"]
        retry = {"type": "RETRY", "data": {"original_message_id": "m-1", "attempt": 2, "max_attempts": 2}}
        answered = await chain.send({"id": "m-2", **retry})
        assert (answered["type"], answered["message_id"]) == ("AGENT_RESPONSE", "m-2")
        assert answered["data"]["result"]["response"] == "the intention phase says so"
        exhausted = await chain.send({"id": "m-3", **retry})
        assert exhausted["data"]["error_code"] == "RETRY_EXHAUSTED"


async def test_words_are_streamed_while_they_arrive() -> None:
    """CH-078, CH-104: the caller gets the pieces in order, then the answer, which is their sum."""
    heard: list[Any] = []
    async with chain_on() as chain:
        chain.on_message(lambda client, said: heard.append((client, said)))
        invoke = {"agent_id": "agent/intention", "input": "Hello", "stream": True}
        response = await chain.send({"type": "INVOKE_AGENT", "sender": "client/me", "data": invoke})
    assert response["type"] == "AGENT_INVOKED"
    assert {client for client, _ in heard} == {"client/me"}
    assert [chunk.index for _, chunk in heard] == list(range(len(heard)))
    assert "".join(chunk.text for _, chunk in heard) == response["data"]["result"]["response"]
    assert len(heard) > 1


async def test_an_agent_that_fails_while_its_words_are_streamed_is_an_error_response_and_no_failure_of_its_manager() -> None:
    """CH-055, CH-078: as it is without a stream; nothing is parked, and the next question is answered."""
    invoke = {"type": "INVOKE_AGENT", "data": {"agent_id": "agent/intention", "input": "Hello", "stream": True}}
    witness = Witness(failures=[ModelHTTPError(401, "teller")])
    async with chain_on(witness=witness) as chain:
        failed = await chain.send(invoke)
        assert (failed["type"], failed["data"]["error_code"]) == ("ERROR", "AGENT_ERROR")
        assert await chain.system.parked() == ()
        assert (await chain.send(invoke))["type"] == "AGENT_INVOKED"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"type": "PROCESS_PHASE", "data": {"thread_id": "t", "phase_type": "sleep", "input": "x"}}, "VALIDATION_ERROR"),
        ({"type": "PROCESS_PHASE", "data": {"thread_id": "t", "input": "x"}}, "VALIDATION_ERROR"),
        ({"type": "START_THREAD", "data": {"thread_id": "nobody"}}, "THREAD_NOT_FOUND"),
        ({"type": "HEARTBEAT", "receiver": "nobody/1"}, "ACTOR_NOT_FOUND"),
        ({"type": "DANCE", "receiver": "action/1", "data": {}}, "UNKNOWN_MESSAGE_TYPE"),
        ({"type": "INITIALIZE_PHASE", "data": {"phase_type": "action", "config": {"tools": ["hammer"]}}}, "VALIDATION_ERROR"),
        ({"type": "INITIALIZE_PHASE", "data": {"phase_type": "action", "config": {"model": "nobody:x"}}}, "VALIDATION_ERROR"),
        ("{", "VALIDATION_ERROR"),
        ({"data": {}}, "VALIDATION_ERROR"),
    ],
)
async def test_a_request_that_cannot_be_executed_gets_an_error_response_with_the_reason(sent: Any, code: str) -> None:
    """CH-048, CH-050, CH-052, CH-055, CH-115, CH-117."""
    async with chain_on() as chain:
        response = await chain.send(sent)
        assert (response["type"], response["data"]["error_code"]) == ("ERROR", code), response
        assert response["data"]["error_message"]


async def test_an_actor_that_is_stopped_refuses_later_messages() -> None:
    """CH-089, CH-090, CH-110."""
    async with chain_on() as chain:
        stopped = await chain.send({"type": "STOP", "data": {"actor_id": "agent/yield", "reason": "shutdown"}})
        assert (stopped["type"], stopped["data"]["status"]) == ("STOP_COMPLETE", "stopped")
        later = await chain.send({"type": "HEARTBEAT", "receiver": "agent/yield"})
        assert later["data"]["error_code"] == "ACTOR_STOPPED"


@pytest.mark.parametrize("sender", ["thread/t-1", "supervisor/agents", "action/1", "agent/action", "door/1"])
async def test_a_client_cannot_speak_for_an_actor_of_the_chain(sender: str) -> None:
    """S4, CH-104: the sender is recorded, so it must be true; nothing is written."""
    async with chain_on() as chain:
        thread_id = await chain.create(QUESTION)
        before = (await chain.ledger.head(thread_id)).seq
        refused = await chain.send({"type": "START_THREAD", "sender": sender, "data": {"thread_id": thread_id}})
        assert refused["data"]["error_code"] == "VALIDATION_ERROR"
        assert f"{sender!r} is an actor of the chain" in refused["data"]["error_message"]
        assert (await chain.ledger.head(thread_id)).seq == before


@pytest.mark.slow
async def test_a_whole_thread_runs_over_the_edge() -> None:
    """CH-047, CH-049, CH-105: JSON in, JSON out, and flow 1 in the ledger."""
    async with chain_on() as chain:
        created = await chain.send(
            json.dumps({"type": "CREATE_THREAD", "sender": "ada", "data": {"user_id": "u", "initial_input": QUESTION}})
        )
        thread_id = created["data"]["thread_id"]
        assert created["receiver"] == "ada"
        await chain.send({"type": "START_THREAD", "sender": "ada", "data": {"thread_id": thread_id}})
        assert (await chain.wait(thread_id)).status == "completed"
        rows = [record.message async for record in chain.ledger.read(thread_id)]
        assert find_flow("thread-execution").check(rows, thread="thread", client="client/ada").state == "complete"


async def test_responses_are_valid_messages_of_the_protocol() -> None:
    """CH-115."""
    async with chain_on() as chain:
        response = await chain.send({"type": "HEARTBEAT"})
        assert Response.model_validate(response).type == "HEARTBEAT_RESPONSE"
