"""ToolCapableAgent: tools that a message asks for, tools that a model asks for, and what is said about them."""

import asyncio
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo
from tests.patterns.workers.minds import Told, asking, calling, got, saying

from antiphon.agents.toolkit import Toolkit
from antiphon.agents.toolkit._atlas import AgentToolkit
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.durable import ledger_run
from antiphon.errors import RefusedError
from antiphon.ledger import heads_of, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload
from antiphon.patterns.cast import Patience
from antiphon.patterns.workers import ToolCapableAgent


def get_weather(location: str, unit: str = "celsius") -> dict[str, Any]:
    """Say what the weather is."""
    return {"temp": 22, "unit": unit, "location": location}


def divide(a: float, b: float) -> float:
    """Divide two numbers."""
    return a / b


@pytest.fixture
def toolkit() -> AgentToolkit:
    made = AgentToolkit()
    made.register_tool(get_weather, effects="none")
    made.register_tool(divide)
    return made


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing around the tests names a model."""
    monkeypatch.delenv("ANTIPHON_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------- calls that come with a message


def test_calls_in_a_message_are_run_and_their_results_are_in_the_answer(toolkit: AgentToolkit) -> None:
    """AT-039, AT-040, AT-041, AT-042, AT-050: a failure and a refusal are results with an error, and their ids."""
    agent = ToolCapableAgent(worker_id="worker", specialization="Arithmetic", toolkit=toolkit)
    toolkit.grant_permission("worker", "divide")
    message = asking(divide={"a": 6, "b": 0}, get_weather={"location": "Oslo"}, nothing={})

    answer = agent.process_structured_message(message)

    assert (answer.task_id, answer.source_agent, answer.target_agent) == ("task-1", "worker", "controller")
    assert answer.metadata["type"] == MessageType.RESULT
    assert answer.unmatched_results() == []
    assert [(each["name"], each["call_id"], each["status"], each["error"]) for each in answer.tool_results] == [
        ("divide", "call-divide", "error", "ZeroDivisionError: it failed with ZeroDivisionError: float division by zero"),
        ("get_weather", "call-get_weather", "error", "PERMISSION_DENIED: nobody has granted 'get_weather' to 'worker'"),
        ("nothing", "call-nothing", "error", "UNKNOWN_TOOL: there is no tool 'nothing'"),
    ]
    assert "- divide: ZeroDivisionError" in answer.content


def test_the_model_gets_the_results_and_the_metadata_of_the_message(toolkit: AgentToolkit) -> None:
    """AT-041, AT-051, AT-052: incoming calls are run first; metadata such as a priority is told, the envelope is not."""
    told = Told()
    toolkit.grant_permission("worker", "divide")
    agent = ToolCapableAgent("worker", "Arithmetic", toolkit, model=saying(lambda *_: "It is two.", told))
    message = asking("What is it?", divide={"a": 6, "b": 3})
    message.update_metadata({"priority": "high", "deadline": "2h"})

    answer = agent.process_structured_message(message)

    assert answer.content == "It is two."
    assert told.prompts == [
        "What is it?\n\nGiven with it:\n- priority: high\n- deadline: 2h\n\nWhat the tools gave:\n- divide: 2.0"
    ]


def test_two_calls_with_one_id_are_an_error_and_nothing_is_started(toolkit: AgentToolkit) -> None:
    toolkit.grant_all_permissions("worker")
    message = asking()
    message.tool_calls = [{"id": "c", "name": "divide", "arguments": {"a": 1, "b": n}} for n in (1, 2)]

    answer = ToolCapableAgent("worker", "Arithmetic", toolkit).process_structured_message(message)

    assert answer.message_type == MessageType.ERROR
    assert "two tool calls have the id 'c'" in answer.content
    assert answer.tool_results == []


# ---------------------------------------------------------------- calls of the model


def test_results_are_worked_into_the_answer(toolkit: AgentToolkit) -> None:
    """AT-040, AT-045, AT-052: the model's calls are run, and it answers again with their results."""
    toolkit.grant_permission("worker", "get_weather")
    model = calling(("get_weather", {"location": "Oslo"}), ("get_weather", {"place": "Rome"}), then="It is {0[temp]} degrees.")

    answer = ToolCapableAgent("worker", "Weather", toolkit, model=model).process_structured_message(asking())

    assert answer.content == "It is 22 degrees."
    assert [(call["id"], call["arguments"]) for call in answer.tool_calls] == [
        ("c1", {"location": "Oslo"}),
        ("c2", {"place": "Rome"}),
    ]
    first, second = answer.tool_results
    assert first == {
        "name": "get_weather",
        "call_id": "c1",
        "status": "success",
        "result": {"temp": 22, "unit": "celsius", "location": "Oslo"},
    }
    assert (second["call_id"], second["status"]) == ("c2", "error")
    assert "INVALID_ARGUMENTS" in second["error"]


