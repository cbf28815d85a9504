"""The verbs of the service on real ledgers: frozen values, and errors of the tree that say what to do."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.ledgers import exchange, text
from tests.patterns.chains import QUESTION, Witness, chain_on, known
from tests.patterns.test_life import Held
from tests.runtime.actors import Ping, Probe, left_by_the_dead
from typing_extensions import override

import antiphon.service
from antiphon import errors
from antiphon.durable._approvals import Approval
from antiphon.ledger import Host, Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.protocol import PHASES, AgentResponse, AgentResult, ProcessWithAgent
from antiphon.runtime import Actor, Context, Settings, Supervision, System, handles
from antiphon.service import (
    ChainRunner,
    ExportForm,
    ForkPlace,
    TeamListeners,
    _values,
    answer_approval,
    choose_model,
    compare_threads,
    delete_threads,
    export_lines,
    find_thread,
    fork_thread,
    list_approvals,
    list_parked,
    list_threads,
    list_with_runs,
    open_approval,
    open_chain,
    pause_thread,
    rate_message,
    replay_thread,
    rerun_threads,
    resume_elsewhere,
    run_team,
    settle_call,
    terminate_thread,
    thread_status,
    with_branches,
)
from antiphon.service._branches import check_continues
from antiphon.service._runs import with_open_runs
from antiphon.service._threads import hostless_reason

pytest.importorskip("apsw")


async def chatted() -> MemoryLedger:
    ledger = MemoryLedger()
    await ledger.append("chat", [text("Is it cold?", id="m-1"), *exchange(1, "Oslo"), text("Yes.", "assistant", id="m-4")])
    return ledger


def test_every_value_of_the_service_is_frozen() -> None:
    values = [value for value in vars(_values).values() if isinstance(value, type) and value.__module__ == _values.__name__]
    values += [value for name in dir(antiphon.service) if isinstance(value := getattr(antiphon.service, name), type)]
    own = [each for each in values if dataclasses.is_dataclass(each) and each.__module__.startswith("antiphon.service")]
    assert len(own) > 15
    assert all(each.__dataclass_params__.frozen for each in own)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- threads


async def test_threads_are_found_listed_and_deleted_with_their_branches() -> None:
    ledger = await chatted()
    branch = await fork_thread(ledger, ForkPlace("chat", "1", into="branch"))
    below = await fork_thread(ledger, ForkPlace("branch", into="below"))
    assert {each.thread_id async for each in list_threads(ledger)} == {"chat", "branch", "below"}
    assert branch.forked_from == "chat"
    found = [each.thread_id for each in await with_branches(ledger, ["chat"])]
    assert (found[0], set(found)) == ("chat", {"chat", branch.thread_id, below.thread_id})
    with pytest.raises(errors.ServiceError, match="chat: it got a new branch"):
        assert [each async for each in delete_threads(ledger, ["chat"])]
    assert [each async for each in delete_threads(ledger, found[::-1])] == found[::-1]
    with pytest.raises(errors.UnknownThreadError):
        await find_thread(ledger, "chat")


async def test_a_rating_of_a_message_that_is_not_there_is_refused() -> None:
    ledger = await chatted()
    await rate_message(ledger, "chat", "m-4", 0.5, by="ann")
    with pytest.raises(errors.PlaceError, match="no message 'm-9'"):
        await rate_message(ledger, "chat", "m-9", 0.5, by="ann")


async def test_an_export_names_what_is_lost_and_where_it_fails() -> None:
    ledger = await chatted()
    thread = await find_thread(ledger, "chat")
    house = [line async for line in export_lines(ledger, thread)]
    assert len(house) == 5
    lost: list[Any] = []
    (line,) = [line async for line in export_lines(ledger, thread, ExportForm("choir"), lambda *each: lost.append(each))]
    assert line.startswith(b"[")
    assert {name for name, _ in lost} == {"chat"}
    decisions = [line async for line in export_lines(ledger, thread, ExportForm(trajectories=True))]
    assert all(b'"policy":"assistant"' in each for each in decisions)


# ---------------------------------------------------------------- the life of a thread


@pytest.mark.slow
async def test_a_thread_is_paused_and_resumed_and_terminated_where_its_process_is_gone() -> None:
    ledger = await known()
    witness = Witness(on_request=(held := Held("intention")))
    async with chain_on(ledger, witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        assert (await thread_status(ledger, thread_id)).current_phase == "intention"
    held.released.set()
    paused = await pause_thread(ledger, thread_id)
    assert (paused["type"], paused["data"]["status"]) == ("THREAD_PAUSED", "paused")
    report = await thread_status(ledger, thread_id)
    assert (report.status, report.phases_completed, report.is_chain) == ("paused", PHASES[:2], True)
    assert not await resume_elsewhere(ledger, thread_id)
    async with chain_on(ledger) as chain:
        done = await ChainRunner(chain).resume(thread_id)
        assert (done.status, done.was_interrupted) == ("completed", False)
        again = await ChainRunner(chain).resume(thread_id)
        assert (again.status, again.response) == ("completed", done.response)  # its caller may have been killed
    with pytest.raises(errors.RefusedError) as refused:
        await pause_thread(ledger, thread_id)
    assert (refused.value.code, refused.value.details["type"]) == ("INVALID_STATE", "ERROR")  # type: ignore[index]
    assert (await terminate_thread(ledger, thread_id, "enough"))["type"] == "THREAD_TERMINATED"
    async with chain_on(ledger) as chain:
        with pytest.raises(errors.ThreadEndedError) as raised:
            await ChainRunner(chain).resume(thread_id)
    assert (raised.value.status, raised.value.thread_id) == ("terminated", thread_id)


async def test_a_thread_of_another_pattern_has_a_status_and_no_phases() -> None:
    ledger = await chatted()
    report = await thread_status(ledger, "chat")
    assert (report.is_chain, report.messages, report.open_calls) == (False, 4, 0)
    with pytest.raises(errors.UnknownThreadError):
        await thread_status(ledger, "nobody")


async def test_a_thread_that_no_build_can_continue_is_listed_with_the_reason() -> None:
    ledger = MemoryLedger()
    host = Host("old", "build 1", ("probe",))
    await ledger.beat(host)
    epoch = await ledger.claim("t", by=host, kind="probe")
    call = OptionCallPayload(invocation_id="c", option_name="PING", arguments={})
    await ledger.append("t", [Message(policy="client", payload=call, lane="control", id="c")], epoch=epoch, status="stopped")
    await ledger.release("t", epoch=epoch, unfit="build 1", reason="HISTORY_MISMATCH: another prompt")

    report = await thread_status(ledger, "t")
    assert (report.status, report.owner, report.unfit) == ("stopped", None, ("build 1: HISTORY_MISMATCH: another prompt",))
    (listed,) = [each async for each in list_with_runs(ledger)]
    assert listed.unfit[0].reason == "HISTORY_MISMATCH: another prompt"


async def test_a_thread_of_any_pattern_is_paused_and_terminated_by_the_host_that_has_it() -> None:
    ledger = MemoryLedger()
    async with System(ledger, settings=Settings(host="owner", poll=0.01)) as owner:
        owner.register("probe", Probe)
        await owner.ask("probe/1", Ping(text="x"), thread_id="t")
        paused = await pause_thread(ledger, "t")
        assert (paused["type"], paused["data"]["status"]) == ("THREAD_PAUSED", "paused")
        assert (await owner.status("t")).status == "paused"
        found = await ledger.thread("t")
        assert found is not None
        assert found.owner == "owner"
        assert (await terminate_thread(ledger, "t", "enough"))["data"]["reason"] == "enough"
    with pytest.raises(errors.RefusedError, match="is terminated") as refused:
        await pause_thread(ledger, "t")
    assert refused.value.details["type"] == "ERROR"  # type: ignore[index]


# ---------------------------------------------------------------- running


@pytest.mark.slow
async def test_a_question_is_asked_in_a_chain_and_again_in_its_thread(tmp_path: Path) -> None:
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        async with open_chain(ledger, model="scripted") as runner:
            first = await runner.ask("What is 17 * 23?")
            again = await runner.ask("And 2 * 3?", thread_id=first.thread_id)
        assert "391" in (first.response or "")
        assert (again.thread_id, again.models) == (first.thread_id, ("scripted:postchain",))
        events = await replay_thread(ledger, first.thread_id)
        assert [each.event.phase for each in events if each.event.kind == "phase_began"] == [*PHASES, *PHASES]
        (rerun,) = await rerun_threads(ledger)
        assert not rerun.differs
        with pytest.raises(errors.UnknownThreadError):
            await open_chain(ledger, model="scripted", thread_id="nobody").__aenter__()


@pytest.mark.slow
async def test_a_branch_goes_on_and_is_compared_phase_by_phase() -> None:
    ledger = await known()
    async with chain_on(ledger) as chain:
        runner = ChainRunner(chain)
        first = await runner.ask(QUESTION)
        told: list[Any] = []
        branch = await runner.fork(ForkPlace(first.thread_id, at="yield"), on_branch=told.append)
    assert [each.thread_id for each in told] == [branch.thread_id]
    found = await compare_threads(ledger, first.thread_id, branch.thread_id)
    assert found.phases is not None
    assert [each.phase for each in found.phases] == list(PHASES)
    assert all(each.left == each.right for each in found.phases)
    assert not found.is_empty
    assert (await compare_threads(ledger, first.thread_id, first.thread_id)).is_empty


@pytest.mark.parametrize(
    ("at", "text"),
    [("never", "one of action, "), ("99", "99"), ("yield", "no phase yield")],
)
async def test_a_place_that_is_not_there_is_refused(at: str, text: str) -> None:
    with pytest.raises(errors.PlaceError, match=text):
        await fork_thread(await chatted(), ForkPlace("chat", at))


@pytest.mark.slow
async def test_a_thread_that_is_over_at_a_place_does_not_go_on_from_there() -> None:
    ledger = await known()
    async with chain_on(ledger) as chain:
        done = await chain.run(QUESTION)
        created = await chain.create(QUESTION)
    with pytest.raises(errors.PlaceError, match="the thread is completed"):
        await check_continues(ledger, ForkPlace(done.thread_id))
    with pytest.raises(errors.PlaceError, match="has not started"):
        await check_continues(ledger, ForkPlace(created))


@pytest.mark.slow
async def test_a_team_is_watched_step_by_step(tmp_path: Path) -> None:
    team = Path(__file__).parents[2] / "examples" / "analyse_csv" / "team.toml"
    steps: list[Any] = []
    ledger = MemoryLedger()
    report = await run_team(ledger, team, "How are the sales?", listeners=TeamListeners(on_step=steps.append))
    assert (report.status, report.models) == ("completed", ("scripted:analyse-csv",))
    *_, last = await replay_thread(ledger, report.thread_id)
    assert (last.event.kind, last.answer) == ("ended", report.answer)
    assert [(each.kind, each.agent) for each in steps[:2]] == [("asked", "controller"), ("asked", "analyst")]
    assert any(each.kind == "called" and each.text.startswith("csv_totals(") for each in steps)
    with pytest.raises(errors.ConfigError):
        await run_team(MemoryLedger(), tmp_path / "none.toml", "Go.")


def test_a_model_that_cannot_be_had_is_refused_before_there_is_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_model("scripted").name == "scripted"
    with pytest.raises(errors.ModelError):
        choose_model("nobody:nothing")


# ---------------------------------------------------------------- people


async def test_a_call_that_does_not_wait_cannot_be_answered_or_settled() -> None:
    ledger = await chatted()
    assert list(await list_approvals(ledger)) == []
    assert await list_parked(ledger) == ()
    with pytest.raises(errors.NotWaitingError, match="no approval 'a-1'"):
        await answer_approval(ledger, "a-1", principal="ada", approved=True)
    with pytest.raises(errors.NotWaitingError, match="'c-1' is not parked in thread 'chat'"):
        await settle_call(ledger, "chat", "c-1", retry=True)


class Clumsy(Actor):
    @handles
    async def process(self, request: ProcessWithAgent, context: Context) -> AgentResponse:
        if request.input == "fail":
            raise ConnectionError("gone")
        if request.input == "once":
            await context.effect("pay", {"sum": 3}, self._unknown, effects="once")
        return AgentResponse(result=AgentResult(response="x"), processing_time=0)

    async def _unknown(self, key: str) -> int:
        raise errors.UnknownOutcomeError("the line went dead")


async def test_a_parked_call_is_listed_with_its_evidence_and_settled() -> None:
    ledger: Ledger = MemoryLedger()
    async with System(ledger) as system:
        system.spawn("agent/1", Clumsy)
        with pytest.raises(errors.ParkedError):
            await system.ask("agent/1", ProcessWithAgent(input="once"), thread_id="t")
    (parked,) = await list_parked(ledger)
    assert (parked.thread_id, parked.option, parked.arguments["arguments"]) == ("t", "pay", {"sum": 3})
    assert parked.began_at is not None
    await settle_call(ledger, "t", parked.invocation_id, result=1)
    assert await list_parked(ledger) == ()


@pytest.mark.slow
async def test_the_actors_of_a_system_and_its_dead_letters_can_be_seen() -> None:
    async with System() as system:
        team = system.supervise("team/1", Supervision(intensity=5))
        system.spawn("agent/1", Clumsy, supervisor=team)
        with pytest.raises(errors.ActorFailedError):
            await system.ask("agent/1", ProcessWithAgent(input="fail"))
        await system.ask("agent/1", ProcessWithAgent(input="go"))
        for _ in range(2):
            with pytest.raises(errors.UndeliverableError):
                await system.tell("nobody/1", ProcessWithAgent(input="go"))
        seen = {each.address: each for each in system.actors()}
        letters, counts = system.dead_letters, system.dead_letter_counts
    agent = seen["agent/1"]
    assert (agent.supervisor, agent.state, agent.restarts, agent.waiting, agent.load) == ("team/1", "active", 1, 0, 0.0)
    assert seen["team/1"].supervisor == "system/root"
    assert len(letters) == sum(counts.values())
    assert {each.code for each in letters} == set(counts)


async def test_a_thread_that_no_living_host_can_run_is_listed_with_the_reason() -> None:
    """A host lives, and does not have the team of the thread; one that has it would take it."""
    ledger, payload = MemoryLedger(), OptionCallPayload(invocation_id="m", option_name="TASK", arguments={})
    call = Message(policy="client", payload=payload, to=("controller/1",), lane="control", id="m")
    await left_by_the_dead(ledger, "t", "controller", [call])
    wanted = "no living host has the kind 'controller'; continue it with `antiphon resume t`, or start a host that has it"
    assert [each.waits_for async for each in list_with_runs(ledger)] == [None]  # no host is used at all
    await ledger.beat(Host("chains", "1", ("thread",)))
    listed = [each async for each in list_with_runs(ledger)]
    assert [(each.waits_for or "").partition(": ")[0] for each in listed] == [wanted]
    assert "`antiphon host --team FILE`" in (listed[0].waits_for or "")
    report = await thread_status(ledger, "t")
    assert (report.waits_for or "").startswith(wanted)
    await ledger.beat(Host("teams", "1", ("controller",)))
    assert [each.waits_for async for each in list_with_runs(ledger)] == [None]
    assert (await thread_status(ledger, "t")).waits_for is None


async def test_a_paused_thread_waits_for_a_person_and_for_no_host() -> None:
    """A host takes it, and does not continue it."""
    ledger, payload = MemoryLedger(), OptionCallPayload(invocation_id="m", option_name="TASK", arguments={})
    await left_by_the_dead(ledger, "t", "thread", [Message(policy="client", payload=payload, lane="control", id="m")])
    thread = await ledger.thread("t")
    assert thread is not None
    assert "or start a host" in (hostless_reason(thread, ()) or "")
    assert (
        hostless_reason(dataclasses.replace(thread, status="paused"), ())
        == "it is paused; continue it with `antiphon resume t`"
    )


async def test_a_thread_that_ended_with_its_host_while_one_looked_is_not_stopped() -> None:
    """The thread is read first, and the hosts afterwards: in between, both may have ended."""
    ledger, host = MemoryLedger(), Host("h", "1")
    await ledger.beat(host)
    epoch = await ledger.claim("t", by=host, kind="thread")
    call = OptionCallPayload(invocation_id="c", option_name="ASK", arguments={})
    await ledger.append("t", [Message(policy="client", payload=call, lane="control")], epoch=epoch)
    before = await ledger.thread("t")
    assert before is not None
    await ledger.leave(host)
    assert (await with_open_runs(ledger, before)).status == "stopped"
    result = OptionResultPayload(invocation_id="c", option_name="ASK", result=1)
    await ledger.append("t", [Message(policy="h", payload=result, lane="control")], epoch=epoch, status="completed")
    assert (await with_open_runs(ledger, before)).status == "completed"


class OneQuery(MemoryLedger):
    """A ledger that refuses to be asked about one thread after the other."""

    @override
    async def open_calls(self, thread_id: str | None = None, **options: Any) -> Any:
        assert thread_id is None, "a thread was asked"
        return await super().open_calls(**options)


async def test_approvals_of_all_threads_are_listed_by_a_page_of_an_index() -> None:
    """See `test_open_calls_of_an_option_are_looked_up_in_order`."""
    ledger = OneQuery()
    for name in ("one", "other"):
        asked = Approval(f"id-{name}", name, "ada", "pay", {"sum": 5}, "0" * 64, "it pays", datetime(2030, 1, 1, tzinfo=UTC))
        await ledger.append(name, [asked.question()])
    assert [(each.id, each.thread_id) for each in await list_approvals(ledger)] == [("id-one", "one"), ("id-other", "other")]
    found = await open_approval(ledger, "id-other")
    assert found is not None
    assert found.thread_id == "other"
    assert await open_approval(ledger, "id-nothing") is None
