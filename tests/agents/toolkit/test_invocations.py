"""One invocation is one execution: a further call under its id gets the recorded result, and counts once."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.agents.toolkit.kit import Witness, failure, noted, rows, started

from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import OptionResultPayload
from antiphon.runtime import Effects, System


def within(work: Callable[[Ledger], Any]) -> None:
    async def inside() -> None:
        async with open_ledger("memory:") as ledger:
            await work(ledger)

    asyncio.run(asyncio.wait_for(inside(), 30))


def bank(witness: Witness, *, calls: int | None = None, **settings: Any) -> Toolkit:
    toolkit = Toolkit()

    async def pay(amount: int) -> str:
        witness.done.append(("pay", amount))
        await asyncio.sleep(0)
        if amount > 100:
            raise ValueError("too much")
        return f"paid {amount}, number {len(witness.done)}"

    def refund(amount: int) -> str:
        witness.done.append(("refund", amount))
        return "refunded"

    toolkit.add(pay, **settings)
    toolkit.add(refund)
    toolkit.grant("clerk", "pay", calls=calls)
    toolkit.grant("clerk", "refund")
    return toolkit


async def pay(toolkit: Toolkit, amount: int = 5, id: str = "x", tool: str = "pay") -> OptionResultPayload:
    return await toolkit.call("clerk", tool, {"amount": amount}, invocation_id=id)


class _CrashError(Exception):
    pass


@asynccontextmanager
async def run_that_crashes(ledger: Ledger) -> AsyncGenerator[None]:
    """Have a run whose program dies at the end of the block."""
    try:
        async with ledger_run("t", ledger=ledger):
            yield
            raise _CrashError
    except _CrashError:
        pass


def test_one_approval_is_one_execution() -> None:
    """S5, G9: three calls under one invocation and one yes; the two later ones get the result that is recorded."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, approval=True)
        async with run_that_crashes(ledger):
            with pytest.raises(ParkedError):
                await pay(toolkit)
        (approval,) = await pending_approvals(ledger)
        await answer(ledger, approval.id, principal="ada", approved=True)
        async with ledger_run("t", ledger=ledger):
            told = [await pay(toolkit) for _ in range(3)]
        assert [each.result for each in told] == ["paid 5, number 1"] * 3
        assert started(await rows(ledger), "pay") == 1
        async with ledger_run("t", ledger=ledger):  # and of a run that is finished
            assert [(await pay(toolkit)).result for _ in range(2)] == ["paid 5, number 1"] * 2

    within(work)
    assert witness.done == [("pay", 5)]


def test_a_grant_of_one_call_is_one_execution() -> None:
    """S5: also after a restart; another invocation is another call."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        async with run_that_crashes(ledger):
            assert [(await pay(bank(witness, calls=1))).result for _ in range(2)] == ["paid 5, number 1"] * 2
        async with ledger_run("t", ledger=ledger):
            toolkit = bank(witness, calls=1)
            assert (await pay(toolkit)).result == "paid 5, number 1"
            assert failure(await pay(toolkit, id="y"))[0] == "PERMISSION_DENIED"
        assert [each["verdict"] for each in await noted(ledger, "TOOL_PERMISSION")] == ["allow", "deny"]

    within(work)
    assert witness.done == [("pay", 5)]


async def test_outside_of_a_run_each_call_counts() -> None:
    """S5: there is nothing recorded that could be given back, so a second call is a second execution."""
    witness = Witness()

    toolkit = bank(witness, calls=1)
    told = [await pay(toolkit) for _ in range(3)]
    assert [each.error_type for each in told] == [None, "PERMISSION_DENIED", "PERMISSION_DENIED"]

    assert witness.done == [("pay", 5)]


def test_calls_at_the_same_time_under_one_invocation_are_one_execution() -> None:
    """S5: one executes, the others wait for its result."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, calls=1)
        async with ledger_run("t", ledger=ledger):
            told = await asyncio.gather(*(pay(toolkit) for _ in range(20)))
        assert [each.result for each in told] == ["paid 5, number 1"] * 20
        assert len(await noted(ledger, "TOOL_PERMISSION")) == 1

    within(work)
    assert witness.done == [("pay", 5)]


