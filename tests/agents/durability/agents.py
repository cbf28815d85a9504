"""Agents for the tests: a scripted model, and tools that record their calls."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.usage import RequestUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import current_effect
from antiphon.ledger import Ledger

__all__ = ["Desk", "call", "clerk", "script"]


def call(tool: str, id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, tool_call_id=id)


@dataclass
class Desk:
    """What happened outside of the ledger."""

    seen: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)

    def note(self, what: str) -> None:
        self.seen.append(what)
        if (effect := current_effect()) is not None:
            self.keys[what] = effect.key

    def taken(self) -> list[str]:
        """Return the events since the last call."""
        seen, self.seen = self.seen, []
        return seen


Turn = Sequence[ToolCallPart | TextPart | str]


def script(desk: Desk, *turns: Turn | BaseException, name: str = "script") -> FunctionModel:
    """Return a model that gives one turn after the other, by how many answers the prompt has; `{out}` is the output tool."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        desk.note(f"model {number}")
        turn = turns[number % len(turns)]
        if isinstance(turn, BaseException):
            raise turn
        parts = [TextPart(part) if isinstance(part, str) else part for part in turn]
        return ModelResponse(parts, usage=RequestUsage(input_tokens=100, output_tokens=10), model_name="gpt-4o")

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for index, part in enumerate(answer(messages, info).parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield f"{word} "
            elif isinstance(part, ToolCallPart):
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    return FunctionModel(answer, stream_function=stream, model_name=name)


def clerk(ledger: Ledger | str, desk: Desk, model: FunctionModel, **more: Any) -> Agent[None, Any]:
    """Return an agent with a tool of each kind."""
    durability = {name: more.pop(name) for name in ("effects", "reconcile", "event_stream_handler") if name in more}
    agent: Agent[None, Any] = Agent(
        model, name="clerk", capabilities=[LedgerDurability(ledger, **durability)], **{"output_type": str, **more}
    )

    @agent.tool_plain
    async def refund(amount: int) -> str:
        """Must not be done twice."""
        desk.note(f"refund {amount}")
        return f"refunded {amount}"

    @agent.tool_plain(metadata={"antiphon": {"effects": "idempotent"}})
    async def reserve(what: str) -> dict[str, Any]:
        """May be done twice under the same key."""
        desk.note(f"reserve {what}")
        return {"reserved": what}

    @agent.tool_plain(metadata={"antiphon": {"effects": "none"}})
    def look(what: str) -> list[Any]:
        """Only looks."""
        desk.note(f"look {what}")
        return [what, 1.5, None]

    @agent.tool_plain
    async def flaky(number: int) -> str:
        """Wants to be called again, the first time."""
        desk.note(f"flaky {number}")
        if number == 1:
            raise ModelRetry("with another number, please")
        return "fine"

    return agent
