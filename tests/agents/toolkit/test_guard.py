"""The guard: what is written down before a tool is started, and what a program finds there when it runs again."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from tests.agents.toolkit.kit import NOON, SetClock, Witness, call, failure, noted, returns, rows, run_agent, script, started
from typing_extensions import override

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw, use_port
from antiphon.runtime import Actor, Context, System


def within(work: Callable[[Ledger], Awaitable[None]]) -> None:
    """Do something with a ledger."""

    async def inside() -> None:
        async with open_ledger("memory:") as ledger:
            await work(ledger)

    asyncio.run(inside())


def shop(witness: Witness, **settings: Any) -> Toolkit:
    """Return a toolkit as a program makes it when it begins."""
    toolkit = Toolkit()

    def buy(item: str, card: str = "") -> str:
        witness.done.append(("buy", item))
        return f"bought {item}"

    def look(item: str) -> str:
        witness.done.append(("look", item))
        return f"{item} costs 5"

    toolkit.add(buy, sensitive=("card",), **settings)
    toolkit.add(look, effects="none")
    return toolkit


# ---------------------------------------------------------------- rows


def test_a_decision_and_the_intent_are_written_down_before_the_tool_is_started() -> None:
    """G6, S5: every decision is a row, and so are the grants behind it."""
    seen: list[list[str]] = []

    async def work(ledger: Ledger) -> None:
        toolkit = Toolkit()

        async def peek() -> None:
            seen.append([f"{message.lane} {message.kind}" for message in await rows(ledger)])

        toolkit.add(peek, to=["clerk"])
        await run_agent(toolkit, script([call("peek")]), ledger=ledger)
        (permitted,) = await noted(ledger, "TOOL_PERMISSIONS")
        (decided,) = await noted(ledger, "TOOL_PERMISSION")
        assert (permitted["agent"], permitted["changes"]) == ("clerk", [{"agent": "clerk", "tool": "peek"}])
        assert (decided["verdict"], decided["reason"]) == ("allow", "granted")
        assert (decided["agent"], decided["tool"]) == ("clerk", "peek")
        assert decided["grant"] == {"agent": "clerk", "tool": "peek"}
        assert {message.policy for message in await rows(ledger) if message.lane == "control"} == {"runtime"}

    within(work)
    noted_before = ["control parts"] * 3  # the toolkit, the permissions, the decision
    assert seen == [["effect option_call", *noted_before, "effect option_call"]]


def test_a_refusal_is_a_row_too_and_nothing_is_started() -> None:
    """S5, AT-038."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        toolkit.grant("clerk", "buy", where={"properties": {"item": {"const": "tea"}}})
        told = await run_agent(toolkit, script([call("buy", item="gold")]), ledger=ledger)
        (decided,) = await noted(ledger, "TOOL_PERMISSION")
        assert told == [("failed", f"buy: {decided['reason']} (PERMISSION_DENIED)")]
        assert decided["verdict"] == "deny"
        assert started(await rows(ledger), "buy") == 0

    within(work)
    assert witness.done == []


def test_sensitive_arguments_are_not_written_down() -> None:
    """AT-053, S7."""

    async def work(ledger: Ledger) -> None:
        toolkit = shop(Witness(), approval=True)
        toolkit.grant("clerk")
        asked = script([call("buy", item="tea", card="canary-4111")])
        with pytest.raises(ParkedError):
            await run_agent(toolkit, asked, ledger=ledger)
        stored = [record.body async for record in ledger.read("t")]
        assert any(b"[redacted:sensitive]" in body for body in stored)
        assert not any(b"canary" in body for body in stored)

    within(work)


# ---------------------------------------------------------------- again


def test_a_finished_call_is_not_made_again_and_its_decision_is_not_made_again() -> None:
    """G9: also if the permission is gone meanwhile, and the budget used up."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        first, later = shop(witness), shop(witness)
        first.grant("clerk", calls=1)
        later.grant("clerk", until=NOON)
        for toolkit in (first, later, later):
            told = await run_agent(toolkit, script([call("buy", item="tea")]), ledger=ledger)
            assert told == [("success", "bought tea")]
        assert len(await noted(ledger, "TOOL_PERMISSION")) == 1

    within(work)
    assert witness.done == [("buy", "tea")]


def test_calls_inside_a_tool_are_numbered_separately() -> None:
    """G9: when the tool is not run again, later calls keep their numbers."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        toolkit.grant("clerk")

        async def compare() -> Any:
            return (await toolkit.call("clerk", "look", {"item": "coffee"})).result

        toolkit.add(compare)
        for _ in range(2):
            async with ledger_run("t", ledger=ledger):
                first = await toolkit.call("clerk", "compare", {})
                then = await toolkit.call("clerk", "look", {"item": "tea"})
            assert (first.result, then.result) == ("coffee costs 5", "tea costs 5")

    within(work)
    assert witness.done == [("look", "coffee"), ("look", "tea")]


