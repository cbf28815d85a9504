"""Hosts and owners in a ledger's file: beats, claims, releases, the threads that a host may take, and permits.

Each change is a function over a connection that is inside a transaction. Python decides which hosts are alive, from the rows
of `hosts`, which are few. The end of a lease (`ends`) is stored with the boot of the machine in which it was measured.

A limit is one row, whose text holds its state (see `ledger._permits`).

`take` searches two indexes: due threads without an owner, by kind; and threads of dead hosts. A reader checks first (see
`has_due`), so that a call that finds nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson

from antiphon.errors import (
    HostError,
    LedgerCorruptError,
    OwnedError,
    UnknownThreadError,
)
from antiphon.ledger._admission import State, new_state
from antiphon.ledger._hosts import Epoch, Host, HostRow, HostStatus, LeaseClock, TakenThread, Woken
from antiphon.ledger._ownership import OWNED, Release, claimed, due_since, moved, released, why_due, withheld
from antiphon.ledger._ownership import seen as seen_upto
from antiphon.ledger._permits import Limit, LimitState, LimitStatus, PermitGrant, PermitWants
from antiphon.ledger._records import from_micros, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._stored import TakeRequest, Thread
from antiphon.ledger.sqlite._appends import insert_thread
from antiphon.ledger.sqlite._checksums import check_written, host_checksum, note_removed, set_checksum, set_owner
from antiphon.ledger.sqlite._keys import find_key
from antiphon.ledger.sqlite._rows import find_thread, thread_of
from antiphon.ledger.sqlite._sql import Connection

_HOSTS = """
SELECT key, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at, checksum
FROM hosts ORDER BY name, since, key
"""
_ONE_HOST = """
SELECT key, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at, checksum
FROM hosts WHERE name = ? AND instance = ? AND left_at IS NULL
"""
_NEW_HOST = """
INSERT INTO hosts (name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)
"""
_HOST = """
UPDATE hosts SET name = ?, instance = ?, build = ?, kinds = ?, lease = ?, boot = ?, ends = ?, since = ?, beaten_at = ?,
    left_at = ?, checksum = ?
WHERE key = ?
"""
_OWNING = "SELECT 1 FROM threads WHERE owner = ?"
_COUNT = "SELECT count(*) FROM threads WHERE owner = ?"

DUE = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens,
    output_tokens, cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq
FROM threads INDEXED BY threads_due
WHERE owner IS NULL AND due_at IS NOT NULL AND kind IS :kind AND due_at <= :now
    AND (unfit IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(unfit) AS builds WHERE builds.key = :build))
ORDER BY due_at, key LIMIT :limit
"""
ABANDONED = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens,
    output_tokens, cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq
FROM threads INDEXED BY threads_owned
WHERE owner = :owner AND (open_calls > 0 OR due_at <= :now)
    AND (unfit IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(unfit) AS builds WHERE builds.key = :build))
