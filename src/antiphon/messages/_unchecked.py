"""Unchecked access to messages, for antiphon's own packages: constructors without checks, and fields without copies.

A dialect has just parsed and checked its text: the constructors would make the same checks again. The ones here make the same
models without checks and copies, at a fifth of the cost. Everything else uses the checked constructors. A caller of this
module guarantees for every value that it passes:

- *names* (`policy`, `id`, `option_name`, `dialect`, each of `to`, …) are `str` for which `is_name` is true;
- *text* is a plain `str`, not a subclass, without a lone surrogate; the text from a JSON parser always is;
- a *URL* of a medium is one that `MediaPart` accepts; no other text has such rules;
- *numbers* are `int`, not `bool`, from 0 to 2**53; a *cost* is a finite `Decimal`, not negative;
- a *time* is a `datetime` whose `tzinfo` is `datetime.UTC` itself;
- a *choice* (`role_hint_for_llm`, `lane`, `modality`) has an allowed value;
- *sequences* (`parts`, `to`, `citations`) are tuples;
- *JSON* is either parsed (plain `dict`, `list`, `str`, `int`, `float`, `bool`, None; no tuple, no view, no NaN, integers of at
  most 4,300 digits), and the caller keeps no reference through which it could change; or it is the `bytes` that
  `_json_values.own` and `JsonField.take` return. It is within the limits of depth and nodes. `arguments` is an object;
  `metadata` is an object of objects, with names as its keys;
- a result has error fields if and only if it is an error;
- the message as a whole is within `Limits`. If the size of the input does not show that, call `check_size`.

If a condition is broken, `dumps` writes a message that `loads` refuses. When in doubt, use the constructor.

The functions that read without copies have these uses:

- `EMPTY`, `plain_of`: dialects and checks read the metadata of every message. Most messages have none, and a frozen view
  costs more than the read;
- `json_bytes_of`, `json_text_of`: a dialect writes arguments and results that were never parsed without parsing them;
- `house_bytes`, `stored_form`: the ledger serialises a message once, and hashes the bytes;
- `JsonField`: the protocol has JSON fields of the same kind;
- `MUCH`: the runtime measures a message only if it could be too large.

Every field counts as set. The implementation: Pydantic's schema of a model takes the result of its inner schema (the fields,
the extra fields, the names of the fields that are set) and puts it into a new instance. Here the inner schema accepts
everything. Writing the four slots from Python would be slower.
"""

# ruff: noqa: PLR0917 (pass parameters with defaults by keyword; keyword-only parameters would make a call slower)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_core import SchemaValidator, core_schema

from antiphon.messages._content import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    Modality,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
)
from antiphon.messages._message import Lane, Message, RoleHint, Usage, stored_form
from antiphon.messages._model import EMPTY, MUCH, JsonField, Model, house_bytes, json_bytes_of, json_text_of, plain_of
from antiphon.messages._settings import new_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from decimal import Decimal

__all__ = [
    "EMPTY",
    "MUCH",
    "JsonField",
    "citation",
    "data_part",
    "foreign_part",
    "house_bytes",
    "json_bytes_of",
    "json_text_of",
    "media_part",
    "message",
    "option_call_payload",
    "option_result_payload",
    "parts_payload",
    "plain_of",
    "reasoning_part",
    "stored_form",
    "text_part",
    "usage",
]

_ModelT = TypeVar("_ModelT", bound=Model)


def _maker(cls: type[_ModelT]) -> tuple[Callable[[Any], _ModelT], set[str]]:
    """Return a function from (fields, None, names of the fields that are set) to an instance, and the names of all fields."""
    # Otherwise Pydantic uses the validator that the class has already.
    validator = SchemaValidator(core_schema.model_schema(cls, core_schema.any_schema()), None, _use_prebuilt=False)
    return cast("Callable[[Any], _ModelT]", validator.validate_python), set(cls.model_fields)


_text_part, _TEXT_PART = _maker(TextPart)
_media_part, _MEDIA_PART = _maker(MediaPart)
_reasoning_part, _REASONING_PART = _maker(ReasoningPart)
_data_part, _DATA_PART = _maker(DataPart)
_foreign_part, _FOREIGN_PART = _maker(ForeignPart)
_citation, _CITATION = _maker(Citation)
_parts_payload, _PARTS_PAYLOAD = _maker(PartsPayload)
_option_call_payload, _OPTION_CALL_PAYLOAD = _maker(OptionCallPayload)
_option_result_payload, _OPTION_RESULT_PAYLOAD = _maker(OptionResultPayload)
_usage, _USAGE = _maker(Usage)
_message, _MESSAGE = _maker(Message)


# ---------------------------------------------------------------- parts


def text_part(text: str, citations: tuple[Citation, ...] = (), metadata: object = EMPTY) -> TextPart:
    fields = {"kind": "text", "text": text, "citations": citations, "metadata": metadata or EMPTY}
    return _text_part((fields, None, _TEXT_PART))


