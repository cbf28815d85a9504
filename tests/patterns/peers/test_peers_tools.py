"""Tools of a peer, from the function to the message: its schema, its grant, its result, and its failure. MA-061."""

from typing import Any, Literal

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.tools import ToolDefinition
from tests.patterns.peers.plays import QUICK, Play, calls, line, spec
from typing_extensions import override

from antiphon import check, decode, encode
from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.marsys import validate_message
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload
from antiphon.patterns.peers import Peers

WEIGHED: list[tuple[Any, ...]] = []


async def weigh(item: str, unit: Literal["g", "oz"] = "g", parts: list[float] | None = None) -> dict[str, Any]:
    """Weigh something.

    Args:
        item: What is weighed.
        unit: In which unit.
        parts: What is weighed with it.
    """
    WEIGHED.append((item, unit, parts))
    if item == "ghost":
        raise ValueError("it has no weight")
    return {"weight": 3 + sum(parts or ()), "unit": unit}


class Seeing(Play):
    """Notes which tools the model is told of."""

    told: list[ToolDefinition]

    @override
    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.told = info.function_tools
        return await super()._play(messages, info)


async def _asked(tool: str, arguments: dict[str, Any], **more: Any) -> tuple[Any, Seeing, Peers]:
    """Have a peer call a tool once, and return the result as the peer reports it."""
    play = Seeing(ada=line(calls((tool, arguments))))
    tools = more or {"tools": [weigh]}
    async with Peers(None, [spec("ada", tools=("weigh",))], model=play, patience=QUICK, **tools) as peers:
        return await peers.run("How heavy is it?", thread_id="t"), play, peers


def _toolkit() -> dict[str, Any]:
    toolkit = Toolkit([weigh])
    toolkit.grant("ada", "weigh")
    return {"toolkit": toolkit}


# Mutant: Toolkit.add (_toolkit.py) gives another schema, such as one without descriptions or types -> this test is red.
@pytest.mark.parametrize("is_kit", [False, True], ids=["functions", "toolkit"])
async def test_a_model_gets_the_schema_from_type_hints_and_docstring_of_a_function(is_kit: bool) -> None:
    """MA-061: schema from function: names, types, defaults, choices and required fields, with the docstring's text."""
    _, play, _ = await _asked("weigh", {"item": "fly"}, **(_toolkit() if is_kit else {}))
    (told,) = [each for each in play.told if each.name != "invoke_agent"]
    assert (told.name, told.description) == ("weigh", "Weigh something.")
    parts = {"anyOf": [{"items": {"type": "number"}, "type": "array"}, {"type": "null"}], "default": None}
    assert told.parameters_json_schema == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "What is weighed."},
            "unit": {"type": "string", "enum": ["g", "oz"], "default": "g", "description": "In which unit."},
            "parts": {**parts, "description": "What is weighed with it."},
        },
        "required": ["item"],
        "additionalProperties": False,
    }


# Mutant: Cast.add (_cast.py) grants an agent nothing, or every tool; or Toolkit.add takes a name twice -> this test is red.
async def test_a_tool_is_registered_by_its_name_and_given_to_the_peers_that_name_it() -> None:
    """MA-061: registration."""
    play = Seeing(ada=line(), bob=line(calls(("weigh", {"item": "fly"}))))
    specs = [spec("ada"), spec("bob", tools=("weigh",))]
    async with Peers(None, specs, model=play, tools=[weigh]) as peers:
        await peers.run("Hello", peer="ada", thread_id="t")
        assert [each.name for each in play.told] == []
        assert (await peers.run("How heavy?", peer="bob", thread_id="u")).response == "{'weight': 3, 'unit': 'g'}"
        assert [each.name for each in play.told] == ["weigh"]
    with pytest.raises(ValueError, match="there is a tool 'weigh' already"):
        Peers(None, specs, model=play, tools=[weigh, weigh])


# Mutant: the toolkit starts the function with other arguments, or twice, or _answer (marsys/_write.py) writes another id
# -> this test is red.
async def test_a_call_is_executed_once_with_its_arguments_and_answered_by_a_tool_message() -> None:
    """MA-061, MA-020, MA-044: the arguments as the types of the function, the result as JSON, under the id of the call."""
    WEIGHED.clear()
    outcome, _, peers = await _asked("weigh", {"item": "fly", "unit": "oz", "parts": [1, 2.5]})
    assert outcome.status == "completed"
    assert WEIGHED == [("fly", "oz", [1.0, 2.5])]
    _, asked, called, answered, said = (await peers.memory("ada", "t")).messages()
    assert (asked.role, said.role) == ("user", "assistant")
    (call,) = called.tool_calls or ()
    assert (answered.role, answered.name, answered.tool_call_id) == ("tool", "weigh", call["id"])
    assert answered.content == '{"weight":6.5,"unit":"oz"}'


