"""The actors: a controller that goes by its policy, and workers that answer.

Both answer whoever is outside (WORKERS_MESSAGE) and say in the thread what they were asked and what they answer. What the
controller gives to a worker (WORKERS_TASK), and a worker hands on to another, is said by whoever gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from antiphon.agents import current_run, ledger_run
from antiphon.agents.toolkit.taint import Taint, taint_scope
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.errors import BudgetExceededError, DeliveryError, RefusedError
from antiphon.messages import Message
from antiphon.patterns.cast import (
    Handling,
    end_open_calls,
    handling,
    left_open,
    read_history,
    stopped,
    untrusted_source,
)
from antiphon.patterns.workers._desk import UNTOLD, Desk, Policy, give
from antiphon.patterns.workers._mind import Mind, answer_to, error_to
from antiphon.patterns.workers._protocol import PATTERN, Answered, AskAgent, DoTask, TaskDone, from_wire
from antiphon.patterns.workers._reports import Reporting, reports_of
from antiphon.patterns.workers._schedule import Slots, Ticket, time_left, within_deadline
from antiphon.patterns.workers._talk import HAND_ON, ended_fields, say
from antiphon.patterns.workers._vault import Vault
from antiphon.protocol import ErrorCode
from antiphon.runtime import Actor, Context, handles, tag

__all__ = ["Control", "ControllerActor", "WorkerActor"]


class _Agent(Actor):
    """What both are: as many messages at once as come."""

    concurrency = 1000

    @classmethod
    @override
    def ordering_key(cls, message: Message) -> str | None:
        return message.id


async def _answered(
    here: Handling, message: StructuredMessage, answer: StructuredMessage, *, is_said: bool = False
) -> Answered:
    is_error = answer.message_type == MessageType.ERROR  # which looks like the result of a task, also where there is none
    if not is_said:
        await say(answer, "answered", is_answer=not is_error or message.message_type == MessageType.TASK)
    if is_error:
        here.status = "failed"
    return Answered(message=answer.to_dict())


def _tag(message: StructuredMessage) -> None:
    """Put the `trace_id` of a message, and the like, on the span of its handler."""
    tag({name: value for name, value in message.tracking.items() if isinstance(value, str)})


async def _end_late(error: Exception | StructuredMessage, context: Context, message: StructuredMessage, *asked: str) -> None:
    """End the calls that work left open whose deadline has passed, after those that it has `asked` have stopped."""
    run, code = (
        current_run(),
        error.metadata.get("code") if isinstance(error, StructuredMessage) else getattr(error, "code", ""),
    )
    if run is None or code != ErrorCode.TIMEOUT:
        return
    own, late = context.course.invocation_id, RefusedError("the deadline passed", ErrorCode.TIMEOUT)
    context.expect_leftovers()  # a row of a cancelled effect may have been written, or not
    for key in asked:
        await stopped(run, f"{own}/{key}")
    await end_open_calls(run, own, late, fields=ended_fields, besides=message.task_id)


# ---------------------------------------------------------------- the controller


@dataclass(frozen=True, slots=True)
class Control:
    """How a controller works, and with whom."""

    name: str
    policy: Policy
    workers: Mapping[str, str]
    """Who there is, and what each is good at."""
    reporting: Reporting


class ControllerActor(_Agent):
    """Who is asked from outside, and gives tasks to workers."""

    def __init__(self, control: Control, vault: Vault) -> None:
        self._control, self._vault = control, vault

    @handles
    async def ask(self, request: AskAgent, context: Context) -> Answered:
        """Do what the policy says."""
        said = from_wire(request.message, context.message.created_at)
        query = self._vault.put_back(said)
        async with handling(context, PATTERN) as here:
            _tag(query)
            await say(said, "asked")
            answer = await self._answer(query, context)
            self._vault.let_go(query)
            return await _answered(here, query, answer)

    async def _answer(self, query: StructuredMessage, context: Context) -> StructuredMessage:
        control = self._control
        history = await read_history(context.ledger, context.thread_id or "", until=context.message.id)
        with taint_scope(Taint()) as taint:
            for each in history:
                taint.mark(untrusted_source(each))
            desk = Desk(control.name, query, control.workers, context, taint, history=history)
            async with reports_of(query, control.name, control.reporting):
                try:
                    async with within_deadline(query):
                        said = await control.policy(query, desk)
                except (RefusedError, BudgetExceededError) as exc:
                    await _end_late(exc, context, query, *desk.given)
                    return error_to(query, control.name, exc)
        return said if isinstance(said, StructuredMessage) else answer_to(query, control.name, said)


# ---------------------------------------------------------------- workers


class WorkerActor(_Agent):
    """Who does tasks, and answers whoever asks it directly."""

    def __init__(self, mind: Mind, slots: Slots, vault: Vault) -> None:
        self._mind, self._slots, self._vault = mind, slots, vault

    @handles
    async def ask(self, request: AskAgent, context: Context) -> Answered:
        """Answer somebody outside."""
        said = from_wire(request.message, context.message.created_at)
        message = self._vault.put_back(said)
        with self._slots.ticket(message) as ticket:
            return await self._asked(said, message, context, ticket)

    async def _asked(self, said: StructuredMessage, message: StructuredMessage, context: Context, ticket: Ticket) -> Answered:
        async with handling(context, PATTERN) as here:
            await say(said, "asked")
            done = await self._done(message, None, context, ticket, is_said=True, until=context.message.id)
            self._vault.let_go(message)
            return await _answered(here, message, from_wire(done.message, None), is_said=done.handed_on)

    @handles
    async def task(self, request: DoTask, context: Context) -> TaskDone:
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
    ) -> TaskDone:
        """Do what a message says; if it says who goes on with it, hand on what it has come to.

        `until` is the message before which the history ends that the worker is told.
        """
        _tag(message)
        ledger, thread_id = context.ledger, context.thread_id or ""
        history = () if until is None else await read_history(ledger, thread_id, until=until)
        given: dict[str, Any] = {"is_said": is_said, "ticket": ticket, "history": history}
        answer, untrusted = await self._mind.process(message, untrusted, **given)
        await _end_late(answer, context, message)
        if not message.metadata.get("route") or answer.message_type == MessageType.ERROR:
            return TaskDone(message=answer.to_dict(), handed_on=False, untrusted=untrusted)
        return await self._hand_on(message, answer, context, untrusted, until if history else None)

    async def _hand_on(
        self,
        message: StructuredMessage,
        answer: StructuredMessage,
        context: Context,
        untrusted: str | None,
        until: str | None,
    ) -> TaskDone:
        """Have the next one go on, in the name of whoever waits, and give back what the last one says."""
        worker, *rest = message.metadata["route"]
        step = StructuredMessage.create_result(
            answer.content,
            message,
            source_agent=self._mind.name,
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
            done = TaskDone(message=error_to(step, worker, exc).to_dict(), handed_on=False)
        if not done.handed_on:
            await say(from_wire(done.message, None), "final", is_answer=False)
        return TaskDone(message=done.message, handed_on=True, untrusted=taint.untrusted)


def _matter(message: StructuredMessage) -> dict[str, Any]:
    """Return what the next one is told about the task: what it is, and what was given with it."""
    given = {name: value for name, value in message.metadata.items() if name not in ("type", "route")}
    return {"task": message.content, **given}
