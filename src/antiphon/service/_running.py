"""Running threads: questions in six phases, and tasks for teams, watched while they run and reported when they stop.

A run stops when the thread has ended, waits for a person, or is paused by another process. `stop` is an event with which the
caller interrupts it: a thread of six phases is paused, a team is stopped; both can continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPartDelta
from pydantic_ai.messages import TextPart as SpokenText

from antiphon._listeners import listener
from antiphon._tasks import beside
from antiphon.agents import AgentBudget, listen
from antiphon.errors import (
    LedgerFullError,
    OwnedError,
    RefusedError,
    ReplyTimeoutError,
    ServiceError,
    ThreadBusyError,
    ThreadEndedError,
)
from antiphon.ledger import Ledger, Record, Tailed, ThreadSummary
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, TextPart, current_port
from antiphon.patterns.cast import Outcome, Pattern
from antiphon.patterns.postchain import ChainConfig, ChainEvent, ChainResult, PostChain
from antiphon.patterns.postchain._chain import event_of
from antiphon.patterns.postchain._retrieval import contribution
from antiphon.patterns.team_files import open_team
from antiphon.patterns.team_files._team_file import TeamFile
from antiphon.protocol import PHASES
from antiphon.runtime import ActorView, DeadLetter, Settings
from antiphon.runtime._settings import STOPPED
from antiphon.service._branches import ForkPlace, check_continues, fork_thread
from antiphon.service._following import OnText, TextDelta, TextSource, chain_text
from antiphon.service._life import chain_life, check_chain, check_not_ended, living_owner, own_tools
from antiphon.service._live_text import offering_text
from antiphon.service._models import LOCAL, SCRIPTED, chain_options, check_model, model_in
from antiphon.service._runs import build_of
from antiphon.service._settings import (
    RunSettings,
    UsedFile,
    chain_config,
    check_budget,
    chosen_model,
    code_files,
    record_settings,
    settings_of,
    team_path,
    trusted_code,
)
from antiphon.service._threads import check_new, find_thread, is_of_runs
from antiphon.service._transcript import brief, call_text, outcome_text, prose

ResultT = TypeVar("ResultT")
OnEvent: TypeAlias = Callable[[ChainEvent], None]


@dataclass(frozen=True, slots=True)
class RunReport:
    """The outcome of a run, and its cost."""

    thread_id: str
    status: str
    """As in `Outcome`; interrupted, if a team was interrupted."""
    response: str | None = None
    citations: tuple[Mapping[str, Any], ...] = ()
    error_code: str | None = None
    error_message: str | None = None
    was_interrupted: bool = False
    """Whether the thread is paused: by `stop`, by another process, or because a person must do something."""
    models: tuple[str, ...] = ()
    """The models that answered; the last one wrote the response."""
    seconds: float = 0.0
    input_tokens: int = 0
    """Of the whole thread."""
    output_tokens: int = 0
    cost: str = "0"
    """In US dollars, every digit."""
    host: str | None = None
    """The host in which the thread continues, if only the wait for it was interrupted."""
    by_caller: bool = False
    """Whether `stop` interrupted it."""
    failed_tools: tuple[str, ...] = ()
    """Tools whose last call failed, each with the error: the answer may rest on them."""
    is_unfounded: bool = False
    """Whether the last tool of every agent that used tools has failed: the answer rests on failures."""
    failed_at: str | None = None
    """Where a branch of a failed thread begins: before the phase, or the message, that failed."""
    is_chain: bool = False
    """Whether the thread goes through six phases."""
    contributions: tuple[tuple[str, str], ...] = ()
    """The ended phases, each with its contribution as one line."""
    is_quoted: bool = False
    """Whether the answer was assembled from quotes and results of tools: no model wrote it."""

    @property
    def answer(self) -> str | None:
        """The response for people. Teams often answer in JSON: that is written as Markdown."""
        return self.response if self.is_chain or self.response is None else prose(self.response)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "thread_id": self.thread_id,
            "status": self.status,
            "response": self.response,
            "citations": [dict(citation) for citation in self.citations],
            "contributions": dict(self.contributions),
            "models": list(self.models),
            "seconds": round(self.seconds, 3),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
            "error_message": self.error_message,
            "error_code": self.error_code,
            "failed_tools": list(self.failed_tools),
        }


async def _report(
    ledger: Ledger, outcome: Outcome, began: float, models: Iterable[str], *, is_paused: bool, after: int | None = None
) -> RunReport:
    """Return the report of a run; `after` is the end of the thread before it."""
    report = RunReport(
        outcome.thread_id,
        outcome.status,
        outcome.response,
        outcome.citations,
        outcome.error_code,
        outcome.error_message,
        is_paused,
        tuple(dict.fromkeys(models)),
        asyncio.get_running_loop().time() - began,
    )
    summary = await ledger.thread(outcome.thread_id)
    if summary is None:
        return report
    if after is not None:
        failed, is_unfounded = await _failed_tools(ledger, outcome.thread_id, after)
        report = replace(report, failed_tools=failed, is_unfounded=is_unfounded)
    report = replace(report, input_tokens=summary.input_tokens, output_tokens=summary.output_tokens, cost=str(summary.cost))
    if not isinstance(outcome, ChainResult):
        return report
    contributions = [(phase, contribution(phase, outcome.outputs[phase])) for phase in PHASES if phase in outcome.outputs]
    return replace(report, is_chain=True, contributions=tuple(contributions))


async def _failed_tools(ledger: Ledger, thread_id: str, after: int) -> tuple[tuple[str, ...], bool]:
    """Return the tools whose last call failed, with the errors, and whether the last tool of each agent failed."""
    callers, started = dict[str, str](), set[str | None]()
    tools, last = dict[str, OptionResultPayload](), dict[str, bool]()
    async for record in ledger.read(thread_id, after):
        lane, payload = record.message.lane, record.message.payload
        if isinstance(payload, OptionCallPayload) and lane == "talk":
            callers[payload.invocation_id] = record.message.policy
        elif isinstance(payload, OptionCallPayload) and lane == "effect":
            started.add(record.message.parent_id)  # tools of a history that was handed over did not start here
        elif isinstance(payload, OptionResultPayload) and lane == "talk":
            if payload.invocation_id not in started or payload.option_name in _UNSHOWN:
                continue
            tools[payload.option_name] = payload
            last[callers.get(payload.invocation_id, "")] = payload.is_error
    failed = tuple(f"{name}: {brief(result.error_message)}" for name, result in tools.items() if result.is_error)
    return failed, bool(last) and all(last.values())


# ---------------------------------------------------------------- six phases


@asynccontextmanager
async def open_chain(
    ledger: Ledger,
    *,
    model: str | None = None,
    config: Path | None = None,
    thread_id: str | None = None,
    documents: Sequence[str] = (),
    budget: Mapping[str, float] | None = None,
) -> AsyncGenerator[ChainRunner]:
    """Open a chain on a ledger. `thread_id` is a thread that must exist and go through six phases, or be imported.

    An existing thread uses its recorded settings, unless others are given. A model that the given configuration names counts
    as given.

    Raises:
        ServiceError: it is of another pattern.
        SettingsError: a recorded setting of the thread is no longer available.
    """
    recorded: RunSettings | None = None
    if thread_id is not None:
        await check_chain(ledger, thread_id, may_be_imported=True)
        recorded = await settings_of(ledger, thread_id)
    file = None if config is None else UsedFile.read(config)
    named = model or model_in(config)
    if recorded is None:
        settings = RunSettings(model=chosen_model(named), config=file, documents=tuple(documents), budget=budget)
    else:
        settings = replace(
            recorded, model=named or recorded.model, config=file or recorded.config, budget=budget or recorded.budget
        )
    if settings.model != model:
        await asyncio.to_thread(import_model, settings.model)  # work that takes a second must not block the loop
        await asyncio.to_thread(check_model, settings.model)
    chain = new_chain(
        ledger,
        model=settings.model,
        config=config or chain_config(settings),
        budget=settings.agent_budget(),
    )
    async with chain, offering_text(chain.system.host_name, chain_text(chain), ledger):
        yield ChainRunner(chain, settings)


async def report_completed(ledger: Ledger, thread_id: str) -> RunReport | None:
    """Return the report of a completed thread of six phases, or of a program's runs, without a model; None for any other."""
    summary, life = await find_thread(ledger, thread_id), await chain_life(ledger, thread_id)
    if life is None and is_of_runs(summary) and not summary.open_calls and summary.status in (None, "completed"):
        return RunReport(thread_id, "completed")
    if life is None or life.status != "completed":
        return None
    recorded = await settings_of(ledger, thread_id)
    model = recorded.model if recorded is not None and recorded.model in (LOCAL, SCRIPTED) else None
    async with new_chain(ledger, model=model) as chain:
        return await ChainRunner(chain).report(thread_id)


