"""Talk: what was said to models and by them, as messages of the thread, each once however often it is sent.

A prompt is a whole history, and the next one is the same and a bit more. Each message of it is known by a mark, which
stands in the thread beside the first of the rows that say it; what has no row yet is said before the request is begun.
An answer is said when it is there. Instructions are said where they change.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from antiphon.agents._budget import Kind, Limits, Spending
from antiphon.dialects import decode, encode
from antiphon.errors import DecodeError
from antiphon.messages import Conversation, ForeignPart, JsonObject, Message, PartsPayload, TextPart, current_port

if TYPE_CHECKING:
    from antiphon.agents._run import LedgerRun

__all__ = ["OWN", "Place", "Talk", "as_unit", "restore", "restore_unit", "say"]

OWN = "antiphon"
_DIALECT = "pydantic-ai"
_MARK = "unit"


class Talk:
    """What the thread of a run has of the talk with models."""

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._instructions: str | None = None
        self._is_read = False
        self._reading = Lock()
        self.seq = 0
        """How long the thread is, as far as is known."""
        self.spending = Spending()

    @classmethod
    def of(cls, run: LedgerRun) -> Talk:
        """Return the one of a run and all its parts."""
        return run.opened.share(cls)

    async def read(self, run: LedgerRun) -> None:
        """Read what the thread has; only the first time."""
        async with self._reading:  # agents in parallel wait for the whole: with half of it they would spend too much
            if not self._is_read:
                await self._read(run)
                self._is_read = True

    async def _read(self, run: LedgerRun) -> None:
        self.spending.run.began = run.opened.began
        async for record in run.ledger.read(run.thread_id):
            self.reach(record.seq)
            self.spending.thread.began = self.spending.thread.began or record.recorded_at
            self.spending.heard(record.message, run.opened.root)
            if record.message.lane == "talk":
                self._heard(record.message)

    def reach(self, seq: int) -> None:
        """Know that the thread is at least so long."""
        self.seq = max(self.seq, seq)

    async def spend(self, run: LedgerRun, limits: Limits, kind: Kind, where: str) -> None:
        """Count something that is about to be begun, unless a budget is used up.

        Raises:
            BudgetExceededError: one is.
        """
        await self.read(run)
        self.spending.check(limits, kind, depth=run.depth, now=current_port().now(), where=where)
        self.spending.begin(kind)

    def _heard(self, message: Message) -> None:
        own, notes = message.metadata.get(OWN), message.metadata.get(_DIALECT)
        if isinstance(own, JsonObject) and isinstance(mark := own.get(_MARK), str):
            self._marks.add(mark)
        match notes.get("instructions") if isinstance(notes, JsonObject) else None:
            case "here":
                self._instructions = "".join(part.text for part in message.parts if isinstance(part, TextPart))
            case "none":
                self._instructions = None
            case _:
                pass

    def unsaid(self, units: Sequence[dict[str, Any]], marks: Sequence[str], place: Place) -> list[Message]:
        """Return what a prompt says that the thread has not, as messages that are to be said now."""
        rows: list[Message] = []
        for unit, mark in zip(units, marks, strict=True):
            if mark not in self._marks:
                self._marks.add(mark)
                for number, message in enumerate(self._said(unit)):
                    rows.append(place.row(message, f"said{len(rows) + 1}", None if number else mark))
        return rows

    def answered(self, mark: str, messages: Sequence[Message], place: Place) -> list[Message]:
        """Return an answer as messages that are to be said now."""
        self._marks.add(mark)
        self.spending.pay(messages[0].usage)
        return [
            place.row(message, f"answer{number}", mark if number == 1 else None) for number, message in enumerate(messages, 1)
        ]

    def _said(self, unit: dict[str, Any]) -> list[Message]:
        held = self._instructions
        if unit["kind"] == "request":
            self._instructions = unit.get("instructions") or None
        before = [] if held is None else [_instructing(held)]
        return _spoken(unit, before)


class Place(NamedTuple):
    """Where in a thread something is said, and by which agent."""

    thread_id: str
    id: str
    """The exchange that it is of: an effect, or an entry."""
    agent: str

    def row(self, message: Message, name: str, mark: str | None) -> Message:
        """Return a message as it is said here, with the mark of its unit if it is the first."""
        own: dict[str, Any] = {
            "id": f"{self.id}@{name}",
            "thread_id": self.thread_id,
            "parent_id": self.id,
            "correlation_id": self.id,
        }
        if message.turn_id is not None:
            own["turn_id"] = self.id
        if message.role_hint_for_llm == "assistant":
            own["policy"] = self.agent
        if mark is not None:
            own["metadata"] = {**message.metadata, OWN: {_MARK: mark}}
        return message.model_copy(update=own)


def say(unit: dict[str, Any], cost: Decimal | None) -> list[Message]:
    """Return an answer as messages, with what it cost."""
    first, *others = _spoken(unit)
    if cost is not None and first.usage is not None:
        first = first.model_copy(update={"usage": first.usage.model_copy(update={"cost": cost})})
    return [first, *others]


def _spoken(unit: dict[str, Any], before: Sequence[dict[str, Any]] = ()) -> list[Message]:
    """Return a request or an answer as messages; what a model has called by what is no name is one message, kept whole."""
    own = _without_conversation(unit)
    try:
        return list(decode([*before, own], _DIALECT))[len(before) :]
    except DecodeError:
        (bare,) = list(decode([*before, {**own, "parts": []}], _DIALECT))[len(before) :]
        whole = PartsPayload(parts=(ForeignPart(dialect=_DIALECT, value=unit["parts"]),))
        return [bare.model_copy(update={"payload": whole})]


def restore(messages: Iterable[Message], *, is_priced: bool) -> dict[str, Any]:
    """Return the answer that messages say, as it was."""
    plain = [_plain(message) for message in messages]
    return as_unit(_unpriced(plain) if is_priced else plain)


def restore_unit(messages: Iterable[Message]) -> dict[str, Any]:
    """Return the request or the answer that messages say, but for the conversation; empty if they are not one."""
    return as_unit([_plain(message) for message in messages])


def as_unit(messages: Sequence[Message], *, is_priced: bool = False) -> dict[str, Any]:
    """Return what messages say that are in no thread yet."""
    value = cast("list[dict[str, Any]]", encode(Conversation(_unpriced(messages) if is_priced else messages), _DIALECT).value)
    return value[0] if len(value) == 1 else {}


def _unpriced(messages: Sequence[Message]) -> list[Message]:
    first, *others = messages
    if first.usage is not None:
        first = first.model_copy(update={"usage": first.usage.model_copy(update={"cost": None})})
    return [first, *others]


def _plain(message: Message) -> Message:
    """Return a message of the thread as it was before it was one."""
    own: dict[str, Any] = {"thread_id": None, "parent_id": None, "correlation_id": None}
    if message.role_hint_for_llm == "assistant":
        own["policy"] = "assistant"
    return message.model_copy(update=own)


def _instructing(words: str) -> dict[str, Any]:
    """Return a request that says nothing but instructions, which is one message."""
    return {"kind": "request", "parts": [], "instructions": words}


def _without_conversation(unit: dict[str, Any]) -> dict[str, Any]:
    """The conversation is the thread; whoever restores it knows which."""
    return {**unit, "conversation_id": None}
