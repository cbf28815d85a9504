"""Hosts and owners: beats, claims, releases, and the threads that a host may take.

**Time.** A verb reads the clock that measures leases in its own transaction, and after its locks, for which it may have waited
long: with an older time, a lease that was renewed since would look like one from before the clock was set back. In PostgreSQL
it is the clock of the database, which all machines share; in a file, that of the machine. A claim locks the row of its thread,
so it waits for an append that is being written and precedes the next one. `take` skips rows that are locked: another host is
just taking them, or their owner is writing.

**Many hosts.** Frequent operations of a host read its own row and the rows of hosts that may be dead, never all rows: with a
thousand hosts, each would read a thousand rows many times a second. A beat locks only the row of its host. A host registers,
and dead hosts are removed, under one lock that all share (`HOSTS_LOCK`). It is taken before any lock of a row.

`has_due` is a read that comes before `take`, so a host that polls an idle ledger writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from antiphon.errors import HostError, LedgerCorruptError, OwnedError, UnknownThreadError
from antiphon.ledger._admission import State, new_state
from antiphon.ledger._hosts import Epoch, Host, HostRow, HostStatus, TakenThread, Woken
from antiphon.ledger._ownership import OWNED, Release, claimed, due_since, moved, released, why_due, withheld
from antiphon.ledger._ownership import seen as seen_upto
from antiphon.ledger._records import from_micros, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._sql.keys import find_key
from antiphon.ledger._sql.rows import COLUMNS, THREAD, thread_of
from antiphon.ledger._sql.statements import (
    ChangeThreads,
    Moment,
    PutThread,
    Row,
    Spelled,
    Verb,
    check_written,
    lock,
    moment,
    row,
    rows,
    value,
    write,
    write_one,
)
from antiphon.ledger._stored import TakeRequest, Thread, checksum_of

HOSTS = """
SELECT key, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at, checksum FROM antiphon.hosts
WHERE tenant = $1
"""
_BY_NAME = " ORDER BY name, since, key"
_ONE_HOST = f"{HOSTS} AND name = $2 AND instance = $3 AND left_at IS NULL"
_CONCERNED = f"""
{HOSTS} AND (left_at IS NOT NULL OR boot <> $2 OR ends <= $3 OR ends > $3 + lease
    OR substr(instance, 1, length($4::text)) = $4::text OR name = $5 AND instance = $6 AND left_at IS NULL){_BY_NAME}
"""
"""A host, and the hosts that may be dead: their leases have ended, or the caller can see that their processes have ended."""
_NEW_HOST = """
INSERT INTO antiphon.hosts (
    tenant, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at, checksum
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0)
RETURNING key
"""
_HOST = """
UPDATE antiphon.hosts SET name = $3, instance = $4, build = $5, kinds = $6, lease = $7, boot = $8, ends = $9, since = $10,
    beaten_at = $11, left_at = $12, checksum = $13
WHERE tenant = $1 AND key = $2
RETURNING (SELECT count(*) FROM antiphon.hosts AS h WHERE h.tenant = $1 AND h.left_at IS NULL)
"""
_OWNERS = """
SELECT DISTINCT owner FROM antiphon.threads WHERE tenant = $1 AND owner = ANY($2::bigint[])
"""
_FORGET = """
DELETE FROM antiphon.hosts WHERE tenant = $1 AND key = ANY($2::bigint[])
    AND NOT EXISTS (SELECT 1 FROM antiphon.threads AS t WHERE t.tenant = $1 AND t.owner = hosts.key)
"""
_LOCK_HOST = "SELECT key FROM antiphon.hosts WHERE tenant = $1 AND key = $2 FOR KEY SHARE"
_TO_FORGET = "SELECT key, ends FROM antiphon.hosts WHERE tenant = $1 AND key = ANY($2::bigint[]) ORDER BY key FOR UPDATE"
_COUNTS = "SELECT owner, count(*) FROM antiphon.threads WHERE tenant = $1 AND owner IS NOT NULL GROUP BY owner"
_RULES = Spelled(
    "SELECT digest FROM antiphon.redaction_rules WHERE tenant = $1",
    "SELECT value FROM counters WHERE name = 'redaction'",
)
_SET_RULES = Spelled(
    """
