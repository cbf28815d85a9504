"""What the talk has of a call that failed: its code, its reason and whether to try again; the model is told one text."""

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, ModelRequest
from tests.agents.durability.agents import Desk, script
from tests.agents.toolkit.kit import call, returns, rows

from antiphon.agents import LedgerDurability
from antiphon.agents.durability._prompt import dump
from antiphon.agents.durability._talk import restore
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionResultPayload

DONE = ("done",)


async def dive(city: str) -> str:
    """Look under water."""
    if city == "atlantis":
        raise OSError("under water (again)")
    if city == "ys":
        raise ToolFailed("it is sunk (FOR_GOOD)")
    return "dry"


def _agent(ledger: Ledger, *turns: Any) -> Agent[None, str]:
    toolkit = Toolkit()
    toolkit.add(dive, to=["clerk"], effects="none")
    toolkit.add(dive, name="deny", effects="none")
    toolkit.grant("clerk", "deny", where={"properties": {"city": {"const": "nowhere"}}})
    capabilities = [LedgerDurability(ledger), toolkit.capability("clerk")]
    return Agent(script(Desk(), *turns), name="clerk", capabilities=capabilities)


async def _run(ledger: Ledger, *turns: Any, thread: str = "t", **more: Any) -> list[ModelMessage]:
    async with ledger_run(thread, ledger=ledger):
        return (await _agent(ledger, *turns).run("go", **more)).all_messages()


def _failures(messages: list[Message]) -> list[tuple[str | None, str | None, bool | None]]:
    found = [each.payload for each in messages if each.lane == "talk" and isinstance(each.payload, OptionResultPayload)]
    return [(each.error_type, each.error_message, each.retryable) for each in found if each.is_error]


ATLANTIS = "it failed with OSError: under water (again)"


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "reason", "retryable"),
    [
        ("dive", {"city": "atlantis"}, "OSError", ATLANTIS, True),
        ("dive", {"city": "ys"}, "TOOL_FAILED", "it is sunk (FOR_GOOD)", False),
        ("dive", {}, "INVALID_ARGUMENTS", None, False),
        ("deny", {"city": "ys"}, "PERMISSION_DENIED", None, False),
    ],
)
async def test_a_failed_call_of_an_agent_is_talk_with_its_code_its_reason_and_whether_to_retry(
    tool: str, arguments: dict[str, Any], code: str, reason: str | None, retryable: bool
) -> None:
    """G14: the talk says of a failure what the effect does; `error_type` is no name of a tool."""
    # Mutant: return `message` in `ToolFailures.coded` (agents/durability/_failures.py) -> this test is red.
    ledger = MemoryLedger()
    messages = await _run(ledger, (call(tool, "c1", **arguments),), DONE)
    ((found, words, again),) = _failures(await rows(ledger))
    assert (found, again) == (code, retryable)
    assert reason in (None, words)
    assert returns(messages) == [("failed", f"{tool}: {words} ({code})")]  # what prompts in flight were hashed with


async def test_the_talk_gives_back_exactly_what_the_model_got() -> None:
    """G10: three results of one request, two of them failures; each row gives its own text back."""
    ledger = MemoryLedger()
    calls = [call("dive", f"c{number}", city=city) for number, city in enumerate(("atlantis", "oslo", "ys"), 1)]
    messages = await _run(ledger, calls, DONE)
    (request,) = [each for each in messages[1:] if isinstance(each, ModelRequest)]
    results = [row for row in await rows(ledger) if row.lane == "talk" and row.kind == "option_result"]
    (unit,) = dump([request])
    assert restore(results) == {**unit, "conversation_id": None}
    assert [each[0] for each in _failures(results)] == ["OSError", "TOOL_FAILED"]


async def test_a_given_history_is_stored_with_the_codes_of_its_texts() -> None:
    """The error text of another run has the code in it, but not whether to retry."""
    first, second = MemoryLedger(), MemoryLedger()
    history = await _run(first, (call("dive", "c1", city="atlantis"),), DONE)
    await _run(second, DONE, thread="other", message_history=history)
    assert _failures(await rows(second, "other")) == [("OSError", ATLANTIS, None)]


async def test_an_error_text_that_begins_with_the_name_of_the_tool_is_no_error_type() -> None:
    """`sink: it leaks` is a text, not an error of the type `sink`."""
    ledger = MemoryLedger()
    agent = _agent(ledger, (call("sink", "c1"),), DONE)

    @agent.tool_plain
    def sink() -> str:
        raise ToolFailed("sink: it leaks")

    async with ledger_run("t", ledger=ledger):
        result = await agent.run("go")
    assert returns(result.all_messages()) == [("failed", "sink: it leaks")]
    assert _failures(await rows(ledger)) == [("Error", "sink: it leaks", None)]
