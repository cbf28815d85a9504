"""TeamStore: what a team has said in a thread, as messages of the format, seen from one side or another.

The ledger is the only truth; these are views of it, in its order. What agents were asked and have answered in their own runs
is not shown, but the tools that they used on the way are: as their actions, observations and errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

from antiphon.dialects import encode
from antiphon.dialects.agent_framework.constants import CONVERSATION_TYPES, SYNTHESIS, TASK
from antiphon.ledger import Ledger, Record
from antiphon.messages import Conversation, Json, JsonObject, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages.keys import root_of
from antiphon.patterns.teams._voice import DIALECT

__all__ = ["OUTPUT", "Entry", "TeamStore"]

Entry: TypeAlias = dict[str, Any]
"""A message of the format, as a plain dict."""

OUTPUT = "final_result"
"""What Pydantic AI calls the tool by which a model gives its structured output: an answer, not an action."""


class TeamStore:
    """The views of a team's threads. `location` is the id of a thread; `limit` counts messages, the latest of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # ------------------------------------------------------------ the views of a store

    async def get_messages(
        self, location: str, limit: int | None = None, *, before: int | None = None, turn: str | None = None
    ) -> list[Entry]:
        """Return everything that was said, in the order in which it was; before some place, or of one turn, if it is given."""
        seen = _Seen()
        records = [record async for record in self._ledger.read(location, before=before)]
        rows = [seen.shown(record) for record in records if turn is None or _turn_of(record.message) == turn]
        return _latest(_written(row for row in rows if row is not None), limit)

    async def get_conversation_messages(
        self, location: str, limit: int | None = None, *, before: int | None = None
    ) -> list[Entry]:
        """Return what the user and the assistant have said; what is older than the limit is not read."""
        found: list[Message] = []
        async for record in self._ledger.read(location, before=before, reverse=True):
            if len(found) == limit:
                break
            message = _Seen().shown(record)
            if message is not None and _type_of(message) in CONVERSATION_TYPES:
                found.append(message)
        return _written(reversed(found))

    async def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> list[Entry]:
        """Return what is of one agent: said by it, or for it."""
        return await self.get_team_messages(location, [agent_key], limit)

    async def get_team_messages(self, location: str, agent_keys: Collection[str], limit: int | None = None) -> list[Entry]:
        """Return what is of some agents, in one order."""
        return _latest([each for each in await self.get_messages(location) if _is_of(each, agent_keys)], limit)

    async def get_global_messages(self, location: str, limit: int | None = None) -> list[Entry]:
        """Return what was said to all."""
        return _latest([each for each in await self.get_messages(location) if each.get("is_global")], limit)

    async def get_history(
        self, location: str, agent_key: str, subordinates: Collection[str] = (), limit: int | None = None
    ) -> list[Entry]:
        """Return what concerns an agent: the conversation, its own, that of those under it, and what was said to all."""
        own = (agent_key, *subordinates)
        found = [
            each
            for each in await self.get_messages(location)
            if each["type"] in CONVERSATION_TYPES or each.get("is_global") or _is_of(each, own)
        ]
        return _latest(found, limit)

    # ------------------------------------------------------------ the views of a role

    async def orchestrator_view(self, location: str, limit: int = 8) -> list[Entry]:
        """Return what an orchestrator plans by: the latest messages of the conversation."""
        return await self.get_conversation_messages(location, limit)

    async def manager_view(self, location: str, phase_id: int) -> list[Entry]:
        """Return what the manager of a phase builds on: the broadcast synthesis of the phase before, in the latest turn."""
        found = [each for each in _of_latest_turn(await self.get_messages(location)) if each["type"] == SYNTHESIS]
        return [each for each in found if each.get("phase_id") == phase_id - 1 and each.get("is_global")]

    async def worker_view(self, location: str, agent_key: str) -> list[Entry]:
        """Return what a worker has before it: its latest task, and everything of its own since."""
        own = await self.get_agent_messages(location, agent_key)
        begins = [place for place, each in enumerate(own) if each["type"] == TASK]
        return own[begins[-1] :] if begins else []


class _Seen:
    """What a thread has shown so far: turns of teams, and the calls in them."""

    def __init__(self) -> None:
        self._turns: set[str] = set()
        self._calls: set[str] = set()

    def shown(self, record: Record) -> Message | None:
        """Return a row as it is shown, with the ledger's time; None for one that is not."""
        message = record.message
        if message.lane != "talk":
            return None
        turn = _turn_of(message)
        if DIALECT in message.metadata:
            self._turns.add(turn)
        elif turn not in self._turns or (kind := self._kind_of_trace(message)) is None:
            return None
        else:
            message = message.model_copy(update={"metadata": {DIALECT: {"type": kind}}})
        if isinstance(message.payload, OptionCallPayload):
            self._calls.add(message.payload.invocation_id)
        return message.model_copy(update={"created_at": record.recorded_at})

    def _kind_of_trace(self, message: Message) -> str | None:
        """Return what a row of an agent's own run is in the trace; None for what it was asked, and for its answer."""
        match message.payload:
            case OptionCallPayload(option_name=name):
                return None if name.startswith(OUTPUT) else "action"
            case OptionResultPayload(invocation_id=id, is_error=is_error):
                return None if id not in self._calls else "error" if is_error else "observation"
            case _:
                return None


def _turn_of(message: Message) -> str:
    """Return the turn in whose course something is said."""
    return root_of(message.parent_id or "")


def _type_of(message: Message) -> Json:
    notes = message.metadata.get(DIALECT)
    return notes.get("type") if isinstance(notes, JsonObject) else None


def _written(messages: Iterable[Message]) -> list[Entry]:
    written: list[Entry] = encode(Conversation(messages), DIALECT).value
    return written


def _is_of(entry: Entry, agent_keys: Collection[str]) -> bool:
    return entry.get("agent_key", entry.get("from_manager")) in agent_keys


def _of_latest_turn(entries: list[Entry]) -> list[Entry]:
    turns = [each["turn_id"] for each in entries if "turn_id" in each]
    return [each for each in entries if turns and each.get("turn_id") == turns[-1]]


def _latest(entries: list[Entry], limit: int | None) -> list[Entry]:
    return entries if limit is None else entries[len(entries) - min(limit, len(entries)) :]
