"""The scripted model without a script: honest, quick, the same every time, and enough for tools, phases and streams."""

import asyncio
import socket
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from pydantic_ai import Agent, ImageUrl, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, ToolCallPart
from tests.agents.models.phases import PHASES, Phase

from antiphon.agents.models import ScriptedModel
from antiphon.agents.models._scripted import Filler
from antiphon.errors import ModelError
from antiphon.messages import use_port
from antiphon.testing import CountingPort


def calculator(expression: str) -> str:
    return f"<{expression}>"


def ask(prompt: str = "Hello", **agent: Any) -> Any:
    return asyncio.run(Agent(ScriptedModel(), **agent).run(prompt))


def test_it_is_honest_about_being_scripted() -> None:
    result = ask("Hello there")

    answer = result.all_messages()[-1]
    assert result.output == "Scripted answer, no language model was asked. You said: Hello there"
    assert (answer.model_name, answer.provider_name) == ("scripted", "scripted")
    assert not answer.usage.has_values()
    assert ScriptedModel().label == "Scripted"


def test_it_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert ask().output


def test_the_same_conversation_gets_the_same_answer_and_ids_and_times_come_from_the_port() -> None:
    def answers() -> list[Any]:
        with use_port(CountingPort()):
            messages = ask("what is 2 * (3 + 4)?", tools=[calculator]).all_messages()
        return [(each.parts, each.timestamp) for each in messages if isinstance(each, ModelResponse)]

    assert answers() == answers()
    assert answers()[0][0][0].tool_call_id == "id-1"


@pytest.mark.parametrize(
    ("prompt", "expression"),
    [
        ("what is 2 * (3 + 4)?", "2 * (3 + 4)"),
        ("1+1", "1+1"),
        ("Is -3 ^ 2 negative?", "-3 ^ 2"),
        ("10 % 3", "10 % 3"),
    ],
)
def test_it_calls_the_calculator_where_there_is_something_to_calculate(prompt: str, expression: str) -> None:
    assert ask(prompt, tools=[calculator]).output.endswith(f"The calculator says: <{expression}>")
    assert "You said" in ask(prompt).output  # but not where there is no such tool


# ---------------------------------------------------------------- structured output


@pytest.mark.parametrize("mode", [ToolOutput, NativeOutput, PromptedOutput])
def test_it_fills_in_the_output_that_is_wanted_in_every_mode(mode: Any) -> None:
    output = ask("Hello", output_type=mode(Phase)).output

    assert output.response == "Scripted answer, no language model was asked."[:40]
    assert (output.confidence, output.tool_calls) == (0.5, [])


def test_six_phases_follow_each_other_on_it() -> None:
    """It fills in `response`, `confidence` and `next_phase`, which is the phase after the current one."""
    phase, went = "action", []
    while phase not in went:
        went.append(phase)
        phase = ask("Hello", output_type=Phase, instructions=f"You are the {phase} phase.").output.next_phase

    assert tuple(went) == PHASES
    assert phase == "yield"


def test_tools_come_before_the_output() -> None:
    result = ask("what is 1 + 1?", tools=[calculator], output_type=Phase)

    assert result.output.response.startswith("Scripted answer")
    called = [part.tool_name for each in result.all_messages() for part in each.parts if isinstance(part, ToolCallPart)]
    assert called == ["calculator", "final_result"]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float


class Tree(BaseModel):
    name: str
    children: list["Tree"] = Field(min_length=0)
    parent: "Tree | None"


class Many(BaseModel):
    when: date
    id: UUID
    colour: Colour
    point: Point
    pair: tuple[int, str]
    several: list[Point] = Field(min_length=2)
    short: str = Field(max_length=5)
    long: str = Field(min_length=300)
    low: Annotated[int, Field(gt=3)]
    high: Annotated[float, Field(lt=-2)]
    between: Annotated[int, Field(ge=10, le=20)]
    flag: bool
    either: int | str
    nothing: None
    one: Literal["only"]
    table: dict[str, int]
    usual: int = 7


@pytest.mark.parametrize("kind", [Many, Tree, Phase, Point, Colour, int, list[str], dict[str, Tree], str | None, bool])
def test_the_filled_in_output_is_valid_for_its_type(kind: Any) -> None:
    adapter = TypeAdapter(kind)

    value = Filler(adapter.json_schema(), "some text").value()

    adapter.validate_python(value)


def test_it_takes_a_default_and_refers_through_more_than_one_step() -> None:
    schema = {
        "$defs": {"a/b": {"allOf": [{"$ref": "#/$defs/c"}]}, "c": {"type": "string", "default": "usual"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a~1b"}},
        "required": ["x", "undeclared"],
    }

    assert Filler(schema, "text").value() == {"x": "usual", "undeclared": "text"}


def test_a_schema_without_end_is_refused() -> None:
    schema = {"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}}

    for whole in ({"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/a"}]}):
        with pytest.raises(ValueError, match="refers to itself without end"):
            Filler({**schema, **whole}, "text").value()


def test_instructions_may_come_as_a_system_prompt_and_words_among_pictures() -> None:
    prompt = ["Hello", ImageUrl("https://example.com/cat.png"), "there"]
    agent = Agent(ScriptedModel(), output_type=Phase, system_prompt="You are the intention phase.")

    assert asyncio.run(agent.run("Hi")).output.next_phase == "observation"
    assert asyncio.run(Agent(ScriptedModel()).run(prompt)).output.endswith("You said: Hello\nthere")


def test_an_output_that_cannot_be_filled_in_is_an_error() -> None:
    class Endless(BaseModel):
        inside: "Endless"

    with pytest.raises(ModelError, match="no output can be made up: .* give the turn an `output`"):
        ask("Hello", output_type=Endless)


# ---------------------------------------------------------------- streams


def test_it_streams_word_by_word_and_the_words_add_up() -> None:
    async def pieces() -> list[str]:
        async with Agent(ScriptedModel()).run_stream("Hello there") as stream:
            return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]

    streamed = asyncio.run(pieces())

    assert len(streamed) > 5
    assert "".join(streamed) == ask("Hello there").output


def test_it_streams_the_arguments_of_a_call_and_structured_output() -> None:
    events: list[Any] = []

    async def follow(_: Any, stream: Any) -> None:
        events.extend([event async for event in stream])

    agent = Agent(ScriptedModel(), tools=[calculator], output_type=Phase)
    result = asyncio.run(agent.run("what is 10000000 + 20000000?", event_stream_handler=follow))

    assert result.output == ask("what is 10000000 + 20000000?", tools=[calculator], output_type=Phase).output
    assert sum(isinstance(event, PartDeltaEvent) for event in events) > 5
