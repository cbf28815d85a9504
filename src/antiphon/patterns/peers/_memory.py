"""PeerMemory: the memory of a peer in a thread, as a read-only view of the ledger; and the prompts that are made from it.

The memory has, in the order in which they reached the peer: its prompts and requests, its answers, its tool calls and their
results; its requests to other peers and their answers, as letters (in place of the tool call that sent them); the messages
that others forwarded, with their ids; and the messages that a program has added. Nothing is stored twice. A longer thread only
adds to the end. A shared memory is the same view, of a thread that has only additions.

**A prompt** has the earlier exchanges of the peer, additions to its memory, and the request. Exchanges are the same messages
as in the thread, so that they are not recorded a second time. Only exchanges that were finished when the peer was asked are
used: a concurrent exchange has calls without results. An addition is at its place in the thread, unless one of the exchanges
already has it; shared memories come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart, UserContent

from antiphon.agents.durability._quotes import Quotation
from antiphon.agents.toolkit import quoted
from antiphon.agents.toolkit._taint import current_taint, untrusted_source
from antiphon.dialects import Encoded, encode, marsys
from antiphon.dialects.marsys import Message as MarsysMessage
from antiphon.dialects.marsys import process_for_llm, with_heading
from antiphon.ledger import Ledger, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, JsonArray, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages import _keys as keys
from antiphon.patterns.cast._pattern import ThreadHistory, attributed, user_content
from antiphon.patterns.peers._additions import (
    Addition,
    RepetitionReader,
    added_prompt,
    addition_in,
    begins_unit,
    memory_address,
    post_additions,
    read_units,
    repeated_ids,
    stored_units,
    units_of,
)
from antiphon.patterns.peers._letters import (
    InvokePeer,
    PeerLimits,
    address_of,
    as_known,
    dated,
    for_model,
    letter_of,
    marsys_form,
    role_of,
    text_of,
)
from antiphon.patterns.peers._registry import INVOKE_AGENT
from antiphon.runtime import Context

# ---------------------------------------------------------------- the memory


@dataclass(frozen=True)
class PeerMemory:
    """The memory of a peer in a thread, as of the time of reading."""

    name: str
    thread_id: str
    conversation: Conversation
    _ledger: Ledger = field(repr=False)
    _reader: MemoryReader = field(repr=False)

    @classmethod
    async def read(cls, ledger: Ledger, thread_id: str, name: str, *, before: int | None = None) -> PeerMemory:
        """Read it, up to the place `before` in the thread."""
        return await cls._read(ledger, thread_id, MemoryReader(name, address_of(name)), before)

    @classmethod
    async def read_shared(cls, ledger: Ledger, name: str, *, before: int | None = None) -> PeerMemory:
        """Read a shared memory by its name; it belongs to no single thread."""
        address = memory_address(name)
        return await cls._read(ledger, address, MemoryReader(name, address), before)

    @classmethod
    async def _read(cls, ledger: Ledger, thread_id: str, reader: MemoryReader, before: int | None) -> PeerMemory:
        async for record in ledger.read(thread_id, reader.seq, before):
            reader.take(record)
        return cls(reader.name, thread_id, Conversation(reader.messages), ledger, reader)

    @property
    def added(self) -> Sequence[Added]:
        """The messages that programs have added, in order."""
        return tuple(self._reader.added)

    # ------------------------------------------------------------ adding

    async def append(self, *messages: marsys.Message | Message, untrusted: str | None = None) -> PeerMemory:
        """Add messages permanently, and return the memory with them; known messages are not added again.

        The peer's model reads them from the next request on. `untrusted` is the source of untrusted content in them; inside a
        tool, it is already known.

        Raises:
            ValueError: the memory has another message with the same id, or a message is too large.
            DecodeError: it is not a message of MARSYS.
        """
        new: dict[str, marsys.Message] = {}
        for unit in await stored_units(self._ledger, self.thread_id, units_of(messages)):
            form = marsys.Message.from_dict(unit)
            if (self._stored(form.message_id) or new.setdefault(form.message_id, form)) != form:
                raise ValueError(f"there is another message {form.message_id!r} in the memory; messages do not change")
        units = units_of(new.values())
        read_units(units, self._reader.calls)  # raises for an invalid message, before anything is written
        taint = current_taint()
        source = untrusted or (taint.untrusted if taint is not None else None)
        await post_additions(self._ledger, self.thread_id, self._reader.address, units, source)
        return await self._read(self._ledger, self.thread_id, self._reader.copy(), None)

    def _stored(self, message_id: str) -> marsys.Message | None:
        """Return a message by id, in the form of MARSYS: with its calls, which are separate messages here."""
        messages: list[Message] = []
        for part_id in chain((message_id,), (f"{message_id}#{number}" for number in count(2))):
            if (message := self.by_id(part_id)) is None:
                break
            messages.append(message)
        return next(iter(marsys_form(Conversation(messages))), None)

    # ------------------------------------------------------------ queries

    def __len__(self) -> int:
        return len(self.conversation)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.conversation)

    def by_id(self, id: str) -> Message | None:
        """Return a message by id; None: it is not in the memory."""
        return self.conversation.get(id)

    def last(self, count: int) -> tuple[Message, ...]:
        """Return the latest messages, at most a given number."""
        return tuple(self.conversation[max(0, len(self) - count) :])

    def by_role(self, role: str) -> tuple[Message, ...]:
        """Return the messages with a role of MARSYS."""
        return tuple(message for message in self.conversation if role_of(message) == role)

    async def search(self, text: str, *, limit: int = 20) -> tuple[Message, ...]:
        """Find messages that have all the words, the best first, as `Ledger.search` does."""
        rows = (await self._ledger.head(self.thread_id)).seq
        hits = await self._ledger.search(text, thread_id=self.thread_id, limit=max(1, rows))
        matches: dict[str, Message] = {}
        for hit in hits:
            row = as_known(hit.record.message)
            added = self._reader.rows.get(row.id)
            for message_id in (row.id,) if added is None else await _matching_ids(added, text):
                if (message := self.by_id(message_id)) is not None:
                    matches.setdefault(message_id, message)
        return tuple(matches.values())[:limit]

    def window(self, count: int | None = None, *, tokens: int | None = None) -> Conversation:
        """Return the latest messages within a limit of messages or estimated tokens, and the system messages.

        A call is never separated from its result, so there may be fewer messages.
        """
        return self.conversation.window(count, tokens=tokens, keep=lambda message: role_of(message) == "system")

    # ------------------------------------------------------------ export

    def to(self, dialect: str, **options: Any) -> Encoded:
        """Return it in any dialect, from the point of view of the peer: its own messages are the assistant's."""
        return encode(attributed(self.conversation, self.name), dialect, as_policy=self.name, **options)

    def messages(self) -> list[marsys.Message]:
        """Return it in the form of MARSYS."""
        return marsys_form(self.conversation)

    def to_llm_format(self) -> list[dict[str, Any]]:
        """Return it with the roles that all providers know; the results of a turn follow it directly."""
        return list(_with_results([for_model(self.name, message) for message in self.messages()]))


