"""Verification of a thread's rows, and restoring of rows that a head from elsewhere proves.

**Verification.** All derived data is computed again from the messages and compared with the stored data.

**Restoring.** A chain of hashes has no key: anyone who can write a file can write a whole chain. A head that was kept
elsewhere proves the rows, because it is the hash of everything before it. So rows are restored only if their chain ends
exactly at a given head, and only into a thread that does not exist. All rows are checked before any is written. Rows after the
head are not proven. Rows that are missing before it may be effects, which would run again. Both are refused.

Status, pattern and owner are not part of the chain, so they are not restored, unless the journal has them (`ThreadStanding`).
The thread is redacted from then on if the ledger redacts and the rows contain nothing that redaction would remove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from antiphon.errors import DecodeError, LedgerCorruptError, RestoreRefusedError
from antiphon.ledger._admission import NOTHING_SPENT, AdmittedRow, Spent, State, new_state, spent
from antiphon.ledger._encryption import Keyring, ThreadKey, WrappedKey, is_sealed
from antiphon.ledger._records import OpenCall, OpenCalls, Pairing, Record, link, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._request import check_name
from antiphon.ledger._values import Damage, Head, ThreadJournal, ThreadStanding
from antiphon.messages import Message, loads
from antiphon.messages._keys import kind_of
from antiphon.messages._settings import NO_LIMITS

# ---------------------------------------------------------------- verification

RowOpener: TypeAlias = Callable[[int, bytes], bytes | None]
"""Returns the house bytes of a row, given its place and its stored bytes; None if there is no key to open it with."""


def row_opener(keyring: Keyring, thread_id: str, wrapped: WrappedKey | None) -> RowOpener | None:
    """Return the function that decrypts the rows of a thread; None for a thread that is not encrypted."""
    if wrapped is None:
        return None
    if wrapped.wrapped is None or keyring.master is None:
        return _unopened
    return keyring.key(thread_id, wrapped).open


def add_row(pairing: Pairing, seq: int, stored: bytes, opener: RowOpener | None) -> bool:
    """Add a row that a branch shares to a pairing; return False if there is no key to read it with.

    Rows that cannot be decoded are left out: the check of the origin reports them.
    """
    with suppress(DecodeError, LedgerCorruptError):
        body = stored if opener is None else opener(seq, stored)
        if body is None:
            return False
        pairing.add(seq, loads(body, Message, limits=NO_LIMITS))
    return True


def _unopened(seq: int, stored: bytes) -> bytes | None:
    if not is_sealed(stored):
        raise LedgerCorruptError("it is not encrypted, although its thread is", seq=seq)
    return None


class StoredRow(NamedTuple):
    """A row as stored."""

    seq: int
    recorded_at: int
    hash: bytes
    open_from: int | None
    body: bytes
    """Its stored bytes."""
    complaint: Callable[[Message | None], str | None] = lambda message: None
    """Returns a fault that only the store can see, given the decoded message, or None if there is no key to open it with."""


class Examination:
    """Checks the rows of a thread, in order, beginning after those that it shares with its origin."""

    def __init__(
        self, thread_id: str, shared: int, previous: bytes, pairing: Pairing | None, opener: RowOpener | None = None
    ) -> None:
        """Begin; `pairing` has the calls that are open after the shared rows, and is None if these cannot be read.

        `opener` opens the rows of an encrypted thread.
        """
        self._opener = opener
        self._is_blind = pairing is None
        """Whether messages cannot be read, because a key is missing: then only the chain is checked."""
        pairing = pairing or Pairing()
        self._thread_id = thread_id
        self._seq = shared
        self._hash = previous
        self._pairing = Pairing(shared, OpenCalls(pairing.open), pairing.open_from)
        self._links = {shared: previous.hex()}
        self._spent = NOTHING_SPENT
        self.looked_at = 0

    def rows(self, rows: Iterable[StoredRow], remembered: frozenset[int] = frozenset()) -> Damage | None:
        """Check rows up to the first damaged one. Remember the links at the `wanted` places."""
        for row in rows:
            self.looked_at += 1
            if complaint := next(self._complaints(row), None):
                return Damage(self._thread_id, min(row.seq, self._seq + 1), complaint)
            self._seq, self._hash = row.seq, row.hash
            if row.seq in remembered:
                self._links[row.seq] = row.hash.hex()
        return None

    def _complaints(self, row: StoredRow) -> Iterator[str]:
        if row.seq != self._seq + 1:
            yield f"message {self._seq + 1} is missing; the next is {row.seq}"
        if link(self._hash, row.recorded_at, row.body) != row.hash:
            yield "the hash is not that of the message, its time and the rows before it"
        try:
            body = row.body if self._opener is None else self._opener(row.seq, row.body)
            message = None if body is None else loads(body, Message, limits=NO_LIMITS)
        except DecodeError as exc:
            yield f"it cannot be read: {exc}"
        except LedgerCorruptError as exc:
            yield exc.reason
        else:
            if complaint := row.complaint(message):
                yield complaint
            self._is_blind = self._is_blind or message is None
            if message is not None:
                if message.thread_id != self._thread_id:
                    yield f"it is of thread {message.thread_id!r}"
                self._spent = spent(self._spent, (message,))
                self._pairing.add(row.seq, message)
                if self._pairing.open_from != row.open_from and not self._is_blind:
                    yield "its place of the first open call is wrong"

    def end(self, state: State, open_calls: Iterable[OpenCall], heads: Mapping[str, Head]) -> Damage | None:
        """Compare the end of the rows with the stored state of the thread, and with an earlier head."""
        for complaint in self._last_complaints(state, list(open_calls), heads.get(self._thread_id)):
            return Damage(self._thread_id, self._seq + 1, complaint)
        return None

    def _last_complaints(self, state: State, open_calls: list[OpenCall], head: Head | None) -> Iterator[str]:
        if state.seq != self._seq:
            yield f"the thread has {state.seq} messages, and {self._seq} are there"
        if state.hash != self._hash:
            yield "the hash of the thread is not that of its last message"
        if not self._is_blind:
            if (open_calls, state.open_from) != (self._pairing.open, self._pairing.open_from):
                yield "the list of open calls is wrong"
            if state.run != self._pairing.run:
                yield "the place of the last message that is not a call is wrong"
            if Spent(state.input_tokens, state.output_tokens, state.cost) != self._spent:
                yield "the tokens or the cost are not the sum over its messages"
        if head is not None and head.seq > self._seq:
            yield f"it had {head.seq} messages once, and has {self._seq}"
        if head is not None and self._links.get(head.seq, head.hash) != head.hash:
            yield f"message {head.seq} is not what it was"


def missing_threads(heads: Mapping[str, Head], threads: Iterable[str]) -> list[Damage]:
    """Return a damage for each thread that has a head and does not exist."""
    gone = heads.keys() - set(threads)
    return [Damage(name, 1, f"it had {heads[name].seq} messages once, and is gone") for name in sorted(gone)]


# ---------------------------------------------------------------- restoring

_SAVE_HEADS = "run `antiphon verify --save-heads FILE` on the ledger that has the thread, and keep the file elsewhere"


class Base(NamedTuple):
    """The part of a thread before the first row of its journal: empty, or the messages that a branch shares."""

    seq: int
    hash: bytes
    pairing: Pairing


class Restored(NamedTuple):
    """A checked journal, ready to be written."""

    state: State
    rows: list[AdmittedRow]
    pairing: Pairing
    """The open calls at its end."""


def proven(journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> list[tuple[ThreadJournal, Head]]:
    """Return each journal with its head; origins before their branches.

    Raises:
        RestoreRefusedError: a journal has no head, or is given twice.
        ValueError: a thread's id is not a valid name.
    """
    heads_by_thread: Mapping[str, Head] = {head.thread_id: head for head in heads}
    proofs: dict[str, tuple[ThreadJournal, Head]] = {}
    for journal in journals:
        name = journal.thread_id
        check_name(name, "a thread's id")
        if name not in heads_by_thread:
            raise RestoreRefusedError(f"no head is given that proves its rows; {_SAVE_HEADS}", name)
        if (journal.forked_from is None) != (journal.forked_at is None):
            raise RestoreRefusedError("it has only one of forked_from and forked_at", name)
        if name in proofs:
            raise RestoreRefusedError("it is in the journal twice", name)
        proofs[name] = (journal, heads_by_thread[name])
    return _origins_first(proofs)


def _origins_first(proofs: Mapping[str, tuple[ThreadJournal, Head]]) -> list[tuple[ThreadJournal, Head]]:
    """Return the journals in an order in which each branch comes after its origin."""
    order: dict[str, tuple[ThreadJournal, Head]] = {}
    for first in proofs:
        name, line = first, dict[str, None]()
        while name in proofs and name not in order and name not in line:
            line[name] = None
            name = proofs[name][0].forked_from or ""
        order |= {branch: proofs[branch] for branch in reversed(line)}
    return list(order.values())


def existing(thread_id: str) -> RestoreRefusedError:
    """Return the error for a thread that exists already."""
    return RestoreRefusedError("there is such a thread already; delete it, or restore into another ledger", thread_id)


def missing_origin(journal: ThreadJournal) -> RestoreRefusedError:
    """Return the error for a branch whose origin does not exist."""
    reason = f"it is a branch of {journal.forked_from!r} after row {journal.forked_at}, which does not exist; restore it too"
    return RestoreRefusedError(reason, journal.thread_id)


def restored(journal: ThreadJournal, head: Head, base: Base, redaction: LedgerRedaction, keyring: Keyring) -> Restored:
    """Check the rows of a journal against a head, and return them ready to be written.

    Raises:
        EncryptionError: the key of an encrypted thread is missing, forgotten or wrapped by another master key.
        RestoreRefusedError: a row does not continue the chain, or the chain does not end at the head.
    """
    name = journal.thread_id
    try:
        key = None if journal.key is None else keyring.key(name, journal.key)
    except LedgerCorruptError as exc:
        raise RestoreRefusedError("the key in the journal is not that of the thread", name) from exc
    pairing = Pairing(base.seq, OpenCalls(base.pairing.open), base.pairing.open_from)
    seq, previous, rows = base.seq, base.hash, list[AdmittedRow]()
    for record in journal.records:
        if record.seq != seq + 1:
            raise RestoreRefusedError(f"row {seq + 1} is missing; the next is {record.seq}", name, seq + 1)
        previous = link(previous, to_micros(record.recorded_at), record.stored)
        if previous.hex() != record.hash:
            reason = "the hash is not that of the row, its time and the rows before it"
            raise RestoreRefusedError(reason, name, record.seq)
        opened = _opened(record, key, name)
        message = _message(opened.body, name, record.seq)
        pairing.add(record.seq, message)
        rows.append(AdmittedRow(opened, message, previous, pairing.open_from))
        seq = record.seq
    if (seq, previous.hex()) != (head.seq, head.hash):
        ends = f"the rows end at {seq} with hash {previous.hex()[:12]}…"
        reason = f"{ends}, and the head at {head.seq} with {head.hash[:12]}…; take the heads together with the journal"
        raise RestoreRefusedError(reason, name, None if seq == head.seq else min(seq, head.seq) + 1)
    # If redaction would change a row, the thread stays unredacted: a repeated id must have the same bytes.
    rules = redaction.rules
    is_clean = rules is not None and all(rules.body(row.record.body) == row.record.body for row in rows)
    state = _state(journal, base, rows, pairing)._replace(is_redacted=is_clean)
    open_at = {call.seq for call in pairing.open if not call.is_effect}
    asked = [
        row.message.to[0] for row in rows if row.record.seq in open_at and row.message.lane == "control" and row.message.to
    ]
    if asked:  # the thread has no owner: mark it as due, so that a host finds the open requests
        state = state._replace(kind=kind_of(asked[0]), due_at=state.updated_at)
    return Restored(state if journal.standing is None else _as_it_stood(state, journal.standing), rows, pairing)


def _as_it_stood(state: State, standing: ThreadStanding) -> State:
    """Return the state of a thread with the data that another ledger has stored besides its rows."""
    due_at = state.due_at if standing.due_at is None else to_micros(standing.due_at)
    return state._replace(
        created_at=to_micros(standing.created_at),
        updated_at=to_micros(standing.updated_at),
        status=standing.status,
        pattern=standing.pattern,
        kind=standing.kind or state.kind,
        due_at=due_at,
        posted=min(standing.posted, state.seq),
    )


def _opened(record: Record, key: ThreadKey | None, thread_id: str) -> Record:
    """Return a record with the body from its stored bytes: the journal of an encrypted thread may lack it."""
    if key is None and is_sealed(record.stored):
        raise RestoreRefusedError("its rows are encrypted, and the journal has no key for them", thread_id, record.seq)
    if key is None:
        return record if record.body == record.stored else Record(record.seq, record.stored, record.hash, record.recorded_at)
    try:
        body = key.open(record.seq, record.stored)
    except LedgerCorruptError as exc:
        raise RestoreRefusedError(exc.reason, thread_id, record.seq) from exc
    return Record(record.seq, body, record.hash, record.recorded_at, stored=record.stored)


def _message(body: bytes, thread_id: str, seq: int) -> Message:
    try:
        message = loads(body, Message, limits=NO_LIMITS)
    except DecodeError as exc:
        raise RestoreRefusedError(f"it cannot be read: {exc}", thread_id, seq) from exc
    if message.thread_id != thread_id:
        raise RestoreRefusedError(f"it is of thread {message.thread_id!r}", thread_id, seq)
    return message


def _state(journal: ThreadJournal, base: Base, rows: Sequence[AdmittedRow], pairing: Pairing) -> State:
    times = [to_micros(row.record.recorded_at) for row in rows] or [0]
    tokens_in, tokens_out, cost = spent(NOTHING_SPENT, [row.message for row in rows])
    return new_state(journal.thread_id, times[0])._replace(
        seq=rows[-1].record.seq if rows else base.seq,
        hash=rows[-1].hash if rows else base.hash,
        run=pairing.run,
        open_from=pairing.open_from,
        updated_at=times[-1],
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cost=cost,
        forked_from=journal.forked_from,
        forked_at=journal.forked_at,
    )
