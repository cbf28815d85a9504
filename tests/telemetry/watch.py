"""Telemetry that stays in memory, and how tests look at it."""

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from antiphon.telemetry import Telemetry


class Watch:
    """Telemetry with its providers, and what they were given."""

    def __init__(self, *, record_content: bool = False, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(self.tracers, self.meters, record_content=record_content)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """Return the points of a metric by their attributes: a number, or how many and how much of a histogram."""
        data = self.reader.get_metrics_data()
        found = {}
        for resource in [] if data is None else data.resource_metrics:
            for metric in [each for scope in resource.scope_metrics for each in scope.metrics if each.name == name]:
                for point in metric.data.data_points:
                    key = tuple(sorted((point.attributes or {}).items()))
                    found[key] = (point.count, point.sum) if hasattr(point, "count") else point.value
        return found


def tree(spans: Iterable[ReadableSpan]) -> dict[str, Any]:
    """Return names of spans with those below each, in the order in which they ended."""
    every = list(spans)
    known = {span.context.span_id for span in every}
    below: dict[int, list[ReadableSpan]] = {}
    for span in every:
        parent = 0 if span.parent is None else span.parent.span_id
        assert parent == 0 or parent in known, f"{span.name}: its parent is not there"
        below.setdefault(parent, []).append(span)

    def names(parent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for span in below.get(parent, ()):
            name = span.name if span.name not in found else f"{span.name} {len(found) + 1}"
            found[name] = names(span.context.span_id)
        return found

    return names(0)
