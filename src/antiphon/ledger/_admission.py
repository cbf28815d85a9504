"""Admission: which messages a thread takes in, decided in one place for every store, without touching one.

A store looks up the thread's state and its open calls, asks `admit`, and writes down what it says, all in one transaction.
The questions are asked in this order, and the first refusal is the answer; nothing has been written then.

1. Is this the owner? An append must give the epoch of the thread; `post` need not.
2. Is it there already? The same id with the same bytes is not written again, and the answer is the record that is there.
   So a caller that does not know whether an append arrived sends it again. If nothing is left, nothing more is asked or done.
3. Is the thread as long as the caller believes?
4. Does each message keep the rules: an id of its own, a result after its call, one result a call, of the same option?
   Nothing from outside calls or answers an invocation that is open in the thread, whatever else it is allowed.
5. Of what comes from outside, which calls are still open? Each gets an error result: they are never executed (see `_outside`).

The calls that are open are kept with the thread (see `_pairing`), so no question needs a look at its length; and with every
row stands the place of the first call since nothing was open, so that a fork there knows how far to look back to pair the
calls in between again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import NamedTuple, Protocol

from antiphon.errors import AppendConflictError, AppendRefusedError, FencedError
from antiphon.ledger._chain import Record, genesis, link
from antiphon.ledger._outside import not_executed
from antiphon.ledger._pairing import ORPHAN, OpenCalls, Pairing
from antiphon.ledger._request import AppendEntry, AppendRequest
from antiphon.messages import Message, dumps
from antiphon.messages.keys import kind_of

# The codes under which `antiphon.checks` finds the same in a history that is there already.
RESULT_BEFORE_CALL = "AP103"
SECOND_RESULT = "AP104"
DUPLICATE_ID = "AP108"

_MONEY = Context(prec=50, traps=[])
"""Sums of cost: more digits than money has, and no surprise where a cost is absurd."""
_MOST_TOKENS = 2**63 - 1


class Spent(NamedTuple):
    """What messages have cost: tokens in and out, and money."""

    input_tokens: int
    output_tokens: int
    cost: str


NOTHING_SPENT = Spent(0, 0, "0")


class State(NamedTuple):
    """What is known of a thread without reading it."""

    thread_id: str
    seq: int
    hash: bytes
    epoch: int
    """That of the owner; 0 if there never was one; negative if the last one released the thread."""
    run: int
    """The place of the last message that is no call."""
    open_from: int | None
    """The place of the first call since nothing was open; None if nothing is."""
    status: str | None
    pattern: str | None
    created_at: int
    updated_at: int
    input_tokens: int
    output_tokens: int
    cost: str
    forked_from: str | None
    forked_at: int | None
    is_redacted: bool | None = None
    """Whether secrets are taken out of what is appended, as since the thread began; None if that was not noted then."""
    owner: int | None = None
    """The key of the host that owns it (see `_ownership`)."""
    kind: str | None = None
    """What kind of host can run it."""
    due_at: int | None = None
    """When it has something to do."""
    posted: int = 0
    """The place of the last posted message that no owner has reported as seen."""
    unfit: str | None = None
    """The builds that cannot continue it, as JSON: each with the reason and the time."""


class AdmittedRow(NamedTuple):
    """A message to be written, with its record and link."""

    record: Record
    message: Message
    """Without a thread, if it was given so."""
    hash: bytes
    open_from: int | None
    """That of the state after it."""


class Admission(NamedTuple):
    """What is to be written, and what is to be answered."""

    state: State
    pairing: Pairing
    """Which calls are open then."""
    rows: Sequence[AdmittedRow]
    records: tuple[Record, ...]
    is_new: bool
    """Whether there is anything to write; if not, snapshot and status were written the first time."""


class Lookup(Protocol):
    """What the admission may ask about a thread, the part included that it shares with its origin."""

    def with_id(self, id: str) -> Sequence[Record]:
        """Return the records with this message id: none or one, or several in an imported history."""
        ...

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        """Whether there is a call of this invocation."""
        ...


def new_state(thread_id: str, now: int, *, is_redacted: bool | None = None) -> State:
    """Return the state of an empty thread."""
    return State(thread_id, 0, genesis(thread_id), 0, 0, None, None, None, now, now, 0, 0, "0", None, None, is_redacted)


def admit(state: State, open_calls: OpenCalls, request: AppendRequest, lookup: Lookup) -> Admission:
    """Decide on an append.

    Raises:
        FencedError: the epoch is not the thread's.
        AppendConflictError: the thread has another length than expected.
        AppendRefusedError: a message breaks a rule, and the history is not admitted as foreign.
    """
    epoch = request.epoch or 0
    if not request.is_post and (epoch != state.epoch or epoch < 0):
        raise FencedError(state.thread_id, request.epoch, abs(state.epoch))
    admitting = _Admitting(state, open_calls, request, lookup)
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
        "_lookup",
        "_open_before",
        "_request",
        "_seq",
        "_state",
        "_written",
        "pairing",
        "rows",
    )

    def __init__(self, state: State, open_calls: OpenCalls, request: AppendRequest, lookup: Lookup) -> None:
        self._state = state
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
        if row is not None and (known := self._there(row)):
            return known
        there = self._lookup.with_id(message.id)
        if (there or message.id in self._written) and (known := self._same(message, body, there)):
            return known
        if not self.rows:
            self.check_version()
        if self._request.is_outside:
            self._refuse_open(message)
        seq = self._seq = self._seq + 1
        if code := self.pairing.add(seq, message):
            self._refuse_result(message, code)
        request = self._request
        digest = self._hash = link(self._hash, request.micros, body)
        record = Record(seq, body, digest.hex(), request.now, None if is_stamped else message)
        self.rows.append(AdmittedRow(record, message, digest, self.pairing.open_from))
        self._written.setdefault(message.id, []).append(record)
        return record

    def _same(self, message: Message, body: bytes, there: Sequence[Record]) -> Record | None:
        """Return the record of a message that is there already; if its id is that of another, it is refused."""
        found: list[Record] = [*there, *self._written.get(message.id, ())]
        for record in found:
            if record.body == body:
                return record
            self._refuse(message, DUPLICATE_ID, f"the id is taken by message {record.seq}, which says something else")
        return None

    def _there(self, row: AppendEntry) -> Record | None:
        """Return the record of a row from outside that the thread has already, as it came."""
        return next((record for record in self._lookup.with_id(row.message.id) if record.body == row.body), None)

    def close_calls(self, records: Sequence[Record]) -> list[Record]:
        """Close the calls from outside that are still open, and return the results; those from an earlier time too.

        A call that was there before and is open is the thread's own: it stays open.

        Raises:
            AppendRefusedError: one cannot be closed, because its result stands before it.
        """
        self._is_lenient = True  # which of two calls with the same invocation gets which result does not matter
        calls = [each for each in zip(self._request.entries, records, strict=True) if each[0].message.kind == "option_call"]
        open_calls = [(_closing(entry, self._state.thread_id), record.seq in self.pairing.opened) for entry, record in calls]
        found = [self.admit(closing) if is_open else self._there(closing) for closing, is_open in open_calls]
        for call in self.pairing.opened.values():
            message = self.rows[call.seq - self._state.seq - 1].message
            reason = f"call {call.invocation_id!r} from outside is open, and its result stands before it"
            raise AppendRefusedError(reason, self._state.thread_id, RESULT_BEFORE_CALL, message.id)
        self._is_lenient = self._request.allow_foreign
        return [record for record in found if record is not None]

    def _refuse_open(self, message: Message) -> None:
        """Refuse what would call or answer, from outside, an invocation that was open before this append."""
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
        if self._was_called(message.lane == "effect", invocation):
            self._refuse(message, SECOND_RESULT, f"invocation {invocation!r} has its result already")
        self._refuse(message, code, f"no call of invocation {invocation!r} stands before this result")

    def _was_called(self, is_effect: bool, invocation_id: str) -> bool:
        calls = (row.message for row in self.rows if row.message.kind == "option_call")
        is_here = any((call.lane == "effect", call.invocation_id) == (is_effect, invocation_id) for call in calls)
        return is_here or self._lookup.was_called(is_effect, invocation_id)

    def _refuse(self, message: Message, code: str, reason: str) -> None:
        if not self._is_lenient:
            raise AppendRefusedError(reason, self._state.thread_id, code, message.id)

    def new_state(self) -> State:
        """Return the state of the thread with all admitted messages."""
        request, pairing = self._request, self.pairing
        (name, _, _, epoch, _, _, status, pattern, created_at, _, tokens_in, tokens_out, cost, origin, fork, clean,
         owner, kind, due_at, posted, unfit) = self._state  # fmt: skip
        if request.is_post:
            posted = self._seq
            due_at = request.micros if due_at is None else min(due_at, request.micros)
            kind = _receiving_kind(request) if kind is None else kind
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


def _receiving_kind(request: AppendRequest) -> str:
    """Return the kind of the first receiver of a posted message."""
    entry = (request.entries or request.foreign)[0]
    return kind_of((entry.row or entry).message.to[0])


def _closing(call: AppendEntry, thread_id: str) -> AppendEntry:
    """Return the result that a call from outside gets if it is still open."""
    result = not_executed(call.message, call.body, thread_id)
    return AppendEntry(result, dumps(result), is_stamped=False)


def spent(before: Spent, messages: Iterable[Message]) -> Spent:
    """Return what was spent, that of further messages included."""
    usages = [usage for message in messages if (usage := message.usage) is not None]
    if not usages:
        return before
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Spent(
        min(before.input_tokens + sum(usage.input_tokens or 0 for usage in usages), _MOST_TOKENS),
        min(before.output_tokens + sum(usage.output_tokens or 0 for usage in usages), _MOST_TOKENS),
        str(reduce(_MONEY.add, costs, Decimal(before.cost))) if costs else before.cost,
    )
