"""Exceptions of tools: transient ones are retried, then parked; a person may have the last failure repeated. G7."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.usage import RunUsage
from tests.agents.durability.agents import Desk, call, script

from antiphon.agents import LedgerDurability, NotDone, RetryPolicy
from antiphon.durable import DepsState, ledger_run
from antiphon.errors import AntiphonError, NotWaitingError, ParkedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import DataPart, PartsPayload, thaw
from antiphon.runtime import System
from antiphon.service import list_parked, settle_call

PAY = ([call("pay", "p1", amount=7)], ["Thank you."])
KEY = "t/run/clerk/pay:p1"
POLICY = RetryPolicy(not_done=(ConnectionRefusedError,), retries=2, backoff=0.01)


def paying(ledger: Ledger, desk: Desk, effects: str, fails: list[Exception], **more: Any) -> Agent[list[int], str]:
    """Return an agent whose tool raises the given exceptions, one after the other, and then pays."""
    agent: Agent[list[int], str] = Agent(
        script(desk, *PAY), name="clerk", deps_type=list, capabilities=[LedgerDurability(ledger, **more)]
    )

    @agent.tool(metadata={"antiphon": {"effects": effects}})
    async def pay(ctx: RunContext[list[int]], amount: int) -> str:
        desk.note(f"pay {amount}")
        ctx.deps.append(amount)
        ctx.usage.incr(RunUsage(requests=1))
        if fails:
            raise fails.pop(0)
        return f"paid {amount}"

    return agent


async def attempts(ledger: Ledger) -> list[Any]:
    """Return the contents of the rows of further attempts."""
    payloads = [record.message.payload async for record in ledger.read("t") if record.message.lane == "effect"]
    parts = [each.parts[0] for each in payloads if isinstance(each, PartsPayload)]
    return [thaw(part.data)["data"] for part in parts if isinstance(part, DataPart)]


@pytest.mark.parametrize("effects", ["none", "idempotent", "once"])
async def test_a_transient_exception_is_retried_with_pauses(effects: str) -> None:
    """Each retry follows a row, and the changes of the failed attempt are undone."""
    ledger, desk, deps, began = MemoryLedger(), Desk(), list[int](), asyncio.get_running_loop().time()
    state = DepsState(deps, dump=list, load=lambda deps, value: deps.__setitem__(slice(None), value))
    fails: list[Exception] = [ConnectionRefusedError("closed"), ConnectionRefusedError("still closed")]
    async with ledger_run("t", state=state):
        result = await paying(ledger, desk, effects, fails, retry=POLICY).run("pay", deps=deps)
    assert result.output == "Thank you."
    assert asyncio.get_running_loop().time() - began >= 0.03
    assert desk.taken() == ["model 0", "pay 7", "pay 7", "pay 7", "model 1"]
    assert deps == [7]
    assert result.usage.requests == 3
    assert await attempts(ledger) == [
        {"attempt": 2, "failure": "ConnectionRefusedError: closed"},
        {"attempt": 3, "failure": "ConnectionRefusedError: still closed"},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settlement", "told"),
    [({"retry": True}, "paid 7"), ({"result": "paid by hand"}, "paid by hand"), ({"error": "no money"}, "no money")],
)
@pytest.mark.parametrize("effects", ["none", "idempotent", "once"])
async def test_a_call_that_stays_transient_is_parked_with_its_error(effects: str, settlement: Any, told: str) -> None:
    ledger, desk = MemoryLedger(), Desk()
    fails: list[Exception] = [ConnectionRefusedError("closed")] * 3
    reason = "'pay' failed 3 times, at last with ConnectionRefusedError: closed"
    for _ in range(2):  # a second start does not try it again
        with pytest.raises(ParkedError, match=f"{reason}; find out, say it with `antiphon settle t {KEY}"):
            async with ledger_run("t"):
                await paying(ledger, desk, effects, fails, retry=POLICY).run("pay", deps=[])
    assert desk.taken() == ["model 0", "pay 7", "pay 7", "pay 7"]
    (parked,) = await list_parked(ledger)
    assert (parked.invocation_id, parked.reason) == (KEY, reason)
    await settle_call(ledger, "t", KEY, **settlement)
    async with ledger_run("t"):
        result = await paying(ledger, desk, effects, fails, retry=POLICY).run("pay", deps=[])
    assert told in str(result.all_messages()[-2])
    assert desk.taken() == [*(["pay 7"] if "retry" in settlement else []), "model 1"]
    assert await list_parked(ledger) == ()


async def test_a_program_that_ends_with_a_parked_call_waits_with_its_own_reason() -> None:
    """G7: it is parked once, whoever has caught the error."""
    ledger, desk = MemoryLedger(), Desk()

    async def work() -> None:
        async with ledger_run("t"):
            with pytest.raises(ParkedError):
                await paying(ledger, desk, "once", [ConnectionResetError("gone")], retry=POLICY).run("pay", deps=[])

    with pytest.raises(ParkedError, match="'pay' failed with ConnectionResetError"):
        await work()
    (parked,) = await list_parked(ledger)
    assert parked.reason == "'pay' failed with ConnectionResetError: gone; it may have been done"


async def test_a_once_call_with_an_unknown_outcome_is_parked_at_once() -> None:
    """G7: a lost connection does not prove that nothing was done. `reconcile`, if given, is asked first."""
    ledger, desk = MemoryLedger(), Desk()
    with pytest.raises(ParkedError, match="'pay' failed with ConnectionResetError: gone; it may have been done"):
        async with ledger_run("t"):
            await paying(ledger, desk, "once", [ConnectionResetError("gone")], retry=POLICY).run("pay", deps=[])
    assert desk.taken() == ["model 0", "pay 7"]


async def test_a_call_that_was_certainly_not_made_is_parked_and_not_reconciled() -> None:
    """`reconcile` would return that it was not made, and it would be retried for ever."""
    ledger, desk = MemoryLedger(), Desk()

    async def reconcile(unsettled: Any) -> NotDone:
        return NotDone()

    fails: list[Exception] = [ConnectionRefusedError("closed")] * 9
    with pytest.raises(ParkedError):
        async with ledger_run("t"):
            await paying(ledger, desk, "once", fails, retry=POLICY, reconcile=reconcile).run("pay", deps=[])
    assert len(fails) == 6


async def test_other_exceptions_are_outcomes_and_reach_the_program() -> None:
    ledger, desk = MemoryLedger(), Desk()
    for _ in range(2):
        with pytest.raises((AntiphonError, ValueError), match="no such account") as caught:
            async with ledger_run("t"):
                await paying(ledger, desk, "once", [ValueError("no such account")], retry=POLICY).run("pay", deps=[])
        assert f"`antiphon settle t {KEY} --retry`" in caught.value.__notes__[0]
    assert desk.taken() == ["model 0", "pay 7"]


async def test_an_exception_may_declare_itself_transient() -> None:
    class BusyError(Exception):
        retryable = True

    ledger, desk = MemoryLedger(), Desk()
    async with ledger_run("t"):
        await paying(ledger, desk, "idempotent", [BusyError()], retry=RetryPolicy(backoff=0)).run("pay", deps=[])
    assert desk.taken().count("pay 7") == 2


def test_a_policy_is_arithmetic() -> None:
    policy = RetryPolicy((OSError,), (ConnectionRefusedError,), retries=4, backoff=1, factor=3, longest=5)
    assert [policy.decide(OSError(), "none", count) for count in range(1, 6)] == [1, 3, 5, 5, "park"]
    assert [policy.decide(ConnectionRefusedError(), "once", count) for count in range(1, 6)] == [1, 3, 5, 5, "park"]
    assert policy.decide(OSError(), "once", 1) == "park"
    assert policy.decide(KeyError(), "none", 1) is None
    for wrong in ({"retries": -1}, {"backoff": -1}, {"factor": 0.5}, {"longest": -1}):
        with pytest.raises(ValueError, match="not negative"):
            RetryPolicy(**wrong)


# ---------------------------------------------------------------- the last failure of a run


async def fail(ledger: Ledger, desk: Desk, *, effects: str = "once", is_handled: bool = False) -> None:
    agent = paying(ledger, desk, effects, [ValueError("no such account")])
    async with ledger_run("t"):
        try:
            await agent.run("pay", deps=[])
        except (AntiphonError, ValueError):
            if not is_handled:
                raise


@pytest.mark.slow
async def test_a_person_may_have_the_last_failed_call_of_a_run_repeated() -> None:
    """Again and again: each repetition has an id of its own, and is found by the first one."""
    ledger, desk = MemoryLedger(), Desk()
    for _ in range(2):
        with pytest.raises((AntiphonError, ValueError), match="no such account"):
            await fail(ledger, desk)
        await settle_call(ledger, "t", KEY, retry=True)
        await settle_call(ledger, "t", KEY, retry=True)  # said twice is said once
    async with ledger_run("t"):
        assert (await paying(ledger, desk, "once", []).run("pay", deps=[])).output == "Thank you."
    assert desk.taken() == ["model 0", "pay 7", "pay 7", "pay 7", "model 1"]
    assert (await ledger.verify()).is_whole
    with pytest.raises(NotWaitingError):  # the run is finished
        await settle_call(ledger, "t", KEY, retry=True)


async def test_a_failure_that_the_program_has_handled_stays() -> None:
    ledger, desk = MemoryLedger(), Desk()

    async def program() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            with pytest.raises((AntiphonError, ValueError), match="no such account"):
                await paying(ledger, desk, "once", [ValueError("no such account")]).run("pay", deps=[])

            async def apologise(key: str) -> str:
                return "sorry"

            await run.effect("apologise", {}, apologise)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await program()
    for more in ({"retry": True}, {"result": 1}):
        with pytest.raises(NotWaitingError):
            await settle_call(ledger, "t", KEY, **more)


async def test_only_a_retry_reopens_a_failure_and_only_of_a_call() -> None:
    ledger, desk = MemoryLedger(), Desk()
    with pytest.raises((AntiphonError, ValueError)):
        await fail(ledger, desk)
    async with System(ledger) as system:
        for name, more in (
            (KEY, {"result": 1}),
            (KEY, {"error": "x"}),
            ("t/run/clerk/model", {"retry": True}),
            ("t/run", {"retry": True}),
        ):
            with pytest.raises(ValueError, match="not parked"):
                await system.settle("t", name, **more)  # type: ignore[arg-type]


async def test_a_failure_inside_of_a_once_call_is_not_repeated_by_itself() -> None:
    """The outer call must not run twice either: a person reopens that one, if any."""
    ledger, desk = MemoryLedger(), Desk()
    inner = paying(ledger, desk, "once", [ValueError("no such account")])
    outer: Agent[None, str] = Agent(
        script(desk, [call("delegate", "d1")], ["Done."]), name="boss", capabilities=[LedgerDurability(ledger)]
    )

    @outer.tool_plain
    async def delegate() -> str:
        return (await inner.run("pay", deps=[])).output

    with pytest.raises((AntiphonError, ValueError), match="no such account"):
        async with ledger_run("t"):
            await outer.run("pay")
    with pytest.raises(NotWaitingError):
        await settle_call(ledger, "t", "t/run/boss/delegate:d1/clerk/pay:p1", retry=True)
