"""Life: pause, resume, terminate and settle threads of every kind, and read their status.

`system/life` is a built-in actor that every system has. It is asked in the thread that the request is about, so the owner of
the thread answers. The state of a thread is a fold over these requests (`LIFE`): a new process finds a paused thread paused.

```
open ⇄ paused ─► terminated
```

**Gates** hold the effects of a paused thread, and refuse those of a terminated one. Each start of an effect is inside the gate
of its thread from before its intent is written until after. Closing a gate waits for the starts that are inside; later ones
wait until it opens, or are refused if the thread is terminated. So after a pause is acknowledged, no model call and no tool of
the thread starts. The ledger decides: the state of a gate is cached only for the epoch in which it was read. The first start
under another epoch reads the thread again, because another host, or a process that has died, may have paused it.

**Pause.** The gate of the thread is closed, then the request is answered. Running effects may finish; none starts until the
resume.

**Terminate.** The gate is closed, then the request is answered: after that nothing starts, in this process or another. Then
the work is ended: handlers are cancelled, and open calls get an error result. A running `once` effect is parked. If the
process dies in between, recovery ends the open calls.

**Own lives.** A pattern may have its own actor for the life of its threads (`Lives.add`). Requests about such a thread are
forwarded to that actor, and its state decides about the gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from antiphon import protocol
from antiphon.errors import LedgerError, RefusedError, WithdrawnError
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, current_port, thaw
from antiphon.protocol import Reply, Request, Value
from antiphon.runtime._actor import Actor, Context, handles
from antiphon.runtime._effects import ActorState
from antiphon.runtime._redelivery import Settlement, last_failure, reopen, settle, thread_endings
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._rows import PARK, Standing, option_of
from antiphon.runtime._settings import SYSTEM, Address

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.runtime._delivery import InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._recovery import Timers


GateState: TypeAlias = Literal["open", "closed", "over"]

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
                        self._forget_some()
                    gate.epoch = epoch
                    gate.turn(state)
                return gate
        finally:
            if not lock.locked():
                self._looking.pop(thread_id, None)

    def _forget_some(self) -> None:
        """Drop the oldest gates while there are too many."""
        if len(self._gates) > _MOST:
            for thread_id in tuple(islice(self._gates, 16)):
                self.forget(thread_id)


# ---------------------------------------------------------------- requests and statuses


LIFE_ACTOR: Final = Address(SYSTEM, "life")
"""The address of the life actor, which every system has."""

Held: TypeAlias = Literal["open", "paused", "terminated"]

_BECOMES: Final[Mapping[str, Held]] = {
    protocol.PauseThread.message_type: "paused",
    protocol.ResumeThread.message_type: "open",
    protocol.TerminateThread.message_type: "terminated",
}


class Settled(Reply, frozen=True, type="SETTLED"):
    """The outcome is recorded."""

    thread_id: str
    invocation_id: str


class Settle(Request[Settled], frozen=True, type="SETTLE", family="system"):
    """Record the outcome of a parked message: a result, an error, or another try."""

    thread_id: str
    invocation_id: str
    result: Value = None
    error: str | None = None
    retry: bool = False


# ---------------------------------------------------------------- the state


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

LookOwn: TypeAlias = Callable[[str], Awaitable[GateState | None]]
"""Reads the gate of a thread that a pattern's own actor controls; returns None for other threads."""


class Lives:
    """The states of threads in this system, and their gates."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._own: list[tuple[LookOwn, Callable[[str], str]]] = []
        self.gates = Gates(self._look, journal.epoch)

    def add(self, look: LookOwn, address: Callable[[str], str]) -> None:
        """Let the actor at `address` control the threads for which `look` returns a gate."""
        self._own.append((look, address))

    async def actor_of(self, thread_id: str) -> str | None:
        """Return the pattern's actor that controls a thread; None if the life actor does."""
        for look, address in self._own:
            if await look(thread_id) is not None:
                return address(thread_id)
        return None

    async def state(self, thread_id: str) -> LifeState:
        """Return the state of a thread."""
        return await self._journal.ledger.replay(thread_id, LIFE.fold())

    async def _look(self, thread_id: str) -> GateState:
        if thread_id.startswith(f"{SYSTEM}/"):
            return "open"
        for look, _ in self._own:
            if (state := await look(thread_id)) is not None:
                return state
        return (await self.state(thread_id)).gate


# ---------------------------------------------------------------- the end of a thread


