"""An attempt of a handler or a run that has ended, or whose effect has an unknown outcome, starts nothing more. G7.

No process dies here: programs leave tasks behind, give up waiting, and ask again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from antiphon.durable import LedgerRun, ledger_run, program, runs
from antiphon.errors import (
    DeliveryError,
    EffectFailedError,
    FailedError,
    LedgerUnavailableError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
    UnknownOutcomeError,
    WithdrawnError,
)
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, handles
from antiphon.runtime._effects import confirmed


class Paid(Reply, frozen=True, type="ONE_START_PAID"):
    text: str


class Pay(Request[Paid], frozen=True, type="ONE_START_PAY"):
    pass


class Bank:
    """Knows under which keys payments have started."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def pay(self, key: str) -> str:
        self.keys.append(key)
        return "paid"

    async def pay_slowly(self, key: str) -> str:
        """Take longer than the first caller waits."""
        self.keys.append(key)
        await asyncio.sleep(0.2 if len(self.keys) == 1 else 0)
        return "paid"

    def pay_slowly_in_a_thread(self, key: str) -> str:
        self.keys.append(key)
        time.sleep(0.2 if len(self.keys) == 1 else 0)
        return "paid"

    async def lose_the_answer(self, key: str) -> str:
        self.keys.append(key)
        raise UnknownOutcomeError("the line went dead")


