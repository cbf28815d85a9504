"""SqlLedger: the contract over verbs, for any driver that can run them.

A driver runs a verb in one transaction, and again if the transaction was rolled back. So it gets functions that make a verb,
not verbs. `_read` runs one on one snapshot; `_look` without one, for rows that never change; `_change` may run one that was
committed a second time; `_change_once` may not. `hints` tells other processes what was committed; a file tells nobody.
"""
# pyright: reportPrivateUsage=false
# The parts at the end belong to `SqlLedger`: they run verbs as it does.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Protocol, TypeVar, cast, overload

from antiphon._listeners import listener
from antiphon.errors import ForgottenError, LedgerCorruptError, UnknownThreadError
from antiphon.ledger._encryption import EncryptionStatus, Keyring, MasterKey, WrappedKey
from antiphon.ledger._hosts import Epoch, Host, HostStatus, TakenThread, Woken
from antiphon.ledger._listing import is_newest_first, order_of, page_start
from antiphon.ledger._ownership import check_host, check_kind, kinds_wanted, make_release, standing_of
from antiphon.ledger._permits import Limit, LimitStatus, PermitGrant, PermitWants, check_limited
from antiphon.ledger._records import Pairing, Record, to_micros
from antiphon.ledger._redaction import LedgerRedaction, Redaction, RedactionRules
from antiphon.ledger._request import AppendRequest, check_limit, check_name, make_post, make_request
from antiphon.ledger._signals import ANYBODY, EVERYBODY, CommitSignal, NoHints, ProcessHints
from antiphon.ledger._sql import branches, hosts, keys, limits, lists, threads, verify
from antiphon.ledger._sql.rows import CommitPlace, place_of
from antiphon.ledger._sql.statements import Verb
from antiphon.ledger._stored import Subject, TakeRequest, Thread, read_pages
from antiphon.ledger._terms import TermIndex, TermMatch, TermMatches, VectorSpace, check_terms
from antiphon.ledger._values import (
    CallOrder,
    CallPage,
    Damage,
    Diagnosis,
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
from antiphon.ledger._verbs import closed_in_branch, open_between, place_of_fork
from antiphon.ledger._verification import missing_threads, proven
from antiphon.messages import Json, Message, current_port

ResultT = TypeVar("ResultT")

_NO_HINTS = NoHints()


class WordVerbs(Protocol):
    """The verbs of an index of words: each database has a full text of its own."""

    def index_words(self, after: CommitPlace | None) -> Verb[CommitPlace | None]:
        """Add the next messages to the index; return where to continue, or None if it has all of them."""
        ...

    def find_words(self, typed: str, thread_id: str | None, limit: int) -> Verb[tuple[Hit, ...]]:
        """Return the best matches, of all threads or one."""
        ...


class TermVerbs(Protocol):
    """The verbs of the indexes of terms, and of the vectors beside them."""

    def find(self, index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> Verb[TermMatches]:
        """Return the best matches, and the figures of the index."""
        ...

    def drop(self, name: str) -> Verb[None]:
        """Remove all entries of an index."""
        ...

    def without_vectors(self, index: TermIndex, space: VectorSpace, limit: int) -> Verb[tuple[Record, ...]]:
        """Return messages that have no vector yet."""
        ...

    def store_vectors(self, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> Verb[None]:
        """Store vectors of messages that are in the index."""
        ...

    def find_vectors(
        self, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None, limit: int
    ) -> Verb[tuple[TermMatch, ...]]:
        """Return the messages whose vectors are nearest."""
        ...

    def drop_vectors(self, name: str) -> Verb[None]:
        """Remove all vectors of an index."""
        ...


class SqlLedger(ABC):
    """A ledger in a SQL database."""

    rules: LedgerRedaction
    """The rules of redaction, as the ledger was opened."""
    _keyring: Keyring
    _commits: CommitSignal
    _skew = timedelta()
    """How far the clock of the database is ahead of the clock of this process, if that matters."""

    @property
    def hints(self) -> NoHints | ProcessHints:
        """What other processes say."""
        return _NO_HINTS

    @property
    def limits(self) -> SqlLimits:
        """The limits on model requests."""
        return SqlLimits(self)

    @property
    def redaction(self) -> SqlRedactions:
        """The rules of redaction, by thread."""
        return SqlRedactions(self)

    @property
    def keys(self) -> SqlKeys:
        """The keys of encrypted threads."""
        return SqlKeys(self)

    @property
    def terms(self) -> SqlTerms:
        """The indexes of terms and vectors."""
        return SqlTerms(self)

    # ------------------------------------------------------------ what a driver does

    @abstractmethod
    async def _read(self, make: Callable[[], Verb[ResultT]]) -> ResultT:
        """Run a verb that reads, on one snapshot of the database."""

    async def _look(self, make: Callable[[], Verb[ResultT]]) -> ResultT:
        """Run a verb that reads rows which never change."""
        return await self._read(make)

    @abstractmethod
    async def _change(self, make: Callable[[], Verb[ResultT]], weight: int = 1024) -> ResultT:
        """Run a verb that writes. `weight` is about how many bytes."""

    async def _change_once(
        self,
        make: Callable[[], Verb[ResultT]],
        is_stored: Callable[[ResultT], Verb[bool]] | None = None,
        weight: int = 1024,
    ) -> ResultT:
        """Run a verb that writes and must not be repeated. `is_stored` returns whether the data shows its result."""
        return await self._change(make, weight)

    @abstractmethod
    async def _change_thread(self, thread_id: str, make: Callable[[Thread | None], Verb[tuple[Thread, ResultT]]]) -> ResultT:
        """Run a verb that changes the row of one thread only. It gets the thread, if the driver knows it."""

    _words: WordVerbs
    _terms: TermVerbs

    @abstractmethod
    async def _find_terms(self, index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> TermMatches:
        """Add missing messages to an index of terms, and return the best matches."""

    async def _is_redacted(self, thread_id: str) -> bool | None:
        """Return whether a thread is redacted; None if there is none."""
        return await self._look(partial(lists.is_redacted, thread_id))

    _planner: threads.Planner | None = None
    """Chooses how a list finds its threads, if the database cannot."""

    async def _prepare_list(self, filter: ThreadFilter) -> None:  # noqa: B027 (a driver may have nothing to do)
        """Prepare a list of threads."""

    async def _since(self, place: CommitPlace, thread_id: str | None) -> lists.TailPage:
        """Return the next messages after a place."""
        return await self._look(partial(lists.since, place, thread_id))

    @abstractmethod
    async def _wait_for_commit(self, seen: int, is_more_coming: bool) -> None:
        """Wait for a commit after the first `seen`. `is_more_coming`: a running transaction holds back committed messages."""

    @abstractmethod
    async def _append(self, request: AppendRequest) -> tuple[Record, ...]:
        """Write an append, together with others that wait."""

    def _now(self) -> datetime:
        return current_port().now() + self._skew

    def _owner_of(self, thread_id: str) -> str:
        """Return the key of the owner of a thread, if it is known: whom a hint about its work concerns."""
        return EVERYBODY

    def _remember(self, threads: Iterable[Thread]) -> None:  # noqa: B027 (a driver may have nothing to do)
        """Take over rows of threads that a verb has written."""

    async def _forgotten(self, names: tuple[str, ...] | None) -> None:  # noqa: B027 (a driver may have nothing to do)
        """Threads, or their keys, were deleted; None: the keys of all threads were replaced."""

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
        request = make_request(
            thread_id,
            messages,
            redaction=self.rules,
            expected_version=expected_version,
            epoch=epoch,
            snapshot=snapshot,
            status=status,
            pattern=pattern,
            allow_foreign=allow_foreign,
            outside=outside,
        )
        return await self._append(request)

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        request = make_post(thread_id, message, redaction=self.rules, by=by)
        record = (await self._append(request))[0]
        self.hints.note_work(self._owner_of(thread_id))  # after the commit: a host that a hint wakes earlier finds no work
        return record

    # ------------------------------------------------------------ hosts and owners

    async def beat(self, host: Host) -> datetime:
        check_host(host, self.rules)
        now = self._now()
        registration = await self._change(partial(hosts.renew, host, now, self.rules))
        if registration is None:
            registration = await self._change(partial(hosts.beat, host, now, self.rules))
        elif registration.is_littered:
            await self._change(partial(hosts.forget_dead, host))
        self.hints.note_host(host, registration.key, registration.hosts)
        return now + timedelta(seconds=host.lease)

    async def leave(self, host: Host) -> None:
        await self._change(partial(hosts.leave, host, to_micros(self._now())))
        self.hints.forget_host(host)
        self.hints.note_work(ANYBODY)  # its threads are free

    async def hosts(self) -> tuple[HostStatus, ...]:
        return await self._read(partial(hosts.hosts, self._now()))

    async def claim(self, thread_id: str, *, by: Host | None = None, kind: str | None = None) -> Epoch:
        check_name(thread_id, "a thread's id")
        check_kind(kind, self.rules)
        request = hosts.ClaimRequest(thread_id, by, kind, self._now(), self.rules)

        def claim(thread: Thread | None) -> Verb[tuple[Thread, hosts.Claim]]:
            claim_result = yield from hosts.claim_thread(request, thread)
            return claim_result.thread, claim_result

        thread, taken_from = await self._change_thread(thread_id, claim)
        return Epoch(thread.state.epoch, thread.state.seq, taken_from)

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
        request = make_release(
            thread_id, redaction=self.rules, epoch=epoch, seen=seen, wake_at=wake_at, unfit=unfit, reason=reason
        )
        skew = self._skew // timedelta(microseconds=1)
        request = request._replace(now=request.now + skew, wake_at=None if request.wake_at is None else request.wake_at + skew)

        def release(thread: Thread | None) -> Verb[tuple[Thread, None]]:
            return (yield from hosts.release(thread_id, request, thread)), None

        await self._change_thread(thread_id, release)
        if unfit is not None:
            self.hints.note_work(EVERYBODY)  # only hosts of other builds take it
        elif wake_at is not None and wake_at <= current_port().now():
            self.hints.note_work(ANYBODY)

    async def move(self, thread_id: str, *, to: str) -> ThreadStanding:
        check_name(to, "the place of a ledger")
        now = self._now()

        def move(thread: Thread | None) -> Verb[tuple[Thread, Thread]]:
            moved = yield from hosts.move(thread_id, to, now, thread)
            return moved, moved

        return standing_of((await self._change_thread(thread_id, move)).state)

    async def take(self, by: Host, *, kinds: Iterable[str | None] | None = None, limit: int = 10) -> tuple[TakenThread, ...]:
        check_limit(limit)
        request = TakeRequest(by, kinds_wanted(by, kinds), limit, self._now())
        # A read comes first, so a host that polls an idle ledger never writes. Another host may be faster between the two:
        # `take` searches again inside its own transaction.
        if not await self._look(partial(hosts.has_due, request)):
            return ()
        taken = await self._change_once(
            partial(hosts.take, request), lambda result: hosts.is_owned_so([thread for thread, _ in result])
        )
        self._remember(thread for thread, _ in taken)
        return tuple(summary for _, summary in taken)

    async def woken(self, by: Host, *, seen: Mapping[str, int] = MappingProxyType({})) -> tuple[Woken, ...]:
        if not seen:
            return await self._look(partial(hosts.woken, by))
        changed, posted = await self._change(partial(hosts.note_seen, by, seen))
        self._remember(changed)
        return posted

    # ------------------------------------------------------------ branches and deletion

    async def fork(
        self, thread_id: str, *, at: int | None = None, at_step: int | None = None, into: str | None = None
    ) -> ThreadSummary:
        head = await self.head(thread_id)
        if await self.thread(thread_id) is None:
            raise UnknownThreadError("there is no such thread", thread_id)
        if (key := await self.keys.of(thread_id)) is not None and key.wrapped is None:
            raise ForgottenError(thread_id)
        place = await place_of_fork(self, head, at, at_step)
        branch_id = current_port().new_id() if into is None else into
        check_name(branch_id, "a thread's id")
        self.rules.check_name(branch_id, "the name of a thread")
        # Reading back to the last place without open calls finds all that are open at the place of the fork.
        first = await self._read(partial(lists.first_open, thread_id, place))
        pairing, calls = (Pairing(), []) if first is None else await open_between(self, thread_id, first, place)
        results = [closed_in_branch(call, branch_id, thread_id) for call in calls]
        return await self.branch(
            head, place, pairing, make_request(branch_id, results, redaction=self.rules, allow_foreign=True)
        )

    async def branch(self, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> ThreadSummary:
        """Create the branch that `fork` has prepared."""
        thread = await self._change_once(partial(branches.branch, head, at, pairing, closing), weight=closing.weight)
        self.hints.note_commit()
        return thread.summary

    async def restore(self, journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> tuple[ThreadSummary, ...]:
        proofs = proven(journals, heads)
        weight = sum(len(record.body) + 100 for journal, _ in proofs for record in journal.records)
        restored = await self._change_once(partial(branches.restore, proofs, self.rules), weight=weight)
        self.hints.note_commit()
        return tuple(thread.summary for thread in restored)

    async def delete(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = await self._change_once(partial(branches.delete, thread_id, with_branches))
        await self._forgotten(names)
        return names

    async def expire(self, before: datetime) -> tuple[str, ...]:
        micros, gone = to_micros(before), list[str]()
        for batch in await self._read(partial(branches.old_threads, micros)):
            gone += await self._change_once(partial(branches.expire, batch, micros))
        await self._forgotten(tuple(gone))
        return tuple(sorted(gone))

    # ------------------------------------------------------------ reading

    def read(self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False) -> AsyncIterator[Record]:
        return read_pages(lambda request: self._read(partial(lists.page, thread_id, request)), after, before, reverse)

    async def head(self, thread_id: str) -> Head:
        return await self._look(partial(lists.head, thread_id))

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        return await self._look(partial(lists.summary, thread_id))

    async def threads(
        self,
        filter: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
        order: ThreadOrder = "-updated_at",
        page: str | None = None,
        limit: int = 100,
    ) -> ThreadPage:
        check_limit(limit)
        order_of(order)
        if page is not None:
            page_start(page)
        await self._prepare_list(filter)
        return await self._read(partial(threads.threads, filter, order, page, limit, self._planner))

    async def count_threads(self, *, system: bool | None = None) -> tuple[ThreadCount, ...]:
        return await self._read(partial(threads.count_threads, system))

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        place = place_of(after)
        while True:
            seen = self._commits.count  # before the read: a commit between the read and the wait then ends the wait at once
            page = await self._since(place, thread_id)
            for placed in page.records:
                yield Tailed(placed.record, str(placed.place))
            is_end, place = page.upto == place, page.upto
            if is_end:
                await self._wait_for_commit(seen, page.is_more_coming)

    async def horizon(self) -> str:
        return str(await self._read(lists.horizon))

    async def tail_lag(self) -> float:
        return await self._read(partial(lists.tail_lag, to_micros(self._now())))

    async def find(
        self, *, invocation_id: str | None = None, correlation_id: str | None = None, thread_id: str | None = None
    ) -> tuple[Record, ...]:
        kind, name = ("invocation", invocation_id) if correlation_id is None else ("correlation", correlation_id)
        if name is None or None not in (invocation_id, correlation_id):
            raise ValueError("give an invocation_id or a correlation_id, one of the two")
        return await self._look(partial(lists.by_name, kind, name, thread_id))

    @overload
    async def open_calls(self, thread_id: str) -> tuple[Record, ...]: ...
    @overload
    async def open_calls(
        self, *, option: str, order: CallOrder = "recorded_at", page: str | None = None, limit: int = 100
    ) -> CallPage: ...
    async def open_calls(
        self,
        thread_id: str | None = None,
        *,
        option: str | None = None,
        order: CallOrder = "recorded_at",
        page: str | None = None,
        limit: int = 100,
    ) -> tuple[Record, ...] | CallPage:
        if option is None:
            return await self._look(partial(lists.open_calls, cast("str", thread_id)))  # which refuses None
        if thread_id is not None:
            raise ValueError("give a thread_id or an option, one of the two")
        check_limit(limit)
        is_reversed, start = is_newest_first(order), None if page is None else place_of(page)
        return await self._read(partial(lists.open_calls_of, option, is_reversed, start, limit))

    async def snapshot(self, thread_id: str, fold: str, *, upto: int | None = None) -> tuple[int, Json] | None:
        return await self._look(partial(lists.snapshot, thread_id, fold, upto))

    # ------------------------------------------------------------ words and terms

    async def search(self, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        check_limit(limit)
        after: CommitPlace | None = None
        while (after := await self._change(partial(self._words.index_words, after))) is not None:
            pass  # in steps, so that appends get in between
        return await self._read(partial(self._words.find_words, text, thread_id, limit))

    # ------------------------------------------------------------ maintenance

    async def diagnose(self) -> tuple[Diagnosis, ...]:
        """Examine what the store depends on."""
        return ()

    async def _damages_before(self) -> list[Damage]:
        """Return what makes every other answer worthless, such as an altered schema."""
        return []

    async def _damages_outside(self) -> list[Damage]:
        """Return damages outside of threads."""
        return await self._read(verify.strays)

    _check_words: verify.WordsCheck | None = None
    """Compares an index of words with the rows of a thread, if the store has one that can be read."""

    async def verify(
        self,
        thread_id: str | None = None,
        *,
        heads: Iterable[Head] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        progress = listener(progress)
        if damages := await self._damages_before():
            return Verification(0, 0, tuple(damages))
        names, total = await self._read(verify.names)
        if thread_id is not None and thread_id not in names:
            raise UnknownThreadError("there is no such thread", thread_id)
        heads_by_thread = {head.thread_id: head for head in heads if thread_id in (None, head.thread_id)}
        damages, messages = missing_threads(heads_by_thread, names), 0
        examined = names if thread_id is None else [thread_id]
        for name in examined:
            try:
                damage, looked_at = await self._examined(name, heads_by_thread)
            except LedgerCorruptError as exc:
                damage, looked_at = Damage(name, exc.seq, str(exc)), 0
            messages += looked_at
            damages += [] if damage is None else [damage]
            if progress is not None:
                progress(messages, total)
        if thread_id is None:
            damages += await self._damages_outside()
        return Verification(len(examined), messages, tuple(damages))

    async def _examined(self, name: str, heads: Mapping[str, Head]) -> tuple[Damage | None, int]:
        subject = await self._read(partial(verify.begin, name))
        if not isinstance(subject, Subject):
            return subject, 0
        after: int | Damage | None = subject.thread.base_seq
        while isinstance(after, int):
            after = await self._read(partial(verify.look, subject, after, heads, self._check_words))
        if after is not None and await self.thread(name) is None:
            after = None  # the thread was deleted meanwhile, not damaged
        return after, subject.examination.looked_at


# ---------------------------------------------------------------- the parts of the contract that are objects


class _Part:
    """A part of the contract, over the ledger that it belongs to."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger


class SqlLimits(_Part):
    """The limits of a SQL database."""

    async def set(self, limit: Limit) -> None:
        check_limited(limit, self._ledger.rules)
        await self._ledger._change(partial(limits.set_limit, limit))

    async def status(self) -> tuple[LimitStatus, ...]:
        return await self._ledger._read(partial(limits.limits, self._ledger._now()))

    async def lease(self, by: Host, wants: Mapping[str, PermitWants]) -> Mapping[str, PermitGrant]:
        return await self._ledger._change_once(partial(limits.permits, by, wants, self._ledger._now()))


class SqlRedactions(_Part):
    """The rules of redaction of a SQL database."""

    async def of(self, thread_id: str) -> Redaction | None:
        rules = self._ledger.rules
        if not rules.is_on:
            return None
        is_redacted = await self._ledger._is_redacted(thread_id)
        return rules.rules if is_redacted is None else rules.for_thread(is_redacted)

    async def rules(self) -> RedactionRules:
        return self._ledger.rules.beside(await self._ledger._read(hosts.rules))

    async def adopt(self) -> RedactionRules:
        rules = self._ledger.rules
        await self._ledger._change(partial(hosts.adopt_rules, rules, self._ledger._now()))
        return rules.beside(rules.digest)


class SqlKeys(_Part):
    """The keys of a SQL database."""

    async def status(self) -> EncryptionStatus | None:
        return await self._ledger._read(keys.encryption)

    async def of(self, thread_id: str) -> WrappedKey | None:
        return await self._ledger._read(partial(lists.wrapped_key, thread_id))

    async def forget(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = await self._ledger._change_once(partial(branches.forget, thread_id, with_branches))
        self._ledger._keyring.drop()
        await self._ledger._forgotten(names)
        return names

    async def rotate(self, new: MasterKey) -> int:
        self._ledger._keyring.begin_rotation(new)
        count = await self._ledger._change(partial(keys.rotate, new))
        self._ledger._keyring.end_rotation(new)
        await self._ledger._forgotten(None)
        return count


class SqlTerms(_Part):
    """The indexes of terms and vectors of a SQL database."""

    async def find(
        self, index: TermIndex, terms: Iterable[str], *, source: str | None = None, limit: int = 100
    ) -> TermMatches:
        check_limit(limit)
        return await self._ledger._find_terms(index, check_terms(terms), source, limit)

    async def rebuild(self, index: TermIndex) -> int:
        await self._ledger._change(partial(self._ledger._terms.drop, index.name))
        return (await self._ledger._find_terms(index, (), None, 0)).entries

    async def without_vectors(self, index: TermIndex, space: VectorSpace, *, limit: int = 100) -> tuple[Record, ...]:
        await self._ledger._find_terms(index, (), None, 0)
        return await self._ledger._read(partial(self._ledger._terms.without_vectors, index, space, limit))

    async def store_vectors(self, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> None:
        await self._ledger._change(partial(self._ledger._terms.store_vectors, index, space, vectors))

    async def find_vectors(
        self, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None = None, limit: int = 100
    ) -> tuple[TermMatch, ...]:
        check_limit(limit)
        await self._ledger._find_terms(index, (), None, 0)
        find = self._ledger._terms.find_vectors
        return await self._ledger._read(partial(find, index, space, vector, source=source, limit=limit))

    async def drop_vectors(self, index: TermIndex) -> None:
        await self._ledger._change(partial(self._ledger._terms.drop_vectors, index.name))
