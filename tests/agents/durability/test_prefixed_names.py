"""Tools that a model calls by another spelling of their name: the rule is that of the formats."""

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.agents.toolkit._atlas import AgentToolkit, FunctionTool
from antiphon.dialects.marsys import sanitize_tool_name
from antiphon.durable import ledger_run
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload

NAMES = ("functions.get_weather", "functions.functions.get_weather", "get weather")


@pytest.mark.parametrize("name", NAMES)
async def test_a_tool_runs_under_every_name_that_conversion_accepts(name: str) -> None:
    """MA-049: by a durable agent and by a toolkit; what is recorded is the name of the tool."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        is_first = len(messages) == 1
        return ModelResponse([ToolCallPart(name, {}, tool_call_id="c-1") if is_first else TextPart("Warm.")])

    ledger = MemoryLedger()
    agent = Agent(FunctionModel(answer), name="clerk", capabilities=[LedgerDurability(ledger)])
    ran: list[str] = []

    @agent.tool_plain
    def get_weather() -> str:
        ran.append(name)
        return "18"

    for _ in range(2):
        async with ledger_run("t"):
            assert (await agent.run("How warm is it?")).output == "Warm."
    rows = [record.message async for record in ledger.read("t") if record.message.lane == "talk"]
    (call,) = [row.payload for row in rows if isinstance(row.payload, OptionCallPayload)]
    assert (ran, call.option_name) == ([name], sanitize_tool_name(name))

    toolkit = Toolkit()
    toolkit.tool(effects="none", name="get_weather")(_weather)
    toolkit.grant("clerk", "get_weather")
    assert (await toolkit.call("clerk", name, {})).result == "18"


@pytest.mark.parametrize("name", NAMES)
def test_a_toolkit_of_atlas_accepts_the_same_names(name: str) -> None:
    """MA-049, AT-038: `execute_tool` checks that the tool exists."""
    toolkit = AgentToolkit()
    toolkit.register_tool(FunctionTool(_weather, "get_weather"))
    toolkit.grant_permission("clerk", "get_weather")
    assert toolkit.execute_tool("clerk", name) == "18"


async def _weather() -> Any:
    """Return the temperature."""
    return "18"