INSERT INTO antiphon.redaction_rules (tenant, digest) VALUES ($1, $2)
ON CONFLICT (tenant) DO UPDATE SET digest = excluded.digest
""",
    "UPDATE counters SET value = $2 WHERE name = 'redaction'",
)
HOSTS_LOCK = "hosts"
"""The name under which hosts that register or leave wait for each other: two may not register one name at a time."""

_FITS = Spelled(
    "(t.unfit IS NULL OR NOT t.unfit::jsonb ? $3)",
    "(t.unfit IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(t.unfit) AS builds WHERE builds.key = $3))",
)
DUE = Spelled(
    f"""
{THREAD} WHERE t.tenant = $1 AND t.owner IS NULL AND t.due_at IS NOT NULL AND t.due_at <= $2 AND {_FITS.postgres}
    AND (t.kind = ANY($4::text[]) OR t.kind IS NULL AND $5)
ORDER BY t.due_at, t.key LIMIT $6 FOR UPDATE OF t SKIP LOCKED
""",
    f"""
SELECT {COLUMNS} FROM json_each($4) AS kinds CROSS JOIN threads AS t WHERE $5 IS NOT NULL AND t.key IN (
    SELECT t.key FROM threads AS t INDEXED BY threads_due
    WHERE t.owner IS NULL AND t.due_at IS NOT NULL AND t.kind IS kinds.value AND t.due_at <= $2 AND {_FITS.sqlite}
    ORDER BY t.due_at, t.key LIMIT $6
) ORDER BY t.due_at, t.key LIMIT $6
""",  # noqa: S608 (columns of ours)
)
"""Locks the rows that are found, and skips rows that another transaction has locked; conditions are compared under the lock.

In SQLite, the inner statement reads a few rows for each kind in the order of the index. All due rows may be many.
"""
_ABANDONED = f"""
{THREAD} WHERE t.tenant = $1 AND t.owner = ANY($6::bigint[]) AND (t.open_calls > 0 OR t.due_at <= $2) AND <fits>
    AND (t.kind = ANY($4::text[]) OR t.kind IS NULL AND $5)
ORDER BY t.key LIMIT $7 FOR UPDATE OF t SKIP LOCKED
"""
ABANDONED = Spelled(*(_ABANDONED.replace("<fits>", fits) for fits in _FITS))
POSTED = """
SELECT thread_id, posted FROM antiphon.threads
WHERE tenant = $1 AND posted > 0
    AND owner = (SELECT key FROM antiphon.hosts WHERE tenant = $1 AND name = $2 AND instance = $3 AND left_at IS NULL)
