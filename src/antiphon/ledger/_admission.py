"""Admission: decides which messages a thread accepts, in one place for all stores. It reads and writes no store itself.

A store looks up the state of the thread and its open calls, calls `admit`, and writes the rows that it returns, all in one
transaction. `admit` checks in this order and raises at the first failure, before anything is written:

0. Place: the thread was not moved to another ledger.
1. Owner: an append must pass the epoch of the thread; a `post` need not.
2. Repetition: a message with a known id and the same bytes is not written again; its stored record is returned. So a caller
   that does not know whether an append succeeded can repeat it. If all messages are repeated, the later checks are skipped.
3. Version: the thread has as many messages as the caller expects.
4. Rules: each message has its own id; a result follows its call; a call has one result, of the same option. A message from
   outside must not call or answer an invocation that is open in the thread, even with `allow_foreign`.
5. Calls from outside that are still open: each gets an error result, because they are never executed (see `_request`).

The open calls are stored with the thread (see `_records`), so a check takes the same time however long the thread is. Each row
stores the place of the first call since no call was open (`open_from`): a fork at that row reads back to there to find the
open calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import Final, NamedTuple, Protocol

import orjson

from antiphon.errors import AppendConflictError, AppendRefusedError, FencedError, LedgerCorruptError, ThreadMovedError
from antiphon.ledger._encryption import ThreadKey
from antiphon.ledger._records import ORPHAN, OpenCalls, Pairing, Record, genesis, link
from antiphon.ledger._request import AppendEntry, AppendRequest, not_executed
from antiphon.messages import Message, dumps
from antiphon.messages._keys import kind_of

# `antiphon.checks` reports the same faults of an existing history under these codes.
RESULT_BEFORE_CALL = "AP103"
SECOND_RESULT = "AP104"
DUPLICATE_ID = "AP108"

_MONEY = Context(prec=50, traps=[])
"""The decimal context for sums of cost: more digits than any amount of money has, and no exception for absurd costs."""
_MOST_TOKENS = 2**63 - 1


class Spent(NamedTuple):
    """The usage of messages: input and output tokens, and cost."""

    input_tokens: int
    output_tokens: int
    cost: str


NOTHING_SPENT = Spent(0, 0, "0")


class State(NamedTuple):
    """The state of a thread that is stored beside its messages."""

    thread_id: str
    seq: int
    hash: bytes
    epoch: int
    """The epoch of the owner; 0 if there never was an owner; negative if the last owner has released the thread."""
    run: int
    """The place of the last message that is not a call."""
    open_from: int | None
    """The place of the first call since no call was open; None if no call is open."""
    status: str | None
    pattern: str | None
    created_at: int
    updated_at: int
    input_tokens: int
    output_tokens: int
    cost: str
    forked_from: str | None
    forked_at: int | None
    is_redacted: bool
    """Whether appended messages are redacted, decided when the thread was created."""
    owner: int | None = None
    """The key of the host that owns it (see `_ownership`)."""
    kind: str | None = None
    """The kind of host that can run it."""
    due_at: int | None = None
    """When it has work to do."""
    posted: int = 0
    """The place of the last posted message that no owner has reported as seen."""
    unfit: str | None = None
    """The builds that cannot continue it, as JSON: each with the reason and the time. The empty build stands for all builds:
    the thread was moved, and the reason says where to (see `move_of`)."""


class AdmittedRow(NamedTuple):
    """A message to be written, with its record and link."""

    record: Record
    message: Message
    """As the caller passed it: it may have no thread."""
    hash: bytes
    open_from: int | None
    """The `open_from` of the state after it."""


class Admission(NamedTuple):
    """The decision on an append: the rows to write, and the records to return."""

    state: State
    pairing: Pairing
    """The open calls after the append."""
    rows: Sequence[AdmittedRow]
    records: tuple[Record, ...]
    is_new: bool
    """Whether there is anything to write. If not, the append is repeated: its snapshot and status are stored already."""


class Lookup(Protocol):
    """The lookups that the admission needs in a thread, including the messages that it shares with its origin."""

    def with_id(self, id: str) -> Sequence[Record]:
        """Return the records with this message id: none or one, or several in an imported history."""
        ...

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        """Whether there is a call of this invocation."""
        ...


def new_state(thread_id: str, now: int, *, is_redacted: bool = False) -> State:
    """Return the state of an empty thread."""
    return State(thread_id, 0, genesis(thread_id), 0, 0, None, None, None, now, now, 0, 0, "0", None, None, is_redacted)


MOVED: Final = ""
"""Stands for all builds in `State.unfit`. No host has an empty build."""


class Move(NamedTuple):
    """The destination of a moved thread, and the work that waited for a host at the time."""

    to: str
    due_at: int | None
    posted: int


def move_of(state: State) -> Move | None:
    """Return the destination of a moved thread; None if it was not moved."""
    if state.unfit is None:
        return None
    try:
        mark = orjson.loads(state.unfit).get(MOVED)
        return None if mark is None else Move(**orjson.loads(mark[0]))
    except (ValueError, TypeError, AttributeError, LookupError) as exc:
        raise LedgerCorruptError("the place that it was moved to was altered", state.thread_id) from exc


def check_here(state: State) -> None:
    """Refuse a thread that was moved to another ledger."""
    if state.unfit is not None and (move := move_of(state)) is not None:
        raise ThreadMovedError(state.thread_id, move.to)


def admit(
    state: State, open_calls: OpenCalls, request: AppendRequest, lookup: Lookup, key: ThreadKey | None = None
) -> Admission:
    """Decide on an append; `key` is the key of the thread, if it is encrypted.

    Raises:
        FencedError: the epoch is not that of the thread's owner.
        AppendConflictError: the thread has another length than expected.
        AppendRefusedError: a message breaks a rule, and the history is not admitted as foreign.
        ThreadMovedError: the thread was moved to another ledger.
    """
    check_here(state)
    # The epoch first, even for an append that is empty or repeated: a success would tell a fenced owner that it still owns the
    # thread.
    epoch = request.epoch or 0
    if not request.is_post and (epoch != state.epoch or epoch < 0):
        raise FencedError(state.thread_id, request.epoch, abs(state.epoch))
    admitting = _Admitting(state, open_calls, request, lookup, key)
    records = tuple([admitting.admit(entry) for entry in request.entries])
    if request.is_outside:
        records += (*admitting.close_calls(records), *(admitting.admit(entry) for entry in request.foreign))
    if not records:
        admitting.check_version()
    elif not admitting.rows:
        return Admission(state, admitting.pairing, (), records, is_new=False)
    return Admission(admitting.new_state(), admitting.pairing, admitting.rows, records, is_new=True)


class _Admitting:
    """The state of a thread while an append is admitted, message by message."""

    __slots__ = (
        "_hash",
        "_is_lenient",
        "_key",
        "_lookup",
        "_open_before",
        "_request",
        "_seq",
        "_state",
        "_written",
        "pairing",
        "rows",
    )

    def __init__(
        self, state: State, open_calls: OpenCalls, request: AppendRequest, lookup: Lookup, key: ThreadKey | None
    ) -> None:
        self._state = state
        self._key = key
        self._request = request
        self._lookup = lookup
        self._open_before = open_calls
        self._is_lenient = request.allow_foreign
        self._seq = state.seq
        self._hash = state.hash
        self.pairing = Pairing(state.run, open_calls, state.open_from)
        self._written: dict[str, list[Record]] = {}
        self.rows: list[AdmittedRow] = []

    def admit(self, entry: AppendEntry) -> Record:
        message, body, is_stamped, row = entry
        if row is not None and (repeated := self._stored_row(row)):
            return repeated
        stored_records = self._lookup.with_id(message.id)
        if (stored_records or message.id in self._written) and (repeated := self._same(message, body, stored_records)):
            return repeated
        # Only before the first new message: a repeated append succeeds, although it has itself changed the version.
        if not self.rows:
            self.check_version()
        if self._request.is_outside:
            self._refuse_open(message)
        seq = self._seq = self._seq + 1
        if code := self.pairing.add(seq, message):
            self._refuse_result(message, code)
        request = self._request
        stored = body if self._key is None else self._key.seal(seq, message.id, body)
        digest = self._hash = link(self._hash, request.micros, stored)
        record = Record(seq, body, digest.hex(), request.now, None if is_stamped else message, stored=stored)
        self.rows.append(AdmittedRow(record, message, digest, self.pairing.open_from))
        self._written.setdefault(message.id, []).append(record)
        return record

    def _same(self, message: Message, body: bytes, stored_records: Sequence[Record]) -> Record | None:
        """Return the record of a message that is stored already."""
        candidates: list[Record] = [*stored_records, *self._written.get(message.id, ())]
        for record in candidates:
            if record.body == body:
                return record
            self._refuse(message, DUPLICATE_ID, f"the id is taken by message {record.seq}, which says something else")
        return None

    def _stored_row(self, row: AppendEntry) -> Record | None:
        """Return the record of a row from outside that the thread has already, with the same bytes."""
        return next((record for record in self._lookup.with_id(row.message.id) if record.body == row.body), None)

    def close_calls(self, records: Sequence[Record]) -> list[Record]:
        """Close the calls from outside that are still open, and return all such results, including stored ones.

        A call that was open before this append is the thread's own: it stays open.
        """
        self._is_lenient = True  # two calls may have the same invocation: either may get either result
        calls = [pair for pair in zip(self._request.entries, records, strict=True) if pair[0].message.kind == "option_call"]
        open_calls = [(_closing(entry, self._state.thread_id), record.seq in self.pairing.opened) for entry, record in calls]
        results = [self.admit(closing) if is_open else self._stored_row(closing) for closing, is_open in open_calls]
        for call in self.pairing.opened.values():
            message = self.rows[call.seq - self._state.seq - 1].message
            reason = f"call {call.invocation_id!r} from outside is open, and its result stands before it"
            raise AppendRefusedError(reason, self._state.thread_id, RESULT_BEFORE_CALL, message.id)
        self._is_lenient = self._request.allow_foreign
        return [record for record in results if record is not None]

    def _refuse_open(self, message: Message) -> None:
        """Refuse a message from outside that calls or answers an invocation which was open before this append."""
        payload = message.payload
        if payload.kind != "parts" and self._open_before.of((message.lane == "effect", payload.invocation_id)):
            reason = f"invocation {payload.invocation_id!r} is an open call of this thread; nothing from outside may answer it"
            raise AppendRefusedError(reason, self._state.thread_id, ORPHAN, message.id)

    def check_version(self) -> None:
        expected, state = self._request.expected_version, self._state
        if expected is not None and expected != state.seq:
            raise AppendConflictError(state.thread_id, expected, state.seq, state.hash.hex())

    def _refuse_result(self, message: Message, code: str) -> None:
        call, invocation = self.pairing.answered, message.invocation_id or ""
        if self._is_lenient:
            return
        if call is not None:
            reason = f"{call.option_name!r} was called, in message {call.seq}, and this is a result of another option"
            self._refuse(message, code, reason)
        is_effect = message.lane == "effect"
        calls = [row.message for row in self.rows if row.message.kind == "option_call"]
        is_here = any((call.lane == "effect", call.invocation_id) == (is_effect, invocation) for call in calls)
        if is_here or self._lookup.was_called(is_effect, invocation):
            self._refuse(message, SECOND_RESULT, f"invocation {invocation!r} has its result already")
        self._refuse(message, code, f"no call of invocation {invocation!r} stands before this result")

    def _refuse(self, message: Message, code: str, reason: str) -> None:
        if not self._is_lenient:
            raise AppendRefusedError(reason, self._state.thread_id, code, message.id)

    def new_state(self) -> State:
        """Return the state of the thread after all admitted messages."""
        request, pairing = self._request, self.pairing
        (name, _, _, epoch, _, _, status, pattern, created_at, _, tokens_in, tokens_out, cost, origin, fork, clean,
         owner, kind, due_at, posted, unfit) = self._state  # fmt: skip
        if request.is_post:
            posted = self._seq
            due_at = request.micros if due_at is None else min(due_at, request.micros)
            entry = (request.entries or request.foreign)[0]
            kind = kind_of((entry.row or entry).message.to[0]) if kind is None else kind
        if costly := [row.message for row in self.rows if row.message.usage is not None]:
            tokens_in, tokens_out, cost = spent(Spent(tokens_in, tokens_out, cost), costly)
        return State(
            name,
            self._seq,
            self._hash,
            epoch,
            pairing.run,
            pairing.open_from,
            request.status or status,
            request.pattern or pattern,
            created_at,
            request.micros,
            tokens_in,
            tokens_out,
            cost,
            origin,
            fork,
            clean,
            owner,
            kind,
            due_at,
            posted,
            unfit,
        )


def _closing(call: AppendEntry, thread_id: str) -> AppendEntry:
    """Return the result that a call from outside gets if it is still open."""
    result = not_executed(call.message, call.body, thread_id)
    return AppendEntry(result, dumps(result), is_stamped=False)


def spent(before: Spent, messages: Iterable[Message]) -> Spent:
    """Return the sum of earlier usage and the usage of further messages."""
    usages = [usage for message in messages if (usage := message.usage) is not None]
    if not usages:
        return before
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Spent(
        min(before.input_tokens + sum(usage.input_tokens or 0 for usage in usages), _MOST_TOKENS),
        min(before.output_tokens + sum(usage.output_tokens or 0 for usage in usages), _MOST_TOKENS),
        str(reduce(_MONEY.add, costs, Decimal(before.cost))) if costs else before.cost,
    )
