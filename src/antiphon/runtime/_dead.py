"""Dead letters: messages that nobody will handle, with the reason; the latest are kept, all are counted."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from antiphon.messages import Message, current_port

if TYPE_CHECKING:
    from antiphon.runtime._envelope import Envelope

__all__ = ["DeadLetter", "DeadLetters"]

_log = logging.getLogger("antiphon.runtime")


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

    def __init__(self, limit: int) -> None:
        self._kept: deque[DeadLetter] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()

    def add(self, envelope: Envelope, code: str, reason: str) -> None:
        """Keep a message that nobody will handle. Its body is not logged."""
        self.counts[code] += 1
        self._kept.append(DeadLetter(envelope.message, envelope.to, code, reason, current_port().now()))
        _log.warning("dead letter: %s to %s: %s", envelope.type or "talk", envelope.to, code)

    @property
    def kept(self) -> tuple[DeadLetter, ...]:
        return tuple(self._kept)
