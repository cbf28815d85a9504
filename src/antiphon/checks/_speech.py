"""Who speaks, and what is said in one breath: rules and dialects must agree on it, so both ask here."""

from __future__ import annotations

from typing import Literal, TypeAlias

from antiphon.messages import Message, OptionCallPayload

__all__ = ["PLACEHOLDER", "Role", "same_breath", "usual_role"]

Role: TypeAlias = Literal["system", "user", "assistant"]

PLACEHOLDER = "."
"""The least that a user can say, where one must: providers that refuse nothing accept it, and no model makes much of it."""

_TALKING: dict[str | None, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


def usual_role(message: Message) -> Role:
    """Return whose words these are: the role hint decides, else the policy; agents are assistants."""
    fields = message.__dict__  # as in `same_breath`: dialects ask this of every message they write
    return _TALKING.get(fields["role_hint_for_llm"]) or _TALKING.get(fields["policy"], "assistant")


def same_breath(one: Message, other: Message) -> bool:
    """Whether two messages that follow each other were said in one breath: in one turn, or calls with nothing between."""
    fields, others = one.__dict__, other.__dict__
    turn = fields["turn_id"]
    return (
        turn == others["turn_id"]
        and fields["policy"] == others["policy"]
        and (turn is not None or type(fields["payload"]) is type(others["payload"]) is OptionCallPayload)
    )
