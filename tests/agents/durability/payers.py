"""Programs with a durable run in thread `t` that pays, in every way a run starts an effect: for tests that stop them anywhere.

A payment records its start as its first act, and the bank knows what all processes have paid. So a payment is counted whatever
the ledger says. A program whose name begins with `blocking` blocks its first process; it says so before.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents import LedgerDurability, NotDone
from antiphon.agents.durability._tool_call import Unsettled
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import LedgerRun, RunProgram, current_effect, ledger_run
from antiphon.ledger import Ledger
from antiphon.runtime import Effects, System

__all__ = ["HEARTBEAT", "PAID", "PAYERS", "PLAIN", "THREAD", "Bank", "Payment"]

THREAD = "t"
PAID = "paid"
HEARTBEAT = 0.3
BLOCKS = 5 * HEARTBEAT
"""Seconds for which the first process blocks: longer than its lease."""


class Payment(NamedTuple):
    """The start of a payment."""

    who: str
    key: str


class Bank(ABC):
    """Pays, as one process sees it, and knows what all processes have paid."""

    @property
    @abstractmethod
    def payments(self) -> Sequence[Payment]: ...

    @abstractmethod
    def start(self, key: str) -> None:
        """Record that a payment starts."""

    def block(self) -> None:
        """Block the thread that calls this, if it is of the first process."""
        time.sleep(0)

    def pay_at_once(self, key: str) -> str:
        self.start(key)
        return PAID

    async def pay(self, key: str) -> str:
        self.start(key)
        await asyncio.sleep(0.02)
        return PAID

    async def tool(self) -> str:
        """Pay."""
        return await self.pay(_key())

    def plain_tool(self) -> str:
        """Pay."""
        return self.pay_at_once(_key())

    def has_paid(self, key: str) -> bool:
        return any(payment.key == key for payment in self.payments)

    async def reconcile(self, unsettled: Unsettled) -> str | NotDone:
        """Tell truthfully whether it was paid."""
        return PAID if self.has_paid(unsettled.key) else NotDone()

    async def settle(self, ledger: Ledger) -> None:
        """Be the person who asks the bank, and tells the truth."""
        async with System(ledger) as system:
            for parked in await system.parked():
                key = str(parked.evidence.get("effect", parked.invocation_id)).partition("~")[0]
                outcome: dict[str, Any] = {"result": PAID} if self.has_paid(key) else {"retry": True}
                await system.settle(THREAD, parked.invocation_id, **outcome)


def _key() -> str:
    effect = current_effect()
    assert effect is not None
    return effect.key


def _run(ledger: Ledger) -> LedgerRun:
    return ledger_run(THREAD, ledger=ledger, name="desk")


# ---------------------------------------------------------------- functions


async def _by_plain_function(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger) as run:
        await run.effect("look", {}, _looked, effects="none")
        await run.effect("pay", {}, bank.pay_at_once, effects="once")


async def _by_function(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger) as run:
        await run.effect("pay", {}, bank.pay, effects="once")


async def _by_two_functions(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger) as run:
        await asyncio.gather(*(run.effect(f"pay {to}", {}, bank.pay, effects="once") for to in ("ada", "bob")))


async def _by_program(ledger: Ledger, bank: Bank) -> None:
    async def work(run: LedgerRun) -> None:
        await run.effect("pay", {}, bank.pay, effects="once")

    await RunProgram("desk", work).run(THREAD, {"to": "ada"}, ledger=ledger)


async def _by_blocking_function(ledger: Ledger, bank: Bank) -> None:
    def pay(key: str) -> str:
        bank.block()
        return bank.pay_at_once(key)

    async with _run(ledger) as run:
        await run.effect("pay", {}, pay, effects="once")


async def _looked(key: str) -> str:
    return "seen"


# ---------------------------------------------------------------- agents


def _calling(*tools: str) -> FunctionModel:
    """Return a model that calls tools, all at the same time. It is asynchronous, because a simulation has one thread."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        has_called = any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse([TextPart("done")] if has_called else [ToolCallPart(each, tool_call_id=each) for each in tools])

    return FunctionModel(answer, model_name="script")


async def _look() -> str:
    """Look."""
    return "seen"


async def _run_agent(ledger: Ledger, tools: dict[str, Callable[[], Any]], name: str = "clerk", **durability: Any) -> None:
    """Run an agent that calls each of its tools. Those that are not `pay` may be called twice."""
    effects: dict[str, Effects] = {tool: "idempotent" for tool in tools if tool != "pay"}
    capability: LedgerDurability[None] = LedgerDurability(ledger, effects=effects, **durability)
    agent: Agent[None, str] = Agent(_calling(*tools), name=name, capabilities=[capability])
    for tool, function in tools.items():
        agent.tool_plain(name=tool)(function)
    await agent.run("pay")


async def _by_agent(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger):
        await _run_agent(ledger, {"pay": bank.tool, "look": _look})


async def _by_reconciling_agent(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger):
        await _run_agent(ledger, {"pay": bank.tool, "look": _look}, reconcile=bank.reconcile)


async def _by_agent_with_plain_tools(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger):
        await _run_agent(ledger, {"pay": bank.plain_tool}, reconcile=bank.reconcile)


async def _by_agent_in_tool(ledger: Ledger, bank: Bank) -> None:
    async def delegate() -> str:
        """Have it paid by another agent."""
        await _run_agent(ledger, {"pay": bank.tool}, name="cashier")
        return "done"

    async with _run(ledger):
        await _run_agent(ledger, {"delegate": delegate})


async def _by_effect_in_tool(ledger: Ledger, bank: Bank) -> None:
    async with _run(ledger) as run:

        async def delegate() -> str:
            """Have it paid by a function."""
            return str(await run.effect("pay", {}, bank.pay, effects="once"))

        await _run_agent(ledger, {"delegate": delegate})


async def _by_toolkit(ledger: Ledger, bank: Bank) -> None:
    toolkit = Toolkit()
    toolkit.add(bank.tool, name="pay", to=["clerk"])
    capability: LedgerDurability[None] = LedgerDurability(ledger)
    agent = Agent(_calling("pay"), name="clerk", toolsets=[toolkit.for_agent("clerk")], capabilities=[capability])
    async with _run(ledger):
        await agent.run("pay")


async def _by_blocking_agent(ledger: Ledger, bank: Bank) -> None:
    async def look() -> str:
        """Look."""
        bank.block()
        return "seen"

    async with _run(ledger):
        await _run_agent(ledger, {"look": look, "pay": bank.tool}, reconcile=bank.reconcile)


PAYERS: dict[str, Callable[[Ledger, Bank], Awaitable[None]]] = {
    "function": _by_function,
    "two functions": _by_two_functions,
    "program": _by_program,
    "agent": _by_agent,
    "reconciling agent": _by_reconciling_agent,
    "agent in a tool": _by_agent_in_tool,
    "effect in a tool": _by_effect_in_tool,
    "toolkit": _by_toolkit,
    "plain function": _by_plain_function,
    "agent with plain tools": _by_agent_with_plain_tools,
    "blocking function": _by_blocking_function,
    "blocking agent": _by_blocking_agent,
}
PLAIN = ("plain function", "agent with plain tools", "blocking function", "blocking agent")
"""Those whose functions are not asynchronous: they run in threads, which a simulation does not have."""
