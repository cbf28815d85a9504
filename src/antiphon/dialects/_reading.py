"""Reading any format: JSON from bytes, text or values, and typed access to one unit, with errors that name the place.

A `Unit` is one object of a format. `unit.say` makes its messages. It skips checks that the parser has made, unless a value is
in doubt. `Reading` has the state from the units before the current one, and the fields that every message gets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal, NoReturn, NotRequired, Required, TypeAlias, cast

import orjson
from pydantic import ValidationError
from typing_extensions import TypedDict

from antiphon.errors import DecodeError
from antiphon.messages import Lane, Limits, Message, Part, Payload, Tool, Usage, thaw
from antiphon.messages import _unchecked as unchecked
from antiphon.messages._json_values import JsonError, canonical, copy_checked, is_shallow, own, parse, unpacked, write
from antiphon.messages._names import is_name
from antiphon.messages._settings import NO_LIMITS, current_limits
from antiphon.messages._unchecked import EMPTY, plain_of

_SAMPLE = 20
_NONE: Mapping[str, Any] = MappingProxyType({})
_ENVELOPE = 8
"""How much deeper than a value the data around it may be."""
_MOST_GROWTH = 8
"""A message has at most this many times the bytes of its unit, with a margin: `1e15` in arguments becomes 18 characters."""
_MOST_AROUND = 1024
"""The most bytes of a message that do not come from its unit: its keys, and names that the unit does not have."""
_FACTS = (
    *("id", "role_hint_for_llm", "step_num", "turn_id", "thread_id", "to", "lane"),
    *("correlation_id", "in_reply_to", "parent_id", "created_at", "usage", "metadata"),
)
"""The fields of a message besides its policy and payload, in the order of the parameters of `_unchecked.message`."""


def sample_units(data: Any) -> list[dict[str, object]]:
    """Return the first units of parsed JSON, to recognise their format; none if they are not all objects."""
    units = cast("list[Any]", data[:_SAMPLE] if isinstance(data, list) else [data])
    return units if all(isinstance(unit, dict) for unit in units) else []


def is_one_of(value: object, choices: Collection[str]) -> bool:
    """Whether parsed JSON is one of some texts. An object or a list, which cannot be hashed, is not."""
    return isinstance(value, str) and value in choices


CHAT_KEYS = frozenset(
    {
        "frequency_penalty",
        "functions",
        "logit_bias",
        "max_completion_tokens",
        "n",
        "presence_penalty",
        "random_seed",
        "response_format",
        "seed",
        "stop",
        "stream_options",
    }
)
"""Keys of a request of Chat Completions and compatible servers that other formats with `messages` do not have."""
CLAUDE_KEYS = frozenset({"anthropic_beta", "anthropic_version", "stop_sequences"})
"""Keys of a request of Anthropic Messages that other formats with `messages` do not have."""


def content_parts(unit: Mapping[str, object]) -> list[dict[str, object]] | None:
    """Return the parts of a message's content; empty for a text; None if a part has no type, as in some other formats."""
    parts = as_list(unit.get("content"))
    are_typed = all(isinstance(part, dict) and isinstance(cast("dict[str, Any]", part).get("type"), str) for part in parts)
    return parts if are_typed else None


def parsed(data: object, dialect: str) -> object:
    """Return data as our own plain JSON values: bytes and text are parsed, values are copied and checked.

    Raises:
        DecodeError: it is not JSON, or nested too deep. (The size is checked when a message is made.)
    """
    value = parsed_loosely(data, dialect)
    if isinstance(data, bytes | bytearray | str):
        refuse_depth(value, dialect)
    return value


def parsed_loosely(data: object, dialect: str) -> object:
    """Return data as our own plain JSON values, without a check of their depth."""
    try:
        if not isinstance(data, bytes | bytearray | str):
            return unpacked(own(data, _ENVELOPE, _no_count()))
        return parse(data.encode() if isinstance(data, str) else bytes(data))
    except UnicodeEncodeError:
        raise DecodeError("a lone surrogate: it is no Unicode text", dialect=dialect) from None
    except JsonError as exc:
        raise DecodeError(exc.reason, dialect=dialect, where=_path(exc.path)) from None


def refuse_depth(value: object, dialect: str, *where: str | int) -> None:
    """Refuse parsed JSON that is nested deeper than a message inside a body can be."""
    limits = _no_count()
    text = canonical(value)
    if not is_shallow(text, value, limits.depth + _ENVELOPE):
        try:
            copy_checked(value, limits, _ENVELOPE)
        except JsonError as exc:
            raise DecodeError(exc.reason, dialect=dialect, where=_path((*where, *exc.path))) from None


