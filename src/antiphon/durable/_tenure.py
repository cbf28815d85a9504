"""Tenures: the threads that this process owns, and the runs of each that are active; and the ledgers that runs share.

The runs of a process on one ledger are one host (`ProcessHost`). The first run of a thread claims it, further runs share it,
and the last one releases it. If this process was suspended past its lease and another host took over the thread, the thread is
lost for all its runs here: they write and start nothing more (`RunCourse.evicted`), and only a run that is opened after they
have ended claims it again.

A ledger that is named by its URL is opened for the first block that needs it, and shared by those that overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from antiphon.durable._course import RunCourse
from antiphon.errors import FencedError, HistoryMismatchError, LedgerError, OwnedError
from antiphon.ledger import Owners, open_ledger
from antiphon.messages import current_port
from antiphon.runtime._journal import Journal
from antiphon.runtime._lease import BEATS_A_LEASE, has_other_build, process_host, unfit_reason
from antiphon.runtime._settings import STOPPED, Budget, Settings

BUSY: Final = "wait until it has ended (on_busy='join'), or run in another thread"
_LEASE: Final = Settings().heartbeat * BEATS_A_LEASE
_tasks: set[asyncio.Task[None]] = set()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something to its end, even if the caller is cancelled: once, or at every await, as AnyIO scopes do."""
    task = asyncio.create_task(work)
    _tasks.add(task)  # a task without a reference may be garbage-collected
    task.add_done_callback(_tasks.discard)
    await asyncio.shield(task)


class Tenure:
    """A thread that this process owns, and its running runs."""

    def __init__(self, ledger: Owners, thread_id: str) -> None:
        self._thread_id = thread_id
        self._host = process_host(ledger)
        self.journal = Journal(self._host.lease, Budget(), has_attempts=True)
        self.journal.on_lost = self._evict
        self._at_work: dict[str, RunCourse | None] = {}
        """By invocation; None until the run is open."""
        self._ends: dict[str, asyncio.Event] = {}
        """By invocation of a running run that others wait for; set when it leaves."""
        self._lost: FencedError | None = None

    @property
    def is_over(self) -> bool:
        """Whether no run is active."""
        return not self._at_work

    def has(self, invocation_id: str) -> bool:
        """Whether a run is active."""
        return invocation_id in self._at_work

    async def until_left(self, invocation_id: str) -> None:
        """Wait until an active run of this process has left."""
        await self._ends.setdefault(invocation_id, asyncio.Event()).wait()

    async def until_over(self) -> None:
        """Wait until no run is active here."""
        while self._at_work:
            await self.until_left(next(iter(self._at_work)))

    async def refusal(self) -> OwnedError:
        """Return the error for a run that is active in this process."""
        name, now = self._host.lease.name, current_port().now()
        hosts = await self.journal.ledger.hosts()
        until = [status.until for status in hosts if status.host.name == name and status.is_alive]
        return OwnedError(self._thread_id, name, until[0] if until else now + timedelta(seconds=_LEASE), BUSY)

    async def join(self, invocation_id: str, kind: str) -> None:
        """Add a run."""
        self._at_work[invocation_id] = None
        await self._host.join(kind)

    def begin(self, course: RunCourse) -> None:
        """Set the course of a run: it is evicted when the thread is lost."""
        course.evicted = self._lost
        self._at_work[course.invocation_id] = course

    async def leave(self, invocation_id: str, kind: str) -> None:
        """Remove a run. After the last one, the thread is free for other hosts.

        Call it with `to_the_end`: if it is cancelled half-way, this process owns a thread that it does not run, and no other
        host can run it until this process ends.
        """
        # First: a pending claim of a cancelled caller would take effect after the release, or fence a run that is opened next.
        await self.journal.until_claimed(self._thread_id)
        del self._at_work[invocation_id]
        try:
            release = partial(self.journal.release, self._thread_id) if self.is_over else None
            await self._host.leave(release, kind=kind)
        finally:  # after the release: a waiting caller must not find the thread owned by a leaving host
            if (end := self._ends.pop(invocation_id, None)) is not None:
                end.set()

    async def give_up(self, error: HistoryMismatchError) -> None:
        """Release the thread for another build, unless other runs here need it: this program cannot continue it."""
        thread_id, journal = self._thread_id, self.journal
        if len(self._at_work) > 1 or not journal.epoch(thread_id):
            return
        with suppress(LedgerError, HistoryMismatchError):  # the program gets the error, and the thread is released at the end
            await journal.settle(thread_id)
            if not await has_other_build(journal.ledger, thread_id, self._host.lease.build):
                await journal.write(thread_id, (), status=STOPPED)
            await journal.release(thread_id, unfit=self._host.lease.build, reason=unfit_reason(error))

    def _evict(self, thread_id: str, error: FencedError) -> None:
        """Stop all runs of the thread here: another host owns it, and continues them."""
        self._lost = error
        for course in self._at_work.values():
            if course is not None:
                course.evicted = error


_tenures: WeakKeyDictionary[Owners, dict[str, Tenure]] = WeakKeyDictionary()
"""By ledger and thread: the runs of a thread share its epoch. A thread without running runs is claimed again."""


def tenure_of(ledger: Owners, thread_id: str) -> Tenure:
    threads = _tenures.setdefault(ledger, {})
    for other in [name for name, tenure in threads.items() if tenure.is_over]:
        del threads[other]
    return threads.setdefault(thread_id, Tenure(ledger, thread_id))


# ---------------------------------------------------------------- ledgers by URL


class _Shared:
    """A ledger and its number of users."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.ledger: Owners | None = None
        self.users = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_ledger(url: str) -> AsyncGenerator[Owners, None]:
    """Keep a ledger open for an `async with` block. Blocks that overlap share it."""
    shared = _shared.setdefault(asyncio.get_running_loop(), {}).setdefault(file_of(url) or url, _Shared())
    async with shared.lock:
        if shared.ledger is None:
            shared.ledger = await shared.stack.enter_async_context(open_ledger(url))
        shared.users += 1
    try:
        yield shared.ledger
    finally:
        async with shared.lock:
            shared.users -= 1
            if shared.users == 0:
                shared.ledger = None
                await shared.stack.aclose()


_SQLITE: Final = "sqlite:///"


def file_of(ledger: Owners | str) -> str | None:
    """Return the file of a ledger in a normal form; None if it has no file."""
    url: str = ledger if isinstance(ledger, str) else getattr(ledger, "url", "")
    return str(Path(url.removeprefix(_SQLITE)).resolve()) if url.startswith(_SQLITE) else None
