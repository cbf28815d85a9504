"""Bodies of providers' formats: their parts, the functions that each format provides, and how a body is read and written.

A format provides functions: `open` and `close` (a body and its units), `read` (a unit to messages), `write` (messages to
units), `together` (does this message belong to the current unit?), and `before` (the units that must precede a unit).
Everything else is shared by all formats.

**Reading.** A message that is read here has the dialect's name in its metadata: it is *native*. Its metadata also has the
residue (the difference between the unit and what would be written), whether it belongs to the message before it although the
rules say otherwise (`joined`), and whether it was in the format's field for instructions (`slot`).

**Writing.** A conversation is written unit by unit. A native message is written as it was read: in a unit with the same
neighbours, and with its residue restored. Other messages are written by the rules of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from antiphon.checks import TARGETS, projected
from antiphon.checks._view import same_utterance
from antiphon.dialects._arranging import arrange, grouped
from antiphon.dialects._losses import Piece, Written
from antiphon.dialects._reading import Reading, Unit, as_object, kind_of, parsed_loosely, refuse_depth
from antiphon.dialects._residue import InvocationIn, gathered, nobody, residue, restore, shared_out, stem
from antiphon.dialects._settings import MODEL, carried
from antiphon.dialects._writing import Aliases, BodyWriting
from antiphon.errors import DecodeError
from antiphon.messages import Conversation, Message, OptionResultPayload, Tool, Usage, thaw
from antiphon.messages._json_values import plain
from antiphon.messages._unchecked import EMPTY

# ---------------------------------------------------------------- a body, and the functions of a format


@dataclass(slots=True)
class Body:
    """A body taken apart."""

    shape: str
    """`request`, `response`, `list`, or `one` unit."""
    units: list[Any]
    root: tuple[str | int, ...] = ()
    """Where the units are, for errors."""
    instructions: Any = None
    """The value of the format's field for instructions, if any."""
    slot: str = "instructions"
    """The key of that field, for errors."""
    tools: list[Any] = field(default_factory=list[Any])
    native: list[str] = field(default_factory=list[str])
    """The names of the provider's own tools that are not in the list of tools."""
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    """All other fields, unchanged: settings of a request, facts of a response."""
    usage: Usage | None = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that every message gets, such as the time of a response."""
    id: str | None = None
    """The id of a response that is one unit."""
    unit_facts: dict[str, object] = field(default_factory=dict[str, Any])
    """Further data about a single unit: the sources of an answer."""


def continues_utterance(group: Sequence[Message], message: Message) -> bool:
    """Whether a message belongs to the current unit: text and calls of one utterance do, but a text after a text does not."""
    last = group[-1]
    if message.payload.kind == "option_result" or last.payload.kind == "option_result":
        return False
    if message.payload.kind == "parts" and last.payload.kind == "parts" and len(group) == 1:
        return False
    return same_utterance(last, message)


def joins_results(group: Sequence[Message], message: Message) -> bool:
    """Whether a message belongs to the current unit where all results of a turn are one unit, as an utterance is."""
    if type(message.payload) is OptionResultPayload and type(group[-1].payload) is OptionResultPayload:
        return True
    return continues_utterance(group, message)


def nothing_before(previous: Sequence[Message] | None, group: Sequence[Message], writing: BodyWriting) -> object:
    """Return the units that the format requires before a unit: none."""
    return None


@dataclass(frozen=True)
class BodyFormat:
    """The functions that a provider's format provides."""

    name: str
    summary: str
    open: Callable[[Any], Body]
    """Take parsed JSON that is no list apart; raise a `DecodeError` if it is not a body of this format."""
    close: Callable[[Body], Any]
    """Put a body together."""
    read: Callable[[Unit], None]
    """Make the messages of one unit, at least one, with `unit.say`."""
    write: Callable[[Sequence[Message], BodyWriting], list[Any]]
    """Write messages that belong together: usually as one unit, as none if they have no content."""
    recognise: Callable[[Any], str | None]
    read_tool: Callable[[Any], dict[str, Any] | None]
    """Return name, description and parameters of a tool; None for a tool that the core cannot express."""
    write_tool: Callable[[Tool, str], Any]
    """Write a tool, under the name that the format accepts."""
    read_instructions: Callable[[Unit], None] | None = None
    write_instructions: Callable[[Sequence[Message], BodyWriting], Any] | None = None
    slot_holds: int | None = None
    """How many messages the field for instructions takes, if others may be among the units; None if there is no limit."""
    together: Callable[[Sequence[Message], Message], bool] = continues_utterance
    before: Callable[[Sequence[Message] | None, Sequence[Message], BodyWriting], Any] = nothing_before
    invocation_in: InvocationIn = nobody
    """Return the invocation of an item of a unit's list (a call or a result), if a unit can hold several."""
    options: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """The reason for the loss of a facet, if it is not that the format has no place for it."""
    wire: frozenset[str] = frozenset()
    """Keys that are no loss if another format lacks them: see `Declares`."""

    def write_slot(self, group: Sequence[Message], writing: BodyWriting) -> list[object]:
        """Write the format's field for instructions; None if the format has none."""
        return [] if self.write_instructions is None else [self.write_instructions(group, writing)]


