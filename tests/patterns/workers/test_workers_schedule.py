"""The order in which a worker does its tasks, and the time that each may take; also after a restart."""

import asyncio
from contextlib import AsyncExitStack
from contextvars import Context
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo
from tests.patterns.chains import run
from tests.patterns.workers.minds import Bench, got, left_by_a_kill, prompt, saying

from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.errors import RefusedError
from antiphon.ledger import heads_of, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import Assigner, Reporting, ToolCapableAgent, WorkerLimits, Workers, conversation
from antiphon.patterns.workers._schedule import Slots, due_at, priority_of, within_deadline

ADA, BOB = AgentSpec(name="ada", instructions="You are ada."), AgentSpec(name="bob", instructions="You are bob.")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def task(content: str, **data: Any) -> StructuredMessage:
    return StructuredMessage.create_task(content, "user", "ada", data, task_id=content, message_id=f"m-{content}")


async def waiting(team: Workers, count: int) -> None:
    """Wait until so many tasks wait for ada."""
    while team.waiting["ada"] < count:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------- what metadata say


@pytest.mark.parametrize(
    ("given", "more_urgent"),
    [("low", "normal"), (None, "high"), ("Medium", "HIGH"), ("high", "urgent"), (0, "normal"), (2.5, 7), ("P1", "high")],
)
def test_priorities_are_words_or_numbers_and_a_higher_one_is_more_urgent(given: Any, more_urgent: Any) -> None:
    """AT-051."""
    assert priority_of(task("a", priority=given)) < priority_of(task("b", priority=more_urgent))


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ("2h", timedelta(hours=2)),
        ("1h 30m", timedelta(minutes=90)),
        ("90 seconds", timedelta(seconds=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5 days", timedelta(hours=36)),
        (20, timedelta(seconds=20)),
        ((NOON + timedelta(hours=3)).timestamp(), timedelta(hours=3)),
        (NOON + timedelta(hours=4), timedelta(hours=4)),
        ("2026-03-01T14:00:00+01:00", timedelta(hours=1)),
        ("2026-03-01T13:00:00", timedelta(hours=1)),
        ("2026-03-01", timedelta(hours=12)),
        (date(2026, 3, 1), timedelta(hours=12)),
    ],
)
def test_a_deadline_is_a_time_span_or_a_time(given: Any, due: timedelta) -> None:
    """AT-051: a span counts from the message's own time; a day lasts until its end."""
    message = StructuredMessage("Go.", {"type": "task", "deadline": given}, timestamp=NOON.timestamp())

    assert due_at(message) == pytest.approx((NOON + due).timestamp())


@pytest.mark.parametrize("given", ["soon", "2 months", "", True, ["2h"], "2026-13-01"])
async def test_a_deadline_that_nobody_can_read_is_refused_before_anything_happens(given: Any) -> None:
    """AT-050, AT-051: a bound that does not bound would be worse than an error."""
    bench = Bench(is_open=True)
    async with Workers(workers=[ADA], model=bench.model) as team:
        answer = await team.send(task("a", deadline=given))
        assert not await heads_of(team.ledger)
    assert (answer.message_type, answer.metadata["code"], bench.begun) == (MessageType.ERROR, "VALIDATION_ERROR", [])
    assert "metadata.deadline" in answer.content


# ---------------------------------------------------------------- order


# Mutant: drop `-priority_of(message)` in workers/_schedule.py, `Ticket` -> this test is red.
async def test_a_worker_does_its_tasks_by_priority_then_in_the_order_given() -> None:
    """AT-051: the one at work is finished first."""
    bench = Bench()
    async with Workers(workers=[ADA], model=bench.model) as team:
        given = [asyncio.create_task(team.send(task("first", priority="low")))]
        await bench.came.wait()
        priorities = {"low": "low", "plain": None, "high": "high", "plain too": "normal", "urgent": "urgent"}
        for count, (name, priority) in enumerate(priorities.items(), 1):
            given.append(asyncio.create_task(team.send(task(name, priority=priority))))
            await waiting(team, count)
        assert bench.begun == ["first"]
        bench.go_on.set()
        answers = await asyncio.gather(*given)
    assert bench.begun == ["first", "urgent", "high", "plain", "plain too", "low"]
    assert {each.message_type for each in answers} == {"result"}


