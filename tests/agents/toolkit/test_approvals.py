"""Approvals: a person's word for one exact call, given in the ledger, and looked at where the tool is started."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolApproved
from tests.agents.toolkit.kit import NOON, SetClock, Witness, call, failure, noted, rows, run_agent, script, started

from antiphon import service
from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Approval, ApprovalRule, Schema, Toolkit, answer, pending_approvals
from antiphon.durable import ledger_run
from antiphon.durable._approvals import find_approval
from antiphon.errors import (
    NotWaitingError,
    ParkedError,
)
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import RUNTIME_POLICY, Message, OptionCallPayload, OptionResultPayload, use_port

Work = Callable[[Ledger], Awaitable[None]]


def within(work: Work) -> None:
    async def inside() -> None:
        async with open_ledger("memory:") as ledger:
            await work(ledger)

    asyncio.run(inside())


def bank(witness: Witness, **settings: Any) -> Toolkit:
    """Return a toolkit whose `pay` a person must approve."""
    toolkit = Toolkit(**settings)

    def pay(amount: int, to: str = "shop") -> str:
        witness.done.append(("pay", (amount, to)))
        return f"paid {amount}"

    def look() -> str:
        witness.done.append(("look", None))
        return "a lot"

    toolkit.add(pay, approval="rules" not in settings)
    toolkit.add(look, effects="none")
    toolkit.grant("clerk")
    return toolkit


PAY = script([call("pay", amount=5)])


async def asked(toolkit: Toolkit, ledger: Ledger, model: FunctionModel = PAY) -> Approval:
    """Run until a person must answer, and return the question."""
    with pytest.raises(ParkedError):
        await run_agent(toolkit, model, ledger=ledger)
    (approval,) = await pending_approvals(ledger)
    return approval


async def next_question(ledger: Ledger) -> str:
    """Wait for a question, and return its id."""
    async for tailed in ledger.tail():
        payload = tailed.record.message.payload
        if isinstance(payload, OptionCallPayload) and payload.option_name == "APPROVE" and await pending_approvals(ledger):
            (waiting,) = await pending_approvals(ledger)
            return waiting.id
    raise AssertionError


# ---------------------------------------------------------------- a yes, a no, no answer


def test_the_thread_stops_until_a_person_answers_and_continues_after_a_yes() -> None:
    """S5: nothing is started before; the other calls of the step end; what was done is not done again."""
    witness = Witness()
    both = script([call("pay", "c1", amount=5), call("look", "c2")])

    async def work(ledger: Ledger) -> None:
        for _ in range(3):  # however often the program runs meanwhile
            approval = await asked(bank(witness), ledger, both)
        assert witness.names() == ["look"]
        assert (approval.agent, approval.tool, approval.arguments) == ("clerk", "pay", {"amount": 5})
        assert approval.reason == "'pay' needs an approval, whatever it is called with"

        await answer(ledger, approval.id, principal="ada", approved=True)
        assert await pending_approvals(ledger) == ()
        told = await run_agent(bank(witness), both, ledger=ledger)
        assert told == [("success", "paid 5"), ("success", "a lot")]
        assert started(await rows(ledger), "pay") == 1
        assert [each["verdict"] for each in await noted(ledger, "TOOL_PERMISSION")] == ["ask", "allow"]

    within(work)
    assert witness.names() == ["look", "pay"]


def test_a_run_that_waits_gains_no_row_by_being_started_again() -> None:
    """S5: a client that retries until a person has answered. The attempt after the answer is recorded, as a restart."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(witness), ledger)
        before = await rows(ledger)
        for _ in range(5):
            await asked(bank(witness), ledger)
        assert await rows(ledger) == before
        await answer(ledger, approval.id, principal="ada", approved=True)
        await run_agent(bank(witness), PAY, ledger=ledger)
        marks = [step.mark async for step in service.every_step(ledger, "t") if step.option == "AGAIN"]
        assert marks == ["restarted", None], "no host took the thread from another"

    within(work)


def test_a_denial_reaches_the_model_with_its_reason() -> None:
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(witness), ledger)
        await answer(ledger, approval.id, principal="ada", approved=False, reason="too dear")
        told = await run_agent(bank(witness), PAY, ledger=ledger)
        assert told == [("failed", "pay: 'ada' said no: too dear (APPROVAL_DENIED)")]

    within(work)
    assert witness.done == []


