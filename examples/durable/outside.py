"""What the durable examples share: the world outside of them, a model that needs no network, and a way to start them.

`Outside` stands for a bank or a booking system. It remembers what was done by its idempotency key, as such services do. So a
program that was killed in the middle of a call can ask whether it was done (`reconcile`).
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage, RunUsage

from antiphon import open_ledger
from antiphon.agents import NotDone, Unsettled
from antiphon.durable import current_effect
from antiphon.ledger import Ledger

LOOKS = {"antiphon": {"effects": "none"}}
"""The metadata of a tool that only reads, and may run again."""


class Outside:
    """A service that remembers what was done, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def do(self, what: str, result: str) -> str:
        """Do something, under the key of the current effect. What comes a second time under its key is not done again."""
        effect = current_effect()
        key, effects = (what, "") if effect is None else (effect.key, effect.effects)
        known = [each["result"] for each in self.done if each["key"] == key]
        line = json.dumps({"key": key, "what": what, "result": result, "effects": effects, "time": len(known) + 1})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        return known[0] if known else result

    @property
    def done(self) -> list[dict[str, Any]]:
        """What it was asked to do so far, one entry for each time."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]

    async def reconcile(self, unsettled: Unsettled) -> Any:
        """Return the result of a call that was begun before a crash; `NotDone` if it never came here."""
        found = [each["result"] for each in self.done if each["key"] == unsettled.key]
        return found[0] if found else NotDone()


Turn = Sequence[str | ToolCallPart] | Callable[[list[ModelMessage]], Sequence[str | ToolCallPart]]


def call(tool: str, id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, tool_call_id=id)


def scripted(*turns: Turn, pause: float = 0.0) -> FunctionModel:
    """Return a model that says one turn after the other: in the place of one that would cost money.

    If it is asked for a stream, it says word by word, with a pause after each.
    """

    def said(messages: list[ModelMessage]) -> Sequence[str | ToolCallPart]:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        turn = turns[min(number, len(turns) - 1)]
        return turn(messages) if callable(turn) else turn

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [TextPart(each) if isinstance(each, str) else each for each in said(messages)]
        usage = RequestUsage(input_tokens=50 + 10 * len(messages), output_tokens=7)
        return ModelResponse(parts, usage=usage, model_name="scripted")

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for number, each in enumerate(said(messages)):
            if isinstance(each, ToolCallPart):
                yield {number: DeltaToolCall(each.tool_name, each.args_as_json_str(), tool_call_id=each.tool_call_id)}
                continue
            for word in re.findall(r"\S+\s*", each):
                yield word
                await asyncio.sleep(pause)

    return FunctionModel(answer, stream_function=stream, model_name="scripted")


def last_result(messages: list[ModelMessage]) -> str:
    """Return what the last tool returned."""
    return str(messages[-1].parts[-1].content)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


class Program(Protocol):
    """The `main` of an example: returns its answer, and what it used."""

    def __call__(self, ledger: Ledger, outside: Outside) -> Awaitable[tuple[object, RunUsage]]: ...


def start(main: Program) -> None:
    """Run an example on the ledger that the command line names, or on one that is thrown away."""

    async def run(folder: Path, name: str) -> None:
        async with open_ledger(f"sqlite:///{folder / name}") as ledger:
            answer, usage = await main(ledger, Outside(folder / f"{name}.outside"))
        print(answer)
        print(f"({usage.requests} requests, {usage.input_tokens + usage.output_tokens} tokens)")

    if len(sys.argv) > 1:
        asyncio.run(run(Path(sys.argv[1]).parent, Path(sys.argv[1]).name))
    else:
        with TemporaryDirectory() as folder:
            asyncio.run(run(Path(folder), "ledger.db"))