async def test_tasks_of_a_controller_are_done_by_priority_too() -> None:
    """AT-051: the priority is in the task's data, else in the query's; workers do not wait for each other."""

    async def policy(query: StructuredMessage, assigner: Assigner) -> str:
        low = {"priority": "low"}
        tasks = [("ada", "one", low), ("ada", "two", low), ("ada", "three"), ("bob", "four", low)]
        return " ".join(each.content for each in await assigner.assign_all(tasks))

    bench = Bench(is_open=True)
    async with Workers(None, [ADA, BOB], controller=policy, model=bench.model) as team:
        query = StructuredMessage.create_query("Go.", "user", "controller", task_id="t", metadata={"priority": "high"})
        assert (await team.send(query)).content == "Done. Done. Done. Done."
        given = [each.metadata["priority"] for each in await team.messages("t") if each.message_type == "task"]
    assert given == ["low", "low", "high", "low"]
    assert bench.begun.index("three") < bench.begun.index("two")
    assert bench.begun.index("four") < bench.begun.index("two")


def test_a_worker_does_as_many_tasks_at_once_as_the_team_says() -> None:
    async def main() -> None:
        bench = Bench()
        async with Workers(workers=[ADA], model=bench.model, limits=WorkerLimits(at_once=2)) as team:
            given = []
            for name in "abc":
                bench.came.clear()
                given.append(asyncio.create_task(team.send(task(name))))
                await (waiting(team, 1) if name == "c" else bench.came.wait())
            assert bench.begun == ["a", "b"]
            bench.go_on.set()
            await asyncio.gather(*given)
        assert bench.begun == ["a", "b", "c"]

    run(main())
    with pytest.raises(ValueError, match="at_once"):
        WorkerLimits(at_once=0)


async def test_a_team_says_how_many_tasks_wait_by_worker() -> None:
    bench = Bench()
    async with Workers(workers=[ADA, BOB], model=bench.model) as team:
        assert team.waiting == {"ada": 0, "bob": 0}
        given = [asyncio.create_task(team.send(task(name))) for name in ("a", "b", "c")]
        await waiting(team, 2)
        assert team.waiting == {"ada": 2, "bob": 0}
        bench.go_on.set()
        await asyncio.gather(*given)


def test_a_low_priority_is_delayed_and_never_forgotten() -> None:
    """S15: every tenth task that begins is the longest waiting one, however many urgent tasks come."""

    async def main() -> list[str]:
        slots, done = Slots(1), list[str]()

        async def work(name: str, priority: str) -> None:
            with slots.ticket(task(name, priority=priority)) as ticket:
                async with ticket:
                    done.append(name)
                await asyncio.sleep(0)

        with slots.held():
            tasks = [asyncio.create_task(work("low", "low"))]
            tasks += [asyncio.create_task(work(f"urgent {number}", "urgent")) for number in range(20)]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return done

    done = run(main())
    assert done.index("low") == 9
    assert len(done) == 21


