"""Settings: the values that a user gives a system. Addresses, limits, the port, and the rules of supervision.

A simulation supplies its own port and its own event loop with virtual time, so it is deterministic.

The rules of supervision (`Supervision`):

| setting | default | meaning |
|---|---|---|
| `strategy` | `one_for_one` | who is restarted: the failed child; all children; the failed child and those started after it |
| `intensity`, `period` | 3 in 5 s | how many restarts are allowed, of one child under `one_for_one`, else of all together |
| `on_failure` | `restart` | the action: restart, replace, stop, escalate, ignore |
| `on_block` | `ignore` | the action for a child that blocks the event loop; its message is not handled again |
| `beyond` | `escalate` | the action after too many restarts: escalate or stop |
| `backoff` | 0.1 s, doubled up to 30 s | the delay before the n-th restart within the period |
| `heartbeat`, `misses` | none, 3 | how often children are asked for a heartbeat, and how many they may miss |

The restarts of nested supervisors multiply: three restarts in the child's supervisor, for each of three restarts one level up.
`_supervision.py` applies these rules.
"""

from __future__ import annotations

import random  # noqa: TID251 (the one place)
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from antiphon.messages import Port, current_port
from antiphon.messages._arguments import check_type
from antiphon.messages._keys import key_of, kind_of
from antiphon.messages._names import is_name

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
    """`kind/key`, or the kind alone for a single actor. It is a `str`, so it can serve as a policy, a receiver or a key."""

    __slots__ = ()

    def __new__(cls, kind: str, key: str = "") -> Address:
        """Make an address.

        Raises:
            ValueError: the kind has characters other than ASCII letters, digits and `_.:-`, or the key is not a valid name.
        """
        check_type("the kind of an address", kind, str, "'shop'")
        address = super().__new__(cls, f"{kind}/{key}" if key else kind)
        if _PLAIN.fullmatch(address):
            return address
        if not _KIND.fullmatch(kind) or not is_name(str(address)):
            raise ValueError(f"an address is a kind of ASCII letters, digits and _.:-, and a key that is a name: {address!r}")
        return address

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address.

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
        """The kind of actor: all actors of a kind have the same factory."""
        return kind_of(self)

    @property
    def key(self) -> str:
        """The key, which tells actors of one kind apart."""
        return key_of(self)


