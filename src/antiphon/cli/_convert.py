"""`antiphon convert`, `antiphon repair` and `antiphon dialects`: a file in another format, or accepted by a provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.checks import Change
from antiphon.checks import repair as repaired
from antiphon.cli._input import (
    EachLineOption,
    FileArgument,
    ForOption,
    FromOption,
    dialect_of,
    known_dialect,
    offered_dialects,
    read_conversation,
    read_conversations,
    read_file,
    refusals,
    target_of,
)
from antiphon.cli._output import (
    ForceOption,
    OutputKind,
    OutputOption,
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
            help="The dialect to write: see antiphon dialects.",
        ),
    ],
    source: FromOption = None,
    each_line: EachLineOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="If anything would be lost, write nothing and exit 1.")] = False,
    output: OutputOption = None,
    force: ForceOption = False,
    as_policy: Annotated[
        str | None, typer.Option("--as-policy", metavar="NAME", help="The participant who becomes the assistant.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The model to name in the request; default: none.")
    ] = None,
) -> None:
    """Convert a conversation to another format. Losses are listed on stderr."""
    options = _options(target, model)
    values: list[Any] = []
    losses: list[Loss] = []
    for given, conversation in read_conversations(read_file(file), source, each_line=each_line):
        with refusals(given):
            encoded = encode(conversation, target, as_policy=as_policy, **options)
        values.append(encoded.value)
        losses += encoded.losses if given.number is None else [_on_line(given.number, loss) for loss in encoded.losses]
    if losses:
        report_losses(losses, target)
        if any(loss.what == "model" for loss in losses) and _takes_model(target):
            note(f"--model NAME names a model for {target}")
        if strict:
            fail("nothing is written, because of --strict")
    text = b"".join(written_line(value, target) for value in values) if each_line else written(values[0], target)
    deliver(text, output, kind=_kind(file, output, target), force=force)


def _on_line(number: int, loss: Loss) -> Loss:
    return replace(loss, message_id=f"line {number}: {loss.message_id or '(conversation)'}")


def _options(target: str, model: str | None) -> dict[str, Any]:
    """Return the options of the dialect."""
    if model is None:
        return {}
    if not _takes_model(target):
        fail(f"--model: {target} has no requests, so no model can be named", code=2)
    return {"model": model}


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
    output: OutputOption = None,
    force: ForceOption = False,
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
    deliver(written(encoded.value, to or dialect), output, kind=_kind(file, output, to or dialect), force=force)


def _kind(file: Path, output: Path | None, dialect: str) -> OutputKind:
    """Return the kind of the output; the input is never an earlier output."""
    if output is not None and output.exists() and file.exists() and output.samefile(file):
        return lambda _: False
    return is_of_dialect(dialect)


def _report(changes: Sequence[Change]) -> None:
    if not changes:
        note("nothing needed a repair")
        return
    note(f"repaired: {len(changes)}")
    rows = [(change.message_id or "(conversation)", change.code, change.done) for change in changes]
    print_table(open_console(stderr=True), ("message", "code", "done"), rows)


def dialects() -> None:
    """List the supported formats."""
    print_table(open_console(), ("name", "summary"), [(name, _summary(name)) for name in names()])


def _summary(name: str) -> str:
    try:
        return get(name).summary
    except Exception as exc:  # noqa: BLE001 (a broken package of another author must not hide the others)
        return f"cannot be loaded: {exc}"
