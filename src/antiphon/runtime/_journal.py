"""Rows that go to their thread with the next that are written there, or by themselves within a few milliseconds.

Journal: the ledger as the runtime writes it. It owns the threads that it writes to, and keeps to their budgets.

A thread that another system has taken over is lost: every write raises `FencedError`, until `reclaim` is called for
somebody who wants the thread here, such as a caller from outside. What was in hand when it was lost must not claim it back
by the way: it would go on beside the new owner.

What came of something may be written a moment later, together with what is begun next (`write_soon`): nothing begins
before everything that was written so stands in the thread, and half of the commits are saved.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from antiphon.errors import (
    AppendRefusedError,
    BudgetExceededError,
    FencedError,
    HistoryMismatchError,
    LedgerError,
    LedgerUnavailableError,
)
from antiphon.ledger import SYSTEM_PATTERN, Ledger, Record, Redaction
from antiphon.messages import Message
from antiphon.runtime._address import SYSTEM
from antiphon.runtime._hooks import Hooks
from antiphon.runtime._settings import Budget

if TYPE_CHECKING:
    from antiphon.runtime._observer import Observer

_FLUSH_AFTER = 0.005
"""Seconds after which rows go by themselves: an agent at work has begun the next thing long before."""
_FLUSH_AGAIN_AFTER = 1.0
"""Seconds after which that is tried again, where it could not be done."""


class WriteBehind:
    """The rows that wait, and those that are on their way, by thread."""

    def __init__(self, flush: Callable[[str], None]) -> None:
        self._flush = flush
        """Called with a thread whose rows have waited long enough."""
        self._rows: dict[str, list[Message]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._landings: dict[str, asyncio.Future[bool]] = {}

    @property
    def threads(self) -> list[str]:
        """The threads of which anything waits or is on its way."""
        return [*self._rows, *self._landings]

    def count(self, thread_id: str) -> int:
        """Return how many rows of a thread wait."""
        return len(self._rows.get(thread_id, ()))

    def landing(self, thread_id: str) -> asyncio.Future[bool] | None:
        """Return what says whether all rows of a thread were written that are on their way; None if there are none."""
        return self._landings.get(thread_id)

    def put(self, thread_id: str, rows: Sequence[Message]) -> None:
        """Have rows wait, after those that do."""
        self._rows.setdefault(thread_id, []).extend(rows)
        if thread_id not in self._timers:
            self._timers[thread_id] = asyncio.get_running_loop().call_later(_FLUSH_AFTER, self._flush, thread_id)

    def try_again(self, thread_id: str) -> None:
        """Have the rows of a thread go by themselves later, which could not be written now."""
        if thread_id in self._rows and thread_id not in self._timers:
            self._timers[thread_id] = asyncio.get_running_loop().call_later(_FLUSH_AGAIN_AFTER, self._flush, thread_id)

    @contextmanager
    def taken(self, thread_id: str) -> Generator[list[Message], None, None]:
        """Take the rows of a thread, to be written in the block; if it raises, those that are left in the list wait again.

        If another owner has the thread now, they are his to find out about. Rows that were on their way before have landed
        if that is known when the block ends.
        """
        if (timer := self._timers.pop(thread_id, None)) is not None:
            timer.cancel()
        rows, before = self._rows.pop(thread_id), self.landing(thread_id)
        landing = self._landings[thread_id] = asyncio.get_running_loop().create_future()
        has_landed = False
        try:
            yield rows
            has_landed = True
        except FencedError:
            raise
        except BaseException:
            self._put_back(thread_id, rows)
            raise
        finally:
            landing.set_result(has_landed and (before is None or (before.done() and before.result())))
            if self._landings.get(thread_id) is landing:
                del self._landings[thread_id]

    def _put_back(self, thread_id: str, rows: list[Message]) -> None:
        """Have rows wait for whoever writes next; if they were written after all, they will be no news."""
        if rows:
            self._rows[thread_id] = [*rows, *self._rows.get(thread_id, ())]


Admit: TypeAlias = Callable[[str], AbstractAsyncContextManager[None]]
"""Given a thread, what an effect passes when it begins: it waits in there, or raises, while nothing may begin."""

_DELAYS = (0.05, 0.2, 0.8)
"""Seconds to wait before an append is tried again that the ledger could not take."""
_MOST_THREADS = 100_000
"""Threads that are owned at once: an owner forgets those that it did not write to while it wrote to so many others."""


class Journal:
    """The ledger, with an owner's epoch for every thread that was written to."""

    def __init__(self, ledger: Ledger, budget: Budget, admit: Admit | None = None) -> None:
        self.ledger = ledger
        self.admit: Admit = _at_once if admit is None else admit
        """What effects pass before they are begun, as long as it takes to write that down."""
        self._budget = budget
        self._epochs: OrderedDict[str, int] = OrderedDict()
        """By thread that this journal owns, the latest last."""
        self._lengths: dict[str, int] = {}
        """Of the threads that it owns."""
        self._redactions: dict[str, Redaction | None] = {}
        """What is taken out of messages, by thread that it owns."""
        self._writing: Counter[str] = Counter()
        self._claims: dict[str, asyncio.Task[int]] = {}
        self._write_behind = WriteBehind(self._flush)
        self._flushes: set[asyncio.Task[None]] = set()
        self._lost: dict[str, FencedError] = {}
        """The threads that another system has taken over, with what was raised when that was found out."""
        self.watchers: list[Callable[[Record], None]] = []
        """Called with each record that was written."""
        self.hooks: Hooks | None = None
        """Who is told of effects."""

    # ------------------------------------------------------------ writing

    async def write(self, thread_id: str, messages: Sequence[Message], **more: Any) -> tuple[Record, ...]:
        """Append messages as the owner of their thread, after what is to be written soon, and return their records.

        `expected_version` is how long the thread is by then.

        Raises:
            FencedError: another system has the thread now.
            HistoryMismatchError: what was to be written soon is there already, and says something else.
            LedgerError: the ledger refuses, or cannot be used.
        """
        self._check_lost(thread_id)  # also where there is nothing to write
        before = self._write_behind.landing(thread_id)
        if self.waiting(thread_id):
            records = await self._write_after_rows(thread_id, messages, more, before)
        else:
            records = await self._write(thread_id, messages, more)
        await self._landed(thread_id, before)
        return records

    async def write_soon(self, thread_id: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Append messages with the next that are written to their thread, or in a moment, and return them as stored.

        What will be stored is known now, because redaction is a pure function and a thread's rules do not change. The ledger
        applies it to the same messages, so nothing depends on redacting twice being the same as once. What goes wrong with
        them, whoever writes there next gets to know.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        rules = await self.redaction_of(thread_id)
        self._write_behind.put(thread_id, messages)
        return messages if rules is None else [rules.message(message) for message in messages]

    async def redaction_of(self, thread_id: str) -> Redaction | None:
        """Return the rules of a thread, which are looked up once. The thread is not claimed: nothing is written yet."""
        if thread_id not in self._redactions:
            self._redactions[thread_id] = await self.ledger.redaction_of(thread_id)
        return self._redactions[thread_id]

    def length(self, thread_id: str) -> int:
        """Return how long a thread is at least: there it ended when this journal wrote to it last."""
        return self._lengths.get(thread_id, 0)

    def waiting(self, thread_id: str) -> int:
        """Return how many messages will be written before the next."""
        return self._write_behind.count(thread_id)

    async def settle(self, thread_id: str) -> None:
        """Wait until everything is written that was to be soon.

        Raises:
            LedgerError: it cannot be.
        """
        self._check_lost(thread_id)
        if self.waiting(thread_id):
            await self.write(thread_id, ())
        else:
            await self._landed(thread_id, self._write_behind.landing(thread_id))

    async def _write_after_rows(
        self, thread_id: str, messages: Sequence[Message], more: dict[str, Any], before: asyncio.Future[bool] | None
    ) -> tuple[Record, ...]:
        """Append messages after the rows that wait: together, unless the one or the other is refused."""
        with self._write_behind.taken(thread_id) as rows:
            records = None
            if not more.get("allow_foreign"):
                with suppress(AppendRefusedError):
                    records = (await self._write(thread_id, [*rows, *messages], _shifted(more, len(rows))))[len(rows) :]
            if records is None:
                await self._write_rows(thread_id, rows)
            if before is not None:
                await asyncio.wait([before])
        return await self._write(thread_id, messages, more) if records is None else records

    async def _write_rows(self, thread_id: str, rows: list[Message]) -> None:
        try:
            await self._write(thread_id, rows, {})
        except AppendRefusedError as exc:
            rows.clear()  # no later write shall fail for them
            reason = f"the thread {thread_id!r} says something else than what came of {exc.message_id!r}: {exc.reason}"
            raise HistoryMismatchError(reason) from exc

    async def _landed(self, thread_id: str, before: asyncio.Future[bool] | None) -> None:
        """Wait until rows are written that somebody else has taken along; if that failed, take them along."""
        if before is not None:
            await asyncio.wait([before])
            if not before.result():
                await self.settle(thread_id)

    def _flush(self, thread_id: str) -> None:
        flush = asyncio.create_task(self._flushed(thread_id))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushes.discard)

    async def _flushed(self, thread_id: str) -> None:
        """Write what has waited long enough. If that fails, whoever writes next gets to know."""
        if not self.waiting(thread_id):
            return
        try:
            with self._write_behind.taken(thread_id) as rows:
                await self._write(thread_id, rows, {})
        except LedgerUnavailableError:
            self._write_behind.try_again(thread_id)
        except LedgerError:
            pass

    async def _write(self, thread_id: str, messages: Sequence[Message], more: dict[str, Any]) -> tuple[Record, ...]:
        if not messages and not more:
            return ()
        if thread_id.startswith(f"{SYSTEM}/"):
            more["pattern"] = SYSTEM_PATTERN
        for delay in _DELAYS:
            try:
                records = await self._append(thread_id, messages, more)
                break
            except LedgerUnavailableError:
                await asyncio.sleep(delay)  # the same messages again settle it, whether they were written or not
        else:
            records = await self._append(thread_id, messages, more)
        if records:
            self._lengths[thread_id] = max(self.length(thread_id), records[-1].seq)
        for watcher in self.watchers:
            for record in records:
                watcher(record)
        return records

    async def _append(self, thread_id: str, messages: Sequence[Message], more: dict[str, Any]) -> tuple[Record, ...]:
        epoch = await self.own(thread_id)
        self._writing[thread_id] += 1
        try:
            return await self.ledger.append(thread_id, messages, epoch=epoch, **more)
        except FencedError as exc:
            self._lose(thread_id, epoch, exc)
            raise
        finally:
            self._writing[thread_id] -= 1
            if not self._writing[thread_id]:
                del self._writing[thread_id]

    # ------------------------------------------------------------ owning

    async def own(self, thread_id: str) -> int:
        """Return the epoch under which this journal owns a thread; claim it the first time.

        Raises:
            FencedError: another system has taken it over.
        """
        if (epoch := self._epochs.get(thread_id)) is not None:
            self._epochs.move_to_end(thread_id)
            return epoch
        self._check_lost(thread_id)
        claim = self._claims.get(thread_id)
        if claim is None:
            claim = self._claims[thread_id] = asyncio.create_task(self._claim(thread_id))
        return await asyncio.shield(claim)  # others may wait for the same

    def epoch(self, thread_id: str) -> int:
        """Return the epoch under which this journal owns a thread; 0 if it does not."""
        return self._epochs.get(thread_id, 0)

    def has_had_owners(self, thread_id: str) -> bool:
        """Whether somebody has owned a thread before this journal, who may have begun what is in hand here."""
        return self.epoch(thread_id) != 1

    def reclaim(self, thread_id: str) -> None:
        """Let a thread be claimed again that another system has taken over: somebody wants it here."""
        self._lost.pop(thread_id, None)

    def _check_lost(self, thread_id: str) -> None:
        if (lost := self._lost.get(thread_id)) is not None:
            raise FencedError(*lost.args)

    def _lose(self, thread_id: str, epoch: int, error: FencedError) -> None:
        """Know that a thread is another's; unless it was claimed again while an append of before was under way."""
        if self.epoch(thread_id) == epoch:
            self._disown(thread_id)
            self._lost[thread_id] = error
            if len(self._lost) > _MOST_THREADS:
                del self._lost[next(iter(self._lost))]

    async def _claim(self, thread_id: str) -> int:
        try:
            epoch = self._epochs[thread_id] = await self.ledger.claim(thread_id)
        finally:
            del self._claims[thread_id]
        self._forget_some()
        return epoch

    def _forget_some(self) -> None:
        """Forget a thread that was not written to for long; if it is again, it is claimed again."""
        if len(self._epochs) > _MOST_THREADS:
            oldest = next(iter(self._epochs))
            if not self._writing[oldest]:
                self._disown(oldest)

    def _disown(self, thread_id: str) -> None:
        self._epochs.pop(thread_id, None)
        self._lengths.pop(thread_id, None)
        self._redactions.pop(thread_id, None)

    async def close(self) -> None:
        """Write what was to be written soon, and wait for what is being claimed."""
        for thread_id in self._write_behind.threads:
            with suppress(LedgerError, HistoryMismatchError):  # nobody is left to be told
                await self.settle(thread_id)
        await asyncio.gather(*self._claims.values(), return_exceptions=True)

    async def before(self, thread_id: str, row: Record) -> Record:
        """Return what stands right before a row."""
        (record,) = [record async for record in self.ledger.read(thread_id, row.seq - 2, row.seq)]
        return record

    async def check_budget(self, thread_id: str, address: str) -> None:
        """Refuse to say more in a thread that has used up its budget.

        Raises:
            BudgetExceededError: it has.
        """
        if self._budget == Budget() or (thread := await self.ledger.thread(thread_id)) is None:
            return
        if (spent := self._budget.spent_by(thread)) is not None:
            raise BudgetExceededError(f"thread {thread_id!r} has used up its {spent}", address)


def observe(journal: Journal, observer: Observer | None) -> Hooks | None:
    """Have an observer told of what is done in the threads of a journal, and return by what; with None, nobody is."""
    now = asyncio.get_running_loop().time
    journal.hooks = None if observer is None else Hooks(observer, now, journal.redaction_of)
    return journal.hooks


def _shifted(more: dict[str, Any], count: int) -> dict[str, Any]:
    """Return what is asked of an append for one that begins with so many rows more."""
    version: int | None = more.get("expected_version")
    return more if version is None else {**more, "expected_version": version - count}


def _at_once(thread_id: str) -> AbstractAsyncContextManager[None]:
    return nullcontext()
