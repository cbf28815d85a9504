"""Which trace a message belongs to, and which span is its own: both follow from the message, whoever handles it.

**A trace a thread.** The id of the trace is a hash of the thread's; outside of threads, of the exchange. So what another
process does in a thread, before a crash or after it, is in the same trace, and nothing has to be stored for that.

**A span a delivery.** The id of the span is a hash of what is handled, by whom, and how often that has failed before. A
message that follows from another can name its parent without having seen it. A delivery that its process did not survive
has ended no span; the one after the recovery has the same id, so that what had followed from the first hangs below it.
"""

from __future__ import annotations

import re
import threading
from hashlib import blake2b

from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanContext, TraceFlags
from typing_extensions import override

from antiphon.runtime import Place

__all__ = ["DerivedIds", "read_traceparent", "span_id", "trace_id", "write_traceparent"]

_TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def trace_id(thread_id: str | None, exchange: str) -> int:
    """Return the trace of a thread; of an exchange, if there is no thread."""
    named = ("exchange", exchange) if thread_id is None else ("thread", thread_id)
    return _hash(16, *named)


def span_id(trace: int, place: Place) -> int:
    """Return the span of a message in the hands of an actor."""
    return _hash(8, f"{trace:032x}", place.invocation_id, place.address, str(place.failures))


def _hash(size: int, *words: str) -> int:
    text = "\0".join(words).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=size, usedforsecurity=False).digest()) or 1  # 0 is no id


class DerivedIds(IdGenerator):
    """Gives the ids that were asked for, once; else those of another generator."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self._given = threading.local()

    def give(self, trace: int, span: int) -> None:
        """Have the next span of this thread of execution get these ids."""
        self._given.ids = trace, span

    def done(self) -> None:
        """Have further spans get other ids."""
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
    """Return a span as the W3C writes it: https://www.w3.org/TR/trace-context/#traceparent-header."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def read_traceparent(text: str) -> SpanContext | None:
    """Return the span that a text names; None if it names none."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    trace, span, flags = (int(digits, 16) for digits in found.groups())
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
