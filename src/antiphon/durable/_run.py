"""Runs: the effects of a program in a thread. The program can be killed anywhere, and continues when it is started again.

A run is identified by its thread and its id. It is a call `RUN` in the thread's journal, open until the block ends. Its work
is recorded as effects of that call. When the same program runs again, it finds the call, and every recorded effect returns its
outcome instead of being executed. The process that opens a run owns the thread while it lives; no other host takes it. Another
caller of the same run waits, and gets the recorded outcomes (`on_busy`). A process that was suspended past its lease, and
therefore considered dead, is fenced.

Tools, toolkits and models find their run with `current_run()`.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Lock
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from typing_extensions import override

from antiphon.durable._course import MARK, Place, RunCourse, RunPart, asked, place_of
from antiphon.durable._history import QUESTION, RETURNED
from antiphon.durable._opened import AgentRuns, Namesake, Opened, block_ended
from antiphon.durable._opening import Opening, RunOptions
from antiphon.durable._state import Watch
from antiphon.durable._steps import Patches, RunEffect, RunStep, StepOrder
from antiphon.durable._tenure import file_of, shared_ledger, to_the_end
from antiphon.errors import AppendRefusedError, EffectFailedError, HistoryMismatchError, LedgerError, ParkedError, StoppedError
from antiphon.ledger import Owners, Record
from antiphon.ledger._unopened import check_opened
from antiphon.messages import Json, Lane, Message, current_port, thaw
from antiphon.messages._arguments import check_choice
from antiphon.messages._keys import as_key
from antiphon.runtime._course import Course
from antiphon.runtime._effects import Effects, call_plain, check_function
from antiphon.runtime._journal import Admit, Journal

JsonT = TypeVar("JsonT", bound=Json)
_NO_OPTIONS: Final = RunOptions()

RUN: ContextVar[LedgerRun | None] = ContextVar("antiphon.run", default=None)
_effect: ContextVar[CurrentEffect | None] = ContextVar("antiphon.effect", default=None)


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


def current_run() -> LedgerRun | None:
    """Return the current run; None outside of one."""
    return RUN.get()


class LedgerRun:
    """The work of a program in a thread, or a part of it: the run of one agent, or the work of one tool."""

    def __init__(
        self,
        thread_id: str,
        *,
        id: str = "run",
        options: RunOptions = _NO_OPTIONS,
        agent: str | None = None,
        depth: int = 0,
        watch: Watch | None = None,
        agents: AgentRuns | None = None,
        opened: Opened | None = None,
    ) -> None:
        """Make it; `opened` is what a part, or the run of a handler, belongs to."""
        self.thread_id = thread_id
        self.id = id
        self.options = options
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
        self._opened: Opened | None = opened
        self._opening = Lock()
        self._stack = AsyncExitStack()
        self._url: str | None = None
        self._opened_as: Owners | str | None = None
        """The argument of the last `open`, if it is the ledger of this run."""
        self._agents = agents or AgentRuns()
        """The runs of agents in it."""
        self._parts: dict[str, LedgerRun] = {}
        """By the id of an agent's run, as it is called before and after its question is known, the part that it is."""
        self.is_used = options.input is not None
        """Whether anything was recorded or read in it."""
        self.run_id: str | None = None
        """Of a run of an agent: its id for the agent, and in its messages."""
        self.start: Mapping[str, Json] = MappingProxyType({})
        """Of a run of an agent: a digest of its question, and how the program asked for it."""
        self._place = Place()
        self._returned: Mapping[str, Json] | None = None
        self._parked: ParkedError | None = None
        """Why a run in its block waits for a person, until this one has a ledger."""

    # ------------------------------------------------------------ properties

    @property
    def is_open(self) -> bool:
        """Whether it has a ledger."""
        return self._opened is not None

    @property
    def opened(self) -> Opened:
        """The opened run that it writes to."""
        if self._opened is None:
            raise RuntimeError(
                f"run {self.id!r} has no ledger: use ledger_run({self.thread_id!r}, ledger=…) or LedgerDurability"
            )
        return self._opened

    @property
    def ledger(self) -> Owners:
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
    def is_again(self) -> bool:
        """Whether the run was started before, so that the thread has rows of it."""
        return self.course.attempt > 1

    @property
    def input(self) -> Json:
        """The input of the run, as plain JSON: the same in every process that continues it. None if it had no input."""
        value: Json = thaw(self.opened.recorded.input)
        return value

    def tell_parked(self, errors: Sequence[BaseException]) -> None:
        """Tell the run around this one that this one waits for a person, or leaves a doubt; `errors` have ended it.

        Otherwise a program that catches the error would do in another run what may be done.
        """
        around, opened = self._around, self._opened
        if around is None or around._has_left:
            return
        parked = [each for each in errors if isinstance(each, ParkedError) and not isinstance(each, StoppedError)]
        doubt: ParkedError | None = None
        if opened is not None and not opened.is_finished:
            work = opened.course.work
            parked, doubt = [work.parked] if work.parked else parked, work.doubt
        if around._opened is None:
            around._parked = around._parked or next(iter(parked), doubt)
        elif parked:
            around.course.work.note_parked(parked[0], around.course.inside)
        elif doubt is not None:
            around.course.work.note_doubt(doubt)

    def check_parked(self) -> None:
        """Refuse to end while an effect of the run waits for a person, also if the program has caught its error.

        Raises:
            ParkedError: one waits; or the outcome of one is not known here, and the run is of a program.
        """
        waits = self._parked
        if (opened := self._opened) is not None and not opened.is_finished:
            work = opened.course.work
            waits = work.parked or (work.doubt if opened.is_program else None)
        if waits is not None:
            raise ParkedError(waits.reason, waits.address)

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
        """
        check_choice("effects", effects, Effects)
        check_function(key, run)
        self.is_used = True
        effect = RunStep(self.opened, key, arguments, effects=effects, option=option, parent_id=parent_id)

        async def inside(own_key: str) -> Json:
            # An agent in it belongs to it: when its outcome is recorded, the agent does not run again.
            with run_scope(self.part(effect.key)), effect_scope(CurrentEffect(own_key, option or key, effects)):
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
        """Return the time in UTC, with its time zone. When the program runs again, return the recorded time."""
        return datetime.fromisoformat(await self._read(key, lambda: current_port().now().isoformat()))

    async def random(self) -> float:
        """Return a random number from 0 up to, but not including, 1. When the program runs again, return the recorded one."""
        return float(await self._read("random", lambda: (int.from_bytes(_random_bytes(8)) >> 11) / 2**53))

    async def uuid(self) -> UUID:
        """Return a random UUID. When the program runs again, return the recorded one."""
        return UUID(await self._read("uuid", lambda: str(UUID(bytes=_random_bytes(16), version=4))))

    async def patched(self, name: str) -> bool:
        """Whether the run takes a new branch of the program: `if await run.patched("new-terms"): … else: …`.

        A run that starts with the new program takes it, and so does a run that has not reached this place yet. A run that has
        passed this place takes the old branch, as before. The answer is recorded, and is valid for the whole run.
        """
        self.is_used = True
        return await self.opened.share(Patches).patched(self.opened, name)

    async def _read(self, key: str, read: Callable[[], Json]) -> Any:
        self.is_used = True

        async def value(id: str) -> Json:
            return read()

        return await _Reading(self.opened, key, {}, effects="none").perform(value)

    async def note(self, message: Message, *, key: str = "note") -> Record:
        """Append a control message about the run, such as a decision, once: it is not repeated when the program runs again.

        Its id consists of the run's id and the key; its time is the ledger's.

        Raises:
            HistoryMismatchError: the recorded note is a different one.
        """
        return await self._append(message, key, "control")

    async def note_soon(self, message: Message, *, key: str) -> None:
        """Like `note`, but written with the next rows: without its own commit, and before anything that depends on it."""
        await self.journal.write_soon(self.thread_id, [self._row(message, key, "control")])

    async def say(self, message: Message, *, key: str = "say") -> Record:
        """Append a talk message once; otherwise like `note`.

        Raises:
            HistoryMismatchError: the recorded message is a different one.
        """
        return await self._append(message, key, "talk")

    async def say_soon(self, message: Message, *, key: str) -> None:
        """Like `say`, but written with the next rows, as with `note_soon`."""
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
        self.is_used = True
        course, parked = self.course, self.course.work.parked
        if self.opened.is_program and parked is not None:  # what a program says of that is not what it says later
            raise ParkedError(parked.reason, parked.address)
        update = {
            "id": f"{course.invocation_id}/{course.next_key(key)}",
            "thread_id": self.thread_id,
            "parent_id": message.parent_id or course.invocation_id,
            "lane": lane,
            "created_at": None,
        }
        return message.model_copy(update=update)

    # ------------------------------------------------------------ parts

    async def open(self, ledger: Owners | str) -> None:
        """Start or continue the run in a ledger; do nothing if it has one. A URL is opened until the run ends.

        Raises:
            ParkedError: a person must settle something first.
            RuntimeError: it has another ledger, or its block has ended.
        """
        if self._has_left:
            raise RuntimeError(block_ended(self.thread_id))
        if ledger is self._opened_as:
            return  # this is called at each step of an agent, and resolving a file name takes as long as writing a row
        argument = ledger
        if self._opened is None:
            async with self._opening:
                ledger = await self._open_first(ledger)
        is_same = ledger is self.ledger or ledger == self._url
        if not is_same and (file := file_of(ledger)) is not None:  # the URL may be spelled in another way
            is_same = file == file_of(self.ledger)
        if not is_same and _trial.get() is None:
            reason = f"run {self.id!r} of thread {self.thread_id!r} is written to another ledger"
            raise RuntimeError(f"{reason}; give ledger_run(…) and all agents in its block the same one")
        self._opened_as = argument

    async def _open_first(self, ledger: Owners | str) -> Owners | str:
        """Open it, unless another task did while this one waited, and return its ledger."""
        if self._opened is None:
            if self._around is not None and not self._around._has_left:
                self._around.check_parked()  # what a program does in a run of its own instead would be done twice, too
            options = self.options
            if (trial := _trial.get()) is not None:
                self._url = ledger if isinstance(ledger, str) else None
                ledger, options = trial.ledger, replace(options, admit=trial.admit)
            if not isinstance(ledger, str):
                check_opened(ledger)
            else:
                self._url, ledger = ledger, await self._stack.enter_async_context(shared_ledger(ledger))
            if self._is_nested(ledger):
                options = replace(options, on_busy="raise")
            opened = await Opening(ledger, self.thread_id, self.id, options).open()
            if isinstance(opened.course, RunCourse):
                opened.course.place = self._place  # an agent may open it in a task of its own
            self._opened = replace(opened, on_change=options.on_change, is_program=True)
            if self._parked is not None:
                self.course.work.note_parked(self._parked)
            if is_trial():
                self._opened.share(StepOrder).patience = _TRIAL_PATIENCE
        return ledger

    def _is_nested(self, ledger: Owners) -> bool:
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

    @property
    def invocation_id(self) -> str:
        """The prefix of the ids of its effects."""
        return f"{self.thread_id}/{as_key(self.id)}" if self._opened is None else self._opened.course.invocation_id

    def next_call(self, tool: str) -> str:
        """Return the id of the next call of a tool that the program makes itself, within the run."""
        self.is_used = True
        return self.course.next_key(f"call:{tool}")

    def expect_agent(self) -> str:
        """Return an id for a run of an agent that starts now, until its question is known: then `of_agent` gives it another.

        Call it in the task in which the program starts the agent: the order of its steps is that of its tasks.
        """
        self.is_used = True
        place = self._place if self._opened is None else place_of(self.course)
        return self._agents.expect(self.invocation_id, asked(place))

    def of_agent(self, run_id: str, name: str, question: str | None = None) -> LedgerRun:
        """Return the part of this run that is a run of an agent; `question` is a digest of its question."""
        part = self._parts.get(run_id)
        if part is None:
            start = self._agents.begin(self.opened, self.invocation_id, run_id, name, question)
            self.opened.share(StepOrder).agents.add(start.id)
            part = self._parts[run_id] = self._parts[start.run_id] = self.part(start.id, agent=name, deeper=1)
            part.run_id, part.start = start.run_id, {QUESTION: question, **start.asked}
        return part

    @contextmanager
    def agent_at_work(self, part: LedgerRun, question: object = None) -> Generator[None, None, None]:
        """Register a run of an agent and its question while it is active.

        Raises:
            HistoryMismatchError: the thread records another agent here. Its requests would be paid for again.
        """
        agent = part.course.invocation_id
        is_in_order = MARK not in part.start  # agents that run in parallel may start in another order
        if agent not in self.opened.recorded.agents and is_in_order:
            in_order = {step.id for step in self.opened.recorded.steps if step.mark is None}
            self._agents.check(self.opened, f"runs agent {agent!r}", in_order)
        with self._agents.active(agent, question):
            yield

    def namesakes(self) -> list[Namesake]:
        """Return the other runs of agents with the same name: those that are recorded or active."""
        around = self._around
        return [] if around is None else around._agents.namesakes(self.opened, self.course.invocation_id)

    def part(self, invocation_id: str, *, agent: str | None = None, deeper: int = 0) -> LedgerRun:
        """Return a part of this run that numbers its own effects."""
        course = RunPart(self.course, invocation_id, agent or self.course.to, is_agent=agent is not None)
        opened = replace(self.opened, course=course, tenure=None)
        depth = self.depth + deeper
        part = LedgerRun(self.thread_id, id=self.id, agent=agent or self.agent, depth=depth, watch=self.watch, opened=opened)
        part._url, part.loop, part._around = self._url, self.loop, self
        return part

    def forget_parts(self) -> None:
        """Forget the runs of agents in it, when its block ends.

        Each refers to this run. Without this, only a garbage collection frees them, with every message that they hold.
        """
        self._parts.clear()

    def returns(self, value: Json) -> None:
        """Set the value that its program returns: it is recorded with the end of the run."""
        self.is_used = True
        self._returned = {RETURNED: value}

    @property
    def returned(self) -> Mapping[str, Any] | None:
        """The return value of its program, under one key, if the run is finished and has one."""
        if (returned := self.opened.recorded.returned) is None:
            return None
        self.is_used = True
        return returned

    async def close(self) -> None:
        """Record its end. A finished run is only read: a later program may ask for fewer of its steps and agents.

        Raises:
            HistoryMismatchError: an agent that ran before did not run, or a recorded step was not asked for.
        """
        if self._opened is not None and not self._opened.is_finished:
            self._agents.check(self._opened, "ends", self._opened.recorded.agents)
            await self._opened.share(StepOrder).check_end(self._opened)
            await self._opened.close(self._returned)

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


_at_end: WeakKeyDictionary[Owners, dict[str, list[Callable[[], None]]]] = WeakKeyDictionary()


@contextmanager
def at_end(ledger: Owners, thread_id: str, callback: Callable[[], None]) -> Generator[None, None, None]:
    """Call a function whenever the last open run of a thread in this process has ended, for a `with` block."""
    callbacks = _at_end.setdefault(ledger, {}).setdefault(thread_id, [])
    callbacks.append(callback)
    try:
        yield
    finally:
        callbacks.remove(callback)
        if not callbacks:
            _at_end[ledger].pop(thread_id, None)


class _Reading(RunEffect):
    """An effect that only reads, such as a clock.

    Nothing depends on its intent, so intent and outcome are written together.
    """

    is_told = False

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

    ledger: Owners
    admit: Admit


_trial: ContextVar[Trial | None] = ContextVar("antiphon.trial", default=None)


_TRIAL_PATIENCE: Final = 0.5
"""Seconds for which a new step of a trial waits for recorded ones: somebody waits for the forecast."""


def is_trial() -> bool:
    """Whether runs are only tried: nothing outside may be called."""
    return _trial.get() is not None


@contextmanager
def run_scope(run: LedgerRun) -> Generator[LedgerRun, None, None]:
    """Make a run the current run."""
    token = RUN.set(run)
    try:
        yield run
    finally:
        RUN.reset(token)


@contextmanager
def trial_scope(trial: Trial) -> Generator[None, None, None]:
    """Try runs in a separate ledger."""
    token = _trial.set(trial)
    try:
        yield
    finally:
        _trial.reset(token)


@contextmanager
def effect_scope(effect: CurrentEffect) -> Generator[None, None, None]:
    """Make an effect the current effect."""
    token = _effect.set(effect)
    try:
        yield
    finally:
        _effect.reset(token)
