"""Pausing: the gates that hold model and tool calls, and what a paused thread waits for.

Between the acknowledgement of a pause and the resume, no model call and no tool call of a thread starts. Each start passes the
gate of its thread, from before its intent is written until after. Closing a gate waits for the starts that are passing it;
later ones wait until it opens, or are refused if the thread is terminated. The first start asks the ledger for the state, so
a gate that a dead process closed is found closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Literal, TypeAlias

from antiphon.agents.extending import APPROVE
from antiphon.agents.toolkit import Approval
from antiphon.errors import WithdrawnError
from antiphon.ledger import Ledger, Record
from antiphon.messages import RUNTIME_POLICY, Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.runtime.extending import PARK

GateState: TypeAlias = Literal["open", "closed", "over"]


@dataclass(slots=True)
class _Gate:
    state: GateState
    may_look: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless it is closed."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no start is passing."""
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
        """Make them; `look` reads the state of a thread from the ledger."""
        self._look = look
        self._gates: dict[str, _Gate] = {}
        self._looking: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def passing(self, thread_id: str) -> AsyncGenerator[None]:
        """Wait until the gate of a thread is open, and pass it.

        Raises:
            WithdrawnError: the thread has ended.
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
            WithdrawnError: the thread has ended.
        """
        async with self.passing(thread_id):
            pass

    def is_open(self, thread_id: str) -> bool:
        """Whether a start need not wait, as far as this process knows."""
        gate = self._gates.get(thread_id)
        return gate is None or gate.state == "open"

    async def is_over(self, thread_id: str) -> bool:
        """Whether no start passes the gate of a thread any more."""
        return (await self._gate(thread_id)).state == "over"

    async def close(self, thread_id: str) -> None:
        """Close a gate, and wait until no start is passing."""
        gate = await self._gate(thread_id)
        gate.turn("closed")
        await gate.quiet.wait()

    def open(self, thread_id: str) -> None:
        """Open a gate."""
        self._turn(thread_id, "open")

    def end(self, thread_id: str) -> None:
        """Refuse the waiting starts, and all later ones."""
        self._turn(thread_id, "over")

    async def look_again(self, thread_id: str) -> None:
        """Set a gate to the state in the ledger, if it may differ."""
        state = await self._look(thread_id)
        self._turn(thread_id, state)

    def forget(self, thread_id: str) -> None:
        """Drop a gate that no start passes or waits at: the ledger has its state."""
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a paused thread waits for."""

    reason: str
    commands: tuple[str, ...]
    """The commands to run, in order; if there are alternatives, the first."""
    is_answered: bool = False
    """Whether it can continue as it is: the approval has expired, and the model is told."""

    @property
    def text(self) -> str:
        """All of it, in one line."""
        return f"{self.reason}: {', then '.join(f'`{each}`' for each in self.commands)}"

    def to_json(self) -> dict[str, Any]:
        """Return it for a message."""
        return {"reason": self.reason, "commands": list(self.commands)}


async def waiting_for(ledger: Ledger, thread_id: str) -> Waiting | None:
    """Return what a thread waits for; None: it does not wait.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    rows = await ledger.open_calls(thread_id)
    return _approval(_questions(rows, thread_id), thread_id) or _settlement(rows, thread_id)


async def open_approvals(ledger: Ledger, thread_id: str) -> list[Approval]:
    """Return the open approvals of a thread.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    return _questions(await ledger.open_calls(thread_id), thread_id)


def withdrawal(approval: Approval) -> Message:
    """Return the row that closes an approval that is no longer needed."""
    payload = OptionResultPayload(
        invocation_id=approval.id,
        option_name=APPROVE,
        is_error=True,
        error_type=WithdrawnError.code,
        error_message="the thread is terminated",
        retryable=False,
    )
    return Message(policy=RUNTIME_POLICY, payload=payload, lane="control", in_reply_to=approval.message_id)


def _questions(rows: Sequence[Record], thread_id: str) -> list[Approval]:
    return [approval for row in rows if (approval := Approval.of((row,), thread_id)) is not None]


def _approval(asked: Sequence[Approval], thread_id: str) -> Waiting | None:
    open_ones = [approval for approval in asked if not approval.is_late(current_port().now())]
    resume = f"antiphon resume {thread_id}"
    if open_ones:
        calls = " and ".join(f"{each.tool!r} in the {each.agent} phase" for each in open_ones)
        ways = tuple(f"antiphon approve {each.id} --as {quote((*each.approvers, 'NAME')[0])}" for each in open_ones)
        return Waiting(f"a person must approve {calls} (or deny it)", (*ways, resume))
    if asked:
        return Waiting(f"nobody has approved {asked[0].tool!r} in time", (resume,), is_answered=True)
    return None


def _settlement(rows: Sequence[Record], thread_id: str) -> Waiting | None:
    for row in rows:
        payload = row.message.payload
        if isinstance(payload, OptionCallPayload) and payload.option_name == PARK:
            reason = f"{payload.arguments['reason']}; find out its outcome, and record it"
            settle = f"antiphon settle {thread_id} {row.message.parent_id} --result JSON"
            return Waiting(reason, (settle, f"antiphon resume {thread_id}"))
    return None
