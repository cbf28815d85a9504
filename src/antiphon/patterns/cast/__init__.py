"""What all patterns share: who takes part, on which models, with which tools; how they are asked; how a pattern is opened."""

from antiphon.patterns.cast._asking import Patience, ask_in_turn
from antiphon.patterns.cast._cast import Answer, Cast
from antiphon.patterns.cast._pattern import Outcome, Pattern, together
from antiphon.patterns.cast._rest import left_open
from antiphon.patterns.cast._spec import AgentSpec, CastError

__all__ = [
    "AgentSpec",
    "Answer",
    "Cast",
    "CastError",
    "Outcome",
    "Patience",
    "Pattern",
    "ask_in_turn",
    "left_open",
    "together",
]
