"""Handling: what the handlers of all patterns do around their own work, and how the same request is known again."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from antiphon.agents import LedgerRun, ledger_run
from antiphon.errors import DeliveryError
from antiphon.patterns.cast._rest import RESTS, left_open
from antiphon.runtime import Context

__all__ = ["UNHURRIED", "Handling", "handling", "known_by", "log_unexpected"]

_LOG: Final = logging.getLogger("antiphon.patterns")

UNHURRIED: Final = 10 * 365 * 86400.0
"""Seconds that actors of a thread wait for each other: a person may have to be asked. Models have a time of their own."""


def known_by(name: str, *said: str) -> str:
    """Return the id of a request, which is the same for the same words: so in one thread it is made once."""
    return f"{name}-{sha256(repr(said).encode(errors='backslashreplace')).hexdigest()[:24]}"


def log_unexpected(error: Exception, context: Context) -> None:
    """Log an exception that becomes an error answer: the answer does not say where in the code it was raised.

    The record names the message. It has no word of the error's text, which may quote what was said.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "an unknown place"
    fields = {
        "antiphon.actor.address": context.address,
        "antiphon.message.id": context.message.id,
        "antiphon.thread.id": context.thread_id,
        "error.type": type(error).__qualname__,
    }
    said = (context.address, context.message.id, type(error).__qualname__, where)
    _LOG.error("%s could not process message %s: %s at %s", *said, extra=fields)


@dataclass(slots=True)
class Handling:
    """A message that is being handled."""

    run: LedgerRun
    status: str = "completed"
    """What lists of threads show when it is done."""


@asynccontextmanager
async def handling(context: Context, pattern: str) -> AsyncGenerator[Handling]:
    """Have what a handler does in the block written down, and lists of threads show where it is.

    If it must wait for a person, or for the program with the toolkit, the message stays open. A thread that another pattern
    began is shown as that one says.

    Raises:
        ParkedError: a person must settle or approve something.
        HistoryMismatchError, LedgerError: as in every run.
    """
    async with left_open(context), ledger_run(context) as run:
        here = Handling(run)
        if not await _is_own(context, pattern):
            yield here
            return
        context.mark(status="processing", pattern=pattern)
        try:
            yield here
        except RESTS:
            await run.journal.write(run.thread_id, (), status="waiting", pattern=pattern)
            raise
        except DeliveryError:
            context.mark(status="failed", pattern=pattern)
            raise
        context.mark(status=here.status, pattern=pattern)


async def _is_own(context: Context, pattern: str) -> bool:
    """Whether a message begins something of a pattern: nobody asks in the course of something else."""
    if context.message.parent_id is not None:
        return False
    summary = await context.ledger.thread(context.thread_id or "")
    return summary is None or summary.pattern in (None, pattern)
