"""Outages: failures outside of a program, after which it can be continued unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from antiphon.errors import (
    BudgetExceededError,
    LocalModelError,
    MissingExtraError,
    MissingKeyError,
    StoppedError,
    ToolServerError,
)

MISSING: Final = (MissingKeyError, MissingExtraError, LocalModelError, ToolServerError, StoppedError)
"""The errors for something that is missing on this machine, not in the thread."""
Outage: TypeAlias = Callable[[Exception], bool]
"""Whether an exception is an outage of a provider: the same request may succeed after it is over."""


class Outages:
    """The outages that a run can have, by what takes part in it. All parts of the run share this object."""

    def __init__(self) -> None:
        self._outages: set[Outage] = set()

    def add(self, outage: Outage) -> None:
        """Add those of a provider."""
        self._outages.add(outage)

    def stop(self, error: Exception) -> bool:
        """Whether a program that ended with an error can be continued unchanged, after something outside is fixed."""
        if isinstance(error, BudgetExceededError):
            return error.limit is not None
        return isinstance(error, MISSING) or any(is_outage(error) for is_outage in self._outages)
