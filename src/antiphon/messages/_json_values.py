"""JSON values: checked once, stored privately, returned as frozen views.

Arguments, results, data parts and metadata hold JSON only. A value has three forms:

- the caller's: any Python value that is plain JSON. `own` copies it, so later changes of the caller do not affect ours;
- the stored one: either `bytes` (JSON text that was not parsed yet) or the parsed value. No JSON value is `bytes`, so the two
  cannot be confused. Text is not parsed before it is needed, because writing it again is only a copy;
- the returned one: a scalar, or for an object or array a `JsonObject` or `JsonArray`, which cannot be changed.

The fast path of `own` and `parse` is orjson. It differs from exact JSON in five cases: it writes NaN and infinity as `null`,
refuses to write integers beyond 64 bits, reads them as floats, takes the last of duplicate keys, and nests deeper than we
allow. Each case is detected cheaply, and then the slow path decides: plain Python, which knows the path of an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias, cast, overload
from uuid import UUID

import orjson
from pydantic_core import to_json
from typing_extensions import override

from antiphon.messages._settings import NO_LIMITS, Limits, current_limits

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    """Any JSON value, as Python types it."""
else:
    Json = Any  # Pydantic uses this one; `JsonField` decides which values are valid

_INT_DIGITS = 4300
"""The most digits of an integer: the default of Python's own guard against quadratic conversion."""
_INT_BOUND = 10**_INT_DIGITS

_CONTAINERS = (dict, list, tuple)
_NEVER_NULL = frozenset({str, int, bool})
"""The types that orjson never writes as `null`; their subclasses are not included, because they need more checks."""

_INDENTED = 16_384
"""The depth of a text of up to this many bytes is found by indenting it; for a longer text that takes too much memory."""

_TOO_DEEP = "nested too deep to be read"

_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


Path: TypeAlias = tuple[str | int, ...]


class JsonError(ValueError):
    """A value or text is not valid JSON for us. It has the reason and the path. Callers turn it into a public error."""

    def __init__(self, reason: str, path: Path = ()) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path


# ---------------------------------------------------------------- returned values

_READ_ONLY: Final = (
    "a value in a message cannot be changed: change a copy, `copy = thaw(message.metadata)`, "
    "and make a new message with it, `message.model_copy(update={'metadata': copy})`"
)


