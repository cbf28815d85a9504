"""Hosts and owners: beats, claims, releases, the threads that a host may take, and permits.

Leases are measured by the clock of the database, which all machines share. Each function gets the time as a `Moment` that was
read in its own transaction. A claim locks the row of its thread, so it waits for an append that is being written and precedes
the next one. `take` skips rows that are locked: another host is just taking them, or their owner is writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from antiphon.errors import HostExpiredError, HostNameTakenError, OwnedError, UnknownHostError, UnknownThreadError
from antiphon.ledger._admission import State, new_state
from antiphon.ledger._chain import from_micros, to_micros
from antiphon.ledger._hosts import BootClock, Epoch, Host, HostRow, HostStatus, LeaseClock, TakenThread, Woken
from antiphon.ledger._ownership import OWNED, Release, claimed, due_since, moved, released, why_due, withheld
from antiphon.ledger._ownership import seen as seen_upto
from antiphon.ledger._permits import Limit, LimitState, LimitStatus, PermitGrant, PermitWants
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._stored import TakeRequest, Thread
from antiphon.ledger.postgres._careful import insert_thread, lock_threads, update_thread, update_threads
from antiphon.ledger.postgres._connection import Row, Session
from antiphon.ledger.postgres._keys import find_key
from antiphon.ledger.postgres._rows import THREAD, thread_of

_HOSTS = """
SELECT key, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at,
    extract(epoch FROM clock_timestamp())::double precision AS now
