"""Gates: which threads are held, and the gates at which their effects wait.

The state of a thread is a fold over the requests to the life actor in it (`LIFE`): a new process finds a paused thread paused.

```
open ⇄ paused ─► terminated
```

**Gates** hold the effects of a paused thread, and refuse those of a terminated one. Each start of an effect is inside the gate
of its thread from before its intent is written until after. Closing a gate waits for the starts that are inside; later ones
wait until it opens, or are refused if the thread is terminated. So after a pause is acknowledged, no model call and no tool of
the thread starts. The ledger decides: the state of a gate is cached only for the epoch in which it was read. The first start
under another epoch reads the thread again, because another host, or a process that has died, may have paused it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from antiphon import protocol
from antiphon.errors import WithdrawnError
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.runtime._effects import ActorState
from antiphon.runtime._settings import SYSTEM, Address

# ---------------------------------------------------------------- the state of a thread


LIFE_ACTOR: Final = Address(SYSTEM, "life")
"""The address of the life actor, which every system has."""

Held: TypeAlias = Literal["open", "paused", "terminated"]

_BECOMES: Final[Mapping[str, Held]] = {
    protocol.PauseThread.message_type: "paused",
    protocol.ResumeThread.message_type: "open",
    protocol.TerminateThread.message_type: "terminated",
}


GateState: TypeAlias = Literal["open", "closed", "over"]


@dataclass(frozen=True, slots=True)
class LifeState:
    """Whether a thread is held, by its requests to the life actor."""

    held: Held = "open"
    reason: str | None = None
    """Why it was terminated."""
    status_before: str | None = None
    """The status in lists before it was paused."""
    is_used: bool = False
    """Whether any actor was asked or told something in the thread."""
    asked: Mapping[str, Any] | None = None
    """By invocation, the unanswered requests: type and reason."""

    @property
    def gate(self) -> GateState:
        """The state of the gate."""
        return "open" if self.held == "open" else "closed" if self.held == "paused" else "over"

    def after(self, message: Message) -> LifeState:
        """Return the state after one more message."""
        if message.lane != "control":
            return self
        payload = message.payload
        if message.to == (LIFE_ACTOR,):
            if not isinstance(payload, OptionCallPayload) or payload.option_name not in _BECOMES:
                return self
            entry = {"type": payload.option_name, "reason": payload.arguments.get("reason")}
            return replace(self, asked={**(self.asked or {}), payload.invocation_id: entry})
        if isinstance(payload, OptionResultPayload) and payload.invocation_id in (self.asked or {}):
            return self._answered(payload)
        return self if self.is_used or not message.to else replace(self, is_used=True)

    def _answered(self, result: OptionResultPayload) -> LifeState:
        asked = dict(self.asked or {})
        move = asked.pop(result.invocation_id)
        state = replace(self, asked=asked or None)
        if result.is_error or self.held == "terminated":
            return state
        state = replace(state, held=_BECOMES[move["type"]])
        if state.held == "paused" and self.held == "open":
            replied: Any = thaw(result.result)
            return replace(state, status_before=replied.get("status_before"))
        return replace(state, reason=move["reason"]) if state.held == "terminated" else state


def _dump(state: LifeState) -> Json:
    return asdict(state)


def _load(stored: Any) -> LifeState:
    return LifeState(**stored)


LIFE: Final = ActorState("life", LifeState(), LifeState.after, _dump, _load)
"""The state of a thread, as the runtime folds it."""


# ---------------------------------------------------------------- gates

_MOST: Final = 10_000
"""The number of cached gates; gates of active or paused threads do not count."""


class _Gate:
    """The gate of one thread. Its events are created when something waits: most gates are always open."""

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
    """The block in which a start is inside a gate."""

    __slots__ = ("_gate", "_gates", "_thread_id")

    def __init__(self, gates: Gates, thread_id: str) -> None:
        self._gates = gates
        self._thread_id = thread_id

    async def __aenter__(self) -> None:
        gate = self._gate = await self._gates.until_open(self._thread_id)
        gate.passing += 1  # no await since the gate was seen open: a close from here on waits for this block

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
        """Return the block for a start inside the gate of a thread. Its entry waits until the gate is open.

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
        """Wait until the gate of a thread is open, and return it."""
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
        """Close a gate, and wait until no start is inside."""
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
        """Read the state of a gate again: a pause or resume failed, and it is unknown whether it was stored."""
        self._turn(thread_id, await self._look(thread_id))

    def forget(self, thread_id: str) -> None:
        """Drop an unused gate. The next start reads its state again."""
        gate = self._gates.get(thread_id)
        if gate is not None and not gate.passing and gate.state != "closed":
            del self._gates[thread_id]

    def evict(self, thread_id: str) -> None:
        """Drop the gate of a thread that another host owns. The handlers here are cancelled, so none waits at the gate."""
        self._gates.pop(thread_id, None)

    def _turn(self, thread_id: str, state: GateState) -> None:
        gate = self._gates.get(thread_id)
        if gate is None:
            gate = self._gates[thread_id] = _Gate(state, self._epoch(thread_id))
        gate.epoch = self._epoch(thread_id)
        gate.turn(state)

    async def _read(self, thread_id: str) -> _Gate:
        """Return a gate with its state under the current epoch; read the thread if that is not cached."""
        lock = self._looking.setdefault(thread_id, asyncio.Lock())
        try:
            async with lock:
                gate, epoch = self._gates.get(thread_id), self._epoch(thread_id)
                if gate is None or gate.epoch != epoch:
                    state = await self._look(thread_id)
                    gate = self._gates.get(thread_id)  # the same object, if there is one: others may wait at it
                    if gate is None:
                        gate = self._gates[thread_id] = _Gate(state, epoch)
                        if len(self._gates) > _MOST:
                            for oldest in tuple(islice(self._gates, 16)):
                                self.forget(oldest)
                    gate.epoch = epoch
                    gate.turn(state)
                return gate
        finally:
            if not lock.locked():
                self._looking.pop(thread_id, None)
