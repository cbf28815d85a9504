"""Prompts: assembles the prompt of a peer from its earlier exchanges, additions to its memory, and the request.

Exchanges are the same messages as in the thread, so that they are not recorded a second time. Only exchanges that were
finished when the peer was asked are used: a concurrent exchange has calls without results. An addition is at its place in the
thread, unless one of the exchanges already has it; shared memories come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart, UserContent

from antiphon.agents.toolkit import quoted
from antiphon.dialects import encode
from antiphon.dialects.marsys import Message as MarsysMessage
from antiphon.dialects.marsys import process_for_llm
from antiphon.ledger import Ledger
from antiphon.messages import Conversation, Message, thaw
from antiphon.patterns.cast import ThreadHistory, untrusted_source, user_content
from antiphon.patterns.peers._additions import addition_in, begins_unit, read_units, retell, retold_in
from antiphon.patterns.peers._letters import as_known, letter_of, role_of, words_of
from antiphon.patterns.peers._memory import Added, PeerMemory, Remembering, request_of, run_of, speaker_of
from antiphon.patterns.peers._protocol import InvokePeer, PeerLimits, address_of
from antiphon.runtime import Context

# ---------------------------------------------------------------- the request


async def prompt_of(request: InvokePeer, context: Context, caller: str | None) -> str | Sequence[UserContent]:
    """Return the prompt: the forwarded messages, then the request; untrusted content is quoted."""
    if request.message_id is not None:
        return [part for given in await _passed([request.message_id], context) for part in _content(*given)]
    asked = _asked(request.request, caller)
    passed = await _passed(request.context_message_ids, context)
    if not passed and request.untrusted is None:
        return asked
    told: list[UserContent] = [_shown(message, source) for message, source in passed]
    told.append(asked if request.untrusted is None else quoted(asked, request.untrusted))
    return told


def _asked(request: str, caller: str | None) -> str:
    """Return a request as text: a user's unchanged, another agent's with its name."""
    if caller is None:
        return request
    form = MarsysMessage("agent_call", request, metadata={"caller": caller})
    return str(process_for_llm(form)["content"])


async def _passed(ids: Sequence[str], context: Context) -> list[tuple[Message, str | None]]:
    """Return the forwarded messages, each with the source of untrusted content; they precede the request."""
    if not ids:
        return []
    ledger, thread_id = context.ledger, context.thread_id or ""
    rows: dict[str, tuple[Message, str | None]] = {}
    async for record in ledger.read(thread_id):
        message = as_known(record.message)
        rows.setdefault(message.id, (message, _untrusted(message)))
        if (addition := addition_in(record)) is not None:
            for each in read_units(addition.units, {}):
                rows.setdefault(each.id, (each, addition.untrusted))
    return [rows[each] for each in ids if each in rows]


def _content(message: Message, source: str | None) -> list[UserContent]:
    """Return the content of a user's message; untrusted text is quoted."""
    content = list(user_content(message))
    return content if source is None else [quoted(each, source) if isinstance(each, str) else each for each in content]


def _shown(message: Message, source: str | None) -> UserContent:
    text = f"[Message {message.id} from {message.policy}]: {words_of(message)}"
    return text if source is None else quoted(text, source)


def _untrusted(message: Message) -> str | None:
    """Return the source of a message's untrusted content: from a letter, or from the toolkit's record of a result."""
    letter = letter_of(message)
    return letter.untrusted if letter is not None else _marked(thaw(dict(message.metadata)))


def _marked(value: Any) -> str | None:
    """Return the mark of untrusted content in the stored origin of a result, at any depth."""
    match value:
        case {"untrusted": str(source)}:
            return source
        case dict():
            inside = list(cast("dict[str, Any]", value).values())
        case list():
            inside = cast("list[Any]", value)
        case _:
            return None
    return next((found for each in inside if (found := _marked(each)) is not None), None)


# ---------------------------------------------------------------- earlier messages


async def recollect(
    ledger: Ledger, thread_id: str, name: str, *, until: Message, limits: PeerLimits, shared: Sequence[PeerMemory] = ()
) -> list[ModelMessage]:
    """Return the messages before the request `until`: shared memories, the latest exchanges, and additions.

    A peer that a user asks also reads the thread's history; a peer that another peer asks gets only its request.

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
    """The messages of one run of a peer, from a place in the thread on."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self._units: list[list[Message]] = []

    def add(self, row: Message) -> None:
        """Add a row to the unit that it belongs to: the first row of each is marked."""
        if not self._units or begins_unit(row):
            self._units.append([])
        self._units[-1].append(row)

    def retold(self) -> set[str]:
        """Return the added messages that it repeats."""
        return {told_id for unit in self._units for row in unit for told_id in retold_in(row)}

    def restored(self, thread_id: str) -> list[ModelMessage]:
        """Return it as prompts and answers; empty if a part of it cannot be restored."""
        return _restored(self._units, thread_id)


def _retold(
    added: Iterable[Added], known: set[str], limits: PeerLimits, name: str, own: frozenset[str]
) -> list[tuple[int, list[ModelMessage]]]:
    """Return the latest unknown additions, by place; a call stays with its result."""
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
        return []  # a message that cannot be restored for a model
    return ModelMessagesTypeAdapter.validate_python([{**unit, "conversation_id": thread_id} for unit in plain])


def _unit(rows: list[Message]) -> dict[str, Any]:
    """Restore a request or an answer: instructions and request were one unit. Empty if it is neither."""
    said: Any = encode(Conversation(_bare(row) for row in rows), "pydantic-ai").value
    return {**said[0], "parts": [part for each in said for part in each["parts"]]} if said else {}


def _bare(row: Message) -> Message:
    """Return a row without the fields that belong to its thread."""
    own: dict[str, Any] = {"thread_id": None, "parent_id": None, "correlation_id": None}
    if row.role_hint_for_llm == "assistant":
        own["policy"] = "assistant"
    return row.model_copy(update=own)


def _is_finished(messages: list[ModelMessage]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, ModelResponse) and not any(isinstance(part, ToolCallPart) for part in last.parts)
