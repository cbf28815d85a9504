"""Journal: the ledger as the runtime writes it. It owns the threads that it writes to, and enforces their budgets.

**Ownership.** The first write to a thread claims it for this host, and gets an epoch. While another living host has the
thread, the claim is refused (`OwnedError`). The ledger refuses a write with an older epoch than the latest claim
(`FencedError`): another host has taken the thread over, because this one did not renew its lease. The thread is then *lost*.
Every write raises `FencedError` until the system has evicted the thread and all its handlers. Only then may the thread be
claimed again: a handler that started under the old epoch and continued under a new one would repeat the new owner's work.

**Write-behind.** An outcome may be written a moment later, together with the next row of the thread (`write_soon`), which
saves half of the commits. The rule that makes this safe: every write includes the waiting rows, and returns only when all rows
in transit are stored. So no handler and no effect starts before the outcomes that it depends on are stored.

| rows of a thread are | then |
|---|---|
| *waiting* | the next write includes them; after 5 ms a flush writes them |
| *in transit* | a *landing* future resolves to whether they were written; later writes wait for it |
| *refused* | the next writer gets a `HistoryMismatchError` |
| *not written, ledger unavailable* | they wait again, in their order before newer rows |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from antiphon import errors
from antiphon.ledger import Epoch, Host, Owners, Record, Redaction
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.messages import Json, Message
from antiphon.runtime._points import Point, reached
from antiphon.runtime._reporting import Hooks
from antiphon.runtime._settings import SYSTEM, Budget

if TYPE_CHECKING:
    from datetime import datetime

    from antiphon.runtime._lease import Lease
    from antiphon.runtime._permits import RequestPermit
    from antiphon.runtime._reporting import Observer
    from antiphon.runtime._work import Work

_FLUSH_AFTER = 0.005
"""Seconds until waiting rows are flushed; an agent usually writes its next row earlier."""
_FLUSH_AGAIN_AFTER = 1.0
"""Seconds until a failed flush is tried again."""


class WriteBehind:
    """The rows that wait or are in transit, by thread. It needs no lock, because no method awaits."""

    def __init__(self, flush: Callable[[str], None]) -> None:
        self._flush = flush
        """Called with a thread whose rows are due."""
        self.rows: dict[str, list[Message]] = {}
        """By thread, the rows that wait. A thread without waiting rows has no entry."""
        self.landings: dict[str, asyncio.Future[bool]] = {}
        """By thread with rows in transit, the future that resolves to whether all of them were written."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._in_transit: dict[str, list[list[Message]]] = {}
        """By thread, the rows of each pending append. `forget` empties them, so that they do not wait again."""

    def put(self, thread_id: str, rows: Sequence[Message]) -> None:
        """Add rows after the waiting ones."""
        self.rows.setdefault(thread_id, []).extend(rows)
        if thread_id not in self._timers:
            self._timers[thread_id] = asyncio.get_running_loop().call_later(_FLUSH_AFTER, self._flush, thread_id)

    def try_again(self, thread_id: str) -> None:
        """Schedule a flush for rows that could not be written: perhaps no other write comes."""
        if thread_id in self.rows and thread_id not in self._timers:
            self._timers[thread_id] = asyncio.get_running_loop().call_later(_FLUSH_AGAIN_AFTER, self._flush, thread_id)

    @contextmanager
    def taken(self, thread_id: str) -> Generator[list[Message], None, None]:
        """Take the rows of a thread, to be written in the block. If it raises, the rows left in the list wait again.

        If another host has the thread, they are dropped: it finds the open calls. The landing succeeds only if earlier rows in
        transit have landed too, and that is known when the block ends.
        """
        if (timer := self._timers.pop(thread_id, None)) is not None:
            timer.cancel()
        # One step, without an await: at any moment, the rows are either waiting or in transit. Otherwise a writer that checks
        # in between would find neither, and start an effect whose predecessor is not stored.
        rows, before = self.rows.pop(thread_id), self.landings.get(thread_id)
        landing = self.landings[thread_id] = asyncio.get_running_loop().create_future()
        in_transit = self._in_transit.setdefault(thread_id, [])
        in_transit.append(rows)
        has_landed = False
        try:
            yield rows
            has_landed = True
        except (errors.FencedError, errors.OwnedError):
            raise
        except BaseException:
            if rows:  # if they were written after all, the ledger recognizes them by their ids
                self.rows[thread_id] = [*rows, *self.rows.get(thread_id, ())]
                self.try_again(thread_id)
            raise
        finally:
            in_transit[:] = [each for each in in_transit if each is not rows]
            if not in_transit:
                self._in_transit.pop(thread_id, None)
            landing.set_result(has_landed and (before is None or (before.done() and before.result())))
            if self.landings.get(thread_id) is landing:
                del self.landings[thread_id]

    def forget(self, thread_id: str) -> None:
        """Drop the rows of a thread that has another owner, which finds the open calls."""
        self.rows.pop(thread_id, None)
        # Otherwise a handler that is cancelled during its append would put them back after the eviction.
        for rows in self._in_transit.get(thread_id, ()):
            rows.clear()
        if (timer := self._timers.pop(thread_id, None)) is not None:
            timer.cancel()


