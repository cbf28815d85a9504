"""What a provider's own types say about a body that we wrote, with unknown keys refused at every depth.

The SDKs' types are more lenient than a service is: answers accept any extra key, a list of messages is read only when someone
looks, a part of Gemini's takes `"true"` for true and `mime_type` for `mimeType`. So the validators are built here, from the
same types without the leniency: by `_tightened` and the arguments in `problems`.
"""

import json
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator
from tests.clock import shared_work
from tests.providers.clients import google_genai
from tests.providers.faults import faults
from tests.providers.samples import Kind
from typing_extensions import TypedDict

__all__ = ["as_request", "differences", "in_one_spelling", "problems", "pydantic_ai_load_dump"]

_HISTORY_KEY = {"openai-chat": "messages", "openai-responses": "input", "anthropic-messages": "messages", "gemini": "contents"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "openai-chat": {"model": "some-model"},
    "openai-responses": {"model": "some-model"},
    "anthropic-messages": {"model": "some-model", "max_tokens": 64},
}


def problems(dialect: str, kind: Kind, body: Any) -> list[str]:
    """Return what the provider's types have against `body`: one sentence a fault, beginning with where it is.

    `body` is plain JSON: a request body, a response body or a list of stream events; for Pydantic AI a list of messages.
    """
    try:
        text = _json(body)
    except ValueError as error:
        return [f"body: {error}"]
    if dialect == "pydantic-ai":
        return _pydantic_ai_problems(kind, body)
    validator = _validator(dialect, kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            validator.validate_json(text, strict=True, extra="forbid", by_alias=True, by_name=False)
        except ValidationError as error:
            return faults(error, body)
    # google-genai warns of an unknown name of an enum, and takes it.
    return [str(each.message) for each in caught]


def as_request(dialect: str, value: Any) -> Any:
    """Return a whole request around what carries a conversation: a bare list, or a body without the caller's own settings."""
    if dialect == "pydantic-ai":
        return value
    body = {_HISTORY_KEY[dialect]: value} if isinstance(value, list) else value
    return {**_SETTINGS.get(dialect, {}), **body}


def in_one_spelling(dialect: str, kind: Kind, body: Any) -> Any:
    """Return the same data as its service would understand it.

    Gemini's client writes `mime_type` beside `thoughtSignature` and the URL-safe base64; the service takes either of each.
    """
    if dialect != "gemini":
        return body
    adapter = _adapter(dialect, kind)
    return adapter.dump_python(adapter.validate_json(_json(body)), mode="json", by_alias=True, exclude_unset=True)


def pydantic_ai_load_dump(messages: Any, kind: Kind = "request") -> Any:
    """Load stored messages (or stream events) with Pydantic AI's own adapter, and return what it writes for them."""
    adapter = _pydantic_ai_adapter(kind)
    return adapter.dump_python(adapter.validate_json(_json(messages)), mode="json")


def differences(expected: Any, actual: Any, where: str = "$") -> list[str]:
    """Return where two JSON values differ as data: the order of keys means nothing, `1`, `1.0` and `true` are three values."""
    if type(expected) is not type(actual):
        return [f"{where}: {expected!r} became {actual!r}"]
    if isinstance(expected, dict):
        return [*_different_members(expected, actual, where)]
    if isinstance(expected, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [each for index, (one, other) in pairs for each in differences(one, other, f"{where}[{index}]")]
    return [] if expected == actual else [f"{where}: {expected!r} became {actual!r}"]


def _json(body: Any) -> bytes:
    """Raises: ValueError for what no provider can be sent: infinity, and halves of a surrogate pair."""
    return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()


def _different_members(expected: dict[str, Any], actual: dict[str, Any], where: str) -> Iterator[str]:
    for key in expected.keys() - actual.keys():
        yield f"{where}.{key}: was lost"
    for key in actual.keys() - expected.keys():
        yield f"{where}.{key}: came in addition"
    for key in expected.keys() & actual.keys():
        yield from differences(expected[key], actual[key], f"{where}.{key}")


def _pydantic_ai_problems(kind: Kind, body: Any) -> list[str]:
    try:
        return differences(body, pydantic_ai_load_dump(body, kind))
    except ValidationError as error:
        return faults(error, body)


@cache
@shared_work()
def _validator(dialect: str, kind: Kind) -> SchemaValidator:
    # A model that was used before has a validator, which would be taken instead of ours.
    return SchemaValidator(_tightened(_adapter(dialect, kind).core_schema), _use_prebuilt=False)


@cache
@shared_work()
def _adapter(dialect: str, kind: Kind) -> TypeAdapter[Any]:
    adapter = TypeAdapter(_type_of(dialect, kind))
    adapter.rebuild(force=True)  # the SDKs put this off until a model is used
    return adapter


def _tightened(schema: Any) -> Any:
    """Return a core schema that reads every list at once, and no model by its own constructor."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_tightened, schema))
    if not isinstance(schema, dict):
        return schema
    if _only_logs(schema):
        return _tightened(schema["schema"])
    tight = {key: value if key in {"metadata", "serialization"} else _tightened(value) for key, value in schema.items()}
    if tight.get("type") == "generator":
        tight["type"] = "list"
    if tight.get("type") == "model":
        tight["custom_init"] = False
    return tight


def _only_logs(schema: dict[str, Any]) -> bool:
    """Google's check before each model only logs, but after it JSON is no longer read as JSON: base64 would be any text."""
    return schema.get("type") == "function-before" and (
        schema["function"]["function"].__name__ == "_check_field_type_mismatches"
    )


def _type_of(dialect: str, kind: Kind) -> Any:
    family = {
        "openai-chat": _openai_chat,
        "openai-responses": _openai_responses,
        "anthropic-messages": _anthropic,
        "gemini": _gemini,
    }
    request, response, event = family[dialect]()
    return {"request": request, "response": response, "stream": list[event]}[kind]


def _openai_chat() -> tuple[Any, Any, Any]:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    return CompletionCreateParamsNonStreaming, ChatCompletion, ChatCompletionChunk


def _openai_responses() -> tuple[Any, Any, Any]:
    from openai.types.responses import Response, ResponseStreamEvent
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    return ResponseCreateParamsNonStreaming, Response, ResponseStreamEvent


def _anthropic() -> tuple[Any, Any, Any]:
    from anthropic.types import Message, RawMessageStreamEvent
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    return MessageCreateParamsNonStreaming, Message, RawMessageStreamEvent


def _gemini() -> tuple[Any, Any, Any]:
    """The SDK has no type for a whole request body: its keys are those that its client writes, each of the SDK's type."""
    types = google_genai().types

    class GenerateContentRequest(TypedDict, total=False):
        contents: Required[list[types.Content]]
        systemInstruction: types.Content
        tools: list[types.Tool]
        toolConfig: types.ToolConfig
        generationConfig: types.GenerationConfig
        safetySettings: list[types.SafetySetting]
        cachedContent: str
        labels: dict[str, str]
        serviceTier: types.ServiceTier
        store: bool

    return GenerateContentRequest, types.GenerateContentResponse, types.GenerateContentResponse


@cache
@shared_work()
def _pydantic_ai_adapter(kind: Kind) -> TypeAdapter[Any]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponseStreamEvent

    return TypeAdapter(list[ModelResponseStreamEvent]) if kind == "stream" else ModelMessagesTypeAdapter
