"""Programs of an Atlas developer, ported: one import, tracking metadata, tool requests, and agents without a model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import run
from tests.patterns.workers.minds import Bench, calling, left_by_a_kill, saying
from tests.telemetry.watch import Watch

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.atlas import MessageType, StructuredMessage, ToolCall
from antiphon.errors import RefusedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import AgentToolkit, Assigner, ToolCapableAgent, Workers, conversation


def get_weather(location: str, unit: str = "celsius") -> dict[str, Any]:
    """Say what the weather is."""
    return {"temp": 22, "unit": unit, "location": location}


def never(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise AssertionError("a model was asked")


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing around the tests names a model."""
    monkeypatch.delenv("ANTIPHON_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def toolkit() -> AgentToolkit:
    made = AgentToolkit()
    made.register_tool(get_weather, effects="none")
    made.grant_permission("weather_agent", "get_weather")
    return made


def ways(messages: list[StructuredMessage]) -> list[str]:
    return [f"{each.source_agent} -> {each.target_agent}: {each.message_type}" for each in messages]


# ---------------------------------------------------------------- a whole program


def test_a_program_needs_one_import_and_no_model(toolkit: AgentToolkit) -> None:
    """AT-017, AT-018, AT-026, AT-039, AT-040: a query with a tool call, its answer, and both as JSON."""
    message = StructuredMessage("What's the weather in Oslo?", {"type": MessageType.QUERY, "priority": "high"}, "weather-1")
    message.source_agent = "user"
    message.target_agent = "weather_agent"
    call_id = message.add_tool_call("get_weather", {"location": "Oslo"})

    agent = ToolCapableAgent(worker_id="weather_agent", specialization="Weather", toolkit=toolkit)
    response = agent.process_structured_message(StructuredMessage.from_json(message.to_json()))

    assert (response.message_type, response.source_agent, response.target_agent) == ("response", "weather_agent", "user")
    assert response.metadata["in_reply_to"] == message.task_id
    assert [(each["call_id"], each["result"]["temp"]) for each in response.tool_results] == [(call_id, 22)]
    assert StructuredMessage.from_dict(response.to_dict()) == response


def test_an_agent_without_a_model_answers_and_says_that_no_model_was_asked() -> None:
    """AT-039, AT-058: also a message without tool calls is no error; a model that is named and cannot be had still is."""
    agent = ToolCapableAgent("weather_agent", "Weather", AgentToolkit())

    response = agent.process_structured_message(StructuredMessage.create_query("Well?", "user", "weather_agent"))

    assert response.message_type == MessageType.RESPONSE
    assert "no language model was asked" in response.content
    assert "no language model was asked" in agent.process_message("Well?")
    with pytest.raises(RefusedError, match="perhaps"):
        ToolCapableAgent("weather_agent", "Weather", model="opanai:gpt-4o").process_message("Well?")


# ---------------------------------------------------------------- tracking


# Mutant: drop `**original.tracking` in dialects/atlas/_message.py, `_answering` -> this test is red.
def test_an_answer_has_the_trace_of_what_it_answers() -> None:
    """AT-051: each factory that answers takes it over; what the caller gives goes first, and other metadata stay behind."""
    task = StructuredMessage.create_task("Count.", "controller", "counter", {"trace_id": "t-1", "reviews": ["good"]})
    answers = [
        StructuredMessage.create_response("2", task),
        StructuredMessage.create_result("2", task),
        StructuredMessage.create_error("no", task),
        StructuredMessage.create_status("half", task),
        StructuredMessage.create_tool_response("", task),
    ]

    assert {each.metadata["trace_id"] for each in answers} == {"t-1"}
    assert not [each for each in answers if "reviews" in each.metadata]
    own = StructuredMessage.create_response("2", task, metadata={"trace_id": "t-2"})
    assert own.metadata["trace_id"] == "t-2"
    assert own.tracking == {"trace_id": "t-2"}


def test_a_subclass_says_which_metadata_answers_take_over() -> None:
    """AT-051, AT-057."""

    class Ours(StructuredMessage):
        carried = StructuredMessage.carried | {"tenant"}

    asked = Ours("Well?", {"type": "query", "tenant": "acme", "request_id": "r", "mood": "good"})

    assert Ours.create_response("Yes.", asked).tracking == {"tenant": "acme", "request_id": "r"}


# Mutant: drop `_tag(message)` in workers/_workers.py, `WorkerActor._done` -> this test is red.
# Mutant: drop `**await self._inherited(task_id)` in workers/_assigner.py, `Assigner.assign` -> this test is red.
def test_a_trace_is_kept_through_the_run(toolkit: AgentToolkit) -> None:
    """AT-051, AT-061: it is set before sending, and is in the task, the answers, the rows of the thread and the spans."""
    watch = Watch()

    async def policy(query: StructuredMessage, assigner: Assigner) -> str:
        return (await assigner.assign("weather_agent", query.content, route=["editor"])).content

    async def main() -> None:
        ledger = MemoryLedger()
        agents = [
            ToolCapableAgent("weather_agent", "Weather", toolkit, model=calling(("get_weather", {"location": "Oslo"}))),
            ToolCapableAgent("editor", "Text", model=saying(lambda *_: "Sunny.")),
        ]
        query = StructuredMessage.create_query("Weather?", "user", "controller", task_id="t")
        query.update_metadata({"trace_id": "tr-1"})
        async with Workers(ledger, agents, controller=policy, observer=watch.telemetry) as team:
            answer = await team.send(query)
            said = await team.messages("t", tools=False)
        assert (answer.content, answer.metadata["trace_id"]) == ("Sunny.", "tr-1")
        assert [each.metadata.get("trace_id") for each in said] == ["tr-1"] * 5
        again = json.loads(json.dumps([each.to_dict() for each in said]))
        assert [StructuredMessage.from_dict(each) for each in again] == said

    run(main())
    marked = {span.name: (span.attributes or {}).get("antiphon.message.trace_id") for span in watch.spans}
    assert marked["controller WORKERS_MESSAGE"] == marked["worker WORKERS_TASK"] == "tr-1"


async def test_a_run_that_was_begun_without_the_trace_in_its_tasks_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """G9, AT-051: a task stays as it is written; the answer has the trace."""

    async def policy(query: StructuredMessage, assigner: Assigner) -> str:
        return (await assigner.assign("ada", "Begin.", route=["bob"])).content

    def team(ledger: Ledger, model: FunctionModel) -> Workers:
        return Workers(ledger, [AgentSpec(name="ada"), AgentSpec(name="bob")], controller=policy, model=model)

    ledger, bench = MemoryLedger(), Bench()
    query = StructuredMessage.create_query("Go.", "user", "controller", task_id="t", message_id="m")
    query.update_metadata({"trace_id": "tr-1"})
    with monkeypatch.context() as before:
        before.setattr(StructuredMessage, "carried", frozenset[str]())
        async with team(ledger, bench.model) as first:
            given = asyncio.create_task(first.send(query))
            await bench.came.wait()
            left = await left_by_a_kill(ledger)
            bench.go_on.set()
            assert "trace_id" not in (await given).metadata
    async with team(left, Bench(is_open=True).model) as second:
        answer = await second.send(query)
        said = await second.messages("t")
    assert (answer.content, answer.metadata["trace_id"]) == ("Done.", "tr-1")
    assert [each.metadata.get("trace_id") for each in said] == ["tr-1", None, None, None, "tr-1"]


# ---------------------------------------------------------------- tool requests


# Mutant: return False in workers/_agent.py, `is_tool_request` -> this test is red.
def test_a_tool_request_is_answered_by_a_tool_response(toolkit: AgentToolkit) -> None:
    """AT-015, AT-016, AT-045: the tools are run, failures are results, and no model is asked."""
    request = StructuredMessage.create_tool_request(
        "Looking it up",
        [ToolCall("get_weather", {"location": "Oslo"}, "c-1"), ToolCall("get_news", {}, "c-2")],
        source_agent="user",
        target_agent="weather_agent",
        task_id="t",
    )
    agent = ToolCapableAgent("weather_agent", "Weather", toolkit, model=saying(never))

    response = agent.process_structured_message(request)

    assert response.metadata["type"] == MessageType.TOOL_RESPONSE
    assert (response.source_agent, response.target_agent, response.task_id) == ("weather_agent", "user", "t")
    assert response.metadata["in_reply_to_message"] == request.message_id
    assert [(each["call_id"], each["status"]) for each in response.tool_results] == [("c-1", "success"), ("c-2", "error")]
    assert response.validation_errors(request) == []


def test_a_tool_request_without_calls_is_an_error() -> None:
    """AT-050."""
    agent = ToolCapableAgent("weather_agent", "Weather", model=saying(never))

    answer = agent.process_structured_message(StructuredMessage.create_tool_request("?", target_agent="weather_agent"))

    assert (answer.message_type, answer.metadata["code"]) == (MessageType.ERROR, "VALIDATION_ERROR")
    assert "needs at least one" in answer.content


def test_calls_without_words_and_type_are_a_tool_request_and_with_words_a_question(toolkit: AgentToolkit) -> None:
    """AT-041, AT-048: a message without a type is known by what is in it."""
    calls = [ToolCall("get_weather", {"location": "Oslo"})]
    agent = ToolCapableAgent("weather_agent", "Weather", toolkit, model=saying(lambda *_: "Sunny."))

    bare, worded = (agent.process_structured_message(StructuredMessage(text, tool_calls=calls)) for text in ("", "Sunny?"))

    assert (bare.message_type, worded.message_type) == ("tool_response", "response")
    assert worded.content == "Sunny."


async def test_a_tool_request_in_a_team_has_each_call_and_result_once(toolkit: AgentToolkit) -> None:
    """AT-045, AT-047, G10: in the thread it is a request and a response; sent again, the answer is the recorded one."""
    ledger = MemoryLedger()
    agent = ToolCapableAgent("weather_agent", "Weather", toolkit, model=saying(never))
    request = StructuredMessage.create_tool_request(
        "", [ToolCall("get_weather", {"location": "Oslo"}, "c-1")], source_agent="user", target_agent="weather_agent"
    )
    async with Workers(ledger, [agent]) as team:
        first, second = await team.send(request), await team.send(request)
        said = await team.messages(request.task_id)
    assert first == second
    assert ways(said) == ["user -> weather_agent: tool_request", "weather_agent -> user: tool_response"]
    assert said[1].tool_results == first.tool_results
    talk = await conversation(ledger, request.task_id, tools=True)
    assert [row.kind for row in talk if row.kind != "parts"] == ["option_call", "option_result"]
    assert not await ledger.open_calls(request.task_id)


# Mutant: say `message` in the place of `said` in workers/_workers.py, `WorkerActor.ask` -> this test is red.
async def test_sensitive_arguments_of_a_tool_request_are_not_written_down() -> None:
    """AT-053: the row of a tool request has its calls, without what the tool calls sensitive."""
    seen: list[str] = []

    def log_in(pin: str) -> str:
        """Log in."""
        seen.append(pin)
        return "in"

    ledger, kit = MemoryLedger(), Toolkit()
    kit.add(log_in, sensitive=("pin",), to=["ada"])
    request = StructuredMessage.create_tool_request("", [ToolCall("log_in", {"pin": "hunter-one"})], target_agent="ada")
    async with Workers(ledger, [ToolCapableAgent("ada", "Doors", kit)]) as team:
        assert (await team.send(request)).message_type == MessageType.TOOL_RESPONSE
    rows = [record.body async for record in ledger.read(request.task_id)]
    assert seen == ["hunter-one"]
    assert b"hunter" not in b"".join(rows)


# Mutant: drop `_address(message, thread_id)` in workers/_talk.py, `sent` -> this test is red.
@pytest.mark.slow
async def test_calls_and_results_of_tools_are_sent_as_tool_requests_and_tool_responses() -> None:
    """AT-045: calls of a message and calls of a model, in the task that they belong to; listeners hear them too."""

    async def policy(query: StructuredMessage, assigner: Assigner) -> str:
        return (await assigner.assign("ada", query.content)).content

    heard: list[StructuredMessage] = []
    ada = AgentSpec(name="ada", tools=("get_weather",))
    model = calling(("get_weather", {"location": "Oslo"}), then="{0[temp]} degrees")
    async with Workers(None, [ada], controller=policy, model=model, tools=[get_weather]) as team:
        team.on_message(lambda thread_id, message: heard.append(message))
        await team.run("Weather?", thread_id="t")
        said = await team.messages("t")
        query = StructuredMessage.create_query("Again?", "user", "ada", task_id="t2")
        query.add_tool_call("get_weather", {"location": "Rome"}, "u-1")
        await team.send(query)
        direct = await team.messages("t2")
    assert ways(said) == [
        "user -> controller: query",
        "controller -> ada: task",
        "ada -> tools: tool_request",
        "tools -> ada: tool_response",
        "ada -> controller: result",
        "controller -> user: response",
    ]
    assert ways(heard)[:6] == ways(said)
    assert {each.task_id for each in said[1:5]} == {"t:task-1"}
    assert said[2].tool_calls[0]["id"] == said[3].tool_results[0]["call_id"] == "c1"
    assert ways(direct) == [
        "user -> ada: query",
        *["ada -> tools: tool_request", "tools -> ada: tool_response"] * 2,
        "ada -> user: response",
    ]
    assert {each.task_id for each in direct} == {"t2"}
