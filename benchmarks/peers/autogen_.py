"""autogen-core: `LLMMessage` through a Pydantic adapter. It has no ids, times or threads; arguments and results are strings.

It cannot read a list of text and images back from JSON, so it has no row for such messages.
"""

from __future__ import annotations

from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from pydantic import TypeAdapter

from benchmarks._messages import Case, Said, as_text, turns
from benchmarks.peers._work import Work

__all__ = ["work"]

_ADAPTER: TypeAdapter[list[LLMMessage]] = TypeAdapter(list[LLMMessage])


def work(case: Case) -> Work | None:
    if any(len(said["content"].get("parts", ())) > 1 for said in case.messages):
        return None
    groups = [(group[0], [_fields(said) for said in group]) for group in turns(case.messages)]

    def construct() -> list[LLMMessage]:
        return [_message(first, fields) for first, fields in groups]

    data = _ADAPTER.dump_json(construct())
    loaded = _ADAPTER.validate_json(data)
    return Work(construct, lambda: _ADAPTER.dump_json(loaded), lambda: _ADAPTER.validate_json(data))


def _fields(said: Said) -> dict[str, Any]:
    content = said["content"]
    match said["kind"]:
        case "option_call":
            return {"id": content["invocation_id"], "arguments": as_text(content["arguments"]), "name": content["option_name"]}
        case "option_result":
            answered = {"name": content["option_name"], "call_id": content["invocation_id"], "is_error": False}
            return {"content": as_text(content["result"]), **answered}
        case _:
            return {"content": content["parts"][0]["fields"]["text"], "source": said["envelope"]["policy"]}


def _message(first: Said, fields: list[dict[str, Any]]) -> LLMMessage:
    match first["kind"]:
        case "option_call":
            return AssistantMessage(content=[FunctionCall(**each) for each in fields], source="assistant")
        case "option_result":
            return FunctionExecutionResultMessage(content=[FunctionExecutionResult(**each) for each in fields])
        case _:
            return UserMessage(**fields[0])
