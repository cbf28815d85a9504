"""Escalation: how a failure gets to a supervisor, and what happens if no supervisor decides.

- `Escalation` reports failures. It also does what no supervisor decides: an actor stops itself, or fails with a linked one.
- `Links` knows which actors monitor an actor, and which are linked to it.
- `Commands` carries out RESTART and STOP. The cell does that and not the actor, so they work however busy the actor is.

A failure suspends the cell before it is reported, and only a decision resumes it. If there is no decision, because the
supervisor is gone or fails, the actor is stopped: it must not stay suspended, with callers that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from antiphon.errors import ActorFailedError, DeliveryError, EscalatedError, LedgerError, RefusedError
from antiphon.messages import current_port
from antiphon.protocol import ErrorCode, ErrorNotification, Notice, Restart, RestartComplete, Stop, StopComplete
from antiphon.runtime._address import system_thread
from antiphon.runtime._envelope import DeliveryState, Envelope
from antiphon.runtime._failures import BLOCKED, LOG, Failure, log_fields, log_text
from antiphon.runtime._results import reply_of

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._dispatch import Dispatcher
    from antiphon.runtime._hooks import Hooks
    from antiphon.runtime._run import Lifetime
    from antiphon.runtime._tree import Lifecycle, Tree


class Down(Notice, frozen=True, type="DOWN", family="system"):
    """A monitored actor has ended; its supervisor may have restarted it."""

    actor_id: str
    reason: Literal["failed", "stopped"]
    error_message: str | None = None


class Links:
    """Monitors and links. A monitor gets a notice; a link goes both ways, and passes failures on."""

    def __init__(self) -> None:
        self._monitors: dict[str, dict[str, None]] = {}
        self._links: dict[str, dict[str, None]] = {}

    def monitor(self, watcher: str, watched: str) -> None:
        """Tell `watcher` when `watched` ends."""
        self._monitors.setdefault(watched, {})[watcher] = None

    def unmonitor(self, watcher: str, watched: str) -> None:
        """Remove a monitor."""
        self._monitors.get(watched, {}).pop(watcher, None)

    def link(self, one: str, other: str) -> None:
        """Make each of two actors fail when the other does."""
        self._links.setdefault(one, {})[other] = None
        self._links.setdefault(other, {})[one] = None

    def watchers(self, address: str) -> tuple[str, ...]:
        """Return the monitors of an actor that has ended, and forget them: each is told once."""
        return tuple(self._monitors.pop(address, ()))

    def linked(self, address: str) -> tuple[str, ...]:
        """Return the actors linked to one that has ended, and forget the links."""
        others = tuple(self._links.pop(address, ()))
        for other in others:
            self._links.get(other, {}).pop(address, None)
        return others


_NOBODY = "%s: nobody decides what becomes of it: %s"

_LONGEST_DECISION = 24 * 3600.0
"""Seconds that a decision may take, including the backoff before a restart."""


class Escalation:
    """Reports failures to supervisors."""

    def __init__(self, lifetime: Lifetime, tree: Tree, lifecycle: Lifecycle, dispatcher: Dispatcher, links: Links) -> None:
        self._lifetime = lifetime
        self._tree = tree
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._links = links

    def report(self, cell: Cell, failure: Failure) -> None:
        """Report the failure of an actor to its supervisor, monitors and links. Its cell is suspended until the decision."""
        fields = log_fields(cell.address, error=failure.error_type)
        message = "no message"
        if failure.message_id is not None:
            message, fields["antiphon.message.id"] = f"message {failure.message_id}", failure.message_id
        LOG.error("%s failed on %s: %s at %s", cell.address, message, failure.error_type, failure.where, extra=fields)
        self.down(cell.address, failure)
        self._lifetime.start(self._ask_supervisor(cell, failure))

    async def _ask_supervisor(self, cell: Cell, failure: Failure) -> None:
        supervisor = cell.props.supervisor
        if not supervisor:
            self._lifetime.fail_system(EscalatedError(f"{failure.error_type}: {failure.error_message}", cell.address))
            return
        notification = ErrorNotification(
            actor_id=cell.address,
            error_message=f"{failure.error_type}: {failure.error_message}",
            error_code=ActorFailedError.code,
            details={"where": failure.where, "incarnation": failure.incarnation},
            **({} if failure.message_id is None else {"failed_message_id": failure.message_id}),
        )
        try:
            await self.notify(supervisor, notification, cell.address)
        except DeliveryError as exc:
            LOG.error(_NOBODY, cell.address, log_text(exc), extra=log_fields(cell.address, error=exc))
            await self._lifecycle.stop(cell, f"nobody decides what becomes of it: {exc.reason}")

    async def notify(self, supervisor: str, notification: ErrorNotification, sender: str) -> None:
        """Ask a supervisor for a decision, in the system thread of the failed actor.

        If the ledger is unavailable, it is asked outside of a thread: an actor must not stay down for that.

        Raises:
            DeliveryError: there is no decision.
        """
        thread_id: str | None = system_thread(notification.actor_id)
        for thread in (thread_id, None):
            delivery = DeliveryState(Envelope(notification, None, sender, supervisor, None, thread))
            try:
                reply_of(notification, await self._dispatcher.ask(delivery, _LONGEST_DECISION), supervisor)
                return
            except LedgerError as exc:
                LOG.error(
                    "%s: its failure cannot be journaled: %s", sender, log_text(exc), extra=log_fields(sender, error=exc)
                )

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
            LOG.warning(_NOBODY, cell.address, log_text(exc), extra=log_fields(cell.address, error=exc))

    async def actor_stops(self, cell: Cell, reason: str) -> None:
        """Stop an actor that asked for it, or restart it if it is `permanent`."""
        if cell.props.restart == "permanent":
            await self._lifecycle.restart(cell, reason)
        else:
            await self._lifecycle.stop(cell, reason)
        self.down(cell.address, None)

    def down(self, address: str, failure: Failure | None) -> None:
        """Tell the monitors of an actor that it has ended; if it failed, make the linked actors fail."""
        text = None if failure is None else f"{failure.error_type}: {failure.error_message}"
        notice = Down(actor_id=address, reason="stopped" if failure is None else "failed", error_message=text)
        for watcher in self._links.watchers(address):
            self._lifetime.start(self._dispatcher.inform(watcher, notice, address))
        for other in self._links.linked(address):
            if failure is not None:
                self._lifetime.start(self.break_down(other, f"it is linked to {address}, which failed: {text}"))

    async def break_down(self, address: str, reason: str) -> None:
        """Make an actor fail for a reason outside of it."""
        cell = self._tree.cells.get(address)
        if cell is None or cell.state != "active":
            return
        cell.state, cell.has_failed = "suspended", True
        for delivery in await self._lifecycle.halt(cell, 0.0):
            delivery.is_interrupted = False
            error = ActorFailedError(reason, address)
            await self._dispatcher.failed(cell, delivery, reason, error)
            cell.box.done(delivery)
        self.report(cell, Failure(address, cell.incarnation, "Linked", reason, ""))


_COMMANDS: dict[str, type[Restart] | type[Stop]] = {Restart.message_type: Restart, Stop.message_type: Stop}


class Commands:
    """Carries out RESTART and STOP. `Lifecycle` does them one at a time for each cell."""

    def __init__(
        self,
        lifetime: Lifetime,
        tree: Tree,
        lifecycle: Lifecycle,
        *,
        dispatcher: Dispatcher,
        escalation: Escalation,
        hooks: Hooks | None,
    ) -> None:
        self._lifetime = lifetime
        self._tree = tree
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._escalation = escalation
        self._hooks = hooks

    def give(self, cell: Cell, delivery: DeliveryState) -> None:
        """Start a command; its answer follows when it is done."""
        self._lifetime.start(self._run_command(cell, delivery))

    async def _run_command(self, cell: Cell, delivery: DeliveryState) -> None:
        try:
            hooks, doing = self._hooks, self._do(cell, delivery)
            outcome = await (doing if hooks is None else hooks.run(cell, delivery, doing))
            await self._dispatcher.answer(delivery, outcome)
        except DeliveryError as exc:
            await self._dispatcher.end_with_error(delivery, exc)
        except LedgerError as exc:
            self._dispatcher.abandon(delivery, exc)

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
        if address not in self._tree.children(cell.address):
            reason = f"it neither is {address!r} nor supervises it"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR, address=cell.address)
        return self._tree.at(address)


def _command_in(delivery: DeliveryState) -> Restart | Stop:
    if isinstance(delivery.envelope.said, Restart | Stop):
        return delivery.envelope.said
    try:
        return _COMMANDS[delivery.type].from_data(delivery.data)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR, address=delivery.to) from exc
