"""The protocol of a dialect, and the values that it returns.

A dialect is a name and two pure functions. It does no I/O, has no state, uses no clock and no random source, and imports no
provider's SDK. The same data always gives the same messages.

Nothing is dropped silently. Data that the core cannot express is kept in the dialect's own namespace or as a `ForeignPart`.
Data that a format cannot express is reported as a `Loss`, and the caller decides whether to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from antiphon.messages import Conversation

Losses: TypeAlias = Literal["report", "raise"]
"""How to handle losses: report them with the value, or raise an `EncodeError`."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Content of a message that a format cannot express."""

    message_id: str | None
    """The message; None for the conversation as a whole."""
    what: str
    """What is lost: a field of the message (`thread_id`), or a kind of content (`media`)."""
    reason: str
    """The reason, in a phrase."""


class Encoded:
    """A conversation in some format, and its losses."""

    __slots__ = ("_losses", "aliases", "value")

    def __init__(
        self,
        value: Any,
        losses: tuple[Loss, ...] | Callable[[], tuple[Loss, ...]] = (),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.value = value
        """Plain JSON data, valid for the format. The caller owns it."""
        self.aliases = aliases
        """Ids and names that the format refuses, by their alias. `decode(…, aliases=…)` maps them back."""
        self._losses = losses

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses. Some dialects compute them on first access."""
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
    """The message format of a provider or framework."""

    @property
    def name(self) -> str:
        """The name of the format, not of a company: `marsys`, `openai-chat`."""
        ...

    @property
    def summary(self) -> str:
        """A short description."""
        ...

    def decode(self, data: Any, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        """Read a conversation from bytes, text or parsed JSON; `aliases` are those of the `Encoded` that it answers.

        Raises:
            DecodeError: the data violates the format; the error has the place and what was expected.
        """
        ...

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        """Write a conversation, valid for the format.

        Raises:
            EncodeError: `losses="raise"`, and something would be lost.
        """
        ...

    def recognise(self, data: object) -> str | None:
        """Return the reason why parsed JSON looks like this format; None if it does not."""
        ...


Path: TypeAlias = tuple[str | int, ...]
"""A path in JSON: keys and positions."""


@runtime_checkable
class Places(Protocol):
    """A dialect that says where the messages are in the data."""

    def places(self, data: object) -> tuple[Path, ...]:
        """Return the path of each message that `decode` returns for the same data."""
        ...


@runtime_checkable
class Declares(Protocol):
    """A dialect that declares which of its keys are wire details, so that another format loses nothing without them."""

    @property
    def wire(self) -> frozenset[str]:
        """Keys of the format, and of the dialect's metadata, that say nothing about a message beyond what the core holds."""
        ...
