"""Minds for the tests: models that do what they are told, and note what they were told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.dialects.atlas import StructuredMessage

__all__ = ["Told", "asking", "calling", "got", "prompt", "saying"]


@dataclass
class Told:
    """What a model was told, request by request."""

    instructions: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    tools: list[list[str]] = field(default_factory=list)


def prompt(messages: Sequence[ModelMessage]) -> str:
    """Return what the user said last."""
    parts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    return str(parts[-1].content)


def got(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return what tools have given so far."""
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def saying(answer: Callable[[list[ModelMessage], AgentInfo], ModelResponse | str], told: Told | None = None) -> FunctionModel:
    """Return a model that answers by a function."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if told is not None:
            told.instructions.append(info.instructions or "")
            told.prompts.append(prompt(messages))
            told.tools.append([tool.name for tool in info.function_tools])
        said = answer(messages, info)
        return ModelResponse([TextPart(said)]) if isinstance(said, str) else said

    return FunctionModel(respond, model_name="tests")


def calling(*calls: tuple[str, dict[str, Any]], then: str = "Done.", told: Told | None = None) -> FunctionModel:
    """Return a model that calls tools at once, and then says something."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse | str:
        if got(messages):
            return then.format(*got(messages))
        return ModelResponse([ToolCallPart(name, given, tool_call_id=f"c{n}") for n, (name, given) in enumerate(calls, 1)])

    return saying(answer, told)


def asking(content: str = "go", **calls: dict[str, Any]) -> StructuredMessage:
    """Return a task that asks for tools, each by its name."""
    message = StructuredMessage.create_task(content, "controller", "worker", task_id="task-1")
    for name, arguments in calls.items():
        message.add_tool_call(name, arguments, f"call-{name}")
    return message
