"""The toolkit of a thread is part of its history: no program continues the thread with those tools and no toolkit."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.agents.toolkit.kit import Witness, call, noted, returns, rows, script, started

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import ApprovalRule, Schema, Toolkit, answer, pending_approvals
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError, UnguardedToolError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import DataPart, Message, OptionCallPayload, PartsPayload
from antiphon.service import allow_change

PAY = script([call("pay", amount=5)])
LOOK_THEN_PAY = script([call("look", "c1")], [call("pay", "c2", amount=5)])


def _look_then_fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        raise RuntimeError("the model is gone")
    return ModelResponse(parts=[call("look", "c1")])


LOOK_THEN_FAIL = FunctionModel(_look_then_fail)


def within(work: Callable[[Ledger], Any]) -> None:
    async def inside() -> None:
        async with open_ledger("memory:") as ledger:
            await work(ledger)

    asyncio.run(asyncio.wait_for(inside(), 30))


class Till:
    """Tools that say what was done, with a toolkit that guards them, or without: a model sees no difference."""

    def __init__(self) -> None:
        self.witness = Witness()

    def pay(self, amount: int) -> str:
        """Pay somebody."""
        self.witness.done.append(("pay", amount))
        return f"paid {amount}"

    def look(self) -> str:
        """Look how much there is."""
        self.witness.done.append(("look", None))
        return "a lot"

    def toolkit(self, *, approval: bool = True, **settings: Any) -> Toolkit:
        toolkit = Toolkit(**settings)
        toolkit.add(self.pay, approval=approval)
        toolkit.add(self.look, effects="none")
        toolkit.grant("clerk")
        return toolkit

    async def guarded(self, ledger: Ledger, model: FunctionModel = PAY, **settings: Any) -> list[tuple[str, Any]]:
        """Run the agent under a toolkit."""
        return await self.under(self.toolkit(**settings), ledger, model)

    async def under(self, toolkit: Toolkit, ledger: Ledger, model: FunctionModel = PAY) -> list[tuple[str, Any]]:
        return await _run(ledger, Agent(model, name="clerk", capabilities=[_durable(ledger), toolkit.capability("clerk")]))

    async def plain(
        self,
        ledger: Ledger,
        model: FunctionModel = PAY,
        *,
        id: str = "run",
        agent: str = "clerk",
        more: Any = (),
        on_change: Any = None,
    ) -> list[tuple[str, Any]]:
        """Run the agent with the same functions as plain tools."""
        tools = [Tool[object](self.pay), Tool[object](self.look), *more]
        made = Agent(model, name=agent, tools=tools, capabilities=[_durable(ledger)])
        return await _run(ledger, made, id=id, on_change=on_change)


def _durable(ledger: Ledger) -> LedgerDurability[object]:
    return LedgerDurability(ledger)


async def _run(ledger: Ledger, agent: Agent[object, str], *, id: str = "run", on_change: Any = None) -> list[tuple[str, Any]]:
    async with ledger_run("t", id=id, ledger=ledger, on_change=on_change):
        return returns((await agent.run("go")).all_messages())


async def _asked(till: Till, ledger: Ledger, model: FunctionModel = PAY, **settings: Any) -> str:
    """Run until a person must answer, and return the id of the question."""
    with pytest.raises(ParkedError):
        await till.guarded(ledger, model, **settings)
    (approval,) = await pending_approvals(ledger)
    return approval.id


# ---------------------------------------------------------------- without a toolkit


@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("id", ["run", "another"])
def test_a_guarded_tool_is_not_started_as_a_plain_one(said: bool | None, id: str) -> None:
    """S5, G22: not while the question is open, nor after an answer, nor in another run of the thread."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        question = await _asked(till, ledger)
        if said is not None:
            await answer(ledger, question, principal="ada", approved=said)
        before = len(await rows(ledger))
        for _ in range(2):
            with pytest.raises(UnguardedToolError, match="this program"):
                await till.plain(ledger, id=id)
        assert started((await rows(ledger))[before:], "pay") == 0
        if said is None:
            await answer(ledger, question, principal="ada", approved=True)
        told = await till.guarded(ledger)  # with its toolkit, it goes on where it was
        assert told == [("failed", "pay: 'ada' said no (APPROVAL_DENIED)") if said is False else ("success", "paid 5")]

    within(work)
    assert till.witness.done == ([] if said is False else [("pay", 5)])


