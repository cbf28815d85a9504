"""Writes a conversation as a body: by the fast path if it is plain, else unit by unit.

A native message is written as it was read: in a unit with the same neighbours, and with its residue restored. Other messages
are written by the rules of the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from antiphon.checks import TARGETS, projected
from antiphon.dialects._body import Body, BodyFormat
from antiphon.dialects._losses import Piece, Written
from antiphon.dialects._order import NotPlainError, arrange, last_group, plain_contents
from antiphon.dialects._residue import gathered, restore, stem
from antiphon.dialects._settings import MODEL, carried
from antiphon.dialects._writing import Aliases, BodyWriting
from antiphon.messages import Conversation, Message, Tool, thaw
from antiphon.messages.json_values import plain
from antiphon.messages.trusted import EMPTY

_NONE: Mapping[str, Any] = {}
_CONTROL = "the protocol of actors is not said to a model"


def began(form: BodyFormat, as_policy: str | None, options: Mapping[str, object]) -> BodyWriting:
    """Return the state at the beginning of writing."""
    return BodyWriting(form.name, as_policy, options, Aliases(TARGETS[form.name]))


def talk(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that a model sees."""
    return [message for message in messages if message.__dict__["lane"] == "talk"]


def write_body(
    form: BodyFormat, conversation: Conversation, as_policy: str | None, options: Mapping[str, object]
) -> tuple[Body, BodyWriting]:
    """Write a conversation, by the fast path if it is plain."""
    writing = began(form, as_policy, options)
    with suppress(NotPlainError):
        return _write_plain(form, conversation, writing), writing
    writing = began(form, as_policy, options)  # discard the state of the failed attempt
    shown = projected(conversation)
    body = write_long(form, shown, writing, None)
    writing.is_regular = writing.is_regular and shown is conversation
    return body, writing


def _write_plain(form: BodyFormat, conversation: Conversation, writing: BodyWriting) -> Body:
    if form.write_plain is None:
        raise NotPlainError
    messages = list(conversation)
    contents = plain_contents(messages, writing)
    writing.aliases.begin(messages, {})
    body, slot = _begun(form, conversation, messages, writing), _front(form, messages, writing)
    if slot:
        body.instructions = form.write_slot(slot, writing)[0]
        messages, contents = messages[len(slot) :], contents[len(slot) :]
    body.units = form.write_plain(messages, contents, writing)
    body.tools = _write_tools(form, conversation, writing)
    writing.is_regular = True
    writing.previous = last_group(messages) if messages else None
    return body


def write_long(form: BodyFormat, conversation: Conversation, writing: BodyWriting, written: Written | None) -> Body:
    """Write a conversation unit by unit, and record in `written` the unit of each message."""
    said = talk(conversation)
    arranged = arrange(said, writing.is_native)
    writing.aliases.begin(said, arranged.reused)
    writing.is_regular = arranged.messages is said
    body, slot = _begun(form, conversation, said, writing), _front(form, arranged.messages, writing)
    if slot:
        body.instructions = _restored(form, slot, form.write_slot(slot, writing), writing)[0]
    if written is not None:
        written.left_out += [(message, _CONTROL) for message in conversation if message.lane == "control"]
        written.left_out += arranged.left_out
        written.moved += arranged.moved
        written.pieces += [Piece(slot, 0 if body.instructions is None else 1)] if slot else []
    write_more(form, arranged.messages[len(slot) :], writing, written, body)
    body.tools = _write_tools(form, conversation, writing)
    return body


def write_more(
    form: BodyFormat, messages: Sequence[Message], writing: BodyWriting, written: Written | None, body: Body
) -> None:
    """Write messages at the end of a body."""
    for group in _groups(form, messages, writing):
        units = form.write(group, writing)
        added = _added(form, group, writing) if units else []
        if units and writing.is_native(group[0]):
            units = _restored(form, group, units, writing)
            if body.shape in ("request", "list"):
                units = [unit for unit in units if unit]  # an answer may be empty, a unit of a request never
        if written is not None:
            written.pieces += [Piece(group, 1, was_added=True)] if added else []
            written.pieces.append(Piece(group, len(units)))
        body.units += [*added, *units] if added else units
        writing.previous = group if units else writing.previous


