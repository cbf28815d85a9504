"""The agent_framework format as its users import it: constants, builders, checks, models, catalogue."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.strategies import json_objects, json_values, keys, names, texts

from antiphon.dialects.agent_framework import (
    ActionMessage,
    ErrorContent,
    ErrorMessage,
    FinalContent,
    FinalMessage,
    InjectedContext,
    InjectedContextMessage,
    ObservationMessage,
    Phase,
    Plan,
    ScriptPlanContent,
    ScriptStep,
    StrategicPlanContent,
    StrategicPlanMessage,
    SuggestedPlanContent,
    SuggestedPlanMessage,
    SuggestedStep,
    SynthesisContent,
    SynthesisMessage,
    UserMessage,
    constants,
    extract_phases,
    filter_messages,
    message_builder,
    normalise_message,
    parse_message,
    validate_message,
    validation_errors,
)
from antiphon.dialects.agent_framework._messages import CATALOGUE
from antiphon.dialects.agent_framework.constants import (
    ALL_TYPES,
    COMPLETION_TYPES,
    CONTEXT_TYPES,
    CONVERSATION_TYPES,
    DELEGATION_TYPES,
    EXECUTION_TRACE_TYPES,
    FAMILIES,
    PLANNING_TYPES,
)
from antiphon.dialects.agent_framework.message_builder import (
    create_action,
    create_action_entry,
    create_assistant_message,
    create_delegation,
    create_director_context,
    create_error,
    create_final,
    create_injected_context,
    create_observation,
    create_script_plan,
    create_strategic_plan,
    create_suggested_plan,
    create_synthesis,
    create_task_entry,
    create_user_message,
)
from antiphon.messages import DataPart, JsonArray, JsonObject, use_port
from antiphon.testing import CountingPort

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "agent-framework.md"

EXAMPLES: dict[str, dict[str, Any]] = {
    "user_message": {
        "type": "user_message",
        "content": "List all tables in the model",
        "timestamp": "2024-01-15T10:30:00Z",
        "metadata": {"user_id": "user_123"},
    },
    "assistant_message": {
        "type": "assistant_message",
        "content": "Found 5 tables: Users, Orders, Products, Categories, Reviews",
        "timestamp": "2024-01-15T10:30:05Z",
    },
    "task": {
        "type": "task",
        "content": "Analyze the data model structure",
        "agent_key": "analyzer",
        "timestamp": "2024-01-15T10:30:00Z",
    },
    "action": {
        "type": "action",
        "tool": "list_tables",
        "args": {"schema": "public"},
        "agent_key": "analyzer",
        "timestamp": "2024-01-15T10:30:01Z",
    },
    "observation": {
        "type": "observation",
        "content": {
            "tables": ["Users", "Orders", "Products"],
            "count": 3,
            "human_readable_summary": "Found 3 tables",
        },
        "agent_key": "analyzer",
        "timestamp": "2024-01-15T10:30:02Z",
    },
    "error": {
        "type": "error",
        "content": {
            "error_message": "Connection refused",
            "error_type": "ConnectionError",
            "tool": "database_query",
        },
        "agent_key": "analyzer",
        "timestamp": "2024-01-15T10:30:02Z",
    },
    "final": {
        "type": "final",
        "content": {
            "operation": "display_message",
            "payload": {"message": "Analysis complete"},
            "human_readable_summary": "Successfully analyzed 3 tables",
        },
        "agent_key": "analyzer",
        "timestamp": "2024-01-15T10:30:03Z",
    },
    "synthesis": {
        "type": "synthesis",
        "content": "Combined analysis from 3 workers: found 5 tables, 25 columns, 3 relationships",
        "phase_id": 1,
        "from_manager": "analysis_manager",
        "timestamp": "2024-01-15T10:30:10Z",
        "is_global": True,
    },
    "strategic_plan": {
        "type": "strategic_plan",
        "content": {
            "refined_intent": "Analyze model structure and validate relationships",
            "plan": {
                "phases": [
                    {"name": "Analyze", "worker": "analyzer", "goals": "..."},
                    {"name": "Validate", "worker": "validator", "goals": "..."},
                ],
                "primary_worker": "analyzer",
                "rationale": "Analysis before validation",
            },
        },
        "timestamp": "2024-01-15T10:30:00Z",
    },
    "suggested_plan": {
        "type": "suggested_plan",
        "content": {
            "steps": [
                {"name": "List tables", "tool": "list_tables"},
                {"name": "Get columns", "tool": "list_columns"},
            ]
        },
        "agent_key": "analyzer",
        "timestamp": "2024-01-15T10:30:00Z",
    },
    "script_plan": {
        "type": "script_plan",
        "content": {
            "goal": "Describe the model",
            "steps": [
                {
                    "name": "List tables",
                    "worker": "analyzer",
                    "tool_name": "list_tables",
                    "args": {"schema": "public"},
                    "notes": "first",
                    "execution_mode": "direct",
                },
                {
                    "name": "Explain",
                    "worker": "writer",
                    "tool_name": "explain",
                    "args": {},
                    "execution_mode": "guided",
                },
            ],
            "metadata": {"thought": "tables first"},
        },
        "agent_key": "analysis_manager",
    },
    "director_context": {
        "type": "director_context",
        "content": "Available managers: analysis, validation",
        "agent_key": "orchestrator",
    },
    "injected_context": {
        "type": "injected_context",
        "content": {
            "manager_goal": "Describe the model",
            "worker_task": "List the tables",
            "script_steps": [
                {
                    "name": "List tables",
                    "worker": "analyzer",
                    "tool_name": "list_tables",
                    "args": {},
                    "execution_mode": "direct",
                }
            ],
            "suggested_plan": {"steps": [{"name": "List tables"}]},
            "script_metadata": {"thought": "tables first"},
            "worker_key": "analyzer",
            "assembled_context": "Manager goal: describe the model",
        },
        "agent_key": "analyzer",
    },
    "delegation": {
        "type": "delegation",
        "worker": "analyzer",
        "task": "List the tables",
        "agent_key": "analysis_manager",
    },
}
"""The example of each type: those of the specification, and one each for the four that it names without a format."""


def example(type_: str, **changes: Any) -> dict[str, Any]:
    """The example of a type with keys changed; with `...`, left out."""
    changed = {**EXAMPLES[type_], **changes}
    return {name: value for name, value in changed.items() if value is not ...}


def same(left: object, right: object) -> bool:
    """Whether two JSON values are the same, `1`, `1.0` and `True` told apart."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("type_", EXAMPLES)
