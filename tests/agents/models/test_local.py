"""The real local model, through the real client: what is looked at is protocol and schema, never its words."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.tools import ToolDefinition
from tests.agents.models.phases import Phase

from antiphon.agents import LedgerDurability
from antiphon.agents.models import model
from antiphon.agents.models._local import BoundedSchema, LocalModel, _step, only_value
from antiphon.agents.models._local_server import LocalServer, find_weights
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger, open_ledger

SHORT: Any = {"max_tokens": 6}


@pytest.fixture(scope="session")
def local() -> Iterator[LocalModel]:
    """The model, in a server that is started by the first test that asks something."""
    found = model("local")
    assert isinstance(found, LocalModel)
    yield found
    found.server.stop()


# ---------------------------------------------------------------- asked


@pytest.mark.slow
def test_it_calls_a_tool_and_answers_in_the_schema_of_a_phase(local: LocalModel) -> None:
    """It fills in `response`, `confidence`, `next_phase`, `tool_calls`, by grammar: whatever it thinks.

    In a durable run: the second time, everything is given back, and a model that cannot be asked is not asked.
    """
    called: list[str] = []

    def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
        """The weather in a city."""
        called.append(city)
        return "4 degrees"

    async def run(asked: LocalModel, ledger: Ledger) -> Any:
        durable = [LedgerDurability(ledger)]
        agent = Agent(asked, name="clerk", tools=[get_weather], output_type=Phase, capabilities=durable)
        async with ledger_run("weather"):
            return await agent.run("What is the weather in Paris?")

    async def twice() -> tuple[Any, Any]:
        async with open_ledger("memory:") as ledger:
            unable = LocalModel(server=LocalServer((sys.executable, "-c", "raise SystemExit('asked again')")))
            return await run(local, ledger), await run(unable, ledger)

    result, again = asyncio.run(twice())

    assert len(called) == 1
    assert isinstance(result.output, Phase)
    assert again.output == result.output
    _, call, answered, answer = result.all_messages()
    assert [type(part) for part in call.parts] == [ToolCallPart]
    assert [type(part) for part in answered.parts] == [ToolReturnPart]
    assert isinstance(answer.parts[0], TextPart)
    for response in (call, answer):
        assert (response.model_name, response.provider_name) == ("smollm2-135m-instruct", "local")
        assert response.usage.input_tokens > 0
        assert response.usage.output_tokens > 0


@pytest.mark.slow
def test_it_streams_and_says_the_same_twice(local: LocalModel) -> None:
    agent = Agent(local, model_settings=SHORT)

    async def streamed() -> list[str]:
        async with agent.run_stream("Say hello.") as stream:
            return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]

    pieces = asyncio.run(streamed())

    assert len(pieces) > 2
    assert "".join(pieces) == asyncio.run(agent.run("Say hello.")).output


@pytest.mark.slow
def test_it_answers_through_an_output_tool_too(local: LocalModel) -> None:
    class Small(BaseModel):
        colour: Literal["red", "green"]

    result = asyncio.run(Agent(local, output_type=ToolOutput(Small)).run("Which colour?"))

    assert result.output.colour in ("red", "green")


@pytest.mark.slow
def test_it_goes_on_when_its_server_was_killed_before_a_request(local: LocalModel) -> None:
    agent = Agent(local, model_settings=SHORT)
    said = asyncio.run(agent.run("Count.")).output
    first = local.server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)

    assert asyncio.run(agent.run("Count.")).output == said
    assert local.server.pid not in (None, first)


@pytest.mark.slow
def test_it_goes_on_when_its_server_is_killed_during_a_request(local: LocalModel) -> None:
    async def asked() -> str:
        agent = Agent(local)
        await agent.run("Count.", model_settings=SHORT)
        sent = asyncio.Event()

        async def note(_: Any) -> None:
            sent.set()

        assert isinstance(local.wrapped, OpenAIChatModel)
        local.wrapped.client._client.event_hooks = {"request": [note]}
        asking = asyncio.create_task(agent.run("Count.", model_settings={"max_tokens": 40}))
        await sent.wait()
        assert local.server.pid is not None
        os.kill(local.server.pid, signal.SIGKILL)
        return (await asking).output

    assert asyncio.run(asked())


@pytest.mark.slow
def test_it_goes_on_when_its_server_has_frozen(local: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not dead, and answers nobody: after the time that was given to the request, another takes its place."""
    monkeypatch.setattr("antiphon.agents.models._local_server._WELL", 0.2)
    frozen = local.server.ensure() and local.server.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)

    assert asyncio.run(Agent(local, model_settings={"max_tokens": 2, "timeout": 3}).run("Hi")).output
    assert local.server.pid not in (None, frozen)


