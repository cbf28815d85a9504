"""Sequences of messages: the append-only log and its index, turns and steps, and where a window may begin.

A window begins as early as the limit allows, but never inside an utterance, or between a call and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Self

from antiphon.messages._arguments import check_type
from antiphon.messages._content import MediaPart
from antiphon.messages._message import Message
from antiphon.messages._model import house_bytes

# ---------------------------------------------------------------- the log


class MessageLog:
    """An append-only log of messages, and its index, which is built when it is needed."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = list(messages)
        self.lock = Lock()
        self.indexed = 0
        self.first: dict[str, int] = {}
        """The first message with an id."""
        self.invocations: dict[tuple[bool, str], list[int]] = {}
        """All calls and results of an invocation; those of the effect lane are separate from the others."""
        self.call_of: dict[int, int] = {}
        """The call that a result belongs to."""
        self.answer_to: dict[int, int] = {}
        """The result that answers a call."""
        self.orphans: list[int] = []
        self._open: dict[tuple[bool, str], list[tuple[Hashable, int]]] = {}
        self._run = 0
        self._last: dict[tuple[bool, str], int] = {}

    def grown(self, length: int, added: Iterable[Message]) -> MessageLog:
        """Return a log of the first `length` messages and `more`: this log, unless it has more than `length` messages."""
        # Without the lock, two threads that extend one conversation could both find the log at its length, and the messages of
        # the one would be in the conversation of the other.
        with self.lock:
            if len(self.messages) == length:
                self.messages.extend(added)
                return self
            return MessageLog([*self.messages[:length], *added])

    def index(self) -> Self:
        """Bring the index up to the end."""
        # Without the lock, two threads could index one message twice: a call would be open twice, and its second result would
        # answer it again.
        with self.lock:
            for position in range(self.indexed, len(self.messages)):
                message = self.messages[position]
                payload = message.payload
                self.first.setdefault(message.id, position)
                if payload.kind == "option_call":
                    key = (message.lane == "effect", payload.invocation_id)
                    self.invocations.setdefault(key, []).append(position)
                    turn = self._run if message.turn_id is None else message.turn_id
                    self._open.setdefault(key, []).append((turn, position))
                    self._last[key] = position
                    continue
                self._run = position  # calls without a turn belong together until another message comes between them
                if payload.kind == "option_result":
                    self._index_result((message.lane == "effect", payload.invocation_id), position)
            self.indexed = len(self.messages)
        return self

    def _index_result(self, key: tuple[bool, str], position: int) -> None:
        self.invocations.setdefault(key, []).append(position)
        if waiting := self._open.get(key):
            oldest, latest = 0, waiting[-1][0]
            while waiting[oldest][0] != latest:
                oldest += 1
            call = waiting.pop(oldest)[1]
            self.call_of[position] = call
            self.answer_to[call] = position
        elif (last := self._last.get(key)) is not None:
            self.call_of[position] = last
        else:
            self.orphans.append(position)


# ---------------------------------------------------------------- steps and turns


def group_by_step(messages: Iterable[Message]) -> dict[int | None, tuple[Message, ...]]:
    """Group messages by `step_num`, in the order the steps began."""
    groups: dict[int | None, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.step_num, []).append(message)
    return {step: tuple(group) for step, group in groups.items()}


def group_by_turn(messages: Iterable[Message]) -> tuple[tuple[Message, ...], ...]:
    """Group messages by utterance, in the order the turns began."""
    groups: dict[Hashable, list[Message]] = {}
    for position, message in enumerate(messages):
        groups.setdefault(turn_key(position, message), []).append(message)
    return tuple(tuple(group) for group in groups.values())


def turn_key(position: int, message: Message) -> Hashable:
    """Return a key that all messages of one utterance share."""
    if message.turn_id is not None:
        return message.turn_id
    if message.step_num is None or message.kind == "option_result":
        return position
    return message.step_num, message.policy


# ---------------------------------------------------------------- windows

_CHARACTERS_PER_TOKEN = 4
_TOKENS_OF_MEDIA = 1000
"""A rough figure for one image or page; providers differ by a factor of ten."""


def is_system(message: Message) -> bool:
    """Whether a message is from the system: a window keeps these by default."""
    return message.policy == "system"


def payload_size(message: Message) -> int:
    """Return the size of a message's payload in the house format, in bytes."""
    check_type("message", message, Message, "MessageBuilder(…).to_message()")
    return len(house_bytes(message.payload))


def estimate_tokens(message: Message) -> int:
    """Estimate a message's tokens without a tokenizer: a quarter of its payload's bytes, media at a flat rate."""
    check_type("message", message, Message, "MessageBuilder(…).to_message()")
    media = [part for part in message.parts if isinstance(part, MediaPart)]
    text = len(house_bytes(message.payload)) - sum(len(part.url) for part in media)
    return -(-text // _CHARACTERS_PER_TOKEN) + _TOKENS_OF_MEDIA * len(media)


def window_positions(
    messages: Sequence[Message],
    call_of: Mapping[int, int],
    orphans: frozenset[int],
    *,
    most: int,
    cost: Callable[[Message], int],
    keep: Callable[[Message], bool],
) -> list[int]:
    """Return the positions of a window: the kept messages, then the longest end of the conversation that fits."""
    turns = _turns(messages)
    fixed = _fixed(messages, call_of, turns, keep)
    spent = sum(cost(messages[position]) for position in fixed)
    begin = needed = len(messages)
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if position not in fixed:
            spent += cost(message)
        if spent > most:
            break
        # These must be in the window too: the call of a result, the beginning of an utterance.
        needed = min(needed, call_of.get(position, position), turns[position][0])
        if needed >= position and position not in orphans and position not in fixed:
            begin = position
    return sorted(fixed | set(range(begin, len(messages))))


def _turns(messages: Sequence[Message]) -> list[list[int]]:
    """Return for each message the positions of its utterance."""
    keys = [turn_key(position, message) for position, message in enumerate(messages)]
    members: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        members.setdefault(key, []).append(position)
    return [members[key] for key in keys]


def _fixed(
    messages: Sequence[Message], call_of: Mapping[int, int], turns: list[list[int]], keep: Callable[[Message], bool]
) -> set[int]:
    """Return the kept messages with their whole utterances, and with the call or result that belongs to each."""
    results: dict[int, list[int]] = {}
    for result, call in call_of.items():
        results.setdefault(call, []).append(result)
    fixed: set[int] = set()
    waiting = [position for position, message in enumerate(messages) if keep(message)]
    while waiting:
        position = waiting.pop()
        if position not in fixed:
            fixed.add(position)
            waiting += [*turns[position], *results.get(position, ()), *((call_of[position],) if position in call_of else ())]
    return fixed
