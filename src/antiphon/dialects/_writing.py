"""The state of writing a conversation as a body: roles, metadata of the dialect, aliases and labels.

Ids and names that a format refuses are replaced by aliases that it accepts. The same text always gets the same alias, so a
longer history begins like a shorter one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from antiphon.checks._findings import is_native
from antiphon.checks._targets import Spelling, Target
from antiphon.checks._view import usual_role
from antiphon.dialects._purpose import is_error, marked_error
from antiphon.dialects._reading import notes_of
from antiphon.messages import ForeignPart, MediaPart, Message, OptionCallPayload, Part, PartsPayload, TextPart, Tool, thaw
from antiphon.messages._json_values import plain
from antiphon.messages._unchecked import EMPTY, plain_of


@dataclass(slots=True)
class BodyWriting:
    """One conversation being written."""

    dialect: str
    as_policy: str | None
    options: Mapping[str, object]
    aliases: Aliases
    media: int = 0
    """The number of media that have a label so far."""
    is_regular: bool = False
    """Whether all messages are written in their order, and no call is open."""
    previous: Sequence[Message] | None = None
    """The messages of the unit that was written last."""
    memory: dict[object, Any] = field(default_factory=dict[object, Any])
    """Data that the dialect keeps between units."""
    marked: list[tuple[Message, Message]] = field(default_factory=list[tuple[Message, Message]])
    """Errors as they are written, with the message that each is in the conversation."""

    def is_native(self, message: Message) -> bool:
        """Whether a message was read from this format."""
        return is_native(message, self.dialect)

    def shown(self, message: Message) -> Message:
        """Return a message as it is written: an error of another format begins with the words that it is one."""
        if not is_error(message) or self.is_native(message):
            return message
        self.marked.append((marked_error(message), message))
        return self.marked[-1][0]

    def notes(self, thing: Message | Part | Tool) -> Mapping[str, Any]:
        """Return the metadata of this dialect on a message or part: plain JSON, which the caller must not change."""
        return notes_of(thing, self.dialect)

    def setting(self, part: Part, name: str, *also: str) -> Any:
        """Return a setting of a part from the metadata of this dialect, or of one that has the same setting."""
        if part.__dict__["metadata"] is EMPTY:
            return None
        namespaces = plain(part.metadata)
        return next(
            (namespaces[dialect][name] for dialect in (self.dialect, *also) if name in namespaces.get(dialect, {})), None
        )

    def foreign_value(self, part: ForeignPart) -> Any:
        """Return the value of a part that only this dialect can express."""
        return thaw(part.value)

    def labelled(self, parts: Iterable[Part]) -> Iterable[Part]:
        """Return parts; if labels are on, each medium has a numbered label before it, counted over the conversation."""
        return self._with_labels(parts) if self.options.get("media_labels") else parts

    def _with_labels(self, parts: Iterable[Part]) -> Iterable[Part]:
        for part in parts:
            if isinstance(part, MediaPart):
                self.media += 1
                hint = f" ({part.prompt_hint})" if part.prompt_hint else ""
                yield TextPart(text=f"Media {self.media}{hint}:")
            yield part

    def role(self, message: Message) -> str:
        """Return the role of a message: by the viewpoint, else by the hint, else by the name."""
        fields = message.__dict__
        if type(fields["payload"]) is not PartsPayload:
            return "assistant" if type(fields["payload"]) is OptionCallPayload else "tool"
        hint, policy = fields["role_hint_for_llm"], fields["policy"]
        if self.as_policy is not None and hint != "system" and policy != "system":
            return "assistant" if policy == self.as_policy else "user"
        return hint if hint == "user" or hint == "assistant" else usual_role(message)  # noqa: PLR1714 (most have one of these)

    def side(self, message: Message) -> str:
        """Return the role of a message's unit: a result is in a unit of the user."""
        role = self.role(message)
        return "user" if role == "tool" else role

    def is_other_than_it_was(self, message: Message) -> bool:
        """Whether a message is written from another viewpoint or with labels, so that its residue does not fit."""
        if self.as_policy is not None and message.payload.kind == "parts" and self.role(message) != usual_role(message):
            return True
        return bool(self.options.get("media_labels")) and any(isinstance(part, MediaPart) for part in message.parts)


