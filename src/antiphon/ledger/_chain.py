"""The hash chain of a thread, and time as it is hashed and stored.

Each link is the SHA-256 of the link before it, the time of recording and the message's bytes; before the first stands the
hash of the thread's own name. So one changed bit, a row taken out and two rows swapped all break the chain at a place that can
be named; and who keeps a head somewhere else also notices a tail that was cut off. A branch goes on from its parent's link.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

__all__ = ["from_micros", "genesis", "link", "to_micros"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def genesis(thread_id: str) -> bytes:
    """Return what stands before the first link of a thread."""
    return sha256(b"antiphon thread\n" + thread_id.encode()).digest()


def link(previous: bytes, recorded_at: int, body: bytes) -> bytes:
    """Return the next link."""
    digest = sha256(previous + recorded_at.to_bytes(8, "big", signed=True))
    digest.update(body)
    return digest.digest()


def to_micros(time: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return what `to_micros` was given."""
    return _EPOCH + timedelta(microseconds=micros)
