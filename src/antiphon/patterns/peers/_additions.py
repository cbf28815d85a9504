"""Additions: messages that a program adds to a memory, as rows of the thread that the memory is of.

Several messages are one row of the control lane, addressed to the memory, with the messages in it as data. They are not rows
of their own, for two reasons. A thread at work has an owner, and everybody else may only post one message at a time. And what
is added is history: as a row, a call would be open and waited for, and a result would answer a call of the thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from antiphon.dialects import decode, encode, marsys
from antiphon.ledger import Ledger, Record
from antiphon.messages import Conversation, DataPart, JsonObject, Message, PartsPayload, thaw
from antiphon.messages.json_values import canonical
from antiphon.patterns.cast import known_by

__all__ = [
    "MEMORY",
    "Addition",
    "addition_in",
    "memory_address",
    "post_additions",
    "read_units",
    "stored_units",
    "units_of",
]

MEMORY: Final = "memory"
"""The kind of address, and of thread, that a memory has which several peers share."""
_ADDED: Final = "MEMORY_ADDED"
_IN_BODY: Final = b'"MEMORY_ADDED"'
"""What stands in every row that adds something, and in nearly no other: quicker to see than what the row says."""
_MOST: Final = 256 * 1024
"""Bytes of messages in one row: a message of the ledger has at most a MiB."""


class Addition(NamedTuple):
    """Messages that were added, in the form of MARSYS."""

    units: list[dict[str, Any]]
    untrusted: str | None
    """Where they come from, if strangers wrote some of it."""


def memory_address(name: str) -> str:
    """Return the address, and the thread, of a memory that is shared."""
    return f"{MEMORY}/{name}"


def units_of(messages: Iterable[marsys.Message | Message]) -> list[dict[str, Any]]:
    """Return messages in the form of MARSYS."""
    units: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, marsys.Message):
            units.append(message.to_dict())
        else:
            units += cast("list[dict[str, Any]]", encode(Conversation([message]), "marsys").value)
    return units


async def post_additions(
    ledger: Ledger, thread_id: str, address: str, units: Sequence[dict[str, Any]], untrusted: str | None
) -> None:
    """Write units to a memory; the same again is no news.

    Raises:
        LedgerError: they cannot be written.
        ValueError: one is too large.
    """
    for some in _portions(units):
        await ledger.post(thread_id, _row(address, some, untrusted))


def addition_in(record: Record) -> Addition | None:
    """Return what a row adds to the memory that it is addressed to."""
    return _addition(record.message) if _IN_BODY in record.body else None


def _addition(message: Message) -> Addition | None:
    match message.parts:
        case (DataPart(data=JsonObject() as told),) if message.lane == "control" and told.get("type") == _ADDED:
            data: Any = thaw(told.get("data"))
            return Addition(data["messages"], data.get("untrusted"))
        case _:
            return None


async def stored_units(ledger: Ledger, thread_id: str, units: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return units as they will be stored: without secrets, unless the thread keeps them."""
    redaction = await ledger.redaction_of(thread_id)
    if redaction is None:
        return units
    rows = (redaction.message(_row(MEMORY, some, None)) for some in _portions(units))
    return [unit for row in rows if (found := _addition(row)) is not None for unit in found.units]


def read_units(units: Sequence[dict[str, Any]], calls: Mapping[str, Message]) -> list[Message]:
    """Return units as messages; one that answers a call from before, by invocation, is its result."""
    answered = {calls[name].id: calls[name] for unit in units for name in _answers(unit) if name in calls}
    before: list[Any] = encode(Conversation(answered.values()), "marsys").value
    return list(decode([*before, *units], "marsys"))[len(answered) :]


def _answers(unit: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a unit may name as the call that it answers."""
    metadata: Mapping[str, Any] = unit.get("metadata") or {}
    for name in (unit.get("tool_call_id"), metadata.get("interaction_id"), metadata.get("task_id")):
        if isinstance(name, str):
            yield name


def _portions(units: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    some: list[dict[str, Any]] = []
    size = 0
    for unit in units:
        more = len(canonical(unit))
        if some and size + more > _MOST:
            yield some
            some, size = [], 0
        some.append(unit)
        size += more
    if some:
        yield some


def _row(address: str, units: list[dict[str, Any]], untrusted: str | None) -> Message:
    data: dict[str, Any] = {"messages": units}
    if untrusted is not None:
        data["untrusted"] = untrusted
    return Message(
        policy="user",
        payload=PartsPayload(parts=(DataPart(data={"type": _ADDED, "data": data}),)),
        id=known_by(MEMORY, address, canonical(data).decode()),
        to=(address,),
        lane="control",
    )