class Termination:
    """Ends the work of terminated threads."""

    def __init__(self, journal: Journal, in_flight: InFlight, timers: Timers, lives: Lives) -> None:
        self._journal = journal
        self._in_flight = in_flight
        self._timers = timers
        self._lives = lives

    async def end(self, thread_id: str) -> None:
        """Cancel the handlers of a thread, wait until they have ended, and end the calls that are left open."""
        self._timers.forget(thread_id)
        running = [each for each in self._in_flight.of_thread(thread_id) if each.to != LIFE_ACTOR]
        for delivery in running:
            delivery.terminate(WithdrawnError("the thread is terminated", delivery.to))
        patience = _PATIENCE
        while patience > 0 and any(self._in_flight.has(delivery) for delivery in running):
            await asyncio.sleep(_STEP)
            patience -= _STEP
        await self._end_open_calls(thread_id)

    async def end_if_terminated(self, thread_id: str) -> None:
        """End the open calls of a thread, if it was terminated: the process that terminated it may have died meanwhile."""
        if await self._lives.gates.is_over(thread_id) and (await self._lives.state(thread_id)).held == "terminated":
            await self._end_open_calls(thread_id)

    async def _end_open_calls(self, thread_id: str) -> None:
        await self._journal.settle(thread_id)
        rows = await self._journal.ledger.open_calls(thread_id)
        busy = {delivery.invocation_id for delivery in self._in_flight.of_thread(thread_id)}
        ends = thread_endings(rows, thread_id, busy, LIFE_ACTOR)
        summary = await self._journal.ledger.thread(thread_id)
        if ends or (summary is not None and summary.status != "terminated"):
            # Write the status again: a cancelled handler may have written another one with its last row.
            await self._journal.write(thread_id, ends, status="terminated")


_PATIENCE = 10.0
"""Seconds that the handlers of a terminated thread have to end. A handler that ignores its cancellation ends its call
itself."""
_STEP = 0.02


# ---------------------------------------------------------------- the actor


class LifeActor(Actor):
    """Pauses, resumes, terminates and settles the threads of a system, each request in its own thread."""

    concurrency = 1000  # requests about one thread are handled one after the other

    def __init__(self, lives: Lives, termination: Termination) -> None:
        self._lives = lives
        self._gates = lives.gates
        self._termination = termination

    @handles
    async def pause(self, request: protocol.PauseThread, context: Context) -> protocol.ThreadPaused | None:
        if await self._is_forwarded(context, request.thread_id):
            return None
        state = await self._checked(context, request)
        summary = await context.ledger.thread(request.thread_id)
        listed = None if summary is None else summary.status
        before = state.status_before if state.held == "paused" else listed
        more: dict[str, Any] = {} if before is None else {"status_before": before}
        try:
            await self._gates.close(request.thread_id)
            context.mark(status="paused")
            # Answered after the gate is closed: the reader of the answer may rely on it.
            paused = protocol.ThreadPaused(thread_id=request.thread_id, paused_at=current_port().now(), **more)
            await context.reply(paused)
        except BaseException:
            await self._gates.look_again(request.thread_id)
            raise
        return None

    @handles
    async def resume(self, request: protocol.ResumeThread, context: Context) -> protocol.ThreadResumed | None:
        thread_id = request.thread_id
        if await self._is_forwarded(context, thread_id):
            return None
        state = await self._checked(context, request)
        rows = await context.ledger.open_calls(thread_id)
        if state.held == "paused":
            context.mark(status=_resumed_status([row.message for row in rows], state.status_before))
        await context.reply(protocol.ThreadResumed(thread_id=thread_id, resumed_at=current_port().now()))
        # After the answer is stored: otherwise a crash could leave an effect that started in a thread recorded as paused
        # (G12).
        self._gates.open(thread_id)
        await self._continue(context, thread_id)
        return None

    @handles
    async def terminate(self, request: protocol.TerminateThread, context: Context) -> protocol.ThreadTerminated | None:
        thread_id = request.thread_id
        if await self._is_forwarded(context, thread_id):
            return None
        await self._checked(context, request)
        try:
            await self._gates.close(thread_id)
            context.mark(status="terminated")
            now = current_port().now()
            await context.reply(protocol.ThreadTerminated(thread_id=thread_id, terminated_at=now, reason=request.reason))
        except BaseException:
            await self._gates.look_again(thread_id)
            raise
        self._gates.end(thread_id)
        try:
            await self._termination.end(thread_id)
        except LedgerError as exc:  # it is answered: the next recovery ends the calls that are still open
            text = "the work of the terminated thread %s could not be ended: %s"
            LOG.warning(text, thread_id, log_text(exc), extra=log_fields(thread_id=thread_id, error=exc))
        return None

    @handles
    async def status(self, request: protocol.GetThreadStatus, context: Context) -> protocol.ThreadStatus | None:
        if await self._is_forwarded(context, request.thread_id):
            return None
        return await read_status(context.ledger, request.thread_id)

    @handles
    async def settle(self, request: Settle, context: Context) -> Settled:
        thread_id, invocation_id = request.thread_id, request.invocation_id
        self._check_thread(context, thread_id)
        outcome = Settlement(result=thaw(request.result), error=request.error, retry=request.retry)
        if await is_parked(context.ledger, thread_id, invocation_id):
            await settle(context.journal, thread_id, invocation_id, outcome)
        elif request.retry and (failed := await last_failure(context.ledger, thread_id, invocation_id)) is not None:
            await reopen(context.journal, thread_id, failed)
        elif context.attempt == 1:  # in a later attempt: an earlier attempt has settled it
            reason = f"{invocation_id!r} is not parked in thread {thread_id!r}"
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE)
        await context.recover_message(thread_id, invocation_id)
        return Settled(thread_id=thread_id, invocation_id=invocation_id)

    async def _continue(self, context: Context, thread_id: str) -> None:
        """Deliver calls that another process left open, but not those that wait for a person: each delivery is an attempt."""
        if not any(_waits_for_person(row.message) for row in await context.ledger.open_calls(thread_id)):
            await context.recover_thread(thread_id)

    async def _is_forwarded(self, context: Context, thread_id: str) -> bool:
        """Forward a request about a thread that another actor controls; return whether it was forwarded."""
        self._check_thread(context, thread_id)
        to = await self._lives.actor_of(thread_id)
        if to is not None:
            await context.forward(to)
        return to is not None

    async def _checked(self, context: Context, request: protocol.PauseThread | _Move) -> LifeState:
        """Return the state of a thread, if the request is allowed.

        Raises:
            RefusedError: it is terminated, and the request is not to terminate it.
        """
        thread_id = request.thread_id
        head = await context.ledger.head(thread_id)
        state = await context.state_at(thread_id, head.seq, LIFE)
        if state.held == "terminated" and not isinstance(request, protocol.TerminateThread):
            reason = f"{request.message_type} is not possible: thread {thread_id!r} is terminated"
            details = {"thread_id": thread_id, "status": "terminated"}
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE, details=details)
        return state

    def _check_thread(self, context: Context, thread_id: str) -> None:
        if context.thread_id != thread_id:
            reason = f"ask {LIFE_ACTOR} in the thread {thread_id!r}, not in {context.thread_id!r}"
            raise RefusedError(reason, protocol.ErrorCode.VALIDATION_ERROR)
        if context.seq == 1:
            raise not_found(thread_id)


