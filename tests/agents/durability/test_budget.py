"""Agents that may use only so much, in a run and in a thread; and a thread whose turns cost the same however many there are.

S15, F30.
"""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon.agents import AgentBudget, LedgerConversationStore, LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import BudgetExceededError
from antiphon.ledger import Limit, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import use_port
from antiphon.messages._settings import SystemPort


def looker(ledger: Any, desk: Desk, **budgets: Any) -> Agent[None, str]:
    """Return an agent that looks for ever."""
    turns = [[call("look", f"c{number}", what="x")] for number in range(50)]
    agent: Agent[None, str] = Agent(
        script(desk, *turns, name="gpt-4o"), name="looker", capabilities=[LedgerDurability(ledger, **budgets)]
    )

    @agent.tool_plain(metadata={"antiphon": {"effects": "none"}})
    def look(what: str) -> str:
        desk.note("look")
        return "nothing yet"

    return agent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "requests", "looks", "reason"),
    [
        (AgentBudget(requests=3), 3, 3, "the run has used up its 3 requests, before 't/run/looker/model=4'"),
        (AgentBudget(tool_calls=3), 4, 3, "the run has used up its 3 tool calls, before 't/run/looker/look:c3'"),
        (AgentBudget(tokens=250), 3, 2, "the run has used up its 250 tokens"),
        (AgentBudget(cost=Decimal("0.0007")), 2, 1, "the run has used up its 0.0007 US dollars"),
        (AgentBudget(depth=0), 0, 0, "the run has used up its 0 agents inside of each other"),
        (AgentBudget(seconds=0), 0, 0, "the run has used up its 0 seconds"),
    ],
)
async def test_a_request_beyond_the_budget_is_refused_and_earlier_results_stay(
    budget: AgentBudget, requests: int, looks: int, reason: str
) -> None:
    ledger, desk = MemoryLedger(), Desk()
    for expected in ((requests, looks), (0, 0)):  # the second time, all of it is taken from the journal
        with pytest.raises(BudgetExceededError, match=reason):
            async with ledger_run("t"):
                await looker(ledger, desk, budget=budget).run("look")
        seen = desk.taken()
        assert (sum(what.startswith("model") for what in seen), seen.count("look")) == expected
    with pytest.raises(BudgetExceededError, match="20 requests"):
        async with ledger_run("t"):
            await looker(ledger, desk, budget=AgentBudget(requests=20)).run("look")
    assert sum(what.startswith("model") for what in desk.taken()) == 20 - requests


async def test_a_thread_has_a_budget_for_all_its_runs() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent = clerk(ledger, desk, script(desk, ["hello"], name="gpt-4o"))
    for number in range(3):
        async with ledger_run("t", id=f"turn-{number}"):
            await agent.run("hi")
    summary = await ledger.thread("t")
    assert summary is not None
    assert (summary.input_tokens, summary.output_tokens) == (300, 30)
    assert summary.cost == 3 * Decimal("0.00035")  # 100 tokens in, 10 out, of gpt-4o
    limited: Agent[None, str] = Agent(
        script(desk, ["hello"]),
        name="clerk",
        capabilities=[LedgerDurability(ledger, thread_budget=AgentBudget(requests=3))],
    )
    with pytest.raises(BudgetExceededError, match="the thread has used up its 3 requests"):
        async with ledger_run("t", id="one more"):
            await limited.run("hi")
    async with ledger_run("u"):
        await limited.run("hi")


def test_the_time_of_a_run_goes_on_while_no_process_works_on_it() -> None:
    class Clock(SystemPort):
        time = datetime(2026, 1, 1, tzinfo=UTC)

        def now(self) -> datetime:
            return self.time

    async def main(clock: Clock) -> None:
        ledger, desk = MemoryLedger(), Desk()
        budget = AgentBudget(requests=1, seconds=60)
        with pytest.raises(BudgetExceededError, match="1 requests"):
            async with ledger_run("t"):
                await looker(ledger, desk, budget=budget).run("look")
        clock.time += timedelta(seconds=61)
        with pytest.raises(BudgetExceededError, match="60 seconds"):
            async with ledger_run("t"):
                await looker(ledger, desk, budget=AgentBudget(seconds=60)).run("look")

    clock = Clock()
    with use_port(clock):
        asyncio.run(main(clock))


@pytest.mark.slow
@pytest.mark.parametrize("is_one_run", [True, False])
async def test_the_last_turn_of_a_conversation_takes_as_many_bytes_as_the_10th(is_one_run: bool) -> None:
    """Nothing stores a prompt again: 200 turns in one run, or a run for each of 25 and the history from the store.

    Of the 200, the agent has the first and the last 15; those between are in its history as if it had had them, unless this
    is one of the long runs.
    """
    skipped = range(0) if os.environ.get("ANTIPHON_CHAOS") else range(15, 185)

    desk = Desk()
    ledger = MemoryLedger()
    store = LedgerConversationStore(ledger)
    agent = clerk(ledger, desk, script(desk, ["I see what you mean, and say as much"]), instructions="be kind " * 50)
    sizes: list[int] = []
    seen = 0

    async def measure() -> None:
        nonlocal seen
        size = 0
        async for record in ledger.read("t", seen):
            size, seen = size + len(record.body), record.seq
        sizes.append(size)

    if is_one_run:
        history: list[ModelMessage] = []
        async with ledger_run("t"):
            for number in range(200):
                prompt = f"this is turn {number:03}"
                if number in skipped:
                    history += [ModelRequest.user_text_prompt(prompt), ModelResponse([TextPart(f"I see, {number:03}")])]
                    continue
                history = (await agent.run(prompt, message_history=history)).all_messages()
                await measure()
        if skipped:
            del sizes[15]  # it says the turns between
    else:
        for number in range(25):
            conversation = await store.load("t")
            async with ledger_run("t", id=f"turn-{number:03}"):
                result = await agent.run(
                    f"this is turn {number:03}",
                    conversation=conversation or Conversation(conversation_id="t"),
                    usage_limits=UsageLimits(request_limit=None),
                )
            await store.save(result)
            await measure()
    assert max(sizes[10:]) < 1.1 * min(sizes[10:])
    assert max(sizes[10:]) < 5_000


async def test_the_ledger_file_of_a_run_is_whole(tmp_path: Any) -> None:
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        desk = Desk()
        async with ledger_run("t"):
            await clerk(ledger, desk, script(desk, [call("refund", "c1", amount=1)], ["done"])).run("go")
        assert (await ledger.verify()).is_whole
        assert not await ledger.open_calls("t")


@pytest.mark.parametrize(
    ("error", "is_paid"),
    [
        (ModelHTTPError(503, "gpt-4o"), False),
        (UserError("nothing was sent"), False),
        (ModelConnectionError("gpt-4o", "the stream was cut"), True),
        (UnexpectedModelBehavior("the answer is no JSON"), True),
    ],
)
async def test_a_request_that_may_have_been_answered_counts_against_the_money_of_a_day(
    error: Exception, is_paid: bool
) -> None:
    """Only a request that the provider refused, or that was never sent, has cost nothing."""
    ledger = MemoryLedger()
    await ledger.limits.set(Limit("gpt-4o", cost_per_day=Decimal(5)))

    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise error

    agent = Agent(FunctionModel(fail, model_name="gpt-4o"), name="clerk", capabilities=[LedgerDurability(ledger)])
    async with ledger_run("t", ledger=ledger):
        with pytest.raises(Exception, match=r".+"):
            await agent.run("Hello.")
    (status,) = await ledger.limits.status()
    assert (status.spent + status.reserved > 0) is is_paid
