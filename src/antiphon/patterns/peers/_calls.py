"""Calls: how one peer asks another. A failure is recorded as an error and returned; it is not raised.

1. The rules decide, then the circuit breaker. Calls of a thread are decided one after the other: two at the same time would
   both count as the first.
2. The decision is recorded: the `agent_call`, which counts from then on, or an `error`. After a crash the recorded decision is
   used, so nothing is decided twice.
3. The other peer is asked, with a deadline.
4. The outcome is recorded: an `agent_response`, or an `error`.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from antiphon import errors
from antiphon.durable import LedgerRun
from antiphon.ledger import Ledger
from antiphon.messages import DataPart, Json, Message, PartsPayload, current_port
from antiphon.patterns.peers._letters import Exchange, InvokePeer, PeerLimits, Refusal, address_of, letter_of
from antiphon.patterns.peers._memory import PeerMemory
from antiphon.patterns.peers._registry import PeerRegistry, find_refusal
from antiphon.runtime import Context, system_thread
from antiphon.runtime._rows import notice_in

# ---------------------------------------------------------------- the circuit breaker


CIRCUIT_OPEN: Final = "CIRCUIT_OPEN"
_OUTCOME: Final = "PEER_OUTCOME"

BreakerState: TypeAlias = Literal["closed", "open", "half-open"]


@dataclass(slots=True)
class _Standing:
    """The recent failures of a peer."""

    failures: int = 0
    """Consecutive failures so far."""
    failed_at: datetime | None = None
    tried_by: str | None = None
    """The call that probes the peer after its failures, if any."""
    length: int = 0
    """The length of the peer's record when it was read: another host may append to it."""


