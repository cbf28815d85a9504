"""Ids and names that a format refuses, written as ones that it accepts, and known by what they stand for.

The same text always gives the same alias, whatever came before it, so that a longer history begins like a shorter one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from antiphon.checks import Spelling, Target
from antiphon.messages import Message, PartsPayload
from antiphon.messages._model import EMPTY, plain_of

__all__ = ["Aliases"]

_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")
_PRINT = 10
_LONGEST = 40
"""Characters of an alias: every provider takes as many."""


class Aliases:
    """What is written in place of invocation ids, option names and speakers."""

    __slots__ = ("_reused", "_said", "given", "ids", "options", "speakers")

    def __init__(self, target: Target) -> None:
        self._said = _Said(target.name)
        self._reused: Mapping[int, int] = {}
        self.given: dict[str, str] = {}
        """What stands for what: ours by alias."""
        self.ids = _Spelled(target.call_id, self._said, self.given)
        """What to write for the id of an invocation, by that id; for a second use of it, ask `invocation`."""
        self.options = _Spelled(target.option_name, self._said, self.given)
        """What to write for the name of an option, by that name."""
        self.speakers = _Spelled(target.speaker or target.option_name, self._said, self.given)
        """What to write for a policy, by its name, where the format says who speaks."""

    def begin(self, said: Sequence[Message], reused: Mapping[int, int]) -> None:
        """Take note of what is said: names that came from the format itself are kept, unless they were aliases there."""
        self._reused = reused
        self._said.begin(said)

    def add(self, more: Sequence[Message]) -> None:
        """Take note of more that is said."""
        self._said.add(more)

    def accept(self, invocations: Sequence[str]) -> bool:
        """Whether all these ids may be written as they are."""
        # In every format an id is a run of one alphabet. So all of them fit if they do in a row, in a third of the time.
        spelling = self.ids.spelling
        is_short = max(map(len, invocations), default=0) <= spelling.longest
        return is_short and (not invocations or spelling.pattern.fullmatch("".join(invocations)) is not None)

    def hold(self, more: Iterable[Message]) -> bool:
        """Whether all that was written is right if more is said: no name is kept there that has an alias."""
        return not self.given or self._said.kept_of(more).isdisjoint(self.given.values())

    def invocation(self, message: Message) -> str:
        """Return the id to write for the invocation of a call or result."""
        text: str = message.__dict__["payload"].__dict__["invocation_id"]
        if self._reused and (use := self._reused.get(id(message))) is not None:
            return self.ids.alias(text, f"{text} {use}")
        return self.ids[text]

    def option(self, name: str) -> str:
        """Return the name to write for an option."""
        return self.options[name]


class _Said:
    """The names in what is said; looked for when the first of them is refused."""

    __slots__ = ("_dialect", "_found", "_messages")

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.begin(())

    def begin(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._found: tuple[set[str], set[str]] | None = None

    def add(self, more: Sequence[Message]) -> None:
        self._messages = [*self._messages, *more]
        if self._found is not None:
            kept, names = self._found
            self._found = kept | self.kept_of(more), names | set(_names(more))

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names that are kept as they are, and all names."""
        if self._found is None:
            self._found = self.kept_of(self._messages), set(_names(self._messages))
        return self._found

    def kept_of(self, messages: Iterable[Message]) -> set[str]:
        """Return the names of those messages that came from the format itself, with no alias in them."""
        return set(_names(filter(self._has_own_names, messages)))

    def _has_own_names(self, message: Message) -> bool:
        notes = None if message.__dict__["metadata"] is EMPTY else plain_of(message, "metadata").get(self._dialect)
        return notes is not None and "aliased" not in notes


class _Spelled(dict[str, str]):
    """What to write for each text that was asked for; whether it is accepted is found out once."""

    __slots__ = ("_given", "_said", "spelling")

    def __init__(self, spelling: Spelling, said: _Said, given: dict[str, str]) -> None:
        super().__init__()
        self.spelling = spelling
        self._said = said
        self._given = given

    def __missing__(self, text: str) -> str:
        is_good = self.spelling.accepts(text) or text in self._said.names()[0]
        written = self[text] = text if is_good else self.alias(text, text)
        return written

    def alias(self, text: str, seed: str) -> str:
        """Return another name for a text, the same for the same seed."""
        start = _PLAIN.sub("_", text)[: min(self.spelling.longest, _LONGEST) - _PRINT - 1]
        if not start[:1].isalpha():
            start = f"x{start[1:]}"
        alias = f"{start}_{sha256(seed.encode()).hexdigest()[:_PRINT]}"
        if alias in self._said.names()[1]:  # somebody has this very name
            return self.alias(text, f"{seed} again")
        self._given[alias] = text
        return alias


def _names(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the names that are written of messages."""
    for message in messages:
        yield message.policy
        if not isinstance(message.payload, PartsPayload):
            yield message.payload.invocation_id
            yield message.payload.option_name
