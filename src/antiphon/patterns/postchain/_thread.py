"""ThreadActor: one for each thread. It runs the phases, and handles start, pause, resume and terminate.

The state of a thread is a fold over its rows (`_lifecycle.py`). START_THREAD sends RUN_THREAD, which is open while the thread
runs. So after a crash, the next owner of the thread runs it again: recorded answers come from the ledger. The other messages
are handled concurrently with it (`ordering_key`), one after the other.

PAUSE closes the gate of the thread, and is answered when no start is inside. The end of a run also passes the gate, so a
thread cannot be paused and completed at the same time. TERMINATE is answered before the run is cancelled: from then on nothing
starts, in this process or another, because the gate follows the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, cast

from antiphon import protocol
from antiphon._tasks import beside
from antiphon.agents.toolkit import pending_approvals
from antiphon.durable import ledger_run, waiting_for
from antiphon.errors import BudgetExceededError, DeliveryError, HopLimitError, RefusedError, UndeliverableError, WithdrawnError
from antiphon.messages import (
    DataPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    current_port,
    thaw,
)
from antiphon.patterns.cast._handling import UNHURRIED, handling, withdrawal
from antiphon.patterns.postchain._chain import Chain
from antiphon.patterns.postchain._config import ChainConfig, check_input, check_metadata
from antiphon.patterns.postchain._context import (
    CLIENT,
    AskChain,
    ChainAnswered,
    ChainContext,
    ProcessOwnPhase,
    RunThread,
    SubscribeThread,
    ThreadSubscribed,
    items_to,
    operations_from,
)
from antiphon.patterns.postchain._lifecycle import LIFE, PATTERN, ThreadLife, history_of
from antiphon.runtime import Actor, Context, handles, type_of
from antiphon.runtime._settings import STOPPED

_ONCE: Final = (protocol.CreateThread, protocol.StartThread)
"""The moves that are not legal a second time. The others have no effect then."""


class ThreadActor(Actor):
    """One thread."""

    concurrency = 8

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._terminated = asyncio.Event()
        self._subscribers: list[str] = []
        """The receivers that have subscribed in this process."""
        self._is_answered = asyncio.Event()
        """Set when the START or RESUME that started the run is answered: no phase is asked before."""
        self._is_answered.set()
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Handle RUN_THREAD concurrently with the other messages."""
        return RunThread.message_type if type_of(message) == RunThread.message_type else None

    # ------------------------------------------------------------ its life

    @handles
    async def create(self, request: protocol.CreateThread, context: Context) -> protocol.ThreadCreated:
        _, thread_id = await self._life(context, protocol.CreateThread)
        check_input(request.initial_input, self._chain.config.input_limit)
        check_metadata(request.user_id, thaw(request.metadata or {}))
        context.mark(status="created", pattern=PATTERN)
        return protocol.ThreadCreated(thread_id=thread_id)

    @handles
    async def start(self, request: protocol.StartThread, context: Context) -> protocol.ThreadStarted | None:
        life, thread_id = await self._life(context, protocol.StartThread)
        check_input(request.input, self._chain.config.input_limit)
        if life.status == "completed" and not request.input:
            reason = "the thread is completed: give START_THREAD an `input` for its next turn"
            raise RefusedError(
                reason, protocol.ErrorCode.INVALID_STATE, details={"thread_id": thread_id, "status": life.status}
            )
        context.mark(status="processing", pattern=PATTERN)
        self._is_answered.clear()
        await context.tell(context.address, RunThread(thread_id=thread_id), key="run")
        await context.reply(protocol.ThreadStarted(thread_id=thread_id, started_at=current_port().now()))
        self._is_answered.set()
        return None

    @handles
    async def pause(self, request: protocol.PauseThread, context: Context) -> protocol.ThreadPaused | None:
        _, thread_id = await self._life(context, protocol.PauseThread)
        if await self._was_resumed(context):  # the process that asked for it died, and the thread was resumed since
            details = {"thread_id": thread_id, "status": "processing"}
            reason = "the thread was resumed after PAUSE_THREAD was sent"
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE, details=details)
        try:
            # First the gate, then the state: a run that ended in between would be completed, and paused after that.
            await self._chain.gates.close(thread_id)
            life = await self._now(context)
            life.check(protocol.PauseThread.message_type, thread_id)
            paused = protocol.ThreadPaused(thread_id=thread_id, paused_at=current_port().now(), current_phase=life.known_phase)
            # A thread that a failure outside has stopped is paused for the protocol, and stopped in lists.
            waiting = await waiting_for(self._chain.ledger, thread_id)
            is_stopped = waiting is not None and waiting.stopped_by is not None
            context.mark(status=STOPPED if is_stopped else "paused", pattern=PATTERN)
            await context.reply(paused)
        except BaseException:
            await self._chain.gates.look_again(thread_id)
            raise
        return None

    @handles
    async def resume(self, request: protocol.ResumeThread, context: Context) -> protocol.ThreadResumed | None:
        life, thread_id = await self._life(context, protocol.ResumeThread)
        if not await self._is_run(context):  # a branch: the run of its parent does not cover it
            self._is_answered.clear()
            await context.tell(context.address, RunThread(thread_id=thread_id), key="run")
        resumed = protocol.ThreadResumed(thread_id=thread_id, resumed_at=current_port().now(), current_phase=life.known_phase)
        context.mark(status="processing", pattern=PATTERN)
        await context.reply(resumed)
        self._is_answered.set()
        # Opened only after the answer is stored: otherwise work could start in a thread that is paused for other processes.
        self._chain.gates.open(thread_id)
        if self._idle.is_set():  # its process is gone
            await context.recover_thread(thread_id)
        return None

    @handles
    async def terminate(self, request: protocol.TerminateThread, context: Context) -> protocol.ThreadTerminated | None:
        _, thread_id = await self._life(context, protocol.TerminateThread)
        gates = self._chain.gates
        try:
            await gates.close(thread_id)
            was_waiting = await self._withdraw_questions(context)
            terminated = protocol.ThreadTerminated(
                thread_id=thread_id, terminated_at=current_port().now(), reason=request.reason
            )
            context.mark(status="terminated", pattern=PATTERN)
            await context.reply(terminated)
        except BaseException:
            await gates.look_again(thread_id)
            raise
        # Cancelled only after the answer is stored: if the process died before, the next one would run the thread again.
        gates.end(thread_id)
        self._terminated.set()
        if was_waiting or self._idle.is_set():  # its process is gone: close the calls that it left open
            await context.recover_thread(thread_id)
        await self._idle.wait()
        gates.forget(thread_id)
        context.rest()
        return None

    async def _withdraw_questions(self, context: Context) -> bool:
        """Withdraw the open approvals; return whether there was any."""
        open_ones = await pending_approvals(self._chain.ledger, thread_id=_thread(context))
        async with ledger_run(context) as run:
            for approval in open_ones:
                await run.note(withdrawal(approval), key=f"{approval.id}:withdrawn")
        return bool(open_ones)

    @handles
    async def subscribe(self, request: SubscribeThread, context: Context) -> ThreadSubscribed:
        _, thread_id = await self._life(context, SubscribeThread)
        self._subscribers.append(context.message.policy)
        return ThreadSubscribed(thread_id=thread_id, subscriber=context.message.policy)

    @handles
    async def status(self, request: protocol.GetThreadStatus, context: Context) -> protocol.ThreadStatus:
        _, thread_id = await self._life(context, protocol.GetThreadStatus)
        life = await self._now(context)
        waiting = await waiting_for(self._chain.ledger, thread_id) if life.status == "paused" else None
        status = protocol.ThreadStatus(
            thread_id=thread_id,
            status=life.status,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] (checked: it is not `none`)
            current_phase=life.known_phase if life.remaining else None,
            created_at=_time(life.created_at),
            updated_at=_time(life.updated_at),
            phases_completed=tuple(phase for phase in protocol.PHASES if phase in life.completed),
            phases_remaining=tuple(phase for phase in protocol.PHASES if phase in life.remaining),
        )
        return status if waiting is None else status.model_copy(update={"waiting_for": waiting.to_json()})

    # ------------------------------------------------------------ its work

    @handles
    async def run(self, notice: RunThread, context: Context) -> None:
        """Run the phases, unless the thread is terminated meanwhile."""
        self._idle.clear()
        self._chain.at_work[_thread(context)] = self._idle
        try:
            async with beside(self._work(context), self._terminated.wait()) as (work, over):
                await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._chain.at_work.pop(_thread(context), None)
            self._chain.talks.rest(_thread(context))
            self._idle.set()
        if not work.cancelled() and (error := work.exception()) is not None and not self._terminated.is_set():
            raise error

    async def _work(self, context: Context) -> None:
        thread_id = _thread(context)
        await self._until_answered(context)
        life = await context.state(LIFE)
        life = life.with_answered(context.message.parent_id)  # START_THREAD sends this, then answers
        if life.is_over:
            return
        while self._chain.lacks_phase(life) is not None:  # only the program that has these phases can continue it
            paused = protocol.PauseThread(thread_id=thread_id)
            await context.ask(context.address, paused, within=UNHURRIED, key="pause")
            await self._chain.gates.passed(thread_id)
        try:
            while (phase := life.current_phase) is not None:
                await self._chain.gates.passed(thread_id)
                request = _request(life, phase, thread_id, self._chain.config)
                life = life.with_phase_done(phase, await _run_phase(phase, request, context, self._chain))
        except WithdrawnError:
            return  # the thread is terminated
        except DeliveryError as exc:
            if context.is_closing:
                raise  # not a failure: the next process continues it
            await self._tell(context, life, _failed(life, exc, thread_id))
        else:
            await self._tell(context, life, _completed(life, thread_id))

    async def _until_answered(self, context: Context) -> None:
        """Wait until the message that started the run is answered; after a crash, only the ledger knows whether it is."""
        if context.attempt > 1:
            self._is_answered.clear()
            if context.message.parent_id not in ((await self._now(context)).asked or {}):
                self._is_answered.set()
        await self._is_answered.wait()

    async def _tell(self, context: Context, life: ThreadLife, result: protocol.ThreadResult) -> None:
        """Send the result to the creator and subscribers; then the thread has ended. A paused thread does not end."""
        creator = life.creator if context.knows(life.creator) else CLIENT
        try:
            async with self._chain.gates.passing(result.thread_id):
                context.mark(status=result.status, pattern=PATTERN)
                await self._say(context, creator, result)
                # After a crash, only the ledger knows the subscribers that were added while the thread ran.
                recorded = life if context.attempt == 1 else await self._now(context)
                for subscriber in dict.fromkeys((*recorded.subscribers, *self._subscribers)):
                    if subscriber != creator:
                        with suppress(UndeliverableError):  # it is a dead letter; continue with the other receivers
                            await self._say(context, subscriber, result)
        except WithdrawnError:
            return
        self._chain.gates.forget(result.thread_id)
        context.rest()

    async def _say(self, context: Context, creator: str, result: protocol.ThreadResult) -> None:
        """Send the result; if the thread has used up its budget or its hops, only record it: the thread must end."""
        try:
            await context.tell(creator, result, within=UNHURRIED, key="result")
        except (BudgetExceededError, HopLimitError):
            part = DataPart(data={"type": result.message_type, "data": result.to_data()})
            row = Message(policy=context.address, payload=PartsPayload(parts=(part,)), to=(creator,), lane="control")
            async with ledger_run(context) as run:
                await run.note(row, key="result")

    # ------------------------------------------------------------ the state

    async def _life(self, context: Context, move: type[Any]) -> tuple[ThreadLife, str]:
        """Return the state of the thread, if the move is legal from it."""
        thread_id = _thread(context)
        life = await context.state(LIFE)
        if move in _ONCE and (context.attempt > 1 or life.has_earlier_request(context.course.invocation_id)):
            # An earlier request is answered by now; and before a redelivered one, a later request may be answered.
            life = await self._now(context)
        life.check(move.message_type, thread_id)
        return life, thread_id

    async def _now(self, context: Context) -> ThreadLife:
        """Return the state of the thread, with the messages since the current one arrived."""
        head = await self._chain.ledger.head(_thread(context))
        return await context.state_at(head.thread_id, head.seq, LIFE)

    async def _was_resumed(self, context: Context) -> bool:
        """Whether a RESUME that was sent after this message is answered."""
        later = set[str]()
        async for row in self._chain.ledger.read(_thread(context), after=context.seq):
            match row.message.payload:
                case OptionCallPayload(option_name=protocol.ResumeThread.message_type, invocation_id=asked):
                    later.add(asked)
                case OptionResultPayload(is_error=False, invocation_id=answered) if answered in later:
                    return True
                case _:
                    pass
        return False

    async def _is_run(self, context: Context) -> bool:
        """Whether the thread runs or has ended; a run that this message started does not count."""
        run_id = f"{context.course.invocation_id}/run"
        for record in await self._chain.ledger.open_calls(_thread(context)):
            row, parent_id = record.message, record.message.parent_id or ""
            is_run_thread = row.lane == "effect" and parent_id.endswith("/run") and parent_id == row.invocation_id
            if is_run_thread and parent_id != run_id:
                return True
        return (await self._now(context)).is_over


