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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, takewhile
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart, UserContent

from antiphon.agents.extending import Quotation
from antiphon.agents.toolkit import quoted
from antiphon.agents.toolkit.taint import current_taint, untrusted_source
from antiphon.dialects import Encoded, encode, marsys
from antiphon.dialects.marsys import Message as MarsysMessage
from antiphon.dialects.marsys import process_for_llm, with_heading
from antiphon.ledger import Ledger, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, JsonArray, Message, OptionCallPayload, OptionResultPayload, keys
from antiphon.patterns.cast import ThreadHistory, user_content
from antiphon.patterns.peers._additions import (
    Addition,
    Retold,
    addition_in,
    begins_unit,
    memory_address,
    post_additions,
    read_units,
    retell,
    retold_in,
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
    words_of,
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
    _found: Remembering = field(repr=False)

    @classmethod
    async def read(cls, ledger: Ledger, thread_id: str, name: str, *, before: int | None = None) -> PeerMemory:
        """Read it, up to the place `before` in the thread.

        Raises:
            LedgerError: it cannot be read.
        """
        return await cls._read(ledger, thread_id, Remembering(name, address_of(name)), before)

    @classmethod
    async def read_shared(cls, ledger: Ledger, name: str, *, before: int | None = None) -> PeerMemory:
        """Read a shared memory by its name; it belongs to no single thread.

        Raises:
            LedgerError: it cannot be read.
        """
        address = memory_address(name)
        return await cls._read(ledger, address, Remembering(name, address), before)

    @classmethod
    async def _read(cls, ledger: Ledger, thread_id: str, found: Remembering, before: int | None) -> PeerMemory:
        async for record in ledger.read(thread_id, found.seq, before):
            found.take(record)
        return cls(found.name, thread_id, Conversation(found.messages), ledger, found)

    @property
    def added(self) -> Sequence[Added]:
        """The messages that programs have added, in order."""
        return tuple(self._found.added)

    # ------------------------------------------------------------ adding

    async def append(self, *messages: marsys.Message | Message, untrusted: str | None = None) -> PeerMemory:
        """Add messages permanently, and return the memory with them; known messages are not added again.

        The peer's model reads them from the next request on. `untrusted` is the source of untrusted content in them; inside a
        tool, it is already known.

        Raises:
            ValueError: the memory has another message with the same id, or a message is too large.
            DecodeError: it is not a message of MARSYS.
            LedgerError: they cannot be written.
        """
        new: dict[str, marsys.Message] = {}
        for unit in await stored_units(self._ledger, self.thread_id, units_of(messages)):
            form = marsys.Message.from_dict(unit)
            known = self._known(form.message_id) or new.setdefault(form.message_id, form)
            if known != form:
                raise ValueError(f"there is another message {form.message_id!r} in the memory; messages do not change")
        units = units_of(new.values())
        read_units(units, self._found.calls)  # raises for an invalid message, before anything is written
        taint = current_taint()
        source = untrusted or (taint.untrusted if taint is not None else None)
        await post_additions(self._ledger, self.thread_id, self._found.address, units, source)
        return await self._read(self._ledger, self.thread_id, self._found.copy(), None)

    def _known(self, message_id: str) -> marsys.Message | None:
        """Return a message by id, in the form of MARSYS: with its calls, which are separate messages here."""
        ids = chain((message_id,), (f"{message_id}#{number}" for number in count(2)))
        said = takewhile(lambda message: message is not None, map(self.by_id, ids))
        return next(iter(marsys_form(Conversation(message for message in said if message is not None))), None)

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
        """Find messages that have all the words, the best first, as `Ledger.search` does.

        Raises:
            LedgerError: it cannot be searched.
        """
        rows = (await self._ledger.head(self.thread_id)).seq
        hits = await self._ledger.search(text, thread_id=self.thread_id, limit=max(1, rows))
        found: dict[str, Message] = {}
        for hit in hits:
            row = as_known(hit.record.message)
            added = self._found.rows.get(row.id)
            for each in (row.id,) if added is None else await _searched(added, text):
                if (message := self.by_id(each)) is not None:
                    found.setdefault(each, message)
        return tuple(found.values())[:limit]

    def window(self, count: int | None = None, *, tokens: int | None = None) -> Conversation:
        """Return the latest messages within a limit of messages or estimated tokens, and the system messages.

        A call is never separated from its result, so there may be fewer messages.

        Raises:
            ValueError: not exactly one limit is given.
        """
        return self.conversation.window(count, tokens=tokens, keep=lambda message: role_of(message) == "system")

    # ------------------------------------------------------------ export

    def to(self, dialect: str, **options: Any) -> Encoded:
        """Return it in any dialect, from the point of view of the peer: its own messages are the assistant's.

        Raises:
            DialectError: there is no such dialect, or it cannot express a message.
        """
        own = (_as_own(message, self.name) for message in self.conversation)
        return encode(Conversation(own), dialect, as_policy=self.name, **options)

    def messages(self) -> list[marsys.Message]:
        """Return it in the form of MARSYS."""
        return marsys_form(self.conversation)

    def to_llm_format(self) -> list[dict[str, Any]]:
        """Return it with the roles that all providers know; the results of a turn follow it directly."""
        return list(_with_results([for_model(self.name, message) for message in self.messages()]))


async def _searched(messages: Sequence[Message], text: str) -> list[str]:
    """Return the ids of the messages with all the words; a search finds an addition only as a whole."""
    some = MemoryLedger()
    await some.append("added", [message.model_copy(update={"thread_id": None}) for message in messages], allow_foreign=True)
    return [hit.record.message.id for hit in await some.search(text, limit=len(messages))]


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
        yield from (messages[each] for each in results.get(place, ()))


def _results_of_turns(messages: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return, by the place of a turn with tool calls, the places of the results in the order of the calls.

    A model may reuse an id in a later turn: a result belongs to the latest turn before it that has no result for this id.
    """
    waiting: dict[str, list[tuple[int, int]]] = {}
    found: dict[int, dict[int, int]] = {}
    for place, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            waiting.setdefault(call["id"], []).append((place, -number))
        if called := waiting.get(message.get("tool_call_id", "")):
            turn, number = max(called)
            called.remove((turn, number))
            found.setdefault(turn, {})[-number] = place
    return {turn: [places[number] for number in sorted(places)] for turn, places in found.items()}


class Added(NamedTuple):
    """The messages that one row adds to a memory."""

    seq: int
    messages: tuple[Message, ...]
    untrusted: str | None
    is_talk: bool = False
    """Whether the message is the row itself, which a prompt quotes."""


class Remembering:
    """Reads a thread, and selects the messages of one memory."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.added: list[Added] = []
        self.rows: dict[str, tuple[Message, ...]] = {}
        """The additions, by row."""
        self.calls: dict[str, Message] = {}
        """The calls in the memory, by invocation."""
        self._seen: dict[str, Message] = {}
        """The messages that can be forwarded to it: all earlier ones."""
        self._found: dict[str, Message] = {}
        self._instructed: Message | None = None
        self._retold = Retold()
        self._history = ThreadHistory()
        self.seq = 0
        """The position up to which the thread was read."""

    def copy(self) -> Remembering:
        """Return a copy, to continue from here."""
        other = Remembering(self.name, self.address)
        other.seq, other._instructed, other._retold = self.seq, self._instructed, self._retold.copy()
        other.added, other.rows, other.calls = [*self.added], {**self.rows}, {**self.calls}
        other._seen, other._found = {**self._seen}, {**self._found}
        other._history = self._history.copy()
        return other

    @property
    def messages(self) -> list[Message]:
        """The memory so far."""
        return list(self._found.values())

    def take(self, record: Record) -> None:
        """Read the next row of the thread."""
        message, self.seq = dated(record), record.seq
        if message.lane == "talk":
            self._seen[message.id] = message
            is_told_again = self._retold.has(record)
            if self._is_own(message) and not is_told_again and not self._is_known(message):
                self._find(message)
        elif (addition := addition_in(record)) is not None:
            self._add(record, addition)
        elif message.lane == "control" and self.address in message.to:
            for each in (*self._history_before(message), *_passed(message)):
                if (passed := self._seen.get(each)) is not None:
                    self._find(passed)
        self._history.take(record)

    def _history_before(self, asked: Message) -> list[str]:
        """Return the ids of the history that the peer reads when a user asks it."""
        request = request_of(asked)
        if request is None:
            return []
        return [each.id for each in self._history if each.id != request.message_id]

    def _add(self, record: Record, addition: Addition) -> None:
        messages = tuple(read_units(addition.units, self.calls))
        for message in messages:
            self._seen.setdefault(message.id, message)
        if self.address not in record.message.to:
            return  # another peer's message, which may be forwarded later
        self.rows[record.message.id] = messages
        self.added.append(Added(record.seq, messages, addition.untrusted))
        for message in messages:
            self._find(message)

    def _find(self, message: Message) -> None:
        self._found.setdefault(message.id, message)
        if isinstance(message.payload, OptionCallPayload):
            self.calls[message.payload.invocation_id] = message

    def _is_own(self, message: Message) -> bool:
        if (letter := letter_of(message)) is not None:
            return letter.caller == self.name
        return speaker_of(message) == self.name and _option(message) != INVOKE_AGENT

    def _is_known(self, message: Message) -> bool:
        """Whether these are the known instructions of the peer, which are repeated after messages of other agents."""
        if message.policy != "system":
            return False
        before, self._instructed = self._instructed, message
        return before is not None and before.parts == message.parts


def _passed(message: Message) -> tuple[str, ...]:
    """Return the ids of the messages that an invocation forwards."""
    payload = message.payload
    if not isinstance(payload, OptionCallPayload) or payload.option_name != InvokePeer.message_type:
        return ()
    given = payload.arguments.get("context_message_ids")
    return tuple(str(each) for each in given) if isinstance(given, JsonArray) else ()


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


def _as_own(message: Message, name: str) -> Message:
    """Return a message of an assistant without a name as the peer's: it was added to its memory as such."""
    is_unnamed = message.policy == message.role_hint_for_llm == "assistant"
    return message.model_copy(update={"policy": name}) if is_unnamed else message


# ---------------------------------------------------------------- prompts: the request


async def prompt_of(request: InvokePeer, context: Context, caller: str | None) -> str | Sequence[UserContent]:
    """Return the prompt: the forwarded messages, then the request; untrusted content is quoted."""
    if request.message_id is not None:
        return [part for given in await _passed_on([request.message_id], context) for part in _content(*given)]
    asked = _asked(request.request, caller)
    passed = await _passed_on(request.context_message_ids, context)
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


async def _passed_on(ids: Sequence[str], context: Context) -> list[tuple[Message, str | None]]:
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
    return letter.untrusted if letter is not None else untrusted_source(message)


# ---------------------------------------------------------------- prompts: earlier messages


async def recollect(
    ledger: Ledger, thread_id: str, name: str, *, until: Message, limits: PeerLimits, shared: Sequence[PeerMemory] = ()
) -> Quotation:
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
        elif history.take(record) and request is not None and message.id != request.message_id:
            remembering.added.append(Added(record.seq, (message,), untrusted_source(message), is_talk=True))
        if record.message.lane == "talk" and speaker_of(record.message) == name:
            runs.setdefault(run_of(record.message), _Exchange(record.seq)).add(record)
    told = [(each, messages) for each in runs.values() if _is_finished(messages := each.restored(thread_id))]
    kept = told[-limits.remember :] if limits.remember else []
    known = {told_id for each, _ in kept for told_id in each.retold()}
    own = frozenset({name, "assistant"})
    before = [each for memory in shared for _, each in _retold(memory.added, known, limits, name, frozenset({name}))]
    exchanges = [(each.seq, Quotation(messages, each.seqs)) for each, messages in kept]
    placed = sorted((*exchanges, *_retold(remembering.added, known, limits, name, own)), key=_place)
    return Quotation.joined([*before, *(each for _, each in placed)])


def _place(placed: tuple[int, Quotation]) -> int:
    return placed[0]


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

    def retold(self) -> set[str]:
        """Return the added messages that it repeats."""
        return {told_id for unit in self._units for row in unit for told_id in retold_in(row)}

    def restored(self, thread_id: str) -> list[ModelMessage]:
        """Return it as prompts and answers; empty if a part of it cannot be restored."""
        return _restored(self._units, thread_id)


def _retold(
    added: Iterable[Added], known: set[str], limits: PeerLimits, name: str, own: frozenset[str]
) -> list[tuple[int, Quotation]]:
    """Return the latest unknown additions and the history, by place; a call stays with its result.

    Only the history is quoted. Additions are no talk yet: the first prompt that has them records them.
    """
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
    found: list[tuple[int, Quotation]] = []
    for seq, messages in groups.items():
        rows = [places[message.id] for message in messages]
        quoted = [row.seq for row in rows] if all(row.is_talk for row in rows) else ()
        found.append((seq, Quotation(retell(messages, name, own, sources), quoted)))
    return found


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
