"""A process that asks a limited model, in several threads at once.

    python permit_worker.py LEDGER NAME PORT REQUESTS

The model is a server at the port, which counts. The process says `ready`, waits for a line, asks, and says how many answers it
has got.
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import open_ledger


async def main(url: str, name: str, port: int, requests: int) -> None:
    async def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"{name}\n".encode())
            return ModelResponse([TextPart((await reader.readline()).decode().strip())])
        finally:
            writer.close()
            await writer.wait_closed()

    async with open_ledger(url, busy_timeout=60) as ledger:
        agent = Agent(FunctionModel(answer, model_name="counted"), name="asker", capabilities=[LedgerDurability(ledger)])

        async def ask(number: int) -> str:
            async with ledger_run(f"{name}-{number}", ledger=ledger):
                return (await agent.run("how many?")).output

        print("ready")  # noqa: T201
        await asyncio.to_thread(sys.stdin.readline)
        answers = await asyncio.gather(*map(ask, range(requests)))
        print(sum(each == "one" for each in answers))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