@pytest.mark.slow
def test_a_server_that_answers_nobody_twice_is_the_error_of_a_provider() -> None:
    server = LocalServer((sys.executable, "-c", "input(); print('http://127.0.0.1:1', flush=True); input()"))

    with pytest.raises(ModelConnectionError):
        asyncio.run(Agent(LocalModel(server=server)).run("Hi"))
    endpoint = server.endpoint
    assert endpoint is not None  # the second server, which was not checked yet
    assert server.is_lost(endpoint)
    assert server.pid is None
    assert server.is_lost(endpoint)


@pytest.mark.slow
def test_several_requests_that_lose_their_server_share_the_next(local: LocalModel) -> None:
    async def together() -> list[str]:
        agent = Agent(local, model_settings=SHORT)
        await agent.run("Hi")
        assert local.server.pid is not None
        os.kill(local.server.pid, signal.SIGKILL)
        return [result.output for result in await asyncio.gather(*(agent.run("Hi") for _ in range(4)))]

    assert len(set(asyncio.run(together()))) == 1


@pytest.mark.slow
def test_a_prompt_that_is_too_long_is_an_error_of_the_provider(local: LocalModel) -> None:
    with pytest.raises(ModelAPIError, match="exceeds the available context size"):
        asyncio.run(Agent(local).run("word " * 3000))
    assert local.context_window == 2048


@pytest.mark.slow
def test_weights_of_the_user_are_served_beside_the_pinned_ones(local: LocalModel) -> None:
    """They have a server of their own, which is shared too, a longer context, and are asked without help for small models."""
    own = model(f"local:{find_weights()}")
    assert isinstance(own, LocalModel)
    assert own.server is model(f"local:{find_weights()}").server  # type: ignore[attr-defined]
    try:
        result = asyncio.run(Agent(own, model_settings=SHORT).run("Hi"))
        assert own.server.pid not in (None, local.server.pid)
        assert _context_of(own.server) == own.context_window == 8192
    finally:
        own.server.stop()

    (_, response) = result.all_messages()
    assert isinstance(response, ModelResponse)
    assert (response.model_name, response.provider_name) == (find_weights().stem, "local")
    assert (own.is_pinned, local.is_pinned) == (False, True)
    assert own._step([ASKED], {"tool_choice": "none"}, ModelRequestParameters(function_tools=TOOLS)) == (
        {"tool_choice": "none", "extra_headers": {"Connection": "close"}},
        ModelRequestParameters(function_tools=TOOLS),
    )


def _context_of(server: LocalServer) -> int:
    """Return how many tokens the server itself says that a conversation may have."""
    endpoint = server.ensure()
    asked = urllib.request.Request(f"{endpoint.url}/props", headers={"Authorization": f"Bearer {endpoint.key}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return int(json.load(answer)["default_generation_settings"]["n_ctx"])


@pytest.mark.slow
def test_a_model_of_ollama_is_asked_at_the_address_of_its_server(local: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any server that speaks OpenAI's protocol will do: here it is that of the local model."""
    endpoint = local.server.ensure()
    monkeypatch.setenv("OLLAMA_BASE_URL", f"{endpoint.url}/v1")
    monkeypatch.setenv("OLLAMA_API_KEY", endpoint.key)

    async def once() -> str:
        async with Agent(model("ollama:smollm2"), model_settings=SHORT) as agent:
            return (await agent.run("Say hello.")).output

    assert asyncio.run(once())


@pytest.mark.slow
def test_it_can_be_entered_and_left_in_more_than_one_loop(local: LocalModel) -> None:
    async def once() -> str:
        async with Agent(local) as agent:
            return (await agent.run("Hi", model_settings=SHORT)).output

    assert asyncio.run(once()) == asyncio.run(once())


# ---------------------------------------------------------------- choices


class Colour(BaseModel):
    colour: Literal["red"]


class Colours(BaseModel):
    colour: Literal["red", "green"]


# Mutant: `_only_part` returns None -> the server that cannot start is started, and this test is red.
@pytest.mark.slow
async def test_an_answer_that_is_the_only_one_needs_no_model() -> None:
    """Neither for an output nor for a tool: the grammar would allow nothing else. Its words can be heard all the same."""
    unable = LocalModel(server=LocalServer((sys.executable, "-c", "raise SystemExit('started')")))

    def paint(colour: Literal["red"]) -> str:
        return f"painted {colour}"

    agent = Agent(unable, output_type=Colour, tools=[paint])
    result = await agent.run("Which colour?")
    async with agent.run_stream("Which colour?") as stream:
        streamed = await stream.get_output()

    assert result.output.colour == streamed.colour == "red"
    (returned,) = [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)]
    assert returned.content == "painted red"
    assert result.usage.input_tokens == 0
    assert unable.server.pid is None


@pytest.mark.slow
def test_a_choice_is_one_of_those_that_are_offered(local: LocalModel) -> None:
    result = asyncio.run(Agent(local, output_type=Colours).run("Which colour has grass? Say it."))

    assert result.output.colour in ("red", "green")
    assert result.usage.input_tokens > 0


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"const": 3}, 3),
        ({"enum": ["a"]}, "a"),
        ({"enum": ["a", "b"]}, None),
        ({"type": "string"}, None),
        ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, {"a": 1}),
        ({"type": "object", "properties": {"a": {"const": 1}}}, None),
        ({"type": "object", "properties": {"a": {"const": 1}, "b": {"type": "string"}}, "required": ["a", "b"]}, None),
        ({"type": "object", "properties": {}}, None),
    ],
)
def test_the_only_value_of_a_schema_is_known(schema: dict[str, Any], expected: Any) -> None:
    assert only_value(schema) == expected


