"""Chain: the shared state of the actors of one chain: settings, agents, gates, the threads that run here, and their events.

**Events** of a thread while it runs are for a terminal or a page. The log of a chain never contains message text. It goes to
`antiphon.postchain`: messages at DEBUG, errors with their code at INFO. Both are made from records after they are in the
ledger, so they report nothing that did not happen.

**The talk of a thread.** A run knows the talk of its thread with models. The agent of the first phase reads it. Reading it
again for each phase costs more the longer the thread is: a turn in a thread of 5,000 rows takes 0.9 s of processor time
instead of 0.1 s. So `TalkCache` passes it from the agent of one phase to the next, and keeps the talk of a limited number of
long threads between turns. After an error, or if another process has written, the next agent reads it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar, Unpack, cast

from antiphon import protocol
from antiphon._listeners import listener
from antiphon.agents.durability._talk import ThreadTalk
from antiphon.durable import LedgerRun, waiting_for
from antiphon.durable._budget import Amount
from antiphon.errors import DeliveryError, ParkedError, RefusedError, StoppedError
from antiphon.ledger import Ledger, Record, replay
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._keys import as_key
from antiphon.patterns.cast._cast import CastOptions
from antiphon.patterns.cast._handling import RESTS, UNHURRIED
from antiphon.patterns.postchain._cast import ChainCast, OwnAgent
from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._context import ProcessOwnPhase
from antiphon.patterns.postchain._lifecycle import LIFE, ThreadLife, creates_thread, result_in
from antiphon.patterns.postchain._outputs import OUTPUT_TOOL
from antiphon.patterns.postchain._retrieval import configured_retriever
from antiphon.protocol import PHASES, Phase
from antiphon.retrieval import Retriever
from antiphon.runtime import Context, type_of
from antiphon.runtime._gates import Gates, GateState

ReplyT = TypeVar("ReplyT", bound=protocol.Reply)

# ---------------------------------------------------------------- events

EventKind: TypeAlias = Literal[
    "status", "phase_began", "phase_ended", "text", "tool_called", "tool_returned", "failed", "decided", "ended"
]

_STATUS: Final[Mapping[str, str]] = {
    protocol.CreateThread.message_type: "created",
    protocol.StartThread.message_type: "processing",
    protocol.PauseThread.message_type: "paused",
    protocol.ResumeThread.message_type: "processing",
    protocol.TerminateThread.message_type: "terminated",
}


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """Something that happened in a thread."""

    thread_id: str
    kind: EventKind
    phase: protocol.Phase | None = None
    text: str = ""
    """A piece of streamed text, empty when the text starts again; a tool; a status; why an agent failed, and what the
    supervisor has decided."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The output of a phase, the arguments or the result of a tool, the ERROR_NOTIFICATION or its answer, or the result."""
    seq: int | None = None
    """Its place in the ledger; None for events that are not stored, such as a piece of text."""

    @property
    def is_last(self) -> bool:
        """Whether nothing follows without a new request."""
        return self.kind == "ended" or (self.kind, self.text) == ("status", "terminated")

    @property
    def is_pause(self) -> bool:
        """Whether nothing starts until the thread is resumed."""
        return (self.kind, self.text) == ("status", "paused")


_MOST_WAITING: Final = 256
"""The number of events that are kept for a slow reader. Beyond it, recorded events are read from the ledger, and text is
dropped."""


