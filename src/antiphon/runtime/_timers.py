"""Timers: tell an actor something later, also after a crash.

A timer of a thread is a row that stays open until it rings. So the notice is delivered even if the process that set the timer
is gone. Its end, the notice and the DELIVER row are one append, so the notice is stored exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from antiphon import errors
from antiphon.messages import DataPart, Json, Message, OptionCallPayload, PartsPayload, current_port, thaw
from antiphon.messages.keys import child_id
from antiphon.messages.trusted import quick_message
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._rows import DELIVER, TIMER, begun, ended

if TYPE_CHECKING:
    from antiphon.protocol import Notice
    from antiphon.runtime._dispatch import Dispatcher
    from antiphon.runtime._durable import Durable
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._queues import InFlight
    from antiphon.runtime._services import Lifetime
    from antiphon.runtime._tree import Tree

_LEDGER_PAUSE = 2.0
"""Seconds to pause while the ledger is unavailable."""


class Timers:
    """The running timers. One of a thread is a row that stays open until it rings."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        tree: Tree,
        *,
        in_flight: InFlight,
        durable: Durable,
        dispatcher: Dispatcher,
    ) -> None:
        self._lifetime = lifetime
        self._journal = journal
        self._tree = tree
        self._in_flight = in_flight
        self._durable = durable
        self._dispatcher = dispatcher
        self._armed: dict[str, dict[str, tuple[datetime, asyncio.TimerHandle]]] = {}
        """By thread and row, when each timer rings, and its handle."""

    async def set(self, delivery: DeliveryState, address: str, after: float, notice: Notice, key: str | None) -> None:
        """Tell an actor something after some seconds.

        Raises:
            LedgerError: it could not be journaled.
        """
        if delivery.thread_id is None:
            self._lifetime.loop.call_later(after, self._tell, address, notice)
            return
        row_id = child_id(delivery.invocation_id, delivery.next_key(key))
        if delivery.attempt > 1 and await self._is_set(row_id, delivery.thread_id):
            return
        due = current_port().now() + timedelta(seconds=after)
        arguments: dict[str, Json] = {
            "due": due.isoformat(),
            "to": str(address),
            "type": notice.message_type,
            "data": notice.to_data(),
        }
        row = begun(TIMER, row_id, thread_id=delivery.thread_id, parent_id=delivery.invocation_id, arguments=arguments)
        await self._journal.write(delivery.thread_id, [row])  # before it is armed: a timer that rings ends this row
        self.arm(row)

    async def _is_set(self, row_id: str, thread_id: str) -> bool:
        rows = await self._journal.ledger.by_invocation(row_id, thread_id=thread_id)
        return any(row.message.lane == "effect" for row in rows)

    def arm(self, row: Message) -> None:
        """Schedule a timer, unless it is scheduled; one that is due rings at once."""
        thread = self._armed.setdefault(row.thread_id or "", {})
        if row.id not in thread:
            due = datetime.fromisoformat(_arguments(row)["due"])
            left = (due - current_port().now()).total_seconds()
            thread[row.id] = due, self._later(max(0.0, left), row)

    def _later(self, seconds: float, row: Message) -> asyncio.TimerHandle:
        return self._lifetime.loop.call_later(seconds, self._ring, row, context=self._lifetime.context.copy())

    def next_due(self, thread_id: str) -> datetime | None:
        """Return when the next timer of a thread rings; None if it has none."""
        return min((due for due, _ in self._armed.get(thread_id, {}).values()), default=None)

    def forget(self, thread_id: str) -> None:
        """Cancel the timers of a thread that another host has; their rows stay open."""
        for _, handle in self._armed.pop(thread_id, {}).values():
            handle.cancel()

    def _disarm(self, row: Message) -> None:
        thread_id = row.thread_id or ""
        thread = self._armed.get(thread_id, {})
        thread.pop(row.id, None)
        if not thread:
            self._armed.pop(thread_id, None)

    def _tell(self, address: str, notice: Notice) -> None:
        if not self._lifetime.is_closing:
            self._lifetime.start(self._dispatcher.inform(address, notice, address))

    def _ring(self, row: Message) -> None:
        self._disarm(row)
        if not self._lifetime.is_closing:
            self._lifetime.start(self._deliver(row))

    async def _deliver(self, row: Message) -> None:
        """End the timer and append its notice, in one append; then deliver the notice."""
        arguments, thread_id, row_id = _arguments(row), row.thread_id or "", row.invocation_id or ""
        to = arguments["to"]
        said = quick_message(
            to,
            PartsPayload(parts=(DataPart(data={"type": arguments["type"], "data": arguments["data"]}),)),
            id=f"{row_id}!",
            thread_id=thread_id,
            to=(to,),
            lane="control",
            parent_id=row.parent_id,
            created_at=datetime.fromisoformat(arguments["due"]).astimezone(
                UTC
            ),  # the same bytes in every attempt: the ledger then knows the message
        )
        rung = ended(TIMER, row_id, thread_id=thread_id, parent_id=row.parent_id)
        open_row = begun(DELIVER, said.id, thread_id=thread_id, parent_id=said.id)
        delivery = DeliveryState(Envelope.of(said, to, to, thread_id))
        if self._in_flight.has(delivery):
            return  # an unconfirmed append was written, and recovery has delivered the notice
        self._in_flight.take_over(delivery)  # before the append: a recovery that reads the notice must not deliver it too
        try:
            await self._write(delivery, [rung, said, open_row])
        except errors.LedgerUnavailableError as exc:
            fields = log_fields(to, thread_id=thread_id, error=exc)
            LOG.warning("a timer of %s rings later: %s", to, log_text(exc), extra=fields)
            self._later(_LEDGER_PAUSE, row)
        except (errors.LedgerError, errors.DeliveryError) as exc:
            fields = log_fields(to, thread_id=thread_id, error=exc)
            LOG.warning("a timer of %s could not ring: %s", to, log_text(exc), extra=fields)

    async def _write(self, delivery: DeliveryState, rows: Sequence[Message]) -> None:
        try:
            _, record, _ = await self._journal.write(delivery.thread_id or "", rows)
            delivery.use_stored(record)
            await self._durable.hand_over(self._tree.at(delivery.to), delivery)
        except BaseException as exc:
            self._in_flight.drop(delivery)
            delivery.fail_duplicates(exc)
            raise


def _arguments(row: Message) -> dict[str, Any]:
    assert isinstance(row.payload, OptionCallPayload)  # noqa: S101 (it was made so)
    arguments: dict[str, Any] = thaw(row.payload.arguments)
    return arguments
