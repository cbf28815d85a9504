"""Between a peer and a model that is asked by hand: what comes in, what goes out, and errors. MA-028."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.patterns.peers.plays import spec

from antiphon.dialects.marsys import Message
from antiphon.patterns.peers import PeerAgent, Peers


@pytest.fixture
def agent() -> PeerAgent:
    return Peers(None, [spec("ada", "bob"), spec("bob")]).agent("ada")


def test_a_response_becomes_what_the_agent_says(agent: PeerAgent) -> None:
    """MA-026, MA-027, MA-028, MA-030, MA-031, MA-049: under its name, with the calls it makes, or without any."""
    processor = agent._input_message_processor()
    call = {"id": "c1", "type": "function", "function": {"name": "functions.search", "arguments": "{}"}}
    response: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
    message = Message.from_response_dict(response, processor=processor)
    assert (message.role, message.name, message.content) == ("assistant", "ada", "")
    assert message.tool_calls is not None
    assert message.tool_calls[0]["function"]["name"] == "search"
    assert call["function"] == {"name": "functions.search", "arguments": "{}"}
    plain = Message.from_response_dict({"content": "Here.", "tool_calls": None}, processor=processor, default_id="m1")
    assert (plain.message_id, plain.content, plain.tool_calls) == ("m1", "Here.", None)


def test_an_invalid_call_is_left_unchanged(agent: PeerAgent) -> None:
    odd: Any = {"content": "", "tool_calls": [{"id": "c1"}, {"function": {"name": 7}}]}
    assert agent._input_message_processor()(odd)["tool_calls"] == odd["tool_calls"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            Message("agent_call", "Find X", name="ada", metadata={"caller": "bob"}),
            {"role": "user", "content": "[Request from bob]: Find X"},
        ),
        (
            Message("agent_call", "Find X", name="bob", metadata={"caller": "ada"}),
            {"role": "assistant", "content": "[Request to bob]: Find X"},
        ),
        (
            Message("agent_call", [{"type": "text", "text": "X?"}], name="bob", metadata={"caller": "ada"}),
            {"role": "assistant", "content": [{"type": "text", "text": "[Request to bob]:"}, {"type": "text", "text": "X?"}]},
        ),
        (
            Message(
                "assistant", [{"type": "text", "text": "X"}], name="bob", tool_calls=[{"id": "c", "function": {"name": "f"}}]
            ),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "[Message from bob]:"},
                    {"type": "text", "text": "X"},
                    {"type": "text", "text": "f({})"},
                ],
            },
        ),
        (Message("agent_response", "X", name="bob"), {"role": "user", "content": "[Response from bob]: X"}),
        (
            Message("error", "late", name="ada", metadata={"error_type": "TIMEOUT"}),
            {"role": "user", "content": "[Error from ada (TIMEOUT)]: late"},
        ),
        (Message("assistant", "Yes.", name="ada"), {"role": "assistant", "content": "Yes.", "name": "ada"}),
    ],
)
def test_a_message_becomes_what_a_model_takes(agent: PeerAgent, message: Message, expected: dict[str, Any]) -> None:
    """MA-029, MA-032, MA-033, MA-034: from the agent's side: what it asked is its own, what others say is a user's."""
    assert agent._output_message_processor()(message) == expected


def test_a_response_of_a_model_is_read_with_the_processor_of_a_real_agent(agent: PeerAgent) -> None:
    """MA-026, MA-028: as the document writes it."""
    llm_response = {"role": "assistant", "content": "The bridge is open.", "tool_calls": None}

    message = Message.from_response_dict(llm_response, processor=agent._input_message_processor())

    assert (message.role, message.content, message.name) == ("assistant", "The bridge is open.", "ada")


def test_an_operation_that_fails_becomes_a_message_in_the_name_of_a_real_agent(agent: PeerAgent) -> None:
    """MA-045, MA-050: the error pattern of the document: what was raised is returned as a message."""

    async def operation() -> None:
        raise ConnectionError("the line is dead")

    async def handle() -> Message | None:
        try:
            await operation()
        except Exception as exc:  # noqa: BLE001 (the pattern catches all)
            return Message(
                role="error",
                content=str(exc),
                name=agent.name,
                metadata={"error_type": type(exc).__name__, "timestamp": datetime.now(UTC).isoformat()},
            )
        return None

    error = asyncio.run(handle())
    assert error is not None
    assert (error.role, error.content, error.name, error.error_type) == ("error", "the line is dead", "ada", "ConnectionError")
