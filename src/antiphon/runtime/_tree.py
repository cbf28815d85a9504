"""Tree: the cells of a system, their supervisors, and how a message makes a missing actor.

`Lifecycle` stops and restarts actors: halt, restart, stop, rest. Each is idempotent, and a cell undergoes only one at a time
(`Tree.changing`). To halt a cell is to let running handlers finish within the grace of the actor, and then to cancel them. An
interrupted message is not lost: in a thread it is redelivered to the next actor, outside of one it is answered with an error.

`IdleActors` passivates idle actors; the next message makes a new one. Only actors of a registered kind are passivated: the
tree knows how to make them. An actor's own state is lost then, as after a restart. An actor that calls `context.rest()` is
passivated as soon as it is idle; others after `Settings.idle_after`, with one timer for all. An idle cell is removed in one
step of the event loop, so a message either finds the cell or makes the next one. A sender that has found the cell and must
await before the message is in the mailbox holds it (`Cell.held`), and the cell stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from antiphon.errors import (
    ActorFailedError,
    ActorStoppedError,
    UndeliverableError,
)
from antiphon.messages._keys import kind_of
from antiphon.protocol import Notice
from antiphon.runtime._actor import Actor
from antiphon.runtime._delivery import DeliveryState
from antiphon.runtime._reporting import LOG, log_fields, log_text, traceback_of
from antiphon.runtime._settings import SYSTEM, Address
from antiphon.runtime._states import Phase
from antiphon.runtime._work import Halt

if TYPE_CHECKING:
    from antiphon.runtime._actor import Lifetime, Props
    from antiphon.runtime._cell import Cell, Redelivering
    from antiphon.runtime._outcomes import Outcomes
    from antiphon.runtime._reporting import Hooks

_AT_ONCE: Final = 1000
"""How many idle actors are passivated in one step of the event loop."""

_LEAST: Final = 0.01
"""The least number of seconds between two checks: an actor that cannot be passivated yet is checked again, and other tasks
must run meanwhile."""

_NOTICE: Final = 1.0
"""The least number of seconds that a handler has to react to its cancellation."""


class Tree:
    """The cells, in the order in which they were spawned."""

    def __init__(self) -> None:
        self.make: Callable[[str, Props], Cell]
        """Makes a cell; set when the system is put together."""
        self.cells: dict[str, Cell] = {}
        self._kinds: dict[str, Props] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def spawn(self, address: str, props: Props) -> Cell:
        """Make the cell of an actor at an address."""
        before = self.cells.get(address)
        if before is not None and before.state != "stopped":
            raise ValueError(f"{address!r} is taken; stop that actor first, or choose another key")
        parent = props.supervisor
        supervisor = self.cells.get(parent)
        if parent and supervisor is None:
            raise ValueError(f"{address!r}: there is no supervisor {parent!r}; spawn that first")
        cell = self.cells[address] = self.make(address, props)
        if supervisor is not None:
            self._children.setdefault(parent, {})[address] = None
            if supervisor.actor is None:
                supervisor.start_early()
        return cell

    def register(self, kind: str, props: Props) -> None:
        """Set how actors of a kind are made for their first message."""
        self._kinds[kind] = replace(props, may_rest=True)

    def at(self, address: str) -> Cell:
        """Return the cell at an address; make it, if its kind is registered.

        Raises:
            UndeliverableError: there is no actor.
        """
        cell = self.cells.get(address)
        if cell is not None:
            return cell
        props = self._kinds.get(kind_of(address))
        if props is None:
            raise UndeliverableError("there is no actor; spawn it, or register its kind", address)
        cell = self.spawn(Address.parse(address), props)
        cell.parts.idling.idle(cell)  # if no message follows, it is passivated
        return cell

    def has(self, address: str) -> bool:
        """Whether there is an actor at an address, or one would be made for a message."""
        return address in self.cells or kind_of(address) in self._kinds

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of all actors except those of the runtime itself."""
        kinds = dict.fromkeys((*self._kinds, *(kind_of(address) for address in self.cells)))
        return tuple(kind for kind in kinds if kind != SYSTEM)

    def children(self, supervisor: str) -> tuple[str, ...]:
        """Return the children of a supervisor, in the order in which they were spawned."""
        return tuple(self._children.get(supervisor, ()))

    def adopt(self, address: str, supervisor: str) -> None:
        """Put an actor under another supervisor."""
        cell = self.at(address)
        self._children.get(cell.props.supervisor, {}).pop(address, None)
        self._children.setdefault(supervisor, {})[address] = None
        cell.props = replace(cell.props, supervisor=supervisor, may_rest=False)  # its kind has another supervisor

    @asynccontextmanager
    async def changing(self, address: str) -> AsyncGenerator[None, None]:
        """Hold the lock of an address: only one task at a time restarts or stops an actor."""
        lock, users = self._locks.get(address, (asyncio.Lock(), 0))
        self._locks[address] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[address]
            if users == 1:
                del self._locks[address]
            else:
                self._locks[address] = lock, users - 1

    def is_changing(self, address: str) -> bool:
        """Whether an actor is being restarted or stopped."""
        return address in self._locks

    def remove(self, cell: Cell) -> None:
        """Remove the cell of a passivated actor: the next message makes a new one."""
        self.forget(cell.address)
        del self.cells[cell.address]

    def forget(self, address: str) -> None:
        """Remove a stopped actor from the children of its supervisor."""
        self._children.get(self.cells[address].props.supervisor, {}).pop(address, None)


