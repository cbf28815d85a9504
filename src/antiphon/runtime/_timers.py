"""Timers that survive: something an actor is told later, even if the process that set the timer is gone by then."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from antiphon.errors import DeliveryError, LedgerError, LedgerUnavailableError
from antiphon.messages import DataPart, Json, Message, OptionCallPayload, PartsPayload, current_port, thaw
from antiphon.runtime._envelope import Envelope
from antiphon.runtime._logs import LOG, about, words
from antiphon.runtime._own import own_message
from antiphon.runtime._rows import DELIVER, TIMER, begun, child_id, ended

if TYPE_CHECKING:
    from antiphon.protocol import Notice
    from antiphon.runtime._kernel import Kernel

__all__ = ["Timers"]

_PAUSE = 2.0
"""Seconds to wait for a ledger that cannot be used."""


class Timers:
    """The timers that run. Those of threads are rows that stay open until they have rung."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def set(self, envelope: Envelope, address: str, after: float, notice: Notice, key: str | None) -> None:
        """Have an actor told something after some seconds.

        Raises:
            LedgerError: it could not be written down.
        """
        if envelope.thread_id is None:
            self._kernel.loop.call_later(after, self._tell, address, notice)
            return
        row_id = child_id(envelope.invocation_id, envelope.next_key(key))
        if envelope.attempt > 1 and await self._is_set(row_id, envelope.thread_id):
            return
        due = current_port().now() + timedelta(seconds=after)
        arguments: dict[str, Json] = {
            "due": due.isoformat(),
            "to": str(address),
            "type": notice.message_type,
            "data": notice.to_data(),
        }
        row = begun(TIMER, row_id, thread_id=envelope.thread_id, parent_id=envelope.invocation_id, arguments=arguments)
        await self._kernel.journal.write(envelope.thread_id, [row])
        self.arm(row)

    async def _is_set(self, row_id: str, thread_id: str) -> bool:
        rows = await self._kernel.journal.ledger.by_invocation(row_id, thread_id=thread_id)
        return any(row.message.lane == "effect" for row in rows)

    def arm(self, row: Message) -> None:
        """Let a timer ring when it is due, which may be at once."""
        due = datetime.fromisoformat(_arguments(row)["due"])
        left = (due - current_port().now()).total_seconds()
        self._kernel.loop.call_later(max(0.0, left), self._ring, row, context=self._kernel.context.copy())

    def _tell(self, address: str, notice: Notice) -> None:
        if not self._kernel.is_closing:
            self._kernel.start(self._kernel.care.inform(address, notice, address))

    def _ring(self, row: Message) -> None:
        if not self._kernel.is_closing:
            self._kernel.start(self._deliver(row))

    async def _deliver(self, row: Message) -> None:
        """End the timer and say what it was set for, in one append; then deliver that."""
        arguments, thread_id, row_id = _arguments(row), row.thread_id or "", row.invocation_id or ""
        to = arguments["to"]
        said = own_message(
            to,
            PartsPayload(parts=(DataPart(data={"type": arguments["type"], "data": arguments["data"]}),)),
            id=f"{row_id}!",
            thread_id=thread_id,
            to=(to,),
            lane="control",
            parent_id=row.parent_id,
            created_at=datetime.fromisoformat(arguments["due"]).astimezone(UTC),  # the same, however often it is tried
        )
        rung = ended(TIMER, row_id, thread_id=thread_id, parent_id=row.parent_id)
        delivery = begun(DELIVER, said.id, thread_id=thread_id, parent_id=said.id)
        envelope, durable = Envelope(said, to, to), self._kernel.post.durable
        envelope.thread_id = thread_id
        if durable.has(envelope):
            return  # it has rung, though nobody knew, and a recovery has delivered it
        durable.take_over(envelope)
        try:
            await self._write(envelope, [rung, said, delivery])
        except LedgerUnavailableError as exc:
            fields = about(to, thread_id=thread_id, error=exc)
            LOG.warning("a timer of %s rings later: %s", to, words(exc), extra=fields)
            self._kernel.loop.call_later(_PAUSE, self._ring, row, context=self._kernel.context.copy())
        except (LedgerError, DeliveryError) as exc:
            fields = about(to, thread_id=thread_id, error=exc)
            LOG.warning("a timer of %s could not ring: %s", to, words(exc), extra=fields)

    async def _write(self, envelope: Envelope, rows: Sequence[Message]) -> None:
        durable = self._kernel.post.durable
        try:
            _, record, _ = await self._kernel.journal.write(envelope.thread_id or "", rows)
            envelope.take(record)
            await durable.hand_over(self._kernel.tree.at(envelope.to), envelope)
        except BaseException as exc:
            durable.drop(envelope)
            envelope.disappoint(exc)
            raise


def _arguments(row: Message) -> dict[str, Any]:
    assert isinstance(row.payload, OptionCallPayload)  # noqa: S101 (it was made so)
    arguments: dict[str, Any] = thaw(row.payload.arguments)
    return arguments
