"""Tasks beside a block of code, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(*works: Awaitable[Any]) -> AsyncGenerator[tuple[asyncio.Future[Any], ...]]:
    """Run works beside a block. When the block ends, those that still run are cancelled; it is left when all have ended.

    An error of a work is raised where its result is asked for, and nowhere else.
    """
    futures = tuple(map(asyncio.ensure_future, works))
    try:
        yield futures
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
