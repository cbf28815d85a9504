"""What a format loses of a conversation.

Losses are measured, not claimed. What was written for some messages is read again, and each message is compared with the
message that it became, facet by facet (`_meaning.py`). So a writer need not report what it leaves out, and cannot forget to.
The reasons come from the dialect's table, by facet. What only one format has is in its namespace, and is compared with
nothing: another format loses it (`extras`), unless its dialect declares the key as a wire detail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from antiphon.checks import is_left_out
from antiphon.dialects._api import Declares, Encoded, Loss, Losses
from antiphon.dialects._meaning import facets_of, facets_of_parts, spelled_out
from antiphon.dialects._purpose import SHARED
from antiphon.dialects._settings import uncarried
from antiphon.errors import EncodeError
from antiphon.messages import Conversation, Message, Tool
from antiphon.messages._conversation import without_effects
from antiphon.messages._unchecked import EMPTY, plain_of

_PLACES = ("answers", "reply", "turn")
"""Facets that name another message by its place."""


@dataclass(slots=True)
class Piece:
    """Messages that were written together, and how many units they became."""

    messages: Sequence[Message]
    units: int
    was_added: bool = False
    """Whether it has no message: the format requires a unit at this position."""


@dataclass(slots=True)
class Written:
    """A conversation as it was written, with the data that is needed to measure the losses."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    left_out: list[tuple[Message, str]] = field(default_factory=list[tuple[Message, str]])
    moved: list[Message] = field(default_factory=list[Message])

    def restore(self, marked: Iterable[tuple[Message, Message]]) -> None:
        """Put the messages of the conversation in the place of those that were written for them."""
        meant = {id(shown): message for shown, message in marked}
        if meant:
            for piece in self.pieces:
                piece.messages = [meant.get(id(message), message) for message in piece.messages]
            self.moved = [meant.get(id(message), message) for message in self.moved]


def measured(
    before: Conversation,
    written: Written,
    after: Sequence[Sequence[Message]],
    *,
    target: str,
    reasons: Mapping[str, str],
    otherwise: str,
) -> tuple[Loss, ...]:
    """Return the losses. `after` are the messages read back, unit by unit."""
    losses = [Loss(message.id, "message", reason) for message, reason in written.left_out]
    losses += [Loss(message.id, "order", "results follow their calls at once") for message in written.moved]
    pairs: list[tuple[Message, Message]] = []
    units = iter(after)
    for place, piece in enumerate(written.pieces):
        read = next(units) if piece.units == 1 else [message for _ in range(piece.units) for message in next(units)]
        if piece.was_added:
            following = next((later.messages[0].id for later in written.pieces[place:] if later.messages), None)
            losses.append(Loss(following, "added", "something must be said before it here"))
            continue
        if len(piece.messages) == len(read) == 1 and piece.messages[0].kind == read[0].kind:
            pairs.append((piece.messages[0], read[0]))  # fast path: nothing can be unpaired or in another order
            continue
        aligned = list(_aligned(piece.messages, read))
        pairs += aligned
        losses += _unpaired(piece.messages, aligned)
        losses += _reordered(aligned, read)
    read_back = Conversation(message for unit in after for message in unit)
    extras = (loss for message, became in pairs for loss in _extras(message, became, target))
    return (*losses, *_differences(before, pairs, read_back, reasons, otherwise), *extras)


def all_losses(
    conversation: Conversation,
    shown: Conversation,
    written: Written,
    after: Sequence[Sequence[Message]],
    tools: Sequence[Tool],
    *,
    target: str,
    reasons: Mapping[str, str],
    otherwise: str,
    model: str | None = None,
) -> tuple[Loss, ...]:
    """Return the losses of a conversation in a format: of its messages, of the rest of the body, and of the tools.

    `shown` are the messages to write; `after` and `tools` are the messages and tools that were read back; `model` is the
    model that the caller named.
    """
    left_out = () if shown is conversation else kept_out(conversation)
    of_messages = (*left_out, *measured(shown, written, after, target=target, reasons=reasons, otherwise=otherwise))
    settings = uncarried(conversation, target, model) if conversation.metadata else ()
    of_settings = (Loss(None, what, reason) for what, reason in settings)
    losses = (*of_messages, *around(conversation, target), *of_settings)
    if [tool.name for tool in tools] == [tool.name for tool in conversation.tools]:
        return losses
    return (*losses, Loss(None, "tools", f"{target} cannot say all tools" if tools else f"{target} has no place for tools"))


def reported(dialect: str, encoded: Encoded, losses: Losses) -> Encoded:
    """Return the encoded conversation; its losses are measured at the first access."""
    if losses == "report" or not encoded.losses:
        return encoded
    first, *rest = encoded.losses
    count = f" (and {len(rest)} more)" if rest else ""
    where = "" if first.message_id is None else f"message {first.message_id}"
    raise EncodeError(f"cannot say {first.what}: {first.reason}{count}", dialect=dialect, where=where)


def kept_out(conversation: Conversation) -> Iterator[Loss]:
    """Yield a loss for each message or part that a repair left out."""
    reason = "it was kept out by a repair"
    for message in conversation:
        if is_left_out(message):
            yield Loss(message.id, "message", reason)
        elif parts := tuple(filter(is_left_out, message.parts)):
            for facet in facets_of_parts(parts):
                yield Loss(message.id, facet, reason)


