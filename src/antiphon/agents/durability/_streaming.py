"""Streams: the events of an answer reach the program while an effect records the answer.

The effect runs in its own task: it starts before the first event, and ends after the last one. It opens the stream of the
model, lends it to the program, and waits. The program reads each event directly from the model, in the context of the effect
and without a task switch. So a slow program slows down the model, as without a ledger. The program gets the end of the stream
after the outcome is recorded: its next step follows from a recorded answer. An answer that is already recorded arrives as one
event for each part.

**A stream that is left early.** The request ends later than its stream, and only then is it known why the program has left. If
the request ends without an error, the streamed part is recorded as the answer. If it fails or is cancelled, for example
because the process stops, nothing is recorded: a part of an answer must not pass as the whole one. A later run asks again.

**A stream that does not end** would fill the memory of the process, and its answer could not be stored. It is cancelled above
a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import replace
from datetime import datetime
from types import coroutine
from typing import Any, cast

import anyio
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    AgentStreamEvent,
    FinalResultEvent,
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage
from typing_extensions import override

from antiphon.agents._observers import live_publisher
from antiphon.durable._opened import OpenAnswers
from antiphon.durable._run import current_run
from antiphon.messages._settings import current_limits

# ---------------------------------------------------------------- the relay


class Relay:
    """Passes the stream of a model from the effect that opens it to the program that reads it."""

    def __init__(self, record: Callable[[], Coroutine[Any, Any, ModelResponse]]) -> None:
        self.source: StreamedResponse | None = None
        """The stream of the model; None until it is open, and if the answer is already recorded."""
        self._is_ready = asyncio.Event()
        self._events: AsyncIterator[ModelResponseStreamEvent] | None = None
        """The events that the program may read now."""
        self._see: Callable[[ModelResponseStreamEvent], None]
        self._is_read: asyncio.Future[None]
        """Resolves when the program has read all events, with the error that it got there."""
        self._reader: asyncio.Task[Any] | None = None
        """The task of the program, while it waits for an event."""
        self._has_changed = asyncio.Event()
        self._is_streaming = False
        self._is_left = False
        self._is_kept = False
        self._context = copy_context()
        self._context.run(_current.set, self)
        self.recording = asyncio.get_running_loop().create_task(record(), context=self._context)
        self.recording.add_done_callback(self._end)

    # ------------------------------------------------------------ the effect's side

    def open(self, source: StreamedResponse) -> None:
        """Set the stream of the model."""
        self.source = source
        self._is_streaming = True
        self._is_ready.set()

    async def lend(
        self, events: AsyncIterator[ModelResponseStreamEvent], see: Callable[[ModelResponseStreamEvent], None]
    ) -> None:
        """Let the program read events, and wait until it has read the last one. Raise the error that it got.

        `see` is called with each event, before the program gets it.
        """
        if self._is_left:  # a model may have ignored the cancellation
            raise asyncio.CancelledError
        is_read = self._is_read = asyncio.get_running_loop().create_future()
        self._events, self._see = events, see
        self._has_changed.set()
        try:
            await is_read
        except asyncio.CancelledError:
            await self._take_back()
            raise

    async def _take_back(self) -> None:
        """Stop the program from reading. If it waits for an event, wait until it has stopped."""
        self._events = None
        if self._reader is not None:
            self._reader.cancel()
        while self._reader is not None:
            self._has_changed.clear()
            with suppress(asyncio.CancelledError):  # the effect is already cancelled
                await self._has_changed.wait()

    async def answer(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the answer; if the program has left the stream, return the part that it has seen."""
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_kept or self.source is None or task is None:
                raise
            task.uncancel()
            return self.source.get()
        finally:
            self._is_streaming = False  # from here on the outcome is written, which must not be cancelled

    def _end(self, recording: asyncio.Future[Any]) -> None:
        if not recording.cancelled():
            recording.exception()  # mark the exception as retrieved: the program may have left before the error
        self._has_changed.set()
        self._is_ready.set()

    # ------------------------------------------------------------ the program's side

    async def opened(self) -> None:
        """Wait until the stream is open, or the answer is available."""
        await self._is_ready.wait()

    @property
    def _is_lent(self) -> bool:
        return self._events is not None

    async def next(self) -> ModelResponseStreamEvent | None:
        """Return the next event; None after the effect has ended."""
        while True:
            if (events := self._events) is None:
                if self.recording.done():
                    return None
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            reader = self._reader = cast("asyncio.Task[Any]", asyncio.current_task())
            cancelling, error = reader.cancelling(), None
            try:
                event: ModelResponseStreamEvent = await _in_context(self._context, events.__anext__())
                if self._is_lent:  # a model may have ignored the cancellation
                    self._see(event)
                    return event
            except StopAsyncIteration:
                pass
            except asyncio.CancelledError:
                if self._is_lent:
                    raise
            except Exception as exc:  # noqa: BLE001 (the effect raises it)
                error = exc
            finally:
                self._reader = None
            self._stop_reading(error, reader, cancelling)

    def _stop_reading(self, error: Exception | None, reader: asyncio.Task[Any], cancelling: int) -> None:
        """Return the stream to the effect; `cancelling` is how often the program had been cancelled before."""
        if self._is_lent:
            self._events = None
            self._is_read.set_result(None) if error is None else self._is_read.set_exception(error)
            return
        self._has_changed.set()  # the effect has taken it back, and waits
        if reader.uncancel() > cancelling:
            raise asyncio.CancelledError

    async def end(self, *, is_kept: bool) -> None:
        """End the effect of a stream that was left early: record the streamed part, or nothing."""
        self._is_left, self._is_kept = True, is_kept
        if not is_kept or self._is_streaming:
            self.recording.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((self.recording,))
        if is_kept and not self.recording.cancelled():
            self.recording.result()


