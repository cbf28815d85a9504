"""Pattern: the base class of all patterns. It opens a system with its actors on a ledger, alone or with other patterns."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pydantic_ai import ModelRetry, Tool

from antiphon import protocol
from antiphon.agents import current_run
from antiphon.errors import DeliveryError, HistoryMismatchError, ParkedError, StoppedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Json, Message
from antiphon.patterns.cast._cast import CastOptions
from antiphon.patterns.cast._history import MessageHistory, Task
from antiphon.patterns.cast._waiting import waiting_for
from antiphon.runtime import Settings, System

if TYPE_CHECKING:
    from antiphon.runtime import Observer


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a task, in any pattern."""

    thread_id: str
    status: str
    """completed, failed, or stopped if something outside failed: the thread continues when it is resumed. Some patterns have
    more."""
    response: str | None = None
    """The answer, if there is one."""
    error_code: str | None = None
    error_message: str | None = None
    citations: tuple[Mapping[str, Any], ...] = ()
    """The citations, each with the `id` of the cited message in the ledger, the `source`, and a literal `quote`."""
    data: Any = None
    """The answer as a JSON value, if it is more than text; then `response` is its JSON."""
    messages: tuple[Message, ...] = field(default=(), compare=False, repr=False)
    """The answer as messages of the thread, including media and data."""


def failed(thread_id: str, error: DeliveryError) -> Outcome:
    """Return the outcome of a failed or stopped task.

    Raises:
        ParkedError, HistoryMismatchError: it has not failed: a person must settle something, or the program has changed.
    """
    if isinstance(error, StoppedError):
        return Outcome(thread_id, "stopped", error_code=error.cause, error_message=error.reason)
    if isinstance(error, ParkedError | HistoryMismatchError):
        raise error
    return Outcome(thread_id, "failed", error_code=error.code, error_message=error.reason)


class PatternOptions(CastOptions, total=False):
    """The keyword arguments of every pattern: those of its cast, and of the system that it opens."""

    settings: Settings
    observer: Observer | None
    recover: bool


