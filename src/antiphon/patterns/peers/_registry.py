"""The registry of peers: specs, topologies, and the rules for calls.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Final, Literal, TypeAlias, Union, cast

from antiphon.agents._config import known_names
from antiphon.errors import SetupError
from antiphon.messages._arguments import check_type
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.peers._letters import PeerLimits, Refusal

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
        """Register some."""
        self._lock = Lock()
        self._peers: dict[str, PeerSpec] = {}
        self._counts: Counter[str] = Counter()
        for spec in peers:
            self.register(spec)

    def register(self, spec: PeerSpec) -> PeerSpec:
        """Register a peer."""
        check_type("a peer", spec, PeerSpec, 'PeerSpec(name="ada")')
        with self._lock:
            if spec.name in self._peers:
                raise SetupError(f"there is a peer {spec.name!r} already; give this one another name, or unregister that one")
            self._peers[spec.name] = spec
        return spec

    def register_new(self, prefix: str, **settings: Any) -> PeerSpec:
        """Register a peer with the next free name `prefix-1`, `prefix-2`, …; names are never reused."""
        with self._lock:
            number = self._counts[prefix] + 1
            while (name := f"{prefix}-{number}") in self._peers:
                number += 1
            spec = PeerSpec(name=name, **settings)
            self._counts[prefix] = number
            self._peers[name] = spec
        return spec

    def unregister(self, name: str) -> PeerSpec:
        """Unregister a peer."""
        with self._lock:
            if name not in self._peers:
                raise SetupError(self._nobody(name))
            return self._peers.pop(name)

    def find(self, name: str) -> PeerSpec | None:
        """Return a peer; None: there is no such peer."""
        with self._lock:
            return self._peers.get(name)

    def get(self, name: str) -> PeerSpec:
        """Return a peer."""
        with self._lock:
            if (spec := self._peers.get(name)) is None:
                raise SetupError(self._nobody(name))
            return spec

    def all(self) -> tuple[PeerSpec, ...]:
        """Return all peers, in the order in which they were registered."""
        with self._lock:
            return tuple(self._peers.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the peers."""
        return tuple(spec.name for spec in self.all())

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
    leaves = tuple(leaves)
    return _checked({center: leaves, **dict.fromkeys(leaves, ())}, [center, *leaves])


def pipeline(*names: str) -> Topology:
    """Each peer asks the next."""
    following = [(name,) for name in names[1:]]
    return _checked(dict(zip(names, [*following, ()], strict=False)), names)


def mesh(*names: str) -> Topology:
    """Each peer asks all others."""
    return _checked({name: tuple(peer for peer in names if peer != name) for name in names}, names)


def hierarchy(tree: Tree) -> Topology:
    """Each peer asks those directly below it."""
    topology: Topology = {}
    names: list[str] = []
    for name, below in tree.items():
        topology[name] = tuple(below)
        names.append(name)
        subtree = hierarchy(cast("Tree", below)) if isinstance(below, Mapping) else dict.fromkeys(below, ())
        names += subtree
        topology |= subtree
    return _checked(topology, names)


def _checked(topology: Topology, names: Sequence[str]) -> Topology:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} is in two places; name each peer once")
    return topology
