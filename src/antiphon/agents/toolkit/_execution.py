"""Starting a tool: in its slot, within its time, again if it may be, and with an outcome that says nothing it must not.

A tool that must not be done twice and is given up because it took too long has an outcome that nobody knows: that is not a
failure which could be told to a model, but something for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed

from antiphon.agents.toolkit._errors import TIMEOUT, TOOL_FAILED, ToolRefusal
from antiphon.agents.toolkit._outcome import Outcome
from antiphon.agents.toolkit._results import as_outcome
from antiphon.agents.toolkit._tool import ToolkitTool
from antiphon.errors import BudgetExceededError, HistoryMismatchError, LedgerError, ParkedError
from antiphon.runtime import UnknownOutcomeError, text_of

__all__ = ["execute"]

_MOST_WORDS: Final = 500
"""Characters of what a failing tool says that are kept."""
_MOST_READ: Final = 64 * 1024
"""Characters of it that are looked at for secrets."""
_NOT_ITS_OWN: Final = (
    LedgerError,
    ParkedError,
    HistoryMismatchError,
    BudgetExceededError,
    ToolRefusal,
    UnknownOutcomeError,
)
"""What is no failure of a tool, though it is raised in its course: the run cannot go on."""


async def execute(tool: ToolkitTool, arguments: dict[str, Any], ctx: RunContext[Any], clean: Callable[[str], str]) -> Outcome:
    """Start a tool, and return what came of it; `clean` takes secrets out of what it says when it fails.

    Raises:
        ToolRefusal: it failed.
        UnknownOutcomeError: it was given up, and must not be done twice.
    """
    async with tool.slots.take():
        left = tool.retries
        while True:
            try:
                return as_outcome(tool, await _within_time(tool, arguments, ctx))
            except ToolRefusal as refusal:
                if left == 0 or not refusal.retryable:
                    refusal.reason = _shortened(clean(refusal.reason[:_MOST_READ]))
                    raise
            left -= 1


async def _within_time(tool: ToolkitTool, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
    """Start it once."""
    deadline = asyncio.timeout(tool.timeout)
    try:
        async with deadline:
            return await tool.start(arguments, ctx)
    except (ToolFailed, ModelRetry) as exc:  # what it wants to be told, in its own words
        raise ToolRefusal(TOOL_FAILED, exc.message, retryable=isinstance(exc, ModelRetry)) from None
    except (ApprovalRequired, CallDeferred):
        raise ToolRefusal(TOOL_FAILED, "a tool of a toolkit cannot defer itself; use approval=True, or a rule") from None
    except _NOT_ITS_OWN:
        raise
    except TimeoutError as exc:
        if not deadline.expired():
            raise _failure(exc) from None
        reason = f"it took more than {tool.timeout:g} s, and was given up"
        if tool.effects == "once":
            raise UnknownOutcomeError(reason) from None
        raise ToolRefusal(TIMEOUT, reason, retryable=True) from None
    except Exception as exc:  # noqa: BLE001 (whatever it raises is its outcome)
        raise _failure(exc) from None


def _shortened(words: str) -> str:
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}… [cut]"


def _failure(error: Exception) -> ToolRefusal:
    """Return an exception as an outcome: what kind, and its first line. Never its traceback, which has values in it."""
    lines = text_of(error)[:_MOST_READ].strip().splitlines()
    said = f": {lines[0]}" if lines else ""
    return ToolRefusal(TOOL_FAILED, f"it failed with {type(error).__qualname__}{said}", retryable=True)