# ---------------------------------------------------------------- the two steps

TOOLS = [ToolDefinition(name="a"), ToolDefinition(name="b")]
ASKED = ModelRequest(parts=[UserPromptPart("?")])
CALLED = ModelResponse(parts=[ToolCallPart("a", {}, tool_call_id="1")])
ANSWERED = ModelRequest(parts=[ToolReturnPart("a", "x", tool_call_id="1")])
RETRIED = ModelRequest(parts=[ToolReturnPart("a", "x", tool_call_id="1", outcome="retried")])


@pytest.mark.parametrize(
    ("messages", "choice", "expected"),
    [
        ([ASKED], None, ["a", "b"]),
        ([ASKED], "auto", ["a", "b"]),
        ([ASKED], "none", []),
        ([ASKED], ["b"], ["b"]),
        ([ASKED, CALLED, ANSWERED], None, []),
        ([ASKED, CALLED, ANSWERED], "required", ["a", "b"]),
        ([ASKED, CALLED, RETRIED], None, ["a", "b"]),
        ([ASKED, CALLED, ANSWERED, CALLED, ASKED], None, ["a", "b"]),
        ([], None, ["a", "b"]),
    ],
)
def test_tools_come_first_then_the_answer_unless_the_settings_say_otherwise(
    messages: Any, choice: Any, expected: list[str]
) -> None:
    wanted = ModelRequestParameters(function_tools=TOOLS, output_tools=[ToolDefinition(name="final")], allow_text_output=False)

    settings, step = _step(messages, {"tool_choice": choice} if choice else None, wanted)

    assert [tool.name for tool in step.function_tools] == expected
    assert bool(step.output_tools) is not bool(expected)
    assert "tool_choice" not in settings  # the server takes a named one for none


# ---------------------------------------------------------------- the schema


class Bounded(BaseModel):
    text: str
    short: str = Field(max_length=3)
    items: list[str]
    five: list[int] = Field(min_length=5)
    share: float = Field(ge=0, le=1)
    open: float = Field(gt=0, lt=1)
    half: float = Field(ge=0, lt=1)
    free: float
    choice: Literal["a", "b"]


def test_every_text_and_list_has_an_end_and_every_number_its_bounds() -> None:
    schema = BoundedSchema(Bounded.model_json_schema()).walk()["properties"]

    assert (schema["text"]["maxLength"], schema["short"]["maxLength"]) == (200, 3)
    assert (schema["items"]["maxItems"], schema["items"]["items"]["maxLength"]) == (4, 200)
    assert schema["five"]["maxItems"] == 5
    assert schema["free"] == {"title": "Free", "type": "number"}
    assert "maxLength" not in schema["choice"]


def test_references_in_a_schema_are_inlined_and_bounded() -> None:
    class Whole(BaseModel):
        parts: list[Bounded]

    schema = BoundedSchema(Whole.model_json_schema()).walk()
    assert "$ref" not in str(schema)
    assert schema["properties"]["parts"]["items"]["properties"]["text"]["maxLength"] == 200


@pytest.mark.parametrize("name", ["share", "open", "half"])
def test_each_number_that_is_offered_is_one_that_is_allowed(name: str) -> None:
    offered = BoundedSchema(Bounded.model_json_schema()).walk()["properties"][name]["enum"]

    field = Bounded.model_fields[name]
    adapter = TypeAdapter(Annotated[float, *field.metadata])
    assert len(offered) >= 19
    assert [adapter.validate_python(value) for value in offered] == offered