class DelegateActor(Actor):
    """Runs the phases for agents of other patterns, in their threads."""

    concurrency = 1000

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    @handles
    async def answer(self, request: AskChain, context: Context) -> ChainAnswered:
        """Run the phases; the thread is not the chain's, so it can be neither paused nor started."""
        thread_id = context.thread_id
        if thread_id is None or thread_id != request.thread_id:
            raise RefusedError("the phases work in a thread: ask them in it", protocol.ErrorCode.VALIDATION_ERROR)
        check_input(request.input, self._chain.config.input_limit)
        self._chain.delegated[thread_id] += 1
        try:
            async with handling(context, PATTERN):
                order = self._chain.order
                life = ThreadLife(status="processing", phases=None if order == protocol.PHASES else order)
                life = life.with_turn(request.input)
                while (phase := life.current_phase) is not None:
                    asked = _request(life, phase, thread_id, self._chain.config)
                    life = life.with_phase_done(phase, await _run_phase(phase, asked, context))
        finally:
            self._chain.delegated[thread_id] -= 1
            self._chain.delegated += Counter()  # without zeros
        return ChainAnswered(thread_id=thread_id, result=_completed(life, thread_id).to_data())


async def _run_phase(
    phase: str, request: protocol.ProcessPhase | ProcessOwnPhase, context: Context, chain: Chain | None = None
) -> dict[str, Any]:
    """Run a phase, and return its output as plain JSON. With a chain, the thread is paused while the phase must wait."""
    asked = cast("protocol.Request[protocol.PhaseProcessed]", request)  # the two replies differ only in the names of phases
    to = f"{phase}/1"
    asking = context.ask(to, asked, within=UNHURRIED, key=phase) if chain is None else chain.ask(to, asked, context, phase)
    return (await asking).output.model_dump(mode="json", exclude_unset=True)


