"""Hosting: a system as one of several hosts of threads on the same ledger.

Its lease is in `_lease`; questions to threads of other hosts are in `_elsewhere`.

**Eviction.** A thread that another host has taken over is evicted: its handlers are cancelled, and its messages, timers and
states are dropped here. The ledger refuses every row of the old owner, so nothing is lost and nothing runs twice. A caller
that waits here gets its answer from the ledger, where the new owner writes it.

**Code that cannot continue a thread.** A handler that raises `HistoryMismatchError` does something that differs from the
recorded history. The error is not an answer: the message stays open, and the thread is evicted and released with the mark that
this build is unfit. `take` gives it to hosts of other builds only. Callers here wait for such a host, at most
`Settings.mismatch_patience` seconds. If no living host has the kind of the thread and another build, or none has taken the
thread in that time, the thread gets the status `stopped`, its reason is in `ThreadSummary.unfit`, and callers get the error.
Only an owner writes the status: before it releases the thread, or after it has claimed it again for that purpose. Nothing is
parked. A host that continues the thread clears the status.

**Work of a host.** In each round, a system delivers messages that were posted to its threads, and releases idle threads. With
`System.host`, it also takes threads that are due and have no living owner, a few in each round and at most
`Settings.thread_limit` at a time: the rest is for other hosts. A system without threads does nothing.

**Draining.** A stopping host takes no more threads. If all living hosts have its build, any of them can continue
its threads, and gets them at once. During a deployment, a host of a new build may be unable to: if all old hosts ended, the
thread would be stopped. So while a host of another build lives, a stopping host first finishes its active threads, and takes
back threads that hosts of other builds give up meanwhile. At the end it releases threads that wait for a person: they are not
due, and a host that took them would only find that it has nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon import errors
from antiphon.ledger import ThreadFilter
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, Message, PartsPayload, current_port, thaw
from antiphon.runtime._delivery import DeliveryState, wait_for_handlers
from antiphon.runtime._lease import has_other_build, takes_another_build, unfit_reason
from antiphon.runtime._recovery import CLOCK_STEP, Recovered, timer_due
from antiphon.runtime._reporting import LOG, log_fields, log_text, report_own_failure, warn
from antiphon.runtime._settings import STOPPED, Settings, ThreadLimit

if TYPE_CHECKING:
    from antiphon.ledger import Epoch, Owners, TakenThread, ThreadSummary
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._delivery import InFlight
    from antiphon.runtime._effects import States
    from antiphon.runtime._elsewhere import RemoteAnswers
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._lease import Lease
    from antiphon.runtime._recovery import Recovery, Timers


# ---------------------------------------------------------------- eviction


class Eviction:
    """Drops the local state of threads that another host owns."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        in_flight: InFlight,
        *,
        lease: Lease,
        settings: Settings,
        answers: RemoteAnswers,
        timers: Timers,
        states: States,
    ) -> None:
        self._lease = lease
        self._mismatch_patience = settings.mismatch_patience
        self._lifetime = lifetime
        self._journal = journal
        self._in_flight = in_flight
        self._answers = answers
        self._timers = timers
        self._states = states
        self.watchers: list[Callable[[str], None]] = []
        """Called with each thread that this host does not own any more, so that other parts drop their caches about it."""

    def evict(self, thread_id: str, error: errors.FencedError) -> None:
        """Drop a thread at once; its handlers are cancelled, and may not write or start anything from now on."""
        self._lifetime.start(self._end(thread_id, self._dropped(thread_id, error)))
        LOG.info("thread %s is evicted: another host has it", thread_id, extra=log_fields(thread_id=thread_id, error=error))

    async def evict_old(self, thread_id: str) -> None:
        """Drop the local state of a thread that this host has received again, and wait until its handlers have ended.

        The host was suspended past its lease. Another host may have owned the thread meanwhile, so the handlers here have
        outdated state.
        """
        epoch = self._journal.epoch(thread_id)
        lost = errors.FencedError(thread_id, epoch, epoch + 1)
        # First the journal, then the handlers: the last row of a cancelled handler must be refused, and not be written under
        # the epoch that this host has received since.
        self._journal.give_up(thread_id, lost)
        await self._end(thread_id, self._dropped(thread_id, lost))

    def _dropped(self, thread_id: str, error: errors.FencedError) -> Sequence[DeliveryState]:
        evicted = self._in_flight.drop_thread(thread_id)
        for delivery in evicted:
            delivery.evict(error)
            if delivery.envelope.is_of_host:
                delivery.settle(None, error)
            # A caller outside of the thread gets the answer of the new owner. A handler of this thread that asks is evicted
            # itself.
            elif delivery.parent is None or delivery.parent.thread_id != thread_id:
                self._answers.add(delivery)
        self._timers.forget(thread_id)
        self._states.forget(thread_id)
        self.drop_caches(thread_id)
        return evicted

    def drop_caches(self, thread_id: str) -> None:
        """Drop the caches of other parts about a thread: another host may change it, or delete it and create it again."""
        for watcher in self.watchers:
            watcher(thread_id)

    async def _end(self, thread_id: str, evicted: Sequence[DeliveryState]) -> None:
        # Until then, the journal refuses to claim the thread again: a claim would let an old handler write under a new epoch.
        await self._handlers_end(evicted)
        self._journal.evicted(thread_id)

    async def _handlers_end(self, evicted: Sequence[DeliveryState]) -> None:
        """Wait until no handler of the thread runs. One that ignores its cancellation is barred by `DeliveryState.evicted`."""
        await wait_for_handlers(lambda: any(delivery.work.task is not None for delivery in evicted), _PATIENCE)

    # ------------------------------------------------------------ code that cannot continue a thread

    async def give_up(self, delivery: DeliveryState, error: errors.HistoryMismatchError) -> None:
        """Leave the thread of a message to a host of another build: the code here differs from the recorded history."""
        thread_id = delivery.thread_id or ""
        for _ in range(_FLUSHES):  # store the outcomes of other handlers first, so that no host repeats their work
            if self._journal.waiting(thread_id):
                with suppress(errors.LedgerError, errors.HistoryMismatchError):
                    await self._journal.settle(thread_id)
        epoch = self._journal.epoch(thread_id)
        if not epoch:
            return  # lost, or given up for another message
        # No await from here to the end: a handler that wrote in between would write to a thread that is about to be released.
        fenced = errors.FencedError(thread_id, epoch, epoch)
        self._journal.give_up(thread_id, fenced)
        evicted = self._dropped(thread_id, fenced)
        warn("thread %s is given up: this build cannot continue it: %s", thread_id, error=error, about=delivery)
        self._lifetime.start(self._leave_to_others(_Mismatch(thread_id, delivery.invocation_id, error), epoch, evicted))

    async def _leave_to_others(self, mismatch: _Mismatch, epoch: int, evicted: Sequence[DeliveryState]) -> None:
        await self._handlers_end(evicted)  # before the release: after it, another host may start the same effects
        can_wait = False
        try:
            can_wait = await has_other_build(self._journal.ledger, mismatch.thread_id, self._lease.build)
            await _release_unfit(self._journal.ledger, mismatch, epoch, self._lease.build, is_stopped=not can_wait)
        except errors.LedgerError as exc:
            warn("thread %s cannot be released: %s", mismatch.thread_id, error=exc, thread_id=mismatch.thread_id)
        finally:
            self._journal.evicted(mismatch.thread_id)
        if can_wait:
            await self._wait_for_others(mismatch)
        else:
            self._answers.fail(mismatch.thread_id, mismatch.error)

    async def _wait_for_others(self, mismatch: _Mismatch) -> None:
        """Stop the thread if no host has continued it in time. While another host owns it, callers wait as for any thread."""
        thread_id, ledger, pause = mismatch.thread_id, self._journal.ledger, self._mismatch_patience or 0.0
        while True:
            await asyncio.sleep(pause)
            pause = max(pause, _LOOK_AGAIN)
            try:
                if not any(row.message.invocation_id == mismatch.invocation_id for row in await ledger.open_calls(thread_id)):
                    return  # it was answered
                epoch = await ledger.claim(thread_id, by=await self._lease.host(renew=True))
                await _release_unfit(ledger, mismatch, epoch, self._lease.build, is_stopped=True)
            except errors.OwnedError:
                continue
            except errors.LedgerError as exc:
                warn("thread %s: %s", thread_id, error=exc, thread_id=thread_id)
                continue
            self._answers.fail(thread_id, mismatch.error)
            return


