"""`antiphon heads`: where every thread ends, to be kept elsewhere; and how such a file is read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import orjson
import typer

from antiphon.cli._input import read_file
from antiphon.cli._ledger import LedgerOption, known_thread, with_ledger
from antiphon.cli._output import OutputOption, deliver
from antiphon.cli._screen import fail
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger

__all__ = ["heads", "read_heads", "write_heads"]


def heads(
    threads: Annotated[list[str] | None, typer.Argument(metavar="THREAD", help="The ids of threads; default: all.")] = None,
    *,
    output: OutputOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Print the end of each thread and the hash of all its rows. Keep it elsewhere: it is the proof for verify and restore."""
    write_heads(with_ledger(ledger, partial(_heads, names=threads or [])), output)


async def _heads(ledger: Ledger, *, names: list[str]) -> tuple[Head, ...]:
    for name in names:
        await known_thread(ledger, name)
    return tuple(head for head in await ledger.heads() if not names or head.thread_id in names)


def write_heads(found: Iterable[Head], output: Path | None) -> None:
    """Write heads to a file, or to stdout."""
    rows = [{"thread_id": head.thread_id, "seq": head.seq, "hash": head.hash} for head in found]
    deliver(write(rows, orjson.OPT_INDENT_2) + b"\n", output)


def read_heads(path: Path) -> tuple[Head, ...]:
    """Read a file of heads."""
    from antiphon.ledger import Head  # noqa: PLC0415 (only where a ledger is used)

    given = read_file(path)
    found: list[Head] = []
    for row in cast("list[Any]", given.value if isinstance(given.value, list) else [given.value]):
        match row:
            case {"thread_id": str(name), "seq": int(seq), "hash": str(link)}:
                found.append(Head(name, seq, link))
            case _:
                fail(f"{given.name}: these are not heads as `antiphon verify --save-heads` writes them")
    return tuple(found)