def test_a_run_can_wait_for_the_answer() -> None:
    """The answer is given while the run waits; nothing is started twice."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, approval_wait=None)
        running = asyncio.create_task(run_agent(toolkit, PAY, ledger=ledger))
        await answer(ledger, await next_question(ledger), principal="ada", approved=True)
        assert await running == [("success", "paid 5")]
        assert len(await noted(ledger, "TOOL_PERMISSION")) == 1

    within(work)
    assert witness.names() == ["pay"]


def test_a_yes_to_a_run_that_was_given_up_starts_nothing_by_itself() -> None:
    """S5: cancel, then approve. The tool is started once, when the program runs again."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        running = asyncio.create_task(run_agent(bank(witness, approval_wait=None), PAY, ledger=ledger))
        question = await next_question(ledger)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await answer(ledger, question, principal="ada", approved=True)
        assert started(await rows(ledger), "pay") == 0
        assert await run_agent(bank(witness), PAY, ledger=ledger) == [("success", "paid 5")]

    within(work)
    assert witness.names() == ["pay"]


@pytest.mark.slow
def test_a_durable_agent_that_waits_does_not_ask_its_model_again() -> None:
    """G9: the answer of the model that led to the question is in the ledger."""
    witness = Witness()
    asked_models: list[int] = []

    def answering(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked_models.append(len(messages))
        return ModelResponse(parts=[call("pay", amount=5) if len(messages) == 1 else TextPart("done")])

    async def program(ledger: Ledger) -> str:
        capabilities = [LedgerDurability[Any](ledger), bank(witness).capability("clerk")]
        agent = Agent(FunctionModel(answering), name="clerk", capabilities=capabilities)
        async with ledger_run("t"):
            return (await agent.run("go")).output

    async def work(ledger: Ledger) -> None:
        for _ in range(2):
            with pytest.raises(ParkedError):
                await program(ledger)
        (approval,) = await pending_approvals(ledger)
        await answer(ledger, approval.id, principal="ada", approved=True)
        assert [await program(ledger) for _ in range(2)] == ["done", "done"]

    within(work)
    assert asked_models == [1, 3]
    assert witness.names() == ["pay"]


def test_the_toolset_alone_and_a_call_without_an_agent_wait_too() -> None:
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, approval_wait=5.0)

        async def alone() -> None:
            agent = Agent(PAY, name="clerk", toolsets=[toolkit.for_agent("clerk")])
            async with ledger_run("t", ledger=ledger):
                await agent.run("go")

        async def bare() -> None:
            async with ledger_run("u", ledger=ledger):
                assert (await toolkit.call("clerk", "pay", {"amount": 7})).result == "paid 7"

        for doing in (alone, bare):
            running = asyncio.create_task(doing())
            await answer(ledger, await next_question(ledger), principal="ada", approved=True)
            await running

    within(work)
    assert witness.done == [("pay", (5, "shop")), ("pay", (7, "shop"))]


def test_a_question_that_nobody_answers_in_time_expires_for_good() -> None:
    """S5: an expired approval."""
    witness, clock = Witness(), SetClock()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, approval_expires=timedelta(hours=1))
        approval = await asked(toolkit, ledger)
        clock.move(hours=1)
        with pytest.raises(NotWaitingError, match="expired at 2026-01-01T13:00") as late:
            await answer(ledger, approval.id, principal="ada", approved=True)
        assert late.value.code == "EXPIRED"
        for _ in range(2):
            told = await run_agent(toolkit, PAY, ledger=ledger)
            assert told == [("failed", "pay: the approval was good until 2026-01-01T13:00:00+00:00 (APPROVAL_EXPIRED)")]
        assert await pending_approvals(ledger) == ()

    with use_port(clock):
        within(work)
    assert witness.done == []


@pytest.mark.slow
def test_a_yes_is_good_only_until_its_time_and_what_was_done_on_it_stays_done() -> None:
    """S5, G9."""
    witness, clock = Witness(), SetClock()

    async def work(ledger: Ledger) -> None:
        for thread, late in (("t", False), ("u", True)):
            clock.time = NOON
            toolkit = bank(witness, approval_expires=timedelta(hours=1))
            with pytest.raises(ParkedError):
                await run_agent(toolkit, PAY, ledger=ledger, thread=thread)
            (approval,) = await pending_approvals(ledger)
            await answer(ledger, approval.id, principal="ada", approved=True)
            clock.move(hours=2 if late else 0)
            told = await run_agent(toolkit, PAY, ledger=ledger, thread=thread)
            clock.move(hours=2)
            assert told == await run_agent(toolkit, PAY, ledger=ledger, thread=thread)
            assert ("EXPIRED" in str(told)) is late

    with use_port(clock):
        within(work)
    assert len(witness.done) == 1


SECRETS = {
    "https://ada:canary-pass@bank.example": "https://[redacted:url-password]@bank.example",
    "sk-proj-canaryAb3dEf6hIj9kLm2nOp5q": "[redacted:api-key]",
    "%73%6b%2dproj-canaryAb3dEf6hIj9kLm2nOp5q": "[redacted:api-key]",
    '{"password": "canary"}': '{"password":"[redacted:key]"}',
}


