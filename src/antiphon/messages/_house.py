"""The house format: how messages and conversations are written down for good.

A message is one JSON object on one line: the format's version first, then the fields in the model's order with defaults left
out, keys of user data in their own order, integers of any size exact. A conversation is a line that says so (with its tools
and metadata) and then a line a message, so a file of it is JSON Lines and grows by appending.

The bytes are the truth that is hashed, stored and compared, so they are a function of the content: write, read and write
again is byte-identical. What a version has written, every later one reads: `_UPCASTS` has a step for each version left behind.

`loads` checks everything the constructors check, but much of it once for the whole text: it parsed, it has no duplicate key,
its depth and size are small, it has no character that a name must not have. What is proven that way is not asked again
field by field: `_lean` takes those questions out of Pydantic's schema. Any doubt leads to the full schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar, cast, overload

from pydantic import ValidationError
from pydantic_core import SchemaValidator, core_schema

from antiphon.errors import DecodeError, NewerVersionError
from antiphon.messages._conversation import Conversation, Header
from antiphon.messages._json import JsonError, fits, parse
from antiphon.messages._limits import Limits, current_limits, use_limits
from antiphon.messages._message import Message
from antiphon.messages._model import VERIFIED, JsonField, house_bytes
from antiphon.messages._names import NAME_LENGTH

__all__ = ["HOUSE_VERSION", "dumps", "loads"]

HOUSE_VERSION = 1
"""The version that `dumps` writes, under the key `antiphon`."""

_KEY = "antiphon"
_MARK = f'{{"{_KEY}":{HOUSE_VERSION}'.encode()

_UPCASTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a version to a function that turns its form (of a message, or of a conversation's first line) into the next one's."""

StoredT = TypeVar("StoredT", Message, Conversation)


# ---------------------------------------------------------------- writing


def dumps(value: Message | Conversation) -> bytes:
    """Write a message (one line, without a line break) or a conversation (JSON Lines) in the house format."""
    if isinstance(value, Message):
        return b"%b,%b" % (_MARK, house_bytes(value)[1:])
    header = b'%b,"conversation":%b}' % (_MARK, house_bytes(value.header))
    return b"\n".join((header, *map(dumps, value), b""))


# ---------------------------------------------------------------- reading


@overload
def loads(data: bytes, expect: None = None, *, limits: Limits | None = None) -> Message | Conversation: ...
@overload
def loads(data: bytes, expect: type[StoredT], *, limits: Limits | None = None) -> StoredT: ...
def loads(data: bytes, expect: type[Any] | None = None, *, limits: Limits | None = None) -> Message | Conversation:
    """Read what `dumps` wrote: a message, or a conversation if the first line says so.

    Say `Message` or `Conversation` to expect one of them. `limits` replaces those in use.

    Raises:
        DecodeError: the bytes are not the house format, are over a limit, or hold something else than expected.
        NewerVersionError: a later version of antiphon wrote them.
    """
    if limits is not None:
        with use_limits(limits):
            return loads(data, expect) if expect else loads(data)
    first, _, rest = bytes(data).partition(b"\n")
    form = _form(first, "line 1" if rest else "")
    found = _conversation(form, rest) if "conversation" in form else _only_message(first, form, rest)
    if expect is not None and not isinstance(found, expect):
        raise _error(f"expected a {expect.__name__.lower()}, found a {type(found).__name__.lower()}")
    return found


def _only_message(text: bytes, form: dict[str, Any], rest: bytes) -> Message:
    if rest:
        raise _error("more after the message; a file of several begins with a conversation line", "line 2")
    return _message(text, form, "")


def _conversation(form: dict[str, Any], rest: bytes) -> Conversation:
    if len(form) > 1:
        raise _error(f"unknown key {min(form.keys() - {'conversation'})!r}", "line 1")
    try:
        header = Header.model_validate(form["conversation"])
    except ValidationError as exc:
        raise _explained(exc, "line 1", ("conversation",)) from exc
    lines = rest.removesuffix(b"\n").split(b"\n") if rest else []
    places = (f"line {number}" for number in range(2, len(lines) + 2))
    messages = [_message(line, _form(line, place), place) for line, place in zip(lines, places, strict=True)]
    return Conversation(messages, tools=header.tools, metadata=header.metadata)


