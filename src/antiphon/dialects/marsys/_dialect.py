"""The MARSYS dialect."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import is_one_of, sample_units
from antiphon.dialects._unit_dialect import UnitDialect
from antiphon.dialects.marsys._read import read
from antiphon.dialects.marsys._write import together, write

__all__ = ["DIALECT"]

_ROLES = frozenset({"system", "user", "assistant", "tool", "error", "agent_call", "agent_response"})
_OWN = frozenset({"message_id", "metadata", "timestamp"})


def recognise(data: Any) -> str | None:
    """Say why parsed JSON looks like MARSYS."""
    units = sample_units(data)
    if not units or not all(is_one_of(unit.get("role"), _ROLES) and "type" not in unit for unit in units):
        return None
    own = [unit for unit in units if _OWN & unit.keys() or unit["role"] in ("error", "agent_call", "agent_response")]
    return "roles of MARSYS, and keys that only it has" if own else None


DIALECT = UnitDialect("marsys", "MARSYS messages with seven roles", read, together, write, recognise)
