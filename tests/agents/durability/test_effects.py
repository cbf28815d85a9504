"""A call that was started and has no outcome: it runs again, runs again under its key, or waits for a person.

G6, G7, F31.
"""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from tests.agents.durability.agents import Desk, call, script

from antiphon.agents import LedgerDurability, NotDone, Unsettled
from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.durable import LedgerRun, _opening, current_effect, current_run, ledger_run, runs
from antiphon.errors import EffectFailedError, FencedError, ParkedError, UnknownOutcomeError
from antiphon.ledger import STANDARD_REDACTION, Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import DataPart, Message, PartsPayload
from antiphon.runtime import System


class DiedError(BaseException):
    """Ends the program as a kill does: nothing that happens in it is written down."""


def dying(ledger: Ledger, desk: Desk, declared: str | None, turns: Any, *, is_dying: bool, **more: Any) -> Agent[None, str]:
    agent: Agent[None, str] = Agent(script(desk, *turns), name="clerk", capabilities=[LedgerDurability(ledger, **more)])
    metadata = {} if declared is None else {"metadata": {"antiphon": {"effects": declared}}}

    @agent.tool_plain(**metadata)
    async def pay(amount: int) -> str:
        desk.note(f"pay {amount}")
        if is_dying:
            raise DiedError
        return f"paid {amount}"

    return agent


PAYING = ([call("pay", "p1", amount=7)], ["thank you"])


async def die(ledger: Ledger, desk: Desk, declared: str | None, **more: Any) -> None:
    with pytest.raises(DiedError):
        async with ledger_run("t"):
            await dying(ledger, desk, declared, PAYING, is_dying=True, **more).run("pay")
    assert desk.taken() == ["model 0", "pay 7"]


@pytest.mark.parametrize("effects", ["none", "idempotent"])
async def test_an_idempotent_call_is_repeated_under_the_same_key(effects: str) -> None:
    ledger, desk = MemoryLedger(), Desk()
    await die(ledger, desk, effects)
    key = desk.keys.pop("pay 7")
    async with ledger_run("t"):
        assert (await dying(ledger, desk, effects, PAYING, is_dying=False).run("pay")).output == "thank you"
    assert desk.taken() == ["pay 7", "model 1"]
    assert desk.keys["pay 7"] == key == "t/run/clerk/pay:p1"


@pytest.mark.parametrize("effects", [None, "once"])
async def test_a_once_call_waits_for_a_person(effects: str | None) -> None:
    """G7: however often the program is started."""
    ledger, desk = MemoryLedger(), Desk()
    await die(ledger, desk, effects)
    for _ in range(3):
        with pytest.raises(ParkedError, match="nobody knows whether .*pay' was done"):
            async with ledger_run("t"):
                await dying(ledger, desk, effects, PAYING, is_dying=False).run("pay")
    assert desk.taken() == []
    async with System(ledger) as system:
        (parked,) = await system.parked()
        assert parked.invocation_id == parked.evidence["effect"] == "t/run/clerk/pay:p1"
        await system.settle("t", parked.invocation_id, result="paid, says the bank")
        assert await system.parked() == ()
    agent = dying(ledger, desk, effects, PAYING, is_dying=False)
    async with ledger_run("t"):
        result = await agent.run("pay")
    assert "paid, says the bank" in str(result.all_messages())
    assert desk.taken() == ["model 1"]


@pytest.mark.parametrize(
    ("settlement", "seen", "told"),
    [
        ({"result": {"kind": "odd"}}, ["model 1"], "odd"),
        ({"error": "the bank knows of none"}, ["model 1"], "the bank knows of none"),
        ({"retry": True}, ["pay 7", "model 1"], "paid 7"),
    ],
)
async def test_a_person_records_the_outcome_and_the_run_continues(settlement: Any, seen: list[str], told: str) -> None:
    ledger, desk = MemoryLedger(), Desk()
    await die(ledger, desk, "once")
    agent = dying(ledger, desk, "once", PAYING, is_dying=False)
    with pytest.raises(ParkedError):
        async with ledger_run("t"):
            await agent.run("pay")
    async with System(ledger) as system:
        await system.settle("t", "t/run/clerk/pay:p1", **settlement)
    for expected in (seen, []):
        async with ledger_run("t"):
            result = await agent.run("pay")
        assert told in str(result.all_messages()[2])
        assert desk.taken() == expected


