"""The agent_framework message format: fourteen types of plain dicts, with builders, checks and typed models.

The constants are in `constants`, the builders in `message_builder` (and in `utils.message_builder`, as the format's documents
import them). `BaseMessageStore` is the shape of a host's own store.
"""

from antiphon.dialects.agent_framework._catalogue import CATALOGUE, MessageFormat
from antiphon.dialects.agent_framework._check import (
    extract_phases,
    filter_messages,
    normalise_message,
    parse_message,
    validate_message,
    validation_errors,
)
from antiphon.dialects.agent_framework._content import (
    ErrorContent,
    FinalContent,
    InjectedContext,
    Phase,
    Plan,
    ScriptPlanContent,
    ScriptStep,
    StrategicPlanContent,
    SuggestedPlanContent,
    SuggestedStep,
    SynthesisContent,
)
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
)
from antiphon.dialects.agent_framework._store import BaseMessageStore, RecordingMessageStore

__all__ = [
    "CATALOGUE",
    "ActionMessage",
    "AnyMessage",
    "AssistantMessage",
    "BaseMessageStore",
    "DelegationMessage",
    "DirectorContextMessage",
    "ErrorContent",
    "ErrorMessage",
    "FinalContent",
    "FinalMessage",
    "InjectedContext",
    "InjectedContextMessage",
    "MessageFormat",
    "ObservationMessage",
    "Phase",
    "Plan",
    "RecordingMessageStore",
    "ScriptPlanContent",
    "ScriptPlanMessage",
    "ScriptStep",
    "StrategicPlanContent",
    "StrategicPlanMessage",
    "SuggestedPlanContent",
    "SuggestedPlanMessage",
    "SuggestedStep",
    "SynthesisContent",
    "SynthesisMessage",
    "TaskMessage",
    "UserMessage",
    "extract_phases",
    "filter_messages",
    "normalise_message",
    "parse_message",
    "validate_message",
    "validation_errors",
]