def test_each_type_has_its_constant(type_: str) -> None:
    """AF-006, AF-007, AF-008, AF-009, AF-010, AF-011, AF-012, AF-013
    AF-014, AF-015, AF-016, AF-017, AF-018, AF-019, AF-020: the value is the name in small letters."""
    assert getattr(constants, type_.upper()) == type_


def test_the_collections_are_lists_in_the_order_of_the_specification() -> None:
    """AF-035, AF-036, AF-037, AF-038"""
    assert CONVERSATION_TYPES == ["user_message", "assistant_message"]
    assert EXECUTION_TRACE_TYPES == ["task", "action", "observation", "error"]
    assert COMPLETION_TYPES == ["final", "synthesis"]
    assert PLANNING_TYPES == ["strategic_plan", "suggested_plan", "script_plan"]
    assert CONTEXT_TYPES == ["director_context", "injected_context"]
    assert DELEGATION_TYPES == ["delegation"]
    assert list(EXAMPLES) == ALL_TYPES


def test_changing_a_collection_changes_nothing_else() -> None:
    taken = list(CONVERSATION_TYPES)
    try:
        CONVERSATION_TYPES.clear()

        assert validate_message(EXAMPLES["user_message"])
        assert ALL_TYPES[:2] == taken
        assert CATALOGUE["user_message"].family == "conversation"
    finally:
        CONVERSATION_TYPES[:] = taken


# ---------------------------------------------------------------- the types


@pytest.mark.parametrize("type_", EXAMPLES)
def test_the_example_of_each_type_is_valid_and_in_the_long_form(type_: str) -> None:
    """AF-021, AF-022, AF-023, AF-024, AF-025, AF-026, AF-027, AF-028, AF-029, AF-030, AF-031, AF-032, AF-033, AF-034"""
    assert validation_errors(EXAMPLES[type_]) == []
    assert validate_message(EXAMPLES[type_])
    assert normalise_message(EXAMPLES[type_]) == EXAMPLES[type_]


@pytest.mark.parametrize("type_", EXAMPLES)
def test_required_fields_are_required_and_others_are_not(type_: str) -> None:
    """AF-001, AF-002, AF-003, AF-004, AF-005, AF-050"""
    format_ = CATALOGUE[type_]
    least = {name: EXAMPLES[type_][name] for name in format_.required_fields}

    assert validate_message(least)
    for name in least:
        without = {each: value for each, value in least.items() if each != name}
        assert [error.partition(":")[0] for error in validation_errors(without)] == [name]
    assert ("content" in least) == (type_ not in ("action", "delegation"))
    assert ("agent_key" in least) == (type_ in EXECUTION_TRACE_TYPES)
    assert ("from_manager" in least) == (type_ == "synthesis")


@pytest.mark.parametrize("type_", EXAMPLES)
def test_null_in_an_optional_field_means_left_out(type_: str) -> None:
    format_ = CATALOGUE[type_]
    least = {name: EXAMPLES[type_][name] for name in format_.required_fields}
    nulls = dict.fromkeys(format_.optional_fields)

    assert normalise_message({**least, **nulls}) == normalise_message(least)


def test_null_in_a_field_with_another_default_means_that_default() -> None:
    step = {"name": "a", "worker": "w", "tool_name": "t", "args": None, "execution_mode": None}

    assert ScriptStep.model_validate(step) == ScriptStep(name="a", worker="w", tool_name="t")


