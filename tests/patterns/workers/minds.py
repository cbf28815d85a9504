"""Models for the tests that follow orders and record their prompts; and the ledger that a killed process leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.dialects.atlas import StructuredMessage
from antiphon.ledger import Ledger, heads_of
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import current_port
from antiphon.messages._keys import kind_of

__all__ = ["Bench", "Told", "asking", "calling", "got", "left_by_a_kill", "prompt", "saying"]


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


class Bench:
    """A model that notes what it begins with, and goes on when it is told to."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.begun: list[str] = []
        self.came, self.go_on = asyncio.Event(), asyncio.Event()
        if is_open:
            self.go_on.set()

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.begun.append(prompt(messages).splitlines()[0])
        self.came.set()
        await self.go_on.wait()
        return ModelResponse([TextPart("Done.")])

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._answer)


async def left_by_a_kill(ledger: Ledger, left: Ledger | None = None, *, hours: int = 0) -> Ledger:
    """Return the ledger that a process leaves behind which is killed now, as it is found some hours later."""
    left, past = left or MemoryLedger(), timedelta(hours=hours)
    for head in await heads_of(ledger):
        found = [record.message async for record in ledger.read(head.thread_id)]
        rows = [row.model_copy(update={"created_at": row.created_at and row.created_at - past}) for row in found]
        epoch = await left.claim(head.thread_id, kind=kind_of(next(row.to[0] for row in rows if row.to)))
        await left.append(head.thread_id, rows, epoch=epoch, pattern="workers", allow_foreign=True)
        await left.release(head.thread_id, epoch=epoch, wake_at=current_port().now())
    return left
