"""PostChain: what a user has of the pattern. It opens a system with all the actors, and is an `async with` block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from typing_extensions import override

from antiphon.errors import ParkedError, RefusedError, UnguardedToolError
from antiphon.ledger import Ledger
from antiphon.messages import DataPart, JsonObject, current_port, thaw
from antiphon.patterns.cast import RESTS, MessageHistory, Outcome, Pattern, PatternOptions, Task, TaskInput
from antiphon.patterns.postchain._agents import AgentManagerActor, SupervisorActor
from antiphon.patterns.postchain._chain import Chain
from antiphon.patterns.postchain._config import ChainConfig, check_about, check_input, prepared_agent
from antiphon.patterns.postchain._events import ChainEvent
from antiphon.patterns.postchain._gateway import ClientActor, DoorActor, Edge, answer_of_owner, listen
from antiphon.patterns.postchain._lifecycle import LIFE, ThreadLife, is_known
from antiphon.patterns.postchain._pausing import waiting_for
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._phases import (
    ActionPhaseActor,
    ExperiencePhaseActor,
    IntentionPhaseActor,
    ObservationPhaseActor,
    UnderstandingPhaseActor,
    YieldPhaseActor,
)
from antiphon.patterns.postchain._protocol import CLIENT, DOOR, SUPERVISOR, thread_address, thread_of_message
from antiphon.patterns.postchain._thread import ThreadActor
from antiphon.protocol import (
    AgentStreamChunk,
    CreateThread,
    ErrorCode,
    GetThreadStatus,
    PauseThread,
    Reply,
    Request,
    ResumeThread,
    StartThread,
    TerminateThread,
    ThreadPaused,
    ThreadResult,
    ThreadResumed,
    ThreadStarted,
    ThreadStatus,
    ThreadTerminated,
)
from antiphon.runtime import Backoff, Supervision, System

if TYPE_CHECKING:
    from pydantic_ai import Tool

ReplyT = TypeVar("ReplyT", bound=Reply)

PHASE_ACTORS: tuple[type[PhaseActor], ...] = (
    ActionPhaseActor,
    ExperiencePhaseActor,
    IntentionPhaseActor,
    ObservationPhaseActor,
    UnderstandingPhaseActor,
    YieldPhaseActor,
)
_RESTING = frozenset(error.code for error in RESTS)
"""The codes of a thread that is paused until a person has said something, or its own program goes on with it."""
_SUPERVISION = Supervision(intensity=100, period=60, backoff=Backoff(first=0.05), heartbeat=5.0)
"""A manager that does not answer for 15 s hangs. A model that does not is another matter: `ChainConfig.timeout` ends that."""


@dataclass(frozen=True, slots=True)
class ChainResult(Outcome):
    """What came of a turn of a thread.

    Its status is completed, failed or terminated; or paused, with the code PARKED, where a person must approve or settle
    something: then `error_message` says what, and what to type. The code UNGUARDED_TOOL says that only a program with the
    toolkit of the thread can go on.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By phase, what came of it."""

    @property
    def is_final(self) -> bool:
        """Whether nothing goes on by itself: the thread is over, or waits for a person."""
        return self.status in {"completed", "failed", "terminated"} or self.error_code in _RESTING


class PostChain(Pattern):
    """Threads that go through action, experience, intention, observation, understanding and yield."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        config: ChainConfig | Path | str | None = None,
        listen: bool = False,
        grace: float = 1.0,
        **options: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        Without a ledger it has one in memory. `config` is a `ChainConfig`, or the path of a TOML file. With `listen`, it
        answers what other processes post to threads that run here. At the end, actors have `grace` seconds for what they are
        doing; the next process goes on with it. The other options are those of every pattern: see `Pattern` and `Cast`.
        `model` and `patience` count before what `config` says. `tools` are functions that agents may be given by name. With a
        `toolkit`, its tools too, and every call of any tool goes through it.

        Raises:
            ChainConfigError: the file cannot be read, or is wrong.
            AntiphonError, ModuleNotFoundError: with a toolkit, a tool that the configuration names cannot be had.
            ValueError: the toolkit has a tool of the name of one of `tools`.
        """
        super().__init__(ledger, **options)
        chosen = config if isinstance(config, ChainConfig) else ChainConfig() if config is None else ChainConfig.read(config)
        model = self.cast_options.get("model")
        name = model if isinstance(model, str) or model is None else model.model_id
        self.config = chosen if name is None else chosen.model_copy(update={"model": name})
        self._chain = Chain(self.ledger, self.config, **self.cast_options)
        self._grace, self._listen = grace, listen
        self._heard: list[Callable[[str, ThreadResult | AgentStreamChunk], None]] = []

    @override
    async def __aenter__(self) -> Self:
        horizon = await self.ledger.horizon() if self._listen else ""
        await super().__aenter__()
        if self._listen:
            listening = asyncio.create_task(listen(self.system, self._chain, horizon))
            self._stack.push_async_callback(_cancelled, listening)
        return self

    @override
    def as_tool(self, name: str, about: str) -> Tool[Any]:
        raise TypeError("the threads of a chain are its own: give its agents the tool of another pattern")

    @override
    def host(self, system: System) -> None:
        """Begin all actors in a system, which is one of this chain's ledger."""
        chain = self._chain
        self._edge = Edge(system, self.ledger, self.config.input_limit)
        system.admit(chain.gates.passing)
        system.watch(chain.seen)
        system.spawn(SUPERVISOR, partial(SupervisorActor, _SUPERVISION))
        system.spawn(DOOR, DoorActor)
        system.register("client", partial(ClientActor, self._hear), grace=self._grace)
        system.register("thread", partial(ThreadActor, chain), grace=self._grace)
        system.register("agent", partial(AgentManagerActor, chain), supervisor=SUPERVISOR, grace=self._grace)
        for actor in PHASE_ACTORS:
            system.register(actor.phase, partial(actor, chain), grace=self._grace)

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
        """Have a question answered: in a new thread, or as the next turn of one.

        Raises:
            RefusedError: the thread cannot take a turn now; the code says why.
            ValueError: the task is more than a text.
        """
        given = TaskInput.of(task, message_history)
        if given.history or given.message is not None:
            raise ValueError("a chain takes a text")
        text = given.text
        if thread_id is None:
            thread_id = await self.create(text, user_id=user_id)
            return await self._until_final(thread_id, self._begin(thread_id))
        await self.start(thread_id, text)
        return await self.wait(thread_id)

    async def _begin(self, thread_id: str) -> None:
        """Start a thread that was created just now: it is known, and nothing of it has ended before."""
        await self._say(thread_id, StartThread(thread_id=thread_id))

    async def wait(self, thread_id: str) -> ChainResult:
        """Wait until a thread has ended, is terminated, or rests until a person settles something; return what came of it.

        Raises:
            RefusedError: there is no such thread.
        """
        await self._check_known(thread_id)
        return await self._until_final(thread_id, self.result(thread_id))

    async def _until_final(self, thread_id: str, first: Awaitable[ChainResult | None]) -> ChainResult:
        """Listen to a thread, do the first thing, and return what came of the thread once that is final."""
        stirred, ended = asyncio.Event(), list[ChainEvent]()

        def hear(event: ChainEvent) -> None:
            if event.kind == "ended":
                ended.append(event)
            if event.is_last or event.is_pause:
                stirred.set()

        with self._chain.events.listening(thread_id, hear, to_words=False):
            result = await first
            while result is None or not result.is_final:
                await stirred.wait()
                stirred.clear()
                result = _result_from(dict(ended[-1].data)) if ended else await self.result(thread_id)
        idle = self._chain.at_work.get(thread_id)
        if idle is not None and result.error_code not in _RESTING:
            await idle.wait()  # so that whoever leaves now leaves nothing open
        return result

    async def result(self, thread_id: str) -> ChainResult:
        """Return what came of the last turn of a thread that has ended; before that, where it is."""
        life = await self.life(thread_id)
        if life.status not in ("completed", "failed"):
            parked = await self._parked(thread_id, life) if life.status == "paused" else {}
            return ChainResult(thread_id, life.status, outputs=life.outputs or {}, **parked)
        async for record in self.ledger.read(thread_id, reverse=True):
            match record.message.parts if record.message.lane == "control" else ():
                case (DataPart(data=JsonObject() as said),) if said.get("type") == ThreadResult.message_type:
                    return _result_from(thaw(said["data"]))
                case _:
                    pass
        return ChainResult(thread_id, life.status)

    def events(self, thread_id: str) -> AsyncIterator[ChainEvent]:
        """Give out what happens in a thread from now on, words included, until it ends."""
        return self._chain.events.follow(thread_id)

    # ------------------------------------------------------------ the life of a thread

    async def create(
        self, text: str, *, user_id: str = "user", metadata: Mapping[str, Any] | None = None, id: str | None = None
    ) -> str:
        """Make a thread for a question, and return its id. The same `id` again is the same thread.

        Raises:
            RefusedError: the question, or what is said about it, is TOO_LARGE.
        """
        check_input(text, self.config.input_limit)
        check_about(user_id, metadata)
        message_id = id or current_port().new_id()
        thread_id = thread_of_message(message_id)
        request = CreateThread(user_id=user_id, initial_input=text, metadata=dict(metadata or {}))
        await self.system.ask(thread_address(thread_id), request, thread_id=thread_id, sender=CLIENT, id=message_id)
        return thread_id

    async def start(self, thread_id: str, text: str | None = None) -> ThreadStarted:
        """Begin with the phases; `text` is what is asked in a later turn."""
        check_input(text, self.config.input_limit)
        more = {"input": text} if text else {}
        return await self._ask(thread_id, StartThread(thread_id=thread_id, **more))

    async def pause(self, thread_id: str) -> ThreadPaused:
        """Let no model call and no tool of a thread begin until it is resumed. What runs ends, and is recorded."""
        return await self._ask(thread_id, PauseThread(thread_id=thread_id))

    async def resume(self, thread_id: str) -> ThreadResumed:
        """Let a thread go on where it was, also one that another process left behind.

        Raises:
            RefusedError: it cannot.
            UnguardedToolError: not here: its tools are guarded by a toolkit that this chain does not have.
        """
        if (reason := await self._lacks(thread_id, await self.life(thread_id))) is not None:
            raise UnguardedToolError(reason)
        return await self._ask(thread_id, ResumeThread(thread_id=thread_id))

    async def terminate(self, thread_id: str, reason: str = "user_request") -> ThreadTerminated:
        """End a thread for good: what runs is cancelled, nothing begins any more."""
        return await self._ask(thread_id, TerminateThread(thread_id=thread_id, reason=reason))

    async def status(self, thread_id: str) -> ThreadStatus:
        """Return where a thread is."""
        return await self._ask(thread_id, GetThreadStatus(thread_id=thread_id))

    async def life(self, thread_id: str) -> ThreadLife:
        """Return what a thread amounts to, as the ledger has it now; nothing is written."""
        return await self.ledger.replay(thread_id, LIFE.fold())

    async def send(self, data: Mapping[str, Any] | str | bytes, *, within: float | None = None) -> dict[str, Any]:
        """Send any message of the protocol, as JSON, and return its response, as JSON. Errors are responses."""
        return await self._edge.send(data, within=within)

    def hear(self, listener: Callable[[str, ThreadResult | AgentStreamChunk], None]) -> None:
        """Have a function called with what clients are told, and which client it is: results, and words that are streamed."""
        self._heard.append(listener)

    async def _ask(self, thread_id: str, request: Request[ReplyT]) -> ReplyT:
        await self._check_known(thread_id)
        return await self._say(thread_id, request)

    async def _say(self, thread_id: str, request: Request[ReplyT]) -> ReplyT:
        return await self.system.ask(thread_address(thread_id), request, thread_id=thread_id, sender=CLIENT)

    async def _parked(self, thread_id: str, life: ThreadLife) -> dict[str, Any]:
        """Return why a thread cannot go on before a person has said something, or in another program; empty if it can."""
        if (waiting := await waiting_for(self.ledger, thread_id)) is not None:
            return {"error_message": waiting.text, "error_code": ParkedError.code}
        why = await self._lacks(thread_id, life)
        return {} if why is None else {"error_message": why, "error_code": UnguardedToolError.code}

    async def _lacks(self, thread_id: str, life: ThreadLife) -> str | None:
        """Return why a thread cannot go on here, but in another program; None if it can."""
        phase = life.current_phase
        agent = await prepared_agent(self.ledger, thread_id, phase)
        if agent is None or phase is None:
            return None
        reason = self._chain.cast.tools.lacks(agent) or await self._chain.cast.tools.unguarded(thread_id, phase, agent)
        return None if reason is None else f"{reason}: have it go on there, by `await chain.resume({thread_id!r})`"

    async def _check_known(self, thread_id: str) -> None:
        if not await is_known(self.ledger, thread_id):
            raise RefusedError(f"there is no thread {thread_id!r}: create it first", ErrorCode.THREAD_NOT_FOUND)

    def _hear(self, client: str, said: ThreadResult | AgentStreamChunk) -> None:
        for listener in tuple(self._heard):
            listener(client, said)


async def ask_owner(
    ledger: Ledger, message: Mapping[str, Any], *, patience: float = 2.0, or_here: bool = True
) -> dict[str, Any]:
    """Have a message about a thread answered by the process that runs it; if none does within `patience`, by this one.

    The process must listen (`PostChain(ledger, listen=True)`); one that does not, and lives, loses the thread. Without
    `or_here`, a message that nobody answers is a TIMEOUT; it stays posted, and whoever takes the thread up next obeys it: so a
    thread whose tools only its own program has is resumed.

    Raises:
        LedgerError: the ledger cannot be used.
    """
    wire, response = await answer_of_owner(ledger, dict(message), patience)
    if response is not None:
        return response.model_dump(mode="json", exclude_none=True)
    if not or_here:
        reason = f"no process that runs the thread has answered within {patience:g} s; the next one will"
        return wire.reply_error(reason, ErrorCode.TIMEOUT).model_dump(mode="json", exclude_none=True)
    async with PostChain(ledger, recover=False) as chain:
        return await chain.send(wire.model_dump(mode="json", exclude_none=True))


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
