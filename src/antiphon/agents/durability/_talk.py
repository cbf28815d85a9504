"""Talk: the messages to and from models, each stored once in the thread, however often it is sent.

A prompt is a whole history, and the next prompt extends it. Each message of it has a mark, which is stored with
the first of its rows. Messages without a row are written before the request starts; an answer is written with the outcome of
its request; instructions are written where they change.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, cast

from antiphon.agents._guards import ThreadGuards, Unit
from antiphon.agents.durability._failures import ToolFailures
from antiphon.agents.durability._prompt import HashedPrompt, OfferedTools
from antiphon.dialects.pydantic_ai import DIALECT
from antiphon.durable._budget import BudgetLimits, Kind, Spending
from antiphon.errors import DecodeError
from antiphon.messages import (
    Conversation,
    ForeignPart,
    JsonObject,
    Message,
    PartsPayload,
    TextPart,
    current_port,
)
from antiphon.messages._keys import is_renamed, run_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from antiphon.durable._run import LedgerRun
    from antiphon.ledger import Record

METADATA = "antiphon"
_MARK = "unit"
_UNNAMED = "assistant"
"""The author of an answer that an unknown agent has given."""
_NO_LIMITS = BudgetLimits()


class ThreadTalk:
    """The talk of a thread with models, as seen by a run."""

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._restarted_marks: dict[str, set[str]] = {}
        """By run of an agent that was restarted, the marks of its messages."""
        self._instructions: str | None = None
        self._prompts: dict[tuple[str, str], HashedPrompt] = {}
        self._is_read = False
        self._reading = Lock()
        self._upto = 0
        """The position up to which the thread was read to count usage."""
        self._counted: dict[str, Kind] = {}
        """The effects that were counted when they started in this process."""
        self.seq = 0
        """The known length of the thread."""
        self.spending = Spending()
        self.guards = ThreadGuards()
        self.refusals = ToolFailures()
        self.offered = OfferedTools()
        self.is_handler_next = False
        """Whether a handler answers as soon as its agent has ended: the answer is written with the last rows of the agent."""

    @classmethod
    def of_new_thread(cls) -> ThreadTalk:
        """Return the talk of a thread without rows. The caller passes every row to `read_row`, so the thread is never read."""
        talk = cls()
        talk._is_read = True
        return talk

    def prompt(
        self,
        run: LedgerRun,
        messages: Sequence[ModelMessage],
        quoted: Sequence[frozenset[int]],
        run_id: str | None,
        name: str = "",
    ) -> HashedPrompt:
        """Return an agent's messages as a prompt. Messages of its last prompt (of that name) are reused.

        `quoted` has, for each message, the positions of its quoted parts; `run_id` is the agent's run in Pydantic AI.
        """
        key = run.course.invocation_id, name
        prompt = self._prompts[key] = HashedPrompt(messages, self._prompts.get(key), quoted=quoted, run_id=run_id)
        return prompt

    async def leave(self, run: LedgerRun) -> None:
        """Flush the rows of an agent when it has ended, even with an error, and forget its prompts."""
        agent_run = run.course.invocation_id
        self._prompts = {key: prompt for key, prompt in self._prompts.items() if key[0] != agent_run}
        if not self.is_handler_next:
            await run.journal.settle(run.thread_id)
        self.reach(run.journal.length(run.thread_id))

    async def read(self, run: LedgerRun) -> None:
        """Read the thread, the first time only."""
        if self._is_read:
            return
        async with self._reading:  # parallel agents wait for all of it: with half of it, they would exceed their budgets
            if not self._is_read:
                self.spending.run.began = run.opened.recorded.began
                async for record in run.ledger.read(run.thread_id):
                    self.read_row(record, run.opened.root)
                self._is_read = True

    def read_row(self, record: Record, root: str) -> None:
        """Read a row of the thread; `root` is the run that reads it."""
        self._upto = record.seq
        self.reach(record.seq)
        self.spending.thread.began = self.spending.thread.began or record.recorded_at
        self.spending.read_row(record.message, root)
        self.guards.read_row(record.message, root)
        self.offered.read_row(record.message)
        if record.message.lane == "talk":
            self._read_talk(record.message)

    def reach(self, seq: int) -> None:
        """Note that the thread has at least this length."""
        self.seq = max(self.seq, seq)

    async def spend(self, run: LedgerRun, limits: Iterable[BudgetLimits], kind: Kind, where: str) -> None:
        """Count an effect that is about to start, unless a budget is used up."""
        bounded = [bounds for bounds in limits if bounds != _NO_LIMITS]
        if bounded:
            await self._catch_up(run)
        for bounds in bounded:
            self.spending.check(bounds, kind, depth=run.depth, now=current_port().now(), where=where)
        if self._is_read:  # otherwise it is counted when the thread is read
            self.spending.begin(kind)
            self._counted[where] = kind

    async def _catch_up(self, run: LedgerRun) -> None:
        """Count the usage of others in the thread since it was read: actors that this run has asked, or parallel runs."""
        await self.read(run)
        async with self._reading:
            async for record in run.ledger.read(run.thread_id, after=self._upto):
                self._upto = record.seq
                message = record.message
                # `answered` has added the cost of the answer to a counted request.
                is_answer = self._counted.get(message.parent_id or "") == "request"
                if message.invocation_id not in self._counted and not is_answer:
                    self.spending.read_row(message, run.opened.root)

    def _read_talk(self, message: Message) -> None:
        marks, notes = message.metadata.get(METADATA), message.metadata.get(DIALECT.name)
        if isinstance(marks, JsonObject) and isinstance(mark := marks.get(_MARK), str):
            self._keep(mark, message.parent_id or "")
        match notes.get("instructions") if isinstance(notes, JsonObject) else None:
            case "here":
                self._instructions = "".join(part.text for part in message.parts if isinstance(part, TextPart))
            case "none":
                self._instructions = None
            case _:
                pass

    @classmethod
    async def instructions_at(cls, run: LedgerRun, seq: int) -> str | None:
        """Return the instructions in force at a place of the thread."""
        talk = cls()
        async for record in run.ledger.read(run.thread_id, before=seq + 1):
            if record.message.lane == "talk":
                talk._read_talk(record.message)
        return talk._instructions

    def new_rows(self, units: Sequence[Unit], marks: Sequence[str], place: TalkPlace, run_id: str | None) -> list[Message]:
        """Return the messages of a prompt that the thread does not have, as rows to write.

        An answer is the agent's own if it belongs to its run in Pydantic AI, `run_id`. Another one was handed to the program:
        it is recorded without the name of an agent.
        """
        rows: list[Message] = []
        restarted = self._restarted_marks.setdefault(agent_run, set()) if is_renamed(agent_run := run_of(place.id)) else None
        for unit, mark in zip(units, marks, strict=True):
            # A restarted agent writes its own messages again, changed or not, but not the messages before it.
            is_own = restarted is not None and unit.get("run_id") == units[-1].get("run_id")
            if mark not in (restarted if restarted is not None and is_own else self._marks):
                self._keep(mark, place.id)
                author = place if unit.get("run_id") == run_id else place._replace(agent=_UNNAMED)
                # Their own request, before the unit: so the dialect writes instructions only where they change.
                before: list[Unit] = [{"kind": "request", "parts": [], "instructions": self._instructions}]
                messages = _messages_of(unit, before if self._instructions is not None else (), self.refusals.coded)
                if unit["kind"] == "request":
                    self._instructions = unit.get("instructions") or None
                rows += author.rows(messages, "said", mark, count=len(rows))
        return rows

    def know(self, marks: Iterable[str], place: TalkPlace) -> None:
        """Count messages as written, although the program now has other texts: the recorded ones stay."""
        for mark in marks:
            self._keep(mark, place.id)

    def _keep(self, mark: str, exchange: str) -> None:
        self._marks.add(mark)
        if is_renamed(agent_run := run_of(exchange)):
            self._restarted_marks.setdefault(agent_run, set()).add(mark)

    def answered(self, answer: AnswerRows) -> None:
        """Note that an answer is written."""
        self._keep(answer.mark, answer.rows[0].parent_id or "")
        self.spending.pay(answer.rows[0].usage)


async def guards_of(run: LedgerRun) -> ThreadGuards:
    """Return the guards that the thread of a run records. They are read once, with the talk."""
    talk = run.opened.share(ThreadTalk)
    await talk.read(run)
    return talk.guards


def is_instructing(message: Message) -> bool:
    """Whether a message of a prompt is its instructions."""
    notes = message.metadata.get(DIALECT.name)
    return isinstance(notes, JsonObject) and notes.get("instructions") in ("here", "none")


class AnswerRows(NamedTuple):
    """A model's answer, with its rows."""

    unit: Unit
    mark: str
    rows: list[Message]
    is_whole: bool
    """Whether the rows restore it exactly."""