def test_a_program_that_asks_for_something_else_is_stopped() -> None:
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        for item in ("tea", "gold"):
            toolkit = shop(witness)
            toolkit.grant("clerk")
            async with ledger_run("t", ledger=ledger):
                agent = Agent(script([call("buy", item=item)]), name="clerk", toolsets=[toolkit.for_agent("clerk")])
                await agent.run("go")

    with pytest.raises(HistoryMismatchError):
        within(work)
    assert witness.done == [("buy", "tea")]


def revoked(witness: Witness) -> Toolkit:
    return shop(witness)


def stricter(witness: Witness) -> Toolkit:
    toolkit = shop(witness, approval=True)
    toolkit.grant("clerk")
    return toolkit


@pytest.mark.parametrize(
    ("later", "code", "reason"),
    [
        (revoked, "PERMISSION_DENIED", "nobody has granted 'buy' to 'clerk'"),
        (stricter, "APPROVAL_REQUIRED", "'buy' needs an approval, whatever it is called with, and did not"),
    ],
)
def test_permissions_are_checked_again_when_the_tool_starts(
    later: Callable[[Witness], Toolkit], code: str, reason: str
) -> None:
    """S5: the decision was made before a crash; when the program runs again, the grant is gone, or a person must say yes."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        toolkit.grant("clerk")
        append = ledger.append

        async def dies(thread_id: str, messages: Any, **more: Any) -> Any:
            kept = list(messages)
            if any(isinstance(each.payload, OptionCallPayload) and each.payload.option_name == "buy" for each in kept):
                raise KeyboardInterrupt
            return await append(thread_id, kept, **more)

        ledger.append = dies  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            await _buy(toolkit, ledger)
        ledger.append = append  # type: ignore[method-assign]
        for _ in range(2):
            found, said = failure(await _buy(later(witness), ledger))
            assert found == code
            assert str(said).startswith(reason)
        assert [each["verdict"] for each in await noted(ledger, "TOOL_PERMISSION")] == ["allow"]

    within(work)
    assert witness.done == []


async def _buy(toolkit: Toolkit, ledger: Ledger) -> Any:
    async with ledger_run("t", ledger=ledger):
        return await toolkit.call("clerk", "buy", {"item": "tea"}, invocation_id="i1")


def test_the_grants_of_an_agent_are_recorded_once_and_again_when_they_change() -> None:
    """S5: the basis of a decision can be read in the thread."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        toolkit.grant("clerk")
        toolkit.grant("mallory", "buy")
        async with ledger_run("t", ledger=ledger):
            await toolkit.call("clerk", "look", {"item": "tea"})
            await toolkit.call("clerk", "look", {"item": "tea"})
            toolkit.revoke("clerk", "buy")
            assert (await toolkit.call("clerk", "buy", {"item": "tea"})).error_type == "PERMISSION_DENIED"
        allowed = {"agent": "clerk", "tool": "*"}
        said = [each["changes"] for each in await noted(ledger, "TOOL_PERMISSIONS")]
        assert said == [[allowed], [allowed, {"agent": "clerk", "tool": "buy", "revoked": True}]]

    within(work)
    assert witness.names() == ["look", "look"]