def test_a_recorded_failure_is_given_back_too() -> None:
    """G9: a call that has failed is not tried again under its id."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness)
        async with ledger_run("t", ledger=ledger):
            told = [await pay(toolkit, 500) for _ in range(3)]
        assert [failure(each) for each in told] == [("ValueError", "it failed with ValueError: too much")] * 3

    within(work)
    assert witness.done == [("pay", 500)]


def test_a_refusal_is_the_same_however_often_it_is_asked_for() -> None:
    """G9: what was decided about an invocation holds, as it does when the program runs again."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness)
        toolkit.revoke("clerk", "pay")
        async with run_that_crashes(ledger):
            refused = [await pay(toolkit)]
            toolkit.grant("clerk", "pay")
            refused += [await pay(toolkit)]
        async with ledger_run("t", ledger=ledger):
            refused += [await pay(toolkit), await pay(toolkit)]
            assert (await pay(toolkit, id="y")).result == "paid 5, number 1"
        assert [each.error_type for each in refused] == ["PERMISSION_DENIED"] * 4

    within(work)


@pytest.mark.parametrize(("amount", "tool"), [(6, "pay"), (5, "refund")])
def test_an_invocation_is_not_used_for_another_call(amount: int, tool: str) -> None:
    """S5: other arguments, or another tool, under an id that was used: a typed error, and nothing is started."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness)
        async with run_that_crashes(ledger):
            await pay(toolkit)
            refused = await pay(toolkit, amount, tool=tool)
        reason = "'x' is the id of another call: give this one an id of its own"
        assert failure(refused) == ("INVOCATION_REUSED", reason)
        async with run_that_crashes(ledger):
            with pytest.raises(HistoryMismatchError):  # the program begins with something else than it did
                await pay(toolkit, amount, tool=tool)
        async with ledger_run("t", ledger=ledger):
            assert (await pay(toolkit)).result == "paid 5, number 1"
            assert (await pay(toolkit, amount, tool=tool)).error_type == "INVOCATION_REUSED"

    within(work)
    assert witness.done == [("pay", 5)]


@pytest.mark.parametrize("effects", ["none", "idempotent", "once"])
def test_a_restart_after_a_crash_belongs_to_the_same_approval_and_count(effects: Effects) -> None:
    """G7, S5: killed in the middle, it is started again, `once` after a person says `--retry`: under one yes, as one call."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = Toolkit()

        async def pay(amount: int) -> str:
            witness.done.append(("pay", amount))
            if len(witness.done) == 1:
                raise KeyboardInterrupt
            return "paid"

        toolkit.add(pay, effects=effects, approval=True)
        toolkit.grant("clerk", "pay", calls=1)

        async def program() -> list[OptionResultPayload]:
            async with ledger_run("t", ledger=ledger):
                call = {"amount": 5}
                return [await toolkit.call("clerk", "pay", call, invocation_id="x") for _ in range(2)]

        with pytest.raises(ParkedError):
            await program()
        (approval,) = await pending_approvals(ledger)
        await answer(ledger, approval.id, principal="ada", approved=True)
        with pytest.raises(KeyboardInterrupt):
            await program()
        if effects == "once":
            with pytest.raises(ParkedError, match="nobody knows whether 'pay' was done"):
                await program()
            async with System(ledger) as system:
                await system.settle("t", "t/run/tool:pay:x", retry=True)
        assert [each.result for each in await program()] == ["paid", "paid"]
        assert await pending_approvals(ledger) == ()
        assert len(await noted(ledger, "TOOL_PERMISSION")) == 1

    with asyncio.Runner() as runner:
        runner.run(_opened(work))
    assert len(witness.done) == 2


async def _opened(work: Callable[[Ledger], Any]) -> None:
    async with open_ledger("memory:") as ledger:
        await work(ledger)
