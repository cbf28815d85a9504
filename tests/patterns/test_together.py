"""Patterns that work together: a thread of one calls another; one ledger, one thread, and it survives."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents.toolkit import Toolkit
from antiphon.ledger import heads_of, replay
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload
from antiphon.patterns.cast import AgentSpec, together
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.postchain._lifecycle import LIFE
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import Workers
from antiphon.protocol import PHASES, AgentConfig


def calls(tool: str, **arguments: Any) -> Callable[[list[ModelMessage], AgentInfo], ModelResponse]:
    """Stand in for a model that calls a tool once, and reports the result."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last: Any = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse([TextPart(f"They say: {last.content}")])
        return ModelResponse([ToolCallPart(tool, arguments, tool_call_id=f"call-{tool}")])

    return answer


def says(text: str) -> FunctionModel:
    return FunctionModel(lambda messages, info: ModelResponse([TextPart(text)]))


async def test_a_peer_delegates_to_workers_in_the_same_thread() -> None:
    ledger = MemoryLedger()
    workers = Workers(ledger, [AgentSpec(name="worker")], controller=AgentSpec(name="controller"), model=says("391"))
    team = workers.as_tool("bureau", "Have something worked out.")
    clerk = PeerSpec(name="clerk", tools=("bureau",))
    peers = Peers(ledger, [clerk], model=FunctionModel(calls("bureau", task="17*23?")), tools=[team])
    async with together(peers, workers):
        for _ in range(2):  # the second time it is what is recorded
            outcome = await peers.run("How much is it?", thread_id="t")
            assert outcome.response == "They say: 391"
    rows = [record.message async for record in ledger.read("t")]
    asked = [row.to for row in rows if row.lane == "control" and isinstance(row.payload, OptionCallPayload)]
    assert asked == [("peer/clerk",), ("controller/controller",)]
    threads = {head.thread_id for head in await heads_of(ledger) if not head.thread_id.startswith("system/")}
    assert threads == {"t"}


@pytest.mark.slow
async def test_a_phase_delegates_to_a_team_in_the_thread_of_the_chain() -> None:
    """The chain can be asked once: the second time the answer is the recorded one, and the team is not asked again."""
    ledger, asked = MemoryLedger(), list[str]()
    team = Team(ledger, [AgentSpec(name="bob")], model=FunctionModel(_plays(asked)))
    chain = PostChain(
        ledger,
        model=FunctionModel(calls("bureau", task="Find the price.")),
        tools=[team.as_tool("bureau", "Have something found out.")],
        config=ChainConfig(max_sources=0, phases={"action": AgentConfig(tools=("bureau",))}),
    )
    async with together(chain, team):
        result = await chain.run("What does it cost?")
    assert result.status == "completed", result.error_message
    assert "5 euros" in result.outputs["action"]["response"]
    rows = [record.message async for record in ledger.read(result.thread_id)]
    asks = [row.to[0] for row in rows if row.lane == "control" and isinstance(row.payload, OptionCallPayload) and row.to]
    assert [to for to in asks if to.startswith(("orchestrator/", "worker/"))] == [
        "orchestrator/orchestrator",
        "worker/bob",
    ]
    assert asked == ["plan", "work"]
    assert not await ledger.open_calls(result.thread_id)


@pytest.mark.slow
async def test_a_peer_delegates_to_a_chain_in_the_same_thread() -> None:
    """The phases answer once, in the thread of the peer; the chain has no life there, and asking again gives the record."""
    ledger, asked = MemoryLedger(), list[str]()
    chain = PostChain(ledger, model=_noting(asked, "80 degrees"), config=ChainConfig(max_sources=0))
    tool = chain.as_tool("tea", "Ask about tea.")
    clerk = PeerSpec(name="clerk", tools=("tea",))
    peers = Peers(ledger, [clerk], model=FunctionModel(calls("tea", task="How hot?")), tools=[tool])
    async with together(peers, chain):
        for _ in range(2):
            outcome = await peers.run("Ask how hot it is.", thread_id="t")
            assert outcome.response == "They say: 80 degrees"
    assert len(asked) == len(PHASES)
    summary = await ledger.thread("t")
    assert summary is not None
    assert (summary.pattern, summary.status) == ("peers", "completed")
    assert (await replay(ledger, "t", LIFE.fold())).status == "none"
    assert not await ledger.open_calls("t")
    threads = {head.thread_id for head in await heads_of(ledger) if not head.thread_id.startswith("system/")}
    assert threads == {"t"}