def new_chain(
    ledger: Ledger,
    *,
    model: str | None = None,
    config: Path | ChainConfig | None = None,
    budget: AgentBudget | None = None,
) -> PostChain:
    """Return a chain on a ledger, with the settings for its model."""
    options = chain_options(model, ChainConfig.read(config) if isinstance(config, Path) else config)
    # Modules that are first used here are imported in the event loop, and nobody else waits for it.
    settings = Settings(block_limit=None, build=build_of((config if isinstance(config, Path) else None,), model))
    return PostChain(
        ledger,
        model=model,
        config=options.config,
        tools=options.tools,
        thread_budget=budget,
        settings=settings,
        recover=False,
    )


def import_model(model: str | None) -> None:
    """Import what a model needs before the event loop runs: the client of a local model takes a second to import."""
    if (model or "").partition(":")[0] in (LOCAL, "ollama"):
        with suppress(ModuleNotFoundError):  # the model itself says what is missing
            import_module("openai.resources.chat")


def _then(
    begin: Callable[[], Awaitable[Any]], on_started: Callable[[str], object] | None, thread_id: str
) -> Callable[[], Awaitable[Any]]:
    """Return a function that starts a thread, and then calls `on_started`."""

    async def both() -> None:
        await begin()
        if on_started is not None:
            on_started(thread_id)

    return both


