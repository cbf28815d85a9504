"""What all patterns share: who takes part, on which models, with which tools; how they are asked; how a pattern is opened."""

from antiphon.errors import CastError
from antiphon.patterns.cast._cast import AgentSpec, AgentTools, Answer, Cast, CastOptions, Hear
from antiphon.patterns.cast._handling import (
    RESTS,
    UNHURRIED,
    HandlerRun,
    end_open_calls,
    handling,
    known_by,
    left_open,
    log_unexpected,
    stopped,
)
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
from antiphon.patterns.cast._models import Gate, HeldModel, Patience, ask_in_turn
from antiphon.patterns.cast._pattern import Outcome, Pattern, PatternOptions, failed, together

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
    "HandlerRun",
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
