"""The toolkit under the names of Atlas: the same permissions and checks, without an event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from typing_extensions import override

from antiphon.agents.toolkit.atlas import AgentToolkit, FunctionTool, Tool, ToolCapableAgent, ToolSchema
from antiphon.dialects.atlas import MessageType, StructuredMessage


def get_weather(location: str, unit: str = "celsius") -> dict[str, Any]:
    """Say what the weather is."""
    return {"temp": 22, "unit": unit, "location": location}


class Divide(Tool):
    """A tool as a class."""

    @property
    @override
    def schema(self) -> ToolSchema:
        number = {"type": "number"}
        parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        return ToolSchema("divide", "Divide two numbers.", parameters, number)

    @override
    def execute(self, **arguments: Any) -> Any:
        return arguments["a"] / arguments["b"]


@pytest.fixture
def toolkit() -> AgentToolkit:
    made = AgentToolkit()
    made.register_tool(get_weather, effects="none")
    made.register_tool(Divide())
    return made


# ---------------------------------------------------------------- the toolkit


def test_tools_are_registered_once_and_found_by_name(toolkit: AgentToolkit) -> None:
    """AT-035."""
    assert isinstance(toolkit.get_tool("get_weather"), FunctionTool)
    assert isinstance(toolkit.get_tool("divide"), Divide)
    assert toolkit.get_tool("nothing") is None
    with pytest.raises(ValueError, match="there is a tool 'divide' already"):
        toolkit.register_tool(Divide())


def test_nobody_may_use_a_tool_before_it_is_granted(toolkit: AgentToolkit) -> None:
    """AT-036: default deny, grant, grant all, revoke; also one tool of an agent that may use all."""
    assert not toolkit.has_permission("a", "divide")

    toolkit.grant_permission("a", "divide")
    assert toolkit.get_accessible_tools("a") == ["divide"]

    toolkit.grant_all_permissions("b")
    assert toolkit.get_accessible_tools("b") == ["get_weather", "divide"]
    toolkit.revoke_permission("b", "divide")
    assert toolkit.get_accessible_tools("b") == ["get_weather"]

    toolkit.grant_permission("c", "*")
    assert toolkit.has_permission("c", "divide")
    assert not toolkit.has_permission("c", "nothing")
    with pytest.raises(ValueError, match="there is no tool 'nothing'; register it first"):
        toolkit.grant_permission("a", "nothing")


def test_an_agent_is_told_about_the_tools_that_it_may_use(toolkit: AgentToolkit) -> None:
    """AT-037."""
    toolkit.grant_permission("a", "get_weather")

    (known,) = toolkit.get_tool_descriptions("a")

    assert (known.name, known.description) == ("get_weather", "Say what the weather is.")
    assert known.parameters["required"] == ["location"]
    assert known.returns["type"] == "object"


def test_a_call_is_checked_before_the_tool_is_started(toolkit: AgentToolkit) -> None:
    """AT-038, AT-049."""
    toolkit.grant_permission("a", "divide")

    assert toolkit.execute_tool("a", "divide", {"a": 6, "b": 3}) == 2
    with pytest.raises(ValueError, match="there is no tool 'nothing'"):
        toolkit.execute_tool("a", "nothing", {})
    with pytest.raises(PermissionError, match="get_weather: nobody has granted 'get_weather' to 'a'"):
        toolkit.execute_tool("a", "get_weather", {"location": "Oslo"})
    with pytest.raises(ValueError, match='divide: the arguments are wrong: "b" is a required property'):
        toolkit.execute_tool("a", "divide", {"a": 6})
    with pytest.raises(RuntimeError, match="divide: it failed with ZeroDivisionError: division by zero"):
        toolkit.execute_tool("a", "divide", {"a": 6, "b": 0})
    assert Divide().validate_args({"a": "6"}) == ['"b" is a required property', 'a: the value is not of type "number"']


def test_many_threads_may_use_it_at_the_same_time(toolkit: AgentToolkit) -> None:
    """AT-059."""
    toolkit.grant_all_permissions("a")

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: toolkit.execute_tool("a", "divide", {"a": n, "b": 1}), range(100)))

    assert done == list(range(100))


def test_it_does_not_block_an_event_loop(toolkit: AgentToolkit) -> None:
    async def inside() -> None:
        toolkit.execute_tool("a", "divide", {"a": 1, "b": 1})

    with pytest.raises(RuntimeError, match="await toolkit.call"):
        asyncio.run(inside())


# ---------------------------------------------------------------- the agent


def asking(**calls: dict[str, Any]) -> StructuredMessage:
    message = StructuredMessage.create_task("go", "controller", "worker", task_id="task-1")
    for name, arguments in calls.items():
        message.add_tool_call(name, arguments, f"call-{name}")
    return message


def test_calls_in_a_message_are_run_and_their_results_are_in_the_answer(toolkit: AgentToolkit) -> None:
    """AT-039, AT-040, AT-041, AT-042, AT-050: a failure and a refusal are results with an error."""
    agent = ToolCapableAgent(worker_id="worker", specialization="Arithmetic", toolkit=toolkit)
    toolkit.grant_permission("worker", "divide")
    message = asking(divide={"a": 6, "b": 0}, get_weather={"location": "Oslo"}, nothing={})

    answer = agent.process_structured_message(message)

    assert (answer.task_id, answer.source_agent, answer.target_agent) == ("task-1", "worker", "controller")
    assert answer.metadata["type"] == MessageType.RESPONSE
    assert answer.unmatched_results() == []
    assert [(each["name"], each["call_id"], each["status"], each["error"]) for each in answer.tool_results] == [
        ("divide", "call-divide", "error", "TOOL_FAILED: it failed with ZeroDivisionError: division by zero"),
        ("get_weather", "call-get_weather", "error", "PERMISSION_DENIED: nobody has granted 'get_weather' to 'worker'"),
        ("nothing", "call-nothing", "error", "UNKNOWN_TOOL: there is no tool 'nothing'"),
    ]
    assert "divide: TOOL_FAILED" in answer.content


def test_results_are_worked_into_the_answer(toolkit: AgentToolkit) -> None:
    """AT-040, AT-045, AT-052: calls of the answer are run, and the mind answers again with what came of them."""
    prompts: list[str] = []

    def respond(message: StructuredMessage, prompt: str) -> StructuredMessage:
        prompts.append(prompt)
        if message.has_tool_results:
            (result,) = message.tool_results
            return StructuredMessage(f"It is {result['result']['temp']} degrees.")
        answer = StructuredMessage("I look.")
        answer.add_tool_call("get_weather", {"location": "Oslo"}, "call-1")
        return answer

    agent = ToolCapableAgent("worker", "Weather", toolkit, respond)
    toolkit.grant_permission("worker", "get_weather")

    answer = agent.process_structured_message(asking())

    assert answer.content == "It is 22 degrees."
    assert [call["id"] for call in answer.tool_calls] == ["call-1"]
    assert answer.tool_results[0]["result"] == {"temp": 22, "unit": "celsius", "location": "Oslo"}
    assert prompts[0] == (
        "You are worker. Your specialization: Weather.\n\n## Available Tools\n- get_weather: Say what the weather is."
    )


def test_a_mind_that_asks_for_ever_is_stopped(toolkit: AgentToolkit) -> None:
    """S15."""
    rounds = 0

    def respond(message: StructuredMessage, prompt: str) -> StructuredMessage:
        nonlocal rounds
        rounds += 1
        answer = StructuredMessage("again")
        answer.add_tool_call("divide", {"a": rounds, "b": 1}, f"call-{rounds}")
        return answer

    answer = ToolCapableAgent("worker", "Arithmetic", toolkit, respond).process_structured_message(asking())

    assert rounds == len(answer.tool_results) == 8


def test_what_an_agent_registers_it_may_use() -> None:
    """AT-036: what is given to an agent directly is granted to it; the prompt lists it once."""
    agent = ToolCapableAgent("worker", "Weather")

    assert agent.register_tool(get_weather) == "get_weather"
    assert agent.process_structured_message(asking(get_weather={"location": "Oslo"})).tool_results[0]["status"] == "success"
    assert agent.system_prompt.count("get_weather") == 1
    assert "Available Tools" not in ToolCapableAgent("other", "Nothing").system_prompt