FROM antiphon.hosts WHERE tenant = $1 ORDER BY name, since, key
"""
_NEW_HOST = """
INSERT INTO antiphon.hosts (tenant, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
_HOST = """
UPDATE antiphon.hosts SET name = $3, instance = $4, build = $5, kinds = $6, lease = $7, boot = $8, ends = $9, since = $10,
    beaten_at = $11, left_at = $12
WHERE tenant = $1 AND key = $2
"""
_FORGET = """
DELETE FROM antiphon.hosts AS h WHERE h.tenant = $1 AND h.key = ANY($2::bigint[])
    AND NOT EXISTS (SELECT 1 FROM antiphon.threads AS t WHERE t.tenant = $1 AND t.owner = h.key)
"""
_COUNTS = """
SELECT owner, count(*) FROM antiphon.threads WHERE tenant = $1 AND owner IS NOT NULL GROUP BY owner
"""
_RULES = """
INSERT INTO antiphon.redaction_rules (tenant, digest) VALUES ($1, $2)
ON CONFLICT (tenant) DO UPDATE SET digest = excluded.digest
"""
_HOSTS_LOCK = "hosts"
"""The name under which hosts that beat or leave wait for each other: two may not register one name at a time."""

_FITTING = "(t.unfit IS NULL OR NOT t.unfit::jsonb ? $3)"
_DUE = f"""
{THREAD} WHERE t.tenant = $1 AND t.owner IS NULL AND t.due_at IS NOT NULL AND t.due_at <= $2 AND {_FITTING}
    AND (t.kind = ANY($4::text[]) OR t.kind IS NULL AND $5)
ORDER BY t.due_at, t.key LIMIT $6
"""
_ABANDONED = f"""
{THREAD} WHERE t.tenant = $1 AND t.owner = ANY($6::bigint[]) AND (t.open_calls > 0 OR t.due_at <= $2) AND {_FITTING}
    AND (t.kind = ANY($4::text[]) OR t.kind IS NULL AND $5)
ORDER BY t.key LIMIT $7
"""
_SKIPPING = " FOR UPDATE OF t SKIP LOCKED"
"""Lock what is found, and leave out rows that another transaction has locked; conditions are compared under the lock."""
_POSTED = """
SELECT thread_id, posted FROM antiphon.threads WHERE tenant = $1 AND owner = $2 AND posted > 0 ORDER BY thread_id
"""


class Moment:
    """A reading of the clock that measures leases: of the database's clock, or of a given one."""

    def __init__(self, boot: str, seconds: float, clock: LeaseClock) -> None:
        self.boot = boot
        self._seconds = seconds
        self._clock = clock

    def now(self) -> float:
        return self._seconds

    def has_ended(self, instance: str) -> bool:
        return self._clock.has_ended(instance)

    @classmethod
    async def read(cls, session: Session, clock: LeaseClock | None) -> Moment:
        """Return the present reading."""
        if clock is not None:
            return cls(clock.boot, clock.now(), clock)
        seconds = await session.connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::double precision")
        return cls("database", float(seconds), _LOCAL)


_LOCAL = BootClock()
"""It knows which processes of this machine have ended, so that their leases end at once."""


async def leases(session: Session) -> list[HostRow]:
    """Return all hosts, by name."""
    return [_lease(row) for row in await session.fetch(_HOSTS)]


async def _now_and_leases(session: Session, clock: LeaseClock | None) -> tuple[Moment, list[HostRow]]:
    """Return the present reading of the clock and all hosts, by one statement."""
    rows = await session.fetch(_HOSTS)
    if clock is not None or not rows:
        return await Moment.read(session, clock), [_lease(row) for row in rows]
    return Moment("database", float(rows[0]["now"]), _LOCAL), [_lease(row) for row in rows]


def _lease(row: Row) -> HostRow:
    key, name, instance, build, kinds, lease, *rest, _ = row.values()
    return HostRow(key, Host(name, build, tuple(orjson.loads(kinds)), lease, instance), *rest)


def _find(hosts: Iterable[HostRow], host: Host) -> HostRow | None:
    """Return the row of a host that has registered and not left, even if its lease has ended."""
    for each in hosts:
        if (each.host.name, each.host.instance, each.left_at) == (host.name, host.instance, None):
            return each
    return None


def _living(hosts: Iterable[HostRow], host: Host, now: datetime, moment: Moment) -> HostRow:
    """Return the row of the calling host, if it has a lease. Its process is not checked: it is alive, because it calls.

    Raises:
        UnknownHostError: it has never beaten, or has left.
        HostExpiredError: its lease is over.
    """
    lease = _find(hosts, host)
    if lease is None:
        raise UnknownHostError(host.name)
    if not lease.has_lease(moment):
        raise HostExpiredError(host.name, lease.until(now, moment))
    return lease


async def rules(session: Session) -> int:
    """Return the digest of the rules that hosts redact by; 0: none yet."""
    return int(await session.fetchval("SELECT digest FROM antiphon.redaction_rules WHERE tenant = $1") or 0)


async def adopt_rules(session: Session, redaction: LedgerRedaction, now: datetime, clock: LeaseClock | None) -> None:
    """Make other rules those of the ledger.

    Raises:
        OtherRedactionError: a host is alive.
    """
    await lock_threads(session, [_HOSTS_LOCK])
    redaction.check_unused(await hosts(session, now, clock))
    await session.execute(_RULES, redaction.digest)


async def beat(session: Session, host: Host, now: datetime, clock: LeaseClock | None, redaction: LedgerRedaction) -> None:
    """Register a host, or renew its lease. The first host of a ledger sets the rules that all redact by.

    Raises:
        HostNameTakenError: another living process has that name.
        OtherRedactionError: the ledger has other rules.
    """
    await lock_threads(session, [_HOSTS_LOCK])
    redaction.check_digest(found := await rules(session))
    if not found:
        await session.execute(_RULES, redaction.digest)
    moment, hosts = await _now_and_leases(session, clock)
    for each in hosts:
        if each.host.name == host.name and each.host.instance != host.instance and each.is_alive(moment):
            raise HostNameTakenError(host.name, each.until(now, moment))
    known, micros = _find(hosts, host), to_micros(now)
    lease = HostRow(0, host, moment.boot, moment.now() + host.lease, micros, micros, None)
    if known is None:
        await session.execute(_NEW_HOST, *lease.columns)
    else:
        await session.execute(_HOST, known.key, *lease._replace(since=known.since).columns)
    await _forget(session, hosts, moment, keep=known)


async def leave(session: Session, host: Host, now: int, clock: LeaseClock | None) -> None:
    """Unregister a host; an unknown host changes nothing."""
    await lock_threads(session, [_HOSTS_LOCK])
    moment, hosts = await _now_and_leases(session, clock)
    if (lease := _find(hosts, host)) is not None:
        await session.execute(_HOST, lease.key, *lease._replace(left_at=now).columns)
        await _forget(session, await leases(session), moment)


async def _forget(session: Session, hosts: Iterable[HostRow], moment: Moment, *, keep: HostRow | None = None) -> None:
    """Remove dead hosts that own no thread."""
    if dead := [each.key for each in hosts if each is not keep and not each.is_alive(moment)]:
        await session.execute(_FORGET, dead)


async def hosts(session: Session, now: datetime, clock: LeaseClock | None) -> tuple[HostStatus, ...]:
    """Return all hosts."""
    moment = await Moment.read(session, clock)
    owned = {row[0]: row[1] for row in await session.fetch(_COUNTS)}
    return tuple(
        HostStatus(each.host, each.is_alive(moment), from_micros(each.since), each.until(now, moment), owned.get(each.key, 0))
        for each in await leases(session)
    )


class ClaimRequest(NamedTuple):
    """The arguments of a `claim`."""

    thread_id: str
    by: Host | None
    kind: str | None
    now: datetime
    redaction: LedgerRedaction


async def claim_thread(session: Session, wanted: ClaimRequest, clock: LeaseClock | None) -> tuple[Thread, str | None]:
    """Give a thread its next epoch and owner; return it, and the name of the other host that owned it, if one did.

    Raises:
        OwnedError: another living host owns it.
        UnknownHostError: the host has never beaten, or has left.
        HostExpiredError: its lease is over.
        SecretNameError: the thread is new, and its name looks like a secret.
    """
    by, now = wanted.by, wanted.now
    moment, known = await _now_and_leases(session, clock)
    owner = None if by is None else _living(known, by, now, moment).key
    thread = await _locked(session, wanted.thread_id)
    if thread is None:
        await lock_threads(session, [wanted.thread_id])  # another process may just be creating it
        thread = await _locked(session, wanted.thread_id)
    if thread is None:
        wanted.redaction.check_name(wanted.thread_id, "the name of a thread")
        state = new_state(wanted.thread_id, to_micros(now), is_redacted=wanted.redaction.is_on)
        thread = Thread(0, claimed(state, owner, wanted.kind), 0, None, 0)
        return thread._replace(key=await insert_thread(session, thread)), None
    if owner is not None and thread.state.owner not in (None, owner):
        _refuse_owned(known, thread.state, now, moment)
    taken_from = None if thread.state.owner == owner else _owner_name(known, thread.state)
    state = claimed(thread.state, owner, wanted.kind, build=None if by is None else by.build)
    thread = thread._replace(state=state)
    await update_thread(session, thread)
    return thread, taken_from


def _owner_name(hosts: Iterable[HostRow], state: State) -> str | None:
    """Return the name of the host that owns a thread; None if no host does."""
    return next((lease.host.name for lease in hosts if lease.key == state.owner), None)


async def _locked(session: Session, thread_id: str) -> Thread | None:
    """Return a thread's row, locked until the end of the transaction."""
    row = await session.fetchrow(f"{THREAD} WHERE t.tenant = $1 AND t.thread_id = $2 FOR UPDATE OF t", thread_id)
    return None if row is None else thread_of(row)


def _refuse_owned(hosts: Iterable[HostRow], state: State, now: datetime, moment: Moment, *advice: str) -> None:
    for lease in hosts:
        if lease.key == state.owner and lease.is_alive(moment):
            raise OwnedError(state.thread_id, lease.host.name, lease.until(now, moment), *advice)


async def move(session: Session, thread_id: str, to: str, now: datetime, clock: LeaseClock | None) -> Thread:
    """Mark a thread as moved, and return it.

    Raises:
        OwnedError: a living host owns it.
        ThreadMovedError: it was moved to another place before.
        UnknownThreadError: there is no such thread.
    """
    moment, known = await _now_and_leases(session, clock)
    thread = await _locked(session, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    _refuse_owned(known, thread.state, now, moment, OWNED)
    thread = thread._replace(state=moved(thread.state, to, to_micros(now)))
    await update_thread(session, thread)
    return thread


async def release(session: Session, thread_id: str, how: Release) -> Thread:
    """Release a thread, and return it.

    Raises:
        FencedError: the epoch is not the owner's.
        UnknownThreadError: there is no such thread.
    """
    thread = await _locked(session, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    is_plain = how.unfit is None or await find_key(session, thread.key) is None
    thread = thread._replace(state=released(thread.state, how if is_plain else withheld(how)))
    await update_thread(session, thread)
    return thread


def _wanted(request: TakeRequest) -> tuple[Any, ...]:
    """Return the first values of the statements that look for due threads, after the tenant."""
    names = [kind for kind in request.kinds if kind is not None]
    return to_micros(request.now), request.by.build, names, None in request.kinds


async def take(
    session: Session, wanted: TakeRequest, clock: LeaseClock | None
) -> tuple[list[Thread], tuple[TakenThread, ...]]:
    """Claim due threads, the longest due first; return their rows, and what the caller is told of them.

    Raises:
        UnknownHostError: the host has never beaten, or has left.
        HostExpiredError: its lease is over.
    """
    moment, known = await _now_and_leases(session, clock)
    owner, micros = _living(known, wanted.by, wanted.now, moment).key, to_micros(wanted.now)
    dead = {each.key: each.ended_at for each in known if not each.is_alive(moment)}
    threads: list[Thread] = []
    taken: list[TakenThread] = []
    for since, thread in (await _due(session, wanted, dead, lock=_SKIPPING))[: wanted.limit]:
        state = claimed(thread.state, owner)
        threads.append(thread._replace(state=state))
        why, before = why_due(thread.state, micros), _owner_name(known, thread.state)
        taken.append(TakenThread(state.thread_id, Epoch(state.epoch, state.seq, before), state.kind, why, from_micros(since)))
    await update_threads(session, threads)
    return threads, tuple(taken)


async def has_due(session: Session, wanted: TakeRequest, clock: LeaseClock | None) -> bool:
    """Whether `take` must be called: a thread is due, or the host has no lease, which `take` reports as an error."""
    moment, known = await _now_and_leases(session, clock)
    lease = _find(known, wanted.by)
    if lease is None or not lease.has_lease(moment):
        return True
    dead = {each.key: each.ended_at for each in known if not each.is_alive(moment)}
    return wanted.limit > 0 and bool(await _due(session, wanted._replace(limit=1), dead))


async def _due(session: Session, wanted: TakeRequest, dead: Mapping[int, int], *, lock: str = "") -> list[tuple[int, Thread]]:
    """Return the threads that a host may take, each with the time at which it became due, the longest due first."""
    asked, micros = _wanted(wanted), to_micros(wanted.now)
    rows = await session.fetch(_DUE + lock, *asked, wanted.limit)
    found = [(thread.state.due_at or 0, thread) for thread in map(thread_of, rows)]
    rows = await session.fetch(_ABANDONED + lock, *asked, list(dead), wanted.limit) if dead else []
    for thread in map(thread_of, rows):
        since = due_since(thread.state, thread.open_calls > 0, micros, dead[thread.state.owner or 0])
        if since is not None:
            found.append((since, thread))
    return sorted(found, key=lambda each: (each[0], each[1].key))


async def woken(session: Session, by: Host) -> tuple[Woken, ...]:
    """Return the threads of a host that have posted messages which it has not reported as seen."""
    lease = _find(await leases(session), by)
    rows = [] if lease is None else await session.fetch(_POSTED, lease.key)
    return tuple(Woken(row[0], row[1]) for row in rows)


async def note_seen(session: Session, by: Host, seen: Mapping[str, int]) -> tuple[list[Thread], tuple[Woken, ...]]:
    """Record which posted messages a host has seen; return the changed threads, and those with other posted messages."""
    lease = _find(await leases(session), by)
    changed: list[Thread] = []
    sql = f"{THREAD} WHERE t.tenant = $1 AND t.thread_id = ANY($2::text[]) AND t.owner = $3 ORDER BY t.key FOR UPDATE OF t"
    for row in [] if lease is None else await session.fetch(sql, list(seen), lease.key):
        thread = thread_of(row)
        state = seen_upto(thread.state, seen[thread.state.thread_id])
        if state != thread.state:
            changed.append(thread._replace(state=state))
            await update_thread(session, changed[-1])
    return changed, await woken(session, by)


# ---------------------------------------------------------------- limits for all hosts

_LIMITS = "SELECT model, state FROM antiphon.limits WHERE tenant = $1 ORDER BY model"
_LOCKED_LIMITS = """
SELECT model, state FROM antiphon.limits WHERE tenant = $1 AND model = ANY($2::text[]) ORDER BY model FOR UPDATE
"""
"""Hosts wait for each other at the rows of their limits, always in the same order."""
_LIMIT = """
INSERT INTO antiphon.limits (tenant, model, state) VALUES ($1, $2, $3)
ON CONFLICT (tenant, model) DO UPDATE SET state = excluded.state
"""


async def set_limit(session: Session, limit: Limit) -> None:
    """Set the limits of a model, or remove them."""
    if limit.is_none:
        await session.execute("DELETE FROM antiphon.limits WHERE tenant = $1 AND model = $2", limit.model)
        return
    await lock_threads(session, [_HOSTS_LOCK])  # two programs may set the first limit of a model at the same time
    rows = await session.fetch(_LOCKED_LIMITS, [limit.model])
    before = LimitState.load(limit.model, rows[0][1]) if rows else LimitState(limit)
    await session.execute(_LIMIT, limit.model, before.set(limit).dump())


async def limits(session: Session, now: datetime, clock: LeaseClock | None) -> tuple[LimitStatus, ...]:
    """Return all limits and their use."""
    rows = await session.fetch(_LIMITS)
    if not rows:
        return ()
    moment = await Moment.read(session, clock)
    names = {each.key: each.host.name for each in await leases(session) if each.is_alive(moment)}
    return tuple(LimitState.load(*row.values()).now(names, moment, now).status(names) for row in rows)


async def permits(
    session: Session, by: Host, wants: Mapping[str, PermitWants], now: datetime, clock: LeaseClock | None
) -> dict[str, PermitGrant]:
    """Lease permits to a host.

    Raises:
        UnknownHostError: the host has never beaten, or has left.
        HostExpiredError: its lease is over.
    """
    rows = await session.fetch(_LOCKED_LIMITS, list(wants))
    moment, known = await _now_and_leases(session, clock)  # after the lock: others may have waited long
    own = _living(known, by, now, moment).key
    living = [each.key for each in known if each.key == own or each.is_alive(moment)]
    grants = dict.fromkeys(wants, PermitGrant())
    for model, text in (row.values() for row in rows):
        before = LimitState.load(model, text).now(living, moment, now)
        state, grants[model] = before.give(own, wants[model], moment.now())
        await session.execute(_LIMIT, model, state.dump())
    return grants
