"""Supervisor: the actor that decides what happens to failed actors, by the rules in `_supervision.py`.

It carries out a decision by messages: RESTART and STOP, which the journal keeps like all others. If the ledger is
unavailable, it does the same without a message, since an actor must not stay down because nothing can be written.

A child that waits for an answer or an effect has not missed a heartbeat: each of these has its own time limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from antiphon.errors import DeliveryError, LedgerUnavailableError
from antiphon.protocol import ErrorAcknowledged, ErrorNotification, Heartbeat, Restart, Stop, Supervise, SupervisionStarted
from antiphon.runtime._actor import Actor, handles
from antiphon.runtime._context import Context
from antiphon.runtime._failures import BLOCKED, LOG, log_fields, log_text
from antiphon.runtime._supervision import Decision, Supervision, concerned, decide

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._escalation import Escalation
    from antiphon.runtime._run import Lifetime
    from antiphon.runtime._tree import Lifecycle, Tree

_TAKEN: dict[str, Literal["restart", "stop", "escalate", "ignore"]] = {
    "restart": "restart",
    "replace": "restart",
    "stop": "stop",
    "escalate": "escalate",
    "ignore": "ignore",
}


_MOST = 1000
"""Children with a restart history, before old histories are dropped."""


class _Escalation(Exception):  # noqa: N818 (the failure of a supervisor is that it gives up)
    """A supervisor gives up, and its own supervisor decides."""


@dataclass(frozen=True, slots=True)
class SupervisorParts:
    """The parts of a system that its supervisors use."""

    lifetime: Lifetime
    tree: Tree
    lifecycle: Lifecycle
    escalation: Escalation
    random: Callable[[], float]


class Supervisor(Actor):
    """Supervises the actors that were spawned with its address."""

    concurrency = 1000  # a restart may wait for its backoff; other children that fail meanwhile must not

    def __init__(self, supervision: Supervision = Supervision()) -> None:  # noqa: B008 (frozen)
        self.supervision = supervision
        self._histories: dict[str, tuple[float, ...]] = {}
        self._missed: Counter[str] = Counter()
        """By child, the number of heartbeats missed in a row."""
        self._reported: set[str] = set()
        """The children that were reported because they missed too many."""

    def provide(self, parts: SupervisorParts) -> None:
        """Set the parts that it uses. The cell does it before `started`."""
        self._parts = parts

    def _now(self) -> float:
        return self._parts.lifetime.loop.time()

    async def started(self, context: Context) -> None:
        if self.supervision.heartbeat is not None:
            self._parts.lifetime.start(self._beat(context, self.supervision.heartbeat))

    # ------------------------------------------------------------ deciding

    @handles
    async def child_failed(self, notification: ErrorNotification, context: Context) -> ErrorAcknowledged | None:
        """Decide about a failed actor, carry it out, and only then acknowledge."""
        tree, address = self._parts.tree, notification.actor_id
        cell = tree.at(address) if tree.has(address) else None
        if cell is None or _is_past(cell, notification) or cell.state == "stopped":
            return ErrorAcknowledged(actor_id=address, action_taken="ignore", error_logged=True)
        decision = self._decide(cell, blocked=notification.error_code == BLOCKED)
        acknowledged = ErrorAcknowledged(actor_id=address, action_taken=_TAKEN[decision.action], error_logged=True)
        if decision.action == "escalate":
            # Answer first: raising fails this supervisor, and the reporter would get that instead of the decision.
            await context.reply(acknowledged)
            raise _Escalation(f"{address} fails too often: {notification.error_message}")
        await self._carry_out(decision, address, notification.error_message, context)
        return acknowledged

    def _decide(self, cell: Cell, *, blocked: bool) -> Decision:
        key = cell.address if self.supervision.strategy == "one_for_one" else ""
        decision = decide(
            self.supervision,
            cell.props.restart,
            self._histories.get(key, ()),
            now=self._now(),
            chance=self._parts.random(),
            blocked=blocked,
        )
        self._histories[key] = decision.history
        if len(self._histories) > _MOST:
            self._forget_old(self._now() - self.supervision.period)
        return decision

    def _forget_old(self, since: float) -> None:
        """Drop histories that no longer count: children come and go."""
        self._histories = {key: history for key, history in self._histories.items() if history and history[-1] >= since}

    async def _carry_out(self, decision: Decision, address: str, reason: str, context: Context) -> None:
        tree, lifecycle = self._parts.tree, self._parts.lifecycle
        match decision.action:
            case "ignore":
                tree.at(address).resume()
            case "stop":
                try:
                    await context.ask(address, Stop(actor_id=address, reason=reason))
                except LedgerUnavailableError:
                    await lifecycle.stop(tree.at(address), reason)
            case _:
                await asyncio.sleep(decision.delay)
                if decision.action == "replace":
                    await lifecycle.reject_waiting(tree.at(address), reason)
                children = tree.children(context.address)
                await self._restart(concerned(self.supervision.strategy, children, address), reason, context)

    async def _restart(self, addresses: Sequence[str], reason: str, context: Context) -> None:
        """Restart actors in their order. All are suspended first: none goes on while another is still the old one."""
        cells = [self._parts.tree.at(address) for address in addresses]
        for cell in cells:
            cell.suspend()
        try:
            for cell in cells:
                try:
                    await context.ask(cell.address, Restart(actor_id=cell.address, reason=reason))
                except LedgerUnavailableError:
                    await self._parts.lifecycle.restart(cell, reason)  # restart without a row: the actor must not stay down
        finally:
            for cell in cells:  # a RESTART that was answered from the ledger restarts nothing, and must not leave it suspended
                if not cell.has_failed:
                    cell.resume()

    # ------------------------------------------------------------ watching

    @handles
    async def watch(self, request: Supervise, context: Context) -> SupervisionStarted:
        """Supervise an actor from now on."""
        self._parts.tree.adopt(request.actor_id, context.address)
        return SupervisionStarted(actor_id=request.actor_id)

    async def _beat(self, context: Context, interval: float) -> None:
        """Check the heartbeats of the children at an interval, until this supervisor is restarted."""
        loop = self._parts.lifetime.loop
        due = loop.time() + interval
        while True:
            await asyncio.sleep(due - loop.time())
            if not context.is_current(self):
                return
            is_late = loop.time() - due > interval / 2
            due = loop.time() + interval
            if not is_late:  # else the event loop was blocked, and no child could answer
                await self._check_heartbeats(context, interval)

    async def _check_heartbeats(self, context: Context, interval: float) -> None:
        """Check all children once. A function of its own, so that its locals keep no cell alive until the next time."""
        children = self._parts.tree.children(context.address)
        self._missed = Counter({child: self._missed[child] for child in children if child in self._missed})
        await asyncio.gather(*(self._check_heartbeat(child, context, interval) for child in children))

    async def _check_heartbeat(self, child: str, context: Context, interval: float) -> None:
        """Ask a child for a heartbeat, unless it is known to be alive; report it if it has missed too many."""
        cell = self._parts.tree.cells.get(child)
        if cell is None or cell.state != "active" or child in self._reported or _is_known_alive(cell):
            del self._missed[child]
            return
        asked_at = self._now()
        try:
            await context.system.ask(child, Heartbeat(), within=interval, sender=context.address)
        except DeliveryError as exc:
            was_blocked = self._now() - asked_at > interval * 3 / 2
            if cell.is_waiting or cell.last_handled_at > asked_at or was_blocked:
                del self._missed[child]  # it has made progress, or the event loop was blocked
                return
            self._missed[child] += 1
            if self._missed[child] >= self.supervision.misses:
                self._reported.add(child)
                self._parts.lifetime.start(
                    self._report_missed(child, exc, context)
                )  # in a task: other children must not wait for it
        else:
            del self._missed[child]

    async def _report_missed(self, child: str, error: DeliveryError, context: Context) -> None:
        """Report an actor that does not answer as failed."""
        notification = ErrorNotification(
            actor_id=child, error_message="it misses heartbeats", error_code=error.code, details=str(error)
        )
        try:
            await self._parts.escalation.notify(context.address, notification, child)
        except DeliveryError as exc:
            LOG.warning(
                "%s misses heartbeats, and nobody decides: %s", child, log_text(exc), extra=log_fields(child, error=exc)
            )
        finally:
            self._reported.discard(child)
            del self._missed[child]


def _is_known_alive(cell: Cell) -> bool:
    """Whether an actor need not be asked: it is idle or waits, and does not override `heartbeat`.

    A handler that waits for an answer or an effect does not hang, however long it takes. A model that does not answer runs
    into its own time limit, and a restart of the actor would only ask it again.
    """
    if cell.actor is None:
        return not cell.drains  # not made yet; or `started` hangs
    return type(cell.actor).heartbeat is Actor.heartbeat and (cell.is_waiting or cell.is_idle)


def _is_past(cell: Cell, notification: ErrorNotification) -> bool:
    """Whether the failed actor has been restarted since."""
    match notification.details:
        case {"incarnation": int(incarnation)}:
            return incarnation != cell.incarnation
        case _:
            return False
