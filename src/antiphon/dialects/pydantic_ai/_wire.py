"""A history as Pydantic AI stores it: a list of requests and responses, or one; and the defaults of its objects.

Pydantic AI writes every default, including nulls. So this dialect writes them too, and a round trip gives the same data.
`DEFAULTS` is used in both directions: reading stores the values that differ from the defaults, and writing adds the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import count_of
from antiphon.dialects._reading import as_object, sample_units
from antiphon.errors import DecodeError
from antiphon.messages import Tool, Usage, thaw

NAME = "pydantic-ai"

NO_TIME = "1970-01-01T00:00:00Z"
"""The time that is written if a time is required and none is known; it is read as no time."""
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)

_BY_PROVIDER: dict[str, object] = {"id": None, "provider_name": None, "provider_details": None}
_FILE: dict[str, Any] = {"force_download": False}

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "system-prompt": {"dynamic_ref": None, "context_id": None, "scope": "conversation", "metadata": None},
    "instruction-delta": {"id": None, "base_hash": None},
    "user-prompt": {},
    "retry-feedback": {"retry": None},
    "retry-prompt": {"tool_name": None},
    "tool-return": {"tool_kind": None, "metadata": None, "retry": None},
    "text": _BY_PROVIDER,
    "thinking": _BY_PROVIDER,
    "tool-call": {"tool_kind": None, **_BY_PROVIDER},
    "file": _BY_PROVIDER,
    "compaction": {**_BY_PROVIDER, "metadata": None},
    "speech": {"interrupted_at_ms": None, "timestamps": None, **_BY_PROVIDER},
    "text-content": {"metadata": None},
    "structured-content": {"tag": None, "description": None, "metadata": None},
    "image-url": _FILE,
    "audio-url": _FILE,
    "video-url": _FILE,
    "document-url": _FILE,
}
"""The keys of parts and pieces of content that the core cannot express, with their defaults, by kind."""

NOT_IN_REQUESTS = frozenset({"text", "thinking", "tool-call", "builtin-tool-call", "builtin-tool-return", "file"})
NOT_IN_RESPONSES = frozenset(
    {
        "system-prompt",
        "user-prompt",
        "tool-return",
        "retry-feedback",
        "retry-prompt",
        "tool-availability-delta",
        "capability-load-delta",
        "model-settings-delta",
        "instruction-delta",
        "instruction-baseline",
    }
)

_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "reasoning_tokens": "output_reasoning_tokens",
}
"""The counts of the core by their names here."""


# ---------------------------------------------------------------- bodies


def open_body(value: object) -> Body:
    body = as_object(value)
    if body is not None and "kind" in body:
        return Body("one", [body])
    raise DecodeError("expected a list of requests and responses, or one of them", dialect=NAME)


def close_body(body: Body) -> object:
    """Put a history together. It has no place for tools: those are given to an agent, not stored."""
    return body.units[0] if body.shape == "one" and len(body.units) == 1 else body.units


def read_tool(tool: object) -> dict[str, Any] | None:
    """Return nothing: a history holds no tools."""
    return None


def write_tool(tool: Tool, name: str) -> None:
    """Write nothing: a history holds no tools."""


def recognise(data: object) -> str | None:
    units = sample_units(data)
    if not units or not all(unit.get("kind") in ("request", "response") and _has_parts(unit) for unit in units):
        return None
    return "requests and responses of parts, each with its part_kind"


def _has_parts(unit: dict[str, object]) -> bool:
    parts = unit.get("parts")
    return isinstance(parts, list) and all("part_kind" in (as_object(part) or {}) for part in cast("list[Any]", parts))


# ---------------------------------------------------------------- defaults


def non_defaults(fields: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the values of an object of a kind that differ from the defaults, for its metadata."""
    return {key: fields[key] for key, default in DEFAULTS[kind].items() if key in fields and fields[key] != default}


def with_defaults(kind: str, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a kind, overridden by the stored values."""
    written = dict(DEFAULTS[kind])
    if notes:
        written |= {key: thaw(notes[key]) for key in written if key in notes}
    return written


# ---------------------------------------------------------------- times


def read_time(value: Any) -> datetime | None:
    """Return a time; None if there is none, or if it cannot be read (the residue keeps it)."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return None if time == _NEVER else time


def write_time(time: datetime | None) -> str:
    """Return a time as Pydantic writes it."""
    return NO_TIME if time is None else time.isoformat().replace("+00:00", "Z")


# ---------------------------------------------------------------- usage


def read_usage(value: Any) -> Usage | None:
    """Return the usage of an answer. A count of zero is ignored, because it is the default."""
    usage = as_object(value)
    if usage is None:
        return None
    counts: dict[str, Any] = {name: count for name, key in _COUNTS.items() if (count := count_of(usage.get(key)))}
    if (cost := _cost(usage.get("cost"))) is not None:
        counts["cost"] = cost
    return Usage(**counts) if counts else None


def _cost(value: object) -> Decimal | None:
    try:
        cost = Decimal(value) if isinstance(value, str) else None
    except InvalidOperation:
        return None
    return cost if cost is not None and cost.is_finite() and cost >= 0 else None


def write_usage(usage: Usage | None) -> dict[str, object]:
    """Write the usage of an answer, with all counts."""
    written: dict[str, object] = {
        "input_tokens": 0,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 0,
        "cache_read_tokens": 0,
        "output_tokens": 0,
        "output_reasoning_tokens": 0,
        "input_audio_tokens": 0,
        "cache_audio_read_tokens": 0,
        "output_audio_tokens": 0,
        "audio_seconds": 0.0,
        "details": {},
        "cost": None,
    }
    if usage is not None:
        written |= {key: count for name, key in _COUNTS.items() if (count := getattr(usage, name)) is not None}
        if usage.cost is not None:
            written["cost"] = str(usage.cost)
    return written
