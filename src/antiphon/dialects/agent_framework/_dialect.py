"""The agent_framework dialect."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import is_one_of, sample_units
from antiphon.dialects._unit_dialect import UnitDialect
from antiphon.dialects.agent_framework._read import read
from antiphon.dialects.agent_framework._write import together, write
from antiphon.dialects.agent_framework.constants import ALL_TYPES

__all__ = ["DIALECT"]


def recognise(data: Any) -> str | None:
    """Say why parsed JSON looks like agent_framework."""
    units = sample_units(data)
    known = bool(units) and all(is_one_of(unit.get("type"), ALL_TYPES) for unit in units)
    return "types of agent_framework" if known else None


DIALECT = UnitDialect("agent-framework", "agent_framework history entries", read, together, write, recognise)
