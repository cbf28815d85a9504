"""Limits on model requests that all hosts of a ledger share, and the permits that hosts lease under them.

A limit applies to one model, or to all models together (`*`): concurrent requests, requests started in a minute, US dollars
in a day. A host leases permits in bulk (`Ledger.permits`) and gives them to its own requests. All rules are pure functions
over the state of a limit (`LimitState`), which all stores share. A store keeps the state as one text, and changes it under a
lock.

**Concurrent requests.** A host reports how many requests are running and how many wait, and gets the number that may run. A
permit is valid as long as the host's lease: those of a dead host are free. A host that was suspended past its lease reports
the requests that are still running. They count even if they exceed the limit, and no host gets another permit until the total
is below it. A host may be granted fewer permits than it has running requests: then it starts none until enough have ended.

**Requests per minute.** A host gets permits to start requests, and must use each within `START_WITHIN` seconds. A permit
counts for a minute after that. So no more requests start within any 60 seconds than the limit allows.

**Cost.** A host reserves the maximum cost of its requests before they start, and reports the actual cost afterwards. A new
reservation is granted only if reserved and spent together stay within the limit. Reservations of a dead host count as spent:
the provider may have charged for its requests. Days are in UTC, and setting a clock back does not start a day again.

**Shares.** While several hosts want more than is available, each gets at most an equal share, and others may use the part of a
share that a host does not need. Hosts that wait without any permit come first, the longest waiting before the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

import orjson

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._hosts import LeaseClock
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.messages._names import is_name

ALL_MODELS: Final = "*"
"""In place of a model name: all models together."""
START_WITHIN: Final = 2.0
"""Seconds within which a permit to start a request must be used."""
_COUNTED: Final = 60.0 + START_WITHIN
"""Seconds for which such a permit counts."""
_NANO: Final = Decimal("1e-9")
"""US dollars are stored as whole numbers of this unit: a token of a small model costs less than a millionth of a dollar."""
_MOST: Final = 10**9
"""The largest limit that can be set."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a model for all hosts of a ledger; None means no limit.

    If all are None, the limits of the model are removed.

    Raises:
        ValueError: the model is not a valid name, or a number is negative or too large.
    """

    model: str
    """The name of the model, with or without its provider: `openai:gpt-5` or `gpt-5`. `*`: all models together."""
    at_once: int | None = None
    """Concurrent requests."""
    per_minute: int | None = None
    """Requests that start within any minute."""
    cost_per_day: Decimal | None = None
    """US dollars per UTC day, as far as prices are known."""

    def __post_init__(self) -> None:
        if not is_name(self.model):
            raise ValueError(f"the model of a limit is a name of 1 to 512 visible characters, not {self.model!r}")
        counts: tuple[Any, Any] = self.at_once, self.per_minute  # a program without a type checker may pass anything
        for name, count in zip(("at_once", "per_minute"), counts, strict=True):
            if count is not None and (type(count) is not int or not 0 <= count <= _MOST):
                raise ValueError(f"{name} is a whole number from 0 to {_MOST}, or None, not {count!r}")
        cost: Any = self.cost_per_day
        if cost is not None and (type(cost) is not Decimal or not cost.is_finite() or not 0 <= cost <= _MOST):
            raise ValueError(f"cost_per_day is a Decimal of US dollars from 0 to {_MOST}, or None, not {cost}")

    @property
    def is_none(self) -> bool:
        """Whether it limits nothing."""
        return self.at_once is None and self.per_minute is None and self.cost_per_day is None


@dataclass(frozen=True, slots=True)
class PermitWants:
    """The running and waiting requests of a host under a limit, and their costs.

    Raises:
        ValueError: a number is negative.
    """

    in_use: int = 0
    """Its running requests."""
    waiting: int = 0
    """Its requests that wait for a permit."""
    reserved: Decimal = Decimal(0)
    """The maximum cost of the running requests."""
    reserve: tuple[Decimal, ...] = ()
    """The maximum cost of each waiting request, in order."""
    spent: Decimal = Decimal(0)
    """The cost of all requests of this host since it started. It is a total, so a repeated call counts nothing twice."""
    reported: Decimal = Decimal(0)
    """The `spent` of the last call that was answered."""

    def __post_init__(self) -> None:
        if min(self.in_use, self.waiting) < 0 or min(self.reserved, self.spent, self.reported, *self.reserve) < 0:
            raise ValueError(f"what a host wants under a limit is never negative: {self!r}")


@dataclass(frozen=True, slots=True)
class PermitGrant:
    """The permits of a host under a limit; None: no limit."""

    at_once: int | None = None
    """How many requests it may run. It may be running more; then it starts no other."""
    starts: int | None = None
    """How many requests it may start, each within `START_WITHIN` seconds."""
    reserved: Decimal | None = None
    """The granted cost: of the running requests, and of as many of the first waiting ones as the budget allows."""
    budget_left: Decimal | None = None
    """The rest of the daily budget; other hosts may have reserved it."""
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class PermitHolder:
    """The use of a limit by one host."""

    host: str
    permits: int
    """Its permits, used or not."""
    waiting: int
    """Its requests that wait."""
    reserved: Decimal
    """The maximum cost of its requests."""


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit, and its use by all living hosts."""

    limit: Limit
    permits: int
    """The permits that hosts have."""
    waiting: int
    """The requests that wait for a permit, as of the last report of their hosts."""
    started: int
    """The requests that were permitted to start in the last minute."""
    spent: Decimal
    """The cost of today's requests, including reservations of dead hosts."""
    reserved: Decimal
    """The maximum cost of running requests."""
    holders: tuple[PermitHolder, ...]
    """By name of the host; hosts without permits and without waiting requests are left out."""


