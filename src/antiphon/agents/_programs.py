"""Programs: named functions, so that another process can continue the runs of a dead one.

A run is continued by calling the same function again in the same run: recorded steps return their outcomes, and it continues
from there. So the function must take everything from the run: its input is recorded with the run, and the rest is code. A
program is found by its name, among those that the caller gives. Nothing is ever imported because a ledger names it.

**Which runs are taken.** Runs of the given programs that have no owner and wait for no person (`RunStatus.is_left`), unless
this build has given them up. A run that a failure outside has stopped is taken by `recover_runs`, because a person requests
it, and not by `host_runs`, which would call a failing provider again and again. A failed run is taken only if the caller
requests it: its program has seen the error. Two processes that recover at the same time do not collide: the ledger gives the
thread to one of them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, Union, cast, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import override

from antiphon._listeners import listener
from antiphon.agents._changed_programs import is_allowed
from antiphon.agents._opening import RETURNED, RUN_KIND, OnBusy
from antiphon.agents._run import LedgerRun, Trial, ledger_run, trial_scope
from antiphon.agents._run_status import RunState, RunStatus, living_hosts, runs, runs_of
from antiphon.errors import AntiphonError, HistoryMismatchError, LedgerError, OwnedError, ParkedError, SetupError
from antiphon.ledger import Ledger, ThreadFilter, ThreadSummary
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Json, current_limits, is_name
from antiphon.messages.arguments import check_type
from antiphon.messages.json_values import copy_checked
from antiphon.runtime import Settings
from antiphon.runtime.extending import is_too_large, process_host, takes_another_build, text_of

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

ResultT = TypeVar("ResultT")

Work: TypeAlias = Callable[[LedgerRun], Awaitable[ResultT]]


class RunProgram(Generic[ResultT]):
    """A function that starts, joins and continues the runs of one name."""

    def __init__(self, name: str, work: Work[ResultT], *, returns: object = None) -> None:
        """Create a program; threads of its runs have the kind `run/NAME`.

        `returns` is the type of its return values, by default the return annotation of the function. They are recorded as
        JSON, and read as that type.

        Raises:
            ValueError: the name is not valid.
        """
        if not is_name(name):
            raise ValueError(f"the name of a program is a name of 1 to 512 visible characters, not {name!r}")
        self.name = name
        self._work = work
        self._values = _Returned(name, work, returns)

    async def run(
        self,
        thread_id: str,
        input: Json = None,
        *,
        id: str = "run",
        ledger: Ledger | str,
        on_busy: OnBusy = "join",
        **options: Any,
    ) -> ResultT:
        """Return the result for a thread and an id: start, join or continue the run, or read the recorded result.

        `input` is recorded when the run starts, and is `run.input` in the function. The return value of the function is
        recorded with the end of the run. For a finished run, the function is not called. `options` are further options of
        `ledger_run`.

        Raises:
            TypeError: the function is not async, or returned a value that cannot be recorded: then the run stays open.
            HistoryMismatchError: the run was started with another input, or the function does not repeat its recorded steps.
            OwnedError: the run is already open, and `on_busy` is "raise".
            ParkedError: a person must settle something first.
            LedgerError: the ledger cannot be used.
        """
        opening = ledger_run(thread_id, id=id, name=self.name, ledger=ledger, on_busy=on_busy, input=input, **options)
        async with opening as run:
            if (recorded := run.returned) is not None:
                return self._values.load(recorded[RETURNED])
            working = self._work(run)
            if not inspect.isawaitable(working):
                raise TypeError(f"the function of program {self.name!r} is not async: write `async def`")
            result = await working
            run.returns(self._values.dump(result))
            return result

    def __repr__(self) -> str:
        return f"<RunProgram {self.name!r}>"


_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(Any)


class _Returned(Generic[ResultT]):
    """The return values of a program as JSON."""

    def __init__(self, name: str, work: Work[ResultT], declared: object) -> None:
        self._name = name
        self._work = work
        self._declared = declared

    @functools.cached_property
    def _type(self) -> TypeAdapter[Any]:
        declared: Any = self._declared
        try:
            if declared is None:
                declared = get_type_hints(self._work).get("return", Any)
            return _ANYTHING if declared is Any else TypeAdapter(declared)
        except Exception:  # noqa: BLE001 (a name that is imported for type checkers only, a class without a schema)
            return _ANYTHING

    @property
    def _is_plain(self) -> bool:
        """Whether nothing tells the type of its values, so that they must be JSON."""
        return self._declared is None and self._type is _ANYTHING

    def dump(self, value: ResultT) -> Json:
        """Return a value in its recorded form.

        Raises:
            TypeError: it cannot be recorded, or could not be read again.
        """
        try:
            dumped: Json = copy_checked(self._type.dump_python(value, mode="json", warnings="error"), current_limits())
            loaded = self.load(dumped)
            is_other = self._is_plain and loaded != value
        except ValueError as exc:  # of Pydantic, or not JSON
            what = f"program {self._name!r} returned a {type(value).__qualname__}, which cannot be recorded: {exc}"
            raise TypeError(f"{what}. Return JSON, or annotate the function with a type that Pydantic reads back") from exc
        if is_other:
            what = f"program {self._name!r} returned a {type(value).__qualname__}, and a later caller would get another value"
            raise TypeError(f"{what}. Return JSON, or annotate the function with the type")
        if is_too_large(dumped):
            raise TypeError(f"program {self._name!r} returned more than fits into a row: return what refers to it")
        return dumped

    def load(self, recorded: Json) -> ResultT:
        """Return a recorded value."""
        return cast("ResultT", self._type.validate_python(recorded))


def program(name: str) -> Callable[[Work[ResultT]], RunProgram[ResultT]]:
    """Make a function the program of a name: `@program("desk")` above `async def refund(run: LedgerRun) -> str`.

    Raises:
        TypeError: there is no name.
    """
    if callable(name):
        own = getattr(name, "__name__", "desk")
        raise TypeError(f"write @program({own!r}), with the name of the program, above the function")

    def named(work: Work[ResultT]) -> RunProgram[ResultT]:
        return RunProgram(name, work)

    return named


def agent_program(agent: AbstractAgent[Any, ResultT], name: str | None = None) -> RunProgram[ResultT]:
    """Return the program that runs an agent: the input is the prompt, the result is the output. Its name is the agent's.

    Raises:
        ValueError: neither the agent nor the program has a name.
    """
    from pydantic_ai.agent import AbstractAgent  # noqa: PLC0415 (its caller has it)

    check_type("agent", agent, AbstractAgent, "Agent(…, name='clerk')")
    own = name or agent.name
    if own is None:
        raise ValueError("the agent has no name; give it one, Agent(…, name='clerk'): its runs are found by it")

    async def ask(run: LedgerRun) -> ResultT:
        return (await agent.run(cast("Any", run.input))).output

    output: Any = agent.output_type
    types = cast("Sequence[object]", output) if isinstance(output, Sequence) else (output,)
    is_plain = types and all(isinstance(each, type) for each in types)
    return RunProgram(own, ask, returns=Union[tuple(types)] if is_plain else Any)  # noqa: UP007 (a union of any number)


Recoverable: TypeAlias = "RunProgram[Any] | AbstractAgent[Any, Any]"
"""A program, or an agent, which means its `agent_program`."""


def programs_by_name(programs: Iterable[Recoverable]) -> dict[str, RunProgram[Any]]:
    """Return programs by name; an agent is the program that runs it.

    Raises:
        SetupError: one is neither a program nor an agent, or two have the same name.
    """
    found: dict[str, RunProgram[Any]] = {}
    for each in programs:
        own = each if isinstance(each, RunProgram) else _program_of(each)
        if found.setdefault(own.name, own) is not own:
            raise SetupError(f"two programs are called {own.name!r}; runs are found by the name, so give one another name")
    return found


def _program_of(given: object) -> RunProgram[Any]:
    from pydantic_ai.agent import AbstractAgent  # noqa: PLC0415 (programs need no agent)

    if not isinstance(given, AbstractAgent):
        what = f"a {type(given).__qualname__}"
        advice = "write @program('name') above an async function, or give an agent"
        own = "; a program that calls ledger_run itself continues when you start it again" if callable(given) else ""
        raise SetupError(f"{what} is no program: {advice}{own}")
    try:
        return agent_program(cast("AbstractAgent[Any, Any]", given))
    except ValueError as exc:
        raise SetupError(str(exc)) from exc


# ---------------------------------------------------------------- recovery

_AT_ONCE: Final = 10
_LOOK: Final = 1.0
"""Seconds between two polls of a host."""
_LOOK_AGAIN: Final = 60.0
"""Seconds after which an unchanged thread is checked again: an approval may have expired."""


@dataclass(frozen=True, slots=True)
class RecoveredRun:
    """A run that was continued, and its state afterwards."""

    thread_id: str
    id: str
    name: str
    status: RunState
    reason: str | None = None
    """Why it is not completed."""


async def recover_runs(
    ledger: Ledger,
    programs: Iterable[Recoverable],
    *,
    with_failed: bool = False,
    at_once: int = _AT_ONCE,
    build: str | None = None,
) -> tuple[RecoveredRun, ...]:
    """Continue the runs that a dead or stopped process has left, and return how each ended, in the order in which they ended.

    A run that this build has given up is tried once more, which costs nothing: the difference may have been fixed since.
    `with_failed` also continues failed runs. `at_once` is the number of threads that are continued at the same time; the runs
    of one thread are continued one after the other. `build` is the version of the programs, by default that of the main file.

    Raises:
        SetupError: one of the values is not a program, or two have the same name.
        LedgerError: the ledger cannot be used.
    """
    recovery = _Recovery(ledger, programs, with_failed=with_failed, with_stopped=True, at_once=at_once)
    async with recovery.hosting(build):
        work = [recovery.start(thread_id, runs) async for thread_id, runs in recovery.left()]
        await asyncio.gather(*work)
    return tuple(recovery.done)


async def host_runs(
    ledger: Ledger,
    programs: Iterable[Recoverable],
    *,
    hear: Callable[[RecoveredRun], None] | None = None,
    ready: Callable[[str], Awaitable[None]] | None = None,
    stop: asyncio.Event | None = None,
    at_once: int = _AT_ONCE,
    build: str | None = None,
    drain: float | None = None,
    draining: Callable[[int], None] | None = None,
) -> None:
    """Continue runs that dead or stopped processes leave, until `stop` is set. Then the active runs are left to other hosts.

    If a living host has another build, which may be unable to continue them, the runs at work end here first, for at most
    `drain` seconds; None is the default of `Settings`.

    `ready` is awaited once, with the name of this host in the ledger; `hear` with each run that was continued; `draining` with
    the number of threads whose runs end here first.

    Raises:
        SetupError: one of the values is not a program, or two have the same name.
        LedgerError: the ledger cannot be used at the start.
    """
    stop = stop or asyncio.Event()
    draining = listener(draining)
    recovery = _Recovery(ledger, programs, with_failed=False, at_once=at_once, hear=listener(hear))
    async with recovery.hosting(build) as name:
        if ready is not None:
            await ready(name)
        work: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                with suppress(LedgerError):  # the ledger is temporarily unavailable, or a thread was deleted meanwhile
                    work |= {recovery.start(thread_id, runs) async for thread_id, runs in recovery.left()}
                work = {each for each in work if not each.done()}
                await _wait(stop, _LOOK)
            await recovery.drain(work, Settings().drain if drain is None else drain, draining)
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class _Recovery:
    """Finds runs without an owner, and continues them."""

    def __init__(
        self,
        ledger: Ledger,
        programs: Iterable[Recoverable],
        *,
        with_failed: bool,
        at_once: int,
        with_stopped: bool = False,
        hear: Callable[[RecoveredRun], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._programs = programs_by_name(programs)
        asked = {"failed": with_failed, "stopped": with_stopped}
        self._also = frozenset(status for status, is_asked in asked.items() if is_asked)
        """The statuses of runs that are taken, besides those without an owner."""
        self._turns = asyncio.Semaphore(at_once)
        self._hear = hear
        self._at_work: set[str] = set()
        self._running = 0
        """Threads whose turn it is."""
        self._is_ending = False
        """Whether no other run is begun."""
        self._looked: dict[str, tuple[object, float]] = {}
        """By thread that had no run to continue: its state and the time of the check."""
        self.done: list[RecoveredRun] = []

    @asynccontextmanager
    async def hosting(self, build: str | None) -> AsyncGenerator[str, None]:
        """Register a host with the kinds of the programs for the duration of the block; yield its name."""
        host = process_host(self._ledger)
        if build is not None:
            host.set_build(build)
        kinds = [f"{RUN_KIND}/{name}" for name in self._programs]
        joined: list[str] = []
        try:
            for kind in kinds:
                joined.append(kind)
                await host.join(kind)
            await host.lease.host()
            yield host.lease.name
        finally:
            for kind in joined:
                await host.leave(kind=kind)

    async def drain(self, work: Collection[asyncio.Task[None]], seconds: float, tell: Callable[[int], None] | None) -> None:
        """Let runs end for some seconds, if a host of another build lives: it may be unable to continue them."""
        self._is_ending = True
        kinds, build = [f"{RUN_KIND}/{name}" for name in self._programs], process_host(self._ledger).lease.build
        if not self._running or seconds <= 0 or not await takes_another_build(self._ledger, kinds, build):
            return
        if tell is not None:
            tell(self._running)
        await asyncio.wait(work, timeout=seconds)

    async def left(self) -> AsyncIterator[tuple[str, Sequence[RunStatus]]]:
        """Yield the threads with runs that these programs may continue, each with those runs, oldest first.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        alive = living_hosts(await self._ledger.hosts())
        now = asyncio.get_running_loop().time()
        seen: set[str] = set()
        async for thread in self._threads():
            seen.add(thread.thread_id)
            how = (thread.messages, thread.owner, thread.status, thread.unfit)
            known, at = self._looked.get(thread.thread_id, (None, 0.0))
            is_known = known == how and now - at < _LOOK_AGAIN
            if thread.owner in alive or thread.thread_id in self._at_work or is_known:
                continue
            found = [run for run in await runs_of(self._ledger, thread, alive) if await self._may_continue(run, thread)]
            if found:
                yield thread.thread_id, sorted(found, key=lambda run: run.began_at)
            else:
                self._looked[thread.thread_id] = (how, now)
        self._looked = {name: how for name, how in self._looked.items() if name in seen}

    async def _threads(self) -> AsyncIterator[ThreadSummary]:
        wanted, page = ThreadFilter(open_calls=True, system=False), None
        while True:
            found = await self._ledger.threads(wanted, "created_at", page)
            for each in found.threads:
                yield each
            page = found.next
            if page is None:
                return

    async def _may_continue(self, run: RunStatus, thread: ThreadSummary) -> bool:
        if run.name not in self._programs or not (run.is_left or run.status in self._also):
            return False
        if "stopped" in self._also:
            return True  # a person has requested it: something may be fixed that the build does not show
        build = process_host(self._ledger).lease.build
        marks = [each.at for each in thread.unfit if each.build == build]
        # This build has given the run up. Since then, a person may have allowed it to continue.
        return not marks or await is_allowed(self._ledger, run.thread_id, f"{run.thread_id}/{run.id}", marks[0])

    def start(self, thread_id: str, runs: Sequence[RunStatus]) -> asyncio.Task[None]:
        """Start to continue the runs of a thread."""
        self._at_work.add(thread_id)
        return asyncio.create_task(self._continue(thread_id, runs), name=f"antiphon-recover-{thread_id}")

    async def _continue(self, thread_id: str, runs: Sequence[RunStatus]) -> None:
        try:
            async with self._turns:
                self._running += 1
                try:
                    for run in runs:
                        if not self._is_ending:
                            await self._continue_one(run)
                finally:
                    self._running -= 1
        finally:
            self._at_work.discard(thread_id)

    async def _continue_one(self, run: RunStatus) -> None:
        own = self._programs[run.name or ""]
        reason: str | None = None
        try:
            await own.run(run.thread_id, id=run.id, ledger=self._ledger, on_busy="raise")
        except OwnedError:
            return  # another process was faster
        except AntiphonError as exc:
            reason = text_of(exc)
        except Exception as exc:  # noqa: BLE001 (the program's; it is recorded with the run, and reported below)
            reason = f"{type(exc).__qualname__}: {text_of(exc)}"
        ended = RecoveredRun(run.thread_id, run.id, own.name, *await self._after(run, reason))
        self.done.append(ended)
        if self._hear is not None:
            self._hear(ended)

    async def _after(self, run: RunStatus, error: str | None) -> tuple[RunState, str | None]:
        """Return the state of a continued run from the ledger."""
        try:
            thread = await self._ledger.thread(run.thread_id)
            found = () if thread is None else await runs_of(self._ledger, thread, ())
        except LedgerError as exc:
            return "waiting", error or text_of(exc)
        state = next((each for each in found if each.id == run.id), None)
        return ("completed", None) if state is None else (state.status, error or state.reason)


