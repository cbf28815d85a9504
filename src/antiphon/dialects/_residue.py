"""Residue: what a unit of somebody's format says beyond what we would write from the core, as a small patch.

Reading a unit gives messages; writing those messages gives a unit of the same meaning, but rarely the same data: an unknown
key, a `null` where we leave out, a spelling of arguments. `residue(written, original)` is the difference, kept in the
dialect's own namespace. `restore(written, residue)` puts it back, and is careful about edits: whatever would now be written
differently than when the unit was read is left as it is written. So an unchanged unit comes back as it was, and an edited one
but for the edit.

A patch is JSON, one of three kinds, told apart by their only key:

- `{"is": original, "was": print}`: this value instead, if what is written here still has that fingerprint;
- `{"in": {key: patch}, "add": {key: value}, "drop": {key: print}}` for an object: inside, more, less;
- `{"at": {index: patch}}` for an array of the same length.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, cast

from antiphon.messages._json import canonical

__all__ = ["residue", "restore"]


def residue(written: Any, original: Any) -> dict[str, Any] | None:
    """Return the patch that turns what we write into what was there; None if they are the same data."""
    if _same(written, original):
        return None
    if isinstance(written, dict) and isinstance(original, dict):
        return _object_residue(cast("dict[str, Any]", written), cast("dict[str, Any]", original))
    if (
        isinstance(written, list)
        and isinstance(original, list)
        and len(cast("list[Any]", written)) == len(cast("list[Any]", original))
    ):
        pairs = enumerate(zip(cast("list[Any]", written), cast("list[Any]", original), strict=True))
        return {"at": {str(index): patch for index, (ours, theirs) in pairs if (patch := residue(ours, theirs))}}
    return {"is": original, "was": _print(written)}


def _object_residue(written: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    inside = {key: patch for key in written if key in original and (patch := residue(written[key], original[key]))}
    more = {key: value for key, value in original.items() if key not in written}
    less = {key: _print(value) for key, value in written.items() if key not in original}
    return {kind: change for kind, change in (("in", inside), ("add", more), ("drop", less)) if change}


def restore(written: Any, patch: Any) -> Any:
    """Return what we write with the residue put back, where it still fits."""
    if patch is None:
        return written
    if "is" in patch:
        return patch["is"] if _print(written) == patch["was"] else written
    if isinstance(written, dict):
        return _restored_object(cast("dict[str, Any]", written), patch)
    if isinstance(written, list):
        changes = patch.get("at", {})
        return [restore(each, changes.get(str(index))) for index, each in enumerate(cast("list[Any]", written))]
    return written


def _restored_object(written: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    inside, less = patch.get("in", {}), patch.get("drop", {})
    kept = {
        key: restore(value, inside.get(key)) for key, value in written.items() if key not in less or less[key] != _print(value)
    }
    return {**kept, **{key: value for key, value in patch.get("add", {}).items() if key not in kept}}


def _same(one: Any, other: Any) -> bool:
    return one is other or canonical(one) == canonical(other)


def _print(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()[:16]
