"""Scripts: how they are read, which faults are refused with their place, and which names a turn may use."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, ModelRetry, ToolOutput
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from antiphon.agents.models import Rule, Script, ScriptedModel, Turn, model
from antiphon.agents.models._script import filled, load_script, scene_of
from antiphon.errors import ModelError

WEATHER = """
[[rules]]
when = 'weather in (?P<city>\\w+)'
turns = [
    { calls = [{ tool = "get_weather", arguments = { city = "{city}", days = 2 } }] },
    { text = "In {city}: {result}" },
]

[[rules]]
turns = [{ text = "Hm?" }]
"""


def ask(script: Script, prompt: str, **agent: Any) -> Any:
    return asyncio.run(Agent(ScriptedModel(script), **agent).run(prompt))


def get_weather(city: str, days: int) -> dict[str, Any]:
    return {"city": city, "sky": ["grey"] * days}


def test_a_script_is_the_same_as_toml_and_as_json(tmp_path: Path) -> None:
    toml, other = tmp_path / "weather.toml", tmp_path / "weather.json"
    toml.write_text(WEATHER)
    read = load_script(toml)
    other.write_text(read.model_dump_json())

    assert load_script(other) == read
    assert read.name == "weather"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "rules or turns"),
        ("turns = [{ txet = 'hi' }]", r"at turns\.0\.txet: there is no key 'txet'; is it 'text'"),
        ("turns = [{ }]", r"at turns\.0: .*a turn has a text, calls or an output"),
        ("rules = [{ when = '(', turns = [{ text = 'x' }] }]", r"at rules\.0: .*no regular expression"),
        ("rules = [{ turns = [] }]", r"at rules\.0\.turns: "),
        ("turns = [{ text = 'a' }]\nrules = [{ turns = [{ text = 'b' }] }]", "not both"),
        ("turns = ", "not a script"),
    ],
)
def test_a_mistake_in_a_script_is_named_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "script.toml"
    path.write_text(text)

    with pytest.raises(ModelError, match=complaint):
        load_script(path)


def test_a_file_that_is_no_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")

    with pytest.raises(ModelError, match="a script is an object"):
        load_script(tmp_path / "list.json")
    with pytest.raises(ModelError, match="cannot read the script: No such file"):
        load_script(tmp_path / "nothing.toml")


@pytest.mark.parametrize("name", ["deep.toml", "deep.json"])
def test_a_script_that_is_nested_too_deeply_is_refused(tmp_path: Path, name: str) -> None:
    """G21: whatever a file says, it is read or refused with an error of ours."""
    path = tmp_path / name
    path.write_text(f"{'a = ' if name.endswith('toml') else ''}{'[' * 100_000}")

    with pytest.raises(ModelError, match="nested too deeply"):
        load_script(path)


@pytest.mark.parametrize("name", ["scripted", "local"])
def test_a_model_is_read_from_regular_files_only(name: str, tmp_path: Path) -> None:
    """A pipe would wait for ever for its writer; a device has no end, and opening one such as /dev/ptmx has effects."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/ptmx"):
        with pytest.raises(ModelError, match="not a regular file"):
            model(f"{name}:{path}")


def test_a_rule_drives_a_tool_with_what_it_found_and_speaks_of_its_result(tmp_path: Path) -> None:
    path = tmp_path / "weather.toml"
    path.write_text(WEATHER)
    script = load_script(path)

    result = ask(script, "What is the Weather in Oslo?", tools=[get_weather])

    calls = [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolCallPart)]
    assert [(call.tool_name, call.args_as_dict()) for call in calls] == [("get_weather", {"city": "Oslo", "days": 2})]
    assert result.output == 'In Oslo: {"city":"Oslo","sky":["grey","grey"]}'
    assert ask(script, "hello", tools=[get_weather]).output == "Hm?"


def test_a_string_that_is_one_name_becomes_the_value_itself() -> None:
    """So what one tool gives can be given to the next as it is."""
    script = Script(
        turns=(
            Turn(calls=({"tool": "first"},)),
            Turn(calls=({"tool": "second", "arguments": {"given": "{result}"}},)),
            Turn(text="{result}"),
        )
    )
    seen: list[Any] = []

    def first() -> dict[str, list[int]]:
        return {"numbers": [1, 2]}

    def second(given: dict[str, list[int]]) -> str:
        seen.append(given)
        return "done"

    assert ask(script, "go", tools=[first, second]).output == "done"
    assert seen == [{"numbers": [1, 2]}]


