"""Agents that exist, in a cast and in the patterns: `AgentSpec(agent=my_agent)`."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from antiphon.agents import LedgerDurability
from antiphon.agents.models import Script, ScriptedModel
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import SetupError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec, Answer, Cast, Patience
from antiphon.patterns.options import Options
from antiphon.patterns.peers import Peers, star
from antiphon.patterns.workers import Workers


@dataclass
class Shelf:
    """The dependencies of the agent, and what happened."""

    seen: list[str] = field(default_factory=list)


def librarian(**more: Any) -> Agent[Shelf, str]:
    """Return an agent as a program makes it that knows nothing of casts."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = messages[0]
        assert isinstance(asked, ModelRequest)
        returned = [part.content for part in messages[-1].parts if part.part_kind == "tool-return"]
        if not returned:
            return ModelResponse([ToolCallPart("find", {"title": "Emma"}, tool_call_id="f1")])
        return ModelResponse([TextPart(f"{returned[0]} [{info.instructions}]")])

    agent = Agent(
        FunctionModel(answer, model_name="librarian"),
        name="librarian",
        deps_type=Shelf,
        instructions="You know the shelves.",
        **more,
    )

    @agent.tool
    async def find(ctx: RunContext[Shelf], title: str) -> str:
        """Find a book."""
        ctx.deps.seen.append(title)
        return f"{title} is on shelf 4"

    return agent


@pytest.mark.parametrize("is_durable", [False, True])
async def test_an_agent_that_exists_is_asked_durably_with_its_own_tools_and_model(is_durable: bool) -> None:
    ledger, shelf = MemoryLedger(), Shelf()
    for _ in range(2):
        more = {"capabilities": [LedgerDurability[Shelf](ledger)]} if is_durable else {}
        spec = AgentSpec(agent=librarian(**more), deps=shelf, instructions="Be brief.")
        assert spec.name == "librarian"
        cast = Cast(ledger, [spec], model=TestModel())
        async with ledger_run("t", ledger=ledger):
            answer = await cast.ask("librarian", "Where is Emma?", instructions="In English.")
    assert answer.output == "Emma is on shelf 4 [You know the shelves.\n\nBe brief.\n\nIn English.]"
    assert [call.tool_name for call in answer.calls] == ["find"]
    assert shelf.seen == ["Emma"]


class Place(BaseModel):
    shelf: int


async def test_it_has_the_tools_of_the_toolkit_that_it_names_and_the_output_that_is_asked_for() -> None:
    ledger, offered = MemoryLedger(), list[str]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered[:] = [tool.name for tool in info.function_tools]
        return ModelResponse([ToolCallPart(info.output_tools[0].name, {"shelf": 4})])

    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def weather() -> str:
        """Look out of the window."""
        return "rain"

    agent = Agent(FunctionModel(answer), name="ada")
    cast = Cast(ledger, [AgentSpec(agent=agent, tools=("weather",))], toolkit=toolkit)
    async with ledger_run("t", ledger=ledger):
        found: Answer[Place] = await cast.ask("ada", "Where?", output=Place)
    assert found.output == Place(shelf=4)
    assert offered == ["weather"]


@pytest.mark.slow
async def test_its_words_are_heard_while_they_arrive() -> None:
    ledger, heard = MemoryLedger(), list[str]()
    agent = Agent(TestModel(custom_output_text="Good morning!"), name="ada")
    cast = Cast(ledger, [AgentSpec(agent=agent)])
    async with ledger_run("t", ledger=ledger):
        await cast.ask("ada", "Hello.", on_text=heard.append)
    assert "".join(heard) == "Good morning!"


async def test_its_failing_model_is_asked_as_often_as_the_cast_is_patient() -> None:
    ledger, asked = MemoryLedger(), list[int]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(1)
        raise ConnectionError("no network")

    cast = Cast(ledger, [AgentSpec(agent=Agent(FunctionModel(answer), name="ada"))], patience=Patience(backoff=0, attempts=2))
    with pytest.raises(Exception, match="no network"):
        async with ledger_run("t", ledger=ledger):
            await cast.ask("ada", "Hello.")
    assert asked


def test_settings_of_an_existing_agent_cannot_be_given_again() -> None:
    agent = librarian()
    for given in ({"model": "test"}, {"fallback": "test"}, {"temperature": 0.5}, {"max_tokens": 5}):
        with pytest.raises(ValidationError, match=f"an agent that exists has its own {next(iter(given))}: set it there"):
            AgentSpec(agent=agent, **given)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="the agent has no name: give one"):
        AgentSpec(agent=Agent(TestModel()))
    with pytest.raises(ValidationError, match="deps are for an agent that exists"):
        AgentSpec(name="ada", deps=1)
    with pytest.raises(ValidationError, match="name"):
        AgentSpec()
    named = AgentSpec(name="ada", agent=Agent(TestModel()))
    assert (named.name, "agent" in named.model_dump(), hash(named)) == ("ada", False, hash("ada"))


async def test_a_tool_for_one_request_is_refused() -> None:
    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(agent=librarian())])

    def look() -> str:
        """Look."""
        return ""

    with pytest.raises(SetupError, match="'librarian' exists, and cannot be given 'look' for a run"):
        async with ledger_run("t", ledger=ledger):
            await cast.ask("librarian", "Where?", toolset=[Tool(look)])


def test_a_policy_is_no_agent_that_exists() -> None:
    with pytest.raises(ValueError, match="'librarian' exists, and a policy is only its model and instructions"):
        Options().add_agent(AgentSpec(agent=librarian()))


# ---------------------------------------------------------------- patterns


def asking(tool: str, **arguments: str) -> ScriptedModel:
    call = {"tool": tool, "arguments": arguments}
    turns = [{"calls": [call]}, {"text": "Found: {result}"}]
    return ScriptedModel(Script.model_validate({"rules": [{"when": "^Write", "turns": turns}]}))


async def ask_peers(ledger: Ledger, shelf: Shelf) -> str:
    agents = [AgentSpec(name="writer"), AgentSpec(agent=librarian(), deps=shelf)]
    model = asking("invoke_agent", target="librarian", request="Where is Emma?")
    async with Peers(ledger, agents, topology=star("writer", ["librarian"]), model=model) as peers:
        return str((await peers.run("Write a line.", thread_id="t")).response)


async def ask_workers(ledger: Ledger, shelf: Shelf) -> str:
    model = asking("assign_task", worker="librarian", task="Where is Emma?")
    worker = AgentSpec(agent=librarian(), deps=shelf, instructions="You find books.")
    async with Workers(ledger, [worker], model=model) as team:
        return str((await team.run("Write a line.", thread_id="t")).response)


@pytest.mark.parametrize("ask", [ask_peers, ask_workers])
async def test_a_pattern_takes_an_agent_that_exists(ask: Any) -> None:
    ledger, shelf = MemoryLedger(), Shelf()
    for _ in range(2):  # the second time, it is taken from the ledger
        assert "Emma is on shelf 4" in await ask(ledger, shelf)
    assert shelf.seen == ["Emma"]
