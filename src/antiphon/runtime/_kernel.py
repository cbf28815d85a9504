"""Kernel: makes the parts of a system and connects them. Read it first: it shows all parts, and who uses whom.

Each part gets the parts that it uses, which are made before it. If two parts use each other, the lower one declares its needs
as a protocol or a function; only this file knows both.

| part | it |
|---|---|
| `lifetime` | has the event loop and the background tasks, and knows whether the system is closing |
| `journal` | writes threads, as their owner |
| `tree` | has the cells; `lifecycle` stops and restarts them, `idle_actors` passivates those that are idle |
| `sender` | carries messages to cells; those of threads are journaled first |
| `outcomes`, `redelivery`, `in_flight` | end messages; deliver them again; have those that this system handles |
| `escalation`, `links`, `commands` | report failures to supervisors, and carry out their decisions |
| `timers`, `recovery` | deliver notices later, and continue open work of another process |
| `lease`, `hosting` | renew the lease of this host; deliver posted messages, take and release threads |
| `lives`, `termination` | know which threads are paused or terminated, hold their effects, and end their work |
| `answers`, `eviction` | wait for answers of other hosts; drop threads that another host has taken over |

`run` is the process around systems: it shuts them down gracefully on SIGTERM and SIGINT.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.runtime._actor import OPEN, Actor, ActorSystem, Lifetime, Services
from antiphon.runtime._cell import Cell, CellParts
from antiphon.runtime._delivery import DeliveryState, InFlight
from antiphon.runtime._effects import States
from antiphon.runtime._elsewhere import RemoteAnswers
from antiphon.runtime._exchange import StoredIds
from antiphon.runtime._hosting import Eviction, Hosting, offered_kinds
from antiphon.runtime._journal import Journal, observe
from antiphon.runtime._lease import Lease
from antiphon.runtime._life import Lives, Termination
from antiphon.runtime._outcomes import Outcomes
from antiphon.runtime._recovery import Recovery, Timers
from antiphon.runtime._redelivery import Redelivery
from antiphon.runtime._reporting import DeadLetters
from antiphon.runtime._send import Sender
from antiphon.runtime._settings import Settings, port_in_use
from antiphon.runtime._supervision import Commands, Escalation, Links, Supervisor, SupervisorParts
from antiphon.runtime._tree import IdleActors, Lifecycle, Tree
from antiphon.runtime._watchdog import BlockReport, Watchdog, watchdog

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.runtime._gates import Gates
    from antiphon.runtime._journal import Admit
    from antiphon.runtime._reporting import Observer


class Kernel:
    """The parts of a system."""

    def __init__(
        self, system: ActorSystem, ledger: Ledger, settings: Settings, observer: Observer | None, admit: Admit | None
    ) -> None:
        self.ledger, self.settings = ledger, settings
        self.lifetime = Lifetime()
        self.tree = Tree()
        self.lease = Lease(ledger, settings, lambda: offered_kinds(self.tree.kinds(), settings))
        self.journal = Journal(self.lease, settings.budget)
        self.lives = Lives(self.journal)
        self.journal.gates = self.lives.gates
        self.admit(admit)
        self.hooks = observe(self.journal, observer)
        self.dead = DeadLetters(settings.dead_letters, self.hooks)
        self.answers = RemoteAnswers(self.lifetime, ledger, settings.poll)
        self.states = States(self.journal)
        self._watchdog: Watchdog | None = None
        self._block_report: BlockReport | None = None
        self._connect_delivery()
        self._connect_supervision()
        self._connect_recovery()
        self.tree.make = partial(Cell, self._cell_parts(system))

    def _connect_delivery(self) -> None:
        self.in_flight = InFlight()
        self.outcomes = Outcomes(
            self.lifetime,
            self.journal,
            self.in_flight,
            self.dead,
            answers_mismatches=self.settings.mismatch_patience is None,
            recover_later=self._recover_later,
        )
        self.redelivery = Redelivery(self.journal, self.settings, self.in_flight, self.outcomes, self.answers)
        self.sender = Sender(
            self.lifetime,
            self.settings,
            self.tree,
            journal=self.journal,
            in_flight=self.in_flight,
            redelivery=self.redelivery,
            outcomes=self.outcomes,
            dead=self.dead,
            answers=self.answers,
            run_command=self._run_command,
            recover_later=self._recover_later,
        )

    def _connect_supervision(self) -> None:
        self.lifecycle = Lifecycle(self.lifetime, self.tree, self.outcomes, self.redelivery, self.hooks)
        self.idle_actors = IdleActors(self.lifetime, self.tree, self.lifecycle, self.settings.idle_after)
        self.links = Links()
        self.escalation = Escalation(
            self.lifetime, self.tree, self.lifecycle, sender=self.sender, redelivery=self.redelivery, links=self.links
        )
        self.commands = Commands(
            self.lifetime,
            self.tree,
            self.lifecycle,
            outcomes=self.outcomes,
            escalation=self.escalation,
            hooks=self.hooks,
        )
        self._supervisor_parts = SupervisorParts(
            self.lifetime, self.tree, self.lifecycle, self.escalation, port_in_use().random
        )

    def _connect_recovery(self) -> None:
        self.timers = Timers(
            self.lifetime,
            self.journal,
            self.tree,
            in_flight=self.in_flight,
            sender=self.sender,
        )
        self.recovery = Recovery(
            self.lifetime,
            self.journal,
            self.tree,
            in_flight=self.in_flight,
            outcomes=self.outcomes,
            redelivery=self.redelivery,
            sender=self.sender,
            timers=self.timers,
        )
        self.eviction = Eviction(
            self.lifetime,
            self.journal,
            self.in_flight,
            lease=self.lease,
            settings=self.settings,
            answers=self.answers,
            timers=self.timers,
            states=self.states,
        )
        self.eviction.watchers.append(self.lives.gates.evict)
        self.outcomes.give_up_thread = self.eviction.give_up
        self.journal.on_lost = self.eviction.evict
        self.termination = Termination(self.journal, self.in_flight, self.timers, self.lives)
        self.recovery.end_if_terminated = self.termination.end_if_terminated
        self.hosting = Hosting(
            self.lifetime,
            self.settings,
            self.lease,
            journal=self.journal,
            in_flight=self.in_flight,
            recovery=self.recovery,
            timers=self.timers,
            answers=self.answers,
            eviction=self.eviction,
        )

    def _cell_parts(self, system: ActorSystem) -> CellParts:
        services = Services(
            system=system,
            lifetime=self.lifetime,
            journal=self.journal,
            states=self.states,
            stored_ids=StoredIds(),
            messenger=self.sender,
            outcomes=self.outcomes,
            parking=self.redelivery,
            reminders=self.timers,
            ties=self.links,
            open_work=self.recovery,
        )
        return CellParts(
            lifetime=self.lifetime,
            loop=self.lifetime.loop,
            hooks=self.hooks,
            services=services,
            outcomes=self.outcomes,
            redelivery=self.redelivery,
            supervising=self.escalation,
            idling=self.idle_actors,
            children=self.tree.children,
            provide=self._provide,
        )

    def admit(self, admit: Admit | None) -> None:
        """Let each start of an effect pass the block that the program has set, and the gate of its thread."""
        gates = self.lives.gates
        self.journal.admit = gates.passing if admit is None else partial(_both, gates, admit)

    # ------------------------------------------------------------ connections from lower to higher parts

    def _run_command(self, cell: Cell, delivery: DeliveryState) -> None:
        self.commands.give(cell, delivery)

    def _recover_later(self, thread_id: str) -> None:
        self.recovery.recover_later(thread_id)

    def _provide(self, actor: Actor) -> None:
        if isinstance(actor, Supervisor):
            actor.provide(self._supervisor_parts)

    # ------------------------------------------------------------ open and close

    def open(self) -> None:
        """Open the system, and watch the event loop, unless its time is virtual."""
        self.lifetime.open()
        self._watchdog = watchdog()
        if self._watchdog is not None and self.settings.block_limit is not None:
            self._block_report = BlockReport(self.settings.block_limit, self.escalation.blocked)
            self._watchdog.add(self._block_report)

    def close_without_loop(self) -> None:
        """Close the parts that need no event loop, because the loop may be closed."""
        self.lifetime.forget()
        if self._watchdog is not None and self._block_report is not None:
            self._watchdog.remove(self._block_report)

    async def close(self) -> None:
        """Close the parts, even if the actors could not be stopped. The journal is last, because the others still write."""
        self.close_without_loop()
        self.idle_actors.close()
        await self.lifetime.close()
        await self.journal.close()
        await self.lease.end()  # after the last row: from here on, another host may take the threads at once


@asynccontextmanager
async def _both(gates: Gates, admit: Admit, thread_id: str) -> AsyncGenerator[None]:
    # The program's block first: it may wait for long, and a pause must not wait for a start that waits there.
    async with admit(thread_id), gates.passing(thread_id):
        yield


# ---------------------------------------------------------------- the process


ResultT = TypeVar("ResultT")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_COLLECTED = (50_000, 20, 20)
"""The thresholds of the garbage collector."""


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a program as `asyncio.run` does, and shut it down gracefully on SIGTERM and SIGINT.

    The first signal cancels the program, so that its `async with System(…)` blocks end: each actor has its grace, and
    unfinished messages of threads stay open for the next process. The second signal ends all grace periods; the next process
    recovers as after a crash. The third signal kills the process.

    The garbage collector runs less often meanwhile: with a thousand busy threads and Python's default thresholds, it takes
    half of the time.

    Raises:
        SystemExit: a signal ended the program; the code is 128 plus the number of the signal, as in shells.
    """
    numbers: list[int] = []
    try:
        with _fewer_collections():
            return asyncio.run(_until_signalled(main, numbers))
    except asyncio.CancelledError:
        if not numbers:
            raise
        raise SystemExit(128 + numbers[0]) from None


@contextmanager
def _fewer_collections() -> Generator[None]:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(*_COLLECTED)
    gc.freeze()  # imported modules are permanent: the collector need not visit them
    try:
        yield
    finally:
        if not frozen:  # otherwise the program itself has frozen objects, which stay frozen
            gc.unfreeze()
        gc.set_threshold(*before)


async def _until_signalled(main: Coroutine[Any, Any, ResultT], numbers: list[int]) -> ResultT:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 (this is one)

    def tell(number: int) -> None:
        numbers.append(number)
        if len(numbers) > 1:
            _stop_listening(loop)
        for lifetime in tuple(OPEN):
            if lifetime.loop is loop:
                lifetime.begin_closing()
        task.cancel()

    with suppress(NotImplementedError):  # on Windows there is no SIGTERM, and asyncio handles Ctrl-C
        for number in _SIGNALS:
            loop.add_signal_handler(number, tell, number)
    try:
        return await main
    finally:
        _stop_listening(loop)


def _stop_listening(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(NotImplementedError):
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
