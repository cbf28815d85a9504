"""The types of arguments: a wrong one is refused where it comes in, with a sentence that says what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from reprlib import Repr
from types import NoneType
from typing import Any, cast, get_args


class ArgumentTypeError(TypeError):
    """An argument has another type: a mistake of the caller, also where a store finds it in the middle of a read."""


_shown = Repr()
_shown.maxstring = _shown.maxother = 80


def check_type(name: str, value: object, expected: Any, example: str) -> None:
    """Refuse an argument of another type than `expected`, a class or a union of classes."""
    if not isinstance(value, expected):
        kinds = [kind.__name__ for kind in get_args(expected) or (expected,) if kind is not NoneType]
        named = " or ".join(f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}" for kind in kinds)
        raise ArgumentTypeError(f"{name} is {named}, such as {example}, not {_shown.repr(value)}")


def check_each(name: str, values: Any, expected: Any, example: str) -> tuple[Any, ...]:
    """Return the values of a list; refuse one that is no list, or has a value of another type."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise ArgumentTypeError(f"{name} is a list, such as [{example}], not {_shown.repr(values)}")
    items = tuple(cast("Iterable[Any]", values))
    for number, item in enumerate(items):
        check_type(f"{name}[{number}]", item, expected, example)
    return items


def check_choice(name: str, value: str | None, choices: object) -> None:
    """Refuse a value that is not one of the choices."""
    words: tuple[str, ...] = get_args(choices)
    if value is not None and value not in words:
        *others, last = map(repr, words)
        raise ValueError(f"{name} is {', '.join(others)} or {last}, not {value!r}")