class ChainEvents:
    """The listeners of threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._listeners: dict[str, list[Callable[[ChainEvent], None]]] = {}
        self._readers: Counter[str] = Counter()
        """By thread, the number of listeners that want streamed text."""
        self._phases: dict[str, protocol.Phase] = {}

    def has_listener(self, thread_id: str) -> bool:
        """Whether a listener wants streamed text."""
        return self._readers[thread_id] > 0

    @contextmanager
    def listening(self, thread_id: str, on_event: Callable[[ChainEvent], None], *, with_text: bool = True) -> Generator[None]:
        """Call a function with each event of a thread for the duration of the block."""
        guarded = listener(on_event)
        self._listeners.setdefault(thread_id, []).append(guarded)
        self._readers[thread_id] += with_text
        try:
            yield
        finally:
            self._readers[thread_id] -= with_text
            self._listeners[thread_id].remove(guarded)
            if not self._listeners[thread_id]:
                del self._listeners[thread_id], self._readers[thread_id]
                self._phases.pop(thread_id, None)

    async def follow(self, thread_id: str, *, most: int = _MOST_WAITING) -> AsyncIterator[ChainEvent]:
        """Yield the events of a thread from now on, until it ends.

        A reader that is more than `most` events behind loses streamed text. It never loses recorded events.
        """
        backlog = _Backlog(most)
        with self.listening(thread_id, backlog.put):
            async for event in self._without_gaps(thread_id, backlog):
                yield event
                if event.is_last:
                    return

    async def _without_gaps(self, thread_id: str, backlog: _Backlog) -> AsyncIterator[ChainEvent]:
        """Yield the events of a backlog. Recorded events that it has dropped are read from the ledger."""
        seq, phase = 0, cast("protocol.Phase | None", None)
        while True:
            event = await backlog.get()
            if isinstance(event, int):
                async for record in self._ledger.read(thread_id, event - 1):
                    seq = record.seq
                    if (read := event_of(record.message, seq, phase)) is not None:
                        phase = read.phase or phase
                        yield read
            elif event.seq is None or event.seq > seq:  # otherwise it was just read from the ledger
                seq, phase = event.seq or seq, event.phase or phase
                yield event

    def emit(self, event: ChainEvent) -> None:
        """Notify the listeners."""
        for on_event in tuple(self._listeners.get(event.thread_id, ())):
            on_event(event)

    def seen(self, record: Record) -> None:
        """Process a new record."""
        thread_id = record.message.thread_id
        if thread_id is None or thread_id not in self._listeners:
            return
        event = event_of(record.message, record.seq, self._phases.get(thread_id))
        if event is not None:
            if event.phase is not None:
                self._phases[thread_id] = event.phase
            self.emit(event)


class _Backlog:
    """The events that wait for one reader."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: deque[ChainEvent] = deque()
        self._dropped: int | None = None
        """The seq of the first recorded event that was dropped. Nothing more is kept until the reader has read the ledger."""
        self._changed = asyncio.Event()

    def put(self, event: ChainEvent) -> None:
        if self._dropped is None and len(self._events) < self._most:
            self._events.append(event)
        elif self._dropped is None and event.seq is not None:
            self._dropped = event.seq
        self._changed.set()

    async def get(self) -> ChainEvent | int:
        """Return the next event; or the seq of the first dropped recorded event."""
        while not self._events and self._dropped is None:
            self._changed.clear()
            await self._changed.wait()
        if self._events:
            return self._events.popleft()
        # Reset before the reader reads the ledger: events that happen meanwhile are kept, and recognised by their seq.
        dropped, self._dropped = self._dropped, None
        return cast("int", dropped)


def is_answer(message: Message) -> bool:
    """Whether a message is the answer of the last phase's agent."""
    return message.policy == protocol.PHASES[-1] and message.kind == "parts" and message.role_hint_for_llm == "assistant"


def event_of(message: Message, seq: int, phase: protocol.Phase | None) -> ChainEvent | None:
    """Return the event for a message; None if there is none. `phase` is the current one."""
    thread_id, payload = message.thread_id or "", message.payload
    if message.lane == "talk":
        return _tool(thread_id, payload, seq, phase)
    if message.lane != "control":
        return None
    match payload:
        case OptionCallPayload(option_name=protocol.ProcessPhase.message_type | ProcessOwnPhase.message_type):
            return ChainEvent(thread_id, "phase_began", _phase_in(payload.arguments), seq=seq)
        case OptionResultPayload(
            option_name=protocol.ProcessPhase.message_type | ProcessOwnPhase.message_type, is_error=False
        ):
            data: Any = thaw(payload.result)
            return ChainEvent(thread_id, "phase_ended", _phase_in(data), data["output"]["response"], data, seq)
        case OptionCallPayload(option_name=protocol.ErrorNotification.message_type) if message.parent_id is not None:
            data = _object(payload.arguments)
            return ChainEvent(thread_id, "failed", phase, str(data["error_message"]), data, seq)
        case OptionResultPayload(option_name=protocol.ErrorNotification.message_type, is_error=False):
            data = _object(payload.result)
            return ChainEvent(thread_id, "decided", phase, str(data["action_taken"]), data, seq)
        case OptionResultPayload(option_name=name, is_error=False) if name in _STATUS:
            return ChainEvent(thread_id, "status", text=_STATUS[name], data=_object(payload.result), seq=seq)
        case _:
            if (result := result_in(message)) is None:
                return None
            return ChainEvent(thread_id, "ended", text=result["status"], data=result, seq=seq)


