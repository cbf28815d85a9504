"""`LedgerConversationStore`: Pydantic AI's conversations, each in the thread of its name.

A message of a conversation is talk in the thread; messages that durable runs have written are not written again. There are two
kinds of control rows: an entry for each message, with its position in the talk and the previous entry, and a record after each
save, of which the last one counts. Nothing is changed or removed: a deleted conversation has a last record that says so, and
its messages are removed only with the thread (`antiphon delete`).

A branch of a thread has the rows of the thread up to the branch point, including its record and entries. It is a conversation
with the id of the branch: saving it writes to the branch.

A request that is repeated after its answer was saved gets the recorded answer (see `LedgerDurability.wrap_run`). Saving
that result again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord, ConversationStore
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.run import AgentRunResult
from typing_extensions import override

from antiphon.agents._guards import Unit
from antiphon.agents.durability._prompt import dump, mark_of
from antiphon.agents.durability._talk import METADATA, TalkPlace, ThreadTalk, restore
from antiphon.errors import AppendConflictError
from antiphon.ledger import Owners
from antiphon.messages import DataPart, JsonObject, Message, PartsPayload, thaw

RECORD: Final = "CONVERSATION"
ENTRY: Final = "CONVERSATION_ENTRY"
_POLICY: Final = "store"

_records: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class LedgerConversationStore(ConversationStore):
    """Conversations in a ledger. A deleted conversation does not load; its messages stay in the thread."""

    def __init__(self, ledger: Owners) -> None:
        self._ledger = ledger

    # ------------------------------------------------------------ records

    @override
    async def save(
        self, conversation: Conversation | AgentRunResult[Any], *, scope: str | None = None
    ) -> list[ConversationEntry]:
        saved = conversation.conversation if isinstance(conversation, AgentRunResult) else conversation
        if await self._has_saved(saved, scope):
            return []
        return await super().save(conversation, scope=scope)

    async def _has_saved(self, conversation: Conversation, scope: str | None) -> bool:
        """Whether the new messages of a conversation belong to a durable run that was saved before."""
        index = conversation.new_message_index or 0
        new = conversation.messages[index if index < len(conversation.messages) else 0 :]
        runs = {message.run_id for message in new}
        if not new or not all(run and run.startswith(f"{conversation.conversation_id}/") for run in runs):
            return False
        record = await self.read_record(conversation.conversation_id)
        if record is None or record.revision != conversation.revision or scope not in (None, record.scope):
            return False
        history = await self.read_history(record.head_id)
        stored = [entry.message for entry in history if entry.message.run_id in runs]
        return set(map(mark_of, dump(new))) <= set(map(mark_of, dump(stored)))

    @override
    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return _record_in(await self._last_record(conversation_id), conversation_id)

    async def _last_record(self, conversation_id: str) -> Unit | None:
        async for row in self._ledger.read(conversation_id, reverse=True):
            if (record := _store_data(row.message, RECORD)) is not None:
                return record
        return None

    @override
    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        last: dict[str, Unit] = {}
        for row in await self._ledger.find(correlation_id=RECORD):
            if (unit := _store_data(row.message, RECORD)) is not None:
                last[row.message.thread_id or ""] = unit
        records = [record for name, unit in last.items() if (record := _record_in(unit, name)) is not None]
        in_scope = [record for record in records if scope is None or record.scope == scope]
        return sorted(in_scope, key=lambda record: record.updated_at, reverse=True)[:limit]

    @override
    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        entries = {entry.id for entry in new_entries}
        if record.head_id is not None and record.head_id not in entries and not await self._has(record.head_id):
            raise ConversationConflict(record.conversation_id)
        saving = _Saving(record.conversation_id, await _ThreadContents.of(self._ledger, record.conversation_id))
        for entry in new_entries:
            saving.add(entry)
        unit = cast("Unit", _records.dump_python(record, mode="json"))
        await self._append(record.conversation_id, [*saving.rows, _row(RECORD, unit, RECORD)], expected_revision)

    @override
    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await self._append(conversation_id, [_row(RECORD, {"revision": None}, RECORD)], expected_revision)

    async def _append(self, thread_id: str, rows: Sequence[Message], expected_revision: str | None) -> None:
        """Append rows if the record that was read is still the last one."""
        while True:
            head = await self._ledger.head(thread_id)
            last = await self._last_record(thread_id)
            if (last or {}).get("revision") != expected_revision:
                raise ConversationConflict(thread_id)
            try:
                epoch = head.epoch or None
                await self._ledger.append(thread_id, rows, expected_version=head.seq, epoch=epoch, allow_foreign=True)
            except AppendConflictError:
                continue  # a run has appended rows; check whether one of them was a save
            return

    # ------------------------------------------------------------ entries

    async def _has(self, entry_id: str) -> bool:
        return any(_store_data(row.message, ENTRY) for row in await self._ledger.find(correlation_id=entry_id))

    @override
    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return (await self._contents_with(entry_id)).entry(entry_id)

    @override
    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        contents: _ThreadContents | None = None
        entries: list[ConversationEntry] = []
        while head_id is not None and (limit is None or len(entries) < limit):
            if contents is None or head_id not in contents.entries:
                contents = await self._contents_with(head_id)
            entries.append(contents.entry(head_id))
            head_id = entries[-1].parent_id
        return entries[::-1]

    async def _contents_with(self, entry_id: str) -> _ThreadContents:
        """Read the thread that has an entry."""
        for row in await self._ledger.find(correlation_id=entry_id):
            if _store_data(row.message, ENTRY) is not None:
                return await _ThreadContents.of(self._ledger, row.message.thread_id or "")
        raise KeyError(f"no conversation has an entry {entry_id!r}")


class _Saving:
    """The rows that save messages."""

    def __init__(self, thread_id: str, contents: _ThreadContents) -> None:
        self._thread_id = thread_id
        self._contents = contents
        self.rows: list[Message] = []

    def add(self, entry: ConversationEntry) -> None:
        """Save one more."""
        (unit,) = dump([entry.message])
        mark = mark_of(unit)
        stored = self._contents.units.get(mark)
        if stored is None:
            talk = self._contents.talk.new_rows([unit], [mark], TalkPlace(self._thread_id, entry.id, "assistant"), None)
            self.rows += talk
            stored = self._contents.units[mark] = _UnitRows(talk)
        fields = {"conversation_id": unit.get("conversation_id"), "run_id": unit.get("run_id")}
        if unit["kind"] == "request":
            fields["instructions"] = unit.get("instructions")
        entry_data: Unit = {"parent": entry.parent_id, "unit": mark, "kept": fields}
        if is_priced := stored.is_priced:
            entry_data["priced"] = True
        restored = stored.unit(is_priced=is_priced)
        # Fields other than the content that are set after the answer was recorded, such as the id of the model.
        fields |= {name: value for name, value in unit.items() if name != "parts" and restored.get(name) != value}
        if {**restored, **fields} != unit:
            # The talk does not restore it exactly, so it is stored whole.
            entry_data = {"parent": entry.parent_id, "message": unit}
        self.rows.append(_row(ENTRY, entry_data, entry.id))


@dataclass(slots=True)
class _UnitRows:
    """The rows of a message."""

    rows: list[Message] = field(default_factory=list[Message])

    @property
    def is_priced(self) -> bool:
        """Whether a durable run has added a price, which the message itself does not have."""
        usage = self.rows[0].usage if self.rows else None
        return usage is not None and usage.cost is not None

    def unit(self, *, is_priced: bool) -> Unit:
        """Return the message."""
        return restore(self.rows, is_priced=is_priced)


class _ThreadContents:
    """The contents of a thread: talk by mark, and entries by id."""

    def __init__(self) -> None:
        self.units: dict[str, _UnitRows] = {}
        self.talk = ThreadTalk()
        self.entries: dict[str, Unit] = {}

    @classmethod
    async def of(cls, ledger: Owners, thread_id: str) -> _ThreadContents:
        """Read it."""
        contents, last = cls(), _UnitRows()
        async for record in ledger.read(thread_id):
            message = record.message
            if (entry := _store_data(message, ENTRY)) is not None:
                contents.entries[message.correlation_id or ""] = entry
            elif message.lane == "talk":
                notes = message.metadata.get(METADATA)
                mark = notes.get("unit") if isinstance(notes, JsonObject) else None
                if isinstance(mark, str):
                    last = contents.units[mark] = _UnitRows()
                last.rows.append(message)
        return contents

    def entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry of the thread."""
        data = self.entries[entry_id]
        stored = data.get("message")
        unit = stored or {**self.units[data["unit"]].unit(is_priced=data.get("priced", False)), **data["kept"]}
        (message,) = ModelMessagesTypeAdapter.validate_python([unit])
        return ConversationEntry(id=entry_id, parent_id=data["parent"], message=message)


def _row(kind: str, data: Unit, correlation_id: str) -> Message:
    payload = PartsPayload(parts=(DataPart(data={"type": kind, "data": data}),))
    return Message(policy=_POLICY, payload=payload, lane="control", correlation_id=correlation_id)


def _store_data(message: Message, kind: str) -> Unit | None:
    """Return the data of an entry or a record; None for any other row."""
    if message.lane != "control" or message.policy != _POLICY:
        return None
    match message.parts:
        case (DataPart(data=JsonObject() as data),) if data.get("type") == kind:
            return cast("Unit", thaw(data["data"]))
        case _:
            return None


def _record_in(data: Unit | None, conversation_id: str) -> ConversationRecord | None:
    """Return the record of the conversation in a thread. In a branch that was not saved, it is the record of its origin."""
    if data is None or data["revision"] is None:
        return None
    record = _records.validate_python(data)
    if record.conversation_id == conversation_id:
        return record
    return replace(record, conversation_id=conversation_id, forked_from=record.conversation_id, forked_at=record.head_id)
