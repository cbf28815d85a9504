"""`antiphon diff`: where two threads part, and how each goes on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from antiphon.cli._ledger import JsonOption, LedgerOption, complaints, known_thread, with_ledger
from antiphon.cli._rows import as_json, print_json
from antiphon.cli._screen import open_console, styled
from antiphon.cli._transcript import gist

if TYPE_CHECKING:
    from antiphon.ledger import Diff, Ledger, Record

__all__ = ["diff"]


def diff(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="The id of a thread.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The id of another; a branch of it, for example.")],
    *,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Say how two threads differ; exit 1 if they do."""
    found = with_ledger(ledger, partial(_compare, left=left, right=right))
    with complaints():
        if for_programs:
            _print_json(found)
        else:
            _print(found, left, right)
    if found.left or found.right:
        raise typer.Exit(1)


async def _compare(ledger: Ledger, *, left: str, right: str) -> Diff:
    await known_thread(ledger, left)
    await known_thread(ledger, right)
    return await ledger.diff(left, right)


def _print_json(found: Diff) -> None:
    sides = {"left": [as_json(each) for each in found.left], "right": [as_json(each) for each in found.right]}
    print_json({"common": found.common, **sides})


def _print(found: Diff, left: str, right: str) -> None:
    console = open_console()
    for line in _lines(found, left, right):
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


def _lines(found: Diff, left: str, right: str) -> Iterator[Text]:
    yield Text(f"messages that are the same: {found.common}", style="dim")
    yield from _side("-", left, found.left, "red")
    yield from _side("+", right, found.right, "green")


def _side(sign: str, name: str, records: tuple[Record, ...], style: str) -> Iterator[Text]:
    if records:
        yield styled(f"{sign * 3} {name}", f"bold {style}")
    for record in records:
        said = gist(record.message)
        said.stylize(style)
        yield Text.assemble((f"{sign} {record.seq}  ", style), styled(record.message.policy, f"bold {style}"), "  ", said)