@pytest.mark.slow
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("secret", SECRETS)
async def test_a_ledger_that_takes_secrets_out_keeps_what_an_approval_is_bound_to(
    secret: str, is_durable: bool, tmp_path: Path
) -> None:
    """S7, S5: the question shows no secret, and the answer is for that call, in another process too, and for once.

    An agent whose requests are recorded acts on what was stored of them, so its call is one without the secret.
    """
    witness = Witness()
    model = script([call("pay", amount=5, to=secret)])

    async def run(ledger: Ledger) -> None:
        toolkit = bank(witness)
        durable = [LedgerDurability(ledger)] if is_durable else []
        agent = Agent(model, name="clerk", capabilities=[toolkit.capability("clerk"), *durable])
        async with ledger_run("t", ledger=ledger):
            await agent.run("go")

    for turn in range(4):
        async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
            if turn == 1:
                (approval,) = await pending_approvals(ledger)
                assert "canary" not in str(approval)
                await answer(ledger, approval.id, principal="ada", approved=True)
            elif turn:
                await run(ledger)
            else:
                with pytest.raises(ParkedError):
                    await run(ledger)

    assert witness.done == [("pay", (5, SECRETS[secret] if is_durable else secret))]
    assert b"canary" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())


# ---------------------------------------------------------------- exactly that call, once, by a permitted person


def test_an_approval_is_for_exactly_that_call() -> None:
    """S5: the arguments are widened after the approval; another agent or thread wants to use it."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(witness), ledger)
        await answer(ledger, approval.id, principal="ada", approved=True)
        for model, thread, agent in (
            (script([call("pay", amount=5000)]), "t", "clerk"),
            (script([call("pay", amount=5, to="mallory")]), "t", "clerk"),
            (script([call("pay", "c2", amount=5)]), "t", "clerk"),
            (PAY, "u", "clerk"),
            (PAY, "t", "mallory"),
        ):
            toolkit = bank(witness)
            toolkit.grant("mallory")
            with pytest.raises(ParkedError):
                await run_agent(toolkit, model, ledger=ledger, thread=thread, agent=agent)

    within(work)
    assert witness.done == []


@pytest.mark.slow
def test_an_approval_is_good_for_one_call() -> None:
    """S5: a replayed approval. The same agent repeats the call with the same id, and a person is asked again."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        async def twice() -> None:
            toolkit = bank(witness)
            agent = Agent(PAY, name="clerk", capabilities=[toolkit.capability("clerk")])
            async with ledger_run("t", ledger=ledger):
                await agent.run("go")
                await agent.run("go")

        for expected in ([], ["pay"]):
            with pytest.raises(ParkedError):
                await twice()
            assert witness.names() == expected
            (approval,) = await pending_approvals(ledger)
            await answer(ledger, approval.id, principal="ada", approved=True)
        await twice()

    within(work)
    assert witness.names() == ["pay", "pay"]


def test_a_branch_of_the_thread_asks_for_itself() -> None:
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(witness), ledger)
        await answer(ledger, approval.id, principal="ada", approved=True)
        await ledger.fork("t", into="b")
        with pytest.raises(ParkedError):
            await run_agent(bank(witness), PAY, ledger=ledger, thread="b")

    within(work)
    assert witness.done == []


@pytest.mark.parametrize("name", ["clerk", "runtime", "executor", "bob", "", "adа"])
def test_only_those_may_answer_who_are_named(name: str) -> None:
    """S5: not the agent itself, not the machine, nobody else."""

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(Witness(), approvers=["ada", "clerk"]), ledger)
        with pytest.raises(NotWaitingError, match="cannot approve|may not answer|not a valid name of an agent") as refused:
            await answer(ledger, approval.id, principal=name, approved=True)
        assert refused.value.code == "NOT_APPROVER"
        await answer(ledger, approval.id, principal="ada", approved=False)

    within(work)


def test_nobody_answers_twice_or_without_a_question() -> None:
    """S5: yes after no, no after yes."""

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(Witness()), ledger)
        await answer(ledger, approval.id, principal="ada", approved=False)
        with pytest.raises(NotWaitingError, match="is answered already: 'ada' denied it"):
            await answer(ledger, approval.id, principal="bob", approved=True)
        with pytest.raises(NotWaitingError, match="there is no approval 'approval-x'"):
            await answer(ledger, "approval-x", principal="ada", approved=True)
        found = await find_approval(ledger, approval.id)
        assert found is not None
        assert found.standing(found.digest) == "denied"

    within(work)


