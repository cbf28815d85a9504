"""The toolkit under the names of Atlas: the same permissions and checks, without an event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from typing_extensions import override

from antiphon.agents.toolkit._atlas import AgentToolkit, FunctionTool, Tool, ToolSchema


def get_weather(location: str, unit: str = "celsius") -> dict[str, Any]:
    """Say what the weather is."""
    return {"temp": 22, "unit": unit, "location": location}


class Divide(Tool):
    """A tool as a class, which says how often it was started."""

    def __init__(self) -> None:
        self.started = 0

    @property
    @override
    def schema(self) -> ToolSchema:
        number = {"type": "number"}
        parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        return ToolSchema("divide", "Divide two numbers.", parameters, number)

    @override
    def execute(self, **arguments: Any) -> Any:
        self.started += 1
        return arguments["a"] / arguments["b"]


@pytest.fixture
def toolkit() -> AgentToolkit:
    made = AgentToolkit()
    made.register_tool(get_weather, effects="none")
    made.register_tool(Divide())
    return made


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
    assert toolkit.execute_tool("b", "divide", {"a": 6, "b": 3}) == 2
    toolkit.revoke_permission("b", "divide")
    assert toolkit.get_accessible_tools("b") == ["get_weather"]
    with pytest.raises(PermissionError, match="'divide' was revoked for 'b'"):
        toolkit.execute_tool("b", "divide", {"a": 6, "b": 3})
    assert toolkit.execute_tool("b", "get_weather", {"location": "Oslo"})["temp"] == 22

    toolkit.grant_permission("c", "*")
    assert toolkit.has_permission("c", "divide")
    assert not toolkit.has_permission("c", "nothing")
    with pytest.raises(ValueError, match="there is no tool 'nothing'; register it first"):
        toolkit.grant_permission("a", "nothing")


def test_an_agent_sees_the_tools_that_it_may_use(toolkit: AgentToolkit) -> None:
    """AT-037."""
    toolkit.grant_permission("a", "get_weather")

    (known,) = toolkit.get_tool_descriptions("a")

    assert (known.name, known.description) == ("get_weather", "Say what the weather is.")
    assert known.parameters["required"] == ["location"]
    assert known.returns["type"] == "object"


def test_a_call_is_checked_before_the_tool_is_started(toolkit: AgentToolkit) -> None:
    """AT-038, AT-049: whether there is one, whether it may be used, whether the arguments are right, in this order."""
    divide = toolkit.get_tool("divide")
    assert isinstance(divide, Divide)
    with pytest.raises(PermissionError, match="nobody has granted 'divide' to 'a'"):
        toolkit.execute_tool("a", "divide", {"a": 6, "b": 3})
    toolkit.grant_permission("a", "divide")

    assert toolkit.execute_tool("a", "divide", {"a": 6, "b": 3}) == 2
    with pytest.raises(ValueError, match="there is no tool 'nothing'"):
        toolkit.execute_tool("a", "nothing", {})
    with pytest.raises(PermissionError, match="get_weather: nobody has granted 'get_weather' to 'a'"):
        toolkit.execute_tool("a", "get_weather", {"location": "Oslo"})
    with pytest.raises(ValueError, match='divide: the arguments are wrong: "b" is a required property'):
        toolkit.execute_tool("a", "divide", {"a": 6})
    assert divide.started == 1  # only the valid call
    with pytest.raises(RuntimeError, match="divide: it failed with ZeroDivisionError: division by zero"):
        toolkit.execute_tool("a", "divide", {"a": 6, "b": 0})
    assert Divide().validate_args({"a": "6"}) == ['"b" is a required property', 'a: the value is not of type "number"']


@pytest.mark.slow
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
