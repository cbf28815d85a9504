"""The registry of peers: specs, limits, topologies, and the rules for calls; the requests of peers.

A thread of a star or a pipeline can be checked against its flow.

```
star            pipeline          mesh                hierarchy

    a           a ─► b ─► c       a ◄──► b            a
 ┌──┼──┐                          ▲      ▲            ├─► b ─► d
 ▼  ▼  ▼                          └► c ◄─┘            └─► c
 b  c  d
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Final, Literal, TypeAlias, Union, cast

from pydantic import BaseModel, ConfigDict, Field

from antiphon.agents.config import known_names
from antiphon.messages.keys import key_of, kind_of
from antiphon.patterns.cast import AgentSpec, CastError
from antiphon.patterns.peers._letters import Refusal
from antiphon.protocol import Reply, Request
from antiphon.protocol.flows import Choice, Flow, Pattern, Sequence, Step, choice, repeat, sequence

# ---------------------------------------------------------------- requests

KIND: Final = "peer"
PATTERN: Final = "peers"
"""The name of the pattern in the ledger."""


class PeerAnswered(Reply, frozen=True, type="PEER_ANSWERED"):
    """The answer of a peer."""

    content: str
    completion_time: float
    """Seconds that it took."""
    untrusted: str | None = None
    """The source of untrusted content that the peer has read, if any."""


class InvokePeer(Request[PeerAnswered], frozen=True, type="INVOKE_PEER", family="agent"):
    """A request to a peer. The caller is the sender that the runtime recorded."""

    request: str
    depth: int = 0
    """The length of the chain of callers; 0: a user asks."""
    context_message_ids: tuple[str, ...] = ()
    """Messages of the thread that are passed on, by id."""
    untrusted: str | None = None
    """The source of untrusted content that the caller has read, if any."""
    task_id: str | None = None
    """The task that the caller names; this peer's own requests name the same."""
    message_id: str | None = None
    """The message of the thread that is the request, if it is more than text."""


class PeerHeard(Reply, frozen=True, type="PEER_HEARD"):
    """The recorded answer or error of a peer that was asked."""

    message_id: str


class DelegateToPeer(Request[PeerHeard], frozen=True, type="DELEGATE_TO_PEER", family="agent"):
    """Ask another peer, without a decision of a model."""

    target: str
    request: str
    context_message_ids: tuple[str, ...] = ()
    task_id: str | None = None
    """The task that the caller says it is part of."""
    message_id: str | None = None
    """The id of the caller's `agent_call`, if it wrote one."""


def address_of(name: str) -> str:
    """Return the address of a peer."""
    return f"{KIND}/{name}"


def peer_at(address: str) -> str | None:
    """Return the peer of an address; None: it is not the address of a peer."""
    return (key_of(address) or None) if kind_of(address) == KIND else None


# ---------------------------------------------------------------- limits