class _ReadOnly:
    """Refuses what a `dict` or a `list` allows, and names the remedy."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker refuses it anyway

        def __setitem__(self, key: object, value: object) -> None:
            raise TypeError(_READ_ONLY)

        def __delitem__(self, key: object) -> None:
            raise TypeError(_READ_ONLY)

        def __getattr__(self, name: str) -> object:
            unknown = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(_READ_ONLY if hasattr(dict, name) or hasattr(list, name) else unknown)


class JsonObject(_ReadOnly, Mapping[str, "Json"]):
    """A JSON object that cannot be changed. It is equal to a `dict` of the same content; `thaw` returns a copy as a `dict`."""

    __slots__ = ("__value",)

    def __init__(self, value: dict[str, Any]) -> None:
        self.__value = value

    @override
    def __getitem__(self, key: str) -> Json:
        value: Json = freeze(self.__value[key])
        return value

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.__value)

    @override
    def __len__(self) -> int:
        return len(self.__value)

    @override
    def __contains__(self, key: object) -> bool:
        return key in self.__value

    @override
    def __eq__(self, other: object) -> bool:
        return same(self.__value, other) if isinstance(other, Mapping) else NotImplemented

    @override
    def __hash__(self) -> int:
        return hash(canonical(self.__value))

    @override
    def __repr__(self) -> str:
        return repr(self.__value)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _view, (write(self.__value),)

    def _plain(self) -> dict[str, Any]:
        return self.__value


class JsonArray(_ReadOnly, Sequence["Json"]):
    """A JSON array that cannot be changed. It is equal to a `list` of the same content; `thaw` returns a copy as a `list`."""

    __slots__ = ("__value",)

    def __init__(self, value: list[Any]) -> None:
        self.__value = value

    @overload
    def __getitem__(self, index: int) -> Json: ...
    @overload
    def __getitem__(self, index: slice) -> JsonArray: ...
    @override
    def __getitem__(self, index: int | slice) -> Json | JsonArray:
        value: Json | JsonArray = freeze(self.__value[index])
        return value

    @override
    def __len__(self) -> int:
        return len(self.__value)

    @override
    def __eq__(self, other: object) -> bool:
        return same(self.__value, other) if isinstance(other, JsonArray | list) else NotImplemented

    @override
    def __hash__(self) -> int:
        return hash(canonical(self.__value))

    @override
    def __repr__(self) -> str:
        return repr(self.__value)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _view, (write(self.__value),)

    def _plain(self) -> list[Any]:
        return self.__value


def _view(text: bytes) -> Json:
    return cast("Json", freeze(parse(text)))


def freeze(value: object) -> Any:
    """Return a frozen view of a parsed value."""
    if type(value) is dict:
        return JsonObject(cast("dict[str, Any]", value))
    if type(value) is list:
        return JsonArray(cast("list[Any]", value))
    return value


def plain(value: object) -> Any:
    """Return the value behind a view, without a copy; any other value unchanged. The caller must not change the result."""
    if type(value) is JsonObject or type(value) is JsonArray:
        return value._plain()  # pyright: ignore[reportPrivateUsage]
    return value


def thaw(value: Json) -> Any:
    """Return a copy of a JSON value as plain dicts and lists, which the caller may change.

    Raises:
        ValueError: it is not JSON.
    """
    if type(value) is JsonObject or type(value) is JsonArray:
        with suppress(TypeError):  # an integer beyond 64 bits
            return orjson.loads(orjson.dumps(plain(value)))
    return unpacked(own(value, limits=NO_LIMITS))


def unpacked(stored: object) -> Any:
    """Return a stored value, parsed."""
    return orjson.loads(stored) if type(stored) is bytes else stored


def same(parsed: Any, other: Any) -> bool:
    """Whether a parsed value and any other value have the same JSON content."""
    try:
        return canonical(parsed) == canonical(unpacked(own(other, limits=NO_LIMITS)))
    except JsonError:
        return False


# ---------------------------------------------------------------- what we take in


def own(value: Any, room: int = 0, limits: Limits | None = None) -> Any:
    """Check a caller's value, and return it in its stored form. `room` is how much deeper than the limit it may be nested.

    Raises:
        JsonError: it is not JSON, or exceeds a limit; the error has the path.
    """
    if type(value) is str:
        return value if value.isascii() else _clean_text(value, ())
    if value is None:
        return value
    limits, value = limits or current_limits(), plain(value)
    try:
        text = orjson.dumps(value, None, _STRICT)
    except TypeError:
        return copy_checked(value, limits, room)
    nulls = text.count(b"null")
    if not fits(text, value, limits, room) or (nulls and _may_hide_nan(value, nulls)):
        return copy_checked(value, limits, room)
    return text if text[:1] in b"{[" else orjson.loads(text)


def _may_hide_nan(value: object, nulls: int) -> bool:
    """Whether NaN or infinity, which orjson writes as `null`, may be in a value whose text has `nulls` times "null".

    If it returns True, the caller must check exactly. It searches level by level, and ends as soon as it has found a None for
    each "null"; most are near the top. ("null" inside a text only makes the search longer.)
    """
    level: list[Any] = [value]
    while level:
        inner: list[Any] = []
        for node in level:
            if node is None:
                nulls -= 1
            elif type(node) is dict:
                inner += cast("dict[str, Any]", node).values()
            elif type(node) is list or type(node) is tuple:
                inner += node
            elif type(node) not in _NEVER_NULL and not (type(node) is float and isfinite(node)):
                return True
        if not nulls:
            return False
        level = inner
    return False


def fits(text: bytes, value: object, limits: Limits, room: int = 0) -> bool:
    """Whether a value with this text is certainly within the limits of depth and nodes. If not, the caller must check exactly.

    A node takes at least a byte and a comma, a container two brackets. In indented text, a line that is indented by the
    limit shows a value inside the deepest allowed container.
    """
    return len(text) <= 2 * limits.nodes and is_shallow(text, value, limits.depth + room)


def is_shallow(text: bytes, value: object, depth: int) -> bool:
    """Whether a value with this text is certainly not nested deeper than `depth`. If not, the caller must check exactly."""
    if len(text) <= 2 * depth:
        return True
    # With no more opening brackets than allowed levels, it cannot be deeper. (Removing a byte is quicker than counting it.)
    if len(text) - len(text.replace(b"{", b"").replace(b"[", b"")) <= depth:
        return True
    if len(text) > _INDENTED:
        return _depth(value, depth + 1) <= depth
    return b"\n" + b"  " * depth not in write(value, _STRICT | orjson.OPT_INDENT_2)


def _depth(value: object, most: int) -> int:
    """Return the depth of a value, level by level, at most `most`."""
    level: list[Any] = [value]
    for depth in range(most):
        containers = [node for node in level if type(node) in _CONTAINERS]
        inner: list[Iterable[Any]] = [
            cast("dict[str, Any]", node).values() if type(node) is dict else node for node in containers
        ]
        if not inner:
            return depth
        level = [node for values in inner for node in values]
    return most


def copy_checked(value: object, limits: Limits, room: int = 0) -> Any:
    """Return a plain copy of a caller's value, checked node by node."""
    return _Copier(limits, room).copy(value, ())


