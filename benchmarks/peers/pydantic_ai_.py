"""pydantic-ai: `ModelMessagesTypeAdapter` over its own messages. Two calls are one response, two results one request."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from benchmarks._messages import Case, Said, turns
from benchmarks.peers._work import Work

__all__ = ["messages", "work"]


def messages(case: Case) -> list[ModelMessage]:
    """Make the case's messages."""
    return [_message(group) for group in turns(case.messages)]


def work(case: Case) -> Work:
    groups = turns(case.messages)

    def construct() -> list[ModelMessage]:
        return [_message(group) for group in groups]

    data = ModelMessagesTypeAdapter.dump_json(construct())
    loaded = ModelMessagesTypeAdapter.validate_json(data)
    return Work(
        construct,
        lambda: ModelMessagesTypeAdapter.dump_json(loaded),
        lambda: ModelMessagesTypeAdapter.validate_json(data),
    )


def _message(group: list[Said]) -> ModelMessage:
    envelope = group[0]["envelope"]
    common = {"timestamp": envelope["created_at"], "conversation_id": envelope["thread_id"], "run_id": envelope["turn_id"]}
    if group[0]["kind"] == "option_call":
        return ModelResponse([_call(said) for said in group], **common)
    return ModelRequest([_asked(said) for said in group], **common)


def _call(said: Said) -> ToolCallPart:
    content = said["content"]
    return ToolCallPart(content["option_name"], content["arguments"], content["invocation_id"])


def _asked(said: Said) -> ToolReturnPart | UserPromptPart:
    content, time = said["content"], said["envelope"]["created_at"]
    if said["kind"] == "option_result":
        return ToolReturnPart(content["option_name"], content["result"], content["invocation_id"], timestamp=time)
    parts = [_part(part["fields"]) for part in content["parts"]]
    return UserPromptPart(parts[0] if len(parts) == 1 else parts, timestamp=time)


def _part(fields: dict[str, Any]) -> Any:
    return fields["text"] if "text" in fields else ImageUrl(fields["url"], media_type=fields["mime"], identifier=fields["id"])