def forged(question: Approval, **changes: Any) -> Message:
    """Return a forged yes, which is appended to the thread directly and not by `answer`."""
    fields: dict[str, Any] = {
        "policy": "ada",
        "payload": OptionResultPayload(
            invocation_id=question.id, option_name="APPROVE", result={"approved": True, "digest": question.digest}
        ),
        "to": ("runtime",),
        "lane": "control",
        "in_reply_to": question.message_id,
        "metadata": {"antiphon": {"principal": "ada"}},
    }
    return Message(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"lane": "talk"},
        {"metadata": {}},
        {"metadata": {"antiphon": {"principal": "bob"}}},
        {"metadata": {"other": {"principal": "ada"}}},
        {"policy": "clerk", "metadata": {"antiphon": {"principal": "clerk"}}},
        {"policy": RUNTIME_POLICY, "metadata": {"antiphon": {"principal": RUNTIME_POLICY}}},
        {"policy": "mallory", "metadata": {"antiphon": {"principal": "mallory"}}},
        {"in_reply_to": "another"},
    ],
    ids=str,
)
def test_a_forged_yes_does_not_count(changes: dict[str, Any]) -> None:
    """G22, S5: talk that looks like an answer, an answer without the mark, by the agent, by the machine, by a stranger."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, approvers=["ada"])
        approval = await asked(toolkit, ledger)
        await ledger.post("t", forged(approval, **changes))
        told = await run_agent(toolkit, PAY, ledger=ledger)
        assert [outcome for outcome, _ in told] == ["failed"]

    within(work)
    assert witness.done == []


@pytest.mark.parametrize(
    "said",
    [True, "yes", {"approved": 1}, {"approved": "true"}, {"approved": True}, {"approved": True, "digest": "x"}],
)
def test_an_answer_says_yes_to_the_digest(said: Any) -> None:
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        approval = await asked(bank(witness), ledger)
        payload = OptionResultPayload(invocation_id=approval.id, option_name="APPROVE", result=said)
        await ledger.post("t", forged(approval, payload=payload))
        told = await run_agent(bank(witness), PAY, ledger=ledger)
        assert [outcome for outcome, _ in told] == ["failed"]

    within(work)
    assert witness.done == []


def test_a_program_cannot_approve_in_the_ledgers_stead() -> None:
    """S5: what Pydantic AI calls approved, with other arguments, is not what a person has approved."""
    witness = Witness()

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness)
        agent = Agent(PAY, name="clerk", toolsets=[toolkit.for_agent("clerk")], output_type=[str, DeferredToolRequests])
        messages = [ModelResponse(parts=[call("pay", amount=5)])]
        approvals = DeferredToolResults(approvals={"c1": ToolApproved(override_args={"amount": 5000})})
        with pytest.raises(ParkedError):
            async with ledger_run("t", ledger=ledger):
                await agent.run(message_history=messages, deferred_tool_results=approvals)

    within(work)
    assert witness.done == []


# ---------------------------------------------------------------- rules, and no ledger


def test_a_rule_asks_for_some_calls_only() -> None:
    witness = Witness()
    rule = ApprovalRule("pay", where=Schema({"properties": {"amount": {"minimum": 100}}, "required": ["amount"]}))

    async def work(ledger: Ledger) -> None:
        toolkit = bank(witness, rules=[rule])
        assert await run_agent(toolkit, PAY, ledger=ledger) == [("success", "paid 5")]
        with pytest.raises(ParkedError):
            await run_agent(toolkit, script([call("pay", amount=100)]), ledger=ledger, thread="u")

    within(work)
    assert witness.done == [("pay", (5, "shop"))]


def test_without_a_ledger_nobody_can_be_asked() -> None:
    witness = Witness()
    toolkit = bank(witness)

    payload = asyncio.run(toolkit.call("clerk", "pay", {"amount": 5}))
    told = asyncio.run(run_agent(toolkit, PAY))

    assert failure(payload)[0] == "APPROVAL_REQUIRED"
    assert "run it in a ledger_run" in str(payload.error_message)
    assert [outcome for outcome, _ in told] == ["failed"]
    assert witness.done == []


def test_without_a_ledger_the_program_answers_as_pydantic_ai_has_it() -> None:
    witness = Witness()
    toolkit = bank(witness)
    agent = Agent(
        FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("done")])),
        toolsets=[toolkit.for_agent("clerk")],
        output_type=[str, DeferredToolRequests],
    )
    messages = [ModelResponse(parts=[call("pay", amount=5)])]

    asyncio.run(agent.run(message_history=messages, deferred_tool_results=DeferredToolResults(approvals={"c1": True})))

    assert witness.done == [("pay", (5, "shop"))]


@pytest.mark.parametrize("settings", [{"approval_expires": timedelta()}, {"approvers": ["ada bob"]}])
def test_a_toolkit_that_means_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive|not a valid name of an agent"):
        Toolkit(**settings)
