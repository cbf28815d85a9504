"""The messages of a team: written in the fourteen types of the format, read in several views, passed to a host's store.

The views are in the order of the ledger. They do not show the prompts and answers of the agents' own runs, but the tools that
the agents used: as actions, observations and errors.

Untrusted content taints the reader: every request and answer carries the source of such content. So a worker whose task
follows from it may use only tools that allow it, or needs an approval.

A host may have its own message store. The messages that are read from it are recorded in the ledger first, so a turn that
continues after a crash plans with the same messages. The messages of a turn are passed to it when the turn has ended, each at
least once: after a crash in between, or if the store fails, the same task in the same thread passes them again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, TypeAlias

from pydantic import ValidationError

from antiphon.agents.toolkit._taint import Taint, taint_scope
from antiphon.dialects import decode, encode
from antiphon.dialects.agent_framework import BaseMessageStore, normalise_message
from antiphon.dialects.agent_framework.constants import CONVERSATION_TYPES, SYNTHESIS, TASK, USER_MESSAGE
from antiphon.errors import RefusedError
from antiphon.ledger import Log, Record
from antiphon.messages import Conversation, Json, JsonObject, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages._keys import root_of
from antiphon.patterns.cast._handling import HandlerRun, handling
from antiphon.protocol import ErrorCode
from antiphon.runtime import Context

# ---------------------------------------------------------------- writing


DIALECT = "agent-framework"
PATTERN = "teams"
"""The name of the pattern in lists of threads."""


@asynccontextmanager
async def at_work(context: Context, agent: str, turn: str, untrusted: str | None) -> AsyncGenerator[Transcript]:
    """Handle a message as a member of the team: recorded, parked if a person must decide, and tainted by its request."""
    async with handling(context, PATTERN) as handler:
        with taint_scope(Taint()) as taint:
            taint.mark(untrusted)
            yield Transcript(handler, agent, turn, taint)


class Transcript:
    """Records messages of a member while it handles a request."""

    def __init__(self, handler: HandlerRun, agent: str, turn: str, taint: Taint) -> None:
        self.handler = handler
        self.run = handler.run
        self.agent = agent
        self.turn = turn
        self.taint = taint
        """The untrusted content that it has read."""

    def call_id(self, key: str) -> str:
        """Return the invocation id of the call with a key."""
        return f"{key}-{sha256(self.run.course.invocation_id.encode()).hexdigest()[:16]}"

    async def say(self, type: str, key: str, **fields: Any) -> Record:
        """Record a message. It has no timestamp: the ledger's time is used."""
        (message,) = decode([self._entry(type, fields)], DIALECT)
        return await self.run.say(message, key=key)

    async def answer(self, asked: dict[str, Any], type: str, key: str, **fields: Any) -> Record:
        """Record the answer to a task, a delegation or an action, which is given as its fields."""
        entry = self._entry(type, {"call_id": asked["call_id"], **fields})
        _, message = decode([normalise_message(asked), entry], DIALECT)
        return await self.run.say(message, key=key)

    def _entry(self, type: str, fields: dict[str, Any]) -> dict[str, Any]:
        fields = {"agent_key": self.agent, "turn_id": self.turn, **fields}
        return normalise_message({"type": type, **{name: value for name, value in fields.items() if value is not None}})


# ---------------------------------------------------------------- reading


Entry: TypeAlias = dict[str, Any]
"""A message of the format, as a plain dict."""

OUTPUT = "final_result"
"""The tool with which a model of Pydantic AI returns structured output: an answer, not an action."""


