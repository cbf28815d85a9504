"""The machinery of providers' formats: a body (a request, a response or a bare list) of units that hold a conversation.

A format gives functions: `open` and `close` (a body and its units), `read` (a unit to messages), `write` (messages to units),
`together` (does this message go into the unit that was begun?), and `before` (what the format wants before a unit). The rest
is the same for all: parsing, positions in errors, the residue that brings the same data back, order, ids and names that the
format refuses, and what is lost.

A message read here has the dialect's name in its metadata: it is *native*. What is native is written as it was: its unit
with the same others (`joined`, where that is not the usual way) and with its residue put back. All others are written by
the rules of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any, cast

from pydantic import ValidationError

from antiphon.checks import TARGETS, is_left_out, projected
from antiphon.dialects._aliases import Aliases
from antiphon.dialects._api import Encoded, Loss, Losses
from antiphon.dialects._arrange import arrange, is_regular, same_breath
from antiphon.dialects._measure import Piece, Written, kept_out, measured
from antiphon.dialects._plain import Content, NotPlainError, is_whole, last_group, plain_contents
from antiphon.dialects._residue import residue, restore
from antiphon.dialects._units import Reading, Unit, kind_of, notes_of, parsed_loosely, refusal, refuse_depth
from antiphon.errors import DecodeError
from antiphon.messages import (
    Conversation,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    Part,
    PartsPayload,
    Tool,
    Usage,
    thaw,
)
from antiphon.messages._conversation import Header
from antiphon.messages._json import plain
from antiphon.messages._model import EMPTY, plain_of

__all__ = ["Body", "BodyDialect", "BodyWriting", "Memory", "nothing_before", "said_together"]

_TALKING = ("system", "user", "assistant")
_NONE: Mapping[str, Any] = {}
_CONTROL = "the protocol of actors is not said to a model"


@dataclass(slots=True)
class Body:
    """A body taken apart."""

    shape: str
    """`request`, `response`, `list`, or `one` unit."""
    units: list[Any]
    root: tuple[str | int, ...] = ()
    """Where the units are, for errors."""
    instructions: Any = None
    """What stands in the format's own place for instructions, if anything does."""
    slot: str = "instructions"
    """The key of that place, for errors."""
    tools: list[Any] = field(default_factory=list[Any])
    rest: dict[str, Any] = field(default_factory=dict[str, Any])
    """Everything else, as it was: settings of a request, facts of a response."""
    usage: Usage | None = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """What holds for every message: the time of a response."""
    id: str | None = None
    """The id of a response that is one unit."""
    beside: dict[str, Any] = field(default_factory=dict[str, Any])
    """What stands beside a unit that is alone and says more about it: the sources of an answer."""


