"""Dialects of formats that have one JSON object per message: units are read to messages, messages written to units.

A format provides four functions: `read` (a unit to messages), `together` (does this message belong to the current unit?),
`write` (the messages of one unit to a unit) and `recognise`. The rest is shared: parsing, positions in errors, ids for units
that have none, the residue, the shape of the body (one unit or a list), and the measurement of losses. A format only provides
the reasons for losses.

The order of decoding matters for the residue. First all units are read. Then they are written again, in the full conversation.
Only then is the output compared with the original. So a later `encode` starts from the same output that was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from antiphon.checks import projected
from antiphon.dialects._api import Encoded, Loss, Losses, Path
from antiphon.dialects._arranging import grouped
from antiphon.dialects._losses import Piece, Written, all_losses, reported
from antiphon.dialects._reading import Reading, Unit, fresh, kind_of, notes_of, parsed_loosely
from antiphon.dialects._residue import residue, restore
from antiphon.messages import Conversation, Message, Part, Payload, thaw
from antiphon.messages._conversation import without_effects


@dataclass(slots=True)
class Writing:
    """The state of writing a conversation: its units and calls."""

    conversation: Conversation
    heads: frozenset[str] = frozenset()
    """The ids of messages with which a unit begins: only these can be referred to."""
    as_policy: str | None = None
    """The policy whose messages are the assistant's; None to decide by hints and names."""
    _calls: dict[int, Message] | None = None
    """The call of each result, by the identity of the result."""

    def json(self, payload: Payload | Part, name: str) -> object:
        """Return a JSON field as plain JSON for the value that is written."""
        return fresh(payload, name)

    def call_of(self, result: Message) -> Message | None:
        """Return the call that a result answers."""
        if self._calls is None:
            self._calls = self._paired()
        return self._calls.get(id(result))

    def _paired(self) -> dict[int, Message]:
        """Return the call of each result.

        If an invocation is called twice, only the conversation's index knows the right call. Otherwise this finds the same
        call without that index, which takes longer to build. (The effect lane, whose calls are separate, is not written.)
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


@dataclass(frozen=True, slots=True)
class UnitDialect:
    """A format of one JSON object per message."""

    name: str
    summary: str
    read: Callable[[Unit], None]
    """Make the messages of one unit with `unit.say`."""
    together: Callable[[Sequence[Message], Message], bool]
    """Whether a message belongs to the unit of these messages."""
    write: Callable[[Sequence[Message], Writing], dict[str, Any]]
    """Write the messages of one unit."""
    recognise: Callable[[Any], str | None]
    otherwise: str
    """The reason for the loss of a facet that is not in `reasons`."""
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """The reasons for the loss of single facets."""
    wire: frozenset[str] = frozenset()
    """Keys that are no loss if another format lacks them: see `Declares`."""

    def decode(self, data: object, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        value = parsed_loosely(data, self.name)
        units = self._read(value)
        plain = Conversation(message for unit in units for message in unit.messages)
        writing = Writing(plain, frozenset(unit.messages[0].id for unit in units))
        messages: list[Message] = []
        for unit in units:
            first, *rest = unit.messages
            patch = residue(self.write(unit.messages, writing), unit.value)
            messages += [unit.with_notes(first, {"residue": patch}) if patch else first, *rest]
        shape = {} if isinstance(value, list) else {self.name: {"shape": "one"}}
        return Conversation(messages, metadata=shape)

    def places(self, data: object) -> tuple[Path, ...]:
        return tuple(unit.path for unit in self._read(parsed_loosely(data, self.name)) for _ in unit.messages)

    def _read(self, value: Any, *, is_checked: bool = False) -> list[Unit]:
        """Read all units; each holds its messages."""
        reading = Reading(self.name, is_checked=is_checked)
        alone = not isinstance(value, list)
        units: list[Unit] = []
        for position, item in enumerate([value] if alone else cast("list[Any]", value)):
            unit = Unit(reading, item, None if alone else position)
            if not isinstance(item, dict):
                unit.fail(f"expected an object, found {kind_of(item)}")
            try:
                self.read(unit)
            except ValidationError as exc:
                unit.refuse(exc)
            reading.messages += unit.messages
            units.append(unit)
        return units

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        if options:
            raise TypeError(f"{self.name} has no option {min(options)!r}")
        units = self._units(without_effects(projected(conversation)), as_policy)
        alone = len(units) == 1 and conversation.metadata.get(self.name, {}).get("shape") == "one"
        encoded = Encoded(units[0] if alone else units, lambda: self._losses(conversation, as_policy))
        return reported(self.name, encoded, losses)

    def _units(self, conversation: Conversation, as_policy: str | None) -> list[object]:
        """Write the messages, with the residue restored."""
        groups = grouped(conversation, self.together)
        writing = Writing(conversation, frozenset(group[0].id for group in groups), as_policy)
        units: list[object] = []
        for group in groups:
            unit, patch = self.write(group, writing), notes_of(group[0], self.name).get("residue")
            units.append(unit if patch is None else restore(unit, thaw(patch)))
        return units

    def _losses(self, conversation: Conversation, as_policy: str | None) -> tuple[Loss, ...]:
        """Measure the losses: write again, read the output, and compare."""
        shown = without_effects(projected(conversation))
        groups = grouped(shown, self.together)
        read = [unit.messages for unit in self._read(self._units(shown, as_policy), is_checked=True)]
        written = Written([Piece(group, 1) for group in groups])
        reasons, otherwise = self.reasons, self.otherwise
        return all_losses(conversation, shown, written, read, (), target=self.name, reasons=reasons, otherwise=otherwise)
