"""Values as JSON and back: a type that JSON does not have is written with a tag from a closed list.

A tag is an object with exactly these keys, and `type` only in the last row:

| written | comes back as |
|---|---|
| `{"__atlas__": "datetime", "value": "2026-01-01T00:00:00"}`; also `date`, `decimal`, `uuid`, `bytes` (base64) | itself |
| `{"__atlas__": "tuple", "value": [...]}`; also `set` and `frozenset`, whose elements are sorted by their text | itself |
| `{"__atlas__": "dict", "value": {...}}`: a plain object that has the key `__atlas__` of its own | that object |
| `{"__atlas__": "enum", "type": "Colour", "value": "red"}`; also `dataclass`, `model` (Pydantic), `object` | the plain value |

A datetime keeps its offset from UTC, but not the name of its time zone or `fold`, which ISO 8601 cannot express; a named tuple
becomes a tuple. The name of a class is only data: no class is looked up by it. An object that is not exactly a tag is a plain
object, so the tags of a later version pass through unchanged. A message keeps its values in the written form, so type names
survive reading, copying and forwarding.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum, StrEnum
from functools import partial
from math import isfinite
from typing import Any, NoReturn, TypeAlias, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from antiphon.messages import JsonArray
from antiphon.messages._settings import current_limits

# ---------------------------------------------------------------- the standard types of message


class MessageType(StrEnum):
    """The purpose of a message: the value of `metadata["type"]`."""

    QUERY = "query"
    """A question, from a user or an agent."""

    TASK = "task"
    """Work that one agent gives to another."""

    RESPONSE = "response"
    """The answer to a query or a task."""

    RESULT = "result"
    """The final or an intermediate result of a task."""

    ERROR = "error"
    """Something failed."""

    STATUS = "status"
    """Progress."""

    TOOL_REQUEST = "tool_request"
    """Tool calls to run."""

    TOOL_RESPONSE = "tool_response"
    """Results of tools."""


# ---------------------------------------------------------------- values

TAG = "__atlas__"
"""The key that makes an object a tag."""

Path: TypeAlias = tuple[str | int, ...]
Encoders: TypeAlias = Mapping[type[Any], Callable[[Any], Any]]

_INT_BOUND = 10**4300  # Python's own guard against quadratic conversion, as a fixed number
_PLAIN_KEYS = frozenset({TAG, "value"})
_NAMED_KEYS = frozenset({TAG, "type", "value"})
_NAMED = frozenset({"enum", "dataclass", "model", "object"})


class ContentError(ValueError):
    """A value that a message cannot hold, with the reason and the path."""

    def __init__(self, reason: str, path: Path = ()) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    @property
    def where(self) -> str:
        """The place, such as `metadata.items[2].price`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}" if self.path else self.reason


def refuse(reason: str, path: Path) -> NoReturn:
    raise ContentError(reason, path)


# ---------------------------------------------------------------- writing