ORDER BY thread_id
"""
_LOCKED = f"{THREAD} WHERE t.tenant = $1 AND t.thread_id = $2 FOR UPDATE OF t"
_SEEN = f"{THREAD} WHERE t.tenant = $1 AND t.thread_id = ANY($2::text[]) AND t.owner = $3 ORDER BY t.key FOR UPDATE OF t"


# ---------------------------------------------------------------- rows of hosts


def host_of(columns: Row) -> HostRow:
    """Return a row as a value."""
    *covered, checksum = columns
    key, name, instance, build, kinds, lease, *rest = covered
    if checksum_of(covered) != checksum:
        raise LedgerCorruptError(f"host {name!r} was altered; restore a backup, and run verify on it")
    return HostRow(key, _host(name, build, kinds, lease, instance), *rest)


@lru_cache(maxsize=1024)
def _host(name: str, build: str, kinds: str, lease: float, instance: str) -> Host:
    """Return a host of a row. Each beat reads rows of the same hosts, and a host checks its names when it is made."""
    return Host(name, build, tuple(orjson.loads(kinds)), lease, instance)


def all_hosts() -> Verb[list[HostRow]]:
    """Return all hosts, by name."""
    return [host_of(columns) for columns in (yield from rows(HOSTS + _BY_NAME))]


def _find(host: Host, *, lock: str = "") -> Verb[HostRow | None]:
    """Return the row of a host that has registered and not left, even if its lease has ended."""
    columns = yield from row(_ONE_HOST + lock, host.name, host.instance)
    return None if columns is None else host_of(columns)


def concerned(host: Host, moment: Moment) -> Verb[tuple[HostRow | None, list[HostRow]]]:
    """Return the row of a host, and those of dead hosts, by name."""
    values = (moment.boot, moment.now(), moment.visible, host.name, host.instance)
    host_rows = [host_of(columns) for columns in (yield from rows(_CONCERNED, *values))]
    lease = next((host_row for host_row in host_rows if _is_of(host_row, host)), None)
    return lease, [host_row for host_row in host_rows if host_row is not lease and not host_row.is_alive(moment)]


def _is_of(row: HostRow, host: Host) -> bool:
    return (row.host.name, row.host.instance, row.left_at) == (host.name, host.instance, None)


def living(lease: HostRow | None, host: Host, now: datetime, moment: Moment) -> HostRow:
    """Return the row of the calling host, if it has a lease. Its process is not checked: it is alive, because it calls."""
    if lease is None:
        raise HostError("UNKNOWN_HOST", host.name)
    if not lease.has_lease(moment):
        raise HostError("HOST_EXPIRED", host.name, lease.until(now, moment))
    return lease


def _put_host(host: HostRow) -> Verb[int]:
    """Write the row of a host, and return how many hosts are registered."""
    covered = (host.key, *host.columns)
    counts = yield from rows(_HOST, *covered, checksum_of(covered))
    check_written(len(counts), 1)
    return int(counts[0][0])


# ---------------------------------------------------------------- the rules of redaction


def rules() -> Verb[int]:
    """Return the digest of the redaction rules of the hosts; 0: none yet."""
    digest = yield from value(_RULES)
    return digest if isinstance(digest, int) else 0


def adopt_rules(redaction: LedgerRedaction, now: datetime) -> Verb[None]:
    """Replace the redaction rules of the ledger."""
    yield from lock(HOSTS_LOCK)
    # A beat may be in progress.
    yield from rows("SELECT 1 FROM antiphon.hosts WHERE tenant = $1 ORDER BY key FOR UPDATE")
    redaction.check_unused((yield from hosts(now)))
    yield from write_one(_SET_RULES, redaction.digest)


# ---------------------------------------------------------------- beats


class Registration(NamedTuple):
    """The place of a host among the others."""

    key: int
    hosts: int
    """How many are registered."""
    is_littered: bool = False
    """Whether there are dead hosts to remove."""


def renew(host: Host, now: datetime, redaction: LedgerRedaction) -> Verb[Registration | None]:
    """Renew the lease of a host that has one; None: it must register (`beat`).

    Only its own row is locked, so hosts do not wait for each other's commits. The time is read after the lock: if another
    process has registered the name meanwhile, it held that lock, and the lease is over by now.
    """
    registered = yield from _find(host, lock=" FOR UPDATE")
    at, digest = (yield from moment()), (yield from rules())
    if registered is None or not registered.has_lease(at) or not digest:
        return None
    redaction.check_digest(digest)
    count = yield from _put_host(_beaten(host, now, at)._replace(key=registered.key, since=registered.since))
    dead = [host_row.key for host_row in (yield from concerned(host, at))[1]]
    owners = {columns[0] for columns in (yield from rows(_OWNERS, dead))} if dead else set[int]()
    return Registration(registered.key, count, not owners.issuperset(dead))


def _beaten(host: Host, now: datetime, at: Moment) -> HostRow:
    micros = to_micros(now)
    return HostRow(0, host, at.boot, at.now() + host.lease, micros, micros, None)


def beat(host: Host, now: datetime, redaction: LedgerRedaction) -> Verb[Registration]:
    """Register a host, or renew its lease. The first host of a ledger sets the rules that all redact by."""
    yield from lock(HOSTS_LOCK)
    redaction.check_digest(digest := (yield from rules()))
    if not digest:
        yield from write_one(_SET_RULES, redaction.digest)
    # The rows are locked before the time is read: one of them may just be renewed.
    host_rows = [
        host_of(columns) for columns in (yield from rows(f"{HOSTS} AND name = $2 ORDER BY key FOR UPDATE", host.name))
    ]
    at = yield from moment()
    for host_row in host_rows:
        if host_row.host.instance != host.instance and host_row.is_alive(at):
            raise HostError("HOST_NAME_TAKEN", host.name, host_row.until(now, at))
    registered, lease = next((host_row for host_row in host_rows if _is_of(host_row, host)), None), _beaten(host, now, at)
    if registered is None:
        keys = yield from rows(_NEW_HOST, *lease.columns)
        check_written(len(keys), 1)
        lease = lease._replace(key=int(keys[0][0]))
    else:
        lease = lease._replace(key=registered.key, since=registered.since)
    yield from _put_host(lease)  # also after an insert: the checksum covers the key
    yield from _forget((yield from concerned(host, at))[1])
    count = yield from value("SELECT count(*) FROM antiphon.hosts WHERE tenant = $1 AND left_at IS NULL")
    return Registration(lease.key, count)


def leave(host: Host, now: int) -> Verb[None]:
    """Unregister a host; an unknown host changes nothing."""
    yield from lock(HOSTS_LOCK)
    if (lease := (yield from _find(host, lock=" FOR UPDATE"))) is not None:
        yield from _put_host(lease._replace(left_at=now))
        yield from _forget((yield from concerned(host, (yield from moment())))[1])


def forget_dead(host: Host) -> Verb[None]:
    """Remove dead hosts that own no thread; `host` is the one that calls."""
    yield from lock(HOSTS_LOCK)
    yield from _forget((yield from concerned(host, (yield from moment())))[1])


def _forget(dead: Sequence[HostRow]) -> Verb[None]:
    """Remove dead hosts that own no thread."""
    if dead:
        # A statement of its own: it waits for claims (see `_lock_host`), and the next one sees the owners that they have set.
        # The end of the lease is compared under the lock: a host that seemed dead may have renewed it meanwhile.
        locked = {columns[0]: columns[1] for columns in (yield from rows(_TO_FORGET, [lease.key for lease in dead]))}
        yield from write(_FORGET, [lease.key for lease in dead if locked.get(lease.key) == lease.ends], table="hosts")


def hosts(now: datetime) -> Verb[tuple[HostStatus, ...]]:
    """Return all hosts."""
    at = yield from moment()
    owned = {columns[0]: columns[1] for columns in (yield from rows(_COUNTS))}
    return tuple(
        HostStatus(lease.host, lease.is_alive(at), from_micros(lease.since), lease.until(now, at), owned.get(lease.key, 0))
        for lease in (yield from all_hosts())
    )


# ---------------------------------------------------------------- owners


class ClaimRequest(NamedTuple):
    """The arguments of a `claim`."""

    thread_id: str
    by: Host | None
    kind: str | None
    now: datetime
    redaction: LedgerRedaction


class Claim(NamedTuple):
    """A claimed thread, and the name of the other host that owned it and has not left, if one did."""

    thread: Thread
    taken_from: str | None


def claim_thread(request: ClaimRequest, thread: Thread | None = None) -> Verb[Claim]:
    """Give a thread its next epoch and owner. `thread` is the thread as it is, if that is known."""
    by, now = request.by, request.now
    thread = thread or (yield from _locked(request.thread_id))
    if thread is None:
        yield from lock(request.thread_id)  # another process may be creating it at this moment
        thread = yield from _locked(request.thread_id)
    at = yield from moment()
    owner = None if by is None else living((yield from _find(by)), by, now, at).key
    if by is not None and owner is not None:
        yield from _lock_host(by, owner, now)
    if thread is None:
        request.redaction.check_name(request.thread_id, "the name of a thread")
        state = new_state(request.thread_id, to_micros(now), is_redacted=request.redaction.is_on)
        thread = Thread(0, claimed(state, owner, request.kind), 0, None, 0)
        key: int = yield PutThread(thread)
        return Claim(thread._replace(key=key), None)
    before = None if thread.state.owner == owner else (yield from _owner(thread.state))
    if owner is not None:
        _refuse_owned(before, thread.state, now, at)
    state = claimed(thread.state, owner, request.kind, build=None if by is None else by.build)
    thread = thread._replace(state=state)
    yield ChangeThreads((thread,))
    return Claim(thread, None if before is None or before.left_at is not None else before.host.name)


def _lock_host(host: Host, owner: int, now: datetime) -> Verb[None]:
    """Lock the row of a host that becomes an owner against removal, until the end of the transaction.

    The host may have waited for the row of the thread until its lease was over. If another host removed its row meanwhile,
    nobody could ever take the thread from it.

    Raises:
        HostError: the row is gone.
    """
    if (yield from value(_LOCK_HOST, owner)) is None:
        raise HostError("HOST_EXPIRED", host.name, now)


def _owner(state: State) -> Verb[HostRow | None]:
    """Return the host that owns a thread; None if no host does."""
    columns = None if state.owner is None else (yield from row(f"{HOSTS} AND key = $2", state.owner))
    return None if columns is None else host_of(columns)


def _locked(thread_id: str) -> Verb[Thread | None]:
    """Return a thread's row, locked until the end of the transaction."""
    columns = yield from row(_LOCKED, thread_id)
    return None if columns is None else thread_of(columns)


