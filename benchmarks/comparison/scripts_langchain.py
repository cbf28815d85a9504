"""A chat model for LangGraph that says one turn after the other: the same turns as in `scripts_pydantic_ai.py`."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from world import asked

Call = tuple[str, str, dict[str, Any]]
Turn = str | Sequence[Call] | Callable[[str], "str | Sequence[Call]"]


class Scripted(BaseChatModel):
    name: str
    turns: tuple[Any, ...]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        asked(self.name, next((str(each.content) for each in messages if isinstance(each, SystemMessage)), None))
        turn = self.turns[sum(isinstance(message, AIMessage) for message in messages)]
        said = turn(str(messages[-1].content)) if callable(turn) else turn
        if isinstance(said, str):
            message = AIMessage(said)
        else:
            message = AIMessage("", tool_calls=[{"name": tool, "id": call_id, "args": given} for tool, call_id, given in said])
        return ChatResult(generations=[ChatGeneration(message=message)])


def scripted(name: str, *turns: Turn) -> Scripted:
    return Scripted(name=name, turns=turns)
