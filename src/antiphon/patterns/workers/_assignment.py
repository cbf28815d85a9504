"""Assignment of tasks to workers: by a policy in Python, or by the model of a controller.

A task that ends without an answer (unknown worker, timeout, failure) ends with an ERROR message, which a policy reads like any
other. If a person must decide, an error is raised, so that the whole thread waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from pydantic_ai.tools import RunContext

from antiphon.agents._deeds import note_deed
from antiphon.agents.toolkit._taint import Taint, current_taint
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.durable import current_run
from antiphon.errors import DeliveryError, HistoryMismatchError, ParkedError, UndeliverableError, WithdrawnError
from antiphon.messages import Conversation
from antiphon.messages._keys import as_key
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.cast._handling import UNHURRIED, side_by_side
from antiphon.patterns.cast._pattern import ThreadHistory
from antiphon.patterns.workers._agent import Responder, error_to
from antiphon.patterns.workers._conversation import say, structured
from antiphon.patterns.workers._schedule import DoWorkerTask, WorkerTaskDone, from_wire, time_left, to_wire
from antiphon.runtime import Context

# ---------------------------------------------------------------- by a policy


UNTOLD: Final = (ParkedError, HistoryMismatchError, WithdrawnError)
"""Errors that are raised, and not turned into an ERROR message: a person must decide, the program changed, the caller left."""


class Assigner:
    """Assigns tasks, for the policy of a controller and one message."""

    def __init__(
        self,
        name: str,
        query: StructuredMessage,
        workers: Mapping[str, str],
        context: Context,
        taint: Taint,
        *,
        history: ThreadHistory | None = None,
    ) -> None:
        self.name = name
        """The name of the controller."""
        self.query = query
        self.workers = workers
        """The workers with their instructions."""
        self.history = history or ThreadHistory()
        """The history of the thread before the query; workers also read it."""
        self.task_keys: list[str] = []
        """The keys of the assigned tasks."""
        self._context, self._taint = context, taint
        self._count = 0

    @property
    def untrusted(self) -> str | None:
        """The source of untrusted content that workers have read; None: there is none."""
        return self._taint.untrusted

    async def assign(
        self,
        worker: str,
        content: str,
        *,
        task_data: Mapping[str, Any] | None = None,
        route: Sequence[str] = (),
        within: float | None = None,
        key: str | None = None,
    ) -> StructuredMessage:
        """Assign a task to a worker, and return its result, or an ERROR message.

        `task_data` goes into the metadata; `priority`, `trace_id` and similar fields default to those of the query.
        `priority` and `deadline` control when the task runs. The workers in `route` continue the task in order, each with the
        result of the previous one; the last one answers. `within` is the time limit in seconds. Pass a `key` if the order in
        which tasks are assigned may vary.
        """
        key = as_key(key or self._next("task"))
        task_id = f"{self.query.task_id}:{key}"
        metadata = {**await self._inherited(task_id), **(task_data or {}), **({"route": list(route)} if route else {})}
        task = StructuredMessage.create_task(content, self.name, worker, metadata, task_id=task_id, message_id=task_id)
        self.task_keys.append(key)
        await say(task, f"{key}:task")
        answer, handed_on = await self._ask(task, within, key)
        if not handed_on:
            await say(answer, f"{key}:answer")
        return answer

    async def assign_all(
        self, tasks: Sequence[tuple[str, str] | tuple[str, str, Mapping[str, Any]]], *, within: float | None = None
    ) -> list[StructuredMessage]:
        """Assign tasks in parallel, and return their results, in order.

        A task is the name of a worker, a text, and optionally its `task_data`.
        """
        name = self._next("tasks")
        return await side_by_side(
            self.assign(worker, content, task_data=data[0] if data else None, within=within, key=f"{name}-{number}")
            for number, (worker, content, *data) in enumerate(tasks, 1)
        )

    async def _inherited(self, task_id: str) -> dict[str, Any]:
        """Return the priority and tracking fields of the query for a task.

        A task that was recorded without them keeps none.
        """
        fields = self.query.tracking
        if "priority" in self.query.metadata:
            fields["priority"] = self.query.metadata["priority"]
        run = current_run() if fields and self._context.attempt > 1 else None
        records = () if run is None else await run.ledger.find(invocation_id=task_id, thread_id=run.thread_id)
        row = next((record.message for record in records if record.message.kind == "option_call"), None)
        recorded = fields if row is None else structured(Conversation([row]))[0].metadata
        return {name: value for name, value in fields.items() if name in recorded}

    def _next(self, name: str) -> str:
        self._count += 1
        return f"{name}-{self._count}"

    async def _ask(self, task: StructuredMessage, within: float | None, key: str) -> tuple[StructuredMessage, bool]:
        """Ask the worker of a task; return the answer, and whether another worker has given and recorded it."""
        worker = task.target_agent or ""
        unknown = next((name for name in (worker, *task.metadata.get("route", ())) if name not in self.workers), None)
        if unknown is not None:
            reason = f"there is no worker {unknown!r}; there are {', '.join(self.workers) or 'none'}"
            return error_to(task, worker, UndeliverableError(reason)), False
        try:
            seconds = time_left(self.query, within)
            until = self._context.message.id if self.history else None
            done = await ask_worker(task, worker, self._context, self._taint, within=seconds, key=key, history=until)
        except UNTOLD:
            raise
        except DeliveryError as exc:
            return error_to(task, worker, exc), False
        return from_wire(done.message, None), done.handed_on


ControllerPolicy: TypeAlias = Callable[[StructuredMessage, Assigner], Awaitable[str | StructuredMessage]]
"""The policy of a controller: it returns the answer, or its text."""


def worker_address(name: str) -> str:
    """Return the address of a worker."""
    return f"worker/{name}"


async def ask_worker(
    message: StructuredMessage,
    worker: str,
    context: Context,
    taint: Taint,
    *,
    within: float | None,
    key: str,
    history: str | None = None,
) -> WorkerTaskDone:
    """Ask a worker, and note the untrusted content that it has read. `history` is the message before which the history ends.

    Raises:
        DeliveryError: there is no answer. Unless it is in `UNTOLD`, it becomes an ERROR message for the caller.
    """
    request = DoWorkerTask(message=to_wire(message), untrusted=taint.untrusted, history=history)
    done = await context.ask(worker_address(worker), request, within=UNHURRIED if within is None else within, key=key)
    taint.mark(done.untrusted)
    return done


# ---------------------------------------------------------------- by a model


CONTROLLER: Final = AgentSpec(
    name="controller",
    instructions=(
        "You are the controller. Break what you are asked into tasks, give each to the worker that is good at it, and answer "
        "with what they come to. Give tasks that do not depend on each other at the same time."
    ),
)
"""The default controller."""

_assigner: ContextVar[Assigner] = ContextVar("antiphon.patterns.workers.assigner")


async def assign_task(  # noqa: D417 (the context is not for the model)
    ctx: RunContext[Any], worker: str, task: str, then: list[str] | None = None
) -> dict[str, Any]:
    """Give a task to a worker, and get its result.

    Args:
        worker: The name of the worker.
        task: What it is to do, with everything that it must know.
        then: Other workers that go on with the result, one after the other, if there are any.
    """
    note_deed(assign_task.__name__)  # in a repeated run, the worker would do its work again
    assigner, taint = _assigner.get(), current_taint()
    answer = await assigner.assign(worker, task, route=then or (), key=ctx.tool_call_id)
    if taint is not None:
        taint.mark(assigner.untrusted)  # untrusted content that the worker has read also taints the controller
    outcome = "error" if answer.message_type == MessageType.ERROR else "result"
    return {"worker": answer.source_agent, outcome: answer.content}


def model_policy(responder: Responder) -> ControllerPolicy:
    """Return the policy of a controller whose model decides."""

    async def policy(query: StructuredMessage, assigner: Assigner) -> StructuredMessage:
        token = _assigner.set(assigner)
        try:
            answer, _ = await responder.process(query, None, is_recorded=True, history=assigner.history)
        finally:
            _assigner.reset(token)
        return answer

    return policy


def with_workers(spec: AgentSpec, workers: dict[str, str], tool: str) -> AgentSpec:
    """Return the spec of a controller with its workers in the instructions, and the tool that assigns tasks."""
    lines = "\n".join(f"- {name}: {purpose}" for name, purpose in workers.items())
    instructions = f"{spec.instructions}\n\n## Workers\n{lines}".strip()
    return spec.model_copy(update={"instructions": instructions, "tools": (*spec.tools, tool)})
