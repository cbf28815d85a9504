"""Runs: the effects of a program in a thread. The program can be killed anywhere, and continues when it is started again.

A run is identified by its thread and its id. It is a call `RUN` in the thread's journal, open until the block ends. Its work
is recorded as effects of that call. When the same program runs again, it finds the call, and every recorded effect returns its
outcome instead of being executed. The process that opens a run owns the thread while it lives; no other host takes it. Another
caller of the same run waits, and gets the recorded outcomes (`on_busy`). A process that was suspended past its lease, and
therefore considered dead, is fenced.

Tools, toolkits and models find their run with `current_run()`.

**Missing durability.** Steps that should be recorded and are not cause a `DurabilityWarning`, or an error with
`required=True`. Two conditions must be detected when an agent starts, before any capability is called: that it has no
capability for durable execution, and that its history contains messages of an earlier attempt of this run. So `Agent.iter`,
which all ways to run an agent use, is wrapped when the first run is entered.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import warnings
from asyncio import Lock
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_core import to_jsonable_python
from typing_extensions import override

from antiphon.agents._changed_programs import Patches, RunStep, StepOrder, asked, short_hash
from antiphon.agents._opening import (
    QUESTION,
    RETURNED,
    OnBusy,
    OnChange,
    OpenAnswers,
    Opened,
    Place,
    RecordedStep,
    RetriedCourse,
    RunCourse,
    RunPart,
    block_ended,
    check_choice,
    open_run,
    program_name,
    to_the_end,
)
from antiphon.agents._tool_changes import DepsState, Watch
from antiphon.errors import (
    AppendRefusedError,
    EffectFailedError,
    HistoryMismatchError,
    LedgerError,
    ParkedError,
    StoppedError,
)
from antiphon.ledger import Ledger, Record, check_opened, open_ledger
from antiphon.messages import Json, Lane, Message, current_port, thaw
from antiphon.messages.json_values import JsonError, own
from antiphon.messages.keys import as_key, base_of, counted, last_key, parent_of
from antiphon.runtime import Admit, Context, Effects, Observer, RunOperation
from antiphon.runtime.extending import Course, Effect, Journal, Park, call_plain, check_function, observed_run

_LOG: Final = logging.getLogger("antiphon.agents")

# ---------------------------------------------------------------- missing durability


class DurabilityWarning(UserWarning):
    """Something in a run is not recorded, so it is repeated when the program runs again."""


def report_missing(reason: str, *, required: bool) -> None:
    """Report that something is not recorded.

    Raises:
        RuntimeError: the run requires that everything is recorded.
    """
    if required:
        raise RuntimeError(reason)
    warnings.warn(reason, DurabilityWarning, stacklevel=_callers_level())


_NOT_CALLERS: Final = frozenset({"antiphon", "asyncio", "contextlib", "functools", "pydantic_ai"})
"""The packages whose frames are between a warning and the line of the program that caused it."""


def _callers_level() -> int:
    """Return the `stacklevel` with which the calling function warns about the program's own line."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_CALLERS:
        level, frame = level + 1, frame.f_back
    return level


AgentWatch: TypeAlias = Callable[[str, str | None], str | None]
"""Gets the name of an agent that starts, and its name in the journal, or None if it has no durability; returns the id of the
run that starts, or None outside of one."""
_watching: list[AgentWatch] = []


def watch_agents(watch: AgentWatch) -> None:
    """Call a function with each agent that starts to run. Only the first call of this function has an effect."""
    if _watching:
        return
    _watching.append(watch)
    begin = Agent.iter

    @functools.wraps(begin)
    def begin_watched(agent: Agent[Any, Any], *args: Any, **given: Any) -> Any:
        question = args[0] if args else given.get("user_prompt")
        _question.set(None if question is None else short_hash(to_jsonable_python(question, fallback=type)))
        run_id = watch(agent.name or "agent", _name_in_journal(agent, given.get("capabilities")))
        return begin(agent, *args, **(given if run_id is None else _without_own(given, run_id)))

    setattr(Agent, "iter", begin_watched)  # noqa: B010 (a method of another package cannot be assigned)


_question: ContextVar[str | None] = ContextVar("antiphon.agents.question", default=None)
"""A digest of the question of the agent that starts: agents of one name that run side by side are told apart by it."""
_asked: ContextVar[Mapping[str, Json]] = ContextVar("antiphon.agents.asked", default=MappingProxyType({}))
"""How the program asked for the agent that starts. Its capability may be called in another task."""


def _name_in_journal(agent: Agent[Any, Any], given: Any) -> str | None:
    found: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(found.append)
    for each in (*found, *(given or ())):
        if isinstance(each, BaseDurabilityCapability):
            return cast("BaseDurabilityCapability[Any]", each).name or agent.name or "agent"
    return None