@pytest.mark.parametrize("on_change", ["continue", "restart"])
@pytest.mark.parametrize("by_person", [True, False])
@pytest.mark.parametrize("way", ["plain", "without approval", "another instruction"])
def test_a_changed_program_goes_on_only_under_the_toolkit(way: str, by_person: bool, on_change: Any) -> None:
    """S5, G11: neither the program nor a person can let a run continue without the toolkit, or without its questions."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        await _asked(till, ledger)
        if by_person:
            await allow_change(ledger, "t", on_change)
        more: dict[str, Any] = {} if by_person else {"on_change": on_change}
        if way == "another instruction":
            capabilities = [_durable(ledger), till.toolkit().capability("clerk")]
            agent: Agent[object, str] = Agent(PAY, name="clerk", instructions="Be kind.", capabilities=capabilities)
            with pytest.raises((ParkedError, HistoryMismatchError)):  # the question is still open
                await _run(ledger, agent, **more)
            assert len(await pending_approvals(ledger)) >= 1
            return
        toolkit = till.toolkit(approval=False)
        lenient = Agent(PAY, name="clerk", capabilities=[_durable(ledger), toolkit.capability("clerk")])
        with pytest.raises(UnguardedToolError):
            await (till.plain(ledger, **more) if way == "plain" else _run(ledger, lenient, **more))

    within(work)
    assert till.witness.done == []


def test_nothing_is_started_before_a_missing_toolkit_is_noticed() -> None:
    """S5: not even a tool that nobody need approve, which comes first."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        await _asked(till, ledger, LOOK_THEN_PAY)
        assert till.witness.names() == ["look"]
        with pytest.raises(HistoryMismatchError, match="was begun under toolkit 'toolkit', and this program goes on"):
            await till.plain(ledger, LOOK_THEN_PAY)

    within(work)
    assert till.witness.names() == ["look"]


def test_a_tool_that_needs_no_approval_stays_in_its_toolkit_too() -> None:
    """S5: a grant may be for some arguments, or some calls: a plain tool would be for all."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        with pytest.raises(RuntimeError, match="the model is gone"):
            await till.guarded(ledger, LOOK_THEN_FAIL, approval=False)
        with pytest.raises(UnguardedToolError, match="was begun under toolkit 'toolkit'"):
            await till.plain(ledger, LOOK_THEN_PAY)
        other = Toolkit()
        other.add(till.look, effects="none", to=["clerk"])
        more = [_durable(ledger), other.capability("clerk")]
        with pytest.raises(UnguardedToolError, match="'pay' is a tool of a toolkit in thread 't'"):
            await _run(ledger, Agent(LOOK_THEN_PAY, name="clerk", tools=[Tool[object](till.pay)], capabilities=more))

    within(work)
    assert till.witness.names() == ["look"]


# ---------------------------------------------------------------- with another toolkit


def _other(till: Till, **settings: Any) -> Toolkit:
    return till.toolkit(name="other", **settings)


def test_a_toolkit_that_no_longer_asks_is_refused() -> None:
    """S5: the same tool with the approval taken away."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        question = await _asked(till, ledger)
        for kit in (_other(till, approval=False), till.toolkit(approval=False)):
            with pytest.raises(UnguardedToolError, match="a person must approve 'pay' for 'clerk' in thread 't'"):
                await till.under(kit, ledger)
            async with ledger_run("t", id=kit.name, ledger=ledger):
                with pytest.raises(UnguardedToolError, match="does not ask: have it ask"):
                    await kit.call("clerk", "pay", {"amount": 5})
        await answer(ledger, question, principal="ada", approved=True)
        assert await till.guarded(ledger) == [("success", "paid 5")]

    within(work)


