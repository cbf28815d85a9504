"""Finds out what a format lost, by reading back what was written: the losses are measured, not claimed.

What was written for some messages is read again, and each message is held against the one it became, facet by facet. So a
writer need not say what it leaves out, and cannot forget to. A reason comes from the dialect's table, by facet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from antiphon.checks import is_left_out
from antiphon.dialects._api import Loss
from antiphon.dialects._meaning import facets_of_parts, meaning
from antiphon.messages import Conversation, Message

__all__ = ["Piece", "Written", "around", "kept_out", "measured"]

_TOOLS = ("functions", "tools")
_MARKERS: tuple[Any, ...] = (None, False, "", {}, [])
"""What a dialect keeps in the place of something that is read."""
_PLACES = ("answers", "reply", "turn")
"""Facets that name another message by its place."""


@dataclass(slots=True)
class Piece:
    """Messages that were written together, and how many units they became."""

    messages: Sequence[Message]
    units: int
    was_added: bool = False
    """Whether it stands for nothing that was said: the format wants something in this place."""


@dataclass(slots=True)
class Written:
    """A conversation as it was written, with all that is needed to see what is lost."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    left_out: list[tuple[Message, str]] = field(default_factory=list[tuple[Message, str]])
    moved: list[Message] = field(default_factory=list[Message])


def measured(
    before: Conversation, written: Written, after: Sequence[Sequence[Message]], reasons: Mapping[str, str], otherwise: str
) -> tuple[Loss, ...]:
    """Return what is lost. `after` are the messages read back, unit by unit."""
    losses = [Loss(message.id, "message", reason) for message, reason in written.left_out]
    losses += [Loss(message.id, "order", "results follow their calls at once") for message in written.moved]
    pairs: list[tuple[Message, Message]] = []
    units = iter(after)
    for place, piece in enumerate(written.pieces):
        read = [message for _ in range(piece.units) for message in next(units)]
        if piece.was_added:
            losses.append(Loss(_next_id(written.pieces, place), "added", "something must be said before it here"))
            continue
        found = list(_aligned(piece.messages, read))
        pairs += found
        losses += _unpaired(piece.messages, found)
        losses += _reordered(found, read)
    return (*losses, *_differences(before, pairs, Conversation(m for unit in after for m in unit), reasons, otherwise))


def kept_out(conversation: Conversation) -> Iterator[Loss]:
    """Yield what a repair keeps out of all that is written."""
    reason = "it was kept out by a repair"
    for message in conversation:
        if is_left_out(message):
            yield Loss(message.id, "message", reason)
        else:
            for facet in facets_of_parts(tuple(filter(is_left_out, message.parts))):
                yield Loss(message.id, facet, reason)


def around(conversation: Conversation, target: str) -> Iterator[Loss]:
    """Yield what is lost of a request of another format besides what is said: its own tools, and its settings."""
    for tool in conversation.tools:
        if any(notes.get("custom") for name, notes in tool.metadata.items() if name != target):
            yield Loss(None, "tools", f"the tool {tool.name!r} takes text, and is written as one that takes JSON")
    for name, notes in conversation.metadata.items():
        if name == target or notes.get("shape") != "request":
            continue
        rest, native = cast("Mapping[str, Any]", notes.get("rest") or {}), cast("Sequence[str]", notes.get("native") or ())
        if native := [*native, *(key for key in rest if key == "functions")]:
            yield Loss(None, "tools", f"only {name} has {', '.join(native)}")
        if settings := sorted(key for key, value in rest.items() if key not in _TOOLS and value not in _MARKERS):
            yield Loss(None, "settings", f"settings of a request are not carried over: {', '.join(settings)}")


def _next_id(pieces: Sequence[Piece], place: int) -> str | None:
    return next((piece.messages[0].id for piece in pieces[place:] if piece.messages), None)


def _aligned(said: Sequence[Message], read: Sequence[Message]) -> Iterator[tuple[Message, Message]]:
    """Yield each message with the one it became: in order, kind by kind, a result by its invocation."""
    waiting: dict[tuple[str, str | None], list[Message]] = {}
    for each in reversed(read):
        waiting.setdefault((each.kind, each.invocation_id), []).append(each)
    unmatched: list[Message] = []
    for message in said:
        if found := waiting.get((message.kind, message.invocation_id)):
            yield message, found.pop()
        else:
            unmatched.append(message)
    rest = [each for found in waiting.values() for each in reversed(found)]
    for message in unmatched:  # the id was written as another
        if (place := next((place for place, each in enumerate(rest) if each.kind == message.kind), None)) is not None:
            yield message, rest.pop(place)


def _unpaired(said: Sequence[Message], found: Sequence[tuple[Message, Message]]) -> Iterator[Loss]:
    there = {id(message) for message, _ in found}
    for message in said:
        if id(message) not in there:
            yield Loss(message.id, "message", "it says nothing here, or is said as part of another")


def _reordered(found: Sequence[tuple[Message, Message]], read: Sequence[Message]) -> Iterator[Loss]:
    places = {id(message): place for place, message in enumerate(read)}
    last = -1
    for message, became in found:
        if places[id(became)] < last:
            yield Loss(message.id, "order", "what is said in one message has an order of its own here")
        last = max(last, places[id(became)])


def _differences(
    before: Conversation,
    pairs: Iterable[tuple[Message, Message]],
    after: Conversation,
    reasons: Mapping[str, str],
    otherwise: str,
) -> Iterator[Loss]:
    said = [message for message in before if message.lane != "effect"]
    old_places = {id(message): place for place, message in enumerate(said)}
    new_places = {id(message): place for place, message in enumerate(after)}
    old, new = meaning(before), meaning(after)
    became_from = {new_places[id(became)]: old_places[id(message)] for message, became in pairs}
    for place, origin in became_from.items():
        ours, theirs = old[origin], _moved(new[place], became_from)
        for facet in dict.fromkeys((*ours, *theirs)):
            if _is_other(facet, ours.get(facet), theirs.get(facet)):
                yield Loss(said[origin].id, facet, reasons.get(facet, otherwise))


def _is_other(facet: str, ours: Any, theirs: Any) -> bool:
    """Whether something was said otherwise. A format may make up the name of a file that has none: nothing is lost by that."""
    if facet == "filename":
        return any(name not in (theirs or ()) for name in ours or ())
    return bool(ours != theirs)


def _moved(facets: dict[str, Any], became_from: Mapping[int, int]) -> dict[str, Any]:
    """Return facets with the places of the messages as they were before."""
    changed = {name: became_from.get(facets[name], "elsewhere") for name in _PLACES if isinstance(facets.get(name), int)}
    return {**facets, **changed}
