"""`antiphon tail`: what is being said in a ledger, as it comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, cast

import orjson
import typer
from rich.text import Text

from antiphon.cli._ledger import JsonOption, LedgerOption, known_thread, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._rows import as_json, shown_time, thread_of
from antiphon.cli._screen import fail, note, open_console, styled
from antiphon.cli._transcript import gist
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from antiphon.ledger import Ledger, Tailed

__all__ = ["tail"]


def tail(
    thread: Annotated[str | None, typer.Argument(metavar="THREAD", help="Only this thread; default: all.")] = None,
    *,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue after the cursor of an earlier tail.")
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Start with the stored messages.")] = False,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages.")] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Print new messages, one a line, until Ctrl-C."""
    if after is not None and from_start:
        fail("--after and --from-start are two places to begin; give one of them", code=2)
    seen = _Seen(after)
    follow = partial(
        _follow,
        thread=thread,
        after="" if from_start else after,
        count=count,
        seen=seen,
        put=_put_json if for_programs else _put,
    )
    try:
        with_ledger(ledger, follow)
    except KeyboardInterrupt:  # as it is meant to end
        if seen.cursor is not None:
            note(f"go on from here with --after {seen.cursor}")


class _Seen:
    """How far the reader has got."""

    def __init__(self, cursor: str | None) -> None:
        self.cursor = cursor


async def _follow(
    ledger: Ledger, *, thread: str | None, after: str | None, count: int | None, seen: _Seen, put: Callable[[Tailed], None]
) -> None:
    """Print what comes; `after` is a cursor, nothing for the present, or empty for the beginning."""
    if thread is not None:
        await known_thread(ledger, thread)
    start = await ledger.horizon() if after is None else after or None
    seen.cursor = start
    left = count
    try:
        # An iterator in the contract, a generator in fact: to be closed before the ledger is.
        async with aclosing(cast("AsyncGenerator[Tailed, None]", ledger.tail(start, thread_id=thread))) as found:
            async for each in found:
                put(each)
                seen.cursor = each.cursor
                left = None if left is None else left - 1
                if left == 0:
                    return
    except ValueError as exc:
        fail(str(exc), code=2)


def _put(tailed: Tailed) -> None:
    record = tailed.record
    line = Text.assemble(
        (shown_time(record.recorded_at), "dim"),
        "  ",
        styled(thread_of(record)),
        f" {record.seq}  ",
        styled(record.message.policy, "bold cyan"),
        "  ",
        gist(record.message),
    )
    console = open_console()
    if console.is_terminal:
        line.truncate(console.width, overflow="ellipsis")
    console.print(line, soft_wrap=True)


def _put_json(tailed: Tailed) -> None:
    deliver(write({"cursor": tailed.cursor, **as_json(tailed.record)}, orjson.OPT_UTC_Z) + b"\n", None)
