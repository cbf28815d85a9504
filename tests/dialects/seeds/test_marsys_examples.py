"""MARSYS: the messages, conversions, checks and flows that the format's document shows, with values of our own."""

from typing import Any

import pytest

from antiphon.dialects import decode, encode
from antiphon.dialects.marsys import (
    VALID_ROLES,
    Message,
    MessageChain,
    error_message,
    filter_messages,
    process_for_llm,
    process_llm_response,
    validate_message,
    validate_tool_response,
)

BASIC = [
    Message(role="user", content="Is the bridge open?"),
    Message(role="assistant", content="Let me look.", name="porter"),
    Message(role="system", content="You know every bridge."),
]
CALL = Message(
    role="assistant",
    content="",
    tool_calls=[
        {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": '{"at": "bridge"}'}},
    ],
)
ANSWER = Message(role="tool", content='{"open": true, "width": 3}', name="look", tool_call_id="c-1")
ASKED = Message(
    role="agent_call",
    content="Measure the bridge.",
    name="surveyor",
    metadata={"caller": "porter", "task_id": "task-7"},
)
REPLIED = Message(
    role="agent_response",
    content="Three metres.",
    name="surveyor",
    metadata={"task_id": "task-7", "completion_time": 1.5},
)
CONVERSATION = [
    Message(role="system", content="You count."),
    Message(role="user", content="One and one?"),
    Message(role="assistant", content="Two."),
    Message(role="user", content="And two more?"),
    Message(role="assistant", content="Four."),
]
FLOW = [
    Message(role="user", content="How cold is it in Turin?"),
    Message(
        role="assistant",
        content="I look it up.",
        tool_calls=[{"id": "c-2", "function": {"name": "thermometer", "arguments": '{"city": "Turin"}'}}],
    ),
    Message(role="tool", name="thermometer", content='{"degrees": 4, "sky": "clear"}', tool_call_id="c-2"),
    Message(role="assistant", content="4 °C, and clear."),
]
EVERY = [*BASIC, CALL, ANSWER, ASKED, REPLIED, *CONVERSATION, *FLOW]


@pytest.mark.parametrize("message", EVERY, ids=[f"{n}-{each.role}" for n, each in enumerate(EVERY)])
def test_every_message_is_valid_and_comes_back(message: Message) -> None:
    """MA-043, MA-044: created with the arguments of the document, valid, and the same after reading and writing."""
    assert message.role in VALID_ROLES
    assert validate_message(message)
    unit = message.to_dict()
    back = encode(decode([unit], "marsys"), "marsys")
    assert back.value == [unit]
    assert not back.losses


def test_missing_fields_are_filled_in() -> None:
    """MA-043: role and content are enough; the id is its own and the time has its zone."""
    first, second = Message(role="user", content="Hello."), Message(role="user", content="Hello.")

    assert first.message_id != second.message_id
    assert first.timestamp.tzinfo is not None
    assert (first.name, first.tool_calls, first.tool_call_id, first.metadata) == (None, None, None, None)


def test_a_message_becomes_what_a_model_takes() -> None:
    """MA-044: role, content and name; tool calls as they are, beside an empty content."""
    spoken = Message(role="assistant", content="Let me look.", name="porter").to_llm_dict()

    assert spoken == {"role": "assistant", "content": "Let me look.", "name": "porter"}
    assert CALL.to_llm_dict() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c-1", "type": "function", "function": {"name": "look", "arguments": '{"at": "bridge"}'}},
        ],
    }


def test_a_response_of_a_model_becomes_a_message() -> None:
    """MA-044: by the class, with a processor or without; and by the function, with calls or without."""
    response: dict[str, Any] = {"role": "assistant", "content": "It is open.", "tool_calls": None}
    plain = Message.from_response_dict(response, processor=lambda given: {**given, "name": "porter"})
    assert (plain.role, plain.content, plain.name, plain.tool_calls) == ("assistant", "It is open.", "porter", None)
    calls = CALL.to_llm_dict()["tool_calls"]
    given = {"content": "", "tool_calls": calls}
    called = Message(role="assistant", content=given["content"], tool_calls=given["tool_calls"])
    assert process_llm_response(given).to_llm_dict() == called.to_llm_dict()
    assert process_llm_response({"content": None, "tool_calls": calls}).content == ""
    said = Message(role="assistant", content=response["content"])
    assert process_llm_response(response).to_llm_dict() == said.to_llm_dict()


def test_a_request_of_an_agent_is_a_users_request_to_a_model() -> None:
    """MA-044: with the name of the caller; everything else is unchanged."""
    assert process_for_llm(ASKED) == {"role": "user", "content": f"[Request from porter]: {ASKED.content}"}
    assert process_for_llm(BASIC[0]) == BASIC[0].to_llm_dict()


@pytest.mark.parametrize(
    "message",
    [
        Message(role="tool", content="{}", name="look"),
        Message(role="tool", content="{}", tool_call_id="c-1"),
    ],
)
def test_a_tool_result_without_its_call_or_name_is_not_valid(message: Message) -> None:
    """MA-043: as the document's own check says."""
    assert validate_message(message) is False


def test_the_content_of_a_tool_result_is_json() -> None:
    """MA-043: as the document's own check says; of another role it is no result."""
    assert validate_tool_response(ANSWER)
    assert not validate_tool_response(BASIC[0])
    assert not validate_tool_response(Message(role="tool", content="open", name="look", tool_call_id="c-1"))


def test_a_failure_is_a_message() -> None:
    """MA-045: with the text, the name of the agent, the type of the error and the time."""
    try:
        raise ConnectionError("the line is dead")
    except ConnectionError as exc:
        error = error_message(exc, "porter")

    assert (error.role, error.content, error.name) == ("error", "the line is dead", "porter")
    assert error.metadata is not None
    assert error.metadata["error_type"] == "ConnectionError"
    assert error.metadata["timestamp"]


def test_a_chain_keeps_messages_together_without_changing_them() -> None:
    """MA-043: every response has the id of the first message; the ids of the messages stay."""
    first, second = CONVERSATION[1:3]
    chain = MessageChain(first)
    kept = chain.add_response(second)

    assert [each.message_id for each in chain.get_chain()] == [first.message_id, second.message_id]
    assert kept.metadata is not None
    assert kept.metadata["chain_id"] == chain.chain_id == first.message_id
    assert second.metadata is None


def test_messages_are_chosen_by_role_name_and_time() -> None:
    """MA-043: each criterion alone, and together."""
    said = [*CONVERSATION, ANSWER]

    assert list(filter_messages(said, role="user")) == [CONVERSATION[1], CONVERSATION[3]]
    assert list(filter_messages(said, name="look")) == [ANSWER]
    assert list(filter_messages(said, after=max(each.timestamp for each in said))) == []
    assert list(filter_messages(said, role="tool", name="look")) == [ANSWER]
