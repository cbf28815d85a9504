"""How an async test runs: in real time, within a limit, and with no task left over. For virtual time, see `runtime.actors`."""

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

ResultT = TypeVar("ResultT")


def run(main: Coroutine[Any, Any, ResultT], seconds: float = 60) -> ResultT:
    """Run to the end, for a minute at most unless more is given, and check that no task is left over."""

    async def in_time() -> ResultT:
        async with asyncio.timeout(seconds):
            result = await main
        # A task that is no coroutine closes a generator that the garbage collector has found: nothing of the test's.
        left = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if inspect.iscoroutine(task.get_coro())}
        assert not left, left
        return result

    return asyncio.run(in_time())
