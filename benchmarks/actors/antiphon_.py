"""antiphon: typed requests, or core messages, through the public functions of a `System`.

The event loop rests between the samples, which the watchdog would take for a blocked one; so it is off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from antiphon import Message, OptionCallPayload
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles
from benchmarks.actors._troupe import OnLoop, settled

__all__ = ["AntiphonTroupe", "MessageTroupe"]


class Answer(Reply, frozen=True, type="BENCH_ANSWER"):
    number: int


class Question(Request[Answer], frozen=True, type="BENCH_QUESTION"):
    number: int


class Lead(Request[Answer], frozen=True, type="BENCH_LEAD"):
    others: tuple[str, ...]


QUESTION, ANSWER = Question(number=1), Answer(number=1)


class Worker(Actor):
    @handles
    async def answer(self, question: Question, context: Context) -> Answer:
        return ANSWER

    @handles
    async def lead(self, lead: Lead, context: Context) -> Answer:
        settled(await asyncio.gather(*(context.ask(to, QUESTION) for to in lead.others)), lead.others)
        return ANSWER


class AntiphonTroupe(OnLoop):
    """The actors of a system."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        super().__init__()

    async def open(self) -> None:
        self.system = await self._stack.enter_async_context(System(settings=Settings(block_limit=None)))

    def begin(self, names: Sequence[str]) -> Sequence[str]:
        spawn = self.system.spawn
        return [spawn(f"worker/{name}", Worker) for name in names]

    async def ask_in_turn(self, handles: Sequence[str]) -> None:
        ask = self.system.ask
        for to in handles:
            await ask(to, QUESTION)

    async def lead(self, leader: str, handles: Sequence[str]) -> None:
        await self.system.ask(leader, Lead(others=tuple(handles)))

    async def ended(self) -> None:
        await self._stack.aclose()


class MessageTroupe(AntiphonTroupe):
    """The same, asked by core messages; each is made, for the same one again would get the same answer unasked."""

    async def ask_in_turn(self, handles: Sequence[str]) -> None:
        ask, number = self.system.ask, {"number": 1}
        for to in handles:
            call = OptionCallPayload(invocation_id="1", option_name=Question.message_type, arguments=number)
            await ask(to, Message(policy="client", payload=call))
