"""Hosts: the processes that run threads, their leases, and the clocks that measure the leases.

A host is alive until its lease ends. Leases are measured by a clock that cannot be set: a wall clock that jumps by an hour
would end every lease at once, or none for an hour. The reading of such a clock means nothing to a person or to another
machine. So the end of a lease is shown as a time of day (`until`), computed from the seconds that are left.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from antiphon.ledger._records import from_micros
from antiphon.messages import current_port
from antiphon.messages._names import is_name

_LONGEST_LEASE = 24 * 3600.0
"""Seconds: no host takes over the threads of a dead host before its lease has ended."""
_SLACK = 1.0
"""Seconds: larger than the rounding error of floats, smaller than the jump of a clock that was reset."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def process_name() -> str:
    """Return a name that no other process of the machine has or had: see `LeaseClock.has_ended`.

    An event loop that simulates several processes provides the name of the running one.
    """
    try:
        simulated: str | None = getattr(asyncio.get_running_loop(), "process_name", None)
    except RuntimeError:
        simulated = None
    if simulated is not None:
        return simulated
    pid = os.getpid()
    _, started_at = _process_state(pid) or (False, "")
    return f"{_boot()}/{_pid_namespace()}/{pid}/{started_at}"


def _boot() -> str:
    """Return the id of the machine's current boot; empty if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    """Return the namespace of process ids, which a container has of its own; empty if the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


_DEAD_STATES = "ZX"
"""The states of a thread that has ended: zombie, until its parent waits for it, and dead."""


def _process_state(pid: int) -> tuple[bool, str] | None:
    """Return whether a process has ended, and its start time in clock ticks; None if the system does not tell.

    The state of a process is that of its main thread. The other threads of a killed process end a moment later. Until the
    last of them has ended, its connections are open and its last writes may still be made.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the program's name before it may contain spaces and brackets
    return state in _DEAD_STATES and int(fields[16]) <= 1, fields[18]


@dataclass(frozen=True, slots=True)
class Host:
    """A process that runs threads, as it registers with the ledger. Make one when the process starts; use it in every call.

    Raises:
        ValueError: a name is not valid, or the lease is not a number of seconds above 0 and up to a day.
    """

    name: str
    """Unique among the living hosts, such as the machine's name with the process id."""
    build: str
    """The version of the program: hosts of one build can continue the same threads."""
    kinds: tuple[str, ...] = ()
    """The kinds of threads that it can run: kinds of actors, and `run/<name>` for a durable run."""
    lease: float = 10.0
    """Seconds from a beat to the end of the lease. Beat about three times in that time."""
    instance: str = field(default_factory=lambda: f"{process_name()}/{current_port().new_id()}")
    """Tells two processes of one name apart."""

    def __post_init__(self) -> None:
        for what, name in (("name", self.name), ("build", self.build), ("instance", self.instance)):
            if not is_name(name):
                raise ValueError(f"the {what} of a host is a name of 1 to 512 visible characters, not {name!r}")
        arguments: tuple[Any, Any] = self.kinds, self.lease  # a program without a type checker may pass anything
        kinds, lease = arguments
        if type(kinds) is not tuple or not all(map(is_name, self.kinds)):
            raise ValueError(f"the kinds of a host are a tuple of names, not {self.kinds!r}")
        is_number = isinstance(lease, (int, float)) and not isinstance(lease, bool)
        if not is_number or not 0 < lease <= _LONGEST_LEASE:
            raise ValueError(
                f"the lease of a host is more than 0 and at most {_LONGEST_LEASE:.0f} seconds, not {self.lease!r}"
            )


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host as the ledger knows it."""

    host: Host
    is_alive: bool
    """Whether its lease has not ended, and it has not left."""
    since: datetime
    """Its first beat."""
    until: datetime
    """When its lease ends, or ended."""
    threads: int
    """The number of threads that it owns. Other hosts may take those of a dead host."""


Why: TypeAlias = Literal["posted", "due", "abandoned"]


class Epoch(int):
    """The number of a claim of a thread, counted from 1."""

    seq: int
    """How many messages the thread had when it was claimed. Whatever comes later was written by or for the new owner."""

    taken_from: str | None
    """The name of the host that owned the thread and had not released it; None if no other host did."""

    def __new__(cls, number: int, seq: int, taken_from: str | None = None) -> Epoch:
        epoch = super().__new__(cls, number)
        epoch.seq = seq
        epoch.taken_from = taken_from
        return epoch


@dataclass(frozen=True, slots=True)
class TakenThread:
    """A thread that a host has taken, and why."""

    thread_id: str
    epoch: Epoch
    kind: str | None
    """The kind of host that can run it; None if unknown."""
    why: Why
    """`posted`: it has posted messages that no owner has reported as seen. `due`: the `wake_at` of its release has passed, or
    a build that cannot continue it has released it. `abandoned`: its owner died and left open calls."""
    due_at: datetime
    """Since when it has had work to do."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A thread of a host that has posted messages."""

    thread_id: str
    seq: int
    """The place of the last posted message."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A build that cannot continue a thread."""

    build: str
    reason: str
    at: datetime
    """When it released the thread."""