class HeldThreads(Protocol):
    """Knows which threads are paused or terminated (`_gates.py`)."""

    async def passed(self, thread_id: str) -> None: ...
    def is_open(self, thread_id: str) -> bool: ...
    def forget(self, thread_id: str) -> None: ...


Admit: TypeAlias = Callable[[str], AbstractAsyncContextManager[None]]
"""Returns, for a thread, the block in which an effect writes its intent. To hold a thread, wait or raise on entry."""


class _Claim(NamedTuple):
    """A pending claim, and the writers that wait for it."""

    task: asyncio.Task[None]
    waiters: list[asyncio.Future[int]]


_DELAYS = (0.05, 0.2, 0.8)
"""Seconds to wait before each retry of an append while the ledger is unavailable."""


class Journal:
    """The ledger, with the epoch of every thread that this system owns. What reads or writes one may raise `LedgerError`."""

    def __init__(self, lease: Lease, budget: Budget, admit: Admit | None = None, *, has_attempts: bool = False) -> None:
        """Make it; `lease` is the host that owns its threads.

        `has_attempts`: the attempt number of a course alone tells whether an earlier owner has started it, as in runs.
        """
        self.lease = lease
        self.ledger: Owners = lease.ledger
        self._has_attempts = has_attempts
        self.admit: Admit = admit or (lambda thread_id: nullcontext())
        """The block in which an effect writes its intent."""
        self.gates: HeldThreads | None = None
        """The gates of threads, which `admit` passes; None outside of systems."""
        self._budget = budget
        self.has_budget = budget != Budget()
        """Whether threads have any limit: without one, `check_budget` reads nothing."""
        self._epochs: dict[str, int] = {}
        """By owned thread, its epoch."""
        self._lengths: dict[str, int] = {}
        """By owned thread, its length at the last write."""
        self._redactions: dict[str, Redaction | None] = {}
        """By thread, its redaction rules."""
        self._writing: dict[str, int] = {}
        """By thread, the number of pending appends."""
        self._claims: dict[str, _Claim] = {}
        self._write_behind = WriteBehind(self._flush)
        self._flushes: set[asyncio.Task[None]] = set()
        self.deferred: list[Message] = []
        """Rows that are written before the next ones, and never if there are none: the work may turn out to do nothing."""
        self._ended: str | None = None
        """Why the journal refuses all writes; None while it accepts them."""
        self._lost: dict[str, errors.FencedError] = {}
        """The threads that another host has taken over and that are not evicted yet, with the error that said so."""
        self._terms: dict[str, int] = {}
        """By owned thread, the term of the lease in which the ledger has last confirmed that it is owned."""
        self.is_unsure = False
        """Whether a change of owner was not confirmed: this host may own threads that are unknown to this journal."""
        self.on_lost: Callable[[str, errors.FencedError], None] | None = None
        """Called with a thread that was lost, and why; it evicts the thread, and calls `evicted` at the end."""
        self.unrecovered: dict[str, int] = {}
        """By owned thread that had another owner before, its length when it was claimed. Calls that are open up to that
        position were not delivered: the claim was for one message, and this program may be unable to run the thread."""
        self._taken_from: dict[str, str] = {}
        """By owned thread that another host had not released, the name of that host."""
        self.on_claimed: Callable[[], None] | None = None
        """Called after a thread was claimed."""
        self.watchers: list[Callable[[Record], None]] = []
        """Called with each record, right after it was written."""
        self.hooks: Hooks | None = None
        """Set by `observe`."""

    @asynccontextmanager
    async def permit(
        self, thread_id: str, models: Sequence[str], cost: Callable[[], Decimal]
    ) -> AsyncGenerator[RequestPermit]:
        """Wait for a permit for a model request of a thread, and hold it in the block (see `Permits.hold`).

        Raises:
            StoppedError: the daily budget is spent, or there was no permit in time.
            LedgerError: the limits cannot be read.
        """
        while True:
            async with self.lease.permits.hold(models, cost) as permit:
                # Pass the gate again: the intent has passed it, but the thread may have been paused while the request waited.
                if self.gates is None or self.gates.is_open(thread_id):
                    yield permit
                    return
                permit.cost = Decimal(0)
            await self.gates.passed(thread_id)

    # ------------------------------------------------------------ writing

    async def write(self, thread_id: str, messages: Sequence[Message], **options: Any) -> tuple[Record, ...]:
        """Append messages as the owner of their thread, after the waiting rows, and return their records.

        `expected_version` counts those rows: it is the length of the thread right before `messages`. `status_unless_held` is
        the status of the thread, unless it is paused or terminated.

        Raises:
            FencedError: another system owns the thread.
            HistoryMismatchError: a waiting row is already stored, with different content.
            LedgerError: the ledger refuses, or is unavailable.
        """
        if self._lost or self._ended is not None:
            self._check_lost(thread_id)  # also for an empty write: the caller must learn that it has lost the thread
        if self.deferred:
            self._begin_deferred(thread_id)
        status: str | None = options.pop("status_unless_held", None) if options else None
        if status is not None and (self.gates is None or self.gates.is_open(thread_id)):
            options["status"] = status
        write_behind = self._write_behind
        if not (write_behind.rows or write_behind.landings):  # the fast path: most writes
            return await self._write(thread_id, messages, options)
        # Read before the append: after it, the landing could be the one of this write, which would then wait for itself.
        before = write_behind.landings.get(thread_id)
        if thread_id in write_behind.rows:
            records = await self._write_after_rows(thread_id, messages, options, before)
        else:
            records = await self._write(thread_id, messages, options)
        # Rows of an earlier append may still be in transit. Nothing that depends on them may start before they are stored.
        if before is not None:
            await self._landed(thread_id, before)
        return records

    async def write_of(self, work: Work | None, thread_id: str, rows: list[Message]) -> tuple[Record, ...]:
        """Append rows of a handler, after its deferred rows and in the same append; return the records of `rows`."""
        if work is None:
            return await self.write(thread_id, rows)
        # Taken before the append, not after it: a row that the handler defers during this append must not be dropped.
        deferred_rows, marks = work.deferred_rows, work.marks
        work.deferred_rows, work.marks = (), {}
        try:
            return (await self.write(thread_id, [*deferred_rows, *rows], **marks))[len(deferred_rows) :]
        except BaseException:
            # The next append includes them. If they were written after all, the ledger recognizes them by their ids.
            work.deferred_rows, work.marks = (*deferred_rows, *work.deferred_rows), {**marks, **work.marks}
            raise

    async def write_soon(self, thread_id: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Append messages with the next write to their thread, or within milliseconds, and return them as they will be stored.

        Their stored form is known in advance, because redaction is a pure function and the rules of a thread do not change.
        The ledger still gets the original messages, so redaction need not be idempotent. If the append fails, the next writer
        gets the error.

        Raises:
            FencedError: another host has taken the thread over.
            LedgerError: the ledger is unavailable.
        """
        if self._ended is not None:
            self._check_lost(thread_id)
        epoch = self.epoch(thread_id)
        # Read the rules before the rows are queued: if that fails, the caller gets the error and no row waits.
        rules = await self.redaction_of(thread_id)
        if epoch and self.epoch(thread_id) != epoch:  # the thread was lost meanwhile
            raise errors.FencedError(thread_id, epoch, self.epoch(thread_id))
        if self.deferred:
            self._begin_deferred(thread_id)
        self._write_behind.put(thread_id, messages)
        return messages if rules is None else [rules.message(message) for message in messages]

    def _begin_deferred(self, thread_id: str) -> None:
        """Let the deferred rows wait for the next write, before its own."""
        rows, self.deferred = self.deferred, []
        self._write_behind.put(thread_id, rows)

    async def redaction_of(self, thread_id: str) -> Redaction | None:
        """Return the redaction rules of a thread. They are read once, without a claim of the thread."""
        if thread_id not in self._redactions:
            self._redactions[thread_id] = await self.ledger.redaction.of(thread_id)
        return self._redactions[thread_id]

    def length(self, thread_id: str) -> int:
        """Return the length of a thread after the last write of this journal; it may be longer now."""
        return self._lengths.get(thread_id, 0)

    def waiting(self, thread_id: str) -> int:
        """Return the number of waiting rows, which the next write includes."""
        return len(self._write_behind.rows.get(thread_id, ()))

    async def settle(self, thread_id: str) -> None:
        """Wait until all rows that wait or are in transit are stored."""
        if self._ended is not None:
            return  # nothing was taken since the last check
        self._check_lost(thread_id)
        if self.waiting(thread_id):
            await self.write(thread_id, ())
        elif (before := self._write_behind.landings.get(thread_id)) is not None:
            await self._landed(thread_id, before)

    async def _write_after_rows(
        self, thread_id: str, messages: Sequence[Message], options: dict[str, Any], before: asyncio.Future[bool] | None
    ) -> tuple[Record, ...]:
        """Append messages after the rows that wait: in one append, or in two if the ledger refuses that."""
        with self._write_behind.taken(thread_id) as rows:
            records, count = None, len(rows)
            if not options.get("allow_foreign"):
                with suppress(errors.AppendRefusedError):
                    version: int | None = options.get("expected_version")
                    shifted = options if version is None else {**options, "expected_version": version - count}
                    records = (await self._write(thread_id, [*rows, *messages], shifted))[count:]
            if records is None:
                try:
                    await self._write(thread_id, rows, {})
                except errors.AppendRefusedError as exc:
                    rows.clear()  # dropped: otherwise every later write would fail because of them
                    reason = f"the thread {thread_id!r} has another outcome than {exc.message_id!r}: {exc.reason}"
                    raise errors.HistoryMismatchError(reason) from exc
            if before is not None:
                await asyncio.wait([before])  # inside the block: the landing of these rows depends on the earlier ones
        return await self._write(thread_id, messages, options) if records is None else records

    async def _landed(self, thread_id: str, before: asyncio.Future[bool]) -> None:
        """Wait for rows that another write has included. If that write failed, they wait again: write them now."""
        await asyncio.wait([before])
        if not before.result():
            await self.settle(thread_id)

    def _flush(self, thread_id: str) -> None:
        """Write the rows that are due, in a task."""

        async def write_rows() -> None:
            if thread_id in self._write_behind.rows:
                with suppress(errors.LedgerError), self._write_behind.taken(thread_id) as rows:
                    await self._write(thread_id, rows, {})  # if that fails, the next writer gets the error

        flush = asyncio.create_task(write_rows())
        self._flushes.add(flush)
        flush.add_done_callback(self._flushes.discard)

    async def _write(  # noqa: C901, PLR0912 (one append, in its order)
        self, thread_id: str, messages: Sequence[Message], options: dict[str, Any]
    ) -> tuple[Record, ...]:
        """Append as the owner, and try again while the ledger is unavailable."""
        if not messages and not options:
            return ()
        if thread_id.startswith(f"{SYSTEM}/"):
            options["pattern"] = SYSTEM_PATTERN
        epoch = self._epochs.get(thread_id)
        if epoch is None:
            epoch = await self.own(thread_id)
        # The epoch was read once: a write that started under an old epoch must not end under a new one. The write is counted
        # without an await in between: a thread with a pending write is not released or forgotten, which would fence this
        # append.
        writing = self._writing
        writing[thread_id] = writing.get(thread_id, 0) + 1
        term = self.lease.beaten.term  # before the append: it confirms the epoch for a moment between here and its return
        try:
            for delay in _DELAYS:
                try:
                    records = await self.ledger.append(thread_id, messages, epoch=epoch, **options)
                    break
                except errors.LedgerUnavailableError:
                    await asyncio.sleep(delay)  # safe even if they were written: the ledger recognizes them by their ids
            else:
                records = await self.ledger.append(thread_id, messages, epoch=epoch, **options)
            self._terms[thread_id] = term
        except errors.FencedError as exc:
            self._lose(thread_id, epoch, exc)
            raise
        finally:
            if writing[thread_id] == 1:
                del writing[thread_id]
            else:
                writing[thread_id] -= 1
        if records and records[-1].seq > self._lengths.get(thread_id, 0):
            self._lengths[thread_id] = records[-1].seq
        for watcher in self.watchers:
            for record in records:
                watcher(record)
        return records

    # ------------------------------------------------------------ ownership

    async def own(self, thread_id: str, kind: str | None = None) -> int:
        """Return the epoch under which this journal owns a thread; the first call claims the thread, and sets its kind.

        Raises:
            FencedError: another host has taken it over, and it is not evicted yet.
            OwnedError: another living host has it.
        """
        if (epoch := self._epochs.get(thread_id)) is not None and self._ended is None:
            return epoch
        self._check_lost(thread_id)
        # Each writer waits for its own future: a cancelled writer cancels neither the claim nor the other writers.
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        claim = self._claims.get(thread_id)
        if claim is None:
            claim = self._claims[thread_id] = _Claim(asyncio.create_task(self._claim(thread_id, kind)), [])
        claim.waiters.append(waiter)
        return await waiter

    async def until_claimed(self, thread_id: str) -> None:
        """Wait for a pending claim of a thread: it makes this host the owner even if its caller was cancelled."""
        if (claim := self._claims.get(thread_id)) is not None:
            await asyncio.wait((claim.task,))

    async def confirm(self, thread_id: str, epoch: int) -> None:
        """Return only while a thread is certainly still owned. Call it right before a start, with no `await` in between.

        Otherwise a process that was suspended between the intent and the start of an effect would start it after another host
        has taken the thread. The lease is compared with the monotonic clock. A beat alone proves nothing, because another host
        may have had the thread before it: the ledger must have confirmed the epoch in the same term.

        Raises:
            FencedError: another host has it.
            LedgerError: the lease cannot be renewed.
        """
        while not self.is_confirmed(thread_id, epoch):
            await self.lease.host(renew=True)
            term = self.lease.beaten.term  # before the head is read: a lease that ends meanwhile begins another term
            current = abs((await self.ledger.head(thread_id)).epoch)
            if current != epoch or self.epoch(thread_id) != epoch:  # lost, or given up here while it is still owned there
                error = errors.FencedError(thread_id, epoch, current)
                self._lose(thread_id, epoch, error)
                raise error
            self._terms[thread_id] = term

    def is_confirmed(self, thread_id: str, epoch: int) -> bool:
        """Whether a thread is certainly still owned under an epoch. Any thread may ask."""
        return self._epochs.get(thread_id) == epoch and self.lease.lasts_in(self._terms.get(thread_id))

    def epoch(self, thread_id: str) -> int:
        """Return the epoch under which this journal owns a thread; 0 if it does not."""
        return self._epochs.get(thread_id, 0)

    def has_had_owners(self, thread_id: str) -> bool:
        """Whether a thread may have had another owner, which may have started the work that is handled here."""
        return not self._has_attempts and self.epoch(thread_id) != 1

    @property
    def has_threads(self) -> bool:
        """Whether this journal owns any thread."""
        return bool(self._epochs)

    @property
    def owned(self) -> tuple[str, ...]:
        """The threads that this journal owns."""
        return tuple(self._epochs)

    def give(self, thread_id: str, epoch: Epoch) -> None:
        """Take over a thread that the ledger has given to this host under an epoch (`Ledger.take`)."""
        self._lost.pop(thread_id, None)
        self.unrecovered.pop(thread_id, None)
        if epoch > self.epoch(thread_id):
            self._note_taken(thread_id, epoch.taken_from)
        self._epochs[thread_id] = max(epoch, self.epoch(thread_id))  # this host may have claimed it meanwhile
        reached(Point.CLAIMED, thread_id)
        if self.on_claimed is not None:
            self.on_claimed()

    def is_quiet(self, thread_id: str) -> bool:
        """Whether no row of a thread waits or is being written."""
        write_behind = self._write_behind
        return not any(thread_id in places for places in (self._writing, write_behind.rows, write_behind.landings))

    async def release(
        self, thread_id: str, *, wake_at: datetime | None = None, unfit: str | None = None, reason: str | None = None
    ) -> None:
        """Release a thread, if it is owned. Any suitable host may take over its remaining work. See `Ledger.release`.

        Raises:
            LedgerError: the ledger cannot be written. The thread is no longer used here in any case.
        """
        epoch = self._epochs.get(thread_id)
        if epoch is not None:
            self._disown(thread_id)  # first: a write that starts meanwhile claims the thread again, with a new epoch
            try:
                await self.ledger.release(thread_id, epoch=epoch, wake_at=wake_at, unfit=unfit, reason=reason)
                reached(Point.RELEASED, thread_id)
            except errors.FencedError:
                pass  # another host has it already
            except errors.LedgerUnavailableError:
                self._note_unsure()
                raise

    def give_up(self, thread_id: str, error: errors.FencedError) -> None:
        """Write nothing more to a thread, as if it were lost. It is still owned in the ledger: release it with its epoch."""
        self._disown(thread_id)
        self._write_behind.forget(thread_id)
        self._lost[thread_id] = error

    def evicted(self, thread_id: str) -> None:
        """Allow a new claim of a lost thread: no handler of it runs here any more."""
        self._lost.pop(thread_id, None)

    def end(self, reason: str) -> None:
        """Refuse everything from now on with a `RuntimeError`: the work of this journal has ended.

        Otherwise code that still runs would claim the thread again, and nobody would release it.
        """
        self._ended = reason

    def _check_lost(self, thread_id: str) -> None:
        if self._ended is not None:
            raise RuntimeError(self._ended)
        if (lost := self._lost.get(thread_id)) is not None:
            raise errors.FencedError(*lost.args)

    def _lose(self, thread_id: str, epoch: int, error: errors.FencedError) -> None:
        """Mark a thread as lost, unless it was claimed again while the refused append was pending."""
        if self.epoch(thread_id) == epoch:
            self._disown(thread_id)
            self._write_behind.forget(thread_id)
            self._lost[thread_id] = error
            if self.on_lost is not None:
                self.on_lost(thread_id, error)

    async def _claim(self, thread_id: str, kind: str | None) -> None:
        """Claim a thread, and give the epoch or the error to the writers that wait for it."""
        outcome: int | Exception | None = None
        try:
            outcome = await self._new_epoch(thread_id, kind)
        except Exception as exc:  # noqa: BLE001 (the writers get it)
            outcome = exc
        finally:
            for waiter in self._claims.pop(thread_id).waiters:
                if waiter.done():
                    pass  # the writer was cancelled
                elif outcome is None:
                    waiter.cancel()  # the claim was cancelled
                elif isinstance(outcome, Exception):
                    waiter.set_exception(outcome)
                else:
                    waiter.set_result(outcome)

    async def _new_epoch(self, thread_id: str, kind: str | None) -> int:
        async def claim(host: Host) -> Epoch | None:
            # Otherwise the ledger gave the thread to this host meanwhile (`take`).
            return None if thread_id in self._epochs else await self.ledger.claim(thread_id, by=host, kind=kind)

        try:
            if (epoch := await self.lease.as_host(claim)) is None:
                return self._epochs[thread_id]
            if epoch > 1 and not self._has_attempts:  # a run recovers nothing
                self.unrecovered[thread_id] = epoch.seq  # what comes later is a posted message, which this host delivers
            self._epochs[thread_id] = epoch
            self._note_taken(thread_id, epoch.taken_from)
        except errors.LedgerUnavailableError:
            self._note_unsure()
            raise
        reached(Point.CLAIMED, thread_id)
        if self.on_claimed is not None:
            self.on_claimed()
        return epoch

    def _note_unsure(self) -> None:
        """Note that a change of owner was not confirmed: the ledger and this journal may disagree."""
        self.is_unsure = True
        if self.on_claimed is not None:
            self.on_claimed()

    def _note_taken(self, thread_id: str, taken_from: str | None) -> None:
        self._taken_from.pop(thread_id, None)
        if taken_from is not None:
            self._taken_from[thread_id] = taken_from

    async def tenure(self, thread_id: str) -> dict[str, Json]:
        """Return a row's fields about the owner that recovers a thread: host, epoch, and the host that did not release it."""
        epoch = await self.own(thread_id)
        fields: dict[str, Json] = {"host": (await self.lease.host()).name, "epoch": int(epoch)}
        before = self._taken_from.get(thread_id)
        return fields if before is None else {**fields, "taken_from": before}

    def _disown(self, thread_id: str) -> None:
        self._epochs.pop(thread_id, None)
        self._terms.pop(thread_id, None)
        self._taken_from.pop(thread_id, None)
        self._lengths.pop(thread_id, None)
        self.unrecovered.pop(thread_id, None)
        self._redactions.pop(thread_id, None)
        if self.gates is not None:
            self.gates.forget(thread_id)

    async def close(self) -> None:
        """Write all waiting rows, and wait for pending claims."""
        # Rows first: writing them may claim a thread, and the loop below waits for that claim.
        for thread_id in (*self._write_behind.rows, *self._write_behind.landings):
            with suppress(errors.LedgerError, errors.HistoryMismatchError):  # no caller is left
                await self.settle(thread_id)
        await asyncio.gather(*(claim.task for claim in self._claims.values()), return_exceptions=True)

    async def before(self, thread_id: str, row: Record) -> Record:
        """Return the record right before a row: the notice of a DELIVER row."""
        (record,) = [record async for record in self.ledger.read(thread_id, row.seq - 2, row.seq)]
        return record

    async def check_budget(self, thread_id: str, address: str) -> None:
        """Check the budget of a thread."""
        if not self.has_budget or (thread := await self.ledger.thread(thread_id)) is None:
            return
        if (spent := self._budget.spent_by(thread)) is not None:
            raise errors.BudgetExceededError(f"thread {thread_id!r} has used up its {spent}", address)


def observe(journal: Journal, observer: Observer | None) -> Hooks | None:
    """Connect an observer to a journal, and return the hooks that call it; None for no observer."""
    now = asyncio.get_running_loop().time
    journal.hooks = None if observer is None else Hooks(observer, now, journal.redaction_of)
    return journal.hooks
