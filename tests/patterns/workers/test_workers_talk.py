"""Messages come back unchanged from a thread; sensitive values are taken out, and put back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patterns.chains import run

from antiphon.agents.toolkit import Toolkit, ToolkitTool
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.durable import ledger_run
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.workers import _workers as vaults
from antiphon.patterns.workers import conversation
from antiphon.patterns.workers._conversation import say, say_now, structured
from antiphon.patterns.workers._workers import SensitiveArguments

WORDS = st.text(st.characters(codec="utf-8", categories=("L", "Nd", "Zs")), min_size=1, max_size=30)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,15}", fullmatch=True)
TYPES = st.sampled_from([each.value for each in MessageType if not each.startswith("tool")])
DATA = st.dictionaries(NAMES.map("x_{}".format), st.none() | st.booleans() | st.integers(-9, 9) | WORDS, max_size=4)


@pytest.mark.slow
@given(TYPES, WORDS, st.tuples(NAMES, NAMES, NAMES), DATA)
def test_messages_of_agents_come_back_unchanged(
    kind: str, content: str, names: tuple[str, str, str], data: dict[str, Any]
) -> None:
    """AT-047, AT-048, AT-051, AT-056: text, task, source, target and metadata of every type; a repeat changes nothing."""
    task_id, source, target = names
    message = StructuredMessage(content, {**data, "type": kind}, task_id, source_agent=source, target_agent=target)

    async def main() -> list[StructuredMessage]:
        ledger = MemoryLedger()
        for _ in range(2):
            async with ledger_run("t", ledger=ledger):
                await say(message, "said")
        return structured(await conversation(ledger, "t", reports=True))

    (back,) = run(main())
    for field in ("content", "metadata", "task_id", "source_agent", "target_agent", "tool_calls", "tool_results"):
        assert getattr(back, field) == getattr(message, field), field


@pytest.mark.filterwarnings("ignore::antiphon.durable.DurabilityWarning")  # reports are no steps of the run
def test_every_report_is_stored_and_outside_of_a_run_none_is() -> None:
    """AT-063: a program that runs again may report something else."""
    status = StructuredMessage.create_status("half done", source_agent="ada", target_agent="user")

    async def main() -> int:
        ledger = MemoryLedger()
        await say(status, "said")
        await say_now(status)
        async with ledger_run("t", ledger=ledger):
            await say_now(status)
            await say_now(status)
        async with ledger_run("t", ledger=ledger):
            await say_now(status)  # it is finished: nothing is at work
        assert len(await conversation(ledger, "t")) == 0
        return len(await conversation(ledger, "t", reports=True))

    assert run(main()) == 2


# ---------------------------------------------------------------- the sensitive


def log_in(name: str, pin: str) -> str:
    """Log in."""
    return name + pin


def _tools() -> dict[str, ToolkitTool]:
    return {"log_in": Toolkit().add(log_in, sensitive=("pin",))}


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["log_in", "other"]), WORDS), max_size=4))
def test_sensitive_values_are_taken_out_and_put_back(calls: list[tuple[str, str]]) -> None:
    """AT-053, BP7."""
    message, sensitive = StructuredMessage("go"), SensitiveArguments()
    for name, pin in calls:
        message.add_tool_call(name, {"name": "ada", "pin": f"secret {pin}"})

    bare = sensitive.take_out(message, _tools())

    kept = [call["arguments"]["pin"] for call in bare.tool_calls if call["name"] == "log_in"]
    assert set(kept) <= {"[redacted:sensitive]"}
    assert sensitive.put_back(bare) == message
    sensitive.drop(message)
    assert sensitive.put_back(bare) == bare


def test_values_that_nobody_puts_back_are_released(monkeypatch: Any) -> None:
    monkeypatch.setattr(vaults, "_MOST", 2)
    sensitive, bare = SensitiveArguments(), list[StructuredMessage]()
    for number in range(3):
        message = StructuredMessage("go", message_id=f"m{number}")
        message.add_tool_call("log_in", {"name": "ada", "pin": f"secret {number}"})
        bare.append(sensitive.take_out(message, _tools()))

    found = [sensitive.put_back(each).tool_calls[0]["arguments"]["pin"] for each in bare]

    assert found == ["[redacted:sensitive]", "secret 1", "secret 2"]
