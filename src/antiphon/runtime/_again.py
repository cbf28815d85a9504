"""Again: how a message of a thread is delivered another time, and what happens when that was often enough.

A handler that fails is given the message again after the restart, `attempts` times in all. A message that was in hand
when its process died is given to the next one, `recoveries` times. After that it is parked: its call stays open, with
the evidence beside it, until a person settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from antiphon.errors import FencedError, LedgerError, ParkedError
from antiphon.messages import Json, Message, OptionCallPayload
from antiphon.runtime._logs import LOG, about, words
from antiphon.runtime._rows import AGAIN, PARK, again_id, begun, park_id, unused

if TYPE_CHECKING:
    from antiphon.ledger import Record
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._durable import Durable
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._kernel import Kernel

__all__ = ["Again", "Cause", "Standing"]

Cause: TypeAlias = Literal["failed", "recovered"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the open rows of a thread tell about one message."""

    again: tuple[str, ...] = ()
    """The rows that say it was delivered again."""
    failed: int = 0
    """How many of them because its handler had failed."""
    parked: Message | None = None
    """The row that parks it."""

    @classmethod
    def of(cls, rows: Sequence[Record], invocation_id: str) -> Standing:
        """Return the standing of a message, by the open calls of its thread."""
        about = [row.message for row in rows if row.message.lane == "effect" and row.message.parent_id == invocation_id]
        again = [message.payload for message in about if _option(message) == AGAIN]
        return cls(
            again=tuple(row.invocation_id for row in again if isinstance(row, OptionCallPayload)),
            failed=sum(isinstance(row, OptionCallPayload) and row.arguments.get("cause") == "failed" for row in again),
            parked=next((message for message in about if _option(message) == PARK), None),
        )

    def plus(self, id: str, cause: Cause) -> Standing:
        """Return it with one more delivery."""
        return replace(self, again=(*self.again, id), failed=self.failed + (cause == "failed"))


def _option(message: Message) -> str | None:
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else None


class Again:
    """What delivers messages another time, or parks them."""

    def __init__(self, kernel: Kernel, durable: Durable) -> None:
        self._kernel = kernel
        self._durable = durable

    async def failed(self, envelope: Envelope, reason: str) -> None:
        """Put a message back whose handler did not end. Whatever the ledger says, this does not raise."""
        cell = envelope.cell
        assert cell is not None  # noqa: S101 (it was handled there)
        try:
            await self.deliver(cell, envelope, "failed", reason)
        except FencedError as exc:
            self._durable.let_go(envelope, exc)
        except LedgerError as exc:
            text = "%s: that %s is delivered again cannot be journaled: %s"
            LOG.warning(text, envelope.to, envelope.type, words(exc), extra=about(envelope, error=exc))
            self.put_back(cell, envelope)

    def put_back(self, cell: Cell, envelope: Envelope) -> None:
        """Have a message handled again of which that cannot be written down."""
        envelope.is_unsure = True
        envelope.reruns += 1
        envelope.begin_again(cell, envelope.standing)
        cell.box.put_first(envelope)

    async def deliver(self, cell: Cell, envelope: Envelope, cause: Cause, reason: str) -> None:
        """Deliver a message another time, or park it if it was often enough.

        Raises:
            LedgerError: it could not be written down.
        """
        if self._is_often_enough(envelope, cause):
            count = len(envelope.standing.again) + 1
            await self.park(envelope, f"it was delivered {count} times", {"last": reason})
            return
        name = partial(again_id, envelope.invocation_id)
        attempt = await self._unused(envelope, name, len(envelope.standing.again) + 2)
        row = name(attempt)
        await self._note(AGAIN, row, envelope, {"attempt": attempt, "cause": cause, "reason": reason})
        envelope.begin_again(cell, envelope.standing.plus(row, cause))
        self._durable.take_over(envelope)
        if self._kernel.hooks is not None:
            self._kernel.hooks.accepted(envelope)
        if cause == "failed":
            cell.box.put_first(envelope)
        else:
            cell.box.put_last(envelope)
        cell.wake()

    def _is_often_enough(self, envelope: Envelope, cause: Cause) -> bool:
        settings, standing = self._kernel.settings, envelope.standing
        if cause == "failed":
            return standing.failed + 1 >= settings.attempts
        return len(standing.again) - standing.failed >= settings.recoveries

    async def park(self, envelope: Envelope, reason: str, evidence: dict[str, Json]) -> None:
        """Leave a message to a person.

        Raises:
            LedgerError: it could not be written down.
        """
        name = partial(park_id, envelope.invocation_id)
        row = name(await self._unused(envelope, name, 1))
        await self._note(PARK, row, envelope, {"reason": reason, "to": str(envelope.to), **evidence})
        if self._kernel.hooks is not None:
            self._kernel.hooks.parked(envelope)
        self._durable.let_go(envelope, ParkedError(reason, envelope.to))

    async def _unused(self, envelope: Envelope, name: Callable[[int], str], first: int) -> int:
        return await unused(self._kernel.journal.ledger, envelope.thread_id or "", name, first)

    async def _note(self, option: str, row: str, envelope: Envelope, arguments: dict[str, Json]) -> None:
        thread_id = envelope.thread_id or ""
        note = begun(option, row, thread_id=thread_id, parent_id=envelope.invocation_id, arguments=arguments)
        await self._kernel.journal.write(thread_id, [note])
