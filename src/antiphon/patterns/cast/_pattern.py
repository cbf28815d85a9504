"""Pattern: the base class of all patterns. It opens a system with its actors on a ledger, and runs a task.

A pattern is opened alone or with other patterns (`together`). Its task is a text, a message, or a conversation that began
elsewhere and continues here.

A conversation is split into the *request*, which is its last message if a user wrote it, and the *history* before it.
`TaskInput.hand_over` writes both to the thread before any agent is asked. The ledger stores them like all messages from
outside: as talk that triggers nothing. A call that is open in them gets an error result and is never executed.

An agent then reads the thread's history: the talk that no call of the thread has produced. Messages that were imported into
a thread are history too, so a text is enough to continue an imported thread. Prompts quote the history
(`ThreadHistory.quoted`): it stays talk of its authors, and is not stored again for the agents that read it.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, Unpack, cast

from pydantic_ai import ModelRetry, Tool
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, UserContent, UserPromptPart
from pydantic_core import to_jsonable_python

from antiphon import protocol
from antiphon.agents._deeds import note_deed
from antiphon.agents.durability._quotes import Quotation
from antiphon.agents.toolkit._taint import untrusted_source
from antiphon.dialects import decode, encode
from antiphon.durable import current_run, waiting_for
from antiphon.errors import DeliveryError, HistoryMismatchError, ParkedError, SetupError, StoppedError
from antiphon.ledger import Ledger, Record, is_foreign
from antiphon.ledger._unopened import check_opened
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import (
    Conversation,
    DataPart,
    Json,
    MediaPart,
    Message,
    OptionCallPayload,
    PartsPayload,
    TextPart,
    dumps,
)
from antiphon.messages._arguments import check_each, check_type
from antiphon.messages._keys import parent_of
from antiphon.patterns.cast._cast import Cast, CastOptions, checked_options
from antiphon.runtime import Settings, System

if TYPE_CHECKING:
    from antiphon.runtime import Observer


# ---------------------------------------------------------------- tasks and histories

Task: TypeAlias = str | Message | Conversation
"""The input of `run`."""
MessageHistory: TypeAlias = Iterable[Message] | Sequence[ModelMessage]
"""Earlier messages: of the core, or of Pydantic AI."""

GO_ON: Final = "Go on."
"""The request if a conversation does not end with one."""
ATTACHED: Final = "See the attached message."
"""The text of a request that has none."""
_DIALECT: Final = "pydantic-ai"
_SHARED: Final = "shared"
"""The namespace of the user's own metadata, which all dialects read."""
_SHOWN: Final = (TextPart, DataPart, MediaPart)


# ---------------------------------------------------------------- the request


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A task, split into the request and the history before it."""

    text: str
    """The text of the request."""
    message: Message | None = None
    """The request, if it is more than text."""
    history: tuple[Message, ...] = ()

    @classmethod
    def of(cls, task: Task, message_history: MessageHistory = ()) -> TaskInput:
        """Read a task.

        Raises:
            ValueError: the conversation is empty.
        """
        check_type("a task", task, str | Message | Conversation | Iterable, "'What is new?'")
        before = as_messages(message_history)
        if isinstance(task, str):
            return cls(task, None, before)
        messages = (task,) if isinstance(task, Message) else check_each("a task", task, Message, "Message(…)")
        conversation = (*before, *messages)
        if not conversation:
            raise ValueError("the conversation is empty: give it at least one message")
        *earlier, last = conversation
        is_shown = any(isinstance(part, _SHOWN) for part in last.parts)
        if last.kind != "parts" or not is_shown or (last.role_hint_for_llm or last.policy) != "user":
            return cls(GO_ON, None, conversation)
        text = "\n".join(part.text for part in last.parts if isinstance(part, TextPart))
        return cls(text or ATTACHED, None if _is_plain(last) else last, tuple(earlier))

    @property
    def identity(self) -> tuple[str, ...]:
        """The identity of the task; it does not depend on the ids of the messages."""
        unnamed = {"id": "-", "thread_id": None, "created_at": None}
        digests = (sha256(dumps(message.model_copy(update=unnamed))).hexdigest() for message in self._messages)
        return (self.text, *digests)

    @property
    def _messages(self) -> tuple[Message, ...]:
        return self.history if self.message is None else (*self.history, self.message)

    async def hand_over(self, system: System, thread_id: str, request_id: str) -> str | None:
        """Write the history, and a request that is more than text, to the thread; return the id of the request there.

        It keeps its own id. If the thread already has the request `request_id`, nothing is written: the task continues, with
        the message that it began with.
        """
        rows = [message.model_copy(update={"thread_id": thread_id}) for message in self._messages]
        message_id = None if self.message is None else self.message.id
        if not rows:
            return message_id
        if begun := await system.ledger.find(invocation_id=request_id, thread_id=thread_id):
            return _named_message(begun[0].message) or message_id
        await system.append_history(thread_id, rows)
        return message_id


def _named_message(request: Message) -> str | None:
    """Return the id of the message that a recorded request names."""
    payload = request.payload
    arguments: Any = payload.arguments if isinstance(payload, OptionCallPayload) else None
    match arguments:
        case {"message_id": str(message_id)} | {"outside": {"request": str(message_id)}}:
            return message_id
        case _:
            return None


def as_messages(history: MessageHistory) -> tuple[Message, ...]:
    """Return a history as messages."""
    check_type("message_history", history, Iterable, "the messages of an earlier run")
    messages = list(cast("Iterable[Message | ModelMessage]", history))
    if all(isinstance(message, Message) for message in messages):
        return tuple(cast("list[Message]", messages))
    units = ModelMessagesTypeAdapter.dump_python(cast("list[ModelMessage]", messages), mode="json")
    return tuple(decode(units, _DIALECT))


def _is_plain(message: Message) -> bool:
    """Whether a request is only a user's text, without metadata of the user: it is the same task as the text itself."""
    is_text = len(message.parts) == 1 and isinstance(message.parts[0], TextPart)
    is_bare = _SHARED not in message.metadata and untrusted_source(message) is None
    return is_text and message.policy == "user" and is_bare


