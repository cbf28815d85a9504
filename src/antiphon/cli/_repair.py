"""`antiphon repair`: a conversation that its target accepts, and what was changed to make it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from antiphon.checks import Change
from antiphon.checks import repair as repaired
from antiphon.cli._input import (
    FileArgument,
    ForOption,
    FromOption,
    dialect_of,
    known_dialect,
    read_conversation,
    read_file,
    refusals,
    target_of,
)
from antiphon.cli._output import OutputOption, deliver, report_losses, written
from antiphon.cli._screen import note, open_console, print_table
from antiphon.dialects import encode

__all__ = ["repair"]


def repair(
    file: FileArgument,
    *,
    target: ForOption = None,
    source: FromOption = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", callback=known_dialect, help="The dialect to write; default: that of FILE."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Fix what a provider would refuse, and write the conversation. Changes are listed on stderr."""
    given = read_file(file)
    dialect = dialect_of(given, source)
    mended = repaired(read_conversation(given, dialect), target_of(dialect, target))
    _report(mended.changes)
    with refusals(given):
        encoded = encode(mended.conversation, to or dialect)
    if encoded.losses:
        report_losses(encoded.losses, to or dialect)
    if to is None and target not in (None, dialect):
        note(f"written as {dialect}; --to {target} writes it for the target")
    deliver(written(encoded.value, to or dialect), output)


def _report(changes: Sequence[Change]) -> None:
    if not changes:
        note("nothing needed mending")
        return
    note(f"mended: {len(changes)}")
    rows = [(change.message_id or "(conversation)", change.code, change.done) for change in changes]
    print_table(open_console(stderr=True), ("message", "code", "done"), rows)