def test_a_budget_of_calls_belongs_to_the_thread() -> None:
    """S5, S15: the calls of a thread count, also those of an earlier process; each thread has its own."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        told: list[Any] = []
        for thread, run in (("t", "one"), ("t", "two"), ("t", "three"), ("u", "one")):
            toolkit = shop(witness)
            toolkit.grant("clerk", "look", calls=2)
            async with ledger_run(thread, id=run, ledger=ledger):
                told.append((await toolkit.call("clerk", "look", {"item": "tea"})).error_type)
        assert told == [None, None, "PERMISSION_DENIED", None]

    within(work)


def test_calls_at_the_same_time_do_not_share_the_last_of_a_budget() -> None:
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        toolkit.grant("clerk", "buy", calls=1)
        calls = [call("buy", f"c{number}", item=str(number)) for number in range(5)]
        told = await run_agent(toolkit, script(calls), ledger=ledger)
        assert sorted(outcome for outcome, _ in told) == ["failed"] * 4 + ["success"]

    within(work)
    assert len(witness.done) == 1


def test_a_grant_ends_when_its_time_is_over() -> None:
    clock = SetClock()
    toolkit = shop(Witness())
    toolkit.grant("clerk", "look", until=NOON + timedelta(minutes=1))

    async def look() -> str | None:
        return (await toolkit.call("clerk", "look", {"item": "tea"})).error_type

    with use_port(clock):
        assert asyncio.run(look()) is None
        clock.move(minutes=1)
        assert asyncio.run(look()) == "PERMISSION_DENIED"


# ---------------------------------------------------------------- unknown outcomes


def test_a_once_call_that_times_out_is_left_to_a_person() -> None:
    """G7, F31: nobody knows whether it was done; the calls beside it end first."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        hanging = asyncio.Event()

        async def pay() -> None:
            witness.done.append(("pay", None))
            await hanging.wait()

        toolkit.add(pay, timeout=0.01)
        toolkit.grant("clerk")
        both = script([call("pay", "c1"), call("look", "c2", item="tea")])
        for _ in range(2):
            with pytest.raises(ParkedError, match="pay"):
                await run_agent(toolkit, both, ledger=ledger)
        parked = [record.message for record in await ledger.open_calls("t") if "PARK" in str(record.message.payload)]
        assert len(parked) == 1
        assert isinstance(parked[0].payload, OptionCallPayload)
        assert "it took more than 0.01 s" in str(thaw(parked[0].payload.arguments))

    within(work)
    assert witness.names() == ["pay", "look"]


@pytest.mark.parametrize(
    ("settled", "told"),
    [
        ({"result": "paid by hand"}, [("success", "paid by hand")]),
        ({"result": {"result": 5, "by": "hand"}}, [("success", {"result": 5, "by": "hand"})]),
        ({"error": "the bank says no"}, [("failed", "pay: the bank says no (TOOL_FAILED)")]),
        ({"retry": True}, [("success", "paid")]),
    ],
)
def test_a_person_records_the_outcome_of_a_tool_and_the_thread_continues(settled: dict[str, Any], told: list[Any]) -> None:
    """G7: a result, a failure, or another try."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = Toolkit()

        async def pay() -> str:
            witness.done.append(("pay", None))
            if len(witness.done) == 1:
                await asyncio.Event().wait()
            return "paid"

        toolkit.add(pay, timeout=0.01, to=["clerk"])
        with pytest.raises(ParkedError):
            await run_agent(toolkit, script([call("pay")]), ledger=ledger)
        async with System(ledger) as system:
            (parked,) = await system.parked()
            await system.settle("t", parked.invocation_id, **settled)
        assert await run_agent(toolkit, script([call("pay")]), ledger=ledger) == told

    within(work)
    assert len(witness.done) == (2 if "retry" in settled else 1)


# ---------------------------------------------------------------- in a handler of an actor


class Till(Actor):
    """An actor that pays with a tool, in the course of a message."""

    def __init__(self, toolkit: Toolkit) -> None:
        self._toolkit = toolkit

    @override
    async def hear(self, message: Message, context: Context) -> Any:
        async with ledger_run(context):
            return await self._toolkit.call("till", "buy", {"item": "tea"})


def test_a_handler_of_an_actor_uses_a_toolkit() -> None:
    """G6: the decision and the effect are rows of the thread that the message is of."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = shop(witness)
        toolkit.grant("till")
        async with System(ledger) as system:
            system.spawn("till/1", lambda: Till(toolkit))
            asking = Message(policy="ada", payload=OptionCallPayload(invocation_id="i1", option_name="BUY", arguments={}))
            answer = await system.ask("till/1", asking, thread_id="t")
        assert isinstance(answer.payload, OptionResultPayload)
        assert answer.payload.result == "bought tea"
        assert [each["verdict"] for each in await noted(ledger, "TOOL_PERMISSION")] == ["allow"]
        assert started(await rows(ledger), "buy") == 1

    within(work)
    assert witness.done == [("buy", "tea")]


# ---------------------------------------------------------------- with the durability of agents


def test_a_durable_agent_uses_a_toolkit_and_finishes_where_it_was() -> None:
    """G9: model answers and tool results come from the ledger; the tool that was not started yet is started."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        for attempt in range(2):
            toolkit = shop(witness)
            toolkit.grant("clerk")
            model = script([call("look", "c1", item="tea")], [call("buy", "c2", item="tea")])
            capabilities = [LedgerDurability(ledger), toolkit.capability("clerk")]
            agent = Agent(model, name="clerk", capabilities=capabilities)
            async with ledger_run("t"):
                told = returns((await agent.run("go")).all_messages())
            assert told == [("success", "tea costs 5"), ("success", "bought tea")], attempt

    within(work)
    assert witness.names() == ["look", "buy"]
