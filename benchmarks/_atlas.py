"""Structured messages of Atlas: written to JSON text and read from it, beside raw Pydantic and the bare `json` module."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from antiphon.dialects.atlas import StructuredMessage
from benchmarks._harness import Goal, Table, clocked

__all__ = ["candidates", "tables"]

RAW, BARE = "raw pydantic", "json, unchecked"
_NOTES = (
    "raw pydantic: the same fields, `Any` where Atlas says anything; no tags for what JSON cannot say, no unknown keys",
    "json, unchecked: `dumps` and `loads` of a dict that nobody looks at, which is all that the original does",
)


class _Raw(BaseModel):
    content: str
    metadata: dict[str, Any]
    task_id: str
    timestamp: float
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    tool_results: list[dict[str, Any]] = Field(default_factory=list)
    source_agent: str | None = None
    target_agent: str | None = None
    message_id: str | None = None


def _sample() -> StructuredMessage:
    """Return an answer with a tool call and its result, as agents say many."""
    message = StructuredMessage(
        "The weather in London is sunny and 22 degrees.",
        {"type": "response", "in_reply_to": "task-1", "priority": "high", "attempt": 1},
        "task-1",
        source_agent="weather_agent",
        target_agent="user",
        timestamp=1750000000.5,
        message_id="message-2",
    )
    message.add_tool_call("get_weather", {"location": "London", "unit": "celsius"}, "call-1")
    result = {"temp": 22, "conditions": "sunny", "humidity": 45, "hours": list(range(24))}
    message.add_tool_result("get_weather", result, "call-1")
    return message


def candidates() -> dict[str, dict[str, Callable[[], Any]]]:
    """Return what is compared, by table and by name."""
    message = _sample()
    data, text = message.to_dict(), message.to_json()
    raw = _Raw.model_validate(data)
    return {
        "atlas write": {"antiphon": message.to_json, RAW: raw.model_dump_json, BARE: lambda: json.dumps(data)},
        "atlas read": {
            "antiphon": lambda: StructuredMessage.from_json(text),
            RAW: lambda: _Raw.model_validate_json(text),
            BARE: lambda: json.loads(text),
        },
    }


_GOALS: Mapping[str, tuple[Goal, ...]] = {
    "atlas write": (Goal("antiphon", 4.0, BARE),),
    "atlas read": (Goal("antiphon", 15.0, BARE),),
}
"""It copies, so that no two threads share anything, and looks at every value that comes in: that may cost so much."""


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names."""
    for name, compared in candidates().items():
        if part in name:
            yield Table(
                name=name,
                unit="us a message",
                scale=1e6,
                baseline=RAW,
                candidates={who: clocked(function) for who, function in compared.items()},
                against=(BARE,),
                goals=_GOALS[name],
                notes=_NOTES,
            )