# ---------------------------------------------------------------- attempts that have ended


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["effect", "ask", "run"])
async def test_a_task_that_a_failed_handler_has_left_behind_pays_nothing_in_the_next_attempt(how: str) -> None:
    """G7, G16: `gather(pay(), check())` leaves `pay` behind if `check` fails, and the next attempt pays."""
    bank, late = Bank(), list[asyncio.Task[str]]()

    class Cashier(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            return Paid(text=await context.effect("pay", {}, bank.pay))

    class Desk(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            if context.attempt == 1:
                late.append(asyncio.create_task(self.pay_in(5, context)))
                raise ValueError("as told")
            await asyncio.sleep(10)
            return Paid(text=await self.pay_in(0, context))

        async def pay_in(self, seconds: float, context: Context) -> str:
            if how == "run":
                async with ledger_run(context) as run:
                    await asyncio.sleep(seconds)
                    return await run.effect("pay", {}, bank.pay)
            await asyncio.sleep(seconds)
            if how == "ask":
                return (await context.ask("cashier/1", Pay())).text
            return str(await context.effect("pay", {}, bank.pay))

    async with System(MemoryLedger()) as system:
        system.register("desk", Desk)
        system.register("cashier", Cashier)
        assert (await system.ask("desk/1", Pay(), thread_id="t", id="m", within=60)).text == "paid"
    assert bank.keys == ["m/1/pay" if how == "ask" else "m/pay"]
    with pytest.raises(WithdrawnError, match="has ended"):
        await late[0]


async def test_a_task_that_a_block_has_left_behind_starts_nothing_though_another_run_has_the_thread() -> None:
    """G7: the process still owns the thread, for the other run. A person may have said meanwhile that nothing was done."""
    ledger, bank, go_on, started = MemoryLedger(), Bank(), asyncio.Event(), list[str]()

    async def start() -> str:
        started.append("start")
        return "paid"

    async def pay(key: str) -> str:
        await go_on.wait()
        return await confirmed(start)

    async def fail() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            late.append(asyncio.create_task(run.effect("pay", {}, pay)))
            await asyncio.sleep(0.02)
            raise ValueError("as told")

    late = list[asyncio.Task[str]]()
    async with ledger_run("t", id="other", ledger=ledger) as other:
        await other.effect("look", {}, bank.pay, effects="none")
        with pytest.raises(ValueError, match="as told"):
            await fail()
        go_on.set()
        with pytest.raises(WithdrawnError, match="has ended"):
            await late[0]
    assert started == []


# ---------------------------------------------------------------- effects that were cancelled


async def _persistently(pay: Callable[[], Awaitable[str]]) -> str:
    for _ in range(3):
        try:
            async with asyncio.timeout(0.05):
                return await pay()
        except TimeoutError:
            continue
    return "gave up"


@pytest.mark.slow
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_program_that_gives_up_waiting_for_a_payment_and_tries_again_pays_once(is_plain: bool) -> None:
    """G7: its outcome is unknown, so the run waits. A plain function is awaited to its end, and its outcome recorded."""
    ledger, bank = MemoryLedger(), Bank()
    function = bank.pay_slowly_in_a_thread if is_plain else bank.pay_slowly

    async def work(run: LedgerRun) -> str:
        return await _persistently(lambda: run.effect("pay", {}, function))

    desk = program("desk")(work)
    with pytest.raises(ParkedError, match="'pay' was cancelled, and must not be done twice"):
        await desk.run("t", ledger=ledger)
    if not is_plain:
        with pytest.raises(ParkedError, match="nobody knows whether 'pay' was done"):
            await desk.run("t", ledger=ledger)
        async with System(ledger) as system:
            await system.settle("t", "t/run/pay", result="paid")
    assert await desk.run("t", ledger=ledger) == "paid"
    assert bank.keys == ["t/run/pay"]


class DiedError(BaseException):
    """Ends a function as an exit does."""


async def _waits_a_moment(run: LedgerRun, bank: Bank, number: int) -> object:
    async with asyncio.timeout(0.01):
        return await run.effect(f"pay {number}", {"number": number}, bank.pay_slowly)


def _raising(error: BaseException) -> Callable[[LedgerRun, Bank, int], Awaitable[object]]:
    async def work(run: LedgerRun, bank: Bank, number: int) -> object:
        async def pay(key: str) -> str:
            bank.keys.append(key)
            raise error

        return await run.effect("pay", {"number": number}, pay)

    return work


async def _in_a_run_of_its_own(run: LedgerRun, bank: Bank, number: int) -> object:
    async with ledger_run("other", id=f"try-{number}", ledger=run.ledger) as other:
        return await other.effect("pay", {}, bank.lose_the_answer)


async def _in_a_step_with_a_run_of_its_own(run: LedgerRun, bank: Bank, number: int) -> object:
    async def work(key: str) -> Any:
        return await _in_a_run_of_its_own(run, bank, number)

    return await run.effect("work", {"number": number}, work, effects="none")


async def _in_a_run_that_it_does_not_wait_for(run: LedgerRun, bank: Bank, number: int) -> object:
    async with asyncio.timeout(0.01), ledger_run("other", id=f"try-{number}", ledger=run.ledger) as other:
        return await other.effect("pay", {}, bank.pay_slowly)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "pay",
    [
        _waits_a_moment,
        _raising(ReplyTimeoutError("no answer")),
        _raising(LedgerUnavailableError("the disk is gone")),
        _raising(DiedError()),
        _in_a_run_of_its_own,
        _in_a_step_with_a_run_of_its_own,
        _in_a_run_that_it_does_not_wait_for,
    ],
    ids=["cancelled", "no answer", "no ledger", "exit", "run", "step", "cancelled run"],
)
async def test_a_program_whose_payment_has_no_outcome_makes_no_other_and_does_not_end(
    pay: Callable[[LedgerRun, Bank, int], Awaitable[object]],
) -> None:
    """G7: whatever ends the function, and under whatever name and arguments the program tries again."""
    ledger, bank = MemoryLedger(), Bank()

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            for number in range(3):
                with suppress(Exception, DiedError):
                    await pay(run, bank, number)

    for _ in range(2):
        with pytest.raises(ParkedError):
            await work()
        assert len(bank.keys) == 1
        assert "completed" not in [each.status for each in await runs(ledger, with_ended=True)]


@pytest.mark.parametrize("error", [RefusedError("no money", "NO_MONEY"), None], ids=["refused", "failed"])
async def test_an_effect_in_which_another_has_failed_has_failed(error: Exception | None) -> None:
    """G7: its outcome is known, so nobody is asked, and the program goes on."""
    ledger: Ledger = MemoryLedger()

    async def fail(key: str) -> None:
        raise error or ValueError("as told")

    for _ in range(2):
        async with ledger_run("t", ledger=ledger) as run:
            with pytest.raises(RefusedError if error else EffectFailedError, match="no money" if error else "as told"):
                await run.effect("pay", {}, lambda key, run=run: run.effect("ask", {}, fail))
            await run.effect("tell", {}, Bank().pay)
    assert await ledger.open_calls("t") == ()


@pytest.mark.virtual_time
async def test_a_handler_that_gives_up_waiting_for_a_payment_and_tries_again_pays_once() -> None:
    """G7: its message ends with an error, and the payment is parked."""
    bank = Bank()

    class Cashier(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            return Paid(text=await _persistently(lambda: context.effect("pay", {}, bank.pay_slowly)))

    async with System(MemoryLedger()) as system:
        system.register("cashier", Cashier)
        with pytest.raises(ParkedError, match="must not be done twice"):
            await system.ask("cashier/1", Pay(), thread_id="t", id="m")
        assert [parked.invocation_id for parked in await system.parked()] == ["m/pay"]
    assert bank.keys == ["m/pay"]


@pytest.mark.virtual_time
async def test_a_handler_that_gives_up_waiting_for_a_payment_asks_no_other_actor_to_pay() -> None:
    """G7: the other actor would pay under a key of its own."""
    bank = Bank()

    class Cashier(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            return Paid(text=await context.effect("pay", {}, bank.pay))

    class Front(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            with suppress(TimeoutError):
                await asyncio.wait_for(context.effect("pay", {}, bank.pay_slowly), 0.02)
            with suppress(DeliveryError):
                await context.ask("cashier/1", Pay())
            return Paid(text="paid by another")

    async with System(MemoryLedger()) as system:
        system.register("cashier", Cashier)
        system.register("front", Front)
        with pytest.raises(ParkedError, match="must not be done twice"):
            await system.ask("front/1", Pay(), thread_id="t", id="m")
        assert [parked.invocation_id for parked in await system.parked()] == ["m/pay"]
    assert bank.keys == ["m/pay"]


# ---------------------------------------------------------------- handlers that ask again


@pytest.mark.virtual_time
async def test_a_handler_whose_question_was_parked_asks_nothing_more_and_gives_no_answer() -> None:
    """G7: asked again, the other actor would pay again, for another message."""
    bank = Bank()

    class Cashier(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            return Paid(text=await context.effect("pay", {}, bank.lose_the_answer))

    class Front(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            for _ in range(3):
                try:
                    return await context.ask("cashier/1", Pay())
                except DeliveryError:
                    continue
            return Paid(text="gave up")

    async with System(MemoryLedger()) as system:
        system.register("cashier", Cashier)
        system.register("front", Front)
        with pytest.raises(ParkedError, match="the line went dead"):
            await system.ask("front/1", Pay(), thread_id="t", id="m")
    assert bank.keys == ["m/1/pay"]


class Charge(Request[Paid], frozen=True, type="ONE_START_CHARGE"):
    pass


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["parked", "parked and caught", "cancelled"])
async def test_an_actor_whose_question_to_itself_leaves_a_payment_open_pays_nothing_more(how: str) -> None:
    """G7: the question is handled inside of the handler that asks, and its payment is as open as one of that handler."""
    bank = Bank()

    class Cashier(Actor):
        @handles
        async def charge(self, request: Charge, context: Context) -> Paid:
            if how == "cancelled":
                with suppress(TimeoutError):
                    await asyncio.wait_for(context.effect("pay", {}, bank.pay_slowly), 0.02)
                return Paid(text="unknown")
            with suppress(ParkedError) if how == "parked and caught" else nullcontext():
                await context.effect("pay", {}, bank.lose_the_answer)
            return Paid(text="unknown")

        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            for _ in range(2):
                with suppress(DeliveryError):
                    await context.ask(context.address, Charge())
            with suppress(DeliveryError):
                await context.effect("pay", {}, bank.pay)
            return Paid(text="gave up")

    async with System(MemoryLedger()) as system:
        system.register("cashier", Cashier)
        with pytest.raises(ParkedError, match="the line went dead|must not be done twice"):
            await system.ask("cashier/1", Pay(), thread_id="t", id="m")
        assert len(await system.parked()) == 1
    assert bank.keys == ["m/1/pay"]


# ---------------------------------------------------------------- codes that a program chooses


@pytest.mark.parametrize("code", ["CANCELLED", "PARKED", "HISTORY_MISMATCH"])
@pytest.mark.parametrize("error", [FailedError, RefusedError])
async def test_a_payment_that_fails_with_a_code_of_the_runtime_has_failed_and_is_not_made_again(
    error: type[FailedError | RefusedError], code: str
) -> None:
    """G7: a bank may call a payment "CANCELLED". An effect that was withdrawn is done again, and this one must not be."""
    bank, ledger = Bank(), MemoryLedger()

    async def pay(key: str) -> str:
        if bank.keys:
            return await bank.pay(key)
        await bank.pay(key)
        raise error("no money", code)

    for _ in range(2):
        async with ledger_run("t", ledger=ledger) as run:
            with pytest.raises(RefusedError, match="no money") as caught:
                await run.effect("pay", {}, pay)
            assert caught.value.code == code
    assert bank.keys == ["t/run/pay"]
    assert await ledger.open_calls("t") == ()


@pytest.mark.virtual_time
@pytest.mark.parametrize("code", ["CANCELLED", "PARKED", "HISTORY_MISMATCH"])
async def test_an_answer_with_a_code_of_the_runtime_is_an_answer_and_is_not_asked_for_again(code: str) -> None:
    """G7, G16: the next attempt of the handler that asks gets the recorded answer, and the other actor pays nothing more."""
    bank, caught = Bank(), list[tuple[type[Exception], str]]()

    class Cashier(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            await context.effect("pay", {}, bank.pay)
            raise RefusedError("no stock", code)

    class Front(Actor):
        @handles
        async def pay(self, request: Pay, context: Context) -> Paid:
            try:
                return await context.ask("cashier/1", Pay())
            except DeliveryError as exc:
                caught.append((type(exc), exc.code))
            if context.attempt == 1:
                raise ValueError("as told")
            return Paid(text="refused")

    async with System(MemoryLedger()) as system:
        system.register("cashier", Cashier)
        system.register("front", Front)
        assert (await system.ask("front/1", Pay(), thread_id="t", id="m")).text == "refused"
    assert bank.keys == ["m/1/pay"]
    assert caught == [(RefusedError, code)] * 2
