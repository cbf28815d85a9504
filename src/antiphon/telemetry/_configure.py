"""Configure: telemetry that is sent somewhere, in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from antiphon.telemetry._telemetry import Telemetry

__all__ = ["configure"]


def configure(
    endpoint: str | None = None,
    *,
    service_name: str = "antiphon",
    headers: Mapping[str, str] | None = None,
    record_content: bool = False,
    every: float = 60.0,
    within: float = 10.0,
) -> Telemetry:
    """Return telemetry that is exported by OTLP over HTTP; used as a `with` block, it exports the rest at the end.

    `endpoint` is where a collector listens; without one, what the environment says (`OTEL_EXPORTER_OTLP_ENDPOINT`), else
    port 4318 of this machine. Metrics go out `every` so many seconds; an export may take `within` seconds, then it is given
    up. The providers of the process are not changed.
    """
    # Here, because they bring an HTTP client and protobuf, which telemetry that goes elsewhere does not need.
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


def _url(endpoint: str | None, signal: str) -> str | None:
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"
