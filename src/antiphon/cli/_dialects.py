"""`antiphon dialects`: which formats there are."""

from __future__ import annotations

from antiphon.cli._screen import open_console, print_table
from antiphon.dialects import get, names

__all__ = ["dialects"]


def dialects() -> None:
    """List the supported formats."""
    print_table(open_console(), ("name", "summary"), [(name, _summary(name)) for name in names()])


def _summary(name: str) -> str:
    try:
        return get(name).summary
    except Exception as exc:  # noqa: BLE001 (a package of somebody else's that is broken must not hide the others)
        return f"cannot be loaded: {exc}"