@pytest.mark.parametrize(("found", "seen"), [("paid 7", ["model 1"]), (NotDone(), ["pay 7", "model 1"]), (None, None)])
async def test_a_reconcile_function_may_find_the_outcome(found: Any, seen: list[str] | None) -> None:
    ledger, desk = MemoryLedger(), Desk()
    asked: list[Unsettled] = []

    async def reconcile(unsettled: Unsettled) -> Any:
        asked.append(unsettled)
        return found

    await die(ledger, desk, "once", reconcile=reconcile)
    agent = dying(ledger, desk, "once", PAYING, is_dying=False, reconcile=reconcile)
    if seen is None:
        with pytest.raises(ParkedError):
            async with ledger_run("t"):
                await agent.run("pay")
        return
    async with ledger_run("t"):
        assert "paid 7" in str((await agent.run("pay")).all_messages())
    assert desk.taken() == seen
    (unsettled,) = asked
    assert (unsettled.tool, unsettled.arguments, unsettled.key) == ("pay", {"amount": 7}, "t/run/clerk/pay:p1")


@pytest.mark.parametrize("effects", ["once", "idempotent"])
async def test_a_call_that_times_out_may_have_been_made(effects: str) -> None:
    """F31: a `once` call is parked; for any other call, the model gets an error."""
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("hang", "h1")], ["too bad"]), name="clerk", capabilities=[LedgerDurability(ledger)]
    )

    @agent.tool_plain(timeout=0.01, metadata={"antiphon": {"effects": effects}})
    async def hang() -> str:
        desk.note("hang")
        await asyncio.Event().wait()
        return "never"

    if effects == "idempotent":
        async with ledger_run("t"):
            assert (await agent.run("go")).output == "too bad"
        return
    for _ in range(2):
        with pytest.raises(ParkedError):
            async with ledger_run("t"):
                await agent.run("go")
    assert desk.taken() == ["model 0", "hang"]


async def test_an_exception_of_a_tool_is_its_recorded_outcome() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("fail", "f1")], ["never"]), name="clerk", capabilities=[LedgerDurability(ledger)]
    )

    @agent.tool_plain
    async def fail() -> str:
        desk.note("fail")
        raise OSError("the printer is on fire")

    for _ in range(2):
        with pytest.raises(OSError, match="the printer is on fire"):
            async with ledger_run("t"):
                await agent.run("go")
    assert desk.taken() == ["model 0", "fail"]


async def test_tools_in_parallel_are_parked_one_by_one() -> None:
    ledger, desk = MemoryLedger(), Desk()
    turns = ([call("pay", "p1", amount=1), call("pay", "p2", amount=2)], ["thank you"])
    with pytest.raises((DiedError, ParkedError)):  # the second call, if it had not started
        async with ledger_run("t"):
            await dying(ledger, desk, "once", turns, is_dying=True).run("pay")
    started = [what for what in desk.taken() if what.startswith("pay")]
    with pytest.raises(ParkedError):
        async with ledger_run("t"):
            await dying(ledger, desk, "once", turns, is_dying=False).run("pay")
    again = [what for what in desk.taken() if what.startswith("pay")]
    assert not set(started) & set(again)


async def test_the_program_may_declare_the_effects_of_a_tool() -> None:
    ledger, desk = MemoryLedger(), Desk()
    await die(ledger, desk, "once", effects={"pay": "none"})
    async with ledger_run("t"):
        await dying(ledger, desk, "once", PAYING, is_dying=False, effects={"pay": "none"}).run("pay")
    assert desk.taken() == ["pay 7", "model 1"]
    with pytest.raises(UserError, match="the effects of tool 'pay' are one of none, idempotent, once, not 'twice'"):
        async with ledger_run("u"):
            await dying(ledger, desk, "twice", PAYING, is_dying=False).run("pay")


# ---------------------------------------------------------------- runs


async def test_a_process_that_was_thought_dead_cannot_write() -> None:
    ledger = MemoryLedger()

    async def nothing(key: str) -> None:
        return None

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("first", {}, nothing)
            await ledger.claim("t")  # as another process does
            await run.effect("second", {}, nothing)

    with pytest.raises(FencedError):
        await work()
    assert [row.message.invocation_id for row in await ledger.open_calls("t")] == ["t/run"]


async def test_errors_of_a_step_of_the_program_say_how_a_person_settles_it() -> None:
    async def live(error: BaseException) -> None:
        async def pay(key: str) -> None:
            raise error

        async with ledger_run(type(error).__name__, ledger=ledger) as run:
            await run.effect("pay", {"amount": 7}, pay)

    ledger = MemoryLedger()
    with pytest.raises(DiedError):
        await live(DiedError())
    with pytest.raises(ParkedError, match="say it with `antiphon settle DiedError DiedError/run/pay --result JSON"):
        await live(DiedError())
    with pytest.raises(EffectFailedError, match="ValueError: no money") as raised:
        await live(ValueError("no money"))
    assert "`antiphon settle ValueError ValueError/run/pay --retry` lets the next start repeat it" in raised.value.__notes__[0]


