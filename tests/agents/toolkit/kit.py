"""What the tests of the toolkit share: models that follow a script, an agent for them, and a clock that can be set."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger
from antiphon.messages import DataPart, Message, OptionCallPayload, OptionResultPayload, PartsPayload, thaw

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class SetClock:
    """A port whose time stands still until it is moved."""

    time: datetime = NOON
    made: int = 0

    def new_id(self) -> str:
        self.made += 1
        return f"id-{self.made}"

    def now(self) -> datetime:
        return self.time

    def move(self, **by: float) -> None:
        self.time += timedelta(**by)


@dataclass
class Witness:
    """What was really done, as recorded by the tools themselves."""

    done: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])

    def names(self) -> list[str]:
        return [name for name, _ in self.done]


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=id)


def script(*turns: Sequence[ToolCallPart]) -> FunctionModel:
    """Return a model that makes these calls, turn by turn, and then reports their results."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=list(turns[turn])) if turn < len(turns) else ModelResponse(parts=[TextPart("done")])

    return FunctionModel(answer)


def returns(messages: Sequence[ModelMessage]) -> list[tuple[str, Any]]:
    """Return what the model was told of its calls."""
    parts = [part for message in messages for part in message.parts]
    return [(part.outcome, part.content) for part in parts if isinstance(part, ToolReturnPart)]


async def run_agent(
    toolkit: Toolkit,
    model: FunctionModel,
    *,
    ledger: Ledger | None = None,
    thread: str = "t",
    agent: str = "clerk",
    **more: Any,
) -> list[tuple[str, Any]]:
    """Run an agent with its tools of a toolkit, in a ledger if there is one, and return what its model got."""
    made = Agent(model, name=agent, capabilities=[toolkit.capability(agent)])
    if ledger is None:
        return returns((await made.run("go", **more)).all_messages())
    async with ledger_run(thread, ledger=ledger):
        return returns((await made.run("go", **more)).all_messages())


async def rows(ledger: Ledger, thread: str = "t") -> list[Message]:
    return [record.message async for record in ledger.read(thread)]


async def noted(ledger: Ledger, type: str, thread: str = "t", tool: str | None = None) -> list[dict[str, Any]]:
    """Return what the toolkit has written down in a thread, of one type, perhaps about one tool."""
    said = [_data(message) for message in await rows(ledger, thread)]
    return [each for each in said if each.get("type") == type and tool in (None, each.get("tool"))]


def _data(message: Message) -> dict[str, Any]:
    payload = message.payload
    if message.lane == "control" and isinstance(payload, PartsPayload) and isinstance(payload.parts[0], DataPart):
        return thaw(payload.parts[0].data)
    return {}


def started(messages: Sequence[Message], tool: str) -> int:
    """Return how many intents to start a tool a thread has."""
    calls = [message.payload for message in messages if message.lane == "effect"]
    return sum(isinstance(payload, OptionCallPayload) and payload.option_name == tool for payload in calls)


def failure(payload: OptionResultPayload) -> tuple[str | None, str | None]:
    return payload.error_type, payload.error_message
