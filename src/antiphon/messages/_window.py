"""Where a window over a conversation may begin: as early as fits, and never in the middle of something."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from antiphon.messages._model import house_bytes
from antiphon.messages._parts import MediaPart
from antiphon.messages._steps import turn_key

if TYPE_CHECKING:
    from antiphon.messages._message import Message

__all__ = ["estimate_tokens", "is_system", "payload_size", "window_positions"]

_CHARACTERS_PER_TOKEN = 4
_TOKENS_OF_MEDIA = 1000
"""A rough figure for one image or page; providers differ by a factor of ten."""


def is_system(message: Message) -> bool:
    """Whether a message is the system's: what a window keeps unless told otherwise."""
    return message.policy == "system"


def payload_size(message: Message) -> int:
    """Return the bytes of what a message says, in its house form."""
    return len(house_bytes(message.payload))


def estimate_tokens(message: Message) -> int:
    """Estimate a message's tokens without a tokenizer: a quarter of its payload's bytes, media at a flat rate."""
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
    """Return the positions of a window: the kept ones, then the longest closed end of the conversation that fits."""
    turns = _turns(messages)
    kept = _kept(messages, call_of, turns, keep)
    spent = sum(cost(messages[position]) for position in kept)
    begin = needed = len(messages)
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if position not in kept:
            spent += cost(message)
        if spent > most:
            break
        # What must be inside too: the call of a result, the beginning of an utterance.
        needed = min(needed, call_of.get(position, position), turns[position][0])
        if needed >= position and position not in orphans and position not in kept:
            begin = position
    return sorted(kept | set(range(begin, len(messages))))


def _turns(messages: Sequence[Message]) -> list[list[int]]:
    """Return for each message the positions of its utterance."""
    keys = [turn_key(position, message) for position, message in enumerate(messages)]
    members: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        members.setdefault(key, []).append(position)
    return [members[key] for key in keys]


def _kept(
    messages: Sequence[Message], call_of: Mapping[int, int], turns: list[list[int]], keep: Callable[[Message], bool]
) -> set[int]:
    """Return what is to be kept, with all that belongs to it: its utterance, and the other half of each pair."""
    results: dict[int, list[int]] = {}
    for result, call in call_of.items():
        results.setdefault(call, []).append(result)
    kept: set[int] = set()
    waiting = [position for position, message in enumerate(messages) if keep(message)]
    while waiting:
        position = waiting.pop()
        if position not in kept:
            kept.add(position)
            waiting += [*turns[position], *results.get(position, ()), *((call_of[position],) if position in call_of else ())]
    return kept
