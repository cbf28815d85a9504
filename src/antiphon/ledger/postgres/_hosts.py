"""Hosts and owners: beats, claims, releases, the threads that a host may take, and permits.

Leases are measured by the clock of the database, which all machines share. Each function gets the time as a `Moment` that was
read in its own transaction. A claim locks the row of its thread, so it waits for an append that is being written and precedes
the next one. `take` skips rows that are locked: another host is just taking them, or their owner is writing.

**Many hosts.** Frequent operations of a host read its own row and the rows of hosts that may be dead, never all rows: with a
thousand hosts, each would read a thousand rows many times a second. A beat locks only the row of its host. A host registers,
and dead hosts are removed, under one lock that all share (`_HOSTS_LOCK`). It is taken before any lock of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from antiphon.errors import HostError, OwnedError, UnknownThreadError
from antiphon.ledger._admission import State, new_state
from antiphon.ledger._hosts import BootClock, Epoch, Host, HostRow, HostStatus, LeaseClock, TakenThread, Woken
from antiphon.ledger._ownership import OWNED, Release, claimed, due_since, moved, released, why_due, withheld
from antiphon.ledger._ownership import seen as seen_upto
from antiphon.ledger._permits import Limit, LimitState, LimitStatus, PermitGrant, PermitWants
from antiphon.ledger._records import from_micros, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._stored import TakeRequest, Thread
from antiphon.ledger.postgres._careful import insert_thread, lock_threads, update_thread, update_threads
from antiphon.ledger.postgres._connection import Row, Session
from antiphon.ledger.postgres._keys import find_key
from antiphon.ledger.postgres._rows import THREAD, thread_of

_HOSTS = """
SELECT key, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at FROM antiphon.hosts WHERE tenant = $1
"""
_BY_NAME = " ORDER BY name, since, key"
_ONE_HOST = f"{_HOSTS} AND name = $2 AND instance = $3 AND left_at IS NULL"
_CONCERNED = f"""
{_HOSTS} AND (left_at IS NOT NULL OR boot <> $2 OR ends <= $3 OR ends > $3 + lease OR starts_with(instance, $4)
    OR name = $5 AND instance = $6 AND left_at IS NULL){_BY_NAME}
