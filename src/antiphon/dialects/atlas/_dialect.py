"""The Atlas dialect."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import sample_units
from antiphon.dialects._unit_dialect import UnitDialect
from antiphon.dialects.atlas._read import read
from antiphon.dialects.atlas._write import together, write

__all__ = ["DIALECT"]

_OWN = frozenset({"task_id", "tool_results", "source_agent", "target_agent"})


def recognise(data: Any) -> str | None:
    """Say why parsed JSON looks like Atlas."""
    units = sample_units(data)
    if not units or not all("content" in unit and _OWN & unit.keys() and "role" not in unit for unit in units):
        return None
    return "content with a task_id, agents or tool_results"


DIALECT = UnitDialect("atlas", "Atlas structured messages", read, together, write, recognise)
