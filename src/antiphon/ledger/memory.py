"""MemoryLedger: the contract in plain Python. It is the reference for the other stores, and fast in tests.

No method awaits between reading and writing, so every change is atomic. The messages are lost when the process ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import dropwhile, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from antiphon._listeners import listener
from antiphon.errors import (
    ForgottenError,
    HostError,
    OwnedError,
    UnknownThreadError,
)
from antiphon.ledger._admission import Admission, AdmittedRow, State, admit, new_state
from antiphon.ledger._encryption import (
    LEDGER_KEY,
    EncryptionStatus,
    Keyring,
    Mastering,
    MasterKey,
    ThreadKey,
    WrappedKey,
    is_sealed,
    not_indexable,
    not_searchable,
    to_forget,
)
from antiphon.ledger._hosts import Epoch, Host, HostStatus, LeaseClock, LoopClock, TakenThread, Woken, lasts
from antiphon.ledger._listing import (
    SYSTEM_PATTERN,
    cursor_position,
    head_of,
    is_newest_first,
    order_of,
    page_of,
    page_start,
    score,
    snippet,
    sorted_counts,
    summary_of,
    terms_of,
    words_of,
)
from antiphon.ledger._ownership import (
    OWNED,
    check_host,
    check_kind,
    claimed,
    due_since,
    forgotten,
    kinds_wanted,
    make_release,
    moved,
    released,
    standing_of,
    unfit_of,
    why_due,
    withheld,
)
from antiphon.ledger._ownership import seen as seen_upto
from antiphon.ledger._permits import Limit, LimitState, LimitStatus, PermitGrant, PermitWants, check_limited
from antiphon.ledger._records import OpenCalls, Pairing, Record, from_micros, genesis, to_micros
from antiphon.ledger._redaction import LedgerRedaction, Redacting, Redaction, RedactionRules
from antiphon.ledger._request import AppendRequest, check_limit, check_name, make_post, make_request
from antiphon.ledger._signals import CommitSignal
from antiphon.ledger._terms import TermIndex, TermMatch, TermMatches, TermTable, VectorSpace, check_terms, check_vector
from antiphon.ledger._values import (
    CallOrder,
    CallPage,
    Damage,
    Head,
    Hit,
    Snapshot,
    Tailed,
    ThreadCount,
    ThreadFilter,
    ThreadJournal,
    ThreadOrder,
    ThreadPage,
    ThreadStanding,
    ThreadSummary,
    Verification,
)
from antiphon.ledger._verbs import Verbs
from antiphon.ledger._verification import (
    Base,
    Examination,
    StoredRow,
    existing,
    missing_origin,
    missing_threads,
    proven,
    restored,
    row_opener,
)
from antiphon.messages import Json, Message, current_port
from antiphon.messages.json_values import parse

__all__ = ["MemoryLedger"]


@dataclass(slots=True)
class _Thread:
    """A thread: its own messages, and the origin whose first `base_seq` messages it shares."""

    key: int
    state: State
    base: _Thread | None = None
    base_seq: int = 0
    records: list[Record] = field(default_factory=list[Record])
    positions: list[int] = field(default_factory=list[int])
    open_from: list[int | None] = field(default_factory=list["int | None"])
    ids: dict[str, list[Record]] = field(default_factory=dict[str, list[Record]])
    open_calls: OpenCalls = field(default_factory=OpenCalls)
    snapshots: dict[str, tuple[int, bytes]] = field(default_factory=dict[str, tuple[int, bytes]])
    lock: WrappedKey | None = None
    """Its wrapped key, if it is encrypted."""

    @property
    def is_forgotten(self) -> bool:
        return self.lock is not None and self.lock.wrapped is None

    def upto(self, seq: int) -> Iterator[tuple[_Thread, int]]:
        """Yield the place of each message up to `seq`: the thread that holds it, and its index there."""
        for thread, last in reversed(list(self.line(seq))):
            for index in range(max(0, min(last - thread.base_seq, len(thread.records)))):
                yield thread, index

    def line(self, seq: int) -> Iterator[tuple[_Thread, int]]:
        """Yield this thread and its origins, each with the last place up to `seq` that it may hold."""
        thread: _Thread | None = self
        while thread is not None:
            yield thread, seq
            seq = min(seq, thread.base_seq)
            thread = thread.base

    def all(self) -> Iterator[Record]:
        return (thread.records[index] for thread, index in self.upto(self.state.seq))

    def at(self, seq: int) -> tuple[_Thread, int]:
        """Return the thread that holds a message, and its index there."""
        thread = self
        while thread.base is not None and seq <= thread.base_seq:
            thread = thread.base
        return thread, seq - thread.base_seq - 1

    # The questions of the admission (`Lookup`).

    def with_id(self, id: str) -> list[Record]:
        line = reversed(list(self.line(self.state.seq)))
        return [record for thread, last in line for record in thread.ids.get(id, ()) if record.seq <= last]

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        return any(
            message.kind == "option_call"
            and message.invocation_id == invocation_id
            and (message.lane == "effect") == is_effect
            for message in (record.message for record in self.all())
        )


class _Order:
    """All threads, sorted by one of their times. It is updated with each write: sorting for each list would take too long."""

    def __init__(self, name: str) -> None:
        """Create an empty order; `name` is the field of the thread's state that holds the time."""
        self._time: Callable[[State], int] = attrgetter(name)
        self._threads: dict[int, _Thread] = {}
        self._last = (0, 0)
        self._is_sorted = True

    def place(self, thread: _Thread) -> tuple[int, int]:
        """Return the position of a thread."""
        return self._time(thread.state), thread.key

    def put(self, thread: _Thread) -> None:
        """Insert a thread, or move it to its new position: usually the last."""
        self._threads.pop(thread.key, None)
        self._threads[thread.key] = thread
        place = self._time(thread.state), thread.key  # not with `place`: every append runs this
        if place < self._last:  # the clock went back, or the thread is an older one that was restored
            self._is_sorted = False
        else:
            self._last = place

    def remove(self, thread: _Thread) -> None:
        self._threads.pop(thread.key, None)

    def threads(self, is_reversed: bool) -> Iterator[_Thread]:
        """Yield the threads in order."""
        if not self._is_sorted:
            self._threads = {each.key: each for each in sorted(self._threads.values(), key=self.place)}
            self._is_sorted = True
        return iter(reversed(self._threads.values()) if is_reversed else self._threads.values())