class Encoder:
    """Turns a caller's values into JSON, as a copy that shares nothing with them.

    `written`: the values are already in the written form (`from_dict`), so an object with the key `__atlas__` stays unchanged,
    and is checked to be readable. The depth limit applies to the written form, so that everything that can be written can be
    read.
    """

    def __init__(self, encoders: Encoders, *, written: bool = False) -> None:
        self._encoders = encoders
        self._written = written
        self._depth = current_limits().depth
        self._open: set[int] = set()

    def value(self, value: Any, path: Path, depth: int = 0) -> Any:
        """Return a value as JSON."""
        encoded = self._value(value, path, depth)
        if self._written:
            decode(encoded, path)
        return encoded

    def fields(self, mapping: Any, path: Path) -> dict[str, Any]:
        """Return an object of which each value is JSON. The object itself is never a tag, whatever its keys."""
        if not isinstance(mapping, Mapping):
            refuse(f"must be a dict, not {type(mapping).__name__}", path)
        with self._inside(cast("object", mapping), path, 0):
            pairs = cast("Mapping[Any, Any]", mapping).items()
            return {(name := _key(key, path)): self.value(item, (*path, name), 1) for key, item in pairs}

    def _value(self, value: object, path: Path, depth: int) -> object:
        if isinstance(value, Enum):
            return self._enum(value, path, depth)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _text(value, path)
        if isinstance(value, int | float):
            return _number(value, path)
        with self._inside(value, path, depth):
            if isinstance(value, Mapping):
                return self._object(cast("Mapping[Any, Any]", value), path, depth)
            if isinstance(value, list | JsonArray):
                return self._array(cast("list[Any]", value), path, depth)
            return self._tagged(value, path, depth)

    @contextmanager
    def _inside(self, value: object, path: Path, depth: int) -> Generator[None]:
        if id(value) in self._open:
            refuse("contains itself; a message is a tree of values", path)
        self._check_room(path, depth)
        self._open.add(id(value))
        try:
            yield
        finally:
            self._open.discard(id(value))

    def _check_room(self, path: Path, depth: int) -> None:
        if depth >= self._depth:
            refuse(f"is nested deeper than {self._depth}; flatten it", path)

    def _object(self, value: Mapping[object, object], path: Path, depth: int) -> dict[str, object]:
        escaped = TAG in value and not self._written
        depth += escaped
        self._check_room(path, depth)
        encoded = {(name := _key(key, path)): self._value(item, (*path, name), depth + 1) for key, item in value.items()}
        return {TAG: "dict", "value": encoded} if escaped else encoded

    def _array(self, value: Iterable[object], path: Path, depth: int) -> list[object]:
        return [self._value(item, (*path, index), depth + 1) for index, item in enumerate(value)]

    def _tagged(self, value: object, path: Path, depth: int) -> object:
        for kind, encode in self._encoders.items():
            if isinstance(value, kind):
                return self._named("object", value, encode(value), path, depth)
        for kind, (tag, write) in _SCALARS.items():
            if isinstance(value, kind):
                return {TAG: tag, "value": write(value, path)}
        if isinstance(value, tuple | set | frozenset):
            return self._collection(cast("tuple[Any, ...]", value), path, depth)
        if isinstance(value, BaseModel):
            return self._named("model", value, _dumped(value, path), path, depth)
        if is_dataclass(value) and not isinstance(value, type):
            plain = {field.name: getattr(value, field.name) for field in fields(value)}
            return self._named("dataclass", value, plain, path, depth)
        return refuse(f"{type(value).__name__} cannot be written as JSON; convert it, or name an encoder for it", path)

    def _enum(self, value: Enum, path: Path, depth: int) -> object:
        if isinstance(value, MessageType):
            return value.value  # an enum of the format itself, which every reader knows as text
        with self._inside(value, path, depth):
            return self._named("enum", value, value.value, path, depth)

    def _named(self, tag: str, value: object, plain: object, path: Path, depth: int) -> dict[str, Any]:
        return {TAG: tag, "type": type(value).__qualname__, "value": self._value(plain, path, depth + 1)}

    def _collection(self, value: Iterable[object], path: Path, depth: int) -> dict[str, object]:
        self._check_room(path, depth + 1)
        encoded = self._array(value, path, depth + 1)
        if isinstance(value, tuple):
            return {TAG: "tuple", "value": encoded}
        _elements(encoded, path)
        tag = "set" if isinstance(value, set) else "frozenset"
        return {TAG: tag, "value": sorted(encoded, key=partial(json.dumps, sort_keys=True))}


def _key(key: object, path: Path) -> str:
    if not isinstance(key, str):
        refuse(f"the key {key!r} is not text; JSON keys are", path)
    return _text(key, path)


def _text(value: str, path: Path) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        refuse(f"a lone surrogate (U+{ord(value[exc.start]):04X}) at character {exc.start}; it is no Unicode text", path)
    return str.__str__(value)


def _number(value: float, path: Path) -> int | float:
    if isinstance(value, int):
        return int(value) if -_INT_BOUND < value < _INT_BOUND else refuse("an integer of more than 4300 digits", path)
    return float(value) if isfinite(value) else refuse(f"{value} is not JSON; use None or text", path)


def _datetime(value: datetime, path: Path) -> str:
    offset = value.utcoffset()
    if offset is not None and offset.microseconds:  # Python 3.11 reads +00:00:00.000001 as +00:00
        refuse("a datetime whose offset from UTC has a fraction of a second; use UTC", path)
    return datetime.isoformat(value)


