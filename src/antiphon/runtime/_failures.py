"""Failures and logs: an exception of a handler as data, and what the runtime logs.

Logs have structured fields, and never the content of a message. The text of an exception may quote a message, so only the code
or the class of an actor's error is logged, with the lines of code. Errors of the ledger name threads, ids and files, and may
be quoted.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from antiphon.errors import DeliveryError, LedgerError
from antiphon.runtime._rows import text_of

if TYPE_CHECKING:
    from antiphon.runtime._envelope import DeliveryState

_MOST_TEXT = 2000
"""Characters that are kept of an error's text."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an actor failed."""

    address: str
    incarnation: int
    """Which actor of the cell failed, from 1: a later one is not restarted for it."""
    error_type: str
    error_message: str
    where: str
    """The file and line that raised."""
    message_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, address: str, incarnation: int, message_id: str | None) -> Failure:
        """Return an exception as data."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        return cls(address, incarnation, type(error).__qualname__, _text_of(error), where, message_id)


def _text_of(error: BaseException) -> str:
    return text_of(error)[:_MOST_TEXT].encode(errors="replace").decode()


BLOCKED: Final = "LOOP_BLOCKED"
"""The error code of an actor that blocks the event loop."""


LOG = logging.getLogger("antiphon.runtime")


def log_fields(
    subject: DeliveryState | str = "", *, thread_id: str | None = None, error: BaseException | str | None = None
) -> dict[str, str]:
    """Return the fields of a log record, named as in traces; `subject` is a delivery, or the address of an actor."""
    found: dict[str, str | None] = {"antiphon.thread.id": thread_id}
    if isinstance(subject, str):
        found["antiphon.actor.address"] = str(subject) or None
    else:
        found["antiphon.actor.address"] = str(subject.to)
        found["antiphon.message.id"] = subject.id
        found["antiphon.message.type"] = subject.type
        found["antiphon.thread.id"] = subject.thread_id
    if error is not None:
        found["error.type"] = error if isinstance(error, str) else _class(error)
    return {name: value for name, value in found.items() if value is not None}


def log_text(error: BaseException) -> str:
    """Return what may be logged of an error."""
    return str(error) if isinstance(error, LedgerError) else _class(error)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error without its text."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _class(error: BaseException) -> str:
    return error.code if isinstance(error, DeliveryError) else type(error).__qualname__