"""
"""A host, and the hosts that may be dead: their leases have ended, or the caller can see that their processes have ended."""
_NEW_HOST = """
INSERT INTO antiphon.hosts (tenant, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
_HOST = """
UPDATE antiphon.hosts SET name = $3, instance = $4, build = $5, kinds = $6, lease = $7, boot = $8, ends = $9, since = $10,
    beaten_at = $11, left_at = $12
WHERE tenant = $1 AND key = $2
RETURNING (SELECT count(*) FROM antiphon.hosts WHERE tenant = $1 AND left_at IS NULL)
"""
_IS_FORGETTABLE = """
SELECT EXISTS (
    SELECT 1 FROM unnest($2::bigint[]) AS dead (key)
    WHERE NOT EXISTS (SELECT 1 FROM antiphon.threads AS t WHERE t.tenant = $1 AND t.owner = dead.key)
)
"""
_FORGET = """
DELETE FROM antiphon.hosts AS h USING unnest($2::bigint[], $3::double precision[]) AS dead (key, ends)
WHERE h.tenant = $1 AND h.key = dead.key AND h.ends = dead.ends
    AND NOT EXISTS (SELECT 1 FROM antiphon.threads AS t WHERE t.tenant = $1 AND t.owner = h.key)
"""
"""The end of the lease is compared again: a host that seemed dead may have renewed it meanwhile."""
_KEPT = "SELECT key FROM antiphon.hosts WHERE tenant = $1 AND key = $2 FOR KEY SHARE"
_TO_FORGET = "SELECT key FROM antiphon.hosts WHERE tenant = $1 AND key = ANY($2::bigint[]) ORDER BY key FOR UPDATE"
_COUNTS = """
SELECT owner, count(*) FROM antiphon.threads WHERE tenant = $1 AND owner IS NOT NULL GROUP BY owner
"""
_RULES = """
INSERT INTO antiphon.redaction_rules (tenant, digest) VALUES ($1, $2)
ON CONFLICT (tenant) DO UPDATE SET digest = excluded.digest
"""
_HOSTS_LOCK = "hosts"
"""The name under which hosts that register or leave wait for each other: two may not register one name at a time."""

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
"""Lock the rows that are found, and skip rows that another transaction has locked; conditions are compared under the lock."""
_POSTED = """
SELECT thread_id, posted FROM antiphon.threads
WHERE tenant = $1 AND posted > 0
    AND owner = (SELECT key FROM antiphon.hosts WHERE tenant = $1 AND name = $2 AND instance = $3 AND left_at IS NULL)
ORDER BY thread_id
"""


class Moment:
    """A reading of the clock that measures leases: of the database's clock, or of a given one."""

    def __init__(self, boot: str, seconds: float, clock: LeaseClock, visible: str | None) -> None:
        self.boot = boot
        self._seconds = seconds
        self._clock = clock
        self.visible = visible
        """The prefix of the instances of hosts whose processes this one can see; None: it sees none."""

    def now(self) -> float:
        return self._seconds

    def has_ended(self, instance: str) -> bool:
        return self._clock.has_ended(instance)

    @classmethod
    async def read(cls, session: Session, clock: LeaseClock | None) -> Moment:
        """Return the current reading."""
        if clock is not None:
            return cls(clock.boot, clock.now(), clock, "")
        seconds = await session.connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::double precision")
        return cls("database", float(seconds), _LOCAL, _LOCAL.visible)


_LOCAL = BootClock()
"""It detects which processes of this machine have ended, so that their leases end at once."""


async def leases(session: Session) -> list[HostRow]:
    """Return all hosts, by name."""
    return [_lease(row) for row in await session.fetch(_HOSTS + _BY_NAME)]


def _lease(row: Row) -> HostRow:
    key, name, instance, build, kinds, lease, *rest = row.values()
    return HostRow(key, Host(name, build, tuple(orjson.loads(kinds)), lease, instance), *rest)


async def _find(session: Session, host: Host, *, lock: str = "") -> HostRow | None:
    """Return the row of a host that has registered and not left, even if its lease has ended."""
    row = await session.fetchrow(_ONE_HOST + lock, host.name, host.instance)
    return None if row is None else _lease(row)


async def _concerned(session: Session, host: Host, moment: Moment) -> tuple[HostRow | None, list[HostRow]]:
    """Return the row of a host, and those of dead hosts, by name."""
    asked = (moment.boot, moment.now(), moment.visible, host.name, host.instance)
    found = [_lease(row) for row in await session.fetch(_CONCERNED, *asked)]
    own = next((each for each in found if _is_of(each, host)), None)
    return own, [each for each in found if each is not own and not each.is_alive(moment)]


def _is_of(row: HostRow, host: Host) -> bool:
    return (row.host.name, row.host.instance, row.left_at) == (host.name, host.instance, None)


def _living(lease: HostRow | None, host: Host, now: datetime, moment: Moment) -> HostRow:
    """Return the row of the calling host, if it has a lease. Its process is not checked: it is alive, because it calls.

    Raises:
        HostError: it has never beaten or has left, or its lease is over.
    """
    if lease is None:
        raise HostError("UNKNOWN_HOST", host.name)
    if not lease.has_lease(moment):
        raise HostError("HOST_EXPIRED", host.name, lease.until(now, moment))
    return lease


async def rules(session: Session) -> int:
    """Return the digest of the redaction rules of the hosts; 0: none yet."""
    return int(await session.fetchval("SELECT digest FROM antiphon.redaction_rules WHERE tenant = $1") or 0)


async def adopt_rules(session: Session, redaction: LedgerRedaction, now: datetime, clock: LeaseClock | None) -> None:
    """Replace the redaction rules of the ledger.

    Raises:
        OtherRedactionError: a host is alive.
    """
    await lock_threads(session, [_HOSTS_LOCK])
    # A beat may be in progress.
    await session.execute("SELECT 1 FROM antiphon.hosts WHERE tenant = $1 ORDER BY key FOR UPDATE")
    redaction.check_unused(await hosts(session, now, clock))
    await session.execute(_RULES, redaction.digest)


class Registration(NamedTuple):
    """The place of a host among the others."""

    key: int
    hosts: int
    """How many are registered."""
    is_littered: bool = False
    """Whether there are dead hosts to remove."""


async def renew(
    session: Session, host: Host, now: datetime, clock: LeaseClock | None, redaction: LedgerRedaction
) -> Registration | None:
    """Renew the lease of a host that has one; None: it must register (`beat`).

    Only its own row is locked, so hosts do not wait for each other's commits. The time is read after the lock: if another
    process has registered the name meanwhile, it held that lock, and the lease is over by now.

    Raises:
        OtherRedactionError: the ledger has other rules.
    """
    known = await _find(session, host, lock=" FOR UPDATE")
    moment, digest = await Moment.read(session, clock), await rules(session)
    if known is None or not known.has_lease(moment) or not digest:
        return None
    redaction.check_digest(digest)
    renewed = _beaten(host, now, moment)._replace(since=known.since)
    count = await session.fetchval(_HOST, known.key, *renewed.columns)
    dead = [each.key for each in (await _concerned(session, host, moment))[1]]
    return Registration(known.key, count, bool(dead) and await session.fetchval(_IS_FORGETTABLE, dead))


def _beaten(host: Host, now: datetime, moment: Moment) -> HostRow:
    micros = to_micros(now)
    return HostRow(0, host, moment.boot, moment.now() + host.lease, micros, micros, None)


async def beat(
    session: Session, host: Host, now: datetime, clock: LeaseClock | None, redaction: LedgerRedaction
) -> Registration:
    """Register a host, or renew its lease. The first host of a ledger sets the rules that all redact by.

    Raises:
        HostError: another living process has that name.
        OtherRedactionError: the ledger has other rules.
    """
    await lock_threads(session, [_HOSTS_LOCK])
    redaction.check_digest(found := await rules(session))
    if not found:
        await session.execute(_RULES, redaction.digest)
    # The rows are locked before the time is read: one of them may just be renewed.
    named = [_lease(row) for row in await session.fetch(f"{_HOSTS} AND name = $2 ORDER BY key FOR UPDATE", host.name)]
    moment = await Moment.read(session, clock)
    for each in named:
        if each.host.instance != host.instance and each.is_alive(moment):
            raise HostError("HOST_NAME_TAKEN", host.name, each.until(now, moment))
    known, lease = next((each for each in named if _is_of(each, host)), None), _beaten(host, now, moment)
    if known is None:
        await session.execute(_NEW_HOST, *lease.columns)
    else:
        await session.execute(_HOST, known.key, *lease._replace(since=known.since).columns)
    own, dead = await _concerned(session, host, moment)
    await _forget(session, dead)
    count = await session.fetchval("SELECT count(*) FROM antiphon.hosts WHERE tenant = $1 AND left_at IS NULL")
    return Registration(0 if own is None else own.key, count)


async def leave(session: Session, host: Host, now: int, clock: LeaseClock | None) -> None:
    """Unregister a host; an unknown host changes nothing."""
    await lock_threads(session, [_HOSTS_LOCK])
    if (lease := await _find(session, host, lock=" FOR UPDATE")) is not None:
        await session.execute(_HOST, lease.key, *lease._replace(left_at=now).columns)
        await _forget(session, (await _concerned(session, host, await Moment.read(session, clock)))[1])


async def forget_dead(session: Session, host: Host, clock: LeaseClock | None) -> None:
    """Remove dead hosts that own no thread; `host` is the one that calls."""
    await lock_threads(session, [_HOSTS_LOCK])
    await _forget(session, (await _concerned(session, host, await Moment.read(session, clock)))[1])


async def _forget(session: Session, dead: Sequence[HostRow]) -> None:
    """Remove dead hosts that own no thread."""
    if dead:
        # A statement of its own: it waits for claims (see `_keep`), and the next statement sees the owners that they have set.
        await session.execute(_TO_FORGET, [each.key for each in dead])
        await session.execute(_FORGET, [each.key for each in dead], [each.ends for each in dead])


async def _keep(session: Session, host: Host, owner: int, now: datetime) -> None:
    """Lock the row of a host that becomes an owner against removal, until the end of the transaction.

    The host may have waited for the row of the thread until its lease was over. If another host removed its row meanwhile,
    nobody could ever take the thread from it.

    Raises:
        HostError: the row is gone.
    """
    if await session.fetchval(_KEPT, owner) is None:
        raise HostError("HOST_EXPIRED", host.name, now)


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
    """Give a thread its next epoch and owner; return it, and the name of the other host that owned it and has not left.

    Raises:
        OwnedError: another living host owns it.
        HostError: the host has never beaten or has left, or its lease is over.
        SecretNameError: the thread is new, and its name looks like a secret.
    """
    by, now = wanted.by, wanted.now
    thread = await _locked(session, wanted.thread_id)
    if thread is None:
        await lock_threads(session, [wanted.thread_id])  # another process may be creating it at this moment
        thread = await _locked(session, wanted.thread_id)
    # Read the time after the lock, for which this may have waited long: with an older time, a lease that was renewed since
    # would look like one from before the clock was set back.
    moment = await Moment.read(session, clock)
    owner = None if by is None else _living(await _find(session, by), by, now, moment).key
    if by is not None and owner is not None:
        await _keep(session, by, owner, now)
    if thread is None:
        wanted.redaction.check_name(wanted.thread_id, "the name of a thread")
        state = new_state(wanted.thread_id, to_micros(now), is_redacted=wanted.redaction.is_on)
        thread = Thread(0, claimed(state, owner, wanted.kind), 0, None, 0)
        return thread._replace(key=await insert_thread(session, thread)), None
    before = None if thread.state.owner == owner else await _owner(session, thread.state)
    if owner is not None:
        _refuse_owned(before, thread.state, now, moment)
    state = claimed(thread.state, owner, wanted.kind, build=None if by is None else by.build)
    thread = thread._replace(state=state)
    await update_thread(session, thread)
    return thread, None if before is None or before.left_at is not None else before.host.name


async def _owner(session: Session, state: State) -> HostRow | None:
    """Return the host that owns a thread; None if no host does."""
    row = None if state.owner is None else await session.fetchrow(f"{_HOSTS} AND key = $2", state.owner)
    return None if row is None else _lease(row)


async def _locked(session: Session, thread_id: str) -> Thread | None:
    """Return a thread's row, locked until the end of the transaction."""
    row = await session.fetchrow(f"{THREAD} WHERE t.tenant = $1 AND t.thread_id = $2 FOR UPDATE OF t", thread_id)
    return None if row is None else thread_of(row)


def _refuse_owned(owner: HostRow | None, state: State, now: datetime, moment: Moment, *advice: str) -> None:
    if owner is not None and owner.is_alive(moment):
        raise OwnedError(state.thread_id, owner.host.name, owner.until(now, moment), *advice)


async def move(session: Session, thread_id: str, to: str, now: datetime, clock: LeaseClock | None) -> Thread:
    """Mark a thread as moved, and return it.

    Raises:
        OwnedError: a living host owns it.
        ThreadMovedError: it was moved to another place before.
        UnknownThreadError: there is no such thread.
    """
    thread = await _locked(session, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    moment = await Moment.read(session, clock)  # after the lock, as in `claim_thread`
    _refuse_owned(await _owner(session, thread.state), thread.state, now, moment, OWNED)
    thread = thread._replace(state=moved(thread.state, to, to_micros(now)))
    await update_thread(session, thread)
    return thread


async def is_owned_so(session: Session, threads: Sequence[Thread]) -> bool:
    """Whether the owners and epochs of threads are stored as given, or were changed again since."""
    sql = "SELECT key, epoch, owner FROM antiphon.threads WHERE tenant = $1 AND key = ANY($2::bigint[])"
    found = {row[0]: (row[1], row[2]) for row in await session.fetch(sql, [thread.key for thread in threads])}
    for thread in threads:
        epoch, owner = found.get(thread.key, (0, None))
        is_later = abs(epoch) > abs(thread.state.epoch)
        if not is_later and (epoch, owner) != (thread.state.epoch, thread.state.owner):
            return False
    return True


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
    """Return the first values of the statements that search for due threads, after the tenant."""
    names = [kind for kind in request.kinds if kind is not None]
    return to_micros(request.now), request.by.build, names, None in request.kinds


async def take(session: Session, wanted: TakeRequest, clock: LeaseClock | None) -> list[tuple[Thread, TakenThread]]:
    """Claim due threads, the longest due first; return their rows, and the values for the caller.

    Raises:
        HostError: the host has never beaten or has left, or its lease is over.
    """
    moment = await Moment.read(session, clock)
    own_lease, dead = await _concerned(session, wanted.by, moment)
    owner, micros = _living(own_lease, wanted.by, wanted.now, moment).key, to_micros(wanted.now)
    names = {each.key: each.host.name for each in dead if each.left_at is None}
    taken: list[tuple[Thread, TakenThread]] = []
    for since, thread in (await _due(session, wanted, dead, lock=_SKIPPING))[: wanted.limit]:
        state = claimed(thread.state, owner)
        own = thread._replace(state=state)
        why, before = why_due(thread.state, micros), names.get(thread.state.owner or 0)
        told = TakenThread(state.thread_id, Epoch(state.epoch, state.seq, before), state.kind, why, from_micros(since))
        taken.append((own, told))
    if taken:
        await _keep(session, wanted.by, owner, wanted.now)
        await update_threads(session, [thread for thread, _ in taken])
    return taken


async def has_due(session: Session, wanted: TakeRequest, clock: LeaseClock | None) -> bool:
    """Whether `take` must be called: a thread is due, or the host has no lease, which `take` reports as an error."""
    moment = await Moment.read(session, clock)
    own, dead = await _concerned(session, wanted.by, moment)
    if own is None or not own.has_lease(moment):
        return True
    return wanted.limit > 0 and bool(await _due(session, wanted._replace(limit=1), dead))


async def _due(session: Session, wanted: TakeRequest, dead: Sequence[HostRow], *, lock: str = "") -> list[tuple[int, Thread]]:
    """Return the threads that a host may take, each with the time at which it became due, the longest due first."""
    asked, micros, ended_at = _wanted(wanted), to_micros(wanted.now), {each.key: each.ended_at for each in dead}
    rows = await session.fetch(_DUE + lock, *asked, wanted.limit)
    found = [(thread.state.due_at or 0, thread) for thread in map(thread_of, rows)]
    rows = await session.fetch(_ABANDONED + lock, *asked, list(ended_at), wanted.limit) if dead else []
    for thread in map(thread_of, rows):
        since = due_since(thread.state, thread.open_calls > 0, micros, ended_at[thread.state.owner or 0])
        if since is not None:
            found.append((since, thread))
    return sorted(found, key=lambda each: (each[0], each[1].key))


async def woken(session: Session, by: Host) -> tuple[Woken, ...]:
    """Return the threads of a host that have posted messages which it has not reported as seen."""
    return tuple(Woken(row[0], row[1]) for row in await session.fetch(_POSTED, by.name, by.instance))


async def note_seen(session: Session, by: Host, seen: Mapping[str, int]) -> tuple[list[Thread], tuple[Woken, ...]]:
    """Record which posted messages a host has seen; return the changed threads, and those with other posted messages."""
    lease = await _find(session, by)
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
_REMOVED = """
SELECT key FROM unnest($2::bigint[]) AS held (key)
WHERE NOT EXISTS (SELECT 1 FROM antiphon.hosts AS h WHERE h.tenant = $1 AND h.key = held.key)
"""
"""Hosts that have died, and whose rows were removed since."""
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
        HostError: the host has never beaten or has left, or its lease is over.
    """
    rows = await session.fetch(_LOCKED_LIMITS, list(wants))
    moment = await Moment.read(session, clock)  # read the time after the lock, which may have taken long
    found, dead = await _concerned(session, by, moment)
    own = _living(found, by, now, moment).key
    grants = dict.fromkeys(wants, PermitGrant())
    for model, text in (row.values() for row in rows):
        before = LimitState.load(model, text)
        gone = {each.key for each in dead} | {row[0] for row in await session.fetch(_REMOVED, list(before.holdings))}
        before = before.now({own, *before.holdings.keys() - gone}, moment, now)
        state, grants[model] = before.give(own, wants[model], moment.now())
        await session.execute(_LIMIT, model, state.dump())
    return grants
