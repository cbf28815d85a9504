"""The result of a command: bytes or JSON to stdout or a file; losses to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
import typer

from antiphon.cli._screen import fail, note, open_console, print_table
from antiphon.dialects import Loss
from antiphon.messages.json_values import write
from antiphon.service import escaped

OutputOption: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="OUT", help="The output file; default: stdout.")
]


def written(value: Any, dialect: str) -> bytes:
    """Return a value of a dialect as the bytes of a file."""
    if dialect == "house":  # JSON Lines by definition, as `loads` reads them
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
        fail(_not_written(output, exc), code=2)


def _not_written(output: Path, error: OSError) -> str:
    if not output.parent.is_dir():
        return f"{output}: there is no folder {str(output.parent)!r}; make it, or look at the path"
    return f"{output}: {error.strerror or error}"


@contextmanager
def delivery(output: Path | None) -> Generator[Callable[[bytes], object]]:
    """Give a function that writes piece by piece, to a file or to stdout, so that the whole need not be in memory."""
    if output is None or output == Path("-"):
        yield partial(deliver, output=None)
        return
    try:
        file = output.open("wb")
    except OSError as exc:
        fail(_not_written(output, exc), code=2)
    try:
        with file:
            yield file.write
    except OSError as exc:
        fail(f"{output}: {exc.strerror or exc}; the file is incomplete", code=2)
    except BaseException:
        note(f"{output}: the file is incomplete")
        raise


def report_losses(losses: Sequence[Loss], dialect: str) -> None:
    """List on stderr what a dialect cannot express."""
    note(f"{dialect} cannot say everything; lost on the way: {len(losses)}")
    rows = [(loss.message_id or "(conversation)", loss.what, loss.reason) for loss in losses]
    print_table(open_console(stderr=True), ("message", "what", "reason"), rows)


def print_json(value: dict[str, Any] | Sequence[Any]) -> None:
    """Print a value as indented JSON, with times as the house format writes them."""
    deliver(write(value, orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z) + b"\n", None)


def print_json_line(value: dict[str, Any]) -> None:
    """Print a value as one line of JSON."""
    deliver(write(value, orjson.OPT_UTC_Z) + b"\n", None)


def shown_time(moment: datetime) -> str:
    """Return a time as tables and lines show it, without the time zone."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def short_time(moment: datetime, now: datetime) -> str:
    """Return a time as a table in a terminal shows it: the hour of today, the day of this year, else the date."""
    if moment.date() == now.date():
        return f"{moment:%H:%M}"
    return f"{moment:%d %b %H:%M}" if moment.year == now.year else f"{moment:%Y-%m-%d}"


def shown_age(age: timedelta) -> str:
    """Return a duration in its largest two units, such as `3m 20s`."""
    seconds = max(0, int(age.total_seconds()))
    for unit, below, size in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if seconds >= size:
            rest = seconds % size // (size // {"d": 24, "h": 60, "m": 60}[unit])
            return f"{seconds // size}{unit} {rest}{below}"
    return f"{seconds}s"