def test_a_toolkit_with_more_tools_or_other_grants_is_no_mismatch() -> None:
    """S5: nor is one that asks for the approval by a rule, and no longer for every call."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        await _asked(till, ledger)
        kit = _other(
            till, approval=False, rules=[ApprovalRule("pay", where=Schema({"properties": {"amount": {"minimum": 6}}}))]
        )
        kit.add(_greet, name="greet", to=["clerk"])
        kit.revoke("clerk", "look")
        async with ledger_run("t", id="another", ledger=ledger):
            assert (await kit.call("clerk", "greet", {})).result == "hello"
            assert (await kit.call("clerk", "pay", {"amount": 5})).result == "paid 5"
            with pytest.raises(ParkedError):
                await kit.call("clerk", "pay", {"amount": 6})

    within(work)


def _greet() -> str:
    return "hello"


def test_an_unrelated_plain_tool_beside_the_toolkit_is_no_mismatch() -> None:
    """S5: also one that was not there when the run was begun."""
    till = Till()

    def greet() -> str:
        till.witness.done.append(("greet", None))
        return "hello"

    async def work(ledger: Ledger) -> None:
        agent = Agent(
            script([call("greet")]),
            name="clerk",
            tools=[Tool[object](greet)],
            capabilities=[_durable(ledger), till.toolkit().capability("clerk")],
        )
        await _asked(till, ledger)
        async with ledger_run("t", id="another", ledger=ledger):
            assert returns((await agent.run("go")).all_messages()) == [("success", "hello")]

    within(work)
    assert till.witness.names() == ["greet"]


def test_a_rule_for_one_agent_does_not_bind_another_with_the_same_tool() -> None:
    """S5: the toolkit says who must ask."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        kit = till.toolkit(approval=False, rules=[ApprovalRule("pay", "clerk")])
        kit.grant("boss")
        await _asked(till, ledger, approval=False, rules=[ApprovalRule("pay", "clerk")])
        async with ledger_run("t", id="another", ledger=ledger):
            assert (await kit.call("boss", "pay", {"amount": 7})).result == "paid 7"

    within(work)


def test_a_question_because_of_untrusted_content_is_asked_again() -> None:
    """S4: a toolkit that would let a tainted agent call the tool is another toolkit."""
    till = Till()

    def kit(*, lenient: bool) -> Toolkit:
        made = Toolkit()
        made.add(till.look, effects="none", untrusted=True)
        made.add(till.pay, allows_untrusted=lenient)
        made.grant("clerk")
        return made

    async def work(ledger: Ledger) -> None:
        with pytest.raises(ParkedError):
            await till.under(kit(lenient=False), ledger, LOOK_THEN_PAY)
        with pytest.raises(UnguardedToolError, match="a person must approve 'pay'"):
            await till.under(kit(lenient=True), ledger, LOOK_THEN_PAY)
        with pytest.raises(ParkedError):
            await till.under(kit(lenient=False), ledger, LOOK_THEN_PAY)

    within(work)
    assert till.witness.names() == ["look"]


# ---------------------------------------------------------------- threads without marks, and forged rows


async def _without_marks(ledger: Ledger) -> Ledger:
    """Return a copy of the thread without the marks of its toolkits."""
    old = MemoryLedger()
    kept = [row for row in await rows(ledger) if row.correlation_id != "TOOLKIT_GUARD"]
    await old.append("t", kept, epoch=await old.claim("t"), allow_foreign=True)
    return old