def _phase_in(data: Mapping[str, Any]) -> protocol.Phase:
    """Return the phase of a request or an answer: one of the six, or one of the program, which is in another field."""
    return cast("protocol.Phase", data.get("phase_type", data.get("phase")))


def _tool(thread_id: str, payload: Any, seq: int, phase: protocol.Phase | None) -> ChainEvent | None:
    if isinstance(payload, OptionCallPayload | OptionResultPayload) and payload.option_name == OUTPUT_TOOL:
        return None  # this is how an agent answers
    if isinstance(payload, OptionCallPayload):
        return ChainEvent(thread_id, "tool_called", phase, payload.option_name, _object(payload.arguments), seq)
    if isinstance(payload, OptionResultPayload):
        result = payload.error_message if payload.is_error else thaw(payload.result)
        return ChainEvent(thread_id, "tool_returned", phase, payload.option_name, {"result": result}, seq)
    return None


def _object(value: Any) -> dict[str, Any]:
    plain: Any = thaw(value)
    return cast("dict[str, Any]", plain) if isinstance(plain, dict) else {}


LOG: Final = logging.getLogger("antiphon.postchain")


def log_flow(record: Record) -> None:
    """Log a message of a thread, if it is a message between actors."""
    message = record.message
    if message.lane != "control" or not message.to:
        return
    payload = message.payload
    code = payload.error_type if isinstance(payload, OptionResultPayload) and payload.is_error else None
    level = logging.DEBUG if code is None else logging.INFO
    kind = type_of(message)
    if not LOG.isEnabledFor(level) or kind == "MESSAGE":  # a message of another protocol
        return
    fields = {
        "antiphon.thread.id": message.thread_id,
        "antiphon.message.id": message.id,
        "antiphon.message.type": kind,
        "antiphon.correlation.id": message.correlation_id,
    }
    text = kind if code is None else f"{kind} {code}"
    LOG.log(level, "%s: %s -> %s: %s", message.thread_id, message.policy, message.to[0], text, extra=fields)


# ---------------------------------------------------------------- the chain

_LONG: Final = 200
"""Rows from which a thread counts as long. Reading a shorter one is cheaper than caching it."""
_MOST_CACHED: Final = 1_000
"""Long threads that stay cached between their turns, and new threads that wait for their first agent."""

_NO_RUN: Final = "/"
"""An id that no run has."""


class TalkCache:
    """By thread, the talk as known to its last agent; the latest entry is last."""

    def __init__(self) -> None:
        self._talks: dict[str, ThreadTalk] = {}
        self._new: dict[str, ThreadTalk] = {}
        """Threads that were created here and have had no agent: their first agent need not read the rows before it."""

    def seen(self, record: Record) -> None:
        """Read a new record."""
        thread_id = record.message.thread_id or ""
        if creates_thread(record):
            self._talks.pop(thread_id, None)  # of a deleted thread with this name
            _keep(self._new, thread_id, ThreadTalk.of_new_thread())
        if (talk := self._new.get(thread_id)) is not None:
            if record.seq == talk.seq + 1:
                talk.read_row(record, _NO_RUN)
            else:
                del self._new[thread_id]  # there are rows that it has not read
        elif (talk := self._talks.get(thread_id)) is not None:
            if record.seq > talk.seq + 1:
                del self._talks[thread_id]
            else:
                talk.reach(record.seq)
                talk.guards.read_row(record.message, _NO_RUN)

    def give(self, run: LedgerRun, *, is_first: bool) -> None:
        """Pass the talk of the previous run to a run; `is_first`: it is the first attempt."""
        new = self._new.pop(run.thread_id, None)
        talk = self._talks.pop(run.thread_id, new)
        if talk is not None and is_first:
            talk.spending.run = Amount(began=run.opened.recorded.began)
            run.opened.shared[ThreadTalk] = talk
        run.opened.share(ThreadTalk).is_handler_next = True

    def take(self, run: LedgerRun) -> None:
        """Keep the talk of a successful run for the next one."""
        talk = self._talks[run.thread_id] = run.opened.share(ThreadTalk)
        talk.reach(run.journal.length(run.thread_id))  # a timer may have written the last rows of the run since it ended

    def forget(self, thread_id: str) -> None:
        """Drop a thread."""
        self._talks.pop(thread_id, None)
        self._new.pop(thread_id, None)

    def rest(self, thread_id: str) -> None:
        """Keep a thread cached after its turn only if it is long."""
        talk = self._talks.pop(thread_id, None)
        self._new.pop(thread_id, None)
        if talk is not None and talk.seq >= _LONG:
            _keep(self._talks, thread_id, talk)


