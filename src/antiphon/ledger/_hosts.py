"""Hosts: the processes that run threads, their leases, and the clocks that leases are measured by.

A host lives while its lease lasts. The end of a lease is compared with a clock that nobody sets: a wall clock that jumps by an
hour would end every lease at once, or none for an hour. That clock means nothing to a person or to another machine, so what is
shown is a time of day (`until`), computed from how many seconds are left.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from antiphon.messages import current_port, is_name

_LONGEST_LEASE = 24 * 3600.0
"""Seconds: threads of a host that died are not taken over for so long."""
_SLACK = 1.0
"""Seconds: sums of floats are not exact, and a clock that began anew is off by more."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _new_instance() -> str:
    return f"{process_name()}/{current_port().new_id()}"


def process_name() -> str:
    """Return a name of this process that no other process of the machine has, or had: see `LeaseClock.has_ended`.

    An event loop that simulates several processes says which one is running.
    """
    try:
        simulated: str | None = getattr(asyncio.get_running_loop(), "process_name", None)
    except RuntimeError:
        simulated = None
    if simulated is not None:
        return simulated
    pid = os.getpid()
    _, started_at = _process_state(pid) or ("", "")
    return f"{_boot()}/{_pid_namespace()}/{pid}/{started_at}"


def _boot() -> str:
    """Return which start of the machine this is; empty if it does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    """Return where process ids are counted: a container counts for itself. Empty if the machine does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


_DEAD_STATES = "ZX"
"""A process that has ended and whose parent has not asked how."""


def _process_state(pid: int) -> tuple[str, str] | None:
    """Return the state of a process, and when it was started, in ticks of the machine; None if the machine does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before may have spaces and brackets
    return state, fields[18]


@dataclass(frozen=True, slots=True)
class Host:
    """A process that runs threads, as it tells the ledger. Make one value when the process starts, and use it for every call.

    Raises:
        ValueError: a name is none, or the lease is not a number of seconds above 0 and up to a day.
    """

    name: str
    """Unique among the hosts that live, such as the machine's name and the process id."""
    build: str
    """The version of the program: hosts of one build can continue the same threads."""
    kinds: tuple[str, ...] = ()
    """The kinds of threads that it can run: kinds of actors, and `run/<name>` for a durable run."""
    lease: float = 10.0
    """Seconds that it lives after a beat. Beat about every third of that."""
    instance: str = field(default_factory=_new_instance)
    """Tells two processes of one name apart."""

    def __post_init__(self) -> None:
        for what, name in (("name", self.name), ("build", self.build), ("instance", self.instance)):
            if not is_name(name):
                raise ValueError(f"the {what} of a host is a name of 1 to 512 visible characters, not {name!r}")
        given: tuple[Any, Any] = self.kinds, self.lease  # whatever a program without a type checker gives
        kinds, lease = given
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
    """Whether its lease lasts, and it has not left."""
    since: datetime
    """Its first beat."""
    until: datetime
    """When its lease ends, or ended."""
    threads: int
    """How many threads it owns. Those of a host that does not live are free to be taken."""


Why: TypeAlias = Literal["posted", "due", "abandoned"]


@dataclass(frozen=True, slots=True)
class TakenThread:
    """A thread that a host was given, and why."""

    thread_id: str
    epoch: int
    kind: str | None
    """What kind of host can run it; None if that is not known."""
    why: Why
    """`posted`: it has posted messages that no owner has reported as seen. `due`: the time of its release has come, or a build
    that could not continue it gave it up. `abandoned`: its owner died and left open calls."""
    due_at: datetime
    """Since when it had something to do."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A thread of a host that was posted to."""

    thread_id: str
    seq: int
    """The place of the last posted message."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A build that cannot continue a thread."""

    build: str
    reason: str
    at: datetime
    """When it gave the thread up."""


# ---------------------------------------------------------------- clocks


class LeaseClock(Protocol):
    """What leases are measured by: seconds that only grow, and the name of the time that they are counted in."""

    @property
    def boot(self) -> str:
        """Two readings can be compared only if this is the same; a lease of another boot is over."""
        ...

    def now(self) -> float:
        """Return the seconds since some fixed moment of this boot."""
        ...

    def has_ended(self, instance: str) -> bool:
        """Whether the process of a host is known to have ended. Its lease is then over at once; if in doubt, it lasts."""
        ...


class LoopClock:
    """The clock of the running event loop: for hosts that share one process. In a simulation that is virtual time."""

    boot = ""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def has_ended(self, instance: str) -> bool:
        ended: Callable[[str], bool] | None = getattr(asyncio.get_running_loop(), "has_ended", None)
        return ended is not None and ended(instance.rpartition("/")[0])


class BootClock:
    """Seconds since the machine was started, those of its sleep included, shared by all its processes.

    Where the system has no such clock (`CLOCK_BOOTTIME` is Linux's), the monotonic clock is used, which other systems also
    count from the start of the machine. Where it does not say which start that was (`boot_id`), all are taken for one: a lease
    from before a restart is over (see `lasts`), until the clock has come as far again.
    """

    def __init__(self) -> None:
        self._clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        try:
            self.boot = _BOOT_ID.read_text().strip()
        except OSError:
            self.boot = ""

    def now(self) -> float:
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)  # noqa: TID251 (nobody sets it)

    def has_ended(self, instance: str) -> bool:
        """Whether the process of a host has ended; known only of a process that this one can see."""
        boot, namespace, pid, started_at = (*instance.split("/"), "", "", "", "")[:4]
        if not boot or boot != self.boot or not namespace or namespace != _pid_namespace() or not pid.isdecimal():
            return False  # another machine or container counts its processes for itself; a program may choose any name
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass  # it belongs to another user
        found = _process_state(int(pid))
        return found is not None and (found[0] in _DEAD_STATES or found[1] != started_at)  # else the id was given out again


def lasts(now: float, ends: float, lease: float) -> bool:
    """Whether a lease has begun and not ended. One that begins later than now was given before the clock began anew."""
    return now < ends <= now + lease + _SLACK
