"""Flows of peers: who asks whom, and when, in a star and in a pipeline, as automata that judge what was said in a thread."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.patterns.peers._protocol import InvokePeer, PeerAnswered, address_of
from antiphon.protocol.flows import Choice, Flow, Pattern, Sequence, Step, choice, repeat, sequence

__all__ = ["pipeline_flow", "star_flow"]

_USER = "user"


def star_flow(center: str, leaves: Iterable[str]) -> Flow:
    """A user asks the one in the middle, who asks the others, some of them at once, before it answers."""
    around = tuple(leaves)
    exchanges = [part for leaf in around for part in (_asks(center, leaf), _answers(leaf, center))]
    task = sequence(_asks(_USER, center), repeat(choice(*exchanges)), _answers(center, _USER))
    return Flow("star", f"{center} asks {', '.join(around)}, who ask nobody.", repeat(task, least=1), _roles(center, *around))


def pipeline_flow(*names: str) -> Flow:
    """A user asks the first, who asks the next before it answers, and so on; nobody asks out of turn."""
    about = f"Each asks the next: {', '.join(names)}."
    return Flow("pipeline", about, repeat(_nested(_USER, names), least=1), _roles(*names))


def _nested(caller: str, names: tuple[str, ...]) -> Sequence:
    """Return that somebody asks the first of some, who may ask the second, and so on, and that each answers."""
    first, *others = names
    inner: list[Pattern] = [repeat(_nested(first, tuple(others)))] if others else []
    return sequence(_asks(caller, first), *inner, _answers(first, caller))


def _asks(caller: str, callee: str) -> Step:
    return Step(caller, callee, InvokePeer.message_type)


def _answers(callee: str, caller: str) -> Choice:
    return choice(Step(callee, caller, PeerAnswered.message_type), Step(callee, caller, "ERROR"))


def _roles(*names: str) -> tuple[tuple[str, str], ...]:
    return ((_USER, _USER), *((name, address_of(name)) for name in names))
