"""The ledger of a command, and its threads: which they are, how they are opened, what errors mean to a person at a terminal.

All commands follow one rule: the ledger that `--ledger` names, else the one that `ANTIPHON_LEDGER` names, else the file
`antiphon.db` in the current folder. Only a command that writes messages creates a ledger. A path is as good as a URL.

A thread is named by its id, by a unique beginning of it, or by `last`. The parameter's callback turns that into the id, before
the command begins. It needs the ledger, so `--ledger` is parsed first.

The ledger is imported when a command needs it: commands that work on files are quicker without.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

import typer

from antiphon.cli._screen import fail, note
from antiphon.errors import (
    AntiphonError,
    EncryptionError,
    FencedError,
    HistoryMismatchError,
    LedgerCorruptError,
    LedgerFormatError,
    LedgerUnavailableError,
    ModelError,
    OtherRedactionError,
    OwnedError,
    PlaceError,
    SecretNameError,
    ServiceError,
    SettingsError,
    SetupError,
    ThreadBusyError,
    ThreadEndedError,
    ThreadMovedError,
    UnknownThreadError,
)

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

VARIABLE = "ANTIPHON_LEDGER"
REDACTION = "ANTIPHON_REDACTION"
DEFAULT = "antiphon.db"
BUSY_SECONDS = 10.0
"""How long to wait while another process writes."""
_FILE = "sqlite:///"

_URL: Final = re.compile(r"[a-z][a-z0-9+]+:", re.IGNORECASE)
"""How a URL begins. A drive letter is a path, so a scheme has two letters or more."""
_WHOLE_ID: Final = re.compile(r"t-[a-z2-7]{16}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The ids that antiphon makes: nothing needs to be looked up."""
_COMPLETED: Final = 50
"""Threads that the shell offers."""

ResultT = TypeVar("ResultT")


def known_thread(context: typer.Context, reference: str | None) -> str | None:
    """Return the id of the thread that is meant by an id, the beginning of one, or `last`."""
    return None if reference is None else known_threads(context, [reference])[0]


def known_threads(context: typer.Context, references: list[str] | None) -> list[str]:
    """Return the ids of the threads that are meant; see `known_thread`."""
    names, ledger = list(references or ()), context.params.get("ledger")
    if context.resilient_parsing or all(map(_WHOLE_ID.fullmatch, names)) or missing_ledger(ledger_in_use(ledger)) is not None:
        return names  # nothing to look up; or the command itself says that there is no ledger

    async def resolve(opened: Ledger) -> list[str]:
        from antiphon import service  # noqa: PLC0415 (only where a ledger is used)

        return [await service.resolve_thread(opened, name) for name in names]

    return with_ledger(ledger, resolve)


