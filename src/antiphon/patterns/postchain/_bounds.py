"""Bounds: how much may come in, and how much of what is said a thread passes on. The whole of it is in the ledger.

What a user says is taken whole or refused, with the limit; it is never cut. What agents say and tools are given is passed
on from phase to phase, so of long ones only the beginning is: otherwise six phases would say six times as much as a message
may hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from antiphon.errors import RefusedError

__all__ = ["ANSWER", "MENTIONED", "TOO_LARGE", "check_about", "check_input", "cut", "cut_values"]

TOO_LARGE: Final = "TOO_LARGE"
"""The code of what is refused for its size."""
ANSWER: Final = 16_000
"""Characters of an answer that other phases, and the client, are told."""
MENTIONED: Final = 600
"""Characters of a source, or of an argument, that a thread has in mind."""
_ABOUT: Final = 8_000
"""Bytes of what is said about a thread besides the input, as JSON: it goes with every message to a phase."""


def check_input(text: object, limit: int) -> None:
    """Refuse an input that is too long, before anything is done with it.

    Raises:
        RefusedError: it is: TOO_LARGE, with the limit.
    """
    size = len(text) if isinstance(text, str) else 0
    if size > limit:
        advice = "add it to the knowledge base and ask about it, or raise `input_limit`"
        details = {"limit": limit, "size": size}
        raise RefusedError(f"the input has {size} characters, more than {limit}: {advice}", TOO_LARGE, details=details)


def check_about(user_id: str, metadata: Mapping[str, Any] | None) -> None:
    """Refuse to carry more about a thread than is concise.

    Raises:
        RefusedError: it is: TOO_LARGE, with the limit.
    """
    size = len(user_id.encode(errors="replace")) + len(to_json(dict(metadata or {}), fallback=str))
    if size > _ABOUT:
        reason = f"user_id and metadata have {size} bytes, more than {_ABOUT}: say where to find it instead"
        raise RefusedError(reason, TOO_LARGE, details={"limit": _ABOUT, "size": size})


def cut(text: str, most: int = ANSWER) -> str:
    """Return a text, or its beginning with a note that says what is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters are in the ledger)"


def cut_values(arguments: Mapping[str, Any], most: int = MENTIONED) -> dict[str, Any]:
    """Return the arguments of a call, of each the beginning."""
    return {name: _cut_value(value, most) for name, value in arguments.items()}


def _cut_value(value: Any, most: int) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else to_json(value, fallback=str).decode()
    return value if len(text) <= most else cut(text, most)