def _form(text: bytes, place: str) -> dict[str, Any]:
    """Parse one line and bring it to the present version."""
    limits = current_limits()
    most = limits.message_bytes + (limits.data_url_bytes if b"data:" in text[: 2 * limits.message_bytes] else 0)
    if len(text) > most:
        raise _error(f"{len(text)} bytes, more than {most}; store large content outside and send its URL", place)
    try:
        form = parse(text)
    except JsonError as exc:
        raise _error(exc.reason, place) from None
    if type(form) is not dict:
        raise _error("not a JSON object", place)
    return _upcast(cast("dict[str, Any]", form), place)


def _upcast(form: dict[str, Any], place: str) -> dict[str, Any]:
    version = form.pop(_KEY, None)
    if version == HOUSE_VERSION and type(version) is int:
        return form
    if type(version) is not int or version < 1:
        raise _error(f"no house format: the key {_KEY!r} must hold the version, {HOUSE_VERSION} at present", place)
    if version > HOUSE_VERSION:
        reason = f"written in house format {version}, and this antiphon reads up to {HOUSE_VERSION}: upgrade it"
        raise NewerVersionError(reason, dialect=_KEY, where=place)
    for step in range(version, HOUSE_VERSION):
        form = _UPCASTS[step](form)
    return form


def _message(text: bytes, form: dict[str, Any], place: str) -> Message:
    limits = current_limits()
    try:
        if len(text) <= limits.message_bytes and fits(text, form, limits):
            return cast("Message", _lean(_is_plain(text)).validate_python(form, context=VERIFIED))
        return Message.model_validate(form)
    except ValidationError as exc:
        raise _explained(exc, place) from exc


def _is_plain(text: bytes) -> bool:
    """Whether all strings in a JSON text are printable ASCII, so that every name in it is well formed."""
    return text.isascii() and b"\\" not in text and b"\x7f" not in text


@cache
def _lean(plain: bool) -> SchemaValidator:
    """Return the validator of `Message` without the questions that a look at the whole text has answered."""
    return SchemaValidator(_without_answered(Message.__pydantic_core_schema__, plain))


def _without_answered(schema: Any, plain: bool) -> Any:
    match schema:
        case {"type": "function-plain", "function": {"function": function}} if isinstance(
            mark := getattr(function, "__self__", None), JsonField
        ):
            lean = {"any": core_schema.any_schema(), "object": core_schema.is_instance_schema(dict)}
            return lean.get(mark.shape, schema)
        case {"type": "function-after", "function": {"function": function}, "schema": inner} if (
            getattr(function, "__name__", "") == "_within_limits"
        ):
            return _without_answered(inner, plain)
        case {"type": "union", "custom_error_type": "name"} if plain:
            return core_schema.str_schema(strict=True, min_length=1, max_length=NAME_LENGTH)
        case dict():
            return {key: _without_answered(each, plain) for key, each in cast("dict[str, Any]", schema).items()}
        case list():
            return [_without_answered(each, plain) for each in cast("list[Any]", schema)]
        case _:
            return schema


# ---------------------------------------------------------------- errors


def _error(reason: str, place: str = "") -> DecodeError:
    return DecodeError(reason, dialect=_KEY, where=place)


def _explained(exc: ValidationError, place: str, prefix: tuple[str, ...] = ()) -> DecodeError:
    """Turn Pydantic's error into ours: the first complaint, and the path to it in the data."""
    errors = exc.errors(include_url=False, include_context=False)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    steps = (*prefix, *_steps_in_data(errors[0]["loc"]))
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
    return _error(errors[0]["msg"] + more, ": ".join(filter(None, (place, path))))


def _steps_in_data(loc: Iterable[str | int]) -> list[str | int]:
    """Leave out of a Pydantic location the tags that it adds where a union is: they are no steps in the data."""
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
