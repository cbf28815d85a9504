"""The identity of a prompt: a hash of its content, without the times and ids that differ from run to run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import chain
from operator import attrgetter, is_
from typing import Any, cast

import orjson
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from antiphon.agents._secrets import Unit

_SECRET_SETTINGS = frozenset({"extra_headers"})
"""Settings that may carry credentials: only their names are stored."""
_FIXED = frozenset({str, int, float, bool, type(None), datetime})
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_fields_of = cast("Callable[[object], Unit]", attrgetter("__dict__"))
_values_of = Unit.values


def dump(messages: Sequence[ModelMessage]) -> list[Unit]:
    """Return messages of Pydantic AI as JSON."""
    return cast("list[Unit]", ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


class HashedPrompt:
    """A prompt as JSON, with a digest of each of its messages.

    A prompt is mostly the one before it and a bit more: messages that were read then are read again only if they changed.
    """

    def __init__(self, messages: Sequence[ModelMessage], before: HashedPrompt | None = None) -> None:
        known = {} if before is None else {id(each.message): each for each in before._read}
        found = [known.get(id(message)) for message in messages]
        kept = [each if each is not None and each.is_as_read() else None for each in found]
        new = iter(dump([message for message, each in zip(messages, kept, strict=True) if each is None]))
        self._read: list[_Read] = [each or _Read(message, next(new)) for message, each in zip(messages, kept, strict=True)]

    @property
    def units(self) -> list[Unit]:
        """Its messages as JSON."""
        return [each.unit for each in self._read]

    @property
    def hash(self) -> str:
        """Its identity: the same for the same content."""
        return _digest([each.identity for each in self._read])

    def marks(self) -> list[str]:
        """Return the mark of each message in its thread; the same content said twice has two.

        The mark of a request is made of its content and the run in which it first occurs; that of an answer of its author and
        time, because its content may be redacted on its way into the thread.
        """
        counts: dict[str, int] = {}
        marks: list[str] = []
        for each in self._read:
            count = counts[each.known_by] = counts.get(each.known_by, 0) + 1
            marks.append(each.mark(count))
        return marks

    def mark_after(self, answer: Unit) -> str:
        """Return the mark of the answer to this prompt, as `marks` of the next prompt returns it."""
        known_by = _known_by(answer, "")
        return _digest([known_by, 1 + sum(each.known_by == known_by for each in self._read)])


class _Read:
    """A message that was read, and its state then: the program may change it later."""

    __slots__ = ("_inner", "_inner_read", "_mark", "_seen", "identity", "known_by", "message", "unit")

    def __init__(self, message: ModelMessage, unit: Unit) -> None:
        digest = _digest(_said(unit))
        self.message = message
        self.unit = unit
        self.identity = [digest, unit.get("instructions") or None]
        self.known_by = _known_by(unit, digest)
        self._mark = (0, "")
        self._seen = _seen(message)
        self._inner, self._inner_read = _changeable(message, unit)

    def is_as_read(self) -> bool:
        """Whether nothing has changed that the hash depends on. That is faster than reading it again."""
        seen = _seen(self.message)
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            return False
        return not self._inner or (self._inner_read is not None and _text(self._inner) == self._inner_read)

    def mark(self, count: int) -> str:
        """Return its mark as the first, second … message of the same content."""
        if self._mark[0] != count:
            self._mark = (count, _digest([self.known_by, count]))
        return self._mark[1]


def _seen(message: ModelMessage) -> list[Any]:
    """Return the objects that a message consists of: fields, parts and their fields. Not all can be compared by value."""
    parts = message.parts
    return [*vars(message).values(), *parts, *chain.from_iterable(map(_values_of, map(_fields_of, parts)))]


def _changeable(message: ModelMessage, unit: Unit) -> tuple[list[Any], bytes | None]:
    """Return the mutable values in the parts of a message, such as lists, and their state when they were read."""
    found = [
        (value, read.get(name))
        for part, read in zip(message.parts, unit["parts"], strict=True)
        for name, value in vars(part).items()
        if type(value) not in _FIXED
    ]
    return [value for value, _ in found], _text([read for _, read in found])


def _text(values: list[Any]) -> bytes | None:
    """Return values as text, to compare them; None if that is impossible."""
    try:
        return orjson.dumps(values)
    except TypeError:
        return None


def mark_of(unit: Unit) -> str:
    """Return the mark of a single message."""
    return _digest([_known_by(unit, _digest(_said(unit))), 1])


def _known_by(unit: Unit, digest: str) -> str:
    if unit["kind"] == "response":
        return f"response@{unit.get('timestamp')}@{unit.get('model_name')}@{len(unit['parts'])}"
    return f"{digest}@{unit.get('run_id')}"


def tools_hash(parameters: ModelRequestParameters) -> str:
    """Return a hash of the tools that a model may call and of the form of its answer."""
    tools = [_tool(tool) for tool in (*parameters.function_tools, *parameters.output_tools)]
    return _digest([tools, parameters.output_mode, parameters.allow_text_output])


def plain_settings(settings: ModelSettings | None) -> Unit:
    """Return the settings of a request as JSON: only the type of what is not JSON, nothing of what may be secret."""
    plain = cast("Unit", to_jsonable_python(dict(settings or {}), fallback=lambda value: type(value).__qualname__))
    return {name: True if name in _SECRET_SETTINGS else value for name, value in plain.items()}


def _said(unit: Unit) -> list[Any]:
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
