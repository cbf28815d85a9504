"""Sums over all threads: messages, errors, tokens, cost and the time of models, in total, by hour and by model.

`OverviewBook` is a fold over `tail`. Its state and its cursor are stored together, as the snapshot of a thread that has no
messages (ADR 0016), so a restart reads only what is new. A message counts once, in the thread that it was appended to. Counted
messages stay counted when their thread is deleted.

Tokens belong to the model that was asked: a request is an effect that names its model, and the answer has that effect as its
parent. Tokens of imported messages belong to no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil, log
from typing import Any, Final, cast

from pydantic import TypeAdapter

from antiphon.ledger import Fold, Ledger, Record, replay
from antiphon.ledger._listing import cursor_order
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.service._following import follow
from antiphon.service._threads import thread_of
from antiphon.service._values import OverviewValue, SumsValue

OVERVIEW_THREAD: Final = "system/overview"
_STORED_EVERY: Final = 500
"""Records between two snapshots."""
_HOURS: Final = 7 * 24
"""The number of hours with separate sums."""
_MOST_OPEN: Final = 10_000
"""Requests to models that are remembered until they end."""
_MOST_THREADS: Final = 10_000
"""Threads that are remembered for each model, the latest ones."""
_FASTEST: Final = 0.01
_STEP: Final = 1.5
_BUCKETS: Final = 32
"""Times of answers are counted in buckets: up to 10 ms, then each half as long again as the one before, up to an hour."""


@dataclass(frozen=True, slots=True)
class UsageSums:
    """The sums of some messages."""

    messages: int = 0
    errors: int = 0
    """Results that are errors."""
    requests: int = 0
    """Requests to models."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    """In US dollars."""
    answered: int = 0
    """Requests to models that have ended."""
    seconds: float = 0.0
    """The time that they took together."""
    times: tuple[int, ...] = ()
    """How many took how long, by bucket; see `answer_time`."""

    def answer_time(self, share: float) -> float | None:
        """Return the seconds within which this share of the requests ended, to the next bucket; None if there are none."""
        reached = 0
        for place, count in enumerate(self.times):
            reached += count
            if reached >= share * self.answered > 0:
                return float(_FASTEST * _STEP**place)
        return None

    def value(self) -> SumsValue:
        """Return the sums for a reader."""
        sums = SumsValue.model_validate(self)
        return sums.model_copy(update={"p50": self.answer_time(0.5), "p95": self.answer_time(0.95)})

    def plus(self, message: Message, *, is_request: bool, took: float | None = None) -> UsageSums:
        """Return the sums with one more message. `took` is the time of the request that it ends."""
        payload, usage = message.payload, message.usage
        times = self.times
        if took is not None:
            times = times or (0,) * _BUCKETS
            place = min(_BUCKETS - 1, ceil(log(max(took, _FASTEST) / _FASTEST, _STEP)))
            times = (*times[:place], times[place] + 1, *times[place + 1 :])
        return UsageSums(
            self.messages + 1,
            self.errors + (isinstance(payload, OptionResultPayload) and payload.is_error),
            self.requests + is_request,
            self.input_tokens + (usage.input_tokens or 0 if usage else 0),
            self.output_tokens + (usage.output_tokens or 0 if usage else 0),
            self.cost + (usage.cost or 0 if usage else 0),
            self.answered + (took is not None),
            self.seconds + (took or 0.0),
            times,
        )


@dataclass(slots=True)
class _State:
    cursor: str | None = None
    total: UsageSums = field(default_factory=UsageSums)
    hours: dict[str, UsageSums] = field(default_factory=dict[str, UsageSums])
    models: dict[str, UsageSums] = field(default_factory=dict[str, UsageSums])
    asked: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """The open requests by invocation, each with its model and the second at which it began."""
    threads: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    """The latest threads of each model, in the order in which they asked it."""


_FORM: Final = TypeAdapter(_State)
_FOLD: Final[Fold[_State | None]] = Fold(
    "overview/3",
    None,
    lambda state, _: state,  # its thread has no messages
    dump=lambda state: _FORM.dump_python(state or _State(), mode="json"),
    load=lambda stored: _FORM.validate_python(thaw(stored)),
)


class OverviewBook:
    """Counts the messages of a ledger, from its beginning on and then as they come."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._state = _State()
        self._unsaved = 0

    async def count(self) -> None:
        """Count until this is cancelled. After an error, call it again to continue."""
        if self._state.cursor is None:
            await self._restore()
        async for item in follow(self._ledger, after=self._state.cursor):
            if item.record is not None:
                self.take(item.record)
            self._state.cursor = item.cursor
            self._unsaved += 1
            if self._unsaved >= _STORED_EVERY:
                await self.store()

    async def _restore(self) -> None:
        stored = await replay(self._ledger, OVERVIEW_THREAD, _FOLD)
        # An older copy of the ledger may have been restored: then everything is counted again.
        if stored is not None and cursor_order(stored.cursor or "0") <= cursor_order(await self._ledger.horizon()):
            self._state = stored

    async def store(self) -> None:
        """Store the sums, with the cursor: the next book continues from there."""
        self._unsaved = 0
        await self._ledger.append(OVERVIEW_THREAD, (), snapshot=_FOLD.snapshot(self._state), pattern="system")

    def take(self, record: Record) -> None:
        """Count a record."""
        message, state = record.message, self._state
        payload = message.payload
        model = self._model_of(record)
        request = (
            state.asked.get(payload.invocation_id) if isinstance(payload, OptionCallPayload | OptionResultPayload) else None
        )
        is_effect = request is not None and message.lane == "effect"
        is_request = is_effect and isinstance(payload, OptionCallPayload)
        took = None
        if request is not None and is_effect and isinstance(payload, OptionResultPayload):
            took = max(0.0, record.recorded_at.timestamp() - request[1])
            del state.asked[payload.invocation_id]
        state.total = state.total.plus(message, is_request=is_request, took=took)
        hour = self._hour(record.recorded_at)
        state.hours[hour] = state.hours.get(hour, UsageSums()).plus(message, is_request=is_request, took=took)
        if model is not None:
            state.models[model] = state.models.get(model, UsageSums()).plus(message, is_request=is_request, took=took)

    def _hour(self, at: datetime) -> str:
        """Return the name of an hour; hours that are too old are forgotten."""
        hours, hour = self._state.hours, at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        name = hour.isoformat()
        if name not in hours:
            oldest = (hour - timedelta(hours=_HOURS)).isoformat()
            for past in [past for past in hours if past < oldest]:
                del hours[past]
        return name

    def _model_of(self, record: Record) -> str | None:
        """Return the model that a message is about: a request, its answer, or its end."""
        message, asked = record.message, self._state.asked
        payload = message.payload
        if message.lane != "effect" or not isinstance(payload, OptionCallPayload | OptionResultPayload):
            return asked.get(message.parent_id or "", (None, 0.0))[0]
        if isinstance(payload, OptionCallPayload):
            arguments: Any = payload.arguments.get("arguments")
            if (
                isinstance(arguments, Mapping) and "model" in arguments and "prompt" in arguments
            ):  # an effect of a program may have any
                self._asks(str(cast("Mapping[str, Any]", arguments)["model"]), record, payload.invocation_id)
        return asked.get(payload.invocation_id, (None, 0.0))[0]

    def _asks(self, model: str, record: Record, invocation_id: str) -> None:
        asked = self._state.asked
        if len(asked) >= _MOST_OPEN:  # the oldest was never answered
            del asked[next(iter(asked))]
        asked[invocation_id] = model, record.recorded_at.timestamp()
        threads = self._state.threads.setdefault(model, {})
        threads.pop(thread_of(record), None)
        threads[thread_of(record)] = None
        if len(threads) > _MOST_THREADS:
            del threads[next(iter(threads))]

    def threads_of(self, model: str) -> frozenset[str]:
        """Return the latest threads that have asked a model, as far as they are counted."""
        return frozenset(self._state.threads.get(model, ()))

    async def overview(self) -> OverviewValue:
        """Return the sums, and the current number of threads by status."""
        threads: dict[str, int] = {}
        patterns: dict[str, int] = {}
        for group in await self._ledger.count_threads(system=False):
            is_open = group.open if group.status is None else 0
            for name, number in ((group.status or "", group.threads - is_open), ("open", is_open)):
                if number:
                    threads[name] = threads.get(name, 0) + number
            patterns[group.pattern or ""] = patterns.get(group.pattern or "", 0) + group.threads
        return OverviewValue(
            total=self._state.total.value(),
            by_hour={hour: sums.value() for hour, sums in sorted(self._state.hours.items())},
            by_model={model: sums.value() for model, sums in sorted(self._state.models.items())},
            threads=threads,
            patterns=patterns,
        )
