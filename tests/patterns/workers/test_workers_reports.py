"""STATUS: how far work has come, told while it is at work: by tools, by policies, and by itself when it takes long."""

import asyncio
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import run
from tests.patterns.workers.minds import asking, calling, saying
from tests.runtime.actors import virtually

from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import Assigner, Reporting, ToolCapableAgent, Workers, report


def step(name: str) -> str:
    """Do a step."""
    report(f"{name} is half done")
    report(f"{name} is done")
    return name


async def stride(name: str) -> str:
    """Do a step, on the event loop."""
    report(f"{name} is striding")
    return name


ADA = AgentSpec(name="ada", tools=("step", "stride"))
BOTH: Any = (("step", {"name": "one"}), ("stride", {"name": "two"}))


async def _policy(query: StructuredMessage, assigner: Assigner) -> str:
    report("I begin.")
    return (await assigner.assign("ada", query.content)).content


def _statuses(messages: list[StructuredMessage]) -> list[tuple[str | None, str | None, str, str]]:
    found = [each for each in messages if each.message_type == MessageType.STATUS]
    return [(each.source_agent, each.target_agent, each.task_id, each.content) for each in found]


def test_reports_of_tools_and_policies_are_sent_live_and_are_in_the_thread() -> None:
    """AT-063, AT-014: the caller gets those of its task, from threads and from the event loop, before the result."""
    heard: list[tuple[str, StructuredMessage]] = []

    async def main() -> list[StructuredMessage]:
        workers = Workers(None, [ADA], controller=_policy, model=calling(*BOTH), tools=[step, stride])
        workers.on_message(lambda thread_id, message: heard.append((thread_id, message)))
        async with workers:
            await workers.run("Go.", thread_id="t")
            return await workers.messages("t")

    said = run(main())
    assert _statuses(said)[0] == ("controller", "user", "t", "I begin.")
    assert sorted(_statuses(said)[1:]) == [
        ("ada", "controller", "t:task-1", "one is done"),
        ("ada", "controller", "t:task-1", "one is half done"),
        ("ada", "controller", "t:task-1", "two is striding"),
    ]
    assert [each.message_type for each in said[-2:]] == [MessageType.RESULT, MessageType.RESPONSE]
    tools = ("tool_request", "tool_response")
    assert [(thread_id, each.message_type, each.content) for thread_id, each in heard if each.message_type not in tools] == [
        ("t", each.message_type, each.content) for each in said if each.message_type not in tools
    ]
    for name in tools:
        calls = [
            [call for each in found if each.message_type == name for call in each.tool_calls + each.tool_results]
            for found in (said, [each for _, each in heard])
        ]
        assert calls[0] == calls[1] != []


def test_work_that_takes_long_says_that_it_goes_on_ever_more_seldom() -> None:
    """AT-063: after 10 seconds, then after 20 more, and 40; a worker, and the controller that waits for it."""

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(100)
        return ModelResponse([TextPart("At last.")])

    async def main() -> list[StructuredMessage]:
        async def policy(query: StructuredMessage, assigner: Assigner) -> str:
            return (await assigner.assign("ada", query.content)).content

        async with Workers(None, [AgentSpec(name="ada")], controller=policy, model=FunctionModel(slow)) as workers:
            await workers.run("Go.", thread_id="t")
            return await workers.messages("t")

    found = _statuses(virtually(main()))
    for name in ("ada", "controller"):
        texts = [text for source, _, _, text in found if source == name]
        assert texts == [f"at work for {seconds} seconds" for seconds in (10, 30, 70)]


def test_there_are_never_more_reports_than_was_said() -> None:
    """AT-063: bounded."""
    heard: list[str] = []

    def busy() -> str:
        """Be busy."""
        for number in range(1000):
            report(str(number))
        return "done"

    agent = ToolCapableAgent(
        "worker", "Work", reporting=Reporting(most=3), on_report=lambda status: heard.append(status.content)
    )
    agent.register_tool(busy)

    answer = agent.process_structured_message(asking(busy={}))

    assert answer.tool_results[0]["result"] == "done"
    assert heard == ["0", "1", "2"]


def test_a_report_outside_of_work_is_nothing() -> None:
    report("nobody hears it")
    assert step("one") == "one"


@pytest.mark.slow
async def test_work_that_fails_leaves_nothing_behind() -> None:
    """Whatever is raised goes on, and the reports end."""

    class BrokenError(Exception):
        pass

    def broken(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise BrokenError

    agent = ToolCapableAgent("worker", "Work", model=saying(broken), reporting=Reporting(after=0.001))
    try:
        await agent.aprocess_structured_message(asking())
    except BrokenError:
        return
    raise AssertionError("it was not raised")
