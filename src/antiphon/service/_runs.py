"""Durable runs of programs: list them, continue those that a dead process has left, check them before a deploy.

An *app* is what a person types as `MODULE:NAME`: a program, an agent, or a list of them. Only that text names what is
imported; the ledger has names of programs, and they are looked up among those of the app.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon import __version__
from antiphon.errors import CursorError, SetupError
from antiphon.ledger import Ledger, ThreadFilter, ThreadOrder, ThreadSummary
from antiphon.service._threads import find_thread, is_document, list_threads, thread_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from antiphon.agents import Recoverable, RecoveredRun, RunCheck, RunStatus

_KIND: Final = "run/"
_WORST: Final = ("parked", "failed", "stopped", "waiting", "running")
"""The status of a thread is that of its open run which most needs a person."""
_OF_RUNS: Final = frozenset((*_WORST, "completed"))


async def list_runs(ledger: Ledger, thread_id: str | None = None, *, with_ended: bool = False) -> tuple[RunStatus, ...]:
    """Return the open runs of a ledger or of one thread, oldest first; `with_ended`: also those that have ended.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    from antiphon.agents import runs  # noqa: PLC0415 (only where it is used)

    return await runs(ledger, thread_id, with_ended=with_ended)


# ---------------------------------------------------------------- threads of runs


@dataclass(frozen=True, slots=True)
class ListedThread:
    """A thread, with its open runs if it has any."""

    thread: ThreadSummary
    status: str | None
    """That of its open runs; otherwise the thread's own."""
    runs: tuple[RunStatus, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**thread_json(self.thread), "status": self.status, "runs": [each.to_json() for each in self.runs]}


async def list_with_runs(
    ledger: Ledger, *, with_system: bool = False, status: str | None = None
) -> AsyncIterator[ListedThread]:
    """Yield all threads, most recent first, with their open runs. `status` compares with that of the runs.

    `with_system` includes those of the system, and those of documents.
    """
    stored = status if status is not None and status not in _OF_RUNS else None
    async for each in list_threads(ledger, with_system=with_system, status=stored):
        if not with_system and is_document(each):
            continue  # a folder may have ten thousand of them
        listed = await with_open_runs(ledger, each)
        if status is None or listed.status == status:
            yield listed


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page of threads, and where the next page begins."""

    threads: tuple[ListedThread, ...]
    next: str | None


async def list_page(
    ledger: Ledger,
    wanted: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
    order: ThreadOrder = "-updated_at",
    page: str | None = None,
    limit: int = 100,
) -> ListedPage:
    """Return a page of threads, with their open runs. `page` is the `next` of the page before.

    The status of the filter is compared with the stored one, which a thread of runs need not have.

    Raises:
        CursorError: `page` is none of this ledger.
        LedgerError: the ledger cannot be read.
    """
    try:
        found = await ledger.threads(wanted, order, page, limit)
    except ValueError as exc:
        raise CursorError(str(exc)) from exc
    return ListedPage(tuple([await with_open_runs(ledger, each) for each in found.threads]), found.next)


async def with_open_runs(ledger: Ledger, thread: ThreadSummary) -> ListedThread:
    """Return a thread with its open runs, and the status that follows from them.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    if thread.kind is None or not thread.kind.startswith(_KIND):
        return ListedThread(thread, thread.status)
    runs = await list_runs(ledger, thread.thread_id) if thread.open_calls else ()
    if not runs:
        return ListedThread(thread, thread.status or "completed")
    status = min((each.status for each in runs), key=_WORST.index)
    return ListedThread(thread, status, runs)


# ---------------------------------------------------------------- apps


@dataclass(frozen=True, slots=True)
class RunApp:
    """The programs of one or more apps, and what tells this version of them from others."""

    programs: tuple[Recoverable, ...]
    build: str


def load_apps(places: Sequence[str], *, folder: Path | None = None) -> RunApp:
    """Import apps by `MODULE:NAME`. Modules are found in the folder too, by default the current one.

    Raises:
        SetupError: a text is not of that form, there is no such module or name, or it is no app.
    """
    sys.path.insert(0, str(folder or Path.cwd()))
    try:
        found = [_imported(place) for place in places]
    finally:
        sys.path.pop(0)
    programs = [each for _, value in found for each in _several(value)]
    return RunApp(tuple(programs), build_of([file for file, _ in found]))


def _several(value: Any) -> Iterable[Recoverable]:
    """Return the programs of an app: the values of a dict, the members of another collection, or the app itself."""
    many = cast("Mapping[Any, Any]", value).values() if isinstance(value, Mapping) else value
    return cast("Iterable[Recoverable]", many if isinstance(many, Collection) and not isinstance(many, str) else (value,))


def _imported(place: str) -> tuple[Path | None, Any]:
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise SetupError(f"an app is MODULE:NAME, such as shop.desk:programs, not {place!r}")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise  # the module is there, and something that it imports is not
        raise SetupError(f"there is no module {module_name!r} here; start in the folder that has it") from exc
    try:
        value: Any = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise SetupError(f"module {module_name!r} has no {name!r}") from None
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file), value


def build_of(files: Iterable[Path | None] = (), model: str | None = None) -> str:
    """Return what tells programs of these files and this model from others: `ANTIPHON_BUILD`, or the version and a hash.

    A host that cannot continue a thread says so for its build. Two hosts with other prompts must not have the same one.
    """
    if named := os.environ.get("ANTIPHON_BUILD"):
        return named
    digest = sha256(repr(model).encode())
    for path in files:
        text = b""
        if path is not None:
            with suppress(OSError):  # who reads it next says what is wrong
                text = path.read_bytes()
        digest.update(sha256(text).digest())
    return f"antiphon-{__version__}-{digest.hexdigest()[:12]}"


async def recover_runs(
    ledger: Ledger, app: RunApp, *, with_failed: bool = False, at_once: int = 10
) -> tuple[RecoveredRun, ...]:
    """Continue the runs of an app that a dead or stopped process has left, and return how each ended.

    Raises:
        SetupError: one of the programs is none, or two have the same name.
        LedgerError: the ledger cannot be used.
    """
    from antiphon.agents import recover_runs as recover  # noqa: PLC0415 (only where it is used)

    return await recover(ledger, app.programs, with_failed=with_failed, at_once=at_once, build=app.build)


async def check_runs(ledger: Ledger, app: RunApp, thread_id: str | None = None) -> tuple[RunCheck, ...]:
    """Return what the programs of an app would do with the open runs of a ledger, or of one thread. Nothing is written.

    Raises:
        UnknownThreadError: there is no such thread.
        SetupError: one of the programs is none, or two have the same name.
        LedgerError: the ledger cannot be read.
    """
    from antiphon.agents import check_runs as check  # noqa: PLC0415 (only where it is used)

    if thread_id is not None:
        await find_thread(ledger, thread_id)
    return await check(ledger, app.programs, thread_id)
