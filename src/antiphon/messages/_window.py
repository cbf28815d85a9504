"""Where a window over a conversation may begin: as early as fits, and never in the middle of something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from antiphon.messages._model import house_bytes
from antiphon.messages._parts import MediaPart

if TYPE_CHECKING:
    from antiphon.messages._message import Message

__all__ = ["estimate_tokens", "house_size", "is_system", "window_positions"]

_CHARACTERS_PER_TOKEN = 4
_TOKENS_OF_MEDIA = 1000
"""A rough figure for one image or page; providers differ by a factor of ten."""


def is_system(message: Message) -> bool:
    """Whether a message is the system's: what a window keeps unless told otherwise."""
    return message.policy == "system"


def house_size(message: Message) -> int:
    """Return the bytes of a message's house form."""
    return len(house_bytes(message))


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
    kept = _kept(messages, call_of, keep)
    spent = sum(cost(messages[position]) for position in kept)
    begin = needed = len(messages)
    first_of_turn = _first_of_turns(messages)
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if position not in kept:
            spent += cost(message)
        if spent > most:
            break
        # What must be inside too: the call of a result, the beginning of an utterance.
        needed = min(needed, call_of.get(position, position), first_of_turn.get(message.turn_id, position))
        if needed >= position and position not in orphans and position not in kept:
            begin = position
    return sorted(kept | set(range(begin, len(messages))))


def _first_of_turns(messages: Sequence[Message]) -> dict[str | None, int]:
    first = {message.turn_id: position for position, message in reversed(list(enumerate(messages)))}
    first.pop(None, None)
    return first


def _kept(messages: Sequence[Message], call_of: Mapping[int, int], keep: Callable[[Message], bool]) -> set[int]:
    kept = {position for position, message in enumerate(messages) if keep(message)}
    calls = {call for result, call in call_of.items() if result in kept or call in kept}
    return kept | calls | {result for result, call in call_of.items() if call in calls}
