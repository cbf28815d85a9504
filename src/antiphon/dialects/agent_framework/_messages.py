"""The fourteen types of message as frozen models: required fields, optional fields, and their types.

A message is a plain dict; these models validate it, and give typed access to it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator, Field, PlainValidator, Strict, ValidationInfo
from typing_extensions import override

from antiphon.dialects.agent_framework import constants
from antiphon.dialects.agent_framework._content import (
    AnyJson,
    AnyObject,
    ErrorContent,
    FinalContent,
    InjectedContext,
    ScriptPlanContent,
    StrategicPlanContent,
    SuggestedPlanContent,
    SynthesisContent,
    Text,
    Value,
    is_iso,
    shape_error,
)
from antiphon.messages import JsonObject, Name


def _check_iso(text: str) -> str:
    if not is_iso(text):
        raise shape_error("a date and time in ISO 8601, such as 2024-01-15T10:30:00Z")
    return text


def _take_synthesis(value: object, info: ValidationInfo) -> Any:
    return value if isinstance(value, str) else SynthesisContent.model_validate(value, context=info.context)


IsoTime: TypeAlias = Annotated[Text, AfterValidator(_check_iso)]
Flag: TypeAlias = Annotated[bool, Strict()]
Index: TypeAlias = Annotated[int, Strict(), Field(ge=0)]
Synthesis: TypeAlias = Annotated[str | SynthesisContent, PlainValidator(_take_synthesis)]


class Envelope(Value, frozen=True):
    """The fields that every type of message may have."""

    type: str
    agent_key: Name | None = None
    """The agent it is from, or for."""
    timestamp: IsoTime | None = None
    metadata: AnyObject | None = None
    message_id: Name | None = None
    turn_id: Name | None = None
    """The turn of the conversation it belongs to."""
    is_global: Flag | None = None
    """Whether it is broadcast: visible to all agents."""

    @override
    def to_dict(self) -> dict[str, Any]:
        form = super().to_dict()
        return {name: form[name] for name in (*own_fields(type(self)), *form) if name in form}


def own_fields(model: type[Envelope]) -> list[str]:
    """Return the type and the content fields; they come before the timestamp, the agent and the ids."""
    return ["type", *(name for name in model.model_fields if name not in Envelope.model_fields and name != "call_id")]


# ---------------------------------------------------------------- conversation


class UserMessage(Envelope, frozen=True):
    """A message of the user."""

    type: Literal["user_message"] = constants.USER_MESSAGE
    content: Text


class AssistantMessage(Envelope, frozen=True):
    """An answer of the assistant."""

    type: Literal["assistant_message"] = constants.ASSISTANT_MESSAGE
    content: Text


# ---------------------------------------------------------------- execution trace


class Trace(Envelope, frozen=True):
    """A message of an execution trace, with the agent that it belongs to."""

    agent_key: Name  # pyright: ignore[reportGeneralTypeIssues] (has no default here: it must be given)
    call_id: Name | None = None
    """The id that pairs a call with its answer; without it, they pair by their order per `agent_key`."""


class TaskMessage(Trace, frozen=True):
    """A task given to an agent. It begins a turn of that agent."""

    type: Literal["task"] = constants.TASK
    content: Text


class ActionMessage(Trace, frozen=True):
    """A tool that an agent wants to run."""

    type: Literal["action"] = constants.ACTION
    tool: Name
    args: AnyObject
    content: AnyJson = None


class ObservationMessage(Trace, frozen=True):
    """The result of a tool, also a failure that the tool itself reports."""

    type: Literal["observation"] = constants.OBSERVATION
    content: AnyJson

    @property
    def summary(self) -> str | None:
        """The `human_readable_summary` of the content, if it is an object that has one."""
        content: Any = self.content
        found: Any = content.get("human_readable_summary") if type(content) is JsonObject else None
        return found if isinstance(found, str) else None


class ErrorMessage(Trace, frozen=True):
    """An error that was raised during execution. The type of a textual error may be a separate field."""

    type: Literal["error"] = constants.ERROR
    content: ErrorContent
    error_type: Text | None = None

    @classmethod
    @override
    def long_form(cls, value: object) -> Any:
        message = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        content = ErrorContent.long_form(message.get("content"))
        if not isinstance(content, dict) or not isinstance(message.get("error_type"), str):
            return cast("object", value)
        return {**message, "content": {"error_type": message["error_type"], **cast("dict[str, Any]", content)}}

    @override
    def to_dict(self) -> dict[str, Any]:
        form = super().to_dict()
        if self.error_type == self.content.error_type:
            form.pop("error_type", None)  # it is in the content
        return form


# ---------------------------------------------------------------- completion


class FinalMessage(Envelope, frozen=True):
    """The end of a task."""

    type: Literal["final"] = constants.FINAL
    content: FinalContent
    call_id: Name | None = None


class SynthesisMessage(Envelope, frozen=True):
    """A manager's synthesis of its workers' results, visible to all agents."""

    type: Literal["synthesis"] = constants.SYNTHESIS
    content: Synthesis
    from_manager: Name
    phase_id: Index | None = None
    """The place of the phase in the plan, from 0."""
    is_global: Flag = True


# ---------------------------------------------------------------- planning


class StrategicPlanMessage(Envelope, frozen=True):
    """An orchestrator's plan: goals, in phases."""

    type: Literal["strategic_plan"] = constants.STRATEGIC_PLAN
    content: StrategicPlanContent


class SuggestedPlanMessage(Envelope, frozen=True):
    """Steps suggested to a worker."""

    type: Literal["suggested_plan"] = constants.SUGGESTED_PLAN
    content: SuggestedPlanContent


class ScriptPlanMessage(Envelope, frozen=True):
    """Tool calls that a manager has prepared for its workers."""

    type: Literal["script_plan"] = constants.SCRIPT_PLAN
    content: ScriptPlanContent


# ---------------------------------------------------------------- context and delegation


class DirectorContextMessage(Envelope, frozen=True):
    """Text that was assembled for an orchestrator or a manager before it plans."""

    type: Literal["director_context"] = constants.DIRECTOR_CONTEXT
    content: Text


class InjectedContextMessage(Envelope, frozen=True):
    """The context that a worker gets with its task."""

    type: Literal["injected_context"] = constants.INJECTED_CONTEXT
    content: InjectedContext


class DelegationMessage(Envelope, frozen=True):
    """A task that a manager passes to a worker."""

    type: Literal["delegation"] = constants.DELEGATION
    worker: Name
    task: Text
    content: AnyJson = None
    call_id: Name | None = None


AnyMessage: TypeAlias = (
    UserMessage
    | AssistantMessage
    | TaskMessage
    | ActionMessage
    | ObservationMessage
    | ErrorMessage
    | FinalMessage
    | SynthesisMessage
    | StrategicPlanMessage
    | SuggestedPlanMessage
    | ScriptPlanMessage
    | DirectorContextMessage
    | InjectedContextMessage
    | DelegationMessage
)
"""A message of any of the fourteen types."""