def test_turns_go_through_a_conversation_and_rules_begin_again_with_each_word_of_the_user() -> None:
    turns = Script(turns=(Turn(text="one"), Turn(text="two")))
    rules = Script(rules=(Rule(turns=(Turn(text="one"),)),))

    for script, second in ((turns, "two"), (rules, "one")):
        first = ask(script, "a")
        again = asyncio.run(Agent(ScriptedModel(script)).run("b", message_history=first.all_messages()))
        assert (first.output, again.output) == ("one", second)


def test_a_script_that_has_nothing_left_to_say_says_so() -> None:
    script = Script(name="short", rules=(Rule(when="^a", turns=(Turn(calls=({"tool": "t"},)),)),))

    def t() -> str:
        return "x"

    with pytest.raises(ModelError, match=r"'scripted:short' at rules\.0\.turns: there are 1 turns, and one more"):
        ask(script, "a", tools=[t])
    with pytest.raises(ModelError, match="no rule fits what was said: 'b'"):
        ask(script, "b", tools=[t])


def test_an_answer_that_was_refused_is_not_taken_for_a_word_of_the_user() -> None:
    """The next turn is taken, and where there is none, the error says why the answer was refused."""
    script = Script(rules=(Rule(turns=(Turn(output={"number": 1}), Turn(output={"number": 2}))),))

    def check(number: int) -> int:
        if number < 2:
            raise ModelRetry("too small")
        return number

    assert ask(script, "a", output_type=ToolOutput(check)).output == 2
    short = Script(rules=(Rule(turns=(Turn(output={"number": 1}),)),))
    with pytest.raises(ModelError, match="the answer before was refused: .*too small"):
        ask(short, "a", output_type=ToolOutput(check))


def test_a_turn_may_speak_and_call() -> None:
    script = Script(turns=(Turn(text="I look.", calls=({"tool": "t"},)), Turn(text="{result}")))

    def t() -> int:
        return 3

    result = ask(script, "a", tools=[t])

    assert [part.part_kind for part in result.all_messages()[1].parts] == ["text", "tool-call"]
    assert result.output == "3"


def test_a_turn_may_say_what_it_cost() -> None:
    result = ask(Script(turns=(Turn(text="x", input_tokens=7, output_tokens=3),)), "a")

    assert (result.usage.input_tokens, result.usage.output_tokens) == (7, 3)


# ---------------------------------------------------------------- names in strings

short = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | short,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.slow
@given(json_values)
def test_a_value_without_names_stays_as_it_is(value: Any) -> None:
    assert filled(value, {}) == value


@given(short, json_values)
def test_inserted_text_is_not_expanded_again(text: str, value: Any) -> None:
    """A tool's result cannot reach the other names: content is data (S4)."""
    words = {"text": text, "result": value}

    assert filled("{result}", words) == value
    shown = filled("<{text}>", {"text": "{result}", "result": "secret"})
    assert shown == "<{result}>"
    assert filled({"a": ["{text}"]}, words) == {"a": [text]}


def test_results_are_spoken_as_json() -> None:
    assert filled("is {result}", {"result": {"a": [1, None]}}) == 'is {"a":[1,null]}'
    assert json.loads(filled("{result}!", {"result": [1]})[:-1]) == [1]


def test_a_dot_leads_into_a_result() -> None:
    words = {"result": {"city": "Oslo", "days": [{"celsius": -3}]}}
    assert filled("{result.city}: {result.days.0.celsius}", words) == "Oslo: -3"
    assert filled("{result.days}", words) == [{"celsius": -3}]
    assert filled("{result.days.1} {result.town}", words) == "{result.days.1} {result.town}"


def test_each_result_since_the_user_spoke_has_a_number() -> None:
    def asked(text: str, *results: str) -> list[ModelMessage]:
        called = [ModelRequest([ToolReturnPart("t", result, tool_call_id=result)]) for result in results]
        return [ModelRequest([UserPromptPart(text)]), *called]

    words = scene_of([*asked("one", "a"), *asked("two", "b", "c")], None).words
    assert words == {"text": "two", "result": "c", "result_1": "b", "result_2": "c"}


def test_a_call_that_is_scripted_is_made_whether_or_not_there_is_such_a_tool() -> None:
    """As a model would: what to do about it is the agent's business."""
    script = Script(turns=(Turn(calls=({"tool": "no_such_tool"},)), Turn(text="I see")))

    result = ask(script, "a")

    assert result.output == "I see"
    assert isinstance(result.all_messages()[1], ModelResponse)
