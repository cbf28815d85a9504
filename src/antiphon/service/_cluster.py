"""The hosts of a ledger as a whole: their threads, waiting threads, threads that nobody can run, and takeovers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

from antiphon import protocol
from antiphon.ledger import HostStatus, Ledger, ThreadFilter, ThreadSummary, open_calls_of
from antiphon.ledger._values import Maintained
from antiphon.messages import OptionCallPayload, current_port
from antiphon.runtime._hosting import read_take_overs
from antiphon.runtime._rows import APPROVE, PARK, has_work
from antiphon.service._schedules import SCHEDULE_KIND
from antiphon.service._threads import CHAIN_KIND, RUN_KIND, all_threads
from antiphon.service._values import ClusterValue, HostValue, LimitValue, StuckThreadValue

STUCK_AFTER: Final = 30.0
"""Seconds after which a due thread without a living host counts as stuck."""
_MOVES: Final = (protocol.ResumeThread.message_type, protocol.TerminateThread.message_type)
"""Requests that a host carries out in a paused thread."""
_MOST_SHOWN: Final = 100
"""The maximum number of stuck threads that are listed."""


async def cluster_status(ledger: Ledger) -> ClusterValue:
    """Return the hosts of a ledger, the threads that they have, and those that wait for a host. Nothing is written."""
    now, hosts = current_port().now(), await ledger.hosts()
    due = sorted([entry async for entry in _due(ledger, hosts, now)], key=lambda entry: (entry[0], entry[1].thread_id))
    stuck = [entry for entry in due if (now - entry[0]).total_seconds() > STUCK_AFTER]
    taken = await read_take_overs(ledger)
    oldest_due = due[0][0] if due else None
    return ClusterValue(
        hosts=tuple(HostValue.of(host) for host in hosts),
        in_hand=sum(host.threads for host in hosts if host.is_alive),
        due=len(due),
        oldest_due=oldest_due,
        oldest_age=None if oldest_due is None else max(0.0, (now - oldest_due).total_seconds()),
        stuck=len(stuck),
        stuck_threads=tuple(
            StuckThreadValue(thread_id=thread.thread_id, kind=thread.kind, due_at=since, reason=_why_stuck(thread, hosts))
            for since, thread in stuck[:_MOST_SHOWN]
        ),
        take_overs=taken.threads,
        last_take_over=taken.last_at,
        limits=tuple(LimitValue.of(limit) for limit in await ledger.limits.status()),
        tail_lag=await ledger.tail_lag() if isinstance(ledger, Maintained) else 0.0,
        at=now,
    )


async def _due(ledger: Ledger, hosts: Sequence[HostStatus], now: datetime) -> AsyncIterator[tuple[datetime, ThreadSummary]]:
    """Yield the threads that a host may take, each with the time since when; those with an owner have a dead one."""
    async for thread in all_threads(ledger, ThreadFilter(due_before=now), "created_at"):
        if thread.due_at is not None and not await _rests(ledger, thread):
            yield thread.due_at, thread
    living = {host.host.name for host in hosts if host.is_alive}
    waiting: frozenset[str] | None = None
    for dead in hosts:
        if dead.is_alive or not dead.threads or dead.host.name in living:
            continue  # the threads of a dead host whose name a living one has now cannot be told apart by name
        waiting = await _waiting_for_people(ledger) if waiting is None else waiting
        async for thread in all_threads(ledger, ThreadFilter(owner=dead.host.name), "created_at"):
            if await _rests(ledger, thread):
                continue
            if thread.due_at is not None and thread.due_at < now:
                yield max(dead.until, thread.due_at), thread
            elif thread.open_calls:
                open_calls = [row.message for row in await ledger.open_calls(thread.thread_id)]
                if thread.thread_id not in waiting or has_work(open_calls):
                    yield dead.until, thread


def _why_stuck(thread: ThreadSummary, hosts: Sequence[HostStatus]) -> str:
    """Return why no living host has taken a thread, and what to do."""
    living = [status.host for status in hosts if status.is_alive]
    fitting = [host for host in living if thread.kind is None or thread.kind in host.kinds]
    if not fitting:
        option = "" if thread.kind in (None, CHAIN_KIND, SCHEDULE_KIND) else " --team FILE"
        if (thread.kind or "").startswith(RUN_KIND):
            option = " --app MODULE:NAME"
        return f"no living host has the kind {thread.kind!r}: start one that has it, with `antiphon host{option}`"
    reasons = {unfit.build: unfit.reason for unfit in thread.unfit}
    if all(host.build in reasons for host in fitting):
        return f"no living build can continue it ({reasons[fitting[0].build]}): start a host of the build that began it"
    return "its hosts have no room, or are slow: start another host, or raise --threads"


async def _rests(ledger: Ledger, thread: ThreadSummary) -> bool:
    """Whether a thread is paused, and nobody has asked to resume or to terminate it: a host would not continue it."""
    if thread.status != "paused":
        return False
    calls = [row.message.payload for row in await ledger.open_calls(thread.thread_id)]
    return not any(isinstance(call, OptionCallPayload) and call.option_name in _MOVES for call in calls)


async def _waiting_for_people(ledger: Ledger) -> frozenset[str]:
    """Return the threads with a call that a person must approve or settle: no host continues it before."""
    asked = [row.message.thread_id async for row in open_calls_of(ledger, APPROVE) if row.message.lane == "control"]
    parked = [row.message.thread_id async for row in open_calls_of(ledger, PARK) if row.message.lane == "effect"]
    return frozenset(thread_id for thread_id in (*asked, *parked) if thread_id is not None)
