"""What a program may replace for a `with` block: the port, where ids and time come from, and the limits of one message.

Nothing else in antiphon asks a clock or a random source: the linter bans it outside this file. So a test or a replay is exact.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import uuid_utils

from antiphon.messages._names import is_name

if TYPE_CHECKING:
    from collections.abc import Generator


# ---------------------------------------------------------------- the port


class Port(Protocol):
    """Where new ids and the time come from."""

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
    """Return a fresh id from the port in use.

    Raises:
        ValueError: the port gave something that is no name.
    """
    made = _port.get().new_id()
    if not is_name(made):
        raise ValueError(f"the port's new_id() must give a name, not {made!r}")
    return made


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
    """What is refused as too much, at construction and by `loads`."""

    message_bytes: int = MIB
    """The house form of one message, in bytes, without the `data:` URLs of its media, and those in the metadata of parts."""

    data_url_bytes: int = 32 * MIB
    """All `data:` URLs of one message together, in bytes."""

    depth: int = 64
    """How many containers may be nested in one JSON value; `{}` has depth 1. Metadata may be 16 deeper.
    At most 200, a little before parsers give up."""

    nodes: int = 100_000
    """How many values one JSON value may be made of: about ten times the input in memory, at the size above."""

    def __post_init__(self) -> None:
        if min(self.message_bytes, self.data_url_bytes, self.nodes) < 0:
            raise ValueError(f"a limit is not negative: {self}")
        if not 1 <= self.depth <= _MOST_DEPTH:
            raise ValueError(f"depth must be 1 to {_MOST_DEPTH}, not {self.depth}")


DEFAULT_LIMITS = Limits()
NO_LIMITS = Limits(message_bytes=2**62, data_url_bytes=2**62, depth=_MOST_DEPTH, nodes=2**62)
"""For stored messages: they were checked when they were made, perhaps under other limits."""

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