@pytest.mark.slow
async def test_a_phase_that_asks_its_own_chain_is_refused_and_goes_on() -> None:
    """The phases of a thread are done one after the other: to wait for them from inside one would never end."""
    ledger, told = MemoryLedger(), list[str]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last: Any = messages[-1].parts[-1]
        if info.function_tools and last.part_kind == "user-prompt":
            return ModelResponse([ToolCallPart("again", {"task": "How hot?"}, tool_call_id="c")])
        told.append(str(last.content))
        return ModelResponse([TextPart("80 degrees")])

    config = ChainConfig(max_sources=0, phases={"action": AgentConfig(tools=("again",))})
    toolkit = Toolkit()
    chain = PostChain(ledger, model=FunctionModel(answer), config=config, toolkit=toolkit)
    toolkit.add(chain.as_tool("again", "Ask once more."))
    async with chain:
        result = await chain.run("How hot is it?")
        inside = await chain.run_inside("How hot?", "t")
    assert (result.status, result.response) == ("completed", "80 degrees")
    assert "at work in this thread" in told[0]
    assert (inside.status, inside.error_message) == ("completed", None)
    assert not await ledger.open_calls(result.thread_id)


async def test_a_model_gets_the_failure_of_a_chain_that_is_its_tool() -> None:
    ledger = MemoryLedger()

    def refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise UserError("no model")

    chain = PostChain(
        ledger, model=FunctionModel(refuse), config=ChainConfig(max_sources=0, attempts=1, backoff=0, restarts=0)
    )
    told = list[str]()

    def ask(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last: Any = messages[-1].parts[-1]
        if last.part_kind in ("retry-prompt", "tool-return"):
            told.append(str(last.content))
            return ModelResponse([TextPart("It has failed.")])
        return ModelResponse([ToolCallPart("tea", {"task": "How hot?"}, tool_call_id="c")])

    tools = [chain.as_tool("tea", "Ask about tea.")]
    peers = Peers(ledger, [PeerSpec(name="clerk", tools=("tea",))], model=FunctionModel(ask), tools=tools)
    async with together(peers, chain):
        outcome = await peers.run("Ask.", thread_id="t")
    assert outcome.response == "It has failed."
    assert "tea has failed" in told[0]
    assert not await ledger.open_calls("t")


def _noting(asked: list[str], text: str) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(text)
        return ModelResponse([TextPart(text)])

    return FunctionModel(answer)


async def test_a_worker_of_a_team_is_a_peer_of_others() -> None:
    ledger, asked = MemoryLedger(), list[str]()
    peers = Peers(ledger, [PeerSpec(name="clerk")], model=says("5 euros"))
    worker = AgentSpec(name="bob", tools=("clerks",))
    tools = [peers.as_tool("clerks", "Ask the clerks.")]
    team = Team(ledger, [worker], model=FunctionModel(_plays(asked, "clerks")), tools=tools)
    async with together(team, peers):
        outcome = await team.run("What does it cost?", thread_id="t")
    assert (outcome.status, outcome.response) == ("completed", "They say: 5 euros")
    rows = [record.message async for record in ledger.read("t")]
    assert any(row.to == ("peer/clerk",) for row in rows)


def _plays(asked: list[str], tool: str | None = None) -> Callable[[list[ModelMessage], AgentInfo], ModelResponse]:
    """Stand in for the models of a team: a plan of one phase, and a worker that perhaps asks others."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        (output,) = info.output_tools
        if "phases" in output.parameters_json_schema["properties"]:
            asked.append("plan")
            plan = {"phases": [{"name": "Find", "worker": "bob", "goals": "Find the price."}]}
            return ModelResponse([ToolCallPart(output.name, plan, tool_call_id="plan")])
        asked.append("work")
        last: Any = messages[-1].parts[-1]
        if tool is not None and last.part_kind != "tool-return":
            return ModelResponse([ToolCallPart(tool, {"task": "Find the price."}, tool_call_id="ask")])
        said = "They say: " + str(last.content) if tool is not None else "It is 5 euros."
        return ModelResponse([ToolCallPart(output.name, {"summary": said}, tool_call_id="done")])

    return answer