@dataclass(frozen=True, slots=True)
class _Lease:
    """A host and its lease."""

    host: Host
    since: datetime
    beaten_at: datetime
    ends: float
    """By the lease clock."""
    left_at: datetime | None = None

    def is_alive(self, clock: LeaseClock) -> bool:
        lives = self.left_at is None and lasts(clock.now(), self.ends, self.host.lease)
        return lives and not clock.has_ended(self.host.instance)

    def until(self, now: datetime, clock: LeaseClock) -> datetime:
        """Return the time of day at which the lease ends or ended."""
        left = self.ends - clock.now()
        return now + timedelta(seconds=left) if self.is_alive(clock) else self.ended_at

    @property
    def ended_at(self) -> datetime:
        return self.beaten_at + timedelta(seconds=self.host.lease) if self.left_at is None else self.left_at

    def status(self, now: datetime, clock: LeaseClock, threads: int) -> HostStatus:
        return HostStatus(self.host, self.is_alive(clock), self.since, self.until(now, clock), threads)


class MemoryLedger(Verbs):
    """A ledger that lives as long as its process."""

    def __init__(self, *, redaction: Redacting = None, clock: LeaseClock | None = None, master_key: Mastering = None) -> None:
        self.redaction = LedgerRedaction.of(redaction)
        self._keyring = Keyring.of(master_key)
        self._ledger_key: WrappedKey | None = None
        self._clock = LoopClock() if clock is None else clock
        self._hosts: dict[int, _Lease] = {}
        self._host_keys = 0
        self._limits: dict[str, LimitState] = {}
        """By model."""
        self._rules = 0
        """The digest of the redaction rules of the hosts; 0: none yet."""
        self._threads: dict[str, _Thread] = {}
        self._orders = {name: _Order(name) for name in ("created_at", "updated_at")}
        self._by_update = self._orders["updated_at"]
        self._open: dict[int, _Thread] = {}
        """By key, the threads with open calls."""
        self._log: list[tuple[int, _Thread, int]] = []
        self._keys = 0
        self._position = 0
        self._terms: dict[str, TermTable] = {}
        self._commits = CommitSignal()

    @classmethod
    @asynccontextmanager
    async def open(cls, *, redaction: Redacting = None, master_key: Mastering = None) -> AsyncGenerator[MemoryLedger, None]:
        """Open an empty ledger; `redaction` is by default `STANDARD_REDACTION`."""
        yield cls(redaction=redaction, master_key=master_key)

    # ------------------------------------------------------------ writing

    async def append(
        self,
        thread_id: str,
        messages: Iterable[Message],
        *,
        expected_version: int | None = None,
        epoch: int | None = None,
        snapshot: Snapshot | None = None,
        status: str | None = None,
        pattern: str | None = None,
        allow_foreign: bool = False,
        outside: bool = False,
    ) -> tuple[Record, ...]:
        return self._append(
            make_request(
                thread_id,
                messages,
                redaction=self.redaction,
                expected_version=expected_version,
                epoch=epoch,
                snapshot=snapshot,
                status=status,
                pattern=pattern,
                allow_foreign=allow_foreign,
                outside=outside,
            )
        )

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        return self._append(make_post(thread_id, message, redaction=self.redaction, by=by))[0]

    def _append(self, request: AppendRequest) -> tuple[Record, ...]:
        known = self._threads.get(request.thread_id)
        thread = known or self._begun(request.thread_id, request.micros)
        request = request.for_thread(thread.state.is_redacted)
        wrapped, key = self._key_to_write(thread, is_new=not thread.state.seq and thread.base is None)
        admission = admit(thread.state, thread.open_calls, request, thread, key)
        if admission.is_new and not request.is_empty:
            self._keep_key(thread, wrapped)
            if known is None:
                self._enter(thread)  # only now: a refused append creates no thread
            self._write(thread, admission, request, key)
        return admission.records

    def _key_to_write(self, thread: _Thread, *, is_new: bool) -> tuple[WrappedKey | None, ThreadKey | None]:
        if self._keyring.master is None and self._ledger_key is None:
            return None, None  # the fast path: nothing was ever encrypted here
        return self._keyring.key_to_write(thread.state.thread_id, thread.lock, self._ledger_key, is_new=is_new)

    def _keep_key(self, thread: _Thread, wrapped: WrappedKey | None) -> None:
        if wrapped is not None and self._ledger_key is None:
            self._ledger_key = self._keyring.new_key(LEDGER_KEY)
        thread.lock = wrapped

    def _begun(self, thread_id: str, now: int) -> _Thread:
        return self._new_thread(new_state(thread_id, now, is_redacted=self.redaction.is_on))

    def _new_thread(self, state: State, base: _Thread | None = None, base_seq: int = 0) -> _Thread:
        self._keys += 1
        return _Thread(self._keys, state, base, base_seq)

    def _enter(self, thread: _Thread) -> None:
        self._threads[thread.state.thread_id] = thread
        for order in self._orders.values():
            order.put(thread)
        self._note_open(thread)

    def _note_open(self, thread: _Thread) -> None:
        if thread.open_calls:
            self._open[thread.key] = thread
        else:
            self._open.pop(thread.key, None)

    def _write(self, thread: _Thread, admission: Admission, request: AppendRequest, key: ThreadKey | None) -> None:
        self._put(thread, admission.rows)
        thread.state = admission.state
        self._by_update.put(thread)
        thread.open_calls.change(admission.pairing.changed)
        self._note_open(thread)
        if request.snapshot is not None:
            fold, state = request.snapshot
            seq = admission.state.seq
            thread.snapshots[fold] = (seq, state if key is None else key.seal_snapshot(fold, seq, state))
        self._commits.notify()  # last: a reader that wakes must see the whole append

    def _put(self, thread: _Thread, rows: Iterable[AdmittedRow]) -> None:
        for row in rows:
            self._position += 1
            self._log.append((self._position, thread, len(thread.records)))
            thread.records.append(row.record)
            thread.ids.setdefault(row.message.id, []).append(row.record)
            thread.positions.append(self._position)
            thread.open_from.append(row.open_from)

    async def redaction_of(self, thread_id: str) -> Redaction | None:
        thread = self._threads.get(thread_id)
        return self.redaction.rules if thread is None else self.redaction.for_thread(thread.state.is_redacted)

    async def redaction_rules(self) -> RedactionRules:
        return self.redaction.beside(self._rules)

    async def adopt_redaction(self) -> RedactionRules:
        self.redaction.check_unused(await self.hosts())
        self._rules = self.redaction.digest
        return self.redaction.beside(self.redaction.digest)

    # ------------------------------------------------------------ limits for all hosts

    async def set_limit(self, limit: Limit) -> None:
        check_limited(limit, self.redaction)
        before = self._limits.pop(limit.model, None) or LimitState(limit)
        if not limit.is_none:
            self._limits[limit.model] = before.set(limit)

    async def limits(self) -> tuple[LimitStatus, ...]:
        names = {key: lease.host.name for key, lease in self._hosts.items() if lease.is_alive(self._clock)}
        now = current_port().now()
        return tuple(self._limits[model].now(names, self._clock, now).status(names) for model in sorted(self._limits))

    async def permits(self, by: Host, wants: Mapping[str, PermitWants]) -> Mapping[str, PermitGrant]:
        now = current_port().now()
        own = self._living(by, now)
        living = [key for key, lease in self._hosts.items() if lease.is_alive(self._clock) or key == own]
        grants = dict.fromkeys(wants, PermitGrant())
        for model in wants.keys() & self._limits.keys():
            state = self._limits[model].now(living, self._clock, now)
            self._limits[model], grants[model] = state.give(own, wants[model], self._clock.now())
        return grants

    # ------------------------------------------------------------ hosts and owners

    async def beat(self, host: Host) -> datetime:
        check_host(host, self.redaction)
        self.redaction.check_digest(self._rules)
        now, clock = current_port().now(), self._clock.now()
        for lease in self._hosts.values():
            if lease.host.name == host.name and lease.host.instance != host.instance and lease.is_alive(self._clock):
                raise HostError("HOST_NAME_TAKEN", host.name, lease.until(now, self._clock))
        key = self._key_of(host)
        since = now if key is None else self._hosts[key].since
        self._host_keys += key is None
        self._hosts[key or self._host_keys] = _Lease(host, since, now, clock + host.lease)
        self._rules = self.redaction.digest
        self._forget_hosts()  # after the lease is renewed: otherwise it could forget this host
        return now + timedelta(seconds=host.lease)

    def renew(self, host: Host) -> bool:
        """Return False: the hosts of this ledger share its event loop, so none of them runs while it is blocked."""
        return False

    async def leave(self, host: Host) -> None:
        now, key = current_port().now(), self._key_of(host)
        if key is not None:
            lease = self._hosts[key]
            self._hosts[key] = lease if lease.left_at is not None else replace(lease, left_at=now)
            self._forget_hosts()

    async def hosts(self) -> tuple[HostStatus, ...]:
        now = current_port().now()
        owned = Counter(thread.state.owner for thread in self._threads.values())
        found = [lease.status(now, self._clock, owned[key]) for key, lease in self._hosts.items()]
        return tuple(sorted(found, key=lambda each: (each.host.name, each.since)))

    def _key_of(self, host: Host) -> int | None:
        """Return the key of a host that has registered and not left, even if its lease has ended."""
        for key, lease in self._hosts.items():
            if (lease.host.name, lease.host.instance) == (host.name, host.instance) and lease.left_at is None:
                return key
        return None

    def _forget_hosts(self) -> None:
        """Forget dead hosts that own no thread."""
        owners = {thread.state.owner for thread in self._threads.values()}
        self._hosts = {key: lease for key, lease in self._hosts.items() if key in owners or lease.is_alive(self._clock)}

    def _living(self, host: Host, now: datetime) -> int:
        """Return the key of a living host.

        Raises:
            HostError: it has never beaten or has left, or its lease is over.
        """
        key = self._key_of(host)
        if key is None:
            raise HostError("UNKNOWN_HOST", host.name)
        if not self._hosts[key].is_alive(self._clock):
            raise HostError("HOST_EXPIRED", host.name, self._hosts[key].until(now, self._clock))
        return key

    def _owner_of(self, state: State) -> _Lease | None:
        return None if state.owner is None else self._hosts[state.owner]

    async def claim(self, thread_id: str, *, by: Host | None = None, kind: str | None = None) -> Epoch:
        check_name(thread_id, "a thread's id")
        check_kind(kind, self.redaction)
        now = current_port().now()
        owner = None if by is None else self._living(by, now)  # before the thread is created: a refused claim creates none
        thread = self._threads.get(thread_id)
        if thread is None:
            self.redaction.check_name(thread_id, "the name of a thread")
            thread = self._begun(thread_id, to_micros(now))
            self._enter(thread)
        lease = self._owner_of(thread.state)
        if lease is not None and owner not in (None, thread.state.owner) and lease.is_alive(self._clock):
            raise OwnedError(thread_id, lease.host.name, lease.until(now, self._clock))
        is_free = lease is None or owner == thread.state.owner or lease.left_at is not None
        taken_from = None if lease is None or is_free else lease.host.name
        thread.state = claimed(thread.state, owner, kind, build=None if by is None else by.build)
        return Epoch(thread.state.epoch, thread.state.seq, taken_from)

    async def move(self, thread_id: str, *, to: str) -> ThreadStanding:
        check_name(to, "the place of a ledger")
        now, thread = current_port().now(), self._known(thread_id)
        lease = self._owner_of(thread.state)
        if lease is not None and lease.is_alive(self._clock):
            raise OwnedError(thread_id, lease.host.name, lease.until(now, self._clock), OWNED)
        thread.state = moved(thread.state, to, to_micros(now))
        return standing_of(thread.state)

    async def release(
        self,
        thread_id: str,
        *,
        epoch: int,
        seen: int | None = None,
        wake_at: datetime | None = None,
        unfit: str | None = None,
        reason: str | None = None,
    ) -> None:
        release = make_release(
            thread_id, redaction=self.redaction, epoch=epoch, seen=seen, wake_at=wake_at, unfit=unfit, reason=reason
        )
        thread = self._known(thread_id)
        thread.state = released(thread.state, release if thread.lock is None else withheld(release))

    async def take(self, by: Host, *, kinds: Iterable[str | None] | None = None, limit: int = 10) -> tuple[TakenThread, ...]:
        check_limit(limit)
        now, wanted = current_port().now(), kinds_wanted(by, kinds)
        owner, micros = self._living(by, now), to_micros(now)
        due: list[tuple[int, int, _Thread]] = []
        for thread in self._threads.values():
            state = thread.state
            if (state.owner is None and state.due_at is None) or state.kind not in wanted:
                continue
            if state.unfit is None or all(each.build != by.build for each in unfit_of(state)):
                since = self._due_since(thread, now)
                due += [] if since is None else [(since, thread.key, thread)]
        taken: list[TakenThread] = []
        for since, _, thread in sorted(due, key=itemgetter(0, 1))[:limit]:
            why, lease = why_due(thread.state, micros), self._owner_of(thread.state)
            state = thread.state = claimed(thread.state, owner)
            before = None if lease is None or lease.left_at is not None else lease.host.name
            taken.append(
                TakenThread(state.thread_id, Epoch(state.epoch, state.seq, before), state.kind, why, from_micros(since))
            )
        return tuple(taken)

    def _due_since(self, thread: _Thread, now: datetime) -> int | None:
        """Return since when a thread is due and has no living owner; None if it is not due or has one."""
        lease = self._owner_of(thread.state)
        if lease is not None and lease.is_alive(self._clock):
            return None
        abandoned_at = None if lease is None else to_micros(lease.ended_at)
        return due_since(thread.state, bool(thread.open_calls), to_micros(now), abandoned_at)

    async def woken(self, by: Host, *, seen: Mapping[str, int] = MappingProxyType({})) -> tuple[Woken, ...]:
        key = self._key_of(by)
        if key is None:
            return ()
        for thread_id, upto in seen.items():
            thread = self._threads.get(thread_id)
            if thread is not None and thread.state.owner == key:
                thread.state = seen_upto(thread.state, upto)
        # A host calls this several times a second, and may have many threads: no object is made for threads without a post.
        states = [thread.state for thread in self._threads.values()]
        return tuple(Woken(state.thread_id, state.posted) for state in states if state.posted and state.owner == key)

    async def branch(self, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> ThreadSummary:
        """Create the branch that `fork` has prepared. Nothing awaits in between, so its data is still current."""
        if closing.thread_id in self._threads:
            raise ValueError(f"there is a thread called {closing.thread_id!r} already")
        base = self._known(head.thread_id)
        state = new_state(closing.thread_id, closing.micros)
        state = state._replace(seq=at, run=at, hash=_link_at(base, at), forked_from=head.thread_id, forked_at=at)
        state = state._replace(open_from=pairing.open_from, is_redacted=base.state.is_redacted, kind=base.state.kind)
        closing = closing.for_thread(state.is_redacted)
        branch = self._new_thread(state, base, at)
        wrapped, key = self._key_to_write(branch, is_new=True)
        self._keep_key(branch, wrapped)
        branch.open_calls = OpenCalls(pairing.open)
        self._enter(branch)
        self._write(branch, admit(state, branch.open_calls, closing, branch, key), closing, key)
        return self._summary(branch)

    async def restore(self, journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> tuple[ThreadSummary, ...]:
        # All threads or none: they become visible only at the end, and a refusal removes their rows from the log.
        before, made = (len(self._log), self._position), dict[str, _Thread]()
        try:
            for journal, head in proven(journals, heads):
                made[journal.thread_id] = self._restored(journal, head, made)
        except BaseException:
            del self._log[before[0] :]
            self._position = before[1]
            raise
        for thread in made.values():
            self._enter(thread)
        self._commits.notify()
        return tuple(map(self._summary, made.values()))

    def _tests(self, filter: ThreadFilter) -> Iterator[Callable[[_Thread], bool]]:
        """Yield a test for each condition that the filter sets, and no others, because a list may examine all threads."""
        for name, make in _TESTS.items():
            if (wanted := getattr(filter, name)) is not None:
                yield make(self._keys_of(wanted) if name == "owner" else _plain(wanted))

    def _keys_of(self, name: str) -> frozenset[int]:
        """Return the keys of the hosts of a name: of one that lives, and of dead ones."""
        return frozenset(key for key, lease in self._hosts.items() if lease.host.name == name)

    def _summary(self, thread: _Thread) -> ThreadSummary:
        lease = self._owner_of(thread.state)
        return summary_of(thread.state, len(thread.open_calls), None if lease is None else lease.host.name)

    def _restored(self, journal: ThreadJournal, head: Head, made: Mapping[str, _Thread]) -> _Thread:
        base, at = self._base_of(journal, made), journal.forked_at or 0
        found = restored(journal, head, _shared(journal.thread_id, base, at), self.redaction, self._keyring)
        thread = self._new_thread(found.state, base, at if base is not None else 0)
        self._keep_key(thread, journal.key)
        self._put(thread, found.rows)
        thread.open_calls = OpenCalls(found.pairing.open)
        return thread

    def _base_of(self, journal: ThreadJournal, made: Mapping[str, _Thread]) -> _Thread | None:
        """Return the origin of a journal; None if it is not a branch."""
        if journal.thread_id in self._threads:
            raise existing(journal.thread_id)
        if journal.forked_from is None:
            return None
        base = made.get(journal.forked_from) or self._threads.get(journal.forked_from)
        if base is None or not 0 <= (journal.forked_at or 0) <= base.state.seq:
            raise missing_origin(journal)
        return base

    async def delete(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = [thread.state.thread_id for thread in self._family(self._known(thread_id))]
        if len(names) > 1 and not with_branches:
            raise ValueError(f"{', '.join(map(repr, names[1:]))} share its messages; delete them first, or with_branches=True")
        removed = [self._threads.pop(name) for name in names]
        for thread in removed:
            self._open.pop(thread.key, None)
            for order in self._orders.values():
                order.remove(thread)
        gone = {thread.key for thread in removed}
        self._log = [place for place in self._log if place[1].key not in gone]
        for table in self._terms.values():
            for position in [each for thread in removed for each in thread.positions if each in table.entries]:
                table.remove(position)
        return tuple(names)

    async def forget(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        family = self._family(self._known(thread_id))
        chosen = to_forget([(each.state.thread_id, each.lock) for each in family], with_branches=with_branches)
        for thread in family:
            if thread.lock is not None and thread.state.thread_id in chosen:
                thread.lock = WrappedKey(thread.lock.master, None)
                thread.state = forgotten(thread.state)
                rows = thread.records
                thread.records = [Record(row.seq, b"", row.hash, row.recorded_at, stored=row.stored) for row in rows]
                thread.ids, thread.open_calls = {}, OpenCalls()
                thread.snapshots.clear()
                self._note_open(thread)
        self._keyring.drop()
        return chosen

    async def rotate(self, new: MasterKey) -> int:
        self._keyring.begin_rotation(new)
        keyed = [thread for thread in self._threads.values() if thread.lock is not None]
        wrapped = [self._keyring.rewrapped(each.state.thread_id, each.lock, new) for each in keyed if each.lock is not None]
        if self._ledger_key is not None:
            self._ledger_key = self._keyring.rewrapped(LEDGER_KEY, self._ledger_key, new)
        for thread, key in zip(keyed, wrapped, strict=True):
            thread.lock = key
        self._keyring.end_rotation(new)
        return sum(key.wrapped is not None for key in wrapped)

    async def encryption(self) -> EncryptionStatus | None:
        keyed = [thread for thread in self._threads.values() if thread.lock is not None]
        if self._ledger_key is None:
            return self._keyring.unused
        return EncryptionStatus(self._ledger_key.master, len(keyed), sum(each.is_forgotten for each in keyed))

    async def wrapped_key(self, thread_id: str) -> WrappedKey | None:
        """Return the wrapped key of a thread, if it is encrypted."""
        thread = self._threads.get(thread_id)
        return None if thread is None else thread.lock

    def _readable(self, thread_id: str) -> _Thread | None:
        """Return a thread whose messages can be read, if there is one.

        Raises:
            ForgottenError: its key, or the key of an origin, was deleted.
        """
        thread = self._threads.get(thread_id)
        if thread is not None and any(holder.is_forgotten for holder, _ in thread.line(thread.state.seq)):
            raise ForgottenError(thread_id)
        return thread

    def _family(self, thread: _Thread) -> list[_Thread]:
        """Return a thread, its branches, and their branches."""
        found = [thread]
        for each in found:
            found.extend(other for other in self._threads.values() if other.base is each)
        return found

    async def expire(self, before: datetime) -> tuple[str, ...]:
        micros = to_micros(before)
        families = {name: self._family(thread) for name, thread in self._threads.items()}
        old = [name for name, family in families.items() if all(each.state.updated_at < micros for each in family)]
        gone: list[str] = []
        for name in old:
            if name in self._threads:
                gone.extend(await self.delete(name, with_branches=True))
        return tuple(sorted(gone))

    # ------------------------------------------------------------ reading

    async def read(
        self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False
    ) -> AsyncIterator[Record]:
        thread = self._readable(thread_id)
        if thread is None:
            return
        records = list(thread.all())[max(after, 0) : None if before is None else max(before - 1, 0)]
        for record in reversed(records) if reverse else records:
            yield record

    async def head(self, thread_id: str) -> Head:
        thread = self._threads.get(thread_id)
        return head_of(new_state(thread_id, 0) if thread is None else thread.state)

    async def heads(self) -> tuple[Head, ...]:
        return tuple(head_of(self._threads[name].state) for name in sorted(self._threads))

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        thread = self._threads.get(thread_id)
        return None if thread is None else self._summary(thread)

    def _known(self, thread_id: str) -> _Thread:
        if thread_id not in self._threads:
            raise UnknownThreadError("there is no such thread", thread_id)
        return self._threads[thread_id]

    async def threads(
        self,
        filter: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
        order: ThreadOrder = "-updated_at",
        page: str | None = None,
        limit: int = 100,
    ) -> ThreadPage:
        check_limit(limit)
        name, is_reversed = order_of(order)
        by, found = self._orders[name], self._orders[name].threads(is_reversed)
        if page is not None:
            start = page_start(page)
            found = dropwhile(lambda each: by.place(each) >= start if is_reversed else by.place(each) <= start, found)
        chosen = list(islice(_fitting(found, self._tests(filter)), limit + 1))
        after = page_of(*by.place(chosen[limit - 1])) if len(chosen) > limit > 0 else None
        return ThreadPage(tuple(map(self._summary, chosen[:limit])), after)

    async def count_threads(self, *, system: bool | None = None) -> tuple[ThreadCount, ...]:
        fitting = _fitting(iter(self._threads.values()), self._tests(ThreadFilter(system=system)))
        found: dict[tuple[str | None, str | None], list[bool]] = {}
        for each in fitting:
            found.setdefault((each.state.status, each.state.pattern), []).append(bool(each.open_calls))
        return sorted_counts(ThreadCount(*both, len(opens), sum(opens)) for both, opens in found.items())

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        position = cursor_position(after)
        while True:
            seen = self._commits.count  # before the read: a commit between the read and the wait then ends the wait at once
            for found, record in self._since(position, thread_id):
                position = found
                yield Tailed(record, str(position))
            await self._commits.wait(seen)

    def _since(self, position: int, thread_id: str | None) -> list[tuple[int, Record]]:
        if thread_id is None:
            start = bisect_right(self._log, position, key=itemgetter(0))
            log = self._log[start:]
            return [(each, thread.records[index]) for each, thread, index in log if not thread.is_forgotten]
        thread = self._readable(thread_id)
        places = () if thread is None else thread.upto(thread.state.seq)
        found = ((holder.positions[index], holder.records[index]) for holder, index in places)
        return [(each, record) for each, record in found if each > position]

    async def horizon(self) -> str:
        return str(self._position)

    async def tail_lag(self) -> float:
        return 0.0

    async def by_invocation(self, invocation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        return self._where(lambda message: message.invocation_id == invocation_id, thread_id)

    async def by_correlation(self, correlation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        return self._where(lambda message: message.correlation_id == correlation_id, thread_id)

    def _where(self, fits: Callable[[Message], bool], thread_id: str | None) -> tuple[Record, ...]:
        return tuple(record for _, record in self._since(0, thread_id) if fits(record.message))

    async def open_calls(self, thread_id: str) -> tuple[Record, ...]:
        thread = self._readable(thread_id)
        places = [] if thread is None else [thread.at(call.seq) for call in thread.open_calls]
        return tuple(thread.records[index] for thread, index in places)

    async def open_calls_of(
        self, option_name: str, *, order: CallOrder = "recorded_at", page: str | None = None, limit: int = 100
    ) -> CallPage:
        check_limit(limit)
        is_reversed, start = is_newest_first(order), None if page is None else cursor_position(page)
        found: list[tuple[int, Record]] = []
        for thread in self._open.values():
            places = [thread.at(call.seq) for call in thread.open_calls if call.option_name == option_name]
            found += [(holder.positions[index], holder.records[index]) for holder, index in places]
        found.sort(key=itemgetter(0), reverse=is_reversed)
        rest = [each for each in found if start is None or (each[0] < start if is_reversed else each[0] > start)]
        after = str(rest[limit - 1][0]) if len(rest) > limit > 0 else None
        return CallPage(tuple(record for _, record in rest[:limit]), after)

    async def search(self, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        check_limit(limit)
        terms = terms_of(text)
        if thread_id is not None and await self.is_encrypted(thread_id):
            raise not_searchable(thread_id)
        scored = [(score(terms, words_of(record.stored)), record) for _, record in self._since(0, thread_id)]
        best = sorted((pair for pair in scored if terms and pair[0]), key=lambda pair: -pair[0])
        return tuple(Hit(record, snippet(terms, words_of(record.stored))) for _, record in best[:limit])

    async def find_terms(
        self, index: TermIndex, terms: Iterable[str], *, source: str | None = None, limit: int = 100
    ) -> TermMatches:
        check_limit(limit)
        wanted, table = check_terms(terms), self._table_of(index)
        best = table.best(wanted, source, limit)
        found = tuple(TermMatch(self._record_at(position), table.entries[position]) for position in best)
        return TermMatches(found, len(table.entries), table.length, table.frequency(wanted))

    async def rebuild_terms(self, index: TermIndex) -> int:
        self._terms.pop(index.name, None)
        return len(self._table_of(index).entries)

    async def without_vectors(self, index: TermIndex, space: VectorSpace, *, limit: int = 100) -> tuple[Record, ...]:
        table = self._table_of(index)
        check_vector(space, table.space)
        return tuple(self._record_at(each) for each in [each for each in table.entries if each not in table.vectors][:limit])

    async def store_vectors(self, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> None:
        table = self._table_of(index)
        check_vector(space, table.space, vectors.values())
        table.space = space
        for position in table.entries:
            if (given := vectors.get(self._record_at(position).hash)) is not None:
                table.vectors[position] = tuple(given)

    async def find_vectors(
        self, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None = None, limit: int = 100
    ) -> tuple[TermMatch, ...]:
        check_limit(limit)
        table = self._table_of(index)
        check_vector(space, table.space, [vector])
        found = table.nearest(vector, source, limit)
        return tuple(TermMatch(self._record_at(each), table.entries[each]) for each in found)

    async def drop_vectors(self, index: TermIndex) -> None:
        table = self._table_of(index)
        table.space, table.vectors = None, {}

    def _record_at(self, position: int) -> Record:
        _, thread, place = self._log[bisect_right(self._log, position, key=itemgetter(0)) - 1]
        return thread.records[place]

    def _table_of(self, index: TermIndex) -> TermTable:
        """Return an index that has all messages.

        Raises:
            NotSearchableError: it covers an encrypted thread.
        """
        if any(each.lock is not None and index.covers(each.state.thread_id) for each in self._threads.values()):
            raise not_indexable(index.name)
        table = self._terms.get(index.name)
        if table is None or table.version != index.version:
            table = self._terms[index.name] = TermTable(index.version)
        start = bisect_right(self._log, table.upto, key=itemgetter(0))
        for position, thread, place in self._log[start:]:
            entry = index.entry_of(thread.records[place].message) if index.covers(thread.state.thread_id) else None
            if entry is not None:
                table.add(position, entry)
            table.upto = position
        return table

    # ------------------------------------------------------------ lookups for the verbs

    async def open_from(self, thread_id: str, seq: int) -> int | None:
        """Return the place of the first call since no call was open, as of a message."""
        thread, index = self._known(thread_id).at(seq)
        return thread.open_from[index] if index >= 0 else None

    async def latest_snapshot(self, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None:
        """Return the place and the state of a fold's latest snapshot up to a message."""
        thread, last = self._readable(thread_id), upto
        while thread is not None:
            seq, state = thread.snapshots.get(fold, (last + 1, b""))
            if seq <= last and thread.lock is not None and is_sealed(state):
                state = self._keyring.key(thread.state.thread_id, thread.lock).open_snapshot(fold, seq, state)
            if seq <= last:
                return seq, parse(state)
            last = min(last, thread.base_seq)
            thread = thread.base
        return None

    # ------------------------------------------------------------ maintenance

    async def verify(
        self,
        thread_id: str | None = None,
        *,
        heads: Iterable[Head] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        progress = listener(progress)
        threads = list(self._threads.values()) if thread_id is None else [self._known(thread_id)]
        known = {head.thread_id: head for head in heads if thread_id in (None, head.thread_id)}
        total = sum(len(thread.records) for thread in threads)
        damages, messages = missing_threads(known, self._threads), 0
        for thread in threads:
            damage, looked_at = _examine(thread, known, self._keyring)
            messages += looked_at
            damages += [] if damage is None else [damage]
            if progress is not None:
                progress(messages, total)
        return Verification(len(threads), messages, tuple(damages))

    async def backup(self, path: str | Path) -> None:
        raise ValueError(f"a ledger in memory has no file to copy to {str(path)!r}; open one of sqlite:///")


def _link_at(thread: _Thread, seq: int) -> bytes:
    """Return the link of a message; before the first message, the genesis hash of the oldest origin."""
    holder, index = thread.at(seq)
    if index >= 0:
        return bytes.fromhex(holder.records[index].hash)
    return genesis(holder.state.thread_id)


def _shared(thread_id: str, base: _Thread | None, seq: int) -> Base:
    """Return the base of a thread to restore: the messages that it shares with its origin."""
    pairing = Pairing()
    for holder, index in () if base is None else base.upto(seq):
        pairing.add(holder.records[index].seq, holder.records[index].message)
    return Base(0, genesis(thread_id), pairing) if base is None else Base(seq, _link_at(base, seq), pairing)


def _examine(thread: _Thread, heads: dict[str, Head], keyring: Keyring) -> tuple[Damage | None, int]:
    name, state = thread.state.thread_id, thread.state
    shared: Pairing | None = Pairing()
    for holder, index in () if thread.base is None else thread.base.upto(thread.base_seq):
        shared = None if shared is None or holder.is_forgotten else shared
        if shared is not None:
            shared.add(holder.records[index].seq, holder.records[index].message)
    opener = row_opener(keyring, name, thread.lock)
    examination = Examination(name, thread.base_seq, _link_at(thread, thread.base_seq), shared, opener)
    rows = (
        StoredRow(record.seq, to_micros(record.recorded_at), bytes.fromhex(record.hash), open_from, record.stored)
        for record, open_from in zip(thread.records, thread.open_from, strict=True)
    )
    wanted = frozenset({heads[name].seq} if name in heads else ())
    return examination.rows(rows, wanted) or examination.end(state, thread.open_calls, heads), examination.looked_at


_TESTS: dict[str, Callable[[Any], Callable[[_Thread], bool]]] = {
    "status": lambda wanted: lambda each: each.state.status == wanted,
    "pattern": lambda wanted: lambda each: each.state.pattern == wanted,
    "system": lambda wanted: lambda each: (each.state.pattern == SYSTEM_PATTERN) == wanted,
    "forked_from": lambda wanted: lambda each: each.state.forked_from == wanted,
    "open_calls": lambda wanted: lambda each: (each.state.open_from is not None) == wanted,
    "owner": lambda wanted: lambda each: each.state.owner in wanted,
    "kind": lambda wanted: lambda each: each.state.kind == wanted,
    "due_before": lambda wanted: lambda each: each.state.owner is None and (each.state.due_at or wanted) < wanted,
    "unfit": lambda wanted: lambda each: (each.state.unfit is not None) == wanted,
    "updated_after": lambda wanted: lambda each: each.state.updated_at > wanted,
    "updated_before": lambda wanted: lambda each: each.state.updated_at < wanted,
    "created_after": lambda wanted: lambda each: each.state.created_at > wanted,
    "created_before": lambda wanted: lambda each: each.state.created_at < wanted,
    "min_tokens": lambda wanted: lambda each: each.state.input_tokens + each.state.output_tokens >= wanted,
    "min_cost": lambda wanted: lambda each: (wanted <= 0 or each.state.cost != "0") and Decimal(each.state.cost) >= wanted,
}
"""By field of a filter, a function that takes its value and returns a test of threads."""


def _plain(value: Any) -> Any:
    return to_micros(value) if isinstance(value, datetime) else value


def _fitting(threads: Iterator[_Thread], tests: Iterable[Callable[[_Thread], bool]]) -> Iterator[_Thread]:
    for test in tests:
        threads = filter(test, threads)  # a loop in C: it may examine all threads
    return threads
