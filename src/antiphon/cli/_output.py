"""The result of a command: bytes or JSON to stdout or a file; losses to stderr."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeAlias, TypeVar, cast

import orjson
import typer

from antiphon import service
from antiphon.cli._screen import fail, note, note_console, open_console, print_table
from antiphon.dialects import Loss, detect
from antiphon.messages._json_values import JsonError, parse, write

ValueT = TypeVar("ValueT")

COMPLETED: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2
WAITING: Final = 3
STOPPED: Final = 4
INTERRUPTED: Final = 130
EXIT_CODES: Final = {
    COMPLETED: "completed: the thread, or the work of the command, is done",
    FAILED: "failed: the thread has failed or was terminated, or every tool behind the answer failed; the data violates its "
    "format, or a thread refuses it; --strict found a loss, check an error, verify a damage, or diff a difference; or "
    "the reader of a pipe closed it",
    UNUSABLE: "the command cannot run: an unknown command, option, model, dialect or thread, a file that cannot be opened "
    "or written or has an error in it, an unusable ledger, a package that is not installed",
    WAITING: "the thread waits for a person: to approve, deny or settle a call; the output says how",
    STOPPED: "the thread stopped before its end, and antiphon resume continues it: it was paused by another process, or needs "
    "something from outside, such as a provider, a key, a budget, space on the disk or its own program",
    INTERRUPTED: "interrupted by Ctrl-C; antiphon resume continues the thread",
}
"""The exit codes of all commands."""

OutputOption: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="OUT", help="The output file; default: stdout.")
]
StrictOption: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="If anything would be lost, write nothing and exit 1.")
]
PolicyOption: TypeAlias = Annotated[
    str | None, typer.Option("--as-policy", metavar="NAME", help="The participant who becomes the assistant.")
]
ForceOption: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace an existing file, whatever is in it.")]


def written(value: Any, dialect: str) -> bytes:
    """Return a value of a dialect as the bytes of a file."""
    if dialect == "house":  # JSON Lines by definition, as `loads` reads them
        return b"".join(write(line) + b"\n" for line in value)
    return write(value, orjson.OPT_INDENT_2) + b"\n"


def written_line(value: Any, dialect: str) -> bytes:
    """Return a value of a dialect as a line; in the house format, a conversation is several lines."""
    return written(value, dialect) if dialect == "house" else write(value) + b"\n"


def deliver(text: bytes, output: Path | None, *, kind: OutputKind | None = None, force: bool = False) -> None:
    """Write to a file, or to stdout. `kind` says what the file is, for one that exists; see `delivery`."""
    if output is None or output == Path("-"):
        is_seen = sys.stdout.isatty()
        sys.stdout.buffer.write(service.escaped(text.decode()).encode() if is_seen else text)
        sys.stdout.buffer.flush()
        return
    with delivery(output, kind=kind, force=force) as put:
        put(text)


@contextmanager
def delivery(
    output: Path | None, *, kind: OutputKind | None = None, force: bool = False
) -> Generator[Callable[[bytes], object]]:
    """Give a function that writes piece by piece, to a file or to stdout, so that the whole need not be in memory.

    A file appears in one piece or not at all. What the block writes goes to a new file in the same folder, which takes the
    name when all of it is on the disk. So an error, a full disk or a kill leaves the old file as it was. A file that exists
    is replaced if it is empty, or an earlier output of the same `kind`; any other one only with `force`.
    """
    if output is None or output == Path("-"):
        yield partial(deliver, output=None)
        return
    place = output.resolve()  # the file that a link leads to, so that the link stays
    if _is_device(place):
        with _write_errors(output), output.open("wb") as device:
            yield device.write
        return
    _check_replaceable(output, kind, force)
    with _write_errors(output):
        partial_file, file = _open_beside(place)
    try:
        with _write_errors(output):
            with file:
                yield file.write
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial_file, place)
            _sync_folder(place.parent)
    except BaseException:
        partial_file.unlink(missing_ok=True)
        raise


@contextmanager
def _write_errors(output: Path) -> Generator[None]:
    """Print an error of writing in one line, with what has become of the file."""
    outcome = "the file is as it was" if os.path.isfile(output) else "nothing was written"
    try:
        yield
    except OSError as exc:
        if not os.path.isdir(output.parent):
            fail(f"{output}: there is no folder {str(output.parent)!r}; make it, or check the path", code=2)
        fail(f"{output}: {exc.strerror or exc}" + ("" if _is_device(output) else f"; {outcome}"), code=2)
    except BaseException:
        note(f"{output}: {outcome}")
        raise


def _is_device(place: Path) -> bool:
    """Whether it is a device or a named pipe, which has no old content to keep."""
    return os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place)


def _open_beside(place: Path) -> tuple[Path, BinaryIO]:
    """Open a new file in the folder of another, with the permissions of that one."""
    partial_file = place.with_name(f".antiphon-{os.getpid()}.part")
    file = os.fdopen(os.open(partial_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb")
    if os.path.exists(place):
        os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
    return partial_file, file


def _sync_folder(folder: Path) -> None:
    """Make the new name durable: without it, a power failure could bring the old file back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---------------------------------------------------------------- files that exist