def test_an_action_and_a_delegation_may_have_content() -> None:
    """AF-002"""
    assert normalise_message(example("action", content="why"))["content"] == "why"
    assert normalise_message(example("delegation", content={"why": 1}))["content"] == {"why": 1}


def test_an_observation_may_be_anything_even_null() -> None:
    """AF-025"""
    for content in ("text", 7, None, [1, {"a": None}], {}, {"human_readable_summary": 7}):
        message = example("observation", content=content)
        assert normalise_message(message) == message


def test_the_summary_of_an_observation_is_recognised() -> None:
    """AF-025"""
    observed = parse_message(EXAMPLES["observation"])
    assert isinstance(observed, ObservationMessage)
    assert observed.summary == "Found 3 tables"
    for content in ("text", {}, {"human_readable_summary": 7}):
        assert ObservationMessage(agent_key="a", content=content).summary is None


def test_a_synthesis_is_global_unless_it_says_otherwise() -> None:
    """AF-028"""
    assert normalise_message(example("synthesis", is_global=...))["is_global"] is True
    assert normalise_message(example("synthesis", is_global=False))["is_global"] is False


def test_a_synthesis_may_be_structured() -> None:
    """AF-028"""
    content = {"synthesized_summary": "s", "actual_data": [1], "full_result": {"a": 1}, "worker_results": {"w": "r"}, "x": 0}
    message = parse_message(example("synthesis", content=content))

    assert isinstance(message, SynthesisMessage)
    assert isinstance(message.content, SynthesisContent)
    assert message.content.worker_results == {"w": "r"}
    assert message.to_dict()["content"] == content


# ---------------------------------------------------------------- validation


@pytest.mark.parametrize(
    ("message", "errors"),
    [
        ("hello", ["message: should be a message: an object (a dict)"]),
        (None, ["message: should be a message: an object (a dict)"]),
        ([EXAMPLES["task"]], ["message: should be a message: an object (a dict)"]),
        (MappingProxyType({}), ["message: mappingproxy is not JSON; convert it to text, a number, a list or a dict"]),
        (example("task", content=7), ["content: should be a valid string"]),
        (example("task", agent_key=None, content=...), ["agent_key: ", "content: is required"]),
        (example("user_message", metadata=["x"]), ["metadata: should be an object"]),
        (example("user_message", is_global="yes"), ["is_global: should be a valid boolean"]),
        (example("user_message", agent_key=""), ["agent_key: A name is text of 1 to 512 characters"]),
        (example("user_message", turn_id=7), ["turn_id: A name is text"]),
        (example("action", args="{}"), ["args: should be an object"]),
        (example("action", tool="a\nb"), ["tool: A name is text"]),
        (example("error", content=7), ["content: should be text or an object"]),
        (example("error", content=7, error_type="X"), ["content: should be text or an object"]),
        (example("error", content="x", error_type=7), ["error_type: should be a valid string"]),
        (example("error", content={"tool": 7}), ["content.error_message: is required", "content.tool: should be"]),
        (example("final", content={"operation": "x"}), ["content.payload: is required"]),
        (example("final", content=None), ["content: should be text or an object"]),
        (example("synthesis", content=["x"]), ["content: should be text or an object"]),
        (example("synthesis", content={"synthesized_summary": 7}), ["content.synthesized_summary: should be a valid string"]),
        (example("synthesis", phase_id=-1), ["phase_id: should be greater than or equal to 0"]),
        (example("synthesis", phase_id=True), ["phase_id: should be a valid integer"]),
        (example("strategic_plan", content="plan"), ["content: should be an object"]),
        (example("strategic_plan", content={}), ["content.plan: should be a plan: it has phases, or else"]),
        (example("strategic_plan", content={"phases": [{"name": "x"}]}), ["content.phases[0].worker: is required"]),
        (example("strategic_plan", content={"plan": {"steps": [{"manager": 7}]}}), [
            "content.plan.steps[0].name: is required",
            "content.plan.steps[0].manager: should be a valid string",
        ]),
        (example("strategic_plan", content={"phases": [{"name": "x", "worker": "w", "goals": []}]}), [
            "content.phases[0].goals: should be a valid string",
        ]),
        (example("suggested_plan", content=[{"name": "x"}, {}]), ["content[1].name: is required"]),
        (example("suggested_plan", content="x"), ["content: should be a list or an object"]),
        (example("suggested_plan", content={"steps": {}}), ["content.steps: should be a list"]),
        (example("script_plan", content={"steps": [{"execution_mode": "x"}]}), [
            "content.steps[0].name: is required",
            "content.steps[0].worker: is required",
            "content.steps[0].tool_name: is required",
            "content.steps[0].execution_mode: should be 'direct' or 'guided'",
        ]),
        (example("injected_context", content={"suggested_plan": [{}]}), ["content.suggested_plan[0].name: is required"]),
        (example("director_context", content={}), ["content: should be a valid string"]),
        (example("delegation", worker=7, task=7), ["worker: A name", "task: should be a valid string"]),
    ],
)  # fmt: skip
def test_a_fault_is_reported_with_its_place(message: object, errors: list[str]) -> None:
    """AF-049: content fits the type; the path is that of the data as it came."""
    found = validation_errors(message)

    assert not validate_message(message)
    assert len(found) == len(errors)
    for error, beginning in zip(found, errors, strict=True):
        assert error.startswith(beginning)


