"""Gates: what holds the effects of a paused thread, and refuses those of a terminated one.

Each start of an effect passes the gate of its thread, from before its intent is written until after. To close a gate waits for
the starts that are passing it; later ones wait until it opens, or are refused if the thread is terminated. So after a pause is
acknowledged, no model call and no tool of the thread starts.

**The ledger decides.** A gate is only remembered under the epoch in which it was read. The first start under another epoch
reads the thread again: another host may have paused it, and a process that has died may have too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from types import TracebackType
from typing import Final, Literal, TypeAlias

from antiphon.errors import WithdrawnError

GateState: TypeAlias = Literal["open", "closed", "over"]

_MOST: Final = 10_000
"""Gates that are remembered; those of threads that are at work or paused do not count."""


class _Gate:
    """The gate of one thread. Its events are made when somebody waits: most gates are always open."""

    __slots__ = ("_quiet", "_turned", "epoch", "passing", "state")

    def __init__(self, state: GateState, epoch: int) -> None:
        self.state = state
        self.epoch = epoch
        self.passing = 0
        self._turned: asyncio.Event | None = None
        self._quiet: asyncio.Event | None = None

    def turn(self, state: GateState) -> None:
        self.state = state
        if state != "closed" and self._turned is not None:
            self._turned.set()
            self._turned = None

    async def until_turned(self) -> None:
        if self._turned is None:
            self._turned = asyncio.Event()
        await self._turned.wait()

    def leave(self) -> None:
        self.passing -= 1
        if not self.passing and self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    async def until_quiet(self) -> None:
        while self.passing:
            if self._quiet is None:
                self._quiet = asyncio.Event()
            await self._quiet.wait()


class _Passing:
    """The block in which a start passes a gate."""

    __slots__ = ("_gate", "_gates", "_thread_id")

    def __init__(self, gates: Gates, thread_id: str) -> None:
        self._gates = gates
        self._thread_id = thread_id

    async def __aenter__(self) -> None:
        gate = self._gate = await self._gates.until_open(self._thread_id)
        gate.passing += 1  # no await since it was seen open: a close from here on waits for this block

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave()


class Gates:
    """The gates of all threads, by their ids."""

    def __init__(self, look: Callable[[str], Awaitable[GateState]], epoch: Callable[[str], int]) -> None:
        """Make them; `look` reads the state of a thread, and `epoch` is the one under which it is owned."""
        self._look = look
        self._epoch = epoch
        self._gates: dict[str, _Gate] = {}
        self._looking: dict[str, asyncio.Lock] = {}

    def passing(self, thread_id: str) -> _Passing:
        """Return the block to pass the gate of a thread in. It waits until the gate is open.

        Raises:
            WithdrawnError: on entry: the thread is terminated.
        """
        return _Passing(self, thread_id)

    async def passed(self, thread_id: str) -> None:
        """Wait until the gate of a thread is open.

        Raises:
            WithdrawnError: the thread is terminated.
        """
        await self.until_open(thread_id)

    async def until_open(self, thread_id: str) -> _Gate:
        """Wait until the gate of a thread is open, and return it.

        Raises:
            WithdrawnError: the thread is terminated.
        """
        gate = self._gates.get(thread_id)
        if gate is None or gate.epoch != self._epoch(thread_id):
            gate = await self._read(thread_id)
        while gate.state == "closed":
            await gate.until_turned()
        if gate.state == "over":
            raise WithdrawnError(f"thread {thread_id!r} is terminated")
        return gate

    def is_open(self, thread_id: str) -> bool:
        """Whether no start has to wait, as far as is known here."""
        gate = self._gates.get(thread_id)
        return gate is None or gate.state == "open"

    async def is_over(self, thread_id: str) -> bool:
        """Whether the thread is terminated."""
        return (await self._read(thread_id)).state == "over"

    async def close(self, thread_id: str) -> None:
        """Close a gate, and wait until nothing is passing it."""
        gate = await self._read(thread_id)
        gate.turn("closed")
        await gate.until_quiet()

    def open(self, thread_id: str) -> None:
        """Let the waiting starts continue."""
        self._turn(thread_id, "open")

    def end(self, thread_id: str) -> None:
        """Refuse the waiting starts, and all later ones."""
        self._turn(thread_id, "over")

    async def look_again(self, thread_id: str) -> None:
        """Read the state of a gate again: a move failed, and may be stored or not."""
        self._turn(thread_id, await self._look(thread_id))

    def forget(self, thread_id: str) -> None:
        """Drop a gate that nothing passes or waits at. The next start reads it again."""
        gate = self._gates.get(thread_id)
        if gate is not None and not gate.passing and gate.state != "closed":
            del self._gates[thread_id]

    def evict(self, thread_id: str) -> None:
        """Drop the gate of a thread that another host has. Its handlers are cancelled, so nobody waits at it."""
        self._gates.pop(thread_id, None)

    def _turn(self, thread_id: str, state: GateState) -> None:
        gate = self._gates.get(thread_id)
        if gate is None:
            gate = self._gates[thread_id] = _Gate(state, self._epoch(thread_id))
        gate.epoch = self._epoch(thread_id)
        gate.turn(state)

    async def _read(self, thread_id: str) -> _Gate:
        """Return a gate as it is under the current epoch; read the thread if that is not known."""
        lock = self._looking.setdefault(thread_id, asyncio.Lock())
        try:
            async with lock:
                gate, epoch = self._gates.get(thread_id), self._epoch(thread_id)
                if gate is None or gate.epoch != epoch:
                    state = await self._look(thread_id)
                    gate = self._gates.get(thread_id)  # the same object, if there is one: others may wait at it
                    if gate is None:
                        gate = self._gates[thread_id] = _Gate(state, epoch)
                        self._forget_some()
                    gate.epoch = epoch
                    gate.turn(state)
                return gate
        finally:
            if not lock.locked():
                self._looking.pop(thread_id, None)

    def _forget_some(self) -> None:
        """Forget the oldest gates, as long as there are too many."""
        if len(self._gates) > _MOST:
            for thread_id in tuple(islice(self._gates, 16)):
                self.forget(thread_id)