@dataclass(slots=True)
class BodyWriting:
    """One conversation being written."""

    dialect: str
    as_policy: str | None
    options: Mapping[str, Any]
    aliases: Aliases
    media: int = 0
    """How many media have a label so far."""
    is_regular: bool = False
    """Whether all is written in the order it was said, and no call is open."""
    previous: Sequence[Message] | None = None
    """The messages of the unit that was written last."""
    memory: dict[object, Any] = field(default_factory=dict[object, Any])
    """What the dialect remembers of what it has written so far."""

    def is_native(self, message: Message) -> bool:
        """Whether a message was read from this format."""
        return message.__dict__["metadata"] is not EMPTY and self.dialect in plain_of(message, "metadata")

    def is_from_elsewhere(self, message: Message) -> bool:
        """Whether a message is written by the rules of the format: it was not read from it, and no repair left it out."""
        return not self.is_native(message) and not is_left_out(message)

    def notes(self, thing: Message | Part | Tool) -> Mapping[str, Any]:
        """Return what this dialect has noted on a message or part: plain JSON, not to be changed."""
        return notes_of(thing, self.dialect)

    def setting(self, part: Part, name: str, *also: str) -> Any:
        """Return a setting that this dialect, or one that has the same, knows of a part."""
        if part.__dict__["metadata"] is EMPTY:
            return None
        known = plain(part.metadata)
        return next((known[each][name] for each in (self.dialect, *also) if name in known.get(each, {})), None)

    def own(self, part: ForeignPart) -> Any:
        """Return what a part holds that only this dialect understands."""
        return thaw(part.value)

    def role(self, message: Message) -> str:
        """Return whose words these are: the viewpoint decides, else the hint, else the name."""
        fields = message.__dict__
        if type(fields["payload"]) is not PartsPayload:
            return "assistant" if type(fields["payload"]) is OptionCallPayload else "tool"
        hint, policy = fields["role_hint_for_llm"], fields["policy"]
        if self.as_policy is not None and hint != "system" and policy != "system":
            return "assistant" if policy == self.as_policy else "user"
        return hint if hint in _TALKING else _usual_role(message)

    def side(self, message: Message) -> str:
        """Return in whose unit a message stands: a result in the user's."""
        role = self.role(message)
        return "user" if role == "tool" else role

    def is_other_than_it_was(self, message: Message) -> bool:
        """Whether a message is written from another viewpoint, or with labels: what was noted of its form does not fit."""
        if self.as_policy is not None and message.payload.kind == "parts" and self.role(message) != _usual_role(message):
            return True
        return bool(self.options.get("media_labels")) and any(isinstance(part, MediaPart) for part in message.parts)


def _usual_role(message: Message) -> str:
    hint, policy = message.role_hint_for_llm, message.policy
    if hint in _TALKING:
        return str(hint)
    return policy if policy in _TALKING else "assistant"


def said_together(group: Sequence[Message], message: Message) -> bool:
    """Text and calls of one breath are one unit; a text after a text begins another."""
    last = group[-1]
    if message.payload.kind == "option_result" or last.payload.kind == "option_result":
        return False
    if message.payload.kind == "parts" and last.payload.kind == "parts" and len(group) == 1:
        return False
    return same_breath(last, message)


def nothing_before(previous: Sequence[Message] | None, group: Sequence[Message], writing: BodyWriting) -> Any:
    """Return what must stand before a unit that is not the format's own: nothing."""
    return None


@dataclass(slots=True)
class Memory:
    """What was written of a conversation that grows."""

    writing: BodyWriting
    body: Body
    header: Header | None = None
    messages: list[Message] = field(default_factory=list[Message])
    ids: set[str] = field(default_factory=set[str])
    """The invocations so far."""


def _stem(message: Message) -> str:
    """Return the id of the unit that a message was read from."""
    return message.id.partition("#")[0]


def _talk(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message.__dict__["lane"] == "talk"]


def _is_whole(message: Message) -> bool:
    return not is_left_out(message) and is_whole(message.parts)


def _invocations(messages: Sequence[Message]) -> set[str]:
    return {message.payload.invocation_id for message in messages if not isinstance(message.payload, PartsPayload)}


