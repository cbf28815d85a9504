"""Recollection: the earlier exchanges of a peer in a thread, and what was added to its memory, as its model is told it.

Exchanges are given as the very messages that the thread has, so that they are not said in it a second time. Only those count
that were finished when the peer was asked: what goes on beside it has calls that nobody has answered. What a program has added
stands where it was added, unless an exchange that is told has it already; what peers share stands before everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart

from antiphon.dialects import encode
from antiphon.ledger import Ledger
from antiphon.messages import Conversation, Message
from antiphon.patterns.cast import ThreadHistory, untrusted_source
from antiphon.patterns.peers._additions import addition_in
from antiphon.patterns.peers._letters import role_of
from antiphon.patterns.peers._memory import Added, PeerMemory, Remembering, request_of, run_of, speaker_of
from antiphon.patterns.peers._protocol import address_of
from antiphon.patterns.peers._retelling import begins_unit, retell, retold_in
from antiphon.patterns.peers._spec import Limits

__all__ = ["recollect"]


async def recollect(
    ledger: Ledger, thread_id: str, name: str, *, until: Message, limits: Limits, shared: Sequence[PeerMemory] = ()
) -> list[ModelMessage]:
    """Return what a peer is told before the message `until`: what it shares, its latest exchanges, and what was added.

    A peer that a user asks is also told the thread's history; who is asked by another peer knows what that one writes.

    Raises:
        LedgerError: the thread cannot be read.
    """
    runs: dict[str, _Exchange] = {}
    remembering, history = Remembering(name, address_of(name)), ThreadHistory()
    request = request_of(until)
    async for record in ledger.read(thread_id):
        message = record.message
        if message.id == until.id:
            break
        if addition_in(record) is not None:
            remembering.take(record)
        elif history.take(message) and request is not None and message.id != request.message_id:
            remembering.added.append(Added(record.seq, (message,), untrusted_source(message)))
        if record.message.lane == "talk" and speaker_of(record.message) == name:
            runs.setdefault(run_of(record.message), _Exchange(record.seq)).add(record.message)
    told = [(each.seq, messages) for each in runs.values() if _is_finished(messages := each.restored(thread_id))]
    kept = told[-limits.remember :] if limits.remember else []
    places = {seq for seq, _ in kept}
    known = {told_id for each in runs.values() if each.seq in places for told_id in each.retold()}
    own = frozenset({name, "assistant"})
    before = [each for memory in shared for each in _retold(memory.added, known, limits, name, frozenset({name}))]
    placed = [*kept, *_retold(remembering.added, known, limits, name, own)]
    return [message for _, messages in (*before, *sorted(placed, key=_place)) for message in messages]


def _place(told: tuple[int, list[ModelMessage]]) -> int:
    return told[0]


class _Exchange:
    """What was said in one run of a peer, from a place in the thread on."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self._units: list[list[Message]] = []

    def add(self, row: Message) -> None:
        """Add a row to the unit that it belongs to: the first row of each is marked."""
        if not self._units or begins_unit(row):
            self._units.append([])
        self._units[-1].append(row)

    def retold(self) -> set[str]:
        """Return the messages that are told in it and were added to a memory."""
        return {told_id for unit in self._units for row in unit for told_id in retold_in(row)}

    def restored(self, thread_id: str) -> list[ModelMessage]:
        """Return it as the model has heard and said it; empty if some of it cannot be told again."""
        return _restored(self._units, thread_id)


def _retold(
    added: Iterable[Added], known: set[str], limits: Limits, name: str, own: frozenset[str]
) -> list[tuple[int, list[ModelMessage]]]:
    """Return the latest that was added and is not known, by the place where it was; a call stands with its result."""
    places = {message.id: each for each in reversed(tuple(added)) for message in each.messages}
    everything = Conversation({message.id: message for each in added for message in each.messages}.values())
    whole = everything.window(limits.told, keep=lambda message: role_of(message) == "system" and limits.told > 0)
    left_out = known | {message.id for message in (*whole.open_calls(), *whole.orphans())}
    results = dict(whole.pairs())
    groups: dict[int, list[Message]] = {}
    for number, message in enumerate(whole):
        if message.id not in left_out:
            groups.setdefault(places[whole[results.get(number, number)].id].seq, []).append(message)
    sources = {known_id: each.untrusted for known_id, each in places.items() if each.untrusted is not None}
    return [(seq, retell(messages, name, own, sources)) for seq, messages in groups.items()]


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
