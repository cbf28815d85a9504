"""An OTLP receiver: a real HTTP server on a private port, which reads what it is sent with OpenTelemetry's own protocol."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_KINDS: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}


class Receiver:
    """Takes spans and metrics; what has come is in `spans` and `metrics`, and all bytes in `bodies`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}
        """The last state of each: they are cumulative."""
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = receiver.take(self.path, body, dict(self.headers))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        request_class, response_class = _KINDS[path]
        request = request_class.FromString(body)
        self.bodies.append(body)
        self.headers.append(headers)
        for resource in request.resource_spans if path == "/v1/traces" else request.resource_metrics:
            self.services.add(attributes(resource.resource.attributes)["service.name"])
            if path == "/v1/traces":
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            else:
                self.metrics |= {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        return bytes(response_class().SerializeToString())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes as they were given."""
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    value = getattr(pair.value, kind) if kind else None
    return [each.string_value for each in value.values] if kind == "array_value" else value


def tree(spans: list[Span]) -> dict[str, Any]:
    """Return names of spans with those below each, in the order of their beginning; the parent of each must be there."""
    known = {span.span_id for span in spans}
    assert len(known) == len(spans), "two spans have the same id"
    assert all(not span.parent_span_id or span.parent_span_id in known for span in spans), "a parent is not there"

    def below(parent: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for span in sorted(spans, key=lambda span: span.start_time_unix_nano):
            if span.parent_span_id == parent:
                name = span.name if span.name not in found else f"{span.name} again"
                found[name] = below(span.span_id)
        return found

    return below(b"")
