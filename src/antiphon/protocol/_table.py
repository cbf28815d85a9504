"""The one table of message types: which there are, the model of each one's data, and what answers it.

A row is written by declaring a class (see `Request`), nowhere else. The classes of `_catalogue.py` declare what the protocol
has; a program adds its own types in the same way, and validation and response types know them from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from antiphon.protocol._data import Notice, Reply, Request
    from antiphon.protocol._open import Open

    SaidClass: TypeAlias = type[Request[Any]] | type[Notice]
    ReplyClass: TypeAlias = type[Reply]

__all__ = ["Entry", "add_entry", "add_model", "entries", "find_entry", "find_model", "response_type_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: a type that can be sent, and its answer."""

    type: str
    family: str
    """What it is about: thread, phase, agent, system, error or talk; `other` for a program's own types."""
    data: SaidClass
    """The model of its data."""
    response_type: str | None
    """None where no answer is due."""
    response: ReplyClass | None
    """The model of the answer's data; `Reply` itself where that can be anything."""


_ENTRIES: dict[str, Entry] = {}
_MODELS: dict[str, type[Open]] = {}
"""The model of the data of every type, answers included."""


def add_model(type: str, model: type[Open]) -> None:
    """Declare which model the data of a type has.

    Raises:
        TypeError: another class has declared that type.
    """
    known = _MODELS.get(type, model)
    if (known.__module__, known.__qualname__) != (model.__module__, model.__qualname__):  # the same class again: a notebook
        owner = f"{known.__module__}.{known.__qualname__}"
        raise TypeError(f"{type} is the type of {owner}; choose another for {model.__qualname__}")
    _MODELS[type] = model


def add_entry(entry: Entry) -> None:
    """Declare a type that can be sent.

    Raises:
        TypeError: another class has declared that type.
    """
    add_model(entry.type, entry.data)
    _ENTRIES[entry.type] = entry


def entries() -> tuple[Entry, ...]:
    """Return all rows, in the order of their declaration."""
    return tuple(_ENTRIES.values())


def find_entry(type: str) -> Entry | None:
    """Return the row of a type that can be sent; None for an answer's type and for one nobody has declared."""
    return _ENTRIES.get(type)


def find_model(type: str) -> type[Open] | None:
    """Return the model of a type's data; None for a type that nobody has declared."""
    return _MODELS.get(type)


def response_type_of(type: str) -> str:
    """Return the type of the answer: the declared one, else the type with `_RESPONSE` after it."""
    entry = _ENTRIES.get(type)
    return entry.response_type if entry and entry.response_type else f"{type}_RESPONSE"