class ChainRunner:
    """Runs threads of six phases. Each verb returns when the thread stops; `on_event` is called with each event until then."""

    def __init__(self, chain: PostChain, settings: RunSettings | None = None) -> None:
        self._chain = chain
        self._settings = settings
        """The settings that its threads record; None: they record none."""
        self.ledger = chain.ledger

    def actors(self) -> tuple[ActorView, ...]:
        """Return the actors of this process that run its threads."""
        return self._chain.system.actors()

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Return the latest messages that no actor of this process handles."""
        return self._chain.system.dead_letters

    async def ask(
        self,
        question: str,
        *,
        thread_id: str | None = None,
        name: str | None = None,
        user_id: str = "user",
        on_created: Callable[[str], object] | None = None,
        on_started: Callable[[str], object] | None = None,
        on_event: OnEvent | None = None,
        stop: asyncio.Event | None = None,
    ) -> RunReport:
        """Answer a question, in a new thread or as the next turn of one. `name` is the id of the new thread.

        `on_created` is called with the thread before it starts: from then on, it can be resumed. `on_started` is called when
        it has started: from then on, it can be paused.

        Raises:
            PlaceError: there is a thread of that name.
            ThreadBusyError: the thread has not finished its turn.
            ThreadEndedError: the thread was terminated.
            RefusedError: the thread cannot take a turn, or the question is too large.
        """
        on_created, on_started, on_event = listener(on_created), listener(on_started), listener(on_event)
        if thread_id is None:
            if name is not None:
                await check_new(self.ledger, name)
            new_thread = await self._chain.create(question, user_id=user_id, thread_id=name)
            await self._record(new_thread)
            if on_created is not None:
                on_created(new_thread)
            return await self._watch(
                new_thread, _then(partial(self._chain.start, new_thread), on_started, new_thread), on_event, stop
            )
        await self._check_ready(thread_id)
        await self._record(thread_id)
        if on_created is not None:
            on_created(thread_id)
        try:
            begin = partial(self._chain.start, thread_id, question, user_id=user_id)
            return await self._watch(thread_id, _then(begin, on_started, thread_id), on_event, stop)
        except RefusedError:
            await self._check_ready(thread_id)  # its host got another question meanwhile
            raise

    async def append_history(self, thread_id: str, messages: Iterable[Message]) -> None:
        """Append messages from outside to a thread, before a question is asked in it. They are talk that triggers nothing."""
        await self._chain.system.append_history(thread_id, messages)

    async def report(self, thread_id: str) -> RunReport:
        """Return the current report of a thread."""
        return await self._reported(thread_id, asyncio.get_running_loop().time())

    async def terminate(self, thread_id: str, reason: str) -> None:
        """End a thread permanently."""
        await self._chain.terminate(thread_id, reason)

    async def send(self, message: Mapping[str, Any], *, within: float | None = None) -> dict[str, Any]:
        """Send a message of the protocol, and return its response. Errors are responses.

        A thread that it creates, starts or resumes records its settings.
        """
        data: Any = message.get("data") or {}
        if message.get("type") in ("START_THREAD", "RESUME_THREAD") and await self.ledger.thread(str(data.get("thread_id"))):
            await self._record(str(data["thread_id"]))
        response = await self._chain.send(message, within=within)
        if response["type"] == "THREAD_CREATED":
            await self._record(response["data"]["thread_id"])
        return response

    @property
    def at_work(self) -> int:
        """The number of threads that run here now."""
        return self._chain.at_work

    async def _record(self, thread_id: str) -> None:
        """Record the settings of a thread before its first question: from then on, it can be resumed by its id."""
        if self._settings is not None:
            await record_settings(self.ledger, thread_id, self._settings, self._chain.system)

    async def _check_ready(self, thread_id: str) -> None:
        """Refuse a thread that takes no question now."""
        await check_not_ended(self.ledger, thread_id, may_have_failed=True)
        life = await self._chain.life(thread_id)
        if life.status in ("processing", "paused"):
            owner = await self._other_owner(thread_id)
            where = "" if owner is None else f" in host {owner!r}"
            raise ThreadBusyError(f"thread {thread_id} is {life.status}{where}", thread_id, life.status, owner)

    async def resume(
        self,
        thread_id: str,
        *,
        on_owner: Callable[[str], None] | None = None,
        on_event: OnEvent | None = None,
        stop: asyncio.Event | None = None,
    ) -> RunReport:
        """Continue a thread where it stopped. Finished steps do not run again; a completed thread is only reported.

        If another host runs it, wait for the same result; `on_owner` is called with the name of that host. Then `stop` ends
        the wait, and the thread continues there.

        Raises:
            ThreadEndedError: it has failed, or was terminated.
            ServiceError: it has spent its budget, and got no new one.
            RefusedError, UnguardedToolError: it cannot continue here.
        """
        on_owner, on_event = listener(on_owner), listener(on_event)
        life, began = await self._chain.life(thread_id), asyncio.get_running_loop().time()
        if life.status == "completed":  # the process that asked may have been killed before it got the answer
            return await self._reported(thread_id, began)
        if life.is_over:
            raise ThreadEndedError(f"thread {thread_id} is {life.status}", thread_id, life.status)
        if life.status == "paused":
            recorded = await settings_of(self.ledger, thread_id)
            budget = None if self._settings is None else self._settings.budget
            await check_budget(self.ledger, thread_id, None if recorded is not None and recorded.budget == budget else budget)
        await self._record(thread_id)
        owner = await self._other_owner(thread_id) if life.status == "processing" else None
        if owner is not None and on_owner is not None:
            on_owner(owner)
        begin = self._chain.start if life.status == "created" else self._chain.resume
        try:
            return await self._watch(thread_id, partial(begin, thread_id), on_event, stop, owner=owner)
        except RefusedError:
            if not (await self._chain.life(thread_id)).is_over:
                raise
            return await self._reported(thread_id, began)  # another host has ended it meanwhile

    async def fork(
        self,
        place: ForkPlace,
        *,
        on_branch: Callable[[ThreadSummary], None] | None = None,
        on_event: OnEvent | None = None,
        stop: asyncio.Event | None = None,
    ) -> RunReport:
        """Make a branch, and continue it. Without a place, from the first phase of the last turn. `on_branch` gets it.

        Raises:
            PlaceError: there is no such place, or the thread does not continue from there.
        """
        on_branch, on_event = listener(on_branch), listener(on_event)
        if place.at is None and place.at_step is None:
            place = replace(place, at="action")
        await check_continues(self.ledger, place)
        branch = await fork_thread(self.ledger, place)
        if on_branch is not None:
            on_branch(branch)
        await self._record(branch.thread_id)
        return await self._watch(branch.thread_id, partial(self._chain.resume, branch.thread_id), on_event, stop)

    async def _watch(
        self,
        thread_id: str,
        begin: Callable[[], Awaitable[Any]],
        on_event: OnEvent | None,
        stop: asyncio.Event | None,
        *,
        owner: str | None = None,
    ) -> RunReport:
        """Start or continue a thread, wait until it stops, and report. `owner` is a host that already runs it."""
        began, after = asyncio.get_running_loop().time(), (await self.ledger.head(thread_id)).seq
        running = self._run(thread_id, begin, on_event, stop or asyncio.Event(), is_elsewhere=owner is not None)
        try:
            is_stopped = await _unless_full(self.ledger, running)
        except LedgerFullError as exc:
            report = await self._reported(thread_id, began, is_stopped=True, after=after)
            return _stopped_by_disk(report, exc)
        report = await self._reported(thread_id, began, is_stopped=is_stopped, after=after)
        return replace(report, host=owner, by_caller=True) if is_stopped else report

    async def _reported(
        self, thread_id: str, began: float, *, is_stopped: bool = False, after: int | None = None
    ) -> RunReport:
        chain = self._chain
        life = await chain.life(thread_id)
        models = [str(output["model"]) for output in (life.outputs or {}).values() if output.get("model")]
        outcome = await chain.result(thread_id)
        is_paused = is_stopped or (life.status == "paused" and outcome.status != STOPPED)
        report = await _report(self.ledger, outcome, began, models, is_paused=is_paused, after=after)
        failed_at = life.current_phase if outcome.status == "failed" else None
        return replace(report, failed_at=failed_at, is_quoted=chain.config.outputs == "quotes")

    async def _run(
        self,
        thread_id: str,
        begin: Callable[[], Awaitable[Any]],
        on_event: OnEvent | None,
        stop: asyncio.Event,
        *,
        is_elsewhere: bool,
    ) -> bool:
        """Start or continue a thread, and wait until it stops. Return whether `stop` has ended the wait."""
        follower = _Follower(self._chain, thread_id, on_event)
        with self._chain.listening(thread_id, follower.take):
            works = (follower.follow(await self.ledger.horizon()), self._replace_owner(thread_id), stop.wait())
            async with beside(*works) as (following, replacing, stopping):
                try:
                    await self._begun(thread_id, begin)
                    await asyncio.wait((following, replacing, stopping), return_when=asyncio.FIRST_COMPLETED)
                    if not stopping.done() or following.done():
                        (following if following.done() else replacing).result()
                        return False
                    if not is_elsewhere:
                        await self._chain.pause(thread_id)
                except RefusedError:
                    if not stop.is_set():
                        raise
                    return False  # it ended at the moment of the interruption
                return True

    async def _begun(self, thread_id: str, begin: Callable[[], Awaitable[Any]]) -> None:
        """Start or continue a thread; if another host owns it, `begin` is posted to that host."""
        try:
            await begin()
        except ReplyTimeoutError as exc:
            owner = await self._other_owner(thread_id)
            for host in await self.ledger.hosts():
                if host.host.name == owner:
                    raise OwnedError(
                        thread_id, host.host.name, host.until, "it does not answer: end it, or wait for it"
                    ) from exc
            raise

    async def _other_owner(self, thread_id: str) -> str | None:
        """Return the living host of a thread, if that is not this process."""
        summary = await self.ledger.thread(thread_id)
        owner = None if summary is None else await living_owner(self.ledger, summary)
        return None if owner == self._chain.system.host_name else owner

    async def _replace_owner(self, thread_id: str) -> None:
        """Continue a thread here if its host dies or leaves it, until this is cancelled."""
        while True:
            await asyncio.sleep(_OWNER_LOOK)
            summary = await self.ledger.thread(thread_id)
            if summary is None or summary.owner == self._chain.system.host_name or not summary.open_calls:
                continue
            life = await self._chain.life(thread_id)
            if life.status == "processing" and await own_tools(self.ledger, thread_id, life) is None:
                with suppress(OwnedError):  # it lives, or another host was faster
                    await self._chain.system.recover(thread_id)


# ---------------------------------------------------------------- a full disk

# Actors wait for a ledger that cannot be written, which is right for a host: it continues when there is space again. A person
# at a terminal gets an error, and nothing is lost: the thread is open, as after a kill. The stop is not recorded, because
# nothing can be written.

_FULL_LOOK: Final = 0.1
"""Seconds between two checks of the disk."""
_FULL_FOR: Final = 2.0
"""Seconds that a disk is full before the caller gets an error."""


async def _unless_full(ledger: Ledger, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of some work, unless the disk of the ledger becomes full and stays so; then it is cancelled."""
    async with beside(work, _full(ledger)) as (running, watching):
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise watching.result()
        return cast("ResultT", running.result())


