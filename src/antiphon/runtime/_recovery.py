"""Recovery: after a crash, read what is open in every thread, deliver it again, and set the timers.

The open calls of a thread are all that is read. Those that were told or asked are delivered again, in the order in
which they were said; a handler that had been at work finds what it had done in the ledger, and goes on from there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.errors import FencedError, LedgerError, ReplyTimeoutError, UndeliverableError
from antiphon.messages import Message, OptionCallPayload, thaw
from antiphon.runtime._again import Standing
from antiphon.runtime._durable import A_WHILE
from antiphon.runtime._endings import is_asked_of_itself, leftovers, owner_of
from antiphon.runtime._envelope import Envelope, travelled
from antiphon.runtime._logs import LOG, about, words
from antiphon.runtime._rows import DELIVER, PARK, TIMER

if TYPE_CHECKING:
    from antiphon.ledger import Record
    from antiphon.messages import Json
    from antiphon.runtime._kernel import Kernel

__all__ = ["Parked", "Recovered", "Recovery"]

_AT_ONCE = 16
"""Threads that are taken up at the same time, so that they share commits."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery found, and what it did about it."""

    threads: int = 0
    """Threads with something open."""
    delivered: int = 0
    """Messages that were delivered again."""
    timers: int = 0
    parked: int = 0
    """Messages that wait for a person."""
    homeless: int = 0
    """Messages to actors that this system does not have; they stay open."""

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(
            self.threads + other.threads,
            self.delivered + other.delivered,
            self.timers + other.timers,
            self.parked + other.parked,
            self.homeless + other.homeless,
        )


@dataclass(frozen=True, slots=True)
class Parked:
    """A message that waits for a person."""

    thread_id: str
    invocation_id: str
    """Of the message; give it to `settle`."""
    reason: str
    evidence: dict[str, Json]
    """To whom it was; the last error; which effect nobody knows the outcome of."""