@coroutine
def _in_context(context: Context, step: Any) -> Generator[Any, Any, Any]:
    """Await a step of a generator in the context of another task, which waits meanwhile."""
    go_on, value = step.send, None
    while True:
        try:
            waited_for = context.run(go_on, value)
        except StopIteration as end:
            return end.value
        try:
            go_on, value = step.send, (yield waited_for)
        except BaseException as exc:  # noqa: BLE001 (it is passed on)
            go_on, value = step.throw, exc


_current: ContextVar[Relay | None] = ContextVar("antiphon.agents.relay", default=None)


def current_relay() -> Relay | None:
    """Return the relay of the streamed request that is being recorded; None outside of one."""
    return _current.get()


# ---------------------------------------------------------------- the program's view


class OpenStreams:
    """The streams of one request."""

    def __init__(self) -> None:
        self._relays: list[Relay] = []
        self.live: Model | None = None
        """The model of the request, when its streams are live."""

    def add(self, relay: Relay) -> None:
        """Add a stream."""
        self._relays.append(relay)

    async def end(self, *, is_kept: bool) -> None:
        """End the streams that the program has left early."""
        for relay in self._relays:
            if not relay.recording.done():
                await relay.end(is_kept=is_kept)


_streams: ContextVar[OpenStreams | None] = ContextVar("antiphon.agents.streams", default=None)


@asynccontextmanager
async def request_streams() -> AsyncGenerator[None]:
    """Track the streams of a request for an `async with` block, and end those that were left early."""
    streams = OpenStreams()
    token = _streams.set(streams)
    try:
        yield
    except BaseException:
        await streams.end(is_kept=False)
        raise
    else:
        await streams.end(is_kept=True)
    finally:
        _streams.reset(token)
        streams.live = None  # it refers to the streams: without this, only a garbage collection frees both


def with_live_model(request: ModelRequestContext) -> ModelRequestContext:
    """Make the streams of a request live."""
    streams, model = _streams.get(), request.model
    if streams is None or model is streams.live:
        return request
    while isinstance(model, WrapperModel) and not isinstance(model, LiveModel):
        model = model.wrapped
    if not isinstance(model, LiveModel):
        request.model = LiveModel(request.model, streams)
    streams.live = request.model
    return request


class LiveModel(WrapperModel):
    """A model whose streams are live. It wraps a model whose requests are effects."""

    def __init__(self, model: Model, streams: OpenStreams) -> None:
        super().__init__(model)
        self._streams = streams

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async def record() -> ModelResponse:
            arguments = messages, model_settings, model_request_parameters, run_context
            async with self.wrapped.request_stream(*arguments) as recorded:
                if type(recorded) is not CompletedStreamedResponse:
                    async for _ in recorded:  # a stream that has failed after some events raises after them
                        pass
                return recorded.get()

        relay = Relay(record)
        self._streams.add(relay)
        if (run := current_run()) is not None and run.is_open:
            agent = None if run_context is None else run_context.agent
            run.opened.share(OpenAnswers).add(relay.recording, (agent and agent.name) or "agent")
        await relay.opened()
        if relay.source is not None:
            yield LiveStream(relay, relay.source, model_request_parameters)
        else:
            answer = relay.recording.result()
            yield CompletedStreamedResponse(answer, model_request_parameters=model_request_parameters, replay_events=True)

    @override
    def _with_serving_wrapper(self, wrap: Callable[[Model], Model]) -> Model:
        model = self.wrapped._with_serving_wrapper(wrap)
        return self if model is self.wrapped else LiveModel(model, self._streams)


