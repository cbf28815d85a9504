"""Streams: the events of an answer reach the program while the effect that records the answer is at work.

The effect runs in a task of its own: it begins before the first event, and ends after the last one. It takes an event from the
model when the program asks for one. So a slow program slows the model down, as it does without a ledger. The program gets the
end of the stream after the outcome is recorded: what it does next follows from a recorded answer. An answer that is recorded
already comes as one event for each part.

**A stream that is left early.** The request ends later than its stream, and only then it is known why the program has left. If
the request ends without an error, the part that was streamed is recorded as the answer. If it fails or is cancelled, as when
the process is told to stop, nothing is recorded: a part of an answer must not be taken for the whole one. A later run asks
again.

**A stream that does not end** would fill the memory of the process, and its answer could not be written. It is cancelled above
a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
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
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
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

from antiphon.agents._observers import publish_live
from antiphon.messages import current_limits

# ---------------------------------------------------------------- from the effect to the program


class Relay:
    """Events on their way from an effect, which takes them from a model, to the program."""

    def __init__(self, record: Callable[[], Coroutine[Any, Any, ModelResponse]]) -> None:
        self.source: StreamedResponse | None = None
        """The stream of the model; None as long as it is not open, and if the answer is recorded already."""
        self._is_ready = asyncio.Event()
        self._events: asyncio.Queue[ModelResponseStreamEvent | None] = asyncio.Queue()
        self._is_asked = asyncio.Event()
        self._has_given = False
        self._is_streaming = False
        self._is_left = False
        self._is_kept = False
        token = _current.set(self)
        try:
            self.recording = asyncio.ensure_future(record())
        finally:
            _current.reset(token)
        self.recording.add_done_callback(self._end)

    # ------------------------------------------------------------ the effect's side

    def open(self, source: StreamedResponse) -> None:
        """Take the stream of the model."""
        self.source = source
        self._is_streaming = True
        self._is_ready.set()

    async def give(self, event: ModelResponseStreamEvent) -> None:
        """Pass an event on, and wait until the program asks for the next one."""
        self._events.put_nowait(event)
        await self._is_asked.wait()
        self._is_asked.clear()
        if self._is_left:  # a model may have ignored the cancellation
            raise asyncio.CancelledError

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
            recording.exception()  # it was looked at: the program may have left before the error
        self._events.put_nowait(None)
        self._is_ready.set()

    # ------------------------------------------------------------ the program's side

    async def opened(self) -> None:
        """Wait until the stream is open, or the answer is there."""
        await self._is_ready.wait()

    async def next(self) -> ModelResponseStreamEvent | None:
        """Return the next event; None at the end."""
        if self._has_given:
            self._is_asked.set()
        self._has_given = True
        return await self._events.get()

    async def end(self, *, is_kept: bool) -> None:
        """End the effect of a stream that was left: record the part that was streamed, or nothing."""
        self._is_left, self._is_kept = True, is_kept
        self._is_asked.set()
        if not is_kept or self._is_streaming:
            self.recording.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((self.recording,))
        if is_kept and not self.recording.cancelled():
            self.recording.result()


_current: ContextVar[Relay | None] = ContextVar("antiphon.agents.relay", default=None)


def current_relay() -> Relay | None:
    """Return the relay of the streamed request that is being recorded; None outside of one."""
    return _current.get()


# ---------------------------------------------------------------- what the program gets


class OpenStreams:
    """The streams of one request."""

    def __init__(self) -> None:
        self._relays: list[Relay] = []

    def add(self, relay: Relay) -> None:
        """Add a stream."""
        self._relays.append(relay)

    async def end(self, *, is_kept: bool) -> None:
        """End those that the program has left before their end."""
        for relay in self._relays:
            if not relay.recording.done():
                await relay.end(is_kept=is_kept)


_streams: ContextVar[OpenStreams | None] = ContextVar("antiphon.agents.streams", default=None)


@asynccontextmanager
async def request_streams() -> AsyncGenerator[None]:
    """Keep the streams of a request for an `async with` block, and end those that were left before their end."""
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


def with_live_model(request: ModelRequestContext) -> ModelRequestContext:
    """Have the streams of a request be live."""
    streams, model = _streams.get(), request.model
    while isinstance(model, WrapperModel) and not isinstance(model, LiveModel):
        model = model.wrapped
    if streams is not None and not isinstance(model, LiveModel):
        request.model = LiveModel(request.model, streams)
    return request


class LiveModel(WrapperModel):
    """A model whose streams are live. It is put around a model whose requests are effects."""

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
            given = messages, model_settings, model_request_parameters, run_context
            async with self.wrapped.request_stream(*given) as recorded:
                async for _ in recorded:  # one that has failed after some events raises after them
                    pass
                return recorded.get()

        relay = Relay(record)
        self._streams.add(relay)
        await relay.opened()
        if relay.source is not None:
            yield LiveStream(relay, relay.source, model_request_parameters)
        else:
            answer = relay.recording.result()
            yield CompletedStreamedResponse(answer, model_request_parameters=model_request_parameters, replay_events=True)

    @override
    def _with_serving_wrapper(self, wrap: Callable[[Model], Model]) -> Model:
        found = self.wrapped._with_serving_wrapper(wrap)
        return self if found is self.wrapped else LiveModel(found, self._streams)


class LiveStream(StreamedResponse):
    """A stream of a model, while it is recorded."""

    def __init__(self, relay: Relay, source: StreamedResponse, parameters: ModelRequestParameters) -> None:
        super().__init__(parameters)
        self._relay = relay
        self._source = source

    @override
    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        # The source adds the ends of parts and the event of the final result; they must not be added twice.
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
        self._relay.recording.result()  # raises what the request has raised
        self._finished = not self._cancelled

    @property
    def _answer(self) -> ModelResponse:
        """The recorded answer, as far as there is one: a secret in it may be taken out, or an end that is too long."""
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


# ---------------------------------------------------------------- what the effect does


class TappedModel(WrapperModel):
    """A model that tells the current relay which stream it opens."""

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
"""What an event counts besides its text, so that a stream of empty events ends, too."""


async def relay_events(
    agent: str | None, stream: AsyncIterable[AgentStreamEvent | ModelResponseStreamEvent], *, is_live: bool
) -> None:
    """Read the stream of a model to its end, and pass its events on to the program and, if `is_live`, to listeners.

    Raises:
        UnexpectedModelBehavior: it does not end.
    """
    relay = current_relay()
    most, size = _MESSAGES * current_limits().message_bytes, 0
    async for event in stream:
        size += _EVENT + len(_words(event))
        if size > most:
            raise UnexpectedModelBehavior(
                f"the model has said more than {most:,} characters and does not stop: it is given up"
            )
        if is_live:
            publish_live(agent, event)
        if relay is not None:
            await relay.give(cast("ModelResponseStreamEvent", event))  # the stream of a model has no others


def _words(event: Any) -> str:
    """Return what an event adds to an answer."""
    match event:
        case PartStartEvent(part=TextPart(content=words) | ThinkingPart(content=words) | ToolCallPart(args=str(words))):
            return words
        case PartDeltaEvent(delta=TextPartDelta(content_delta=words) | ToolCallPartDelta(args_delta=str(words))):
            return words
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(words))):
            return words
        case _:
            return ""
