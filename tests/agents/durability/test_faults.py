"""Models and tools that misbehave: each thing is one row, is the same the second time, and stops at the budget. F30, F31."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon.agents import AgentBudget, LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import BudgetExceededError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionResultPayload

ROOT = Path(__file__).parents[3]


async def outcomes(ledger: MemoryLedger) -> list[Any]:
    rows = [record.message.payload async for record in ledger.read("t") if record.message.lane == "effect"]
    return [row for row in rows if isinstance(row, OptionResultPayload) and row.option_name == "clerk__model.request"]


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (ModelHTTPError(429, "m", {"error": "slow down"}), "MODEL_HTTP_ERROR", True),
        (ModelHTTPError(500, "m", "<html>"), "MODEL_HTTP_ERROR", True),
        (ModelHTTPError(400, "m", None), "MODEL_HTTP_ERROR", False),
        (ModelConnectionError("m", "cut off"), "MODEL_API_ERROR", True),
        (ModelAPIError("m", "no"), "MODEL_API_ERROR", True),
        (UnexpectedModelBehavior("it said nothing that is JSON"), "UNEXPECTED_MODEL_BEHAVIOR", False),
        (ContentFilterError("it may not say that"), "CONTENT_FILTERED", False),
        (UserError("there is no such model"), "USER_ERROR", False),
        (TimeoutError("it takes too long"), "EFFECT_FAILED", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_an_error_of_a_model_is_one_row_and_the_same_error_the_second_time(
    error: Exception, code: str, retryable: bool
) -> None:
    ledger, desk = MemoryLedger(), Desk()
    for _ in range(2):  # the program goes on from it, so the second time it is taken from the journal
        async with ledger_run("t") as run:
            with pytest.raises(type(error)) as caught:
                await clerk(ledger, desk, script(desk, error)).run("hi")
            await run.effect("go on", {}, _nothing)
        assert str(error) in str(caught.value)
    assert desk.taken() == ["model 0"]
    (row,) = await outcomes(ledger)
    assert (row.is_error, row.error_type, bool(row.retryable)) == (True, code, retryable)


async def _nothing(key: str) -> None:
    return None


@pytest.mark.slow
async def test_a_model_gets_its_mistake_back_and_is_not_asked_again_after_a_crash() -> None:
    """An empty answer, an unknown tool, arguments that are not JSON."""
    ledger, desk = MemoryLedger(), Desk()
    broken = ToolCallPart("look", '{"what": ', tool_call_id="c2")
    turns = ([], [call("fly", "c1")], [broken], [call("look", "c3", what="x")], ["at last"])
    for seen in (["model 0", "model 1", "model 2", "model 3", "look x", "model 4"], []):
        async with ledger_run("t"):
            result = await clerk(ledger, desk, script(desk, *turns), retries=3).run("look")
        assert result.output == "at last"
        assert desk.taken() == seen
    assert len(await outcomes(ledger)) == 5
    assert not await ledger.open_calls("t")


@pytest.mark.slow
async def test_a_thousand_tool_calls_in_one_answer_stop_at_the_budget() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("look", f"c{number}") for number in range(1_000)]),
        name="clerk",
        capabilities=[LedgerDurability(ledger, budget=AgentBudget(tool_calls=10))],
    )

    @agent.tool_plain
    async def look() -> str:
        desk.note("look")
        return "x"

    with pytest.raises(BudgetExceededError, match="10 tool calls"):
        async with ledger_run("t"):
            await agent.run("look")
    assert desk.taken().count("look") <= 10


@pytest.mark.slow
async def test_a_result_that_is_too_large_is_cut_and_told() -> None:
    """F31: the call was made, so it is not parked, and not told as a failure: its outcome is cut."""
    ledger, desk = MemoryLedger(), Desk()

    def answer(messages: Any, info: Any) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("huge", {}, tool_call_id="c1")])
        return ModelResponse([TextPart(str(messages[-1].parts[0].content)[-200:])])

    agent: Agent[None, str] = Agent(FunctionModel(answer), name="clerk", capabilities=[LedgerDurability(ledger)])

    @agent.tool_plain
    async def huge() -> str:
        desk.note("huge")
        return "x" * 100_000_000

    for seen in (["huge"], []):
        async with ledger_run("t"):
            told = (await agent.run("go")).output
        assert "[cut after" in told
        assert desk.taken() == seen


@pytest.mark.slow
def test_the_example_runs_and_does_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specification = importlib.util.spec_from_file_location("durable_agent", ROOT / "examples" / "durable_agent.py")
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    asyncio.run(example.main(f"sqlite:///{tmp_path}/ledger.db"))
    first, second = capsys.readouterr().out.split("the second time:\n")
    assert first.count("the model is asked") == 3
    assert first.count("30 are refunded") == 1
    assert second == "  Order 42 is refunded.\n"
    source = (ROOT / "examples" / "durable_agent.py").read_text()
    assert sum(line.endswith(("# 1", "# 2", "# 3")) for line in source.splitlines()) == 3
