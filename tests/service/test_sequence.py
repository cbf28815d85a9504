"""The sequence and the timeline of a thread: the same in one window or in many, with calls joined to their results."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.ledgers import text, with_chat
from tests.cli.running import run as command
from tests.loops import run
from tests.patterns.chains import QUESTION, chain_on, known

from antiphon.errors import UnknownThreadError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, use_port
from antiphon.protocol import AgentResponse, AgentResult, ProcessWithAgent
from antiphon.runtime import Actor, Context, System, handles
from antiphon.runtime._rows import AGAIN, APPROVE, attempted, begun
from antiphon.service import every_span, every_step, mark_words, sequence, thread_index, timeline
from antiphon.service._sequence import APPROVE as OWN_APPROVE
from antiphon.service._values import INDEX_MARKS
from antiphon.testing import CountingPort


def call(id: str, option: str = "look", parent: str | None = None, policy: str = "ada", **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=id, option_name=option, arguments={})
    return Message(policy=policy, payload=payload, parent_id=parent, **fields)


def result(id: str, option: str = "look", *, failed: bool = False, **fields: Any) -> Message:
    error = {"is_error": True, "error_type": "X", "error_message": "no"} if failed else {"result": 1}
    return Message(policy=option, payload=OptionResultPayload(invocation_id=id, option_name=option, **error), **fields)


class Ticking(CountingPort):
    """A port whose clock goes on by a second with each look at it."""

    def __init__(self) -> None:
        super().__init__()
        self._at = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def now(self) -> datetime:
        self._at += timedelta(seconds=1)
        return self._at


async def nested() -> MemoryLedger:
    """A question; a call in the course of which another is made and answered; a third that fails, and one that is open."""
    ledger = MemoryLedger()
    with use_port(Ticking()):
        for message in (
            text("Go."),
            call("1", "plan"),
            call("2", parent="1", to=("bob/1",)),
            call("3", parent="2"),
            result("3"),
            result("2"),
            result("1", "plan", failed=True),
            call("4", APPROVE, parent="1"),
        ):
            await ledger.append("t", [message])
    return ledger


async def test_a_step_says_who_said_what_to_whom_how_deep_and_how_long() -> None:
    found = await sequence(await nested(), "t")

    assert [
        (step.seq, step.kind, step.sender, step.receivers, step.depth, step.parent, step.pair) for step in found.steps
    ] == [
        (1, "said", "user", (), 0, None, None),
        (2, "called", "ada", ("plan",), 0, None, 7),
        (3, "called", "ada", ("bob/1",), 1, 2, 6),
        (4, "called", "ada", ("look",), 2, 3, 5),
        (5, "answered", "look", ("ada",), 2, 3, 4),
        (6, "answered", "look", ("ada",), 1, 2, 3),
        (7, "failed", "plan", ("ada",), 0, None, 2),
        (8, "called", "ada", (APPROVE,), 1, 2, None),
    ]
    assert found.participants == ("user", "ada", "plan", "bob/1", "look", APPROVE)
    assert (found.next, found.steps[-1].mark, found.steps[1].seconds) == (None, "approval", found.steps[6].seconds)
    assert found.steps[1].seconds == (found.steps[6].at - found.steps[1].at).total_seconds() > 0
    assert OWN_APPROVE == APPROVE


async def test_a_span_is_a_call_with_its_result() -> None:
    found = await timeline(await nested(), "t")

    assert [(span.seq, span.end_seq, span.worker, span.outcome, span.depth) for span in found.spans] == [
        (1, 1, "user", "said", 0),
        (2, 7, "plan", "failed", 0),
        (3, 6, "bob/1", "completed", 1),
        (4, 5, "look", "completed", 2),
        (8, None, APPROVE, "open", 1),
    ]
    assert found.spans[-1].seconds is None


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
async def test_windows_of_any_size_say_the_same(limit: int) -> None:
    ledger = await nested()
    steps, spans, after = [], {}, 0
    while after is not None:
        window = await sequence(ledger, "t", after=after, limit=limit)
        steps += window.steps
        spans |= {span.seq: span for span in (await timeline(ledger, "t", after=after, limit=limit)).spans}
        after = window.next

    assert tuple(steps) == (await sequence(ledger, "t")).steps
    assert tuple(spans[seq] for seq in sorted(spans)) == (await timeline(ledger, "t")).spans


@pytest.mark.slow
async def test_a_whole_thread_is_walked_window_by_window() -> None:
    ledger = MemoryLedger()
    messages = [message for number in range(700) for message in (call(str(number)), result(str(number)))]
    await ledger.append("t", [text("Go."), *messages])  # so that a pair is cut by the end of a window

    assert [step.seq async for step in every_step(ledger, "t")] == list(range(1, 1402))
    spans = [(span.seq, span.end_seq) async for span in every_span(ledger, "t")]
    assert spans == [(1, 1), *((n, n + 1) for n in range(2, 1402, 2))]


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 5), st.booleans()), min_size=1, max_size=12))
def test_a_history_from_elsewhere_ends_whatever_its_parents_are(rows: list[tuple[int, int | None, bool]]) -> None:
    """Calls that are their own parents, orphans, and second results included."""

    async def main() -> None:
        ledger = MemoryLedger()
        for number, parent, is_call in rows:
            above = None if parent is None else str(parent)
            message = call(str(number), parent=above) if is_call else result(str(number), parent_id=above)
            await ledger.append("t", [message], allow_foreign=True)
        steps = (await sequence(ledger, "t")).steps
        assert [step.seq for step in steps] == list(range(1, len(rows) + 1))
        assert all(0 <= step.depth <= len(rows) for step in steps)
        assert [step async for step in every_step(ledger, "t")] == list(steps)
        assert len((await timeline(ledger, "t")).spans) <= len(rows)

    run(main())


class Fragile(Actor):
    @handles
    async def process(self, request: ProcessWithAgent, context: Context) -> AgentResponse:
        if context.attempt == 1:
            raise ConnectionError("gone")
        return AgentResponse(result=AgentResult(response="x"), processing_time=0)


@pytest.mark.slow
async def test_a_retry_is_marked() -> None:
    async with System() as system:
        system.spawn("agent/1", Fragile)
        await system.ask("agent/1", ProcessWithAgent(input="x"), thread_id="t")
        marks = {step.mark for step in (await sequence(system.ledger, "t")).steps}
    assert marks == {None, "retried"}


@pytest.mark.parametrize(
    ("said", "mark", "words"),
    [
        ({"cause": "failed"}, "retried", "retried"),
        ({"cause": "recovered", "host": "b", "epoch": 2}, "restarted", "restarted on b"),
        ({"cause": "recovered", "host": "b", "epoch": 2, "taken_from": "b"}, "restarted", "restarted on b"),
        ({"cause": "recovered", "host": "b", "epoch": 2, "taken_from": "a"}, "taken_over", "taken over from a by b"),
    ],
)
async def test_a_redelivery_is_marked_with_its_hosts(said: dict[str, Any], mark: str, words: str) -> None:
    ledger = MemoryLedger()
    await ledger.append("t", [begun(AGAIN, "again", thread_id="t", arguments=said), call("1", AGAIN)])
    again, tool = (await sequence(ledger, "t")).steps
    (span, _) = (await timeline(ledger, "t")).spans

    assert (again.mark, mark_words(again), again.host) == (mark, words, said.get("host"))
    assert (span.mark, mark_words(span)) == (mark, words)
    assert (await thread_index(ledger, "t")).mark == (INDEX_MARKS.index(mark), 0)
    assert tool.mark is None  # a tool may be called anything


async def test_a_further_attempt_of_an_effect_is_marked() -> None:
    ledger = MemoryLedger()
    await ledger.append("t", [attempted("x", 2, thread_id="t", policy="ada")])

    assert [step.mark for step in (await sequence(ledger, "t")).steps] == ["retried"]


@pytest.mark.slow
async def test_the_sequence_of_a_chain_nests_tools_in_phases() -> None:
    ledger: Ledger = await known()
    async with chain_on(ledger) as chain:
        done = await chain.run(QUESTION)
    steps = [step async for step in every_step(ledger, done.thread_id)]
    phases = {step.seq: step for step in steps if step.kind == "called" and step.option == "PROCESS_PHASE"}
    assert len(phases) == 6
    assert all(step.pair is not None for step in steps if step.kind == "called")
    below = [step for step in steps if step.option == "knowledge_base" and step.lane == "talk"]
    assert below
    assert all(step.depth > 0 for step in below)


async def test_a_window_of_nothing_is_an_error() -> None:
    with pytest.raises(UnknownThreadError):
        await sequence(MemoryLedger(), "nobody")
    with pytest.raises(ValueError, match="a window begins"):
        await sequence(await nested(), "t", limit=0)


@pytest.mark.parametrize("view", ["--sequence", "--timeline"])
def test_the_command_prints_a_thread_and_no_file(view: str, tmp_path: Path) -> None:
    url = with_chat(tmp_path)
    shown = command("show", "chat", view, "--ledger", url)
    assert shown.exit_code == 0
    assert "get_weather" in shown.stdout
    as_json = command("show", "chat", view, "--json", "--ledger", url)
    assert as_json.stdout.startswith('{"seq":1,')
    assert command("show", "chat", view, "--by-step", "--ledger", url).exit_code == 2
    both = command("show", "chat", "--sequence", "--timeline", "--ledger", url)
    assert (both.exit_code, both.stderr) == (2, "--sequence and --timeline are two views; give one of them\n")
