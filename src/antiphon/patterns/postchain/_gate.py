"""Gates: between the acknowledgement of a pause and the resume, no model call and no tool of a thread begins.

Whatever is about to begin passes the gate of its thread, from before its intent is written until after. To close a gate is
to wait for those that are passing; what comes later waits until it is opened, or is turned away if the thread is over. The
first to come asks the ledger, so that a gate that was closed by a process that is dead is found closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from antiphon.errors import WithdrawnError

__all__ = ["GateState", "Gates"]

GateState: TypeAlias = Literal["open", "closed", "over"]


@dataclass(slots=True)
class _Gate:
    state: GateState
    may_look: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless it is closed."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nobody is passing."""
    passing: int = 0

    def __post_init__(self) -> None:
        self.quiet.set()
        self.turn(self.state)

    def turn(self, state: GateState) -> None:
        self.state = state
        if state == "closed":
            self.may_look.clear()
        else:
            self.may_look.set()


class Gates:
    """The gates of all threads, by their ids."""

    def __init__(self, look: Callable[[str], Awaitable[GateState]]) -> None:
        """Make them; `look` says what the ledger knows of a thread."""
        self._look = look
        self._gates: dict[str, _Gate] = {}
        self._looking: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def passing(self, thread_id: str) -> AsyncGenerator[None]:
        """Wait until the gate of a thread is open, and pass it.

        Raises:
            WithdrawnError: the thread is over.
        """
        gate = await self._gate(thread_id)
        while gate.state == "closed":
            await gate.may_look.wait()
        if gate.state == "over":
            raise WithdrawnError(f"thread {thread_id!r} is terminated")
        gate.passing += 1
        gate.quiet.clear()
        try:
            yield
        finally:
            gate.passing -= 1
            if not gate.passing:
                gate.quiet.set()

    async def passed(self, thread_id: str) -> None:
        """Wait until the gate of a thread is open.

        Raises:
            WithdrawnError: the thread is over.
        """
        async with self.passing(thread_id):
            pass

    def is_open(self, thread_id: str) -> bool:
        """Whether nobody has to wait, as far as is known here."""
        gate = self._gates.get(thread_id)
        return gate is None or gate.state == "open"

    async def is_over(self, thread_id: str) -> bool:
        """Whether nobody passes the gate of a thread any more."""
        return (await self._gate(thread_id)).state == "over"

    async def close(self, thread_id: str) -> None:
        """Close a gate, and wait until nothing is passing any more."""
        gate = await self._gate(thread_id)
        gate.turn("closed")
        await gate.quiet.wait()

    def open(self, thread_id: str) -> None:
        """Let what waits go on."""
        self._turn(thread_id, "open")

    def end(self, thread_id: str) -> None:
        """Turn away what waits, and whatever comes."""
        self._turn(thread_id, "over")

    async def look_again(self, thread_id: str) -> None:
        """Have a gate as the ledger says, where that is in doubt."""
        state = await self._look(thread_id)
        self._turn(thread_id, state)

    def forget(self, thread_id: str) -> None:
        """Give back the memory of a gate that nobody passes or waits at: the ledger knows."""
        gate = self._gates.get(thread_id)
        if gate is not None and not gate.passing and gate.state != "closed":
            del self._gates[thread_id]

    def _turn(self, thread_id: str, state: GateState) -> None:
        if (gate := self._gates.get(thread_id)) is not None:
            gate.turn(state)
        else:
            self._gates[thread_id] = _Gate(state)

    async def _gate(self, thread_id: str) -> _Gate:
        if (gate := self._gates.get(thread_id)) is not None:
            return gate
        lock = self._looking.setdefault(thread_id, asyncio.Lock())
        try:
            async with lock:
                if (gate := self._gates.get(thread_id)) is None:
                    state = await self._look(thread_id)
                    gate = self._gates.setdefault(thread_id, _Gate(state))
                return gate
        finally:
            if not lock.locked():
                self._looking.pop(thread_id, None)
