"""The Choir dialect."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import sample_units
from antiphon.dialects._unit_dialect import UnitDialect
from antiphon.dialects.choir._read import read
from antiphon.dialects.choir._write import together, write

__all__ = ["DIALECT"]

_ENVELOPE = frozenset({"id", "sender", "receiver", "correlation_id", "message_id"})


def recognise(data: Any) -> str | None:
    """Say why parsed JSON looks like Choir."""
    units = sample_units(data)
    known = bool(units) and all(isinstance(unit.get("type"), str) and _carries(unit) for unit in units)
    return "a type with data, in an envelope of Choir" if known else None


def _carries(unit: dict[str, Any]) -> bool:
    """Whether it has the types of Choir, which are upper case, or its envelope. Many formats have a type and data."""
    marks: tuple[bool, ...] = (unit["type"].isupper(), isinstance(unit.get("data"), dict), bool(_ENVELOPE & unit.keys()))
    return sum(marks) > 1


DIALECT = UnitDialect("choir", "Choir requests, responses and errors", read, together, write, recognise)
