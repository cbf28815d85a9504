"""What `check` says and what `repair` did, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from typing_extensions import override

from antiphon.messages import Conversation

__all__ = ["Change", "Finding", "Repaired", "Severity"]

Severity: TypeAlias = Literal["error", "warning"]
"""`error`: it is refused. `warning`: it may be, or the dialect writes it differently, or it is not what was meant."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a conversation."""

    code: str
    """The rule, for ever the same: `AP101`."""
    severity: Severity
    position: int | None
    """The place of the message in the conversation, from 0; None for the conversation as a whole."""
    message_id: str | None
    problem: str
    """What is wrong, in a phrase."""
    answer: str
    """What the target would say to it: a sentence, with its own words where they are known."""
    hint: str
    """How to mend it: a sentence."""

    @override
    def __str__(self) -> str:
        place = "conversation" if self.position is None else f"message {self.position}"
        return f"{place}: {self.code} {self.severity}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that `repair` did."""

    code: str
    """The rule it was done for."""
    message_id: str | None
    """The message it was done to, by the id that it had; None for the conversation as a whole."""
    done: str
    """What was done, in a phrase."""

    @override
    def __str__(self) -> str:
        return f"{self.message_id or 'conversation'}: {self.code}: {self.done}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """A conversation that its target accepts, and what was changed to make it so."""

    conversation: Conversation
    changes: tuple[Change, ...]