def media_part(
    modality: Modality,
    url: str,
    mime: str | None = None,
    prompt_hint: str | None = None,
    id: str | None = None,
    metadata: object = EMPTY,
) -> MediaPart:
    fields = {
        "kind": "media",
        "modality": modality,
        "url": url,
        "mime": mime,
        "prompt_hint": prompt_hint,
        "id": id,
        "metadata": metadata or EMPTY,
    }
    return _media_part((fields, None, _MEDIA_PART))


def reasoning_part(
    text: str = "", signature: str | None = None, encrypted_content: str | None = None, metadata: object = EMPTY
) -> ReasoningPart:
    fields = {
        "kind": "reasoning",
        "text": text,
        "signature": signature,
        "encrypted_content": encrypted_content,
        "metadata": metadata or EMPTY,
    }
    return _reasoning_part((fields, None, _REASONING_PART))


def data_part(data: object, metadata: object = EMPTY) -> DataPart:
    return _data_part(({"kind": "data", "data": data, "metadata": metadata or EMPTY}, None, _DATA_PART))


def foreign_part(dialect: str, value: object, metadata: object = EMPTY) -> ForeignPart:
    fields = {"kind": "foreign", "dialect": dialect, "value": value, "metadata": metadata or EMPTY}
    return _foreign_part((fields, None, _FOREIGN_PART))


def citation(
    url: str | None = None,
    title: str | None = None,
    source: str | None = None,
    quote: str | None = None,
    start: int | None = None,
    end: int | None = None,
    metadata: object = EMPTY,
) -> Citation:
    fields = {
        "url": url,
        "title": title,
        "source": source,
        "quote": quote,
        "start": start,
        "end": end,
        "metadata": metadata or EMPTY,
    }
    return _citation((fields, None, _CITATION))


# ---------------------------------------------------------------- payloads


def parts_payload(parts: tuple[Part, ...]) -> PartsPayload:
    return _parts_payload(({"kind": "parts", "parts": parts}, None, _PARTS_PAYLOAD))


def option_call_payload(
    invocation_id: str, option_name: str, arguments: Any, arguments_text: str | None = None
) -> OptionCallPayload:
    fields = {
        "kind": "option_call",
        "invocation_id": invocation_id,
        "option_name": option_name,
        "arguments": arguments or EMPTY,
        "arguments_text": arguments_text,
    }
    return _option_call_payload((fields, None, _OPTION_CALL_PAYLOAD))


def option_result_payload(
    invocation_id: str,
    option_name: str,
    result: object = None,
    parts: tuple[Part, ...] = (),
    is_error: bool = False,
    error_type: str | None = None,
    error_message: str | None = None,
    retryable: bool | None = None,
) -> OptionResultPayload:
    fields = {
        "kind": "option_result",
        "invocation_id": invocation_id,
        "option_name": option_name,
        "result": result,
        "parts": parts,
        "is_error": is_error,
        "error_type": error_type,
        "error_message": error_message,
        "retryable": retryable,
    }
    return _option_result_payload((fields, None, _OPTION_RESULT_PAYLOAD))


# ---------------------------------------------------------------- messages


def usage(
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    cache_read_tokens: int | None = None,
    cache_write_tokens: int | None = None,
    reasoning_tokens: int | None = None,
    cost: Decimal | None = None,
    metadata: object = EMPTY,
) -> Usage:
    fields = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_read_tokens": cache_read_tokens,
        "cache_write_tokens": cache_write_tokens,
        "reasoning_tokens": reasoning_tokens,
        "cost": cost,
        "metadata": metadata or EMPTY,
    }
    return _usage((fields, None, _USAGE))


def message(
    policy: str,
    payload: PartsPayload | OptionCallPayload | OptionResultPayload,
    id: str | None = None,
    role_hint_for_llm: RoleHint | None = None,
    step_num: int | None = None,
    turn_id: str | None = None,
    thread_id: str | None = None,
    to: tuple[str, ...] = (),
    lane: Lane = "talk",
    correlation_id: str | None = None,
    in_reply_to: str | None = None,
    parent_id: str | None = None,
    created_at: datetime | None = None,
    usage: Usage | None = None,
    metadata: object = EMPTY,
) -> Message:
    """Make a message; without `id`, the port makes the id."""
    fields = {
        "id": new_id() if id is None else id,
        "policy": policy,
        "payload": payload,
        "role_hint_for_llm": role_hint_for_llm,
        "step_num": step_num,
        "turn_id": turn_id,
        "thread_id": thread_id,
        "to": to,
        "lane": lane,
        "correlation_id": correlation_id,
        "in_reply_to": in_reply_to,
        "parent_id": parent_id,
        "created_at": created_at,
        "usage": usage,
        "metadata": metadata or EMPTY,
    }
    return _message((fields, None, _MESSAGE))