def _existing(thread_id: str, thread: Thread | None) -> Verb[Thread]:
    """Return a thread that must exist, locked."""
    thread = thread or (yield from _locked(thread_id))
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    return thread


def _refuse_owned(owner: HostRow | None, state: State, now: datetime, at: Moment, *advice: str) -> None:
    if owner is not None and owner.is_alive(at):
        raise OwnedError(state.thread_id, owner.host.name, owner.until(now, at), *advice)


def move(thread_id: str, to: str, now: datetime, thread: Thread | None = None) -> Verb[Thread]:
    """Mark a thread as moved, and return it. `thread` is the thread as it is, if that is known."""
    thread = yield from _existing(thread_id, thread)
    at = yield from moment()
    _refuse_owned((yield from _owner(thread.state)), thread.state, now, at, OWNED)
    thread = thread._replace(state=moved(thread.state, to, to_micros(now)))
    yield ChangeThreads((thread,))
    return thread


def release(thread_id: str, request: Release, thread: Thread | None = None) -> Verb[Thread]:
    """Release a thread, and return it. `thread` is the thread as it is, if that is known."""
    thread = yield from _existing(thread_id, thread)
    is_plain = request.unfit is None or (yield from find_key(thread.key)) is None
    thread = thread._replace(state=released(thread.state, request if is_plain else withheld(request)))
    yield ChangeThreads((thread,))
    return thread