async def _matching_ids(messages: Sequence[Message], text: str) -> list[str]:
    """Return the ids of the messages with all the words; a search finds an addition only as a whole."""
    ledger = MemoryLedger()
    rows = [message.model_copy(update={"thread_id": None}) for message in messages]
    await ledger.append("added", rows, allow_foreign=True)
    return [hit.record.message.id for hit in await ledger.search(text, limit=len(messages))]


def _with_results(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield messages with each result directly after its turn; requests to other peers in that turn follow."""
    results = _results_of_turns(messages)
    moved = {place for places in results.values() for place in places}
    for place, message in enumerate(messages):
        if place in moved:
            continue
        if "tool_call_id" in message:  # providers refuse a result without its call
            yield {"role": "user", "content": with_heading(f"[Result of {message.get('name')}]:", message["content"])}
            continue
        yield message
        yield from (messages[result] for result in results.get(place, ()))


def _results_of_turns(messages: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return, by the place of a turn with tool calls, the places of the results in the order of the calls.

    A model may reuse an id in a later turn: a result belongs to the latest turn before it that has no result for this id.
    """
    waiting: dict[str, list[tuple[int, int]]] = {}
    by_call: dict[int, dict[int, int]] = {}
    """By the place of a turn, and the number of a call in it: the place of the result."""
    for place, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            waiting.setdefault(call["id"], []).append((place, -number))
        if calls := waiting.get(message.get("tool_call_id", "")):
            turn, number = max(calls)
            calls.remove((turn, number))
            by_call.setdefault(turn, {})[-number] = place
    return {turn: [places[number] for number in sorted(places)] for turn, places in by_call.items()}


class Added(NamedTuple):
    """The messages that one row adds to a memory."""

    seq: int
    messages: tuple[Message, ...]
    untrusted: str | None
    is_talk: bool = False
    """Whether the message is the row itself, which a prompt quotes."""


class MemoryReader:
    """Reads a thread, and selects the messages of one memory."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.added: list[Added] = []
        self.rows: dict[str, tuple[Message, ...]] = {}
        """The additions, by row."""
        self.calls: dict[str, Message] = {}
        """The calls in the memory, by invocation."""
        self._forwardable: dict[str, Message] = {}
        """The messages that can be forwarded to it: all earlier ones."""
        self._messages: dict[str, Message] = {}
        self._instructions: Message | None = None
        self._repetitions = RepetitionReader()
        self._history = ThreadHistory()
        self.seq = 0
        """The position up to which the thread was read."""

    def copy(self) -> MemoryReader:
        """Return a copy, to continue from here."""
        copy = MemoryReader(self.name, self.address)
        copy.seq, copy._instructions, copy._repetitions = self.seq, self._instructions, self._repetitions.copy()
        copy.added, copy.rows, copy.calls = [*self.added], {**self.rows}, {**self.calls}
        copy._forwardable, copy._messages = {**self._forwardable}, {**self._messages}
        copy._history = self._history.copy()
        return copy

    @property
    def messages(self) -> list[Message]:
        """The memory so far."""
        return list(self._messages.values())

    def take(self, record: Record) -> None:
        """Read the next row of the thread."""
        message, self.seq = dated(record), record.seq
        if message.lane == "talk":
            self._forwardable[message.id] = message
            is_repetition = self._repetitions.take(record)
            if self._is_own(message) and not is_repetition and not self._is_repeated_instruction(message):
                self._remember(message)
        elif (addition := addition_in(record)) is not None:
            self._add(record, addition)
        elif message.lane == "control" and self.address in message.to:
            request = request_of(message)  # of a user: then the peer also reads the history before it
            history = [] if request is None else [row.id for row in self._history if row.id != request.message_id]
            for message_id in (*history, *_forwarded_ids(message)):
                if (forwarded := self._forwardable.get(message_id)) is not None:
                    self._remember(forwarded)
        self._history.take(record)

    def _add(self, record: Record, addition: Addition) -> None:
        messages = tuple(read_units(addition.units, self.calls))
        for message in messages:
            self._forwardable.setdefault(message.id, message)
        if self.address not in record.message.to:
            return  # another peer's message, which may be forwarded later
        self.rows[record.message.id] = messages
        self.added.append(Added(record.seq, messages, addition.untrusted))
        for message in messages:
            self._remember(message)

    def _remember(self, message: Message) -> None:
        self._messages.setdefault(message.id, message)
        if isinstance(message.payload, OptionCallPayload):
            self.calls[message.payload.invocation_id] = message

    def _is_own(self, message: Message) -> bool:
        if (letter := letter_of(message)) is not None:
            return letter.caller == self.name
        return speaker_of(message) == self.name and _option(message) != INVOKE_AGENT

    def _is_repeated_instruction(self, message: Message) -> bool:
        """Whether these are the known instructions of the peer, which are repeated after messages of other agents."""
        if message.policy != "system":
            return False
        before, self._instructions = self._instructions, message
        return before is not None and before.parts == message.parts


def _forwarded_ids(message: Message) -> tuple[str, ...]:
    """Return the ids of the messages that an invocation forwards."""
    payload = message.payload
    if not isinstance(payload, OptionCallPayload) or payload.option_name != InvokePeer.message_type:
        return ()
    ids = payload.arguments.get("context_message_ids")
    return tuple(map(str, ids)) if isinstance(ids, JsonArray) else ()


def request_of(message: Message) -> InvokePeer | None:
    """Return the request of a user to a peer in a message; None: it is something else, or comes from another peer."""
    payload = message.payload
    if not isinstance(payload, OptionCallPayload) or payload.option_name != InvokePeer.message_type:
        return None
    try:
        request = InvokePeer.from_data(payload.arguments)
    except ValueError:
        return None  # a row of another program
    return request if request.depth == 0 else None


def is_answer(request_id: str, name: str, message: Message) -> bool:
    """Whether a message is a peer's answer to a request."""
    run = run_of(message)
    is_own = keys.parent_of(run) == request_id and keys.last_key(run) == name
    return is_own and message.role_hint_for_llm == "assistant" and message.kind == "parts"


def run_of(message: Message) -> str:
    """Return the agent run of a message: the id of the exchange with the model starts with it."""
    return keys.run_of(message.correlation_id or "")


def speaker_of(message: Message) -> str:
    """Return the agent whose run a message belongs to."""
    return keys.last_key(run_of(message))


def _option(message: Message) -> str | None:
    payload = message.payload
    return payload.option_name if isinstance(payload, OptionCallPayload | OptionResultPayload) else None


# ---------------------------------------------------------------- prompts: the request


async def prompt_of(request: InvokePeer, context: Context, caller: str | None) -> str | Sequence[UserContent]:
    """Return the prompt: the forwarded messages, then the request; untrusted content is quoted."""
    if request.message_id is not None:
        rows = await _forwarded([request.message_id], context)
        return [
            quoted(content, source) if source is not None and isinstance(content, str) else content
            for message, source in rows
            for content in user_content(message)
        ]
    text = request.request
    if caller is not None:
        form = MarsysMessage("agent_call", text, metadata={"caller": caller})
        text = str(process_for_llm(form)["content"])
    forwarded = await _forwarded(request.context_message_ids, context)
    if not forwarded and request.untrusted is None:
        return text
    prompt: list[UserContent] = [_shown(message, source) for message, source in forwarded]
    prompt.append(text if request.untrusted is None else quoted(text, request.untrusted))
    return prompt


async def _forwarded(ids: Sequence[str], context: Context) -> list[tuple[Message, str | None]]:
    """Return the forwarded messages, each with the source of untrusted content; they precede the request."""
    if not ids:
        return []
    ledger, thread_id = context.ledger, context.thread_id or ""
    rows: dict[str, tuple[Message, str | None]] = {}
    async for record in ledger.read(thread_id):
        message = as_known(record.message)
        rows.setdefault(message.id, (message, _untrusted(message)))
        if (addition := addition_in(record)) is not None:
            for added in read_units(addition.units, {}):
                rows.setdefault(added.id, (added, addition.untrusted))
    return [rows[message_id] for message_id in ids if message_id in rows]


def _shown(message: Message, source: str | None) -> UserContent:
    text = f"[Message {message.id} from {message.policy}]: {text_of(message)}"
    return text if source is None else quoted(text, source)


def _untrusted(message: Message) -> str | None:
    """Return the source of a message's untrusted content: from a letter, or from the toolkit's record of a result."""
    letter = letter_of(message)
    return letter.untrusted if letter is not None else untrusted_source(message)


# ---------------------------------------------------------------- prompts: earlier messages


async def recollect(
    ledger: Ledger, thread_id: str, name: str, *, until: Message, limits: PeerLimits, shared: Sequence[PeerMemory] = ()
) -> Quotation:
    """Return the messages before the request `until`: shared memories, the latest exchanges, and additions.

    A peer that a user asks also reads the thread's history; a peer that another peer asks gets only its request.
    """
    runs: dict[str, _Exchange] = {}
    reader, history = MemoryReader(name, address_of(name)), ThreadHistory()
    request = request_of(until)
    async for record in ledger.read(thread_id):
        message = record.message
        if message.id == until.id:
            break
        if addition_in(record) is not None:
            reader.take(record)
        elif history.take(record) and request is not None and message.id != request.message_id:
            reader.added.append(Added(record.seq, (message,), untrusted_source(message), is_talk=True))
        if record.message.lane == "talk" and speaker_of(record.message) == name:
            runs.setdefault(run_of(record.message), _Exchange(record.seq)).add(record)
    finished = [(run, messages) for run in runs.values() if _is_finished(messages := run.restored(thread_id))]
    latest = finished[-limits.remember :] if limits.remember else []
    repeated = set[str]().union(*(run.repeated_ids() for run, _ in latest))
    quotations = [(run.seq, Quotation(messages, run.seqs)) for run, messages in latest]
    # In the peer's own memory, an assistant without a name is the peer; in a shared one it may be another.
    quotations += _added_quotations(reader.added, repeated, limits, name, frozenset({name, "assistant"}))
    quotations.sort(key=itemgetter(0))
    from_shared = [_added_quotations(memory.added, repeated, limits, name, frozenset({name})) for memory in shared]
    return Quotation.joined([quotation for _, quotation in chain(*from_shared, quotations)])


class _Exchange:
    """The messages of one run of a peer, from a place in the thread on."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.seqs: list[int] = []
        self._units: list[list[Message]] = []

    def add(self, record: Record) -> None:
        """Add a row to the unit that it belongs to: the first row of each is marked."""
        if not self._units or begins_unit(record.message):
            self._units.append([])
        self._units[-1].append(record.message)
        self.seqs.append(record.seq)

    def repeated_ids(self) -> set[str]:
        """Return the added messages that it repeats."""
        return {message_id for unit in self._units for row in unit for message_id in repeated_ids(row)}

    def restored(self, thread_id: str) -> list[ModelMessage]:
        """Return it as prompts and answers; empty if a part of it cannot be restored for a model."""
        units = [_unit(rows) for rows in self._units]
        if not all(units):
            return []
        return ModelMessagesTypeAdapter.validate_python([{**unit, "conversation_id": thread_id} for unit in units])


def _added_quotations(
    added: Sequence[Added], repeated: set[str], limits: PeerLimits, name: str, policies: frozenset[str]
) -> list[tuple[int, Quotation]]:
    """Return the latest additions that are not `repeated` elsewhere, and the history, by place; a call stays with its result.

    Only the history is quoted. Additions are no talk yet: the first prompt that has them records them.
    """
    additions = {message.id: addition for addition in reversed(added) for message in addition.messages}
    messages = Conversation({message.id: message for addition in added for message in addition.messages}.values())
    limit = limits.added_messages
    window = messages.window(limit, keep=lambda message: role_of(message) == "system" and limit > 0)
    omitted = repeated | {message.id for message in (*window.open_calls(), *window.orphans())}
    results = dict(window.pairs())
    groups: dict[int, list[Message]] = {}
    for number, message in enumerate(window):
        if message.id not in omitted:
            groups.setdefault(additions[window[results.get(number, number)].id].seq, []).append(message)
    sources = {name: addition.untrusted for name, addition in additions.items() if addition.untrusted is not None}
    quotations: list[tuple[int, Quotation]] = []
    for seq, group in groups.items():
        rows = [additions[message.id] for message in group]
        seqs = [row.seq for row in rows] if all(row.is_talk for row in rows) else ()
        quotations.append((seq, Quotation(added_prompt(group, name, policies, sources), seqs)))
    return quotations


def _unit(rows: list[Message]) -> dict[str, Any]:
    """Restore a request or an answer: instructions and request were one unit. Empty if it is neither."""
    messages: list[Message] = []
    for row in rows:
        fields: dict[str, Any] = {"thread_id": None, "parent_id": None, "correlation_id": None}
        if row.role_hint_for_llm == "assistant":
            fields["policy"] = "assistant"
        messages.append(row.model_copy(update=fields))
    units: Any = encode(Conversation(messages), "pydantic-ai").value
    return {**units[0], "parts": [part for unit in units for part in unit["parts"]]} if units else {}


def _is_finished(messages: list[ModelMessage]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, ModelResponse) and not any(isinstance(part, ToolCallPart) for part in last.parts)
