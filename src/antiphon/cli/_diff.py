"""`antiphon diff`: where two threads part, and how each goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.text import Text

from antiphon.cli._ledger import JsonOption, LedgerOption, complaints, known_thread, with_ledger
from antiphon.cli._rows import as_json, print_json
from antiphon.cli._screen import open_console, styled
from antiphon.cli._transcript import gist

if TYPE_CHECKING:
    from antiphon.ledger import Diff, Ledger, Record

__all__ = ["diff"]

_Outputs: TypeAlias = "Mapping[str, Any]"
_STYLES = ("red", "green")


def diff(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="The id of a thread.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The id of another, for example a branch of it.")],
    *,
    by_message: Annotated[bool, typer.Option("--messages", help="Compare message by message, not by phase.")] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Compare two threads, by phase if both have six phases. Exit 1 if they differ."""
    found, outputs = with_ledger(ledger, partial(_compare, left=left, right=right))
    with complaints():
        if for_programs:
            _print_json(found)
        elif outputs is None or by_message:
            _print(_lines(found, left, right))
        else:
            _print(_phases(found, left, right, *outputs))
    if found.left or found.right:
        raise typer.Exit(1)


async def _compare(ledger: Ledger, *, left: str, right: str) -> tuple[Diff, tuple[_Outputs, _Outputs] | None]:
    """Return how two threads differ; and of those of six phases, what came of each phase in their last turns."""
    outputs = await _outputs(ledger, left), await _outputs(ledger, right)
    return await ledger.diff(left, right), outputs if all(outputs) else None


async def _outputs(ledger: Ledger, thread: str) -> _Outputs:
    found = await known_thread(ledger, thread)
    if found.pattern not in ("postchain", None):  # nobody says of a branch what it is of
        return {}
    try:
        from antiphon.patterns.postchain import LIFE  # noqa: PLC0415 (only where it is used)
    except ModuleNotFoundError:  # whoever has no agents has no such threads
        return {}
    return (await ledger.replay(thread, LIFE.fold())).outputs or {}


def _print_json(found: Diff) -> None:
    sides = {"left": [as_json(each) for each in found.left], "right": [as_json(each) for each in found.right]}
    print_json({"common": found.common, **sides})


def _print(lines: Iterator[Text]) -> None:
    console = open_console()
    for line in lines:
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


def _phases(found: Diff, left: str, right: str, before: _Outputs, after: _Outputs) -> Iterator[Text]:
    """Yield where two threads part: phase by phase, what each says, and which model says it."""
    yield Text(f"messages that are the same: {found.common}", style="dim")
    yield styled(f"--- {left}", "bold red")
    yield styled(f"+++ {right}", "bold green")
    for phase in dict.fromkeys((*before, *after)):
        said = _said(before.get(phase)), _said(after.get(phase))
        if said[0] == said[1]:
            yield styled(f"  {phase}: the same", "dim")
            continue
        yield from (styled(f"{sign} {phase}: {text}", style) for sign, text, style in zip("-+", said, _STYLES, strict=True))


def _said(output: Mapping[str, Any] | None) -> str:
    if output is None:
        return "nothing"
    model = f" ({output['model']})" if output.get("model") else ""
    return f"{' '.join(str(output['response']).split())}{model}"


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