@pytest.mark.parametrize("type_", ["global_observation", "TASK", "", None, 7, ["task"], {"task": 1}])
def test_an_unknown_type_is_an_error(type_: object) -> None:
    """AF-048"""
    (error,) = validation_errors({"type": type_, "content": "x", "agent_key": "a"})

    assert error.startswith("type: should be one of user_message, assistant_message, task,")
    assert error.endswith(f"it is {type_!r}")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), "args['a b'][0].c: nan is not JSON"),
        (float("inf"), "args['a b'][0].c: inf is not JSON"),
        ({1, 2}, "args['a b'][0].c: set is not JSON"),
        (b"x", "args['a b'][0].c: bytes is not JSON"),
        ({1: 2}, "args['a b'][0].c: the key 1 is not text"),
        ("\ud800", "args['a b'][0].c: a lone surrogate"),
        (datetime(2024, 1, 1, tzinfo=UTC), "args['a b'][0].c: datetime is not JSON"),
    ],
)
def test_json_values_only(value: object, error: str) -> None:
    """AF-049"""
    args: Any = {"a b": [{"c": value}]}

    (found,) = validation_errors(example("action", args=args))
    assert found.startswith(error)
    with pytest.raises(ValidationError):
        create_action("t", args, agent_key="a")
    with pytest.raises(ValidationError):
        ActionMessage(agent_key="a", tool="t", args=args)


def test_nesting_has_a_limit() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]

    (error,) = validation_errors(example("observation", content=deep))
    assert "nested deeper than 64" in error


@pytest.mark.slow
@given(st.one_of(json_values, st.fixed_dictionaries({"type": st.sampled_from(ALL_TYPES)}, optional={
    "content": json_values, "agent_key": names, "timestamp": texts, "tool": json_values, "args": json_values,
    "worker": texts, "task": texts, "error_type": json_values, "from_manager": names, "metadata": json_objects,
})))  # fmt: skip
def test_a_message_is_valid_or_the_errors_say_why(message: Any) -> None:
    """AF-052: what `validate_message` refuses does not get in elsewhere, and nothing else is refused."""
    if validate_message(message):
        assert validate_message(normalise_message(message))
    else:
        assert all(": " in error for error in validation_errors(message))
        with pytest.raises(ValidationError):
            parse_message(message)


# ---------------------------------------------------------------- time


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-15T10:30:00Z",
        "2024-01-15T10:30:00+05:30",
        "2024-01-15T10:30:00.123456Z",
        "2024-01-15T10:30:00,5",
        "2024-01-15 10:30",
        "2024-02-29T23:59:59-0800",
        "20240115T103000Z",
        "20240115T1030+05",
    ],
)
def test_iso_timestamps_are_kept_as_written(text: str) -> None:
    """AF-003, AF-051"""
    assert normalise_message(example("user_message", timestamp=text))["timestamp"] == text
    assert create_user_message("x", timestamp=text)["timestamp"] == text


@pytest.mark.parametrize(
    "value",
    [
        *("", "now", "2024-01-15", "10:30:00", "2024-13-01T10:30:00Z", "2023-02-29T10:30:00Z", "2024-01-15T24:00:00Z"),
        *("2024-01-15T10:60:00Z", "2024-01-15T10:30:00+24:00", "2024-01-15x10:30:00", "2024-01-15T10:30:00Z "),
        *("2024-W03-1T10:30", "1705314600", 1705314600, 1705314600.5, True, "٢٠٢٤-01-15T10:30:00Z", "15 Jan 2024"),
    ],
)  # fmt: skip
def test_other_timestamps_are_refused(value: object) -> None:
    """AF-051: ISO if it is there at all; a number is for builders only."""
    (error,) = validation_errors(example("user_message", timestamp=value))

    assert error.startswith("timestamp: should be")


@pytest.mark.parametrize(
    ("given_", "written"),
    [
        (datetime(2024, 1, 15, 10, 30, tzinfo=UTC), "2024-01-15T10:30:00Z"),
        (datetime(2024, 1, 15, 10, 30, tzinfo=timezone(timedelta(hours=2))), "2024-01-15T08:30:00Z"),
        (datetime(2024, 1, 15, 10, 30, 0, 5, tzinfo=UTC), "2024-01-15T10:30:00.000005Z"),
        (1705314600, "2024-01-15T10:30:00Z"),
        (1705314600.25, "2024-01-15T10:30:00.250000Z"),
        (0, "1970-01-01T00:00:00Z"),
        (-1.5, "1969-12-31T23:59:58.500000Z"),
    ],
)
def test_builders_write_iso_from_datetimes_and_seconds(given_: Any, written: str) -> None:
    """AF-003: 0 is a time, not the lack of one."""
    assert create_task_entry("x", agent_key="a", timestamp=given_)["timestamp"] == written


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        (datetime(2024, 1, 15), "needs its zone"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "is no timestamp"),
        (float("nan"), "is no timestamp"),
        (float("inf"), "is no timestamp"),
        (1705314600000, "is no timestamp"),
        (10**400, "is no timestamp"),
        (True, "give ISO 8601 text"),
        ({}, "give ISO 8601 text"),
        ("yesterday", "ISO 8601"),
    ],
)
def test_builders_refuse_what_is_no_time(given_: Any, error: str) -> None:
    """AF-051"""
    with pytest.raises(ValueError, match=error):
        create_user_message("x", timestamp=given_)


