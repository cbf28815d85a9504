"""Kernel: everything that the actors of a system share, put together once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from antiphon.errors import AntiphonError
from antiphon.runtime._bonds import Bonds
from antiphon.runtime._care import Care
from antiphon.runtime._commands import Commands
from antiphon.runtime._dead import DeadLetters
from antiphon.runtime._deadlines import Deadlines
from antiphon.runtime._journal import Journal
from antiphon.runtime._port import port_in_use
from antiphon.runtime._post import Post
from antiphon.runtime._recent import Recent
from antiphon.runtime._recovery import Recovery
from antiphon.runtime._remote import Remote
from antiphon.runtime._settings import Settings
from antiphon.runtime._state import States
from antiphon.runtime._timers import Timers
from antiphon.runtime._tree import Tree
from antiphon.runtime._watchdog import Watchdog

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.runtime._system import System

__all__ = ["Kernel"]


class Kernel:
    """The parts of a system."""

    def __init__(self, system: System, ledger: Ledger, settings: Settings) -> None:
        self.system = system
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.port = port_in_use()
        self.context = copy_context()
        """What handlers run in, so that they have the system's port and not their sender's variables."""
        self.journal = Journal(ledger, settings.budget)
        self.states = States(self.journal)
        self.deadlines = Deadlines(self.loop)
        self.dead = DeadLetters(settings.dead_letters)
        self.tree = Tree(self)
        self.bonds = Bonds(self)
        self.care = Care(self)
        self.commands = Commands(self)
        self.recent = Recent()
        self.post = Post(self)
        self.timers = Timers(self)
        self.recovery = Recovery(self)
        self.log = logging.getLogger("antiphon.runtime")
        self.is_closing = False
        self._watchdog: Watchdog | None = None
        self.remote: Remote | None = None
        """The way to other systems, if there are any."""
        self.tasks: dict[asyncio.Task[None], None] = {}
        """What runs on behalf of no single message: decisions, commands, heartbeats."""
        self.failure: AntiphonError | None = None
        self.owner = asyncio.current_task()

    def open(self) -> None:
        """Begin to watch the event loop, unless its time is not the machine's."""
        limit = self.settings.block_limit
        if limit is not None and not getattr(self.loop, "is_virtual", False):
            self._watchdog = Watchdog(self, limit)

    async def close(self) -> None:
        """End what no actor does."""
        if self._watchdog is not None:
            self._watchdog.close()
        await self.journal.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until it ends, or the system does."""
        task = self.loop.create_task(work, context=self.context.copy())
        self.tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self.tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("the runtime itself has failed", exc_info=error)

    def collapse(self, failure: AntiphonError) -> None:
        """End the whole system: the first supervisor has given up."""
        if self.failure is None:
            self.failure = failure
            if self.owner is not None:
                self.owner.cancel()
