"""The one door through which ids and time come in, so that a test or a replay can be exact.

Nothing else in antiphon asks a clock or a random source: the linter bans it outside this file.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import uuid_utils

from antiphon.messages._names import is_name

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Port", "SystemPort", "current_port", "new_id", "use_port"]


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
