"""Ids: derived, never nothing, and written as the W3C does."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon.runtime import Place
from antiphon.telemetry._telemetry import DerivedIds, read_traceparent, span_id, trace_id, write_traceparent

names = st.text(max_size=20)
contexts = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.just(value=True),
    st.builds(TraceFlags, st.integers(0, 3)),
)


@given(contexts)
def test_a_traceparent_is_read_as_it_was_written_and_as_opentelemetry_reads_it(context: SpanContext) -> None:
    text = write_traceparent(context)

    assert read_traceparent(text) == context
    theirs = trace.get_current_span(TraceContextTextMapPropagator().extract({"traceparent": text})).get_span_context()
    assert (theirs.trace_id, theirs.span_id) == (context.trace_id, context.span_id)


@given(st.tuples(names, names, st.integers(0, 9)), st.tuples(names, names, st.integers(0, 9)))
def test_different_deliveries_have_different_spans(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    of = trace_id("t", "")

    assert (span_id(of, Place(*one)) == span_id(of, Place(*other))) == (one == other)
    assert 0 < span_id(of, Place(*one)) < 2**64


@given(names)
def test_a_thread_and_an_exchange_of_the_same_name_are_two_traces(name: str) -> None:
    assert trace_id(name, "x") != trace_id(None, name)
    assert trace_id(name, "x") == trace_id(name, "y")
    assert 0 < trace_id(name, "") < 2**128


def test_ids_that_were_not_asked_for_are_random() -> None:
    ids = DerivedIds(RandomIdGenerator())
    ids.give(1, 2)
    assert (ids.generate_trace_id(), ids.generate_span_id()) == (1, 2)
    ids.done()
    assert len({ids.generate_trace_id() for _ in range(9)} | {ids.generate_span_id() for _ in range(9)}) == 18
