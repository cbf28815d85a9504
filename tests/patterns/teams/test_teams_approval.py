"""A person's word in the middle of a step: the run parks, and the same run goes on after that."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.errors import ParkedError, UnguardedToolError
from antiphon.ledger import ThreadSummary
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import current_port
from antiphon.patterns.teams import Team
from antiphon.service import cluster_status

SCRIPT = (ScriptStep(name="Pay", worker="ada", tool_name="pay", args={"amount": 5}),)


def paying(
    ledger: MemoryLedger,
    paid: list[int],
    asked: list[str],
    *,
    by_script: bool,
    sight: asyncio.Event | None = None,
    **more: Any,
) -> Team:
    toolkit = Toolkit(approvers=["grace"], approval_expires=timedelta(hours=1))

    @toolkit.tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return "paid"

    @toolkit.tool(effects="none")
    async def look() -> str:
        """Look."""
        if sight is not None:
            await sight.wait()
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


@pytest.mark.slow
@pytest.mark.parametrize("by_script", [False, True])
@pytest.mark.parametrize("same_process", [True, False])
async def test_a_run_parks_until_a_person_approves_and_then_continues(by_script: bool, same_process: bool) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_run_parks_on_an_unknown_outcome_and_continues_when_a_person_settles_it() -> None:
    """A `once` call is not repeated: a person settles it, and the same run continues with the outcome."""
    started: list[str] = []
    async with sending(started) as team:
        for _ in range(2):
            with pytest.raises(ParkedError):
                await team.run("Send it.", thread_id="t")
        (parked,) = await team.system.parked()
        await team.system.settle("t", parked.invocation_id, result={"result": "sent, says the post"})
        assert (await team.run("Send it.", thread_id="t")).response == "It went out."
        assert started == ["A"]
        assert "sent, says the post" in str(await team.store.worker_view("t", "ada"))
        assert await team.ledger.open_calls("t") == ()


def sending(started: list[str]) -> Team:
    """Return a team that sends a letter; whether it is sent is never known."""
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
    return team_of(parts, [agent("ada", "send")], [manager("desk", "ada")], toolkit=toolkit)


@pytest.mark.slow
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


# ---------------------------------------------------------------- on a host


@asynccontextmanager
async def _waiting_on_a_host(paid: list[int], *, hosts: bool = True) -> AsyncGenerator[tuple[MemoryLedger, Team]]:
    """A team whose thread waits for a person, in a system that takes threads or only keeps its own."""
    ledger = MemoryLedger()
    async with paying(ledger, paid, [], by_script=False) as team:
        hosting = asyncio.create_task(team.system.host()) if hosts else None
        with pytest.raises(ParkedError):
            await team.run("Pay.", thread_id="t")
        yield ledger, team
        if hosting is not None:
            hosting.cancel()
            await asyncio.gather(hosting, return_exceptions=True)


async def _summary(ledger: MemoryLedger) -> ThreadSummary:
    found = await ledger.thread("t")
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("hosts", [True, False])
async def test_a_host_does_not_repeat_what_waits_for_a_person(hosts: bool) -> None:
    """It was delivered every 8 seconds, and parked after 50 times: then no answer of a person continued it."""
    paid: list[int] = []
    async with _waiting_on_a_host(paid, hosts=hosts) as (ledger, team):
        before = (await _summary(ledger)).messages
        await asyncio.sleep(600)
        (waiting,) = await pending_approvals(ledger)
        found = await _summary(ledger)
        assert found.messages == before
        assert (found.owner, found.due_at) == ((None, waiting.expires_at) if hosts else (team.system.host_name, None))
        await answer(ledger, waiting.id, principal="grace", approved=True)
        await asyncio.sleep(10)
        assert paid == [5]
        assert await _listed(ledger) == ("teams", "completed")
        assert await ledger.open_calls("t") == ()


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("hosts", [True, False])
async def test_a_question_that_nobody_answers_ends_when_it_expires(hosts: bool) -> None:
    """The thread is due then: the worker is told, and the team goes on without the payment."""
    paid: list[int] = []
    async with _waiting_on_a_host(paid, hosts=hosts) as (ledger, _):
        (waiting,) = await pending_approvals(ledger)
        await asyncio.sleep((waiting.expires_at - current_port().now()).total_seconds() + 20)
        assert paid == []
        assert await _listed(ledger) == ("teams", "completed")
        assert await ledger.open_calls("t") == ()


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_host_does_not_repeat_what_is_parked_and_goes_on_when_it_is_settled() -> None:
    """Only the call of the tool is parked, not the messages that wait for it: a person settles one thing."""
    started: list[str] = []
    async with sending(started) as team:
        hosting = asyncio.create_task(team.system.host())
        with pytest.raises(ParkedError):
            await team.run("Send it.", thread_id="t")
        await asyncio.sleep(600)
        (parked,) = await team.system.parked()
        await team.system.settle("t", parked.invocation_id, result={"result": "sent, says the post"})
        await asyncio.sleep(30)
        assert await team.ledger.open_calls("t") == ()
        assert started == ["A"]
        hosting.cancel()
        await asyncio.gather(hosting, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_the_next_host_does_the_work_beside_a_question_of_one_that_ended() -> None:
    """One agent waits for a person, another was at work when its host ended: only what waits for the person stays open."""
    ledger, paid, asked = MemoryLedger(), list[int](), list[str]()
    async with paying(ledger, paid, asked, by_script=False, sight=asyncio.Event()) as team:
        asking = asyncio.create_task(team.run("Pay.", thread_id="t"))
        while not await pending_approvals(ledger) or "bob" not in asked:  # noqa: ASYNC110 (the ledger tells nobody)
            await asyncio.sleep(0.01)
    await asyncio.gather(asking, return_exceptions=True)
    assert (await cluster_status(ledger)).due == 1
    async with paying(ledger, paid, asked, by_script=False) as team:
        hosting = asyncio.create_task(team.system.host())
        await asyncio.sleep(60)
        assert asked.count("bob") == 2
        assert not any(row.message.to == ("worker/bob",) for row in await ledger.open_calls("t"))
        assert (await _summary(ledger)).owner is None
        (waiting,) = await pending_approvals(ledger)
        await answer(ledger, waiting.id, principal="grace", approved=True)
        await asyncio.sleep(10)
        hosting.cancel()
        await asyncio.gather(hosting, return_exceptions=True)
    assert (paid, asked.count("bob"), await _listed(ledger)) == ([5], 2, ("teams", "completed"))


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_host_that_ends_releases_what_waits_for_a_person() -> None:
    """Otherwise the next host took it at once, to find out that it must wait; one of another build would stop it."""
    ledger, stop = MemoryLedger(), asyncio.Event()
    async with paying(ledger, [], [], by_script=False) as team:
        hosting = asyncio.create_task(team.system.host(stop=stop))
        with pytest.raises(ParkedError):
            await team.run("Pay.", thread_id="t")
        stop.set()
        await hosting
    (waiting,) = await pending_approvals(ledger)
    found = await _summary(ledger)
    assert (found.owner, found.due_at) == (None, waiting.expires_at)


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("hosts", [True, False])
async def test_an_answer_that_comes_while_another_agent_works_is_not_missed(hosts: bool) -> None:
    """The agent that waits for both gets the question only when the other has ended: the answer is there already."""
    ledger, paid, asked, sight = MemoryLedger(), list[int](), list[str](), asyncio.Event()
    async with paying(ledger, paid, asked, by_script=False, sight=sight) as team:
        hosting = asyncio.create_task(team.system.host()) if hosts else None
        asking = asyncio.create_task(team.run("Pay.", thread_id="t"))
        while not (waiting := await pending_approvals(ledger)) or "bob" not in asked:  # noqa: ASYNC110 (the ledger tells nobody)
            await asyncio.sleep(0.01)
        await answer(ledger, waiting[0].id, principal="grace", approved=True)
        await asyncio.sleep(10)
        sight.set()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(60)
        assert (paid, await ledger.open_calls("t")) == ([5], ())
        assert await _listed(ledger) == ("teams", "completed")
        if hosting is not None:
            hosting.cancel()
            await asyncio.gather(hosting, return_exceptions=True)