# ---------------------------------------------------------------- reading a body


def body_of(form: BodyFormat, value: object) -> Body:
    """Take parsed JSON apart: in every format, a bare list holds the units."""
    return Body("list", cast("list[Any]", value)) if isinstance(value, list) else form.open(value)


def opened(form: BodyFormat, data: object) -> Body:
    """Take data apart; refuse data that is nested too deep."""
    body = body_of(form, parsed_loosely(data, form.name))
    refuse_depth([body.rest, body.tools], form.name)
    return body


def read_body(
    form: BodyFormat,
    body: Body,
    aliases: Mapping[str, str],
    writing: BodyWriting,
    edit: Callable[[Message], Message] | None = None,
) -> Conversation:
    """Read a body with the residue of each unit; `writing` writes the units again to compute it."""
    units = read_units(form, body, aliases)
    if edit is not None:
        for unit in units:
            unit.messages = list(map(edit, unit.messages))
    # All messages before the first is written, as in `encode`: an alias must differ from every name in the conversation.
    writing.aliases.begin([message for unit in units for message in unit.messages], {})
    messages: list[Message] = []
    previous: list[Message] = []
    for unit in units:
        written = form.write_slot(unit.messages, writing) if unit.is_slot else form.write(unit.messages, writing)
        patch = residue(written, [unit.value])
        shares = shared_out(patch, written, unit.messages, writing, form.invocation_in) if patch else []
        messages += _noted(form, unit, shares, previous)
        previous = unit.messages
    tools, metadata = read_tools(form, body.tools, aliases), {form.name: _read_envelope(form, body)}
    try:
        return Conversation(messages, tools=tools, metadata=metadata)
    except ValidationError as exc:
        _refuse(form, exc, "besides the messages")


def read_units(form: BodyFormat, body: Body, aliases: Mapping[str, str]) -> list[Unit]:
    """Read the units of a body, the instructions first; each unit holds its messages."""
    mark: dict[str, dict[str, object]] = {form.name: {}}
    reading = Reading(form.name, mark=mark, aliases=aliases, fields=body.fields, unit_facts=body.unit_facts)
    reading.once = {"usage": body.usage} if body.usage is not None else {}
    units: list[Unit] = []
    if body.instructions is not None and form.read_instructions is not None:
        unit = Unit(reading, body.instructions, None, root=(body.slot,), is_slot=True)
        units.append(_read_one(unit, form.read_instructions))
    for position, value in enumerate(body.units):
        unit = Unit(reading, value, None if body.shape == "one" else position, root=body.root, id=body.id)
        if not isinstance(value, dict):
            unit.fail(f"expected an object, found {kind_of(value)}")
        units.append(_read_one(unit, form.read))
        reading.messages += unit.messages
    return units


def _read_one(unit: Unit, read: Callable[[Unit], None]) -> Unit:
    try:
        read(unit)
    except ValidationError as exc:
        unit.refuse(exc)
    return unit


def _noted(form: BodyFormat, unit: Unit, shares: Sequence[list[dict[str, Any]]], previous: Sequence[Message]) -> list[Message]:
    """Return the messages of one unit with the metadata that is needed to write the same unit again."""
    group = unit.messages
    notes: list[dict[str, object]] = [{"residue": share} if share else {} for share in shares] or [{} for _ in group]
    if unit.is_slot:
        notes[0]["slot"] = True
    elif previous and form.together(previous, group[0]):
        notes[0]["joined"] = False
    begun = [group[0]]
    for message, note in zip(group[1:], notes[1:], strict=True):
        if not form.together(begun, message):
            note["joined"] = True
        begun.append(message)
    return [unit.with_notes(message, note) if note else message for message, note in zip(group, notes, strict=True)]


# ---------------------------------------------------------------- tools


