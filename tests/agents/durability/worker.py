"""Processes that run a durable agent on a ledger in a file, and can be told where to be killed: see `tests/runtime/worker.py`.

A place is `before NAME` or `after NAME`, an append of a row with that option (`=NAME` for its result); or `in NAME`, in the
middle of a tool or of the model. Whatever is started is written to the witness by the tool itself: `start KEY EFFECTS`.
"""

import asyncio
import traceback
from tempfile import NamedTemporaryFile
from typing import Any, cast

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.runtime.worker import Killing, kill, note, say, serve

from antiphon.agents import LedgerDurability
from antiphon.durable import current_effect, ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger

PARKED = 3
TURNS = (
    [("refund", "c1", {"amount": 1}), ("look", "c2", {"what": "a"}), ("reserve", "c3", {"what": "b"})],
    [("refund", "c4", {"amount": 2}), ("refund", "c5", {"amount": 3})],
    [("delegate", "c6", {})],
)


class Program:
    """An agent that refunds, looks and reserves, and has another one refund too."""

    def __init__(self, ledger: Ledger, witness: str, place: str) -> None:
        self._witness = witness
        self._place = place
        self._helper = self._agent(ledger, "helper", TURNS[1:2])
        self._clerk = self._agent(ledger, "clerk", TURNS)

        @self._clerk.tool_plain(metadata={"antiphon": {"effects": "none"}})
        async def delegate() -> str:
            return str((await self._helper.run("refund two more")).output)

    def _agent(self, ledger: Ledger, name: str, turns: Any) -> Agent[None, str]:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            await self._start("model")
            number = sum(isinstance(message, ModelResponse) for message in messages)
            calls = turns[number] if number < len(turns) else ()
            return ModelResponse(
                [ToolCallPart(tool, given, tool_call_id=call_id) for tool, call_id, given in calls] or [TextPart("done")]
            )

        agent: Agent[None, str] = Agent(
            FunctionModel(answer, model_name="script"), name=name, capabilities=[LedgerDurability(ledger)]
        )

        @agent.tool_plain
        async def refund(amount: int) -> str:
            await self._start("refund")
            return f"refunded {amount}"

        @agent.tool_plain(metadata={"antiphon": {"effects": "idempotent"}})
        async def reserve(what: str) -> str:
            await self._start("reserve")
            return f"reserved {what}"

        @agent.tool_plain(metadata={"antiphon": {"effects": "none"}})
        async def look(what: str) -> dict[str, Any]:
            await self._start("look")
            return {"seen": what}

        return agent

    async def _start(self, what: str) -> None:
        effect = current_effect()
        assert effect is not None
        note(self._witness, f"start {effect.key} {effect.effects}")
        say("busy")
        if self._place == f"in {what}":
            kill()
        await asyncio.sleep(0.002)
        note(self._witness, f"end {effect.key}")

    async def run(self) -> None:
        async with ledger_run("order"):
            output = (await self._clerk.run("refund what is due")).output
        note(self._witness, f"ok {output}")


async def main(path: str, witness: str, place: str) -> None:
    async with open_ledger(f"sqlite:///{path}") as ledger:
        await Program(cast("Ledger", Killing(ledger, place)), witness, place).run()


def live(path: str, witness: str, place: str) -> int:
    try:
        asyncio.run(main(path, witness, place))
    except ParkedError:
        return PARKED
    except BaseException:  # noqa: BLE001 (whatever it is, the test shows it)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    with NamedTemporaryFile() as warm:
        asyncio.run(Program(MemoryLedger(), warm.name, "").run())
    serve(live)
