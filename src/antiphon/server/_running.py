"""Threads that this server runs itself: begun by a request, and continued in the background until they stop.

A request is answered as soon as its thread is in the ledger. From then on, the thread is safe: if the server ends, its open
calls stay open, and `antiphon resume`, a host or another server continues them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from antiphon import service
from antiphon.errors import AntiphonError
from antiphon.server._answers import Problem

if TYPE_CHECKING:
    from collections.abc import Generator

    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, ForkPlace, HearWords, RunReport

_log: Final = logging.getLogger("antiphon.server")


class Runs:
    """The threads that this server runs."""

    def __init__(self, ledger: Ledger, *, model: str | None, most: int) -> None:
        self._ledger = ledger
        self._model = model
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._runners: dict[str, ChainRunner] = {}
        self._hearing: dict[str, list[HearWords]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def words(self, thread_id: str, hear: HearWords) -> Generator[None]:
        """Call a function with the words of a thread while the block lasts, as often as this server runs the thread."""
        hearing = self._hearing.setdefault(thread_id, [])
        hearing.append(hear)
        try:
            yield
        finally:
            hearing.remove(hear)
            if not hearing:
                del self._hearing[thread_id]

    def _say(self, thread_id: str, speaker: str, text: str) -> None:
        for hear in tuple(self._hearing.get(thread_id, ())):
            hear(speaker, text)

    def runners(self) -> tuple[ChainRunner, ...]:
        """Return the runners of the threads that run now."""
        return tuple(self._runners.values())

    async def ask(
        self, question: str, *, by: str, thread_id: str | None = None, name: str | None = None, model: str | None = None
    ) -> str:
        """Ask a question in a new thread or as the next turn of one; return the thread once it is stored. `by` is who asks.

        Raises:
            Problem: this server runs too many threads.
            AntiphonError: the question cannot be asked.
        """
        chosen = model if thread_id is not None else model or self._model

        async def work(tell: Callable[[str], None]) -> None:
            async with service.open_chain(self._ledger, model=chosen, thread_id=thread_id) as runner:
                with self._heard(runner) as heard:
                    await runner.ask(question, thread_id=thread_id, name=name, user_id=by, tell=lambda own: tell(heard(own)))

        return await self._start(work)

    async def resume(self, thread_id: str, *, model: str | None) -> str:
        """Continue a thread where it stopped; return it once it continues.

        Raises:
            Problem: this server runs too many threads.
            AntiphonError: it cannot continue here.
        """
        if await service.resume_elsewhere(self._ledger, thread_id):
            return thread_id
        is_chain = await service.chain_life(self._ledger, thread_id) is not None

        async def work(tell: Callable[[str], None]) -> None:
            if not is_chain:
                await service.resume_team(self._ledger, thread_id, model=model, tell=tell)
                return
            async with service.open_chain(self._ledger, model=model, thread_id=thread_id) as runner:
                with self._heard(runner) as heard:
                    resuming = asyncio.ensure_future(runner.resume(heard(thread_id)))
                    await _settled(resuming, lambda: tell(thread_id))

        return await self._start(work)

    async def fork(self, place: ForkPlace, *, model: str | None) -> str:
        """Make a branch and continue it, with another model if one is given; return the branch once it is stored.

        Raises:
            Problem: this server runs too many threads.
            AntiphonError: there is no such place, or the thread does not continue from there.
        """

        async def work(tell: Callable[[str], None]) -> None:
            async with service.open_chain(self._ledger, model=model, thread_id=place.thread_id) as runner:
                with self._heard(runner) as heard:
                    await runner.fork(place, tell=lambda branch: tell(heard(branch.thread_id)))

        return await self._start(work)

    @contextmanager
    def _heard(self, runner: ChainRunner) -> Generator[Callable[[str], str]]:
        """Give a function that takes the thread of a runner: its words can be heard while the block lasts."""
        with ExitStack() as stack:

            def take(thread_id: str) -> str:
                stack.enter_context(runner.words(thread_id, partial(self._say, thread_id)))
                self._runners[thread_id] = runner
                stack.callback(self._runners.pop, thread_id, None)
                return thread_id

            yield take

    async def _start(self, work: Callable[[Callable[[str], None]], Awaitable[None]]) -> str:
        if len(self._tasks) >= self._most:
            raise Problem(503, "too_many", "this server runs too many threads", headers={"retry-after": "5"})
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def tell(thread_id: str) -> None:
            if not told.done():
                told.set_result(thread_id)

        task = asyncio.ensure_future(_logged(work(tell), told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The caller may go away: the thread goes on without it.
        await asyncio.wait((told,))
        return told.result()

    async def close(self) -> None:
        """End what runs; their calls stay open, and the next owner continues them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _logged(work: Awaitable[None], told: asyncio.Future[str]) -> None:
    """Do the work. An error before the thread was stored is the caller's; a later one is logged, without its text."""
    try:
        await work
    except (Exception, asyncio.CancelledError) as exc:
        if not told.done():
            told.set_exception(
                Problem(503, "stopping", "the server stops") if isinstance(exc, asyncio.CancelledError) else exc
            )
        elif isinstance(exc, Exception):
            kind = "stopped" if isinstance(exc, AntiphonError) else "failed"
            _log.warning("thread %s %s in the server: %s", told.result(), kind, type(exc).__name__)
        if isinstance(exc, asyncio.CancelledError):
            raise


_SETTLE: Final = 0.3
"""Seconds in which a thread that cannot be resumed says so."""


async def _settled(running: asyncio.Future[RunReport], then: Callable[[], None]) -> None:
    """Wait for a run; call `then` once it is clear that it goes on."""
    try:
        await asyncio.wait((running,), timeout=_SETTLE)
        if not running.done() or running.exception() is None:
            then()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
