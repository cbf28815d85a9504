"""A conversation as one format shows it, kept up as it grows.

An agent sends its whole history with every request. Writing all of it each time is work that grows with the square of its
length; what was written for the beginning is still right, because a longer history begins like a shorter one.
"""

from __future__ import annotations

from typing import Any

from antiphon.dialects._api import Encoded
from antiphon.dialects._bodies import BodyDialect
from antiphon.dialects._registry import get
from antiphon.messages import Conversation

__all__ = ["Projection"]


class Projection:
    """Writes a conversation in one format, again and again, and each time only what is new.

    The value is that of `encode`, but the units in it are the same objects from one time to the next: send them, do not
    change them. It is made for one conversation and one task; where the beginning is another, it writes all anew.
    """

    def __init__(self, dialect: str, *, as_policy: str | None = None, **options: Any) -> None:
        self._dialect = get(dialect)
        self._as_policy = as_policy
        self._options = options
        self._memory = self._dialect.memory() if isinstance(self._dialect, BodyDialect) else None

    def encode(self, conversation: Conversation) -> Encoded:
        """Write a conversation."""
        if self._memory is None or not isinstance(self._dialect, BodyDialect):
            return self._dialect.encode(conversation, as_policy=self._as_policy, **self._options)
        return self._dialect.go_on(self._memory, conversation, self._as_policy, self._options)
