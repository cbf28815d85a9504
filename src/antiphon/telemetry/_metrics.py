"""The metrics of a system. Their attributes have few values, so that there are few time series."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

from antiphon import __version__
from antiphon.messages import Usage
from antiphon.messages.keys import kind_of
from antiphon.runtime import Activity, AgentOperation, DeadLetter, ModelOperation, Operation, RunOperation, ToolOperation
from antiphon.telemetry import _conventions as names
from antiphon.telemetry._conventions import Attributes, shared_by_metrics

if TYPE_CHECKING:
    from collections import Counter


_QUICK = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Seconds: an actor that computes takes microseconds, an actor that calls a model may take a minute."""
_OPERATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_AGENT = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""The last three are the buckets of the GenAI conventions."""


class Metrics:
    """The instruments of a system."""

    def __init__(self, provider: MeterProvider, waiting: Callable[[], Counter[str]]) -> None:
        meter = provider.get_meter("antiphon", __version__)
        self._waiting = waiting
        self._handled = _seconds(meter, "antiphon.message.duration", "How long a message was handled.", _QUICK)
        self._waited = _seconds(meter, "antiphon.message.wait", "How long a message was in its mailbox.", _QUICK)
        self._effects = _seconds(meter, "antiphon.effect.duration", "How long an effect took.", _QUICK)
        self._restarts = meter.create_counter("antiphon.actor.restarts", "{restart}", "Actors that were begun anew.")
        self._parked = meter.create_counter("antiphon.message.parked", "{message}", "Messages that were left to a person.")
        self._dead = meter.create_counter("antiphon.dead_letters", "{message}", "Messages that nobody will handle.")
        meter.create_observable_up_down_counter(
            "antiphon.mailbox.waiting", [self._observe], "{message}", "Messages that wait in mailboxes."
        )
        self._model = _seconds(meter, "gen_ai.client.operation.duration", "GenAI operation duration.", _OPERATION)
        self._tool = _seconds(meter, "gen_ai.execute_tool.duration", "The duration of a single tool execution.", _OPERATION)
        self._agent = _seconds(meter, "gen_ai.invoke_agent.duration", "The duration of a single agent invocation.", _AGENT)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {names.KIND: kind}) for kind, count in self._waiting().items()]

    def restarted(self, address: str) -> None:
        self._restarts.add(1, {names.KIND: kind_of(address)})

    def parked(self, address: str) -> None:
        self._parked.add(1, {names.KIND: kind_of(address)})

    def died(self, letter: DeadLetter) -> None:
        self._dead.add(1, {names.CODE: letter.code})

    def ended(self, activity: Activity) -> None:
        """Record the duration and the usage of an activity."""
        error: Attributes = {} if activity.error_type is None else {names.ERROR_TYPE: activity.error_type}
        if activity.effect is not None:
            self._effects.record(activity.seconds, {names.EFFECTS: activity.effect.effects, **error})
        elif activity.delivery is not None:
            kind = kind_of(activity.address)
            type_ = activity.delivery.type if activity.is_declared else "other"  # callers can invent types: too many series
            self._handled.record(activity.seconds, {names.KIND: kind, names.MESSAGE_TYPE: type_, **error})
            if activity.waited is not None:
                self._waited.record(activity.waited, {names.KIND: kind})
        is_replay = activity.replayed > 0 and activity.done == 0 and activity.effect is None and activity.delivery is None
        if activity.operation is not None and not is_replay:  # the time of a replay says nothing about the operation
            self._operated(activity.operation, activity.seconds, error)

    def _operated(self, operation: Operation, seconds: float, error: Attributes) -> None:
        shared = shared_by_metrics(operation)
        match operation:
            case ModelOperation(usage=usage):
                self._model.record(seconds, {**shared, **error})
                if usage is not None:
                    self._use(usage, shared)
            case ToolOperation():
                self._tool.record(seconds, {**shared, **error})
            case AgentOperation():
                self._agent.record(seconds, {**shared, **error})
            case RunOperation():
                pass  # its agents and effects are counted

    def _use(self, usage: Usage, shared: Attributes) -> None:
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count is not None:
                self._tokens.record(count, {**shared, "gen_ai.token.type": kind})


def _seconds(meter: Meter, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=buckets)
