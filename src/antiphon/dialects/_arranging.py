"""Messages in units, and in the order that providers require: an utterance, and right after it the results of its calls.

Most histories are in that order already; one pass checks it. Otherwise, a call without a result is left out, a result without
an open call is left out, and a result that comes later moves up to its call. Messages of the target's own format are not
changed: a fault in them is not corrected silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.checks._view import same_utterance
from antiphon.messages import Conversation, Message


@dataclass(slots=True)
class Arranged:
    """Messages in order, and the changes made to them. Messages are compared by identity: an id may occur twice."""

    messages: Sequence[Message]
    left_out: list[tuple[Message, str]] = field(default_factory=list[tuple[Message, str]])
    """The messages that were left out, and why."""
    moved: list[Message] = field(default_factory=list[Message])
    reused: dict[int, int] = field(default_factory=dict[int, int])
    """Which use of its invocation id it is, for a call or result (by identity) of a second or later one."""


def arrange(messages: Sequence[Message], is_native: Callable[[Message], bool]) -> Arranged:
    """Return messages in the order that providers require."""
    if is_regular(messages) or all(map(is_native, messages)):
        return Arranged(messages)
    return _Arranging(messages, is_native).result()


def grouped(messages: Iterable[Message], joins: Callable[[Sequence[Message], Message], bool]) -> list[list[Message]]:
    """Return messages unit by unit; `joins` tells whether a message belongs to the unit of the messages before it."""
    groups: list[list[Message]] = []
    group: list[Message] = []
    for message in messages:
        if group and joins(group, message):
            group.append(message)
        else:
            group = [message]
            groups.append(group)
    return groups


def is_regular(messages: Sequence[Message]) -> bool:
    """Whether all calls of an utterance are answered before any other message, and no id occurs twice."""
    waiting: set[str] = set()
    seen: set[str] = set()
    last: Message | None = None
    for message in messages:
        content = message.__dict__["payload"].__dict__
        kind = content["kind"]
        if kind == "option_result":
            if content["invocation_id"] not in waiting:
                return False
            waiting.remove(content["invocation_id"])
            last = None
            continue
        if waiting and (last is None or not same_utterance(last, message)):
            return False
        last = message
        if kind == "option_call":
            if content["invocation_id"] in seen:
                return False
            seen.add(content["invocation_id"])
            waiting.add(content["invocation_id"])
    return not waiting


class _Arranging:
    """Puts messages into the required order."""

    def __init__(self, messages: Sequence[Message], is_native: Callable[[Message], bool]) -> None:
        self.messages = messages
        self.is_native = is_native
        self.result_of: dict[int, int] = {}
        for call, result in Conversation(messages).pairs():
            self.result_of.setdefault(call, result)  # a second result of a call answers nothing
        self.call_of = {result: call for call, result in self.result_of.items()}
        self.done = Arranged([])
        self.placed: set[int] = set()

    def result(self) -> Arranged:
        self._leave_out()
        order: list[int] = []
        utterance: list[int] = []
        for position, message in enumerate(self.messages):
            if position in self.placed:
                continue
            is_result = message.kind == "option_result"
            if utterance and (is_result or not same_utterance(self.messages[utterance[-1]], message)):
                self._close(utterance, order)
                utterance = []
                if position in self.placed:
                    continue
            order.append(position)
            self.placed.add(position)
            if not is_result:
                utterance.append(position)
        self._close(utterance, order)
        self.done.messages = [self.messages[position] for position in order]
        self.done.moved = [self.messages[position] for position in _moved_up(order)]
        self._number_reused()
        return self.done

    def _leave_out(self) -> None:
        for position, message in enumerate(self.messages):
            reason = None
            if message.kind == "option_call" and position not in self.result_of:
                reason = "the call has no result"
            elif message.kind == "option_result" and position not in self.call_of:
                reason = "its call is not there, or answered already"
            if reason and not self.is_native(message):
                self.placed.add(position)
                self.done.left_out.append((message, reason))

    def _close(self, utterance: list[int], order: list[int]) -> None:
        """Put the results of an utterance's calls right after it."""
        for result in sorted(self.result_of[call] for call in utterance if call in self.result_of):
            pair = (self.messages[result], self.messages[self.call_of[result]])
            if result not in self.placed and not all(map(self.is_native, pair)):
                order.append(result)
                self.placed.add(result)

    def _number_reused(self) -> None:
        uses: dict[str, int] = {}
        for position, message in enumerate(self.messages):
            if message.kind != "option_call" or message.invocation_id is None:
                continue
            use = uses[message.invocation_id] = uses.get(message.invocation_id, 0) + 1
            if use > 1 and not self.is_native(message):
                self.done.reused[id(message)] = use
                if (result := self.result_of.get(position)) is not None:
                    self.done.reused[id(self.messages[result])] = use


def _moved_up(order: list[int]) -> list[int]:
    """Return the positions that precede a smaller one."""
    moved: list[int] = []
    smallest = len(order) + max(order, default=0)
    for position in reversed(order):
        if position > smallest:
            moved.append(position)
        smallest = min(smallest, position)
    return moved[::-1]
