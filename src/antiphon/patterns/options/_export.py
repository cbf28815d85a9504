"""Training data: the decisions of a thread, each with what its policy had observed, what it chose and what came of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from antiphon.ledger import Ledger
from antiphon.messages import Conversation, Message, Transition, dumps
from antiphon.patterns.options._past import Top

__all__ = ["export_transitions"]


async def export_transitions(ledger: Ledger, thread_id: str) -> AsyncIterator[dict[str, Any]]:
    """Give the decisions of a thread, one plain JSON object each, in the order in which they were made.

    What a policy has observed is what its own loop was told and said: what was nested in it, and the protocol of actors,
    is not there. `reward` is None: it is for whoever judges the run.
    """
    top, nested = Top(), dict[str, list[Message]]()
    places: dict[str, int] = {}
    async for record in ledger.read(thread_id):
        message, before = record.message, len(top.messages)
        places.setdefault(message.id, record.seq)
        top.hear(message)
        if message.lane == "talk" and len(top.messages) == before:
            nested.setdefault(_loop(message), []).append(message)
    loops = [Conversation(said) for said in (top.messages, *nested.values())]
    found = [(each, loop) for loop in loops for each in loop.transitions()]
    for each, loop in sorted(found, key=lambda pair: places[pair[0].actions[0].id]):
        yield {"thread_id": thread_id, **_decision(each, loop), "reward": None}


def _decision(transition: Transition, loop: Conversation) -> dict[str, Any]:
    """Return a decision: what was said in the same breath as its calls is part of what was chosen, not of what was known."""
    turn, first = transition.turn_id, transition.actions[0]
    said = [] if turn is None else [each for each in loop.filter(turn=turn) if each.kind == "parts"]
    return {
        "policy": first.policy,
        "step": transition.step_num,
        "observations": _plain(each for each in transition.observation if each not in said),
        "actions": _plain([*said, *transition.actions]),
        "results": _plain(transition.results),
    }


def _loop(message: Message) -> str:
    """Return what messages of one nested loop have in common: of an agent, what all its requests have."""
    parent = message.parent_id or ""
    if message.correlation_id != parent:
        return parent
    return parent.removesuffix("@end") if parent.endswith("@end") else parent.rpartition("/")[0]


def _plain(messages: Iterable[Message]) -> list[Any]:
    return [json.loads(dumps(message)) for message in messages]