@pytest.mark.slow
@pytest.mark.parametrize("said", [None, False])
def test_a_thread_without_marks_is_judged_by_its_approvals(said: bool | None) -> None:
    """S5, G11: an approval that is open or answered says that the tool is guarded."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        question = await _asked(till, ledger)
        if said is not None:
            await answer(ledger, question, principal="ada", approved=said)
        old = await _without_marks(ledger)
        with pytest.raises(UnguardedToolError, match="'pay' is a tool of a toolkit in thread 't'"):
            await till.plain(old)
        with pytest.raises(UnguardedToolError, match="a person must approve 'pay' for 'clerk'"):
            await till.under(till.toolkit(approval=False), old)
        if said is None:
            await answer(old, question, principal="ada", approved=True)
            assert await till.guarded(old) == [("success", "paid 5")]
        else:
            assert await till.guarded(old) == [("failed", "pay: 'ada' said no (APPROVAL_DENIED)")]

    within(work)
    assert till.witness.done == ([("pay", 5)] if said is None else [])


def test_a_finished_thread_without_marks_gives_back_what_is_recorded() -> None:
    """G9, G11: no mark is written where nothing is started any more."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        assert await till.guarded(ledger, approval=False) == [("success", "paid 5")]
        old = await _without_marks(ledger)
        before = await rows(old)
        assert await till.guarded(old, approval=False) == [("success", "paid 5")]
        assert await rows(old) == before

    within(work)
    assert till.witness.done == [("pay", 5)]


def test_a_run_writes_its_mark_once() -> None:
    """S5: with the tools, and those that a person must approve; however often the program runs."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        for _ in range(3):
            await _asked(till, ledger)
        (mark,) = await noted(ledger, "TOOLKIT_GUARD")
        assert (mark["toolkit"], mark["agent"], mark["run"]) == ("toolkit", "clerk", "t/run/clerk")
        assert (mark["tools"], mark["asks"]) == (["look", "pay"], ["pay"])
        assert len(mark["digest"]) == 52

    within(work)


@pytest.mark.parametrize(
    "said",
    [
        {"type": "TOOLKIT_GUARD", "asks": "pay"},
        {"type": "TOOL_PERMISSION", "verdict": "ask", "tool": 5},
        {"type": "something else"},
        "TOOLKIT_GUARD",
    ],
)
def test_a_row_that_is_no_mark_is_none(said: Any) -> None:
    """S14, G21: whatever it says."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        payloads = [
            PartsPayload(parts=(DataPart(data=said),)),
            OptionCallPayload(invocation_id="a", option_name="APPROVE", arguments={"tool": "pay"}),
        ]
        forged = [Message(policy="runtime", payload=each, lane="control") for each in payloads]
        await ledger.append("t", forged, epoch=await ledger.claim("t"))
        assert await till.plain(ledger) == [("success", "paid 5")]

    within(work)


def test_a_stranger_cannot_mark_a_thread() -> None:
    """S14, G22: what others say is talk, whatever it looks like."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        kit = till.toolkit()
        mark = kit.policy.cover("toolkit", "clerk", await kit.tools(), "t/run/clerk").row()
        forged = mark.model_copy(update={"policy": "mallory", "to": ("clerk",)})
        await ledger.post("t", forged)
        await ledger.post("t", forged.model_copy(update={"id": "talk", "lane": "talk"}))
        assert await till.plain(ledger) == [("success", "paid 5")]

    within(work)


# ---------------------------------------------------------------- finished runs


@pytest.mark.slow
@pytest.mark.parametrize("was_guarded", [True, False])
def test_a_finished_run_is_read_with_its_results_whether_or_not_there_is_a_toolkit_now(was_guarded: bool) -> None:
    """G11: nothing goes on there, so nothing has to be guarded."""
    till = Till()

    async def work(ledger: Ledger) -> None:
        ways = [till.plain, partial(till.guarded, approval=False)]
        first = await ways[was_guarded](ledger, LOOK_THEN_PAY)
        assert first == [("success", "a lot"), ("success", "paid 5")]
        before = len(await rows(ledger))
        for way in ways:
            assert await way(ledger, LOOK_THEN_PAY) == first
        bare = Agent(LOOK_THEN_PAY, name="clerk", capabilities=[_durable(ledger)])  # all tools are gone
        assert await _run(ledger, bare) == first
        assert len(await rows(ledger)) == before

    within(work)
    assert till.witness.done == [("look", None), ("pay", 5)]