@pytest.mark.parametrize("dies_in_step", [True, False])
async def test_an_agent_in_a_step_of_the_program_belongs_to_that_step(dies_in_step: bool) -> None:
    """When the step is recorded, the agent does not run again; another one of its name does not get its answers."""
    ledger, desk = MemoryLedger(), Desk()

    async def live(is_dying: bool) -> tuple[str, str]:
        agent: Agent[None, str] = Agent(script(desk, ["hello"]), name="clerk", capabilities=[LedgerDurability(ledger)])

        async def ask(key: str) -> str:
            answer = (await agent.run("in the step")).output
            if is_dying and dies_in_step:
                raise DiedError
            return answer

        async with ledger_run("t", ledger=ledger) as run:
            first = await run.effect("ask", {}, ask, effects="none")
            if is_dying:
                raise DiedError
            return first, (await agent.run("after it")).output

    with pytest.raises(DiedError):
        await live(is_dying=True)
    assert await live(is_dying=False) == ("hello", "hello")
    assert desk.taken() == ["model 0", "model 0"]
    assert await live(is_dying=False) == ("hello", "hello")
    assert desk.taken() == []


async def test_a_run_that_kills_its_process_each_time_is_parked() -> None:
    """S15: the number of tries has a limit."""
    ledger = MemoryLedger()

    async def live() -> None:
        async with ledger_run("t", ledger=ledger):
            raise DiedError

    for _ in range(51):
        with pytest.raises(DiedError):
            await live()
    with pytest.raises(
        ParkedError, match="it was begun 51 times, and never ended; to start it again: `antiphon settle t t/run --retry`"
    ):
        await live()
    with pytest.raises(ParkedError, match="waits for a person"):
        async with ledger_run("t", ledger=ledger):
            pass
    async with System(ledger) as system:
        await system.settle("t", "t/run", retry=True)
    async with ledger_run("t", ledger=ledger) as run:
        await run.effect("go", {}, _nothing)
    assert not await ledger.open_calls("t")


async def test_a_run_that_a_person_has_retried_can_be_parked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: the count of tries begins anew with the person's answer."""
    monkeypatch.setattr(_opening, "_RECOVERIES", 1)

    ledger = MemoryLedger()

    async def live() -> None:
        async with ledger_run("t", ledger=ledger):
            raise DiedError

    with pytest.raises(DiedError):
        await live()
    for _ in range(3):
        with pytest.raises(DiedError):
            await live()
        with pytest.raises(ParkedError, match="it was begun 2 times, and never ended"):
            await live()
        async with System(ledger) as system:
            (parked,) = await system.parked()
            await system.settle("t", parked.invocation_id, retry=True)
    async with ledger_run("t", ledger=ledger) as run:
        await run.effect("go", {}, _nothing)
    assert not await ledger.open_calls("t")


