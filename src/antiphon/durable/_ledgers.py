"""Ledgers by URL: opened for the first block that needs one, and shared by those that overlap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from antiphon.ledger import Owners, open_ledger


class _Shared:
    """A ledger and its number of users."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.ledger: Owners | None = None
        self.users = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_ledger(url: str) -> AsyncGenerator[Owners, None]:
    """Keep a ledger open for an `async with` block. Blocks that overlap share it.

    Raises:
        LedgerError: it cannot be opened.
        ValueError: the URL is of an unknown kind.
    """
    shared = _shared.setdefault(asyncio.get_running_loop(), {}).setdefault(file_of(url) or url, _Shared())
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


def file_of(ledger: Owners | str) -> str | None:
    """Return the file of a ledger in a normal form; None if it has no file."""
    url: str = ledger if isinstance(ledger, str) else getattr(ledger, "url", "")
    return str(Path(url.removeprefix(_SQLITE)).resolve()) if url.startswith(_SQLITE) else None


_SQLITE = "sqlite:///"
