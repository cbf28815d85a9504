"""Sums over all threads: messages, errors, tokens and cost, in all, by hour and by model.

`OverviewBook` is a fold over `tail`. Its state and its cursor are stored together, as the snapshot of a thread that has no
messages (ADR 0016), so a restart reads only what is new. A message counts once, in the thread that it was appended to. What
was counted stays counted when its thread is deleted.

Tokens belong to the model that was asked: a request is an effect that names its model, and the answer has that effect as its
parent. Tokens of imported messages belong to no model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from antiphon.ledger import Fold, Ledger, Record, ThreadFilter
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.service._following import follow
from antiphon.service._threads import all_threads

OVERVIEW_THREAD: Final = "system/overview"
_STORED_EVERY: Final = 500
"""Records between two snapshots."""
_HOURS: Final = 7 * 24
"""Hours that are kept apart."""
_MOST_OPEN: Final = 10_000
"""Requests to models that are remembered until they end."""


@dataclass(frozen=True, slots=True)
class UsageSums:
    """What some messages add up to."""

    messages: int = 0
    errors: int = 0
    """Results that are errors."""
    requests: int = 0
    """Requests to models."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    """In US dollars."""

    def plus(self, message: Message, *, is_request: bool) -> UsageSums:
        """Return the sums with one message more."""
        payload, usage = message.payload, message.usage
        return UsageSums(
            self.messages + 1,
            self.errors + (isinstance(payload, OptionResultPayload) and payload.is_error),
            self.requests + is_request,
            self.input_tokens + (usage.input_tokens or 0 if usage else 0),
            self.output_tokens + (usage.output_tokens or 0 if usage else 0),
            self.cost + (usage.cost or 0 if usage else 0),
        )


@dataclass(slots=True)
class _State:
    cursor: str | None = None
    total: UsageSums = field(default_factory=UsageSums)
    hours: dict[str, UsageSums] = field(default_factory=dict[str, UsageSums])
    models: dict[str, UsageSums] = field(default_factory=dict[str, UsageSums])
    asked: dict[str, str] = field(default_factory=dict[str, str])
    """The open requests by invocation, each with its model."""


def _dump(state: _State) -> Any:
    def plain(sums: UsageSums) -> dict[str, Any]:
        return {**asdict(sums), "cost": str(sums.cost)}

    return {
        "cursor": state.cursor,
        "total": plain(state.total),
        "hours": {hour: plain(each) for hour, each in state.hours.items()},
        "models": {model: plain(each) for model, each in state.models.items()},
        "asked": dict(state.asked),
    }


def _load(stored: Any) -> _State:
    def sums(value: Any) -> UsageSums:
        numbers: dict[str, Any] = {**value, "cost": Decimal(value["cost"])}
        return UsageSums(**numbers)

    value: Any = thaw(stored)
    hours, models = value["hours"], value["models"]
    return _State(
        value["cursor"],
        sums(value["total"]),
        {hour: sums(each) for hour, each in hours.items()},
        {model: sums(each) for model, each in models.items()},
        dict(value["asked"]),
    )


def _unmoved(state: _State | None, _: Message) -> _State | None:
    return state


_FOLD: Final[Fold[_State | None]] = Fold("overview/1", None, _unmoved, dump=lambda state: _dump(state or _State()), load=_load)


@dataclass(frozen=True, slots=True)
class LedgerOverview:
    """The sums as far as they are counted."""

    total: UsageSums
    by_hour: dict[str, UsageSums]
    """The last seven days, by the beginning of the hour in UTC."""
    by_model: dict[str, UsageSums]
    threads: dict[str, int]
    """Threads by status; those without one under an empty name."""


class OverviewBook:
    """Counts the messages of a ledger, from its beginning on and then as they come."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._state = _State()
        self._unsaved = 0

    async def count(self) -> None:
        """Count until this is cancelled. After an error it may be called again, and goes on.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        if self._state.cursor is None:
            await self._restore()
        async for each in follow(self._ledger, after=self._state.cursor):
            if each.record is not None:
                self.take(each.record)
            self._state.cursor = each.cursor
            self._unsaved += 1
            if self._unsaved >= _STORED_EVERY:
                await self.store()

    async def _restore(self) -> None:
        stored = await self._ledger.replay(OVERVIEW_THREAD, _FOLD)
        # An older copy of the ledger may have been put back: what is counted there is counted anew.
        if stored is not None and int(stored.cursor or 0) <= int(await self._ledger.horizon()):
            self._state = stored

    async def store(self) -> None:
        """Store what is counted, with the cursor: the next book goes on from there."""
        self._unsaved = 0
        await self._ledger.append(OVERVIEW_THREAD, (), snapshot=_FOLD.snapshot(self._state), pattern="system")

    def take(self, record: Record) -> None:
        """Count a record."""
        message, state = record.message, self._state
        payload = message.payload
        model = self._model_of(message)
        is_request = (
            isinstance(payload, OptionCallPayload) and payload.invocation_id in state.asked and message.lane == "effect"
        )
        state.total = state.total.plus(message, is_request=is_request)
        hour = self._hour(record.recorded_at)
        state.hours[hour] = state.hours.get(hour, UsageSums()).plus(message, is_request=is_request)
        if model is not None:
            state.models[model] = state.models.get(model, UsageSums()).plus(message, is_request=is_request)
        if isinstance(payload, OptionResultPayload) and message.lane == "effect":
            state.asked.pop(payload.invocation_id, None)

    def _hour(self, at: datetime) -> str:
        """Return the name of an hour; hours that are too old are forgotten."""
        hours, hour = self._state.hours, at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        name = hour.isoformat()
        if name not in hours:
            oldest = (hour - timedelta(hours=_HOURS)).isoformat()
            for each in [each for each in hours if each < oldest]:
                del hours[each]
        return name

    def _model_of(self, message: Message) -> str | None:
        """Return the model that a message is about: a request, its answer, or its end."""
        payload, asked = message.payload, self._state.asked
        if message.lane == "effect" and isinstance(payload, OptionCallPayload):
            given: Any = payload.arguments.get("arguments")
            if given and "model" in given and "prompt" in given:
                if len(asked) >= _MOST_OPEN:  # the oldest was never answered
                    del asked[next(iter(asked))]
                asked[payload.invocation_id] = str(given["model"])
            return asked.get(payload.invocation_id)
        if message.lane == "effect" and isinstance(payload, OptionResultPayload):
            return asked.get(payload.invocation_id)
        return asked.get(message.parent_id or "")

    async def overview(self) -> LedgerOverview:
        """Return the sums, and the threads by status as they are now.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        threads: dict[str, int] = {}
        async for each in self._threads():
            threads[each] = threads.get(each, 0) + 1
        state = self._state
        return LedgerOverview(state.total, dict(sorted(state.hours.items())), dict(sorted(state.models.items())), threads)

    async def _threads(self) -> AsyncIterator[str]:
        async for each in all_threads(self._ledger, ThreadFilter(system=False), "created_at"):
            yield each.status or ""
