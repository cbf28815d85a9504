"""STATUS: how far a worker has come, told while it is at work, and never more often than was said.

Tools and policies tell it with `report`, from wherever they run. Of work that takes long and tells nothing, it is told that it
goes on: after a while, then after twice that, and so on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects.atlas import StructuredMessage
from antiphon.patterns.workers._talk import say_now

__all__ = ["Hear", "Reporting", "Reports", "report", "reports_of"]

Hear: TypeAlias = Callable[[StructuredMessage], None]
"""Is given what is said, as it is said."""

_reports: ContextVar[Reports | None] = ContextVar("antiphon.patterns.workers.reports", default=None)


class Reporting(BaseModel):
    """How often it is told how far work has come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: float = Field(default=10.0, gt=0)
    """Seconds of silence after which it is told that work goes on; then twice as many, and so on."""
    most: int = Field(default=20, ge=0)
    """How many reports there are of one piece of work; more are left out."""


def report(text: str) -> None:
    """Tell how far the work has come that this is part of, from a tool or a policy; elsewhere it does nothing."""
    reports = _reports.get()
    if reports is not None:
        reports.add(text)


def reports_of(
    message: StructuredMessage, worker: str, reporting: Reporting, hear: Hear | None = None
) -> AbstractAsyncContextManager[object]:
    """Return the block for work on a message; work inside of other work is told of as that."""
    return Reports(message, worker, reporting, hear) if _reports.get() is None else nullcontext()


class Reports:
    """An `async with` block around work, in which it is told how far that has come."""

    def __init__(self, message: StructuredMessage, worker: str, reporting: Reporting, hear: Hear | None = None) -> None:
        self._message, self._worker, self._reporting, self._hear = message, worker, reporting, hear
        self._texts: asyncio.Queue[str | None] = asyncio.Queue(reporting.most + 1)
        self._left = reporting.most

    def add(self, text: str) -> None:
        """Tell something; tools that are not asynchronous do it from another thread."""
        self._loop.call_soon_threadsafe(self._put, text)

    def _put(self, text: str) -> None:
        if self._left:
            self._left -= 1
            self._texts.put_nowait(text)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._telling = self._loop.create_task(self._tell())
        self._token = _reports.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _reports.reset(self._token)
        try:
            if error is None:
                await asyncio.sleep(0)  # what another thread has just told comes in
                self._left = 0
                self._texts.put_nowait(None)
                await self._telling
        finally:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        silence, began = self._reporting.after, self._loop.time()
        while (text := await self._next(silence)) is not None:
            if not text:
                text, silence = f"at work for {self._loop.time() - began:.0f} seconds", silence * 2
            status = StructuredMessage.create_status(text, self._message, source_agent=self._worker)
            await say_now(status)
            if self._hear is not None:
                self._hear(status)

    async def _next(self, silence: float) -> str | None:
        """Return what is told next; empty: nothing was, for so long; None: the work has ended."""
        try:
            async with asyncio.timeout(silence if self._left else None):
                return await self._texts.get()
        except TimeoutError:
            self._left -= 1
            return ""
