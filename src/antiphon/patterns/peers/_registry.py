"""PeerRegistry: who there is, by name. Any thread of the process may ask it or change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Any

from antiphon.patterns.cast import CastError
from antiphon.patterns.peers._spec import PeerSpec

__all__ = ["PeerRegistry"]


class PeerRegistry:
    """Peers, each under a name that no other has."""

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
        """Let a peer be known by its name.

        Raises:
            CastError: another has the name.
        """
        with self._lock:
            if spec.name in self._peers:
                raise CastError(f"there is a peer {spec.name!r} already; give this one another name, or unregister that one")
            self._peers[spec.name] = spec
        return spec

    def register_new(self, prefix: str, **settings: Any) -> PeerSpec:
        """Register a peer under the next free name `prefix-1`, `prefix-2`, …; a name that was given away is not used again.

        Raises:
            ValidationError: the name or a setting is none.
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
        """Let a peer be known no more.

        Raises:
            CastError: there is none of the name.
        """
        with self._lock:
            if name not in self._peers:
                raise CastError(self._nobody(name))
            return self._peers.pop(name)

    def find(self, name: str) -> PeerSpec | None:
        """Return a peer; None: there is none of the name."""
        with self._lock:
            return self._peers.get(name)

    def get(self, name: str) -> PeerSpec:
        """Return a peer.

        Raises:
            CastError: there is none of the name.
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
        """Who there is."""
        return tuple(each.name for each in self.all())

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._peers

    def __iter__(self) -> Iterator[PeerSpec]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def _nobody(self, name: str) -> str:
        return f"there is no peer {name!r}; there are {', '.join(self._peers) or 'none'}"