def test_the_time_comes_from_the_port() -> None:
    with use_port(CountingPort()):
        assert create_user_message("x")["timestamp"] == "2026-01-01T00:00:00Z"
        assert create_user_message("x", timestamp=None)["timestamp"] == "2026-01-01T00:00:01Z"


@pytest.mark.slow
@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones()))
def test_any_time_with_a_zone_can_be_written_and_read(time: datetime) -> None:
    """AF-051"""
    message = create_user_message("x", timestamp=time)

    assert datetime.fromisoformat(message["timestamp"]) == time.astimezone(UTC)


# ---------------------------------------------------------------- builders


def test_the_examples_of_the_specification_run_as_written() -> None:
    """AF-040, AF-042, AF-044"""
    with use_port(CountingPort()):
        msg = create_user_message("Hello", metadata={"user_id": "123"})
        task = create_task_entry("Analyze data", agent_key="worker_1")
        obs = create_observation({"result": "success"}, agent_key="worker_1")

    assert msg == {
        "type": "user_message",
        "content": "Hello",
        "timestamp": "2026-01-01T00:00:00Z",
        "metadata": {"user_id": "123"},
    }
    assert task == {
        "type": "task",
        "content": "Analyze data",
        "agent_key": "worker_1",
        "timestamp": "2026-01-01T00:00:01Z",
    }
    assert obs == {
        "type": "observation",
        "content": {"result": "success"},
        "agent_key": "worker_1",
        "timestamp": "2026-01-01T00:00:02Z",
    }


def built(type_: str) -> dict[str, Any]:
    """Each example, made by its builder."""
    fields = {name: value for name, value in EXAMPLES[type_].items() if name != "type"}
    positional = {"action": ("tool", "args"), "delegation": ("worker", "task"), "synthesis": ("content", "from_manager")}
    arguments = [fields.pop(name) for name in positional.get(type_, ("content",))]
    builder: Callable[..., dict[str, Any]] = getattr(message_builder, CATALOGUE[type_].builder)
    return builder(*arguments, **fields)


@pytest.mark.parametrize("type_", EXAMPLES)
def test_every_type_has_a_builder_that_makes_its_example(type_: str) -> None:
    """AF-040, AF-041, AF-042, AF-043, AF-044, AF-045, AF-046, AF-047"""
    with use_port(CountingPort()):
        made = built(type_)

    assert made == {"timestamp": "2026-01-01T00:00:00Z", **EXAMPLES[type_]}
    assert type(made) is dict
    assert validate_message(made)


def test_the_other_spelling_of_the_builders_is_offered() -> None:
    """AF-047: every builder but the two of the conversation has a name ending in `_entry`."""
    assert create_action_entry(tool_name="t", tool_args={"a": 1}, agent_key="w", call_id="c", timestamp=0) == create_action(
        "t", {"a": 1}, agent_key="w", call_id="c", timestamp=0
    )
    for format_ in CATALOGUE.values():
        if format_.family != "conversation" and format_.type != "action":
            builder = getattr(message_builder, format_.builder)
            assert getattr(message_builder, f"{format_.builder.removesuffix('_entry')}_entry") is builder


def test_an_action_may_have_no_arguments() -> None:
    """AF-043"""
    assert create_action("now", agent_key="a")["args"] == {}


def test_errors_and_finals_are_written_as_objects() -> None:
    """AF-045, AF-046"""
    plain = create_error("boom", "ValueError", "search", agent_key="a")
    named = create_error({"error_message": "boom", "error_type": "KeyError"}, "ValueError", "search", agent_key="a")

    assert plain["content"] == {"error_message": "boom", "error_type": "ValueError", "tool": "search"}
    assert named["content"] == {"error_message": "boom", "error_type": "KeyError", "tool": "search"}
    assert create_error("boom", agent_key="a")["content"] == {"error_message": "boom"}
    assert create_final("All done")["content"] == {
        "operation": "display_message",
        "payload": {"message": "All done"},
        "human_readable_summary": "All done",
    }


