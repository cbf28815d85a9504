"""Telemetry: the observer that makes traces and metrics of what a system does."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self

from opentelemetry import metrics, trace
from typing_extensions import override

from antiphon.runtime import Activity, DeadLetter, Delivery, Observer, WatchedSystem
from antiphon.telemetry._ids import write_traceparent
from antiphon.telemetry._metrics import Metrics
from antiphon.telemetry._spans import Spans

__all__ = ["Telemetry"]


class Telemetry(Observer):
    """Makes traces and metrics: `System(observer=Telemetry())`. One may watch several systems."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        record_content: bool = False,
    ) -> None:
        """Make it; without providers it uses those of the process.

        What messages, tools and models say is recorded only with `record_content`: it is what people wrote, and a backend
        for traces is seldom the place for that. It is redacted as the ledger redacts the thread that it is said in.
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
        """Export what is left, and close the providers, if they can be closed. Blocks: not for the event loop."""
        for provider in (self._tracers, self._meters):
            end = getattr(provider, "shutdown", None)
            if end is not None:
                end()

    def _waiting(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for system in self._systems:
            found.update(system.waiting)  # unlike a sum, it keeps the zeros: that nothing waits is news too
        return found

    # ------------------------------------------------------------ what it is told

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
