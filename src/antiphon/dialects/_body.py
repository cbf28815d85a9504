"""A body taken apart, and what a provider's format gives so that bodies can be read and written.

A format gives functions: `open` and `close` (a body and its units), `read` (a unit to messages), `write` (messages to units),
`together` (does this message go into the unit that was begun?), and `before` (what the format wants before a unit). All else
is the same for all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.checks._speech import same_breath
from antiphon.dialects._plain import Content
from antiphon.dialects._shares import InvocationIn, nobody
from antiphon.dialects._units import Unit
from antiphon.dialects._writing import BodyWriting
from antiphon.messages import Message, Tool, Usage

__all__ = ["Body", "BodyFormat", "nothing_before", "said_together"]


@dataclass(slots=True)
class Body:
    """A body taken apart."""

    shape: str
    """`request`, `response`, `list`, or `one` unit."""
    units: list[Any]
    root: tuple[str | int, ...] = ()
    """Where the units are, for errors."""
    instructions: Any = None
    """What stands in the format's own place for instructions, if anything does."""
    slot: str = "instructions"
    """The key of that place, for errors."""
    tools: list[Any] = field(default_factory=list[Any])
    native: list[str] = field(default_factory=list[str])
    """What the tools of the service itself are called that do not stand among the others."""
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    """Everything else, as it was: settings of a request, facts of a response."""
    usage: Usage | None = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """What holds for every message: the time of a response."""
    id: str | None = None
    """The id of a response that is one unit."""
    beside: dict[str, Any] = field(default_factory=dict[str, Any])
    """What stands beside a unit that is alone and says more about it: the sources of an answer."""


def said_together(group: Sequence[Message], message: Message) -> bool:
    """Text and calls of one breath are one unit; a text after a text begins another."""
    last = group[-1]
    if message.payload.kind == "option_result" or last.payload.kind == "option_result":
        return False
    if message.payload.kind == "parts" and last.payload.kind == "parts" and len(group) == 1:
        return False
    return same_breath(last, message)


def nothing_before(previous: Sequence[Message] | None, group: Sequence[Message], writing: BodyWriting) -> Any:
    """Return what must stand before a unit that is not the format's own: nothing."""
    return None


@dataclass(frozen=True)
class BodyFormat:
    """What a provider's format gives."""

    name: str
    summary: str
    open: Callable[[Any], Body]
    """Take parsed JSON apart; raise a `DecodeError` where it is no body of this format."""
    close: Callable[[Body], Any]
    """Put a body together."""
    read: Callable[[Unit], None]
    """Say the messages of one unit: at least one."""
    write: Callable[[Sequence[Message], BodyWriting], list[Any]]
    """Write messages that belong together: usually as one unit, as none if there is nothing to say."""
    recognise: Callable[[Any], str | None]
    read_tool: Callable[[Any], dict[str, Any] | None]
    """Return name, description and parameters of a tool; None for one that the core has no word for."""
    write_tool: Callable[[Tool, str], Any]
    """Write a tool, under the name that the format accepts."""
    read_instructions: Callable[[Unit], None] | None = None
    write_instructions: Callable[[Sequence[Message], BodyWriting], Any] | None = None
    slot_holds: int | None = None
    """How many messages the instructions' own place takes, where others may stand among the units; None: any number."""
    write_plain: Callable[[Sequence[Message], Sequence[Content], BodyWriting], list[Any]] | None = None
    """Write all units of a plain history as `write` would, but in one loop; raise a `NotPlainError` where that cannot be."""
    together: Callable[[Sequence[Message], Message], bool] = said_together
    before: Callable[[Sequence[Message] | None, Sequence[Message], BodyWriting], Any] = nothing_before
    invocation_in: InvocationIn = nobody
    """Return the invocation that an item of a unit's list is a call or a result of, where a unit holds several."""
    options: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a facet is lost, where there is more to say than that the format has no place for it."""

    def write_slot(self, group: Sequence[Message], writing: BodyWriting) -> list[Any]:
        """Write what stands in the instructions' own place; nothing, where the format has none."""
        return [] if self.write_instructions is None else [self.write_instructions(group, writing)]
