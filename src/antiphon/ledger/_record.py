"""Record: one message as the ledger holds it, with its place, its link in the chain and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from antiphon.messages import Message, loads
from antiphon.messages._limits import NO_LIMITS

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Record"]


class Record:
    """A message as stored. Two records are equal when place, bytes, link and time are."""

    __slots__ = ("_message", "body", "hash", "recorded_at", "seq")

    def __init__(self, seq: int, body: bytes, hash: str, recorded_at: datetime, message: Message | None = None) -> None:
        self.seq = seq
        """The place in the thread: 1, 2, 3, … without a gap."""
        self.body = body
        """The message in the house format, byte for byte as it was appended."""
        self.hash = hash
        """SHA-256, in hex, of the link before, the time and the body."""
        self.recorded_at = recorded_at
        """When the ledger took it in."""
        self._message = message

    @property
    def message(self) -> Message:
        """The message; read from the bytes when first looked at, under no limits: it was let in before.

        Raises:
            NewerVersionError: a later version of antiphon wrote it.
        """
        if self._message is None:
            self._message = loads(self.body, Message, limits=NO_LIMITS)
        return self._message

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.seq, self.hash, self.recorded_at, self.body) == (other.seq, other.hash, other.recorded_at, other.body)

    @override
    def __hash__(self) -> int:
        return hash((self.seq, self.hash))

    @override
    def __repr__(self) -> str:
        return f"<Record {self.seq}: {self.message.kind} of {self.message.policy!r}>"