class Recovery:
    """What takes threads up where another process left them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ledger = kernel.journal.ledger
        self._doubts: Counter[str] = Counter()
        """By thread, how often it was not sure what was written to it."""

    async def all(self) -> Recovered:
        """Take up every thread that has something open; those that another system takes over meanwhile are left to it.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        threads = await self._open_threads()
        todo, found = iter(threads), Recovered()

        async def take_up_some() -> None:
            nonlocal found
            for thread_id in todo:
                self._kernel.journal.take_back(thread_id)
                try:
                    taken_up = await self.thread(thread_id)
                except FencedError as exc:
                    fields = about(thread_id=thread_id, error=exc)
                    LOG.info("thread %s is left to another system: %s", thread_id, words(exc), extra=fields)
                else:
                    found += taken_up

        try:
            async with asyncio.TaskGroup() as group:
                for _ in threads[:_AT_ONCE]:
                    group.create_task(take_up_some())
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc
        return found

    async def thread(self, thread_id: str, *, with_timers: bool = True) -> Recovered:
        """Take up one thread; its timers too, unless they run here.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        await self._kernel.journal.own(thread_id)
        rows = await self._ledger.open_calls(thread_id)
        found = Recovered(threads=1)
        for row in rows:
            if with_timers or _option(row.message) != TIMER:
                found += await self._take_up(thread_id, row, rows)
        await self._clear_away(thread_id, rows)
        return found

    async def _clear_away(self, thread_id: str, rows: Sequence[Record]) -> None:
        """End what was open for the sake of messages that have ended: their system died between the two."""
        still_open = {row.message.invocation_id for row in rows}
        left = [row.message for row in rows if row.message.parent_id not in still_open]
        owners = {row.parent_id: row.policy for row in left}
        owners |= {await owner_of(self._ledger, row, thread_id): row.policy for row in left if row.lane == "effect"}
        for owner, to in owners.items():
            if owner is not None and owner not in still_open and await self._has_ended(thread_id, owner):
                ends = await leftovers(self._ledger, rows, owner, thread_id, to)
                await self._kernel.journal.write(thread_id, ends)

    async def _has_ended(self, thread_id: str, invocation_id: str) -> bool:
        records = await self._ledger.by_invocation(invocation_id, thread_id=thread_id)
        return any(record.message.kind == "option_result" for record in records)

    def later(self, thread_id: str) -> None:
        """Take up a thread in a while, when it is not sure what was written to it; until that was possible."""
        if self._doubts[thread_id] == 0:
            self._kernel.start(self._clear_up(thread_id))
        self._doubts[thread_id] += 1

    async def _clear_up(self, thread_id: str) -> None:
        doubts = 0
        while self._doubts[thread_id] > doubts:
            doubts = self._doubts[thread_id]
            await asyncio.sleep(A_WHILE)
            try:
                await self.thread(thread_id, with_timers=False)
            except FencedError:
                break
            except LedgerError as exc:
                fields = about(thread_id=thread_id, error=exc)
                LOG.warning("thread %s cannot be taken up: %s", thread_id, words(exc), extra=fields)
                self._doubts[thread_id] += 1
        del self._doubts[thread_id]

    async def message(self, thread_id: str, invocation_id: str) -> None:
        """Take up one message of a thread, if it is open.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        rows = await self._ledger.open_calls(thread_id)
        for row in rows:
            if row.message.invocation_id == invocation_id:
                await self._take_up(thread_id, row, rows)

    async def parked(self) -> tuple[Parked, ...]:
        """Return what waits for a person, in all threads."""
        found: list[Parked] = []
        for thread_id in await self._open_threads():
            rows = await self._ledger.open_calls(thread_id)
            found += [_parked(thread_id, row.message) for row in rows if _option(row.message) == PARK]
        return tuple(found)

    async def _open_threads(self) -> list[str]:
        found: list[str] = []
        page = await self._ledger.threads(order="created_at")
        while True:
            found += [thread.thread_id for thread in page.threads if thread.open_calls]
            if page.next is None:
                return found
            page = await self._ledger.threads(order="created_at", page=page.next)

    async def _take_up(self, thread_id: str, row: Record, rows: Sequence[Record]) -> Recovered:
        option = _option(row.message) if row.message.lane == "effect" else None
        said = row
        if option == TIMER:
            self._kernel.timers.arm(row.message)
            return Recovered(timers=1)
        if option == PARK:
            return Recovered(parked=1)
        if option == DELIVER:
            said = await self._kernel.journal.before(thread_id, row)
        elif option is not None or not said.message.to:
            return Recovered()  # an effect, which its handler sees to; or a call that is for nobody here
        return await self._deliver(recovered_envelope(said, thread_id), rows)

    async def _deliver(self, envelope: Envelope, rows: Sequence[Record]) -> Recovered:
        """Deliver a message again, unless somebody has it, or it has ended since the rows were read."""
        durable = self._kernel.post.durable
        if is_asked_of_itself(envelope.message):
            return Recovered()  # whoever asked does it when it runs again
        if durable.has(envelope) or Standing.of(rows, envelope.invocation_id).parked is not None:
            return Recovered()
        try:
            cell = self._kernel.tree.at(envelope.to)
        except UndeliverableError:
            return Recovered(homeless=1)
        envelope.cell, envelope.is_unsure = cell, True
        is_late = envelope.deadline is not None and envelope.deadline <= self._kernel.loop.time()
        if not is_late and not self._kernel.commands.takes(envelope):
            is_open = await durable.take_up(cell, envelope, "it was open when the system began")
            if is_open:
                self._kernel.post.watch(envelope)
        elif is_open := await durable.is_open(envelope):
            if is_late:
                late = ReplyTimeoutError("its deadline passed while it was open", envelope.to)
                await self._kernel.post.put_away(envelope, late)
            else:
                await durable.hand_over(cell, envelope)
        return Recovered(delivered=int(is_open))


def recovered_envelope(record: Record, thread_id: str) -> Envelope:
    """Return the envelope of a message that was read from the ledger."""
    message = record.message
    envelope = Envelope(message, message.policy, message.to[0])
    envelope.thread_id, envelope.seq, envelope.correlation_id = thread_id, record.seq, message.correlation_id
    envelope.hops, envelope.deadline = travelled(message)
    return envelope


def _option(message: Message) -> str | None:
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else None


def _parked(thread_id: str, row: Message) -> Parked:
    assert isinstance(row.payload, OptionCallPayload)  # noqa: S101 (it was made so)
    evidence = thaw(row.payload.arguments)
    return Parked(thread_id, row.parent_id or "", evidence.pop("reason"), evidence)
