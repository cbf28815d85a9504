"""What it costs to be watched: asks without an observer, with one that does nothing, and with traces and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import Tracer

from antiphon.runtime import Context, Observer, Settings, System, handles
from antiphon.telemetry import Telemetry
from benchmarks._harness import Goal, Sample, Table, worked
from benchmarks.actors.antiphon_ import ANSWER, Answer, AntiphonTroupe, Question, Worker

__all__ = ["tables"]

OFF, NOTHING = "no observer", "an observer that does nothing"
UNSAMPLED, WATCHED, BY_HAND = "Telemetry, not sampled", "Telemetry", "OpenTelemetry, by hand in the handler"
ASKS = 500


def tables(part: str = "") -> Iterator[Table]:
    """Make the table, if `part` is in its name."""
    name = "ask, watched"
    if part in name:
        with ExitStack() as stack:
            yield Table(
                name=name,
                unit="us an ask",
                scale=1e6,
                baseline=OFF,
                candidates={kind: _sample(stack, make) for kind, make in TROUPES.items()},
                against=(BY_HAND,),
                goals=(Goal(WATCHED, 1.5, BY_HAND),),
                notes=(
                    f"{BY_HAND}: one span with six attributes and two histograms, which is what {WATCHED} makes of a message",
                    "spans are dropped when they end: to send them is the work of another thread",
                ),
            )


def _sample(stack: ExitStack, make: Callable[[], AntiphonTroupe]) -> Sample:
    troupe = stack.enter_context(closing(make()))
    asked = [*troupe.begin(["one"])] * ASKS
    return worked(lambda: troupe.ask(asked), ASKS)


class WatchedTroupe(AntiphonTroupe):
    """The actors of a system that is watched."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        super().__init__()

    async def open(self) -> None:
        system = System(settings=Settings(block_limit=None), observer=self._observer)
        self.system = await self._stack.enter_async_context(system)


class ByHandTroupe(AntiphonTroupe):
    """Actors whose handlers make the span and the metrics themselves."""

    def begin(self, names: Sequence[str]) -> Sequence[str]:
        return [self.system.spawn(f"worker/{name}", _ByHand) for name in names]


def _providers(sampler: Sampler | None = None) -> tuple[TracerProvider, MeterProvider]:
    tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    tracers.add_span_processor(SpanProcessor())
    return tracers, MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)


def _instruments() -> tuple[Tracer, Histogram, Histogram]:
    tracers, meters = _providers()
    meter = meters.get_meter("by hand")
    return tracers.get_tracer("by hand"), meter.create_histogram("took"), meter.create_histogram("waited")


class _ByHand(Worker):
    tracer, took, waited = _instruments()

    @handles
    async def answer(self, question: Question, context: Context) -> Answer:
        attributes = {"address": context.address, "kind": "worker", "id": "1", "type": "Q", "sender": "me", "attempt": 1}
        with self.tracer.start_as_current_span("worker Q", attributes=attributes):
            self.took.record(0.001, {"kind": "worker", "type": "Q"})
            self.waited.record(0.001, {"kind": "worker"})
        return ANSWER


TROUPES: dict[str, Callable[[], AntiphonTroupe]] = {
    OFF: AntiphonTroupe,
    NOTHING: lambda: WatchedTroupe(Observer()),
    UNSAMPLED: lambda: WatchedTroupe(Telemetry(*_providers(ALWAYS_OFF))),
    WATCHED: lambda: WatchedTroupe(Telemetry(*_providers())),
    BY_HAND: ByHandTroupe,
}
