"""The Choir dialect."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._units import UnitDialect, sample_units
from antiphon.dialects.choir._read import read
from antiphon.dialects.choir._write import together, write

__all__ = ["DIALECT"]

_ENVELOPE = frozenset({"id", "type", "data", "sender", "receiver", "timestamp", "correlation_id", "message_id"})


def recognise(data: Any) -> str | None:
    """Say why parsed JSON looks like Choir."""
    units = sample_units(data)
    if not units or not all(isinstance(kind := unit.get("type"), str) and kind.isupper() for unit in units):
        return None
    return "types in capitals, in an envelope of Choir" if all(len(_ENVELOPE & unit.keys()) > 1 for unit in units) else None


DIALECT = UnitDialect("choir", "Choir requests, responses and errors", read, together, write, recognise)
