"""Cutting: shortens a text or a JSON value that is too large to be stored to a number of bytes, and marks the cut.

The size of a tool's result or of an exception's text is not known beforehand. If it is too large, this part is kept:

- of a text, the beginning;
- of an object or a short array, all small items; the large ones share the rest of the space;
- of a long array, the first items, uncut;
- below the deepest allowed level, nothing.

Each mark says how much there was: `… [cut after 1,000 of 50,000,000 characters]`. Cutting is deterministic, and cutting a cut
value again changes nothing.

The time is linear. First as many values are copied as a message may have (`_Copy`). Then each value is measured once
(`_Sizes`), and cut from the top down (`_Cut`). A value that is not JSON is left unchanged: the constructor of the message
refuses it, and names its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, cast

import orjson

from antiphon.messages._json_values import JsonArray, JsonObject, plain
from antiphon.messages._model import WORST
from antiphon.messages._settings import current_limits

_LEAST: Final = 128
"""The least bytes for a value: enough for a mark."""
_FEW: Final = 32
"""The most items of an array that share the space; of a longer array the first items are kept, uncut."""
_KEY: Final = "[cut]"
"""The key of the mark in an object from which keys were removed."""
_DEEP: Final = "[cut: nested too deep]"
_SHORT: Final = "[cut]"
_DIGITS_PER_BIT: Final = 0.302

_Container: TypeAlias = "dict[str, Any] | list[Any]"
_CONTAINERS: Final = (dict, list, tuple, JsonObject, JsonArray)


def cut_text(text: str, most: int) -> str:
    """Return a text that takes at most `most` bytes as JSON; if it is cut, it ends in a mark."""
    if WORST * len(text) + 2 <= most or (len(text) <= most and _text_size(text) <= most):
        return text
    mark = "… [cut after {:,} of {:,} characters]"
    room = most - _text_size(mark.format(len(text), len(text)))
    if room < 1:
        return _SHORT
    beginning = _beginning(text, room)
    return beginning + mark.format(len(beginning), len(text))


def cut(value: object, most: int) -> Any:
    """Return a JSON value that takes at most `most` bytes, and has no more values and levels than the limits allow.

    A value that fits is returned unchanged. If `most` is below 128, 128 is used.
    """
    value, most = plain(value), max(most, _LEAST)
    if type(value) is str:
        return cut_text(value, most)
    if type(value) not in _CONTAINERS:
        return value
    limits = current_limits()
    copy = _Copy(limits.nodes - 1)
    copied = copy.of(value, limits.depth)
    if not copy.is_whole:
        copy = _Copy(limits.nodes - 1 - limits.depth)  # with room for a mark at each level
        copied = copy.of(value, limits.depth)
    sizes = _Sizes(copy.counts, most)
    if copy.is_whole and sizes.of(copied) <= most:
        return value
    return _Cut(copy.counts, sizes).of(copied, most)


# ---------------------------------------------------------------- text


def _text_size(text: str) -> int:
    try:
        return len(orjson.dumps(text))
    except TypeError:  # a lone surrogate
        return WORST * len(text) + 2


def _beginning(text: str, most: int) -> str:
    """Return the longest beginning of a text that takes at most `most` bytes, not counting the quotes."""
    low, high = 0, min(len(text), most)
    while low < high:
        middle = (low + high + 1) // 2
        if _text_size(text[:middle]) - 2 <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low]


# ---------------------------------------------------------------- as many values, and as deep, as is allowed


class _Copy:
    """Copies a value, up to the number of values that is allowed."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.is_whole = True
        self.counts: dict[int, int] = {}
        """For containers that were copied in part, by the id of the copy: how many items the original has."""

    def of(self, value: object, depth: int) -> Any:
        """Return a copy that is at most `depth` levels deep."""
        if type(value) not in _CONTAINERS:
            return value
        if not value:
            return {} if isinstance(value, dict | JsonObject) else []
        if depth < 1 or self._room < 1:
            self.is_whole = False
            return _DEEP if depth < 1 else _SHORT
        return self._container(plain(value), depth)

    def _container(self, value: _Container, depth: int) -> _Container:
        copy: _Container = {} if isinstance(value, dict) else []
        for key, child in _children(value, self._taken(len(value))):
            _put(copy, key, self.of(child, depth - 1))
        if len(copy) < len(value):
            self.is_whole = False
            self.counts[id(copy)] = len(value)
        return copy

    def _taken(self, count: int) -> Iterator[None]:
        """Yield once for each item to copy: all items of a small container, and of a large one as many as there is room."""
        if count <= _FEW:
            taken = min(count, self._room)
            self._room -= taken
            yield from [None] * taken
            return
        while self._room > 0:
            self._room -= 1
            yield