async def _full(ledger: Ledger) -> LedgerFullError:
    """Wait until the disk has been full for a while."""
    since: float | None = None
    while True:
        await asyncio.sleep(_FULL_LOOK)
        trouble, now = getattr(ledger, "trouble", None), asyncio.get_running_loop().time()
        since = None if trouble is None else now if since is None else since
        if isinstance(trouble, LedgerFullError) and since is not None and now - since >= _FULL_FOR:
            return trouble


def _stopped_by_disk(report: RunReport, error: LedgerFullError) -> RunReport:
    message = str(error)
    return replace(
        report, status=STOPPED, error_code=_FULL_CODE, error_message=message, was_interrupted=False, by_caller=False
    )


_FULL_CODE: Final = "LEDGER_FULL"

_OWNER_LOOK: Final = 2.0
"""Seconds between two checks of the host of a thread that a caller here waits for."""


class _Follower:
    """Receives the events of a thread until it ends or pauses, whichever host runs it.

    Events of this process arrive at once, with streamed text. Records of other hosts come from the tail of the ledger, which
    also has this process's own records; those are recognized by their seq.
    """

    def __init__(self, chain: PostChain, thread_id: str, on_event: OnEvent | None) -> None:
        self._chain = chain
        self._thread_id = thread_id
        self._on_event = on_event
        self._seen: set[int] = set()
        self._phase: Any = None
        self._stops = asyncio.get_running_loop().create_future()

    def take(self, event: ChainEvent) -> None:
        """Process an event, unless it was processed before."""
        if event.seq in self._seen or self._stops.done():
            return
        if event.seq is not None:
            self._seen.add(event.seq)
        self._phase = event.phase or self._phase
        if self._on_event is not None:
            self._on_event(event)
        if event.is_last or event.is_pause:
            self._stops.set_result(None)

    async def follow(self, after: str) -> None:
        """Return when the thread has ended or is paused."""
        async with beside(self._read(after)) as (reading,):
            await asyncio.wait((reading, self._stops), return_when=asyncio.FIRST_COMPLETED)
            (self._stops if self._stops.done() else reading).result()

    async def _read(self, after: str) -> None:
        tail = cast("AsyncGenerator[Tailed, None]", self._chain.ledger.tail(after, thread_id=self._thread_id))
        async with aclosing(tail) as records:
            async for tailed in records:
                event = event_of(tailed.record.message, tailed.record.seq, self._phase)
                if event is not None:
                    self.take(event)