# ---------------------------------------------------------------- around the units


def _begun(form: BodyFormat, conversation: Conversation, said: Sequence[Message], writing: BodyWriting) -> Body:
    """Return a body without units: the other fields of the original, as long as they fit; the settings of another format."""
    envelope, model = _envelope(form, conversation), cast("str | None", writing.options.get(MODEL))
    body = Body("request" if model is not None else _shape(envelope, said, writing), [])
    if body.shape == envelope.get("shape"):
        body.rest = cast("dict[str, Any]", thaw(envelope.get("rest", {})))
    if body.shape == "request" and (model is not None or conversation.metadata):
        body.rest |= carried(conversation, form.name, model)
    return body


def _envelope(form: BodyFormat, conversation: Conversation) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", plain(conversation.metadata).get(form.name, _NONE))


def _shape(envelope: Mapping[str, object], said: Sequence[Message], writing: BodyWriting) -> str:
    """Return the original shape, if it can hold the conversation."""
    shape = str(envelope.get("shape", "request"))
    return shape if shape in ("request", "list") or all(map(writing.is_native, said)) else "request"


def _write_tools(form: BodyFormat, conversation: Conversation, writing: BodyWriting) -> list[object]:
    tools = [form.write_tool(tool, _tool_name(tool, writing)) for tool in conversation.tools]
    patch = _envelope(form, conversation).get("tools")
    return tools if patch is None else restore(tools, thaw(patch))


def _tool_name(tool: Tool, writing: BodyWriting) -> str:
    return tool.name if writing.notes(tool).get("named") else writing.aliases.option(tool.name)


def _front(form: BodyFormat, messages: Sequence[Message], writing: BodyWriting) -> list[Message]:
    """Return the messages at the front that go into the field for instructions."""
    slot: list[Message] = []
    for message in messages:
        if not _has_room(form, slot) or not _in_slot(message, writing):
            break
        slot.append(message)
    return slot


def _has_room(form: BodyFormat, slot: Sequence[Message]) -> bool:
    return form.write_instructions is not None and (form.slot_holds is None or len(slot) < form.slot_holds)


def _in_slot(message: Message, writing: BodyWriting) -> bool:
    if writing.is_native(message):
        return bool(writing.notes(message).get("slot"))
    return message.payload.kind == "parts" and writing.role(message) == "system"


# ---------------------------------------------------------------- units


def _groups(form: BodyFormat, messages: Sequence[Message], writing: BodyWriting) -> list[list[Message]]:
    """Return messages unit by unit."""
    groups: list[list[Message]] = []
    group: list[Message] = []
    for message in messages:
        if group and joins(form, group, message, writing):
            group.append(message)
        else:
            group = [message]
            groups.append(group)
    return groups


def joins(form: BodyFormat, group: Sequence[Message], message: Message, writing: BodyWriting) -> bool:
    """Whether a message belongs to the current unit: as in the original, if its neighbour is there, else by the rules."""
    notes = _NONE if message.__dict__["metadata"] is EMPTY else writing.notes(message)
    joined = notes.get("joined") if notes else None
    if joined is not None:
        return bool(joined) and stem(group[-1]) == stem(message)
    if writing.as_policy is not None and writing.side(group[-1]) != writing.side(message):
        return False
    return form.together(group, message)


def _added(form: BodyFormat, group: Sequence[Message], writing: BodyWriting) -> list[object]:
    """Return the units that the format requires before a group, unless the group is written as in the original."""
    if writing.is_native(group[0]) and not writing.is_other_than_it_was(group[0]):
        return []
    added = form.before(writing.previous, group, writing)
    return [] if added is None else [added]


def _restored(form: BodyFormat, group: Sequence[Message], units: list[Any], writing: BodyWriting) -> list[object]:
    changes = gathered(group, units, writing, form.invocation_in)
    return restore(units, changes) if changes else units
