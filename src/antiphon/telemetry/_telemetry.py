"""Telemetry: the observer that makes traces and metrics of a system, and `configure`, which also exports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from typing_extensions import override

from antiphon.runtime import Activity, DeadLetter, Delivery, Observer, WatchedSystem
from antiphon.telemetry._conventions import IS_REPLAY
from antiphon.telemetry._metrics import Metrics
from antiphon.telemetry._spans import Spans, write_traceparent

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
        found: Counter[str] = Counter()
        for system in self._systems:
            found.update(system.waiting)  # unlike `+`, it keeps zeros, so that an empty mailbox is reported too
        return found

    # ------------------------------------------------------------ events of the runtime

    @override
    def opened(self, system: WatchedSystem) -> None:
        self._systems += (system,)

    @override
    def closed(self, system: WatchedSystem) -> None:
        self._systems = tuple(each for each in self._systems if each is not system)

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
    more: dict[str, Any] = {"headers": None if headers is None else dict(headers), "timeout": within}
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(_url(endpoint, "traces"), **more)))
    exporter = OTLPMetricExporter(_url(endpoint, "metrics"), **more)
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