def _keep(talks: dict[str, ThreadTalk], thread_id: str, talk: ThreadTalk) -> None:
    talks[thread_id] = talk
    if len(talks) > _MOST_CACHED:
        del talks[next(iter(talks))]


class Chain:
    """The shared state of all actors of a chain."""

    gates: Gates
    """The gates of the system that hosts the chain."""

    def __init__(
        self,
        ledger: Ledger,
        config: ChainConfig,
        agents: Mapping[Phase, OwnAgent] | None = None,
        retriever: Retriever | None = None,
        **cast: Unpack[CastOptions],
    ) -> None:
        self.ledger = ledger
        self.config = config
        self.retriever = configured_retriever(config, ledger) if retriever is None else retriever
        self.cast = ChainCast(ledger, config, agents, self.retriever, **cast)
        self.order: tuple[str, ...] = PHASES
        """The names of the phases, in their order."""
        self.events = ChainEvents(ledger)
        self.talks = TalkCache()
        self.at_work: dict[str, asyncio.Event] = {}
        """The threads that run here, each with an event that is set when its run has ended."""
        self.delegated: Counter[str] = Counter()
        """By thread of another pattern, how many runs of the phases are active in it."""

    def waits_for(self, run: LedgerRun | None) -> bool:
        """Whether the phases wait for a run: a request to them from that run would wait for itself."""
        if run is None:
            return False
        is_inside = run.agent in self.order and self.delegated[run.thread_id] > 0
        return is_inside or run.thread_id in self.at_work

    async def ask(self, to: str, request: protocol.Request[ReplyT], context: Context, key: str) -> ReplyT:
        """Ask a phase or an agent of a thread. While a person must approve or settle something, the thread is paused.

        After a person has done so and resumed the thread, the same request is sent again with the same id, so finished work is
        not repeated. The thread is also paused if something outside failed, or if only a program with the toolkit can
        continue.
        """
        try:
            return await context.ask(to, request, within=UNHURRIED, key=key)
        except RESTS as exc:
            parked: DeliveryError = exc
            if isinstance(exc, ParkedError):
                context.wait_for_decision(exc)
        thread_id = context.thread_id or ""
        while True:
            await self._rest(thread_id, parked, context)
            waiting = await waiting_for(self.ledger, thread_id)
            if waiting is not None and not waiting.is_answered:
                continue  # it was resumed without a decision
            try:
                return await context.system.ask(
                    to,
                    request,
                    within=UNHURRIED,
                    thread_id=thread_id,
                    sender=context.address,
                    id=parked.message_id,
                )
            except RESTS:
                continue  # it waits for another decision now
            except DeliveryError as exc:
                exc.message_id = parked.message_id
                raise

    async def _rest(self, thread_id: str, parked: DeliveryError, context: Context) -> None:
        """Pause a thread, and wait until it is resumed."""
        # Each stop has a pause of its own: a handler that runs again would take the answer to an earlier one, and go on.
        row = parked.row if isinstance(parked, StoppedError) else None
        key = "pause" if row is None else as_key(f"pause-{row}")
        try:
            await context.ask(f"thread/{thread_id}", protocol.PauseThread(thread_id=thread_id), within=UNHURRIED, key=key)
        except RefusedError:
            raise parked from None
        await self.gates.passed(thread_id)

    def seen(self, record: Record) -> None:
        """Read a new record."""
        if record.message.lane == "control":
            self.cast.seen(record)
            if LOG.isEnabledFor(logging.INFO):
                log_flow(record)
        self.talks.seen(record)
        self.events.seen(record)

    def lacks_phase(self, life: ThreadLife) -> str | None:
        """Return the reason why the phases of a thread cannot run here; None: they can."""
        missing = [phase for phase in life.order if phase not in self.order]
        named = ", ".join(repr(phase) for phase in missing)
        return f"its phases are those of the program that the thread is of: {named}" if missing else None

    async def look(self, thread_id: str) -> GateState | None:
        """Return the state of the gate of a thread; None if it is not one of this pattern."""
        life = await replay(self.ledger, thread_id, LIFE.fold())
        if life.status == "none":
            return None
        return "closed" if life.status == "paused" else "over" if life.status == "terminated" else "open"
