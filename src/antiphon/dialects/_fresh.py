"""Fresh ids for what was said just now, in place of those that a reader made from place and content."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from antiphon.messages import Conversation, Message, PartsPayload
from antiphon.messages._port import new_id

__all__ = ["with_fresh_ids"]


def with_fresh_ids(conversation: Conversation, dialect: str) -> Conversation:
    """Return a conversation in which every id that the dialect made is a new one; what they link stays linked."""
    made = re.compile(re.escape(dialect) + r"-\d+-[0-9a-f]{12}")
    known: dict[str, str] = {}

    def renamed(name: str) -> str:
        found = made.match(name)
        if found is None:
            return name
        if found[0] not in known:
            known[found[0]] = new_id()
        return known[found[0]] + name[found.end() :]

    messages = map(partial(_renamed, renamed=renamed), conversation)
    return Conversation(messages, tools=conversation.tools, metadata=conversation.metadata)


def _renamed(message: Message, *, renamed: Callable[[str], str]) -> Message:
    update: dict[str, Any] = {"id": renamed(message.id)}
    for field in ("turn_id", "in_reply_to", "parent_id"):
        if (value := getattr(message, field)) is not None:
            update[field] = renamed(value)
    payload = message.payload
    if not isinstance(payload, PartsPayload) and renamed(payload.invocation_id) != payload.invocation_id:
        update["payload"] = payload.model_copy(update={"invocation_id": renamed(payload.invocation_id)})
    return message.model_copy(update=update)
