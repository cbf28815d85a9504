"""A person's word in the middle of a step: the run parks, and the same run goes on after that."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of

from antiphon.agents import Toolkit
from antiphon.agents.toolkit import answer, pending_approvals
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.errors import ParkedError, UnguardedToolError
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.teams import Team

SCRIPT = (ScriptStep(name="Pay", worker="ada", tool_name="pay", args={"amount": 5}),)


def paying(ledger: MemoryLedger, paid: list[int], asked: list[str], *, by_script: bool, **more: Any) -> Team:
    toolkit = Toolkit(approvers=["grace"])

    @toolkit.tool(approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return "paid"

    @toolkit.tool(effects="none")
    def look() -> str:
        """Look."""
        return "seen"

    parts: dict[str, Any] = {
        "orchestrator": lambda prompt, spoken: (
            plan(phase("desk", "Pay."), phase("bob", "Look."), parallel=True) if "Plan in phases" in prompt else "All is paid."
        ),
        "desk": {"steps": [{"name": "Pay", "worker": "ada", "task": "Pay."}]},
        "ada": lambda prompt, spoken: [("pay", {"amount": 5})] if spoken == 0 else "Paid, or not.",
        "bob": lambda prompt, spoken: [("look", {})] if spoken == 0 else "Looked.",
    }
    desk = manager("desk", "ada", **({"script": SCRIPT} if by_script else {}))
    workers = [agent("ada", "pay"), agent("bob", "look")]
    return team_of(parts, workers, [desk], ledger=ledger, asked=asked, **{"toolkit": toolkit, **more})


@pytest.mark.parametrize("by_script", [False, True])
@pytest.mark.parametrize("same_process", [True, False])
async def test_a_run_parks_until_somebody_approves_and_then_goes_on(by_script: bool, same_process: bool) -> None:
    """What is beside it is finished meanwhile and not done again; nothing is paid before the word, and once after it."""
    ledger = MemoryLedger()
    paid: list[int] = []
    asked: list[str] = []

    async def parked(team: Team) -> None:
        with pytest.raises(ParkedError, match="antiphon approve"):
            await team.run("Pay.", thread_id="t")
        assert paid == []
        assert await _listed(ledger) == ("teams", "waiting")
        (waiting,) = await pending_approvals(ledger)
        assert (waiting.agent, waiting.tool, waiting.arguments) == ("ada", "pay", {"amount": 5})
        await answer(ledger, waiting.id, principal="grace", approved=True)

    async def goes_on(team: Team) -> None:
        assert (await team.run("Pay.", thread_id="t")).response == "All is paid."
        assert paid == [5]
        assert await _listed(ledger) == ("teams", "completed")
        assert asked.count("bob") == 2
        assert await ledger.open_calls("t") == ()

    await _in_teams(lambda: paying(ledger, paid, asked, by_script=by_script), [parked, goes_on], same_process)


async def _listed(ledger: MemoryLedger) -> tuple[str | None, str | None]:
    """Return what the thread is listed as."""
    thread = await ledger.thread("t")
    return (None, None) if thread is None else (thread.pattern, thread.status)


async def _in_teams(make: Callable[[], Team], steps: list[Any], same_process: bool) -> None:
    if same_process:
        async with make() as team:
            for step in steps:
                await step(team)
        return
    for step in steps:
        async with make() as team:
            await step(team)


@pytest.mark.slow
async def test_a_run_that_is_asked_again_before_anybody_has_answered_parks_again() -> None:
    ledger = MemoryLedger()
    paid: list[int] = []
    asked: list[str] = []
    for _ in range(3):
        async with paying(ledger, paid, asked, by_script=False) as team:
            with pytest.raises(ParkedError):
                await team.run("Pay.", thread_id="t")
    assert paid == []
    assert len(asked) == 5  # nobody was asked twice


async def test_a_person_who_says_no_is_an_error_that_the_worker_sees() -> None:
    ledger = MemoryLedger()
    paid: list[int] = []
    async with paying(ledger, paid, [], by_script=False) as team:
        with pytest.raises(ParkedError):
            await team.run("Pay.", thread_id="t")
        (waiting,) = await pending_approvals(ledger)
        await answer(ledger, waiting.id, principal="grace", approved=False, reason="too dear")
        outcome = await team.run("Pay.", thread_id="t")
        assert (outcome.status, paid) == ("completed", [])
        types = [each["type"] for each in await team.store.worker_view("t", "ada")]
        assert types == ["task", "injected_context", "action", "error", "final"]


async def test_a_run_parks_where_nobody_knows_whether_something_was_done_and_goes_on_when_a_person_has_said_so() -> None:
    """What must not be done twice is not: a person settles it, and the same run goes on with that."""
    started: list[str] = []
    toolkit = Toolkit()

    @toolkit.tool(timeout=0.05)
    async def send(letter: str) -> str:
        """Send a letter."""
        started.append(letter)
        await asyncio.Event().wait()
        return "sent"

    parts: dict[str, Any] = {
        "orchestrator": lambda prompt, spoken: plan(phase("desk", "Send it.")),
        "desk": {"steps": [{"name": "Send", "worker": "ada", "task": "Send it."}]},
        "ada": lambda prompt, spoken: [("send", {"letter": "A"})] if spoken == 0 else "It went out.",
    }
    async with team_of(parts, [agent("ada", "send")], [manager("desk", "ada")], toolkit=toolkit) as team:
        for _ in range(2):
            with pytest.raises(ParkedError):
                await team.run("Send it.", thread_id="t")
        (parked,) = await team.system.parked()
        await team.system.settle("t", parked.invocation_id, result={"result": "sent, says the post"})
        assert (await team.run("Send it.", thread_id="t")).response == "It went out."
        assert started == ["A"]
        assert "sent, says the post" in str(await team.store.worker_view("t", "ada"))
        assert await team.ledger.open_calls("t") == ()


@pytest.mark.parametrize("by_script", [False, True])
@pytest.mark.parametrize("said", [None, False])
async def test_a_team_without_the_toolkit_does_not_go_on(said: bool | None, by_script: bool) -> None:
    """S5, G22: the same function among the tools of the team, while the question is open and after a no: nothing is paid."""
    ledger, paid = MemoryLedger(), list[int]()

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return "paid"

    def look() -> str:
        """Look."""
        return "seen"

    async with paying(ledger, paid, [], by_script=by_script) as team:
        with pytest.raises(ParkedError):
            await team.run("Pay.", thread_id="t")
    if said is not None:
        (waiting,) = await pending_approvals(ledger)
        await answer(ledger, waiting.id, principal="grace", approved=said)
    async with paying(ledger, paid, [], by_script=by_script, toolkit=None, tools=[pay, look]) as elsewhere:
        with pytest.raises(UnguardedToolError, match="a person must approve 'pay' for 'ada' in thread 't'"):
            await elsewhere.run("Pay.", thread_id="t")
    assert await _listed(ledger) == ("teams", "waiting")
    if said is None:
        (waiting,) = await pending_approvals(ledger)
        await answer(ledger, waiting.id, principal="grace", approved=True)
    async with paying(ledger, paid, [], by_script=by_script) as team:
        outcome = await team.run("Pay.", thread_id="t")
    assert outcome.status == ("failed" if by_script and said is False else "completed")  # a script ends with a no
    assert paid == ([5] if said is None else [])
