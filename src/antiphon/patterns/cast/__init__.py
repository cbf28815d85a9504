"""What all patterns share: who takes part, on which models, with which tools; how they are asked; how a pattern is opened."""

from antiphon.errors import CastError
from antiphon.patterns.cast._asking import Patience, ask_in_turn
from antiphon.patterns.cast._cast import Answer, Cast, CastOptions
from antiphon.patterns.cast._endings import end_open_calls, stopped
from antiphon.patterns.cast._handling import UNHURRIED, Handling, handling, known_by, log_unexpected
from antiphon.patterns.cast._held import Gate, HeldModel
from antiphon.patterns.cast._pattern import Outcome, Pattern, PatternOptions, failed, together
from antiphon.patterns.cast._rest import RESTS, left_open
from antiphon.patterns.cast._spec import AgentSpec

__all__ = [
    "RESTS",
    "UNHURRIED",
    "AgentSpec",
    "Answer",
    "Cast",
    "CastError",
    "CastOptions",
    "Gate",
    "Handling",
    "HeldModel",
    "Outcome",
    "Patience",
    "Pattern",
    "PatternOptions",
    "ask_in_turn",
    "end_open_calls",
    "failed",
    "handling",
    "known_by",
    "left_open",
    "log_unexpected",
    "stopped",
    "together",
]
