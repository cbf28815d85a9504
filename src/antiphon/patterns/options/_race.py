"""One stage: calls side by side, at most so many at once, until enough have succeeded.

What is not needed any more is cancelled, but for what must not be done twice and is begun: that is waited for, because
nobody could say what became of it. If one cannot go on (a person must be asked, a budget is used up), the others end first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple, TypeAlias

from antiphon.messages import Message, OptionResultPayload
from antiphon.patterns.options._rules import Stage

__all__ = ["Ended", "Work", "run_stage"]

Work: TypeAlias = Callable[[Message], Awaitable[OptionResultPayload]]
"""Has a call run, and returns what came of it."""


class Ended(NamedTuple):
    """How a stage has ended."""

    outcomes: dict[str, OptionResultPayload]
    """By the ids of the calls; those that were not needed any more, or cannot go on, have none."""
    error: BaseException | None
    """Why the run cannot go on; None: it can."""


async def run_stage(stage: Stage, work: Work, *, parallel: int, never_cut: Collection[str]) -> Ended:
    """Run the calls of a stage; `never_cut` are the options that are waited for once they are begun."""
    return await _Race(stage, work, parallel, never_cut).run()


class _Race:
    def __init__(self, stage: Stage, work: Work, parallel: int, never_cut: Collection[str]) -> None:
        self._stage, self._work, self._never_cut = stage, work, never_cut
        self._slots = asyncio.Semaphore(parallel)
        self._held: set[str] = set()
        """The calls that are begun and must not be cut off."""

    async def run(self) -> Ended:
        tasks = {asyncio.create_task(self._one(call), name=call.id): call for call in self._stage.calls}
        try:
            await self._until_enough(set(tasks))
            for task, call in tasks.items():
                if call.id not in self._held:
                    task.cancel()
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        ended = {task: call for task, call in tasks.items() if not task.cancelled()}
        errors = [error for task in ended if (error := task.exception()) is not None]
        outcomes = {call.id: task.result() for task, call in ended.items() if task.exception() is None}
        return Ended(outcomes, errors[0] if errors else None)

    async def _one(self, call: Message) -> OptionResultPayload:
        async with self._slots:
            if _option(call) in self._never_cut:
                self._held.add(call.id)
            return await self._work(call)

    async def _until_enough(self, pending: set[asyncio.Task[OptionResultPayload]]) -> None:
        """Wait until enough have succeeded, or all have ended."""
        successes = 0
        while pending and (self._stage.enough is None or successes < self._stage.enough):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            successes += sum(1 for task in done if _has_succeeded(task))


def _has_succeeded(task: asyncio.Task[OptionResultPayload]) -> bool:
    return not task.cancelled() and task.exception() is None and not task.result().is_error


def _option(call: Message) -> str:
    return getattr(call.payload, "option_name", "")
