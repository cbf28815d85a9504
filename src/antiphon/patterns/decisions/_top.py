"""The top of a thread: what is said before any run of a policy, or by one, and not in something that is nested in it."""

from __future__ import annotations

from typing import Final

from antiphon.messages import Message, OptionCallPayload

__all__ = ["RUN", "Top"]

RUN: Final = "RUN_POLICY"
"""What the ledger calls a run."""


class Top:
    """What is said at the top of a thread, message by message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._runs: set[str] = set()

    def hear(self, message: Message) -> None:
        """Take the next message of the thread into account."""
        payload = message.payload
        if message.lane == "control" and isinstance(payload, OptionCallPayload) and payload.option_name == RUN:
            self._runs.add(payload.invocation_id)
        if message.lane == "talk" and (message.parent_id is None or message.parent_id in self._runs):
            self.messages.append(message)