def _children(container: _Container, taken: Iterable[None] | None = None) -> Iterator[tuple[Any, Any]]:
    items = container.items() if isinstance(container, dict) else enumerate(container)
    return iter(items) if taken is None else (item for item, _ in zip(items, taken, strict=False))


def _put(container: _Container, key: Any, child: Any) -> None:
    if isinstance(container, dict):
        container[key] = child
    else:
        container.append(child)


# ---------------------------------------------------------------- as many bytes as is allowed


class _Sizes:
    """The sizes of values as JSON, including the marks of containers. Each value is measured once.

    A text that certainly takes more than `most` bytes is not measured exactly.
    """

    def __init__(self, counts: dict[int, int], most: int) -> None:
        self._counts = counts
        self._most = most
        self._measured: dict[int, int] = {}

    def of(self, value: object) -> int:
        if type(value) is str:
            return len(value) if len(value) > self._most else _text_size(value)
        if type(value) is not dict and type(value) is not list:
            return _scalar_size(value)
        container = cast("_Container", value)
        size = self._measured.get(id(container))
        if size is None:
            size = 2 + sum([_key_size(key) + self.of(child) for key, child in _children(container)])
            size = self._measured[id(container)] = size + (_LEAST if id(container) in self._counts else 0)
        return size


def _scalar_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value.bit_length() * _DIGITS_PER_BIT) + 2
    try:
        return len(orjson.dumps(value))
    except TypeError:  # no JSON, and soon refused
        return _LEAST


def _key_size(key: object) -> int:
    """Return the bytes that an item takes besides its value: its key and a comma."""
    return _text_size(key) + 2 if isinstance(key, str) else 1


class _Cut:
    """Cuts a copy."""

    def __init__(self, counts: dict[int, int], sizes: _Sizes) -> None:
        self._counts = counts
        self._sizes = sizes

    def of(self, value: object, most: int) -> Any:
        """Return a value, cut to `most` bytes."""
        if type(value) is str:
            return cut_text(value, most)
        if type(value) is not dict and type(value) is not list:
            return value if self._sizes.of(value) <= most else _SHORT
        container = cast("_Container", value)
        result: _Container = {} if isinstance(container, dict) else []
        for key, child, room in self._rooms(container, most):
            _put(result, key, self.of(child, room))
        count, length = self._counts.get(id(container), len(container)), len(result)
        if length < count and isinstance(result, dict):
            result[_KEY] = f"after {length:,} of {count:,} keys"
        elif length < count:
            _put(result, length, f"[cut after {length:,} of {count:,} items]")
        return result

    def _rooms(self, container: _Container, most: int) -> Iterator[tuple[Any, Any, int]]:
        """Return the items to keep, each with the bytes that it may take."""
        if self._sizes.of(container) <= most:
            return ((key, child, most) for key, child in _children(container))
        if isinstance(container, list) and len(container) > _FEW:
            return self._first(container, most - _LEAST)
        return self._shared(container, most - _LEAST)

    def _first(self, container: _Container, room: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield the first items that fit, and the beginning of the next one."""
        for key, child in _children(container):
            room -= _key_size(key)
            size = self._sizes.of(child)
            if room < min(size, _LEAST):
                return
            yield key, child, room
            room -= size

    def _shared(self, container: _Container, room: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield as many items as can get the least size, each with its share."""
        items: list[tuple[Any, Any]] = []
        least = room
        for key, child in _children(container):
            least -= _key_size(key) + min(_LEAST, self._sizes.of(child))
            if least < 0:
                break
            items.append((key, child))
            room -= _key_size(key)
        share = _share([self._sizes.of(child) for _, child in items], room)
        for key, child in items:
            yield key, child, share


def _share(sizes: list[int], room: int) -> int:
    """Return the largest size for each item so that all fit: items that need less leave their rest to the others."""
    share = 0
    for number, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - number)
        if size > share:
            break
        room -= size
    return share
