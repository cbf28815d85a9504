"""`antiphon convert`: a file from one dialect to another, with what is lost on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from antiphon.cli._input import FileArgument, FromOption, known_dialect, read_conversation, read_file, refusals
from antiphon.cli._screen import escaped, fail, note, open_console, print_table
from antiphon.dialects import Loss, encode
from antiphon.messages._json import write

__all__ = ["convert"]


def convert(
    file: FileArgument,
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="NAME", callback=known_dialect, help="The dialect to write; see antiphon dialects.")
    ],
    source: FromOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing, and exit 1, if anything would be lost.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Write here, not to stdout."),
    ] = None,
    as_policy: Annotated[
        str | None, typer.Option("--as-policy", metavar="NAME", help="The viewpoint: whose words are the assistant's.")
    ] = None,
) -> None:
    """Turn a conversation in one format into another; what the other cannot say is listed on stderr."""
    given = read_file(file)
    conversation = read_conversation(given, source)
    with refusals(given):
        encoded = encode(conversation, target, as_policy=as_policy)
    if encoded.losses:
        _report(encoded.losses, target)
        if strict:
            fail("nothing is written, because of --strict")
    _deliver(_written(encoded.value, target), output)


def _report(losses: Sequence[Loss], target: str) -> None:
    note(f"{target} cannot say everything; lost on the way: {len(losses)}")
    rows = [(loss.message_id or "(conversation)", loss.what, loss.reason) for loss in losses]
    print_table(open_console(stderr=True), ("message", "what", "reason"), rows)


def _written(value: Any, target: str) -> bytes:
    if target == "house":  # JSON Lines by definition; so the file is what `loads` reads
        return b"".join(write(line) + b"\n" for line in value)
    return write(value, orjson.OPT_INDENT_2) + b"\n"


def _deliver(text: bytes, output: Path | None) -> None:
    if output is None or output == Path("-"):
        is_seen = sys.stdout.isatty()
        sys.stdout.buffer.write(escaped(text.decode()).encode() if is_seen else text)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(text)
    except OSError as exc:
        fail(f"{output}: {exc.strerror or exc}", code=2)