async def test_a_tool_that_asks_its_own_team_does_not_wait_for_itself() -> None:
    """A worker that waits for the team lends its slot, once however many it asks; afterwards there is one slot again."""

    async def ask_others() -> str:
        """Ask the team."""
        asked = [StructuredMessage.create_query(name, "ada", "ada", task_id=name) for name in ("one", "two")]
        return " ".join(each.content for each in await asyncio.gather(*map(team.send, asked)))

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse | str:
        if prompt(messages) != "Ask.":
            return f"answered {prompt(messages)}"
        return got(messages)[0] if got(messages) else ModelResponse([ToolCallPart("ask_others", {}, "c1")])

    ada = ADA.model_copy(update={"tools": ("ask_others",)})
    team = Workers(workers=[ada], model=saying(answer), tools=[ask_others])
    async with team, asyncio.timeout(20):
        answered = await team.send(StructuredMessage.create_query("Ask.", "user", "ada"))
        assert answered.content == "answered one answered two"
        with team._slots["ada"].ticket(task("a")):
            second = asyncio.create_task(team.send(task("b")), context=Context())
            await waiting(team, 1)
        assert (await second).message_type == MessageType.RESULT


async def test_a_task_that_waits_does_not_say_that_it_is_at_work() -> None:
    """AT-063: reports begin with the work."""
    bench, heard = Bench(), list[str]()
    async with Workers(workers=[ADA], model=bench.model, reporting=Reporting(after=0.01, most=2)) as team:
        team.on_message(lambda _, message: heard.append(message.task_id) if message.message_type == "status" else None)
        given = [asyncio.create_task(team.send(task("first")))]
        await bench.came.wait()
        given.append(asyncio.create_task(team.send(task("second"))))
        await waiting(team, 1)
        while len(heard) < 2:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.001)
        bench.go_on.set()
        await asyncio.gather(*given)
    assert heard[:2] == ["first", "first"]


async def test_a_task_that_is_cancelled_gives_its_slot_back() -> None:
    """While it waits, while it works, and in the moment between."""
    for steps in range(6):
        slots = Slots(1)

        async def work(slots: Slots = slots) -> None:
            with slots.ticket(task("a")) as ticket:
                await asyncio.sleep(0)
                async with ticket:
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(5):
            await work()