def is_owned_so(threads: Sequence[Thread]) -> Verb[bool]:
    """Whether the owners and epochs of threads are stored as given, or were changed again since."""
    sql = "SELECT key, epoch, owner FROM antiphon.threads WHERE tenant = $1 AND key = ANY($2::bigint[])"
    keys = [thread.key for thread in threads]
    stored = {key: (epoch, owner) for key, epoch, owner in (yield from rows(sql, keys))}
    for thread in threads:
        epoch, owner = stored.get(thread.key, (0, None))
        is_later = abs(epoch) > abs(thread.state.epoch)
        if not is_later and (epoch, owner) != (thread.state.epoch, thread.state.owner):
            return False
    return True


# ---------------------------------------------------------------- threads with work


def take(request: TakeRequest) -> Verb[list[tuple[Thread, TakenThread]]]:
    """Claim due threads, the longest due first; return their rows, and the values for the caller."""
    at = yield from moment()
    lease, dead = yield from concerned(request.by, at)
    owner, micros = living(lease, request.by, request.now, at).key, to_micros(request.now)
    names = {owner_row.key: owner_row.host.name for owner_row in dead if owner_row.left_at is None}
    taken: list[tuple[Thread, TakenThread]] = []
    for since, thread in (yield from _due(request, dead))[: request.limit]:
        state = claimed(thread.state, owner)
        why, before = why_due(thread.state, micros), names.get(thread.state.owner or 0)
        summary = TakenThread(state.thread_id, Epoch(state.epoch, state.seq, before), state.kind, why, from_micros(since))
        taken.append((thread._replace(state=state), summary))
    if taken:
        yield from _lock_host(request.by, owner, request.now)
        yield ChangeThreads([thread for thread, _ in taken])
    return taken


