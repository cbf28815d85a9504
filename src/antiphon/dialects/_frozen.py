"""Dicts, lists and sets that cannot be changed: `json.dumps` writes them, and a change raises instead of being lost."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from typing_extensions import override


def frozen(value: Any) -> Any:
    """Return a copy of a value in which no dict, list or set can be changed."""
    match value:
        case dict():
            return FrozenDict({key: frozen(item) for key, item in cast("dict[str, Any]", value).items()})
        case list():
            return FrozenList(frozen(item) for item in cast("list[Any]", value))
        case tuple():
            return tuple(frozen(item) for item in cast("tuple[Any, ...]", value))
        case set():
            return FrozenSet(cast("set[Any]", value))
        case _:
            return value


def thawed(value: object) -> Any:
    """Return a copy of a value in which every dict, list and set is a plain one."""
    match value:
        case dict():
            return {key: thawed(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [thawed(item) for item in cast("list[Any]", value)]
        case tuple():
            return tuple(thawed(item) for item in cast("tuple[Any, ...]", value))
        case FrozenSet():
            return set(cast("set[Any]", value))
        case _:
            return value


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "a value returned by a message is read-only, and a change of a copy does not reach it: "
        "assign a new value, such as `message.metadata = {**message.metadata, 'key': 1}`, or make a new message"
    )


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed. `copy()` returns a plain one, all the way down."""

    __slots__ = ()

    @override
    def __setitem__(self, key: str, value: object) -> NoReturn:
        _refuse()

    @override
    def __delitem__(self, key: str) -> NoReturn:
        _refuse()

    @override
    def __ior__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def clear(self) -> NoReturn:
        _refuse()

    @override
    def pop(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def popitem(self) -> NoReturn:
        _refuse()

    @override
    def setdefault(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def update(self, *args: object, **changes: object) -> NoReturn:
        _refuse()

    @override
    def copy(self) -> dict[str, Any]:
        return cast("dict[str, Any]", thawed(self))

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return self.copy()

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return frozen, (self.copy(),)


class FrozenList(list[Any]):
    """A list that cannot be changed. `copy()` returns a plain one, all the way down."""

    __slots__ = ()

    @override
    def __setitem__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def __delitem__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def __iadd__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def __imul__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def append(self, value: object) -> NoReturn:
        _refuse()

    @override
    def clear(self) -> NoReturn:
        _refuse()

    @override
    def extend(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def insert(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def pop(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def remove(self, value: object) -> NoReturn:
        _refuse()

    @override
    def reverse(self) -> NoReturn:
        _refuse()

    @override
    def sort(self, *args: object, **how: object) -> NoReturn:
        _refuse()

    @override
    def copy(self) -> list[Any]:
        return cast("list[Any]", thawed(self))

    def __copy__(self) -> list[Any]:
        return self.copy()

    def __deepcopy__(self, memo: object) -> list[Any]:
        return self.copy()

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return frozen, (self.copy(),)


class FrozenSet(set[Any]):
    """A set that cannot be changed. `copy()` returns a plain one, all the way down."""

    __slots__ = ()

    @override
    def __iand__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def __ior__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def __isub__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def __ixor__(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def add(self, value: object) -> NoReturn:
        _refuse()

    @override
    def clear(self) -> NoReturn:
        _refuse()

    @override
    def difference_update(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def discard(self, value: object) -> NoReturn:
        _refuse()

    @override
    def intersection_update(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def pop(self) -> NoReturn:
        _refuse()

    @override
    def remove(self, value: object) -> NoReturn:
        _refuse()

    @override
    def symmetric_difference_update(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def update(self, *args: object) -> NoReturn:
        _refuse()

    @override
    def copy(self) -> set[Any]:
        return cast("set[Any]", thawed(self))

    def __copy__(self) -> set[Any]:
        return self.copy()

    def __deepcopy__(self, memo: object) -> set[Any]:
        return self.copy()

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return frozen, (self.copy(),)