# Mutant: _failure (marsys/_write.py) writes an error, for which a provider has no role, or leaves out the name or the id
# -> this test is red.
@pytest.mark.parametrize("is_kit", [False, True], ids=["functions", "toolkit"])
@pytest.mark.parametrize(
    ("tool", "arguments", "why", "is_started"),
    [
        ("weigh", {"item": "ghost"}, "it has no weight", True),
        ("weigh", {"item": 7}, "item", False),
        ("weigh", {"item": "fly", "unit": "stone"}, "unit", False),
        ("wiegh", {"item": "fly"}, "wiegh", False),
    ],
    ids=["raised", "wrong type", "wrong choice", "unknown tool"],
)
async def test_a_failure_is_a_tool_message_and_the_agent_goes_on(
    tool: str, arguments: dict[str, Any], why: str, is_started: bool, is_kit: bool
) -> None:
    """MA-061, MA-050: nothing is raised; the model reads why, and what goes to a provider has a result for every call."""
    WEIGHED.clear()
    outcome, _, peers = await _asked(tool, arguments, **(_toolkit() if is_kit else {}))
    assert (outcome.status, bool(WEIGHED)) == ("completed", is_started)
    assert why in outcome.response
    memory = await peers.memory("ada", "t")
    called, answered = memory.messages()[2:4]
    (call,) = called.tool_calls or ()
    assert (answered.role, answered.name, answered.tool_call_id) == ("tool", tool, call["id"])
    assert why in answered.content
    assert answered.error_type
    assert validate_message(answered)
    assert [each.id for each in memory.by_role("tool")] == [answered.message_id]
    told = memory.to_llm_format()
    assert told[3] == {"role": "tool", "content": answered.content, "name": tool, "tool_call_id": call["id"]}
    assert [each for each in check(decode(told, "openai-chat"), "openai-chat") if each.severity == "error"] == []


# Mutant: read (marsys/_read.py) takes a tool message with an `error_type` for a success -> this test is red.
def test_a_failure_of_a_tool_comes_back_from_marsys_as_it_was() -> None:
    """MA-061: with its kind, its words, whether to try again, and details."""
    call = OptionCallPayload(invocation_id="c", option_name="weigh", arguments={"item": "ghost"})
    failed: dict[str, Any] = {"is_error": True, "error_type": "TOOL_FAILED", "error_message": "it has no weight"}
    result = OptionResultPayload(invocation_id="c", option_name="weigh", retryable=False, result={"item": "ghost"}, **failed)
    talk = Conversation([Message(policy="ada", payload=call), Message(policy="runtime", payload=result)])

    encoded = encode(talk, "marsys")

    units: Any = encoded.value
    assert {key: units[1][key] for key in ("role", "name", "tool_call_id", "content", "metadata")} == {
        "role": "tool",
        "name": "weigh",
        "tool_call_id": "c",
        "content": "it has no weight",
        "metadata": {"error_type": "TOOL_FAILED", "retryable": False, "details": {"item": "ghost"}},
    }
    assert encoded.losses == ()
    assert decode(units, "marsys")[1].payload == result


@pytest.mark.parametrize(
    ("unit", "option", "error_type"),
    [
        ({"role": "tool", "name": "f", "content": "no", "metadata": {"error_type": "E", "retryable": True}}, "f", "E"),
        ({"role": "tool", "name": "f", "metadata": {"error_type": "E", "trace": [1]}}, "f", "E"),
        ({"role": "tool", "content": "no", "metadata": {"error_type": "E"}}, "weigh", "E"),
        ({"role": "error", "name": "f", "content": "no", "metadata": {"error_type": "E", "details": 1}}, "weigh", "E"),
        ({"role": "error", "content": "no"}, "weigh", "Error"),
        ({"role": "tool", "name": "f", "content": "no", "metadata": {"error_type": None}}, "f", None),
    ],
    ids=["tool", "no content", "no name", "error", "bare error", "no failure"],
)
def test_a_failure_that_came_from_marsys_goes_back_as_it_came(
    unit: dict[str, Any], option: str, error_type: str | None
) -> None:
    """MA-061, MA-014: a tool message stays one, and an error an error."""
    function = {"name": "weigh", "arguments": "{}"}
    call = {"role": "assistant", "content": "", "message_id": "1", "tool_calls": [{"id": "c", "function": function}]}
    units = [call, {"message_id": "2", "tool_call_id": "c", **unit}]

    talk = decode(units, "marsys")

    payload = talk[1].payload
    assert isinstance(payload, OptionResultPayload)
    assert (payload.option_name, payload.is_error, payload.error_type) == (option, error_type is not None, error_type)
    assert encode(talk, "marsys").value == units
    assert encode(talk, "marsys").losses == ()
