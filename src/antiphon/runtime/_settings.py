"""Settings: the values that a user gives a system. Addresses, limits, the port, and the rules of supervision.

A simulation brings its own port and its own event loop, which says how much time has passed. So it is exact.

The rules of supervision (`Supervision`):

| setting | default | meaning |
|---|---|---|
| `strategy` | `one_for_one` | who is restarted: the failed child; all children; the failed child and those started after it |
| `intensity`, `period` | 3 in 5 s | how many restarts are allowed, of one child under `one_for_one`, else of all together |
| `on_failure` | `restart` | the action: restart, replace, stop, escalate, ignore |
| `on_block` | `ignore` | the action for a child that blocks the event loop; its message is not handled again |
| `beyond` | `escalate` | the action when there are too many restarts: escalate or stop |
| `backoff` | 0.1 s, doubled up to 30 s | the delay before the n-th restart within the period |
| `heartbeat`, `misses` | none, 3 | how often children are asked for a heartbeat, and how many they may miss |

The restarts of nested supervisors multiply: three in the child's supervisor, each answered three times by the one above.
`_supervision.py` applies these rules.
"""

from __future__ import annotations

import random  # noqa: TID251 (the one place)
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from antiphon.messages import Port, current_port, is_name
from antiphon.messages.keys import key_of, kind_of

if TYPE_CHECKING:
    from antiphon.ledger import ThreadSummary

_KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", re.ASCII)

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,200}(/[!-~]{1,200})?", re.ASCII)
"""The form of most addresses; others are checked in full."""

SYSTEM = "system"
"""The kind of the runtime's own addresses, and the prefix of its threads."""


STOPPED = "stopped"
"""The status of a thread that no living host can continue; `ThreadSummary.unfit` says why."""
GOES_ON = "processing"
"""The status of a thread that was stopped and is continued."""


class Address(str):
    """`kind/key`, or a kind alone if there is only one of it. It is a `str`: it can be a policy, a receiver or a key."""

    __slots__ = ()

    def __new__(cls, kind: str, key: str = "") -> Address:
        """Make an address.

        Raises:
            ValueError: the kind has other characters than ASCII letters, digits and `_.:-`, or the key is no name.
        """
        address = super().__new__(cls, f"{kind}/{key}" if key else kind)
        if _PLAIN.fullmatch(address):
            return address
        if not _KIND.fullmatch(kind) or not is_name(str(address)):
            raise ValueError(f"an address is a kind of ASCII letters, digits and _.:-, and a key that is a name: {address!r}")
        return address

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address that a text is.

        Raises:
            ValueError: it is malformed.
        """
        if text.endswith("/"):
            raise ValueError(f"an address has a key after its slash: {text!r}")
        if _PLAIN.fullmatch(text):
            return str.__new__(cls, text)
        kind, _, key = text.partition("/")
        return cls(kind, key)

    @property
    def kind(self) -> str:
        """What lives there: actors of a kind have the same factory."""
        return kind_of(self)

    @property
    def key(self) -> str:
        """Which one of its kind."""
        return key_of(self)


def system_thread(address: str) -> str:
    """Return the system thread of an actor: its failures, restarts and supervision, outside of conversations."""
    return f"{SYSTEM}/{address}"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a thread may use; None is no limit. New messages beyond it are refused; what was started may end."""

    messages: int | None = None
    tokens: int | None = None
    """Input and output tokens of model requests."""
    cost: Decimal | None = None
    """In US dollars."""

    def spent_by(self, thread: ThreadSummary) -> str | None:
        """Return which limit a thread has reached; None if it has reached none."""
        if self.messages is not None and thread.messages >= self.messages:
            return f"{self.messages} messages"
        if self.tokens is not None and thread.input_tokens + thread.output_tokens >= self.tokens:
            return f"{self.tokens} tokens"
        if self.cost is not None and thread.cost >= self.cost:
            return f"{self.cost} US dollars"
        return None


# ---------------------------------------------------------------- how many threads are at work


class LimitedHost(Protocol):
    """A system that takes threads under a limit."""

    @property
    def at_work(self) -> int:
        """The number of its threads that are at work."""
        ...

    @property
    def wants_room(self) -> bool:
        """Whether more threads may be due than it has taken."""
        ...

    def look_again(self) -> None:
        """Look for room and due threads soon, if it wants room."""
        ...


