"""The catalogue of message types, the checks of messages, and the interface of a host's own store.

For each type, the catalogue has its family, fields, content and builder, derived from the models that validate it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar, cast, get_args, runtime_checkable

from pydantic import ValidationError

from antiphon.dialects.agent_framework._content import VERIFIED, Phase, Plan, StrategicPlanContent, Value, own, refusal
from antiphon.dialects.agent_framework._messages import (
    ActionMessage,
    AnyMessage,
    AssistantMessage,
    DelegationMessage,
    DirectorContextMessage,
    ErrorMessage,
    FinalMessage,
    InjectedContextMessage,
    ObservationMessage,
    ScriptPlanMessage,
    StrategicPlanMessage,
    SuggestedPlanMessage,
    SynthesisMessage,
    TaskMessage,
    UserMessage,
    own_fields,
)
from antiphon.dialects.agent_framework.constants import FAMILIES, STRATEGIC_PLAN
from antiphon.messages import Json, JsonArray, JsonObject, thaw

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

CATALOGUE: Mapping[str, MessageFormat] = MappingProxyType({each.type: each for each in _FORMATS})
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
    """Return a message that is known to be JSON as the model of its type, which keeps references to its parts.

    Raises:
        ValidationError: it is not a message of one of the fourteen types.
    """
    found = message.get("type")
    if not isinstance(found, str) or found not in CATALOGUE:
        raise refusal(f"Input should be one of {_TYPES}; it is {found!r:.80}", found, "type")
    return CATALOGUE[found].model.model_validate(message, context=VERIFIED)


def normalise_message(message: Mapping[str, object]) -> dict[str, Any]:
    """Return a message with its content in the long form: an error or a final as an object, a plan with its wrapper.

    Unknown keys are kept; optional fields that are null are left out.

    Raises:
        ValidationError: it is not a message of one of the fourteen types.
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

    The position of a phase, from 0, is the `phase_id` of its synthesis. Older spellings are accepted: `steps` for `phases`,
    `manager` for `worker`, `action` for `name`, `context` for `goals`.

    Raises:
        ValidationError: it is not a strategic plan.
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
