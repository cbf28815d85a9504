"""Thespian: its `simpleSystemBase`, which runs every actor in the thread of whoever asks, one message at a time.

Its other bases have a process for each actor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thespian.actors import ActorAddress, ActorExitRequest, ActorSystem, ActorTypeDispatcher

from benchmarks.actors._troupe import PING, PONG, Ping, Pong, settled

__all__ = ["ThespianTroupe"]


class Worker(ActorTypeDispatcher):
    def __init__(self) -> None:
        super().__init__()
        self._asker: ActorAddress | None = None
        self._missing = 0

    def receiveMsg_Ping(self, message: Ping, sender: ActorAddress) -> None:  # noqa: N802 (Thespian calls it so)
        self.send(sender, PONG)

    def receiveMsg_list(self, others: list[ActorAddress], sender: ActorAddress) -> None:  # noqa: N802
        self._asker, self._missing = sender, len(others)
        for other in others:
            self.send(other, PING)

    def receiveMsg_Pong(self, message: Pong, sender: ActorAddress) -> None:  # noqa: N802
        self._missing -= 1
        if not self._missing:
            self.send(self._asker, PONG)


class ThespianTroupe:
    """Actors in the thread of whoever asks."""

    def __init__(self) -> None:
        self._system = ActorSystem("simpleSystemBase", transientUnique=True)

    def begin(self, names: Sequence[str]) -> Sequence[ActorAddress]:
        return [self._system.createActor(Worker) for _ in names]

    def ask(self, handles: Sequence[ActorAddress]) -> None:
        for actor in handles:
            assert self._system.ask(actor, PING, 10) is PONG

    def ask_together(self, clients: Sequence[Sequence[ActorAddress]]) -> None:
        for handles in zip(*clients, strict=True):
            for actor in handles:
                self._system.tell(actor, PING)
            settled([self._system.listen(10) for _ in handles], handles)

    def fan_out(self, leader: ActorAddress, handles: Sequence[Any]) -> None:
        assert self._system.ask(leader, list(handles), 10) is PONG

    def close(self) -> None:
        self._system.tell(self._system.createActor(Worker), ActorExitRequest())
        self._system.shutdown()