@dataclass(frozen=True)
class BodyDialect:
    """A provider's format."""

    name: str
    summary: str
    open: Callable[[Any], Body]
    """Take parsed JSON apart; raise a `DecodeError` where it is no body of this format."""
    close: Callable[[Body], Any]
    """Put a body together."""
    read: Callable[[Unit], None]
    """Say the messages of one unit: at least one."""
    write: Callable[[Sequence[Message], BodyWriting], list[Any]]
    """Write messages that belong together: usually as one unit, as none if there is nothing to say."""
    recognise: Callable[[Any], str | None]
    read_tool: Callable[[Any], dict[str, Any] | None]
    """Return name, description and parameters of a tool; None for one that the core has no word for."""
    write_tool: Callable[[Tool, str], Any]
    """Write a tool, under the name that the format accepts."""
    read_instructions: Callable[[Unit], None] | None = None
    write_instructions: Callable[[Sequence[Message], BodyWriting], Any] | None = None
    slot_holds: int | None = None
    """How many messages the instructions' own place takes, where others may stand among the units; None: any number."""
    write_plain: Callable[[Sequence[Message], Sequence[Content], BodyWriting], list[Any]] | None = None
    """Write all units of a plain history as `write` would, but in one loop; raise a `NotPlainError` where that cannot be."""
    together: Callable[[Sequence[Message], Message], bool] = said_together
    before: Callable[[Sequence[Message] | None, Sequence[Message], BodyWriting], Any] = nothing_before
    options: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a facet is lost, where there is more to say than that the format has no place for it."""

    # ---------------------------------------------------------------- reading

    def decode(self, data: Any, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        body = self._opened(data)
        units = self._read(body, aliases or {})
        writing = self._writing(None, {})
        writing.aliases.begin([message for unit in units for message in unit.made], {})
        messages: list[Message] = []
        previous: list[Message] = []
        for unit in units:
            written = self._write_slot(unit.made, writing) if unit.is_slot else self.write(unit.made, writing)
            messages += self._noted(unit, residue(written, [unit.value]), previous)
            previous = unit.made
        try:
            return Conversation(
                messages, tools=self._read_tools(body.tools, aliases or {}), metadata={self.name: self._envelope(body)}
            )
        except ValidationError as exc:
            error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            raise DecodeError(f"besides the messages: {error['msg']}", dialect=self.name) from None

    def skim(self, data: Any) -> Conversation:
        """Read a conversation that will be written in another format: without what brings the same data back."""
        body = self._opened(data)
        messages = [message for unit in self._read(body, {}) for message in unit.made]
        return Conversation(messages, tools=self._read_tools(body.tools, {}))

    def _opened(self, data: Any) -> Body:
        body = self.open(parsed_loosely(data, self.name))
        refuse_depth([body.rest, body.tools], self.name)
        return body

    def _heads(self, body: Body) -> list[Any]:
        return [] if body.instructions is None or self.read_instructions is None else [body.instructions]

    def _write_slot(self, group: Sequence[Message], writing: BodyWriting) -> list[Any]:
        return [] if self.write_instructions is None else [self.write_instructions(group, writing)]

    def _read(self, body: Body, aliases: Mapping[str, str]) -> list[Unit]:
        """Read the units of a body, the instructions first; each has made the messages it says."""
        reading = Reading(self.name, mark={self.name: {}}, aliases=aliases, fields=body.fields, beside=body.beside)
        reading.once = {"usage": body.usage} if body.usage is not None else {}
        units: list[Unit] = []
        if (heads := self._heads(body)) and self.read_instructions is not None:
            unit = Unit(reading, heads[0], None, root=(body.slot,), is_slot=True)
            units.append(self._read_one(unit, self.read_instructions))
        for position, value in enumerate(body.units):
            unit = Unit(reading, value, None if body.shape == "one" else position, root=body.root, id=body.id)
            if not isinstance(value, dict):
                unit.fail(f"expected an object, found {kind_of(value)}")
            units.append(self._read_one(unit, self.read))
            reading.messages += unit.made
        return units

    @staticmethod
    def _read_one(unit: Unit, read: Callable[[Unit], None]) -> Unit:
        try:
            read(unit)
        except ValidationError as exc:
            unit.refuse(exc)
        return unit

    def _noted(self, unit: Unit, patch: list[dict[str, Any]], previous: list[Message]) -> list[Message]:
        """Return the messages of one unit with what is needed to write it again as it was."""
        group = unit.made
        first: dict[str, Any] = {"residue": patch} if patch else {}
        if unit.is_slot:
            first["slot"] = True
        elif previous and self.together(previous, group[0]):
            first["joined"] = False
        notes = [first]
        begun = [group[0]]
        for message in group[1:]:
            notes.append({} if self.together(begun, message) else {"joined": True})
            begun.append(message)
        return [unit.with_notes(message, note) if note else message for message, note in zip(group, notes, strict=True)]

    def _read_tools(self, tools: Sequence[Any], aliases: Mapping[str, str]) -> list[Tool]:
        read = [self.read_tool(tool) for tool in tools]
        try:
            return [Tool.model_validate(self._named(tool, aliases)) for tool in read if tool is not None]
        except ValidationError as exc:
            error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            raise DecodeError(f"a tool: {error['msg']}", dialect=self.name, where="tools") from None

    def _named(self, tool: dict[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
        """Return a tool under our name; one that has a name which the format should refuse keeps it there."""
        name = tool["name"]
        if name in aliases:
            return {**tool, "name": aliases[name]}
        if TARGETS[self.name].option_name.accepts(name):
            return tool
        notes = tool.get("metadata", {}).get(self.name, {})
        return {**tool, "metadata": {self.name: {**notes, "named": True}}}

    def _envelope(self, body: Body) -> dict[str, Any]:
        envelope: dict[str, Any] = {"shape": body.shape}
        if body.rest:
            envelope["rest"] = body.rest
        if body.tools:
            known = [self.read_tool(tool) for tool in body.tools]
            written = [self.write_tool(Tool.model_validate(tool), tool["name"]) for tool in known if tool is not None]
            if patch := residue(written, body.tools):
                envelope["tools"] = patch
        return envelope

    # ---------------------------------------------------------------- writing

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        body, writing = self._written(conversation, as_policy, self._checked(options))
        given = writing.aliases.given
        encoded = Encoded(self.close(body), lambda: self._measured(conversation, as_policy, options), given)
        if losses == "raise" and encoded.losses:
            raise refusal(self.name, encoded.losses)
        return encoded

    def _checked(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if unknown := options.keys() - self.options:
            raise TypeError(f"{self.name} has no option {min(unknown)!r}")
        return options

    def write_away(self, conversation: Conversation, as_policy: str | None) -> tuple[Any, Mapping[str, str]]:
        """Write a conversation that was skimmed from another format and is of no use any more."""
        body, writing = self._written(conversation, as_policy, {})
        return self.close(body), writing.aliases.given

    def memory(self) -> Memory:
        """Return what is known before anything was written."""
        return Memory(self._writing(None, {}), Body("request", []))

    def go_on(self, memory: Memory, conversation: Conversation, as_policy: str | None, options: Mapping[str, Any]) -> Encoded:
        """Write a conversation of which the beginning was written before: only what is new, if that can be told."""
        messages = list(conversation)
        more = messages[len(memory.messages) :]
        if memory.header is conversation.header and self._adds(memory, messages, more):
            said = _talk(more)
            memory.writing.aliases.add(said)
            self._write_groups(self._groups(said, memory.writing), memory.writing, None, memory.body)
        else:
            memory.body, memory.writing = self._written(conversation, as_policy, self._checked(options))
            memory.ids = set()
            more = messages
        memory.messages, memory.header = messages, conversation.header
        memory.ids |= _invocations(_talk(more))
        value = self.close(replace(memory.body, units=list(memory.body.units)))
        return Encoded(value, lambda: self._measured(conversation, as_policy, options), memory.writing.aliases.given)

    def _adds(self, memory: Memory, messages: Sequence[Message], more: Sequence[Message]) -> bool:
        """Whether messages only add to what was written: nothing before them is other, open, or to be joined."""
        writing = memory.writing
        return (
            len(messages) >= len(memory.messages)
            and all(map(is_, memory.messages, messages))
            and writing.is_regular
            and writing.previous is not None
            and memory.body.shape in ("request", "list")
            and all(map(_is_whole, more))
            and self._follows(_talk(more), writing.previous, memory)
        )

    def _follows(self, said: Sequence[Message], previous: Sequence[Message], memory: Memory) -> bool:
        writing = memory.writing
        return (
            memory.ids.isdisjoint(_invocations(said))
            and is_regular(said)
            and writing.aliases.hold(said)
            and not (said and self._joins(previous, said[0], writing.notes(said[0]), writing))
        )

    def _own(self, conversation: Conversation) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", plain(conversation.metadata).get(self.name, _NONE))

    def _writing(self, as_policy: str | None, options: Mapping[str, Any]) -> BodyWriting:
        return BodyWriting(self.name, as_policy, options, Aliases(TARGETS[self.name]))

    def _written(
        self, conversation: Conversation, as_policy: str | None, options: Mapping[str, Any]
    ) -> tuple[Body, BodyWriting]:
        """Write a conversation, the short way if it is plain."""
        writing = self._writing(as_policy, options)
        with suppress(NotPlainError):
            return self._plain_body(conversation, writing), writing
        writing = self._writing(as_policy, options)  # what was begun is of no use
        shown = projected(conversation)
        body = self._body(shown, writing, None)
        writing.is_regular = writing.is_regular and shown is conversation
        return body, writing

    def _plain_body(self, conversation: Conversation, writing: BodyWriting) -> Body:
        if self.write_plain is None:
            raise NotPlainError
        messages = list(conversation)
        contents = plain_contents(messages, writing)
        writing.aliases.begin(messages, {})
        body, slot = self._begun(conversation, messages, writing), self._front(messages, writing)
        if slot:
            body.instructions = self._write_slot(slot, writing)[0]
            messages, contents = messages[len(slot) :], contents[len(slot) :]
        body.units = self.write_plain(messages, contents, writing)
        body.tools = self._write_tools(conversation, writing)
        writing.is_regular = True
        writing.previous = last_group(messages) if messages else None
        return body

    def _body(self, conversation: Conversation, writing: BodyWriting, written: Written | None) -> Body:
        """Write a conversation the long way, and note in `written` what became of each message."""
        said = _talk(conversation)
        arranged = arrange(said, writing.is_native)
        writing.aliases.begin(said, arranged.reused)
        writing.is_regular = arranged.messages is said
        body, slot = self._begun(conversation, said, writing), self._front(arranged.messages, writing)
        if slot:
            body.instructions = self._restored(slot, self._write_slot(slot, writing), writing)[0]
        if written is not None:
            written.left_out += [(message, _CONTROL) for message in conversation if message.lane == "control"]
            written.left_out += arranged.left_out
            written.moved += arranged.moved
            written.pieces += [Piece(slot, 0 if body.instructions is None else 1)] if slot else []
        self._write_groups(self._groups(arranged.messages[len(slot) :], writing), writing, written, body)
        body.tools = self._write_tools(conversation, writing)
        return body

    def _begun(self, conversation: Conversation, said: Sequence[Message], writing: BodyWriting) -> Body:
        """Return a body without units: what came beside them, as long as that fits."""
        envelope = self._own(conversation)
        body = Body(self._shape(envelope, said, writing), [])
        if body.shape == envelope.get("shape"):
            body.rest = cast("dict[str, Any]", thaw(envelope.get("rest", {})))
        return body

    def _shape(self, envelope: Mapping[str, Any], said: Sequence[Message], writing: BodyWriting) -> str:
        """Return the shape it came in, as long as that can hold it."""
        shape = str(envelope.get("shape", "request"))
        return shape if shape in ("request", "list") or all(map(writing.is_native, said)) else "request"

    def _front(self, messages: Sequence[Message], writing: BodyWriting) -> list[Message]:
        """Return the messages at the front that go into the instructions' own place."""
        slot: list[Message] = []
        for message in messages:
            if not self._has_room(slot) or not self._in_slot(message, writing):
                break
            slot.append(message)
        return slot

    def _groups(self, messages: Sequence[Message], writing: BodyWriting) -> list[list[Message]]:
        """Return messages unit by unit."""
        groups: list[list[Message]] = []
        group: list[Message] = []
        for message in messages:
            notes = _NONE if message.__dict__["metadata"] is EMPTY else writing.notes(message)
            if group and self._joins(group, message, notes, writing):
                group.append(message)
            else:
                group = [message]
                groups.append(group)
        return groups

    def _joins(self, group: Sequence[Message], message: Message, notes: Mapping[str, Any], writing: BodyWriting) -> bool:
        """Whether a message goes into the unit that was begun: as it did before, if that is still there, or as is usual."""
        joined = notes.get("joined") if notes else None
        if joined is not None:
            return bool(joined) and _stem(group[-1]) == _stem(message)
        if writing.as_policy is not None and writing.side(group[-1]) != writing.side(message):
            return False
        return self.together(group, message)

    def _has_room(self, slot: Sequence[Message]) -> bool:
        return self.write_instructions is not None and (self.slot_holds is None or len(slot) < self.slot_holds)

    @staticmethod
    def _in_slot(message: Message, writing: BodyWriting) -> bool:
        if writing.is_native(message):
            return bool(writing.notes(message).get("slot"))
        return message.payload.kind == "parts" and writing.role(message) == "system"

    def _write_groups(
        self, groups: Sequence[Sequence[Message]], writing: BodyWriting, written: Written | None, body: Body
    ) -> None:
        for group in groups:
            units = self.write(group, writing)
            added = self._added(group, writing) if units else []
            if units and writing.is_native(group[0]):
                units = self._restored(group, units, writing)
            if written is not None:
                written.pieces += [Piece(group, 1, was_added=True)] if added else []
                written.pieces.append(Piece(group, len(units)))
            body.units += [*added, *units] if added else units
            writing.previous = group if units else writing.previous

    def _added(self, group: Sequence[Message], writing: BodyWriting) -> list[Any]:
        """Return what the format wants before the unit of a group, if that is not written as it was."""
        if writing.is_native(group[0]) and not writing.is_other_than_it_was(group[0]):
            return []
        added = self.before(writing.previous, group, writing)
        return [] if added is None else [added]

    @staticmethod
    def _restored(group: Sequence[Message], units: list[Any], writing: BodyWriting) -> list[Any]:
        notes = writing.notes(group[0])
        patch = notes.get("residue") if notes else None
        if patch is not None and writing.is_other_than_it_was(group[0]):
            return units
        return units if patch is None else restore(units, cast("list[dict[str, Any]]", thaw(patch)))

    def _write_tools(self, conversation: Conversation, writing: BodyWriting) -> list[Any]:
        tools = [self.write_tool(tool, self._tool_name(tool, writing)) for tool in conversation.tools]
        patch = self._own(conversation).get("tools")
        return tools if patch is None else restore(tools, thaw(patch))

    @staticmethod
    def _tool_name(tool: Tool, writing: BodyWriting) -> str:
        return tool.name if writing.notes(tool).get("named") else writing.aliases.option(tool.name)

    # ---------------------------------------------------------------- what is lost

    def _measured(self, conversation: Conversation, as_policy: str | None, options: Mapping[str, Any]) -> tuple[Loss, ...]:
        written = Written()
        writing = self._writing(as_policy, options)
        shown = projected(conversation)
        body = self._body(shown, writing, written)
        again = self.open(parsed_loosely(self.close(body), self.name))
        groups = [unit.made for unit in self._read(again, writing.aliases.given)]
        losses = (*kept_out(conversation), *measured(shown, written, groups, self.reasons, f"{self.name} has no place for it"))
        tools = self._read_tools(again.tools, writing.aliases.given)
        if [tool.name for tool in tools] != [tool.name for tool in conversation.tools]:
            return (*losses, Loss(None, "tools", f"{self.name} cannot say all tools"))
        return losses
