"""Pairing: which calls of a thread are open, and which of them a result answers.

Which open call a result answers is decided as in `Conversation`: the oldest of the latest utterance. Open calls are found by
their invocation, so that a message is paired in the same time however many calls are open beside its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from antiphon.messages import Message, OptionResultPayload

# The codes under which `antiphon.checks` finds the same in a history that is there already.
ORPHAN = "AP102"
OTHER_OPTION = "AP110"

Invocation: TypeAlias = tuple[bool, str]
"""Whether it is of the journal, whose invocations are apart from the others', and its id."""


class OpenCall(NamedTuple):
    """A call that has no result yet."""

    seq: int
    is_effect: bool
    """The journal's invocations are apart from the others'."""
    invocation_id: str
    option_name: str
    turn: str | int
    """Its turn; without one, the place of the last message before it that is no call."""


class OpenCalls:
    """The open calls of a thread."""

    __slots__ = ("_by_invocation", "_count")

    def __init__(self, calls: Iterable[OpenCall] = ()) -> None:
        self._by_invocation: dict[Invocation, tuple[OpenCall, ...]] = {}
        self._count = 0
        for call in calls:
            key = (call.is_effect, call.invocation_id)
            self._by_invocation[key] = (*self.of(key), call)
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[OpenCall]:
        """Yield them in order."""
        return iter(sorted(call for calls in self._by_invocation.values() for call in calls))

    def of(self, invocation: Invocation) -> tuple[OpenCall, ...]:
        """Return those of an invocation, in order: none or one, or several in an imported history."""
        return self._by_invocation.get(invocation, ())

    def change(self, changed: Mapping[Invocation, tuple[OpenCall, ...]]) -> None:
        """Put what is open of some invocations in the place of what was."""
        for invocation, calls in changed.items():
            self._count += len(calls) - len(self._by_invocation.pop(invocation, ()))
            if calls:
                self._by_invocation[invocation] = calls


class Pairing:
    """Which calls are open, message by message, beginning with those that are given, which stay as they are."""

    __slots__ = ("_before", "answered", "changed", "closed", "open_from", "opened", "run")

    def __init__(self, run: int = 0, before: OpenCalls | None = None, open_from: int | None = None) -> None:
        self.run = run
        """The place of the last message that is no call."""
        self.open_from = open_from
        """The place of the first call since nothing was open; None if nothing is."""
        self._before = OpenCalls() if before is None else before
        self.changed: dict[Invocation, tuple[OpenCall, ...]] = {}
        """What is open of the invocations that messages were about."""
        self.opened: dict[int, OpenCall] = {}
        """Those that were not open before and are now, by their place."""
        self.closed: list[int] = []
        """The places of those that were open before and are not now."""
        self.answered: OpenCall | None = None
        """The call that the last message answered."""

    @property
    def open(self) -> list[OpenCall]:
        """The open calls, in order."""
        calls = OpenCalls(self._before)
        calls.change(self.changed)
        return list(calls)

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._before) + len(self.opened) - len(self.closed)

    def add(self, seq: int, message: Message) -> str | None:
        """Take the next message into account, and return the code of what is wrong with it, if anything."""
        payload = message.payload
        self.answered = None
        if payload.kind == "parts":
            self.run = seq
            return None
        key = (message.lane == "effect", payload.invocation_id)
        waiting = self.changed[key] if key in self.changed else self._before.of(key)
        if payload.kind == "option_result":
            self.run = seq
            return self._answer(key, waiting, payload)
        turn = self.run if message.turn_id is None else message.turn_id
        call = self.opened[seq] = OpenCall(seq, *key, payload.option_name, turn)
        self.changed[key] = (*waiting, call)
        self.open_from = self.open_from or seq
        return None

    def _answer(self, key: Invocation, waiting: tuple[OpenCall, ...], result: OptionResultPayload) -> str | None:
        if not waiting:
            return ORPHAN
        oldest = [call.turn for call in waiting].index(waiting[-1].turn)
        answered = self.answered = waiting[oldest]
        self.changed[key] = waiting[:oldest] + waiting[oldest + 1 :]
        if self.opened.pop(answered.seq, None) is None:
            self.closed.append(answered.seq)
        self.open_from = self.open_from if self.count else None
        return None if answered.option_name == result.option_name else OTHER_OPTION