def offered_threads(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return threads for the shell to offer, the most recent first, each with its question. No error is shown there."""
    ledger = context.params.get("ledger")
    if missing_ledger(ledger_in_use(ledger)) is not None:
        return []

    async def listed(opened: Ledger) -> list[tuple[str, str]]:
        from antiphon import service  # noqa: PLC0415 (only where a ledger is used)

        page = await opened.threads(ThreadFilter(system=False), limit=_COMPLETED)
        ids = [thread.thread_id for thread in page.threads if thread.thread_id.startswith(incomplete)]
        return [(thread_id, service.brief(await service.question_of(opened, thread_id) or "")) for thread_id in ids]

    from antiphon.ledger import ThreadFilter  # noqa: PLC0415 (only where a ledger is used)

    try:
        return with_ledger(ledger, listed)
    except typer.Exit:
        return []


SignalsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--signals",
        metavar="URL",
        help="Send wake-ups and live text over NATS: nats://user:password@host:4222, or tls://…; default: $ANTIPHON_SIGNALS.",
    ),
]
LedgerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        is_eager=True,  # the callbacks of threads need it
        help=f"The ledger: a path or a URL; default: {VARIABLE}, or {DEFAULT}.",
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def thread_argument(help: str, *, metavar: str = "THREAD", callback: Callable[..., Any] = known_thread) -> Any:
    """Return the declaration of an argument that names a thread."""
    return typer.Argument(metavar=metavar, callback=callback, autocompletion=offered_threads, help=help)


def thread_option(help: str) -> Any:
    """Return the declaration of the option `--thread`."""
    return typer.Option("--thread", metavar="THREAD", callback=known_thread, autocompletion=offered_threads, help=help)


ThreadArgument: TypeAlias = Annotated[
    str, thread_argument("The id of a thread or a unique prefix, or last: see antiphon threads.")
]
ThreadOption: TypeAlias = Annotated[
    str | None, thread_option("Continue this thread with the next turn; default: a new thread.")
]
NewThreadOption: TypeAlias = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="The id of the new thread; default: generated.")
]
MaybeThreadArgument: TypeAlias = Annotated[str | None, thread_argument("Only this thread; default: all.")]
MaybeThreadsArgument: TypeAlias = Annotated[
    list[str] | None, thread_argument("The ids of threads; default: all.", callback=known_threads)
]


def ledger_in_use(name: str | None) -> str:
    """Return the URL of the ledger that is given, else of the one in the environment, else of the current folder's."""
    place = name or os.environ.get(VARIABLE) or DEFAULT
    return place if _URL.match(place) else f"{_FILE}{place}"


def is_ledger(name: str) -> bool:
    """Whether a name is that of a ledger and of nothing else: a URL, a path with a folder, or a database file."""
    return _URL.match(name) is not None or "/" in name or os.sep in name or name.endswith((".db", ".sqlite", ".sqlite3"))


def shown_ledger(name: str | None) -> str:
    """Return the URL of the ledger in use as it is printed: without a password."""
    from antiphon.ledger._secrets import without_password  # noqa: PLC0415 (only where a ledger is used)

    return without_password(ledger_in_use(name))


def has_password(name: str) -> bool:
    """Whether a ledger is named by a URL with a password, which is not printed."""
    return shown_ledger(name) != ledger_in_use(name)


def ledger_option(name: str | None) -> str:
    """Return the option that names a ledger in a command to type, without a password; nothing if it was not named."""
    from antiphon.ledger import _open  # noqa: PLC0415 (only where a ledger is used)

    return "" if name is None else f" {_open.ledger_option(name)}"


def missing_ledger(url: str) -> Path | None:
    """Return the file of a ledger that does not exist; None if it exists, or the ledger is no file."""
    path = url.removeprefix(_FILE)
    try:
        return None if path in ("", url) or Path(path).exists() else Path(path)
    except OSError:  # its folder may not be entered, or its name is too long: opening the ledger says so
        return None


def with_ledger(
    url: str | None,
    work: Callable[[Ledger], Awaitable[ResultT]],
    *,
    create: bool = False,
    signals: str | None = None,
    tenants: Sequence[str] = (),
) -> ResultT:
    """Open a ledger, do something with it, and close it. An error is printed in one line.

    With `tenants`, the work gets a ledger for each of them.
    """
    import asyncio  # noqa: PLC0415 (only where a ledger is used)

    place = _place(ledger_in_use(url), is_named=url is not None, create=create)
    with complaints(url):
        return asyncio.run(_within(place, work, create, signals, tuple(tenants) or (None,), named=url))


def with_ledgers(source: str | None, target: str, work: Callable[[Ledger, Ledger], Awaitable[ResultT]]) -> ResultT:
    """Open two ledgers, the second of which may be created, do something with them, and close them."""

    async def within(first: Ledger) -> ResultT:
        async def both(second: Ledger) -> ResultT:
            return await work(first, second)

        return await _within(_place(ledger_in_use(target), is_named=True, create=True), both, create=True)

    return with_ledger(source, within)


@contextmanager
def complaints(ledger: str | None = None) -> Generator[None]:
    """Print an error in one line, and exit: 2 if the command cannot run so, 1 if it is about the data.

    A record is decoded when its message is first read, so printing records belongs inside too. `ledger` is the one that was
    named: commands to type name it too.
    """
    try:
        yield
    except _CANNOT_RUN as exc:
        fail(str(exc), code=2, has_lines=isinstance(exc, SettingsError))
    except _ABOUT_THREADS as exc:
        fail(*_about_thread(exc, ledger))
    except SecretNameError as exc:
        fail(f"{exc.what} looks like a secret; choose another name, or set {REDACTION}=off", 2)
    except LedgerCorruptError as exc:
        check = f"`antiphon verify{ledger_option(ledger)}`"
        fail(str(exc) if exc.thread_id is None else f"{exc}; {check} names every thread that is damaged")
    except AntiphonError as exc:
        fail(str(exc), has_lines=isinstance(exc, HistoryMismatchError))
    except ModuleNotFoundError as exc:
        fail(_missing_packages(exc), code=2)


_CANNOT_RUN = (
    EncryptionError,
    LedgerFormatError,
    LedgerUnavailableError,
    ModelError,
    OtherRedactionError,
    PlaceError,
    SetupError,
)
"""The command cannot run so: exit 2."""
_OWN_EXTRAS = ("antiphon[crypto]", "antiphon[local]", "antiphon[mcp]", "antiphon[nats]", "antiphon[web]")
"""Extras for something that a person has asked for by name; their errors say what needs them."""


def _missing_packages(error: ModuleNotFoundError) -> str:
    """Return what to install. People get one extra for all commands, not a new name with each error."""
    if any(extra in str(error) for extra in _OWN_EXTRAS):
        return str(error)
    return 'this command needs packages that are not installed: pip install "antiphon[all]"'


_ABOUT_THREADS = (
    UnknownThreadError,
    ServiceError,
    OwnedError,
    FencedError,
)


def _about_thread(error: AntiphonError, ledger: str | None) -> tuple[str, int]:
    """Return why a thread cannot be used so, with what to type instead, and the exit code."""
    thread, option = shlex.quote(getattr(error, "thread_id", None) or ""), ledger_option(ledger)
    match error:
        case UnknownThreadError(thread_id=name, reason=reason) if "begin with" in reason:
            return reason, 2
        case UnknownThreadError(thread_id=name):
            return (
                f"no thread is called {name!r}; `antiphon threads{option}` lists them, with --all those of the system too",
                2,
            )
        case ServiceError(code="OTHER_PATTERN"):
            return f"{error}; a thread of a team continues with `antiphon run --team FILE --thread THREAD TASK{option}`", 2
        case ThreadEndedError(status=status):
            return f"{error}{_after_end(status, thread, option)}", 1
        case ThreadBusyError(status=status):
            word = "continues it" if status == "paused" else "waits for its answer"
            return f"{error}; `antiphon resume {thread}{option}` {word}, then ask again", 1
        case ServiceError(code="BUDGET_NEEDED"):
            command = f"`antiphon resume {thread} --budget NAME=NUMBER{option}`"
            return f"{error}; give it a new budget, larger than what it has used: {command}", 2
        case OwnedError(thread_id=name, owner=owner, until=until):
            return (
                f"host {owner!r} has thread {name!r}, at least until {until:%H:%M:%S} UTC, and nothing was changed; "
                f"`antiphon status{option}` lists the hosts, try again when that one is done"
            ), 1
        case ThreadMovedError(thread_id=name, to=place):
            return f"thread {name!r} was moved to {place}, and continues there: add --ledger {shlex.quote(place)}", 1
        case FencedError(thread_id=name):
            return f"thread {name!r} has an owner, and nobody else may append to it; choose another with --thread", 1
        case _:
            return str(error), 2 if getattr(error, "code", "") == "OWN_PROGRAM" else 1


def _after_end(status: str, thread: str, option: str) -> str:
    """Return what to type for a thread that has ended."""
    if status in ("failed", "not run"):
        return f"; `antiphon run --thread {thread} QUESTION{option}` asks something more"
    shown, branch = f"`antiphon show {thread}{option}`", f"`antiphon fork {thread} --at PLACE{option}`"
    return f", and does not continue; {shown} prints it, {branch} makes a branch from before its end"


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
    if os.path.exists(Path("/", path)):
        return f"{path}{named_by}: there is no such ledger; an absolute path has four slashes, {_FILE}/{path}"
    making = f"antiphon import FILE{ledger_option(str(path)) if is_named else ''}"
    return f"{path}{named_by}: there is no such ledger; check the path, or make one with `{making}`"


async def _within(
    url: str,
    work: Callable[..., Awaitable[ResultT]],
    create: bool,
    signals: str | None = None,
    tenants: Sequence[str | None] = (None,),
    *,
    named: str | None = None,
) -> ResultT:
    from antiphon.ledger import open_ledger  # noqa: PLC0415 (only where a ledger is used)

    options: dict[str, Any] = {
        "create": create,
        "redaction": _redaction(),
        "busy_timeout": BUSY_SECONDS,
        "signals": signals,
    }
    async with AsyncExitStack() as stack:
        stack.enter_context(_noted_warnings())
        try:
            ledgers = [await stack.enter_async_context(open_ledger(url, tenant=tenant, **options)) for tenant in tenants]
        except ModuleNotFoundError as exc:
            fail(_missing_packages(exc), code=2)
        except (LedgerCorruptError, ValueError) as exc:  # it cannot be opened at all
            fail(str(exc), code=2)
        except OSError as exc:
            fail(f"{shown_ledger(url)}: {exc.strerror or exc}; check the path", code=2)
        try:
            return await work(*ledgers)
        except (OwnedError, ThreadBusyError) as exc:
            if exc.owner is None:
                raise
            fail(await _in_use(ledgers[0], exc.thread_id or "", exc.owner, ledger_option(named)))


@contextmanager
def _noted_warnings() -> Generator[None]:
    """Print warnings of the ledger, such as that NATS cannot be reached, as notes."""
    notes, log = _Notes(logging.WARNING), logging.getLogger("antiphon.ledger")
    log.addHandler(notes)
    try:
        yield
    finally:
        log.removeHandler(notes)


class _Notes(logging.Handler):
    """Prints what is logged as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage(), style="warning")


async def _in_use(ledger: Ledger, thread_id: str, owner: str, option: str) -> str:
    """Return the words for a person whose thread another process has: who has it, since when, and what to do."""
    machine, _, _ = owner.rpartition("-")
    machine, _, process = machine.rpartition("-")
    where = "this machine" if machine == socket.gethostname() else machine
    who = f"process {process} on {where}" if machine and process.isdigit() else f"host {owner!r}"
    hosts = [status for status in await ledger.hosts() if status.host.name == owner]
    since = f", since {hosts[0].since:%H:%M:%S} UTC" if hosts else ""
    free = f"; if that process is gone, the thread is free at {hosts[0].until:%H:%M:%S} UTC" if hosts else ""
    name = shlex.quote(thread_id)
    todo = f"`antiphon resume {name}{option}` waits for its answer, `antiphon pause {name}{option}` stops it there"
    return f"thread {thread_id} is in use: {who} runs it{since}; nothing was changed; {todo}{free}"


def _redaction() -> Literal["off"] | None:
    """Return whether the environment turns redaction off; by default, commands redact what they write."""
    setting = os.environ.get(REDACTION, "")
    if setting == "off":
        return "off"
    if setting not in ("", "on"):
        fail(f"{REDACTION} is on or off, not {setting!r}", code=2)
    return None