class TalkPlace(NamedTuple):
    """The place in a thread where messages are written, and the agent that writes them."""

    thread_id: str
    id: str
    """The exchange: an effect, or an entry of a conversation."""
    agent: str

    def answer(self, unit: Unit, mark: str, cost: Decimal | None) -> AnswerRows:
        """Return an answer as rows of this place, with its cost."""
        bare = _without_conversation(unit)
        messages = as_messages(bare, cost)
        is_whole = as_unit(messages, is_priced=cost is not None) == bare
        return AnswerRows(unit, mark, self.rows(messages, "answer", mark), is_whole)

    def rows(self, messages: Sequence[Message], name: str, mark: str, *, count: int = 0) -> list[Message]:
        """Return the messages of a unit as rows of this place, after `count` rows before them."""
        numbered = enumerate(messages, count + 1)
        return [self._row(message, f"{name}{number}", None if number > count + 1 else mark) for number, message in numbered]

    def _row(self, message: Message, name: str, mark: str | None) -> Message:
        """Return a message as a row of this place, with the mark of its unit if it is the first."""
        fields: Unit = {
            "id": f"{self.id}@{name}",
            "thread_id": self.thread_id,
            "parent_id": self.id,
            "correlation_id": self.id,
        }
        if message.turn_id is not None:
            fields["turn_id"] = self.id
        if message.role_hint_for_llm == "assistant":
            fields["policy"] = self.agent
        if mark is not None:
            fields["metadata"] = {**message.metadata, METADATA: {_MARK: mark}}
        return message.model_copy(update=fields)