# ---------------------------------------------------------------- teams

TeamStepKind: TypeAlias = Literal["asked", "answered", "called", "returned", "failed", "said", "words"]

_UNSHOWN: Final = frozenset({"assign_task", "final_result", "invoke_agent"})
"""Calls by which agents ask another, or answer: these are shown when they arrive."""
_LONG: Final = 300
"""Characters of what an agent says."""


@dataclass(frozen=True, slots=True)
class TeamStep:
    """Something that happened in a team."""

    kind: TeamStepKind
    agent: str
    """Who is asked, calls a tool, or speaks; for a result, the tool."""
    text: str = ""
    """The call, the result, the error or the words, on one line.

    For `asked`, the agent who asks, if it was one; for `answered`, the error, if it is one; for `words`, a piece that is not
    recorded.
    """
    id: str = ""
    """Of a call and its result, or of a request and its answer: what pairs them."""
    seq: int | None = None
    """Its place in the ledger."""


@dataclass(frozen=True, slots=True)
class TeamOptions:
    """The options of a team's task; of a thread that exists, those that are not given are as recorded."""

    model: str | None = None
    """The model that overrides those of the file."""
    files: Path | None = None
    """The folder that the team works on."""
    budget: Mapping[str, float] | None = None

    def completed(self, recorded: RunSettings) -> TeamOptions:
        """Return the options with the recorded ones where none were given."""
        folder = self.files or (None if recorded.files is None else Path(recorded.files))
        return TeamOptions(self.model or recorded.model, folder, self.budget or recorded.budget)