def _without_own(given: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Return the arguments without the messages of an earlier attempt of the same run, and everything after them.

    A conversation that was saved after the run has them. With them, the same request would be a different one.
    """
    conversation, history = given.get("conversation"), given.get("message_history")
    messages: list[Any] = list((history if conversation is None else conversation.messages) or ())
    own = next((number for number, message in enumerate(messages) if message.run_id == run_id), None)
    if own is None:
        return given
    if conversation is None:
        return {**given, "message_history": messages[:own]}
    return {**given, "conversation": replace(conversation, messages=messages[:own])}


# ---------------------------------------------------------------- ledgers by URL


class _Shared:
    """A ledger and its number of users."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stack = AsyncExitStack()
        self.ledger: Ledger | None = None
        self.users = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_ledger(url: str) -> AsyncGenerator[Ledger, None]:
    """Keep a ledger open for an `async with` block. Blocks that overlap share it.

    Raises:
        LedgerError: it cannot be opened.
        ValueError: the URL is of an unknown kind.
    """
    shared = _shared.setdefault(asyncio.get_running_loop(), {}).setdefault(_file_of(url) or url, _Shared())
    async with shared.lock:
        if shared.ledger is None:
            shared.ledger = await shared.stack.enter_async_context(open_ledger(url))
        shared.users += 1
    try:
        yield shared.ledger
    finally:
        async with shared.lock:
            shared.users -= 1
            if shared.users == 0:
                shared.ledger = None
                await shared.stack.aclose()


def _file_of(ledger: Ledger | str) -> str | None:
    """Return the file of a ledger in a normal form; None if it has no file."""
    url: str = ledger if isinstance(ledger, str) else getattr(ledger, "url", "")
    return str(Path(url.removeprefix(_SQLITE)).resolve()) if url.startswith(_SQLITE) else None


_SQLITE = "sqlite:///"

# ---------------------------------------------------------------- runs

CurrentT = TypeVar("CurrentT")
ResultT = TypeVar("ResultT")
JsonT = TypeVar("JsonT", bound=Json)

_run: ContextVar[LedgerRun | None] = ContextVar("antiphon.agents.run", default=None)
_effect: ContextVar[CurrentEffect | None] = ContextVar("antiphon.agents.effect", default=None)


@dataclass(frozen=True, slots=True)
class CurrentEffect:
    """The effect that is being executed."""

    key: str
    """The idempotency key: the same for every attempt. Pass it to services that detect a repeated request by it."""
    option: str
    """Its name in the journal."""
    effects: Effects


def current_effect() -> CurrentEffect | None:
    """Return the current effect; None outside of one."""
    return _effect.get()


class Deeds:
    """The tool calls of a block that must not be made again: its work cannot be repeated from the beginning."""

    def __init__(self, around: Deeds | None) -> None:
        self._around = around
        self.calls: list[str] = []

    def add(self, call: str) -> None:
        """Add the id of a call, also to the blocks around this one."""
        self.calls.append(call)
        if self._around is not None:
            self._around.add(call)


_deeds: ContextVar[Deeds | None] = ContextVar("antiphon.agents.deeds", default=None)


@contextmanager
def counting_deeds() -> Generator[Deeds, None, None]:
    """Collect the tool calls in a `with` block that have effects, recorded ones included."""
    deeds = Deeds(_deeds.get())
    token = _deeds.set(deeds)
    try:
        yield deeds
    finally:
        _deeds.reset(token)


def note_deed(call: str) -> None:
    """Note that a tool call has effects, or has other agents at work."""
    if (deeds := _deeds.get()) is not None:
        deeds.add(call)


def has_deeds() -> bool:
    """Whether the innermost `counting_deeds` block has any so far."""
    deeds = _deeds.get()
    return deeds is not None and bool(deeds.calls)


def current_run() -> LedgerRun | None:
    """Return the current run; None outside of one."""
    return _run.get()


@dataclass(frozen=True, slots=True)
class Namesake:
    """Another run of an agent with the same name."""

    id: str
    is_at_work: bool
    has_same_question: bool


class LedgerRun:
    """The work of a program in a thread, or a part of it: the run of one agent, or the work of one tool."""

    def __init__(
        self,
        thread_id: str,
        *,
        id: str = "run",
        name: str | None = None,
        agent: str | None = None,
        depth: int = 0,
        admit: Admit | None = None,
        observer: Observer | None = None,
        required: bool = False,
        on_busy: OnBusy = "join",
        input: Json = None,
        on_change: OnChange | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.thread_id = thread_id
        self.id = id
        self.required = required
        """Whether it is an error if something in it is not recorded."""
        self._name = name
        self._on_change: OnChange | None = on_change
        self._on_busy: OnBusy = on_busy
        self._input = input
        self._around = current_run()
        """The run whose block is around this one, or whose part this is."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of its block; None in a handler of an actor."""
        self._has_left = False
        self.agent = agent
        """The agent whose run this is part of; None outside of one."""
        self.depth = depth
        """The nesting depth: the number of enclosing agents."""
        self.watch = watch or Watch()
        """How it handles changes that tools make besides their results."""
        self.done = 0
        """How many requests and tool calls its agents have made."""
        self.replayed = 0
        """How many were skipped, because the ledger has their outcomes."""
        self._admit = admit
        self._observer = observer
        self._opened: Opened | None = None
        self._opening = Lock()
        self._stack = AsyncExitStack()
        self._url: str | None = None
        self._opened_as: Ledger | str | None = None
        """The argument of the last `open`, if it is the ledger of this run."""
        self._taken_up: set[str] = set()
        self._at_work: dict[str, object] = {}
        """The active runs of agents, each with its question."""
        self._parts: dict[str, LedgerRun] = {}
        self._is_used = input is not None
        self.start: Mapping[str, Json] = MappingProxyType({})
        """Of a run of an agent: a digest of its question, and how the program asked for it."""
        self._place = Place()
        self._is_read = False
        """Whether only its recorded return value was read."""
        self._returned: Mapping[str, Json] | None = None

    # ------------------------------------------------------------ properties

    @property
    def is_open(self) -> bool:
        """Whether it has a ledger."""
        return self._opened is not None

    @property
    def opened(self) -> Opened:
        """The opened run that it writes to.

        Raises:
            RuntimeError: it has no ledger yet.
        """
        if self._opened is None:
            raise RuntimeError(
                f"run {self.id!r} has no ledger: use ledger_run({self.thread_id!r}, ledger=…) or LedgerDurability"
            )
        return self._opened

    @property
    def ledger(self) -> Ledger:
        """The ledger that it is stored in."""
        return self.opened.journal.ledger

    @property
    def journal(self) -> Journal:
        """The journal of the thread."""
        return self.opened.journal

    @property
    def course(self) -> Course:
        """The course that its effects belong to."""
        return self.opened.course

    @property
    def park(self) -> Park:
        """Parks an effect for a person."""
        return self.opened.park

    @property
    def forgiven(self) -> Collection[str]:
        """The effects whose failure ended the previous attempt: they are retried."""
        return self.opened.forgiven

    @property
    def is_again(self) -> bool:
        """Whether the run was started before, so that the thread has rows of it."""
        return self.course.attempt > 1

    @property
    def input(self) -> Json:
        """The input of the run, as plain JSON: the same in every process that continues it. None if it had no input."""
        found: Json = thaw(self.opened.input)
        return found

    @property
    def is_parked(self) -> bool:
        """Whether an effect of it waits for a person since this attempt."""
        opened = self._opened
        return opened is not None and not opened.is_finished and opened.course.parked is not None

    def check_parked(self) -> None:
        """Refuse to end while an effect of the run waits for a person, also if the program has caught its error.

        Raises:
            ParkedError: one waits.
        """
        if self.is_parked and (parked := self.course.parked) is not None:
            raise ParkedError(parked.reason, parked.address)

    # ------------------------------------------------------------ effects and notes

    @overload
    async def effect(
        self,
        key: str,
        arguments: Mapping[str, Json],
        run: Callable[[str], Awaitable[JsonT]],
        *,
        effects: Effects = "once",
        option: str | None = None,
        parent_id: str | None = None,
    ) -> JsonT: ...

    @overload
    async def effect(
        self,
        key: str,
        arguments: Mapping[str, Json],
        run: Callable[[str], JsonT],
        *,
        effects: Effects = "once",
        option: str | None = None,
        parent_id: str | None = None,
    ) -> JsonT: ...

    async def effect(
        self,
        key: str,
        arguments: Mapping[str, Json],
        run: Callable[[str], Awaitable[Json] | Json],
        *,
        effects: Effects = "once",
        option: str | None = None,
        parent_id: str | None = None,
    ) -> Any:
        """Execute an effect once and return its result, as JSON. When the program runs again, return the recorded result.

        `run` gets a key that is the same in every attempt. `option` is the name in the journal, by default the key.
        `parent_id` is the call that caused it.

        Raises:
            ValueError: `effects` is not one of its values.
            TypeError: `run` does not take one argument, or the arguments cannot be stored. Nothing was recorded.
            EffectFailedError: `run` raised.
            RefusedError: `run` failed with a code of its own.
            ParkedError: its outcome is unknown, or it returned what cannot be stored, and it must not be executed twice; a
                person settles it. After that, nothing more starts in the run, and it does not end.
            HistoryMismatchError: the program does not repeat its recorded steps.
            LedgerError: it could not be stored.
        """
        check_choice("effects", effects, Effects)
        check_function(key, run)
        self._is_used = True
        effect = RunStep(self.opened, key, arguments, effects=effects, option=option, parent_id=parent_id)

        async def inside(own_key: str) -> Json:
            # An agent in it belongs to it: when its outcome is recorded, the agent does not run again.
            with run_scope(self.part(effect.id)), effect_scope(CurrentEffect(own_key, option or key, effects)):
                is_async = inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(type(run).__call__)
                returned: Awaitable[Json] | Json = run(own_key) if is_async else await call_plain(run, own_key)
                return await returned if isinstance(returned, Awaitable) else returned

        try:
            return await effect.perform(inside)
        except EffectFailedError as exc:
            if self.opened.is_program:  # a handler that fails is another matter
                effect.explain(exc)
            raise

    async def now(self, *, key: str = "now") -> datetime:
        """Return the time in UTC, with its time zone. When the program runs again, return the recorded time.

        Raises:
            LedgerError: it could not be stored.
        """
        return datetime.fromisoformat(await self._read(key, lambda: current_port().now().isoformat()))

    async def random(self) -> float:
        """Return a random number from 0 up to, but not including, 1. When the program runs again, return the recorded one.

        Raises:
            LedgerError: it could not be stored.
        """
        return float(await self._read("random", lambda: (int.from_bytes(_random_bytes(8)) >> 11) / 2**53))

    async def uuid(self) -> UUID:
        """Return a random UUID. When the program runs again, return the recorded one.

        Raises:
            LedgerError: it could not be stored.
        """
        return UUID(await self._read("uuid", lambda: str(UUID(bytes=_random_bytes(16), version=4))))

    async def patched(self, name: str) -> bool:
        """Whether the run takes a new branch of the program: `if await run.patched("new-terms"): … else: …`.

        A run that starts with the new program takes it, and so does a run that has not reached this place yet. A run that has
        passed this place takes the old branch, as before. The answer is recorded, and is valid for the whole run.

        Raises:
            LedgerError: it could not be stored.
        """
        self._is_used = True
        return await self.opened.share(Patches).patched(self.opened, name)

    async def _read(self, key: str, read: Callable[[], Json]) -> Any:
        self._is_used = True

        async def value(id: str) -> Json:
            return read()

        return await _Reading(self, key).perform(value)

    async def note(self, message: Message, *, key: str = "note") -> Record:
        """Append a control message about the run, such as a decision, once: it is not repeated when the program runs again.

        Its id consists of the run's id and the key; its time is the ledger's.

        Raises:
            HistoryMismatchError: the recorded note is a different one.
            LedgerError: it could not be stored.
        """
        return await self._append(message, key, "control")

    async def note_soon(self, message: Message, *, key: str) -> None:
        """Like `note`, but written with the next rows: without its own commit, and before anything that depends on it.

        Raises:
            LedgerError: it could not be stored.
        """
        await self.journal.write_soon(self.thread_id, [self._row(message, key, "control")])

    async def say(self, message: Message, *, key: str = "say") -> Record:
        """Append a talk message once; otherwise like `note`.

        Raises:
            HistoryMismatchError: the recorded message is a different one.
            LedgerError: it could not be stored.
        """
        return await self._append(message, key, "talk")

    async def say_soon(self, message: Message, *, key: str) -> None:
        """Like `say`, but written with the next rows, as with `note_soon`.

        Raises:
            LedgerError: it could not be stored.
        """
        await self.journal.write_soon(self.thread_id, [self._row(message, key, "talk")])

    async def _append(self, message: Message, key: str, lane: Lane) -> Record:
        row = self._row(message, key, lane)
        try:
            (record,) = await self.journal.write(self.thread_id, [row], allow_foreign=lane == "talk")
        except AppendRefusedError as exc:
            reason = f"the program writes something else in {row.id!r} than thread {self.thread_id!r} says"
            raise HistoryMismatchError(reason, self.course.to) from exc
        return record

    def _row(self, message: Message, key: str, lane: Lane) -> Message:
        self._is_used = True
        course = self.course
        if self.opened.is_program and course.parked is not None:  # what a program says of that is not what it says later
            raise ParkedError(course.parked.reason, course.parked.address)
        own = {"thread_id": self.thread_id, "lane": lane, "created_at": None}
        own_id = f"{course.invocation_id}/{course.next_key(key)}"
        return message.model_copy(update={**own, "id": own_id, "parent_id": message.parent_id or course.invocation_id})

    # ------------------------------------------------------------ parts

    async def open(self, ledger: Ledger | str) -> None:
        """Start or continue the run in a ledger; do nothing if it has one. A URL is opened until the run ends.

        Raises:
            ParkedError: a person must settle something first.
            LedgerError: it cannot be stored.
            RuntimeError: it has another ledger, or its block has ended.
        """
        if self._has_left:
            raise RuntimeError(block_ended(self.thread_id))
        if ledger is self._opened_as:
            return  # this is called at each step of an agent, and resolving a file name takes as long as writing a row
        given = ledger
        if self._opened is None:
            async with self._opening:
                ledger = await self._open_first(ledger)
        if not self._is_own(ledger) and _trial.get() is None:
            reason = f"run {self.id!r} of thread {self.thread_id!r} is written to another ledger"
            raise RuntimeError(f"{reason}; give ledger_run(…) and all agents in its block the same one")
        self._opened_as = given

    def _is_own(self, ledger: Ledger | str) -> bool:
        """Whether it is the ledger of this run, or its URL in any spelling."""
        if ledger is self.ledger or ledger == self._url:
            return True
        file = _file_of(ledger)
        return file is not None and file == _file_of(self.ledger)

    async def _open_first(self, ledger: Ledger | str) -> Ledger | str:
        """Open it, unless another task did while this one waited, and return its ledger."""
        if self._opened is None:
            if (trial := _trial.get()) is not None:
                self._url = ledger if isinstance(ledger, str) else None
                ledger, self._admit = trial.ledger, trial.admit
            if not isinstance(ledger, str):
                check_opened(ledger)
            else:
                self._url, ledger = ledger, await self._stack.enter_async_context(shared_ledger(ledger))
            opened = await open_run(
                ledger,
                self.thread_id,
                self.id,
                name=self._name,
                admit=self._admit,
                observer=self._observer,
                on_busy="raise" if self._is_nested(ledger) else self._on_busy,
                input=self._input,
            )
            if isinstance(opened.course, RunCourse):
                opened.course.place = self._place  # an agent may open it in a task of its own
            self._opened = replace(opened, on_change=self._on_change, is_program=True)
            order = StepOrder.of(self._opened)
            order.agents |= self._taken_up
            if is_trial():
                order.patience = _TRIAL_PATIENCE
        return ledger

    def _is_nested(self, ledger: Ledger) -> bool:
        """Whether an enclosing block owns the thread: this one must not wait, because it would wait for that block.

        Raises:
            RuntimeError: an enclosing block has the same run.
        """
        is_nested, around = False, self._around
        while around is not None:
            opened = around._opened
            is_open = opened is not None and opened.tenure is not None and not around._has_left
            if opened is not None and is_open and around.thread_id == self.thread_id:
                if opened.journal.ledger is ledger and opened.root == self.invocation_id:
                    reason = f"run {self.id!r} of thread {self.thread_id!r} is open around this block"
                    raise RuntimeError(f"{reason}; give the inner run another id")
                is_nested = True
            around = around._around
        return is_nested

    def attach(self, opened: Opened) -> None:
        """Attach this part to a run that is open."""
        self._opened = opened

    @property
    def invocation_id(self) -> str:
        """The prefix of the ids of its effects."""
        return f"{self.thread_id}/{as_key(self.id)}" if self._opened is None else self._opened.course.invocation_id

    def next_agent(self, name: str) -> str:
        """Return the id of the next run of an agent."""
        self._is_used = True
        run_id = self.peek_agent(name)
        self._taken_up.add(run_id)
        if self._opened is not None:
            StepOrder.of(self._opened).agents.add(run_id)
        return run_id

    @property
    def place(self) -> Place | None:
        """Where its work is done; None if an agent decides about its steps."""
        return self._place if self._opened is None else getattr(self.course, "place", None)

    def next_call(self, tool: str) -> str:
        """Return the id of the next call of a tool that the program makes itself, within the run."""
        self._is_used = True
        return self.course.next_key(f"call:{tool}")

    def peek_agent(self, name: str) -> str:
        """Return the id that the next run of an agent will have.

        One after the other, the runs of a name have their ids in order. Side by side, they may begin in another order when the
        program runs again, so each takes the recorded run with its question, or a new id.
        """
        recorded = () if self._opened is None else self._recorded_agents(name)
        left = [each for each in recorded if each.id not in self._taken_up]
        if not _asked.get():
            if in_order := [each for each in left if each.mark is None] or left:
                return in_order[0].id
        elif same := [each for each in left if self.opened.agents[each.id] == _question.get()]:
            return same[0].id
        elif left and len(left) == len(recorded):
            return left[0].id  # none was matched: the questions have changed, and the first request says how
        names = {each.id for each in recorded} | self._taken_up
        numbered = (f"{self.invocation_id}/{counted(as_key(name), number)}" for number in count(1))
        return next(each for each in numbered if each not in names)

    def _recorded_agents(self, name: str) -> list[RecordedStep]:
        """Return the recorded runs of agents of a name in this run or part."""
        own, key = self.course.invocation_id, as_key(name)
        agents = [each for each in self.opened.steps if each.is_agent]
        return [each for each in agents if each.course == own and last_key(each.id) == key]

    def of_agent(self, run_id: str, name: str) -> LedgerRun:
        """Return the part of this run that is a run of an agent."""
        part = self._parts.get(run_id)
        if part is None:
            is_own = run_id.startswith(f"{self.invocation_id}/")
            invocation_id = run_id if is_own else f"{self.invocation_id}/{as_key(run_id)}"
            part = self._parts[run_id] = self.part(invocation_id, agent=name, deeper=1)
        return part

    @contextmanager
    def agent_at_work(self, part: LedgerRun, question: object = None) -> Generator[None, None, None]:
        """Register a run of an agent and its question while it is active.

        Raises:
            HistoryMismatchError: the thread records another agent here. Its requests would be paid for again.
        """
        own = part.course.invocation_id
        part.start = {QUESTION: _question.get(), **_asked.get()}
        self._taken_up.add(own)
        if own not in self.opened.agents and not _asked.get():  # agents that run in parallel may start in another order
            in_order = {step.id for step in self.opened.steps if step.mark is None}
            self._check_agents(f"runs agent {own!r}", in_order)
        self._at_work[own] = question
        try:
            yield
        finally:
            self._at_work.pop(own, None)

    def namesakes(self) -> list[Namesake]:
        """Return the other runs of agents with the same name: those that are recorded or active."""
        own, around = self.course.invocation_id, self._around
        if around is None:
            return []
        known = dict.fromkeys((*sorted(self.opened.agents), *around._at_work))
        others = [
            each for each in known if each != own and parent_of(each) == parent_of(own) and last_key(each) == last_key(own)
        ]
        at_work = around._at_work
        return [Namesake(each, each in at_work, each in at_work and at_work[each] == at_work.get(own)) for each in others]

    def _check_agents(self, deed: str, agents: Collection[str]) -> None:
        """Refuse to continue or to end without an agent that ran before."""
        prefix = f"{self.course.invocation_id}/"
        # A restarted agent has the name of the one before it.
        left = [each for each in agents if each.startswith(prefix) and base_of(each) not in self._taken_up]
        left = [each for each in left if each in self.opened.agents]
        if missing := sorted(each for each in left if "/" not in each.removeprefix(prefix)):
            reason = f"the program {deed}, and thread {self.thread_id!r} says that {missing[0]!r} ran before that"
            advice = "a choice of the program, such as a time limit, is made in run.effect(…)"
            raise HistoryMismatchError(
                f"{reason}. Run the same agents: {advice}. For other work, give the run another id", self.course.to
            )

    def part(self, invocation_id: str, *, agent: str | None = None, deeper: int = 0) -> LedgerRun:
        """Return a part of this run that numbers its own effects."""
        part = LedgerRun(self.thread_id, id=self.id, agent=agent or self.agent, depth=self.depth + deeper, watch=self.watch)
        part._url, part.loop = self._url, self.loop
        part._around = self
        course = RunPart(self.course, invocation_id, agent or self.course.to, is_agent=agent is not None)
        part.attach(self.opened.within(course))
        return part

    def forget_parts(self) -> None:
        """Forget the runs of agents in it, when its block ends.

        Each refers to this run. Without this, only a garbage collection frees them, with every message that they hold.
        """
        self._parts.clear()

    @contextmanager
    def observed(self) -> Generator[None, None, None]:
        """Report it to the observer, for a `with` block."""
        if self._observer is None:
            yield
            return
        operation = RunOperation(program_name() if self._name is None else self._name, self.id)
        with observed_run(self._observer, operation, self.thread_id) as activity:
            try:
                yield
            finally:
                if (opened := self._opened) is not None:
                    attempt = None if opened.is_finished else opened.course.attempt
                    activity.operation = replace(operation, attempt=attempt, is_replay=opened.is_finished)

    def returns(self, value: Json) -> None:
        """Set the value that its program returns: it is recorded with the end of the run."""
        self._is_used = True
        self._returned = {RETURNED: value}

    @property
    def returned(self) -> Mapping[str, Any] | None:
        """The return value of its program, under one key, if the run is finished and has one."""
        if (said := self.opened.returned) is None:
            return None
        self._is_used = self._is_read = True
        return said

    async def close(self) -> None:
        """Record its end.

        Raises:
            HistoryMismatchError: an agent that ran before did not run.
            LedgerError: it cannot be stored.
        """
        if self._opened is not None and not self._is_read:
            self._check_agents("ends", self.opened.agents)
            await StepOrder.of(self._opened).check_end(self._opened)
            await self._opened.close(self._returned)

    async def give_up(self, error: HistoryMismatchError) -> None:
        """Release the thread for another build: this program differs from the recorded steps.

        The thread is marked: this build cannot continue it. It gets the status `stopped`, unless a living host of another
        build can run its kind. A program that continues the run clears both.
        """
        if self._opened is not None:
            await self._opened.give_up(error)

    async def end_waiting(self) -> None:
        """Record that the program ended because the run waits for a person."""
        if self._opened is not None:
            await self._opened.end_waiting()

    async def fail(self, error: Exception) -> None:
        """Record that the program ended with an error. The run stays open, and can be continued."""
        if self._opened is not None:
            await self._opened.fail(error)

    @property
    def is_of_program(self) -> bool:
        """Whether it is a run of a program, not a handler of an actor."""
        return self._opened is None or self._opened.tenure is not None

    @property
    def streaming(self) -> Sequence[str]:
        """The agents in it whose streams are open."""
        return () if self._opened is None else self._opened.share(OpenAnswers).agents

    @property
    def is_used(self) -> bool:
        """Whether anything was recorded or read in it."""
        return self._is_used

    async def leave(self) -> None:
        """Release the thread. A run that was not closed stays open, and can be continued.

        It runs to its end, even if the caller is cancelled meanwhile.
        """
        self._has_left = True
        await to_the_end(self._leave())

    async def _leave(self) -> None:
        try:
            if self._opened is not None:
                with suppress(LedgerError):  # its caller has the error, or the run has already failed
                    await self._opened.journal.settle(self.thread_id)
        finally:
            if self._opened is not None:
                await self._opened.leave()
                if self._opened.tenure is None or self._opened.tenure.is_over:
                    for callback in _at_end.get(self.ledger, {}).get(self.thread_id, ()):
                        callback()
            self.forget_parts()
            await self._stack.aclose()


_at_end: WeakKeyDictionary[Ledger, dict[str, list[Callable[[], None]]]] = WeakKeyDictionary()


@contextmanager
def at_end(ledger: Ledger, thread_id: str, callback: Callable[[], None]) -> Generator[None, None, None]:
    """Call a function whenever the last open run of a thread in this process has ended, for a `with` block."""
    callbacks = _at_end.setdefault(ledger, {}).setdefault(thread_id, [])
    callbacks.append(callback)
    try:
        yield
    finally:
        callbacks.remove(callback)
        if not callbacks:
            _at_end[ledger].pop(thread_id, None)


class _Reading(Effect):
    """An effect that only reads, such as a clock.

    Nothing depends on its intent, so intent and outcome are written together.
    """

    is_told = False

    def __init__(self, run: LedgerRun, key: str) -> None:
        super().__init__(run.journal, run.course, key, {}, effects="none", park=run.park, forgiven=run.forgiven)
        self._opened = run.opened
        self.asked = asked(getattr(run.course, "place", None))

    @override
    async def check_order(self) -> None:
        on_change = self._opened.on_change or "stop"
        await StepOrder.of(self._opened).check(self._opened, self.id, self.shown_name, on_change, "none")

    @override
    async def begin(self) -> Message:
        return self.intent()

    @override
    async def end(self, outcome: Message) -> Message:
        *_, stored = await self.journal.write_soon(self.thread_id, [self.intent(), outcome])
        return stored


def _random_bytes(count: int) -> bytes:
    """Return random bytes from the port, so that a test or a simulation is deterministic."""
    return sha256(current_port().new_id().encode()).digest()[:count]


@dataclass(frozen=True, slots=True)
class Trial:
    """A ledger in which runs are opened, whichever ledger they name, and a function that is called before each new step."""

    ledger: Ledger
    admit: Admit


_trial: ContextVar[Trial | None] = ContextVar("antiphon.agents.trial", default=None)


_TRIAL_PATIENCE: Final = 0.5
"""Seconds for which a new step of a trial waits for recorded ones: somebody waits for the forecast."""


def is_trial() -> bool:
    """Whether runs are only tried: nothing outside may be called."""
    return _trial.get() is not None


class _Scope(AbstractContextManager[CurrentT, None]):
    """A block that sets a context variable."""

    __slots__ = ("_current", "_token", "_variable")

    def __init__(self, variable: ContextVar[CurrentT | None], current: CurrentT) -> None:
        self._variable = variable
        self._current = current

    @override
    def __enter__(self) -> CurrentT:
        self._token = self._variable.set(self._current)
        return self._current

    @override
    def __exit__(self, *raised: object) -> None:
        self._variable.reset(self._token)


def run_scope(run: LedgerRun) -> AbstractContextManager[LedgerRun, None]:
    """Make a run the current run."""
    return _Scope(_run, run)


def trial_scope(trial: Trial) -> AbstractContextManager[Trial, None]:
    """Try runs in a separate ledger."""
    return _Scope(_trial, trial)


def effect_scope(effect: CurrentEffect) -> AbstractContextManager[CurrentEffect, None]:
    """Make an effect the current effect."""
    return _Scope(_effect, effect)


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
        self._token = _run.set(run)
        return run

    @override
    def __exit__(self, *raised: Any) -> None:
        assert self._token is not None  # noqa: S101 (it was entered)
        _run.reset(self._token)
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
    thread_id: str | Context,
    *,
    id: str = "run",
    name: str | None = None,
    ledger: Ledger | str | None = None,
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
    continues. With `debug`, a tool that changes its dependencies unrecorded raises a `UserError` that names the tool and the
    change.

    If the block raises, the run stays open. An exception is recorded, and the run counts as failed until it is continued, or
    as stopped if something outside has failed: a provider, a key, a spent budget. A cancelled or interrupted run waits for a
    program that continues it.

    A block in which nothing is recorded, and an agent in it without `LedgerDurability`, cause a `DurabilityWarning`; with
    `required=True`, an error. A program without an event loop uses `with` instead of `async with`, and `agent.run_sync` in it.

    Raises:
        TypeError: the id is not a text, or the state is not a `DepsState`.
        UserError: the state cannot be stored and restored.
        ValueError: `on_busy` or `on_change` is not one of the values above, or `input` is not JSON.
        ParkedError: a person must settle something first.
        RuntimeError: something that is required to be recorded is not.
        OwnedError: the run is already open, or another living process owns the thread, and `on_busy` is "raise". Nothing
            was done.
        FencedError: another process has taken over the thread.
        HistoryMismatchError: the program does not repeat its recorded steps, or the run was started with another input.
        LedgerError: the ledger cannot be used.
    """
    if not isinstance(given := cast("object", id), str):
        raise TypeError(f"the id of a run is a text, such as {str(given)!r}, not {given!r}")
    check_choice("on_busy", on_busy, OnBusy)
    check_choice("on_change", on_change, OnChange)
    _check_input(input)
    watch = Watch(state, debug=debug)
    if isinstance(thread_id, Context):
        return RunBlock(thread_id.thread_id or "", _in_handler(thread_id, watch))
    more: dict[str, Any] = {"on_busy": on_busy, "on_change": on_change, "input": input, "watch": watch, "required": required}
    make = functools.partial(LedgerRun, thread_id, id=id, name=name, admit=admit, observer=observer, **more)
    return RunBlock(thread_id, _in_program(make, ledger))


def _check_input(value: object) -> None:
    """Refuse an input that cannot be stored, where it is given.

    Raises:
        ValueError: it is not JSON; the text says where.
    """
    try:
        own(value)
    except JsonError as exc:
        place = "".join(f"[{each!r}]" for each in exc.path)
        raise ValueError(f"input{place} of a run is recorded as JSON: {exc.reason}") from None


@asynccontextmanager
async def _in_handler(context: Context, watch: Watch) -> AsyncGenerator[LedgerRun, None]:
    with run_scope(_within(context, watch)) as run:
        try:
            yield run
            run.check_parked()
        finally:
            run.forget_parts()


@asynccontextmanager
async def _in_program(make: Callable[[], LedgerRun], ledger: Ledger | str | None) -> AsyncGenerator[LedgerRun, None]:
    watch_agents(_watch_agent)
    run = make()
    run.loop = asyncio.get_running_loop()
    with run.observed():
        try:
            if ledger is not None:
                await run.open(ledger)
            with run_scope(run):
                yield run
            run.check_parked()
            if not run.is_used:
                reason = "no agent with LedgerDurability ran in it; a stream is read in the block, or given to durable_stream"
                report_missing(f"the block of ledger_run({run.thread_id!r}) recorded nothing: {reason}", required=run.required)
            if run.streaming:
                reason = f"while a stream of agent {run.streaming[0]!r} is open, so the answer is not recorded; "
                advice = "read it in the block, or give it to durable_stream"
                report_missing(f"the block of ledger_run({run.thread_id!r}) ends {reason}{advice}", required=run.required)
            else:
                await run.close()
        except (Exception, BaseExceptionGroup) as exc:
            await _end_with_error(run, exc)
            raise
        finally:
            await run.leave()


async def _end_with_error(run: LedgerRun, error: BaseException) -> None:
    """Record how a block has ended. The errors of a task group count individually."""
    errors = list(_errors_of(error))
    # Not the text of the error, which may have content in it: the ledger has it, redacted.
    how = "waits for a person" if run.is_parked or all(isinstance(each, ParkedError) for each in errors) else "ended"
    names = ", ".join(sorted({type(each).__qualname__ for each in errors}))
    _LOG.info("run %r of thread %r %s: %s", run.id, run.thread_id, how, names)
    if mismatches := [each for each in errors if isinstance(each, HistoryMismatchError)]:
        await run.give_up(mismatches[0])
    elif isinstance(error, Exception) and not run.is_parked and not all(map(_is_not_the_programs, errors)):
        await run.fail(error)
    elif run.is_parked or all(isinstance(each, ParkedError) for each in errors):
        await run.end_waiting()


def _is_not_the_programs(error: BaseException) -> bool:
    """Whether another process continues the run, or this one does after a person's answer."""
    return isinstance(error, LedgerError | ParkedError) and not isinstance(error, StoppedError)


def _errors_of(error: BaseException) -> Iterator[BaseException]:
    """Return an error, or the errors in a group, at any depth."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _errors_of(each)
    else:
        yield error


def _watch_agent(name: str, name_in_journal: str | None) -> str | None:
    """Return the id of the run that starts. Report an agent without durability, except in an effect, which records it.

    Raises:
        RuntimeError: the agent runs in another event loop than its run, whose ledger it cannot use.
    """
    run = current_run()
    if run is None:
        return None
    _asked.set(asked(run.place))
    if name_in_journal is not None:
        if run.loop not in (None, asyncio.get_running_loop()):
            reason = f"agent {name!r} runs in another event loop than ledger_run({run.thread_id!r}), and cannot be recorded"
            raise RuntimeError(f"{reason}: use `async with ledger_run(…)` and `await agent.run(…)` in the same loop")
        return run.peek_agent(name_in_journal)
    if run.is_of_program and current_effect() is None:
        reason = f"agent {name!r} runs in ledger_run({run.thread_id!r}) and has no LedgerDurability: it is not recorded"
        report_missing(reason, required=run.required)
    return None


@asynccontextmanager
async def retried_run(context: Context, invocation_id: str, forgiven: Collection[str]) -> AsyncGenerator[LedgerRun, None]:
    """Continue the run of a message that failed, in the handler of a RETRY. The effects in `forgiven` are made again.

    Recorded answers and results are used, so no request is paid for twice, and no tool starts twice. The caller sees to it
    that no other handler is at work on the same run.
    """
    course = RetriedCourse(context.course, invocation_id, context.address)
    run = LedgerRun(context.thread_id or "", id=invocation_id)
    began = current_port().now()
    run.attach(Opened(context.journal, course, context.park, forgiven, root=invocation_id, began=began))
    with run_scope(run):
        try:
            yield run
        finally:
            run.forget_parts()


def _within(context: Context, watch: Watch) -> LedgerRun:
    if context.thread_id is None:
        raise RuntimeError("a message outside of a thread is not stored: ask in a thread")
    run = LedgerRun(context.thread_id, id=context.course.invocation_id, watch=watch)
    invocation_id = context.course.invocation_id
    run.attach(Opened(context.journal, context.course, context.park, root=invocation_id, began=current_port().now()))
    return run