def test_builders_take_typed_content() -> None:
    """AF-047"""
    step, suggestion = ScriptStep(name="a", worker="w", tool_name="t"), SuggestedStep(name="s")
    plan = StrategicPlanContent(plan=Plan(phases=(Phase(name="p", worker="w"),)))

    assert create_error(ErrorContent(error_message="x"), agent_key="a")["content"] == {"error_message": "x"}
    assert create_final(FinalContent(operation="o", payload={}))["content"] == {"operation": "o", "payload": {}}
    assert create_synthesis(SynthesisContent(synthesized_summary="s"), "m")["content"] == {"synthesized_summary": "s"}
    assert create_strategic_plan(plan)["content"] == {"plan": {"phases": [{"name": "p", "worker": "w"}]}}
    assert create_suggested_plan(SuggestedPlanContent(steps=(suggestion,)))["content"] == {"steps": [{"name": "s"}]}
    assert create_script_plan(ScriptPlanContent(goal="g", steps=(step,)))["content"]["steps"][0]["execution_mode"] == "direct"
    assert create_injected_context(InjectedContext(worker_key="w"))["content"] == {"worker_key": "w"}


def test_ids_and_extra_keys_are_taken_and_none_is_left_out() -> None:
    """AF-047"""
    ids: Any = {"call_id": "c", "message_id": "m", "turn_id": "u"}
    made = create_action("t", {}, agent_key="a", **ids, is_global=False, metadata=None, timestamp=0, colour="red")

    assert made == {
        "type": "action",
        "tool": "t",
        "args": {},
        "call_id": "c",
        "agent_key": "a",
        "timestamp": "1970-01-01T00:00:00Z",
        "message_id": "m",
        "turn_id": "u",
        "is_global": False,
        "colour": "red",
    }
    assert set(create_delegation("w", "t", call_id=None)) == {"type", "worker", "task", "timestamp"}


@pytest.mark.parametrize(
    "build",
    [
        lambda: create_user_message(7),
        lambda: create_assistant_message(None),
        lambda: create_task_entry("x", agent_key=""),
        lambda: create_task_entry("x", agent_key=None),
        lambda: create_action("", {}, agent_key="a"),
        lambda: create_action("t", [], agent_key="a"),
        lambda: create_error(7, agent_key="a"),
        lambda: create_error({}, agent_key="a"),
        lambda: create_final({"operation": "x"}),
        lambda: create_synthesis("x", "m", -1),
        lambda: create_strategic_plan({}),
        lambda: create_suggested_plan([{}]),
        lambda: create_script_plan({"steps": [{}]}),
        lambda: create_director_context({}),
        lambda: create_injected_context({"script_steps": 7}),
        lambda: create_delegation("", "t"),
        lambda: create_user_message("x", metadata=[]),
        lambda: create_user_message("x", type="task"),
    ],
)
def test_a_builder_makes_valid_messages_only(build: Callable[[], object]) -> None:
    """AF-052: the check is not left to the caller. Pydantic's error is a ValueError too."""
    with pytest.raises(ValueError, match="."):
        build()


def test_a_trace_without_its_agent_is_refused_by_python_already() -> None:
    """AF-050"""
    with pytest.raises(TypeError, match="agent_key"):
        create_task_entry("x")


def test_a_builder_returns_a_copy() -> None:
    args: dict[str, Any] = {"a": [1]}
    metadata: dict[str, Any] = {"b": {"c": 1}}
    made = create_action("t", args, agent_key="a", metadata=metadata)
    again = create_action("t", args, agent_key="a", metadata=metadata)
    args["a"].append(2)
    metadata["b"]["c"] = 2
    again["args"]["a"].append(3)

    assert made["args"] == {"a": [1]}
    assert made["metadata"] == {"b": {"c": 1}}


# ---------------------------------------------------------------- accepted forms


def test_an_error_may_be_text_with_its_type_beside_it() -> None:
    """AF-026"""
    short = example("error", content="Connection refused", error_type="ConnectionError")
    message = parse_message(short)

    assert isinstance(message, ErrorMessage)
    assert (message.content.error_message, message.content.error_type) == ("Connection refused", "ConnectionError")
    assert message.to_dict() == example(
        "error", content={"error_message": "Connection refused", "error_type": "ConnectionError"}
    )
    assert normalise_message(example("error", content="x"))["content"] == {"error_message": "x"}


def test_an_error_type_beside_another_one_is_kept() -> None:
    """AF-026"""
    message = example("error", error_type="Other")

    assert normalise_message(message) == message


def test_a_final_may_be_text() -> None:
    """AF-027"""
    message = parse_message(example("final", content="done"))

    assert isinstance(message, FinalMessage)
    assert (message.content.operation, message.content.payload) == ("display_message", {"message": "done"})
    assert message.content.human_readable_summary == "done"


def test_a_suggested_plan_may_be_a_list() -> None:
    """AF-030: of script steps, too."""
    script = EXAMPLES["script_plan"]["content"]["steps"]
    message = parse_message(example("suggested_plan", content=script))

    assert isinstance(message, SuggestedPlanMessage)
    assert [step.name for step in message.content.steps] == ["List tables", "Explain"]
    assert message.to_dict()["content"] == {"steps": script}
    assert SuggestedPlanContent.model_validate([]).steps == ()


