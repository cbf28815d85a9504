"""`antiphon convert`: a file from one dialect to another, with what is lost on the way."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.cli._input import FileArgument, FromOption, known_dialect, read_conversation, read_file, refusals
from antiphon.cli._output import OutputOption, deliver, report_losses, written
from antiphon.cli._screen import fail
from antiphon.dialects import encode

__all__ = ["convert"]


def convert(
    file: FileArgument,
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="NAME", callback=known_dialect, help="The dialect to write: see antiphon dialects.")
    ],
    source: FromOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="If anything would be lost, write nothing and exit 1.")] = False,
    output: OutputOption = None,
    as_policy: Annotated[
        str | None, typer.Option("--as-policy", metavar="NAME", help="The participant who becomes the assistant.")
    ] = None,
) -> None:
    """Convert a conversation to another format. Losses are listed on stderr."""
    given = read_file(file)
    conversation = read_conversation(given, source)
    with refusals(given):
        encoded = encode(conversation, target, as_policy=as_policy)
    if encoded.losses:
        report_losses(encoded.losses, target)
        if strict:
            fail("nothing is written, because of --strict")
    deliver(written(encoded.value, target), output)
