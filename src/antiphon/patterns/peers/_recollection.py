"""Recollection: the earlier exchanges of a peer in a thread, as its model is told them again.

They are given as the very messages that the thread has, so that they are not said in it a second time. Only exchanges count
that were finished when the peer was asked: what goes on beside it has calls that nobody has answered.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart

from antiphon.dialects import encode
from antiphon.ledger import Ledger
from antiphon.messages import Conversation, JsonObject, Message
from antiphon.patterns.peers._memory import run_of, speaker_of

__all__ = ["recollect"]


async def recollect(ledger: Ledger, thread_id: str, name: str, *, until: str, most: int) -> list[ModelMessage]:
    """Return the latest exchanges that a peer had finished before the message `until` came to it, at most so many.

    Raises:
        LedgerError: the thread cannot be read.
    """
    if most == 0:
        return []
    runs: dict[str, list[list[Message]]] = {}
    async for record in ledger.read(thread_id):
        if record.message.id == until:
            break
        if record.message.lane == "talk" and speaker_of(record.message) == name:
            _add(runs.setdefault(run_of(record.message), []), record.message)
    finished = [messages for units in runs.values() if _is_finished(messages := _restored(units, thread_id))]
    return [message for messages in finished[-most:] for message in messages]


def _add(units: list[list[Message]], row: Message) -> None:
    """Add a row to the unit that it belongs to: the first row of each is marked."""
    own = row.metadata.get("antiphon")
    if not units or (isinstance(own, JsonObject) and "unit" in own):
        units.append([])
    units[-1].append(row)


def _restored(units: list[list[Message]], thread_id: str) -> list[ModelMessage]:
    plain = [_unit(rows) for rows in units]
    if not all(plain):
        return []  # something was said that a model cannot be told again
    return ModelMessagesTypeAdapter.validate_python([{**unit, "conversation_id": thread_id} for unit in plain])


def _unit(rows: list[Message]) -> dict[str, Any]:
    """Return a request or an answer as it was: instructions and what was asked with them were one. Empty if it is neither."""
    said: Any = encode(Conversation(_bare(row) for row in rows), "pydantic-ai").value
    return {**said[0], "parts": [part for each in said for part in each["parts"]]} if said else {}


def _bare(row: Message) -> Message:
    """Return a row as it was before it was one of a thread."""
    own: dict[str, Any] = {"thread_id": None, "parent_id": None, "correlation_id": None}
    if row.role_hint_for_llm == "assistant":
        own["policy"] = "assistant"
    return row.model_copy(update=own)


def _is_finished(messages: list[ModelMessage]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, ModelResponse) and not any(isinstance(part, ToolCallPart) for part in last.parts)
