"""What is asked of a way to have actors, and what they say to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel

__all__ = ["PING", "PONG", "Handle", "OnLoop", "Ping", "Pong", "Troupe", "settled"]

Handle: TypeAlias = Any
"""What the framework wants to be given to reach an actor."""


class Ping(BaseModel, frozen=True):
    """What is asked."""

    number: int


class Pong(BaseModel, frozen=True):
    """What is answered."""

    number: int


PING, PONG = Ping(number=1), Pong(number=1)
"""Made before: what is measured is the way, not the making."""


class Troupe(Protocol):
    """Actors of one framework, which answer each `Ping` with a `Pong`."""

    def begin(self, names: Sequence[str]) -> Sequence[Handle]:
        """Begin actors, and return how they are reached."""
        ...

    def ask(self, handles: Sequence[Handle]) -> None:
        """Ask each, and wait for its answer before the next is asked."""
        ...

    def ask_together(self, clients: Sequence[Sequence[Handle]]) -> None:
        """Have a client for each list, all at once, that asks those in it one after the other. The lists are of one length."""
        ...

    def fan_out(self, leader: Handle, handles: Sequence[Handle]) -> None:
        """Ask an actor, which asks all the others at once, and answers when it has their answers."""
        ...

    def close(self) -> None:
        """End them all."""
        ...


class OnLoop:
    """What troupes have in common that live on an event loop: the loop runs only while something is asked."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self.open())

    async def open(self) -> None:
        """Get ready."""

    async def ended(self) -> None:
        """End."""

    async def ask_in_turn(self, handles: Sequence[Handle]) -> None:
        raise NotImplementedError

    async def lead(self, leader: Handle, handles: Sequence[Handle]) -> None:
        raise NotImplementedError

    def ask(self, handles: Sequence[Handle]) -> None:
        self.runner.run(self.ask_in_turn(handles))

    def ask_together(self, clients: Sequence[Sequence[Handle]]) -> None:
        self.runner.run(self._together(clients))

    async def _together(self, clients: Sequence[Sequence[Handle]]) -> None:
        await asyncio.gather(*(self.ask_in_turn(handles) for handles in clients))

    def fan_out(self, leader: Handle, handles: Sequence[Handle]) -> None:
        self.runner.run(self.lead(leader, handles))

    def close(self) -> None:
        self.runner.run(self.ended())
        self.runner.close()


def settled(answers: Sequence[object], asked: Sequence[Handle]) -> None:
    """See that there are as many answers as questions."""
    assert len(answers) == len(asked), f"{len(answers)} answers to {len(asked)} questions"
