"""Care: how a failure gets to a supervisor and a decision back, and what happens when nobody decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.errors import ActorFailedError, DeliveryError, EscalatedError, LedgerError
from antiphon.protocol import ErrorNotification, Notice
from antiphon.runtime._address import system_thread
from antiphon.runtime._codes import BLOCKED
from antiphon.runtime._envelope import Envelope
from antiphon.runtime._failure import Failure
from antiphon.runtime._lifecycle import halt, restart, stop
from antiphon.runtime._logs import LOG, about, words
from antiphon.runtime._results import reply_of

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._kernel import Kernel

__all__ = ["Care"]

_NOBODY = "%s: nobody decides what becomes of it: %s"

_LONG = 24 * 3600.0
"""How long a decision may take, waiting before a restart included."""


class Care:
    """What brings failures to supervisors."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def report(self, cell: Cell, failure: Failure) -> None:
        """Tell everybody concerned that an actor has failed. Its cell is suspended until its supervisor has decided."""
        fields = about(cell.address, error=failure.error_type)
        message = "no message"
        if failure.message_id is not None:
            message, fields["antiphon.message.id"] = f"message {failure.message_id}", failure.message_id
        LOG.error("%s failed on %s: %s at %s", cell.address, message, failure.error_type, failure.where, extra=fields)
        self._kernel.bonds.down(cell.address, failure)
        self._kernel.start(self._see_to(cell, failure))

    async def _see_to(self, cell: Cell, failure: Failure) -> None:
        supervisor = cell.props.supervisor
        if not supervisor:
            self._kernel.collapse(EscalatedError(f"{failure.error_type}: {failure.error_message}", cell.address))
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
            LOG.error(_NOBODY, cell.address, words(exc), extra=about(cell.address, error=exc))
            await stop(cell, f"nobody decides what becomes of it: {exc.reason}")

    async def notify(self, supervisor: str, notification: ErrorNotification, sender: str) -> None:
        """Ask a supervisor for its decision, in the system thread of the actor that has failed.

        Raises:
            DeliveryError: there is none.
        """
        thread_id: str | None = system_thread(notification.actor_id)
        for thread in (thread_id, None):
            envelope = Envelope(notification, sender, supervisor)
            envelope.thread_id = thread
            try:
                reply_of(notification, await self._kernel.post.ask(envelope, _LONG), supervisor)
                return
            except LedgerError as exc:
                LOG.error("%s: its failure cannot be journaled: %s", sender, words(exc), extra=about(sender, error=exc))

    def blocked(self, address: str, seconds: float, where: str) -> None:
        """Tell the supervisor of an actor that it has blocked the event loop. What it was doing is not done again."""
        cell = self._kernel.tree.cells.get(address)
        if cell is None or not cell.props.supervisor or self._kernel.is_closing:
            return
        notification = ErrorNotification(
            actor_id=address,
            error_message=f"it blocks the event loop for more than {seconds:.1f} s",
            error_code=BLOCKED,
            details={"where": where, "incarnation": cell.incarnation},
        )
        self._kernel.start(self._ask_about(cell, notification))

    async def _ask_about(self, cell: Cell, notification: ErrorNotification) -> None:
        try:
            await self.notify(cell.props.supervisor, notification, cell.address)
        except DeliveryError as exc:
            LOG.warning(_NOBODY, cell.address, words(exc), extra=about(cell.address, error=exc))

    async def leave(self, cell: Cell, reason: str) -> None:
        """End an actor that wants to, or begin it anew if it must always be there."""
        if cell.props.restart == "permanent":
            await restart(cell, reason)
        else:
            await stop(cell, reason)
        self._kernel.bonds.down(cell.address, None)

    async def inform(self, watcher: str, notice: Notice, whom: str) -> None:
        """Tell an actor something that it wanted to know; if it is not there any more, nothing is lost."""
        try:
            await self._kernel.post.tell(Envelope(notice, whom, watcher), None)
        except DeliveryError as exc:
            LOG.info("%s cannot be told about %s: %s", watcher, whom, exc.code, extra=about(watcher, error=exc))

    async def break_down(self, address: str, reason: str) -> None:
        """Have an actor fail for a reason outside of it."""
        cell = self._kernel.tree.cells.get(address)
        if cell is None or cell.state != "active":
            return
        cell.state, cell.has_failed = "suspended", True
        for envelope in await halt(cell, 0.0):
            envelope.is_interrupted = False
            error = ActorFailedError(reason, address)
            await self._kernel.post.failed(envelope, reason, error)
            cell.box.done(envelope)
        self.report(cell, Failure(address, cell.incarnation, "Linked", reason, ""))
