"""The shared meaning: errors, plans and the user's own metadata in every format, and what is reported where they vanish."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dialects.samples import SAMPLES
from tests.dialects.test_providers import PROVIDERS

from antiphon import Conversation, convert, decode, encode
from antiphon.dialects import Projection
from antiphon.errors import EncodeError
from antiphon.messages import OptionResultPayload

MARK = "mark-of-the-user"
UNITS: dict[str, list[dict[str, Any]]] = {
    "choir": [
        {"id": "m", "type": "MESSAGE", "data": {"role": "user", "content": "hi", "user_id": MARK}, "sender": "ada"},
        {"id": "m", "type": "ERROR", "data": {"error_message": "rate limit", "error_code": MARK}, "sender": "ada"},
        {"id": "m", "type": "MESSAGE", "data": {"role": "user", "content": "hi"}, "sender": "ada", "priority": MARK},
        {"id": "m", "type": "LOOK", "data": {"a": "b"}, "sender": "ada", "metadata": {"priority": MARK}},
    ],
    "marsys": [
        {"role": "user", "content": "hi", "metadata": {"user_id": MARK}},
        {"role": "error", "content": "rate limit", "name": "w", "metadata": {"error_type": MARK}},
        {"role": "agent_call", "content": "look", "name": "r", "metadata": {"caller": "o", "task_id": "t", "priority": MARK}},
        {"role": "user", "content": "hi", "user_id": MARK},
    ],
    "agent-framework": [
        {"type": "user_message", "content": "hi", "metadata": {"user_id": MARK}},
        {"type": "synthesis", "content": "all", "from_manager": "m", "phase_id": 1, "metadata": {"by": MARK}},
        {"type": "error", "content": {"error_message": "rate limit", "error_type": MARK}, "agent_key": "a"},
        {"type": "error", "content": {"error_message": "rate limit", "tool": MARK}, "agent_key": "a"},
        {"type": "task", "content": "look", "agent_key": "a", "metadata": {"priority": MARK}},
        {"type": "strategic_plan", "content": {"plan": {"phases": []}}, "metadata": {"priority": MARK}},
        {"type": "assistant_message", "content": "hi", "user_id": MARK},
    ],
    "atlas": [
        {"content": "hi", "metadata": {"type": "query", "priority": MARK}, "source_agent": "user", "task_id": "t"},
        {"content": "rate limit", "metadata": {"type": "error", "error_type": MARK}, "source_agent": "w"},
        {"content": "half", "metadata": {"type": "status", "progress": MARK}, "source_agent": "w"},
        {"content": "hi", "metadata": {"type": MARK}, "source_agent": "w"},
    ],
}
"""One unit of each kind that the kinds of the core do not tell apart, with a value that only the user knows."""
KINDS = ("error", "status", "synthesis", "strategic_plan")
FORMATS = (*SAMPLES, *PROVIDERS)
CASES = st.sampled_from([(source, unit) for source, units in UNITS.items() for unit in units])
EXTRA = st.dictionaries(st.sampled_from(["note", "a b", "ü"]), st.sampled_from([MARK, 1, {"x": [MARK]}]), max_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("target", FORMATS)
@settings(max_examples=30)
@given(case=CASES, extra=EXTRA)
def test_what_vanishes_between_formats_is_reported(
    target: str, case: tuple[str, dict[str, Any]], extra: dict[str, Any]
) -> None:
    """G3: whatever the user noted is in the output, or a loss; `losses="raise"` refuses whenever something is reported."""
    source, unit = case
    given = {**unit, "metadata": {**unit.get("metadata", {}), **extra}} if source != "choir" else unit
    encoded = convert([given], source=source, target=target)
    if source == target:
        assert (encoded.value, encoded.losses) == ([given], ())
        return
    lost = {loss.what for loss in encoded.losses}
    said = json.dumps(encoded.value)
    assert MARK in said or {"metadata", "extras", "message"} & lost
    kind = next((kind for kind in KINDS if kind in (unit.get("type", "").lower(), unit.get("role"), _atlas_type(unit))), None)
    if kind is not None:
        shown = {"strategic_plan": "plan"}.get(kind, kind)
        assert shown in said.lower() or {"purpose", "message"} & lost
    if lost:
        with pytest.raises(EncodeError):
            convert([given], source=source, target=target, losses="raise")


def _atlas_type(unit: dict[str, Any]) -> str:
    return str(unit.get("metadata", {}).get("type", ""))


@pytest.mark.parametrize("source", ["marsys", "agent-framework", "atlas"])
@pytest.mark.parametrize("target", FORMATS)
def test_an_error_that_answers_no_call_is_one_in_every_format(source: str, target: str) -> None:
    """Between the formats of the seeds it comes back as it was; a provider's model reads that it is one."""
    (unit,) = [unit for unit in UNITS[source] if "rate limit" in json.dumps(unit) and "error_type" in json.dumps(unit)]
    message = decode([unit], source)
    encoded = encode(message, target)
    if target in SAMPLES:
        (back,) = decode(encoded.value, target)
        assert (back.text, back.metadata["shared"]) == ("rate limit", message[0].metadata["shared"])
        assert "purpose" not in {loss.what for loss in encoded.losses}
    else:
        assert f"[Error from {message[0].policy} ({MARK})]: rate limit" in json.dumps(encoded.value)
        assert "purpose" in {loss.what for loss in encoded.losses}
        grown = Projection(target)
        assert grown.encode(message).value == encoded.value