def as_messages(unit: Unit, cost: Decimal | None) -> list[Message]:
    """Return an answer as messages that belong to no thread, with its cost."""
    first, *rest = _messages_of(unit)
    if cost is not None and first.usage is not None:
        first = first.model_copy(update={"usage": first.usage.model_copy(update={"cost": cost})})
    return [first, *rest]


def prompt_messages(units: Sequence[Unit]) -> list[Message]:
    """Return a prompt as messages that belong to no thread."""
    try:
        return list(DIALECT.decode(list(units)))
    except DecodeError:  # an id in it is not a valid name: decode each unit separately
        return [message for unit in units for message in _messages_of(unit)]


def _messages_of(unit: Unit, before: Sequence[Unit] = (), edit: Callable[[Message], Message] | None = None) -> list[Message]:
    """Return a request or an answer as messages. If a tool name is invalid, it is a single message, kept whole."""
    unit = _without_conversation(unit)
    try:
        return list(DIALECT.decode([*before, unit], edit=edit))[len(before) :]
    except DecodeError:
        without_parts: Unit = {**unit, "parts": []}
        (bare,) = list(DIALECT.decode([*before, without_parts]))[len(before) :]
        payload = PartsPayload(parts=(ForeignPart(dialect=DIALECT.name, value=unit["parts"]),))
        return [bare.model_copy(update={"payload": payload})]


def restore(messages: Iterable[Message], *, is_priced: bool = False) -> Unit:
    """Return the request or answer of which rows were made, without its conversation id; empty if they are not one.

    `is_priced`: its cost was added to the rows, and is not its own.
    """
    plain: list[Message] = []
    for message in messages:  # without the fields that belong to its thread
        fields: Unit = {"thread_id": None, "parent_id": None, "correlation_id": None}
        if message.role_hint_for_llm == "assistant":
            fields["policy"] = "assistant"
        plain.append(message.model_copy(update=fields))
    return as_unit(plain, is_priced=is_priced)


def as_unit(messages: Sequence[Message], *, is_priced: bool = False) -> Unit:
    """Return the unit of messages that belong to no thread."""
    plain = list(messages)
    if is_priced and plain and (usage := plain[0].usage) is not None:
        plain[0] = plain[0].model_copy(update={"usage": usage.model_copy(update={"cost": None})})
    value = cast("list[Unit]", DIALECT.encode(Conversation(plain)).value)
    return value[0] if len(value) == 1 else {}


def _without_conversation(unit: Unit) -> Unit:
    """Return a unit without its conversation id, which is the id of the thread."""
    return {**unit, "conversation_id": None}


# ---------------------------------------------------------------- quotations
