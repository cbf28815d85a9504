"""Residue: the difference between a unit as it was read and as the dialect would write it, as a small patch.

Reading a unit gives messages; writing those messages gives a unit of the same meaning, but rarely the same data: an unknown
key, a `null` where we leave out the key, another spelling of arguments. `residue(written, original)` is the difference, kept
in the dialect's own namespace. `restore(written, residue)` puts it back, unless the message was edited: a value that the
dialect writes differently than when the unit was read stays as written. So an unchanged unit is written back unchanged,
and an edited one differs only in the edit.

A patch is a flat list of changes, each at a path, so that it is hardly deeper than what it holds:

- `{"at": path, "is": value, "was": print}`: replace the value, if the written value still has that fingerprint;
- `{"at": path, "add": value}`: add a key, if no such key is written; inside a list, `"in"` is the kind of the item, so that
  the key is not added to another item that has taken its place;
- `{"at": path, "drop": print}`: remove a key, if the written value still has that fingerprint.

A unit may hold several calls, or several results, each as an item of one list. Their messages may be moved or removed later.
So the residue of an item is stored on the message of that item, and is restored wherever that message is written. The rest of
the residue is stored on the first message of the unit. `"own"` marks a change of an item; its path is the one at reading, and
is adjusted to the item's place at writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, TypeAlias, cast

from antiphon.dialects._reading import as_list, as_object
from antiphon.dialects._writing import BodyWriting
from antiphon.messages import Message, PartsPayload, thaw
from antiphon.messages._json_values import canonical

_Path: TypeAlias = tuple[str | int, ...]


def residue(written: object, original: object) -> list[dict[str, Any]]:
    """Return the changes that turn the written data into the original; none if they are equal."""
    return [] if _same(written, original) else list(_changes(written, original, ()))


def _changes(written: Any, original: Any, path: _Path) -> Iterator[dict[str, Any]]:
    if isinstance(written, dict) and isinstance(original, dict):
        yield from _changes_of_object(cast("dict[str, Any]", written), cast("dict[str, Any]", original), path)
    elif isinstance(written, list) and isinstance(original, list) and _length(written) == _length(original):
        pairs = zip(cast("list[Any]", written), cast("list[Any]", original), strict=True)
        for index, (ours, theirs) in enumerate(pairs):
            yield from _changes(ours, theirs, (*path, index))
    elif not _same(written, original):
        yield {"at": list(path), "is": original, "was": _print(written)}


def _changes_of_object(written: dict[str, object], original: dict[str, object], path: _Path) -> Iterator[dict[str, object]]:
    kind = {"in": _kind(written)} if path and isinstance(path[-1], int) else {}
    for key, value in sorted(original.items()):
        if key in written:
            yield from _changes(written[key], value, (*path, key))
        else:
            yield {"at": [*path, key], "add": value, **kind}
    for key, value in sorted(written.items()):
        if key not in original:
            yield {"at": [*path, key], "drop": _print(value)}


def _kind(item: dict[str, object]) -> str:
    """Return the kind of an item of a list: its type if it has one, else its keys."""
    type_name = item.get("type")
    return type_name if isinstance(type_name, str) else " ".join(sorted(item))


def restore(written: Any, changes: list[dict[str, Any]]) -> Any:
    """Return the written data with the residue restored where it still fits. The argument may be changed."""
    for change in [change for change in changes if "in" not in change or _is_there(written, change)]:
        written = _changed(written, change["at"], change)
    return written


def _is_there(written: Any, change: dict[str, Any]) -> bool:
    """Whether the object to which a key would be added is of the original kind."""
    box = written
    for step in change["at"][:-1]:
        try:
            box = box[step]
        except (LookupError, TypeError):
            return False
    return isinstance(box, dict) and _kind(cast("dict[str, Any]", box)) == change["in"]


def _changed(value: Any, path: list[str | int], change: dict[str, Any]) -> Any:
    if not path:
        return change["is"] if _print(value) == change["was"] else value
    key, *rest = path
    if isinstance(key, int):
        if isinstance(value, list) and key < _length(value):
            value[key] = _changed(value[key], rest, change)
    elif isinstance(value, dict):
        box = cast("dict[str, Any]", value)
        if rest or "is" in change:
            if key in box:
                box[key] = _changed(box[key], rest, change)
        elif "add" in change:
            box.setdefault(key, change["add"])
        elif key in box and _print(box[key]) == change["drop"]:
            del box[key]
    return cast("Any", value)


def _length(value: Any) -> int:
    return len(value)


def _same(one: Any, other: Any) -> bool:
    return one is other or canonical(one) == canonical(other)


def _print(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()[:16]


# ---------------------------------------------------------------- which message a change belongs to

InvocationIn: TypeAlias = Callable[[dict[str, Any]], object]
"""Returns the invocation that an item of a list is a call or a result of; None if it is neither."""
_Place: TypeAlias = tuple[int, str, int]
"""The position of an item: the unit, the key of the list, the index in it."""

_ITEM = 3
_OWN = "own"


def nobody(item: dict[str, object]) -> None:
    """Return None: in formats with at most one call or result per unit, no item has an owner."""


def stem(message: Message) -> str:
    """Return the id of the unit that a message was read from."""
    return message.id.partition("#")[0]


def shared_out(
    patch: Iterable[dict[str, Any]],
    units: Sequence[object],
    group: Sequence[Message],
    writing: BodyWriting,
    whose: InvocationIn,
) -> list[list[dict[str, object]]]:
    """Return the residue of a unit by message: that of its own item, and for the first message also the rest."""
    shares: list[list[dict[str, Any]]] = [[] for _ in group]
    items = _items(units, whose) if len(group) > 1 else {}
    owners = {items[invocation]: place for place, invocation in enumerate(_written(group, writing)) if invocation in items}
    for change in patch:
        at = change["at"]
        owner = owners.get(tuple(at[:_ITEM])) if len(at) > _ITEM else None
        shares[owner or 0].append(change if owner is None else {**change, _OWN: True})
    return shares


def gathered(
    group: Sequence[Message], units: Sequence[object], writing: BodyWriting, whose: InvocationIn
) -> list[dict[str, object]]:
    """Return all changes to the units of a group, with paths adjusted to the current positions of their items."""
    noted = [(message, writing.notes(message).get("residue")) for message in group]
    if not any(patch for _, patch in noted):
        return []
    changes: list[dict[str, Any]] = []
    items: dict[object, _Place] | None = None
    for message, patch in noted:
        if not patch or writing.is_other_than_it_was(message):
            continue
        patch_changes = cast("list[dict[str, Any]]", thaw(patch))
        if message is group[0] or message.id == stem(group[0]):  # the first message of the unit, wherever it is now
            changes += [change for change in patch_changes if _OWN not in change]
        if of_item := [change for change in patch_changes if _OWN in change]:
            items = _items(units, whose) if items is None else items
            place = items.get(writing.aliases.invocation(message))
            changes += [] if place is None else [{**change, "at": [*place, *change["at"][_ITEM:]]} for change in of_item]
    return changes


def _written(group: Sequence[Message], writing: BodyWriting) -> Iterator[str | None]:
    """Yield the id that is written for the invocation of each message; None for a message of parts."""
    for message in group:
        yield None if type(message.payload) is PartsPayload else writing.aliases.invocation(message)


def _items(units: Sequence[object], whose: InvocationIn) -> dict[object, _Place]:
    """Return the position of each call and result, by id, without ambiguous ids, which are used twice."""
    places: dict[object, _Place] = {}
    shared: set[object] = set()
    for place, unit in enumerate(units):
        for path, item in _listed(as_object(unit) or {}, place):
            invocation = whose(item)
            if isinstance(invocation, str):
                shared |= {invocation} & places.keys()
                places[invocation] = path
    return {invocation: path for invocation, path in places.items() if invocation not in shared}


def _listed(unit: dict[str, object], place: int) -> Iterator[tuple[_Place, dict[str, object]]]:
    for key, value in unit.items():
        for index, item in enumerate(as_list(value)):
            if (entry := as_object(item)) is not None:
                yield (place, key, index), entry
