"""agent_framework: a message of each type, the constants and the builders that the document shows, with values of our own."""

from typing import Any

import pytest

from antiphon.dialects import decode, encode
from antiphon.dialects.agent_framework import validate_message, validation_errors
from antiphon.dialects.agent_framework.constants import (
    ACTION,
    ASSISTANT_MESSAGE,
    COMPLETION_TYPES,
    CONVERSATION_TYPES,
    DELEGATION,
    DIRECTOR_CONTEXT,
    ERROR,
    EXECUTION_TRACE_TYPES,
    FINAL,
    INJECTED_CONTEXT,
    OBSERVATION,
    PLANNING_TYPES,
    SCRIPT_PLAN,
    STRATEGIC_PLAN,
    SUGGESTED_PLAN,
    SYNTHESIS,
    TASK,
    USER_MESSAGE,
)
from antiphon.dialects.agent_framework.message_builder import (
    create_action,
    create_assistant_message,
    create_error,
    create_final,
    create_observation,
    create_task_entry,
    create_user_message,
)

MESSAGES: list[dict[str, Any]] = [
    {
        "type": "user_message",
        "content": "Which rooms are free?",
        "timestamp": "2026-03-04T07:00:00Z",
        "metadata": {"user_id": "guest-9"},
    },
    {"type": "assistant_message", "content": "Two: the blue one and the attic.", "timestamp": "2026-03-04T07:00:09Z"},
    {
        "type": "task",
        "content": "Look through the house",
        "agent_key": "porter",
        "timestamp": "2026-03-04T07:00:01Z",
    },
    {
        "type": "action",
        "tool": "open_doors",
        "args": {"floor": "first"},
        "agent_key": "porter",
        "timestamp": "2026-03-04T07:00:02Z",
    },
    {
        "type": "observation",
        "content": {"tables": ["oak", "ash"], "count": 2, "human_readable_summary": "Two tables are free"},
        "agent_key": "porter",
        "timestamp": "2026-03-04T07:00:03Z",
    },
    {
        "type": "error",
        "content": {"error_message": "the key broke", "error_type": "KeyBroken", "tool": "open_doors"},
        "agent_key": "porter",
        "timestamp": "2026-03-04T07:00:03Z",
    },
    {
        "type": "final",
        "content": {
            "operation": "display_message",
            "payload": {"message": "All doors are open"},
            "human_readable_summary": "Two rooms were found",
        },
        "agent_key": "porter",
        "timestamp": "2026-03-04T07:00:04Z",
    },
    {
        "type": "synthesis",
        "content": "Two porters found two rooms on two floors",
        "phase_id": 1,
        "from_manager": "house_manager",
        "timestamp": "2026-03-04T07:00:06Z",
        "is_global": True,
    },
    {
        "type": "strategic_plan",
        "content": {
            "refined_intent": "Find free rooms and make the beds",
            "plan": {
                "phases": [
                    {"name": "Find", "worker": "porter", "goals": "Find free rooms"},
                    {"name": "Make", "worker": "maid", "goals": "Make the beds"},
                ],
                "primary_worker": "porter",
                "rationale": "A bed is made in a room",
            },
        },
        "timestamp": "2026-03-04T07:00:00Z",
    },
    {
        "type": "suggested_plan",
        "content": {
            "steps": [
                {"name": "Go up", "tool": "stairs"},
                {"name": "Open the doors", "tool": "open_doors"},
            ]
        },
        "agent_key": "porter",
        "timestamp": "2026-03-04T07:00:01Z",
    },
]


@pytest.mark.parametrize("message", MESSAGES, ids=[each["type"] for each in MESSAGES])
def test_the_message_of_each_type_is_valid_and_comes_back(message: dict[str, Any]) -> None:
    """AF-021 … AF-030: with the fields of the document; the framework reads it and writes the same."""
    assert validation_errors(message) == []
    back = encode(decode([message], "agent-framework"), "agent-framework")
    assert back.value == [message]
    assert not back.losses


@pytest.mark.parametrize("message", MESSAGES, ids=[each["type"] for each in MESSAGES])
def test_the_rules_of_the_document_are_checked(message: dict[str, Any]) -> None:
    """AF-048, AF-050, AF-051: a known type, an agent for traces, an ISO time."""
    assert not validate_message({**message, "type": "letter"})
    assert not validate_message({**message, "timestamp": "this morning"})
    without = {name: value for name, value in message.items() if name != "agent_key"}
    assert validate_message(without) is (message["type"] not in EXECUTION_TRACE_TYPES)


def test_the_constants_are_the_texts_of_the_document() -> None:
    """AF-007 … AF-020, AF-035 … AF-038."""
    assert [*CONVERSATION_TYPES] == [USER_MESSAGE, ASSISTANT_MESSAGE] == ["user_message", "assistant_message"]
    assert [*EXECUTION_TRACE_TYPES] == [TASK, ACTION, OBSERVATION, ERROR] == ["task", "action", "observation", "error"]
    assert [*COMPLETION_TYPES] == [FINAL, SYNTHESIS] == ["final", "synthesis"]
    assert [*PLANNING_TYPES] == [STRATEGIC_PLAN, SUGGESTED_PLAN, SCRIPT_PLAN]
    assert (STRATEGIC_PLAN, SUGGESTED_PLAN, SCRIPT_PLAN) == ("strategic_plan", "suggested_plan", "script_plan")
    assert (DIRECTOR_CONTEXT, INJECTED_CONTEXT, DELEGATION) == ("director_context", "injected_context", "delegation")


def test_the_builders_build_what_the_document_shows() -> None:
    """AF-040 … AF-046: the three calls of the document, and the four builders that it names."""
    msg = create_user_message("Good morning", metadata={"user_id": "guest-9"})
    task = create_task_entry("Look through the house", agent_key="porter")
    obs = create_observation({"result": "two rooms"}, agent_key="porter")

    assert (msg["type"], msg["content"], msg["metadata"]) == (USER_MESSAGE, "Good morning", {"user_id": "guest-9"})
    assert (task["type"], task["content"], task["agent_key"]) == (TASK, "Look through the house", "porter")
    assert (obs["type"], obs["content"], obs["agent_key"]) == (OBSERVATION, {"result": "two rooms"}, "porter")
    built = [
        msg,
        task,
        obs,
        create_assistant_message("Two."),
        create_action("open_doors", {"floor": "first"}, agent_key="porter"),
        create_error("the key broke", "KeyBroken", "open_doors", agent_key="porter"),
        create_final("All doors are open", agent_key="porter"),
    ]
    assert [each for each in built if validation_errors(each)] == []
    assert [each["type"] for each in built if "timestamp" not in each] == []
