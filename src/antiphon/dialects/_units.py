"""The machinery of formats that have one JSON object per message: units are read to messages, messages written to units.

A format gives four functions: `read` (a unit to messages), `together` (does this message go into the unit that was begun?),
`write` (the messages of one unit to a unit) and `recognise`. The rest is the same for all: parsing, positions in errors, ids
where a unit has none, the residue that brings the same data back, the shape of the whole (one unit or a list), and losses.

The order of decoding matters for the residue: all units are read first, then written again in the full conversation, and only
then compared with what was there, so that encoding later sees exactly what was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from antiphon.dialects._api import Encoded, Loss, Losses
from antiphon.dialects._residue import residue, restore
from antiphon.errors import DecodeError, EncodeError
from antiphon.messages import Conversation, Message, Payload, current_limits, thaw
from antiphon.messages._json import JsonError, canonical, copy_checked, is_shallow, own, parse, unpacked
from antiphon.messages._limits import NO_LIMITS

__all__ = ["Reading", "Unit", "UnitDialect", "Writing", "as_object", "parsed", "sample_units"]

_SAMPLE = 20
_ENVELOPE = 8
"""How much deeper than a value the data around it may be."""


def sample_units(data: Any) -> list[dict[str, Any]]:
    """Return the first units of parsed JSON, for a look at what format they are; none if they are not all objects."""
    units = cast("list[Any]", data[:_SAMPLE] if isinstance(data, list) else [data])
    return units if all(isinstance(unit, dict) for unit in units) else []


def parsed(data: Any, dialect: str) -> Any:
    """Return data as plain JSON values of our own: bytes and text are parsed, values are copied and checked.

    Raises:
        DecodeError: it is not JSON, or nested too deep. (How much a message may hold is asked when it is made.)
    """
    limits = replace(current_limits(), nodes=NO_LIMITS.nodes)
    try:
        if not isinstance(data, bytes | bytearray | str):
            return unpacked(own(data, _ENVELOPE, limits))
        text = data.encode() if isinstance(data, str) else bytes(data)
        value = parse(text)
        return value if is_shallow(text, value, limits.depth + _ENVELOPE) else copy_checked(value, limits, _ENVELOPE)
    except UnicodeEncodeError:
        raise DecodeError("a lone surrogate: it is no Unicode text", dialect=dialect) from None
    except JsonError as exc:
        raise DecodeError(exc.reason, dialect=dialect, where=_path(exc.path)) from None


def as_object(value: Any) -> dict[str, Any] | None:
    """Return a value if it is an object, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _path(steps: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


@dataclass(slots=True)
class Reading:
    """One conversation being read: what came before the present unit."""

    dialect: str
    messages: list[Message] = field(default_factory=list[Message])
    calls: dict[str, Message] = field(default_factory=dict[str, Message])
    """Calls by whatever the format pairs them with."""
    waiting: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])
    """Open calls in order, by whatever the format pairs them with where it gives no id."""
    ids: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Unit:
    """One object of the format, with typed looks into it that say where something is wrong."""

    reading: Reading
    value: dict[str, Any]
    position: int | None
    """Its place in a list; None if it stands alone."""
    made: list[Message] = field(default_factory=list[Message])

    def fail(self, reason: str, *path: str | int) -> NoReturn:
        steps = path if self.position is None else (self.position, *path)
        raise DecodeError(reason, dialect=self.reading.dialect, where=_path(steps))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that must be there, unless there is a default for its absence."""
        value = self.value.get(key, default)
        return value if isinstance(value, str) else self.fail(f"expected text, found {_kind(value)}", key)

    def maybe_text(self, key: str) -> str | None:
        return None if self.value.get(key) is None else self.text(key)

    def object(self, key: str) -> dict[str, Any]:
        """Return an object; empty if it is not there or null."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, dict):
            self.fail(f"expected an object, found {_kind(value)}", key)
        return cast("dict[str, Any]", value or {})

    def objects(self, key: str) -> list[dict[str, Any]]:
        """Return a list of objects; empty if it is not there or null."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, list):
            self.fail(f"expected a list, found {_kind(value)}", key)
        for index, each in enumerate(cast("list[Any]", value or [])):
            if not isinstance(each, dict):
                self.fail(f"expected an object, found {_kind(each)}", key, index)
        return cast("list[dict[str, Any]]", value or [])

    def iso_time(self, key: str) -> datetime | None:
        """Return a time written as ISO 8601; one without a zone is UTC."""
        text = self.maybe_text(key)
        if text is None:
            return None
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"expected a time in ISO 8601, found {text[:40]!r}", key)
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    def own_id(self, key: str) -> str:
        """Return the unit's id; where it has none, one made from its place and content."""
        found = self.maybe_text(key)
        if found:
            return found
        place = 0 if self.position is None else self.position
        return f"{self.reading.dialect}-{place}-{sha256(canonical(self.value)).hexdigest()[:12]}"

    def refuse(self, exc: ValidationError) -> NoReturn:
        """Say what the core refuses, and where in a message it would have been."""
        error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        self.fail(f"{error['msg']} ({'.'.join(map(str, error['loc']))[:80]})")

    def say(self, payload: Payload | dict[str, Any], *, policy: str, **fields: Any) -> Message:
        """Make a message of this unit. The first has the unit's id, unless one is given; the others count on from it."""
        unit_id = fields.pop("id", None) or self.own_id("id")
        message_id = unit_id if not self.made else f"{unit_id}#{len(self.made) + 1}"
        try:
            message = Message.model_validate({"id": message_id, "policy": policy, "payload": payload, **fields})
        except ValidationError as exc:
            self.refuse(exc)
        self.made.append(message)
        return message