class ThreadLimit:
    """How many threads may be at work at once, in all systems that have this limit in their settings.

    While threads of several systems are due, the systems share it evenly. They belong to one event loop.

    **Who gets room.** A system wants room while more threads may be due than it has taken. What is free, and what the
    systems that want room have at work, is divided evenly between them. The result, rounded up, is the level. A system takes
    threads up to the level, and none beyond it. So the system that has the fewest threads always gets room. A system that
    alone wants room gets all that is free. Nothing is taken away: a system that is above the level gets no room until
    threads of its own have ended.

    **Who wants room.** A system does not know whether threads are due before it has looked, so it wants room until a look
    finds fewer threads than there was room for. Then it tells the others, which may take the rest.
    """

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self._taking: dict[LimitedHost, int] = {}
        """By system, for how many threads it has room that it is about to take."""

    def join(self, host: LimitedHost) -> None:
        """Add a system that begins to take threads."""
        self._taking[host] = 0

    def leave(self, host: LimitedHost) -> None:
        """Remove a system: its threads no longer count."""
        self._taking.pop(host, None)
        self.tell_free()

    @property
    def free(self) -> int:
        """How many more threads may be at work."""
        return self.most - sum(host.at_work + taking for host, taking in self._taking.items())

    def reserve(self, host: LimitedHost, most: int) -> int:
        """Return how many threads a system may take now, and keep the room for it until `settle`."""
        if host not in self._taking:
            return 0  # it was told to end meanwhile
        free = self.free
        wanting = [each for each in self._taking if each is host or each.wants_room]
        level = -(-(free + sum(each.at_work + self._taking[each] for each in wanting)) // len(wanting))
        room = max(0, min(free, level - host.at_work, most))
        self._taking[host] = room
        return room

    def settle(self, host: LimitedHost, taken: int) -> None:
        """Note how many threads a system has taken. Others get the rest of its room, and that of threads that have ended."""
        # Not any room: systems that tell each other of it would take all that is due within milliseconds, and leave nothing
        # to the hosts of other processes.
        if host in self._taking:
            room, self._taking[host] = self._taking[host], 0
            if taken < room or host.at_work < taken:
                self.tell_free()

    def tell_free(self) -> None:
        """Have systems that want room look again, if there is any: a thread has ended, or room was given back."""
        if self._taking and self.free > 0:
            for host in tuple(self._taking):
                host.look_again()


# ---------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and defaults of a system."""

    within: float = 30.0
    """Seconds that an answer may take, by default."""
    hop_limit: int = 64
    """How many messages may follow from each other in a chain."""
    attempts: int = 3
    """How often a message of a thread is handled in all if its handler fails, before it is parked."""
    recoveries: int = 50
    """How often a message of a thread may be in flight when its process dies, before it is parked."""
    budget: Budget = Budget()
    """What each thread may use."""
    dead_letters: int = 1000
    """How many are kept."""
    idle_after: float | None = 900.0
    """Seconds without a message after which an actor of a registered kind is passivated; None: never."""
    block_limit: float | None = 1.0
    """Seconds after which a blocked event loop is reported; None: never."""
    host: str | None = None
    """The name of this host in the ledger, unique among those that live. None: the machine, the process and a number."""
    build: str | None = None
    """The version of the program: hosts of one build continue the same threads. None: the environment variable
    `ANTIPHON_BUILD`, or a hash of the program's main file."""
    address: str | None = None
    """Where other machines hear the words of this host, as `host:port`; the row of the host has it."""
    heartbeat: float = 2.0
    """Seconds between two beats of a host. Its lease is three times as long."""
    poll: float = 0.2
    """Seconds between two looks for messages that other processes have posted to threads of this host."""
    thread_limit: int | ThreadLimit = 1000
    """How many threads may be at work in a host before it takes no more (`System.host`); others may take the rest. What the
    program itself asks is not limited. Systems that are given the same `ThreadLimit` share it evenly: one for each tenant."""
    kinds: tuple[str, ...] | None = None
    """The kinds of threads that this host takes and offers to others; None: all that its actors can run."""
    mismatch_patience: float | None = 30.0
    """Seconds that callers wait for a host of another build, after the code here could not continue a thread. None: the error
    answers the message, and the thread goes on; for a copy of a thread that is run again only to be compared."""
    permit_patience: float = 600.0
    """Seconds that a model request waits for a permit under the limits of all hosts, before its thread is stopped."""
    release_after: float = 5.0
    """Seconds without work after which a thread is released, so that another host may take it."""
    drain: float = 30.0
    """Seconds that a host which was told to end (`System.host`) goes on with the threads that it has at work, while a living
    host has another build, which may be unable to continue them."""


class RuntimePort(Port, Protocol):
    """The source of new ids, the time and random numbers."""

    def random(self) -> float:
        """Return a random number from 0 to 1, 1 not included."""
        ...


class _Completed:
    """A port without random numbers, completed with those of the machine."""

    def __init__(self, port: Port) -> None:
        self.new_id = port.new_id
        self.now = port.now
        self.random = random.random


def port_in_use() -> RuntimePort:
    """Return the current port, with random numbers."""
    port = current_port()
    return port if hasattr(port, "random") else _Completed(port)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


# ---------------------------------------------------------------- supervision


RestartWhen: TypeAlias = Literal["permanent", "transient", "temporary"]
"""When an actor is restarted after it has ended: always; only after a failure; never."""

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
Action: TypeAlias = Literal["restart", "replace", "stop", "escalate", "ignore"]
"""Restart: a new actor, the mailbox as it is. Replace: a new actor, the mailbox empty. Ignore: the same actor goes on."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a restart: longer each time, with jitter."""

    first: float = 0.1
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.1
    """The share by which a delay may be longer or shorter."""

    def delay(self, count: int, chance: float) -> float:
        """Return the delay before restart number `count`, from 1; `chance` is a random number from 0 to 1."""
        exponent = min(count - 1, 64)  # beyond, every delay is the longest, and the power would overflow
        delay = min(self.most, self.first * self.factor**exponent)
        return delay * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True)
class Supervision:
    """The rules of a supervisor."""

    strategy: Strategy = "one_for_one"
    intensity: int = 3
    period: float = 5.0
    on_failure: Action = "restart"
    on_block: Action = "ignore"
    beyond: Literal["escalate", "stop"] = "escalate"
    backoff: Backoff = Backoff()
    heartbeat: float | None = None
    misses: int = 3