def _no_count() -> Limits:
    """Return the limits without the number of values: that is checked for each message."""
    return replace(current_limits(), nodes=NO_LIMITS.nodes)


def notes_of(thing: Message | Part | Tool, dialect: str) -> Mapping[str, Any]:
    """Return the metadata of a dialect on a message, a part or a tool: plain JSON, which the caller must not change."""
    if thing.__dict__["metadata"] is EMPTY:
        return _NONE
    noted: Mapping[str, object] = plain_of(thing, "metadata").get(dialect, _NONE)
    return noted


def fresh(model: Payload | Part, name: str) -> object:
    """Return a JSON field as plain JSON that the caller owns; a value that is stored as text is parsed for this call only."""
    stored = model.__dict__[name]
    return orjson.loads(stored) if type(stored) is bytes else thaw(stored)


def as_object(value: Any) -> dict[str, Any] | None:
    """Return a value if it is an object, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any]:
    """Return a value if it is a list, else an empty list."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text_at(fields: Mapping[str, Any], key: str) -> str | None:
    """Return the value under a key if it is text, else None."""
    value = fields.get(key)
    return value if isinstance(value, str) else None


def _path(steps: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


class GoodNames:
    """A cache of checked names: most names occur again."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[str] = set()

    def hold(self, *names: object) -> bool:
        """Whether each value is a valid name or None."""
        good = self._known
        for name in names:
            if name is None:
                continue
            if type(name) is not str:
                return False
            if name not in good:
                if not is_name(name):
                    return False
                good.add(name)
        return True


def _is_small(value: object, limits: Limits) -> bool:
    """Whether a unit is certainly within all limits of a message, judged by its JSON text.

    Brackets inside of texts count too, because such a text may be JSON that is parsed later.
    """
    try:
        text = orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return False
    if _MOST_GROWTH * len(text) + _MOST_AROUND > limits.message_bytes or len(text) > limits.nodes:
        return False
    openings = len(text) - len(text.replace(b"{", b"").replace(b"[", b""))  # faster than counting them
    return openings + _ENVELOPE <= limits.depth


class PartsFields(TypedDict):
    """The fields of a payload of parts."""

    kind: Literal["parts"]
    parts: Sequence[Part]


class CallFields(TypedDict):
    """The fields of a call."""

    kind: Literal["option_call"]
    invocation_id: str
    option_name: str
    arguments: dict[str, Any]
    arguments_text: NotRequired[str | None]


class OutcomeFields(TypedDict, total=False):
    """The fields of a result that hold the outcome of the call."""

    result: object
    parts: Sequence[Part]
    is_error: bool
    error_type: str | None
    error_message: str | None
    retryable: bool | None


class ResultFields(OutcomeFields):
    """The fields of a result."""

    kind: Required[Literal["option_result"]]
    invocation_id: Required[str | None]
    option_name: Required[str]


PayloadFields: TypeAlias = PartsFields | CallFields | ResultFields


@dataclass(slots=True)
class Reading:
    """The state of reading a conversation, up to the current unit."""

    dialect: str
    messages: list[Message] = field(default_factory=list[Message])
    calls: dict[str, Message] = field(default_factory=dict[str, Message])
    """Calls, by the key with which the format pairs them."""
    waiting: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])
    """Open calls in order, by the key with which the format pairs them if it has no ids."""
    ids: set[str] = field(default_factory=set[str])
    mark: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, Any]])
    """Metadata that every message gets."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our names, by the aliases that were written instead."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that every message gets."""
    once: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields that only the next message gets."""
    unit_facts: Mapping[str, object] = field(default_factory=dict[str, Any])
    """Further data about the unit."""
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data that the dialect keeps between units."""
    names: GoodNames = field(default_factory=GoodNames)
    limits: Limits = field(default_factory=current_limits)
    is_checked: bool = False
    """Whether the data passed all checks before: it was read once, or written from messages."""


class Unit:
    """One object of the format, with typed access to its keys; an error names the place."""

    # Slots, because every message passes here: an attribute that is sometimes in the class, sometimes in the instance is slow.
    __slots__ = (
        *("reading", "value", "position", "root", "id", "is_slot", "is_small", "has_aliases", "messages"),
        *("created_at", "to", "turn_id", "correlation_id", "metadata", "shared", "_derived_id"),
    )

    def __init__(
        self,
        reading: Reading,
        value: dict[str, Any],
        position: int | None,
        root: tuple[str | int, ...] = (),
        id: str | None = None,
        *,
        is_slot: bool = False,
    ) -> None:
        self.reading = reading
        self.value = value
        self.position = position
        """Its place in a list; None if it is not in a list."""
        self.root = root
        """The path of the list, or of the single unit, in the body."""
        self._derived_id: str | None = None
        self.id = id
        """Its id, if it is not in the unit or is already known."""
        self.is_slot = is_slot
        """Whether it is in the format's field for instructions."""
        self.is_small = reading.is_checked or _is_small(value, reading.limits)
        """Whether it is certainly within all limits of a message."""
        self.has_aliases = False
        """Whether an alias in it was replaced by our name."""
        self.messages: list[Message] = []
        self.created_at: datetime | None = None
        self.to: tuple[str, ...] = ()
        self.turn_id: str | None = None
        self.correlation_id: str | None = None
        self.metadata: Mapping[str, Any] = _NONE
        """This field and the four before it are the defaults for every message of the unit."""
        self.shared: Mapping[str, Any] = _NONE
        """The shared meaning of the unit, which is noted on its first message."""
        if reading.fields:
            for name, fact in reading.fields.items():
                setattr(self, name, fact)
        if not self.is_small:
            refuse_depth(value, reading.dialect, *root, *(() if position is None else (position,)))

    @property
    def path(self) -> tuple[str | int, ...]:
        """Its path in the data."""
        return self.root if self.position is None else (*self.root, self.position)

    def fail(self, reason: str, *path: str | int) -> NoReturn:
        raise DecodeError(reason, dialect=self.reading.dialect, where=_path((*self.path, *path)))

    def alias(self, name: str) -> str:
        """Return our name for an alias; any other name unchanged."""
        if not self.reading.aliases or name not in self.reading.aliases:
            return name
        self.has_aliases = True
        return self.reading.aliases[name]

    def text(self, key: str, default: str | None = None) -> str:
        """Return the text under a key; the key is required unless there is a default."""
        value = self.value.get(key, default)
        return value if isinstance(value, str) else self.fail(f"expected text, found {kind_of(value)}", key)

    def text_in(self, fields: Mapping[str, Any], key: str, path: Sequence[str | int]) -> str:
        """Return the required text under a key of an object at a path within the unit."""
        value = fields.get(key)
        return value if isinstance(value, str) else self.fail(f"expected text, found {kind_of(value)}", *path, key)

    def maybe_text(self, key: str) -> str | None:
        value = self.value.get(key)
        return value if value is None or type(value) is str else self.text(key)

    def object(self, key: str) -> dict[str, object]:
        """Return an object; empty if it is missing or null."""
        value: Any = self.value.get(key)
        if value is None:
            return {}
        checked: dict[str, Any] = value
        return checked if type(value) is dict else self.fail(f"expected an object, found {kind_of(value)}", key)

    def objects(self, key: str) -> list[dict[str, Any]]:
        """Return a list of objects; empty if it is missing or null."""
        value: Any = self.value.get(key)
        if value is None:
            return []
        items: list[Any] = value
        if type(value) is not list:
            self.fail(f"expected a list, found {kind_of(value)}", key)
        for index, item in enumerate(items):
            if type(item) is not dict:
                self.fail(f"expected an object, found {kind_of(item)}", key, index)
        return items

    def iso_time(self, key: str) -> datetime | None:
        """Return a time in ISO 8601; a time without a zone is read as UTC."""
        text = self.maybe_text(key)
        if text is None:
            return None
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"expected a time in ISO 8601, found {text[:40]!r}", key)
        if time.tzinfo is UTC:
            return time
        try:
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        except OverflowError:
            self.fail("expected a time in the years 1 to 9999", key)

    def called(self, invocation: str) -> str | None:
        """Return the option that an invocation called, if the call was read."""
        call = self.reading.calls.get(invocation)
        return call.payload.option_name if call is not None and call.payload.kind == "option_call" else None

    def own_id(self, key: str) -> str:
        """Return the unit's id; if it has none, an id made from its place and content."""
        own_id = self.id or self.maybe_text(key)
        if own_id:
            return own_id
        if self._derived_id is None:  # computed once: a unit may have thousands of messages
            place = 0 if self.position is None else self.position
            self._derived_id = f"{self.reading.dialect}-{place}-{sha256(canonical(self.value)).hexdigest()[:12]}"
        return self._derived_id

    def refuse(self, exc: ValidationError) -> NoReturn:
        """Raise a `DecodeError` for a value that the core refuses, with its place in the message."""
        error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        self.fail(f"{error['msg']} ({'.'.join(map(str, error['loc']))[:80]})")

    def say(
        self,
        payload: PayloadFields,
        *,
        policy: str,
        id: str | None = None,
        role_hint_for_llm: Any = None,
        turn_id: str | None = None,
        thread_id: str | None = None,
        to: tuple[str, ...] | None = None,
        lane: Lane = "talk",
        in_reply_to: str | None = None,
        created_at: datetime | None = None,
        usage: Usage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Make a message of this unit. The first gets the unit's id, unless an id is given; the others get `#2`, `#3`, ….

        A payload is passed as its fields, with finished parts. Fields that are not passed have the unit's values.
        """
        own_id, messages, names = id or self.id or self.own_id("id"), self.messages, self.reading.names
        if messages:
            own_id = f"{own_id}#{len(messages) + 1}"
        metadata = self.metadata if metadata is None else metadata
        if self.shared and not messages:
            metadata = {**metadata, **self.shared}
        if self.reading.mark:
            metadata, once = self._marked(metadata), self.reading.once.pop("usage", None)
            usage = usage or once
        to, turn, time = self.to if to is None else to, turn_id or self.turn_id, created_at or self.created_at
        hint, correlation = role_hint_for_llm, self.correlation_id
        facts = (own_id, hint, None, turn, thread_id, to, lane, correlation, in_reply_to, None, time, usage, metadata)
        # Skip the checks that were made on the whole unit, unless a value is in doubt.
        if (
            self.is_small
            and (self.reading.is_checked or names.hold(own_id, policy, turn, thread_id, correlation, in_reply_to, *to))
            and (checked := unchecked_payload(payload, names)) is not None
        ):
            message = unchecked.message(policy, checked, *facts)
        else:
            message = self._carefully(policy, payload, dict(zip(_FACTS, facts, strict=True)))
        messages.append(message)
        return message

    def _marked(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of a message, including that which every message gets."""
        marked = {**self.reading.mark, **metadata}
        if self.has_aliases:
            marked[self.reading.dialect] = {**marked[self.reading.dialect], "aliased": True}
        return marked

    def with_notes(self, message: Message, notes: dict[str, Any]) -> Message:
        """Return a message of this unit with more metadata of the dialect."""
        namespaces = plain_of(message, "metadata")
        metadata = {**namespaces, self.reading.dialect: {**namespaces.get(self.reading.dialect, {}), **notes}}
        limits = self.reading.limits
        if self.is_small and len(write(metadata)) <= min(limits.message_bytes // 4, limits.nodes):
            fields: dict[str, Any] = {**message.__dict__, "metadata": metadata}
            return unchecked.message(**fields)
        try:
            return message.model_copy(update={"metadata": metadata})
        except ValidationError as exc:
            self.refuse(exc)

    def _carefully(self, policy: str, payload: PayloadFields, facts: dict[str, Any]) -> Message:
        """Make a message with every check, also of its parts, which may have been made without checks."""
        facts["metadata"] = dict(facts["metadata"])
        try:
            parts = () if payload["kind"] == "option_call" else payload.get("parts", ())
            copied = {"parts": [part.model_copy() for part in parts]} if parts else {}
            return Message.model_validate({"policy": policy, "payload": {**payload, **copied}, **facts})
        except ValidationError as exc:
            self.refuse(exc)


def unchecked_payload(fields: PayloadFields, names: GoodNames) -> Payload | None:
    """Return a payload from its fields, unless one of them is in doubt."""
    if fields["kind"] == "parts":
        return unchecked.parts_payload(tuple(fields["parts"]))
    invocation, option = fields["invocation_id"], fields["option_name"]
    if not invocation or not option or not names.hold(invocation, option):
        return None
    if fields["kind"] == "option_call":
        arguments, text = fields["arguments"], fields.get("arguments_text")
        if type(arguments) is not dict or not (text is None or type(text) is str):
            return None
        return unchecked.option_call_payload(invocation, option, arguments, text)
    is_error, error_type = fields.get("is_error", False), fields.get("error_type")
    if is_error and not error_type:
        return None
    shown = tuple(fields.get("parts", ()))
    error = (is_error, error_type, fields.get("error_message"), fields.get("retryable"))
    return unchecked.option_result_payload(invocation, option, fields.get("result"), shown, *error)


def kind_of(value: object) -> str:
    """Return the JSON type of a parsed value, for an error."""
    names = {
        "dict": "an object",
        "list": "a list",
        "str": "text",
        "bool": "a truth value",
        "int": "a number",
        "float": "a number",
    }
    return names.get(type(value).__name__, "nothing")