class Lifecycle:
    """Stops, restarts and passivates actors."""

    def __init__(
        self, lifetime: Lifetime, tree: Tree, outcomes: Outcomes, redelivery: Redelivering, hooks: Hooks | None
    ) -> None:
        self._lifetime = lifetime
        self._tree = tree
        self._outcomes = outcomes
        self._redelivery = redelivery
        self._hooks = hooks

    async def halt(self, cell: Cell, grace: float) -> list[DeliveryState]:
        """Suspend a cell, wait for its handlers, cancel those that take too long, and return the messages of those."""
        cell.suspend()
        if not cell.drains:
            return []
        drains = dict(cell.drains)
        _, late = await asyncio.wait(drains, timeout=self._lifetime.remaining_grace(grace))
        now = dict(cell.drains or drains)  # read again after the wait: a drain may have continued with another message
        handled = {
            task: delivery for task in late if (delivery := now.get(task)) is not None and delivery.work.task is not None
        }
        for task, delivery in handled.items():
            delivery.work.halt = delivery.work.halt or Halt.INTERRUPTED
            task.cancel()
        _, stubborn = await asyncio.wait(handled, timeout=max(grace, _NOTICE)) if handled else ((), ())
        for task in [task for task in handled if task in stubborn]:
            LOG.error("%s: its handler ignores that it is cancelled", cell.address, extra=log_fields(handled[task]))
            error = ActorFailedError("its handler ignores that it is cancelled", cell.address)
            await self._outcomes.end_with_error(
                handled[task], error
            )  # settled here: an outcome that the handler returns later is ignored
            cell.box.done(handled.pop(task))
        if writing := [task for task in late if not task.done() and task not in stubborn]:
            # Their handlers have ended, and their outcomes are being written, which must not be interrupted.
            await asyncio.wait(writing)
        return list(handled.values())

    async def restart(self, cell: Cell, reason: str) -> None:
        """Drop the actor; a new one handles the next message. An actor that was stopped gets a new cell.

        Raises:
            ActorStoppedError: it has stopped, and so has its supervisor, or the system closes.
        """
        async with self._tree.changing(cell.address):
            cell = self._current(cell)
            if cell.state == "stopped":
                self._begin_anew(cell)
                return
            # The handlers end first, then the actor: `stopped` must not run concurrently with a handler.
            interrupted = [] if cell.has_failed else await self.halt(cell, cell.props.grace)
            await self._end(cell, reason)
            cell.incarnation += 1
            cell.drains = cell.starting = None
            cell.began = self._lifetime.loop.time()
            for delivery in interrupted:
                await self._interrupted(cell, delivery, reason)
            for child in self._tree.children(cell.address):
                await self.restart(self._tree.at(child), reason)
            if self._hooks is not None:
                self._hooks.restarted(cell.address, cell.incarnation)
            # Last: by now, the interrupted messages are in the mailbox before newer ones, and the children are new.
            cell.resume()

    def _begin_anew(self, stopped: Cell) -> None:
        """Make a new cell for an actor that was stopped: its mailbox is closed, and its messages were answered."""
        supervisor = self._tree.cells.get(stopped.props.supervisor)
        if self._lifetime.is_closing or (supervisor is not None and supervisor.state == "stopped"):
            raise ActorStoppedError("it has stopped, and so has its supervisor: restart that first", stopped.address)
        cell = self._tree.spawn(Address.parse(stopped.address), stopped.props)
        cell.incarnation = stopped.incarnation + 1
        if self._hooks is not None:
            self._hooks.restarted(cell.address, cell.incarnation)
        cell.parts.idling.idle(cell)

    async def stop(self, cell: Cell, reason: str, *, is_shutdown: bool = False) -> None:
        """Stop an actor for good. Waiting messages are answered with an error; at a shutdown, those of threads stay open."""
        async with self._tree.changing(cell.address):
            cell = self._current(cell)
            if cell.state == "stopped":
                return
            # Children first, the youngest first: a child may ask older siblings or its supervisor while its last handlers end.
            for child in reversed(self._tree.children(cell.address)):
                below = self._tree.at(child)
                if below.is_untouched:
                    below.state = "stopped"
                else:
                    await self.stop(below, reason, is_shutdown=is_shutdown)
            interrupted = await self.halt(cell, cell.props.grace)
            # Before the mailbox is closed: a sender that the close wakes must see the state, and must not add a message.
            cell.state = "stopped"
            self._tree.forget(cell.address)
            await self._end(cell, reason)
            for delivery in interrupted + ([] if cell.mailbox is None else cell.mailbox.close()):
                await self._reject(delivery, reason, is_shutdown=is_shutdown)

    async def rest(self, cell: Cell) -> None:
        """Passivate an idle actor that overrides `stopped`. A message that arrives meanwhile gets a new actor in this cell."""
        async with self._tree.changing(cell.address):
            if cell.state == "active" and cell.is_idle:
                cell.suspend()
                await self._end(cell, "it rests")
                self._passivate_or_resume(cell)

    def _passivate_or_resume(self, cell: Cell) -> None:
        if cell.is_idle:
            self.passivate(cell)
        else:
            cell.incarnation += 1
            cell.resume()

    def passivate(self, cell: Cell) -> None:
        """Remove an idle cell, in one step: the next message for its address makes a new one."""
        cell.state, cell.actor = "resting", None
        self._tree.remove(cell)

    def _current(self, cell: Cell) -> Cell:
        """Return a cell, or, if it was passivated, the current cell at its address."""
        return self._tree.at(cell.address) if cell.state == "resting" else cell

    async def reject_waiting(self, cell: Cell, reason: str) -> None:
        """Answer all waiting messages with an error."""
        for delivery in [] if cell.mailbox is None else cell.mailbox.close():
            await self._reject(delivery, reason, is_shutdown=False)

    async def _end(self, cell: Cell, reason: str) -> None:
        actor, cell.actor = cell.actor, None
        if actor is None or cell.has_failed:
            return
        try:
            await actor.stopped(reason)
        except Exception as exc:  # noqa: BLE001 (an actor that cannot end in good order ends all the same)
            fields = log_fields(cell.address, error=exc)
            LOG.error("%s: stopped() raised %s\n%s", cell.address, log_text(exc), traceback_of(exc), extra=fields)

    async def _interrupted(self, cell: Cell, delivery: DeliveryState, reason: str) -> None:
        if delivery.phase is not Phase.RUNNING:
            pass  # it has ended at the same moment, or its handler has failed and it is delivered again already
        elif delivery.thread_id is None:
            await self._outcomes.end_with_error(
                delivery, ActorFailedError(f"it was restarted meanwhile: {reason}", cell.address)
            )
        else:
            await self._redelivery.redeliver(cell, delivery, f"interrupted by a restart: {reason}")
        cell.box.done(delivery)

    async def _reject(self, delivery: DeliveryState, reason: str, *, is_shutdown: bool) -> None:
        error = ActorStoppedError(f"it has stopped: {reason}", delivery.to)
        if is_shutdown and delivery.thread_id is not None:
            await self._outcomes.leave_to_next_system(delivery, error)
        else:
            await self._outcomes.end_with_error(delivery, error)


