"""Telemetry: the observer that makes traces and metrics of a system, and `configure`, which also exports them.

**Metrics** have attributes of few values, so that there are few time series.

**Spans.** There is one for each handled message, and a child for each effect. Trace and span ids are computed from the
message.

- *A trace per thread.* The trace id is a hash of the thread id; outside of threads, of the exchange. So the spans of another
  process in the thread, before or after a crash, are in the same trace, and no trace id is stored.
- *A span per delivery.* The span id is a hash of the message, the actor, and the number of earlier failures. So a process can
  compute the id of a parent span that another process made. If a process dies during a delivery, the span never ends. The
  delivery after the recovery has the same span id, so the children of the lost span become its children.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from hashlib import blake2b
from types import TracebackType
from typing import Final, NamedTuple, Self

from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer
from typing_extensions import override

from antiphon import __version__
from antiphon.messages._keys import kind_of
from antiphon.runtime import (
    Activity,
    AgentOperation,
    DeadLetter,
    Delivery,
    ModelOperation,
    Observer,
    Operation,
    Place,
    RunOperation,
    ToolOperation,
    WatchedSystem,
)
from antiphon.telemetry import _conventions as names
from antiphon.telemetry._conventions import (
    IS_REPLAY,
    Attributes,
    attributes_of,
    body_of,
    content_of,
    json_text,
    kind_of_span,
    name_of,
    outcome_text,
    redacted,
    shared_by_metrics,
)

# ---------------------------------------------------------------- metrics

_QUICK = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Seconds: an actor that computes takes microseconds, an actor that calls a model may take a minute."""
_OPERATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_AGENT = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""The last three are the buckets of the GenAI conventions."""


class Metrics:
    """The instruments of a system."""

    def __init__(self, provider: metrics.MeterProvider, waiting: Callable[[], Counter[str]]) -> None:
        meter = provider.get_meter("antiphon", __version__)
        self._waiting = waiting
        self._handled = _seconds(meter, "antiphon.message.duration", "How long a message was handled.", _QUICK)
        self._waited = _seconds(meter, "antiphon.message.wait", "How long a message was in its mailbox.", _QUICK)
        self._effects = _seconds(meter, "antiphon.effect.duration", "How long an effect took.", _QUICK)
        self._restarts = meter.create_counter("antiphon.actor.restarts", "{restart}", "Actors that were begun anew.")
        self._parked = meter.create_counter("antiphon.message.parked", "{message}", "Messages that were left to a person.")
        self._dead = meter.create_counter("antiphon.dead_letters", "{message}", "Messages that nobody will handle.")
        meter.create_observable_up_down_counter(
            "antiphon.mailbox.waiting", [self._observe], "{message}", "Messages that wait in mailboxes."
        )
        self._model = _seconds(meter, "gen_ai.client.operation.duration", "GenAI operation duration.", _OPERATION)
        self._tool = _seconds(meter, "gen_ai.execute_tool.duration", "The duration of a single tool execution.", _OPERATION)
        self._agent = _seconds(meter, "gen_ai.invoke_agent.duration", "The duration of a single agent invocation.", _AGENT)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {names.KIND: kind}) for kind, count in self._waiting().items()]

    def restarted(self, address: str) -> None:
        self._restarts.add(1, {names.KIND: kind_of(address)})

    def parked(self, address: str) -> None:
        self._parked.add(1, {names.KIND: kind_of(address)})

    def died(self, letter: DeadLetter) -> None:
        self._dead.add(1, {names.CODE: letter.code})

    def ended(self, activity: Activity) -> None:
        """Record the duration and the usage of an activity."""
        error: Attributes = {} if activity.error_type is None else {names.ERROR_TYPE: activity.error_type}
        if activity.effect is not None:
            self._effects.record(activity.seconds, {names.EFFECTS: activity.effect.effects, **error})
        elif activity.delivery is not None:
            kind = kind_of(activity.address)
            type_ = activity.delivery.type if activity.is_declared else "other"  # callers can invent types: too many series
            self._handled.record(activity.seconds, {names.KIND: kind, names.MESSAGE_TYPE: type_, **error})
            if activity.waited is not None:
                self._waited.record(activity.waited, {names.KIND: kind})
        is_replay = activity.replayed > 0 and activity.done == 0 and activity.effect is None and activity.delivery is None
        if activity.operation is not None and not is_replay:  # the time of a replay says nothing about the operation
            self._operated(activity.operation, activity.seconds, error)

    def _operated(self, operation: Operation, seconds: float, error: Attributes) -> None:
        shared = shared_by_metrics(operation)
        match operation:
            case ModelOperation(usage=usage):
                self._model.record(seconds, {**shared, **error})
                counts = () if usage is None else (("input", usage.input_tokens), ("output", usage.output_tokens))
                for kind, count in counts:
                    if count is not None:
                        self._tokens.record(count, {**shared, "gen_ai.token.type": kind})
            case ToolOperation():
                self._tool.record(seconds, {**shared, **error})
            case AgentOperation():
                self._agent.record(seconds, {**shared, **error})
            case RunOperation():
                pass  # its agents and effects are counted


def _seconds(meter: Meter, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=buckets)


# ---------------------------------------------------------------- ids

_TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def trace_id(thread_id: str | None, exchange: str) -> int:
    """Return the trace id of a thread; without a thread, of the exchange."""
    named = ("exchange", exchange) if thread_id is None else ("thread", thread_id)
    return _hash(16, *named)


def span_id(trace: int, place: Place) -> int:
    """Return the span id of the delivery of a message to an actor."""
    return _hash(8, f"{trace:032x}", place.invocation_id, place.address, str(place.failures))


def _hash(size: int, *words: str) -> int:
    text = "\0".join(words).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=size, usedforsecurity=False).digest()) or 1  # 0 is not a valid id


class DerivedIds(IdGenerator):
    """Generates the ids that `give` has set; otherwise those of another generator."""

    def __init__(self, fallback: IdGenerator) -> None:
        self._fallback = fallback
        self._next = threading.local()

    def give(self, trace: int, span: int) -> None:
        """Set the ids of the next span of this thread of execution."""
        self._next.ids = trace, span

    def done(self) -> None:
        """Clear the ids, so that later spans do not get them."""
        self._next.ids = None

    @override
    def generate_trace_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self._next, "ids", None)
        return self._fallback.generate_trace_id() if ids is None else ids[0]

    @override
    def generate_span_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self._next, "ids", None)
        return self._fallback.generate_span_id() if ids is None else ids[1]


def write_traceparent(span: SpanContext) -> str:
    """Return a span as a `traceparent`: https://www.w3.org/TR/trace-context/#traceparent-header."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def read_traceparent(text: str) -> SpanContext | None:
    """Return the span of a `traceparent`; None if the text is not valid."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    trace, span, flags = (int(digits, 16) for digits in match.groups())
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


# ---------------------------------------------------------------- spans


class _Note(NamedTuple):
    """The span of an activity and its context token, kept until the activity ends."""

    span: Span
    token: Token[Context]


class Spans:
    """Makes the spans of a system."""

    def __init__(self, provider: trace.TracerProvider, *, record_content: bool) -> None:
        self._tracer: Tracer = provider.get_tracer("antiphon", __version__)
        self._record_content = record_content
        self._ids: DerivedIds | None = None
        if isinstance(self._tracer, SdkTracer):  # other tracers choose their own ids, so a thread has several traces
            generator = self._tracer.id_generator
            self._ids = generator if isinstance(generator, DerivedIds) else DerivedIds(generator)
            self._tracer.id_generator = self._ids

    # ------------------------------------------------------------ begin

    def begin(self, activity: Activity) -> None:
        """Begin the span of an activity, and make it the current span until its end."""
        if activity.effect is None and activity.delivery is not None:
            span = self._begin_message(activity.delivery)
        else:
            span = self._begin_effect(activity)
        activity.note = _Note(span, attach(trace.set_span_in_context(span)))

    def _begin_message(self, delivery: Delivery) -> Span:
        of, kind, type_ = trace_id(delivery.thread_id, delivery.exchange), kind_of(delivery.to), delivery.type
        parent, links = self._relations(delivery, of)
        attributes: Attributes = {
            names.ADDRESS: str(delivery.to),
            names.KIND: kind,
            names.MESSAGE_ID: delivery.id,
            names.MESSAGE_TYPE: type_,
            names.SENDER: str(delivery.sender),
            names.ATTEMPT: delivery.attempt,
            **_thread(delivery.thread_id),
        }
        ids = of, span_id(of, delivery.place)
        return self._start(
            ids, parent, f"{kind} {type_ or 'talk'}", kind=SpanKind.INTERNAL, links=links, attributes=attributes
        )

    def _relations(self, delivery: Delivery, of: int) -> tuple[SpanContext | None, list[Link]]:
        """Return the parent span of a message, and links to related spans of other traces."""
        links: list[Link] = []
        origin = None if delivery.origin is None else read_traceparent(delivery.origin)
        if origin is not None and origin.trace_id != of:
            links.append(Link(origin))
        parent = self._parent(delivery, of)
        if parent is not None and parent.trace_id != of:
            links.append(Link(parent))
            parent = None
        return parent, links

    def _parent(self, delivery: Delivery, of: int) -> SpanContext | None:
        near = delivery.parent
        if near is not None and near.activity is not None and isinstance(near.activity.note, _Note):
            return near.activity.note.span.get_span_context()
        place = delivery.parent_place
        if place is None:
            return None
        # The sampling decision for a trace that began elsewhere is the same as if it began here.
        tracer = self._tracer
        is_sampled = (
            not isinstance(tracer, SdkTracer)
            or tracer.sampler.should_sample(Context(), of, "").decision is Decision.RECORD_AND_SAMPLE
        )
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        return SpanContext(of, span_id(of, place), is_remote=True, trace_flags=flags)

    def _begin_effect(self, activity: Activity) -> Span:
        """Begin the span of an effect, or of an operation that effects are part of."""
        effect, operation = activity.effect, activity.operation
        attributes: Attributes = {**_thread(activity.thread_id), **_operated(activity)}
        if effect is not None:
            attributes |= {names.EFFECT_KEY: effect.key, names.EFFECTS: effect.effects}
        name = name_of(operation) if operation is not None else f"effect {effect.key}" if effect is not None else "effect"
        around = trace.get_current_span().get_span_context()
        if activity.thread_id is None or around.trace_id == (of := trace_id(activity.thread_id, "")):
            return self._tracer.start_span(name, kind=kind_of_span(operation), attributes=attributes)
        links = [Link(around)] if around.is_valid else []
        ids = of, self._ids.generate_span_id() if self._ids is not None else 0
        return self._start(ids, None, name, kind=kind_of_span(operation), links=links, attributes=attributes)

    def _start(
        self,
        ids: tuple[int, int],
        parent: SpanContext | None,
        name: str,
        *,
        kind: SpanKind,
        links: Sequence[Link],
        attributes: Attributes,
    ) -> Span:
        """Start a span with computed ids, so that other processes can refer to it."""
        context = Context() if parent is None else trace.set_span_in_context(NonRecordingSpan(parent), Context())
        if self._ids is None:
            return self._tracer.start_span(name, context, kind, attributes, links)
        self._ids.give(*ids)
        try:
            return self._tracer.start_span(name, context, kind, attributes, links)
        finally:
            self._ids.done()

    # ------------------------------------------------------------ end

    def end(self, activity: Activity) -> None:
        """End the span of an activity, with its outcome."""
        note = activity.note
        if not isinstance(note, _Note):
            return
        span = note.span
        detach(note.token)
        if span.is_recording():
            if activity.tags:
                span.set_attributes({f"{names.TAG}{name}": value for name, value in activity.tags.items()})
            if activity.operation is not None:
                span.update_name(name_of(activity.operation))
                span.set_attributes(_operated(activity))
                if activity.effect is None and activity.delivery is None:  # a run: its executed and its replayed effects
                    span.set_attributes({names.DONE: activity.done, names.REPLAYED: activity.replayed})
            if self._record_content:
                span.set_attributes({name: redacted(text, activity.redaction) for name, text in _content(activity).items()})
            if activity.error_type is not None:
                span.set_attribute(names.ERROR_TYPE, activity.error_type)
                span.set_status(Status(StatusCode.ERROR))
        span.end()


def _thread(thread_id: str | None) -> Attributes:
    return {} if thread_id is None else {names.THREAD_ID: thread_id}


def _operated(activity: Activity) -> Attributes:
    """Return the attributes of an activity's operation, if it has one."""
    if activity.operation is None:
        return {}
    is_run = isinstance(activity.operation, RunOperation)  # the conventions have no such operation
    thread: Attributes = {} if activity.thread_id is None or is_run else {names.CONVERSATION: activity.thread_id}
    return {**attributes_of(activity.operation), **thread}


