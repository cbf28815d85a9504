"""The faults of a simulated world: a bus that loses, doubles, delays and reorders, and a ledger that is slow or fails.

Both are real ones underneath. What goes wrong is drawn from the seed, and counted where it happens.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251 (seeded)
from typing import Any

from antiphon.errors import LedgerUnavailableError
from antiphon.ledger import Ledger, Record
from antiphon.messages import Message
from antiphon.runtime import Parcel, Take
from antiphon.testing._simulate_loop import Node, VirtualLoop, current_node

__all__ = ["Faults", "FaultyBus", "FaultyLedger"]


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, and how often. Chances are from 0 to 1, times in virtual seconds."""

    crashes: int = 3
    """How often the system is killed; the times in between are drawn."""
    uptime: float = 4.0
    """How long it lives on average."""
    downtime: float = 2.0
    """How long it is gone at most."""
    loss: float = 0.1
    """The chance that a parcel between client and system is lost."""
    duplication: float = 0.1
    """The chance that it comes twice."""
    delay: float = 0.5
    """How long it takes at most; so parcels overtake each other."""
    ledger_delay: float = 0.05
    """How long the ledger takes at most: the half of the time before it writes, the other half after."""
    ledger_failure: float = 0.02
    """The chance that an append fails, written or not."""


class FaultyBus:
    """A bus between nodes that may be killed."""

    def __init__(self, loop: VirtualLoop, random: Random, faults: Faults, landed: Counter[str]) -> None:
        self._loop = loop
        self._random = random
        self._faults = faults
        self._landed = landed
        self._takers: dict[str, tuple[Node, Take]] = {}
        self.is_calm = False
        """Whether nothing goes wrong any more."""

    async def attach(self, name: str, take: Take) -> None:
        node, _ = self._takers.get(name, (None, None))
        if node is not None and node.is_alive:
            raise ValueError(f"{name!r} is attached already; detach it first")
        self._takers[name] = (current_node(), take)

    async def detach(self, name: str) -> None:
        self._takers.pop(name, None)

    async def send(self, parcel: Parcel) -> None:
        copies = 1
        if not self.is_calm:
            if self._happens("loss", self._faults.loss):
                copies = 0
            elif self._happens("duplication", self._faults.duplication):
                copies = 2
        for _ in range(copies):
            self._loop.call_later(self._random.random() * self._faults.delay, self._bring, parcel)

    def _happens(self, what: str, chance: float) -> bool:
        happens = self._random.random() < chance
        self._landed[what] += happens
        return happens

    def _bring(self, parcel: Parcel) -> None:
        node, take = self._takers.get(parcel.to.partition("/")[0], (None, None))
        if node is not None and take is not None and node.is_alive:
            self._loop.start_in(node, _take(take, parcel))


async def _take(take: Take, parcel: Parcel) -> None:
    await take(parcel)


class FaultyLedger:
    """A ledger that takes its time, and sometimes fails: before it has written, or after."""

    def __init__(self, ledger: Ledger, random: Random, faults: Faults, landed: Counter[str]) -> None:
        self._ledger = ledger
        self._random = random
        self._faults = faults
        self._landed = landed
        self.is_calm = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        chance = self._random.random()
        is_before = chance < 0.5  # noqa: PLR2004 (as likely as not)
        fails = not self.is_calm and self._random.random() < self._faults.ledger_failure
        if is_before:
            await self._wait()
            if fails:
                self._landed["append failed, not written"] += 1
                raise LedgerUnavailableError("simulated", thread_id)
        records = await self._ledger.append(thread_id, messages, **more)
        if not is_before:
            await self._wait()
            if fails:
                self._landed["append failed, but written"] += 1
                raise LedgerUnavailableError("simulated", thread_id)
        return records

    async def claim(self, thread_id: str) -> int:
        await self._wait()
        return await self._ledger.claim(thread_id)

    async def by_invocation(self, invocation_id: str, *, thread_id: str | None = None) -> Sequence[Record]:
        await self._wait()
        return await self._ledger.by_invocation(invocation_id, thread_id=thread_id)

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.random() * self._faults.ledger_delay)
