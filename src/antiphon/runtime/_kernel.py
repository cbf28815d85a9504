"""Kernel: makes the parts of a system and connects them. Read it first: it shows all parts, and who uses whom.

Each part is given the parts that it uses, which are made before it. If two parts use each other, the lower one declares what
it needs as a protocol or a function; only this file knows both.

| part | it |
|---|---|
| `lifetime` | has the event loop and the background tasks, and knows whether the system is closing |
| `journal` | writes threads, as their owner |
| `tree` | has the cells; `lifecycle` stops and restarts them, `idle_actors` passivates those that are idle |
| `dispatcher` | carries messages to cells, and outcomes back |
| `durable`, `redelivery`, `in_flight` | do that for messages of threads, with the journal |
| `escalation`, `links`, `commands` | report failures to supervisors, and carry out their decisions |
| `timers`, `recovery` | deliver notices later, and continue what another process left open |
| `lease`, `hosting` | tell the ledger that this host lives; deliver what was posted, take and release threads |
| `answers`, `eviction` | wait for answers of other hosts; drop threads that another host has |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.runtime._actor import Actor, Props
from antiphon.runtime._cell import Cell, CellParts
from antiphon.runtime._dispatch import Dispatcher
from antiphon.runtime._durable import Durable
from antiphon.runtime._envelope import DeliveryState, InFlight
from antiphon.runtime._escalation import Commands, Escalation, Links
from antiphon.runtime._hooks import DeadLetters
from antiphon.runtime._hosting import Eviction, Hosting, Lease, RemoteAnswers
from antiphon.runtime._journal import Journal, observe
from antiphon.runtime._recovery import Recovery, Timers
from antiphon.runtime._redelivery import Redelivery
from antiphon.runtime._results import StoredIds
from antiphon.runtime._run import Lifetime, Watchdog
from antiphon.runtime._services import ActorSystem, Services
from antiphon.runtime._settings import Settings, port_in_use
from antiphon.runtime._state import States
from antiphon.runtime._supervisor import Supervisor, SupervisorParts
from antiphon.runtime._tree import IdleActors, Lifecycle, Tree

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.runtime._bus import Remote
    from antiphon.runtime._journal import Admit
    from antiphon.runtime._observer import Observer


class Kernel:
    """The parts of a system."""

    def __init__(
        self, system: ActorSystem, ledger: Ledger, settings: Settings, observer: Observer | None, admit: Admit | None
    ) -> None:
        self.settings = settings
        self.lifetime = Lifetime()
        self.tree = Tree(self._make_cell)
        self.lease = Lease(ledger, settings, self.tree.kinds)
        self.journal = Journal(ledger, settings.budget, admit, host=self.lease.host)
        self.hooks = observe(self.journal, observer)
        self.dead = DeadLetters(settings.dead_letters, self.hooks)
        self.answers = RemoteAnswers(self.lifetime, ledger)
        self.states = States(self.journal)
        self._watchdog: Watchdog | None = None
        self.remote: Remote | None = None
        """Set when the system joins a bus."""
        self._connect_delivery()
        self._connect_supervision()
        self._connect_recovery()
        self._parts = self._cell_parts(system)

    def _connect_delivery(self) -> None:
        self.in_flight = InFlight()
        self.redelivery = Redelivery(self.journal, self.settings, self.in_flight, self.hooks)
        self.durable = Durable(
            self.lifetime,
            self.journal,
            self.in_flight,
            self.redelivery,
            self.dead,
            elsewhere=self.answers,
            run_command=self._run_command,
            recover_later=self._recover_later,
        )
        self.dispatcher = Dispatcher(
            self.lifetime,
            self.settings,
            self.tree,
            durable=self.durable,
            in_flight=self.in_flight,
            redelivery=self.redelivery,
            dead=self.dead,
            journal=self.journal,
        )

    def _connect_supervision(self) -> None:
        self.lifecycle = Lifecycle(self.lifetime, self.tree, self.dispatcher, self.hooks)
        self.idle_actors = IdleActors(self.lifetime, self.tree, self.lifecycle, self.settings.idle_after)
        self.links = Links()
        self.escalation = Escalation(self.lifetime, self.tree, self.lifecycle, self.dispatcher, self.links)
        self.commands = Commands(
            self.lifetime,
            self.tree,
            self.lifecycle,
            dispatcher=self.dispatcher,
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
            durable=self.durable,
            dispatcher=self.dispatcher,
        )
        self.recovery = Recovery(
            self.lifetime,
            self.journal,
            self.tree,
            in_flight=self.in_flight,
            durable=self.durable,
            dispatcher=self.dispatcher,
            timers=self.timers,
        )
        self.eviction = Eviction(
            self.lifetime,
            self.journal,
            self.in_flight,
            answers=self.answers,
            timers=self.timers,
            states=self.states,
        )
        self.journal.on_lost = self.eviction.evict
        self.hosting = Hosting(
            self.lifetime,
            self.settings,
            self.lease,
            journal=self.journal,
            tree=self.tree,
            in_flight=self.in_flight,
            recovery=self.recovery,
            timers=self.timers,
            answers=self.answers,
        )

    def _cell_parts(self, system: ActorSystem) -> CellParts:
        services = Services(
            system=system,
            lifetime=self.lifetime,
            journal=self.journal,
            states=self.states,
            stored_ids=StoredIds(),
            messenger=self.dispatcher,
            reminders=self.timers,
            ties=self.links,
            open_work=self.recovery,
        )
        return CellParts(
            lifetime=self.lifetime,
            loop=self.lifetime.loop,
            hooks=self.hooks,
            services=services,
            outcomes=self.dispatcher,
            supervising=self.escalation,
            idling=self.idle_actors,
            children=self.tree.children,
            provide=self._provide,
        )

    # ------------------------------------------------------------ what lower parts need of higher ones

    def _make_cell(self, address: str, props: Props) -> Cell:
        return Cell(self._parts, address, props)

    def _run_command(self, cell: Cell, delivery: DeliveryState) -> None:
        self.commands.give(cell, delivery)

    def _recover_later(self, thread_id: str) -> None:
        self.recovery.recover_later(thread_id)

    def _provide(self, actor: Actor) -> None:
        if isinstance(actor, Supervisor):
            actor.provide(self._supervisor_parts)

    # ------------------------------------------------------------ beginning and end

    def open(self) -> None:
        """Open the system, and watch the event loop, unless its time is virtual."""
        self.lifetime.open()
        limit = self.settings.block_limit
        if limit is not None and not getattr(self.lifetime.loop, "is_virtual", False):
            self._watchdog = Watchdog(self.lifetime.loop, limit, self.escalation.blocked)

    def close_without_loop(self) -> None:
        """Close what needs no event loop: it may be gone."""
        self.lifetime.forget()
        if self._watchdog is not None:
            self._watchdog.close()

    async def close(self) -> None:
        """Close the parts, even if the actors could not be stopped. The journal is last: the others still write."""
        self.close_without_loop()
        self.idle_actors.close()
        await self.lifetime.close()
        await self.journal.close()
        await self.lease.end()  # after the last row: another host takes the threads at once