def offered_kinds(kinds: tuple[str, ...], settings: Settings) -> tuple[str, ...]:
    """Return the kinds of threads that a host takes, among those that its actors can run."""
    return kinds if settings.kinds is None else tuple(kind for kind in kinds if kind in settings.kinds)


class _Mismatch(NamedTuple):
    """A message that the code here cannot continue."""

    thread_id: str
    invocation_id: str
    error: errors.HistoryMismatchError


async def _release_unfit(ledger: Owners, mismatch: _Mismatch, epoch: int, build: str, *, is_stopped: bool) -> None:
    """Release a thread that this build cannot continue."""
    if is_stopped:
        await ledger.append(mismatch.thread_id, (), epoch=epoch, status=STOPPED)
    await ledger.release(mismatch.thread_id, epoch=epoch, unfit=build, reason=unfit_reason(mismatch.error))


_FLUSHES = 3
"""How often waiting rows are written before a thread is given up: new rows may arrive meanwhile."""
_LOOK_AGAIN = 0.5
"""The least number of seconds between two checks of a thread that another host owns."""
_PATIENCE = 5.0
"""Seconds that the handlers of an evicted thread have to end."""
_STEP = 0.02
_REGISTERS = 10.0
"""Seconds that a starting host tries to register with a ledger that cannot be reached."""