@dataclass(frozen=True, slots=True)
class TeamListeners:
    """What hears of a team's task, and what stops it."""

    on_created: Callable[[str], None] | None = None
    """Called with the thread when its settings are recorded: from then on, `resume_team` can continue it."""
    on_step: Callable[[TeamStep], None] | None = None
    stop: asyncio.Event | None = None


async def run_team(
    ledger: Ledger,
    team: Path,
    task: str,
    options: TeamOptions = TeamOptions(),  # noqa: B008 (frozen)
    listeners: TeamListeners = TeamListeners(),  # noqa: B008 (frozen)
    *,
    thread_id: str | None = None,
) -> RunReport:
    """Run a task with the team of a file. The same task in the same thread continues, and does not run again.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
        ParkedError: a person must approve or settle something first; then the same call continues.
    """
    on_created, on_step = listener(listeners.on_created), listener(listeners.on_step)
    thread_id, began = thread_id or current_port().new_id(), asyncio.get_running_loop().time()
    after = (await ledger.head(thread_id)).seq
    settings = RunSettings.of_team(team, task, model=options.model, files=options.files, budget=options.budget)
    budget = settings.agent_budget()
    async with opened_team(ledger, team, model=options.model, files=options.files, budget=budget) as pattern:
        is_new = await ledger.thread(thread_id) is None
        await record_settings(ledger, thread_id, settings, None if is_new else pattern.system)
        if on_created is not None:
            on_created(thread_id)
        if not is_new and (await pattern.status(thread_id)).status == "paused":
            await pattern.resume(thread_id)
        if on_step is not None:
            pattern.system.watch(_TeamWatcher(thread_id, [agent.name for agent in TeamFile.read(team).agents], on_step).take)
        await recover_thread(pattern, thread_id)
        running = asyncio.ensure_future(pattern.run(task, thread_id=thread_id))
        # It is not cancelled in here, which would be permanent: the system closes first, and leaves the task open.
        full: LedgerFullError | None = None

        def say(words: TextDelta) -> None:
            if on_step is not None:
                on_step(TeamStep("words", words.speaker, words.text))

        try:
            async with nullcontext() if on_step is None else agent_text(ledger)(thread_id, say):
                await _unless_full(ledger, _until_done(running, listeners.stop or asyncio.Event()))
        except LedgerFullError as exc:
            full = exc
        is_interrupted = not running.done()
    if is_interrupted:
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # the end of the system may be an error to it; unread, asyncio would print its traceback
        report = await _report(ledger, Outcome(thread_id, "interrupted"), began, (), is_paused=True)
        return replace(report, by_caller=True) if full is None else _stopped_by_disk(report, full)
    return await report_of(ledger, running.result(), began, after=after)


