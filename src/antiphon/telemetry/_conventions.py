"""Names, attributes and content of spans and metrics, as the OpenTelemetry GenAI conventions write them.

The conventions are at https://github.com/open-telemetry/semantic-conventions-genai, in development; `tests/telemetry` checks
the names. The content of messages, tools and models is recorded only with `record_content`. Each such value is JSON text,
which every backend accepts. The bytes of media are not recorded, only their kind and their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import orjson
from opentelemetry.trace import SpanKind

from antiphon.ledger import Redaction
from antiphon.messages import (
    DataPart,
    ForeignPart,
    Json,
    JsonArray,
    JsonObject,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Usage,
    thaw,
)
from antiphon.protocol import Reply
from antiphon.runtime import AgentOperation, ModelOperation, Operation, RunOperation, ToolOperation

# ---------------------------------------------------------------- our own attributes

ADDRESS: Final = "antiphon.actor.address"
KIND: Final = "antiphon.actor.kind"
MESSAGE_ID: Final = "antiphon.message.id"
MESSAGE_TYPE: Final = "antiphon.message.type"
SENDER: Final = "antiphon.message.sender"
ATTEMPT: Final = "antiphon.message.attempt"
MESSAGE: Final = "antiphon.message.body"
RESULT: Final = "antiphon.message.result"
TAG: Final = "antiphon.message."
"""The prefix of the names of tags."""
THREAD_ID: Final = "antiphon.thread.id"
EFFECT_KEY: Final = "antiphon.effect.key"
EFFECTS: Final = "antiphon.effect.effects"
EFFECT_ARGUMENTS: Final = "antiphon.effect.arguments"
EFFECT_RESULT: Final = "antiphon.effect.result"
DONE: Final = "antiphon.effects.done"
REPLAYED: Final = "antiphon.effects.replayed"
RUN_NAME: Final = "antiphon.run.name"
RUN_ID: Final = "antiphon.run.id"
RUN_ATTEMPT: Final = "antiphon.run.attempt"
IS_REPLAY: Final = "antiphon.replayed"
CODE: Final = "antiphon.dead_letter.code"
CONVERSATION: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"


# ---------------------------------------------------------------- operations

Attributes: TypeAlias = dict[str, "str | int | float | bool | Sequence[str]"]

_SETTINGS = {
    "choice_count": "gen_ai.request.choice.count",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "stop_sequences": "gen_ai.request.stop_sequences",
    "stream": "gen_ai.request.stream",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}
_PORTS = {"http": 80, "https": 443}
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}


def name_of(operation: Operation) -> str:
    """Return the name of the span of an operation."""
    match operation:
        case ModelOperation(model=model):
            return f"chat {model}"
        case ToolOperation(name=name):
            return f"execute_tool {name}"
        case AgentOperation(name=name):
            return f"invoke_agent {name}"
        case RunOperation(name=name):
            return f"ledger_run {name}"


def kind_of_span(operation: Operation | None) -> SpanKind:
    """Return the kind of the span: client for a model, which is remote; internal for a tool, an agent and a run."""
    return SpanKind.CLIENT if isinstance(operation, ModelOperation) else SpanKind.INTERNAL


def attributes_of(operation: Operation) -> Attributes:
    """Return the known attributes of an operation, without content."""
    match operation:
        case ModelOperation():
            return _model(operation)
        case ToolOperation():
            return _tool(operation)
        case AgentOperation():
            return _agent(operation)
        case RunOperation():
            replay = True if operation.is_replay else None
            run = {RUN_NAME: operation.name, RUN_ID: operation.id, RUN_ATTEMPT: operation.attempt, IS_REPLAY: replay}
            return _present(run)


def shared_by_metrics(operation: Operation) -> Attributes:
    """Return the attributes that metrics have too: those with few values."""
    few = {
        "gen_ai.agent.name",
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "gen_ai.tool.name",
        "gen_ai.tool.type",
    }
    return {name: value for name, value in attributes_of(operation).items() if name in few}


def _model(operation: ModelOperation) -> Attributes:
    settings = {_SETTINGS[name]: value for name, value in operation.settings.items() if name in _SETTINGS}
    return _present(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": operation.provider or None,
            "gen_ai.request.model": operation.model,
            "gen_ai.response.model": operation.response_model,
            "gen_ai.response.id": operation.response_id,
            "gen_ai.response.finish_reasons": tuple(operation.finish_reasons) or None,
            **settings,
            **_server(operation.url),
            **_used(operation.usage),
        }
    )


def _server(url: str | None) -> dict[str, str | int | None]:
    """Return the host and the port of a service; empty if the text is not a URL."""
    try:
        parts = urlsplit(url or "")
        port = parts.port
    except ValueError:
        return {}
    return {"server.address": parts.hostname, "server.port": port or _PORTS.get(parts.scheme)} if parts.hostname else {}


def _tool(operation: ToolOperation) -> Attributes:
    return _present(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": operation.name,
            "gen_ai.tool.type": operation.type,
            "gen_ai.tool.call.id": operation.call_id,
            "gen_ai.tool.description": operation.description,
        }
    )


def _agent(operation: AgentOperation) -> Attributes:
    return _present(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": operation.provider or None,
            "gen_ai.agent.name": operation.name,
            "gen_ai.agent.id": operation.id,
            "gen_ai.agent.description": operation.description,
            "gen_ai.request.model": operation.model,
            **_used(operation.usage),
        }
    )


def _used(usage: Usage | None) -> dict[str, int | None]:
    return {} if usage is None else {ours: getattr(usage, name) for name, ours in _USAGE.items()}


def _present(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


# ---------------------------------------------------------------- content


def content_of(operation: Operation) -> dict[str, str]:
    """Return the input and the output of an operation."""
    match operation:
        case ModelOperation(input=asked, output=answered):
            reasons = operation.finish_reasons
            content = {"gen_ai.input.messages": _messages(asked), "gen_ai.output.messages": _answers(answered, reasons)}
            return {name: json_text(value) for name, value in content.items() if value}
        case ToolOperation(arguments=arguments, result=result):
            values = {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": result}
            return {name: json_text(value) for name, value in values.items() if value is not None}
        case AgentOperation() | RunOperation():
            return {}


def body_of(message: Message) -> str:
    """Return the content of a message."""
    return json_text([_message(message)])


def outcome_text(outcome: object) -> str:
    """Return the outcome of a handler as text."""
    if isinstance(outcome, Reply):
        return json_text(outcome.to_data())
    return body_of(outcome) if isinstance(outcome, Message) else json_text(outcome)


def json_text(value: object) -> str:
    """Return a value as JSON text; a part of it that is not JSON is replaced by the name of its class."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def redacted(text: str, redaction: Redaction | None) -> str:
    """Return JSON text without secrets; if `redaction` is None, the text is returned unchanged."""
    if redaction is None:
        return text
    try:
        return redaction.json(text.encode()).decode()
    except (ValueError, RecursionError):  # JSON that the core refuses, such as a value that is nested too deep
        return redaction.text(text)


