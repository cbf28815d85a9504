"""What a dialect is.

A dialect is a name and two pure functions. It does no I/O, waits for nothing, keeps nothing, asks no clock and no random
source, and imports no provider's SDK. Given the same data it gives the same messages, for ever.

Nothing is dropped in silence. What the core has no word for is kept in the dialect's own namespace or as a `ForeignPart`. What
a format has no word for is reported as a `Loss`, and the caller decides whether to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from antiphon.messages import Conversation

__all__ = ["Dialect", "Encoded", "Loss", "Losses"]

Losses: TypeAlias = Literal["report", "raise"]
"""What to do about what a format cannot say: report it beside the value, or refuse with an `EncodeError`."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something of a message that a format cannot say."""

    message_id: str | None
    """The message; None for the conversation as a whole."""
    what: str
    """The thing that is lost: a field of the message (`thread_id`), or a kind of content (`media`)."""
    reason: str
    """Why, in a phrase."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation in some format, and what of it the format cannot say."""

    value: Any
    """Plain JSON data, valid for the format."""
    losses: tuple[Loss, ...] = ()


class Dialect(Protocol):
    """Somebody's message format."""

    @property
    def name(self) -> str:
        """The name of the format, not of a company: `marsys`, `openai-chat`."""
        ...

    @property
    def summary(self) -> str:
        """What it is, in a phrase."""
        ...

    def decode(self, data: Any) -> Conversation:
        """Read a conversation from bytes, text or parsed JSON.

        Raises:
            DecodeError: the data is not this format; it says where and what was expected.
        """
        ...

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        """Write a conversation, valid for the format.

        Raises:
            EncodeError: `losses="raise"`, and the format cannot say everything.
        """
        ...

    def recognise(self, data: Any) -> str | None:
        """Say why parsed JSON looks like this format, or None if it does not."""
        ...
