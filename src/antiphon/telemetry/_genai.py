"""Operations in the words of the OpenTelemetry GenAI conventions, which have a repository of their own.

https://github.com/open-telemetry/semantic-conventions-genai, in development: `tests/telemetry` holds us to the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind

from antiphon.messages import Usage
from antiphon.runtime import AgentOperation, ModelOperation, Operation, ToolOperation

__all__ = ["Attributes", "attributes_of", "kind_of_span", "name_of", "shared_by_metrics"]

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
    """Return the name of its span."""
    match operation:
        case ModelOperation(model=model):
            return f"chat {model}"
        case ToolOperation(name=name):
            return f"execute_tool {name}"
        case AgentOperation(name=name):
            return f"invoke_agent {name}"


def kind_of_span(operation: Operation | None) -> SpanKind:
    """Return the kind of its span: a model is elsewhere, a tool and an agent are here."""
    return SpanKind.CLIENT if isinstance(operation, ModelOperation) else SpanKind.INTERNAL


def attributes_of(operation: Operation) -> Attributes:
    """Return what is known of it that is no content."""
    match operation:
        case ModelOperation():
            return _model(operation)
        case ToolOperation():
            return _tool(operation)
        case AgentOperation():
            return _agent(operation)


def shared_by_metrics(operation: Operation) -> Attributes:
    """Return those attributes that have few values, and so may be told apart by in metrics."""
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
    return _known(
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
    """Return the host of a service and its port; nothing for what is no URL."""
    try:
        found = urlsplit(url or "")
        port = found.port
    except ValueError:
        return {}
    return {"server.address": found.hostname, "server.port": port or _PORTS.get(found.scheme)} if found.hostname else {}


def _tool(operation: ToolOperation) -> Attributes:
    return _known(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": operation.name,
            "gen_ai.tool.type": operation.type,
            "gen_ai.tool.call.id": operation.call_id,
            "gen_ai.tool.description": operation.description,
        }
    )


def _agent(operation: AgentOperation) -> Attributes:
    return _known(
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


def _known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
