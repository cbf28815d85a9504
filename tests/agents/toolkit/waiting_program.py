"""A program whose agent wants to pay, and waits for a person: to be killed, and started again."""

import asyncio
import sys
from pathlib import Path

from pydantic_ai import Agent
from tests.agents.toolkit.kit import call, script

from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.ledger import open_ledger


async def main(url: str, witness: Path) -> None:
    toolkit = Toolkit(approval_wait=None)

    def record(word: str) -> str:
        with witness.open("a") as file:
            file.write(f"{word}\n")
        return word

    toolkit.add(record, name="look")
    toolkit.add(record, name="pay", approval=True)
    toolkit.grant("clerk")
    calls = [call("look", "c1", word="looked"), call("pay", "c2", word="paid")]
    agent = Agent(script(calls), name="clerk", capabilities=[toolkit.capability("clerk")])
    async with open_ledger(url) as ledger, ledger_run("order", ledger=ledger):
        await agent.run("go")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