# ---------------------------------------------------------------- before a deployment

Forecast: TypeAlias = Literal["continues", "stops", "waits", "fails"]
_PATIENCE: Final = 0.05
"""Seconds that the parallel parts of a program have to reach the end of their records, after the first of them has."""


@dataclass(frozen=True, slots=True)
class RunCheck:
    """The forecast for an open run."""

    thread_id: str
    id: str
    name: str
    forecast: Forecast
    """It continues; it stops, because it does not repeat its recorded steps; it waits for a person; it fails before that."""
    reason: str | None = None


async def check_runs(
    ledger: Ledger, programs: Iterable[Recoverable], thread_id: str | None = None, *, at_once: int = _AT_ONCE
) -> tuple[RunCheck, ...]:
    """Return the forecast for each open run of a ledger, or of one thread, oldest first. Nothing is written.

    Each run is tried in a copy of its thread, up to the first step that is not recorded: no model, tool or `reconcile`
    function is called. Code between the steps is executed.

    Raises:
        SetupError: one of the values is not a program, or two have the same name.
        LedgerError: the ledger cannot be read.
    """
    named, turns = programs_by_name(programs), asyncio.Semaphore(at_once)

    async def check(run: RunStatus) -> RunCheck:
        async with turns:
            return await _check(ledger, named[run.name or ""], run)

    return tuple(await asyncio.gather(*[check(run) for run in await runs(ledger, thread_id) if run.name in named]))


