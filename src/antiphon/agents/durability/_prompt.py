"""A prompt as what identifies it: a hash of what is said, without the times and ids that differ from run to run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, cast

import orjson
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

__all__ = ["Prompt", "dump", "mark_of", "plain_settings", "tools_hash"]

_SECRET_SETTINGS = frozenset({"extra_headers"})
"""Settings that may carry credentials: only that they are there is written down."""
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def dump(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages of Pydantic AI as JSON."""
    return cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


class Prompt:
    """A prompt as JSON, with a digest of each of its messages."""

    def __init__(self, messages: Sequence[ModelMessage]) -> None:
        self.units = dump(messages)
        self._digests = [_digest(_said(unit)) for unit in self.units]

    @property
    def hash(self) -> str:
        """What identifies it: the same whenever the same is said."""
        pairs = zip(self._digests, self.units, strict=True)
        return _digest([[digest, unit.get("instructions") or None] for digest, unit in pairs])

    def marks(self) -> list[str]:
        """Return what each message is known by in its thread; the same thing said twice has two.

        A request is known by what it says and by the run that it was first said in; an answer by who gave it and when,
        because what it says may be redacted on its way into the thread.
        """
        counts: Counter[str] = Counter()
        marks: list[str] = []
        for digest, unit in zip(self._digests, self.units, strict=True):
            known_by = _known_by(unit, digest)
            counts[known_by] += 1
            marks.append(_digest([known_by, counts[known_by]]))
        return marks

    def mark_after(self, answer: dict[str, Any]) -> str:
        """Return what the answer to this prompt is known by, as `marks` of the next prompt will say."""
        known_by = _known_by(answer, "")
        pairs = zip(self.units, self._digests, strict=True)
        return _digest([known_by, 1 + sum(_known_by(unit, digest) == known_by for unit, digest in pairs)])


def mark_of(unit: dict[str, Any]) -> str:
    """Return what a single message is known by."""
    return _digest([_known_by(unit, _digest(_said(unit))), 1])


def _known_by(unit: dict[str, Any], digest: str) -> str:
    if unit["kind"] == "response":
        return f"response@{unit.get('timestamp')}@{unit.get('model_name')}@{len(unit['parts'])}"
    return f"{digest}@{unit.get('run_id')}"


def tools_hash(parameters: ModelRequestParameters) -> str:
    """Return what identifies the tools that a model may call, and the form its answer has."""
    tools = [_tool(tool) for tool in (*parameters.function_tools, *parameters.output_tools)]
    return _digest([tools, parameters.output_mode, parameters.allow_text_output])


def plain_settings(settings: ModelSettings | None) -> dict[str, Any]:
    """Return the settings of a request as JSON: of what is no JSON only the type, of what may be secret nothing."""
    plain = cast("dict[str, Any]", to_jsonable_python(dict(settings or {}), fallback=lambda value: type(value).__qualname__))
    return {name: True if name in _SECRET_SETTINGS else value for name, value in plain.items()}


def _said(unit: dict[str, Any]) -> list[Any]:
    parts = [{name: value for name, value in part.items() if name != "timestamp"} for part in unit["parts"]]
    return [unit["kind"], parts]


def _tool(tool: ToolDefinition) -> list[Any]:
    return [tool.name, tool.description, tool.parameters_json_schema, tool.strict]


def _digest(value: Any) -> str:
    try:
        words = orjson.dumps(value, option=_OPTIONS, default=str)
    except TypeError:  # an integer of more than 64 bits
        words = json.dumps(value, sort_keys=True, default=str).encode()
    return sha256(words).hexdigest()[:32]
