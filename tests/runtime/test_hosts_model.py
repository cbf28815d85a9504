"""Every interleaving of two hosts, two calls, one crash and three leases that run out (guarantees, section 5).

The ledger decides with its own functions (`_ownership`, `_admission`). The hosts are small machines that do what the runtime
does: take the thread, look a call up, write the intent, start the effect, write the result, or park what was cut off. One step
of one host is one transition, so a host can be stopped between any two. All states that can be reached are looked at.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple, TypeAlias

import pytest

from antiphon.errors import AppendRefusedError, FencedError
from antiphon.ledger import _ownership
from antiphon.ledger._admission import State, admit, new_state
from antiphon.ledger._request import AppendRequest, make_request
from antiphon.ledger._sql.appends import CachedThread, CarefulAppends
from antiphon.ledger._stored import Thread
from antiphon.ledger.memory import MemoryLedger
from antiphon.ledger.sqlite._driver import run
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload

CALLS = (0, 1)
HOSTS = (0, 1)
THREAD = "t"
AT = datetime(2026, 1, 1, tzinfo=UTC)


class Host(NamedTuple):
    """A host: what it does next, for which call, and the epoch that it believes to have."""

    does: str = "take"
    call: int = 0
    epoch: int = 0
    lives: bool = True
    """Whether its process runs."""
    has_lease: bool = True


class World(NamedTuple):
    """A state of everything."""

    thread: State
    """Only its ownership: what is written is in `rows`."""
    rows: tuple[str, ...]
    hosts: tuple[Host, ...]
    holder: int | None = None
    """Who has the thread, by a book of our own: the last that was given it, until it gives it back."""
    begun: tuple[int, ...] = (0, 0)
    """How often the effect of each call has begun."""
    crashes: int = 1
    """How many may still happen."""
    expiries: int = 3


class BrokenRuleError(AssertionError):
    """A state that must not be."""


# ---------------------------------------------------------------- the ledger


def _row(name: str) -> Message:
    """Return a row: `call 0`, `intent 0`, `result 0`, `park 0`."""
    what, _, call = name.partition(" ")
    match what:
        case "call":
            payload: OptionCallPayload | OptionResultPayload = OptionCallPayload(
                invocation_id=f"m{call}", option_name="PAY", arguments={}
            )
        case "intent" | "park":
            payload = OptionCallPayload(invocation_id=f"m{call}/{what}", option_name=what, arguments={})
        case _:
            payload = OptionResultPayload(invocation_id=f"m{call}/intent", option_name="intent", result={})
    lane = "control" if what == "call" else "effect"
    return Message(id=name, policy="bank/1", payload=payload, lane=lane, created_at=AT)  # type: ignore[arg-type]


@cache
def _written(rows: tuple[str, ...]) -> CachedThread:
    """Return the thread with these rows, as a store knows it."""
    appends, ledger = CarefulAppends(), MemoryLedger()
    if not rows:
        return CachedThread(Thread(0, new_state(THREAD, 0), 0, None, 0), ())
    (records,) = run(ledger._writer._connected(), appends.write([_request(rows, 0)]))
    assert isinstance(records, tuple)
    messages, known = [record.message for record in records], appends.threads[THREAD]
    known.records_by_id = {record.message.id: [record] for record in records}
    calls = [each for each in messages if each.kind == "option_call"]
    known.invocations = {(each.lane == "effect", each.invocation_id or "") for each in calls}
    return known


def _request(rows: tuple[str, ...], epoch: int) -> AppendRequest:
    return make_request(
        THREAD,
        [_row(name) for name in rows],
        redaction=MemoryLedger().rules,
        expected_version=None,
        epoch=epoch,
        snapshot=None,
        status=None,
        pattern=None,
        allow_foreign=False,
        outside=False,
    )


@cache
def _append(owner_epoch: int, rows: tuple[str, ...], epoch: int, row: str) -> tuple[str, ...] | None:
    """Return the rows after an append; None if the ledger refuses it."""
    thread = _written(rows)
    try:
        admission = admit(thread.state._replace(epoch=owner_epoch), thread.open_calls, _request((row,), epoch), thread)
    except (FencedError, AppendRefusedError):
        return None
    return (*rows, row) if admission.is_new else rows


@dataclass(frozen=True)
class Build:
    """What hosts and ledger do; a broken build does one of it otherwise."""

    append: Callable[[int, tuple[str, ...], int, str], tuple[str, ...] | None] = field(default=_append)
    released: Callable[[State, _ownership.Release], State] = field(default=_ownership.released)
    checks_leases: bool = True
    claims_back: bool = False
    """Whether a host that lost the thread claims it again as soon as it may, and goes on where it was."""
    intent_first: bool = True
    parks: bool = True


# ---------------------------------------------------------------- the hosts

Step: TypeAlias = tuple[str, World]


def _steps(world: World, build: Build) -> Iterator[Step]:
    """Yield what may happen next, with the state after it."""
    for number, host in enumerate(world.hosts):
        if host.lives:
            for name, after in _of_host(world, number, build):
                yield f"{number} {name}", after
            if world.crashes:
                dead = host._replace(lives=False)
                yield f"{number} crashes", _with(world, number, dead)._replace(crashes=world.crashes - 1)
            if not host.has_lease:
                yield f"{number} beats", _with(world, number, host._replace(has_lease=True))
        if host.has_lease and (not host.lives or world.expiries):  # that of a dead host runs out, however few may
            expired = _with(world, number, host._replace(has_lease=False))
            yield f"{number} expires", expired._replace(expiries=world.expiries - host.lives)


def _with(world: World, number: int, host: Host) -> World:
    hosts = list(world.hosts)
    hosts[number] = host
    return world._replace(hosts=tuple(hosts))


def _of_host(world: World, number: int, build: Build) -> Iterator[Step]:
    host = world.hosts[number]
    match host.does:
        case "take":
            if (taken := _take(world, number, build)) is not None:
                yield "takes", taken
        case "look":
            yield "looks", _look(world, number, build)
        case "intent" | "result" | "park":
            yield f"writes {host.does} {host.call}", _write(world, number, build)
        case "effect":
            begun = tuple(count + (call == host.call) for call, count in enumerate(world.begun))
            then = "result" if build.intent_first else "intent"
            yield f"begins effect {host.call}", _with(world, number, host._replace(does=then))._replace(begun=begun)
        case _:
            yield "releases", _release(world, number, build)


def _take(world: World, number: int, build: Build) -> World | None:
    """Take the thread as `Ledger.take` gives it out."""
    host, thread = world.hosts[number], world.thread
    if not host.has_lease:
        return None
    owner = None if thread.owner is None else world.hosts[thread.owner]
    if build.checks_leases and owner is not None and owner.has_lease:
        return None
    has_open_calls = bool(_written(world.rows).open_calls)
    abandoned_at = None if owner is None else 0
    if _ownership.due_since(thread, has_open_calls, 0, abandoned_at) is None or thread.owner == number:
        return None
    claimed = _ownership.claimed(thread, number)
    after = _with(world, number, host._replace(does="look", call=0, epoch=claimed.epoch))
    if world.holder not in (None, number) and world.hosts[world.holder or 0].has_lease:
        raise BrokenRuleError(f"{number} took the thread from {world.holder}, which lives")
    return after._replace(thread=claimed, holder=number)


def _look(world: World, number: int, build: Build) -> World:
    host, rows = world.hosts[number], world.rows
    if host.call == len(CALLS):
        return _with(world, number, host._replace(does="release"))
    if f"result {host.call}" in rows or f"park {host.call}" in rows:
        return _with(world, number, host._replace(call=host.call + 1))
    if f"intent {host.call}" in rows and build.parks:
        return _with(world, number, host._replace(does="park"))
    return _with(world, number, host._replace(does="intent" if build.intent_first else "effect"))


_NEXT = {"intent": "effect", "result": "look", "park": "look"}


def _write(world: World, number: int, build: Build) -> World:
    host = world.hosts[number]
    rows = build.append(world.thread.epoch, world.rows, host.epoch, f"{host.does} {host.call}")
    if rows is None:
        if build.claims_back and host.has_lease and not world.hosts[1 - number].has_lease:
            claimed = _ownership.claimed(world.thread, number)
            return _with(world, number, host._replace(epoch=claimed.epoch))._replace(thread=claimed, holder=number)
        return _with(world, number, Host(lives=host.lives, has_lease=host.has_lease))  # evicted
    then = "result" if host.does == "intent" and not build.intent_first else _NEXT[host.does]
    return _with(world, number, host._replace(does=then))._replace(rows=rows)


def _release(world: World, number: int, build: Build) -> World:
    host = world.hosts[number]
    idle = _with(world, number, Host(lives=host.lives, has_lease=host.has_lease))
    try:
        thread = build.released(world.thread, _ownership.Release(host.epoch, 0, seen=len(CALLS)))
    except FencedError:
        return idle
    if world.holder not in (None, number):
        raise BrokenRuleError(f"{number} released the thread of {world.holder}")
    return idle._replace(thread=thread, holder=None if world.holder == number else world.holder)


# ---------------------------------------------------------------- all states


def _explore(build: Build) -> Counter[str]:
    """Look at every state that can be reached; return how many there are, and how many ends.

    Raises:
        BrokenRuleError: one breaks a rule; the text has the way to it.
    """
    thread = new_state(THREAD, 0)._replace(posted=len(CALLS), due_at=0, kind="bank")
    first = World(thread, tuple(f"call {call}" for call in CALLS), (Host(), Host()))
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    todo, found = [first], Counter[str]()
    while todo:
        world = todo.pop()
        try:
            steps = list(_steps(world, build))
            _check(world, is_end=all("beats" in name or "expires" in name or "crashes" in name for name, _ in steps))
        except BrokenRuleError as exc:
            raise BrokenRuleError(f"{exc}, after: {', '.join(_way(came_from, world))}") from None
        found["states"] += 1
        found["steps"] += len(steps)
        found["parked"] += "park 0" in world.rows or "park 1" in world.rows
        for name, after in steps:
            if after not in came_from:
                came_from[after] = world, name
                todo.append(after)
    return found


def _way(came_from: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    way: list[str] = []
    while (step := came_from[world]) is not None:
        world, name = step
        way.append(name)
    return way[::-1]


def _check(world: World, *, is_end: bool) -> None:
    for call in CALLS:
        if world.begun[call] > 1:
            raise BrokenRuleError(f"effect {call} began twice")
        if world.begun[call] and f"intent {call}" not in world.rows:
            raise BrokenRuleError(f"effect {call} began before its intent")
        ended = f"result {call}" in world.rows or f"park {call}" in world.rows
        may_go_on = any(host.lives and not host.has_lease for host in world.hosts) or any(
            host.has_lease and not host.lives for host in world.hosts
        )
        if is_end and not ended and not may_go_on:
            raise BrokenRuleError(f"nothing can happen any more, and call {call} is open")


@pytest.mark.slow
def test_no_interleaving_of_two_hosts_starts_an_effect_twice_or_leaves_a_call_open() -> None:
    found = _explore(Build())

    assert found["states"] > 10_000, found
    assert found["parked"] > 0, found  # the crash was in the middle of an effect, too


def _unfenced(owner_epoch: int, rows: tuple[str, ...], epoch: int, row: str) -> tuple[str, ...] | None:
    return _append(owner_epoch, rows, owner_epoch, row)


def _released_by_anybody(thread: State, release: _ownership.Release) -> State:
    return _ownership.released(thread, release._replace(epoch=abs(thread.epoch)))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (replace(Build(), checks_leases=False), "which lives"),
        (replace(Build(), claims_back=True), "began twice"),
        (replace(Build(), released=_released_by_anybody), "released the thread of"),
        (replace(Build(), append=_unfenced), "began twice"),
        (replace(Build(), intent_first=False), "before its intent"),
        (replace(Build(), parks=False), "began twice"),
    ],
    ids=["no lease check", "claim back", "release without epoch", "no fence", "effect first", "no park"],
)
def test_a_broken_build_breaks_a_rule(broken: Build, rule: str) -> None:
    with pytest.raises(BrokenRuleError, match=rule):
        _explore(broken)
