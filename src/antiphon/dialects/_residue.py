"""Residue: what a unit of somebody's format says beyond what we would write from the core, as a small patch.

Reading a unit gives messages; writing those messages gives a unit of the same meaning, but rarely the same data: an unknown
key, a `null` where we leave out, a spelling of arguments. `residue(written, original)` is the difference, kept in the
dialect's own namespace. `restore(written, residue)` puts it back, and is careful about edits: whatever would now be written
differently than when the unit was read is left as it is written. So an unchanged unit comes back as it was, and an edited one
but for the edit.

A patch is a flat list of changes, each at a path, so that it is hardly deeper than what it holds:

- `{"at": path, "is": value, "was": print}`: this value instead, if what is written there still has that fingerprint;
- `{"at": path, "add": value}`: a key more, if none is written there; inside a list, `"in"` says of what kind the item was, so
  that the key does not go to another that has taken its place;
- `{"at": path, "drop": print}`: a key less, if what is written there still has that fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, TypeAlias, cast

from antiphon.messages._json import canonical

__all__ = ["residue", "restore"]

_Path: TypeAlias = tuple[str | int, ...]


def residue(written: Any, original: Any) -> list[dict[str, Any]]:
    """Return the changes that turn what we write into what was there; none if they are the same data."""
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


def _changes_of_object(written: dict[str, Any], original: dict[str, Any], path: _Path) -> Iterator[dict[str, Any]]:
    kind = {"in": _kind(written)} if path and isinstance(path[-1], int) else {}
    for key, value in sorted(original.items()):
        if key in written:
            yield from _changes(written[key], value, (*path, key))
        else:
            yield {"at": [*path, key], "add": value, **kind}
    for key, value in sorted(written.items()):
        if key not in original:
            yield {"at": [*path, key], "drop": _print(value)}


def _kind(item: dict[str, Any]) -> str:
    """Return what kind of thing an item of a list is: what it says of itself, or the keys it has."""
    said = item.get("type")
    return said if isinstance(said, str) else " ".join(sorted(item))


def restore(written: Any, changes: list[dict[str, Any]]) -> Any:
    """Return what we write with the residue put back, where it still fits. What is written may be changed."""
    for change in [change for change in changes if "in" not in change or _is_there(written, change)]:
        written = _changed(written, change["at"], change)
    return written


def _is_there(written: Any, change: dict[str, Any]) -> bool:
    """Whether the thing that a key is to be added to is of the kind it was."""
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
    key = path[0]
    if isinstance(key, int):
        _change_item(value, key, path[1:], change)
    elif isinstance(value, dict):
        _change_key(cast("dict[str, Any]", value), key, path[1:], change)
    return cast("Any", value)


def _change_item(box: Any, index: int, rest: list[str | int], change: dict[str, Any]) -> None:
    if isinstance(box, list) and index < _length(box):
        box[index] = _changed(box[index], rest, change)


def _change_key(box: dict[str, Any], key: str, rest: list[str | int], change: dict[str, Any]) -> None:
    if not rest and "is" not in change:
        _add_or_drop(box, key, change)
    elif key in box:
        box[key] = _changed(box[key], rest, change)


def _add_or_drop(box: dict[str, Any], key: str, change: dict[str, Any]) -> None:
    if "add" in change:
        box.setdefault(key, change["add"])
    elif key in box and _print(box[key]) == change["drop"]:
        del box[key]


def _length(value: Any) -> int:
    return len(value)


def _same(one: Any, other: Any) -> bool:
    return one is other or canonical(one) == canonical(other)


def _print(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()[:16]
