"""autogen-core: agents in a `SingleThreadedAgentRuntime`, which makes each for its first message; tracing is off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from autogen_core import AgentId, BaseAgent, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from opentelemetry.trace import NoOpTracerProvider
from pydantic import BaseModel

from benchmarks.actors._troupe import PING, PONG, OnLoop, Ping, Pong, settled

__all__ = ["AutogenTroupe", "RoutedTroupe"]


class Lead(BaseModel, frozen=True):
    """Whom to ask."""

    others: tuple[str, ...]


class Plain(BaseAgent):
    """An agent that finds out by itself what it is sent."""

    def __init__(self) -> None:
        super().__init__("answers")

    async def on_message_impl(self, message: Any, ctx: MessageContext) -> Pong:
        if type(message) is Ping:
            return PONG
        others = [AgentId(self.type, key) for key in message.others]
        settled(await asyncio.gather(*(self.send_message(PING, other) for other in others)), others)
        return PONG


class Routed(RoutedAgent):
    """An agent with a handler for each type, as antiphon's are."""

    def __init__(self) -> None:
        super().__init__("answers")

    @message_handler
    async def answer(self, message: Ping, ctx: MessageContext) -> Pong:
        return PONG

    @message_handler
    async def lead(self, message: Lead, ctx: MessageContext) -> Pong:
        others = [AgentId(self.type, key) for key in message.others]
        settled(await asyncio.gather(*(self.send_message(PING, other) for other in others)), others)
        return PONG


class AutogenTroupe(OnLoop):
    """The agents of a runtime."""

    agent: type[BaseAgent] = Plain

    async def open(self) -> None:
        self._runtime = SingleThreadedAgentRuntime(tracer_provider=NoOpTracerProvider())
        await self.agent.register(self._runtime, "worker", self.agent)
        self._runtime.start()

    def begin(self, names: Sequence[str]) -> Sequence[AgentId]:
        return self.runner.run(self._begin(names))

    async def _begin(self, names: Sequence[str]) -> Sequence[AgentId]:
        return [await self._runtime.get("worker", name, lazy=False) for name in names]

    async def ask_in_turn(self, handles: Sequence[AgentId]) -> None:
        send = self._runtime.send_message
        for to in handles:
            await send(PING, to)

    async def lead(self, leader: AgentId, handles: Sequence[AgentId]) -> None:
        await self._runtime.send_message(Lead(others=tuple(to.key for to in handles)), leader)

    async def ended(self) -> None:
        await self._runtime.stop()


class RoutedTroupe(AutogenTroupe):
    """The same, with handlers by type."""

    agent = Routed
