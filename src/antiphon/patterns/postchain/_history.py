"""History: what a phase is told of the turns before this one. The latest, whole, as far as there is room."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.patterns.postchain._bounds import cut
from antiphon.patterns.postchain._life import Turn
from antiphon.protocol import ChatTurn

__all__ = ["history_of"]

_SHORTEST = 100
"""Characters of an answer below which it is not worth telling."""


def history_of(turns: Sequence[Turn], most: int, room: int) -> tuple[ChatTurn, ...]:
    """Return the latest of some turns, in order: at most so many, in so many characters.

    A user's words are told whole or not at all; an answer is shortened to the room that there is. Earlier ones are in the
    ledger, and found by searching.
    """
    told: list[ChatTurn] = []
    for turn in reversed(turns[-most:] if most else ()):
        room -= len(turn.input)
        if room < 0:
            break
        answer = (turn.response or "").partition("\n\nSources:")[0]
        if answer and room >= min(len(answer), _SHORTEST):
            told.append(ChatTurn(role="assistant", content=cut(answer, room)))
            room -= min(len(answer), room)
        told.append(ChatTurn(role="user", content=turn.input))
    return tuple(reversed(told))
