"""Failure: what is known of an exception that a handler raised, as data.

Codes of errors that the runtime tells supervisors about, and that are no errors of delivery.

Logs: what the runtime says about itself, with fields that a machine can read, and without a word of any message.

The text of an exception may quote what was said to whoever raised it. So of the errors of actors only the code or the
class is logged, and the places in the code; the ledger's own errors speak of threads, ids and files, and may be quoted.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from antiphon.errors import DeliveryError, LedgerError
from antiphon.messages import Json
from antiphon.runtime._rows import text_of

if TYPE_CHECKING:
    from antiphon.runtime._envelope import DeliveryState

_MOST_TEXT = 2000
"""Characters of an error's text that are kept."""


class FailedError(Exception):
    """Raise it in `run` to have an effect fail with a code and details of its own: whoever did it gets a `RefusedError`."""

    def __init__(self, reason: str, code: str, *, details: Json = None, retryable: bool = False) -> None:
        super().__init__(reason, code)
        self.reason = reason
        self.code = code
        self.details = details
        self.retryable = retryable


class UnknownOutcomeError(Exception):
    """Raise it in `run` where nobody knows whether the thing was done: what must not be done twice is parked."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an actor failed."""

    address: str
    incarnation: int
    """How often the actor had been made when it failed: a later one is not to blame."""
    error_type: str
    error_message: str
    where: str
    """The file and line that raised."""
    message_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, address: str, incarnation: int, message_id: str | None) -> Failure:
        """Return what is known of an exception."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        return cls(address, incarnation, type(error).__qualname__, _text_of(error), where, message_id)


def _text_of(error: BaseException) -> str:
    return text_of(error)[:_MOST_TEXT].encode(errors="replace").decode()


BLOCKED: Final = "LOOP_BLOCKED"
"""An actor computes for so long that nobody else gets a turn."""


LOG = logging.getLogger("antiphon.runtime")


def log_fields(
    subject: DeliveryState | str = "", *, thread_id: str | None = None, error: BaseException | str | None = None
) -> dict[str, str]:
    """Return the fields of a log record, named as in traces; `subject` is a message, or the address of an actor."""
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
    """Return what may be said of an error."""
    return str(error) if isinstance(error, LedgerError) else _class(error)


def traceback_of(error: BaseException) -> str:
    """Return where an error came from: what a traceback says, but for the error's own words."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _class(error: BaseException) -> str:
    return error.code if isinstance(error, DeliveryError) else type(error).__qualname__