def around(conversation: Conversation, target: str) -> Iterator[Loss]:
    """Yield the losses of the tools of a request of another format: those that only the other format has."""
    for tool in conversation.tools:
        if any(notes.get("custom") for name, notes in tool.metadata.items() if name != target):
            yield Loss(None, "tools", f"the tool {tool.name!r} takes text, and is written as one that takes JSON")
    for name, notes in conversation.metadata.items():
        if name == target or notes.get("shape") != "request":
            continue
        rest, native = cast("Mapping[str, Any]", notes.get("rest") or {}), cast("Sequence[str]", notes.get("native") or ())
        if native := [*native, *(key for key in rest if key == "functions")]:
            yield Loss(None, "tools", f"only {name} has {', '.join(native)}")


_BOOKKEEPING = frozenset({SHARED, "antiphon", "checks", "file", "knowledge", "options", "postchain"})
"""Namespaces in which antiphon keeps notes for itself, and the shared one, which is compared facet by facet."""
_EMPTY: tuple[object, ...] = (None, "", {}, [])


def _extras(message: Message, became: Message, target: str) -> Iterator[Loss]:
    """Yield the losses of what is in the namespaces of other formats and of programs: one for each namespace."""
    dropped: dict[str, list[tuple[str, Any]]] = {}
    for name, notes in _namespaces(message):
        if name != target and name not in _BOOKKEEPING:
            dropped.setdefault(name, []).extend(_own_keys(name, notes))
    if any(dropped.values()):
        # A key of another format has its own value.
        there = [item for _, notes in _namespaces(became) for item in notes.items()]
        for name, items in dropped.items():
            if lost := dict.fromkeys(item[0] for item in items if item not in there):
                yield Loss(message.id, "extras", f"{target} has no place for {', '.join(lost)} of {name}")


def _namespaces(message: Message) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the namespaces of a message and of its parts."""
    for thing in (message, *message.parts):
        if thing.__dict__["metadata"] is not EMPTY:
            yield from plain_of(thing, "metadata").items()


def _own_keys(name: str, notes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys in a namespace that are no wire details, with their values; all of them in the namespace of a program."""
    registry: Any = import_module("antiphon.dialects._registry")  # by name: it imports the dialects, which measure with this
    try:
        dialect = registry.get(name)
    except LookupError:
        yield from notes.items()
        return
    wire = dialect.wire if isinstance(dialect, Declares) else frozenset[str]()
    for key, value in notes.items():
        if key != "residue":
            if key not in wire and value not in _EMPTY:
                yield key, value
            continue
        for change in cast("list[dict[str, Any]]", value):
            last = next((step for step in reversed(change["at"]) if isinstance(step, str)), "")
            # A value that is replaced was read, and is only spelled differently; a key that is added was not read.
            if "add" in change and change["add"] not in _EMPTY and last not in wire:
                yield last, change["add"]


def _aligned(messages: Sequence[Message], read: Sequence[Message]) -> Iterator[tuple[Message, Message]]:
    """Yield each message with the message that it became: in order within a kind; a result by its invocation."""
    waiting: dict[tuple[str, str | None], list[Message]] = {}
    for message in reversed(read):
        waiting.setdefault((message.kind, message.invocation_id), []).append(message)
    unmatched: list[Message] = []
    for message in messages:
        if candidates := waiting.get((message.kind, message.invocation_id)):
            yield message, candidates.pop()
        else:
            unmatched.append(message)
    rest = [candidate for candidates in waiting.values() for candidate in reversed(candidates)]
    for message in unmatched:  # its id was written as an alias
        place = next((place for place, candidate in enumerate(rest) if candidate.kind == message.kind), None)
        if place is not None:
            yield message, rest.pop(place)


def _unpaired(messages: Sequence[Message], pairs: Sequence[tuple[Message, Message]]) -> Iterator[Loss]:
    there = {id(message) for message, _ in pairs}
    for message in messages:
        if id(message) not in there:
            yield Loss(message.id, "message", "it says nothing here, or is said as part of another")


def _reordered(pairs: Sequence[tuple[Message, Message]], read: Sequence[Message]) -> Iterator[Loss]:
    places = {id(message): place for place, message in enumerate(read)}
    last = -1
    for message, became in pairs:
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
    talk = without_effects(before)
    old_places = {id(message): place for place, message in enumerate(talk)}
    new_places = {id(message): place for place, message in enumerate(after)}
    old, new = facets_of(talk), facets_of(without_effects(after))
    became_from = {new_places[id(became)]: old_places[id(message)] for message, became in pairs}
    for place, origin in became_from.items():
        ours, theirs = old[origin], _moved(new[place], became_from)
        if ours == theirs:
            continue
        for facet in dict.fromkeys((*ours, *theirs)):
            mine, other = ours.get(facet), theirs.get(facet)
            if mine != other and _is_other(facet, mine, other):
                yield Loss(talk[origin].id, facet, reasons.get(facet, otherwise))


def _is_other(facet: str, ours: Any, theirs: Any) -> bool:
    """Whether two unequal values are a loss. A name that a format makes up is none; nor is the JSON text of a result."""
    if facet == "filename":
        return any(name not in (theirs or ()) for name in ours or ())
    if facet == "result" and ours and theirs:
        return bool(spelled_out(ours[1]) != spelled_out(theirs[1]))
    return True


def _moved(facets: dict[str, Any], became_from: Mapping[int, int]) -> dict[str, object]:
    """Return facets with the original positions of the messages that they refer to."""
    for name in _PLACES:
        if isinstance(place := facets.get(name), int):
            facets = {**facets, name: became_from.get(place, "elsewhere")}
    return facets
