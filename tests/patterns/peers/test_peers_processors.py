"""Between a peer and a model that is asked by hand: what comes in and what goes out, and the document's own block. MA-028."""

import asyncio
import re
import textwrap
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.peers.plays import spec

from antiphon.dialects import marsys
from antiphon.dialects.marsys import Message
from antiphon.patterns.peers import PeerAgent, Peers

SEEDS = Path(__file__).parents[4] / "shared" / "seeds"


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


def test_what_cannot_be_understood_of_a_call_is_left_as_it_is(agent: PeerAgent) -> None:
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


def block_with(words: str) -> str:
    """Return the block of the document that has some words, or say that it is not here."""
    if not SEEDS.is_dir():
        pytest.skip(f"the documents are not at {SEEDS}: the block with {words!r} was not run")
    (text,) = [path.read_text() for path in SEEDS.glob("001_*")]
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if words in each]
    return block


def test_the_block_of_the_document_runs_with_a_real_agent(agent: PeerAgent) -> None:
    """MA-026, MA-028: as it is written there."""
    given: dict[str, Any] = {"Message": marsys.Message, "agent": agent}
    exec(compile(block_with("_input_message_processor"), "the document", "exec"), given)
    message = given["message"]
    assert (message.role, message.content, message.name) == ("assistant", "Here's what I found...", "ada")


def test_the_error_pattern_of_the_document_runs_with_a_real_agent(agent: PeerAgent) -> None:
    """MA-045, MA-050: as it is written there, inside of a function, where it can await and return."""
    body = textwrap.indent(block_with("await some_operation()"), "    ")

    async def some_operation() -> None:
        raise ConnectionError("no answer")

    given: dict[str, Any] = {"Message": marsys.Message, "agent": agent, "datetime": datetime, "some_operation": some_operation}
    exec(compile(f"async def handle():\n{body}", "the document", "exec"), given)
    error = asyncio.run(given["handle"]())
    assert (error.role, error.content, error.name, error.error_type) == ("error", "no answer", "ada", "ConnectionError")