def _decimal(value: Decimal, path: Path) -> str:
    return str(value) if value.is_finite() else refuse(f"Decimal {value} is not a number; use None or text", path)


_SCALARS: dict[type[Any], tuple[str, Callable[[Any, Path], str]]] = {
    datetime: ("datetime", _datetime),  # before `date`, which it is too
    date: ("date", lambda value, _: date.isoformat(value)),
    Decimal: ("decimal", _decimal),
    UUID: ("uuid", lambda value, _: str(value)),
    bytes: ("bytes", lambda value, _: b64encode(value).decode()),
}


def _dumped(model: BaseModel, path: Path) -> object:
    """Return a model in its own serialised form: fields that it excludes or masks stay so."""
    try:
        return model.model_dump(mode="json")
    except (PydanticSerializationError, ValueError) as exc:
        return refuse(f"{type(model).__name__} cannot be written as JSON: {exc}", path)


# ---------------------------------------------------------------- reading


def decode_fields(encoded: dict[str, Any], path: Path = ()) -> dict[str, Any]:
    """Return an object of values in the written form as values; the object itself is never a tag."""
    return {key: decode(item, (*path, key)) for key, item in encoded.items()}


def decode(encoded: object, path: Path = ()) -> Any:
    """Return a value in the written form as a value that the caller owns."""
    if isinstance(encoded, list):
        return [decode(item, (*path, index)) for index, item in enumerate(cast("list[Any]", encoded))]
    if not isinstance(encoded, dict):
        return encoded
    tagged = cast("dict[str, Any]", encoded)
    tag = _tag_of(tagged)
    if tag is None:
        return decode_fields(tagged, path)
    if tag in _NAMED:
        return decode(tagged["value"], path)
    return _restored(tag, tagged["value"], path)


def _tag_of(encoded: dict[str, object]) -> str | None:
    tag = encoded.get(TAG)
    if not isinstance(tag, str):
        return None
    if tag in _NAMED and encoded.keys() == _NAMED_KEYS and isinstance(encoded["type"], str):
        return tag
    return tag if tag in _EXPECTED and encoded.keys() == _PLAIN_KEYS else None


def _restored(tag: str, value: Any, path: Path) -> Any:
    kind = _EXPECTED[tag]
    if not isinstance(value, kind):
        refuse(f"the value of {tag!r} must be {_CALLED[kind]}, not {type(value).__name__}", path)
    if tag == "dict":
        return decode_fields(value, path)
    if tag in _SCALAR_READERS:
        try:
            return _SCALAR_READERS[tag](value)
        except (ValueError, InvalidOperation):
            refuse(f"{value[:60]!r} is no {tag}", path)
    if tag == "tuple":
        return tuple(decode(value, path))
    elements = _elements(value, path)
    return elements if tag == "frozenset" else set(elements)


def _elements(encoded: list[object], path: Path) -> frozenset[object]:
    """Return the elements of a set, if they survive decoding: each is hashable, and no two are equal."""
    try:
        elements = frozenset(decode(item, (*path, index)) for index, item in enumerate(encoded))
    except TypeError:
        refuse("a set holds something that comes back as a list, set or dict; use a list", path)
    if len(elements) != len(encoded):
        refuse("two elements of a set come back as one; use a list", path)
    return elements


def _read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


_SCALAR_READERS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "decimal": _read_decimal,
    "uuid": UUID,
    "bytes": lambda text: b64decode(text, validate=True),
}
_EXPECTED: dict[str, type[Any]] = {
    **dict.fromkeys(_SCALAR_READERS, str),
    **dict.fromkeys(("tuple", "set", "frozenset"), list),
    "dict": dict,
}
_CALLED: dict[type[Any], str] = {str: "text", list: "a list", dict: "an object"}


def copied(encoded: object) -> object:
    """Return a copy of a value in the written form."""
    if isinstance(encoded, dict):
        return {key: copied(item) for key, item in cast("dict[str, Any]", encoded).items()}
    if isinstance(encoded, list):
        return [copied(item) for item in cast("list[Any]", encoded)]
    return encoded
