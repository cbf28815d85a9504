"""Settings that a program may replace for a `with` block: the port, the source of ids and time; and the limits of a message.

No other file of antiphon reads a clock or a random source: the linter forbids it. So tests and replays are deterministic.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import uuid_utils

from antiphon.messages._arguments import check_type
from antiphon.messages._names import is_name

if TYPE_CHECKING:
    from collections.abc import Generator


# ---------------------------------------------------------------- the port


class Port(Protocol):
    """The source of new ids and of the time."""

    def new_id(self) -> str:
        """Return an id that no other message has."""
        ...

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        ...


class SystemPort:
    """Ids are UUIDv7 (they sort by time), the time is the machine's."""

    def new_id(self) -> str:
        return str(uuid_utils.uuid7())

    def now(self) -> datetime:
        return datetime.now(UTC)


_port: ContextVar[Port] = ContextVar("antiphon_port", default=SystemPort())  # noqa: B039 (has no state)

current_port = _port.get


def new_id() -> str:
    """Return a new id from the current port.

    Raises:
        ValueError: the port returned a value that is not a valid name.
    """
    name = _port.get().new_id()
    if not is_name(name):
        raise ValueError(f"the port's new_id() must return a name, not {name!r}")
    return name


@contextmanager
def use_port(port: Port) -> Generator[Port]:
    """Take ids and time from `port` inside the `with` block (in this task or thread)."""
    token = _port.set(port)
    try:
        yield port
    finally:
        _port.reset(token)


# ---------------------------------------------------------------- limits

MIB = 1024 * 1024
_MOST_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a message, checked at construction and by `loads`."""

    message_bytes: int = MIB
    """The most bytes of a message in the house format, without `data:` URLs of its media and in the metadata of its parts."""

    data_url_bytes: int = 32 * MIB
    """The most bytes of all `data:` URLs of a message together."""

    depth: int = 64
    """How deep containers may be nested in a JSON value; `{}` has depth 1. Metadata may be 16 levels deeper.
    The highest setting is 200, a little below the limit of parsers."""

    nodes: int = 100_000
    """The most values in a JSON value. Parsed, they take up to about ten times the memory of the text."""

    def __post_init__(self) -> None:
        for name in ("message_bytes", "data_url_bytes", "depth", "nodes"):
            check_type(name, getattr(self, name), int, "100")
        if min(self.message_bytes, self.data_url_bytes, self.nodes) < 0:
            raise ValueError(f"a limit is not negative: {self}")
        if not 1 <= self.depth <= _MOST_DEPTH:
            raise ValueError(f"depth must be 1 to {_MOST_DEPTH}, not {self.depth}")


DEFAULT_LIMITS = Limits()
NO_LIMITS = Limits(message_bytes=2**62, data_url_bytes=2**62, depth=_MOST_DEPTH, nodes=2**62)
"""For stored messages: they were checked when they were created, perhaps with other limits."""

_limits: ContextVar[Limits] = ContextVar("antiphon_limits", default=DEFAULT_LIMITS)

current_limits = _limits.get


@contextmanager
def use_limits(limits: Limits) -> Generator[Limits]:
    """Apply other limits to every message made or loaded inside the `with` block (in this task or thread)."""
    token = _limits.set(limits)
    try:
        yield limits
    finally:
        _limits.reset(token)
