"""PostChain: the public class of the pattern."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

from typing_extensions import override

from antiphon import protocol
from antiphon._listeners import Listener
from antiphon.durable import current_run, waiting_for
from antiphon.errors import ConfigError, DeliveryError, ParkedError, RefusedError, UnguardedToolError
from antiphon.ledger import Ledger, replay
from antiphon.messages import current_port, thaw
from antiphon.messages._arguments import check_each, check_type
from antiphon.messages._keys import kind_of
from antiphon.patterns.cast import Cast, MessageHistory, Outcome, Pattern, PatternOptions, Task
from antiphon.patterns.cast._handling import RESTS, UNHURRIED, request_key
from antiphon.patterns.cast._pattern import TaskInput, failed, read_answer
from antiphon.patterns.postchain._agents import AgentManagerActor, SupervisorActor
from antiphon.patterns.postchain._cast import OwnAgent
from antiphon.patterns.postchain._chain import Chain, ChainEvent, is_answer
from antiphon.patterns.postchain._config import ChainConfig, check_input, check_metadata, prepared_agent, prompt_text
from antiphon.patterns.postchain._context import CLIENT, DELEGATE, SUPERVISOR, AskChain, thread_address, thread_of_message
from antiphon.patterns.postchain._gateway import ClientActor, ClientMessage, Gateway
from antiphon.patterns.postchain._lifecycle import LIFE, PATTERN, ThreadLife, is_known, result_in
from antiphon.patterns.postchain._phase import OwnPhaseActor, PhaseActor, PhaseLike, ordered_phases
from antiphon.patterns.postchain._phases import (
    ActionPhaseActor,
    ExperiencePhaseActor,
    IntentionPhaseActor,
    ObservationPhaseActor,
    UnderstandingPhaseActor,
    YieldPhaseActor,
)
from antiphon.patterns.postchain._thread import DelegateActor, ThreadActor
from antiphon.protocol import AgentConfig
from antiphon.retrieval import Retriever
from antiphon.runtime import Backoff, Supervision, System
from antiphon.runtime._settings import STOPPED

ReplyT = TypeVar("ReplyT", bound=protocol.Reply)

PHASE_ACTORS: tuple[type[PhaseActor], ...] = (
    ActionPhaseActor,
    ExperiencePhaseActor,
    IntentionPhaseActor,
    ObservationPhaseActor,
    UnderstandingPhaseActor,
    YieldPhaseActor,
)
_RESTING = frozenset(error.code for error in RESTS)
"""The error codes of a thread that is paused until a person decides, or its own program continues it."""
_ENDED = frozenset({"completed", "failed", "terminated"})
_SUPERVISION = Supervision(intensity=100, period=60, backoff=Backoff(first=0.05), heartbeat=5.0)
"""A manager that does not answer for 15 s counts as hung. `ChainConfig.timeout` limits models."""


@dataclass(frozen=True, slots=True)
class ChainResult(Outcome):
    """The result of a turn.

    Its status is completed, failed or terminated; stopped, if something outside failed or a budget is spent: then the error
    names it, and the thread continues when it is resumed; or paused, with the code PARKED, if a person must approve or settle
    something: then `error_message` has the reason and the command to run. The code UNGUARDED_TOOL means that only a program
    with the toolkit of the thread can continue.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The output of each phase."""

    @property
    def is_final(self) -> bool:
        """Whether the thread has ended, or waits for a person."""
        return self.status in {*_ENDED, STOPPED} or self.error_code in _RESTING


class PostChain(Pattern):
    """Threads that go through action, experience, intention, observation, understanding and yield."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        config: ChainConfig | Path | str | None = None,
        *,
        agents: Mapping[protocol.Phase, OwnAgent] | None = None,
        phases: Iterable[PhaseLike] = protocol.PHASES,
        retriever: Retriever | None = None,
        grace: float = 1.0,
        **common: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        `config` is a `ChainConfig`, or the path of a TOML file; the limits are in it. `agents` are your own agents for some
        phases, with their own model, tools, instructions and output type. `phases` are the phases in order: names of the six,
        and your own classes (`OwnPhase`); the last one is `yield`. `retriever` finds the documents, by default those of the
        ledger, as the configuration says. When the block ends, actors have `grace` seconds to finish;
        the next process continues unfinished work. The other options are those of every pattern: see `Pattern` and `Cast`.
        `model` and `patience` override the configuration. `tools` are functions that agents may name. With a `toolkit`, agents
        may also name its tools, and every tool call goes through it.

        Raises:
            ConfigError: the file cannot be read, or is invalid; or it names a tool, a phase, a retriever or an embedder
                that does not exist, or sets something that your own agent has itself.
            AntiphonError, ModuleNotFoundError: with a toolkit, a tool that the configuration names cannot be loaded.
            ValueError: the toolkit has a tool with the name of one of `tools`.
        """
        super().__init__(ledger, **common)
        check_type("config", config, ChainConfig | Path | str | None, "ChainConfig(max_cycles=2)")
        check_type("agents", agents, Mapping | None, '{"yield": agent}')
        phases = check_each("phases", phases, str | type, "'yield'")
        if config is None:
            chain_config = ChainConfig()
        else:
            chain_config = config if isinstance(config, ChainConfig) else ChainConfig.read(config)
        model = self.cast_options.get("model")
        name = model if isinstance(model, str) or model is None else model.model_id
        self.config = chain_config if name is None else chain_config.model_copy(update={"model": name})
        try:
            self._chain = Chain(self.ledger, self.config, agents, retriever, **self.cast_options)
            self._chain.order, self._own_phases = ordered_phases(phases)
            for name, own_phase in self._own_phases.items():
                agent = AgentConfig(tools=own_phase.tools, system_prompt=prompt_text(name, own_phase.prompt))
                self._chain.cast.add_phase(name, agent, own_phase.output_type)
        except ConfigError as exc:
            raise (ConfigError(f"{config}: {exc}") if isinstance(config, Path | str) else exc) from None
        self._grace = grace
        self._listeners: list[Callable[[str, ClientMessage], None]] = []

    @override
    def casts(self) -> Iterable[Cast]:
        return (self._chain.cast,)

    @override
    def host(self, system: System) -> None:
        """Start all actors in a system on this chain's ledger."""
        chain = self._chain
        chain.gates = system.gates
        system.add_life(chain.look, thread_address)
        system.watch(chain.seen)
        system.on_evicted(chain.talks.forget)
        system.spawn(SUPERVISOR, partial(SupervisorActor, _SUPERVISION, chain.cast.patience))
        system.spawn(DELEGATE, partial(DelegateActor, chain))
        system.register("client", partial(ClientActor, self._notify), grace=self._grace)
        system.register("thread", partial(ThreadActor, chain), grace=self._grace)
        system.register("agent", partial(AgentManagerActor, chain), supervisor=SUPERVISOR, grace=self._grace)
        for actor in PHASE_ACTORS:
            system.register(actor.phase, partial(actor, chain), grace=self._grace)
        for name, own_phase in self._own_phases.items():
            system.register(name, partial(OwnPhaseActor, chain, own_phase), grace=self._grace)

    # ------------------------------------------------------------ one turn

    @override
    async def run(
        self,
        task: Task,
        *,
        thread_id: str | None = None,
        message_history: MessageHistory = (),
        user_id: str = "user",
    ) -> ChainResult:
        """Answer a question: in a new thread, or as the next turn of the given thread.

        An imported thread continues: the phases read its history. A text starts a new turn each time. The same message or
        conversation in the same thread does not run again.

        Raises:
            RefusedError: the thread cannot take a turn now; the code has the reason.
        """
        task_input = TaskInput.of(task, message_history)
        check_input(task_input.text, self.config.input_limit)
        if thread_id is None and task_input == TaskInput(task_input.text):
            thread_id = await self.create(task_input.text, user_id=user_id)
            return await self._until_final(thread_id, self._begin(thread_id))
        thread_id = thread_id or current_port().new_id()
        await self._take_turn(thread_id, task_input, user_id)
        return await self.wait(thread_id)

    async def _take_turn(self, thread_id: str, task_input: TaskInput, user_id: str) -> None:
        """Start a turn in the given thread; create the chain's state if the thread has none."""
        is_text = task_input == TaskInput(task_input.text)
        message_id = current_port().new_id() if is_text else request_key("turn", thread_id, *task_input.identity)
        life = await self.life(thread_id)
        is_repeated = not is_text and bool(await self.ledger.find(invocation_id=message_id, thread_id=thread_id))
        if life.status == "none":  # also if the request to create it is not answered yet: the same is sent again
            await self._create_in(thread_id, task_input, message_id, user_id)
            await self._begin(thread_id, of=None if is_text else task_input)
        elif is_repeated:
            if life.status == "created":
                await self._begin(thread_id, of=task_input)
        else:
            life.check(protocol.StartThread.message_type, thread_id)
            outside = await self._hand_over(thread_id, task_input, message_id)
            request = protocol.StartThread(thread_id=thread_id, input=task_input.text).with_enclosure(outside)
            await self.system.ask(thread_address(thread_id), request, thread_id=thread_id, sender=CLIENT, id=message_id)

    async def _create_in(self, thread_id: str, task_input: TaskInput, message_id: str, user_id: str = "user") -> None:
        """Create the state of a chain in a thread without a pattern: a new one, or an imported one."""
        summary = await self.ledger.thread(thread_id)
        if summary is not None and summary.pattern not in (None, PATTERN):
            reason = f"thread {thread_id!r} is one of the pattern {summary.pattern!r}: take another thread"
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE)
        outside = await self._hand_over(thread_id, task_input, message_id)
        if summary is not None:
            outside.setdefault("outside", {"before": message_id})
        request = protocol.CreateThread(user_id=user_id, initial_input=task_input.text)
        request = request.with_enclosure({**outside, **self._phases})
        await self.system.ask(thread_address(thread_id), request, thread_id=thread_id, sender=CLIENT, id=message_id)

    async def _hand_over(self, thread_id: str, task_input: TaskInput, message_id: str) -> dict[str, Any]:
        """Write the history from outside to the thread, and return its place for a request."""
        if task_input == TaskInput(task_input.text):
            return {}
        request_id = await task_input.hand_over(self.system, thread_id, message_id)
        place = {"before": message_id}
        return {"outside": place if request_id is None else {**place, "request": request_id}}

    @property
    def _phases(self) -> dict[str, Any]:
        """The phases that a new thread records: none, if they are the six."""
        order = self._chain.order
        return {} if order == protocol.PHASES else {"phases": list(order)}

    @override
    async def run_inside(self, task: str, thread_id: str) -> ChainResult:
        if self._chain.waits_for(current_run()):
            reason = "the phases are at work in this thread: give their agents the tool of another pattern"
            return ChainResult(thread_id, "failed", error_code=protocol.ErrorCode.INVALID_STATE, error_message=reason)
        message_id, request = request_key("chain", thread_id, task), AskChain(thread_id=thread_id, input=task)
        try:
            answered = await self.system.ask(DELEGATE, request, within=UNHURRIED, thread_id=thread_id, id=message_id)
        except DeliveryError as exc:
            outcome = failed(thread_id, exc)
            return ChainResult(thread_id, outcome.status, error_code=outcome.error_code, error_message=outcome.error_message)
        return _result_from(thaw(answered.result))

    async def _begin(self, thread_id: str, *, of: TaskInput | None = None) -> None:
        """Start a new thread, which has no earlier result. `of` is a conversation that another caller may have given too.

        Raises:
            RefusedError: another caller has started the thread, and not with this conversation.
        """
        try:
            await self._say(thread_id, protocol.StartThread(thread_id=thread_id))
        except RefusedError:
            life = await self.life(thread_id)
            if of is None or life.turn != 1 or life.input != of.text:
                raise

    async def wait(self, thread_id: str) -> ChainResult:
        """Wait until a thread has ended, is terminated, or waits for a person; return the result."""
        await self._check_known(thread_id)
        return await self._until_final(thread_id, self.result(thread_id))

    async def _until_final(self, thread_id: str, first: Awaitable[ChainResult | None]) -> ChainResult:
        """Listen to a thread, await `first`, and return the result once it is final."""
        changed, ended = asyncio.Event(), list[ChainEvent]()

        def on_event(event: ChainEvent) -> None:
            if event.kind == "ended":
                ended.append(event)
            if event.is_last or event.is_pause:
                changed.set()

        with self._chain.events.listening(thread_id, on_event, with_text=False):
            result = await first
            while result is None or not result.is_final:
                await changed.wait()
                changed.clear()
                result = _result_from(dict(ended[-1].data)) if ended else await self.result(thread_id)
            messages = await read_answer(self.ledger, thread_id, is_answer)
        idle = self._chain.at_work.get(thread_id)
        if idle is not None and result.status in _ENDED:
            await idle.wait()  # the caller may close the chain next, and no work may be open then
        return replace(result, messages=messages)

    async def result(self, thread_id: str) -> ChainResult:
        """Return the result of the last turn; before it has ended, the state of the thread."""
        life = await self.life(thread_id)
        if life.status not in ("completed", "failed"):
            result = ChainResult(thread_id, life.status, outputs=life.outputs or {})
            return await self._with_reason(result, life) if life.status == "paused" else result
        async for record in self.ledger.read(thread_id, reverse=True):
            is_from_actor = record.message.lane == "control" and kind_of(record.message.policy) == "thread"
            if is_from_actor and (data := result_in(record.message)) is not None:
                # A branch has the result of its origin, with the origin's id.
                return replace(_result_from(data), thread_id=thread_id)
        return ChainResult(thread_id, life.status)

    def events(self, thread_id: str) -> AsyncIterator[ChainEvent]:
        """Yield the events of a thread from now on, with streamed text, until it ends.

        A reader that is hundreds of events behind loses streamed text, but no recorded event.
        """
        return self._chain.events.follow(thread_id)

    def listening(self, thread_id: str, on_event: Callable[[ChainEvent], None]) -> AbstractContextManager[None]:
        """Call a function with each event of a thread, with streamed text, for the duration of the block."""
        return self._chain.events.listening(thread_id, Listener(on_event))

    # ------------------------------------------------------------ the life of a thread

    async def create(
        self,
        text: str,
        *,
        user_id: str = "user",
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
        thread_id: str | None = None,
    ) -> str:
        """Create a thread for a question, and return its id; `thread_id` chooses it. The same `id` gives the same thread.

        Raises:
            RefusedError: the question or its metadata is TOO_LARGE.
        """
        check_input(text, self.config.input_limit)
        check_metadata(user_id, metadata)
        message_id = id or current_port().new_id()
        thread_id = thread_id or thread_of_message(message_id)
        request = protocol.CreateThread(user_id=user_id, initial_input=text, metadata=dict(metadata or {}))
        request = request.with_enclosure(self._phases)
        await self.system.ask(thread_address(thread_id), request, thread_id=thread_id, sender=CLIENT, id=message_id)
        return thread_id

    async def start(self, thread_id: str, text: str | None = None, *, user_id: str = "user") -> protocol.ThreadStarted:
        """Start the phases; `text` is the input of a later turn, or of an imported thread, which then belongs to `user_id`."""
        check_input(text, self.config.input_limit)
        summary = await self.ledger.thread(thread_id) if text else None
        if text and summary is not None and summary.pattern is None and not await is_known(self.ledger, thread_id):
            await self._create_in(thread_id, TaskInput(text), current_port().new_id(), user_id)  # it was imported
        request = protocol.StartThread(thread_id=thread_id)
        if text:
            request = protocol.StartThread(thread_id=thread_id, input=text)
        return await self._ask(thread_id, request)

    @override
    async def pause(self, thread_id: str) -> protocol.ThreadPaused:
        """Pause a thread: no new model or tool call starts until it is resumed. Running calls end, and are recorded."""
        return await self._ask(thread_id, protocol.PauseThread(thread_id=thread_id))

    @override
    async def resume(self, thread_id: str) -> protocol.ThreadResumed:
        """Resume a thread, even one that another process left open.

        Raises:
            RefusedError: it cannot be resumed.
            UnguardedToolError: a toolkit that this chain does not have guards its tools.
        """
        if (reason := await self._lacks(thread_id, await self.life(thread_id))) is not None:
            raise UnguardedToolError(reason)
        return await self._ask(thread_id, protocol.ResumeThread(thread_id=thread_id))

    @override
    async def terminate(self, thread_id: str, reason: str = "user_request") -> protocol.ThreadTerminated:
        """Terminate a thread: running calls are cancelled, no new ones start."""
        return await self._ask(thread_id, protocol.TerminateThread(thread_id=thread_id, reason=reason))

    @override
    async def status(self, thread_id: str) -> protocol.ThreadStatus:
        """Return the status of a thread."""
        return await self._ask(thread_id, protocol.GetThreadStatus(thread_id=thread_id))

    async def life(self, thread_id: str) -> ThreadLife:
        """Return the state of a thread from the ledger; nothing is written."""
        return await replay(self.ledger, thread_id, LIFE.fold())

    async def send(self, data: Mapping[str, Any] | str | bytes, *, within: float | None = None) -> dict[str, Any]:
        """Send any message of the protocol, as JSON, and return its response, as JSON. Errors are responses."""
        own_phases = () if self._chain.order == protocol.PHASES else self._chain.order
        return await Gateway(self.system, self.ledger, self.config.input_limit, own_phases).send(data, within=within)

    @property
    def at_work(self) -> int:
        """The number of threads that run here now."""
        return len(self._chain.at_work)

    def on_message(self, function: Callable[[str, ClientMessage], None]) -> None:
        """Call a function with the client and each message to it: results, failures of agents, and streamed text."""
        self._listeners.append(Listener(function))

    async def _ask(self, thread_id: str, request: protocol.Request[ReplyT]) -> ReplyT:
        await self._check_known(thread_id)
        return await self._say(thread_id, request)

    async def _say(self, thread_id: str, request: protocol.Request[ReplyT]) -> ReplyT:
        return await self.system.ask(thread_address(thread_id), request, thread_id=thread_id, sender=CLIENT)

    async def _with_reason(self, result: ChainResult, life: ThreadLife) -> ChainResult:
        """Return the result of a paused thread with the reason why it has stopped, or for what it waits."""
        waiting = await waiting_for(self.ledger, result.thread_id)
        if waiting is not None and waiting.stopped_by is not None:
            return replace(result, status=STOPPED, error_message=waiting.reason, error_code=waiting.stopped_by)
        if waiting is not None:
            return replace(result, error_message=waiting.text, error_code=ParkedError.code)
        reason = await self._lacks(result.thread_id, life)
        if reason is None:
            return result
        return replace(result, error_message=reason, error_code=UnguardedToolError.code)

    async def _lacks(self, thread_id: str, life: ThreadLife) -> str | None:
        """Return the reason why only another program can continue a thread; None: this one can."""
        phase = cast("protocol.Phase | None", life.current_phase)
        reason = self._chain.lacks_phase(life)
        agent = await prepared_agent(self.ledger, thread_id, phase)
        if reason is None and (agent is None or phase is None):
            return None
        if reason is None and agent is not None and phase is not None:
            reason = self._chain.cast.lacks(phase, agent) or await self._chain.cast.tools.unguarded(thread_id, phase, agent)
        return None if reason is None else f"{reason}: have it go on there, by `await chain.resume({thread_id!r})`"

    async def _check_known(self, thread_id: str) -> None:
        if not await is_known(self.ledger, thread_id):
            raise RefusedError(f"there is no thread {thread_id!r}: create it first", protocol.ErrorCode.THREAD_NOT_FOUND)

    def _notify(self, client: str, message: ClientMessage) -> None:
        for notify in tuple(self._listeners):
            notify(client, message)


def _result_from(data: dict[str, Any]) -> ChainResult:
    return ChainResult(
        thread_id=data["thread_id"],
        status=data["status"],
        response=data.get("response"),
        citations=tuple(data.get("citations", ())),
        outputs=data["outputs"],
        error_message=data.get("error_message"),
        error_code=data.get("error_code"),
    )
