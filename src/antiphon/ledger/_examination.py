"""The examination of a thread: everything that was written is computed again from the messages and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from antiphon.errors import DecodeError
from antiphon.ledger._chain import link
from antiphon.ledger._door import NOTHING_SPENT, Spent, State, spent
from antiphon.ledger._pairing import OpenCall, OpenCalls, Pairing
from antiphon.ledger._values import Damage, Head
from antiphon.messages import Message, loads
from antiphon.messages._limits import NO_LIMITS

__all__ = ["Examination", "StoredRow", "missing_threads"]


class StoredRow(NamedTuple):
    """A row as it is found."""

    seq: int
    recorded_at: int
    hash: bytes
    open_from: int | None
    body: bytes
    complaint: Callable[[Message], str | None] = lambda message: None
    """What the store itself finds wrong with it, given the message."""


class Examination:
    """Looks at the rows of a thread, in order, from where they are its own."""

    def __init__(self, thread_id: str, shared: int, previous: bytes, pairing: Pairing) -> None:
        self._thread_id = thread_id
        self._seq = shared
        self._hash = previous
        self._pairing = Pairing(shared, OpenCalls(pairing.open), pairing.open_from)
        self._links = {shared: previous.hex()}
        self._spent = NOTHING_SPENT
        self.looked_at = 0

    def rows(self, rows: Iterable[StoredRow], wanted: frozenset[int] = frozenset()) -> Damage | None:
        """Look at rows, up to the first that is wrong. The links at the places wanted are remembered."""
        for row in rows:
            self.looked_at += 1
            if complaint := next(self._complaints(row), None):
                return Damage(self._thread_id, min(row.seq, self._seq + 1), complaint)
            self._seq, self._hash = row.seq, row.hash
            if row.seq in wanted:
                self._links[row.seq] = row.hash.hex()
        return None

    def _complaints(self, row: StoredRow) -> Iterator[str]:
        if row.seq != self._seq + 1:
            yield f"message {self._seq + 1} is missing; the next is {row.seq}"
        if link(self._hash, row.recorded_at, row.body) != row.hash:
            yield "the hash is not that of the message, its time and what stands before it"
        try:
            message = loads(row.body, Message, limits=NO_LIMITS)
        except DecodeError as exc:
            yield f"it cannot be read: {exc}"
        else:
            yield from self._complaints_about(row, message)

    def _complaints_about(self, row: StoredRow, message: Message) -> Iterator[str]:
        if complaint := row.complaint(message):
            yield complaint
        if message.thread_id != self._thread_id:
            yield f"it is of thread {message.thread_id!r}"
        self._spent = spent(self._spent, (message,))
        self._pairing.add(row.seq, message)
        if self._pairing.open_from != row.open_from:
            yield "what is noted about open calls is wrong"

    def end(self, state: State, open_calls: Iterable[OpenCall], heads: Mapping[str, Head]) -> Damage | None:
        """Compare where the rows end with where the thread says it ends, and with where it once ended."""
        for complaint in self._last_complaints(state, list(open_calls), heads.get(self._thread_id)):
            return Damage(self._thread_id, self._seq + 1, complaint)
        return None

    def _last_complaints(self, state: State, open_calls: list[OpenCall], head: Head | None) -> Iterator[str]:
        if state.seq != self._seq:
            yield f"the thread has {state.seq} messages, and {self._seq} are there"
        if state.hash != self._hash:
            yield "the hash of the thread is not that of its last message"
        if (open_calls, state.open_from) != (self._pairing.open, self._pairing.open_from):
            yield "the list of open calls is wrong"
        if state.run != self._pairing.run:
            yield "the place of the last message that is no call is wrong"
        if Spent(state.input_tokens, state.output_tokens, state.cost) != self._spent:
            yield "the tokens or the cost are not the sum of what its messages say"
        if head is not None and head.seq > self._seq:
            yield f"it had {head.seq} messages once, and has {self._seq}"
        if head is not None and self._links.get(head.seq, head.hash) != head.hash:
            yield f"message {head.seq} is not what it was"


def missing_threads(heads: Mapping[str, Head], threads: Iterable[str]) -> list[Damage]:
    """Return the threads that were there once and are not."""
    gone = heads.keys() - set(threads)
    return [Damage(name, 1, f"it had {heads[name].seq} messages once, and is gone") for name in sorted(gone)]