PHASES = EXAMPLES["strategic_plan"]["content"]["plan"]["phases"]


@pytest.mark.parametrize(
    "plan",
    [
        EXAMPLES["strategic_plan"],
        parse_message(EXAMPLES["strategic_plan"]),
        EXAMPLES["strategic_plan"]["content"],
        EXAMPLES["strategic_plan"]["content"]["plan"],
        StrategicPlanContent.model_validate(EXAMPLES["strategic_plan"]["content"]),
        Plan.model_validate(EXAMPLES["strategic_plan"]["content"]["plan"]),
        DataPart(data=EXAMPLES["strategic_plan"]["content"]).data,
        {"phases": PHASES},
        {"steps": PHASES},
        {"plan": {"steps": PHASES}},
        {"plan": {"phases": [{"name": each["name"], "manager": each["worker"], "goals": "..."} for each in PHASES]}},
        {"steps": [{"action": each["name"], "worker": each["worker"], "context": "..."} for each in PHASES]},
    ],
)
def test_the_phases_of_a_plan_are_found_in_every_form(plan: Any) -> None:
    """AF-029"""
    assert extract_phases(plan) == (
        Phase(name="Analyze", worker="analyzer", goals="..."),
        Phase(name="Validate", worker="validator", goals="..."),
    )


def test_a_plan_may_name_workers_instead_of_phases() -> None:
    """AF-029"""
    assert extract_phases({"plan": {"primary_worker": "w"}}) == ()
    assert extract_phases({"parallel_workers": ["v", "w"]}) == ()
    for plan in ({}, {"plan": {}}, {"plan": {"primary_worker": None}}, {"type": "strategic_plan"}):
        with pytest.raises(ValidationError):
            extract_phases(plan)


def test_a_flat_plan_gets_its_wrapper_and_keeps_the_intent_outside() -> None:
    """AF-029"""
    flat = {"refined_intent": "i", "phases": [], "task_type": "analysis", "other": [1]}

    assert normalise_message(example("strategic_plan", content=flat))["content"] == {
        "refined_intent": "i",
        "plan": {"phases": [], "task_type": "analysis", "other": [1]},
    }


def test_an_older_spelling_beside_the_present_one_is_just_another_key() -> None:
    """AF-029"""
    phase = Phase.model_validate({"name": "n", "worker": "w", "manager": "m", "action": "a"})

    assert (phase.name, phase.worker) == ("n", "w")
    assert phase.to_dict() == {"name": "n", "worker": "w", "manager": "m", "action": "a"}


# ---------------------------------------------------------------- models


def test_a_message_can_be_read_as_a_typed_frozen_value() -> None:
    message = parse_message(EXAMPLES["strategic_plan"])

    assert isinstance(message, StrategicPlanMessage)
    assert message.content.plan.phases[1].worker == "validator"
    with pytest.raises(ValidationError):
        message.content.plan.phases[1].worker = "other"


def test_the_json_inside_a_model_is_frozen_and_its_own() -> None:
    args: dict[str, Any] = {"a": [1]}
    for message in (
        ActionMessage(agent_key="w", tool="t", args=args, x=[{}]),
        parse_message(example("action", args=args, x=[{}])),
    ):
        assert isinstance(message, ActionMessage)
        args["a"].append(2)
        assert isinstance(message.args, JsonObject)
        assert message.args == {"a": [1]}
        assert message.model_extra is not None
        assert isinstance(message.model_extra["x"], JsonArray)
        args["a"].pop()


def test_a_model_is_written_by_pydantic_in_the_same_form() -> None:
    """A dump, its JSON and `to_dict` are one."""
    for each in EXAMPLES.values():
        message = parse_message(each)
        assert message.model_dump() == message.to_dict() == each
        assert json.loads(message.model_dump_json()) == each
        assert type(message).model_json_schema()["title"] == type(message).__name__


def test_a_model_can_be_made_directly() -> None:
    message = UserMessage(content="hi", timestamp="2024-01-15T10:30:00Z")

    assert message.to_dict() == {"type": "user_message", "content": "hi", "timestamp": "2024-01-15T10:30:00Z"}
    with pytest.raises(ValidationError, match="ISO 8601"):
        UserMessage(content="hi", timestamp="today")
    assert InjectedContextMessage(content=InjectedContext(worker_key="w")).to_dict()["content"] == {"worker_key": "w"}


def test_a_frozen_view_is_taken_as_a_message() -> None:
    view: Any = DataPart(data=EXAMPLES["injected_context"]).data

    assert validate_message(view)
    assert normalise_message(view) == EXAMPLES["injected_context"]
    assert validation_errors(DataPart(data=example("suggested_plan", content=[{}])).data) == ["content[0].name: is required"]


# ---------------------------------------------------------------- unknown keys


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, inner), default=0)


