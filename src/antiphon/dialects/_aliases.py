"""Ids and names that a format refuses, written as ones that it accepts, and known by what they stand for.

The same text always gives the same alias, whatever came before it, so that a longer history begins like a shorter one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from antiphon.checks import Spelling
from antiphon.messages import Message, PartsPayload

__all__ = ["Aliases"]

_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")
_PRINT = 10


class Aliases:
    """What is written in place of invocation ids and option names."""

    __slots__ = ("_call_id", "_kept", "_known", "_option", "_reused", "given")

    def __init__(self, call_id: Spelling, option: Spelling) -> None:
        self._call_id = call_id
        self._option = option
        self._known: dict[str, str] = {}
        self._kept: Callable[[], frozenset[str]] = frozenset
        self._reused: Mapping[int, int] = {}
        self.given: dict[str, str] = {}
        """What stands for what: ours by alias."""

    def begin(self, said: Sequence[Message], reused: Mapping[int, int], is_native: Callable[[Message], bool]) -> None:
        """Take note of what is said: names that came from the format itself are kept, unless they were aliases there."""
        self._reused = reused
        self._kept = lambda: frozenset(name for message in said if is_native(message) for name in _names(message))

    def invocation(self, message: Message) -> str:
        """Return the id to write for the invocation of a call or result."""
        text: str = message.payload.__dict__["invocation_id"]
        if self._reused and (use := self._reused.get(id(message))) is not None:
            return self._alias(text, self._call_id, f"{text} {use}")
        if (known := self._known.get(text)) is None:
            accepted = self._call_id.accepts(text) or text in self._kept()
            known = self._known[text] = text if accepted else self._alias(text, self._call_id, text)
        return known

    def option(self, name: str) -> str:
        """Return the name to write for an option."""
        return self.named(name, self._option)

    def named(self, name: str, spelling: Spelling) -> str:
        """Return the name to write for whatever is spelled so."""
        key = f"name {name}"
        if (known := self._known.get(key)) is None:
            accepted = spelling.accepts(name) or name in self._kept()
            known = self._known[key] = name if accepted else self._alias(name, spelling, name)
        return known

    def _alias(self, text: str, spelling: Spelling, seed: str) -> str:
        print_ = sha256(seed.encode()).hexdigest()[:_PRINT]
        start = _PLAIN.sub("_", text)[: min(spelling.longest, 40) - _PRINT - 1]
        alias = f"{start}_{print_}" if start[:1].isalpha() else f"x{start[1:]}_{print_}"
        self.given[alias] = text
        return alias


def _names(message: Message) -> tuple[str, ...]:
    """Return the names that are written of a message."""
    payload = message.payload
    if isinstance(payload, PartsPayload):
        return (message.policy,)
    return message.policy, payload.invocation_id, payload.option_name
