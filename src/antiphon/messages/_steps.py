"""Steps, turns and transitions: a conversation grouped by decision, for training data, debugging and pictures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from antiphon.messages._conversation import Conversation
    from antiphon.messages._message import Message

__all__ = ["RewardFunction", "Transition", "collapse", "group_by_step", "group_by_turn", "turn_key"]


@dataclass(frozen=True, slots=True)
class Transition:
    """One decision: what was known, what was chosen, what came of it."""

    step_num: int | None
    """The step; None where the calls had none and were grouped by turn."""
    turn_id: str | None
    """The turn of the first call."""
    observation: Conversation
    """Everything said before the first call."""
    actions: tuple[Message, ...]
    """The option calls, in order."""
    results: tuple[Message, ...]
    """Their results, in the order of the calls; a call still open has none."""
    reward: float | None = None
    """How good it was; None where nobody has said."""

    def __post_init__(self) -> None:
        """Refuse a reward that cannot be learnt from, or written as JSON."""
        if self.reward is not None and not isfinite(self.reward):
            raise ValueError(f"a reward is a finite number, not {self.reward!r}")

    @property
    def is_complete(self) -> bool:
        """Whether every call has its result."""
        return len(self.results) == len(self.actions)


RewardFunction: TypeAlias = Callable[[Transition], float | None]
"""Says how good a decision was; None: it cannot say."""


def group_by_step(conversation: Conversation) -> dict[int | None, tuple[Message, ...]]:
    """Group messages by `step_num`, in the order the steps began."""
    groups: dict[int | None, list[Message]] = {}
    for message in conversation:
        groups.setdefault(message.step_num, []).append(message)
    return {step: tuple(group) for step, group in groups.items()}


def group_by_turn(conversation: Conversation) -> tuple[tuple[Message, ...], ...]:
    """Group messages by utterance, in the order the turns began."""
    groups: dict[Hashable, list[Message]] = {}
    for position, message in enumerate(conversation):
        groups.setdefault(turn_key(position, message), []).append(message)
    return tuple(tuple(group) for group in groups.values())


def turn_key(position: int, message: Message) -> Hashable:
    """Return what messages of one utterance have in common."""
    if message.turn_id is not None:
        return message.turn_id
    if message.step_num is None or message.kind == "option_result":
        return position
    return message.step_num, message.policy


def collapse(conversation: Conversation, reward: RewardFunction | Mapping[str, float] | None = None) -> tuple[Transition, ...]:
    """Collapse a conversation into one transition per step (or turn) that calls an option."""
    found = _collapsed(conversation)
    if reward is None:
        return found
    values = [reward(each) for each in found] if callable(reward) else _sums(conversation, found, reward)
    return tuple(replace(each, reward=value) for each, value in zip(found, values, strict=True))


def _collapsed(conversation: Conversation) -> tuple[Transition, ...]:
    groups: dict[Hashable, list[tuple[int, Message]]] = {}
    for position, message in enumerate(conversation):
        if message.kind == "option_call":
            step = message.step_num
            key = ("step", message.thread_id, step) if step is not None else ("turn", turn_key(position, message))
            groups.setdefault(key, []).append((position, message))
    return tuple(_transition(conversation, calls) for calls in groups.values())


def _transition(conversation: Conversation, calls: list[tuple[int, Message]]) -> Transition:
    begin, first = calls[0]
    actions = tuple(call for _, call in calls)
    return Transition(
        step_num=first.step_num,
        turn_id=first.turn_id,
        observation=conversation[:begin],
        actions=actions,
        results=tuple(result for place, _ in calls if (result := conversation.answer_at(place)) is not None),
    )


def _sums(conversation: Conversation, transitions: Sequence[Transition], rewards: Mapping[str, float]) -> list[float | None]:
    """Return the reward of each transition: the sum over its messages, and those after it that are of no other.

    A message is of a transition if it calls, answers a call, or is of the same turn as a call. What is said after that, such
    as the answer at the end, is the consequence of the latest transition. What is said before the first is of none.
    """
    places: dict[str, int] = {}
    turns: dict[str | None, int] = {}
    for number, each in enumerate(transitions):
        places |= dict.fromkeys((message.id for message in (*each.actions, *each.results)), number)
        turns |= {call.turn_id: number for call in each.actions if call.turn_id is not None}
    given: list[list[float]] = [[] for _ in transitions]
    latest: int | None = None
    left = dict(rewards)
    for message in conversation:
        place = places.get(message.id, turns.get(message.turn_id, latest))
        if place is not None and message.id in left:
            given[place].append(left.pop(message.id))  # an id that stands twice counts once
        latest = place if message.kind == "option_call" else latest
    return [fsum(values) if values else None for values in given]
