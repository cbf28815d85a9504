"""Limits on model requests that all hosts share: one row for each, whose text holds its state (see `ledger._permits`).

Hosts wait for each other at the rows of their limits, always in the same order, and read the clock after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._hosts import Host
from antiphon.ledger._permits import Limit, LimitState, LimitStatus, PermitGrant, PermitWants
from antiphon.ledger._sql.hosts import HOSTS_LOCK, all_hosts, concerned, living
from antiphon.ledger._sql.statements import Row, Spelled, Verb, lock, moment, rows, write, write_one
from antiphon.ledger._stored import checksum_of

LIMITS = "SELECT model, state, checksum FROM antiphon.limits WHERE tenant = $1 ORDER BY model"
_LOCKED = """
SELECT model, state, checksum FROM antiphon.limits WHERE tenant = $1 AND model = ANY($2::text[]) ORDER BY model FOR UPDATE
"""
_PUT = """
INSERT INTO antiphon.limits (tenant, model, state, checksum) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, model) DO UPDATE SET state = excluded.state, checksum = excluded.checksum
"""
_REMOVE = "DELETE FROM antiphon.limits WHERE tenant = $1 AND model = $2"
_REMOVED = Spelled(
    """
SELECT key FROM unnest($2::bigint[]) AS held (key)
WHERE NOT EXISTS (SELECT 1 FROM antiphon.hosts AS h WHERE h.tenant = $1 AND h.key = held.key)
""",
    "SELECT value FROM json_each($2) WHERE value NOT IN (SELECT key FROM hosts)",
)
"""Hosts that have died, and whose rows were removed since."""


def _state_of(columns: Row) -> LimitState:
    """Return the state in a row.

    Raises:
        LedgerCorruptError: it was altered.
    """
    model, state, checksum = columns
    if checksum_of((model, state)) != checksum:
        raise LedgerCorruptError(f"the limit of {model!r} was altered; restore a backup, or set it again")
    return LimitState.load(model, state)


def _put(state: LimitState) -> Verb[None]:
    model, text = state.limit.model, state.dump()
    yield from write_one(_PUT, model, text, checksum_of((model, text)), table="limits")


def set_limit(limit: Limit) -> Verb[None]:
    """Set the limits of a model, or remove them."""
    if limit.is_none:
        yield from write(_REMOVE, limit.model, table="limits")
        return
    yield from lock(HOSTS_LOCK)  # two programs may set the first limit of a model at the same time
    limit_rows = yield from rows(_LOCKED, [limit.model])
    before = _state_of(limit_rows[0]) if limit_rows else LimitState(limit)
    yield from _put(before.set(limit))


def limits(now: datetime) -> Verb[tuple[LimitStatus, ...]]:
    """Return all limits and their use."""
    states = [_state_of(columns) for columns in (yield from rows(LIMITS))]
    if not states:
        return ()
    at = yield from moment()
    names = {lease.key: lease.host.name for lease in (yield from all_hosts()) if lease.is_alive(at)}
    return tuple(state.now(names, at, now).status(names) for state in states)


def permits(by: Host, wants: Mapping[str, PermitWants], now: datetime) -> Verb[dict[str, PermitGrant]]:
    """Lease permits to a host.

    Raises:
        HostError: the host has never beaten or has left, or its lease is over.
    """
    limit_rows = yield from rows(_LOCKED, list(wants))
    at = yield from moment()
    lease, dead = yield from concerned(by, at)
    holder = living(lease, by, now, at).key
    grants = dict.fromkeys(wants, PermitGrant())
    for before in map(_state_of, limit_rows):
        model = before.limit.model
        gone = {removed.key for removed in dead} | {
            removed[0] for removed in (yield from rows(_REMOVED, list(before.holdings)))
        }
        state, grants[model] = before.now({holder, *before.holdings.keys() - gone}, at, now).give(
            holder, wants[model], at.now()
        )
        yield from _put(state)
    return grants