def read_tools(form: BodyFormat, tools: Sequence[object], aliases: Mapping[str, str]) -> list[Tool]:
    """Return the tools that the core can express."""
    read = [form.read_tool(tool) for tool in tools]
    try:
        return [Tool.model_validate(_named(form, tool, aliases)) for tool in read if tool is not None]
    except ValidationError as exc:
        _refuse(form, exc, "a tool", "tools")


def _named(form: BodyFormat, tool: dict[str, Any], aliases: Mapping[str, str]) -> dict[str, object]:
    """Return a tool under our name; a native name is kept even if the format should refuse it."""
    name = tool["name"]
    if name in aliases:
        return {**tool, "name": aliases[name]}
    if TARGETS[form.name].option_name.accepts(name):
        return tool
    notes = tool.get("metadata", {}).get(form.name, {})
    return {**tool, "metadata": {form.name: {**notes, "named": True}}}


def _read_envelope(form: BodyFormat, body: Body) -> dict[str, Any]:
    envelope: dict[str, Any] = {"shape": body.shape}
    if body.rest:
        envelope["rest"] = body.rest
    natives = [as_object(tool) or {} for tool in body.tools if form.read_tool(tool) is None]
    names = [str(tool.get("type") or tool.get("name") or "a tool") for tool in natives]
    if native := [*names, *body.native]:  # tools that the provider runs, or knows the schema of
        envelope["native"] = native
    if body.tools:
        functions = [form.read_tool(tool) for tool in body.tools]
        written = [form.write_tool(Tool.model_validate(tool), tool["name"]) for tool in functions if tool is not None]
        if patch := residue(written, body.tools):
            envelope["tools"] = patch
    return envelope


def _refuse(form: BodyFormat, exc: ValidationError, what: str, where: str = "") -> NoReturn:
    error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    raise DecodeError(f"{what}: {error['msg']}", dialect=form.name, where=where) from None


# ---------------------------------------------------------------- writing a body

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
    """Write a conversation, without what a repair left out of it."""
    writing = began(form, as_policy, options)
    shown = projected(conversation)
    body = write_units(form, shown, writing, None)
    writing.is_regular = writing.is_regular and shown is conversation
    return body, writing


def write_units(form: BodyFormat, conversation: Conversation, writing: BodyWriting, written: Written | None) -> Body:
    """Write a conversation unit by unit, and record in `written` the unit of each message."""
    messages = list(map(writing.shown, talk(conversation)))
    arranged = arrange(messages, writing.is_native)
    writing.aliases.begin(messages, arranged.reused)
    writing.is_regular = arranged.messages is messages
    body, slot = _begun(form, conversation, messages, writing), list[Message]()
    if form.write_instructions is not None:  # the messages at the front that go into the field for instructions
        front = arranged.messages[: form.slot_holds]
        slot = list(takewhile(lambda message: _in_slot(message, writing), front))
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
    for group in grouped(messages, lambda group, message: joins(form, group, message, writing)):
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


# ---------------------------------------------------------------- writing: around the units


def _begun(form: BodyFormat, conversation: Conversation, messages: Sequence[Message], writing: BodyWriting) -> Body:
    """Return a body without units: the other fields of the original, as long as they fit; the settings of another format."""
    envelope, model = _write_envelope(form, conversation), cast("str | None", writing.options.get(MODEL))
    shape = "request" if model is not None else str(envelope.get("shape", "request"))
    if shape not in ("request", "list") and not all(map(writing.is_native, messages)):
        shape = "request"  # the original shape cannot hold the conversation
    body = Body(shape, [])
    if body.shape == envelope.get("shape"):
        body.rest = cast("dict[str, Any]", thaw(envelope.get("rest", {})))
    if body.shape == "request" and (model is not None or conversation.metadata):
        body.rest |= carried(conversation, form.name, model)
    return body


def _write_envelope(form: BodyFormat, conversation: Conversation) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", plain(conversation.metadata).get(form.name, _NONE))


def _write_tools(form: BodyFormat, conversation: Conversation, writing: BodyWriting) -> list[object]:
    tools: list[object] = []
    for tool in conversation.tools:
        name = tool.name if writing.notes(tool).get("named") else writing.aliases.option(tool.name)
        tools.append(form.write_tool(tool, name))
    patch = _write_envelope(form, conversation).get("tools")
    return tools if patch is None else restore(tools, thaw(patch))


def _in_slot(message: Message, writing: BodyWriting) -> bool:
    if writing.is_native(message):
        return bool(writing.notes(message).get("slot"))
    return message.payload.kind == "parts" and writing.role(message) == "system"


# ---------------------------------------------------------------- writing: units


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
