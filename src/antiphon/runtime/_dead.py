"""Dead letters: messages that nobody will handle, with the reason; the latest are kept, all are counted."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from antiphon.messages import Message, current_port
from antiphon.runtime._logs import LOG, about

if TYPE_CHECKING:
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._hooks import Hooks

__all__ = ["DeadLetter", "DeadLetters"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody will handle."""

    message: Message
    to: str
    code: str
    """Why: the code of the error."""
    reason: str
    at: datetime


class DeadLetters:
    """The latest dead letters, and how many there were by code."""

    def __init__(self, limit: int, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._kept: deque[DeadLetter] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()

    def add(self, envelope: Envelope, code: str, reason: str) -> None:
        """Keep a message that nobody will handle. Its body is not logged."""
        self.counts[code] += 1
        letter = DeadLetter(envelope.message, envelope.to, code, reason, current_port().now())
        self._kept.append(letter)
        if self._hooks is not None:
            self._hooks.died(letter)
        fields = about(envelope, error=code)
        LOG.warning("dead letter: %s to %s: %s", envelope.type or "talk", envelope.to, code, extra=fields)

    @property
    def kept(self) -> tuple[DeadLetter, ...]:
        return tuple(self._kept)