# ---------------------------------------------------------------- the history in the thread


class ThreadHistory:
    """The talk of a thread that no call of the thread has produced."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._calls: set[str] = set()

    def __iter__(self) -> Iterator[Message]:
        return (record.message for record in self._records)

    def __len__(self) -> int:
        return len(self._records)

    def copy(self) -> ThreadHistory:
        """Return a copy, to continue from here."""
        history = ThreadHistory()
        history._records, history._calls = [*self._records], {*self._calls}
        return history

    def without(self, message_id: str) -> ThreadHistory:
        """Return the history without one message."""
        history = self.copy()
        history._records = [record for record in self._records if record.message.id != message_id]
        return history

    @property
    def untrusted(self) -> str | None:
        """The source of the first untrusted content in it; None: there is none."""
        return next(filter(None, map(untrusted_source, self)), None)

    def quoted(self, agent: str) -> Quotation:
        """Return it as a quotation in the prompts of an agent."""
        seqs = [record.seq for record in self._records]
        return Quotation(model_messages(self, agent), seqs) if seqs else Quotation()

    def take(self, record: Record) -> bool:
        """Read the next row of the thread; return whether it is history."""
        message = record.message
        payload = message.payload
        if message.lane == "control" and isinstance(payload, OptionCallPayload):
            self._calls.add(payload.invocation_id)
        if message.lane != "talk" or is_foreign(message) or self._is_produced(message.parent_id):
            return False
        self._records.append(record)
        return True

    def _is_produced(self, parent_id: str | None) -> bool:
        """Whether a call has produced a message: its parent is the call, or a part of the call."""
        place = parent_id or ""
        while place:
            if place in self._calls:
                return True
            place = parent_of(place)
        return False


async def read_history(ledger: Ledger, thread_id: str, *, until: str) -> ThreadHistory:
    """Return the history of a thread before the message with the id `until`."""
    history = ThreadHistory()
    async with aclosing(cast("AsyncGenerator[Record]", ledger.read(thread_id))) as records:
        async for record in records:
            if record.message.id == until:
                break
            history.take(record)
    return history


async def read_answer(ledger: Ledger, thread_id: str, is_answer: Callable[[Message], bool]) -> tuple[Message, ...]:
    """Return the last answer in the talk of a thread, with the answers right before it."""
    answers: list[Message] = []
    async with aclosing(cast("AsyncGenerator[Record]", ledger.read(thread_id, reverse=True))) as records:
        async for record in records:
            if record.message.lane == "talk" and is_answer(record.message):
                answers.append(record.message)
            elif record.message.lane == "talk" and answers:
                break
    return tuple(reversed(answers))


# ---------------------------------------------------------------- prompts


def attributed(messages: Iterable[Message], agent: str) -> Conversation:
    """Return messages; those of an assistant without a name as the agent's."""
    return Conversation(
        message.model_copy(update={"policy": agent}) if message.policy == message.role_hint_for_llm == "assistant" else message
        for message in messages
    )


def model_messages(messages: Iterable[Message], agent: str) -> list[ModelMessage]:
    """Return messages as a prompt for an agent's model.

    Messages of an assistant without a name count as the agent's own; messages of other agents count as a user's.
    """
    units: Any = encode(attributed(messages, agent), _DIALECT, as_policy=agent).value
    return ModelMessagesTypeAdapter.validate_python(units)