# ---------------------------------------------------------------- work


class Hosting:
    """The periodic work of a host, from its first claim on."""

    def __init__(
        self,
        lifetime: Lifetime,
        settings: Settings,
        lease: Lease,
        *,
        journal: Journal,
        in_flight: InFlight,
        recovery: Recovery,
        timers: Timers,
        answers: RemoteAnswers,
        eviction: Eviction,
    ) -> None:
        self._eviction = eviction
        self._lifetime = lifetime
        self._settings = settings
        self._lease = lease
        self._journal = journal
        self._ledger = journal.ledger
        self._in_flight = in_flight
        self._recovery = recovery
        self._timers = timers
        self._answers = answers
        limit = settings.thread_limit
        self._limit = limit if isinstance(limit, ThreadLimit) else ThreadLimit(limit)
        self._idle_since: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        """By thread, the last posted message that was delivered here."""
        self._troubles: dict[str, str] = {}
        """By thread that cannot be continued, the error that was logged."""
        self.is_taking = False
        """Whether it takes threads whenever they are due (`System.host`)."""
        self._may_be_more = False
        """Whether threads may be due that it has not taken."""
        self._has_room = False
        """Whether there may be room since it last took some."""
        self._is_beginning = False
        """Whether it is taking threads that are not active yet."""
        self._is_draining = False
        """Whether it is stopping, and finishes its threads first."""
        self._clock: float | None = None
        """How much the clock was ahead of that of the event loop, in seconds; None before the first look."""
        self._waiting: asyncio.Timeout | None = None
        self._is_working = False
        journal.on_claimed = self._begin
        answers.on_added = self._begin
        in_flight.on_thread_ended = self._limit.tell_free
        eviction.watchers.append(self._forget)

    def _begin(self) -> None:
        """Start to work: a thread was claimed, a caller waits for another host, or this host takes due threads."""
        if not self._is_working and not self._lifetime.is_closing:
            self._is_working = True
            self._lifetime.start(self._work())

    async def _work(self) -> None:
        """Work while there is anything to do. A host without threads needs no lease: the next claim renews it."""
        loop = self._lifetime.loop
        next_beat, next_take, hints = loop.time() + self._settings.heartbeat, loop.time() + _TAKE_EVERY, 0
        logged: str | None = None
        try:
            while self._has_work and not self._lifetime.is_closing:
                before, hints = hints, await self._wait(hints, next_beat)
                try:
                    if loop.time() >= next_beat:
                        # From the time before the beat: a slow ledger must not make the beats rarer.
                        next_beat = loop.time() + self._settings.heartbeat
                        await self._lease.beat()
                        await self._look_after_threads()
                        next_take = loop.time() + _TAKE_EVERY
                    elif self.is_taking and (self._may_be_more or hints != before or loop.time() >= next_take):
                        await self._take_share()
                        next_take = loop.time() + _TAKE_EVERY
                    elif self._is_draining and loop.time() >= next_take:
                        await self._take_back()
                        next_take = loop.time() + _TAKE_EVERY
                    await self._deliver_posted()
                    logged = None
                except errors.LedgerError as exc:
                    # Logged once: the error repeats in every round, many times a second.
                    if logged != (logged := log_text(exc)):
                        warn(_LATE, error=exc)
                except Exception as exc:  # noqa: BLE001 (a fault in one thread must not end the heartbeats for all of them)
                    if logged != (logged := log_text(exc)):
                        report_own_failure(exc)
        finally:
            self._is_working = False
            if not self._has_work:
                self._lease.rest()

    async def _wait(self, hints: int, until: float) -> int:
        """Wait for a hint that there is work, or until it is time to poll; return the number of hints."""
        loop = self._lifetime.loop
        began, most = loop.time(), min(self._settings.poll, max(0.0, until - loop.time()))
        if not self._has_room:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as self._waiting:
                    hints = await self._ledger.hints.wait(hints, most)
            self._waiting = None
        await asyncio.sleep(min(_BETWEEN_LOOKS, most) - (loop.time() - began))  # many hints together cause one poll
        return hints

    @property
    def at_work(self) -> int:
        return self._in_flight.thread_count

    @property
    def wants_room(self) -> bool:
        return self._may_be_more

    def look_again(self) -> None:
        if self.is_taking and self._may_be_more:
            self._has_room = True
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                waiting.reschedule(self._lifetime.loop.time())

    @property
    def _has_work(self) -> bool:
        return bool(self.is_taking or self._answers.threads or self._journal.has_threads or self._journal.is_unsure)

    async def _deliver_posted(self) -> None:
        """Deliver messages that were posted to threads of this host.

        A message is reported as seen in the next round, after it was delivered: if the host dies before that, the thread stays
        due.
        """
        # If the call fails, these reports are lost. That is harmless: `woken` returns the threads again, and what was
        # delivered is in flight or answered.
        seen, self._seen = self._seen, {}
        for woken in await self._ledger.woken(await self._lease.host(), seen=seen):
            if self._journal.epoch(woken.thread_id):
                with self._apart(woken.thread_id), suppress(errors.FencedError):  # lost: the new owner delivers it
                    await self._recovery.thread(woken.thread_id, is_running=True)
                    self._seen[woken.thread_id] = woken.seq

    @contextmanager
    def _apart(self, thread_id: str) -> Generator[None]:
        """Keep an error about one thread from the others: each is looked at again, and logged once.

        Raises:
            LedgerUnavailableError: it is about all of them.
        """
        try:
            yield
        except errors.LedgerUnavailableError:
            raise
        except Exception as exc:  # noqa: BLE001 (a damaged row may fail anywhere)
            if self._troubles.get(thread_id) != (text := log_text(exc)):
                self._troubles[thread_id] = text
                warn("thread %s cannot be continued here: %s", thread_id, error=exc, thread_id=thread_id)
        else:
            self._troubles.pop(thread_id, None)

    async def _look_after_threads(self) -> None:
        await self._claim_unconfirmed()
        await self._release_idle()
        for thread_id in self._answers.threads:  # a caller here waits for them, and their owner may have died
            with self._apart(thread_id), suppress(errors.OwnedError):
                if not self._journal.epoch(thread_id) and await self._may_take_over(thread_id):
                    await self._recovery.thread(thread_id)
        if self.is_taking:
            await self._take_share()

    async def _may_take_over(self, thread_id: str) -> bool:
        """Whether a thread has an owner, dead or alive, or is due, and this system has the actors.

        A thread that was released and is not due waits for a person. A host that took it would run its handlers, find that
        they must wait, release it, and take it again a few seconds later.
        """
        summary = await self._ledger.thread(thread_id)
        if summary is None or any(unfit.build == self._lease.build for unfit in summary.unfit):
            return False
        is_due = summary.due_at is not None and summary.due_at <= current_port().now()
        return (summary.owner is not None or is_due) and summary.kind in self._lease.kinds()

    async def take_on(self, stop: asyncio.Event | None = None, draining: Callable[[int], None] | None = None) -> None:
        """Take threads whenever they are due, until this is cancelled or `stop` is set; then drain them.

        Raises:
            LedgerError: the ledger cannot be written, or another host has the name.
            ValueError: the limit of threads leaves no room for any.
        """
        if self._limit.most < 1:
            raise ValueError(f"thread_limit is 1 or more, not {self._limit.most}")
        # The lease first: it raises permanent errors, such as a taken name. From then on, an unreachable ledger is retried.
        await self._register()
        self._may_be_more = True  # unknown before the first poll: other systems that share the limit leave room for it
        self._limit.join(self)
        try:
            await asyncio.sleep(0)  # systems that start together join first: otherwise the first one takes all room
            self.is_taking = self._has_room = True  # the first poll is immediate
            self._begin()
            await (stop or asyncio.Event()).wait()
        finally:
            self.is_taking = False
            self._limit.leave(self)
        await self._drain(draining)
        # Threads that wait for a person are released now. If that fails, they are free when this host has left.
        with suppress(errors.LedgerError):
            for thread_id in self._journal.owned:
                if self._in_flight.resting(thread_id) and not self._is_busy(thread_id):
                    await self._release_if_idle(thread_id, has_open_calls=True, is_ending=True)

    async def _register(self) -> None:
        """Register this host with the ledger, which was opened before: if it cannot be reached now, try again for a while."""
        until = self._lifetime.loop.time() + _REGISTERS
        while True:
            try:
                await self._lease.host()
            except errors.LedgerUnavailableError as exc:
                if self._lifetime.loop.time() >= until:
                    raise
                warn(_LATE, error=exc)
                await asyncio.sleep(_LOOK_AGAIN)
            else:
                return

    async def _drain(self, draining: Callable[[int], None] | None) -> None:
        """Wait until the active threads have ended, while a host of another build lives that might take them."""
        is_needed = self._settings.drain > 0 and (self.at_work or self._is_beginning)
        if not is_needed or not await takes_another_build(self._ledger, self._lease.kinds(), self._lease.build):
            return
        if draining is not None:
            draining(self.at_work)
        self._is_draining = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain):
                    while self.at_work or self._is_beginning:  # noqa: ASYNC110 (an eviction tells nobody)
                        await asyncio.sleep(_STEP)
        finally:
            self._is_draining = False

    async def _take_back(self) -> None:
        """Take threads that hosts of other builds have given up: perhaps only this build can continue them."""
        kinds = self._lease.kinds()
        given_up = ThreadFilter(unfit=True, due_before=current_port().now())
        for thread in (await self._ledger.threads(given_up, "created_at")).threads:
            is_fit = thread.kind in kinds and all(each.build != self._lease.build for each in thread.unfit)
            # It may have ended its last thread meanwhile: then it is about to leave, and could not finish another one.
            if self._is_draining and is_fit and self.at_work < self._limit.most:
                self._is_beginning = True
                try:
                    with self._apart(thread.thread_id), suppress(errors.OwnedError):  # another host was quicker
                        await self._continue(thread.thread_id)
                finally:
                    self._is_beginning = False

    async def take(self) -> Recovered:
        """Take all threads that are due, have no living owner and can run here, and continue them."""
        recovered = await self._continue_claimed()
        while taken := await self._take_some(_AT_ONCE):
            recovered = sum(await asyncio.gather(*map(self._begin_taken, taken)), recovered)
            await self._record_take_overs(taken)
        return recovered

    async def _take_share(self) -> None:
        """Take some of the due threads, so that other hosts get some too; the next ones follow in the next round."""
        self._has_room = False  # even if the ledger fails: the next poll waits for its time
        await self._follow_clock()
        await self._continue_claimed()
        room = self._limit.reserve(self, _AT_ONCE)
        self._may_be_more = False  # if the ledger fails, no free room stays reserved for this host
        self._is_beginning = True
        taken: Sequence[TakenThread] = ()
        try:
            taken = await self._take_some(room) if room else ()
            self._may_be_more = len(taken) >= room
            await asyncio.gather(*map(self._begin_apart, taken))
        finally:
            self._is_beginning = False
            self._limit.settle(self, len(taken))
        await self._record_take_overs(taken)

    async def _follow_clock(self) -> None:
        """Look again at timers and threads whose times are of a clock that was set back since: at the start, and when it is.

        A thread without an owner is taken when it is due. One that was written while the clock was ahead would wait until the
        clock is there again.
        """
        now = current_port().now()
        ahead = now.timestamp() - self._lifetime.loop.time()
        if self._clock is not None and ahead > self._clock - CLOCK_STEP.total_seconds():
            self._clock = ahead
            return
        self._timers.follow_clock()
        kinds = self._lease.kinds()
        written_later, page = ThreadFilter(updated_after=now + CLOCK_STEP), None
        while True:
            listed = await self._ledger.threads(written_later, "created_at", page=page)
            for thread in listed.threads:
                if (
                    thread.owner is None
                    and thread.due_at is not None
                    and thread.kind in kinds
                    and await self._is_early(thread)
                ):
                    with self._apart(thread.thread_id), suppress(errors.OwnedError):  # another host was quicker
                        await self._continue(thread.thread_id)
            if (page := listed.next) is None:
                break
        self._clock = ahead  # last: if the ledger fails, the next round looks again

    async def _is_early(self, thread: ThreadSummary) -> bool:
        """Whether a thread has a timer, or something was posted in it: what only waits for a person may wait."""
        if thread.due_at is not None and thread.due_at <= thread.updated_at:
            return True
        return any(timer_due(row.message) is not None for row in await self._ledger.open_calls(thread.thread_id))

    async def _begin_apart(self, taken: TakenThread) -> None:
        with self._apart(taken.thread_id):
            await self._begin_taken(taken)

    async def _record_take_overs(self, taken: Sequence[TakenThread]) -> None:
        """Record how many threads of dead hosts this host has taken: one row for all of them, after they were started."""
        if abandoned := sum(each.why == "abandoned" for each in taken):
            value: Json = {"host": self._lease.name, "threads": abandoned}
            row = Message(policy=RUNTIME_POLICY, lane="control", payload=PartsPayload(parts=(DataPart(data=value),)))
            with suppress(errors.LedgerError):  # it is a statistic: the threads continue without it
                await self._ledger.append(TAKE_OVERS, [row], pattern=SYSTEM_PATTERN)

    async def _continue_claimed(self) -> Recovered:
        """Continue the threads that this host has claimed for one message, and that another host owned before."""
        recovered = Recovered()
        for thread_id in tuple(self._journal.unrecovered):
            with self._apart(thread_id), suppress(errors.OwnedError):  # lost meanwhile
                recovered += await self._continue(thread_id)
        return recovered

    async def _begin_taken(self, taken: TakenThread) -> Recovered:
        thread_id = taken.thread_id
        # A pending claim may have a later epoch than this one, and would fence the work that starts here.
        await self._journal.until_claimed(thread_id)
        if 0 < self._journal.epoch(thread_id) < taken.epoch:
            await self._eviction.evict_old(thread_id)
        # After the eviction: with the new epoch, the journal would accept rows of handlers that started under the old one.
        self._journal.give(thread_id, taken.epoch)
        recovered = await self._continue(thread_id, taken.epoch)
        if taken.why == "posted":
            # What was posted before the take is delivered now. If it were not reported, the next round would deliver it again.
            self._seen[thread_id] = max(taken.epoch.seq, self._seen.get(thread_id, 0))
        return recovered

    async def _take_some(self, limit: int) -> tuple[TakenThread, ...]:
        kinds: tuple[str | None, ...] = self._lease.kinds()
        if self._settings.kinds is None:
            kinds = (*kinds, None)  # a thread whose kind is unknown
        try:
            return await self._lease.as_host(lambda host: self._ledger.take(host, kinds=kinds, limit=limit))
        except errors.LedgerUnavailableError:
            self._journal.is_unsure = True
            raise

    async def _continue(self, thread_id: str, taken: Epoch | None = None, *, is_idle: bool = False) -> Recovered:
        """Deliver the open calls of a thread of this host.

        A thread that only other programs can continue is released for them.
        """
        try:
            recovered = await self._recovery.thread(thread_id, taken=taken, is_idle=is_idle)
        except errors.FencedError:
            return Recovered()  # the host was suspended past its lease meanwhile
        if recovered.homeless and not recovered.delivered and not recovered.resting and not self._is_busy(thread_id):
            reason = f"this program has no actor for {recovered.homeless} messages of the thread"
            await self._release(thread_id, unfit=self._lease.build, reason=reason)
        return recovered

    async def _claim_unconfirmed(self) -> None:
        """Claim the threads that the ledger has given to this host without its knowledge.

        An unconfirmed claim, take or release may have been written. No other host takes a thread of a living host, so the
        thread would wait until this host ends. A host that takes threads continues it; any other host releases it when it is
        idle.
        """
        if not self._journal.is_unsure:
            return
        self._journal.is_unsure = False  # before the query: a failure from here on needs another round
        try:
            for thread_id in sorted(await self._own_threads()):
                if not self._journal.epoch(thread_id):
                    # An error about one thread must not hide the others: they are looked for only once. A fenced thread is
                    # being given up here, and is released then.
                    with self._apart(thread_id), suppress(errors.OwnedError, errors.FencedError):
                        await self._journal.own(thread_id)
        except errors.LedgerUnavailableError:
            self._journal.is_unsure = True
            raise

    async def _own_threads(self, *, open_calls: bool | None = None) -> set[str]:
        """Return the threads that the ledger has given to this host: all, or those with open calls."""
        mine = ThreadFilter(owner=(await self._lease.host()).name, open_calls=open_calls)
        page = await self._ledger.threads(mine)
        thread_ids = {thread.thread_id for thread in page.threads}
        while page.next is not None:
            page = await self._ledger.threads(mine, page=page.next)
            thread_ids |= {thread.thread_id for thread in page.threads}
        return thread_ids

    def _is_busy(self, thread_id: str) -> bool:
        return self._in_flight.has_thread(thread_id) or not self._journal.is_quiet(thread_id)

    async def _release_idle(self) -> None:
        """Release the threads that were idle for a while."""
        now, idle = self._lifetime.loop.time(), list[str]()
        for thread_id in self._journal.owned:
            waits_here = self._timers.next_due(thread_id) is not None and not self.is_taking
            if self._is_busy(thread_id) or waits_here:
                self._idle_since.pop(thread_id, None)
            elif now - self._idle_since.setdefault(thread_id, now) >= self._settings.release_after:
                idle.append(thread_id)
        if idle:
            unfinished = await self._own_threads(open_calls=True)  # one query for all: most have ended
            await asyncio.gather(*(self._release_if_idle(each, has_open_calls=each in unfinished) for each in idle))

    async def _release_if_idle(self, thread_id: str, *, has_open_calls: bool, is_ending: bool = False) -> None:
        """Release a thread, unless it has unfinished work, because a delivery failed while the ledger was unavailable.

        A released thread is taken only when it is due, so its open calls would wait for ever. A thread that waits for a person
        is due when an answer is posted, or the question expires. A system that takes no threads keeps it until then.
        """
        self._idle_since.pop(thread_id, None)
        with self._apart(thread_id):
            # Left open by an earlier owner, and not delivered yet.
            is_left = has_open_calls and thread_id in self._journal.unrecovered
            recovered = await self._continue(thread_id, is_idle=True) if has_open_calls and not is_left else Recovered()
            if recovered.delivered or (recovered.resting and not self.is_taking and not is_ending):
                return
            if not self._is_busy(thread_id) and self._journal.epoch(thread_id):  # checked again after the reads
                times = (current_port().now() if is_left else self._timers.next_due(thread_id), recovered.until)
                await self._release(thread_id, wake_at=min((time for time in times if time is not None), default=None))

    async def _release(
        self, thread_id: str, *, wake_at: datetime | None = None, unfit: str | None = None, reason: str | None = None
    ) -> None:
        self._timers.forget(thread_id)  # before the release: a timer that fires after it would claim the thread again
        self._in_flight.forget_resting(thread_id)
        self._forget(thread_id)
        self._eviction.drop_caches(thread_id)
        await self._journal.release(thread_id, wake_at=wake_at, unfit=unfit, reason=reason)

    def _forget(self, thread_id: str) -> None:
        """Drop what is known here about a thread that was released or lost: this host may take it again later."""
        self._idle_since.pop(thread_id, None)
        self._troubles.pop(thread_id, None)


_LATE = "this host is late: %s"
_TAKE_EVERY = 0.8
_BETWEEN_LOOKS = 0.005
"""Seconds between two polls for due threads without hints, and the least pause between two polls with many hints."""
_AT_ONCE = 32
"""Threads that are taken at once: enough to share commits, few enough to share the due threads with other hosts."""


# ---------------------------------------------------------------- takeovers in the ledger

TAKE_OVERS: Final = "system/take-overs"
"""The thread with one row for each round in which a host took over threads of dead hosts."""


class TakeOvers(NamedTuple):
    """How many threads hosts have taken over, and the time of the last takeover."""

    threads: int = 0
    last_at: datetime | None = None


async def read_take_overs(ledger: Owners) -> TakeOvers:
    """Return how many threads the hosts of a ledger have taken over from dead ones."""
    total = TakeOvers()
    async for record in ledger.read(TAKE_OVERS):
        message = record.message
        part = message.parts[0] if message.policy == RUNTIME_POLICY and message.lane == "control" and message.parts else None
        match thaw(part.data) if isinstance(part, DataPart) else None:
            case {"threads": int(threads)}:
                total = TakeOvers(total.threads + threads, record.recorded_at)
            case _:
                pass  # talk from outside
    return total