def test_calls_of_both_are_on_the_answer_also_under_the_same_id(toolkit: AgentToolkit) -> None:
    """AT-040, AT-041: the model does not know which ids the message has used."""
    toolkit.grant_all_permissions("worker")
    message = StructuredMessage.create_query("?", "user", "worker")
    message.add_tool_call("divide", {"a": 1, "b": 1}, "c1")
    model = calling(("divide", {"a": 4, "b": 2}))

    answer = ToolCapableAgent("worker", "Arithmetic", toolkit, model=model).process_structured_message(message)

    assert [(each["call_id"], each["result"]) for each in answer.tool_results] == [("c1", 1.0), ("c1@2", 2.0)]
    assert answer.validation_errors() == []
    assert answer.message_type == MessageType.RESPONSE


def test_a_model_that_asks_for_ever_is_stopped_and_what_it_called_is_on_the_error(toolkit: AgentToolkit) -> None:
    """S15: bounded rounds."""
    toolkit.grant_all_permissions("worker")

    def again(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = len(got(messages)) + 1
        return ModelResponse([ToolCallPart("divide", {"a": number, "b": 1}, tool_call_id=f"c{number}")])

    answer = ToolCapableAgent("worker", "Arithmetic", toolkit, model=saying(again), rounds=3).process_structured_message(
        asking()
    )

    assert answer.message_type == MessageType.ERROR
    assert answer.metadata["code"] == "AGENT_ERROR"
    assert "request_limit of 3" in answer.content
    assert [each["result"] for each in answer.tool_results] == [1.0, 2.0, 3.0]


def test_a_model_that_does_not_answer_is_an_error_message(toolkit: AgentToolkit) -> None:
    """AT-050: with a description, a code and the task that it is about; the results of the message's own calls are kept."""

    def busy(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(503, "tests", {"error": "overloaded"})

    toolkit.grant_permission("worker", "divide")
    patience = Patience(attempts=2, backoff=0)
    agent = ToolCapableAgent("worker", "Arithmetic", toolkit, model=saying(busy), patience=patience)

    answer = agent.process_structured_message(asking(divide={"a": 6, "b": 3}))

    assert answer.message_type == MessageType.ERROR
    assert answer.metadata["in_reply_to"] == answer.task_id == "task-1"
    assert answer.metadata["code"] == "AGENT_ERROR"
    assert "overloaded" in answer.content
    assert answer.tool_results[0]["result"] == 2.0


def test_a_model_that_cannot_be_had_is_an_error_message_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """AT-050: also where the message asks for tools; only where no model is named, none is needed."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    asked = {"opanai:gpt-4o": "openai:gpt-4o", "openai:gpt-4o": "set OPENAI_API_KEY"}
    for model, says in asked.items():
        answer = ToolCapableAgent("worker", "Nothing", model=model).process_structured_message(asking(nothing={}))
        assert answer.message_type == MessageType.ERROR
        assert says in answer.content


# ---------------------------------------------------------------- what it is told about itself


def test_the_prompt_lists_the_tools_that_are_granted_now_each_once(toolkit: AgentToolkit) -> None:
    """AT-036, AT-039: also those that were granted, or revoked, after the agent was made."""
    told = Told()
    agent = ToolCapableAgent("worker", "Weather", toolkit, model=saying(lambda *_: "Yes.", told))
    assert agent.system_prompt == "You are worker. Your specialization: Weather."

    toolkit.grant_permission("worker", "get_weather")
    agent.process_message("Well?")
    toolkit.revoke_permission("worker", "get_weather")
    agent.process_message("Well?")

    block = "\n\n## Available Tools\n- get_weather: Say what the weather is."
    assert told.instructions == [f"You are worker. Your specialization: Weather.{more}" for more in (block, "")]
    assert told.tools == [["get_weather"], []]


def test_an_agent_may_use_the_tools_that_it_registers() -> None:
    """AT-036: what is given to an agent directly is granted to it; the prompt lists it once."""
    agent = ToolCapableAgent("worker", "Weather")

    assert agent.register_tool(get_weather) == "get_weather"
    answer = agent.process_structured_message(asking(get_weather={"location": "Oslo"}))
    assert answer.tool_results[0]["status"] == "success"
    assert agent.system_prompt.count("get_weather") == 1


def test_a_name_that_is_none_is_refused_where_it_is_given() -> None:
    with pytest.raises(ValueError, match="name"):
        ToolCapableAgent("two words", "Talk")


def test_a_toolkit_of_antiphon_is_as_good() -> None:
    kit = Toolkit()
    kit.add(get_weather, to=["worker"], effects="none")

    agent = ToolCapableAgent("worker", "Weather", kit)

    assert agent.system_prompt.endswith("- get_weather: Say what the weather is.")
    assert agent.process_structured_message(asking(get_weather={"location": "Oslo"})).tool_results[0]["result"]["temp"] == 22


# ---------------------------------------------------------------- as before there were structured messages


def test_a_text_is_answered_by_a_text() -> None:
    """AT-058."""
    agent = ToolCapableAgent("worker", "Talk", model=saying(lambda messages, _: "Hello."))

    assert agent.process_message("Hello?") == "Hello."
    with pytest.raises(RefusedError, match="perhaps"):
        ToolCapableAgent("worker", "Talk", model="opanai:gpt-4o").process_message("Hello?")


def test_a_task_is_a_dict_and_so_is_what_comes_of_it(toolkit: AgentToolkit) -> None:
    """AT-058."""
    told = Told()
    toolkit.grant_permission("worker", "divide")
    agent = ToolCapableAgent("worker", "Arithmetic", toolkit, model=saying(lambda *_: "Two.", told))
    calls = [{"name": "divide", "arguments": {"a": 6, "b": 3}, "id": "c1"}]

    assert agent.process_task({"task_id": "t1", "query": "6 / 3?", "tool_calls": calls, "priority": 1}) == {
        "worker_id": "worker",
        "task_id": "t1",
        "status": "completed",
        "result": "Two.",
        "tool_results": [{"name": "divide", "result": 2.0, "call_id": "c1", "status": "success"}],
    }
    assert "- priority: 1" in told.prompts[0]
    assert agent.process_task({"task_id": "t2"}) == {
        "worker_id": "worker",
        "task_id": "t2",
        "status": "error",
        "error": "a task needs a `query`, which is text",
    }
    failed = ToolCapableAgent("worker", "Nothing", model="opanai:gpt-4o").process_task({"query": "?"})
    assert (failed["status"], failed["result"]) == ("error", None)
    assert "perhaps" in failed["error"]


# ---------------------------------------------------------------- wherever it is called


def test_it_waits_also_inside_of_a_running_loop_and_leaves_no_loop_open(toolkit: AgentToolkit) -> None:
    """AT-039: the seed calls it as plain code, wherever that stands."""
    toolkit.grant_permission("worker", "divide")
    agent = ToolCapableAgent("worker", "Arithmetic", toolkit)

    async def inside() -> StructuredMessage:
        return agent.process_structured_message(asking(divide={"a": 6, "b": 3}))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(inside()).tool_results[0]["result"] == 2.0
        assert agent.process_structured_message(asking(divide={"a": 6, "b": 3})).tool_results[0]["result"] == 2.0
        assert asyncio.run(agent.aprocess_structured_message(asking(divide={"a": 6, "b": 2}))).tool_results[0]["result"] == 3.0
    assert not [each for each in threading.enumerate() if each.name.startswith("antiphon-worker")]


@pytest.mark.slow
def test_many_threads_may_use_one_agent(toolkit: AgentToolkit) -> None:
    """AT-059."""
    toolkit.grant_permission("worker", "divide")
    agent = ToolCapableAgent("worker", "Arithmetic", toolkit, model=saying(lambda messages, _: "Yes."))

    with ThreadPoolExecutor(8) as pool:
        messages = [asking(divide={"a": number, "b": 1}) for number in range(40)]
        answers = list(pool.map(agent.process_structured_message, messages))

    assert [answer.tool_results[0]["result"] for answer in answers] == list(range(40))


# ---------------------------------------------------------------- on a ledger


@pytest.mark.slow
def test_the_same_message_on_the_same_ledger_is_answered_from_there(toolkit: AgentToolkit, tmp_path: Path) -> None:
    """AT-047, G10: the thread is called like the task, and nothing is done twice, in this process or the next."""
    done: list[str] = []

    def pay(amount: int) -> str:
        done.append(f"paid {amount}")
        return "paid"

    toolkit.register_tool(pay)
    toolkit.grant_all_permissions("worker")
    told, url = Told(), f"sqlite:///{tmp_path}/ledger.db"
    message = asking("Pay.", pay={"amount": 3})
    model = calling(("pay", {"amount": 4}), then="Paid.", told=told)
    agents = [ToolCapableAgent("worker", "Money", toolkit, model=model, ledger=url) for _ in range(2)]

    first, second = (agent.process_structured_message(message) for agent in agents)

    assert done == ["paid 3", "paid 4"]
    assert len(told.prompts) == 2
    assert (first.content, first.tool_results) == (second.content, second.tool_results)

    async def calls() -> list[str]:
        async with open_ledger(url) as ledger:
            payloads = [record.message.payload async for record in ledger.read("task-1") if record.message.lane == "talk"]
        return [each.invocation_id for each in payloads if isinstance(each, OptionCallPayload)]

    assert asyncio.run(calls()) == ["call-pay", "c1"]


def test_inside_of_a_run_it_is_part_of_that() -> None:
    async def main() -> list[str]:
        ledger = MemoryLedger()
        agent = ToolCapableAgent("worker", "Talk", model=saying(lambda *_: "Hello."), ledger="sqlite:///never-opened.db")
        async with ledger_run("thread", ledger=ledger):
            await agent.aprocess_message("Hello?")
        return [head.thread_id for head in await heads_of(ledger)]

    assert asyncio.run(main()) == ["thread"]
    assert not Path("never-opened.db").exists()