# ---------------------------------------------------------------- aliases

_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")
_PRINT = 10
_LONGEST = 40
"""The most characters of an alias: every provider accepts this many."""


class Aliases:
    """The aliases of invocation ids, option names and speakers."""

    __slots__ = ("_names", "_reused", "by_alias", "ids", "options", "speakers")

    def __init__(self, target: Target) -> None:
        self._names = _Names(target.name)
        self._reused: Mapping[int, int] = {}
        self.by_alias: dict[str, str] = {}
        """Our names, by alias."""
        self.ids = _Spelled(target.call_id, self._names, self.by_alias)
        """The id to write for an invocation, by its id; for a second use of an id, see `invocation`."""
        self.options = _Spelled(target.option_name, self._names, self.by_alias)
        """The name to write for an option, by its name."""
        self.speakers = _Spelled(target.speaker or target.option_name, self._names, self.by_alias)
        """The name to write for a policy, by its name, if the format names speakers."""

    def begin(self, messages: Sequence[Message], reused: Mapping[int, int]) -> None:
        """Register messages: names that came from the format itself are kept, unless they were aliases there."""
        self._reused = reused
        self._names.begin(messages)

    def add(self, messages: Sequence[Message]) -> None:
        """Register more messages."""
        self._names.add(messages)

    def hold(self, messages: Iterable[Message]) -> bool:
        """Whether the earlier output stays valid with more messages: no name that it uses has an alias."""
        return not self.by_alias or self._names.native_names(messages).isdisjoint(self.by_alias.values())

    def invocation(self, message: Message) -> str:
        """Return the id to write for the invocation of a call or result."""
        text: str = message.__dict__["payload"].__dict__["invocation_id"]
        if self._reused and (use := self._reused.get(id(message))) is not None:
            return self.ids.alias(text, f"{text} {use}")
        return self.ids[text]

    def option(self, name: str) -> str:
        """Return the name to write for an option."""
        return self.options[name]


class _Names:
    """The names in the messages; collected when the first name is refused."""

    __slots__ = ("_collected", "_dialect", "_messages")

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.begin(())

    def begin(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._collected: tuple[set[str], set[str]] | None = None

    def add(self, messages: Sequence[Message]) -> None:
        self._messages = [*self._messages, *messages]
        if self._collected is not None:
            native, names = self._collected
            self._collected = native | self.native_names(messages), names | set(_names(messages))

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names that are kept unchanged, and all names."""
        if self._collected is None:
            self._collected = self.native_names(self._messages), set(_names(self._messages))
        return self._collected

    def native_names(self, messages: Iterable[Message]) -> set[str]:
        """Return the names of the messages that came from the format itself, without aliases."""
        return set(_names(filter(self._has_own_names, messages)))

    def _has_own_names(self, message: Message) -> bool:
        notes = None if message.__dict__["metadata"] is EMPTY else plain_of(message, "metadata").get(self._dialect)
        return notes is not None and "aliased" not in notes


class _Spelled(dict[str, str]):
    """A cache of the text to write for each id or name; each is checked once."""

    __slots__ = ("_by_alias", "_names", "spelling")

    def __init__(self, spelling: Spelling, names: _Names, by_alias: dict[str, str]) -> None:
        super().__init__()
        self.spelling = spelling
        self._names = names
        self._by_alias = by_alias

    def __missing__(self, text: str) -> str:
        is_good = self.spelling.accepts(text) or text in self._names.names()[0]
        written = self[text] = text if is_good else self.alias(text, text)
        return written

    def alias(self, text: str, seed: str) -> str:
        """Return an alias for a text, the same for the same seed."""
        start = _PLAIN.sub("_", text)[: min(self.spelling.longest, _LONGEST) - _PRINT - 1]
        if not start[:1].isalpha():
            start = f"x{start[1:]}"
        alias = f"{start}_{sha256(seed.encode()).hexdigest()[:_PRINT]}"
        if alias in self._names.names()[1]:  # a real name is equal to the alias
            return self.alias(text, f"{seed} again")
        self._by_alias[alias] = text
        return alias


def _names(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the names in messages that are written."""
    for message in messages:
        yield message.policy
        if not isinstance(message.payload, PartsPayload):
            yield message.payload.invocation_id
            yield message.payload.option_name
