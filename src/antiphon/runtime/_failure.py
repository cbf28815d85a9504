"""Failure: what is known of an exception that a handler raised, as data."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from antiphon.runtime._own import text_of

__all__ = ["Failure"]

_MOST = 2000
"""Characters of an error's text that are kept."""


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
        return cls(address, incarnation, type(error).__qualname__, _text(error), where, message_id)


def _text(error: BaseException) -> str:
    return text_of(error)[:_MOST].encode(errors="replace").decode()