async def test_a_start_that_only_waited_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: a server that continued a waiting run at each request had it parked after 50 requests."""
    monkeypatch.setattr(_opening, "_RECOVERIES", 2)
    ledger = MemoryLedger()

    async def live(error: BaseException | None) -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("go", {}, _nothing)
            if error is not None:
                raise error

    waits = ParkedError("it waits for an answer")
    for error in (waits, waits, DiedError(), waits, waits, waits):
        with pytest.raises(type(error)) as caught:
            await live(error)
        assert caught.value is error
    (status,) = await runs(ledger)
    assert status.attempts == 2
    with pytest.raises(DiedError):
        await live(DiedError())
    with pytest.raises(ParkedError, match="it was begun 3 times, and never ended"):
        await live(None)


@pytest.mark.slow
async def test_a_run_that_waits_for_an_approval_may_be_continued_any_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_opening, "_RECOVERIES", 2)
    ledger, toolkit = MemoryLedger(), Toolkit()

    @toolkit.tool(approval=True, to=["clerk"])
    async def pay() -> str:
        return "paid"

    async def live() -> str:
        async with ledger_run("t", ledger=ledger):
            return str((await toolkit.call("clerk", "pay", {})).result)

    for _ in range(20):
        with pytest.raises(ParkedError, match="antiphon approve"):
            await live()
    (waiting,) = await pending_approvals(ledger)
    await answer(ledger, waiting.id, principal="ada", approved=True)
    for _ in range(2):  # the second reads everything from the ledger; neither warns that nothing was recorded
        assert await live() == "paid"
    assert not await ledger.open_calls("t")


async def test_a_run_is_at_work_once_in_a_process_and_runs_of_other_ids_beside_it() -> None:
    ledger = MemoryLedger()
    async with ledger_run("t", ledger=ledger) as one, ledger_run("t", ledger=ledger, id="other") as other:
        await one.effect("go", {}, _nothing)
        await other.effect("go", {}, _nothing)
        with pytest.raises(RuntimeError, match="run 'run' of thread 't' is open around this block"):
            async with ledger_run("t", ledger=ledger):
                pass
    assert not await ledger.open_calls("t")


async def test_a_note_is_in_the_thread_once() -> None:
    ledger = MemoryLedger()
    note = Message(policy="toolkit", payload=PartsPayload(parts=(DataPart(data={"granted": True}),)))

    async def work() -> None:
        async with ledger_run("t", ledger=ledger):
            run = current_run()
            assert isinstance(run, LedgerRun)
            assert run.ledger is ledger
            await run.note(note, key="decision")
            raise DiedError

    for _ in range(2):
        with pytest.raises(DiedError):
            await work()
    noted = [record.message async for record in ledger.read("t") if record.message.lane == "control"]
    assert [(message.id, message.parent_id) for message in noted] == [("t/run/decision", "t/run")]
    assert current_run() is None
    assert current_effect() is None


async def test_an_effect_may_report_an_unknown_outcome() -> None:
    ledger = MemoryLedger()

    async def unsure(key: str) -> None:
        raise UnknownOutcomeError("no answer from the bank")

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            with pytest.raises(EffectFailedError, match="no answer from the bank"):
                await run.effect("look", {}, unsure, effects="none")
            await run.effect("pay", {}, unsure)

    with pytest.raises(ParkedError, match="no answer from the bank"):
        await work()


async def test_a_run_without_a_ledger_says_so() -> None:
    with pytest.raises(RuntimeError, match="run 'run' has no ledger: use ledger_run\\('t', ledger="):
        async with ledger_run("t") as run:
            run.ledger  # noqa: B018


async def _nothing(key: str) -> None:
    return None


@pytest.mark.parametrize("effects", ["once", "none"])
async def test_a_run_that_does_not_await_an_effect_ends_only_if_nobody_needs_its_outcome(effects: str) -> None:
    """G7: what may have been done is parked by the next attempt, whether the program waits for it or not."""
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("hang", "h1")], ["never"]), name="clerk", capabilities=[LedgerDurability(ledger)]
    )

    hanging = asyncio.Event()

    @agent.tool_plain(metadata={"antiphon": {"effects": effects}})
    async def hang() -> str:
        desk.note("hang")
        hanging.set()
        await asyncio.Event().wait()
        return "never"

    async def program() -> None:
        async with ledger_run("t"):
            going = asyncio.create_task(agent.run("go"))
            going.add_done_callback(lambda _: hanging.set())
            await hanging.wait()
            going.cancel()
            with suppress(asyncio.CancelledError, ParkedError):
                await going

    if effects == "none":
        await program()
        assert [row.message.invocation_id for row in await ledger.open_calls("t")] == ["h1"]
        return
    for match in ("'hang' was cancelled, and must not be done twice", "nobody knows whether 'hang' was done"):
        hanging.clear()
        with pytest.raises(ParkedError, match=match):
            await program()
    async with System(ledger) as system:
        assert [parked.evidence["effect"] for parked in await system.parked()] == ["t/run/clerk/hang:h1"]


async def test_a_secret_is_neither_stored_nor_told_twice() -> None:
    """S7, G23: this run and the next one get the same redacted text."""
    async with open_ledger("memory:", redaction=STANDARD_REDACTION) as ledger:
        desk, secret = Desk(), f"sk-ant-api03-{'x7' * 20}"
        settings: Any = {"extra_headers": {"Authorization": f"Bearer {secret}"}, "temperature": 0.1}
        turns = ([f"the key is {secret}", call("show", "c1", key=secret)], ["done"])
        outputs: list[str] = []
        for seen in (["model 0", "show", "model 1"], []):
            agent: Agent[None, str] = Agent(
                script(desk, *turns), name="clerk", capabilities=[LedgerDurability(ledger)], model_settings=settings
            )

            @agent.tool_plain
            async def show(key: str) -> str:
                desk.note("show")
                return f"got {key}"

            async with ledger_run("t"):
                result = await agent.run(f"keep {secret}")
            outputs.append(str([message.parts for message in result.all_messages()[1:]]))
            assert desk.taken() == seen
        assert secret not in outputs[0]
        rows = [record async for record in ledger.read("t")]
        assert not [row for row in rows if secret.encode() in row.body]
        assert len([row for row in rows if row.message.lane == "talk"]) == 5
