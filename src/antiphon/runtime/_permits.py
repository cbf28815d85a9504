"""Permits for model requests: a host leases them from the ledger in bulk, and grants them to its own requests in order.

Limits apply to all hosts of a ledger together (`ledger/_permits.py`). `Permits` is the side of one host. A request waits until
it has a permit under each limit of its model and under the limit of all models together (`*`). Then it starts. When it ends,
the next waiting request here gets the permit, and the ledger is informed soon after.

**Exchange.** One call of `Ledger.permits` reports the running and the waiting requests, and returns the permits of the host.
It is made as soon as a request finds no permit, and a few times a second while requests wait or run. No permit is granted
during the call, because its answer replaces the previous one. If it fails, no permit is granted until another call succeeds.

**Lease.** Permits are valid as long as the lease of the host. A host that was suspended past its lease grants no permit before
the next exchange, even if it has renewed the lease meanwhile: other hosts may have its permits.

**No limit.** Without limits a request costs nothing here, except that the limits are read again every two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from antiphon.errors import LedgerError, StoppedError
from antiphon.ledger import Limit, PermitGrant, PermitWants
from antiphon.ledger._permits import ALL_MODELS, START_WITHIN
from antiphon.runtime._reporting import warn

if TYPE_CHECKING:
    from antiphon.ledger import Host, Owners

_FRESH: Final = 2.0
"""Seconds for which limits that were read are considered current."""
_POLL: Final = 0.1
"""Seconds between two exchanges while requests wait."""
_KEEP: Final = 0.25
"""Seconds between two exchanges while requests run, and for which an unused permit is kept."""
_PAUSE: Final = 0.02
"""The least number of seconds between two exchanges."""
_MOST_AT_A_TIME: Final = 200
"""The largest number of requests whose cost one exchange reserves."""
_NO_MONEY: Final = Decimal(0)

ResultT = TypeVar("ResultT")


class Beaten(Protocol):
    """A renewal of a lease."""

    @property
    def term(self) -> int:
        """A number that changes when the lease may have expired before it was renewed."""
        ...


class Lessee(Protocol):
    """The host that leases permits."""

    @property
    def beaten(self) -> Beaten:
        """The last renewal of its lease."""
        ...

    def has_lapsed(self) -> bool: ...
    async def as_host(self, verb: Callable[[Host], Awaitable[ResultT]]) -> ResultT: ...


@dataclass(slots=True)
class _Pool:
    """The permits of this host under one limit, or for one model without a limit."""

    in_use: int = 0
    reserved: Decimal = _NO_MONEY
    spent: Decimal = _NO_MONEY
    reported: Decimal = _NO_MONEY
    grant: PermitGrant = field(default_factory=lambda: PermitGrant(0, 0, _NO_MONEY))
    starts: int = 0
    starts_until: float = 0.0
    is_told: bool = True
    """Whether it was reported to the ledger that no request runs or waits."""

    def has(self, cost: Decimal, now: float) -> bool:
        """Whether a request may start."""
        at_once, reserved = self.grant.at_once, self.grant.reserved
        may_start = self.grant.starts is None or (self.starts > 0 and now < self.starts_until)
        has_money = reserved is None or self.reserved + self.spent - self.reported + cost <= reserved
        return may_start and has_money and (at_once is None or self.in_use < at_once)

    def give(self, grant: PermitGrant, until: float) -> None:
        """Replace the permits of the previous exchange."""
        self.grant, self.starts, self.starts_until = grant, grant.starts or 0, until

    def begin(self, cost: Decimal) -> None:
        self.in_use += 1
        self.reserved += cost
        self.starts -= 1

    def end(self, cost: Decimal, spent: Decimal) -> None:
        self.in_use -= 1
        self.reserved -= cost
        self.spent += spent

    @property
    def is_unused(self) -> bool:
        """Whether no request runs, and everything was reported to the ledger."""
        return self.is_told and not self.in_use and self.spent == self.reported


class RequestPermit:
    """The permit of one request."""

    def __init__(self, models: Sequence[str], cost: Decimal | None) -> None:
        self.models = models
        """The names under which it counts."""
        self.is_priced = cost is not None
        """Whether there is a cost limit."""
        self.reserved = self.cost = cost or _NO_MONEY
        """`cost` is the cost of the request in US dollars; until it is known, the reserved amount."""


@dataclass(slots=True, eq=False)
class _Waiter:
    permit: RequestPermit
    limited: tuple[str, ...]
    given: asyncio.Future[None]


class Permits:
    """The permits of a host."""

    def __init__(self, ledger: Owners, lessee: Lessee, patience: float) -> None:
        """Make it; `patience` is how many seconds a request waits for a permit."""
        self._ledger = ledger
        self._lessee = lessee
        self._patience = patience
        self._limits: dict[str, Limit] = {}
        self._looked_at: float | None = None
        self._looking: asyncio.Task[None] | None = None
        self._pools: dict[str, _Pool] = {}
        self._waiting: dict[_Waiter, None] = {}
        """A dict keeps the order of arrival."""
        self._term = -1
        self._is_exchanging = False
        self._wake = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def hold(self, models: Sequence[str], cost: Callable[[], Decimal]) -> AsyncGenerator[RequestPermit]:
        """Wait for a permit for one request, and hold it in the block; `models` are the names of its model.

        `cost` is called if there is a cost limit, and returns the maximum cost of the request.

        Raises:
            StoppedError: the daily budget is spent, or there was no permit in time.
            LedgerError: the limits cannot be read.
        """
        names = (*dict.fromkeys(models), ALL_MODELS)
        await self._look()
        limited = tuple(name for name in names if name in self._limits)
        is_priced = any(self._limits[name].cost_per_day is not None for name in limited)
        permit = RequestPermit(names, cost() if is_priced else None)
        if limited:
            await self._obtain(permit, limited)
        else:
            self._begin(permit)
        try:
            yield permit
        finally:
            for name in names:
                self._pools[name].end(permit.reserved, permit.cost if permit.is_priced else _NO_MONEY)
            self._give_out()

    def _begin(self, permit: RequestPermit) -> None:
        for name in permit.models:
            self._pool(name).begin(permit.reserved)

    # ------------------------------------------------------------ reading the limits

    async def _look(self) -> None:
        """Read the limits, unless they were read recently."""
        if self._looked_at is not None and asyncio.get_running_loop().time() - self._looked_at < _FRESH:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read())
        await asyncio.shield(self._looking)  # one read for all requests that start now

    async def _read(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            stored = await self._ledger.limits.status()
        except LedgerError:
            if self._looked_at is None:
                raise
            return  # the known limits stay in force; the next request reads them again
        finally:
            self._looking = None  # a task keeps the context of the request that started it, and thereby its run
        self._limits = {each.limit.model: each.limit for each in stored}
        self._looked_at = began

    # ------------------------------------------------------------ waiting

    async def _obtain(self, permit: RequestPermit, limited: tuple[str, ...]) -> None:
        waiter = _Waiter(permit, limited, asyncio.get_running_loop().create_future())
        self._waiting[waiter] = None
        self._give_out()
        if waiter in self._waiting:
            self._wake.set()
        limit = asyncio.timeout(self._patience)
        try:
            async with limit:
                await waiter.given
        except TimeoutError:
            if not limit.expired():
                raise
            if waiter.given.done() and not waiter.given.cancelled():
                return waiter.given.result()  # the permit arrived at the last moment
            raise self._late(waiter) from None
        except asyncio.CancelledError:
            # Granted and cancelled in the same step: without this, the permit would count as in use for ever.
            if waiter.given.done() and not waiter.given.cancelled() and waiter.given.exception() is None:
                for name in permit.models:
                    self._pools[name].end(permit.reserved, _NO_MONEY)
            raise
        finally:
            self._waiting.pop(waiter, None)

    def _give_out(self) -> None:
        """Grant permits to the waiting requests in order.

        A request without a permit does not block requests of other models.
        """
        if self._is_exchanging or not self._waiting:
            return
        now, lacking = asyncio.get_running_loop().time(), set[str]()
        is_worth = self._term == self._lessee.beaten.term and not self._lessee.has_lapsed()
        for waiter in tuple(self._waiting):
            cost = waiter.permit.reserved
            pools = {name: self._pool(name) for name in waiter.limited}
            missing = [name for name, pool in pools.items() if name in lacking or not is_worth or not pool.has(cost, now)]
            lacking.update(missing)
            if not missing and not waiter.given.done():
                self._begin(waiter.permit)
                waiter.given.set_result(None)
                del self._waiting[waiter]
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._exchange_until_unused(), name="antiphon-permits")

    def _late(self, waiter: _Waiter) -> StoppedError:
        name = next((each for each in waiter.limited if not self._pool(each).has(waiter.permit.reserved, 0.0)), ALL_MODELS)
        limit = self._limits.get(name, Limit(name))
        bounds = [
            f"{count} requests {how}"
            for count, how in ((limit.at_once, "at once"), (limit.per_minute, "in a minute"))
            if count is not None
        ]
        which = " and ".join(bounds) or "the money of the day"
        return _limit_reached(f"{_whose(name)} are limited to {which}: none was free within {self._patience:g} seconds")

    def _pool(self, name: str) -> _Pool:
        return self._pools.setdefault(name, _Pool())

    # ------------------------------------------------------------ exchanges

    async def _exchange_until_unused(self) -> None:
        while True:
            self._wake.clear()
            await self._exchange()
            self._refuse_what_cannot_be_paid()
            self._give_out()
            if not self._waiting and all(self._pool(name).is_unused for name in self._limits):
                return
            await asyncio.sleep(_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout((_POLL if self._waiting else _KEEP) - _PAUSE):
                    await self._wake.wait()

    async def _exchange(self) -> None:
        """Report running and waiting requests to the ledger, and take the permits that it grants."""
        names = [name for name in self._limits if not self._pool(name).is_unused or self._waiters(name)]
        if not names:
            return
        # Before the report is computed: the answer replaces all permits of this host, so neither the report nor the answer
        # would count a request that starts during the call.
        self._is_exchanging = True
        # The time before the call: a permit to start a request is valid for `START_WITHIN` seconds from its grant at the
        # latest.
        began, wants = asyncio.get_running_loop().time(), {name: self._wants(name) for name in names}
        for name in names:
            self._pools[name].is_told = False

        async def exchange(host: Host) -> tuple[int, Mapping[str, PermitGrant]]:
            # The term in which the permits are granted. If the lease expires during the call, the next beat starts another
            # term, and `_give_out` grants none of them.
            return self._lessee.beaten.term, await self._ledger.limits.lease(host, wants)

        try:
            term, grants = await self._lessee.as_host(exchange)
        except LedgerError as exc:
            self._term = -1  # it is unknown which permits the ledger has granted or withdrawn
            warn("the permits of this host cannot be renewed: %s", error=exc)
        else:
            self._term = term
            for name, grant in grants.items():
                self._pools[name].give(grant, began + START_WITHIN)
                self._pools[name].reported = wants[name].spent
                self._pools[name].is_told = not (wants[name].in_use or wants[name].waiting)
        finally:
            self._is_exchanging = False

    def _waiters(self, name: str) -> list[_Waiter]:
        return [each for each in self._waiting if name in each.limited]

    def _wants(self, name: str) -> PermitWants:
        pool, waiters = self._pool(name), self._waiters(name)
        costs = tuple(each.permit.reserved for each in waiters[:_MOST_AT_A_TIME])
        return PermitWants(pool.in_use, len(waiters), pool.reserved, costs, pool.spent, pool.reported)

    def _refuse_what_cannot_be_paid(self) -> None:
        """Refuse requests that exceed the rest of today's budget."""
        for waiter in tuple(self._waiting):
            for name in waiter.limited:
                grant, cost = self._pool(name).grant, waiter.permit.reserved
                if self._term < 0 or grant.limit is None or grant.budget_left is None or waiter.given.done():
                    continue
                if grant.budget_left <= 0 or cost > grant.budget_left:
                    waiter.given.set_exception(_too_dear(name, grant.limit, grant.budget_left, cost))
                    del self._waiting[waiter]

    async def close(self) -> None:
        """Return all permits; the host is about to leave the ledger, or its lease is about to end."""
        work, self._work = self._work, None
        if work is not None:
            # Stopped before the last exchange: a later one would lease permits for a host that is about to leave.
            work.cancel()
            await asyncio.wait((work,))
            await self._exchange()
        for pool in self._pools.values():
            pool.give(PermitGrant(0, 0, _NO_MONEY), 0.0)


def _whose(name: str) -> str:
    return "requests of all models" if name == ALL_MODELS else f"requests of model {name!r}"


def _limit_reached(reason: str) -> StoppedError:
    return StoppedError(reason, cause="LIMIT_REACHED")


def _too_dear(name: str, limit: Limit, rest_of_day: Decimal, cost: Decimal) -> StoppedError:
    most = f"{limit.cost_per_day} US dollars a day"
    rest = "and these are spent" if rest_of_day <= 0 else f"{rest_of_day} are left, and this request may cost {cost:.6f}"
    what = "resume the thread after midnight (UTC), or set another limit with `antiphon limits`"
    return _limit_reached(f"{_whose(name)} are limited to {most}, {rest}: {what}")
