"""Programs of another process: a clerk who waits for an approval, and a till that does not know whether it was paid.

    python -m tests.page.programs clerk LEDGER APPROVER
    python -m tests.page.programs till LEDGER

Each has its thread, `order`, until it ends, and prints the outcome.
"""

import asyncio
import os
import sys
from contextlib import suppress

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import ParkedError, UnknownOutcomeError
from antiphon.ledger import open_ledger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def clerk(place: str, approver: str) -> None:
    toolkit = Toolkit(approvers=[approver], approval_wait=100)

    @toolkit.tool(approval=True, to=["clerk"])
    def pay(amount: int, to: str) -> str:
        """Pay somebody."""
        return f"paid {amount} to {to}"

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse(parts=[TextPart(str(last.content))])
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 5, "to": "the shop"}, tool_call_id="call-1")])

    async with open_ledger(place) as ledger:
        capabilities = [LedgerDurability(ledger), toolkit.capability("clerk")]
        agent = Agent(FunctionModel(model), name="clerk", capabilities=capabilities)
        async with ledger_run("order", ledger=ledger):
            say((await agent.run("Pay the bill.")).output)


class TillPaid(Reply, frozen=True):
    by: str


class TillPay(Request[TillPaid], frozen=True, type="TILL_PAY", family="test"):
    pass


class Till(Actor):
    """A till whose line goes dead at the first try, if it has one at all."""

    def __init__(self) -> None:
        self.tries = 0

    @handles
    async def pay(self, _: TillPay, context: Context) -> TillPaid:
        return TillPaid(by=await context.effect("charge", {"amount": 30}, self.charge))

    async def charge(self, _: str) -> str:
        self.tries += 1
        if self.tries == 1:
            raise UnknownOutcomeError("the line went dead")
        return "the second try"


async def till(place: str) -> None:
    own = Till()
    async with (
        open_ledger(place) as ledger,
        System(ledger, settings=Settings(release_after=600, within=200)) as system,
    ):
        system.spawn("till/1", lambda: own)
        paid = None
        while paid is None:
            with suppress(ParkedError):
                paid = await system.ask("till/1", TillPay(), thread_id="order", id="pay")
            await asyncio.sleep(0.05)
        thread = await ledger.thread("order")
        say(f"{paid.by} {own.tries} {thread is not None and thread.owner == system.host_name}")


if __name__ == "__main__":
    asyncio.run({"clerk": clerk, "till": till}[sys.argv[1]](*sys.argv[2:]))
