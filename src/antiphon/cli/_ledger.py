"""The ledger of a command: which one it is, how it is opened, and what its errors mean to a person at a terminal.

All commands follow one rule: the ledger that `--ledger` names, else the one that `ANTIPHON_LEDGER` names, else the file
`antiphon.db` in the current folder. Only a command that writes messages creates a ledger.

The ledger is imported when a command needs it: commands that work on files are quicker without.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

import typer

from antiphon.cli._screen import fail
from antiphon.errors import (
    AntiphonError,
    CursorError,
    FencedError,
    LedgerCorruptError,
    LedgerFormatError,
    LedgerUnavailableError,
    OtherPatternError,
    OwnedError,
    OwnProgramError,
    PlaceError,
    SecretNameError,
    SetupError,
    ThreadBusyError,
    ThreadEndedError,
    UnknownThreadError,
)

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

VARIABLE = "ANTIPHON_LEDGER"
REDACTION = "ANTIPHON_REDACTION"
DEFAULT = "sqlite:///antiphon.db"
BUSY_SECONDS = 10.0
"""How long to wait while another process writes."""
_FILE = "sqlite:///"

LedgerOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help=f"The ledger; default: {VARIABLE}, or {DEFAULT}."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ThreadArgument: TypeAlias = Annotated[str, typer.Argument(metavar="THREAD", help="The id of a thread: see antiphon threads.")]

ResultT = TypeVar("ResultT")


def ledger_in_use(url: str | None) -> str:
    """Return the URL that is given, else that of the environment, else that of the current folder."""
    return url or os.environ.get(VARIABLE) or DEFAULT


def missing_ledger(url: str) -> Path | None:
    """Return the file of a ledger that does not exist; None if it exists, or the ledger is no file."""
    path = url.removeprefix(_FILE)
    return None if path in ("", url) or Path(path).exists() else Path(path)


def with_ledger(url: str | None, work: Callable[[Ledger], Awaitable[ResultT]], *, create: bool = False) -> ResultT:
    """Open a ledger, do something with it, and close it. An error is printed in one line."""
    import asyncio  # noqa: PLC0415 (only where a ledger is used)

    place = _place(ledger_in_use(url), is_named=url is not None, create=create)
    with complaints():
        return asyncio.run(_within(place, work, create))


@contextmanager
def complaints() -> Generator[None]:
    """Print an error in one line, and exit: 2 if the command cannot run so, 1 if it is about the data.

    A record is decoded when its message is first read, so printing records belongs inside too.
    """
    try:
        yield
    except _ABOUT_THREADS as exc:
        fail(*_about_thread(exc))
    except SecretNameError as exc:
        fail(f"{exc.what} looks like a secret; choose another name, or set {REDACTION}=off", 2)
    except LedgerCorruptError as exc:
        fail(str(exc) if exc.thread_id is None else f"{exc}; `antiphon verify` names every thread that is damaged")
    except (CursorError, LedgerUnavailableError, LedgerFormatError, OwnProgramError, PlaceError, SetupError) as exc:
        fail(str(exc), code=2)
    except AntiphonError as exc:
        fail(str(exc))
    except ModuleNotFoundError as exc:
        fail(str(exc) if "pip install" in str(exc) else f'{exc}; pip install "antiphon[agents]"', code=2)


_ABOUT_THREADS = (UnknownThreadError, OtherPatternError, ThreadEndedError, ThreadBusyError, OwnedError, FencedError)


def _about_thread(error: AntiphonError) -> tuple[str, int]:
    """Return why a thread cannot be used so, with what to type instead, and the exit code."""
    match error:
        case UnknownThreadError(thread_id=name):
            return f"no thread is called {name!r}; `antiphon threads` lists them, with --all those of the system too", 2
        case OtherPatternError():
            return f"{error}; a thread of a team continues with `antiphon run --team FILE --thread THREAD TASK`", 2
        case ThreadEndedError(thread_id=name):
            return f"{error}; `antiphon run --thread {name} QUESTION` asks something more", 1
        case ThreadBusyError(thread_id=name, status=status):
            word = "continues it" if status == "paused" else "waits for its answer"
            return f"{error}; `antiphon resume {name}` {word}, then ask again", 1
        case OwnedError(thread_id=name, owner=owner, until=until):
            return (
                f"host {owner!r} has thread {name!r}, at least until {until:%H:%M:%S} UTC, and nothing was changed; "
                "`antiphon hosts` lists the hosts, try again when that one is done"
            ), 1
        case FencedError(thread_id=name):
            return f"thread {name!r} has an owner, and nobody else may append to it; choose another with --thread", 1
        case _:
            return str(error), 1


def _place(url: str, *, is_named: bool, create: bool) -> str:
    """Return the URL, if there can be a ledger."""
    if url == "memory:":
        fail(f"a ledger in memory ends with its process; give the URL of a file, {_FILE}ledger.db", code=2)
    path = None if create else missing_ledger(url)
    if path is not None:
        fail(_nothing_at(path, is_named=is_named), code=2)
    return url


def _nothing_at(path: Path, *, is_named: bool) -> str:
    """Return the error of a ledger that does not exist, and what to do."""
    if not is_named and not os.environ.get(VARIABLE):
        advice = f"`antiphon run` and `antiphon import` make one, --ledger or {VARIABLE} names another"
        return f"there is no ledger {path} in this folder; {advice}"
    named_by = "" if is_named else f", which {VARIABLE} names"
    if Path("/", path).exists():
        return f"{path}{named_by}: there is no such ledger; an absolute path has four slashes, {_FILE}/{path}"
    return f"{path}{named_by}: there is no such ledger; look at the path, or make one with `antiphon import`"


async def _within(url: str, work: Callable[[Ledger], Awaitable[ResultT]], create: bool) -> ResultT:
    from antiphon.ledger import open_ledger  # noqa: PLC0415 (only where a ledger is used)

    async with AsyncExitStack() as stack:
        try:
            opened = open_ledger(url, create=create, redaction=_redaction(), busy_timeout=BUSY_SECONDS)
            ledger = await stack.enter_async_context(opened)
        except (ModuleNotFoundError, ValueError) as exc:
            fail(str(exc), code=2)
        except OSError as exc:
            fail(f"{url}: {exc.strerror or exc}; look at the path", code=2)
        return await work(ledger)


def _redaction() -> Literal["off"] | None:
    """Return whether the environment turns redaction off; by default, commands redact what they write."""
    said = os.environ.get(REDACTION, "")
    if said == "off":
        return "off"
    if said not in ("", "on"):
        fail(f"{REDACTION} is on or off, not {said!r}", code=2)
    return None
