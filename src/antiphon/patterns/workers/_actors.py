"""The actors: a controller that follows its policy, and workers.

Both answer clients (WORKERS_MESSAGE) and record the request and the answer in the thread. The sender of a task (WORKERS_TASK),
which is the controller or a worker that hands on its task, records it. Sensitive arguments of tool calls in a message are kept
only in memory: when the process ends, they are lost, and a call that has not started is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from antiphon.agents import current_run, ledger_run
from antiphon.agents.toolkit import ToolkitTool
from antiphon.agents.toolkit.taint import Taint, taint_scope
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.errors import BudgetExceededError, DeliveryError, RefusedError
from antiphon.messages import Message
from antiphon.patterns.cast import (
    HandlerRun,
    end_open_calls,
    handling,
    left_open,
    read_history,
    stopped,
    untrusted_source,
)
from antiphon.patterns.workers._assignment import UNTOLD, Assigner, ControllerPolicy, give
from antiphon.patterns.workers._conversation import HAND_ON, Reporting, ended_fields, reports_of, say
from antiphon.patterns.workers._protocol import PATTERN, Answered, AskAgent, DoWorkerTask, WorkerTaskDone, from_wire
from antiphon.patterns.workers._responder import Responder, answer_to, error_to, shown
from antiphon.patterns.workers._schedule import Slots, Ticket, time_left, within_deadline
from antiphon.protocol import ErrorCode
from antiphon.runtime import Actor, Context, handles, tag

# ---------------------------------------------------------------- sensitive arguments


_MOST: Final = 10_000
"""The maximum number of messages with kept arguments; beyond it, the oldest are dropped."""


class SensitiveArguments:
    """The sensitive arguments that were removed from messages, by message id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def take_out(self, message: StructuredMessage, tools: Mapping[str, ToolkitTool]) -> StructuredMessage:
        """Return a message without its sensitive arguments, and keep those."""
        calls = message.tool_calls
        said = [{**call, "arguments": shown(call["arguments"], tools.get(call["name"]))} for call in calls]
        if said == calls:
            return message
        self._kept[message.message_id] = calls
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        cleaned = message.copy()
        cleaned.tool_calls = said
        return cleaned

    def put_back(self, message: StructuredMessage) -> StructuredMessage:
        """Return a message with its sensitive arguments, as far as they are in memory."""
        calls = self._kept.get(message.message_id)
        if calls is None:
            return message
        whole = message.copy()
        whole.tool_calls = calls
        return whole

    def let_go(self, message: StructuredMessage) -> None:
        """Drop the arguments of an answered message."""
        self._kept.pop(message.message_id, None)


# ---------------------------------------------------------------- the actors


class _Agent(Actor):
    """The base class of both actors: they handle messages concurrently."""

    concurrency = 1000

    @classmethod
    @override
    def ordering_key(cls, message: Message) -> str | None:
        return message.id


async def _answered(
    here: HandlerRun, message: StructuredMessage, answer: StructuredMessage, *, is_said: bool = False
) -> Answered:
    is_error = answer.message_type == MessageType.ERROR  # also without a result: the answer looks like that of a task
    if not is_said:
        await say(answer, "answered", is_answer=not is_error or message.message_type == MessageType.TASK)
    if is_error:
        here.status = "failed"
    return Answered(message=answer.to_dict())


def _tag(message: StructuredMessage) -> None:
    """Add the `trace_id` of a message, and similar fields, to the span of its handler."""
    tag({name: value for name, value in message.tracking.items() if isinstance(value, str)})


async def _end_late(error: Exception | StructuredMessage, context: Context, message: StructuredMessage, *asked: str) -> None:
    """Close the open calls of work whose deadline has passed, after the requests that it has `asked` have stopped."""
    run, code = (
        current_run(),
        error.metadata.get("code") if isinstance(error, StructuredMessage) else getattr(error, "code", ""),
    )
    if run is None or code != ErrorCode.TIMEOUT:
        return
    own, late = context.course.invocation_id, RefusedError("the deadline passed", ErrorCode.TIMEOUT)
    context.expect_leftovers()  # a cancelled effect may or may not have written its row
    for key in asked:
        await stopped(run, f"{own}/{key}")
    await end_open_calls(run, own, late, fields=ended_fields, besides=message.task_id)


# ---------------------------------------------------------------- the controller


@dataclass(frozen=True, slots=True)
class Control:
    """The configuration of a controller."""

    name: str
    policy: ControllerPolicy
    workers: Mapping[str, str]
    """The workers with their instructions."""
    reporting: Reporting


