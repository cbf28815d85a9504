"""Dialects of formats that have one JSON object per message: units are read to messages, messages written to units.

A format gives four functions: `read` (a unit to messages), `together` (does this message go into the unit that was begun?),
`write` (the messages of one unit to a unit) and `recognise`. The rest is the same for all: parsing, positions in errors, ids
where a unit has none, the residue that brings the same data back, the shape of the whole (one unit or a list), and losses.

The order of decoding matters for the residue: all units are read first, then written again in the full conversation, and only
then compared with what was there, so that encoding later sees exactly what was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from pydantic import ValidationError

from antiphon.checks import projected
from antiphon.dialects._api import Encoded, Loss, Losses
from antiphon.dialects._losses import around, kept_out, refusal
from antiphon.dialects._reading import Reading, Unit, fresh, kind_of, notes_of, parsed_loosely
from antiphon.dialects._residue import residue, restore
from antiphon.messages import Conversation, Message, Part, Payload, thaw
from antiphon.messages._model import plain_of

_NO_ALIASES: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Writing:
    """One conversation being written: where calls are, and what is lost on the way."""

    conversation: Conversation
    heads: frozenset[str] = frozenset()
    """The ids of those messages that a unit begins with: the ones that can be referred to."""
    as_policy: str | None = None
    """Whose words are the assistant's; None: as the hints and names say."""
    gives_away: bool = False
    """Whether the conversation is of no use any more, so that its JSON need not be copied."""
    counts: bool = True
    """Whether losses count: not while a unit is only written to be compared with what was read."""
    losses: list[Loss] = field(default_factory=list[Loss])
    _turns: dict[str, list[Message]] | None = None
    _calls: dict[int, Message] | None = None
    """The call of each result, by the identity of the result."""
    _options: dict[str, set[str]] | None = None

    def turn_of(self, message: Message) -> list[Message]:
        """Return all messages of a message's turn."""
        if self._turns is None:
            self._turns = {}
            for each in self.conversation:
                self._turns.setdefault(each.turn_id or "", []).append(each)
        return self._turns[message.turn_id or ""]

    def json(self, payload: Payload | Part, name: str) -> Any:
        """Return a JSON field as plain JSON for the value that is written."""
        return plain_of(payload, name) if self.gives_away else fresh(payload, name)

    def lose(self, message: Message, what: str, reason: str) -> None:
        if self.counts:
            self.losses.append(Loss(message.id, what, reason))

    def lose_unsaid(
        self, group: Sequence[Message], *, says: frozenset[str], reason: str, replying: Message | None = None
    ) -> None:
        """Report what the messages of one unit say in their fields beyond what the format `says`.

        `replying` is the one whose reply the format does say.
        """
        for message in group:
            for what in self._fields_of(message, group):
                if what not in says and not (what == "reply" and message is replying):
                    self.lose(message, what, reason)
            if "time" in says and message.created_at != group[0].created_at:
                self.lose(message, "time", "what is said in one message has one time")

    def _fields_of(self, message: Message, group: Sequence[Message]) -> Iterator[str]:
        for what in ("to", "thread_id", "step_num", "correlation_id", "parent_id", "usage"):
            if getattr(message, what):
                yield what
        if message.lane != "talk":
            yield "lane"
        if message.step_num == 0:
            yield "step_num"
        if message.created_at is not None:
            yield "time"
        if message.kind != "option_result" and message.in_reply_to and self.conversation.get(message.in_reply_to):
            yield "reply"
        if message.turn_id is not None and not self._says_turn(self.turn_of(message), group):
            yield "turn"

    @staticmethod
    def _says_turn(turn: Sequence[Message], group: Sequence[Message]) -> bool:
        """Whether a unit shows of its messages that they were said in one breath, and where that began."""
        return len(turn) == 1 or (len(group) > 1 and turn[0] is group[0])

    def call_of(self, result: Message) -> Message | None:
        """Return the call that a result answers."""
        if self._calls is None:
            self._calls = self._paired()
        return self._calls.get(id(result))

    def _paired(self) -> dict[int, Message]:
        """Return the call of each result.

        Where an invocation is called twice only the conversation knows which call is meant; elsewhere its index, which
        takes longer to build, would say the same. (The journal, whose calls are apart, is not written.)
        """
        calls: dict[str, Message] = {}
        paired: dict[int, Message] = {}
        for message in self.conversation:
            payload = message.payload
            if payload.kind == "option_call":
                if payload.invocation_id in calls:
                    messages = list(self.conversation)
                    return {id(messages[result]): messages[call] for call, result in self.conversation.pairs()}
                calls[payload.invocation_id] = message
            elif payload.kind == "option_result" and payload.invocation_id in calls:
                paired[id(message)] = calls[payload.invocation_id]
        return paired

    def options_of(self, invocation: str) -> set[str]:
        """Return the options that an invocation called: an id used again may be of several."""
        if self._options is None:
            self._options = {}
            for message in self.conversation:
                if message.payload.kind == "option_call":
                    self._options.setdefault(message.payload.invocation_id, set()).add(message.payload.option_name)
        return self._options.get(invocation, set())