def _plain(value: object) -> Any:
    return thaw(value) if isinstance(value, JsonObject | JsonArray) else type(value).__qualname__


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in the form of the conventions: one utterance is one message."""
    utterances: list[dict[str, Any]] = []
    turn: str | None = None
    for message in messages:
        one = _message(message)
        if turn is not None and message.turn_id == turn and utterances[-1]["role"] == one["role"]:
            utterances[-1]["parts"] += one["parts"]
        else:
            utterances.append(one)
        turn = message.turn_id
    return utterances


def _answers(messages: Iterable[Message], reasons: Sequence[str]) -> list[dict[str, Any]]:
    """Return the answers of a model with their finish reason: the provider's, else derived from the parts."""
    answers = _messages(messages)
    for answer in answers:
        derived = "tool_call" if any(part["type"] == "tool_call" for part in answer["parts"]) else "stop"
        answer["finish_reason"] = reasons[0] if reasons else derived
    return answers


def _message(message: Message) -> dict[str, Any]:
    role = message.role_hint_for_llm or {"option_call": "assistant", "option_result": "tool"}.get(message.kind, "user")
    return {"role": role, "parts": _parts(message), "name": message.policy}


def _parts(message: Message) -> list[dict[str, Any]]:
    match message.payload:
        case PartsPayload(parts=parts):
            return [_part(part) for part in parts]
        case OptionCallPayload() as call:
            arguments = thaw(call.arguments) if call.arguments_text is None else call.arguments_text
            return [{"type": "tool_call", "id": call.invocation_id, "name": call.option_name, "arguments": arguments}]
        case OptionResultPayload() as result:
            response: Json = result.error_message if result.is_error else thaw(result.result)
            shown = [{"type": "tool_call_response", "id": result.invocation_id, "response": response}]
            return shown + [_part(part) for part in result.parts]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text=text):
            return {"type": "text", "content": text}
        case ReasoningPart(text=text):
            return {"type": "reasoning", "content": text}
        case MediaPart(modality=modality, url=url, mime=mime):
            where = {} if url.startswith("data:") else {"uri": url}
            return {"type": "uri" if where else "blob", "modality": modality, "mime_type": mime, **where}
        case DataPart(data=data):
            return {"type": "data", "content": thaw(data)}
        case ForeignPart(dialect=dialect, value=value):
            return {"type": dialect, "content": thaw(value)}
