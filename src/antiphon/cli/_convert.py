"""`antiphon convert` and `antiphon repair`: a file in another format, or accepted by a provider; and the list of formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from antiphon.checks import Change
from antiphon.checks import repair as repaired
from antiphon.cli._input import (
    EachLineOption,
    FileArgument,
    FileContent,
    ForOption,
    FromOption,
    dialect_of,
    known_dialect,
    offered_dialects,
    read_conversations,
    read_file,
    refusals,
    target_of,
)
from antiphon.cli._output import (
    ForceOption,
    OutputKind,
    OutputOption,
    PolicyOption,
    StrictOption,
    deliver,
    is_of_dialect,
    report_losses,
    written,
    written_line,
)
from antiphon.cli._screen import fail, note, open_console, print_table
from antiphon.dialects import Loss, encode, get, names


def convert(
    file: FileArgument,
    *,
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            callback=known_dialect,
            autocompletion=offered_dialects,
            help="The dialect to write: see antiphon help dialects.",
        ),
    ],
    source: FromOption = None,
    each_line: EachLineOption = False,
    strict: StrictOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    as_policy: PolicyOption = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The model to name in the request; default: none.")
    ] = None,
) -> None:
    """Convert a conversation to another format. Losses are listed on stderr."""
    if model is not None and not _takes_model(target):
        fail(f"--model: {target} has no requests, so no model can be named", code=2)
    options: dict[str, Any] = {} if model is None else {"model": model}
    values: list[Any] = []
    losses: list[Loss] = []
    for content, conversation in read_conversations(read_file(file), source, each_line=each_line):
        with refusals(content):
            encoded = encode(conversation, target, as_policy=as_policy, **options)
        values.append(encoded.value)
        losses += [_on_line(content, loss) for loss in encoded.losses]
    if losses:
        report_losses(losses, target)
        if any(loss.what == "model" for loss in losses) and _takes_model(target):
            note(f"--model NAME names a model for {target}")
        if strict:
            fail("nothing is written, because of --strict")
    deliver(_text(values, target, each_line=each_line), output, kind=_kind(file, output, target), force=force)


_NotedT = TypeVar("_NotedT", Loss, Change)


def _on_line(content: FileContent, noted: _NotedT) -> _NotedT:
    """Return a loss or a change with the line of its conversation, if each line of the file is one."""
    if content.number is None:
        return noted
    return replace(noted, message_id=f"line {content.number}: {noted.message_id or '(conversation)'}")


def _takes_model(target: str) -> bool:
    return "model" in getattr(get(target), "options", ())


def repair(
    file: FileArgument,
    *,
    target: ForOption = None,
    source: FromOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="NAME",
            callback=known_dialect,
            autocompletion=offered_dialects,
            help="The dialect to write; default: that of FILE.",
        ),
    ] = None,
    each_line: EachLineOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Fix what a provider would refuse, and write the conversation. Changes are listed on stderr."""
    content = read_file(file)
    dialect = dialect_of(content.each_line()[0] if each_line else content, source)
    written_as, aim = to or dialect, target_of(dialect, target)
    values: list[Any] = []
    changes: list[Change] = []
    losses: list[Loss] = []
    for part, conversation in read_conversations(content, dialect, each_line=each_line):
        mended = repaired(conversation, aim)
        with refusals(part):
            encoded = encode(mended.conversation, written_as)
        values.append(encoded.value)
        changes += [_on_line(part, change) for change in mended.changes]
        losses += [_on_line(part, loss) for loss in encoded.losses]
    note(f"repaired: {len(changes)}" if changes else "nothing needed a repair")
    if changes:
        rows = [(change.message_id or "(conversation)", change.code, change.done) for change in changes]
        print_table(open_console(stderr=True), ("message", "code", "done"), rows)
    if losses:
        report_losses(losses, written_as)
    if to is None and target not in (None, dialect):
        note(f"written as {dialect}; --to {target} writes it for the target")
    deliver(_text(values, written_as, each_line=each_line), output, kind=_kind(file, output, written_as), force=force)


def _text(values: Sequence[Any], dialect: str, *, each_line: bool) -> bytes:
    """Return encoded conversations as the text of a file: one of them, or with `each_line` one per line."""
    return b"".join(written_line(value, dialect) for value in values) if each_line else written(values[0], dialect)


def _kind(file: Path, output: Path | None, dialect: str) -> OutputKind:
    """Return the kind of the output; the input is never an earlier output."""
    if output is not None and os.path.exists(output) and os.path.exists(file) and output.samefile(file):
        return lambda _: False
    return is_of_dialect(dialect)


def print_dialects() -> None:
    """Print the supported formats."""
    print_table(open_console(), ("name", "summary"), [(name, _summary(name)) for name in names()])


def _summary(name: str) -> str:
    try:
        return get(name).summary
    except Exception as exc:  # noqa: BLE001 (a broken package of another author must not hide the others)
        return f"cannot be loaded: {exc}"
