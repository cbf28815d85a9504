"""Threads that this server runs itself: a request starts them, and they continue in the background.

The server answers a request as soon as its thread has started: from then on, it can be paused. The thread is durable: if the
server stops, `antiphon resume`, a host or another server continues its open calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from antiphon import service
from antiphon._tasks import beside
from antiphon.errors import AntiphonError, ModelError
from antiphon.server._answers import Problem, error_name

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, DeadLetter, ForkPlace, ModelOffer, RunReport

_log: Final = logging.getLogger("antiphon.server")
_MOST_LETTERS: Final = 100


class Runs:
    """The threads that this server runs."""

    def __init__(self, ledger: Ledger, *, offer: ModelOffer, most: int) -> None:
        self._ledger = ledger
        self.offer = offer
        """The models that requests may name. Its own model is that of threads that are begun here."""
        self.most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self._runners: dict[str, ChainRunner] = {}
        self._letters: deque[DeadLetter] = deque(maxlen=_MOST_LETTERS)

    def __len__(self) -> int:
        return len(self._tasks)

    def runners(self) -> tuple[ChainRunner, ...]:
        """Return the runners of the threads that run now."""
        return tuple(self._runners.values())

    def _forget(self, thread_id: str) -> None:
        """A thread has stopped; its dead letters are kept."""
        runner = self._runners.pop(thread_id, None)
        if runner is not None and runner not in self._runners.values():
            self._letters.extend(runner.dead_letters())

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Return the latest messages that nobody handled, the latest first."""
        letters = [*self._letters, *(letter for runner in set(self._runners.values()) for letter in runner.dead_letters())]
        return tuple(sorted(letters, key=lambda letter: letter.at, reverse=True)[:_MOST_LETTERS])

    async def ask(
        self,
        question: str,
        *,
        by: str,
        thread_id: str | None = None,
        name: str | None = None,
        model: str | None = None,
        team: Path | None = None,
    ) -> str:
        """Ask a question in a new thread or as the next turn of one; return the thread once it has started. `by` is who asks.

        `team` is the file of a team that does it in a new thread; by default, the six phases do.
        """
        await self.check_model(model)
        run_model = model if thread_id is not None else model or self.offer.model
        is_of_team = thread_id is not None and await service.is_of_team(self._ledger, thread_id)

        options = service.TeamOptions(model)

        async def work(on_started: Callable[[str], None]) -> None:
            if team is not None:
                if name is not None:
                    await service.check_new(self._ledger, name)
                listeners = service.TeamListeners(on_started)
                await service.run_team(self._ledger, team, question, options, listeners, thread_id=name)
                return
            if thread_id is not None and is_of_team:
                await service.continue_team(self._ledger, thread_id, question, options, service.TeamListeners(on_started))
                return
            async with service.open_chain(self._ledger, model=run_model, thread_id=thread_id) as runner:
                with self._listed(runner) as listed:
                    report = await runner.ask(
                        question, thread_id=thread_id, name=name, user_id=by, on_created=listed, on_started=on_started
                    )
                    on_started(report.thread_id)  # a full disk may have kept it from starting

        return await self._start(work)

    async def check_model(self, name: str | None) -> None:
        """Refuse a model that this server does not offer or cannot use, before anything is stored. The caller has named it."""
        try:
            await asyncio.to_thread(self.offer.check, name)  # it may import the package of a provider
        except ModelError as exc:
            raise Problem(422, error_name(type(exc)), str(exc), param="model") from None

    async def resume(self, thread_id: str, *, model: str | None) -> str:
        """Continue a thread where it stopped; return it once it continues."""
        await self.check_model(model)
        if await service.resume_elsewhere(self._ledger, thread_id):
            return thread_id
        is_chain = await service.chain_life(self._ledger, thread_id) is not None

        async def work(on_started: Callable[[str], None]) -> None:
            if not is_chain:
                options, listeners = service.TeamOptions(model), service.TeamListeners(on_started)
                await service.resume_team(self._ledger, thread_id, None, options, listeners)
                return
            async with service.open_chain(self._ledger, model=model, thread_id=thread_id) as runner:
                with self._listed(runner) as listed:
                    resuming = asyncio.ensure_future(runner.resume(listed(thread_id)))
                    await _settled(resuming, lambda: on_started(thread_id))

        return await self._start(work)

    async def fork(self, place: ForkPlace, *, model: str | None) -> str:
        """Make a branch and continue it, with another model if one is given; return the branch once it is stored."""
        await self.check_model(model)

        async def work(on_started: Callable[[str], None]) -> None:
            async with service.open_chain(self._ledger, model=model, thread_id=place.thread_id) as runner:
                with self._listed(runner) as listed:
                    await runner.fork(place, on_branch=lambda branch: on_started(listed(branch.thread_id)))

        return await self._start(work)

    @contextmanager
    def _listed(self, runner: ChainRunner) -> Generator[Callable[[str], str]]:
        """Give a function that takes the thread of a runner: its actors are listed while the block lasts."""
        with ExitStack() as stack:

            def take(thread_id: str) -> str:
                self._runners[thread_id] = runner
                stack.callback(self._forget, thread_id)
                return thread_id

            yield take

    async def _start(self, work: Callable[[Callable[[str], None]], Awaitable[None]]) -> str:
        if len(self._tasks) >= self.most:
            raise Problem(503, "too_many", "this server runs too many threads", headers={"retry-after": "5"})
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def tell(thread_id: str) -> None:
            if not started.done():
                started.set_result(thread_id)

        task = asyncio.ensure_future(_logged(work(tell), started))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The caller may go away: the thread goes on without it.
        await asyncio.wait((started,))
        return started.result()

    async def close(self) -> None:
        """End what runs; their calls stay open, and the next owner continues them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _logged(work: Awaitable[None], started: asyncio.Future[str]) -> None:
    """Do the work. An error before the thread has started is the caller's; a later one is logged, without its text."""
    try:
        await work
    except (Exception, asyncio.CancelledError) as exc:
        if not started.done():
            started.set_exception(
                Problem(503, "stopping", "the server stops") if isinstance(exc, asyncio.CancelledError) else exc
            )
        elif isinstance(exc, Exception):
            kind = "stopped" if isinstance(exc, AntiphonError) else "failed"
            _log.warning("thread %s %s in the server: %s", started.result(), kind, type(exc).__name__)
        if isinstance(exc, asyncio.CancelledError):
            raise


_SETTLE: Final = 0.3
"""Seconds in which a thread that cannot be resumed says so."""


async def _settled(running: asyncio.Future[RunReport], then: Callable[[], None]) -> None:
    """Wait for a run; call `then` once it is clear that it goes on."""
    async with beside(running):
        await asyncio.wait((running,), timeout=_SETTLE)
        if not running.done() or running.exception() is None:
            then()
        await running
