"""Streams that outlive the function that made them, read inside of a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any, TypeVar

from antiphon.durable._block import ledger_run

ItemT = TypeVar("ItemT")


def durable_stream(thread_id: str, stream: Callable[[], AsyncIterable[ItemT]], **options: Any) -> AsyncGenerator[ItemT, None]:
    """Read a stream inside a run: for web frameworks, which read a stream after the function that made it has returned.

    `stream` is called in the run, and its items are forwarded as they arrive. The options are those of `ledger_run`. The run
    ends with the stream. If the reader disconnects before that, the run stays open, and the same request continues it.

    Raises:
        TypeError: `stream` is not a function, or an option is not one of `ledger_run`.
        LedgerError, ParkedError, HistoryMismatchError: as `ledger_run` does, when the stream is read.
    """
    if not callable(stream):
        raise TypeError("durable_stream takes the function that makes the stream, not the stream: `words`, not `words()`")
    if inspect.iscoroutinefunction(stream):
        raise TypeError("durable_stream takes a function that yields, or returns an async iterator without `async`")
    inspect.signature(ledger_run).bind(thread_id, **options)  # raise here, not after the response has started
    return _read_in_run(thread_id, stream, options)


async def _read_in_run(
    thread_id: str, stream: Callable[[], AsyncIterable[ItemT]], options: dict[str, Any]
) -> AsyncGenerator[ItemT, None]:
    items: asyncio.Queue[ItemT] = asyncio.Queue()
    asked = asyncio.Event()

    async def read() -> None:
        async with ledger_run(thread_id, **options):
            async for item in (source := stream()):
                items.put_nowait(item)
                try:
                    await asked.wait()  # read the next one only on demand, as without a run
                except asyncio.CancelledError as exc:  # the reader has gone away
                    if isinstance(source, AsyncGenerator):  # closed here: the loop would close it later, in another task
                        await source.athrow(exc)
                    raise
                asked.clear()

    # In a task of its own: several tasks may advance this generator, but the run needs one context.
    reading = asyncio.create_task(read())
    try:
        while (found := await _first(items, reading)) is not None:
            yield found[0]
            asked.set()
        await reading
    finally:
        reading.cancel()
        await asyncio.wait((reading,))


async def _first(items: asyncio.Queue[ItemT], reading: asyncio.Task[None]) -> tuple[ItemT] | None:
    """Return the next item; None if there is no more."""
    getting = asyncio.ensure_future(items.get())
    try:
        await asyncio.wait((getting, reading), return_when=asyncio.FIRST_COMPLETED)
        return (getting.result(),) if getting.done() else None
    finally:
        getting.cancel()