def system_thread(address: str) -> str:
    """Return the system thread of an actor: its failures, restarts and supervision, outside of conversations."""
    return f"{SYSTEM}/{address}"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a thread may use; None means no limit. Beyond it, new messages are refused; started work may finish."""

    messages: int | None = None
    tokens: int | None = None
    """Input and output tokens of model requests."""
    cost: Decimal | None = None
    """In US dollars."""

    def spent_by(self, thread: ThreadSummary) -> str | None:
        """Return the limit that a thread has reached; None if it has not reached any."""
        if self.messages is not None and thread.messages >= self.messages:
            return f"{self.messages} messages"
        if self.tokens is not None and thread.input_tokens + thread.output_tokens >= self.tokens:
            return f"{self.tokens} tokens"
        if self.cost is not None and thread.cost >= self.cost:
            return f"{self.cost} US dollars"
        return None


# ---------------------------------------------------------------- the limit of active threads


class LimitedHost(Protocol):
    """A system that takes threads under a limit."""

    @property
    def at_work(self) -> int:
        """The number of its active threads."""
        ...

    @property
    def wants_room(self) -> bool:
        """Whether threads may be due that it has not taken."""
        ...

    def look_again(self) -> None:
        """Check for room and due threads soon, if it wants room."""
        ...


class ThreadLimit:
    """The maximum number of active threads, in all systems that have this limit in their settings.

    While threads of several systems are due, the systems share the limit evenly. All of them run on one event loop.

    **Who gets room.** A system wants room while threads may be due that it has not taken. The free room, plus the active
    threads of the systems that want room, is divided evenly between them. The result, rounded up, is the level. A system takes
    threads up to the level, and none beyond it. So the system with the fewest threads always gets room. If only one system
    wants room, it gets all free room. Nothing is taken away: a system above the level gets no room until some of its own
    threads have ended.

    **Who wants room.** A system knows only after a query whether threads are due. So it wants room until a query returns fewer
    threads than there was room for. Then it notifies the other systems, which may take the rest.
    """

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self._taking: dict[LimitedHost, int] = {}
        """By system, the room that is reserved for threads that it is about to take."""

    def join(self, host: LimitedHost) -> None:
        """Add a system that starts to take threads."""
        self._taking[host] = 0

    def leave(self, host: LimitedHost) -> None:
        """Remove a system: its threads no longer count."""
        self._taking.pop(host, None)
        self.tell_free()

    @property
    def free(self) -> int:
        """The number of threads that may still become active."""
        return self.most - sum(host.at_work + taking for host, taking in self._taking.items())

    def reserve(self, host: LimitedHost, most: int) -> int:
        """Return how many threads a system may take now, and keep the room for it until `settle`."""
        if host not in self._taking:
            return 0  # it was asked to stop meanwhile
        free = self.free
        wanting = [each for each in self._taking if each is host or each.wants_room]
        level = -(-(free + sum(each.at_work + self._taking[each] for each in wanting)) // len(wanting))
        room = max(0, min(free, level - host.at_work, most))
        self._taking[host] = room
        return room

    def settle(self, host: LimitedHost, taken: int) -> None:
        """Record how many threads a system has taken. The others get the rest of its room, and the room of ended threads."""
        # Not for all free room: systems that notify each other about it would take all due threads within milliseconds, and
        # leave none to the hosts in other processes.
        if host in self._taking:
            room, self._taking[host] = self._taking[host], 0
            if taken < room or host.at_work < taken:
                self.tell_free()

    def tell_free(self) -> None:
        """Notify the systems that want room, if there is any: a thread has ended, or reserved room was returned."""
        if self._taking and self.free > 0:
            for host in tuple(self._taking):
                host.look_again()


# ---------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and defaults of a system."""

    within: float = 30.0
    """The default time limit of an answer, in seconds."""
    hop_limit: int = 64
    """The longest chain of messages that follow from each other."""
    attempts: int = 3
    """How often a message of a thread is handled in total before it is parked, if its handler fails."""
    recoveries: int = 50
    """How often a process may die while a message of a thread is in flight, before the message is parked."""
    budget: Budget = Budget()
    """What each thread may use."""
    dead_letters: int = 1000
    """How many are kept."""
    idle_after: float | None = 900.0
    """Seconds without a message after which an actor of a registered kind is passivated; None: never."""
    block_limit: float | None = 1.0
    """Seconds after which a blocked event loop is reported; None: never."""
    host: str | None = None
    """The name of this host in the ledger, unique among living hosts. None: the machine, the process and a number."""
    build: str | None = None
    """The version of the program: hosts of one build continue the same threads. None: the environment variable
    `ANTIPHON_BUILD`, or a hash of the program's main file."""
    heartbeat: float = 2.0
    """Seconds between two heartbeats of a host. Its lease is three times as long."""
    poll: float = 0.2
    """Seconds between two checks for messages that other processes have posted to threads of this host."""
    thread_limit: int | ThreadLimit = 1000
    """The number of active threads at which a host stops taking threads (`System.host`); other hosts may take the rest.
    Questions of the program itself are not limited. Systems with the same `ThreadLimit` share it evenly, for example one
    system per tenant."""
    kinds: tuple[str, ...] | None = None
    """The kinds of threads that this host takes and advertises to other hosts; None: all that its actors can run."""
    mismatch_patience: float | None = 30.0
    """Seconds that callers wait for a host of another build, after the code here could not continue a thread. None: the
    message is answered with the error, and the thread continues. That is for copies of threads that are rerun only to compare
    them."""
    permit_patience: float = 600.0
    """Seconds that a model request waits for a permit under the shared limits, before its thread is stopped."""
    release_after: float = 5.0
    """Seconds without work after which a thread is released, so that another host may take it."""
    drain: float = 30.0
    """Seconds that a stopping host (`System.host`) continues its active threads while a living host has another build, which
    may be unable to continue them."""


class RuntimePort(Port, Protocol):
    """The source of new ids, the time and random numbers."""

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        ...


class _Completed:
    """A port without random numbers, completed with the random source of the machine."""

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
"""Restart: a new actor, the same mailbox. Replace: a new actor, an empty mailbox. Ignore: the same actor continues."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a restart: longer each time, with jitter."""

    first: float = 0.1
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.1
    """The fraction by which a delay may be longer or shorter."""

    def delay(self, count: int, chance: float) -> float:
        """Return the delay before restart number `count`, from 1; `chance` is a random number from 0 to 1."""
        exponent = min(count - 1, 64)  # above that, every delay is the longest one, and the power would overflow
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
