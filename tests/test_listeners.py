"""What only observes does not harm the work: at every entrance a listener that raises is reported once, with its name."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from tests.ledger.histories import said
from tests.patterns.chains import QUESTION, chain_on, known
from tests.patterns.workers.minds import asking, calling
from tests.runtime.actors import Note, Probe

from antiphon._listeners import listener
from antiphon.dialects.atlas import StructuredMessage
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec, Cast
from antiphon.patterns.workers import Assigner, ToolCapableAgent, Workers, report
from antiphon.protocol.flows import Flow, Step
from antiphon.runtime import System
from antiphon.service import (
    ChainRunner,
    ExportForm,
    TeamListeners,
    add_documents,
    add_files,
    export_lines,
    find_thread,
    run_team,
)

Hear = Callable[..., Any]


async def _records(hear: Hear) -> bool:
    async with System() as system:
        system.watch(hear)
        system.on_evicted(hear)
        system.spawn("probe/1", Probe)
        await system.tell("probe/1", Note(text="a"), thread_id="t")
        system._kernel.eviction.drop_caches("t")
        return (await system.ledger.head("t")).seq > 0


async def _flow(hear: Hear) -> bool:
    async with System() as system:
        system.watch_flow(Flow("one note", "Only one.", Step("writer", "probe", "TEST_NOTE")), hear, probe="probe")
        system.spawn("probe/1", Probe)
        for text in ("a", "b", "c"):
            await system.tell("probe/1", Note(text=text), thread_id="t", sender="somebody")
        return (await system.ledger.head("t")).seq > 0


async def _chain(hear: Hear) -> bool:
    async with chain_on(await known()) as chain:
        chain.on_message(hear)
        thread_id = await chain.create(QUESTION)
        with chain.listening(thread_id, hear):
            await chain.start(thread_id)
            return (await chain.wait(thread_id)).status == "completed"


async def _runner(hear: Hear) -> bool:
    async with chain_on(await known()) as chain:
        return (await ChainRunner(chain).ask(QUESTION, on_created=hear, on_started=hear, on_event=hear)).status == "completed"


async def _workers(hear: Hear) -> bool:
    workers = Workers(None, [AgentSpec(name="ada")], controller=_policy, model=calling())
    workers.on_message(hear)
    async with workers:
        return (await workers.run("Go.", thread_id="t")).status == "completed"


async def _policy(query: StructuredMessage, assigner: Assigner) -> str:
    return query.content


async def _agent(hear: Hear) -> bool:
    agent = ToolCapableAgent("worker", "Work", on_report=hear)
    agent.register_tool(step)
    answer = await asyncio.to_thread(agent.process_structured_message, asking(step={}))
    return answer.tool_results[0]["result"] == "done"


def step() -> str:
    """Take a step."""
    report("half")
    return "done"


async def _words(hear: Hear) -> bool:
    ledger = MemoryLedger()
    team = Cast(ledger, [AgentSpec(agent=Agent(TestModel(custom_output_text="Good morning!"), name="ada"))])
    async with ledger_run("t", ledger=ledger):
        return (await team.ask("ada", "Hello.", on_text=hear)).output == "Good morning!"


async def _team(hear: Hear) -> bool:
    team = Path(__file__).parents[1] / "examples" / "analyse_csv" / "team.toml"
    listeners = TeamListeners(on_created=hear, on_step=hear)
    return (await run_team(MemoryLedger(), team, "How are the sales?", listeners=listeners)).status == "completed"


async def _progress(hear: Hear) -> bool:
    source = MemoryLedger()
    await source.append("t", [said()])
    await add_documents(source, {"a.md": "Hello."}, hear)
    await add_files(source, [Path(__file__)], hear)
    lines = [line async for line in export_lines(source, await find_thread(source, "t"), ExportForm("openai-chat"), hear)]
    return bool(lines) and not (await source.verify(progress=hear)).damages


ENTRANCES: dict[str, Callable[[Hear], Awaitable[bool]]] = {
    "records": _records,
    "flow": _flow,
    "chain": _chain,
    "runner": _runner,
    "workers": _workers,
    "agent": _agent,
    "words": _words,
    "team": _team,
    "progress": _progress,
}


@pytest.mark.slow
@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_a_listener_that_raises_is_reported_and_harms_nobody(entrance: str, caplog: pytest.LogCaptureFixture) -> None:
    """An entrance may pass it to several places, each of which reports it once."""
    calls = []

    def raising(*what: Any) -> None:
        calls.append(what)
        raise RuntimeError("the walrus was Paul")

    with caplog.at_level(logging.ERROR, "antiphon.listeners"):
        assert await ENTRANCES[entrance](raising)

    reports = [each.getMessage() for each in caplog.records if each.name == "antiphon.listeners"]
    assert calls
    assert 1 <= len(reports) <= 5, reports
    assert all(f"{raising.__qualname__} raised RuntimeError at test_listeners.py:" in each for each in reports)
    assert "walrus" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("entrance", ENTRANCES)
async def test_a_coroutine_function_is_refused_where_it_is_passed(entrance: str) -> None:
    async def hear(*what: Any) -> None:
        raise AssertionError("it is never called")

    with pytest.raises(TypeError, match=r"hear is a coroutine function: a listener is called, and not awaited"):
        await ENTRANCES[entrance](hear)


@pytest.mark.slow
@pytest.mark.parametrize("entrance", ["records", "flow", "chain", "workers"])
@pytest.mark.parametrize("wrong", [None, 5])
async def test_what_cannot_be_called_is_refused_where_it_is_passed(entrance: str, wrong: Any) -> None:
    """Otherwise the work stops at the first message, where nobody sees who passed it."""
    with pytest.raises(TypeError, match=f"a listener is a function, not {wrong}"):
        await ENTRANCES[entrance](wrong)


def test_what_a_listener_raises_is_logged_once_and_it_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def hear(number: int) -> None:
        calls.append(number)
        raise OSError

    guarded = listener(hear)
    with caplog.at_level(logging.ERROR, "antiphon.listeners"):
        for number in range(3):
            guarded(number)

    assert calls == [0, 1, 2]
    assert listener(guarded) is guarded
    (record,) = caplog.records
    assert f"the listener {hear.__qualname__} raised OSError at test_listeners.py:" in record.getMessage()


def test_a_listener_that_returns_a_coroutine_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def hear() -> None:
        raise AssertionError("it is never called")

    with caplog.at_level(logging.ERROR, "antiphon.listeners"):
        listener(lambda: hear())()  # noqa: PLW0108 (so that it does not look like a coroutine function)

    assert "raised TypeError: it returned coroutine, which nobody runs" in caplog.text


def test_a_listener_that_returns_a_generator_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def hear() -> Iterator[None]:
        yield

    async def hear_later() -> AsyncIterator[None]:
        yield

    with caplog.at_level(logging.ERROR, "antiphon.listeners"):
        listener(lambda: hear())()  # noqa: PLW0108 (so that it does not look like a generator function)
        listener(lambda: hear_later())()  # noqa: PLW0108

    assert "it returned generator, which nobody runs" in caplog.text
    assert "it returned async_generator, which nobody runs" in caplog.text


def test_a_generator_function_is_refused_because_a_call_of_it_runs_nothing() -> None:
    def hear() -> Iterator[None]:
        yield

    async def hear_later() -> AsyncIterator[None]:
        yield

    for wrong in (hear, hear_later):
        with pytest.raises(TypeError, match="is a generator function, and a call of it runs nothing"):
            listener(wrong)


async def test_a_listener_may_start_a_task(caplog: pytest.LogCaptureFixture) -> None:
    """A task runs by itself: nothing is wrong with it."""
    tasks: list[asyncio.Task[int]] = []

    async def work() -> int:
        return 1

    def hear() -> asyncio.Task[int]:
        tasks.append(asyncio.create_task(work()))
        return tasks[0]

    listener(hear)()

    assert (await tasks[0], caplog.text) == (1, "")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_an_interruption_in_a_listener_is_not_swallowed(error: type[BaseException]) -> None:
    def interrupted(*what: Any) -> None:
        raise error

    ledger = cast("Ledger", MemoryLedger())
    await ledger.append("t", [said()])
    with pytest.raises(error):
        await ledger.verify(progress=interrupted)
