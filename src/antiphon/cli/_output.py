"""What a command gives: a conversation in some dialect, to stdout or a file, and beside it what is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
import typer

from antiphon.cli._screen import escaped, fail, note, open_console, print_table
from antiphon.dialects import Loss
from antiphon.messages.json_values import write

__all__ = ["OutputOption", "deliver", "delivery", "report_losses", "written"]

OutputOption: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="OUT", help="The output file; default: stdout.")
]


def written(value: Any, dialect: str) -> bytes:
    """Return what a dialect wrote as a file has it."""
    if dialect == "house":  # JSON Lines by definition; so the file is what `loads` reads
        return b"".join(write(line) + b"\n" for line in value)
    return write(value, orjson.OPT_INDENT_2) + b"\n"


def deliver(text: bytes, output: Path | None) -> None:
    """Write to a file, or to stdout."""
    if output is None or output == Path("-"):
        is_seen = sys.stdout.isatty()
        sys.stdout.buffer.write(escaped(text.decode()).encode() if is_seen else text)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(text)
    except OSError as exc:
        fail(f"{output}: {exc.strerror or exc}", code=2)


@contextmanager
def delivery(output: Path | None) -> Generator[Callable[[bytes], object]]:
    """Give a function that writes piece by piece, to a file or to stdout: for what need not be in memory as a whole."""
    if output is None or output == Path("-"):
        yield partial(deliver, output=None)
        return
    try:
        file = output.open("wb")
    except OSError as exc:
        fail(f"{output}: {exc.strerror or exc}", code=2)
    try:
        with file:
            yield file.write
    except OSError as exc:
        fail(f"{output}: {exc.strerror or exc}; what was written to it is not whole", code=2)
    except BaseException:
        note(f"{output}: what was written to it is not whole")
        raise


def report_losses(losses: Sequence[Loss], dialect: str) -> None:
    """Say on stderr what a dialect cannot say."""
    note(f"{dialect} cannot say everything; lost on the way: {len(losses)}")
    rows = [(loss.message_id or "(conversation)", loss.what, loss.reason) for loss in losses]
    print_table(open_console(stderr=True), ("message", "what", "reason"), rows)
