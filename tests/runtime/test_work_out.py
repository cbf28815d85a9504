"""An actor's own work (`work_out`) is stored with its next message, and costs no append of its own (G5, G6)."""

from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
from tests.runtime.actors import Ping, Pong, Probe, rows, virtually
from typing_extensions import override

from antiphon.errors import ParkedError, RefusedError
from antiphon.ledger import Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles


class Planned(Reply, frozen=True, type="WORK_OUT_PLANNED"):
    plan: str


class Plan(Request[Planned], frozen=True, type="WORK_OUT_PLAN"):
    how: str


class Acted(Reply, frozen=True, type="WORK_OUT_ACTED"):
    did: str


class Act(Request[Acted], frozen=True, type="WORK_OUT_ACT"):
    how: str


class Planner(Actor):
    """Plans, then acts."""

    planned = 0
    fails: ClassVar[list[str]] = []

    @handles
    async def act(self, act: Act, context: Context) -> Acted:
        planned = await context.work_out(Plan(how=act.how), key="plan")
        self._fail("before it was said")
        if act.how != "alone":
            await context.ask("probe/1", Ping(text=planned.plan), key="ping")
            self._fail("after it was said")
        return Acted(did=planned.plan)

    @handles
    async def plan(self, plan: Plan, context: Context) -> Planned:
        if plan.how == "not":
            raise RefusedError("there is no plan", "NO_PLAN")
        if plan.how == "talking":
            await context.ask("probe/1", Ping(text="what shall I do?"))
        type(self).planned += 1
        return Planned(plan=f"plan {self.planned}")

    def _fail(self, when: str) -> None:
        if when in self.fails:
            self.fails.remove(when)
            raise OSError(when)


class Counting(MemoryLedger):
    """Notes how many rows each append had."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[int] = []

    @override
    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        records = await super().append(thread_id, messages, **more)
        if thread_id == "t":
            self.appends.append(len(records))
        return records


def _acted(how: str, *fails: str) -> tuple[list[int], list[str], Acted | Exception]:
    """Have a planner act, and return the lengths of the appends, the rows of the thread, and the outcome."""
    ledger, outcome = Counting(), list[Acted | Exception]()
    Planner.planned, Planner.fails = 0, list(fails)

    async def main() -> list[str]:
        async with System(ledger, settings=Settings(attempts=2)) as system:
            system.register("probe", Probe)
            system.register("planner", Planner)
            try:
                outcome.append(await system.ask("planner/1", Act(how=how), thread_id="t"))
            except (RefusedError, ParkedError) as exc:
                outcome.append(exc)
        return await rows(ledger, "t")

    found = virtually(main())
    return ledger.appends, found, outcome[0]


def test_question_and_answer_are_stored_with_the_next_message() -> None:
    appends, found, acted = _acted("well")
    assert found == ["WORK_OUT_ACT", "WORK_OUT_PLAN", "=WORK_OUT_PLAN", "TEST_PING", "=TEST_PING", "=WORK_OUT_ACT"]
    assert appends == [1, 3, 1, 1]
    assert acted == Acted(did="plan 1")


def test_without_a_next_message_they_are_stored_with_the_answer() -> None:
    appends, found, _ = _acted("alone")
    assert found == ["WORK_OUT_ACT", "WORK_OUT_PLAN", "=WORK_OUT_PLAN", "=WORK_OUT_ACT"]
    assert appends == [1, 3]


def test_work_that_was_not_stored_is_done_again_and_stored_once() -> None:
    _, found, acted = _acted("well", "before it was said")
    assert (found.count("WORK_OUT_PLAN"), found.count("=WORK_OUT_PLAN")) == (1, 1)
    assert acted == Acted(did="plan 2")  # nobody had acted on the first


def test_stored_work_is_not_done_again() -> None:
    _, found, acted = _acted("well", "after it was said")
    assert (found.count("WORK_OUT_PLAN"), found.count("TEST_PING")) == (1, 1)
    assert acted == Acted(did="plan 1")


def test_a_refusal_is_stored_too() -> None:
    appends, found, error = _acted("not")
    assert found == ["WORK_OUT_ACT", "WORK_OUT_PLAN", "!NO_PLAN", "!NO_PLAN"]
    assert appends == [1, 3]
    assert isinstance(error, RefusedError)


def test_sending_a_message_inside_of_the_work_fails_the_actor() -> None:
    _, _, error = _acted("talking")
    assert isinstance(error, ParkedError)  # the actor fails, each time


@pytest.mark.virtual_time
async def test_a_mark_is_written_with_the_next_row() -> None:
    class Marker(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            context.mark(status=ping.text, pattern="marked")
            return Pong(text=ping.text)

    ledger = Counting()
    async with System(ledger) as system:
        system.register("marker", Marker)
        for status in ("created", "completed"):
            await system.ask("marker/1", Ping(text=status), thread_id="t")
            summary = await ledger.thread("t")
            assert summary is not None
            assert (summary.status, summary.pattern) == (status, "marked")
    assert ledger.appends == [1, 1, 1, 1]
