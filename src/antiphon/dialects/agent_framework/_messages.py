"""The fourteen types of message: frozen models, the catalogue of types, the checks of messages, and the interface of a store.

A message is a plain dict. The models validate it, and give typed access to it. For each type, the catalogue has its family,
fields, content and builder, derived from the model. A host that keeps messages in its own store implements `BaseMessageStore`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, cast, get_args, runtime_checkable

from pydantic import AfterValidator, Field, PlainValidator, Strict, ValidationError, ValidationInfo
from typing_extensions import override

from antiphon.dialects.agent_framework import constants
from antiphon.dialects.agent_framework._content import (
    VERIFIED,
    AnyJson,
    AnyObject,
    ErrorContent,
    FinalContent,
    InjectedContext,
    Phase,
    Plan,
    ScriptPlanContent,
    StrategicPlanContent,
    SuggestedPlanContent,
    SynthesisContent,
    Text,
    Value,
    is_iso,
    own,
    refusal,
    shape_error,
)
from antiphon.dialects.agent_framework.constants import FAMILIES, STRATEGIC_PLAN
from antiphon.messages import Json, JsonArray, JsonObject, thaw
from antiphon.messages._names import Name

# ---------------------------------------------------------------- what all messages have


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
        summary: Any = content.get("human_readable_summary") if type(content) is JsonObject else None
        return summary if isinstance(summary, str) else None


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


# ---------------------------------------------------------------- the catalogue

ContentModel: TypeAlias = type[Value]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """One type of message: its model, builder and fields."""

    model: type[AnyMessage]
    """The model that validates and parses a message of this type."""
    builder: str
    """The function of `message_builder` that makes one."""
    description: str

    @property
    def type(self) -> str:
        """The value of its `type` field."""
        return str(self.model.model_fields["type"].default)

    @property
    def family(self) -> str:
        """The family that the type belongs to."""
        return next(family for family, types in FAMILIES.items() if self.type in types)

    @property
    def required_fields(self) -> tuple[str, ...]:
        """The fields that must be there."""
        fields = self.model.model_fields
        return tuple(name for name in self._fields() if name == "type" or fields[name].is_required())

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """The optional fields with a meaning. Any other field is allowed, and kept."""
        return tuple(name for name in self._fields() if name not in self.required_fields)

    @property
    def content_model(self) -> ContentModel | None:
        """The model of a structured content; None where the content is text or any JSON."""
        annotation: Any = self.model.model_fields["content"].annotation
        kinds: tuple[Any, ...] = get_args(annotation) or (annotation,)
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Value)), None)

    @property
    def content(self) -> str:
        """A description of the allowed content."""
        if model := self.content_model:
            return f"{model.accepts}: {model.__name__}"
        return "text" if self.model.model_fields["content"].annotation is str else "any JSON"

    def _fields(self) -> list[str]:
        return list(dict.fromkeys([*own_fields(self.model), *self.model.model_fields]))


_FORMATS = (
    MessageFormat(UserMessage, "create_user_message", "what a user said"),
    MessageFormat(AssistantMessage, "create_assistant_message", "what the assistant answered"),
    MessageFormat(TaskMessage, "create_task_entry", "a task given to an agent; it begins a turn"),
    MessageFormat(ActionMessage, "create_action", "a tool that an agent wants to run"),
    MessageFormat(ObservationMessage, "create_observation", "what the tool gave back, a failure it reports included"),
    MessageFormat(ErrorMessage, "create_error", "what was raised while something ran"),
    MessageFormat(FinalMessage, "create_final", "the end of a task"),
    MessageFormat(SynthesisMessage, "create_synthesis", "what a manager made of its workers' results"),
    MessageFormat(StrategicPlanMessage, "create_strategic_plan", "an orchestrator's plan, in phases"),
    MessageFormat(SuggestedPlanMessage, "create_suggested_plan", "steps suggested to a worker"),
    MessageFormat(ScriptPlanMessage, "create_script_plan", "tool calls that a manager wrote down for its workers"),
    MessageFormat(DirectorContextMessage, "create_director_context", "text an orchestrator or manager plans with"),
    MessageFormat(InjectedContextMessage, "create_injected_context", "what a worker is handed along with its task"),
    MessageFormat(DelegationMessage, "create_delegation", "a task that a manager passes to a worker"),
)

CATALOGUE: Mapping[str, MessageFormat] = MappingProxyType({form.type: form for form in _FORMATS})
"""Every type of message, by its name."""


# ---------------------------------------------------------------- checks

MessageT = TypeVar("MessageT", bound=Mapping[str, Any])

_TYPES = ", ".join(CATALOGUE)


def parse_message(message: Mapping[str, object]) -> AnyMessage:
    """Return a message as the typed, frozen model of its type.

    Raises:
        ValidationError: it is not a message of one of the fourteen types; `validation_errors` returns the same in short form.
    """
    owned = own(message)
    if not isinstance(owned, JsonObject):
        raise refusal("Input should be a message: an object (a dict)", message)
    return parse_verified(thaw(owned))


def parse_verified(message: dict[str, Any]) -> AnyMessage:
    """Return a message that is known to be JSON as the model of its type, which keeps references to its parts."""
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in CATALOGUE:
        raise refusal(f"Input should be one of {_TYPES}; it is {kind!r:.80}", kind, "type")
    return CATALOGUE[kind].model.model_validate(message, context=VERIFIED)


def normalise_message(message: Mapping[str, object]) -> dict[str, Any]:
    """Return a message with its content in the long form: an error or a final as an object, a plan with its wrapper.

    Unknown keys are kept; optional fields that are null are left out.
    """
    return parse_message(message).to_dict()


def validate_message(message: object) -> bool:
    """Whether a message is valid: known type, its fields, fitting content, ISO timestamp."""
    return not validation_errors(message)


def validation_errors(message: object) -> list[str]:
    """Return the faults of a message, as `path: what was expected`; empty if it is valid."""
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
        is_written = _has(value, step)
        if is_written or place == len(loc):
            path += f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]"
        value = cast("Any", value)[step] if is_written else value
    return path.removeprefix(".") or "message"


def _has(value: object, step: str | int) -> bool:
    if isinstance(value, dict | JsonObject):
        return step in value
    return isinstance(value, list | tuple | JsonArray) and isinstance(step, int)


def filter_messages(
    messages: Iterable[MessageT], types: str | Collection[str], *, agent_key: str | None = None
) -> list[MessageT]:
    """Return the messages of some types, such as `CONVERSATION_TYPES`, in their order; of one agent only, if it is named."""
    kinds = [types] if isinstance(types, str) else list(types)
    if unknown := [kind for kind in kinds if kind not in CATALOGUE]:
        raise ValueError(f"no types of message: {unknown!r}; there are {_TYPES}")
    return [
        message
        for message in messages
        if message.get("type") in kinds and (agent_key is None or message.get("agent_key") == agent_key)
    ]


def extract_phases(plan: Mapping[str, Json] | StrategicPlanMessage | StrategicPlanContent | Plan) -> tuple[Phase, ...]:
    """Return the phases of a strategic plan, in order: of the message, of its content, or of the plan alone.

    The position of a phase, from 0, is the `phase_id` of its synthesis. Older spellings are accepted: `steps` for `phases`,
    `manager` for `worker`, `action` for `name`, `context` for `goals`.
    """
    if isinstance(plan, Plan):
        return plan.phases
    if isinstance(plan, Mapping) and plan.get("type") == STRATEGIC_PLAN:
        plan = cast("StrategicPlanMessage", parse_message(plan))
    content = plan.content if isinstance(plan, StrategicPlanMessage) else StrategicPlanContent.model_validate(plan)
    return content.plan.phases


# ---------------------------------------------------------------- the interface of a host's own store

# A host provides its own store; nothing here does I/O. `location` is the key by which the host finds messages: a job, a
# session, a user. Messages are plain dicts of the format, the oldest first. Methods may be plain or `async`; a plain one
# runs in the event loop, so one that may take long should be `async`.

Entries: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages of the format, in order."""


class BaseMessageStore(Protocol):
    """A store that messages are read from; the host writes it."""

    def get_conversation_messages(self, location: str, limit: int | None = None) -> Entries | Awaitable[Entries]:
        """Return the messages of the user and the assistant."""
        ...

    def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> Entries | Awaitable[Entries]:
        """Return the messages of one agent."""
        ...

    def get_global_messages(self, location: str, limit: int | None = None) -> Entries | Awaitable[Entries]:
        """Return the global messages."""
        ...

    def get_team_messages(
        self, location: str, agent_keys: Sequence[str], limit: int | None = None
    ) -> Entries | Awaitable[Entries]:
        """Return the messages of some agents, in one order."""
        ...


@runtime_checkable
class RecordingMessageStore(Protocol):
    """A store that also accepts new messages."""

    def add_message(self, location: str, message: dict[str, Any]) -> Awaitable[None] | None:
        """Store a message. The same message may be added again, with the same `message_id`."""
        ...