_Move: TypeAlias = protocol.ResumeThread | protocol.TerminateThread


def not_found(thread_id: str) -> RefusedError:
    """Return the error for a thread that the ledger does not have."""
    return RefusedError(f"there is no thread {thread_id!r}", protocol.ErrorCode.THREAD_NOT_FOUND)


def _waits_for_person(call: Message) -> bool:
    """Whether an open call is a question to a person that has not expired: an approval (ADR 0010)."""
    payload = call.payload
    if call.lane != "control" or call.to or not isinstance(payload, OptionCallPayload):
        return False
    try:
        return datetime.fromisoformat(str(payload.arguments.get("expires_at"))) > current_port().now()
    except (TypeError, ValueError):
        return False  # no timestamp, or none with a time zone: it is another question, or forged


def _resumed_status(open_calls: Sequence[Message], before: str | None) -> str:
    """Return the status in lists of a resumed thread."""
    if any(_waits_for_person(call) for call in open_calls):
        return "waiting"
    at_work = any(call.to and call.to != (LIFE_ACTOR,) for call in open_calls if call.lane == "control")
    return "processing" if at_work else before or "completed"


async def is_parked(ledger: Ledger, thread_id: str, invocation_id: str) -> bool:
    """Whether a message or an effect is parked.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    return Standing.of(await ledger.open_calls(thread_id), invocation_id).parked is not None


# ---------------------------------------------------------------- status

_STATUS: Final[Mapping[str | None, str]] = {
    **{each: each for each in ("created", "processing", "paused", "completed", "failed", "terminated", "stopped")},
    "waiting": "paused",  # these wait for a person: nothing continues by itself
}


async def read_status(ledger: Ledger, thread_id: str) -> protocol.ThreadStatus:
    """Return the status of a thread from the ledger. `reason` is why it was terminated or stopped.

    Raises:
        RefusedError: there is no such thread.
        LedgerError: the ledger cannot be read.
    """
    summary = await ledger.thread(thread_id)
    if summary is None:
        raise not_found(thread_id)
    state = await ledger.replay(thread_id, LIFE.fold())
    reason, status = state.reason, str(state.held)
    if state.held == "open" and summary.status in _STATUS and (summary.pattern is not None or summary.status == "stopped"):
        status = _STATUS[summary.status]
        reason = summary.unfit[-1].reason if status == "stopped" and summary.unfit else None
    elif state.held == "open":
        rows = [row.message for row in await ledger.open_calls(thread_id) if row.message.to != (LIFE_ACTOR,)]
        is_parked = any(option_of(row) == PARK and row.lane == "effect" for row in rows)
        status = "paused" if is_parked else "processing" if rows else "completed" if state.is_used else "created"
    more: dict[str, Any] = {} if reason is None else {"reason": reason}
    return protocol.ThreadStatus(
        thread_id=thread_id,
        status=status,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] (one of `_STATUS`)
        current_phase=None,
        created_at=summary.created_at,
        updated_at=summary.updated_at,
        phases_completed=(),
        phases_remaining=(),
        **more,
    )
