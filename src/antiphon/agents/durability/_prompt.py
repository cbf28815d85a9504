"""A prompt as what identifies it: a hash of what is said, without the times and ids that differ from run to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, cast

import orjson
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

__all__ = ["dump", "plain_settings", "prompt_hash", "tools_hash", "unit_marks"]

_SECRET_SETTINGS = frozenset({"extra_headers"})
"""Settings that may carry credentials: only that they are there is written down."""
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def dump(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages of Pydantic AI as JSON."""
    return cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


def prompt_hash(units: Iterable[dict[str, Any]]) -> str:
    """Return what identifies a prompt: the same whenever the same is said."""
    return _digest([_said(unit) for unit in units])


def tools_hash(parameters: ModelRequestParameters) -> str:
    """Return what identifies the tools that a model may call, and the form its answer has."""
    tools = [_tool(tool) for tool in (*parameters.function_tools, *parameters.output_tools)]
    return _digest([tools, parameters.output_mode, parameters.allow_text_output])


def unit_marks(units: Iterable[dict[str, Any]]) -> list[str]:
    """Return what each message of a prompt is known by in its thread; the same thing said twice has two.

    A request is known by what it says and by the run that it was first said in, an answer by what it says and when.
    """
    counts: Counter[str] = Counter()
    marks: list[str] = []
    for unit in units:
        own = unit.get("timestamp") if unit["kind"] == "response" else unit.get("run_id")
        mark = _digest([_said(unit, with_instructions=False), own])
        counts[mark] += 1
        marks.append(mark if counts[mark] == 1 else f"{mark}={counts[mark]}")
    return marks


def plain_settings(settings: ModelSettings | None) -> dict[str, Any]:
    """Return the settings of a request as JSON: of what is no JSON only the type, of what may be secret nothing."""
    plain = cast("dict[str, Any]", to_jsonable_python(dict(settings or {}), fallback=lambda value: type(value).__qualname__))
    return {name: True if name in _SECRET_SETTINGS else value for name, value in plain.items()}


def _said(unit: dict[str, Any], *, with_instructions: bool = True) -> list[Any]:
    parts = [{name: value for name, value in part.items() if name != "timestamp"} for part in unit["parts"]]
    return [unit["kind"], parts, (unit.get("instructions") or None) if with_instructions else None]


def _tool(tool: ToolDefinition) -> list[Any]:
    return [tool.name, tool.description, tool.parameters_json_schema, tool.strict]


def _digest(value: Any) -> str:
    return sha256(orjson.dumps(value, option=_OPTIONS, default=str)).hexdigest()[:32]
