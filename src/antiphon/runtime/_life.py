"""Life: pause, resume, terminate and settle threads of every kind, and read their status.

`system/life` is a built-in actor that every system has. It is asked in the thread that the request is about, so the owner of
the thread answers. The state of a thread is a fold over these requests (`_gates.LIFE`).

**Pause.** The gate of the thread is closed, then the request is answered. Running effects may finish; none starts until the
resume.

**Terminate.** The gate is closed, then the request is answered: after that nothing starts, in this process or another. Then
the work is ended: handlers are cancelled, and open calls get an error result. A running `once` effect is parked. If the
process dies in between, recovery ends the open calls.

**Own lives.** A pattern may have its own actor for the life of its threads (`Lives.add`). Requests about such a thread are
forwarded to that actor, and its state decides about the gate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from antiphon import protocol
from antiphon.errors import LedgerError, RefusedError, WithdrawnError
from antiphon.ledger import replay
from antiphon.messages import Message, current_port, thaw
from antiphon.protocol import Reply, Request
from antiphon.protocol._values import Value
from antiphon.runtime._actor import Actor, Context, handles
from antiphon.runtime._delivery import wait_for_handlers
from antiphon.runtime._gates import LIFE, LIFE_ACTOR, Gates, GateState, LifeState
from antiphon.runtime._leftovers import thread_endings
from antiphon.runtime._redelivery import Settlement, last_failure, reopen, settle
from antiphon.runtime._reporting import warn
from antiphon.runtime._rows import PARK, Standing, has_work, option_of, waits_for_person
from antiphon.runtime._settings import SYSTEM

if TYPE_CHECKING:
    from antiphon.ledger import Owners
    from antiphon.runtime._delivery import InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._recovery import Timers


# ---------------------------------------------------------------- requests and statuses


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


# ---------------------------------------------------------------- lives


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
        return await replay(self._journal.ledger, thread_id, LIFE.fold())

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
        await wait_for_handlers(lambda: any(self._in_flight.has(delivery) for delivery in running), _PATIENCE)
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
        if listed == "completed" and summary is not None and summary.pattern is not None:
            # As of a thread of six phases: else a finished task is shown as paused, for ever.
            reason = f"{request.message_type} is not possible while the thread is completed"
            details = {"thread_id": request.thread_id, "status": listed}
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE, details=details)
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
            warn("the work of the terminated thread %s could not be ended: %s", thread_id, error=exc, thread_id=thread_id)
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
        """Deliver calls that another process left open, unless all of them wait for a person: each delivery is an attempt."""
        calls = [row.message for row in await context.ledger.open_calls(thread_id) if row.message.to != (LIFE_ACTOR,)]
        if not any(map(waits_for_person, calls)) or has_work(calls):
            await context.recover_thread(thread_id)

    async def _is_forwarded(self, context: Context, thread_id: str) -> bool:
        """Forward a request about a thread that another actor controls; return whether it was forwarded."""
        self._check_thread(context, thread_id)
        to = await self._lives.actor_of(thread_id)
        if to is not None:
            await context.forward(to)
        return to is not None

    async def _checked(self, context: Context, request: protocol.PauseThread | _Move) -> LifeState:
        """Return the state of a thread, if the request is allowed."""
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


def _resumed_status(open_calls: Sequence[Message], before: str | None) -> str:
    """Return the status in lists of a resumed thread."""
    if any(map(waits_for_person, open_calls)):
        return "waiting"
    at_work = any(call.to and call.to != (LIFE_ACTOR,) for call in open_calls if call.lane == "control")
    return "processing" if at_work else before or "completed"


async def is_parked(ledger: Owners, thread_id: str, invocation_id: str) -> bool:
    """Whether a message or an effect is parked."""
    return Standing.of(await ledger.open_calls(thread_id), invocation_id).parked is not None


# ---------------------------------------------------------------- status

_STATUS: Final[Mapping[str | None, str]] = {
    **{each: each for each in ("created", "processing", "paused", "completed", "failed", "terminated", "stopped")},
    "waiting": "paused",  # these wait for a person: nothing continues by itself
}


async def read_status(ledger: Owners, thread_id: str) -> protocol.ThreadStatus:
    """Return the status of a thread from the ledger. `reason` is why it was terminated or stopped.

    Raises:
        RefusedError: there is no such thread.
        LedgerError: the ledger cannot be read.
    """
    summary = await ledger.thread(thread_id)
    if summary is None:
        raise not_found(thread_id)
    state = await replay(ledger, thread_id, LIFE.fold())
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
