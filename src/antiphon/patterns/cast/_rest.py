"""Rest: how a handler leaves its message open while it cannot go on here, but may later, or in another program.

That is so while a person must settle or approve something further down (`ParkedError`), and in a program that does not have
the toolkit which guards the tools (`UnguardedToolError`). Raised by a handler, each would be its answer, for good. Inside of
`left_open` the message stays open instead: the caller gets the error, and asking the same again, in this process or the next,
goes on from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from antiphon.errors import ParkedError, UnguardedToolError
from antiphon.runtime import Context

__all__ = ["RESTS", "left_open"]

RESTS: Final = (ParkedError, UnguardedToolError)
"""What leaves a message open."""


@asynccontextmanager
async def left_open(context: Context) -> AsyncGenerator[None]:
    """Handle a message in the block; if it must wait for a person, or for the program with the toolkit, leave it open.

    Raises:
        ParkedError, UnguardedToolError: it must; the caller gets the same.
    """
    try:
        yield
    except RESTS as exc:
        if not context.is_answered:
            context.leave_open(exc)
        raise