@asynccontextmanager
async def opened_team(
    ledger: Ledger, team: Path, *, model: str | None, files: Path | None = None, budget: AgentBudget | None = None
) -> AsyncGenerator[Pattern]:
    """Open the team of a file, and serve the live text of its agents. Of its Python files, only trusted ones run."""
    # Modules that are first used here are imported in the event loop, and nobody else waits for it.
    settings = Settings(block_limit=None, build=build_of((file.path for file in code_files(team)), model))
    async with AsyncExitStack() as stack:
        pattern = await stack.enter_async_context(
            open_team(
                team,
                ledger,
                model=model,
                files=files,
                settings=settings,
                budget=budget,
                recover=False,
                live=True,
                may_run=trusted_code(team),
            )
        )
        await stack.enter_async_context(offering_text(pattern.system.host_name, agent_text(ledger), ledger))
        yield pattern


async def report_of(ledger: Ledger, outcome: Outcome, began: float, *, after: int) -> RunReport:
    """Return the report of a team's task that has ended; `after` is where the thread ended before it."""
    thread_id = outcome.thread_id
    report = await _report(ledger, outcome, began, await _models(ledger, thread_id), is_paused=False, after=after)
    return replace(report, failed_at=await _failed_at(ledger, thread_id)) if report.status == "failed" else report


async def continue_team(
    ledger: Ledger,
    thread_id: str,
    task: str,
    options: TeamOptions = TeamOptions(),  # noqa: B008 (frozen)
    listeners: TeamListeners = TeamListeners(),  # noqa: B008 (frozen)
) -> RunReport:
    """Give the team of a thread another task in it, with the recorded settings of the thread, unless others are given.

    Raises:
        SettingsError: the team file has changed, or is not trusted.
        ParkedError: a person must approve or settle something first; then the same call continues.
    """
    await find_thread(ledger, thread_id)
    recorded = await settings_of(ledger, thread_id) or RunSettings()
    options = replace(options.completed(recorded), budget=options.budget)
    return await run_team(ledger, team_path(recorded), task, options, listeners, thread_id=thread_id)


async def resume_team(
    ledger: Ledger,
    thread_id: str,
    team: Path | None = None,
    options: TeamOptions = TeamOptions(),  # noqa: B008 (frozen)
    listeners: TeamListeners = TeamListeners(),  # noqa: B008 (frozen)
) -> RunReport:
    """Continue the task of a team where it stopped, with the recorded settings of the thread, unless others are given.

    Raises:
        ServiceError: it is not recorded as a thread of a team, or it has spent its budget and got no new one.
        ThreadEndedError: its task has failed, or it was terminated. A completed one is only reported.
        SettingsError: the team file has changed, or is not trusted.
        ParkedError: a person must approve or settle something first; then the same call continues.
    """
    summary, recorded = await find_thread(ledger, thread_id), await settings_of(ledger, thread_id)
    if recorded is None or recorded.task is None:
        raise ServiceError(f"thread {thread_id!r} has no task of a team", thread_id, code="OTHER_PATTERN")
    if summary.status in ("failed", "terminated", "cancelled") and not summary.open_calls:
        raise ThreadEndedError(f"thread {thread_id} is {summary.status}", thread_id, summary.status)
    await check_budget(ledger, thread_id, options.budget)
    options, file = options.completed(recorded), team or team_path(recorded)
    return await run_team(ledger, file, recorded.task, options, listeners, thread_id=thread_id)


