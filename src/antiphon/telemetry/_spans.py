"""Spans: one for each message that is handled, below it one for each effect."""

from __future__ import annotations

from contextvars import Token
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer

from antiphon import __version__
from antiphon.runtime import Activity, Delivery
from antiphon.telemetry import _names as names
from antiphon.telemetry._content import body_of, content_of, json_text, outcome_text, redacted
from antiphon.telemetry._genai import Attributes, attributes_of, kind_of_span, name_of
from antiphon.telemetry._ids import DerivedIds, read_traceparent, span_id, trace_id

__all__ = ["Spans"]


class _Note(NamedTuple):
    """What is kept with an activity until it ends."""

    span: Span
    token: Token[Context]


class Spans:
    """What makes the spans of a system."""

    def __init__(self, provider: trace.TracerProvider, *, record_content: bool) -> None:
        self._tracer: Tracer = provider.get_tracer("antiphon", __version__)
        self._record_content = record_content
        self._ids: DerivedIds | None = None
        if isinstance(self._tracer, SdkTracer):  # others choose their own ids; their traces are then not joined
            known = self._tracer.id_generator
            self._ids = known if isinstance(known, DerivedIds) else DerivedIds(known)
            self._tracer.id_generator = self._ids

    # ------------------------------------------------------------ begin

    def begin(self, activity: Activity) -> None:
        """Begin the span of an activity; until its end it is the current one."""
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
            names.KIND: names.kind_of(delivery.to),
            names.MESSAGE_ID: delivery.id,
            names.MESSAGE_TYPE: delivery.type,
            names.SENDER: str(delivery.sender),
            names.ATTEMPT: delivery.attempt,
            **_thread(delivery.thread_id),
        }
        name = f"{names.kind_of(delivery.to)} {delivery.type or 'talk'}"
        ids = of, span_id(of, delivery.place)
        return self._start(ids, parent, name, kind=SpanKind.INTERNAL, links=links, attributes=attributes)

    def _relations(self, delivery: Delivery, of: int) -> tuple[SpanContext | None, list[Link]]:
        """Return the span that a message follows from, and those of other traces that it has to do with."""
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
        """Return whether a trace is recorded whose beginning is not here: as if it began here."""
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
        """Start a span with ids of our choice, so that others can name it who have not seen it."""
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
        """End the span of an activity, with what became of it."""
        note = activity.note
        if not isinstance(note, _Note):
            return
        span = note.span
        detach(note.token)
        span.set_attributes({f"{names.TAG}{name}": value for name, value in activity.tags.items()})
        if span.is_recording():
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
    """Return what is known of the operation that an activity is, if it is one."""
    if activity.operation is None:
        return {}
    thread: Attributes = {} if activity.thread_id is None else {names.CONVERSATION: activity.thread_id}
    return {**attributes_of(activity.operation), **thread}


def _counted(activity: Activity) -> Attributes:
    """Return how much of an agent's run was done, and how much was taken from the ledger."""
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