ATLAS_CALL = {"content": "", "metadata": {}, "tool_calls": [{"id": "c", "name": "look", "arguments": {}}], "source_agent": "w"}
ACTION = {"type": "action", "tool": "look", "args": {}, "agent_key": "a"}
FAILED = {
    "a status of the program": ("atlas", {"status": "failed", "result": None, "error": MARK}),
    "no status": ("atlas", {"result": None, "error": MARK}),
    "only a status": ("atlas", {"status": MARK, "result": None}),
    "an error of data": ("atlas", {"status": "error", "result": None, "error": {"code": MARK}}),
    "a result beside the error": ("atlas", {"status": "error", "result": {"seen": MARK}, "error": "no"}),
    "an error of data in an entry": ("agent-framework", {"error_message": {"code": MARK}, "error_type": "E"}),
    "a list": ("agent-framework", [MARK]),
}


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("case", FAILED)
def test_a_tool_that_failed_has_failed_in_every_format(case: str, target: str) -> None:
    """G3, AT-028, AF-026: also if a program writes the failure in its own words; what it says of it is there, or a loss."""
    source, failure = FAILED[case]
    if source == "atlas":
        result = {"content": "", "metadata": {}, "tool_results": [{"name": "look", "call_id": "c", **failure}]}  # type: ignore[dict-item]
        units: list[dict[str, Any]] = [ATLAS_CALL, result]
    else:
        units = [ACTION, {"type": "error", "content": failure, "agent_key": "a"}]
    conversation = decode(units, source)
    (outcome,) = [each.payload for each in conversation if isinstance(each.payload, OptionResultPayload)]
    assert outcome.is_error
    assert encode(conversation, source).value == units
    assert MARK in json.dumps(encode(conversation, target).value)


def test_the_status_of_a_result_that_only_a_program_knows_is_reported() -> None:
    partial = {"name": "look", "call_id": "c", "status": "partial", "result": "half"}
    conversation = decode([ATLAS_CALL, {"content": "", "metadata": {}, "tool_results": [partial]}], "atlas")
    assert encode(conversation, "atlas").value[1]["tool_results"] == [partial]
    assert "extras" in {loss.what for loss in encode(conversation, "marsys").losses}


def test_a_tool_whose_argument_is_a_request_stays_a_tool_and_a_task_a_task() -> None:
    tool = {"role": "assistant", "content": "", "tool_calls": [_call("search", '{"request":"tea"}')]}
    task = {"role": "agent_call", "content": "tea", "name": "finder", "metadata": {"caller": "o", "task_id": "t"}}
    for target, kinds in (("agent-framework", ["action", "task"]), ("atlas", ["tool_request", "task"])):
        encoded = encode(Conversation([*decode([tool], "marsys"), *decode([task], "marsys")]), target)
        assert [unit.get("metadata", {}).get("type", unit.get("type")) for unit in encoded.value] == kinds
        assert "purpose" not in {loss.what for loss in encoded.losses}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_namespace_of_a_program_is_a_loss_and_a_wire_detail_is_none() -> None:
    (message,) = decode([{"role": "user", "content": "hi", "message_id": "m", "timestamp": "2026-01-01T00:00:00"}], "marsys")
    noted = message.model_copy(update={"metadata": {**message.metadata, "my-app": {"seen": True}}})

    assert [loss.what for loss in encode(Conversation([message]), "atlas").losses] == []
    (loss,) = encode(Conversation([noted]), "atlas").losses
    assert (loss.what, loss.reason) == ("extras", "atlas has no place for seen of my-app")


@pytest.mark.parametrize("key", ["type", "role", "status", "metadata", "id"])
@pytest.mark.parametrize("target", FORMATS)
def test_a_key_of_a_program_is_lost_although_the_format_has_one_of_that_name(target: str, key: str) -> None:
    """G3: what another namespace has under the same name is another value."""
    (message,) = decode([{"role": "user", "content": "hi"}], "marsys")
    noted = message.model_copy(update={"metadata": {"my-app": {key: MARK}}})

    encoded = encode(Conversation([noted]), target)

    assert MARK not in json.dumps(encoded.value)
    assert "extras" in {loss.what for loss in encoded.losses}
