"""Supervision: failures of actors are reported, a supervisor decides, and RESTART or STOP carries the decision out.

1. `Escalation` reports a failure to the supervisor. The cell is suspended before the report, and only a decision resumes it.
   If there is no decision, because the supervisor is gone or fails, the actor is stopped: it must not stay suspended while
   callers wait. `Escalation` also handles the cases without a decision: an actor stops itself, or fails with a linked one.
2. `Supervisor` is the actor that decides. `decide` is the decision as a pure function of the rules (`Supervision` in
   `_settings.py`) and of the restarts so far; its result is a `Directive`.
3. The supervisor carries out the directive with the messages RESTART and STOP, which are journaled like all others. If the
   ledger is unavailable, it acts without a message: an actor must not stay down because the ledger cannot be written.
4. `Commands` carries out RESTART and STOP. They act on the cell and not on the actor, so they work even if the actor is busy.

`Links` has the monitors and the links of all actors.

A child that waits for an answer or an effect does not miss heartbeats: answers and effects have their own time limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from antiphon.errors import (
    ActorFailedError,
    DeliveryError,
    EscalatedError,
    FencedError,
    LedgerError,
    LedgerUnavailableError,
    OwnedError,
    RefusedError,
)
from antiphon.messages import current_port
from antiphon.protocol import (
    ErrorAcknowledged,
    ErrorCode,
    ErrorNotification,
    Heartbeat,
    Restart,
    RestartComplete,
    Stop,
    StopComplete,
    Supervise,
    SupervisionStarted,
)
from antiphon.runtime._actor import Actor, Context, handles
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._exchange import reply_of
from antiphon.runtime._reporting import BLOCKED, LOG, ActorFailure, log_fields, warn
from antiphon.runtime._settings import Action, RestartWhen, Strategy, Supervision, system_thread
from antiphon.runtime._states import Event
from antiphon.runtime._tree import Down

if TYPE_CHECKING:
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._outcomes import Outcomes
    from antiphon.runtime._redelivery import Redelivery
    from antiphon.runtime._reporting import Hooks
    from antiphon.runtime._send import Sender
    from antiphon.runtime._tree import Lifecycle, Tree


@dataclass(frozen=True, slots=True)
class Directive:
    """The decision about a failure."""

    action: Action
    delay: float = 0.0
    """Seconds to wait before the action."""
    history: tuple[float, ...] = ()
    """The times of the restarts that count, this one included."""


def decide(
    supervision: Supervision,
    when: RestartWhen,
    history: Sequence[float],
    *,
    now: float,
    chance: float,
    blocked: bool = False,
) -> Directive:
    """Decide about an actor that has failed, or has blocked the event loop."""
    recent = tuple(time for time in history if now - time <= supervision.period)
    action = supervision.on_block if blocked else supervision.on_failure
    if when == "temporary" and not blocked:
        return Directive("stop", history=recent)
    if action not in ("restart", "replace"):
        return Directive(action, history=recent)
    if len(recent) >= supervision.intensity:
        return Directive(supervision.beyond, history=recent)
    count = len(recent) + 1
    return Directive(action, supervision.backoff.delay(count, chance), (*recent, now))


def concerned(strategy: Strategy, children: Sequence[str], failed: str) -> tuple[str, ...]:
    """Return the children to restart when one has failed, in the order in which they were spawned."""
    if strategy == "one_for_one" or failed not in children:
        return (failed,)
    return tuple(children) if strategy == "one_for_all" else tuple(children[children.index(failed) :])


# ---------------------------------------------------------------- reporting a failure, and commands


_NOBODY = "%s: there is no decision about it: %s"

_LONGEST_DECISION = 24 * 3600.0
"""Seconds that a decision may take, including the backoff before a restart."""


class Links:
    """Monitors and links. A monitor gets a notice; a link goes both ways, and passes failures on."""

    def __init__(self) -> None:
        self._monitors: dict[str, dict[str, None]] = {}
        self._links: dict[str, dict[str, None]] = {}

    def monitor(self, watcher: str, watched: str) -> None:
        """Notify `watcher` when `watched` ends."""
        self._monitors.setdefault(watched, {})[watcher] = None

    def link(self, one: str, other: str) -> None:
        """Make each of two actors fail when the other does."""
        self._links.setdefault(one, {})[other] = None
        self._links.setdefault(other, {})[one] = None

    def watchers(self, address: str) -> tuple[str, ...]:
        """Return the monitors of an actor that has ended, and forget them: each is notified once."""
        return tuple(self._monitors.pop(address, ()))

    def linked(self, address: str) -> tuple[str, ...]:
        """Return the actors linked to one that has ended, and forget the links."""
        others = tuple(self._links.pop(address, ()))
        for other in others:
            self._links.get(other, {}).pop(address, None)
        return others


class Escalation:
    """Reports failures to supervisors."""

    def __init__(
        self, lifetime: Lifetime, tree: Tree, lifecycle: Lifecycle, *, sender: Sender, redelivery: Redelivery, links: Links
    ) -> None:
        self._lifetime = lifetime
        self._tree = tree
        self._lifecycle = lifecycle
        self._sender = sender
        self._redelivery = redelivery
        self._links = links

    def report(self, cell: Cell, failure: ActorFailure) -> None:
        """Report the failure of an actor to its supervisor, monitors and links. Its cell is suspended until the decision."""
        fields = log_fields(cell.address, error=failure.error_type)
        message = "no message"
        if failure.message_id is not None:
            message, fields["antiphon.message.id"] = f"message {failure.message_id}", failure.message_id
        LOG.error("%s failed on %s: %s at %s", cell.address, message, failure.error_type, failure.where, extra=fields)
        self.down(cell.address, failure)
        self._lifetime.start(self._ask_supervisor(cell, failure))

    async def _ask_supervisor(self, cell: Cell, failure: ActorFailure) -> None:
        supervisor = cell.props.supervisor
        if not supervisor:
            self._lifetime.fail_system(EscalatedError(failure.text, cell.address))
            return
        named: dict[str, Any] = {} if failure.message_id is None else {"failed_message_id": failure.message_id}
        notification = ErrorNotification(
            actor_id=cell.address,
            error_message=failure.text,
            error_code=ActorFailedError.code,
            details={"where": failure.where, "incarnation": failure.incarnation},
            **named,
        )
        try:
            await self.notify(supervisor, notification, cell.address)
        except DeliveryError as exc:
            warn(_NOBODY, cell.address, error=exc, about=cell.address, level=logging.ERROR)
            await self._lifecycle.stop(cell, f"there is no decision about it: {exc.reason}")

    async def notify(self, supervisor: str, notification: ErrorNotification, sender: str) -> None:
        """Ask a supervisor for a decision, in the system thread of the failed actor.

        If the ledger is unavailable, or another host takes over that thread, the supervisor is asked outside of a thread: the
        actor must not stay down for that reason, and only its own host can restart it.

        Raises:
            DeliveryError: there is no decision.
        """
        thread_id: str | None = system_thread(notification.actor_id)
        for thread in (thread_id, None):
            envelope = Envelope(notification, None, sender, supervisor, thread_id=thread, is_of_host=True)
            delivery = DeliveryState(envelope, may_be_known=False)
            try:
                reply_of(notification, await self._sender.ask(delivery, _LONGEST_DECISION), supervisor)
                return
            except (OwnedError, FencedError) as exc:
                LOG.info("%s: another host has its system thread", sender, extra=log_fields(sender, error=exc))
            except LedgerError as exc:
                warn("%s: its failure cannot be journaled: %s", sender, error=exc, about=sender, level=logging.ERROR)

    def blocked(self, address: str, seconds: float, where: str) -> None:
        """Report an actor that blocks the event loop. Its message is not handled again."""
        cell = self._tree.cells.get(address)
        if cell is None or not cell.props.supervisor or self._lifetime.is_closing:
            return
        notification = ErrorNotification(
            actor_id=address,
            error_message=f"it blocks the event loop for more than {seconds:.1f} s",
            error_code=BLOCKED,
            details={"where": where, "incarnation": cell.incarnation},
        )
        self._lifetime.start(self._ask_about(cell, notification))

    async def _ask_about(self, cell: Cell, notification: ErrorNotification) -> None:
        try:
            await self.notify(cell.props.supervisor, notification, cell.address)
        except DeliveryError as exc:
            warn(_NOBODY, cell.address, error=exc, about=cell.address)

    async def actor_stops(self, cell: Cell, reason: str) -> None:
        """Stop an actor at its own request, or restart it if it is `permanent`."""
        if cell.props.restart == "permanent":
            await self._lifecycle.restart(cell, reason)
        else:
            await self._lifecycle.stop(cell, reason)
        self.down(cell.address, None)

    def down(self, address: str, failure: ActorFailure | None) -> None:
        """Notify the monitors of an actor that it has ended; if it failed, make the linked actors fail."""
        text = None if failure is None else failure.text
        notice = Down(actor_id=address, reason="stopped" if failure is None else "failed", error_message=text)
        for watcher in self._links.watchers(address):
            self._lifetime.start(self._sender.inform(watcher, notice, address))
        for other in self._links.linked(address):
            if failure is not None:
                self._lifetime.start(self.break_down(other, f"it is linked to {address}, which failed: {text}"))

    async def break_down(self, address: str, reason: str) -> None:
        """Make an actor fail for an external reason."""
        cell = self._tree.cells.get(address)
        if cell is None or cell.state != "active":
            return
        cell.state, cell.has_failed = "suspended", True
        for delivery in await self._lifecycle.halt(cell, 0.0):
            error = ActorFailedError(reason, address)
            await self._redelivery.failed(cell, delivery, reason, error)
            cell.box.done(delivery)
        self.report(cell, ActorFailure(address, cell.incarnation, "Linked", reason, ""))


_COMMANDS: dict[str, type[Restart] | type[Stop]] = {Restart.message_type: Restart, Stop.message_type: Stop}


class Commands:
    """Carries out RESTART and STOP. `Lifecycle` processes them one at a time for each cell."""

    def __init__(
        self,
        lifetime: Lifetime,
        tree: Tree,
        lifecycle: Lifecycle,
        *,
        outcomes: Outcomes,
        escalation: Escalation,
        hooks: Hooks | None,
    ) -> None:
        self._lifetime = lifetime
        self._tree = tree
        self._lifecycle = lifecycle
        self._outcomes = outcomes
        self._escalation = escalation
        self._hooks = hooks

    def give(self, cell: Cell, delivery: DeliveryState) -> None:
        """Start a command; it is answered when it is done."""
        delivery.turn(Event.START)
        self._lifetime.start(self._run_command(cell, delivery))

    async def _run_command(self, cell: Cell, delivery: DeliveryState) -> None:
        try:
            hooks, doing = self._hooks, self._do(cell, delivery)
            outcome = await (doing if hooks is None else hooks.run(cell, delivery, doing))
            await self._outcomes.answer(delivery, outcome)
        except DeliveryError as exc:
            await self._outcomes.end_with_error(delivery, exc)
        except LedgerError as exc:
            self._outcomes.abandon(delivery, exc)

    async def _do(self, cell: Cell, delivery: DeliveryState) -> RestartComplete | StopComplete:
        request = _command_in(delivery)
        target = self._target(cell, request)
        if isinstance(request, Restart):
            await self._lifecycle.restart(target, request.reason)
            return RestartComplete(actor_id=target.address, restarted_at=current_port().now())
        await self._lifecycle.stop(target, request.reason)
        self._escalation.down(target.address, None)
        return StopComplete(actor_id=target.address, stopped_at=current_port().now())

    def _target(self, cell: Cell, request: Restart | Stop) -> Cell:
        """Return the cell that a command is for: the receiver, or one of its children."""
        address = request.actor_id or cell.address
        if address == cell.address:
            return cell
        child = self._tree.cells.get(address)  # one that was stopped is no longer among the children
        if address not in self._tree.children(cell.address) and (child is None or child.props.supervisor != cell.address):
            reason = f"it neither is {address!r} nor supervises it"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR, address=cell.address)
        return self._tree.at(address)


def _command_in(delivery: DeliveryState) -> Restart | Stop:
    if isinstance(delivery.envelope.request, Restart | Stop):
        return delivery.envelope.request
    try:
        return _COMMANDS[delivery.type].from_data(delivery.data)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR, address=delivery.to) from exc


# ---------------------------------------------------------------- the supervisor


_TAKEN: dict[str, Literal["restart", "stop", "escalate", "ignore"]] = {
    "restart": "restart",
    "replace": "restart",
    "stop": "stop",
    "escalate": "escalate",
    "ignore": "ignore",
}


_MOST = 1000
"""The number of restart histories above which old ones are dropped."""


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

    concurrency = 1000  # a restart may wait for its backoff; failures of other children must not wait for it

    def __init__(self, supervision: Supervision = Supervision()) -> None:  # noqa: B008 (frozen)
        self.supervision = supervision
        self._histories: dict[str, tuple[float, ...]] = {}
        self._missed: Counter[str] = Counter()
        """By child, the number of heartbeats missed in a row."""
        self._reported: set[str] = set()
        """The children that were reported because they missed too many."""

    def provide(self, parts: SupervisorParts) -> None:
        """Set the parts that it uses. The cell calls this before `started`."""
        self._parts = parts

    def _now(self) -> float:
        return self._parts.lifetime.loop.time()

    async def started(self, context: Context) -> None:
        if self.supervision.heartbeat is not None:
            self._parts.lifetime.start(self._beat(context, self.supervision.heartbeat))

    # ------------------------------------------------------------ deciding

    @handles
    async def child_failed(self, notification: ErrorNotification, context: Context) -> ErrorAcknowledged | None:
        """Decide about a failed actor, carry out the decision, and only then acknowledge."""
        tree, address = self._parts.tree, notification.actor_id
        cell = tree.at(address) if tree.has(address) else None
        if cell is None or _is_past(cell, notification) or cell.state == "stopped":
            return ErrorAcknowledged(actor_id=address, action_taken="ignore", error_logged=True)
        decision = self._decide(cell, blocked=notification.error_code == BLOCKED)
        acknowledged = ErrorAcknowledged(actor_id=address, action_taken=_TAKEN[decision.action], error_logged=True)
        if decision.action == "escalate":
            # Answer before raising: raising fails this supervisor, and the reporter would get that failure instead of the
            # decision.
            await context.reply(acknowledged)
            raise _Escalation(f"{address} fails too often: {notification.error_message}")
        await self._carry_out(decision, address, notification.error_message, context)
        return acknowledged

    def _decide(self, cell: Cell, *, blocked: bool) -> Directive:
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
        if len(self._histories) > _MOST:  # children come and go: drop what no longer counts
            since = self._now() - self.supervision.period
            self._histories = {key: history for key, history in self._histories.items() if history and history[-1] >= since}
        return decision

    async def _carry_out(self, decision: Directive, address: str, reason: str, context: Context) -> None:
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
                await self.restart(concerned(self.supervision.strategy, children, address), reason, context)

    async def restart(self, addresses: Sequence[str], reason: str, context: Context) -> None:
        """Restart actors in order. All are suspended first: no old actor runs together with a new one."""
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
            # A RESTART that was answered from the ledger restarts nothing, and must not leave the cell suspended.
            for cell in cells:
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
            if not is_late:  # otherwise the event loop was blocked, and no child could answer
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
            warn("%s misses heartbeats, and nobody decides: %s", child, error=exc, about=child)
        finally:
            self._reported.discard(child)
            del self._missed[child]


def _is_known_alive(cell: Cell) -> bool:
    """Whether an actor needs no heartbeat: it is idle or waits, and does not override `heartbeat`.

    A handler that waits for an answer or an effect does not hang, however long that takes. A request to an unresponsive model
    has its own time limit, and after a restart the actor would only send it again.
    """
    if cell.actor is None:
        return not cell.drains  # not made yet, or `started` hangs
    return type(cell.actor).heartbeat is Actor.heartbeat and (cell.is_waiting or cell.is_idle)


def _is_past(cell: Cell, notification: ErrorNotification) -> bool:
    """Whether the failed actor has been restarted since."""
    match notification.details:
        case {"incarnation": int(incarnation)}:
            return incarnation != cell.incarnation
        case _:
            return False
