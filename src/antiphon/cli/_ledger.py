"""Which ledger a command works on, how it is opened, and what its errors mean to somebody at a terminal.

The ledger is imported when a command needs it: most of the time somebody only converts a file.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from antiphon.cli._screen import fail
from antiphon.errors import (
    AntiphonError,
    FencedError,
    LedgerCorruptError,
    LedgerFormatError,
    LedgerUnavailableError,
    UnknownThreadError,
)

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, ThreadSummary

__all__ = ["JsonOption", "LedgerOption", "ThreadArgument", "complaints", "known_thread", "ledger_in_use", "with_ledger"]

VARIABLE = "ANTIPHON_LEDGER"
BUSY_SECONDS = 10.0
"""How long to wait for another process that writes."""
_FILE = "sqlite:///"

LedgerOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help=f"The ledger, such as {_FILE}ledger.db; if not given, that of {VARIABLE}."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
ThreadArgument: TypeAlias = Annotated[str, typer.Argument(metavar="THREAD", help="The id of a thread; see antiphon threads.")]

ResultT = TypeVar("ResultT")


def ledger_in_use() -> str | None:
    """Return the URL that the environment names; None if it names none."""
    return os.environ.get(VARIABLE) or None


def with_ledger(url: str | None, work: Callable[[Ledger], Awaitable[ResultT]], *, create: bool = False) -> ResultT:
    """Open the ledger that was named, do something with it, and close it. What goes wrong is said in one line."""
    import asyncio  # noqa: PLC0415 (as above)

    place = _place(url or ledger_in_use(), create)
    with complaints():
        return asyncio.run(_within(place, work, create))


@contextmanager
def complaints() -> Generator[None]:
    """Turn what a ledger refuses into one line and an exit code: 2 if it cannot be used so, 1 if it is about what is in it.

    Records are read when somebody looks at their messages, so printing them belongs inside too.
    """
    try:
        yield
    except UnknownThreadError as exc:
        fail(f"no thread is called {exc.thread_id!r}; `antiphon threads` lists them, with --all those of the system too", 2)
    except FencedError as exc:
        fail(f"thread {exc.thread_id!r} has an owner, and nobody else may append to it; choose another with --thread")
    except LedgerCorruptError as exc:
        fail(str(exc) if exc.thread_id is None else f"{exc}; `antiphon verify` names every thread that is damaged")
    except (LedgerUnavailableError, LedgerFormatError) as exc:
        fail(str(exc), code=2)
    except AntiphonError as exc:
        fail(str(exc))


def _place(url: str | None, create: bool) -> str:
    """Return a URL that can be tried."""
    if url is None:
        fail(f"which ledger? give --ledger {_FILE}ledger.db, or set {VARIABLE}", code=2)
    if url == "memory:":
        fail(f"a ledger in memory is gone with the process that made it; give the URL of a file, {_FILE}ledger.db", code=2)
    path = url.removeprefix(_FILE)
    if path not in ("", url) and not create and not Path(path).exists():
        hint = f"; an absolute path has four slashes, {_FILE}/{path}" if Path("/", path).exists() else ""
        fail(f"{path}: there is no such ledger{hint or '; look at the path, or make one with `antiphon import`'}", code=2)
    return url


async def _within(url: str, work: Callable[[Ledger], Awaitable[ResultT]], create: bool) -> ResultT:
    from antiphon.ledger import open_ledger  # noqa: PLC0415 (as above)

    async with AsyncExitStack() as stack:
        try:
            ledger = await stack.enter_async_context(open_ledger(url, create=create, busy_timeout=BUSY_SECONDS))
        except (ModuleNotFoundError, ValueError) as exc:
            fail(str(exc), code=2)
        except OSError as exc:
            fail(f"{url}: {exc.strerror or exc}; look at the path", code=2)
        return await work(ledger)


async def known_thread(ledger: Ledger, thread_id: str) -> ThreadSummary:
    """Return what a thread amounts to.

    Raises:
        UnknownThreadError: there is none of that name.
    """
    found = await ledger.thread(thread_id)
    if found is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    return found
