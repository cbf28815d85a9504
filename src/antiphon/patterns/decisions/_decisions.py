"""The decisions of a thread: each with the observations of its policy, its choice, and the results.

A policy observes the messages of its own loop. A nested loop has its own decisions. The protocol of actors and the journal
belong to no loop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, TypeAlias

from antiphon.ledger import Ledger, rewards_of
from antiphon.messages import Conversation, Message, OptionCallPayload, Transition, dumps
from antiphon.messages.keys import run_of

# ---------------------------------------------------------------- the top of a thread


RUN: Final = "RUN_POLICY"
"""The name of a run in the ledger."""


class ThreadTop:
    """What is said at the top of a thread, message by message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._runs: set[str] = set()

    def hear(self, message: Message) -> None:
        """Take the next message of the thread into account."""
        payload = message.payload
        if message.lane == "control" and isinstance(payload, OptionCallPayload) and payload.option_name == RUN:
            self._runs.add(payload.invocation_id)
        if message.lane == "talk" and (message.parent_id is None or message.parent_id in self._runs):
            self.messages.append(message)


# ---------------------------------------------------------------- decisions


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a policy."""

    thread_id: str
    policy: str
    step: int | None
    is_complete: bool
    """Whether every call has its result."""
    observations: Conversation
    actions: tuple[Message, ...]
    """The calls, after what was said in the same utterance."""
    results: tuple[Message, ...]
    """In the order of the calls."""
    reward: float | None = None
    """How good it was, as recorded for its messages and for those that followed; None where nobody has said."""

    def observed(self, window: int | None) -> Conversation:
        """Return the observations; with a `window`, only so many of the latest messages, and the instructions."""
        return self.observations if window is None else self.observations.window(window)

    def labels(self) -> dict[str, Any]:
        """Return what there is to know about it beside the messages."""
        return {"thread_id": self.thread_id, "policy": self.policy, "step": self.step, "is_complete": self.is_complete}


DecisionReward: TypeAlias = Callable[[Decision], float | None]
"""Says how good a decision was; None: it cannot say."""


async def export_transitions(
    ledger: Ledger, thread_id: str, *, reward: DecisionReward | None = None, window: int | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Give the decisions of a thread, one plain JSON object each, in the order in which they were made.

    `reward` says how good each was; it is given the decision with the recorded reward. Without it, the recorded one counts.
    `window` is how many of the latest messages an observation has, besides instructions; None: all.

    Raises:
        ValueError: a reward is not a finite number.
    """
    for each in await decisions_of(ledger, thread_id, reward=reward):
        said = {"observations": each.observed(window), "actions": each.actions, "results": each.results}
        yield {**each.labels(), **{name: _plain(messages) for name, messages in said.items()}, "reward": each.reward}


async def decisions_of(ledger: Ledger, thread_id: str, *, reward: DecisionReward | None = None) -> list[Decision]:
    """Return the decisions of a thread in the order in which they were made; a branch has those that it shares, as its own.

    Raises:
        ValueError: a reward is not a finite number.
    """
    recorded = {each.message_id: each.value for each in (await rewards_of(ledger, thread_id)).values()}
    top, nested = ThreadTop(), dict[str, list[Message]]()
    places: dict[str, int] = {}
    async for record in ledger.read(thread_id):
        message, before = _within(thread_id, record.message), len(top.messages)
        places.setdefault(message.id, record.seq)
        top.hear(message)
        if message.lane == "talk" and len(top.messages) == before:
            nested.setdefault(_loop(message), []).append(message)
    loops = [Conversation(said) for said in (top.messages, *nested.values())]
    found = [(each, words) for loop in loops for words in [_words(loop)] for each in loop.transitions(reward=recorded)]
    found.sort(key=lambda pair: places[pair[0].actions[0].id])
    decisions = [_decision(thread_id, each, words.get(each.turn_id or "", ())) for each, words in found]
    return decisions if reward is None else [replace(each, reward=_finite(reward(each))) for each in decisions]


def _finite(reward: float | None) -> float | None:
    if reward is not None and not isfinite(reward):
        raise ValueError(f"a reward is a finite number, not {reward!r}")
    return reward


def _words(loop: Conversation) -> dict[str, list[Message]]:
    """Return by turn what was said in it beside the calls."""
    found: dict[str, list[Message]] = {}
    for message in loop:
        if message.turn_id is not None and message.kind == "parts":
            found.setdefault(message.turn_id, []).append(message)
    return found


def _decision(thread_id: str, transition: Transition, said: Sequence[Message]) -> Decision:
    """Return a decision: the words of the utterance that has its calls are part of the choice, not of what was known."""
    chosen = {id(each) for each in said}
    known = [each for each in transition.observation if id(each) not in chosen]
    return Decision(
        thread_id=thread_id,
        policy=transition.actions[0].policy,
        step=transition.step_num,
        is_complete=transition.is_complete,
        observations=Conversation(known) if chosen else transition.observation,
        actions=(*said, *transition.actions),
        results=transition.results,
        reward=transition.reward,
    )


def _within(thread_id: str, message: Message) -> Message:
    """Return a message as one of this thread; what a branch shares says that it is of another."""
    return message if message.thread_id == thread_id else message.model_copy(update={"thread_id": thread_id})


def _loop(message: Message) -> str:
    """Return what messages of one nested loop have in common: of an agent, what all its requests have."""
    parent = message.parent_id or ""
    if message.correlation_id != parent:
        return parent
    return run_of(parent)


def _plain(messages: Iterable[Message]) -> list[Any]:
    return [json.loads(dumps(message)) for message in messages]