class ControllerActor(_Agent):
    """Answers clients, and assigns tasks to workers."""

    def __init__(self, control: Control, sensitive: SensitiveArguments) -> None:
        self._control, self._sensitive = control, sensitive

    @handles
    async def ask(self, request: AskAgent, context: Context) -> Answered:
        """Run the policy."""
        said = from_wire(request.message, context.message.created_at)
        query = self._sensitive.put_back(said)
        async with handling(context, PATTERN) as here:
            _tag(query)
            await say(said, "asked")
            answer = await self._answer(query, context)
            self._sensitive.let_go(query)
            return await _answered(here, query, answer)

    async def _answer(self, query: StructuredMessage, context: Context) -> StructuredMessage:
        control = self._control
        history = await read_history(context.ledger, context.thread_id or "", until=context.message.id)
        with taint_scope(Taint()) as taint:
            for each in history:
                taint.mark(untrusted_source(each))
            assigner = Assigner(control.name, query, control.workers, context, taint, history=history)
            async with reports_of(query, control.name, control.reporting):
                try:
                    async with within_deadline(query):
                        said = await control.policy(query, assigner)
                except (RefusedError, BudgetExceededError) as exc:
                    if isinstance(exc, BudgetExceededError) and exc.limit is not None:
                        raise  # it continues with a new budget
                    await _end_late(exc, context, query, *assigner.given)
                    return error_to(query, control.name, exc)
        return said if isinstance(said, StructuredMessage) else answer_to(query, control.name, said)


# ---------------------------------------------------------------- workers


class WorkerActor(_Agent):
    """Carries out tasks, and answers clients directly."""

    def __init__(self, responder: Responder, slots: Slots, sensitive: SensitiveArguments) -> None:
        self._responder, self._slots, self._sensitive = responder, slots, sensitive

    @handles
    async def ask(self, request: AskAgent, context: Context) -> Answered:
        """Answer a client."""
        said = from_wire(request.message, context.message.created_at)
        message = self._sensitive.put_back(said)
        with self._slots.ticket(message) as ticket:
            return await self._asked(said, message, context, ticket)

    async def _asked(self, said: StructuredMessage, message: StructuredMessage, context: Context, ticket: Ticket) -> Answered:
        async with handling(context, PATTERN) as here:
            await say(said, "asked")
            done = await self._done(message, None, context, ticket, is_said=True, until=context.message.id)
            self._sensitive.let_go(message)
            return await _answered(here, message, from_wire(done.message, None), is_said=done.handed_on)

    @handles
    async def task(self, request: DoWorkerTask, context: Context) -> WorkerTaskDone:
        """Do a task."""
        message = from_wire(request.message, context.message.created_at)
        with self._slots.ticket(message) as ticket:
            async with left_open(context), ledger_run(context):
                return await self._done(message, request.untrusted, context, ticket, until=request.history)

    async def _done(
        self,
        message: StructuredMessage,
        untrusted: str | None,
        context: Context,
        ticket: Ticket,
        *,
        is_said: bool = False,
        until: str | None,
    ) -> WorkerTaskDone:
        """Carry out the task of a message; if it has a route, hand the result on to the next worker.

        The worker reads the history before the message `until`.
        """
        _tag(message)
        ledger, thread_id = context.ledger, context.thread_id or ""
        history = () if until is None else await read_history(ledger, thread_id, until=until)
        given: dict[str, Any] = {"is_said": is_said, "ticket": ticket, "history": history}
        answer, untrusted = await self._responder.process(message, untrusted, **given)
        await _end_late(answer, context, message)
        if not message.metadata.get("route") or answer.message_type == MessageType.ERROR:
            return WorkerTaskDone(message=answer.to_dict(), handed_on=False, untrusted=untrusted)
        return await self._hand_on(message, answer, context, untrusted, until if history else None)

    async def _hand_on(
        self,
        message: StructuredMessage,
        answer: StructuredMessage,
        context: Context,
        untrusted: str | None,
        until: str | None,
    ) -> WorkerTaskDone:
        """Hand the task on to the next worker, and return the answer of the last one to the waiting caller."""
        worker, *rest = message.metadata["route"]
        step = StructuredMessage.create_result(
            answer.content,
            message,
            source_agent=self._responder.name,
            target_agent=worker,
            message_id=f"{message.task_id}:{worker}",
            metadata={**_matter(message), **({"route": rest} if rest else {})},
            tool_results=answer.tool_results,
        )
        await say(step, "handed-on", is_answer=message.message_type == MessageType.TASK)
        taint = Taint()
        taint.mark(untrusted)
        try:
            left = time_left(message)
            done = await give(step, worker, context, taint, within=left, key=HAND_ON, history=until)
        except UNTOLD:
            raise
        except DeliveryError as exc:
            await _end_late(exc, context, message, HAND_ON)
            done = WorkerTaskDone(message=error_to(step, worker, exc).to_dict(), handed_on=False)
        if not done.handed_on:
            await say(from_wire(done.message, None), "final", is_answer=False)
        return WorkerTaskDone(message=done.message, handed_on=True, untrusted=taint.untrusted)


def _matter(message: StructuredMessage) -> dict[str, Any]:
    """Return the task for the next worker: its text and its data."""
    given = {name: value for name, value in message.metadata.items() if name not in ("type", "route")}
    return {"task": message.content, **given}
