"""Spans: one for each handled message, and a child for each effect. Trace and span ids are computed from the message.

**A trace per thread.** The trace id is a hash of the thread id; outside of threads, of the exchange. So the spans of another
process in the thread, before or after a crash, are in the same trace, and no trace id is stored.

**A span per delivery.** The span id is a hash of the message, the actor, and the number of earlier failures. So a process can
compute the id of a parent span that another process made. If a process dies during a delivery, the span never ends. The
delivery after the recovery has the same span id, so the children of the lost span become its children.
"""

from __future__ import annotations

import re
import threading
from contextvars import Token
from hashlib import blake2b
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer
from typing_extensions import override

from antiphon import __version__
from antiphon.messages.keys import kind_of
from antiphon.runtime import Activity, Delivery, Place, RunOperation
from antiphon.telemetry import _conventions as names
from antiphon.telemetry._conventions import (
    Attributes,
    attributes_of,
    body_of,
    content_of,
    json_text,
    kind_of_span,
    name_of,
    outcome_text,
    redacted,
)

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

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self._given = threading.local()

    def give(self, trace: int, span: int) -> None:
        """Set the ids of the next span of this thread of execution."""
        self._given.ids = trace, span

    def done(self) -> None:
        """Clear the ids, so that later spans do not get them."""
        self._given.ids = None

    @override
    def generate_trace_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self._given, "ids", None)
        return self._others.generate_trace_id() if ids is None else ids[0]

    @override
    def generate_span_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self._given, "ids", None)
        return self._others.generate_span_id() if ids is None else ids[1]


def write_traceparent(span: SpanContext) -> str:
    """Return a span as a `traceparent`: https://www.w3.org/TR/trace-context/#traceparent-header."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def read_traceparent(text: str) -> SpanContext | None:
    """Return the span of a `traceparent`; None if the text is not valid."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    trace, span, flags = (int(digits, 16) for digits in found.groups())
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
            known = self._tracer.id_generator
            self._ids = known if isinstance(known, DerivedIds) else DerivedIds(known)
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
        of = trace_id(delivery.thread_id, delivery.exchange)
        parent, links = self._relations(delivery, of)
        attributes: Attributes = {
            names.ADDRESS: str(delivery.to),
            names.KIND: kind_of(delivery.to),
            names.MESSAGE_ID: delivery.id,
            names.MESSAGE_TYPE: delivery.type,
            names.SENDER: str(delivery.sender),
            names.ATTEMPT: delivery.attempt,
            **_thread(delivery.thread_id),
        }
        name = f"{kind_of(delivery.to)} {delivery.type or 'talk'}"
        ids = of, span_id(of, delivery.place)
        return self._start(ids, parent, name, kind=SpanKind.INTERNAL, links=links, attributes=attributes)

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
        return SpanContext(of, span_id(of, place), is_remote=True, trace_flags=self._flags(of))

    def _flags(self, of: int) -> TraceFlags:
        """Return the sampling decision for a trace that began elsewhere: the same as if it began here."""
        if isinstance(self._tracer, SdkTracer):
            sampled = self._tracer.sampler.should_sample(Context(), of, "").decision is Decision.RECORD_AND_SAMPLE
            return TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return TraceFlags(TraceFlags.SAMPLED)

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

    def _start(self, ids: tuple[int, int], parent: SpanContext | None, name: str, **more: Any) -> Span:
        """Start a span with computed ids, so that other processes can refer to it."""
        context = Context() if parent is None else trace.set_span_in_context(NonRecordingSpan(parent), Context())
        if self._ids is None:
            return self._tracer.start_span(name, context, **more)
        self._ids.give(*ids)
        try:
            return self._tracer.start_span(name, context, **more)
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
                span.set_attributes({**_operated(activity), **_counted(activity)})
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


def _counted(activity: Activity) -> Attributes:
    """Return how many effects of a run were executed, and how many were replayed."""
    if activity.effect is not None or activity.delivery is not None:
        return {}
    return {names.DONE: activity.done, names.REPLAYED: activity.replayed}


def _content(activity: Activity) -> dict[str, str]:
    if activity.operation is not None:
        found = content_of(activity.operation)
        if found or (activity.effect is None and activity.delivery is None):
            return found
    if activity.effect is not None:
        given, result = names.EFFECT_ARGUMENTS, names.EFFECT_RESULT
        found = {given: json_text(activity.effect.arguments)}
    else:
        given, result = names.MESSAGE, names.RESULT
        found = {} if activity.delivery is None else {given: body_of(activity.delivery.message)}
    return found if activity.outcome is None else {**found, result: outcome_text(activity.outcome)}
