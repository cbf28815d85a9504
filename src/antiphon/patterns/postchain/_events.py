"""Events of a thread while it runs, for a terminal or a page; and the log of a chain, which never contains message text.

The log goes to `antiphon.postchain`: messages at DEBUG, errors with their code at INFO. Both are made from records after they
are in the ledger, so they report nothing that did not happen.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from antiphon import protocol
from antiphon.ledger import Ledger, Record
from antiphon.messages import DataPart, JsonObject, Message, OptionCallPayload, OptionResultPayload, PartsPayload, thaw
from antiphon.patterns.postchain._outputs import OUTPUT_TOOL
from antiphon.patterns.postchain._protocol import ProcessOwnPhase
from antiphon.runtime.extending import response_type

EventKind: TypeAlias = Literal["status", "phase_began", "phase_ended", "text", "tool_called", "tool_returned", "ended"]

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
    """A piece of streamed text, empty when the text starts again; a tool; a status."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The output of a phase, the arguments or the result of a tool, or the whole result."""
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


_MOST: Final = 256
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
    def listening(self, thread_id: str, listener: Callable[[ChainEvent], None], *, to_words: bool = True) -> Generator[None]:
        """Call a function with each event of a thread for the duration of the block."""
        self._listeners.setdefault(thread_id, []).append(listener)
        self._readers[thread_id] += to_words
        try:
            yield
        finally:
            self._readers[thread_id] -= to_words
            self._listeners[thread_id].remove(listener)
            if not self._listeners[thread_id]:
                del self._listeners[thread_id], self._readers[thread_id]
                self._phases.pop(thread_id, None)

    async def follow(self, thread_id: str, *, most: int = _MOST) -> AsyncIterator[ChainEvent]:
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
        for listener in tuple(self._listeners.get(event.thread_id, ())):
            listener(event)

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
        self._stirred = asyncio.Event()

    def put(self, event: ChainEvent) -> None:
        if self._dropped is None and len(self._events) < self._most:
            self._events.append(event)
        elif self._dropped is None and event.seq is not None:
            self._dropped = event.seq
        self._stirred.set()

    async def get(self) -> ChainEvent | int:
        """Return the next event; or the seq of the first dropped recorded event."""
        while not self._events and self._dropped is None:
            self._stirred.clear()
            await self._stirred.wait()
        if self._events:
            return self._events.popleft()
        # Reset before the reader reads the ledger: events that happen meanwhile are kept, and recognised by their seq.
        dropped, self._dropped = self._dropped, None
        return cast("int", dropped)


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
        case OptionResultPayload(option_name=name, is_error=False) if name in _STATUS:
            return ChainEvent(thread_id, "status", text=_STATUS[name], data=_object(payload.result), seq=seq)
        case PartsPayload(parts=(DataPart(data=JsonObject() as said),)) if (
            said.get("type") == protocol.ThreadResult.message_type
        ):
            data = thaw(said["data"])
            return ChainEvent(thread_id, "ended", text=data["status"], data=data, seq=seq)
        case _:
            return None


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
    if not LOG.isEnabledFor(level) or not (kind := _kind(message)):
        return
    fields = {
        "antiphon.thread.id": message.thread_id,
        "antiphon.message.id": message.id,
        "antiphon.message.type": kind,
        "antiphon.correlation.id": message.correlation_id,
    }
    said = kind if code is None else f"{kind} {code}"
    LOG.log(level, "%s: %s -> %s: %s", message.thread_id, message.policy, message.to[0], said, extra=fields)


def _kind(message: Message) -> str:
    """Return the type of a message of the protocol; empty if it is not one."""
    match message.payload:
        case OptionCallPayload(option_name=name):
            return name
        case OptionResultPayload(is_error=True):
            return "ERROR"
        case OptionResultPayload():
            return response_type(message)
        case _:
            match message.parts:
                case (DataPart(data=JsonObject() as said),):
                    return str(said.get("type", ""))
                case _:
                    return ""
