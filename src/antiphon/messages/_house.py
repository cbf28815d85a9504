"""The house format: the stored form of messages and conversations.

A message is one JSON object on one line: first the version of the format, then the fields in the order of the model, without
defaults. Keys of user data keep their order, and integers of any size are exact. A conversation is a first line with its tools
and metadata, then one line per message. So its file is JSON Lines and grows by appending.

The bytes are hashed, stored and compared, so they are a function of the content: writing, reading and writing again gives the
same bytes.

`loads` checks everything that the constructors check. It has a fast path for text as `dumps` writes it. If the parsed value is
written as the same text again, the text is JSON without a duplicate key; depth and size are checked on the text as a whole. So
`_lean` removes these checks from Pydantic's schema, and the fast path makes only the others. In any doubt, the slow path
decides, with the full schema; only the slow path refuses and explains. The fast path may pass valid text on to the slow path.
It never accepts text that the slow path refuses; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast, overload

import orjson
from pydantic import ValidationError
from pydantic_core import SchemaValidator, core_schema

from antiphon.errors import DecodeError
from antiphon.messages._arguments import check_type
from antiphon.messages._content import DATA_URLS, OptionResultPayload
from antiphon.messages._conversation import Conversation, Header
from antiphon.messages._json_values import JsonError, fits, parse
from antiphon.messages._message import Message, count_values, most_values, read_time, stored_form
from antiphon.messages._model import EMPTY, HOUSE_KEY, HOUSE_MARK, HOUSE_VERSION, JsonField, house_bytes
from antiphon.messages._names import ASCII_NAME, NAME_LENGTH
from antiphon.messages._settings import Limits, current_limits, use_limits

_HEADER = b'"conversation":'
_WIDEST = 64
"""The most keys of a message, payload or part. An object with more is refused without a look at each key."""
_BIG = 64 * 1024
"""Bytes from which on a text is searched for objects with too many keys."""
_LARGE = {"option_call": "arguments", "option_result": "result", "parts": ""}
"""The field of each kind that is stored as text."""
_HOUSE_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?Z$"

StoredT = TypeVar("StoredT", Message, Conversation)


# ---------------------------------------------------------------- writing


def dumps(value: Message | Conversation) -> bytes:
    """Write a message (one line, without a line break) or a conversation (JSON Lines) in the house format."""
    if isinstance(value, Message):
        return house_bytes(stored_form(value))
    if not isinstance(value, Conversation):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"dumps takes a message or a conversation, not {type(value).__name__}")
    header = b"%b%b%b}" % (HOUSE_MARK, _HEADER, house_bytes(value.header))
    return b"\n".join((header, *[house_bytes(stored_form(message)) for message in value], b""))


# ---------------------------------------------------------------- reading


@overload
def loads(data: bytes, expect: None = None, *, limits: Limits | None = None) -> Message | Conversation: ...
@overload
def loads(data: bytes, expect: type[StoredT], *, limits: Limits | None = None) -> StoredT: ...
def loads(data: bytes, expect: type[Any] | None = None, *, limits: Limits | None = None) -> Message | Conversation:
    """Read the bytes that `dumps` has written: a message or a conversation.

    With `expect`, refuse anything but a `Message` or a `Conversation`. `limits` replaces the current limits.

    Raises:
        DecodeError: the bytes are not in the house format, are over a limit, or hold another type than expected;
            or a later version of antiphon wrote them.
    """
    check_type("data", data, bytes | bytearray | memoryview, "dumps(message)")
    text, limits = bytes(data), limits or current_limits()
    value = (None if b"\n" in text else _quickly(text, limits)) or _carefully(text, limits)
    if expect is not None and not isinstance(value, expect):
        raise _error(f"expected a {expect.__name__.lower()}, found a {type(value).__name__.lower()}")
    return value


def _quickly(text: bytes, limits: Limits) -> Message | None:
    """Read a message by the fast path; None if the slow path must decide."""
    if len(text) > limits.message_bytes or not text.startswith(HOUSE_MARK):
        return None
    try:
        form = orjson.loads(text)
        if not fits(text, form, limits) or not _is_written_so(form, text):
            return None
        del form[HOUSE_KEY]
        return _lean()(form)
    except (LookupError, TypeError, ValueError):
        return None


def _is_written_so(form: dict[str, Any], text: bytes) -> bool:
    """Whether the parsed form is written as the same text again. It also replaces the large value by its stored text."""
    payload, _ = form["payload"], form["id"]
    name = _LARGE[payload["kind"]]
    value = payload.get(name)
    if type(value) is not dict and (type(value) is not list or name == "arguments"):
        return name != "arguments" and orjson.dumps(form) == text
    text_of_value = orjson.dumps(value)
    payload[name] = orjson.Fragment(text_of_value)
    is_same = orjson.dumps(form) == text
    payload[name] = EMPTY if text_of_value == EMPTY and name == "arguments" else text_of_value
    return is_same


def _carefully(text: bytes, limits: Limits) -> Message | Conversation:
    first, *rest = text.split(b"\n")
    if rest and not rest[-1]:
        rest.pop()  # a line break ends the last line
    with use_limits(limits):
        line = _Line(first, "line 1" if rest else "")
        if "conversation" in line.form:
            return _conversation(line, rest)
        if rest:
            raise _error("more after the message; a file of several begins with a conversation line", "line 2")
        return line.message()


def _conversation(line: _Line, rest: list[bytes]) -> Conversation:
    if len(line.form) > 1:
        raise _error(f"unknown key {_shown(min(line.form.keys() - {'conversation'}))}", "line 1")
    try:
        header = Header.model_validate(line.form["conversation"])
    except ValidationError as exc:
        raise _explained(exc, "line 1", ("conversation",)) from None
    limits = current_limits()
    messages = [_quickly(text, limits) or _Line(text, f"line {number}").message() for number, text in enumerate(rest, start=2)]
    return Conversation(messages, tools=header.tools, metadata=header.metadata)


class _Line:
    """One line: its text, its form without the version, and its place."""

    def __init__(self, text: bytes, place: str) -> None:
        self.text = text
        self.place = place
        self._refuse_large()
        try:
            form = parse(text)
        except JsonError as exc:
            raise _error(exc.reason, place, exc.path) from None
        if type(form) is not dict:
            raise _error("not a JSON object", place)
        self.form = cast("dict[str, Any]", form)
        version = self.form.pop(HOUSE_KEY, None)
        if type(version) is not int or version < 1:
            raise _error(f"no house format: the key {HOUSE_KEY!r} must hold the version, {HOUSE_VERSION}", place)
        if version > HOUSE_VERSION:
            reason = f"written in house format {version}, and this antiphon reads up to {HOUSE_VERSION}: upgrade it"
            raise DecodeError(reason, dialect=HOUSE_KEY, where=place)

    def _refuse_large(self) -> None:
        """Refuse a line that is certainly too large, before it is parsed."""
        text, limits = self.text, current_limits()
        if len(text) <= min(limits.message_bytes, 2 * limits.nodes):
            return
        is_header = _HEADER in text[: 2 * len(HOUSE_MARK + _HEADER)]
        rest = len(text) if len(text) <= limits.message_bytes else len(DATA_URLS.sub(b"", text))
        most = limits.message_bytes + (limits.data_url_bytes if is_header else 0)
        if rest > most:
            raise _error(f"{rest} bytes, more than {most}; store large content outside and send its URL", self.place)
        if len(text) > limits.message_bytes + limits.data_url_bytes:
            raise _error(f"{len(text)} bytes, more than all limits together; upload the file and send its URL", self.place)
        if (values := count_values(text, limits)) > most_values(limits):
            raise _error(f"{values} values, more than {most_values(limits)}; store large data as media", self.place)

    def message(self) -> Message:
        """Return the message that the line holds."""
        if "id" not in self.form:
            raise _error("Field required", self.place, ("id",))
        if len(self.text) > _BIG:
            _refuse_wide(self.form, self.place)
        try:
            return Message.model_validate(self.form)
        except ValidationError as exc:
            raise _explained(exc, self.place) from None


def _refuse_wide(form: dict[str, Any], place: str) -> None:
    payload = _as_object(form.get("payload"))
    parts = payload.get("parts")
    listed = cast("list[Any]", parts) if isinstance(parts, list) else []
    if any(len(box) > _WIDEST for box in (form, payload, *map(_as_object, listed))):
        raise _error(f"an object of more than {_WIDEST} keys where a message, payload or part was expected", place)


def _as_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


@cache
def _lean() -> Callable[[dict[str, Any]], Message]:
    """Return a validator of `Message` without the checks that the fast path makes on the whole text."""
    Message.model_rebuild()
    schema = _without_checks(Message.__pydantic_core_schema__)
    # Otherwise Pydantic uses the validators that nested models have already, and ignores this schema.
    return cast("Callable[[dict[str, Any]], Message]", SchemaValidator(schema, None, _use_prebuilt=False).validate_python)


def _without_checks(schema: Any) -> Any:
    match schema:
        case {"type": "function-plain", "function": {"function": function}} if isinstance(
            mark := getattr(function, "__self__", None), JsonField
        ):
            lean = {"any": core_schema.any_schema(), "object": core_schema.is_instance_schema(bytes)}
            return lean.get(mark.shape, schema)
        case {"type": "function-before", "function": {"function": function}} if function is read_time:
            text = core_schema.str_schema(strict=True, pattern=_HOUSE_TIME)
            return core_schema.no_info_after_validator_function(datetime.fromisoformat, text)
        case {"type": "function-after", "schema": {"cls": cls} as inner} if cls is Message:
            return _without_checks(inner)
        case {"type": "function-after", "schema": {"cls": cls} as inner} if cls is OptionResultPayload:
            return _only_successes(_without_checks(inner))
        case {"type": "union", "custom_error_type": "name"}:
            return core_schema.str_schema(strict=True, min_length=1, max_length=NAME_LENGTH, pattern=ASCII_NAME)
        case dict():
            return {key: _without_checks(inner_schema) for key, inner_schema in cast("dict[str, Any]", schema).items()}
        case list():
            return [_without_checks(inner_schema) for inner_schema in cast("list[Any]", schema)]
        case _:
            return schema


def _only_successes(schema: Any) -> Any:
    """Return the schema of a result that is not an error: it needs no check in Python."""
    none = core_schema.with_default_schema(core_schema.none_schema(), default=None)
    false = core_schema.with_default_schema(core_schema.literal_schema([False]), default=False)
    fields = dict(schema["schema"]["fields"])
    for name in ("error_type", "error_message", "retryable", "is_error"):
        fields[name] = {**fields[name], "schema": false if name == "is_error" else none}
    return {**schema, "schema": {**schema["schema"], "fields": fields}}


# ---------------------------------------------------------------- errors


def _error(reason: str, place: str = "", path: Iterable[str | int] = ()) -> DecodeError:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{_shown(step)}" for step in path).removeprefix(".")
    return DecodeError(reason, dialect=HOUSE_KEY, where=": ".join(filter(None, (place, steps))))


def _shown(key: str) -> str:
    """Return a key from outside for an error message: a long or unusual one is quoted and cut."""
    if len(key) <= _WIDEST and key.isprintable():
        return key
    return ascii(key[:_WIDEST]) + ("…" if len(key) > _WIDEST else "")


def _explained(exc: ValidationError, place: str, prefix: tuple[str, ...] = ()) -> DecodeError:
    """Turn Pydantic's error into ours: its first fault, and the path to it in the data."""
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    count = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return _error(errors[0]["msg"] + count, place, (*prefix, *_steps_in_data(errors[0]["loc"])))


def _steps_in_data(loc: Iterable[str | int]) -> list[str | int]:
    """Remove from a Pydantic location the tags that it adds for unions: they are not in the data."""
    steps: list[str | int] = []
    tagged = False
    for step in loc:
        is_union = steps == ["payload"] or (steps[:2] == ["payload", "parts"] and len(steps) == len(("payload", "parts", 0)))
        if is_union and not tagged:
            tagged = True
        else:
            steps.append(step)
            tagged = False
    return steps
