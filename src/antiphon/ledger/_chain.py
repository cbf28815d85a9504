"""Records and their hash chain: a message as the ledger holds it, with its place, its link and its time.

Each link is the SHA-256 of the previous link, the time of recording and the message's stored bytes. The link before the first
is the hash of the thread's id. So a changed bit, a missing row and swapped rows all break the chain at a known place. A head
that is kept elsewhere also reveals that the end of a thread was removed. A branch continues the chain of its origin.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

from typing_extensions import override

from antiphon.messages import NO_LIMITS, Message, loads

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def genesis(thread_id: str) -> bytes:
    """Return the hash before the first link of a thread."""
    return sha256(b"antiphon thread\n" + thread_id.encode()).digest()


def link(previous: bytes, recorded_at: int, body: bytes) -> bytes:
    """Return the next link."""
    digest = sha256(previous + recorded_at.to_bytes(8, "big", signed=True))
    digest.update(body)
    return digest.digest()


def snapshot_hash(link: bytes, fold: str, state: bytes) -> bytes:
    """Return the hash that proves a snapshot: of the link of its last message, the name of its fold, and its state."""
    return sha256(link + fold.encode() + b"\n" + state).digest()


def to_micros(time: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the time of whole microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


class Record:
    """A message as stored. Two records are equal if their place, bytes, link and time are equal."""

    __slots__ = ("_message", "body", "hash", "recorded_at", "seq", "stored")

    def __init__(
        self,
        seq: int,
        body: bytes,
        hash: str,
        recorded_at: datetime,
        message: Message | None = None,
        *,
        stored: bytes | None = None,
    ) -> None:
        self.seq = seq
        """The place in the thread: 1, 2, 3, … without a gap."""
        self.body = body
        """The message in the house format, byte for byte as it was appended."""
        self.hash = hash
        """SHA-256, in hex, of the link before, the time and the stored bytes."""
        self.recorded_at = recorded_at
        """When the ledger stored it."""
        self._message = message
        self.stored = body if stored is None else stored
        """The bytes that the ledger stores: the body, or in an encrypted thread its sealed form."""

    @property
    def message(self) -> Message:
        """The message. It is decoded at the first access, without limits: they were checked when it was appended.

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
        return (self.seq, self.hash, self.recorded_at, self.stored) == (other.seq, other.hash, other.recorded_at, other.stored)

    @override
    def __hash__(self) -> int:
        return hash((self.seq, self.hash))

    @override
    def __repr__(self) -> str:
        return f"<Record {self.seq}: {self.message.kind} of {self.message.policy!r}>"
