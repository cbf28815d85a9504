"""Desk: what a controller works with: it gives tasks to workers, one after the other or side by side, and gets results.

A task that ends without an answer (nobody of the name, no time left, a worker that failed for good) ends with an ERROR
message, which a policy reads like any other. What a person must see to is raised, so that the whole thread waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from antiphon.agents import current_run
from antiphon.agents._course import as_key
from antiphon.agents.toolkit.taint import Taint
from antiphon.dialects.atlas import StructuredMessage
from antiphon.errors import DeliveryError, HistoryMismatchError, ParkedError, UndeliverableError, WithdrawnError
from antiphon.messages import Conversation
from antiphon.patterns.cast import UNHURRIED
from antiphon.patterns.workers._mind import error_to
from antiphon.patterns.workers._protocol import DoTask, TaskDone, from_wire, to_wire
from antiphon.patterns.workers._schedule import time_left
from antiphon.patterns.workers._talk import say, structured
from antiphon.runtime import Context

__all__ = ["UNTOLD", "Desk", "Policy", "give", "worker_address"]

UNTOLD: Final = (ParkedError, HistoryMismatchError, WithdrawnError)
"""What no ERROR message is made of: a person must see to it, the program has changed, or nobody waits any more."""


class Desk:
    """What the policy of a controller can do, for one message."""

    def __init__(
        self,
        name: str,
        query: StructuredMessage,
        workers: Mapping[str, str],
        context: Context,
        taint: Taint,
        *,
        history: Conversation = Conversation(),  # noqa: B008 (frozen)
    ) -> None:
        self.name = name
        """Of the controller."""
        self.query = query
        self.workers = workers
        """Who can be given tasks, and what each is good at."""
        self.history = history
        """What was said in the thread before the query; workers are told it too."""
        self.given: list[str] = []
        """The keys of the tasks that were given."""
        self._context, self._taint = context, taint
        self._count = 0

    @property
    def untrusted(self) -> str | None:
        """Where strangers' words come from that workers have read; None if they have read none."""
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
        """Give a task to a worker, and return its result, or an ERROR message.

        `task_data` goes into the metadata, with the `priority`, `trace_id` and the like of the query where it has none;
        `priority` and `deadline` there say when the task is done. Those in `route` work on it one after the other, each on
        what the one before has come to; the last one answers. `within` is how many seconds it may take. Give a `key` where
        the order in which tasks are given is left to chance.

        Raises:
            ParkedError: a person must settle something, or approve it.
            HistoryMismatchError: the policy did something else the last time it ran.
            LedgerError: it could not be written down.
        """
        name = as_key(key or self._next("task"))
        way = {"route": list(route)} if route else {}
        task_id = f"{self.query.task_id}:{name}"
        given = {**await self._inherited(task_id), **(task_data or {}), **way}
        task = StructuredMessage.create_task(content, self.name, worker, given, task_id=task_id, message_id=task_id)
        self.given.append(name)
        await say(task, f"{name}:task")
        answer, handed_on = await self._given(task, within, name)
        if not handed_on:
            await say(answer, f"{name}:answer")
        return answer

    async def assign_all(
        self, tasks: Sequence[tuple[str, str] | tuple[str, str, Mapping[str, Any]]], *, within: float | None = None
    ) -> list[StructuredMessage]:
        """Give tasks side by side, and return what came of them, in their order.

        A task is the name of a worker, what it is to do, and its `task_data`, if there is any.

        Raises:
            As `assign`, after all have ended.
        """
        name = self._next("tasks")
        asked = [
            self.assign(worker, content, task_data=data[0] if data else None, within=within, key=f"{name}-{number}")
            for number, (worker, content, *data) in enumerate(tasks, 1)
        ]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        return cast("list[StructuredMessage]", ended)

    async def _inherited(self, task_id: str) -> dict[str, Any]:
        """Return the priority and the tracking of the query, for a task; one that was written down without them stays so."""
        found = self.query.tracking
        if "priority" in self.query.metadata:
            found["priority"] = self.query.metadata["priority"]
        run = current_run() if found and self._context.attempt > 1 else None
        records = () if run is None else await run.ledger.by_invocation(task_id, thread_id=run.thread_id)
        row = next((record.message for record in records if record.message.kind == "option_call"), None)
        known = None if row is None else structured(Conversation([row]))[0].metadata
        return {name: value for name, value in found.items() if known is None or name in known}

    def _next(self, name: str) -> str:
        self._count += 1
        return f"{name}-{self._count}"

    async def _given(self, task: StructuredMessage, within: float | None, key: str) -> tuple[StructuredMessage, bool]:
        worker = task.target_agent or ""
        unknown = next((each for each in (worker, *task.metadata.get("route", ())) if each not in self.workers), None)
        if unknown is not None:
            reason = f"there is no worker {unknown!r}; there are {', '.join(self.workers) or 'none'}"
            return error_to(task, worker, UndeliverableError(reason)), False
        try:
            left = time_left(self.query, within)
            until = self._context.message.id if self.history else None
            done = await give(task, worker, self._context, self._taint, within=left, key=key, history=until)
        except UNTOLD:
            raise
        except DeliveryError as exc:
            return error_to(task, worker, exc), False
        return from_wire(done.message, None), done.handed_on


Policy: TypeAlias = Callable[[StructuredMessage, Desk], Awaitable[str | StructuredMessage]]
"""What a controller does with a message: it returns the answer, or its words."""


def worker_address(name: str) -> str:
    """Return where a worker lives."""
    return f"worker/{name}"


async def give(
    message: StructuredMessage,
    worker: str,
    context: Context,
    taint: Taint,
    *,
    within: float | None,
    key: str,
    history: str | None = None,
) -> TaskDone:
    """Have a worker do something, and know what it has read on the way. `history` is the message before which that ends.

    Raises:
        DeliveryError: there is no answer; unless it is one of `UNTOLD`, that can be told to whoever waits.
    """
    more = {} if history is None else {"history": history}
    request = DoTask(message=to_wire(message), untrusted=taint.untrusted, **more)
    done = await context.ask(worker_address(worker), request, within=UNHURRIED if within is None else within, key=key)
    taint.mark(done.untrusted)
    return done
