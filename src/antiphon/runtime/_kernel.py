"""Kernel: everything that the actors of a system share, put together once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from antiphon.errors import AntiphonError
from antiphon.runtime._bonds import Bonds
from antiphon.runtime._care import Care
from antiphon.runtime._commands import Commands
from antiphon.runtime._dead import DeadLetters
from antiphon.runtime._deadlines import Deadlines
from antiphon.runtime._hooks import observe
from antiphon.runtime._journal import Journal
from antiphon.runtime._logs import LOG, about, trail, words
from antiphon.runtime._port import port_in_use
from antiphon.runtime._post import Post
from antiphon.runtime._recent import Recent
from antiphon.runtime._recovery import Recovery
from antiphon.runtime._remote import Remote
from antiphon.runtime._rest import Rests
from antiphon.runtime._run import OPEN
from antiphon.runtime._settings import Settings
from antiphon.runtime._state import States
from antiphon.runtime._timers import Timers
from antiphon.runtime._tree import Tree
from antiphon.runtime._watchdog import Watchdog

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.runtime._journal import Admit
    from antiphon.runtime._observer import Observer
    from antiphon.runtime._system import System

__all__ = ["Kernel"]


class Kernel:
    """The parts of a system."""

    def __init__(
        self,
        system: System,
        ledger: Ledger,
        settings: Settings,
        observer: Observer | None = None,
        admit: Admit | None = None,
    ) -> None:
        self.system = system
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.port = port_in_use()
        self.context = copy_context()
        """What handlers run in, so that they have the system's port and not their sender's variables."""
        self.journal = Journal(ledger, settings.budget, admit)
        self.hooks = observe(self.journal, observer)
        self.states = States(self.journal)
        self.deadlines = Deadlines(self.loop)
        self.dead = DeadLetters(settings.dead_letters, self.hooks)
        self.tree = Tree(self)
        self.rests = Rests(self, settings.idle_after)
        self.bonds = Bonds(self)
        self.care = Care(self)
        self.commands = Commands(self)
        self.recent = Recent()
        self.post = Post(self)
        self.timers = Timers(self)
        self.recovery = Recovery(self)
        self._ends_since: float | None = None
        self._watchdog: Watchdog | None = None
        self.remote: Remote | None = None
        """The way to other systems, if there are any."""
        self.tasks: dict[asyncio.Task[None], None] = {}
        """What runs on behalf of no single message: decisions, commands, heartbeats."""
        self.failure: AntiphonError | None = None
        self.owner = asyncio.current_task()

    def open(self) -> None:
        """Begin to live; and to watch the event loop, unless its time is not the machine's."""
        OPEN.add(self)
        limit = self.settings.block_limit
        if limit is not None and not getattr(self.loop, "is_virtual", False):
            self._watchdog = Watchdog(self, limit)

    def begin_to_end(self) -> None:
        """Take nothing up any more: the system ends. What is withdrawn in a thread from now on is left to the next one."""
        if self._ends_since is None:
            self._ends_since = self.loop.time()

    @property
    def is_closing(self) -> bool:
        """Whether the system ends."""
        return self._ends_since is not None

    def left_of(self, grace: float) -> float:
        """Return how much of an actor's grace is left: at the end of the system it runs for all at once."""
        return grace if self._ends_since is None else max(0.0, self._ends_since + grace - self.loop.time())

    def let_be(self) -> None:
        """End what is not of the event loop."""
        OPEN.discard(self)
        if self._watchdog is not None:
            self._watchdog.close()

    async def close(self) -> None:
        """End what no actor does, even if the actors could not be waited for."""
        self.let_be()
        self.rests.close()
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.journal.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until it ends, or the system does."""
        task = self.loop.create_task(work, context=self.context.copy())
        self.tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self.tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("the runtime itself has failed: %s\n%s", words(error), trail(error), extra=about(error=error))

    def collapse(self, failure: AntiphonError) -> None:
        """End the whole system: the first supervisor has given up."""
        if self.failure is None:
            self.failure = failure
            if self.owner is not None:
                self.owner.cancel()