_PASSED_ON: Final = ("response", "next_phase", "confidence", "by")
"""The fields of a phase's output that the next phase gets."""


def _request(life: ThreadLife, phase: str, thread_id: str, config: ChainConfig) -> protocol.ProcessPhase | ProcessOwnPhase:
    outputs = life.outputs or {}
    enclosure: dict[str, Any] = {"items": items_to(_context_of(life)), "cycle": life.cycle}
    if life.done:
        last = outputs[life.done[-1]]
        enclosure["previous_phase_output"] = {name: last[name] for name in _PASSED_ON if name in last}
    # The judgements of agents that later phases need. Those that code has made would only repeat the question.
    for field, judge in (("goals", "intention"), ("missing", "experience")):
        output = outputs.get(judge, {})
        if output.get("by") == "agent" and output.get(field):
            enclosure[field] = output[field]
    if life.cycle > 1:
        enclosure["confidences"] = [outputs["yield"].get("confidence") or 0.0]
        enclosure["seen"] = outputs["yield"].get("seen", [])
        if search_for := outputs["yield"].get("search_for"):
            enclosure["search_for"] = search_for
    if life.metadata:
        enclosure["metadata"] = life.metadata
    if life.untrusted is not None:
        enclosure["untrusted"] = life.untrusted
    history = history_of(life.turns[:-1], config.history, config.context_limit)
    if life.outside is not None:
        enclosure["outside"] = life.outside
    context = protocol.PhaseContext(conversation_history=history, user_id=life.user_id)
    if phase not in protocol.PHASES:
        own_request = ProcessOwnPhase(thread_id=thread_id, phase=phase, input=life.input, context=context)
        return own_request.with_enclosure(enclosure)
    phase_type: Any = phase
    asked = protocol.ProcessPhase(thread_id=thread_id, phase_type=phase_type, input=life.input, context=context)
    return asked.with_enclosure(enclosure)


