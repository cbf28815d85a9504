"""The values of a store: the row of a thread and its checksum, segments and pages of messages, requests, and large media.

**Large media** are removed from a message's stored bytes, stored once by content, and put back when the message is read. The
removed bytes are the inside of a JSON text that begins with `data:`. Only a table of the store records the place; the
remaining bytes have no mark. So a message cannot contain a forged reference, and the remaining bytes are still JSON. Media of
an encrypted thread stay in its sealed bytes: media stored by content would be readable, or shared between keys.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from antiphon.ledger._admission import State
from antiphon.ledger._encryption import is_sealed
from antiphon.ledger._hosts import Host
from antiphon.ledger._listing import summary_of
from antiphon.ledger._records import OpenCall, Record
from antiphon.ledger._values import ThreadSummary
from antiphon.ledger._verification import Examination


class Thread(NamedTuple):
    """A thread's row."""

    key: int
    state: State
    open_calls: int
    base: int | None
    """The thread that holds the messages up to `base_seq`."""
    base_seq: int
    owner: str | None = None
    """The name of the host that owns it, where it was asked for."""

    @property
    def summary(self) -> ThreadSummary:
        """The summary that a caller sees."""
        return summary_of(self.state, self.open_calls, self.owner)


def changed_columns(thread: Thread) -> tuple[Any, ...]:
    """Return the columns of a thread's row that may change, in the order of both databases' statements."""
    state = thread.state
    return (
        *(state.seq, state.hash, state.epoch, state.run, state.open_from, state.status, state.pattern),
        *(state.updated_at, state.input_tokens, state.output_tokens, state.cost, state.owner, state.kind),
        *(state.due_at, state.posted, state.unfit, thread.open_calls),
    )


def checksum_of(columns: Sequence[object]) -> int:
    """Return the checksum of columns that cannot be computed from messages, as a signed number of 32 bits.

    It has no key: it finds accidents and edits by SQL, and not an attacker.
    """
    return crc32(ascii(tuple(columns)).encode()) - 2**31  # as `ascii`: what `repr` escapes depends on the version of Python


OWNERSHIP = State._fields.index("owner")
"""The index of the first field of a state that says who owns the thread and what it has to do; so do all that follow."""


def message_checksum(position: int, digest: bytes) -> int:
    """Return the checksum of a row of `messages`. The row's hash covers everything except the position."""
    return crc32(digest, position & 0xFFFFFFFF) - 2**31


def state_checksum(key: int, state: State) -> int:
    """Return the part of a thread's checksum that most appends do not change."""
    of_thread = (key, state.thread_id, state.epoch, state.status, state.pattern, state.created_at)
    covered = (*of_thread, int(state.is_redacted), *state[OWNERSHIP:])
    return crc32(ascii(covered).encode())  # as `ascii`: what `repr` escapes depends on the version of Python


def thread_checksum(part: int, updated_at: int) -> int:
    """Return the checksum of a row of `threads`: `state_checksum`, and the time."""
    return crc32(updated_at.to_bytes(8, "big", signed=True), part) - 2**31


class ThreadSegment(NamedTuple):
    """A range of a thread's messages that are stored under one key: its own messages, or those of an origin."""

    key: int
    first: int
    last: int


class Ancestor(NamedTuple):
    """A thread in the line from a branch to its oldest origin."""

    key: int
    base: int | None
    base_seq: int
    thread_id: str


def segments_of(thread: Thread, origins: Iterable[Ancestor]) -> list[ThreadSegment]:
    """Return the segments of a thread's messages, from the first to the last; `origins` start with the nearest."""
    segments = [ThreadSegment(thread.key, thread.base_seq + 1, thread.state.seq)]
    last = thread.base_seq
    for origin in origins:
        if origin.base_seq < last:
            segments.append(ThreadSegment(origin.key, origin.base_seq + 1, last))
            last = origin.base_seq
    return [segment for segment in reversed(segments) if segment.first <= segment.last]


# ---------------------------------------------------------------- pages of messages

MOST_ROWS = 256
MOST_BYTES = 4 * 1024 * 1024
"""The most rows and bytes of messages that are read at once."""
_FEW_ROWS = 8
"""The rows of the first page in reverse: most readers look for the last message of a kind."""


class PageRequest(NamedTuple):
    """The next page of a thread that is read: a range of it, from one end."""

    key: int | None
    """The key of the thread; None for the first page. A new thread of the same name has another key."""
    first: int
    last: int | None = None
    reverse: bool = False
    most: int = MOST_ROWS

    def within(self, length: int) -> tuple[int, int]:
        """Return the first and the last place of the range in a thread of this length."""
        return max(self.first, 1), length if self.last is None else min(self.last, length)


class PageOfThread(NamedTuple):
    """Some messages of a thread, and the length of the thread when they were read."""

    key: int
    length: int
    records: list[Record]


async def read_pages(
    look: Callable[[PageRequest], Awaitable[PageOfThread | None]], after: int, before: int | None, reverse: bool
) -> AsyncIterator[Record]:
    """Yield the messages of a thread from `after` to `before`, neither included, page by page."""
    last = None if before is None else before - 1
    request = PageRequest(None, max(after, 0) + 1, last, reverse, _FEW_ROWS if reverse else MOST_ROWS)
    while page := await look(request):
        for record in page.records:
            yield record
        seq = page.records[-1].seq
        if seq in ((request.first,) if reverse else (last, page.length)):
            return
        most = min(4 * request.most, MOST_ROWS)
        first, last = (request.first, seq - 1) if reverse else (seq + 1, last)
        request = PageRequest(page.key, first, last, reverse, most)


class TakeRequest(NamedTuple):
    """The arguments of a `take`."""

    by: Host
    kinds: tuple[str | None, ...]
    limit: int
    now: datetime


class Subject(NamedTuple):
    """A thread that is being verified."""

    thread: Thread
    open_calls: list[OpenCall]
    examination: Examination


# ---------------------------------------------------------------- large media

_LARGE = 8192
"""Bytes from which on a medium is stored outside of its row."""
_DATA = re.compile(rb'"(data:[^"\\]{%d,})"' % _LARGE, re.IGNORECASE)


class Hole(NamedTuple):
    """A removed medium, and its place in the remaining bytes."""

    place: int
    text: bytes


def split(body: bytes) -> tuple[bytes, list[Hole]]:
    """Return the stored bytes of a message without its large media, and the media."""
    if len(body) < _LARGE or is_sealed(body):
        return body, []
    pieces: list[bytes] = []
    holes: list[Hole] = []
    end = taken = 0
    for match in _DATA.finditer(body):
        start, stop = match.span(1)
        pieces.append(body[end:start])
        holes.append(Hole(start - taken, body[start:stop]))
        taken += stop - start
        end = stop
    return (b"".join((*pieces, body[end:])), holes) if holes else (body, [])


def join(rest: bytes, holes: Iterable[Hole]) -> bytes:
    """Return the bytes that `split` has split."""
    pieces: list[bytes] = []
    end = 0
    for place, text in holes:
        pieces += (rest[end:place], text)
        end = place
    return b"".join((*pieces, rest[end:]))