"""
POSTED = "SELECT key, thread_id, posted FROM threads INDEXED BY threads_owned WHERE owner = ? AND posted > 0"


def leases(connection: Connection) -> list[HostRow]:
    """Return all hosts, by name.

    Raises:
        LedgerCorruptError: the row of a host was altered.
    """
    return [_lease(tuple(row)) for row in connection.rows(_HOSTS)]


@lru_cache(maxsize=256)
def _lease(row: tuple[Any, ...]) -> HostRow:
    """Return a row as a value. Cached, because each claim reads the row of its host, which changes only with the next beat."""
    *columns, checksum = row
    key, name, instance, build, kinds, lease, *rest = columns
    if host_checksum(columns) != checksum:
        raise LedgerCorruptError(f"host {name!r} was altered; restore a backup, and run verify on it")
    return HostRow(key, Host(name, build, tuple(orjson.loads(kinds)), lease, instance), *rest)


def _write(connection: Connection, lease: HostRow) -> None:
    connection.run(_HOST, (*lease.columns, host_checksum((lease.key, *lease.columns)), lease.key))
    check_written(connection.changes(), 1)


def _find(connection: Connection, host: Host) -> HostRow | None:
    """Return the row of a host that has registered and not left, even if its lease has ended."""
    for row in connection.rows(_ONE_HOST, (host.name, host.instance)):
        return _lease(tuple(row))
    return None


def _living(connection: Connection, host: Host, now: datetime, clock: LeaseClock) -> HostRow:
    """Return the row of the calling host, if it has a lease. Its process is not checked: it is alive, because it calls.

    Raises:
        HostError: it has never beaten or has left, or its lease is over.
    """
    lease = _find(connection, host)
    if lease is None:
        raise HostError("UNKNOWN_HOST", host.name)
    if not lease.has_lease(clock):
        raise HostError("HOST_EXPIRED", host.name, lease.until(now, clock))
    return lease


def rules(connection: Connection) -> int:
    """Return the digest of the redaction rules of the hosts; 0: none yet."""
    found = connection.value("SELECT value FROM counters WHERE name = 'redaction'")
    return found if isinstance(found, int) else 0


def adopt_rules(connection: Connection, redaction: LedgerRedaction, now: datetime, clock: LeaseClock) -> None:
    """Replace the redaction rules of the ledger.

    Raises:
        OtherRedactionError: a host is alive.
    """
    redaction.check_unused(hosts(connection, now, clock))
    _set_rules(connection, redaction.digest)


def _set_rules(connection: Connection, digest: int) -> None:
    connection.run("UPDATE counters SET value = ? WHERE name = 'redaction'", (digest,))
    check_written(connection.changes(), 1)


def beat(connection: Connection, host: Host, now: datetime, clock: LeaseClock, redaction: LedgerRedaction) -> None:
    """Register a host, or renew its lease. The first host of a ledger sets the rules that all redact by.

    Raises:
        HostError: another living process has that name.
        OtherRedactionError: the ledger has other rules.
    """
    redaction.check_digest(found := rules(connection))
    if not found:
        _set_rules(connection, redaction.digest)
    for each in leases(connection):
        if each.host.name == host.name and each.host.instance != host.instance and each.is_alive(clock):
            raise HostError("HOST_NAME_TAKEN", host.name, each.until(now, clock))
    known, micros = _find(connection, host), to_micros(now)
    lease = HostRow(0, host, clock.boot, clock.now() + host.lease, micros, micros, None)
    if known is not None:
        lease = lease._replace(key=known.key, since=known.since)
    else:
        connection.run(_NEW_HOST, lease.columns)
        check_written(connection.changes(), 1)
        lease = lease._replace(key=int(connection.last_insert_rowid()))
    _write(connection, lease)  # also after an insert: the checksum covers the key
    _forget(connection, clock)  # after the lease is renewed: otherwise it could remove this host


def renew(connection: Connection, host: Host, now: int, clock: LeaseClock) -> bool:
    """Renew the lease of a host that has one; return whether it has."""
    lease = _find(connection, host)
    if lease is None or not lease.has_lease(clock):
        return False
    _write(connection, lease._replace(ends=clock.now() + host.lease, beaten_at=now))
    return True


def leave(connection: Connection, host: Host, now: int, clock: LeaseClock) -> None:
    """Unregister a host; an unknown host changes nothing."""
    lease = _find(connection, host)
    if lease is not None:
        _write(connection, lease._replace(left_at=now))
        _forget(connection, clock)


def _forget(connection: Connection, clock: LeaseClock) -> None:
    """Remove dead hosts that own no thread."""
    for lease in leases(connection):
        if not lease.is_alive(clock) and not connection.value(_OWNING, (lease.key,)):
            connection.run("DELETE FROM hosts WHERE key = ?", (lease.key,))
            note_removed(connection, "hosts", connection.changes())


def hosts(connection: Connection, now: datetime, clock: LeaseClock) -> tuple[HostStatus, ...]:
    """Return all hosts."""
    return tuple(
        HostStatus(
            each.host,
            each.is_alive(clock),
            from_micros(each.since),
            each.until(now, clock),
            connection.value(_COUNT, (each.key,)),
        )
        for each in leases(connection)
    )


def claim(
    connection: Connection,
    thread: Thread | None,
    thread_id: str,
    *,
    by: Host | None,
    kind: str | None,
    now: datetime,
    clock: LeaseClock,
    redaction: LedgerRedaction,
) -> tuple[Thread, str | None]:
    """Give a thread its next epoch and owner, and return it. `thread` is the thread as it is, if that is known.

    Also return the name of the other host that owned it and has not left, if one did.

    Raises:
        OwnedError: another living host owns it.
        HostError: the host has never beaten or has left, or its lease is over.
        SecretNameError: the thread is new, and its name looks like a secret.
    """
    owner = None if by is None else _living(connection, by, now, clock).key
    thread = thread or find_thread(connection, thread_id)
    if thread is None:
        redaction.check_name(thread_id, "the name of a thread")
        state = claimed(new_state(thread_id, to_micros(now), is_redacted=redaction.is_on), owner, kind)
        key = insert_thread(connection, state, None, 0)
        set_checksum(connection, key, state)
        return Thread(key, state, 0, None, 0), None
    if owner is not None and thread.state.owner not in (None, owner):
        _refuse_owned(connection, thread.state, now, clock)
    taken_from = None if thread.state.owner == owner else owner_name(connection, thread.state)
    state = claimed(thread.state, owner, kind, build=None if by is None else by.build)
    set_owner(connection, thread.key, state)
    return thread._replace(state=state), taken_from


def owner_name(connection: Connection, state: State) -> str | None:
    """Return the name of the host that owns a thread; None if no host does, or it has left: that has released its threads."""
    if state.owner is None:
        return None
    there = (lease for lease in leases(connection) if lease.key == state.owner and lease.left_at is None)
    return next((lease.host.name for lease in there), None)


def _refuse_owned(connection: Connection, state: State, now: datetime, clock: LeaseClock, *advice: str) -> None:
    for lease in leases(connection):
        if lease.key == state.owner and lease.is_alive(clock):
            raise OwnedError(state.thread_id, lease.host.name, lease.until(now, clock), *advice)


def move(
    connection: Connection, thread: Thread | None, thread_id: str, *, to: str, now: datetime, clock: LeaseClock
) -> Thread:
    """Mark a thread as moved, and return it. `thread` is the thread as it is, if that is known.

    Raises:
        OwnedError: a living host owns it.
        ThreadMovedError: it was moved to another place before.
        UnknownThreadError: there is no such thread.
    """
    thread = thread or find_thread(connection, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    _refuse_owned(connection, thread.state, now, clock, OWNED)
    state = moved(thread.state, to, to_micros(now))
    set_owner(connection, thread.key, state)
    return thread._replace(state=state)


def release(connection: Connection, thread: Thread | None, thread_id: str, how: Release) -> Thread:
    """Release a thread, and return it. `thread` is the thread as it is, if that is known.

    Raises:
        FencedError: the epoch is not the owner's.
        UnknownThreadError: there is no such thread.
    """
    thread = thread or find_thread(connection, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    is_plain = how.unfit is None or find_key(connection, thread.key) is None
    state = released(thread.state, how if is_plain else withheld(how))
    set_owner(connection, thread.key, state)
    return thread._replace(state=state)


def has_due(connection: Connection, wanted: TakeRequest, clock: LeaseClock) -> bool:
    """Whether `take` must be called: a thread is due, or the host has no lease, which `take` reports as an error."""
    lease = _find(connection, wanted.by)
    if lease is None or not lease.has_lease(clock):
        return True
    return any(True for _ in _due(connection, wanted._replace(limit=1), clock)) and wanted.limit > 0


def take(connection: Connection, wanted: TakeRequest, clock: LeaseClock) -> tuple[TakenThread, ...]:
    """Claim due threads, the longest due first.

    Raises:
        HostError: the host has never beaten or has left, or its lease is over.
    """
    owner, micros = _living(connection, wanted.by, wanted.now, clock).key, to_micros(wanted.now)
    due = sorted(_due(connection, wanted, clock), key=lambda each: (each[0], each[1].key))[: wanted.limit]
    taken: list[TakenThread] = []
    for since, thread in due:
        state = claimed(thread.state, owner)
        set_owner(connection, thread.key, state)
        why = why_due(thread.state, micros)
        before = owner_name(connection, thread.state)
        taken.append(TakenThread(state.thread_id, Epoch(state.epoch, state.seq, before), state.kind, why, from_micros(since)))
    return tuple(taken)


def _due(connection: Connection, wanted: TakeRequest, clock: LeaseClock) -> Iterator[tuple[int, Thread]]:
    """Yield the threads that a host may take, each with the time at which it became due."""
    micros = to_micros(wanted.now)
    asked = {"now": micros, "build": wanted.by.build, "limit": wanted.limit}
    for kind in wanted.kinds:
        for thread in map(thread_of, connection.rows(DUE, {**asked, "kind": kind})):
            yield thread.state.due_at or 0, thread
    for lease in leases(connection):
        if not lease.is_alive(clock):
            for thread in map(thread_of, connection.rows(ABANDONED, {**asked, "owner": lease.key})):
                since = due_since(thread.state, thread.open_calls > 0, micros, lease.ended_at)
                if since is not None and thread.state.kind in wanted.kinds:
                    yield since, thread


def woken(connection: Connection, by: Host) -> tuple[Woken, ...]:
    """Return the threads of a host that have posted messages which it has not reported as seen."""
    lease = _find(connection, by)
    rows = [] if lease is None else connection.rows(POSTED, (lease.key,))
    return tuple(Woken(thread_id, posted) for _, thread_id, posted in sorted(rows))


def note_seen(connection: Connection, by: Host, seen: Mapping[str, int]) -> tuple[Woken, ...]:
    """Record which posted messages a host has seen, and return the threads with others."""
    lease = _find(connection, by)
    for thread_id, upto in seen.items() if lease is not None else ():
        thread = find_thread(connection, thread_id)
        if thread is not None and lease is not None and thread.state.owner == lease.key:
            state = seen_upto(thread.state, upto)
            if state != thread.state:
                set_owner(connection, thread.key, state)
    return woken(connection, by)


# ---------------------------------------------------------------- limits for all hosts

_LIMITS = "SELECT model, state, checksum FROM limits ORDER BY model"
_LIMIT = "INSERT INTO limits VALUES (?1, ?2, ?3) ON CONFLICT (model) DO UPDATE SET state = ?2, checksum = ?3"


def _limits(connection: Connection) -> dict[str, LimitState]:
    """Return all limits by model; they are few.

    Raises:
        LedgerCorruptError: one was altered.
    """
    found: dict[str, LimitState] = {}
    for model, state, checksum in connection.rows(_LIMITS):
        if host_checksum((model, state)) != checksum:
            raise LedgerCorruptError(f"the limit of {model!r} was altered; restore a backup, or set it again")
        found[model] = LimitState.load(model, state)
    return found


def _write_limit(connection: Connection, state: LimitState) -> None:
    model, text = state.limit.model, state.dump()
    connection.run(_LIMIT, (model, text, host_checksum((model, text))))
    check_written(connection.changes(), 1)


def set_limit(connection: Connection, limit: Limit) -> None:
    """Set the limits of a model, or remove them."""
    if limit.is_none:
        connection.run("DELETE FROM limits WHERE model = ?", (limit.model,))
    else:
        _write_limit(connection, _limits(connection).get(limit.model, LimitState(limit)).set(limit))
    connection.run("UPDATE counters SET value = (SELECT count(*) FROM limits) WHERE name = 'limits'")
    check_written(connection.changes(), 1)


def limits(connection: Connection, now: datetime, clock: LeaseClock) -> tuple[LimitStatus, ...]:
    """Return all limits and their use."""
    found = _limits(connection)
    names = {each.key: each.host.name for each in leases(connection) if each.is_alive(clock)} if found else {}
    return tuple(state.now(names, clock, now).status(names) for state in found.values())


def permits(
    connection: Connection, by: Host, wants: Mapping[str, PermitWants], now: datetime, clock: LeaseClock
) -> dict[str, PermitGrant]:
    """Lease permits to a host.

    Raises:
        HostError: the host has never beaten or has left, or its lease is over.
    """
    own = _living(connection, by, now, clock).key
    living = [each.key for each in leases(connection) if each.key == own or each.is_alive(clock)]
    grants = dict.fromkeys(wants, PermitGrant())
    for model, before in _limits(connection).items():
        if model in wants:
            state, grants[model] = before.now(living, clock, now).give(own, wants[model], clock.now())
            _write_limit(connection, state)
    return grants
