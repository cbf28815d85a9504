"""The door: what a thread takes in, decided in one place for every store, without touching one.

A store looks up the thread's state and its open calls, asks `admit`, and writes down what it says, all in one transaction.
The questions are asked in this order, and the first refusal is the answer; nothing has been written then.

1. Is this the owner? An append must give the epoch of the thread; `post` need not.
2. Is it there already? The same id with the same bytes is not written again, and the answer is the record that is there.
   So whoever does not know whether an append arrived sends it again. If nothing is left, nothing more is asked or done.
3. Is the thread as long as the caller believes?
4. Does each message keep the rules: an id of its own, a result after its call, one result a call, of the same option?

Which open call a result answers is decided as in `Conversation`: the oldest of the latest utterance. The calls that are open
are kept with the thread, so no question needs a look at its length; and with every row stands the place of the first call
since nothing was open, so that whoever forks there knows how far to look back to pair the calls in between again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import NamedTuple, Protocol

from antiphon.errors import AppendConflictError, AppendRefusedError, FencedError
from antiphon.ledger._chain import genesis, link
from antiphon.ledger._record import Record
from antiphon.ledger._request import Entry, Request
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload

__all__ = [
    "NOTHING_SPENT",
    "Admission",
    "Lookup",
    "OpenCall",
    "Pairing",
    "Row",
    "Spent",
    "State",
    "admit",
    "new_state",
    "spent",
]

# The codes under which `antiphon.checks` finds the same in a history that is there already.
ORPHAN = "AP102"
SECOND_RESULT = "AP104"
DUPLICATE_ID = "AP108"
OTHER_OPTION = "AP110"

_MONEY = Context(prec=50, traps=[])
"""Sums of cost: more digits than money has, and no surprise where a cost is absurd."""
_MOST_TOKENS = 2**63 - 1


class OpenCall(NamedTuple):
    """A call that has no result yet."""

    seq: int
    is_effect: bool
    """The journal's invocations are apart from the others'."""
    invocation_id: str
    option_name: str
    turn: str | int
    """Its turn; without one, the place of the last message before it that is no call."""


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


class Row(NamedTuple):
    """A message to be written, and what stands beside it."""

    seq: int
    entry: Entry
    hash: bytes
    open_from: int | None
    """That of the state after it."""


class Admission(NamedTuple):
    """What is to be written, and what is to be answered."""

    state: State
    open_calls: Sequence[OpenCall]
    rows: Sequence[Row]
    records: tuple[Record, ...]
    is_news: bool
    """Whether there is anything to write; if not, outbox, snapshot and status were written the first time."""


class Lookup(Protocol):
    """What the door may ask about a thread, the part included that it shares with its origin."""

    def with_id(self, id: str) -> Sequence[Record]:
        """Return the records with this message id: none or one, or several in an imported history."""
        ...

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        """Whether there is a call of this invocation."""
        ...


def new_state(thread_id: str, now: int) -> State:
    """Return the state of a thread that nobody has said anything in."""
    return State(thread_id, 0, genesis(thread_id), 0, 0, None, None, None, now, now, 0, 0, "0", None, None)


def admit(state: State, open_calls: Sequence[OpenCall], request: Request, lookup: Lookup) -> Admission:
    """Decide on an append.

    Raises:
        FencedError: the epoch is not the thread's.
        AppendConflictError: the thread has another length than expected.
        AppendRefusedError: a message breaks a rule, and the history is not admitted as foreign.
    """
    if not request.is_post and (request.epoch or 0) != state.epoch:
        raise FencedError(state.thread_id, request.epoch, state.epoch)
    door = _Door(state, open_calls, request, lookup)
    records = tuple([door.let_in(entry) for entry in request.entries])
    if not request.entries:
        door.check_version()
    if request.entries and not door.rows:
        return Admission(state, open_calls, (), records, is_news=False)
    return Admission(door.new_state(), door.open_calls, door.rows, records, is_news=True)


class Pairing:
    """Which calls are open, message by message."""

    def __init__(self, run: int = 0, open_calls: Iterable[OpenCall] = (), open_from: int | None = None) -> None:
        self.run = run
        """The place of the last message that is no call."""
        self.open_from = open_from
        """The place of the first call since nothing was open; None if nothing is."""
        self.open = list(open_calls)
        """In order."""
        self.answered: OpenCall | None = None
        """The call that the last message answered."""

    def add(self, seq: int, message: Message) -> str | None:
        """Take the next message into account, and return the code of what is wrong with it, if anything."""
        payload, is_effect = message.payload, message.lane == "effect"
        self.answered = None
        if isinstance(payload, OptionCallPayload):
            turn = self.run if message.turn_id is None else message.turn_id
            self.open.append(OpenCall(seq, is_effect, payload.invocation_id, payload.option_name, turn))
            self.open_from = self.open_from or seq
            return None
        self.run = seq
        return self._answer(is_effect, payload) if isinstance(payload, OptionResultPayload) else None

    def _answer(self, is_effect: bool, result: OptionResultPayload) -> str | None:
        key = (is_effect, result.invocation_id)
        waiting = [call for call in self.open if (call.is_effect, call.invocation_id) == key]
        if not waiting:
            return ORPHAN
        self.answered = next(call for call in waiting if call.turn == waiting[-1].turn)
        self.open.remove(self.answered)
        self.open_from = self.open_from if self.open else None
        return None if self.answered.option_name == result.option_name else OTHER_OPTION


class _Door:
    """The state of a thread while an append is let in, message by message."""

    def __init__(self, state: State, open_calls: Sequence[OpenCall], request: Request, lookup: Lookup) -> None:
        self._state = state
        self._request = request
        self._lookup = lookup
        self._seq = state.seq
        self._hash = state.hash
        self._pairing = Pairing(state.run, open_calls, state.open_from)
        self._written: dict[str, list[Record]] = {}
        self.rows: list[Row] = []

    @property
    def open_calls(self) -> Sequence[OpenCall]:
        return self._pairing.open

    def let_in(self, entry: Entry) -> Record:
        message = entry.message
        there: list[Record] = [*self._lookup.with_id(message.id), *self._written.get(message.id, ())]
        for record in there:
            if record.body == entry.body:
                return record
            self._refuse(message, DUPLICATE_ID, f"the id is taken by message {record.seq}, which says something else")
        if not self.rows:
            self.check_version()
        self._seq += 1
        if code := self._pairing.add(self._seq, message):
            self._refuse_result(message, code)
        return self._write(entry)

    def check_version(self) -> None:
        expected, state = self._request.expected_version, self._state
        if expected is not None and expected != state.seq:
            raise AppendConflictError(state.thread_id, expected, state.seq, state.hash.hex())

    def _write(self, entry: Entry) -> Record:
        request, message = self._request, entry.message
        self._hash = link(self._hash, request.micros, entry.body)
        self.rows.append(Row(self._seq, entry, self._hash, self._pairing.open_from))
        record = Record(self._seq, entry.body, self._hash.hex(), request.now, None if entry.is_stamped else message)
        self._written.setdefault(message.id, []).append(record)
        return record

    def _refuse_result(self, message: Message, code: str) -> None:
        call, invocation = self._pairing.answered, message.invocation_id or ""
        if self._request.allow_foreign:
            return
        if call is not None:
            reason = f"{call.option_name!r} was called, in message {call.seq}, and this is a result of another option"
            self._refuse(message, code, reason)
        if self._was_called(message.lane == "effect", invocation):
            self._refuse(message, SECOND_RESULT, f"invocation {invocation!r} has its result already")
        self._refuse(message, code, f"no call of invocation {invocation!r} stands before this result")

    def _was_called(self, is_effect: bool, invocation_id: str) -> bool:
        calls = (row.entry.message for row in self.rows if row.entry.message.kind == "option_call")
        is_here = any((call.lane == "effect", call.invocation_id) == (is_effect, invocation_id) for call in calls)
        return is_here or self._lookup.was_called(is_effect, invocation_id)

    def _refuse(self, message: Message, code: str, reason: str) -> None:
        if not self._request.allow_foreign:
            raise AppendRefusedError(reason, self._state.thread_id, code, message.id)

    def new_state(self) -> State:
        """Return the state of the thread with everything let in."""
        state, request = self._state, self._request
        before = Spent(state.input_tokens, state.output_tokens, state.cost)
        return State(
            state.thread_id,
            self._seq,
            self._hash,
            state.epoch,
            self._pairing.run,
            self._pairing.open_from,
            request.status or state.status,
            request.pattern or state.pattern,
            state.created_at,
            request.micros,
            *spent(before, [row.entry.message for row in self.rows]),
            state.forked_from,
            state.forked_at,
        )


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
