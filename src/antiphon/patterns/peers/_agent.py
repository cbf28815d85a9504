"""PeerAgent: a peer as a program has it in hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon.dialects import marsys
from antiphon.patterns.peers._memory import PeerMemory
from antiphon.patterns.peers._processors import for_model, from_model
from antiphon.patterns.peers._spec import PeerSpec

if TYPE_CHECKING:
    from antiphon.patterns.peers._peers import Peers

__all__ = ["PeerAgent"]


class PeerAgent:
    """One peer: its name, its memory, what it asks others, and what stands between it and a model."""

    def __init__(self, peers: Peers, name: str) -> None:
        self._peers = peers
        self.name = name

    @property
    def spec(self) -> PeerSpec:
        """How it is set up."""
        return self._peers.registry.get(self.name)

    async def memory(self, thread_id: str) -> PeerMemory:
        """Return what it remembers of a thread, as of now."""
        return await self._peers.memory(self.name, thread_id)

    async def invoke_agent(
        self,
        target: str | marsys.Message,
        request: str | None = None,
        *,
        thread_id: str | None = None,
        context_message_ids: Sequence[str] = (),
    ) -> marsys.Message:
        """Ask another peer, by its name or with an `agent_call`, and return its answer, or an error: see `Peers.invoke`."""
        passed, peers = context_message_ids, self._peers
        return await peers.invoke(target, request, caller=self.name, thread_id=thread_id, context_message_ids=passed)

    def _input_message_processor(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Return what makes of a model's response what the peer says; for `Message.from_response_dict`."""
        return partial(from_model, self.name)

    def _output_message_processor(self) -> Callable[[marsys.Message], dict[str, Any]]:
        """Return what makes of a message what a model takes that speaks for the peer."""
        return partial(for_model, self.name)
