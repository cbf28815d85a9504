"""The rows of a thread: records with their hash chain, and the pairing of calls and results.

**Records.** A record is a message as the ledger holds it, with its place, its link and its time. Each link is the SHA-256 of
the previous link, the time of recording and the message's stored bytes. The link before the first is the hash of the thread's
id. So a changed bit, a missing row and swapped rows all break the chain at a known place. A head that is kept elsewhere also
reveals that the end of a thread was removed. A branch continues the chain of its origin.

**Pairing** says which calls of a thread are open, and which of them a result answers. If several open calls have the
invocation of a result, it answers the oldest call of the latest utterance, as in `Conversation`. Open calls are indexed by
invocation, so pairing a message takes the same time however many calls are open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from typing_extensions import override

from antiphon.messages import Message, OptionResultPayload, loads
from antiphon.messages._settings import NO_LIMITS

# ---------------------------------------------------------------- records and their chain

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
            DecodeError: a later version of antiphon wrote it.
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


# ---------------------------------------------------------------- open calls


# `antiphon.checks` reports the same faults of an existing history under these codes.
ORPHAN = "AP102"
OTHER_OPTION = "AP110"

Invocation: TypeAlias = tuple[bool, str]
"""Whether it is in the effect lane, whose invocations are separate from those of the other lanes; and its id."""


class OpenCall(NamedTuple):
    """A call that has no result yet."""

    seq: int
    is_effect: bool
    """Invocations of the effect lane are separate from those of the other lanes."""
    invocation_id: str
    option_name: str
    turn: str | int
    """Its turn; without one, the place of the last message before it that is not a call."""


class OpenCalls:
    """The open calls of a thread."""

    __slots__ = ("_by_invocation", "_count")

    def __init__(self, calls: Iterable[OpenCall] = ()) -> None:
        self._by_invocation: dict[Invocation, tuple[OpenCall, ...]] = {}
        self._count = 0
        for call in calls:
            key = (call.is_effect, call.invocation_id)
            self._by_invocation[key] = (*self.of(key), call)
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[OpenCall]:
        """Yield them in order."""
        return iter(sorted(call for calls in self._by_invocation.values() for call in calls))

    def of(self, invocation: Invocation) -> tuple[OpenCall, ...]:
        """Return the open calls of an invocation, in order: none or one, or several in an imported history."""
        return self._by_invocation.get(invocation, ())

    def change(self, changed: Mapping[Invocation, tuple[OpenCall, ...]]) -> None:
        """Replace the open calls of some invocations."""
        for invocation, calls in changed.items():
            self._count += len(calls) - len(self._by_invocation.pop(invocation, ()))
            if calls:
                self._by_invocation[invocation] = calls


class Pairing:
    """Tracks the open calls, message by message. It starts with the given open calls, and does not change that value."""

    __slots__ = ("_before", "answered", "changed", "closed", "open_from", "opened", "run")

    def __init__(self, run: int = 0, before: OpenCalls | None = None, open_from: int | None = None) -> None:
        self.run = run
        """The place of the last message that is not a call."""
        self.open_from = open_from
        """The place of the first call since no call was open; None if no call is open."""
        self._before = OpenCalls() if before is None else before
        self.changed: dict[Invocation, tuple[OpenCall, ...]] = {}
        """The open calls of each invocation that a message has called or answered."""
        self.opened: dict[int, OpenCall] = {}
        """The calls that the messages have opened and not closed, by their place."""
        self.closed: list[int] = []
        """The places of the given calls that the messages have closed."""
        self.answered: OpenCall | None = None
        """The call that the last message answered."""

    @property
    def open(self) -> list[OpenCall]:
        """The open calls, in order."""
        calls = OpenCalls(self._before)
        calls.change(self.changed)
        return list(calls)

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._before) + len(self.opened) - len(self.closed)

    def add(self, seq: int, message: Message) -> str | None:
        """Add the next message, and return the code of its fault, if it has one."""
        payload = message.payload
        self.answered = None
        if payload.kind == "parts":
            self.run = seq
            return None
        key = (message.lane == "effect", payload.invocation_id)
        waiting = self.changed[key] if key in self.changed else self._before.of(key)
        if payload.kind == "option_result":
            self.run = seq
            return self._answer(key, waiting, payload)
        turn = self.run if message.turn_id is None else message.turn_id
        call = self.opened[seq] = OpenCall(seq, *key, payload.option_name, turn)
        self.changed[key] = (*waiting, call)
        self.open_from = self.open_from or seq
        return None

    def _answer(self, key: Invocation, waiting: tuple[OpenCall, ...], result: OptionResultPayload) -> str | None:
        if not waiting:
            return ORPHAN
        oldest = [call.turn for call in waiting].index(waiting[-1].turn)
        answered = self.answered = waiting[oldest]
        self.changed[key] = waiting[:oldest] + waiting[oldest + 1 :]
        if self.opened.pop(answered.seq, None) is None:
            self.closed.append(answered.seq)
        self.open_from = self.open_from if self.count else None
        return None if answered.option_name == result.option_name else OTHER_OPTION
