"""Export of the decisions of a thread of any pattern as training data. It needs only a ledger.

A decision has the observations of its policy, its choice, and the results.

A policy observes the messages of its own loop, and the rows that its prompts quote. A nested loop has its own decisions. The
protocol of actors and the journal belong to no loop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, TypeAlias

from antiphon.agents.durability._quotes import quoted_seqs
from antiphon.ledger import Log, rewards_of
from antiphon.messages import Conversation, Message, OptionCallPayload, Transition, dumps
from antiphon.messages._keys import run_of

# ---------------------------------------------------------------- the top of a thread


RUN: Final = "RUN_POLICY"
"""The name of a run in the ledger."""


class ThreadTop:
    """Collects the messages at the top level of a thread."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._runs: set[str] = set()

    def take(self, message: Message) -> None:
        """Read the next message of the thread."""
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
    """The text of the utterance, then its calls."""
    results: tuple[Message, ...]
    """The results, in the order of the calls."""
    reward: float | None = None
    """The reward that was recorded for its messages and for those that followed; None if there is none."""

    def observed(self, window: int | None) -> Conversation:
        """Return the observations; with a `window`, only that number of the latest messages, and the instructions."""
        return self.observations if window is None else self.observations.window(window)

    def labels(self) -> dict[str, Any]:
        """Return its fields other than the messages."""
        return {"thread_id": self.thread_id, "policy": self.policy, "step": self.step, "is_complete": self.is_complete}


DecisionReward: TypeAlias = Callable[[Decision], float | None]
"""Returns the reward of a decision; None: there is none."""


async def export_transitions(
    ledger: Log, thread_id: str, *, reward: DecisionReward | None = None, window: int | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Yield the decisions of a thread as plain JSON objects, in the order in which they were made.

    `reward` returns the reward of a decision; it gets the decision with the recorded reward. Without it, the recorded reward
    is used. `window` is the number of latest messages in an observation, besides instructions; None: all.
    """
    for decision in await decisions_of(ledger, thread_id, reward=reward):
        observations = decision.observed(window)
        messages = {"observations": observations, "actions": decision.actions, "results": decision.results}
        plain = {name: [json.loads(dumps(message)) for message in part] for name, part in messages.items()}
        yield {**decision.labels(), **plain, "reward": decision.reward}


async def decisions_of(ledger: Log, thread_id: str, *, reward: DecisionReward | None = None) -> list[Decision]:
    """Return the decisions of a thread in the order in which they were made; a branch includes those that it shares."""
    rewards = {row.message_id: row.value for row in (await rewards_of(ledger, thread_id)).values()}
    top, nested = ThreadTop(), dict[str, list[Message]]()
    places: dict[str, int] = {}
    quoted: dict[str, list[int]] = {}
    async for record in ledger.read(thread_id):
        message, before = _within(thread_id, record.message), len(top.messages)
        places.setdefault(message.id, record.seq)
        top.take(message)
        if message.lane == "talk" and len(top.messages) == before:
            nested.setdefault(_loop(message), []).append(message)
        if seqs := quoted_seqs(message):
            quoted.setdefault(run_of(message.invocation_id or ""), seqs)
    rows = await _rows_at(ledger, thread_id, {seq for seqs in quoted.values() for seq in seqs})
    spoken = _transitions(Conversation(top.messages), 0, rewards)
    for name, messages in nested.items():
        quoted_rows = [rows[seq] for seq in quoted.get(name, ())]
        spoken += _transitions(Conversation([*quoted_rows, *messages]), len(quoted_rows), rewards)
    spoken.sort(key=lambda pair: places[pair[0].actions[0].id])
    decisions = [_decision(thread_id, transition, utterance) for transition, utterance in spoken]
    if reward is None:
        return decisions
    own_rewards = [(decision, reward(decision)) for decision in decisions]
    for _, value in own_rewards:
        if value is not None and not isfinite(value):
            raise ValueError(f"a reward is a finite number, not {value!r}")
    return [replace(decision, reward=value) for decision, value in own_rewards]


async def _rows_at(ledger: Log, thread_id: str, seqs: Set[int]) -> dict[int, Message]:
    """Return rows of a thread by place."""
    if not seqs:
        return {}
    rows = ledger.read(thread_id, min(seqs) - 1, max(seqs) + 1)
    return {row.seq: _within(thread_id, row.message) async for row in rows if row.seq in seqs}


def _transitions(loop: Conversation, quoted: int, rewards: Mapping[str, float]) -> list[tuple[Transition, list[Message]]]:
    """Return the transitions of a loop, each with the text of its turn; not those of the rows it quotes, which come first."""
    texts: dict[str, list[Message]] = {}
    for message in loop:
        if message.turn_id is not None and message.kind == "parts":
            texts.setdefault(message.turn_id, []).append(message)
    quoted_ids = {message.id for message in loop[:quoted]}
    return [
        (transition, texts.get(transition.turn_id or "", []))
        for transition in loop.transitions(reward=rewards)
        if transition.actions[0].id not in quoted_ids
    ]


def _decision(thread_id: str, transition: Transition, utterance: Sequence[Message]) -> Decision:
    """Return a decision: the text of the utterance with its calls is part of the choice, not of the observations."""
    uttered = {id(message) for message in utterance}  # the same objects: a transition repeats messages of its loop
    observations = [message for message in transition.observation if id(message) not in uttered]
    return Decision(
        thread_id=thread_id,
        policy=transition.actions[0].policy,
        step=transition.step_num,
        is_complete=transition.is_complete,
        observations=Conversation(observations) if utterance else transition.observation,
        actions=(*utterance, *transition.actions),
        results=transition.results,
        reward=transition.reward,
    )


def _within(thread_id: str, message: Message) -> Message:
    """Return a message with the id of this thread; messages that a branch shares have the id of another."""
    return message if message.thread_id == thread_id else message.model_copy(update={"thread_id": thread_id})


def _loop(message: Message) -> str:
    """Return the key that all messages of one nested loop share; for an agent, the key of all its requests."""
    parent = message.parent_id or ""
    if message.correlation_id != parent:
        return parent
    return run_of(parent)
