"""Every delegation ends exactly once: result, failure, timeout, cancelled or down, even if the worker's process vanishes."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.patterns.chains import run
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of, with_workers_elsewhere

from antiphon.agents.toolkit import Toolkit
from antiphon.errors import (
    ActorFailedError,
    ActorStoppedError,
    BudgetExceededError,
    DeliveryError,
    EscalatedError,
    HopLimitError,
    MailboxFullError,
    RefusedError,
    ReplyTimeoutError,
    UndeliverableError,
    WithdrawnError,
)
from antiphon.ledger import Ledger
from antiphon.messages import OptionCallPayload, OptionResultPayload
from antiphon.patterns.teams import Team, TeamLimits
from antiphon.patterns.teams._roster import DelegationEnd
from antiphon.protocol import Stop

STEPS = {"steps": [{"name": "Work", "worker": "ada", "task": "Work."}]}


def parts(ada: Any) -> dict[str, Any]:
    return {"orchestrator": lambda prompt, spoken: plan(phase("desk", "Work.")), "desk": STEPS, "ada": ada}


async def ends(team: Team, thread_id: str = "t") -> dict[str, str]:
    """Return by delegation how it ended, after checking that everything in the thread has ended, exactly once."""
    results: Counter[str] = Counter()
    async for record in team.ledger.read(thread_id):
        if isinstance(record.message.payload, OptionResultPayload):
            results[record.message.payload.invocation_id] += 1
    assert set(results.values()) == {1}
    assert await team.ledger.open_calls(thread_id) == ()
    entries = await team.store.get_messages(thread_id)
    said = {each["call_id"]: each["worker"] for each in entries if each["type"] == "delegation"}
    found = {each["call_id"]: each for each in entries if each["type"] in {"observation", "error"} and "call_id" in each}
    return {worker: _status(found[call]) for call, worker in said.items()}


def _status(entry: dict[str, Any]) -> str:
    content = entry["content"]
    return content.get("status") or content.get("details", {}).get("status") or content["error_type"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefusedError("no", "NO"), "failure"),
        (BudgetExceededError("all is spent"), "failure"),
        (HopLimitError("round and round"), "failure"),
        (MailboxFullError("busy"), "failure"),
        (ReplyTimeoutError("late"), "timeout"),
        (WithdrawnError("never mind"), "cancelled"),
        (UndeliverableError("nobody"), "down"),
        (ActorStoppedError("gone"), "down"),
        (ActorFailedError("broken"), "down"),
        (EscalatedError("too often"), "down"),
    ],
)
def test_every_way_in_which_an_ask_can_end_is_an_end_of_the_delegation(error: DeliveryError, status: str) -> None:
    end = DelegationEnd.of("ada", error)

    assert (end.status, end.code, end.summary, end.is_result) == (status, error.code, error.reason, False)
    assert end.entry()[0] == "error"


@pytest.mark.slow
def test_a_result_and_a_failure() -> None:
    async def main(ada: Any) -> tuple[str, dict[str, str]]:
        async with team_of(parts(ada), [agent("ada")], [manager("desk", "ada")]) as team:
            outcome = await team.run("Work.", thread_id="t")
            return outcome.status, await ends(team)

    assert run(main("Worked.")) == ("completed", {"desk": "result", "ada": "result"})
    assert run(main({"status": "failed", "summary": "No."})) == ("failed", {"desk": "failure", "ada": "failure"})
    assert run(main(RuntimeError("the model is broken"))) == ("failed", {"desk": "failure", "ada": "failure"})


@pytest.mark.virtual_time
async def test_a_worker_that_takes_too_long_has_timed_out_and_its_task_is_ended() -> None:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    limits = TeamLimits(task_seconds=0.3)
    slow = parts(lambda prompt, spoken: [("wait", {})])
    async with team_of(slow, [agent("ada", "wait")], [manager("desk", "ada")], toolkit=toolkit, limits=limits) as team:
        outcome = await team.run("Work.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "TIMEOUT")
        assert await ends(team) == {"desk": "failure", "ada": "timeout"}
        task = await team.store.worker_view("t", "ada")
        assert [each["type"] for each in task] == ["task", "injected_context", "action", "error", "error"]


@pytest.mark.virtual_time
async def test_a_phase_that_takes_too_long_has_timed_out_with_everything_in_it() -> None:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    limits = TeamLimits(phase_seconds=0.3)
    slow = parts(lambda prompt, spoken: [("wait", {})])
    async with team_of(slow, [agent("ada", "wait")], [manager("desk", "ada")], toolkit=toolkit, limits=limits) as team:
        outcome = await team.run("Work.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "TIMEOUT")
        assert await ends(team) == {"desk": "timeout", "ada": "TIMEOUT"}
        said = await team.store.get_global_messages("t")
        assert [(each["from_manager"], each["phase_id"]) for each in said] == [("orchestrator", 0)]


async def test_a_turn_that_nobody_waits_for_any_more_is_cancelled_and_all_of_it_ends() -> None:
    began = asyncio.Event()
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    async def wait() -> str:
        """Wait for ever."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    waits = parts(lambda prompt, spoken: [("wait", {})])
    async with team_of(waits, [agent("ada", "wait")], [manager("desk", "ada")], toolkit=toolkit) as team:
        turn = asyncio.create_task(team.run("Work.", thread_id="t"))
        await began.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await _rest(team.ledger)
        thread = await team.ledger.thread("t")
        assert thread is not None
        assert thread.status == "cancelled"
        assert await ends(team) == {"desk": "CANCELLED", "ada": "CANCELLED"}
        again = await team.run("Work.", thread_id="t")
        assert (again.status, again.error_code) == ("failed", "CANCELLED")