# ---------------------------------------------------------------- clocks


class LeaseClock(Protocol):
    """Measures leases: a monotonic clock, and the id of the boot in which it counts."""

    @property
    def boot(self) -> str:
        """The id of the boot. Two readings can be compared only if it is the same; a lease of another boot has ended."""
        ...

    def now(self) -> float:
        """Return the seconds since some fixed moment of this boot."""
        ...

    def has_ended(self, instance: str) -> bool:
        """Whether the process of a host has certainly ended, so that its lease ends at once. If unknown, return False."""
        ...


class LoopClock:
    """The clock of the running event loop, for hosts that share one process. In a simulation it is virtual time."""

    boot = ""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def has_ended(self, instance: str) -> bool:
        ended: Callable[[str], bool] | None = getattr(asyncio.get_running_loop(), "has_ended", None)
        return ended is not None and ended(instance.rpartition("/")[0])


class BootClock:
    """Seconds since the machine was started, including sleep. All processes of the machine share this clock.

    It reads `CLOCK_BOOTTIME` on Linux. On other systems it reads the monotonic clock, which they also count from the start of
    the machine. If the system has no id of its boots (`boot_id`), a lease from before a restart is recognised by its
    end, which lies too far in the future (see `lasts`), until the clock comes near that end.
    """

    def __init__(self) -> None:
        self._clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        try:
            self.boot = _BOOT_ID.read_text().strip()
        except OSError:
            self.boot = ""

    def now(self) -> float:
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)  # noqa: TID251 (nobody sets it)

    @property
    def visible(self) -> str | None:
        """The prefix of the instances of hosts whose processes this one can see; None: it sees none."""
        namespace = _pid_namespace()
        return f"{self.boot}/{namespace}/" if self.boot and namespace else None

    def has_ended(self, instance: str) -> bool:
        """Whether the process of a host has ended; False for a process that this one cannot see."""
        boot, namespace, pid, started_at = (*instance.split("/"), "", "", "", "")[:4]
        if not boot or boot != self.boot or not namespace or namespace != _pid_namespace() or not pid.isdecimal():
            return False  # process ids of other machines and containers mean nothing here; a program may choose any instance
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass  # it belongs to another user
        process = _process_state(int(pid))
        # Another start time means that the system has reused the process id for another process.
        return process is not None and (process[0] or process[1] != started_at)


def lasts(now: float, ends: float, lease: float) -> bool:
    """Whether a lease has begun and not ended. A lease that begins in the future was given before the clock was reset."""
    return now < ends <= now + lease + _SLACK


class HostRow(NamedTuple):
    """The row of a host in a store: the host, and its lease by the lease clock."""

    key: int
    host: Host
    boot: str
    ends: float
    since: int
    beaten_at: int
    left_at: int | None

    def has_lease(self, clock: LeaseClock) -> bool:
        """Whether it has not left, and its lease has not ended."""
        return self.left_at is None and self.boot == clock.boot and lasts(clock.now(), self.ends, self.host.lease)

    def is_alive(self, clock: LeaseClock) -> bool:
        """Whether it has a lease, and its process is not known to have ended."""
        return self.has_lease(clock) and not clock.has_ended(self.host.instance)

    def until(self, now: datetime, clock: LeaseClock) -> datetime:
        """Return when its lease ends, or ended, as a time of day."""
        return now + timedelta(seconds=self.ends - clock.now()) if self.is_alive(clock) else from_micros(self.ended_at)

    @property
    def ended_at(self) -> int:
        """When the lease of a dead host ended."""
        return self.beaten_at + round(self.host.lease * 1e6) if self.left_at is None else self.left_at

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns after the key."""
        host = self.host
        kinds = orjson.dumps(host.kinds).decode()
        named = (host.name, host.instance, host.build, kinds, float(host.lease))
        return *named, self.boot, self.ends, self.since, self.beaten_at, self.left_at
