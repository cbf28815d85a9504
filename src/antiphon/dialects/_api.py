"""What a dialect is.

A dialect is a name and two pure functions. It does no I/O, waits for nothing, keeps nothing, asks no clock and no random
source, and imports no provider's SDK. Given the same data it gives the same messages, for ever.

Nothing is dropped in silence. What the core has no word for is kept in the dialect's own namespace or as a `ForeignPart`. What
a format has no word for is reported as a `Loss`, and the caller decides whether to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from antiphon.messages import Conversation

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


class Encoded:
    """A conversation in some format, and what of it the format cannot say."""

    __slots__ = ("_losses", "aliases", "value")

    def __init__(
        self,
        value: Any,
        losses: tuple[Loss, ...] | Callable[[], tuple[Loss, ...]] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.value = value
        """Plain JSON data, valid for the format. It is yours."""
        self.aliases = aliases
        """Ids and names that the format refuses, by what is written instead. `decode(…, aliases=…)` reads them back."""
        self._losses = losses

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What the format cannot say. Some dialects find it out when it is asked for."""
        if callable(self._losses):
            self._losses = self._losses()
        return self._losses

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoded):
            return NotImplemented
        return (self.value, self.losses, self.aliases) == (other.value, other.losses, other.aliases)

    __hash__ = None  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]

    @override
    def __repr__(self) -> str:
        return f"Encoded({self.value!r}, {self.losses!r})"


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

    def decode(self, data: Any, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        """Read a conversation from bytes, text or parsed JSON; `aliases` are those of the `Encoded` that it answers.

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

    def recognise(self, data: object) -> str | None:
        """Say why parsed JSON looks like this format, or None if it does not."""
        ...


@runtime_checkable
class Converts(Dialect, Protocol):
    """A dialect that can do less where a conversation only passes through: `convert` asks it to."""

    def skim(self, data: object) -> Conversation:
        """Read a conversation that will be written in another format: without what brings the same data back."""
        ...

    def write_away(self, conversation: Conversation, as_policy: str | None) -> tuple[Any, Mapping[str, str]]:
        """Write a conversation that was skimmed from another format and is of no use any more; return it, and the aliases."""
        ...
