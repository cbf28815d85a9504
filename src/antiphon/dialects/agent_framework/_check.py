"""Checking, reading and sorting messages: is it one, what is wrong with it, what does it say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from antiphon.dialects.agent_framework._catalogue import CATALOGUE
from antiphon.dialects.agent_framework._content import VERIFIED, Phase, Plan, StrategicPlanContent, own, refusal
from antiphon.dialects.agent_framework._messages import AnyMessage, StrategicPlanMessage
from antiphon.dialects.agent_framework.constants import STRATEGIC_PLAN
from antiphon.messages import Json, JsonArray, JsonObject, thaw

__all__ = [
    "extract_phases",
    "filter_messages",
    "normalise_message",
    "parse_message",
    "parse_verified",
    "validate_message",
    "validation_errors",
]

MessageT = TypeVar("MessageT", bound=Mapping[str, Any])

_TYPES = ", ".join(CATALOGUE)


def parse_message(message: Mapping[str, Any]) -> AnyMessage:
    """Return a message as the typed, frozen model of its type.

    Raises:
        ValidationError: it is not a message of one of the fourteen types; `validation_errors` says the same in short.
    """
    owned = own(message)
    if not isinstance(owned, JsonObject):
        raise refusal("Input should be a message: an object (a dict)", message)
    return parse_verified(thaw(owned))


def parse_verified(message: dict[str, Any]) -> AnyMessage:
    """Return a message that is known to be JSON as the model of its type, which keeps the parts of it.

    Raises:
        ValidationError: it is not a message of one of the fourteen types.
    """
    found = message.get("type")
    if not isinstance(found, str) or found not in CATALOGUE:
        raise refusal(f"Input should be one of {_TYPES}; it is {found!r:.80}", found, "type")
    return CATALOGUE[found].model.model_validate(message, context=VERIFIED)


def normalise_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its content in the long form: an error or a final as an object, a plan with its wrapper.

    Keys that are not known are kept; optional fields that are null are left out.

    Raises:
        ValidationError: it is not a message of one of the fourteen types.
    """
    return parse_message(message).to_dict()


def validate_message(message: object) -> bool:
    """Whether this is a message as the format wants it: known type, its fields, fitting content, ISO timestamp."""
    return not validation_errors(message)


def validation_errors(message: object) -> list[str]:
    """Return what is wrong with a message, as `path: what was expected`; nothing for one that is right."""
    try:
        parse_message(cast("Mapping[str, Any]", message))
    except ValidationError as exc:
        return [f"{_path(error['loc'], message)}: {_expectation(error)}" for error in exc.errors()]
    return []


def _expectation(error: Any) -> str:
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "tuple_type":
        return "should be a list"  # which the model keeps as a tuple
    return str(error["msg"]).replace("Input should", "should", 1)


def _path(loc: tuple[str | int, ...], message: object) -> str:
    """Return where in the message an error is; steps that only its long form has are left out."""
    path, value = "", message
    for place, step in enumerate(loc, 1):
        there = _has(value, step)
        if there or place == len(loc):
            path += f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]"
        value = cast("Any", value)[step] if there else value
    return path.removeprefix(".") or "message"


def _has(value: object, step: str | int) -> bool:
    if isinstance(value, dict | JsonObject):
        return step in value
    return isinstance(value, list | tuple | JsonArray) and isinstance(step, int)


def filter_messages(
    messages: Iterable[MessageT], types: str | Collection[str], *, agent_key: str | None = None
) -> list[MessageT]:
    """Return the messages of some types, such as `CONVERSATION_TYPES`, in their order; of one agent only, if it is named.

    Raises:
        ValueError: one of the types does not exist.
    """
    wanted = [types] if isinstance(types, str) else list(types)
    if unknown := [each for each in wanted if each not in CATALOGUE]:
        raise ValueError(f"no types of message: {unknown!r}; there are {_TYPES}")
    return [
        message
        for message in messages
        if message.get("type") in wanted and (agent_key is None or message.get("agent_key") == agent_key)
    ]


def extract_phases(plan: Mapping[str, Json] | StrategicPlanMessage | StrategicPlanContent | Plan) -> tuple[Phase, ...]:
    """Return the phases of a strategic plan, in order: of the message, of its content, or of the plan alone.

    A phase's place, from 0, is the `phase_id` of its synthesis. Older spellings are understood: `steps` for `phases`,
    `manager` for `worker`, `action` for `name`, `context` for `goals`.

    Raises:
        ValidationError: it is no strategic plan.
    """
    if isinstance(plan, Plan):
        return plan.phases
    if isinstance(plan, Mapping) and plan.get("type") == STRATEGIC_PLAN:
        plan = cast("StrategicPlanMessage", parse_message(plan))
    content = plan.content if isinstance(plan, StrategicPlanMessage) else StrategicPlanContent.model_validate(plan)
    return content.plan.phases