def has_due(request: TakeRequest) -> Verb[bool]:
    """Whether `take` must be called: a thread is due, or the host has no lease, which `take` reports as an error."""
    at = yield from moment()
    lease, dead = yield from concerned(request.by, at)
    if lease is None or not lease.has_lease(at):
        return True
    return request.limit > 0 and bool((yield from _due(request._replace(limit=1), dead, locks=False)))


def _due(request: TakeRequest, dead: Sequence[HostRow], *, locks: bool = True) -> Verb[list[tuple[int, Thread]]]:
    """Return the threads that a host may take, each with the time at which it became due, the longest due first."""
    due, abandoned = (DUE, ABANDONED) if locks else (_DUE_UNLOCKED, _ABANDONED_UNLOCKED)
    micros, ended_at = to_micros(request.now), {lease.key: lease.ended_at for lease in dead}
    has_none = None in request.kinds
    values: tuple[Any, ...] = (micros, request.by.build, list(request.kinds), has_none)
    unowned = [thread_of(columns) for columns in (yield from rows(due, *values, request.limit))]
    due_threads = [(thread.state.due_at or 0, thread) for thread in unowned]
    if dead:
        for columns in (yield from rows(abandoned, *values, list(ended_at), request.limit)):
            thread = thread_of(columns)
            since = due_since(thread.state, thread.open_calls > 0, micros, ended_at[thread.state.owner or 0])
            if since is not None:
                due_threads.append((since, thread))
    return sorted(due_threads, key=lambda due_thread: (due_thread[0], due_thread[1].key))


_DUE_UNLOCKED, _ABANDONED_UNLOCKED = (
    Spelled(sql.postgres.replace(" FOR UPDATE OF t SKIP LOCKED", ""), sql.sqlite) for sql in (DUE, ABANDONED)
)


def woken(by: Host) -> Verb[tuple[Woken, ...]]:
    """Return the threads of a host that have posted messages which it has not reported as seen."""
    return tuple(Woken(thread_id, posted) for thread_id, posted in (yield from rows(POSTED, by.name, by.instance)))


def note_seen(by: Host, seen: Mapping[str, int]) -> Verb[tuple[list[Thread], tuple[Woken, ...]]]:
    """Record which posted messages a host has seen; return the changed threads, and those with other posted messages."""
    lease = yield from _find(by)
    changed: list[Thread] = []
    for columns in [] if lease is None else (yield from rows(_SEEN, list(seen), lease.key)):
        thread = thread_of(columns)
        state = seen_upto(thread.state, seen[thread.state.thread_id])
        if state != thread.state:
            changed.append(thread._replace(state=state))
    if changed:
        yield ChangeThreads(changed)
    return changed, (yield from woken(by))
