"""A call with a payment inside of it is made again, by a person or by the next start: the payment is not. G7."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import current_run, ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Effects, System

THREAD = "t"


class KilledError(BaseException):
    """Ends the program as a kill does."""


class Bank:
    """Pays; the first process may be killed in the middle of it, or fail after it."""

    def __init__(self, fault: str, effects: Effects = "once") -> None:
        self.fault = fault
        self.effects: Effects = effects
        """Of the outer call."""
        self.payments: list[str] = []

    async def pay(self, key: str) -> str:
        self.payments.append(key)
        if self.fault == "killed":
            raise KilledError
        if self.fault == "refused":
            raise ValueError("no money")
        return "paid"

    async def delegate(self) -> str:
        """Have it paid."""
        run = current_run()
        assert run is not None
        answer = await run.effect("pay", {}, self.pay, effects="once")
        if self.fault == "fails":
            raise ValueError("the receipt is lost")
        return f"delegated: {answer}"


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(str(last.content))])
    return ModelResponse([ToolCallPart("delegate", {}, tool_call_id="c1")])


async def _by_function(ledger: Ledger, bank: Bank) -> str:
    async def delegate(key: str) -> str:
        return await bank.delegate()

    async with ledger_run(THREAD, ledger=ledger, name="desk") as run:
        return str(await run.effect("delegate", {}, delegate, effects=bank.effects))


async def _by_agent(ledger: Ledger, bank: Bank) -> str:
    durability = LedgerDurability[None](ledger, effects={"delegate": bank.effects})
    agent: Agent[None, str] = Agent(FunctionModel(_answer), name="boss", capabilities=[durability])
    agent.tool_plain(name="delegate")(bank.delegate)
    async with ledger_run(THREAD, ledger=ledger, name="desk"):
        return (await agent.run("Pay.")).output


async def _by_toolkit(ledger: Ledger, bank: Bank) -> str:
    toolkit = Toolkit()
    toolkit.add(bank.delegate, effects=bank.effects, to=["boss"])
    capabilities: list[Any] = [LedgerDurability[None](ledger), toolkit.capability("boss")]
    agent: Agent[None, str] = Agent(FunctionModel(_answer), name="boss", capabilities=capabilities)
    async with ledger_run(THREAD, ledger=ledger, name="desk"):
        return (await agent.run("Pay.")).output


Way = Callable[[Ledger, Bank], Awaitable[str]]
WAYS: dict[str, Way] = {"function": _by_function, "agent": _by_agent, "toolkit": _by_toolkit}


async def _settle(ledger: Ledger, invocation: str, **outcome: Any) -> None:
    async with System(ledger) as system:
        await system.settle(THREAD, invocation, **outcome)


async def _parked(ledger: Ledger) -> list[str]:
    async with System(ledger) as system:
        return [parked.invocation_id for parked in await system.parked()]


async def _settle_outer(ledger: Ledger) -> None:
    (outer,) = [each for each in await _parked(ledger) if not each.endswith("/pay")]
    await _settle(ledger, outer, retry=True)


@pytest.mark.parametrize("way", ["function", "agent", pytest.param("toolkit", marks=pytest.mark.slow)])
def test_an_outer_call_that_a_person_repeats_does_not_pay_again(way: str) -> None:
    """G7: the process is killed in the payment; the person knows that it was paid, and has the rest done."""

    async def main() -> None:
        ledger, bank = MemoryLedger(), Bank("killed")
        with suppress(KilledError):
            await WAYS[way](ledger, bank)
        bank.fault = ""
        with pytest.raises(ParkedError):
            await WAYS[way](ledger, bank)
        await _settle_outer(ledger)
        with pytest.raises(ParkedError, match="'pay'"):  # nobody has said anything of the payment
            await WAYS[way](ledger, bank)
        (inner,) = [each for each in await _parked(ledger) if each.endswith("/pay")]
        await _settle(ledger, inner, result="paid, says the bank")
        await _settle_outer(ledger)  # the payment that was not settled interrupted it again
        assert await WAYS[way](ledger, bank) == "delegated: paid, says the bank"
        assert len(bank.payments) == 1

    asyncio.run(main())


@pytest.mark.parametrize("way", ["function", "agent"])  # a model gets the failure of a toolkit's tool
@pytest.mark.parametrize("effects", ["none", "idempotent", "once"])
def test_an_outer_call_that_failed_after_a_payment_does_not_pay_again(way: str, effects: Effects) -> None:
    """G7: its failure ended the run. The next start makes it again if it may, and a person has a `once` call made again."""

    async def main() -> None:
        ledger, bank = MemoryLedger(), Bank("fails", effects)
        with pytest.raises(Exception, match="the receipt is lost") as caught:
            await WAYS[way](ledger, bank)
        bank.fault = ""
        if effects == "once":
            *_, command = re.findall(r"antiphon settle t (\S+) --retry", "".join(caught.value.__notes__))
            await _settle(ledger, command, retry=True)
        assert await WAYS[way](ledger, bank) == "delegated: paid"
        assert len(bank.payments) == 1

    asyncio.run(main())


@pytest.mark.parametrize("way", ["function", "agent"])
@pytest.mark.parametrize("effects", ["none", "once"])
def test_a_payment_that_failed_in_an_outer_call_is_made_again_only_by_a_person(way: str, effects: Effects) -> None:
    """G7: the error names every call that a person must allow."""

    async def main() -> None:
        ledger, bank = MemoryLedger(), Bank("refused", effects)
        with pytest.raises(Exception, match="no money") as caught:
            await WAYS[way](ledger, bank)
        bank.fault = ""
        if effects == "none":
            with pytest.raises(Exception, match="no money") as caught:
                await WAYS[way](ledger, bank)
        assert len(bank.payments) == 1
        *_, outermost = re.findall(r"antiphon settle t (\S+) --retry", "".join(caught.value.__notes__))
        await _settle(ledger, outermost, retry=True)
        assert await WAYS[way](ledger, bank) == "delegated: paid"
        assert len(bank.payments) == 2

    asyncio.run(main())