# Mutant: hold no slots in workers/_workers.py, `Workers.recovering` -> this test is red.
@pytest.mark.slow
@pytest.mark.parametrize("url", ["memory:", "sqlite:///ledger.db"])
async def test_after_a_restart_the_most_urgent_task_begins_first(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9, AT-051: order follows from the rows, so a new process does the same as the old one would have done."""
    monkeypatch.chdir(tmp_path)

    async def main(stack: AsyncExitStack) -> None:
        ledger, before, after = MemoryLedger(), Bench(), Bench(is_open=True)
        async with Workers(ledger, [ADA], model=before.model) as team:
            given = []
            for count, (name, priority) in enumerate([("a", "low"), ("b", "low"), ("c", "high"), ("d", "urgent")]):
                given.append(asyncio.create_task(team.send(task(name, priority=priority))))
                await (waiting(team, count) if count else before.came.wait())
            assert before.begun == ["a"]
            left = await left_by_a_kill(ledger, await stack.enter_async_context(open_ledger(url)))
            before.go_on.set()
            await asyncio.gather(*given)
        async with Workers(left, [ADA], model=after.model) as team:
            answers = [await team.send(task(name, priority=priority)) for name, priority in [("a", "low"), ("b", "low")]]
        assert after.begun == ["d", "c", "a", "b"]
        assert [each.message_type for each in answers] == ["result", "result"]

    async with AsyncExitStack() as stack:
        await main(stack)


# ---------------------------------------------------------------- deadlines


# Mutant: drop `if not left` in workers/_schedule.py, `within_deadline` -> this test is red.
@pytest.mark.parametrize("given", ["2020-01-01", 1_500_000_000, -1])
async def test_a_task_whose_deadline_is_over_is_not_begun(given: Any) -> None:
    """AT-050, AT-051: neither from outside nor from a controller; the answer is a typed error."""

    async def policy(query: StructuredMessage, assigner: Assigner) -> StructuredMessage:
        late = await assigner.assign("ada", "late", task_data={"deadline": given})
        said = f"{late.message_type} {late.metadata['code']}: {late.content}"
        return StructuredMessage.create_response(said, query, source_agent=assigner.name)

    bench = Bench(is_open=True)
    async with Workers(None, [ADA], controller=policy, model=bench.model) as team:
        answer = await team.send(task("a", deadline=given))
        outcome = await team.run("Go.", thread_id="t")
        assert not await team.ledger.open_calls("t")
    assert (answer.message_type, answer.metadata["code"]) == (MessageType.ERROR, "TIMEOUT")
    assert answer.content == "the deadline passed before the work began"
    assert outcome.response == "error TIMEOUT: the deadline passed before the work began"
    assert bench.begun == []


async def test_a_task_whose_deadline_was_over_when_it_was_sent_is_not_begun_unless_it_is_answered_already() -> None:
    """AT-051, G10: a span counts from the message's own time; what is recorded is given back at any time."""
    bench = Bench(is_open=True)
    hour_ago = datetime.now(UTC).timestamp() - 3600
    async with Workers(workers=[ADA], model=bench.model) as team:
        old = task("old", deadline="30m")
        old.timestamp = hour_ago
        assert (await team.send(old)).metadata["code"] == "TIMEOUT"
        fresh = task("fresh", deadline="30m")
        answer = await team.send(fresh)
        again = fresh.copy()
        again.timestamp = hour_ago
        assert await team.send(again) == answer
    assert bench.begun == ["fresh"]


def _stuck(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([ToolCallPart("wait", {}, f"c-{prompt(messages).split()[0]}")])


# Mutant: drop `_end_late(answer, ...)` in workers/_workers.py, `WorkerActor._done` -> this test is red.
@pytest.mark.slow
async def test_work_under_way_is_cancelled_at_its_deadline_with_a_typed_error() -> None:
    """AT-050, AT-051: from outside, from a controller, in a step that was handed on; every call in the thread is ended."""
    stopped: list[str] = []

    async def wait() -> str:
        """Wait for ever."""
        try:
            return str(await asyncio.Event().wait())
        finally:
            stopped.append("stopped")

    async def policy(query: StructuredMessage, assigner: Assigner) -> str:
        wait = assigner.assign("ada", "wait", task_data={"deadline": "3s"}, key="wait")
        hand_on = assigner.assign("bob", "hand on", task_data={"deadline": "3s"}, route=["ada"], key="hand")
        late, handed = await asyncio.gather(wait, hand_on)
        return f"{late.metadata['code']} {handed.metadata['code']}"

    ledger = MemoryLedger()
    ada = ADA.model_copy(update={"tools": ("wait",)})
    answers = {"ada": _stuck, "bob": lambda *_: "For ada."}
    model = saying(lambda messages, info: answers[(info.instructions or "")[8:11]](messages, info))
    limits = WorkerLimits(at_once=3)
    async with Workers(ledger, [ada, BOB], controller=policy, model=model, tools=[wait], limits=limits) as team:
        query = StructuredMessage.create_query("Wait.", "user", "ada", task_id="t2", metadata={"deadline": "3s"})
        query.add_tool_call("wait", {}, "u1")
        await team.send(StructuredMessage.create_query("Hello.", "user", "bob"))  # imports take their time before
        query.timestamp = datetime.now(UTC).timestamp()
        outcome, answer = await asyncio.gather(team.run("Go.", thread_id="t"), team.send(query))
        said = await team.messages("t2")
        talk = [await conversation(ledger, each, tools=True) for each in ("t", "t2")]
        open_talk = [row for each in ("t", "t2") for row in await ledger.open_calls(each) if row.message.lane == "talk"]
    assert outcome.response == "TIMEOUT TIMEOUT"
    assert stopped == ["stopped"] * 3
    assert (answer.message_type, answer.metadata["code"]) == (MessageType.ERROR, "TIMEOUT")
    assert answer.content == "the deadline passed, and the work was stopped"
    assert [each.message_type for each in said] == ["query", "tool_request", "tool_response", "error"]
    assert [list(each.open_calls()) for each in talk] == [[], []]
    assert not open_talk


@pytest.mark.slow
async def test_a_task_that_waits_past_its_deadline_is_not_begun() -> None:
    """AT-051."""
    bench = Bench()
    async with Workers(workers=[ADA], model=bench.model) as team:
        first = asyncio.create_task(team.send(task("first")))
        await bench.came.wait()
        late = await team.send(task("late", deadline="50ms"))
        bench.go_on.set()
        assert (await first).message_type == MessageType.RESULT
    assert (late.metadata["code"], bench.begun) == ("TIMEOUT", ["first"])


@pytest.mark.slow
async def test_the_deadline_of_a_query_bounds_the_controller_and_its_workers() -> None:
    """AT-051: tasks that it has given end with it."""

    async def policy(query: StructuredMessage, assigner: Assigner) -> str:
        return (await assigner.assign("ada", "wait")).content

    bench, ledger = Bench(is_open=True), MemoryLedger()
    async with Workers(ledger, [ADA], controller=policy, model=bench.model) as team:
        await team.send(task("first"))  # imports take their time before
        bench.go_on.clear()
        query = StructuredMessage.create_query("Go.", "user", "controller", task_id="t", metadata={"deadline": "1s"})
        answer = await team.send(query)
        assert (answer.message_type, answer.metadata["code"]) == (MessageType.ERROR, "TIMEOUT")
        assert not await ledger.open_calls("t")
        said = await team.messages("t")
    assert [each.message_type for each in said] == ["query", "task", "error", "error"]


async def test_a_deadline_passes_also_while_no_process_is_there() -> None:
    """G9, AT-051: the next process does not continue the task, and returns the error to the caller."""
    ledger, before, after = MemoryLedger(), Bench(), Bench(is_open=True)
    late = task("late", deadline="1h")
    async with Workers(ledger, [ADA], model=before.model) as team:
        given = asyncio.create_task(team.send(late))
        await before.came.wait()
        left = await left_by_a_kill(ledger, hours=2)
        before.go_on.set()
        assert (await given).message_type == MessageType.RESULT
    async with Workers(left, [ADA], model=after.model) as team:
        answer = await team.send(late)
        assert not await left.open_calls("late")
    assert (answer.message_type, answer.metadata["code"]) == (MessageType.ERROR, "TIMEOUT")
    assert (before.begun, after.begun) == (["late"], [])


@pytest.mark.slow
async def test_an_agent_without_a_team_keeps_deadlines_too() -> None:
    """AT-051, G10: on a ledger, what was answered in time is given back also afterwards."""
    ledger, bench, stuck = MemoryLedger(), Bench(is_open=True), Bench()
    quick = ToolCapableAgent("ada", "Work", model=bench.model, ledger=ledger)
    slow = ToolCapableAgent("ada", "Work", model=stuck.model, ledger=ledger)
    message = task("a", deadline="30m")
    answer = await quick.aprocess_structured_message(message)
    assert answer.message_type == MessageType.RESULT
    message.timestamp -= 3600
    assert (await quick.aprocess_structured_message(message)).content == answer.content
    late = task("b", deadline="1s")
    answers = [await slow.aprocess_structured_message(late) for _ in range(2)]
    assert [each.metadata["code"] for each in answers] == ["TIMEOUT", "TIMEOUT"]
    assert (bench.begun, stuck.begun) == (["a"], ["b"])


async def test_an_error_of_the_work_itself_is_not_taken_for_a_deadline() -> None:
    with pytest.raises(TimeoutError, match="of its own"):
        async with within_deadline(task("a", deadline="1h")):
            raise TimeoutError("of its own")
    with pytest.raises(RefusedError, match="no deadline"):
        async with within_deadline(task("a", deadline="soon")):
            raise AssertionError
