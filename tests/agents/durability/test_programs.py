"""Programs: the status of runs, and runs that another process continues. G6, G7, G15."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ToolCallPart
from tests.agents.toolkit.kit import call, script

from antiphon.agents import LedgerDurability, Unsettled, agent_program
from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.durable import (
    LedgerRun,
    RecoveredRun,
    RunProgram,
    RunStatus,
    check_runs,
    host_runs,
    ledger_run,
    program,
    recover_runs,
    runs,
)
from antiphon.errors import HistoryMismatchError, OwnedError, ParkedError, SetupError
from antiphon.ledger import Host, Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.runtime import System
from antiphon.service import allow_change

paid: list[str] = []


@pytest.fixture(autouse=True)
def _no_payments() -> None:
    paid.clear()


async def _pay(key: str) -> str:
    paid.append(key)
    return "paid"


@program("desk")
async def desk(run: LedgerRun) -> str:
    await run.effect("pay", {"amount": run.input["amount"]}, _pay)
    return f"{run.input['amount']} paid"


async def _interrupted(ledger: Ledger, thread_id: str = "order", *, amount: int = 30, after_payment: bool = False) -> None:
    """Have a run of the desk begun, and its process die: here, its task is cancelled."""
    with suppress(asyncio.CancelledError):
        async with ledger_run(thread_id, ledger=ledger, name="desk", input={"amount": amount}) as run:
            if after_payment:
                await run.effect("pay", {"amount": amount}, _pay)
            raise asyncio.CancelledError


async def _only(ledger: Ledger, thread_id: str | None = None, **more: bool) -> RunStatus:
    (run,) = await runs(ledger, thread_id, **more)
    return run


# ---------------------------------------------------------------- programs


async def test_a_program_gives_the_same_result_for_the_same_thread_and_id() -> None:
    ledger = MemoryLedger()
    for _ in range(2):
        assert await desk.run("order", {"amount": 30}, ledger=ledger) == "30 paid"
    assert await desk.run("order", ledger=ledger) == "30 paid"
    assert paid == ["order/run/pay"]


async def test_a_run_with_another_input_is_refused_and_the_thread_is_not_stopped() -> None:
    ledger = MemoryLedger()
    await _interrupted(ledger)
    with pytest.raises(HistoryMismatchError, match="was begun with another input: give this one another id"):
        await desk.run("order", {"amount": 31}, ledger=ledger)
    assert (await _only(ledger)).status == "waiting"
    assert await desk.run("order", {"amount": 30}, ledger=ledger) == "30 paid"
    with pytest.raises(HistoryMismatchError, match="another input"):
        await desk.run("order", {"amount": 31}, ledger=ledger)


async def test_the_input_is_stored_before_the_program_begins() -> None:
    """A process that dies at once leaves a run that another can continue."""
    ledger = MemoryLedger()
    async with ledger_run("order", ledger=ledger, name="desk", input={"amount": 30}):
        (row,) = await ledger.find(invocation_id="order/run")
        assert row.message.payload.arguments == {"program": "desk", "input": {"amount": 30}}  # type: ignore[union-attr]


async def test_a_redacted_input_is_the_same_in_the_first_process_and_in_the_next() -> None:
    """Both get what is stored."""
    seen: list[object] = []
    async with MemoryLedger.open() as ledger:
        for _ in range(2):
            async with ledger_run("order", ledger=ledger, input={"key": "sk-" + "a1B2c3D4e5F6g7H8" * 3}) as run:
                seen.append(run.input)
    assert seen[0] == seen[1]
    assert "redacted" in str(seen[0])


async def test_an_agent_is_a_program_whose_input_is_the_prompt() -> None:
    ledger = MemoryLedger()
    agent = Agent(script(), name="greeter", capabilities=[LedgerDurability(ledger)])
    for _ in range(2):
        assert await agent_program(agent).run("chat", "Hi.", ledger=ledger) == "done"
    with pytest.raises(ValueError, match="the agent has no name"):
        agent_program(Agent(script()))


# ---------------------------------------------------------------- status


async def test_a_run_has_a_status_an_owner_and_an_age() -> None:
    ledger = MemoryLedger()
    async with ledger_run("order", ledger=ledger, name="desk", input={"amount": 1}):
        (host,) = await ledger.hosts()
        run = await _only(ledger)
        assert (run.thread_id, run.id, run.name) == ("order", "run", "desk")
        assert (run.status, run.owner, run.attempts) == ("running", host.host.name, 1)
        assert timedelta() <= run.age < timedelta(seconds=10)
        assert not run.is_left
    assert await runs(ledger) == ()
    ended = await _only(ledger, with_ended=True)
    assert (ended.status, ended.owner) == ("completed", None)
    assert ended.ended_at is not None
    assert ended.age == ended.ended_at - ended.began_at


async def test_a_result_that_a_program_says_does_not_end_a_run() -> None:
    """Only a row of the effect lane does, which the owner of the thread writes."""
    ledger = MemoryLedger()
    with suppress(asyncio.CancelledError):
        async with ledger_run("order", ledger=ledger, name="desk") as run:
            call = OptionCallPayload(invocation_id=run.invocation_id, option_name="RUN", arguments={})
            result = OptionResultPayload(invocation_id=run.invocation_id, option_name="RUN", result={"done": True})
            for payload in (call, result):
                await run.note(Message(policy="desk", payload=payload))
            raise asyncio.CancelledError
    assert [run.status for run in await runs(ledger, with_ended=True)] == ["waiting"]


async def test_a_run_whose_process_has_ended_waits_for_a_program() -> None:
    ledger = MemoryLedger()
    await _interrupted(ledger)
    run = await _only(ledger)
    assert (run.status, run.owner, run.is_left) == ("waiting", None, True)
    assert run.reason is not None
    assert run.reason.startswith("no process runs it")


async def test_a_run_that_raised_has_failed_until_it_is_continued() -> None:
    ledger = MemoryLedger()

    async def fail(*, again: bool) -> None:
        async with ledger_run("order", ledger=ledger) as run:
            assert not again or (await _only(ledger)).status == "running"
            await run.effect("look", {}, _pay)
            raise RuntimeError("no such order")

    for attempt in (1, 2):
        with pytest.raises(RuntimeError):
            await fail(again=attempt > 1)
        run = await _only(ledger)
        assert (run.status, run.reason, run.attempts) == ("failed", "RuntimeError: no such order", attempt)
        summary = await ledger.thread("order")
        assert summary is not None
        assert summary.status == "failed"
    async with ledger_run("order", ledger=ledger) as continued:
        await continued.effect("look", {}, _pay)
    assert not await ledger.open_calls("order")
    summary = await ledger.thread("order")
    assert summary is not None
    assert summary.status == "completed"


async def test_a_run_that_waits_for_an_approval_says_which() -> None:
    ledger, toolkit = MemoryLedger(), Toolkit(approvers=["ada"])
    toolkit.add(_refund, name="refund", approval=True, to=["clerk"])
    more = [LedgerDurability[object](ledger), toolkit.capability("clerk")]
    clerk = Agent(script([call("refund", amount=5)]), name="clerk", deps_type=object, capabilities=more)
    with pytest.raises(ParkedError):
        await agent_program(clerk).run("order", "Go.", ledger=ledger)
    (approval,) = await pending_approvals(ledger)
    run = await _only(ledger)
    assert (run.status, run.is_left) == ("waiting", False)
    assert run.reason == f"a person must approve 'refund': `antiphon approve {approval.id} --as ada`"
    assert await recover_runs(ledger, [agent_program(clerk)]) == ()
    await answer(ledger, approval.id, principal="ada", approved=True)
    (done,) = await recover_runs(ledger, [agent_program(clerk)])
    assert (done.name, done.status) == ("clerk", "completed")


def _refund(amount: int) -> str:
    return f"refunded {amount}"


async def test_a_run_with_a_parked_call_is_parked_and_is_not_recovered() -> None:
    ledger = MemoryLedger()

    async def dies(key: str) -> str:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        async with ledger_run("order", ledger=ledger, name="desk", input={"amount": 1}) as run:
            await run.effect("pay", {"amount": 1}, dies)
    (found,) = await recover_runs(ledger, [desk])
    assert found.status == "parked"
    run_status = await _only(ledger)
    assert run_status.status == "parked"
    assert "must not be done twice" in str(run_status.reason)
    assert await recover_runs(ledger, [desk]) == ()
    async with System(ledger) as system:
        (parked,) = await system.parked()
        await system.settle("order", parked.invocation_id, result="paid")
    (found,) = await recover_runs(ledger, [desk])
    assert found.status == "completed"
    assert paid == []


@pytest.mark.slow
async def test_a_run_that_the_program_cannot_continue_is_stopped_and_tried_again_if_a_person_asks() -> None:
    """Also on the same build: a module that the main file imports may have been mended. A host does not try it again."""
    ledger = MemoryLedger()
    await _interrupted(ledger, after_payment=True)

    @program("desk")
    async def changed(run: LedgerRun) -> None:
        await run.effect("pay", {"amount": 1_000}, _pay)

    (found,) = await recover_runs(ledger, [changed], build="new")
    assert found.status == "stopped"
    run = await _only(ledger)
    assert (run.status, run.unfit) == ("stopped", ("new",))
    assert "build new: HISTORY_MISMATCH" in str(run.reason)
    tried: list[RecoveredRun] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, stop.set)
    await host_runs(ledger, [changed], hear=tried.append, stop=stop, build="new")
    assert tried == []
    (found,) = await recover_runs(ledger, [changed], build="new")
    assert found.status == "stopped"
    (found,) = await recover_runs(ledger, [desk], build="new")
    assert found.status == "completed"
    assert len(paid) == 1


# ---------------------------------------------------------------- recovery


async def test_runs_that_a_dead_process_left_are_continued_with_their_input() -> None:
    ledger = MemoryLedger()
    for number in range(3):
        await _interrupted(ledger, f"order-{number}", amount=number, after_payment=number == 1)
    async with ledger_run("other", ledger=ledger, name="elsewhere", input="wait"):
        done = await recover_runs(ledger, [desk])
    assert {(each.thread_id, each.status) for each in done} == {(f"order-{n}", "completed") for n in range(3)}
    assert sorted(paid) == [f"order-{number}/run/pay" for number in range(3)]
    assert await runs(ledger) == ()
    assert not [each for each in await ledger.hosts() if each.is_alive]


async def test_runs_of_other_programs_and_runs_of_living_hosts_are_left_alone() -> None:
    ledger = MemoryLedger()
    await _interrupted(ledger)
    host = Host("another", "1", ("run/desk",))
    await ledger.beat(host)
    await ledger.claim("order", by=host)
    assert await recover_runs(ledger, [desk]) == ()
    await ledger.leave(host)

    @program("shop")
    async def shop(run: LedgerRun) -> None:
        raise AssertionError

    assert await recover_runs(ledger, [shop]) == ()
    assert (await _only(ledger)).is_left


async def test_a_failed_run_is_recovered_only_if_the_caller_says_so() -> None:
    ledger = MemoryLedger()
    with pytest.raises(KeyError):
        await desk.run("order", {}, ledger=ledger)
    assert await recover_runs(ledger, [desk]) == ()

    @program("desk")
    async def mended(run: LedgerRun) -> None:
        await run.effect("pay", {}, _pay)

    (found,) = await recover_runs(ledger, [mended], with_failed=True)
    assert found == RecoveredRun("order", "run", "desk", "completed")


async def test_two_processes_that_recover_at_once_do_it_once() -> None:
    ledger = MemoryLedger()
    await _interrupted(ledger)
    one, two = await asyncio.gather(recover_runs(ledger, [desk]), recover_runs(ledger, [desk]))
    assert len(one + two) >= 1
    assert len(paid) == 1


@pytest.mark.slow
async def test_a_host_continues_runs_as_they_are_left_and_leaves_them_when_it_stops() -> None:
    ledger, stop, done = MemoryLedger(), asyncio.Event(), list[RecoveredRun]()
    ready = asyncio.Event()

    async def tell(name: str) -> None:
        (host,) = await ledger.hosts()
        assert (host.host.name, host.host.kinds) == (name, ("run/desk", "run/slow"))
        ready.set()

    @program("slow")
    async def slow(run: LedgerRun) -> None:
        await asyncio.Event().wait()

    hosting = asyncio.create_task(host_runs(ledger, [desk, slow], hear=done.append, ready=tell, stop=stop))
    await ready.wait()
    await _interrupted(ledger)
    await _until(ledger, lambda found: bool(done))
    assert [(each.thread_id, each.status) for each in done] == [("order", "completed")]
    with pytest.raises(asyncio.CancelledError):
        async with ledger_run("long", ledger=ledger, name="slow", input=1):
            raise asyncio.CancelledError
    await _until(ledger, lambda found: [(each.status, each.attempts) for each in found] == [("running", 2)])
    stop.set()
    await hosting
    run = await _only(ledger)
    assert (run.thread_id, run.is_left, run.attempts) == ("long", True, 2)
    assert not [each for each in await ledger.hosts() if each.is_alive]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("build", "drain", "is_left", "drained"),
    [("new", 30.0, False, [1]), ("new", 2.0, True, [1]), ("new", 0.0, True, []), ("old", 30.0, True, [])],
)
async def test_a_stopping_host_finishes_its_runs_while_a_host_of_another_build_lives(
    build: str, drain: float, is_left: bool, drained: list[int]
) -> None:
    """As hosts of actors do: the other build may be unable to continue them. It begins no other run meanwhile."""
    ledger, stop, told = MemoryLedger(), asyncio.Event(), list[int]()

    @program("slow")
    async def slow(run: LedgerRun) -> None:
        await asyncio.sleep(10)

    for name in ("long", "later"):
        with pytest.raises(asyncio.CancelledError):
            async with ledger_run(name, ledger=ledger, name="slow", input=1):
                raise asyncio.CancelledError
    await ledger.beat(Host("another", build, ("run/slow",), 600.0))
    options: dict[str, Any] = {"drain": drain, "draining": told.append, "build": "old", "at_once": 1}
    hosting = asyncio.create_task(host_runs(ledger, [slow], stop=stop, **options))
    await asyncio.sleep(3)
    stop.set()
    await hosting
    left = [each.thread_id for each in await runs(ledger) if each.is_left]
    assert (left, told) == (["long", "later"] if is_left else ["later"], drained)


async def _until(ledger: Ledger, is_so: Callable[[Sequence[RunStatus]], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if is_so(await runs(ledger)):
                return
            await asyncio.sleep(0.02)


async def test_programs_must_be_programs_of_different_names() -> None:
    ledger = MemoryLedger()
    with pytest.raises(SetupError, match="two programs are called 'desk'"):
        await recover_runs(ledger, [desk, program("desk")(_nothing)])
    with pytest.raises(SetupError, match="a function is no program: write @program"):
        await recover_runs(ledger, [_nothing])  # type: ignore[list-item]
    with pytest.raises(SetupError, match=r"a Agent is no program: .* agent_program\(agent\)"):
        await recover_runs(ledger, [Agent(script())])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="the name of a program is a name"):
        program("")(_nothing)


async def _nothing(run: LedgerRun) -> None:
    """Do nothing."""


async def test_a_duplicate_of_a_program_joins_or_is_refused() -> None:
    ledger, opens = MemoryLedger(), asyncio.Event()

    @program("slow")
    async def slow(run: LedgerRun) -> str:
        await opens.wait()
        return "done"

    first = asyncio.create_task(slow.run("t", 1, ledger=ledger))
    await asyncio.sleep(0.01)
    with pytest.raises(OwnedError):
        await slow.run("t", 1, ledger=ledger, on_busy="raise")
    second = asyncio.create_task(slow.run("t", 1, ledger=ledger))
    opens.set()
    assert await asyncio.gather(first, second) == ["done", "done"]


# ---------------------------------------------------------------- before a deploy


def _clerk(ledger: Ledger, instructions: str = "Be kind.", **durability: Any) -> RunProgram[str]:
    """Return a program whose agent calls a tool and then answers, and which is cut before the answer."""

    def look() -> str:
        paid.append("look")
        return "seen"

    model = script([call("look", "c1")], [ToolCallPart("cut", {}, tool_call_id="c2")])
    agent = Agent(
        model,
        name="clerk",
        instructions=instructions,
        tools=[Tool(look, metadata={"antiphon": {"effects": "none"}}), Tool(_cut, name="cut")],
        capabilities=[LedgerDurability(ledger, **durability)],
    )
    return agent_program(agent)


class DiedError(BaseException):
    """Ends a program as a kill does."""


async def _cut() -> str:
    paid.append("cut")
    raise DiedError


async def _open_run(ledger: Ledger, thread_id: str = "order") -> None:
    with pytest.raises(DiedError):
        await _clerk(ledger).run(thread_id, "go", ledger=ledger)


async def _rows_of(ledger: Ledger, thread_id: str = "order") -> list[str]:
    return [record.message.id async for record in ledger.read(thread_id)]


@pytest.mark.slow
async def test_open_runs_are_checked_before_a_deploy_and_nothing_is_done() -> None:
    """G11: the forecast is what the program then does."""
    ledger = MemoryLedger()
    await _open_run(ledger)
    await desk.run("paid", {"amount": 1}, ledger=ledger)
    await _interrupted(ledger, "new")
    paid.clear()
    before = await _rows_of(ledger)
    same, changed = _clerk(ledger), _clerk(ledger, "Be brief.")
    lenient = _clerk(ledger, "Be brief.", on_change="continue")
    forecasts = []
    for each in (same, changed, lenient):
        (check,) = await check_runs(ledger, [each])
        forecasts.append((check.thread_id, check.id, check.name, check.forecast))
    # The interrupted call is `once`, so a person must settle it; a changed program does not come so far.
    assert forecasts == [("order", "run", "clerk", each) for each in ("waits", "stops", "waits")]
    assert (await check_runs(ledger, [changed]))[0].reason is not None
    assert "- Be kind.\n  + Be brief." in str((await check_runs(ledger, [changed]))[0].reason)
    (new,) = await check_runs(ledger, [desk])
    assert (new.thread_id, new.forecast) == ("new", "continues")
    assert await check_runs(ledger, [desk], "order") == ()
    assert (paid, await _rows_of(ledger)) == ([], before)
    assert (await _only(ledger, "order")).status == "waiting"
    with pytest.raises(HistoryMismatchError):
        await changed.run("order", ledger=ledger)


@pytest.mark.slow
async def test_a_check_sees_a_change_in_one_branch_while_another_has_passed_its_records() -> None:
    """The branches of a program run in parallel: the first one past its records waits a moment for the others."""
    ledger = MemoryLedger()

    async def steps(run: LedgerRun, last: int) -> None:
        for number in range(20):
            await asyncio.sleep(0)  # so that the parts take turns
            await run.effect(f"step {number}", {"last": last if number == 19 else 0}, _pay)

    async def work(run: LedgerRun, last: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.effect("new", {}, _pay))  # type: ignore[arg-type]
            group.create_task(steps(run, last))

    with suppress(asyncio.CancelledError):
        async with ledger_run("order", ledger=ledger, name="steps") as run:
            await steps(run, 1)
            raise asyncio.CancelledError
    for last, forecast in ((1, "continues"), (2, "stops")):
        (check,) = await check_runs(ledger, [RunProgram("steps", lambda run, last=last: work(run, last))])  # type: ignore[misc]
        assert check.forecast == forecast


@pytest.mark.slow
async def test_a_check_asks_nobody_about_an_interrupted_call() -> None:
    ledger, asked = MemoryLedger(), list[str]()

    async def reconcile(unsettled: Unsettled) -> str:
        asked.append(unsettled.tool)
        return "done"

    await _open_run(ledger)
    (check,) = await check_runs(ledger, [_clerk(ledger, reconcile=reconcile)])
    assert (check.forecast, asked) == ("waits", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "forecast", "reason"),
    [
        (KeyError("oh"), "fails", "'oh'"),
        (BaseExceptionGroup("", [ParkedError("wait"), HistoryMismatchError("no")]), "stops", "no"),
    ],
)
async def test_an_exception_of_a_program_in_a_check_is_reported(error: BaseException, forecast: str, reason: str) -> None:
    ledger = MemoryLedger()
    await _open_run(ledger)

    @program("clerk")
    async def broken(run: LedgerRun) -> str:
        raise error

    (check,) = await check_runs(ledger, [broken])
    assert (check.forecast, check.reason) == (forecast, reason)


async def test_a_stopped_run_is_recovered_after_a_person_has_allowed_the_change() -> None:
    """Before that, it stops again."""
    ledger = MemoryLedger()
    with suppress(asyncio.CancelledError):
        async with ledger_run("order", ledger=ledger, name="desk", input={"amount": 30}) as run:
            await run.effect("pay", {"amount": 29}, _pay)
            raise asyncio.CancelledError
    for _ in range(2):
        assert [each.status for each in await recover_runs(ledger, [desk])] == ["stopped"]
    await allow_change(ledger, "order", "continue")
    assert [each.status for each in await recover_runs(ledger, [desk])] == ["completed"]
    assert paid == ["order/run/pay"]
