"""Dialects of providers' formats: a body (a request, a response or a bare list) of units that hold a conversation.

`_body` defines what a format provides, and reads and writes a body. This file has the verbs, measures their losses, and writes
a growing conversation without rewriting all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any, cast

from antiphon.checks import projected
from antiphon.checks._findings import has_left_out
from antiphon.dialects._api import Encoded, Loss, Losses, Path
from antiphon.dialects._arranging import is_regular
from antiphon.dialects._body import (
    Body,
    BodyFormat,
    began,
    body_of,
    joins,
    opened,
    read_body,
    read_tools,
    read_units,
    talk,
    write_body,
    write_more,
    write_units,
)
from antiphon.dialects._losses import Written, all_losses, reported
from antiphon.dialects._reading import parsed_loosely
from antiphon.dialects._settings import MODEL
from antiphon.dialects._writing import BodyWriting
from antiphon.messages import Conversation, Header, Message, PartsPayload


@dataclass(slots=True)
class Memory:
    """The part of a growing conversation that was written before."""

    writing: BodyWriting
    body: Body
    header: Header | None = None
    messages: list[Message] = field(default_factory=list[Message])
    ids: set[str] = field(default_factory=set[str])
    """The invocations so far."""


def _invocations(messages: Sequence[Message]) -> set[str]:
    return {message.payload.invocation_id for message in messages if not isinstance(message.payload, PartsPayload)}


@dataclass(frozen=True)
class BodyDialect(BodyFormat):
    """A provider's format, with the verbs of a dialect."""

    def decode(
        self, data: object, *, aliases: Mapping[str, str] | None = None, edit: Callable[[Message], Message] | None = None
    ) -> Conversation:
        """Read a conversation; `edit` may change the payloads of its messages.

        An edited message still encodes to the data that it was read from.
        """
        return read_body(self, opened(self, data), aliases or {}, began(self, None, {}), edit)

    def places(self, data: object) -> tuple[Path, ...]:
        return tuple(unit.path for unit in read_units(self, opened(self, data), {}) for _ in unit.messages)

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        body, writing = write_body(self, conversation, as_policy, self._checked(options))
        aliases = writing.aliases.by_alias
        encoded = Encoded(self.close(body), lambda: self._losses(conversation, as_policy, options), aliases)
        return reported(self.name, encoded, losses)

    def _checked(self, options: Mapping[str, object]) -> Mapping[str, object]:
        if unknown := options.keys() - self.options:
            raise TypeError(f"{self.name} has no option {min(unknown)!r}")
        return options

    def _losses(self, conversation: Conversation, as_policy: str | None, options: Mapping[str, object]) -> tuple[Loss, ...]:
        written = Written()
        writing = began(self, as_policy, options)
        shown = projected(conversation)
        body = write_units(self, shown, writing, written)
        written.restore(writing.marked)
        again = body_of(self, parsed_loosely(self.close(body), self.name))
        groups = [unit.messages for unit in read_units(self, again, writing.aliases.by_alias)]
        tools = read_tools(self, again.tools, writing.aliases.by_alias)
        return all_losses(
            conversation,
            shown,
            written,
            groups,
            tools,
            target=self.name,
            reasons=self.reasons,
            otherwise=f"{self.name} has no place for it",
            model=cast("str | None", options.get(MODEL)),
        )

    # ---------------------------------------------------------------- a conversation that grows

    def memory(self) -> Memory:
        """Return the memory of a conversation of which nothing was written."""
        return Memory(began(self, None, {}), Body("request", []))

    def go_on(self, memory: Memory, conversation: Conversation, as_policy: str | None, options: Mapping[str, Any]) -> Encoded:
        """Write a conversation whose beginning was written before: only the new messages, if that is possible."""
        messages = list(conversation)
        added = messages[len(memory.messages) :]
        if memory.header is conversation.header and self._adds(memory, messages, added):
            shown = list(map(memory.writing.shown, talk(added)))
            memory.writing.aliases.add(shown)
            write_more(self, shown, memory.writing, None, memory.body)
        else:
            memory.body, memory.writing = write_body(self, conversation, as_policy, self._checked(options))
            memory.ids = set()
            added = messages
        memory.messages, memory.header = messages, conversation.header
        memory.ids |= _invocations(talk(added))
        value = self.close(replace(memory.body, units=list(memory.body.units)))
        return Encoded(value, lambda: self._losses(conversation, as_policy, options), memory.writing.aliases.by_alias)

    def _adds(self, memory: Memory, messages: Sequence[Message], added: Sequence[Message]) -> bool:
        """Whether messages only add units: nothing before them has changed, has open calls, or would join them."""
        writing, shown = memory.writing, talk(added)
        return (
            len(messages) >= len(memory.messages)
            and all(map(is_, memory.messages, messages))
            and writing.is_regular
            and writing.previous is not None
            and memory.body.shape in ("request", "list")
            and not any(map(has_left_out, added))
            and memory.ids.isdisjoint(_invocations(shown))
            and is_regular(shown)
            and writing.aliases.hold(shown)
            and not (shown and joins(self, writing.previous, writing.shown(shown[0]), writing))
        )
