"""Listed: how lists of threads learn which pattern a thread is of, and where what a user has asked is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon.errors import DeliveryError, ParkedError
from antiphon.runtime import Context

__all__ = ["Listed", "listed"]


@dataclass(slots=True)
class Listed:
    """What a thread is listed as when the block has ended."""

    status: str = "completed"


@asynccontextmanager
async def listed(context: Context, pattern: str) -> AsyncGenerator[Listed]:
    """Answer a user in the block: the thread is processing meanwhile, waiting while a person is, and at last what you say.

    A thread that another pattern has begun, and what is asked in the course of something else, stays listed as it is.
    """
    journal, thread_id, place = context.kernel.journal, context.thread_id or "", Listed()
    summary = await journal.ledger.thread(thread_id)
    if context.message.parent_id is not None or (summary is not None and summary.pattern not in (None, pattern)):
        yield place
        return
    await journal.write(thread_id, (), status="processing", pattern=pattern)
    try:
        yield place
    except DeliveryError as exc:
        status = "waiting" if isinstance(exc, ParkedError) else "failed"
        await journal.write(thread_id, (), status=status, pattern=pattern)
        raise
    await journal.write(thread_id, (), status=place.status, pattern=pattern)