class TeamStore:
    """The views of a team's threads. `location` is the id of a thread; `limit` counts messages, the latest of them."""

    def __init__(self, ledger: Log) -> None:
        self._ledger = ledger

    # ------------------------------------------------------------ the views of a store

    async def get_messages(
        self, location: str, limit: int | None = None, *, before: int | None = None, turn: str | None = None
    ) -> list[Entry]:
        """Return all messages in order; optionally only those before a place, or of one turn."""
        seen = _Seen()
        records = [record async for record in self._ledger.read(location, before=before)]
        rows = [seen.shown(record) for record in records if turn is None or _turn_of(record.message) == turn]
        return _latest(_written(row for row in rows if row is not None), limit)

    async def get_conversation_messages(
        self, location: str, limit: int | None = None, *, before: int | None = None
    ) -> list[Entry]:
        """Return the messages of the user and the assistant; messages beyond the limit are not read."""
        newest_first: list[Message] = []
        async for record in self._ledger.read(location, before=before, reverse=True):
            if len(newest_first) == limit:
                break
            message = _Seen().shown(record)
            if message is not None and _type_of(message) in CONVERSATION_TYPES:
                newest_first.append(message)
        return _written(reversed(newest_first))

    async def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> list[Entry]:
        """Return the messages by or for one agent."""
        return await self.get_team_messages(location, [agent_key], limit)

    async def get_team_messages(self, location: str, agent_keys: Collection[str], limit: int | None = None) -> list[Entry]:
        """Return the messages by or for some agents, in order."""
        return _latest([entry for entry in await self.get_messages(location) if _is_of(entry, agent_keys)], limit)

    async def get_global_messages(self, location: str, limit: int | None = None) -> list[Entry]:
        """Return the messages to all agents."""
        return _latest([entry for entry in await self.get_messages(location) if entry.get("is_global")], limit)

    async def get_history(
        self, location: str, agent_key: str, subordinates: Collection[str] = (), limit: int | None = None
    ) -> list[Entry]:
        """Return the messages for an agent: the conversation, its own, those of its workers, and those to all."""
        agent_keys = (agent_key, *subordinates)
        entries = [
            entry
            for entry in await self.get_messages(location)
            if entry["type"] in CONVERSATION_TYPES or entry.get("is_global") or _is_of(entry, agent_keys)
        ]
        return _latest(entries, limit)

    # ------------------------------------------------------------ the views of a role

    async def orchestrator_view(self, location: str, limit: int = 8) -> list[Entry]:
        """Return the latest messages of the conversation, which an orchestrator plans with."""
        return await self.get_conversation_messages(location, limit)

    async def manager_view(self, location: str, phase_id: int) -> list[Entry]:
        """Return the broadcast synthesis of the previous phase in the latest turn, for the manager of a phase."""
        entries = await self.get_messages(location)
        turns = [entry["turn_id"] for entry in entries if "turn_id" in entry]
        return [
            entry
            for entry in entries
            if entry["type"] == SYNTHESIS
            and entry.get("turn_id") == turns[-1]
            and entry.get("phase_id") == phase_id - 1
            and entry.get("is_global")
        ]

    async def worker_view(self, location: str, agent_key: str) -> list[Entry]:
        """Return the latest task of a worker, and its messages since."""
        entries = await self.get_agent_messages(location, agent_key)
        tasks = [place for place, entry in enumerate(entries) if entry["type"] == TASK]
        return entries[tasks[-1] :] if tasks else []


class _Seen:
    """The turns of a thread so far, and the calls in them."""

    def __init__(self) -> None:
        self._turns: set[str] = set()
        self._calls: set[str] = set()

    def shown(self, record: Record) -> Message | None:
        """Return a row as a message with the ledger's time; None: it is not shown."""
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
        """Return a row of an agent's own run as an action or observation; None for its prompt and answer."""
        match message.payload:
            case OptionCallPayload(option_name=name):
                return None if name.startswith(OUTPUT) else "action"
            case OptionResultPayload(invocation_id=id, is_error=is_error):
                return None if id not in self._calls else "error" if is_error else "observation"
            case _:
                return None


def _turn_of(message: Message) -> str:
    """Return the turn that a message belongs to."""
    return root_of(message.parent_id or "")


def _type_of(message: Message) -> Json:
    notes = message.metadata.get(DIALECT)
    return notes.get("type") if isinstance(notes, JsonObject) else None


def _written(messages: Iterable[Message]) -> list[Entry]:
    written: list[Entry] = encode(Conversation(messages), DIALECT).value
    return written


def _is_of(entry: Entry, agent_keys: Collection[str]) -> bool:
    return entry.get("agent_key", entry.get("from_manager")) in agent_keys


def _latest(entries: list[Entry], limit: int | None) -> list[Entry]:
    return entries if limit is None else entries[len(entries) - min(limit, len(entries)) :]


# ---------------------------------------------------------------- the store of a host


async def read_conversation(store: BaseMessageStore, location: str, *, limit: int, request: str) -> list[dict[str, Any]]:
    """Return the latest messages of a conversation, without the request, which a host may already have stored.

    The limit is applied here: some stores count it from the beginning.
    """
    stored = store.get_conversation_messages(location)
    stored = stored if isinstance(stored, Sequence) else await stored
    entries = [entry for entry in map(_checked, stored) if entry["type"] in CONVERSATION_TYPES]
    if entries and (entries[-1]["type"], entries[-1]["content"]) == (USER_MESSAGE, request):
        entries.pop()
    return entries[max(0, len(entries) - limit) :]


def _checked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a message, and the source of untrusted content in it. Its time has the host's format."""
    fields = {name: value for name, value in entry.items() if name != "timestamp" and value is not None}
    try:
        checked = normalise_message(fields)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "message"
        reason = f"the message store gave a message that is none: {where}: {first['msg']}"
        raise RefusedError(reason, ErrorCode.VALIDATION_ERROR) from exc
    return {name: checked[name] for name in ("type", "content", "metadata") if name in checked}
