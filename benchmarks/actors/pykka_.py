"""Pykka: a thread for each actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pykka

from benchmarks.actors._troupe import PING, PONG, Ping, Pong, settled

__all__ = ["PykkaTroupe"]


class Worker(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Pong:
        if type(message) is Ping:
            return PONG
        settled(pykka.get_all([other.ask(PING, block=False) for other in message]), message)
        return PONG


class PykkaTroupe:
    """Actors in threads."""

    def __init__(self) -> None:
        self._begun: list[pykka.ActorRef[Worker]] = []

    def begin(self, names: Sequence[str]) -> Sequence[pykka.ActorRef[Worker]]:
        begun = [Worker.start() for _ in names]
        self._begun += begun
        return begun

    def ask(self, handles: Sequence[pykka.ActorRef[Worker]]) -> None:
        for actor in handles:
            actor.ask(PING)

    def ask_together(self, clients: Sequence[Sequence[pykka.ActorRef[Worker]]]) -> None:
        for handles in zip(*clients, strict=True):
            settled(pykka.get_all([actor.ask(PING, block=False) for actor in handles]), handles)

    def fan_out(self, leader: pykka.ActorRef[Worker], handles: Sequence[pykka.ActorRef[Worker]]) -> None:
        leader.ask(handles)

    def close(self) -> None:
        for actor in self._begun:
            actor.stop()