async def _check(ledger: Ledger, own: RunProgram[Any], run: RunStatus) -> RunCheck:
    trial = Trial(await _copied(ledger, run.thread_id), _NoStep)
    forecast: Forecast = "continues"
    reason: str | None = None
    try:
        with trial_scope(trial):
            await own.run(run.thread_id, id=run.id, ledger=trial.ledger, on_busy="raise")
    except BaseException as exc:  # the end of the records may be in an exception group, from parallel parts
        found = _first_of(exc)
        if isinstance(found, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
            raise
        if not isinstance(found, _EndOfRecords):
            is_mismatch, is_parked = isinstance(found, HistoryMismatchError), isinstance(found, ParkedError)
            forecast, reason = "stops" if is_mismatch else "waits" if is_parked else "fails", text_of(found)
    await asyncio.sleep(_PATIENCE)  # let parallel parts that the program does not wait for reach their end, too
    return RunCheck(run.thread_id, run.id, own.name, forecast, reason)


class _EndOfRecords(BaseException):
    """Ends a program at its first new step. It is not an `Exception`, so that programs do not catch it."""


class _NoStep(AbstractAsyncContextManager[None, None]):
    """The journal of a check: a new step ends the program."""

    def __init__(self, thread_id: str) -> None:
        pass

    @override
    async def __aenter__(self) -> None:
        await asyncio.sleep(_PATIENCE)
        raise _EndOfRecords

    @override
    async def __aexit__(self, *raised: object) -> None: ...


def _first_of(error: BaseException) -> BaseException:
    """Return the decisive error of a group: a mismatch, if there is one."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = [_first_of(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    return next((each for each in found if isinstance(each, HistoryMismatchError)), found[0])


class _Copy(MemoryLedger):
    """A copy of a thread in memory. Commands that a person is shown are about the ledger that it was copied from."""

    url: str


async def _copied(ledger: Ledger, thread_id: str) -> Ledger:
    """Return a copy of a thread in memory."""
    copy = _Copy(redaction=await ledger.redaction_of(thread_id) or "off")
    if (url := getattr(ledger, "url", None)) is not None:
        copy.url = url
    rows = [record.message async for record in ledger.read(thread_id)]
    own = [row.model_copy(update={"thread_id": thread_id}) for row in rows]  # a branch shares some with another thread
    await copy.append(thread_id, own, allow_foreign=True)
    return copy
