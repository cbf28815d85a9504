"""Agents of the program in a chain, with their own models, tools, prompts and output types; and prompts from files."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import QUESTION, Witness, branch, chain_on, known, said_in

from antiphon.errors import ConfigError, UnguardedToolError
from antiphon.messages import OptionResultPayload, thaw
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.postchain import ChainConfig, ExperienceOutput, PostChain
from antiphon.patterns.postchain._config import prompt_digest
from antiphon.protocol import PHASES, AgentConfig

QUIET = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())})


class Tasted(ExperienceOutput):
    """The form of the phase, and a field more."""

    taste: str


class Verdict(BaseModel):
    """A form that is none of a phase's."""

    verdict: str
    stars: int


class Loose(BaseModel):
    """A form that is like that of the phase."""

    synthesis: str
    used: list[str]


def _giving(*outputs: Any) -> FunctionModel:
    """Return a model that gives outputs, one after the other, the last one from then on."""
    left = list(outputs)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        output = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(output, str):
            return ModelResponse([TextPart(output)])
        if "tool" in output:
            return ModelResponse([ToolCallPart(output["tool"], {}, tool_call_id="c")])
        return ModelResponse([ToolCallPart(info.output_tools[0].name, output, tool_call_id="o")])

    return FunctionModel(answer, model_name="giving")


@pytest.mark.slow
async def test_an_agent_of_the_program_answers_with_its_model_its_tools_and_its_output_type() -> None:
    """Its judgement is checked like that of the phase's own agent, and the rest of its output is kept."""
    tasted: list[str] = []

    def taste() -> str:
        """Taste the tea."""
        tasted.append("tea")
        return "grassy"

    wrong = {"synthesis": "s", "used": ["7"], "taste": "grassy"}
    model = _giving({"tool": "taste"}, wrong, {"synthesis": "It is in [1].", "used": ["1"], "taste": "grassy"})
    taster = Agent(model, name="taster", output_type=Tasted, tools=[taste], instructions="You taste.")
    async with chain_on(witness=(witness := Witness()), config=QUIET, agents={"experience": taster}) as chain:
        result = await chain.run(QUESTION)
        rows = await said_in(chain.ledger, result.thread_id)

    output = result.outputs["experience"]
    assert (output["response"], output["by"], output["model"]) == ("It is in [1].", "agent", "giving")
    assert output["data"]["taste"] == "grassy"
    assert output["used"][0] in {each["id"] for each in result.citations}
    assert tasted == ["tea"]
    assert witness.asked == [phase for phase in PHASES if phase != "experience"]
    told = "\n".join(row.text for row in rows if row.lane == "talk")
    assert "You taste." in told
    assert "You are the experience phase" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output_type", "given", "response", "by"),
    [
        (str, "Just text.", "Just text.", "code"),
        (Verdict, {"verdict": "good", "stars": 3}, "good", "code"),
        (ExperienceOutput, {"synthesis": "typed", "used": ["1"]}, "typed", "agent"),
        (Loose, {"synthesis": "loose", "used": ["1", "9"]}, "loose", "agent"),
    ],
)
async def test_any_output_type_will_do(output_type: Any, given: Any, response: str, by: str) -> None:
    mine = Agent(_giving(given), name="mine", output_type=output_type)
    spec = AgentSpec(agent=mine)
    async with chain_on(config=QUIET, agents={"experience": spec}) as chain:
        result = await chain.run(QUESTION)

    output = result.outputs["experience"]
    assert (output["response"], output["by"]) == (response, by)
    assert ("data" in output) is (output_type not in (str, ExperienceOutput))
    assert output.get("dropped", []) == (["used: there is no source '9'; there is [1]"] if "9" in str(given) else [])


@pytest.mark.slow
async def test_only_a_program_with_the_agent_continues_its_phase() -> None:
    """The thread says whose agent it was; a chain without it leaves the phase alone."""
    agents: dict[Any, Any] = {"experience": Agent(_giving("early"), name="mine")}
    async with chain_on(ledger := await known(), config=QUIET, agents=agents) as chain:
        thread_id = (await chain.run(QUESTION)).thread_id
    left = await branch(ledger, thread_id, await _prepared(ledger, thread_id))
    async with chain_on(left, config=QUIET, recover=False) as chain:
        with pytest.raises(UnguardedToolError, match="the agent of its experience phase is 'mine'"):
            await chain.resume(thread_id)
    agents = {"experience": Agent(_giving("late"), name="mine")}
    async with chain_on(left, config=QUIET, recover=False, agents=agents) as chain:
        await chain.resume(thread_id)
        result = await chain.wait(thread_id)
    assert (result.status, result.outputs["experience"]["response"]) == ("completed", "late")


