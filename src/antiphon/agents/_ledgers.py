"""Ledgers that are named by their URL: opened when a run begins, shared by the runs of an event loop, closed with the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakKeyDictionary

from antiphon.ledger import Ledger, open_ledger

__all__ = ["shared_ledger"]


class _Shared:
    """A ledger, and how many use it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.ledger: Ledger | None = None
        self.users = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_ledger(url: str) -> AsyncGenerator[Ledger, None]:
    """Have a ledger open for an `async with` block: the same for all blocks that overlap.

    Raises:
        LedgerError: it cannot be opened.
        ValueError: the URL is none that is known.
    """
    shared = _shared.setdefault(asyncio.get_running_loop(), {}).setdefault(url, _Shared())
    async with shared.lock:
        if shared.ledger is None:
            shared.ledger = await shared.stack.enter_async_context(open_ledger(url))
        shared.users += 1
    try:
        yield shared.ledger
    finally:
        async with shared.lock:
            shared.users -= 1
            if shared.users == 0:
                shared.ledger = None
                await shared.stack.aclose()
