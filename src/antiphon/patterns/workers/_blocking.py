"""Waiting for what is asynchronous, from code that is not, wherever it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

__all__ = ["wait_for"]

ResultT = TypeVar("ResultT")


def wait_for(work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Do something asynchronous in an event loop of its own, and wait for it; in a running loop, which stands still, too.

    It begins with no context: a run that goes on around it belongs to another loop, and it is no part of that.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return Context().run(_run, work)
    with ThreadPoolExecutor(1, thread_name_prefix="antiphon-worker") as pool:
        return pool.submit(Context().run, _run, work).result()


def _run(work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    return asyncio.run(work())
