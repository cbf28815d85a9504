"""The decisions of a thread: each with what its policy had observed, what it chose and what came of it.

A policy observes what its own loop was told and said. What was nested in it is another loop, with decisions of its own; the
protocol of actors and the journal are no part of any.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from antiphon.ledger import Ledger
from antiphon.messages import Conversation, Message, Transition, dumps
from antiphon.patterns.decisions._top import Top

__all__ = ["Decision", "decisions_of", "export_transitions"]


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
    """The calls, after what was said in the same breath."""
    results: tuple[Message, ...]
    """In the order of the calls."""

    def labels(self) -> dict[str, Any]:
        """Return what there is to know about it beside the messages."""
        return {"thread_id": self.thread_id, "policy": self.policy, "step": self.step, "is_complete": self.is_complete}


async def export_transitions(ledger: Ledger, thread_id: str) -> AsyncIterator[dict[str, Any]]:
    """Give the decisions of a thread, one plain JSON object each, in the order in which they were made.

    `reward` is None: it is for whoever judges the run.
    """
    for each in await decisions_of(ledger, thread_id):
        said = {"observations": each.observations, "actions": each.actions, "results": each.results}
        yield {**each.labels(), **{name: _plain(messages) for name, messages in said.items()}, "reward": None}


async def decisions_of(ledger: Ledger, thread_id: str) -> list[Decision]:
    """Return the decisions of a thread in the order in which they were made; a branch has those that it shares, as its own."""
    top, nested = Top(), dict[str, list[Message]]()
    places: dict[str, int] = {}
    async for record in ledger.read(thread_id):
        message, before = _within(thread_id, record.message), len(top.messages)
        places.setdefault(message.id, record.seq)
        top.hear(message)
        if message.lane == "talk" and len(top.messages) == before:
            nested.setdefault(_loop(message), []).append(message)
    loops = [Conversation(said) for said in (top.messages, *nested.values())]
    found = [(each, loop) for loop in loops for each in loop.transitions()]
    found.sort(key=lambda pair: places[pair[0].actions[0].id])
    return [_decision(thread_id, each, loop) for each, loop in found]


def _decision(thread_id: str, transition: Transition, loop: Conversation) -> Decision:
    """Return a decision: what was said in the same breath as its calls is part of what was chosen, not of what was known."""
    turn = transition.turn_id
    said = () if turn is None else loop.filter(turn=turn, kind="parts")
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
    )


def _within(thread_id: str, message: Message) -> Message:
    """Return a message as one of this thread; what a branch shares says that it is of another."""
    return message if message.thread_id == thread_id else message.model_copy(update={"thread_id": thread_id})


def _loop(message: Message) -> str:
    """Return what messages of one nested loop have in common: of an agent, what all its requests have."""
    parent = message.parent_id or ""
    if message.correlation_id != parent:
        return parent
    return parent.removesuffix("@end") if parent.endswith("@end") else parent.rpartition("/")[0]


def _plain(messages: Iterable[Message]) -> list[Any]:
    return [json.loads(dumps(message)) for message in messages]
