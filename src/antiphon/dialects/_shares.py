"""Whose residue is whose: what an item of a list says beyond what we write belongs to the call or result that it is.

A unit may hold several calls, or several results, each as an item of one list. Their messages may change places, go, or go
elsewhere; so what is the residue of one item is noted on the message of that item, and comes back wherever it is written.
All else that a unit said is noted on its first message. A change of an item is told by `"own"`; its path is what it was when
it was read, and begins anew at the place of the item when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from antiphon.dialects._units import as_object
from antiphon.dialects._writing import BodyWriting
from antiphon.messages import Message, PartsPayload, thaw

__all__ = ["InvocationIn", "gathered", "nobody", "shared_out", "stem"]

InvocationIn: TypeAlias = Callable[[dict[str, Any]], Any]
"""Returns the invocation that an item of a list is a call or a result of; None if it is neither."""
_Path: TypeAlias = tuple[int, str, int]
"""Where an item stands: the unit, the key of the list, the place in it."""

_ITEM = 3
_OWN = "own"


def nobody(item: dict[str, Any]) -> None:
    """Return whose item it is, where a unit holds one call or result at most: of nobody in particular."""


def stem(message: Message) -> str:
    """Return the id of the unit that a message was read from."""
    return message.id.partition("#")[0]


def shared_out(
    patch: Iterable[dict[str, Any]], units: Sequence[Any], group: Sequence[Message], writing: BodyWriting, whose: InvocationIn
) -> list[list[dict[str, Any]]]:
    """Return the residue of a unit by message: each has its own item's, and the first has what is nobody's."""
    shares: list[list[dict[str, Any]]] = [[] for _ in group]
    items = _items(units, whose) if len(group) > 1 else {}
    owners = {items[said]: place for place, said in enumerate(_written(group, writing)) if said in items}
    for change in patch:
        at = change["at"]
        owner = owners.get(tuple(at[:_ITEM])) if len(at) > _ITEM else None
        shares[owner or 0].append(change if owner is None else {**change, _OWN: True})
    return shares


def gathered(
    group: Sequence[Message], units: Sequence[Any], writing: BodyWriting, whose: InvocationIn
) -> list[dict[str, Any]]:
    """Return all changes to the units of a group, each at the place where what it belongs to stands by now."""
    noted = [(message, writing.notes(message).get("residue")) for message in group]
    if not any(patch for _, patch in noted):
        return []
    changes: list[dict[str, Any]] = []
    items: dict[Any, _Path] | None = None
    for message, patch in noted:
        if not patch or writing.is_other_than_it_was(message):
            continue
        kept = cast("list[dict[str, Any]]", thaw(patch))
        if message is group[0] or message.id == stem(group[0]):  # the unit's first, wherever it stands
            changes += [change for change in kept if _OWN not in change]
        if own := [change for change in kept if _OWN in change]:
            items = _items(units, whose) if items is None else items
            place = items.get(writing.aliases.invocation(message))
            changes += [] if place is None else [{**each, "at": [*place, *each["at"][_ITEM:]]} for each in own]
    return changes


def _written(group: Sequence[Message], writing: BodyWriting) -> Iterator[str | None]:
    """Yield the id that is written for the invocation of each message; None for words."""
    for message in group:
        yield None if type(message.payload) is PartsPayload else writing.aliases.invocation(message)


def _items(units: Sequence[Any], whose: InvocationIn) -> dict[Any, _Path]:
    """Return where each call and result stands, by its id; not those that share one, which nobody can tell apart."""
    found: dict[Any, _Path] = {}
    shared: set[Any] = set()
    for place, unit in enumerate(units):
        for path, item in _listed(as_object(unit) or {}, place):
            invocation = whose(item)
            if isinstance(invocation, str):
                shared |= {invocation} & found.keys()
                found[invocation] = path
    return {invocation: path for invocation, path in found.items() if invocation not in shared}


def _listed(unit: dict[str, Any], place: int) -> Iterator[tuple[_Path, dict[str, Any]]]:
    for key, value in unit.items():
        for index, item in enumerate(cast("list[Any]", value) if isinstance(value, list) else ()):
            if (found := as_object(item)) is not None:
                yield (place, key, index), found
