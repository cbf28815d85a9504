"""Tools of a request: several functions in one, beside what the service runs, with schemas of two kinds."""

from typing import Any

from tests.dialects.gemini.bodies import BODIES
from tests.providers.types import problems

from antiphon import Conversation
from antiphon.dialects import encode, get
from antiphon.messages import Tool

GEMINI = get("gemini")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}


def with_tools(body: Any, *tools: Tool) -> Any:
    """The tools of a request with these instead of its functions."""
    conversation = GEMINI.decode(body)
    changed = Conversation(conversation, tools=tools, metadata=conversation.metadata)
    return GEMINI.encode(changed).value.get("tools")


def request(*tools: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "tools": list(tools)}


def test_functions_of_all_tools_are_tools_of_the_core() -> None:
    tools = GEMINI.decode(BODIES["what the service itself runs"]).tools

    assert [tool.name for tool in tools] == ["a", "b"]


def test_a_schema_of_googles_own_is_a_json_schema() -> None:
    """It has its types in capitals, which no other provider knows; data that only looks like a schema is left alone."""
    own = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", "enum": ["A"], "default": {"type": "X"}}},
        "anyOf": [{"type": "ARRAY", "items": {"type": "INTEGER"}}],
    }
    body = request({"functionDeclarations": [{"name": "f", "parameters": own}]})
    conversation = GEMINI.decode(body)

    assert conversation.tools[0].parameters == {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["A"], "default": {"type": "X"}}},
        "anyOf": [{"type": "array", "items": {"type": "integer"}}],
    }
    assert GEMINI.encode(conversation).value == body
    chat = encode(conversation, "openai-chat").value
    assert chat["tools"][0]["function"]["parameters"]["type"] == "object"


def test_an_edited_tool_keeps_the_key_of_its_schema() -> None:
    body = request({"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]})
    (tool,) = GEMINI.decode(body).tools
    edited = tool.model_copy(update={"parameters": SCHEMA})

    assert with_tools(body, edited) == [
        {
            "functionDeclarations": [
                {"name": "f", "parameters": {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}}},
            ]
        }
    ]


def test_tools_from_elsewhere_are_one_tool() -> None:
    tools = [Tool(name="f", description="F", parameters=SCHEMA), Tool(name="g")]
    value = GEMINI.encode(Conversation([], tools=tools)).value

    assert value["tools"] == [
        {"functionDeclarations": [{"name": "f", "description": "F", "parametersJsonSchema": SCHEMA}, {"name": "g"}]}
    ]
    assert problems("gemini", "request", value) == []


def test_functions_that_were_added_stand_with_the_others() -> None:
    """The service takes functions from one tool; what it runs itself stays where it is."""
    body = request({"googleSearch": {}}, {"functionDeclarations": [{"name": "a"}]}, {"codeExecution": {}})

    assert with_tools(body, Tool(name="a"), Tool(name="b")) == [
        {"googleSearch": {}},
        {"functionDeclarations": [{"name": "a"}, {"name": "b"}]},
        {"codeExecution": {}},
    ]
    assert with_tools(request({"googleSearch": {}}), Tool(name="b")) == [
        {"googleSearch": {}},
        {"functionDeclarations": [{"name": "b"}]},
    ]


def test_functions_that_were_taken_away_leave_nothing_empty() -> None:
    body = request({"functionDeclarations": [{"name": "a"}], "googleSearch": {}}, {"functionDeclarations": [{"name": "b"}]})

    assert with_tools(body) == [{"googleSearch": {}}]
    assert with_tools(body, Tool(name="b")) == [{"functionDeclarations": [{"name": "b"}], "googleSearch": {}}]


def test_a_bare_list_with_tools_becomes_a_request() -> None:
    listed = Conversation(
        GEMINI.decode([{"parts": [{"text": "hi"}]}]), tools=[Tool(name="f")], metadata={"gemini": {"shape": "list"}}
    )

    assert GEMINI.encode(listed).value == {
        "contents": [{"parts": [{"text": "hi"}]}],
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
    }
