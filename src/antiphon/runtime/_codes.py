"""Codes of errors that the runtime tells supervisors about, and that are no errors of delivery."""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCKED"]

BLOCKED: Final = "LOOP_BLOCKED"
"""An actor computes for so long that nobody else gets a turn."""
