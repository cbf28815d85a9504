"""MessageChain: messages that belong together, each marked with the id of the first."""

from __future__ import annotations

from antiphon.dialects.marsys._message import Message

__all__ = ["MessageChain"]


class MessageChain:
    """A message and what came after it. The first is kept as it is, for its own id is that of the chain."""

    def __init__(self, initial_message: Message) -> None:
        self.chain_id = initial_message.message_id
        self._messages = [initial_message]

    @property
    def messages(self) -> list[Message]:
        """The messages so far, in a list of your own."""
        return self.get_chain()

    def add_response(self, message: Message) -> Message:
        """Add a copy that has `chain_id` in its metadata, under the same id, and return the copy."""
        added = message.replace(metadata={**(message.metadata or {}), "chain_id": self.chain_id})
        self._messages.append(added)
        return added

    def get_chain(self) -> list[Message]:
        """Return the messages so far, in a list of your own."""
        return self._messages.copy()
