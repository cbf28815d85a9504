"""What all patterns share: who takes part, on which models, with which tools; how they are asked; how a pattern is opened."""

from antiphon.errors import CastError
from antiphon.patterns.cast._asking import Patience, ask_in_turn
from antiphon.patterns.cast._cast import AgentTools, Answer, Cast, CastOptions, Hear
from antiphon.patterns.cast._endings import end_open_calls, stopped
from antiphon.patterns.cast._handling import UNHURRIED, Handling, handling, known_by, log_unexpected
from antiphon.patterns.cast._held import Gate, HeldModel
from antiphon.patterns.cast._history import (
    MessageHistory,
    Task,
    TaskInput,
    ThreadHistory,
    as_messages,
    model_messages,
    read_answer,
    read_history,
    untrusted_source,
    user_content,
)
from antiphon.patterns.cast._pattern import Outcome, Pattern, PatternOptions, failed, together
from antiphon.patterns.cast._rest import RESTS, left_open
from antiphon.patterns.cast._spec import AgentSpec

__all__ = [
    "RESTS",
    "UNHURRIED",
    "AgentSpec",
    "AgentTools",
    "Answer",
    "Cast",
    "CastError",
    "CastOptions",
    "Gate",
    "Handling",
    "Hear",
    "HeldModel",
    "MessageHistory",
    "Outcome",
    "Patience",
    "Pattern",
    "PatternOptions",
    "Task",
    "TaskInput",
    "ThreadHistory",
    "as_messages",
    "ask_in_turn",
    "end_open_calls",
    "failed",
    "handling",
    "known_by",
    "left_open",
    "log_unexpected",
    "model_messages",
    "read_answer",
    "read_history",
    "stopped",
    "together",
    "untrusted_source",
    "user_content",
]