def user_content(message: Message) -> Sequence[UserContent]:
    """Return text, data and media of a message, as the content of a prompt."""
    payload = message.payload
    parts = () if isinstance(payload, OptionCallPayload) else payload.parts
    shown = tuple(part for part in parts if isinstance(part, _SHOWN))
    if not shown:
        return ()
    user_message = Message(policy="user", payload=PartsPayload(parts=shown), role_hint_for_llm="user")
    (request,) = model_messages([user_message], "assistant")
    content = cast("UserPromptPart", request.parts[0]).content
    return [content] if isinstance(content, str) else content


def json_text(value: Any) -> str:
    """Return a JSON value as text for an agent: a text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


# ---------------------------------------------------------------- patterns


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
    """An `async with` block in which the actors of a pattern run.

    Whatever reads or writes a thread, here and in all patterns, raises `LedgerError` if the ledger cannot be used,
    `HistoryMismatchError` if another program has written the thread, `SetupError` if it names an agent that does not exist,
    and `RefusedError` if there is no such thread. `run` raises `ParkedError` if a person must settle or approve something;
    afterwards, the same task in the same thread continues.
    """

    _system: System | None = None

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
        if ledger is not None:
            check_opened(ledger)
        check_type("settings", settings, Settings, "Settings(within=60)")
        self.ledger: Ledger = MemoryLedger() if ledger is None else ledger
        self.cast_options = checked_options(cast)
        self._settings, self._observer, self._recover = settings, observer, recover
        self._stack = AsyncExitStack()

    @property
    def system(self) -> System:
        """The system of its actors, inside the block."""
        if self._system is None:
            name = type(self).__name__
            raise SetupError(f"this {name} is not open; use it in a block, such as `async with {name}(…) as pattern:`")
        return self._system

    def open_in(self, system: System) -> None:
        """Use a system until the block ends, and start its actors there."""
        self._system = system
        self.host(system)

    @abstractmethod
    def host(self, system: System) -> None:
        """Start its actors in a system."""

    def casts(self) -> Iterable[Cast]:
        """Return the casts of its agents; the connections of their models are closed after the block."""
        return ()

    async def check(self) -> None:
        """Refuse names of tools that do not exist, before a thread fails because of one; this requests the tools of servers.

        Tools may be added to a toolkit until the pattern is opened. So this is the first moment at which all are known.
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
        """
        return await self.system.pause(thread_id)

    async def resume(self, thread_id: str) -> protocol.ThreadResumed:
        """Continue a thread where it stopped, even if another process has left it."""
        return await self.system.resume(thread_id)

    async def terminate(self, thread_id: str, reason: str = "user_request") -> protocol.ThreadTerminated:
        """End a thread for good: running work is cancelled, open calls get an error result, and nothing starts any more.

        A running call of a tool with effects `once` is parked: a person records its outcome.
        """
        return await self.system.terminate(thread_id, reason)

    async def status(self, thread_id: str) -> protocol.ThreadStatus:
        """Return the status of a thread: created, processing, paused, completed, failed, terminated or stopped.

        If it waits for a person, `waiting_for` has the reason and the commands to run; `reason` is why it is terminated or
        stopped. Both are in `model_extra`. Nothing is written.
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

    def as_tool(self, name: str, description: str) -> Tool[Any]:
        """Return a tool with which an agent of another pattern delegates a task to this one, in the same thread.

        Open both with `together`. The work inside is recorded separately, so the tool may run again. The answer counts as
        untrusted content, and a turn that has read untrusted content may use the tool only with an approval: the agents here
        have other permissions than the caller.
        """

        async def ask(task: str) -> Any:
            run = current_run()
            note_deed(name)  # in a repeated run, its agents would do their work again
            outcome = await (self.run(task) if run is None else self.run_inside(task, run.thread_id))
            if outcome.status == "stopped" and run is not None:  # the caller also stops, and both are resumed together
                raise StoppedError(outcome.error_message or "", cause=outcome.error_code or StoppedError.code)
            if outcome.status != "completed":
                raise ModelRetry(f"{name} has failed: {outcome.error_message}")
            return (outcome.response or "") if outcome.data is None else outcome.data

        metadata = {"antiphon": {"effects": "none", "untrusted": True}}
        return Tool[Any](ask, name=name, description=description, metadata=metadata)

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
    """
    ledger = patterns[0].ledger
    if any(pattern.ledger is not ledger for pattern in patterns):
        raise ValueError("patterns that are opened together need the same ledger")
    for pattern in patterns:
        await pattern.check()
    system = System(ledger, settings=settings, observer=observer)
    for pattern in patterns:
        pattern.open_in(system)
    try:
        async with system:
            if recover:
                with ExitStack() as stack:
                    for pattern in patterns:
                        stack.enter_context(pattern.recovering())
                    await system.recover()
                    await asyncio.sleep(0)  # lets the handlers of recovered messages start, before `recovering` ends
            yield system
    finally:
        for cast in {cast: None for pattern in patterns for cast in pattern.casts()}:  # each once, in order
            await cast.close()
