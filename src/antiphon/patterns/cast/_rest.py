"""Rest: how a handler leaves its message open while a person must settle or approve something further down.

A `ParkedError` that a handler raises would be its answer, for good. Inside of `left_open` the message stays open instead:
whoever asked learns that a person is waited for, and asking the same again, in this process or the next, goes on from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from antiphon.errors import ParkedError
from antiphon.runtime import Context

__all__ = ["left_open"]


@asynccontextmanager
async def left_open(context: Context) -> AsyncGenerator[None]:
    """Handle a message in the block; if it must wait for a person, leave it open.

    Raises:
        ParkedError: it must; whoever asked gets the same.
    """
    try:
        yield
    except ParkedError as exc:
        if not context.is_answered:
            context.kernel.post.durable.let_go(cast("Any", context.course), exc)
        raise
