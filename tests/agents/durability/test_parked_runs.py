"""After an effect was parked, nothing more starts in its run or handler, and a result that cannot be stored is parked. G7."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from tests.agents.durability.agents import Desk, call, script
from tests.postgres import Server

from antiphon import Actor, Context, System, handles, open_ledger
from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import LedgerRun, current_run, ledger_run, program, recover_runs, runs
from antiphon.errors import EffectFailedError, ParkedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.protocol import Reply, Request


class DiedError(BaseException):
    """Ends the program as a kill does."""


class Bank:
    """Its first payment dies in the middle."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    async def pay(self, key: str) -> str:
        self.paid.append(key)
        if len(self.paid) == 1:
            raise DiedError
        return "paid"


async def persistent(run: LedgerRun, bank: Bank) -> str:
    for _ in range(3):
        try:
            return await run.effect("pay", {}, bank.pay)
        except Exception:  # noqa: BLE001 (a program that tries again)
            continue
    return "gave up"


async def tries_again(ledger: Ledger) -> None:
    bank = Bank()
    desk = program("desk")(lambda run: persistent(run, bank))
    with pytest.raises(DiedError):
        await desk.run("t", ledger=ledger)
    (recovered,) = await recover_runs(ledger, [desk])
    assert recovered.status == "parked"
    with pytest.raises(ParkedError, match="nobody knows whether 'pay' was done"):
        await desk.run("t", ledger=ledger)
    assert bank.paid == ["t/run/pay"]
    assert [run.status for run in await runs(ledger)] == ["parked"]
    async with System(ledger) as system:
        await system.settle("t", "t/run/pay", result="paid, says the bank")
    assert await desk.run("t", ledger=ledger) == "paid, says the bank"
    assert bank.paid == ["t/run/pay"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_program_that_tries_again_after_a_park_pays_once_and_goes_on_when_it_is_settled(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server | None = None if kind == "sqlite" else request.getfixturevalue("postgres")
    url = f"sqlite:///{tmp_path}/l.db" if server is None else f"{server.url}?tenant={tmp_path.name}-parked"
    async with open_ledger(url) as ledger:
        await tries_again(ledger)


async def _in_effect(run: LedgerRun, bank: Bank, desk: Desk) -> None:
    async def supervise(key: str) -> str:
        part = current_run()
        assert part is not None
        return await persistent(part, bank)

    await run.effect("supervise", {}, supervise, effects="idempotent")


async def _in_tool(run: LedgerRun, bank: Bank, desk: Desk) -> None:
    agent: Agent[None, str] = Agent(
        script(desk, [call("supervise", "c1")], ["done"]), name="clerk", capabilities=[LedgerDurability(run.ledger)]
    )

    @agent.tool_plain(metadata={"antiphon": {"effects": "idempotent"}})
    async def supervise() -> str:
        part = current_run()
        assert part is not None
        return await persistent(part, bank)

    await agent.run("go")


async def _in_agent_after(run: LedgerRun, bank: Bank, desk: Desk) -> None:
    await persistent(run, bank)
    await Agent(script(desk, ["done"]), name="clerk", capabilities=[LedgerDurability(run.ledger)]).run("go")


@pytest.mark.slow
@pytest.mark.parametrize("work", [_in_effect, _in_tool, _in_agent_after])
async def test_no_effect_starts_and_no_effect_around_it_ends_after_a_park(
    work: Callable[[LedgerRun, Bank, Desk], Awaitable[None]],
) -> None:
    """Whoever has caught the error: a function, a tool or a framework."""
    ledger, bank, desk = MemoryLedger(), Bank(), Desk()

    async def start() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await work(run, bank, desk)

    with pytest.raises(DiedError):
        await start()
    asked = [what for what in desk.taken() if what.startswith("model")]
    for _ in range(2):
        with pytest.raises(ParkedError, match="'pay' was done"):
            await start()
    assert len(bank.paid) == 1
    assert desk.taken() == []
    assert len(asked) <= 1
    assert [run.status for run in await runs(ledger)] == ["parked"]
    async with System(ledger) as system:
        (parked,) = await system.parked()
        await system.settle("t", parked.invocation_id, result="paid")
    await start()
    assert [run.status for run in await runs(ledger, with_ended=True)] == ["completed"]


async def test_an_effect_that_had_started_beside_a_parked_one_records_its_outcome() -> None:
    ledger, bank, sent = MemoryLedger(), Bank(), list[str]()
    is_sending = asyncio.Event()

    async def send(key: str) -> str:
        is_sending.set()
        await asyncio.sleep(0)
        sent.append(key)
        return "sent"

    async def work() -> list[Any]:
        async with ledger_run("t", ledger=ledger) as run:
            pay, mail = run.effect("pay", {}, bank.pay), run.effect("send", {}, send)
            return list(await asyncio.gather(pay, mail, return_exceptions=True))

    with pytest.raises(DiedError):
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("pay", {}, bank.pay)
    for _ in range(2):
        with pytest.raises(ParkedError):
            await work()
    async with System(ledger) as system:
        await system.settle("t", "t/run/pay", result="paid")
    assert await work() == ["paid", "sent"]
    assert len(sent) == 1


class Done(Reply, frozen=True, type="DONE"):
    said: str


class Pay(Request[Done], frozen=True, type="PARKED_RUNS_PAY"):
    pass


async def test_a_handler_that_catches_a_park_starts_nothing_more() -> None:
    """The same in `ledger_run(context)`, and the function and its arguments are checked before the intent."""
    ledger, ran = MemoryLedger(), list[str]()

    async def odd(key: str) -> Any:
        ran.append(key)
        return {1, 2}

    class Teller(Actor):
        @handles
        async def pay(self, pay: Pay, context: Context) -> Done:
            with pytest.raises(TypeError, match="is called with one argument, its key"):
                await context.effect("pay", {}, lambda: None)  # type: ignore[arg-type, misc]  # pyright: ignore
            for _ in range(3):
                try:
                    await context.effect("pay", {}, odd)
                except ParkedError:
                    continue
            async with ledger_run(context) as run:
                with pytest.raises(ParkedError, match=r"it returned \{1, 2\}"):
                    await run.effect("more", {}, odd)
            return Done(said="never")

    async with System(ledger) as system:
        system.register("teller", Teller)
        with pytest.raises(ParkedError, match="result cannot be recorded"):
            await system.ask("teller/1", Pay(), thread_id="t")
        assert len(ran) == 1
        (parked,) = await system.parked()
        assert parked.evidence["returned"] == {"type": "set", "value": "{1, 2}"}


# ---------------------------------------------------------------- what cannot be stored


def _no_argument() -> int:
    return 1


def _two_arguments(key: str, amount: int) -> int:
    return amount


@pytest.mark.parametrize(
    ("arguments", "function", "reason"),
    [
        ({}, _no_argument, "function of effect 'pay' is called with one argument, its key"),
        ({}, _two_arguments, "missing a required argument: 'amount'"),
        ({}, "pay", "is a function of one argument"),
        ({"to": {1}}, len, "arguments of effect 'pay' cannot be stored: set is not JSON"),
    ],
)
async def test_a_wrong_function_or_argument_is_refused_before_the_intent(arguments: Any, function: Any, reason: str) -> None:
    ledger = MemoryLedger()
    async with ledger_run("t", ledger=ledger) as run:
        await run.now()
        with pytest.raises(TypeError, match=reason):
            await run.effect("pay", arguments, function)
        assert not await ledger.find(invocation_id="t/run/pay")


async def test_a_once_effect_whose_result_cannot_be_stored_is_parked_and_any_other_has_failed() -> None:
    ledger, ran = MemoryLedger(), list[str]()

    async def odd(key: str) -> Any:
        ran.append(key)
        return {"password": "hunter22-hunter22"}.keys()

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            with pytest.raises(EffectFailedError, match="its result cannot be written down"):
                await run.effect("look", {}, odd, effects="none")
            await run.effect("pay", {}, odd)

    for _ in range(2):
        with pytest.raises(ParkedError, match=r"'pay' was done, and its result cannot be recorded .* returned dict_keys"):
            await work()
    assert ran == ["t/run/look", "t/run/pay"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "toolkit", "direct"])
async def test_a_once_tool_whose_result_cannot_be_stored_is_parked(kind: str) -> None:
    """A model that is told of a failure would call it again."""
    ledger, desk, kit = MemoryLedger(), Desk(), Toolkit()

    def pay() -> Any:
        desk.note("pay")
        return object()

    kit.add(pay, to=["clerk"])
    given: Any = {"tools": [pay]} if kind == "plain" else {"toolsets": [kit.for_agent("clerk")]}
    model = script(desk, [call("pay", "c1")], ["done"])
    agent: Agent[None, str] = Agent(model, name="clerk", capabilities=[LedgerDurability(ledger)], **given)
    for _ in range(2):
        with pytest.raises(ParkedError, match=r"it ran, and its .* cannot be recorded|must not be done twice"):
            async with ledger_run("t", ledger=ledger):
                await (kit.call("clerk", "pay", {}) if kind == "direct" else agent.run("go"))
    assert desk.taken() == (["pay"] if kind == "direct" else ["model 0", "pay"])
    async with System(ledger) as system:
        (parked,) = await system.parked()
    assert "'type': 'object'" in str(parked.evidence["returned"])
