"""A Pydantic AI agent that survives its process: kill it, start it again, and it goes on. Needs no network and no key.

    python examples/durable_agent.py [ledger.db]

With a file, try it: press Ctrl-C in the middle, or `kill -9`, and run it again. Three lines make the agent durable; they
are marked.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon import LedgerDurability, ledger_run  # 1

pause = 0.0
"""Seconds that the model takes: time to kill the program."""


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Look for the order, then refund it, then say so: as a model would, but always the same."""
    print("  (the model is asked)", flush=True)
    await asyncio.sleep(pause)
    match sum(isinstance(message, ModelResponse) for message in messages):
        case 0:
            return ModelResponse([ToolCallPart("find_order", {"number": 42}, tool_call_id="call-1")])
        case 1:
            return ModelResponse([ToolCallPart("refund", {"number": 42, "amount": 30}, tool_call_id="call-2")])
        case _:
            return ModelResponse([TextPart("Order 42 is refunded.")])


def make_agent(ledger: str) -> Agent[None, str]:
    agent = Agent(
        FunctionModel(answer),
        name="clerk",
        capabilities=[LedgerDurability(ledger)],  # 2
    )

    @agent.tool_plain(metadata={"antiphon": {"effects": "none"}})
    def find_order(number: int) -> dict[str, int]:
        """Find an order. It only looks, so it may run again."""
        print(f"  (order {number} is looked up)")
        return {"number": number, "paid": 30}

    @agent.tool_plain
    async def refund(number: int, amount: int) -> str:
        """Pay money back: it is started once, whatever happens."""
        print(f"  (order {number}: {amount} are refunded)")
        await asyncio.sleep(0.1)
        return "refunded"

    return agent


async def main(ledger: str) -> None:
    agent = make_agent(ledger)
    for time in ("the first time", "the second time"):
        print(f"{time}:")
        async with ledger_run("order-42"):  # 3
            result = await agent.run("Please refund order 42.")
        print(f"  {result.output}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pause = 1.0
        asyncio.run(main(f"sqlite:///{sys.argv[1]}"))
    else:
        with TemporaryDirectory() as folder:
            asyncio.run(main(f"sqlite:///{Path(folder, 'ledger.db')}"))
