"""The edges of a team: budgets, managers that loop, people and failures of another process, and notes that are passed on."""

import asyncio
from typing import Any

import pytest
from tests.patterns.teams.crews import agent, manager, phase, plan, play, team_of, types_in, with_workers_elsewhere

from antiphon.agents import AgentBudget
from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import together
from antiphon.patterns.teams import Team, TeamLimits

STEPS = {"steps": [{"name": "Work", "worker": "ada", "task": "Work."}]}


def planned(*phases: dict[str, Any]) -> Any:
    return lambda prompt, spoken: plan(*phases) if "Plan in phases" in prompt else "That is all."


@pytest.mark.parametrize("requests", [1, 2])
async def test_a_thread_without_money_for_the_worker_stops(requests: int) -> None:
    """The worker's task and the delegations stay open, and the outcome says why."""
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def look() -> str:
        """Look."""
        return "seen"

    parts = {"orchestrator": planned(phase("ada", "Work.")), "ada": lambda prompt, spoken: [("look", {})]}
    budget = AgentBudget(requests=requests)
    async with team_of(parts, [agent("ada", "look")], toolkit=toolkit, thread_budget=budget) as team:
        outcome = await team.run("Work.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("stopped", "BUDGET_EXCEEDED")
        assert "ada: error" not in await types_in(team, "t")
        assert await team.ledger.open_calls("t")


async def test_a_thread_without_money_for_the_plan_is_a_stopped_outcome() -> None:
    parts = {"orchestrator": planned(phase("ada", "Work.")), "ada": "Worked."}
    async with team_of(parts, [agent("ada")], thread_budget=AgentBudget(requests=2)) as team:
        assert (await team.run("Work.", thread_id="t")).status == "completed"
        outcome = await team.run("Work more.", thread_id="t")
        assert (outcome.status, outcome.response, outcome.error_code) == ("stopped", None, "BUDGET_EXCEEDED")
        thread = await team.ledger.thread("t")
        assert thread is not None
        assert (thread.pattern, thread.status) == ("teams", "stopped")


async def test_a_manager_that_goes_round_in_circles_fails_its_phase() -> None:
    """A guard stops it, not its models: its workers do not get the phase instead, and its open work is closed."""
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def look() -> str:
        """Look."""
        return "seen"

    parts = {"orchestrator": planned(phase("desk", "Lead.")), "desk": lambda prompt, spoken: [("look", {})]}
    desk = manager("desk", "ada", tools=("look",))
    async with team_of(parts, [agent("ada")], [desk], toolkit=toolkit) as team:
        outcome = await team.run("Lead.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "LOOP")
        assert "ada: task" not in await types_in(team, "t")
        assert await team.ledger.open_calls("t") == ()


async def test_a_manager_gets_the_notes_of_its_phase() -> None:
    parts = {"orchestrator": planned(phase("desk", "Work.", notes="Quietly.")), "desk": STEPS, "ada": "Worked."}
    async with team_of(parts, [agent("ada")], [manager("desk", "ada")]) as team:
        await team.run("Work.", thread_id="t")
        (said,) = [each for each in await team.store.get_agent_messages("t", "desk") if each["type"] == "director_context"]
        assert "Notes: Quietly." in said["content"]


async def test_a_script_with_more_steps_than_may_be_is_not_begun() -> None:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def look() -> str:
        """Look."""
        return "seen"

    script = (ScriptStep(name="Look", worker="ada", tool_name="look"),) * 3
    parts = {"orchestrator": planned(phase("desk", "Look."))}
    desk = manager("desk", "ada", script=script)
    async with team_of(parts, [agent("ada", "look")], [desk], toolkit=toolkit, limits=TeamLimits(steps=2)) as team:
        outcome = await team.run("Look.", thread_id="t")
        assert outcome.error_message == "Phase of desk has failed: The script cannot be run: it has more than 2 steps"


@pytest.mark.slow
async def test_two_teams_work_in_one_system_on_one_ledger() -> None:
    ledger = MemoryLedger()
    teams = [Team(ledger, orchestrator=agent(f"boss{n}"), workers=[agent(f"ada{n}")], model=_model(n)) for n in range(2)]
    async with together(*teams):
        assert [(await team.run("Work.", thread_id="t")).response for team in teams] == ["Worked 0.", "Worked 1."]


def _model(number: int) -> Any:
    return play({f"boss{number}": planned(phase(f"ada{number}", "Work.")), f"ada{number}": f"Worked {number}."})


# ---------------------------------------------------------------- people and failures of another process


def worked_by(ada: Any) -> dict[str, Any]:
    return {"orchestrator": planned(phase("desk", "Work.")), "desk": STEPS, "ada": ada}


@pytest.mark.slow
async def test_a_worker_of_another_process_waits_for_a_person_and_goes_on() -> None:
    paid: list[int] = []
    toolkit = Toolkit()

    @toolkit.tool(approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return "paid"

    cast = worked_by(lambda prompt, spoken: [("pay", {"amount": 5})] if spoken == 0 else "Paid.")
    async with with_workers_elsewhere(cast, [agent("ada", "pay")], [manager("desk", "ada")], toolkit=toolkit) as near:
        turn = asyncio.create_task(near.run("Work.", thread_id="t"))
        while not (waiting := await pending_approvals(near.ledger)) and not turn.done():  # noqa: ASYNC110 (a row says when)
            await asyncio.sleep(0.01)
        await answer(near.ledger, waiting[0].id, principal="grace", approved=True)
        assert (await turn).response == "Paid."
        assert paid == [5]
        assert await near.ledger.open_calls("t") == ()


async def test_a_worker_of_another_process_that_fails_has_failed_with_its_own_code() -> None:
    cast = worked_by({"status": "failed", "summary": "I cannot."})
    async with with_workers_elsewhere(cast, [agent("ada")], [manager("desk", "ada")]) as near:
        outcome = await near.run("Work.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "TASK_FAILED")
