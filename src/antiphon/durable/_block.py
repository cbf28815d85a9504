"""`ledger_run`: the block of a run, how it ends, and the warning that nothing was recorded in it.

In a handler of an actor, the run belongs to the handled message.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import Token, copy_context
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from typing_extensions import override

from antiphon.durable._course import RunPart
from antiphon.durable._history import Recorded
from antiphon.durable._opened import AgentRuns, OnChange, OpenAnswers, Opened, errors_in
from antiphon.durable._opening import OnBusy, RunOptions
from antiphon.durable._run import RUN, LedgerRun, run_scope
from antiphon.durable._state import DepsState, Watch
from antiphon.errors import HistoryMismatchError, LedgerError, ParkedError, StoppedError
from antiphon.ledger import Owners
from antiphon.messages import Json, current_port
from antiphon.runtime._course import Course
from antiphon.runtime._effects import Park
from antiphon.runtime._journal import Admit, Journal
from antiphon.runtime._reporting import Observer, RunOperation, observed_run

ResultT = TypeVar("ResultT")
_LOG: Final = logging.getLogger("antiphon.durable")


class DurabilityWarning(UserWarning):
    """Something in a run is not recorded, so it is repeated when the program runs again."""


def report_missing(reason: str, *, required: bool) -> None:
    """Report that something is not recorded: by a warning, or an error if the run requires that everything is."""
    if required:
        raise RuntimeError(reason)
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_CALLERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(reason, DurabilityWarning, stacklevel=level)


_NOT_CALLERS: Final = frozenset({"antiphon", "asyncio", "contextlib", "functools", "pydantic_ai"})
"""The packages whose frames are between a warning and the line of the program that caused it."""


class RunBlock(AbstractAsyncContextManager[LedgerRun, None], AbstractContextManager[LedgerRun, None]):
    """The block of a run: `async with`, or `with` if no event loop runs, as around `agent.run_sync`."""

    def __init__(self, thread_id: str, block: AbstractAsyncContextManager[LedgerRun]) -> None:
        self._thread_id = thread_id
        self._block = block
        self._is_entered = False
        self._context = copy_context()
        """The context in which the block is entered and left, if no single task does both."""
        self._token: Token[LedgerRun | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of a block without `async`. The program may set another one in the block: `asyncio.run` does."""

    @override
    async def __aenter__(self) -> LedgerRun:
        self._is_entered = True
        return await self._block.__aenter__()

    @override
    async def __aexit__(self, *raised: Any) -> None:
        await self._block.__aexit__(*raised)

    @override
    def __enter__(self) -> LedgerRun:
        self._is_entered = True
        run = self._in_loop(self._block.__aenter__())
        self._token = RUN.set(run)
        return run

    @override
    def __exit__(self, *raised: Any) -> None:
        assert self._token is not None  # noqa: S101 (it was entered)
        RUN.reset(self._token)
        self._in_loop(self._block.__aexit__(*raised))

    def _in_loop(self, step: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a step on the loop that `run_sync` uses when the block is entered."""
        loop = self._loop = self._loop or _current_loop()
        if loop.is_running():
            step.close()
            raise RuntimeError(f"an event loop is running: use `async with ledger_run({self._thread_id!r})`")
        return loop.run_until_complete(loop.create_task(step, context=self._context))

    def __del__(self) -> None:
        if not self._is_entered:
            reason = (
                f"ledger_run({self._thread_id!r}) was never entered, so nothing is recorded: use `async with ledger_run(…)`"
            )
            report_missing(reason, required=False)


class HandlerContext(Protocol):
    """What a run needs of the context of a handler: `antiphon.runtime.Context`."""

    @property
    def thread_id(self) -> str | None: ...
    @property
    def address(self) -> str: ...
    @property
    def course(self) -> Course: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def park(self) -> Park: ...


def _current_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this thread, as Pydantic AI finds it for `run_sync`: a new one, if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the warning that there is no loop
            loop = asyncio.get_event_loop()
    except RuntimeError:
        loop = None
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return loop


def ledger_run(
    thread_id: str | HandlerContext,
    *,
    id: str = "run",
    name: str | None = None,
    ledger: Owners | str | None = None,
    admit: Admit | None = None,
    observer: Observer | None = None,
    on_busy: OnBusy = "join",
    input: Json = None,
    on_change: OnChange | None = None,
    state: DepsState[Any] | None = None,
    debug: bool = False,
    required: bool = False,
) -> RunBlock:
    """Record all steps of the agents in the block in a thread, and reuse the records when the program runs again.

    A run is identified by its thread and its `id`. The same thread and id continue the run where it stopped, or return the
    recorded results if it has finished. For another run in the same thread, give another id. The ledger is that of the agents'
    `LedgerDurability`, unless you give one. In a handler of an actor, give its context instead of a thread: the effects belong
    to the handled message. `admit` is called with the thread before each effect, and returns an `async with` block in which
    the effect starts: while the block waits on entry, the effect does not start, and if it raises, the effect never starts (in
    a handler, the system's `admit` is used). `observer` is notified of the effects, like the observer of a system; in a
    handler, it is the system's.

    If the same run is open elsewhere, in this process or another, or another process owns the thread, this call joins: it
    waits, and when the run has ended, the block returns the recorded results. If the owner dies meanwhile, this process
    continues the run. Limit the wait with `asyncio.timeout`. With `on_busy="raise"` it raises `OwnedError` at once.

    The process owns the thread until the block ends. `name` is the name of the program in the ledger, where the thread has the
    kind `run/NAME`; the default is the name of the main module or file. Give one if several programs continue the same
    threads. `input` is recorded when the run starts, so that another process can continue it (`program`, `recover_runs`):
    `run.input` is the recorded value.

    `on_change` is the behaviour where a changed program differs from the records: `stop` raises `HistoryMismatchError` with
    the differences; `continue` uses the records unchanged and continues under the new program; `restart` repeats the changed
    part, unless a `once` effect has started. The default is the value of the agents' `LedgerDurability`, else `stop`.

    `state` has dependencies that tools change: they are stored with each call that changes them, and restored when the run
    continues. With `debug`, a tool that changes them unrecorded raises an error that names the tool and the change.

    If the block raises, the run stays open. An exception is recorded, and the run counts as failed until it is continued, or
    as stopped if something outside has failed: a provider, a key, a spent budget. A cancelled or interrupted run waits for a
    program that continues it.

    A block in which nothing is recorded causes a `DurabilityWarning`; with `required=True`, an error. A program without an
    event loop uses `with` instead of `async with`, and `agent.run_sync` in it.

    Raises:
        TypeError: the id is not a text, or the state is not a `DepsState`.
        SetupError: the state cannot be stored and restored.
        ValueError: `on_busy` or `on_change` is not one of the values above, or `input` is not JSON.
        ParkedError: a person must settle something first.
        RuntimeError: something that is required to be recorded is not.
        OwnedError: the run is already open, or another living process owns the thread, and `on_busy` is "raise". Nothing
            was done.
        FencedError: another process has taken over the thread.
        HistoryMismatchError: the program does not repeat its recorded steps, or the run was started with another input.
    """
    if not isinstance(cast("object", id), str):
        raise TypeError(f"the id of a run is a text, such as {str(id)!r}, not {id!r}")
    options = RunOptions(name, admit, observer, on_busy, input, on_change, required)
    watch = Watch(state, debug=debug)
    if not isinstance(thread_id, str) and not hasattr(cast("object", thread_id), "course"):
        raise TypeError(f"a run is of a thread, by its id, or of a handler's context, and not of {thread_id!r}")
    if not isinstance(thread_id, str):
        return RunBlock(thread_id.thread_id or "", _in_handler(thread_id, watch))
    return RunBlock(thread_id, _in_program(thread_id, id, ledger, options, watch))


@asynccontextmanager
async def _in_handler(context: HandlerContext, watch: Watch) -> AsyncGenerator[LedgerRun, None]:
    if context.thread_id is None:
        raise RuntimeError("a message outside of a thread is not stored: ask in a thread")
    course, recorded = context.course, Recorded(current_port().now())
    opened = Opened(context.journal, course, context.park, course.invocation_id, recorded)
    agents = _agents.setdefault(context, AgentRuns())
    run = LedgerRun(context.thread_id, id=course.invocation_id, watch=watch, agents=agents, opened=opened)
    with run_scope(run):
        try:
            yield run
            run.check_parked()
        finally:
            run.forget_parts()


_agents: Final[WeakKeyDictionary[HandlerContext, AgentRuns]] = WeakKeyDictionary()
"""The runs of agents in a handler: in its second block, an agent does not have the name that it had in the first."""


@asynccontextmanager
async def _in_program(
    thread_id: str, id: str, ledger: Owners | str | None, options: RunOptions, watch: Watch
) -> AsyncGenerator[LedgerRun, None]:
    run = LedgerRun(thread_id, id=id, options=options, watch=watch)
    run.loop = asyncio.get_running_loop()
    with _observed(run):
        try:
            if ledger is not None:
                await run.open(ledger)
            with run_scope(run):
                yield run
            run.check_parked()
            block = f"the block of ledger_run({thread_id!r})"
            if not run.is_used:
                reason = "no agent with LedgerDurability ran in it; a stream is read in the block, or given to durable_stream"
                report_missing(f"{block} recorded nothing: {reason}", required=options.required)
            if run.is_open and (agents := run.opened.share(OpenAnswers).agents):
                reason = f"while a stream of agent {agents[0]!r} is open, so the answer is not recorded; "
                advice = "read it in the block, or give it to durable_stream"
                report_missing(f"{block} ends {reason}{advice}", required=options.required)
            else:
                await run.close()
        except BaseException as exc:
            await _end_with_error(run, exc)
            raise
        finally:
            await run.leave()


@contextmanager
def _observed(run: LedgerRun) -> Generator[None, None, None]:
    """Report a run to its observer, for a `with` block."""
    if run.options.observer is None:
        yield
        return
    operation = RunOperation(run.options.program, run.id)
    with observed_run(run.options.observer, operation, run.thread_id) as activity:
        try:
            yield
        finally:
            if run.is_open:
                opened = run.opened
                attempt = None if opened.is_finished else opened.course.attempt
                activity.operation = replace(operation, attempt=attempt, is_replay=opened.is_finished)


async def _end_with_error(run: LedgerRun, error: BaseException) -> None:
    """Record how a block has ended. The errors of a task group count individually."""
    errors = errors_in(error)
    run.tell_parked(errors)
    if not isinstance(error, Exception | BaseExceptionGroup):
        return  # it was cancelled or interrupted: it waits for a program that continues it
    # Not the text of the error, which may have content in it: the ledger has it, redacted.
    opened = run.opened if run.is_open else None
    is_parked = opened is not None and not opened.is_finished and opened.course.work.parked is not None
    waits = is_parked or all(isinstance(cause, ParkedError) for cause in errors)
    names = ", ".join(sorted({type(cause).__qualname__ for cause in errors}))
    _LOG.info("run %r of thread %r %s: %s", run.id, run.thread_id, "waits for a person" if waits else "ended", names)
    if opened is None:
        return
    # Otherwise another process continues the run, or this one does after a person's answer.
    is_the_programs = any(
        not isinstance(cause, LedgerError | ParkedError) or isinstance(cause, StoppedError) for cause in errors
    )
    if mismatches := [mismatch for mismatch in errors if isinstance(mismatch, HistoryMismatchError)]:
        await opened.give_up(mismatches[0])
    elif isinstance(error, Exception) and not is_parked and is_the_programs:
        await opened.fail(error)
    elif waits:
        await opened.end_waiting()


@asynccontextmanager
async def retried_run(
    context: HandlerContext, invocation_id: str, forgiven: Collection[str]
) -> AsyncGenerator[LedgerRun, None]:
    """Continue the run of a message that failed, in the handler of a RETRY. The effects in `forgiven` are made again.

    Recorded answers and results are used, so no request is paid for twice, and no tool starts twice. The caller sees to it
    that no other handler is at work on the same run.
    """
    # At least the second attempt, so that recorded effects are looked up.
    course = RunPart(context.course, invocation_id, context.address, attempt=context.course.attempt + 1)
    recorded = Recorded(current_port().now(), forgiven=forgiven)
    opened = Opened(context.journal, course, context.park, invocation_id, recorded)
    run = LedgerRun(context.thread_id or "", id=invocation_id, opened=opened)
    with run_scope(run):
        try:
            yield run
        finally:
            run.forget_parts()


# ---------------------------------------------------------------- streams that outlive the function that made them

ItemT = TypeVar("ItemT")


def durable_stream(thread_id: str, stream: Callable[[], AsyncIterable[ItemT]], **options: Any) -> AsyncGenerator[ItemT, None]:
    """Read a stream inside a run: for web frameworks, which read a stream after the function that made it has returned.

    `stream` is called in the run, and its items are forwarded as they arrive. The options are those of `ledger_run`. The run
    ends with the stream. If the reader disconnects before that, the run stays open, and the same request continues it.

    Raises:
        TypeError: `stream` is not a function, or an option is not one of `ledger_run`.
        LedgerError, ParkedError, HistoryMismatchError: as `ledger_run` does, when the stream is read.
    """
    if not callable(stream):
        raise TypeError("durable_stream takes the function that makes the stream, not the stream: `words`, not `words()`")
    if inspect.iscoroutinefunction(stream):
        raise TypeError("durable_stream takes a function that yields, or returns an async iterator without `async`")
    inspect.signature(ledger_run).bind(thread_id, **options)  # raise here, not after the response has started
    return _read_in_run(thread_id, stream, options)


async def _read_in_run(
    thread_id: str, stream: Callable[[], AsyncIterable[ItemT]], options: dict[str, Any]
) -> AsyncGenerator[ItemT, None]:
    items: asyncio.Queue[ItemT] = asyncio.Queue()
    asked = asyncio.Event()

    async def read() -> None:
        async with ledger_run(thread_id, **options):
            async for item in (source := stream()):
                items.put_nowait(item)
                try:
                    await asked.wait()  # read the next one only on demand, as without a run
                except asyncio.CancelledError as exc:  # the reader has gone away
                    if isinstance(source, AsyncGenerator):  # closed here: the loop would close it later, in another task
                        await source.athrow(exc)
                    raise
                asked.clear()

    # In a task of its own: several tasks may advance this generator, but the run needs one context.
    reading = asyncio.create_task(read())
    try:
        while True:
            getting = asyncio.ensure_future(items.get())
            try:
                await asyncio.wait((getting, reading), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    break  # there are no more
                item = getting.result()
            finally:
                getting.cancel()
            yield item
            asked.set()
        await reading
    finally:
        reading.cancel()
        await asyncio.wait((reading,))
