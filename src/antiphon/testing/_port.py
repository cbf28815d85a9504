"""A port whose ids and times are the same in every run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["CountingPort"]


class CountingPort:
    """Ids count up (`id-1`, `id-2`, …); each look at the clock moves it on by `tick`."""

    def __init__(
        self, *, prefix: str = "id", start: datetime = datetime(2026, 1, 1, tzinfo=UTC), tick: timedelta = timedelta(seconds=1)
    ) -> None:
        self._prefix = prefix
        self._count = 0
        self._now = start - tick
        self._tick = tick

    def new_id(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def now(self) -> datetime:
        self._now += self._tick
        return self._now
