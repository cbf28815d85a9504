"""Durable runs of programs: list them, continue those that a dead process has left, check them before a deploy.

An *app* is what a person types as `MODULE:NAME`: a program, an agent, or a list of them. Only that text determines what is
imported; the ledger has names of programs, which are looked up among those of the app.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon import __version__
from antiphon.errors import PlaceError, SetupError
from antiphon.ledger import Ledger, ThreadFilter, ThreadOrder, ThreadSummary
from antiphon.service._threads import find_thread, hostless_reason, is_document, is_of_runs, list_threads
from antiphon.service._values import ThreadPageValue, ThreadValue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from antiphon.durable import RecoveredRun, RunCheck, RunProgram, RunStatus

_WORST: Final = ("parked", "failed", "stopped", "waiting", "running")
"""The status of a thread is that of its open run which most needs a person."""
_WORKING: Final = "processing"
_OF_RUNS: Final = frozenset((*_WORST, "completed", _WORKING))
"""The statuses that `with_open_runs` returns, which may differ from the stored status of the thread."""


async def list_runs(ledger: Ledger, thread_id: str | None = None, *, with_ended: bool = False) -> tuple[RunStatus, ...]:
    """Return the open runs of a ledger or of one thread, oldest first; `with_ended`: also those that have ended."""
    from antiphon.durable import runs  # noqa: PLC0415 (only where it is used)

    return await runs(ledger, thread_id, with_ended=with_ended)


# ---------------------------------------------------------------- threads of runs


async def list_with_runs(
    ledger: Ledger, *, with_system: bool = False, status: str | None = None
) -> AsyncIterator[ThreadValue]:
    """Yield all threads, most recent first, with their open runs. `status` compares with that of the runs.

    `with_system` includes those of the system, and those of documents.
    """
    stored = status if status is not None and status not in _OF_RUNS else None
    hosts = await ledger.hosts()
    living = frozenset(host.host.name for host in hosts if host.is_alive)
    is_hosted = bool(living)  # otherwise commands run the threads, and each would be listed
    async for thread in list_threads(ledger, with_system=with_system, status=stored):
        if not with_system and is_document(thread):
            continue  # a folder may have ten thousand of them
        listed = await with_open_runs(ledger, thread, living)
        if status is None or listed.status == status:
            yield listed.model_copy(update={"waits_for": hostless_reason(thread, hosts, ledger)}) if is_hosted else listed


async def list_page(
    ledger: Ledger,
    query: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
    order: ThreadOrder = "-updated_at",
    page: str | None = None,
    limit: int = 100,
) -> ThreadPageValue:
    """Return a page of threads, with their open runs. `page` is the `next` of the page before.

    The status of the filter is compared with the stored one, which a thread of runs need not have.

    Raises:
        PlaceError: `page` is not a page of this ledger.
    """
    try:
        batch = await ledger.threads(query, order, page, limit)
    except ValueError as exc:
        raise PlaceError(str(exc)) from exc
    living = await _living(ledger)
    threads = [await with_open_runs(ledger, thread, living) for thread in batch.threads]
    return ThreadPageValue.model_construct(threads=tuple(threads), next=batch.next)


async def with_open_runs(ledger: Ledger, thread: ThreadSummary, living: Collection[str] | None = None) -> ThreadValue:
    """Return a thread with its open runs, and the status that follows from them. `living` are the names of living hosts.

    A process that was killed, or whose disk was full, could not record that its threads have stopped.
    """
    if not is_of_runs(thread):
        if thread.owner is None or not thread.open_calls or thread.status not in (None, _WORKING):
            return ThreadValue.of(thread)
        alive = await _living(ledger) if living is None else living
        if thread.owner in alive:
            return ThreadValue.of(thread, _WORKING)
        # A host may end with its last thread: the thread may have been read before its end, and the hosts after it.
        now = await ledger.thread(thread.thread_id) or thread
        return ThreadValue.of(now, "stopped" if now.messages == thread.messages else now.status)
    runs = await list_runs(ledger, thread.thread_id) if thread.open_calls else ()
    if not runs:
        return ThreadValue.of(thread, thread.status or "completed")
    status = min((run.status for run in runs), key=_WORST.index)
    return ThreadValue.of(thread, status, runs)


async def _living(ledger: Ledger) -> frozenset[str]:
    """Return the names of the hosts that live."""
    return frozenset(host.host.name for host in await ledger.hosts() if host.is_alive)


# ---------------------------------------------------------------- apps


@dataclass(frozen=True, slots=True)
class RunApp:
    """The programs of one or more apps, and their version."""

    programs: tuple[RunProgram[Any], ...]
    build: str


def load_apps(places: Sequence[str], *, folder: Path | None = None) -> RunApp:
    """Import apps by `MODULE:NAME`. Modules are found in the folder too, by default the current one.

    Raises:
        SetupError: a text does not have that form, there is no such module or name, or it is not an app.
    """
    sys.path.insert(0, str(folder or Path.cwd()))
    try:
        imports = [_imported(place) for place in places]
    finally:
        sys.path.pop(0)
    programs = [_program(program) for _, value in imports for program in _several(value)]
    return RunApp(tuple(programs), build_of(_sources([file for file, _ in imports])))


def _sources(files: Sequence[Path | None]) -> Sequence[Path | None]:
    """Return the files of apps, and of modules next to and below them: a prompt may be in another module than its agent."""
    folders = {file.parent for file in files if file is not None}
    loaded = {Path(file) for module in tuple(sys.modules.values()) if (file := getattr(module, "__file__", None)) is not None}
    nearby = [path for path in loaded if "site-packages" not in path.parts and folders & {*path.parents}]
    return [*files, *sorted(path for path in nearby if path not in files)]


def _several(value: Any) -> Iterable[Any]:
    """Return the programs of an app: the values of a dict, the members of another collection, or the app itself."""
    many = cast("Mapping[Any, Any]", value).values() if isinstance(value, Mapping) else value
    return cast("Iterable[Any]", many if isinstance(many, Collection) and not isinstance(many, str) else (value,))


def _program(value: Any) -> RunProgram[Any]:
    """Return a program of an app; an agent is the program that runs it. What is neither is refused when programs are named."""
    if "pydantic_ai" in sys.modules:  # otherwise it is no agent
        from pydantic_ai.agent import AbstractAgent  # noqa: PLC0415 (see above)

        from antiphon.agents import agent_program  # noqa: PLC0415 (see above)

        if isinstance(value, AbstractAgent):
            try:
                return agent_program(cast("AbstractAgent[Any, Any]", value))
            except ValueError as exc:
                raise SetupError(str(exc)) from exc
    return cast("RunProgram[Any]", value)


def _imported(place: str) -> tuple[Path | None, Any]:
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise SetupError(f"an app is MODULE:NAME, such as shop.desk:programs, not {place!r}")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise _import_error(module_name, exc) from exc  # the module is there, and something that it imports is not
        raise SetupError(f"there is no module {module_name!r} here; start in the folder that has it") from exc
    except Exception as exc:
        raise _import_error(module_name, exc) from exc
    try:
        value: Any = reduce(getattr, name.split("."), module)
    except AttributeError:
        raise SetupError(f"module {module_name!r} has no {name!r}") from None
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file), value


def _import_error(module_name: str, error: Exception) -> SetupError:
    """Return the error of a module that cannot be imported, with the place in its code."""
    *_, last = traceback.extract_tb(error.__traceback__)
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    place = "" if file is None or file.startswith("<") else f" ({file}, line {line})"
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return SetupError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {reason}{place}")


def build_of(files: Iterable[Path | None] = (), model: str | None = None) -> str:
    """Return the build of programs with these files and this model: `ANTIPHON_BUILD`, or the version and a hash.

    A host that cannot continue a thread marks it for its build. Two hosts with different prompts must not have the same build.
    """
    if named := os.environ.get("ANTIPHON_BUILD"):
        return named
    digest = sha256(repr(model).encode())
    for path in files:
        text = b""
        if path is not None:
            with suppress(OSError):  # the next reader of the file reports the error
                text = path.read_bytes()
        digest.update(sha256(text).digest())
    return f"antiphon-{__version__}-{digest.hexdigest()[:12]}"


async def recover_runs(
    ledger: Ledger, app: RunApp, *, with_failed: bool = False, at_once: int = 10
) -> tuple[RecoveredRun, ...]:
    """Continue the runs of an app that a dead or stopped process has left, and return how each ended."""
    from antiphon.durable import recover_runs as recover  # noqa: PLC0415 (only where it is used)

    return await recover(ledger, app.programs, with_failed=with_failed, at_once=at_once, build=app.build)


async def check_runs(ledger: Ledger, app: RunApp, thread_id: str | None = None) -> tuple[RunCheck, ...]:
    """Return what the programs of an app would do with the open runs of a ledger, or of one thread. Nothing is written."""
    from antiphon.durable import check_runs as check  # noqa: PLC0415 (only where it is used)

    if thread_id is not None:
        await find_thread(ledger, thread_id)
    return await check(ledger, app.programs, thread_id)
