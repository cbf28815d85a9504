"""Commands: RESTART and STOP, which every actor obeys, however busy it is. They are done by the cell and not by the actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.errors import DeliveryError, LedgerError, RefusedError
from antiphon.messages import current_port
from antiphon.protocol import ErrorCode, Restart, RestartComplete, Stop, StopComplete
from antiphon.runtime._lifecycle import restart, stop

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._kernel import Kernel

__all__ = ["Commands"]

_TYPES: dict[str, type[Restart] | type[Stop]] = {Restart.message_type: Restart, Stop.message_type: Stop}


class Commands:
    """What is done to cells, one thing at a time for each."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def takes(self, envelope: Envelope) -> bool:
        """Whether a message is a command."""
        return envelope.type in _TYPES

    def give(self, cell: Cell, envelope: Envelope) -> None:
        """Have a command done, and answered."""
        self._kernel.start(self._obey(cell, envelope))

    async def _obey(self, cell: Cell, envelope: Envelope) -> None:
        try:
            hooks, doing = self._kernel.hooks, self._do(cell, envelope)
            outcome = await (doing if hooks is None else hooks.run(cell, envelope, doing))
            await self._kernel.post.answer(envelope, outcome)
        except DeliveryError as exc:
            await self._kernel.post.put_away(envelope, exc)
        except LedgerError as exc:
            self._kernel.post.let_go(envelope, exc)

    async def _do(self, cell: Cell, envelope: Envelope) -> RestartComplete | StopComplete:
        request = _read(envelope)
        target = self._target(cell, request)
        if isinstance(request, Restart):
            await restart(target, request.reason)
            return RestartComplete(actor_id=target.address, restarted_at=current_port().now())
        await stop(target, request.reason)
        self._kernel.bonds.down(target.address, None)
        return StopComplete(actor_id=target.address, stopped_at=current_port().now())

    def _target(self, cell: Cell, request: Restart | Stop) -> Cell:
        """Return whom a command is about: the receiver, or an actor that the receiver supervises."""
        address = request.actor_id or cell.address
        if address == cell.address:
            return cell
        if address not in self._kernel.tree.children(cell.address):
            reason = f"it neither is {address!r} nor supervises it"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR, address=cell.address)
        return self._kernel.tree.at(address)


def _read(envelope: Envelope) -> Restart | Stop:
    if isinstance(envelope.said, Restart | Stop):
        return envelope.said
    try:
        return _TYPES[envelope.type].from_data(envelope.data)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR, address=envelope.to) from exc