def _content(activity: Activity) -> dict[str, str]:
    if activity.operation is not None:
        content = content_of(activity.operation)
        if content or (activity.effect is None and activity.delivery is None):
            return content
    if activity.effect is not None:
        input_name, output_name = names.EFFECT_ARGUMENTS, names.EFFECT_RESULT
        content = {input_name: json_text(activity.effect.arguments)}
    else:
        input_name, output_name = names.MESSAGE, names.RESULT
        content = {} if activity.delivery is None else {input_name: body_of(activity.delivery.message)}
    return content if activity.outcome is None else {**content, output_name: outcome_text(activity.outcome)}


# ---------------------------------------------------------------- the observer

_SPENT: Final = ("gen_ai.usage.", "gen_ai.aggregated_usage.", "operation.cost", "pydantic_ai.cache.")


class Telemetry(Observer):
    """Makes traces and metrics: `System(observer=Telemetry())`. Several systems may share one."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        record_content: bool = False,
    ) -> None:
        """Use the given providers, by default those of the process.

        The content of messages, tools and models is recorded only with `record_content`: it is private, and a tracing backend
        is seldom the place for it. It is redacted by the rules of its thread in the ledger.
        """
        self._tracers = tracer_provider or trace.get_tracer_provider()
        self._meters = meter_provider or metrics.get_meter_provider()
        self._systems: tuple[WatchedSystem, ...] = ()
        self.records_content = record_content
        self._spans = Spans(self._tracers, record_content=record_content)
        self._metrics = Metrics(self._meters, self._waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Export the remaining data, and close the providers if they can be closed. It blocks: not for an event loop."""
        for provider in (self._tracers, self._meters):
            end = getattr(provider, "shutdown", None)
            if end is not None:
                end()

    def _waiting(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for system in self._systems:
            counts.update(system.waiting)  # unlike `+`, it keeps zeros, so that an empty mailbox is reported too
        return counts

    # ------------------------------------------------------------ events of the runtime

    @override
    def opened(self, system: WatchedSystem) -> None:
        self._systems += (system,)

    @override
    def closed(self, system: WatchedSystem) -> None:
        self._systems = tuple(watched for watched in self._systems if watched is not system)

    @override
    def origin(self) -> str | None:
        around = trace.get_current_span().get_span_context()
        return write_traceparent(around) if around.is_valid else None

    @override
    def began(self, activity: Activity) -> None:
        self._spans.begin(activity)

    @override
    def ended(self, activity: Activity) -> None:
        self._spans.end(activity)
        self._metrics.ended(activity)

    @override
    def restarted(self, address: str, incarnation: int) -> None:
        self._metrics.restarted(address)

    @override
    def parked(self, delivery: Delivery) -> None:
        self._metrics.parked(delivery.to)

    @override
    def died(self, letter: DeadLetter) -> None:
        self._metrics.died(letter)


def configure(
    endpoint: str | None = None,
    *,
    service_name: str = "antiphon",
    headers: Mapping[str, str] | None = None,
    record_content: bool = False,
    every: float = 60.0,
    within: float = 10.0,
) -> Telemetry:
    """Return telemetry that is exported by OTLP over HTTP. Use it in a `with` block, which exports the rest at its end.

    `endpoint` is the URL of a collector; by default that of `OTEL_EXPORTER_OTLP_ENDPOINT`, else port 4318 of this machine.
    Metrics are exported `every` so many seconds. An export that takes longer than `within` seconds is abandoned. The providers
    of the process are not changed.
    """
    # Imported here, because they need an HTTP client and protobuf, which other exporters do not.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    resource = Resource.create({SERVICE_NAME: service_name})
    sent_headers = None if headers is None else dict(headers)
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(_url(endpoint, "traces"), headers=sent_headers, timeout=within))
    )
    exporter = OTLPMetricExporter(_url(endpoint, "metrics"), headers=sent_headers, timeout=within)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=every * 1000)
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return Telemetry(tracers, meters, record_content=record_content)


class CountOnce(SpanExporter):
    """Exports spans, without the tokens and costs of replayed steps.

    Pydantic AI's own instrumentation also makes spans for replayed steps. With this wrapper around the exporter, a dashboard
    that sums tokens counts each request once: `BatchSpanProcessor(CountOnce(OTLPSpanExporter()))`.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_without_tokens(span) for span in spans])

    @override
    def shutdown(self) -> None:
        self._exporter.shutdown()

    @override
    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _without_tokens(span: ReadableSpan) -> ReadableSpan:
    attributes = span.attributes or {}
    if not attributes.get(IS_REPLAY):
        return span
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        {name: value for name, value in attributes.items() if not name.startswith(_SPENT)},
        span.events,
        span.links,
        span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _url(endpoint: str | None, signal: str) -> str | None:
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"
