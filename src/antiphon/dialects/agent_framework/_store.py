"""BaseMessageStore: the shape of a host's own store of messages, so that one can be plugged in. Nothing here does I/O.

`location` is whatever the host finds messages by: a job, a session, a user. Messages are plain dicts of the format, the oldest
first. Methods may be plain or `async`; a plain one runs in the event loop, so one that may take long should be `async`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

__all__ = ["BaseMessageStore", "Entries", "RecordingMessageStore"]

Entries: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages of the format, in order."""


class BaseMessageStore(Protocol):
    """A store that messages are read from; the host writes it."""

    def get_conversation_messages(self, location: str, limit: int | None = None) -> Entries | Awaitable[Entries]:
        """Return what the user and the assistant have said."""
        ...

    def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> Entries | Awaitable[Entries]:
        """Return what is of one agent."""
        ...

    def get_global_messages(self, location: str, limit: int | None = None) -> Entries | Awaitable[Entries]:
        """Return what was said to all."""
        ...

    def get_team_messages(
        self, location: str, agent_keys: Sequence[str], limit: int | None = None
    ) -> Entries | Awaitable[Entries]:
        """Return what is of some agents, in one order."""
        ...


@runtime_checkable
class RecordingMessageStore(Protocol):
    """A store that also takes what is said."""

    def add_message(self, location: str, message: dict[str, Any]) -> Awaitable[None] | None:
        """Keep a message. The same one may come again: it has the same `message_id`."""
        ...
