"""The catalogue: for each type of message its family, fields, content and builder, read off the models that check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

from antiphon.dialects.agent_framework._content import Value
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
from antiphon.dialects.agent_framework.constants import FAMILIES

__all__ = ["CATALOGUE", "MessageFormat"]

ContentModel: TypeAlias = type[Value]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """What there is to know about one type of message."""

    model: type[AnyMessage]
    """What a message of this type is checked by, and read as."""
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
        """The fields that mean something if they are there. Any other is allowed, and kept."""
        return tuple(name for name in self._fields() if name not in self.required_fields)

    @property
    def content_model(self) -> ContentModel | None:
        """The model of a structured content; None where the content is text or any JSON."""
        annotation: Any = self.model.model_fields["content"].annotation
        kinds: tuple[Any, ...] = get_args(annotation) or (annotation,)
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Value)), None)

    @property
    def content(self) -> str:
        """What the content may be, in words."""
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
