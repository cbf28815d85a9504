"""msgspec: antiphon's fields as frozen tagged-union structs. It checks types and nothing else, and marks the limit."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec

from benchmarks._messages import Case
from benchmarks.peers._work import Vocabulary, Work

__all__ = ["work"]

Metadata: TypeAlias = dict[str, dict[str, Any]]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class _Tagged(_Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    pass


class Citation(_Struct, frozen=True, kw_only=True):
    url: str | None = None
    title: str | None = None
    source: str | None = None
    quote: str | None = None
    start: int | None = None
    end: int | None = None
    metadata: Metadata = {}


class TextPart(_Tagged, frozen=True, kw_only=True, tag="text"):
    text: str
    citations: tuple[Citation, ...] = ()
    metadata: Metadata = {}


class MediaPart(_Tagged, frozen=True, kw_only=True, tag="media"):
    modality: Literal["image", "audio", "video", "document"]
    url: str
    mime: str | None = None
    prompt_hint: str | None = None
    id: str | None = None
    metadata: Metadata = {}


class ReasoningPart(_Tagged, frozen=True, kw_only=True, tag="reasoning"):
    text: str = ""
    signature: str | None = None
    encrypted_content: str | None = None
    metadata: Metadata = {}


class DataPart(_Tagged, frozen=True, kw_only=True, tag="data"):
    data: Any
    metadata: Metadata = {}


class ForeignPart(_Tagged, frozen=True, kw_only=True, tag="foreign"):
    dialect: str
    value: Any
    metadata: Metadata = {}


Part: TypeAlias = TextPart | MediaPart | ReasoningPart | DataPart | ForeignPart


class PartsPayload(_Tagged, frozen=True, kw_only=True, tag="parts"):
    parts: tuple[Part, ...]


class OptionCallPayload(_Tagged, frozen=True, kw_only=True, tag="option_call"):
    invocation_id: str
    option_name: str
    arguments: dict[str, Any]
    arguments_text: str | None = None


class OptionResultPayload(_Tagged, frozen=True, kw_only=True, tag="option_result"):
    invocation_id: str
    option_name: str
    result: Any = None
    parts: tuple[Part, ...] = ()
    is_error: bool = False
    error_type: str | None = None
    error_message: str | None = None
    retryable: bool | None = None


class Usage(_Struct, frozen=True, kw_only=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: Decimal | None = None
    metadata: Metadata = {}


class Message(_Struct, frozen=True, kw_only=True):
    id: str
    policy: str
    payload: PartsPayload | OptionCallPayload | OptionResultPayload
    role_hint_for_llm: Literal["user", "assistant", "tool", "system"] | None = None
    step_num: int | None = None
    turn_id: str | None = None
    thread_id: str | None = None
    to: tuple[str, ...] = ()
    lane: Literal["talk", "control", "effect"] = "talk"
    correlation_id: str | None = None
    in_reply_to: str | None = None
    parent_id: str | None = None
    created_at: datetime | None = None
    usage: Usage | None = None
    metadata: Metadata = {}


_VOCABULARY = Vocabulary(
    message=Message,
    payloads={"parts": PartsPayload, "option_call": OptionCallPayload, "option_result": OptionResultPayload},
    parts={"text": TextPart, "media": MediaPart},
)


def work(case: Case) -> Work:
    def construct() -> list[Message]:
        return [_VOCABULARY.build(said) for said in case.messages]

    encode = msgspec.json.Encoder().encode
    if case.is_stream:
        decode_all = msgspec.json.Decoder(list[Message]).decode
        data = encode(construct())
        loaded = decode_all(data)
        return Work(construct, lambda: encode(loaded), lambda: decode_all(data))
    decode = msgspec.json.Decoder(Message).decode
    lines = [encode(each) for each in construct()]
    singles = [decode(line) for line in lines]
    return Work(construct, lambda: [encode(each) for each in singles], lambda: [decode(line) for line in lines])