async def _prepared(ledger: Any, thread_id: str) -> int:
    """Return the place where the context of the experience phase is prepared."""
    async for record in ledger.read(thread_id):
        payload = record.message.payload
        if isinstance(payload, OptionResultPayload) and payload.option_name == "PREPARE_CONTEXT":
            said: Any = thaw(payload.result)
            if said["phase_type"] == "experience":
                return int(record.seq)
    raise AssertionError


async def test_settings_that_an_agent_has_itself_are_refused_in_the_configuration() -> None:
    mine = Agent(_giving("text"), name="mine")
    for phases, agents, why in (
        ({"yield": AgentConfig(model="scripted")}, {"yield": mine}, "phases.yield: an agent that exists has its own model"),
        ({}, {"end": mine}, "agents: there is no phase 'end'"),
        ({}, {"yield": AgentSpec(name="x")}, "agents.yield: give an agent"),
    ):
        with pytest.raises(ConfigError, match=why):
            PostChain(config=ChainConfig(phases=phases), agents=agents)  # type: ignore[arg-type]
    async with chain_on(agents={"yield": mine}) as chain:
        data = {"agent_id": "agent/yield", "config": {"temperature": 0.5}}
        refused = await chain.send({"type": "UPDATE_AGENT_CONFIG", "data": data})
        assert (refused["type"], refused["data"]["error_code"]) == ("ERROR", "VALIDATION_ERROR")
        assert "has its own temperature" in refused["data"]["error_message"]


# ---------------------------------------------------------------- prompts


@pytest.mark.slow
@pytest.mark.parametrize("upto", ["prepared", "asked"])
async def test_a_thread_goes_on_with_the_prompt_that_its_model_was_told(tmp_path: Path, upto: str) -> None:
    """Before the model was asked, the current prompt counts, and the phase says which one it was."""
    mine = tmp_path / "mine.md"
    mine.write_text("You are the experience phase of a tea house.\n")
    (tmp_path / "chain.toml").write_text('[prompts]\nexperience = "mine.md"\n')
    ledger = await known()
    async with chain_on(ledger, config=tmp_path / "chain.toml") as chain:
        thread_id = (await chain.run(QUESTION)).thread_id
    rows = await said_in(ledger, thread_id)
    planned = next(place for place, row in enumerate(rows, 1) if "experience@fe3b97f0e867" in row.model_dump_json())
    told = next(place for place, row in enumerate(rows, 1) if row.text == "You are the experience phase of a tea house.")
    assert planned < told
    half = await branch(ledger, thread_id, told + 2 if upto == "asked" else planned, rows)
    mine.write_text("You are the experience phase of a coffee house.\n")
    async with chain_on(half, config=tmp_path / "chain.toml") as chain:
        result = await chain.wait(thread_id)
    assert result.status == "completed"
    texts = [row.text for row in await said_in(half, thread_id) if row.lane == "talk" and row.text.endswith(" house.")]
    output = result.outputs["experience"]
    if upto != "prepared":
        assert texts == ["You are the experience phase of a tea house."]
        assert "prompt" not in output
    else:
        assert texts == ["You are the experience phase of a coffee house."]
        assert output.get("prompt") == f"experience@{prompt_digest(texts[0])}"


@pytest.mark.slow
async def test_a_prompt_comes_from_a_file_and_the_thread_has_its_hash_and_once_its_text(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("You are the experience phase of a tea house.\n")
    (tmp_path / "chain.toml").write_text('[prompts]\nexperience = "mine.md"\n')
    ledger = await known()
    async with chain_on(ledger, config=tmp_path / "chain.toml") as chain:
        result = await chain.run(QUESTION)
        rows = await said_in(ledger, result.thread_id)
    prepared = [
        thaw(row.payload.result)["context"]
        for row in rows
        if isinstance(row.payload, OptionResultPayload) and row.payload.option_name == "PREPARE_CONTEXT"
    ]
    assert prepared[0]["metadata"]["prompt"] == "action@2"
    assert prepared[1]["metadata"]["prompt"] == "experience@fe3b97f0e867"
    assert prepared[0]["messages"][0]["content"].startswith("You are the action phase")
    assert prepared[1]["messages"] == []
    (own,) = [row for row in rows if "of a tea house" in row.model_dump_json()]
    assert (own.lane, own.text) == ("talk", "You are the experience phase of a tea house.")

    (tmp_path / "mine.md").write_text("  \n")
    with pytest.raises(ConfigError, match=r"prompts.experience: .*mine.md is empty"):
        PostChain(config=tmp_path / "chain.toml")
    (tmp_path / "mine.md").unlink()
    with pytest.raises(ConfigError, match=r"prompts.experience: .*mine.md: No such file"):
        PostChain(config=tmp_path / "chain.toml")
