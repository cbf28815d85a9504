"""Thread limit: how many threads may be at work in the hosts of one process together.

A process may host threads of several tenants. Each has a ledger and a system of its own, and all systems share one limit.

**Who gets room.** A system wants room while more threads may be due than it has taken. What is free, and what the systems
that want room have at work, is divided evenly between them. The result, rounded up, is the level. A system takes threads up
to the level, and none beyond it. So the system that has the fewest threads always gets room. A system that alone wants room
gets all that is free. Nothing is taken away: a system that is above the level gets no room until threads of its own have
ended.

**Who wants room.** A system does not know whether threads are due before it has looked, so it wants room until a look finds
fewer threads than there was room for. Then it tells the others, which may take the rest.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["LimitedHost", "ThreadLimit"]


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

    def settle(self, host: LimitedHost) -> None:
        """Give back what a system was given and did not use: what it has taken is at work by now."""
        # Only after there was room: systems that tell each other of none would wake each other for ever.
        if self._taking.get(host):
            self._taking[host] = 0
            self.tell_free()

    def tell_free(self) -> None:
        """Have systems that want room look again, if there is any: a thread has ended, or room was given back."""
        if self._taking and self.free > 0:
            for host in tuple(self._taking):
                host.look_again()