class IdleActors:
    """The idle actors that may be passivated, ordered by idle time, the longest first."""

    def __init__(self, lifetime: Lifetime, tree: Tree, lifecycle: Lifecycle, after: float | None) -> None:
        self._lifetime = lifetime
        self._tree = tree
        self._lifecycle = lifecycle
        self._after = None if after is None else max(after, _LEAST)
        self._since: dict[str, float] = {}
        """By address, when it became idle; insertion order is age."""
        self._timer: asyncio.TimerHandle | None = None

    def idle(self, cell: Cell, *, was_used: bool = True) -> None:
        """Register an idle actor; `was_used`: it has handled a message other than a heartbeat."""
        if cell.wants_rest and self._put_to_rest(cell):
            return
        if self._after is not None and (was_used or cell.address not in self._since):
            self._since.pop(cell.address, None)
            self._since[cell.address] = self._lifetime.loop.time()
            self._arm()

    def close(self) -> None:
        """Passivate no more actors: the system closes."""
        if self._timer is not None:
            self._timer.cancel()
        self._since.clear()

    def _arm(self) -> None:
        if self._timer is None and self._after is not None and self._since and not self._lifetime.is_closing:
            oldest = next(iter(self._since.values()))
            self._timer = self._lifetime.loop.call_at(oldest + self._after, self._look)

    def _look(self) -> None:
        self._timer = None
        now, after = self._lifetime.loop.time(), self._after or 0.0
        for address in [address for address, _ in zip(self._since, range(_AT_ONCE), strict=False)]:
            if self._since[address] + after > now:
                break
            del self._since[address]
            cell = self._tree.cells.get(address)
            if cell is not None and not cell.drains and not self._put_to_rest(cell):
                self.idle(cell)  # checked again later; a busy actor registers itself when it becomes idle
        self._arm()

    def _put_to_rest(self, cell: Cell) -> bool:
        """Passivate an actor if nothing prevents it; return whether that was done."""
        may = cell.props.may_rest and cell.state == "active" and cell.is_idle
        if not may or self._lifetime.is_closing or self._tree.is_changing(cell.address):
            return False
        self._since.pop(cell.address, None)
        if cell.actor is None or type(cell.actor).stopped is Actor.stopped:
            self._lifecycle.passivate(cell)
        else:
            self._lifetime.start(self._lifecycle.rest(cell))
        return True


# ---------------------------------------------------------------- links and monitors


class Down(Notice, frozen=True, type="DOWN", family="system"):
    """A monitored actor has ended; its supervisor may have restarted it."""

    actor_id: str
    reason: Literal["failed", "stopped"]
    error_message: str | None = None
