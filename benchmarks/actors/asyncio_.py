"""asyncio and nothing else: a deque, a task for each actor, a future for each question. The limit of what is possible.

No types, deadlines, back-pressure, cancellation, failures, ids or supervision; whoever asks has the actor itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from benchmarks.actors._troupe import PING, PONG, OnLoop, Ping, Pong, settled

__all__ = ["AsyncioTroupe"]


class RawActor:
    """A deque, and a task that waits for something to be in it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._task = asyncio.create_task(self._run())

    def ask(self, said: Any) -> asyncio.Future[Any]:
        answer = self._loop.create_future()
        self._asked.append((said, answer))
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None
        return answer

    async def _run(self) -> None:
        while True:
            while self._asked:
                said, answer = self._asked.popleft()
                answer.set_result(await self.handle(said))
            self._wake = self._loop.create_future()
            await self._wake

    async def handle(self, said: Any) -> Pong:
        if type(said) is Ping:
            return PONG
        settled(await asyncio.gather(*(actor.ask(PING) for actor in said)), said)
        return PONG

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class AsyncioTroupe(OnLoop):
    """Actors by hand."""

    def __init__(self) -> None:
        self._actors: list[RawActor] = []
        super().__init__()

    def begin(self, names: Sequence[str]) -> Sequence[RawActor]:
        return self.runner.run(self._begin(names))

    async def _begin(self, names: Sequence[str]) -> Sequence[RawActor]:
        made = [RawActor() for _ in names]
        await asyncio.sleep(0)  # each task runs up to its first wait
        self._actors += made
        return made

    async def ask_in_turn(self, handles: Sequence[RawActor]) -> None:
        for actor in handles:
            await actor.ask(PING)

    async def lead(self, leader: RawActor, handles: Sequence[RawActor]) -> None:
        await leader.ask(handles)

    async def ended(self) -> None:
        for actor in self._actors:
            await actor.end()