class LiveStream(StreamedResponse):
    """A stream of a model, while it is recorded."""

    def __init__(self, relay: Relay, source: StreamedResponse, parameters: ModelRequestParameters) -> None:
        super().__init__(parameters)
        self._relay = relay
        self._source = source

    @override
    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        # The source adds the end events of parts and the event of the final result; they must not be added twice.
        if self._event_iterator is None:
            events = self._get_event_iterator()
            self._event_iterator = events if self._request_deadline is None else self._request_deadline.iterate(events)
        return self._event_iterator

    @override
    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        while (event := await self._relay.next()) is not None:
            if isinstance(event, FinalResultEvent):
                self.final_result_event = event
            yield event
        self._relay.recording.result()  # raises the error of the request
        self._finished = not self._cancelled

    @property
    def _answer(self) -> ModelResponse:
        """The recorded answer, if there is one: a secret in it may be redacted, or an excessive end cut."""
        recording = self._relay.recording
        if not recording.done() or recording.cancelled() or recording.exception() is not None:
            return self._source.get()
        return recording.result()

    @override
    def get(self) -> ModelResponse:
        answer = self._answer
        if self.failed_attempts:
            return replace(answer, failed_attempts=[*self.failed_attempts, *(answer.failed_attempts or [])])
        return answer

    @override
    async def close_stream(self) -> None:
        await self._source.cancel()

    @override
    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        return self._source.get_stream_cancel_errors()

    @property
    @override
    def usage(self) -> RequestUsage:
        return self._answer.usage

    @property
    @override
    def model_name(self) -> str:
        return self._source.model_name

    @property
    @override
    def provider_name(self) -> str | None:
        return self._source.provider_name

    @property
    @override
    def provider_url(self) -> str | None:
        return self._source.provider_url

    @property
    @override
    def timestamp(self) -> datetime:
        return self._source.timestamp


# ---------------------------------------------------------------- the effect's side


class TappedModel(WrapperModel):
    """A model that passes its streams to the current relay."""

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as source:
            relay = current_relay()
            if relay is not None:
                relay.open(source)
            yield source


_MESSAGES = 4
"""An answer has several messages (reasoning, text, calls): together they may have this many times the limit of one."""
_EVENT = 16
"""The bytes that an event counts besides its text, so that a stream of empty events also ends."""


async def relay_events(
    agent: str | None, stream: AsyncIterable[AgentStreamEvent | ModelResponseStreamEvent], *, is_live: bool
) -> None:
    """Read the stream of a model to its end, and pass its events to the program and, if `is_live`, to listeners.

    Raises:
        UnexpectedModelBehavior: it does not end.
    """
    events, relay = cast("AsyncIterator[ModelResponseStreamEvent]", aiter(stream)), current_relay()
    most, size = _MESSAGES * current_limits().message_bytes, 0

    def see(event: ModelResponseStreamEvent) -> None:
        nonlocal size
        size += _EVENT + len(_words(event))
        if size > most:
            raise UnexpectedModelBehavior(
                f"the model has said more than {most:,} characters and does not stop: it is given up"
            )
        if publish is not None:
            publish(event)

    publish = live_publisher(agent) if is_live else None
    if relay is not None:
        await relay.lend(events, see)
    else:
        async for event in events:
            see(event)


def _words(event: ModelResponseStreamEvent) -> str:
    """Return the text that an event adds to an answer."""
    if isinstance(event, PartDeltaEvent):
        delta = event.delta
        words = delta.args_delta if isinstance(delta, ToolCallPartDelta) else getattr(delta, "content_delta", None)
    elif isinstance(event, PartStartEvent):
        part = event.part
        words = part.args if isinstance(part, ToolCallPart) else getattr(part, "content", None)
    else:
        return ""
    return words if isinstance(words, str) else ""