def _kind(value: Any) -> str:
    names = {
        "dict": "an object",
        "list": "a list",
        "str": "text",
        "bool": "a truth value",
        "int": "a number",
        "float": "a number",
    }
    return names.get(type(value).__name__, "nothing")


@dataclass(slots=True)
class Writing:
    """One conversation being written: where calls are, and what is lost on the way."""

    conversation: Conversation
    heads: frozenset[str] = frozenset()
    """The ids of those messages that a unit begins with: the ones that can be referred to."""
    as_policy: str | None = None
    """Whose words are the assistant's; None: as the hints and names say."""
    counts: bool = True
    """Whether losses count: not while a unit is only written to be compared with what was read."""
    losses: list[Loss] = field(default_factory=list[Loss])
    _turns: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])
    _calls: dict[int, Message] = field(default_factory=dict[int, Message])
    """The call of each result, by the identity of the result."""

    def __post_init__(self) -> None:
        messages = list(self.conversation)
        for message in messages:
            if message.turn_id is not None:
                self._turns.setdefault(message.turn_id, []).append(message)
        self._calls = {id(messages[result]): messages[call] for call, result in self.conversation.pairs()}

    def lose(self, message: Message, what: str, reason: str) -> None:
        self.losses.append(Loss(message.id, what, reason))

    def lose_unsaid(
        self, group: Sequence[Message], *, says: frozenset[str], reason: str, replying: Message | None = None
    ) -> None:
        """Report what the messages of one unit say in their fields beyond what the format `says`.

        `replying` is the one whose reply the format does say.
        """
        for message in group if self.counts else ():
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
        if message.turn_id is not None and not self._says_turn(self._turns[message.turn_id], group):
            yield "turn"

    @staticmethod
    def _says_turn(turn: Sequence[Message], group: Sequence[Message]) -> bool:
        """Whether a unit shows of its messages that they were said in one breath, and where that began."""
        return len(turn) == 1 or (len(group) > 1 and turn[0] is group[0])

    def call_of(self, result: Message) -> Message | None:
        return self._calls.get(id(result))


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

    def decode(self, data: Any) -> Conversation:
        value = parsed(data, self.name)
        units = cast("list[Any]", value if isinstance(value, list) else [value])
        groups = self._read(units, alone=not isinstance(value, list))
        plain = Conversation(message for group in groups for message in group)
        writing = Writing(plain, frozenset(group[0].id for group in groups), counts=False)
        messages: list[Message] = []
        for unit, group in zip(units, groups, strict=True):
            patch = residue(self.write(group, writing), unit)
            messages += [self._with_residue(group[0], patch) if patch else group[0], *group[1:]]
        shape = {} if isinstance(value, list) else {self.name: {"shape": "one"}}
        return Conversation(messages, metadata=shape)

    def _with_residue(self, first: Message, patch: list[dict[str, Any]]) -> Message:
        mine = {**first.metadata.get(self.name, {}), "residue": patch}
        return first.model_copy(update={"metadata": {**first.metadata, self.name: mine}})

    def _read(self, units: list[Any], *, alone: bool) -> list[list[Message]]:
        reading = Reading(self.name)
        groups: list[list[Message]] = []
        for position, value in enumerate(units):
            unit = Unit(reading, value, None if alone else position)
            if not isinstance(value, dict):
                unit.fail(f"expected an object, found {_kind(value)}")
            try:
                self.read(unit)
            except ValidationError as exc:
                unit.refuse(exc)
            reading.messages += unit.made
            groups.append(unit.made)
        return groups

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        if options:
            raise TypeError(f"{self.name} has no option {min(options)!r}")
        said = Conversation(message for message in conversation if message.lane != "effect")
        groups = self._groups(said)
        writing = Writing(said, frozenset(group[0].id for group in groups), as_policy)
        units = [self._restored(group, self.write(group, writing)) for group in groups]
        if conversation.tools:
            writing.losses.append(Loss(None, "tools", f"{self.name} has no place for tools"))
        if losses == "raise" and writing.losses:
            raise _refusal(self.name, writing.losses)
        alone = len(units) == 1 and conversation.metadata.get(self.name, {}).get("shape") == "one"
        return Encoded(units[0] if alone else units, tuple(writing.losses))

    def _groups(self, messages: Iterable[Message]) -> list[list[Message]]:
        groups: list[list[Message]] = []
        for message in messages:
            if groups and self.together(groups[-1], message):
                groups[-1].append(message)
            else:
                groups.append([message])
        return groups

    def _restored(self, group: Sequence[Message], unit: dict[str, Any]) -> Any:
        patch = group[0].metadata.get(self.name, {}).get("residue")
        return unit if patch is None else restore(unit, thaw(patch))


def _refusal(dialect: str, losses: Sequence[Loss]) -> EncodeError:
    first = losses[0]
    more = f" (and {len(losses) - 1} more)" if len(losses) > 1 else ""
    where = "" if first.message_id is None else f"message {first.message_id}"
    return EncodeError(f"cannot say {first.what}: {first.reason}{more}", dialect=dialect, where=where)