class _Copier:
    """The slow path of `own`: it checks every node, and knows the path."""

    def __init__(self, limits: Limits, room: int) -> None:
        self._limits = limits
        self._depth = limits.depth + room
        self._nodes = limits.nodes

    def copy(self, value: object, path: Path) -> Any:
        self._nodes -= 1
        if self._nodes < 0:
            _refuse(f"more than {self._limits.nodes} values; store large data as media", path)
        value = plain(value)
        value = value.value if isinstance(value, Enum) else value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _clean_text(value, path)
        if isinstance(value, int):
            if not -_INT_BOUND < value < _INT_BOUND:
                _refuse(f"an integer of more than {_INT_DIGITS} digits; store it as text", path)
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value) if isfinite(value) else _refuse(f"{value} is not JSON; use None or text", path)
        if isinstance(value, UUID):
            return str(value)
        return self._container(value, path)

    def _container(self, value: object, path: Path) -> Any:
        if not isinstance(value, dict | list | tuple):
            _refuse(f"{type(value).__name__} is not JSON; convert it to text, a number, a list or a dict", path)
        if len(path) >= self._depth:
            _refuse(f"nested deeper than {self._limits.depth} (or in itself); flatten it", path)
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
            return {_clean_key(key, path): self.copy(child, (*path, str(key))) for key, child in items}
        return [self.copy(child, (*path, index)) for index, child in enumerate(cast("list[Any]", value))]


def _clean_key(key: object, path: Path) -> str:
    key = key.value if isinstance(key, Enum) else key
    if not isinstance(key, str):
        _refuse(f"the key {key!r} is not text; JSON keys are", path)
    return _clean_text(key, path)


def _clean_text(value: str, path: Path) -> str:
    value = str.__str__(value)  # turns an instance of a subclass into a plain `str`
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        _refuse(f"a lone surrogate (U+{ord(value[exc.start]):04X}) at character {exc.start}; it is no Unicode text", path)
    return value


def _refuse(reason: str, path: Path) -> NoReturn:
    raise JsonError(reason, path)


# ---------------------------------------------------------------- text


def parse(text: bytes) -> Any:
    """Parse JSON text from outside. Depth and size are not checked: see `fits`.

    Raises:
        JsonError: it is not JSON in UTF-8, or has a duplicate key.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        if "infinity" in exc.msg:
            return _parse_slowly(text)  # an integer of more than 308 digits, or really too large
        if text[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in text[:4]:
            raise JsonError("not UTF-8 (it looks like UTF-16 or UTF-32); encode it as UTF-8") from None
        raise JsonError(f"not JSON: {exc}") from None
    # Text that orjson would write the same has no duplicate key and no integer that it reads as a float.
    try:
        if orjson.dumps(value) == text:
            return value
    except TypeError:
        raise JsonError(_TOO_DEEP) from None  # orjson reads four times deeper than it writes
    del value
    return _parse_slowly(text)


def _parse_slowly(text: bytes) -> Any:
    """Parse with the standard library: exact, but it accepts some text that orjson refuses. So `parse` tries orjson first."""
    hooks: dict[str, Any] = {
        "object_pairs_hook": _unique,
        "parse_int": _exact_int,
        "parse_float": _finite_float,
        "parse_constant": _no_constant,
    }
    try:
        value = json.loads(text.decode(), **hooks)
        _refuse_duplicates(value, ())
        write(value)
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    except (json.JSONDecodeError, TypeError) as exc:
        raise JsonError(f"not JSON: {exc}") from None
    return value


class _Twice(dict[str, Any]):
    """An object with a duplicate key."""

    key = ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    marked = _Twice(fields)
    counts = Counter(key for key, _ in pairs)
    marked.key = next(key for key, count in counts.items() if count > 1)
    return marked


def _refuse_duplicates(value: object, path: Path) -> None:
    """Refuse the first object that has a duplicate key."""
    if isinstance(value, _Twice):
        _refuse(f"the key {value.key!r} stands twice in one object", path)
    if isinstance(value, dict):
        for key, child in cast("dict[str, Any]", value).items():
            _refuse_duplicates(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(cast("list[Any]", value)):
            _refuse_duplicates(child, (*path, index))


def _no_constant(text: str) -> NoReturn:
    raise JsonError(f"not JSON: {text}; use null or text")


def _finite_float(text: str) -> float:
    if not isfinite(value := float(text)):
        raise JsonError(f"the number {text[:20]} is too large; store it as text")
    return value


def _exact_int(text: str) -> int:
    if len(text.lstrip("-")) > _INT_DIGITS:
        raise JsonError(f"an integer of more than {_INT_DIGITS} digits")
    try:
        return int(text)
    except ValueError:
        raise JsonError("an integer of more digits than this Python is set to read") from None


def write(value: Any, option: int = 0) -> bytes:
    """Return a parsed value as text in the house format: as orjson writes it, with exact integers of any size."""
    try:
        return orjson.dumps(value, None, option)
    except TypeError:
        return orjson.dumps(with_big_ints(value), None, option)


def with_big_ints(value: object) -> Any:
    """Return a parsed value in which each integer beyond 64 bits is a fragment of text: orjson cannot write it itself."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(value))
    if type(value) is dict:
        return {key: with_big_ints(child) for key, child in cast("dict[str, Any]", value).items()}
    if type(value) is list:
        return [with_big_ints(child) for child in cast("list[Any]", value)]
    return value


def canonical(value: Any) -> bytes:
    """Return a text that is equal for equal content, independent of the order of keys; `1`, `1.0` and `True` differ."""
    return write(value, orjson.OPT_SORT_KEYS)


def as_text(value: object) -> str:
    """Return a value as text for a model or a person: a text unchanged, anything else as JSON; what is no JSON, by `str`."""
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()
