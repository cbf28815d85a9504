"""`antiphon settle`: a person says what became of something that is parked."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli._ledger import LedgerOption, ThreadArgument, known_thread, with_ledger
from antiphon.cli._screen import fail, note

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["settle"]


def settle(
    thread: ThreadArgument,
    invocation: Annotated[str, typer.Argument(metavar="INVOCATION", help="The id of the parked call: see antiphon parked.")],
    *,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="The call succeeded, with this result.")
    ] = None,
    error: Annotated[str | None, typer.Option("--error", metavar="TEXT", help="The call failed, with this error.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="The call did not run: it may start again.")] = False,
    ledger: LedgerOption = None,
) -> None:
    """Record the outcome of a parked call. The thread continues when its program runs again."""
    if sum((result is not None, error is not None, retry)) != 1:
        fail("say one of --result JSON, --error TEXT or --retry", code=2)
    value = None if result is None else _read(result)
    work = partial(_settle, thread=thread, invocation=invocation, result=value, error=error, retry=retry)
    pattern = with_ledger(ledger, work)
    also = f"; a thread that is paused goes on by `antiphon resume {thread}`" if pattern == "postchain" else ""
    note(f"{invocation} is settled; start its program again, and it goes on{also}")


def _read(result: str) -> Any:
    try:
        return json.loads(result)  # orjson reads large integers as floats
    except json.JSONDecodeError as exc:
        fail(f"--result is JSON, a text in quotes: {exc}", code=2)


async def _settle(ledger: Ledger, *, thread: str, invocation: str, result: Any, error: str | None, retry: bool) -> str | None:
    """Settle it, and return which pattern the thread is of."""
    from antiphon.runtime import System  # noqa: PLC0415 (only where it is used)

    found = await known_thread(ledger, thread)
    async with System(ledger) as system:
        try:
            await system.settle(thread, invocation, result=result, error=error, retry=retry)
        except ValueError:
            fail(f"{invocation!r} is not parked in thread {thread!r}; `antiphon parked` lists what is")
    return found.pattern
