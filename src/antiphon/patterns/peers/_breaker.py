"""Breaker: whoever fails again and again is left alone for a while, in all threads, and after a restart too.

closed: it is asked · open: it is not · half-open: the first who asks may try, the others may not until that one is answered.
Failures, and the success that ends a row of them, are told in the system thread of the peer; the state is what they amount to.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from antiphon.ledger import Ledger
from antiphon.messages import DataPart, Json, JsonObject, Message, PartsPayload, current_port
from antiphon.patterns.peers._letters import Exchange, Refusal
from antiphon.patterns.peers._protocol import address_of
from antiphon.patterns.peers._spec import Limits
from antiphon.runtime import system_thread

__all__ = ["CIRCUIT_OPEN", "Breaker", "BreakerState"]

CIRCUIT_OPEN: Final = "CIRCUIT_OPEN"
_OUTCOME: Final = "PEER_OUTCOME"

BreakerState: TypeAlias = Literal["closed", "open", "half-open"]


@dataclass(slots=True)
class _Standing:
    """How a peer has done lately."""

    failures: int = 0
    """In a row, up to now."""
    failed_at: datetime | None = None
    tried_by: str | None = None
    """The call that tries it after its failures, if one does."""


class Breaker:
    """Knows which peers are left alone."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._standings: dict[str, _Standing] = {}

    async def state(self, name: str) -> BreakerState:
        """Return whether a peer is asked, left alone, or may be tried.

        Raises:
            LedgerError: it cannot be read how it has done.
        """
        standing = await self._standing(name)
        if standing.failures < self._limits.failures or standing.failed_at is None:
            return "closed"
        is_over = current_port().now() - standing.failed_at >= timedelta(seconds=self._limits.recovery)
        return "half-open" if is_over and standing.tried_by is None else "open"

    async def admit(self, exchange: Exchange) -> Refusal | None:
        """Let a peer be asked, and be told by `note`, and `leave`, how that ends; or return why not.

        Raises:
            LedgerError: it cannot be read how it has done.
        """
        name = exchange.callee
        state = await self.state(name)
        if state == "open":
            reason = f"{name!r} has failed {self._limits.failures} times in a row and is left alone; try later"
            return Refusal(CIRCUIT_OPEN, reason, retryable=True)
        if state == "half-open":
            (await self._standing(name)).tried_by = exchange.id
        return None

    def leave(self, exchange: Exchange) -> None:
        """Be done with a call, however it has ended; if it was a try, another may be made."""
        standing = self._standings.get(exchange.callee)
        if standing is not None and standing.tried_by == exchange.id:
            standing.tried_by = None

    async def note(self, exchange: Exchange, *, failed: bool) -> None:
        """Tell how a peer has done; that all is well, only where it was not.

        Raises:
            LedgerError: it cannot be written down.
        """
        standing = await self._standing(exchange.callee)
        if not failed and not standing.failures:
            return
        address = address_of(exchange.callee)
        told: dict[str, Json] = {"type": _OUTCOME, "data": {"caller": exchange.caller, "failed": failed}}
        row = Message(
            policy=address_of(exchange.caller),
            payload=PartsPayload(parts=(DataPart(data=told),)),
            id=f"{exchange.id}:outcome",
            to=(address,),
            lane="control",
        )
        await self._ledger.post(system_thread(address), row)
        read = await self._read(exchange.callee)  # not counted up: it may have been told before a crash
        standing.failures, standing.failed_at = read.failures, read.failed_at

    async def _standing(self, name: str) -> _Standing:
        if name not in self._standings:
            read = await self._read(name)
            self._standings.setdefault(name, read)  # somebody else may have read it meanwhile
        return self._standings[name]

    async def _read(self, name: str) -> _Standing:
        standing = _Standing()
        async for record in self._ledger.read(system_thread(address_of(name)), reverse=True):
            failed = _failed(record.message)
            if failed is None:
                continue
            if not failed:
                break
            standing.failures += 1
            standing.failed_at = standing.failed_at or record.recorded_at
            if standing.failures == self._limits.failures:
                break
        return standing


def _failed(message: Message) -> bool | None:
    """Return whether a message says that a peer has failed, or that it has not; None: neither."""
    match message.parts:
        case (DataPart(data=JsonObject() as told),) if message.lane == "control" and told.get("type") == _OUTCOME:
            data = told.get("data")
            return bool(data.get("failed")) if isinstance(data, JsonObject) else None
        case _:
            return None