KNOWN = {name for format_ in CATALOGUE.values() for name in (*format_.required_fields, *format_.optional_fields)} | {
    *("manager", "action", "context", "steps", "phases", "plan", "name", "goals", "notes", "refined_intent", "operation"),
    *("primary_worker", "rationale", "task_type", "parallel_workers", "execution_mode", "goal", "error_message", "tool_name"),
}
shallow = json_values.filter(lambda value: depth(value) < 60)
extras = st.dictionaries(keys.filter(lambda key: key not in KNOWN), shallow, max_size=3)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """An example with keys of nobody's at every level."""

    def widened(value: Any, *, free: bool = False) -> Any:
        if isinstance(value, dict):
            inner = {name: widened(each, free=free or name in ("args", "metadata", "payload")) for name, each in value.items()}
            return inner if free else {**draw(extras), **inner}
        return [widened(each, free=free) for each in value] if isinstance(value, list) else value

    return widened(EXAMPLES[draw(st.sampled_from(ALL_TYPES))])


@pytest.mark.slow
@given(messages())
def test_unknown_keys_are_allowed_and_kept_at_every_level(message: dict[str, Any]) -> None:
    """AF-002, AF-049"""
    assert validation_errors(message) == []
    assert same(normalise_message(message), message)
    assert same(json.loads(parse_message(message).model_dump_json()), message)


@pytest.mark.slow
@given(messages())
def test_the_long_form_of_a_long_form_is_itself(message: dict[str, Any]) -> None:
    once = normalise_message(message)

    assert same(normalise_message(once), once)
    assert parse_message(once) == parse_message(message)


@pytest.mark.slow
@given(st.sampled_from(ALL_TYPES), extras)
def test_a_builder_keeps_any_other_keyword(type_: str, extra: dict[str, Any]) -> None:
    """AF-047"""
    fields = {name: EXAMPLES[type_][name] for name in CATALOGUE[type_].required_fields if name != "type"}
    builder = getattr(message_builder, CATALOGUE[type_].builder)

    made = builder(**fields, **extra)

    assert same({name: made[name] for name in fields}, fields)
    assert same({name: made[name] for name in extra if name in made}, {n: v for n, v in extra.items() if v is not None})


@pytest.mark.slow
@given(shallow, names, st.none() | names)
def test_any_json_can_be_observed(content: Any, agent_key: str, call_id: str | None) -> None:
    """AF-044"""
    made = create_observation(content, agent_key=agent_key, call_id=call_id)

    assert same(made["content"], content)
    assert (made["agent_key"], made.get("call_id")) == (agent_key, call_id)


# ---------------------------------------------------------------- filters


def test_a_history_is_filtered_by_collection() -> None:
    """AF-039"""
    history = [EXAMPLES[type_] for type_ in reversed(ALL_TYPES)]

    for collection in (*map(list, FAMILIES.values()), ALL_TYPES):
        assert [message["type"] for message in filter_messages(history, collection)] == collection[::-1]
    assert filter_messages(history, "task") == [EXAMPLES["task"]]
    assert filter_messages(history, ALL_TYPES)[0] is history[0]
    assert filter_messages(history, EXECUTION_TRACE_TYPES, agent_key="nobody") == []
    assert len(filter_messages(history, EXECUTION_TRACE_TYPES, agent_key="analyzer")) == 4
    assert filter_messages([{"type": ["task"]}, {}], ALL_TYPES) == []


def test_filtering_by_a_type_that_does_not_exist_is_a_mistake() -> None:
    """AF-039"""
    with pytest.raises(ValueError, match=r"no types of message: \['tsak'\]; there are user_message"):
        filter_messages([], ["task", "tsak"])


# ---------------------------------------------------------------- the catalogue


def test_the_catalogue_knows_every_type_once() -> None:
    """AF-047"""
    assert list(CATALOGUE) == ALL_TYPES
    for type_, format_ in CATALOGUE.items():
        assert format_.type == type_ in FAMILIES[format_.family]
        assert callable(getattr(message_builder, format_.builder))
        assert format_.description
        assert set(EXAMPLES[type_]) <= {*format_.required_fields, *format_.optional_fields}
    assert CATALOGUE["error"].content_model is ErrorContent
    assert CATALOGUE["synthesis"].content_model is SynthesisContent
    assert CATALOGUE["observation"].content_model is None
    assert CATALOGUE["task"].content == "text"


def table() -> str:
    """The table of the docs page."""
    rows = ["| type | family | required | content | builder | what it is |", "|---|---|---|---|---|---|"]
    for each in CATALOGUE.values():
        required = ", ".join(f"`{name}`" for name in each.required_fields[1:])
        words, _, model = each.content.partition(": ")
        content = f"{words}, `{model}`" if model else words
        rows.append(f"| `{each.type}` | {each.family} | {required} | {content} | `{each.builder}` | {each.description} |")
    return "\n".join(rows)


def test_the_docs_page_shows_the_catalogue() -> None:
    """AF-047: if this fails, put the table above into the page."""
    assert table() in PAGE.read_text()