async def recover_thread(pattern: Pattern, thread_id: str) -> None:
    """Continue the calls that a dead process left open in a thread, and in no other thread."""
    summary = await pattern.ledger.thread(thread_id)
    if summary is not None and summary.open_calls:
        with suppress(OwnedError), pattern.recovering():  # a living host has it, and answers
            await pattern.system.recover(thread_id)
            await asyncio.sleep(0)  # lets the handlers of recovered messages start, before `recovering` ends


def agent_text(ledger: Ledger) -> TextSource:
    """Return the live text of the agents of this process, if their models stream."""

    async def pass_on(thread_id: str, on_text: OnText) -> None:
        while True:  # the deltas end with each run of an agent
            async with listen(ledger, thread_id) as deltas:
                async for delta in deltas:
                    match delta.event:
                        case (
                            PartStartEvent(part=SpokenText(content=text))
                            | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                        ) if text:
                            on_text(TextDelta(delta.agent or "", text))
                        case _:
                            pass

    @asynccontextmanager
    async def listening(thread_id: str, on_text: OnText) -> AsyncGenerator[None]:
        async with beside(pass_on(thread_id, on_text)):
            yield

    return listening


async def _until_done(running: asyncio.Future[Any], stop: asyncio.Event) -> None:
    async with beside(stop.wait()) as (stopping,):
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)


async def _failed_at(ledger: Ledger, thread_id: str) -> str | None:
    """Return the number of the last message before the request that failed first; None if none did."""
    failed: set[str] = set()
    place: int | None = None
    async for record in ledger.read(thread_id, reverse=True):
        payload = record.message.payload if record.message.lane == "control" else None
        if isinstance(payload, OptionResultPayload) and payload.is_error:
            failed.add(payload.invocation_id)
        elif isinstance(payload, OptionCallPayload) and payload.invocation_id in failed:
            place = record.seq - 1
    return None if place is None else str(place)


async def _models(ledger: Ledger, thread_id: str) -> list[str]:
    """Return the models that were asked, as the journal has them."""
    payloads = [record.message.payload async for record in ledger.read(thread_id) if record.message.lane == "effect"]
    requests: Any = [call.arguments.get("arguments") for call in payloads if isinstance(call, OptionCallPayload)]
    return [str(request["model"]) for request in requests if request and "model" in request and "prompt" in request]


class _TeamWatcher:
    """Turns the records of a thread into steps; a step that repeats the previous one is left out."""

    def __init__(self, thread_id: str, agents: Iterable[str], on_step: Callable[[TeamStep], None]) -> None:
        self._thread_id = thread_id
        self._agents = frozenset(agents)
        self._on_event = on_step
        self._last: TeamStep | None = None

    def take(self, record: Record) -> None:
        if record.message.thread_id != self._thread_id:
            return
        for step in self._steps(record.message):
            same = replace(step, id="") if step.kind == "said" else step
            if same != self._last:
                self._on_event(replace(step, seq=record.seq))
                self._last = same

    def _steps(self, message: Message) -> Iterator[TeamStep]:
        match message.lane, message.payload:
            case "control", OptionCallPayload() if message.to:
                caller = _agent_at(message.policy)
                asked, by = _agent_at(message.to[0]), caller if caller in self._agents else ""
                yield TeamStep("asked", asked, by, message.payload.invocation_id)
            case "control", OptionResultPayload() as payload:
                error = brief(payload.error_message) if payload.is_error else ""
                yield TeamStep("answered", _agent_at(message.policy), error, payload.invocation_id)
            case "talk", (OptionCallPayload() | OptionResultPayload()) as payload if (
                payload.option_name in self._agents | _UNSHOWN  # other agents are shown when they are asked
            ):
                pass
            case "talk", OptionCallPayload(option_name=tool) as payload:
                yield TeamStep("called", message.policy, call_text(tool, payload.arguments), payload.invocation_id)
            case "talk", OptionResultPayload(option_name=tool, is_error=True) as payload:
                yield TeamStep("failed", tool, brief(payload.error_message), payload.invocation_id)
            case "talk", OptionResultPayload(option_name=tool) as payload:
                yield TeamStep("returned", tool, outcome_text(payload.result), payload.invocation_id)
            case "talk", _ if message.policy in self._agents:
                for part in message.parts:
                    if isinstance(part, TextPart):
                        yield TeamStep("said", message.policy, brief(part.text, _LONG))
            case _:
                pass


def _agent_at(address: str) -> str:
    return address.partition("/")[2] or address