@pytest.mark.slow
async def test_a_turn_that_is_cancelled_after_the_team_has_closed_stays_open_and_is_no_dead_letter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So does Ctrl-C: the team closes first. It printed `dead letter: TEAM_END_TURN`, and raised ActorStoppedError."""
    began = asyncio.Event()
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    async def wait() -> str:
        """Wait for ever."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    waits = parts(lambda prompt, spoken: [("wait", {})])
    async with team_of(waits, [agent("ada", "wait")], [manager("desk", "ada")], toolkit=toolkit) as team:
        turn = asyncio.create_task(team.run("Work.", thread_id="t"))
        await began.wait()
        closing = asyncio.create_task(team.system.close())
        await asyncio.sleep(0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await closing
    assert await team.ledger.open_calls("t")
    assert not team.system.dead_letters
    assert "dead letter" not in caplog.text


async def _rest(ledger: Ledger) -> None:
    """Wait until nothing of the thread is open."""
    async for _ in ledger.tail(thread_id="t"):
        if not await ledger.open_calls("t"):
            return


@pytest.mark.slow
async def test_a_worker_whose_actor_is_stopped_is_down() -> None:
    async with team_of(parts("Worked."), [agent("ada")], [manager("desk", "ada")]) as team:
        await team.system.ask("worker/ada", Stop(reason="enough"))
        outcome = await team.run("Work.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "ACTOR_STOPPED")
        assert await ends(team) == {"desk": "failure", "ada": "down"}


# ---------------------------------------------------------------- workers of another process


MEMBERS: Any = ([agent("ada")], [manager("desk", "ada")])


@pytest.mark.slow
async def test_workers_may_live_in_another_process() -> None:
    """The delegation is in the team's thread, the worker's trace in one of its own: a thread is written by one system."""
    async with with_workers_elsewhere(parts("Worked."), *MEMBERS) as near:
        assert (await near.run("Work.", thread_id="t")).response == "Worked."
        assert await ends(near) == {"desk": "result", "ada": "result"}
        (thread,) = [each for each in (await near.ledger.threads()).threads if each.thread_id != "t"]
        assert [each["type"] for each in await near.store.get_messages(thread.thread_id)] == [
            "task",
            "injected_context",
            "final",
        ]


async def test_without_a_process_that_has_the_worker_it_is_down_and_the_team_goes_on() -> None:
    async with team_of(parts("Worked."), *MEMBERS, roles=("orchestrator", "manager")) as team:
        outcome = await team.run("Work.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "ACTOR_NOT_FOUND")
        assert await ends(team) == {"desk": "failure", "ada": "down"}


@pytest.mark.slow
async def test_a_worker_that_falls_silent_has_timed_out() -> None:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    async def wait() -> str:
        """Wait for too long."""
        await asyncio.Event().wait()
        return "late"

    limits = TeamLimits(phase_seconds=30, task_seconds=0.4)
    members: Any = ([agent("ada", "wait")], [manager("desk", "ada")])
    waiting = parts(lambda prompt, spoken: [("wait", {})])
    async with with_workers_elsewhere(waiting, *members, toolkit=toolkit, limits=limits) as near:
        assert (await near.run("Work.", thread_id="t")).error_code == "TIMEOUT"
        assert await ends(near) == {"desk": "failure", "ada": "timeout"}


async def test_asking_is_written_down_before_and_after() -> None:
    """The delegation stands before the question, its end after the answer."""
    async with team_of(parts("Worked."), [agent("ada")], [manager("desk", "ada")]) as team:
        await team.run("Work.", thread_id="t")
        order: list[str] = []
        async for record in team.ledger.read("t"):
            payload = record.message.payload
            if isinstance(payload, OptionCallPayload | OptionResultPayload) and record.message.lane != "effect":
                mark = "" if isinstance(payload, OptionCallPayload) else "="
                order.append(f"{mark}{payload.option_name}")
        told = [each for each in order if each.removeprefix("=") in {"desk", "ada", "TEAM_LEAD_PHASE", "TEAM_DO_TASK"}]
        assert told == [
            "desk",  # the delegation
            "TEAM_LEAD_PHASE",
            "ada",  # the delegation
            "TEAM_DO_TASK",
            "ada",  # the task
            "=ada",
            "=TEAM_DO_TASK",
            "=ada",
            "=TEAM_LEAD_PHASE",
            "=desk",
        ]
