"""Raw Pydantic: antiphon's fields as a frozen discriminated union, without one of its checks.

The models are generic in what they say where antiphon says JSON: `Any`, which looks at nothing, or `JsonValue`, which is what
plain Pydantic offers for "JSON and nothing else".
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from benchmarks._messages import Case
from benchmarks.peers._work import Vocabulary, Work

__all__ = ["work", "work_json_value"]

JsonT = TypeVar("JsonT")


class _Model(BaseModel, Generic[JsonT]):
    model_config = ConfigDict(frozen=True)


class Citation(_Model[JsonT]):
    url: str | None = None
    title: str | None = None
    source: str | None = None
    quote: str | None = None
    start: int | None = None
    end: int | None = None
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


class TextPart(_Model[JsonT]):
    kind: Literal["text"] = "text"
    text: str
    citations: tuple[Citation[JsonT], ...] = ()
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


class MediaPart(_Model[JsonT]):
    kind: Literal["media"] = "media"
    modality: Literal["image", "audio", "video", "document"]
    url: str
    mime: str | None = None
    prompt_hint: str | None = None
    id: str | None = None
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


class ReasoningPart(_Model[JsonT]):
    kind: Literal["reasoning"] = "reasoning"
    text: str = ""
    signature: str | None = None
    encrypted_content: str | None = None
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


class DataPart(_Model[JsonT]):
    kind: Literal["data"] = "data"
    data: JsonT
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


class ForeignPart(_Model[JsonT]):
    kind: Literal["foreign"] = "foreign"
    dialect: str
    value: JsonT
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


Part: TypeAlias = Annotated[
    TextPart[JsonT] | MediaPart[JsonT] | ReasoningPart[JsonT] | DataPart[JsonT] | ForeignPart[JsonT],
    Field(discriminator="kind"),
]


class PartsPayload(_Model[JsonT]):
    kind: Literal["parts"] = "parts"
    parts: tuple[Part, ...]


class OptionCallPayload(_Model[JsonT]):
    kind: Literal["option_call"] = "option_call"
    invocation_id: str
    option_name: str
    arguments: dict[str, JsonT]
    arguments_text: str | None = None


class OptionResultPayload(_Model[JsonT]):
    kind: Literal["option_result"] = "option_result"
    invocation_id: str
    option_name: str
    result: JsonT = None  # type: ignore[assignment]
    parts: tuple[Part, ...] = ()
    is_error: bool = False
    error_type: str | None = None
    error_message: str | None = None
    retryable: bool | None = None


class Usage(_Model[JsonT]):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: Decimal | None = None
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


class Message(_Model[JsonT]):
    id: str
    policy: str
    payload: Annotated[
        PartsPayload[JsonT] | OptionCallPayload[JsonT] | OptionResultPayload[JsonT], Field(discriminator="kind")
    ]
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
    usage: Usage[JsonT] | None = None
    metadata: dict[str, dict[str, JsonT]] = Field(default_factory=dict)


def work(case: Case) -> Work:
    return _work(case, Any)


def work_json_value(case: Case) -> Work:
    return _work(case, JsonValue)


def _work(case: Case, json: Any) -> Work:
    vocabulary = Vocabulary(
        message=Message[json],
        payloads={
            "parts": PartsPayload[json],
            "option_call": OptionCallPayload[json],
            "option_result": OptionResultPayload[json],
        },
        parts={"text": TextPart[json], "media": MediaPart[json]},
    )

    def construct() -> list[Any]:
        return [vocabulary.build(said) for said in case.messages]

    if case.is_stream:
        return _stream(construct(), TypeAdapter(list[Message[json]]), construct)
    return _singles(construct(), TypeAdapter(Message[json]), construct)


def _stream(made: list[Any], adapter: TypeAdapter[Any], construct: Any) -> Work:
    data = adapter.dump_json(made, exclude_none=True)
    loaded = adapter.validate_json(data)
    return Work(construct, lambda: adapter.dump_json(loaded, exclude_none=True), lambda: adapter.validate_json(data))


def _singles(made: list[Any], adapter: TypeAdapter[Any], construct: Any) -> Work:
    lines = [adapter.dump_json(each, exclude_none=True) for each in made]
    loaded = [adapter.validate_json(line) for line in lines]
    return Work(
        construct,
        lambda: [adapter.dump_json(each, exclude_none=True) for each in loaded],
        lambda: [adapter.validate_json(line) for line in lines],
    )