class Breaker:
    """A circuit breaker for each peer."""

    def __init__(self, ledger: Ledger, limits: PeerLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._standings: dict[str, _Standing] = {}

    async def state(self, name: str) -> BreakerState:
        """Return whether a peer is asked (closed), not asked (open), or may be probed (half-open)."""
        standing = await self._standing(name)
        if standing.failures < self._limits.failures or standing.failed_at is None:
            return "closed"
        is_over = current_port().now() - standing.failed_at >= timedelta(seconds=self._limits.recovery)
        return "half-open" if is_over and standing.tried_by is None else "open"

    async def admit(self, exchange: Exchange) -> Refusal | None:
        """Admit a call to a peer, whose end `note` and `leave` report; or return the reason for a refusal."""
        name = exchange.callee
        state = await self.state(name)
        if state == "open":
            reason = f"{name!r} has failed {self._limits.failures} times in a row and is left alone; try later"
            return Refusal(CIRCUIT_OPEN, reason, retryable=True)
        if state == "half-open":
            (await self._standing(name)).tried_by = exchange.id
        return None

    def leave(self, exchange: Exchange) -> None:
        """End a call with any outcome; if it was the probe, another probe may follow."""
        standing = self._standings.get(exchange.callee)
        if standing is not None and standing.tried_by == exchange.id:
            standing.tried_by = None

    async def note(self, exchange: Exchange, *, failed: bool) -> None:
        """Record the outcome of a call; a success only after failures."""
        standing = await self._standing(exchange.callee)
        if not failed and not standing.failures:
            return
        address = address_of(exchange.callee)
        outcome: dict[str, Json] = {"type": _OUTCOME, "data": {"caller": exchange.caller, "failed": failed}}
        row = Message(
            policy=address_of(exchange.caller),
            payload=PartsPayload(parts=(DataPart(data=outcome),)),
            id=f"{exchange.id}:outcome",
            to=(address,),
            lane="control",
        )
        await self._ledger.post(system_thread(address), row)
        read = await self._read(exchange.callee)  # set, not incremented: it may have been recorded before a crash
        standing.failures, standing.failed_at = read.failures, read.failed_at

    async def _standing(self, name: str) -> _Standing:
        length = (await self._ledger.head(system_thread(address_of(name)))).seq
        standing = self._standings.setdefault(name, _Standing(length=-1))
        if standing.length != length:
            read = await self._read(name)
            standing.failures, standing.failed_at, standing.length = read.failures, read.failed_at, length
        return standing

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
    """Return whether a message records a failure or a success of a peer; None: neither."""
    kind, data = notice_in(message) or ("", {})
    return bool(data.get("failed")) if kind == _OUTCOME else None


# ---------------------------------------------------------------- calls


MESSAGE_NOT_FOUND: Final = "MESSAGE_NOT_FOUND"
_NOT_ENDED: Final = (errors.ParkedError, errors.HistoryMismatchError)
"""Errors that are not failures of the peer: the call continues after a person's decision, or in a suitable program."""
_NOT_ITS_FAULT: Final = (errors.BudgetExceededError, errors.HopLimitError, errors.WithdrawnError)
"""The codes of calls that ended without a failure of the peer."""


@dataclass(frozen=True, slots=True)
class PeerTurn:
    """A peer that handles a request."""

    context: Context
    name: str
    depth: int
    calls: Calls
    task_id: str | None = None
    """The task that its caller names."""


class Calls:
    """Carries calls between peers."""

    def __init__(self, ledger: Ledger, registry: PeerRegistry, limits: PeerLimits) -> None:
        self.breaker = Breaker(ledger, limits)
        self._ledger, self._registry, self._limits = ledger, registry, limits
        self._deciding: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    async def invoke(
        self,
        turn: PeerTurn,
        run: LedgerRun,
        target: str,
        request: str,
        context_message_ids: Iterable[str] = (),
        *,
        untrusted: str | None = None,
        message_id: str | None = None,
    ) -> Message:
        """Ask another peer, and return the recorded answer or error.

        `run` belongs to this call alone. After a crash, the same call returns the recorded answer. `untrusted` is the source
        of untrusted content that the peer has read; `message_id` is the id of the `agent_call`, if a program has written one.
        """
        place = f"{run.thread_id}\n{run.course.invocation_id}"
        exchange = Exchange(
            id=f"task-{sha256(place.encode()).hexdigest()[:16]}",
            root=turn.context.message.correlation_id or turn.context.message.id,
            caller=turn.name,
            callee=target,
            request=request,
            depth=turn.depth + 1,
            context_message_ids=tuple(context_message_ids),
            untrusted=untrusted,
            caller_task=turn.task_id,
            message_id=message_id,
        )
        try:
            letter = await self._decide(turn, run, exchange)
            return letter if letter.kind != "option_call" else await self._ask(turn, run, exchange)
        finally:
            self.breaker.leave(exchange)

    # ------------------------------------------------------------ 1. and 2.

    async def _decide(self, turn: PeerTurn, run: LedgerRun, exchange: Exchange) -> Message:
        """Return the letter with the decision on the call."""
        lock = self._deciding.setdefault(run.thread_id, Lock())
        async with lock:
            records = await self._ledger.find(correlation_id=exchange.root, thread_id=run.thread_id)
            letters = [record.message for record in records if letter_of(record.message) is not None]
            for letter in letters:
                if letter.id == f"{run.course.invocation_id}/letter":
                    return letter
            calls = sum(letter.kind == "option_call" for letter in letters)
            refusal = await self._refusal(turn, exchange, calls)
            letter = exchange.call() if refusal is None else exchange.refused(refusal)
            return (await run.say(letter, key="letter")).message

    async def _refusal(self, turn: PeerTurn, exchange: Exchange, calls: int) -> Refusal | None:
        """Return the reason why a call is refused, after `calls` calls for the same task; None: it is allowed."""
        caller = self._registry.get(turn.name)
        refusal = find_refusal(self._registry, self._limits, caller, exchange.callee, depth=exchange.depth, interactions=calls)
        if refusal is None and exchange.context_message_ids:
            memory = await PeerMemory.read(self._ledger, turn.context.thread_id or "", turn.name)
            missing = [message_id for message_id in exchange.context_message_ids if memory.by_id(message_id) is None]
            if missing:
                return Refusal(MESSAGE_NOT_FOUND, f"there is no message {missing[0]!r} in the memory of {turn.name!r}")
        return refusal or await self.breaker.admit(exchange)

    # ------------------------------------------------------------ 3. and 4.

    async def _ask(self, turn: PeerTurn, run: LedgerRun, exchange: Exchange) -> Message:
        request = InvokePeer(
            request=exchange.request,
            depth=exchange.depth,
            context_message_ids=exchange.context_message_ids,
            untrusted=exchange.untrusted,
            task_id=exchange.caller_task,
        )
        address = address_of(exchange.callee)
        try:
            answered = await turn.context.ask(address, request, within=self._limits.within, key=exchange.id)
        except _NOT_ENDED:
            raise
        except errors.DeliveryError as exc:
            if not isinstance(exc, _NOT_ITS_FAULT):
                await self.breaker.note(exchange, failed=True)
            letter = exchange.failure(Refusal(exc.code, exc.reason, exc.retryable))
        else:
            await self.breaker.note(exchange, failed=False)
            letter = exchange.response(answered.content, answered.completion_time, answered.untrusted)
        return (await run.say(letter, key="answer")).message