@dataclass(frozen=True, slots=True)
class UnitDialect:
    """A format of one JSON object per message."""

    name: str
    summary: str
    read: Callable[[Unit], None]
    """Say the messages of one unit."""
    together: Callable[[Sequence[Message], Message], bool]
    """Whether a message goes into the unit that these have begun."""
    write: Callable[[Sequence[Message], Writing], dict[str, Any]]
    """Write the messages of one unit."""
    recognise: Callable[[Any], str | None]

    def decode(self, data: Any, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        value = parsed_loosely(data, self.name)
        units = self._read(value)
        plain = Conversation(message for unit in units for message in unit.made)
        writing = Writing(plain, frozenset(unit.made[0].id for unit in units), counts=False)
        messages: list[Message] = []
        for unit in units:
            first, *more = unit.made
            patch = residue(self.write(unit.made, writing), unit.value)
            messages += [unit.with_notes(first, {"residue": patch}) if patch else first, *more]
        shape = {} if isinstance(value, list) else {self.name: {"shape": "one"}}
        return Conversation(messages, metadata=shape)

    def skim(self, data: Any) -> Conversation:
        """Read a conversation that will be written in another format: without what brings the same data back."""
        units = self._read(parsed_loosely(data, self.name))
        return Conversation([message for unit in units for message in unit.made])

    def _read(self, value: Any) -> list[Unit]:
        """Read all units; each has made the messages it says."""
        reading = Reading(self.name)
        alone = not isinstance(value, list)
        units: list[Unit] = []
        for position, each in enumerate([value] if alone else cast("list[Any]", value)):
            unit = Unit(reading, each, None if alone else position)
            if not isinstance(each, dict):
                unit.fail(f"expected an object, found {kind_of(each)}")
            try:
                self.read(unit)
            except ValidationError as exc:
                unit.refuse(exc)
            reading.messages += unit.made
            units.append(unit)
        return units

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        if options:
            raise TypeError(f"{self.name} has no option {min(options)!r}")
        said = Conversation(message for message in projected(conversation) if message.lane != "effect")
        groups = self._groups(said)
        units = [self._restored(group, unit) for group, unit in self._written(groups, self._writing(said, groups, as_policy))]
        alone = len(units) == 1 and conversation.metadata.get(self.name, {}).get("shape") == "one"
        encoded = Encoded(units[0] if alone else units, lambda: self._losses(conversation, said, as_policy))
        if losses == "raise" and encoded.losses:
            raise refusal(self.name, encoded.losses)
        return encoded

    def write_away(self, conversation: Conversation, as_policy: str | None) -> tuple[Any, Mapping[str, str]]:
        """Write a conversation that was skimmed from another format and is of no use any more: its JSON is not copied."""
        groups = self._groups(conversation)
        writing = self._writing(conversation, groups, as_policy)
        writing.gives_away = True
        return [unit for _, unit in self._written(groups, writing)], _NO_ALIASES

    def _writing(
        self, said: Conversation, groups: list[list[Message]], as_policy: str | None, *, counts: bool = False
    ) -> Writing:
        return Writing(said, frozenset(group[0].id for group in groups), as_policy, counts=counts)

    def _written(self, groups: list[list[Message]], writing: Writing) -> Iterator[tuple[list[Message], dict[str, Any]]]:
        for group in groups:
            yield group, self.write(group, writing)

    def _losses(self, conversation: Conversation, said: Conversation, as_policy: str | None) -> tuple[Loss, ...]:
        """Write once more, and count what is lost."""
        groups = self._groups(said)
        writing = self._writing(said, groups, as_policy, counts=True)
        for _ in self._written(groups, writing):
            pass
        tools = (Loss(None, "tools", f"{self.name} has no place for tools"),) if conversation.tools else ()
        return (*kept_out(conversation), *writing.losses, *tools, *around(conversation, self.name))

    def _groups(self, messages: Iterable[Message]) -> list[list[Message]]:
        groups: list[list[Message]] = []
        for message in messages:
            if groups and self.together(groups[-1], message):
                groups[-1].append(message)
            else:
                groups.append([message])
        return groups

    def _restored(self, group: Sequence[Message], unit: dict[str, Any]) -> Any:
        patch = notes_of(group[0], self.name).get("residue")
        return unit if patch is None else restore(unit, thaw(patch))