# ---------------------------------------------------------------- the state of a limit


@dataclass(frozen=True, slots=True)
class _Holding:
    """The use by one host. Amounts are in nanodollars."""

    permits: int = 0
    requests: int = 0
    """Requests that ran, and those that waited, at its last report."""
    waiting: int = 0
    """Requests that got no permit."""
    reserved: int = 0
    spent: int = 0
    """The last report of its total cost since it started."""
    hungry_since: float | None = None
    """Since when it has waited without any permit to run requests."""
    starving_since: float | None = None
    """Since when it has waited without any permit to start a request."""

    @property
    def is_empty(self) -> bool:
        return not (self.permits or self.waiting or self.reserved)


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit and its use, as a store keeps it."""

    limit: Limit
    day: int = 0
    """The number of the day (`date.toordinal`) to which `spent` applies."""
    spent: int = 0
    boot: str = ""
    """The boot in which the clock of `started` counts."""
    started: tuple[tuple[float, int], ...] = ()
    """Permits to start requests: when they were granted, and how many."""
    holdings: Mapping[int, _Holding] = field(default_factory=dict[int, _Holding])
    """By key of the host."""

    def dump(self) -> str:
        """Return it as text for a store."""
        limit = self.limit
        cost = None if limit.cost_per_day is None else str(limit.cost_per_day)
        state = {
            "limit": [limit.at_once, limit.per_minute, cost],
            "spent": [self.day, self.spent],
            "started": [self.boot, [list(start) for start in self.started]],
            "hosts": {str(key): list(astuple(holding)) for key, holding in sorted(self.holdings.items())},
        }
        return orjson.dumps(state).decode()

    @classmethod
    def load(cls, model: str, text: str) -> LimitState:
        """Return the state that a text holds."""
        try:
            state = orjson.loads(text)
            at_once, per_minute, cost = state["limit"]
            (day, spent), (boot, started) = state["spent"], state["started"]
            return cls(
                Limit(model, at_once, per_minute, None if cost is None else Decimal(cost)),
                day,
                spent,
                boot,
                tuple((at, count) for at, count in started),
                {int(key): _Holding(*columns) for key, columns in state["hosts"].items()},
            )
        except (ValueError, KeyError, TypeError, ArithmeticError) as exc:
            raise LedgerCorruptError(f"the limit of {model!r} was altered; restore a backup") from exc

    def set(self, limit: Limit) -> LimitState:
        """Return it with other limits and the same use."""
        return replace(self, limit=limit)

    # ------------------------------------------------------------ the present

    def now(self, living: Iterable[int], moment: LeaseClock, today: datetime) -> LimitState:
        """Return the current state: without dead hosts, old starts, and the costs of another day."""
        alive, at, day = set(living), moment.now(), max(today.date().toordinal(), self.day)
        gone = sum(holding.reserved for key, holding in self.holdings.items() if key not in alive)
        return replace(
            self,
            day=day,
            spent=(self.spent if day == self.day else 0) + gone,
            boot=moment.boot,
            # A start in the future was counted before the clock was set back: it counts as a start of this moment.
            started=tuple((min(then, at), count) for then, count in self.started if min(then, at) > at - _COUNTED)
            if self.boot == moment.boot
            else (),
            holdings={key: holding for key, holding in self.holdings.items() if key in alive},
        )

    def give(self, key: int, wants: PermitWants, at: float) -> tuple[LimitState, PermitGrant]:
        """Grant a living host its permits. The state must be current (`now`)."""
        before = self.holdings.get(key)
        rivals = [holding for holder, holding in self.holdings.items() if holder != key]
        total = _nanos(wants.spent)
        # Without a row, an earlier report was folded into the sum when the host's lease had ended.
        spent = self.spent + max(0, total - (_nanos(wants.reported) if before is None else before.spent))
        at_once, hungry = self._at_once(before or _Holding(), wants, rivals, at)
        permits = max(wants.in_use, at_once)
        starts, starving = self._starts(before or _Holding(), wants, rivals, at)
        reserved, money = self._reserved(wants, rivals, spent)
        is_priced = self.limit.cost_per_day is not None
        grant = PermitGrant(
            at_once if self.limit.at_once is not None else None,
            starts if self.limit.per_minute is not None else None,
            _dollars(money) if is_priced else None,
            max(Decimal(0), (self.limit.cost_per_day or Decimal(0)) - _dollars(spent)) if is_priced else None,
            self.limit,
        )
        served = min(permits - wants.in_use, wants.waiting if self.limit.per_minute is None else starts)
        requests = wants.in_use + wants.waiting
        holding = _Holding(permits, requests, wants.waiting - served, reserved, total, hungry, starving)
        started = _added(self.started, at, starts) if starts else self.started
        holdings = {**self.holdings, key: holding}
        if holding.is_empty and not total:
            del holdings[key]
        return replace(self, spent=spent, started=started, holdings=holdings), grant

    def _at_once(self, before: _Holding, wants: PermitWants, rivals: list[_Holding], at: float) -> tuple[int, float | None]:
        """Return the permits to run requests, and since when the host waits without any."""
        requests = wants.in_use + wants.waiting
        if self.limit.at_once is None:
            return requests, None
        since = before.hungry_since if before.hungry_since is not None and not wants.in_use else at
        hungry = [holding.hungry_since for holding in rivals if holding.hungry_since is not None]
        unused = self.limit.at_once - sum(holding.permits for holding in rivals)
        # One permit in its turn, and more only if one is left for each host that has none.
        free = max(min(1, unused - sum(1 for start in hungry if start < since)), unused - len(hungry))
        share = _share(self.limit.at_once, [requests, *(holding.requests for holding in rivals)])
        permits = max(0, min(requests, share, free))
        return permits, since if wants.waiting and not max(permits, wants.in_use) else None

    def _starts(self, before: _Holding, wants: PermitWants, rivals: list[_Holding], at: float) -> tuple[int, float | None]:
        """Return the permits to start requests, and since when the host waits without any."""
        if self.limit.per_minute is None or not wants.waiting:
            return 0, None
        since = before.starving_since if before.starving_since is not None else at
        free = self.limit.per_minute - sum(count for _, count in self.started)
        ahead = [holding for holding in rivals if holding.starving_since is not None and holding.starving_since < since]
        share = _share(
            max(0, free),
            [wants.waiting, *(holding.waiting for holding in rivals if holding.starving_since is not None)],
        )
        starts = max(0, min(wants.waiting, share, free - len(ahead)))
        return starts, None if starts else since

    def _reserved(self, wants: PermitWants, rivals: list[_Holding], spent: int) -> tuple[int, int]:
        """Return the reservation of the host, and the part of it that the budget covers."""
        at_work = _nanos(wants.reserved)
        if self.limit.cost_per_day is None:
            return at_work, at_work
        budget = _nanos(self.limit.cost_per_day) - spent - sum(holding.reserved for holding in rivals)
        for cost in wants.reserve:  # whole requests only: partial reservations of two hosts would serve neither
            if at_work + _nanos(cost) > budget:
                break
            at_work += _nanos(cost)
        return at_work, max(0, min(at_work, budget))

    def status(self, names: Mapping[int, str]) -> LimitStatus:
        """Return the status for display; the state must be current (`now`)."""
        holders = [
            PermitHolder(names[key], holding.permits, holding.waiting, _dollars(holding.reserved))
            for key, holding in self.holdings.items()
            if not holding.is_empty
        ]
        return LimitStatus(
            self.limit,
            sum(holder.permits for holder in holders),
            sum(holder.waiting for holder in holders),
            sum(count for _, count in self.started),
            _dollars(self.spent),
            sum((holder.reserved for holder in holders), Decimal(0)),
            tuple(sorted(holders, key=lambda holder: holder.host)),
        )


def check_limited(limit: Limit, redaction: LedgerRedaction) -> None:
    """Refuse a limit of a model whose name looks like a secret."""
    redaction.check_name(limit.model, "the model of a limit")


def _nanos(dollars: Decimal) -> int:
    return int((dollars / _NANO).to_integral_value(ROUND_CEILING))


def _dollars(nanos: int) -> Decimal:
    return (nanos * _NANO).normalize() + Decimal(0)


def _added(started: tuple[tuple[float, int], ...], at: float, count: int) -> tuple[tuple[float, int], ...]:
    """Return the starts with further ones added.

    Starts within one second are one entry, which counts from the last of them.
    """
    if started and int(at) == int(started[-1][0]):
        return *started[:-1], (at, started[-1][1] + count)
    return *started, (at, count)


def _share(amount: int, wants: list[int]) -> int:
    """Return an equal share of an amount, rounded up; the unneeded part of a share goes to those that want more."""
    free, asking = amount, sorted(wants)
    for place, want in enumerate(asking):
        if want * (len(asking) - place) > free:
            return -(-free // (len(asking) - place))
        free -= want
    return amount