class Pattern(ABC):
    """An `async with` block in which the actors of a pattern run."""

    system: System
    """The system of its actors, inside the block."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        observer: Observer | None = None,
        recover: bool = True,
        **cast: Unpack[CastOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        All patterns have the same form of constructor: `Pattern(ledger, participants, *, own keywords, **PatternOptions)`.
        Without a ledger, threads are kept in memory. With `recover`, the block first continues threads that another process
        left open. `cast` holds the keyword arguments of the `Cast` that a pattern makes.
        """
        self.ledger: Ledger = MemoryLedger() if ledger is None else ledger
        self.cast_options = cast
        self._settings, self._observer, self._recover = settings, observer, recover
        self._stack = AsyncExitStack()

    @abstractmethod
    def host(self, system: System) -> None:
        """Start its actors in a system."""

    async def check(self) -> None:
        """Refuse names of tools that do not exist, before a thread fails because of one; this requests the tools of servers.

        Tools may be added to a toolkit until the pattern is opened. So this is the first moment at which all are known.

        Raises:
            SetupError: there is no such tool.
            ToolServerError: a required server cannot be used.
        """
        if (toolkit := self.cast_options.get("toolkit")) is not None:
            await toolkit.check()

    def recovering(self) -> AbstractContextManager[None]:
        """Return the block in which a system continues open work of another process."""
        return nullcontext()

    @abstractmethod
    async def run(self, task: Task, *, thread_id: str | None = None, message_history: MessageHistory = ()) -> Outcome:
        """Run a task in a new thread, or in the given one, and return the outcome.

        The task is a text, a message, or a conversation. In a conversation, the last message is the request if a user wrote
        it; the others are the history. `message_history` precedes it. Open calls in the history are never executed. The same
        task in the same thread does not run again: it continues where it stopped, or the recorded outcome is returned.
        """

    async def run_inside(self, task: str, thread_id: str) -> Outcome:
        """Run a task for an agent of another pattern, in the thread of that agent; `as_tool` calls this."""
        return await self.run(task, thread_id=thread_id)

    # ------------------------------------------------------------ the life of a thread

    async def pause(self, thread_id: str) -> protocol.ThreadPaused:
        """Pause a thread: no model call and no tool starts until it is resumed. Running ones end, and are recorded.

        A second call changes nothing. The thread stays paused if the process dies.

        Raises:
            RefusedError: there is no such thread, or it is terminated.
        """
        return await self.system.pause(thread_id)

    async def resume(self, thread_id: str) -> protocol.ThreadResumed:
        """Continue a thread where it stopped, even if another process has left it.

        Raises:
            RefusedError: there is no such thread, or it is terminated.
        """
        return await self.system.resume(thread_id)

    async def terminate(self, thread_id: str, reason: str = "user_request") -> protocol.ThreadTerminated:
        """End a thread for good: running work is cancelled, open calls get an error result, and nothing starts any more.

        A running call of a tool with effects `once` is parked: a person records its outcome.

        Raises:
            RefusedError: there is no such thread.
        """
        return await self.system.terminate(thread_id, reason)

    async def status(self, thread_id: str) -> protocol.ThreadStatus:
        """Return the status of a thread: created, processing, paused, completed, failed, terminated or stopped.

        If it waits for a person, `waiting_for` has the reason and the commands to run; `reason` is why it is terminated or
        stopped. Both are in `model_extra`. Nothing is written.

        Raises:
            RefusedError: there is no such thread.
        """
        status = await self.system.status(thread_id)
        waiting = None if status.status == "terminated" else await waiting_for(self.ledger, thread_id)
        return status if waiting is None else status.model_copy(update={"waiting_for": waiting.to_json()})

    async def settle(
        self, thread_id: str, invocation_id: str, *, result: Json = None, error: str | None = None, retry: bool = False
    ) -> None:
        """Record the outcome of a parked call: a result, an error, or another try. The owner of the thread does that.

        Raises:
            ValueError: it is not parked.
        """
        await self.system.settle(thread_id, invocation_id, result=result, error=error, retry=retry)

    def as_tool(self, name: str, about: str) -> Tool[Any]:
        """Return a tool with which an agent of another pattern delegates a task to this one, in the same thread.

        Open both with `together`. The work inside is recorded separately, so the tool may run again. The answer counts as
        untrusted content, and a turn that has read untrusted content may use the tool only with an approval: the agents here
        have other permissions than the caller.
        """

        async def ask(task: str) -> Any:
            run = current_run()
            outcome = await (self.run(task) if run is None else self.run_inside(task, run.thread_id))
            if outcome.status == "stopped" and run is not None:  # the caller also stops, and both are resumed together
                raise StoppedError(outcome.error_message or "", cause=outcome.error_code or StoppedError.code)
            if outcome.status != "completed":
                raise ModelRetry(f"{name} has failed: {outcome.error_message}")
            return (outcome.response or "") if outcome.data is None else outcome.data

        metadata = {"antiphon": {"effects": "none", "untrusted": True}}
        return Tool[Any](ask, name=name, description=about, metadata=metadata)

    async def __aenter__(self) -> Self:
        opened = together(self, settings=self._settings, observer=self._observer, recover=self._recover)
        await self._stack.enter_async_context(opened)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)


@asynccontextmanager
async def together(
    *patterns: Pattern,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    observer: Observer | None = None,
    recover: bool = True,
) -> AsyncGenerator[System]:
    """Open several patterns in one system on the ledger of the first, so that a thread of one may call another.

    Raises:
        ValueError: they have different ledgers.
        SetupError: a grant or an approval rule names a tool that does not exist.
        ToolServerError: a required tool server cannot be used.
    """
    ledger = patterns[0].ledger
    if any(each.ledger is not ledger for each in patterns):
        raise ValueError("patterns that are opened together need the same ledger")
    for each in patterns:
        await each.check()
    system = System(ledger, settings=settings, observer=observer)
    for each in patterns:
        each.system = system
        each.host(system)
    async with system:
        if recover:
            with ExitStack() as stack:
                for each in patterns:
                    stack.enter_context(each.recovering())
                await system.recover()
                await asyncio.sleep(0)  # lets the handlers of recovered messages start, before `recovering` ends
        yield system