OutputKind: TypeAlias = Callable[[Any], bool]
"""Whether the first JSON value of a file is what a command writes."""

_MOST_LOOK: Final = 64 * 1024 * 1024
"""Bytes of an existing file that are read to see what it is."""


def is_of_dialect(dialect: str) -> OutputKind:
    """Return the kind of files in a dialect."""
    if dialect == "house":
        return lambda value: isinstance(value, dict) and "antiphon" in value

    def is_own(value: Any) -> bool:
        detected = detect(value)
        return dialect in (detected.name, *detected.candidates)

    return is_own


def has_keys(*keys: str) -> OutputKind:
    """Return the kind of files whose first object has these keys; a file may also be a list of objects."""

    def is_own(value: Any) -> bool:
        rows = cast("list[Any]", value) if isinstance(value, list) else [value]
        return not rows or (isinstance(rows[0], dict) and set(keys) <= rows[0].keys())

    return is_own


def _check_replaceable(output: Path, kind: OutputKind | None, force: bool) -> None:
    """Refuse to replace a file that is not an earlier output."""
    if os.path.isdir(output):
        fail(f"{output}: it is a folder; name a file in it", code=2)
    if force or not os.path.exists(output) or kind is None:
        return
    try:
        with output.open("rb") as file:
            text = file.read(_MOST_LOOK)
    except OSError as exc:
        fail(f"{output}: {exc.strerror or exc}; --force replaces it, or choose another name", code=2)
    if text.strip() and not _is_kind(text, kind):
        fail(f"{output}: there is a file of another kind; --force replaces it, or choose another name", code=2)


def _is_kind(text: bytes, kind: OutputKind) -> bool:
    for candidate in (text, text.lstrip().partition(b"\n")[0]):
        try:
            return kind(parse(candidate))
        except JsonError:  # not one JSON value: perhaps a line of them
            continue
    return False


def report_losses(losses: Sequence[Loss], dialect: str) -> None:
    """List on stderr what a dialect cannot express."""
    note(f"{dialect} cannot express everything; losses: {len(losses)}")
    rows = [(loss.message_id or "(conversation)", loss.what, loss.reason) for loss in losses]
    print_table(note_console(), ("message", "what", "reason"), rows)


def print_json(value: object) -> None:
    """Print a value as indented JSON, with times as the house format writes them."""
    deliver(service.to_json(value, orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z) + b"\n", None)


def print_list(
    values: Sequence[ValueT],
    headings: Sequence[str],
    row: Callable[[ValueT], Sequence[str]],
    *,
    for_programs: bool,
    otherwise: str,
) -> None:
    """Print values as JSON, or as a table with a row for each; `otherwise` is noted if there are none."""
    if for_programs:
        print_json(values)
    elif values:
        print_table(open_console(), headings, [row(value) for value in values])
    else:
        note(otherwise)


def print_json_line(value: object) -> None:
    """Print a value as one line of JSON."""
    deliver(service.to_json(value, orjson.OPT_UTC_Z) + b"\n", None)


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