class PeerLimits(BaseModel):
    """The limits of peers in one task of a user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_depth: int = Field(default=5, ge=0)
    """The maximum length of a chain of callers: a peer asks a peer that asks a peer, and so on."""
    max_interactions: int = Field(default=10, ge=0)
    """How often peers may ask each other, in all branches together."""
    remember: int = Field(default=5, ge=0)
    """How many of its earlier exchanges in a thread are in the prompt of a peer."""
    told: int = Field(default=50, ge=0)
    """How many added messages of its memory, and of each shared memory, are in the prompt of a peer."""
    within: float = Field(default=3600.0, gt=0)
    """Seconds that a peer may take to answer another, including approvals by people."""
    failures: int = Field(default=5, ge=1)
    """How many consecutive failures, in all threads, open the circuit breaker of a peer."""
    recovery: float = Field(default=60.0, ge=0)
    """Seconds after the last failure before the peer may be probed."""


# ---------------------------------------------------------------- flows

_USER = "user"


def star_flow(center: str, leaves: Iterable[str]) -> Flow:
    """A user asks the center, which asks the others, possibly concurrently, before it answers."""
    around = tuple(leaves)
    exchanges = [part for leaf in around for part in (_asks(center, leaf), _answers(leaf, center))]
    task = sequence(_asks(_USER, center), repeat(choice(*exchanges)), _answers(center, _USER))
    return Flow("star", f"{center} asks {', '.join(around)}, who ask nobody.", repeat(task, least=1), _roles(center, *around))


def pipeline_flow(*names: str) -> Flow:
    """A user asks the first peer, which asks the next before it answers, and so on; nobody asks out of turn."""
    about = f"Each asks the next: {', '.join(names)}."
    return Flow("pipeline", about, repeat(_nested(_USER, names), least=1), _roles(*names))


def _nested(caller: str, names: tuple[str, ...]) -> Sequence:
    """Return the flow in which the first peer is asked and may ask the second, and so on, and each answers."""
    first, *others = names
    inner: list[Pattern] = [repeat(_nested(first, tuple(others)))] if others else []
    return sequence(_asks(caller, first), *inner, _answers(first, caller))


def _asks(caller: str, callee: str) -> Step:
    return Step(caller, callee, InvokePeer.message_type)


def _answers(callee: str, caller: str) -> Choice:
    return choice(Step(callee, caller, PeerAnswered.message_type), Step(callee, caller, "ERROR"))


def _roles(*names: str) -> tuple[tuple[str, str], ...]:
    return ((_USER, _USER), *((name, address_of(name)) for name in names))


# ---------------------------------------------------------------- specs and limits

EVERYBODY: Final = "*"
INVOKE_AGENT: Final = "invoke_agent"
"""The tool with which a peer asks another."""

AllowedPeers: TypeAlias = tuple[str, ...] | Literal["*"]


class PeerSpec(AgentSpec):
    """The configuration of one peer."""

    allowed_peers: AllowedPeers = ()
    """The names of the peers that it may ask; `*`: all others."""
    shares: tuple[str, ...] = ()
    """The names of its shared memories; see `Peers.shared`."""


def allows(spec: PeerSpec, target: str) -> bool:
    """Whether a peer may ask another."""
    return target != spec.name if spec.allowed_peers == EVERYBODY else target in spec.allowed_peers


# ---------------------------------------------------------------- the registry


class PeerRegistry:
    """Peers with unique names."""

    def __init__(self, peers: Iterable[PeerSpec] = ()) -> None:
        """Register some.

        Raises:
            CastError: two have the same name.
        """
        self._lock = Lock()
        self._peers: dict[str, PeerSpec] = {}
        self._counts: Counter[str] = Counter()
        for each in peers:
            self.register(each)

    def register(self, spec: PeerSpec) -> PeerSpec:
        """Register a peer.

        Raises:
            CastError: the name is taken.
        """
        with self._lock:
            if spec.name in self._peers:
                raise CastError(f"there is a peer {spec.name!r} already; give this one another name, or unregister that one")
            self._peers[spec.name] = spec
        return spec

    def register_new(self, prefix: str, **settings: Any) -> PeerSpec:
        """Register a peer with the next free name `prefix-1`, `prefix-2`, …; names are never reused.

        Raises:
            ValidationError: the name or a setting is invalid.
        """
        with self._lock:
            number = self._counts[prefix] + 1
            while (name := f"{prefix}-{number}") in self._peers:
                number += 1
            spec = PeerSpec(name=name, **settings)
            self._counts[prefix] = number
            self._peers[name] = spec
        return spec

    def unregister(self, name: str) -> PeerSpec:
        """Unregister a peer.

        Raises:
            CastError: there is no such peer.
        """
        with self._lock:
            if name not in self._peers:
                raise CastError(self._nobody(name))
            return self._peers.pop(name)

    def find(self, name: str) -> PeerSpec | None:
        """Return a peer; None: there is no such peer."""
        with self._lock:
            return self._peers.get(name)

    def get(self, name: str) -> PeerSpec:
        """Return a peer.

        Raises:
            CastError: there is no such peer.
        """
        with self._lock:
            if (found := self._peers.get(name)) is None:
                raise CastError(self._nobody(name))
            return found

    def all(self) -> tuple[PeerSpec, ...]:
        """Return all peers, in the order in which they were registered."""
        with self._lock:
            return tuple(self._peers.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the peers."""
        return tuple(each.name for each in self.all())

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._peers

    def __iter__(self) -> Iterator[PeerSpec]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def _nobody(self, name: str) -> str:
        return f"there is no peer {name!r}{known_names(name, self._peers, 'there are', 'none')}"


# ---------------------------------------------------------------- whether a peer may ask another, checked in this order

PEER_NOT_FOUND: Final = "PEER_NOT_FOUND"
PEER_NOT_ALLOWED: Final = "PEER_NOT_ALLOWED"
MAX_DEPTH: Final = "MAX_DEPTH"
MAX_INTERACTIONS: Final = "MAX_INTERACTIONS"


def find_refusal(
    registry: PeerRegistry, limits: PeerLimits, caller: PeerSpec, target: str, *, depth: int, interactions: int
) -> Refusal | None:
    """Return the reason why a call at this depth, after this number of calls, is refused; None: it is allowed."""
    if target not in registry:
        return Refusal(PEER_NOT_FOUND, f"there is no agent {target!r}; there are {', '.join(registry.names)}")
    if not allows(caller, target):
        allowed = ", ".join(name for name in registry.names if allows(caller, name)) or "nobody"
        return Refusal(PEER_NOT_ALLOWED, f"{caller.name!r} may not ask {target!r}; it may ask {allowed}")
    if depth > limits.max_depth:
        return Refusal(MAX_DEPTH, f"agents ask each other {limits.max_depth} deep already; answer with what you have")
    if interactions >= limits.max_interactions:
        done = f"agents have asked each other {interactions} times for this task"
        return Refusal(MAX_INTERACTIONS, f"{done}, which is as often as they may; answer with what you have")
    return None


# ---------------------------------------------------------------- topologies

Topology: TypeAlias = dict[str, tuple[str, ...]]
"""The peers that each peer may ask."""
Tree: TypeAlias = Mapping[str, Union["Tree", Iterable[str]]]
"""For each peer, the peers below it: a tree again, or names."""


def star(center: str, leaves: Iterable[str]) -> Topology:
    """The center asks all others, which ask nobody."""
    around = tuple(leaves)
    return _checked({center: around, **dict.fromkeys(around, ())}, [center, *around])


def pipeline(*names: str) -> Topology:
    """Each peer asks the next."""
    following = [(name,) for name in names[1:]]
    return _checked(dict(zip(names, [*following, ()], strict=False)), names)


def mesh(*names: str) -> Topology:
    """Each peer asks all others."""
    return _checked({name: tuple(other for other in names if other != name) for name in names}, names)


def hierarchy(tree: Tree) -> Topology:
    """Each peer asks those directly below it."""
    found: Topology = {}
    named: list[str] = []
    for name, below in tree.items():
        found[name] = tuple(below)
        named.append(name)
        under = hierarchy(cast("Tree", below)) if isinstance(below, Mapping) else dict.fromkeys(below, ())
        named += under
        found |= under
    return _checked(found, named)


def _checked(topology: Topology, named: Iterable[str]) -> Topology:
    names = list(named)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} is in two places; name each peer once")
    return topology
