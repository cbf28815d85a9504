"""What was said, as the GenAI conventions write it. Recorded only where somebody asked for it.

Each value is JSON text, which every backend can take. Bytes of media are left out: their kind is said, and where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

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
    thaw,
)
from antiphon.protocol import Reply
from antiphon.runtime import AgentOperation, ModelOperation, Operation, ToolOperation

__all__ = ["body_of", "content_of", "json_text", "outcome_text", "redacted"]


def content_of(operation: Operation) -> dict[str, str]:
    """Return what an operation was given and what came of it."""
    match operation:
        case ModelOperation(input=said, output=answered):
            reasons = operation.finish_reasons
            found = {"gen_ai.input.messages": _messages(said), "gen_ai.output.messages": _answers(answered, reasons)}
            return {name: json_text(value) for name, value in found.items() if value}
        case ToolOperation(arguments=arguments, result=result):
            given = {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": result}
            return {name: json_text(value) for name, value in given.items() if value is not None}
        case AgentOperation():
            return {}


def body_of(message: Message) -> str:
    """Return what a message says."""
    return json_text([_message(message)])


def outcome_text(outcome: Any) -> str:
    """Return what a handler returned."""
    if isinstance(outcome, Reply):
        return json_text(outcome.to_data())
    return body_of(outcome) if isinstance(outcome, Message) else json_text(outcome)


def json_text(value: Any) -> str:
    """Return JSON as text; of what is no JSON, what it calls itself."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def redacted(text: str, redaction: Redaction | None) -> str:
    """Return JSON text without what must not be stored; None: everything may be."""
    if redaction is None:
        return text
    try:
        return redaction.json(text.encode()).decode()
    except (ValueError, RecursionError):  # no JSON that the core takes, such as one that is nested too deep
        return redaction.text(text)


def _plain(value: Any) -> Any:
    return thaw(value) if isinstance(value, JsonObject | JsonArray) else type(value).__qualname__


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages as theirs: what was one utterance is one message."""
    found: list[dict[str, Any]] = []
    turn: str | None = None
    for message in messages:
        one = _message(message)
        if turn is not None and message.turn_id == turn and found[-1]["role"] == one["role"]:
            found[-1]["parts"] += one["parts"]
        else:
            found.append(one)
        turn = message.turn_id
    return found


def _answers(messages: Iterable[Message], reasons: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a model answered as theirs: with why it stopped, which is plain where nobody says so."""
    return [{**one, "finish_reason": reasons[0] if reasons else _reason(one)} for one in _messages(messages)]


def _reason(message: dict[str, Any]) -> str:
    return "tool_call" if any(part["type"] == "tool_call" for part in message["parts"]) else "stop"


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role_hint_for_llm or _role(message), "parts": _parts(message), "name": message.policy}


def _role(message: Message) -> str:
    return {"option_call": "assistant", "option_result": "tool"}.get(message.kind, "user")


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