def _completed(life: ThreadLife, thread_id: str) -> protocol.ThreadResult:
    last = (life.outputs or {})["yield"]
    result = protocol.ThreadResult(thread_id=thread_id, status="completed", outputs=_outputs(life), response=last["response"])
    return result.model_copy(update={"citations": last.get("citations", [])})


def _failed(life: ThreadLife, error: DeliveryError, thread_id: str) -> protocol.ThreadResult:
    match error:
        case RefusedError(details={"details": str(why)}):
            message = f"{error.reason}: {why}"
        case _:
            message = error.reason
    return protocol.ThreadResult(
        thread_id=thread_id, status="failed", outputs=_outputs(life), error_message=message, error_code=error.code
    )


def _thread(context: Context) -> str:
    thread_id = context.thread_id
    if thread_id is None or context.address != f"thread/{thread_id}":
        reason = f"{context.address} is the actor of another thread than {thread_id!r}"
        raise RefusedError(reason, protocol.ErrorCode.THREAD_NOT_FOUND)
    return thread_id


def _context_of(life: ThreadLife) -> ChainContext:
    """Return the context: the fold of the operations of this turn's phases, in the order of completion."""
    context = ChainContext()
    for phase in reversed(dict.fromkeys(reversed(life.done))):  # by their last completion: only the last output is kept
        context = context.after(operations_from((life.outputs or {})[phase].get("context_operations", ())))
    return context


def _outputs(life: ThreadLife) -> dict[str, Any]:
    """Return the outputs of the phases without their context operations, which the ledger has once."""
    outputs: dict[str, Any] = thaw(dict(life.outputs or {}))
    return {phase: {k: v for k, v in output.items() if k != "context_operations"} for phase, output in outputs.items()}


def _time(text: str | None) -> datetime:
    assert text is not None  # noqa: S101 (a thread that was created has both times)
    return datetime.fromisoformat(text)
