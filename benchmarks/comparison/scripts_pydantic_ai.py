"""A model for Pydantic AI that says one turn after the other."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from world import asked

Call = tuple[str, str, dict[str, Any]]
Turn = str | Sequence[Call] | Callable[[str], "str | Sequence[Call]"]


def scripted(name: str, *turns: Turn) -> FunctionModel:
    """Return a model. A turn is a text, calls of tools (tool, id, arguments), or a function of what it was told last."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked(name, messages[-1].instructions)  # type: ignore[union-attr]
        turn = turns[sum(isinstance(message, ModelResponse) for message in messages)]
        said = turn(str(getattr(messages[-1].parts[-1], "content", ""))) if callable(turn) else turn
        if isinstance(said, str):
            return ModelResponse([TextPart(said)])
        return ModelResponse([ToolCallPart(tool, arguments, tool_call_id=call_id) for tool, call_id, arguments in said])

    return FunctionModel(answer, model_name=name)
