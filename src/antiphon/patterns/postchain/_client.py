"""ClientActor: where a user of a chain is reached, whether or not anybody is there."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.protocol import AgentStreamChunk, ThreadResult
from antiphon.runtime import Actor, Context, handles

__all__ = ["CLIENT", "ClientActor"]

CLIENT = "client/local"
"""Who asks, where nobody says who does."""


class ClientActor(Actor):
    """The endpoint of a user: what it is told goes to whoever listens, and stays in the ledger for who comes later."""

    concurrency = 100

    def __init__(self, hear: Callable[[str, ThreadResult | AgentStreamChunk], None]) -> None:
        """Make it; `hear` is given the client's address and what it is told."""
        self._hear = hear

    @handles
    async def told_result(self, result: ThreadResult, context: Context) -> None:
        self._hear(context.address, result)

    @handles
    async def told_words(self, chunk: AgentStreamChunk, context: Context) -> None:
        self._hear(context.address, chunk)
