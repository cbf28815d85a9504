"""The four flows of the seed, out of the ledger of real runs, each judged by the automaton that declares it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.patterns.chains import run

from antiphon.dialects.atlas import StructuredMessage
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message
from antiphon.patterns.workers import conversation
from antiphon.protocol.flows import find_flow

EXAMPLE = Path(__file__).parents[3] / "examples" / "four_flows.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("four_flows", EXAMPLE)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def played(name: str) -> tuple[list[Message], list[StructuredMessage]]:
    """Run one flow of the example, and return the messages that its automaton judges, and all as Atlas writes them."""

    async def main() -> tuple[list[Message], list[StructuredMessage]]:
        module, ledger = example(), MemoryLedger()
        async with module.workers(ledger) as team:
            thread_id = await module.FLOWS[name](team)
            said = list(await conversation(ledger, thread_id, tools=name == "tool-execution"))
            assert (await module.judged(ledger, name, thread_id)).state == "complete"
            return said, await team.messages(thread_id)

    return run(main())


TOOLS = ["counter -> tools: tool_request", "tools -> counter: tool_response"]
"""What counter says when it counts."""


def ways(messages: list[StructuredMessage]) -> list[str]:
    return [f"{each.source_agent} -> {each.target_agent}: {each.message_type}" for each in messages]


def test_a_question_is_answered_by_a_response() -> None:
    """AT-043: User → [Query Message] → Agent → [Response Message] → User."""
    messages, said = played("request-response")

    assert ways(said) == ["user -> editor: query", "editor -> user: response"]
    assert {each.task_id for each in said} == {"hello"}
    flow = find_flow("request-response")
    assert flow.check(messages).state == "complete"
    assert flow.check(messages[:1]).state == "open"
    assert flow.check(reversed(messages), user="user").state == "violated"


@pytest.mark.slow
def test_a_controller_gives_a_task_and_gets_its_result() -> None:
    """AT-044: Controller → [Task Message] → Worker → [Result Message] → Controller, one task_id for both."""
    messages, said = played("task-delegation")

    assert ways(said) == [
        "user -> controller: query",
        "controller -> counter: task",
        *TOOLS,
        "counter -> controller: result",
        "controller -> user: response",
    ]
    task, result = said[1], said[4]
    assert task.task_id == result.task_id == result.metadata["in_reply_to"]
    inner = messages[1:3]
    flow = find_flow("task-delegation")
    assert flow.check(inner, controller="controller").state == "complete"
    assert flow.check(inner, controller="counter").state == "violated"
    assert flow.check([inner[0], inner[0]]).state == "violated"


def test_an_agent_uses_tools_before_it_answers() -> None:
    """AT-045: User → [Query] → Agent → [Tool Request] → Tools → [Tool Results] → Agent → [Response] → User."""
    messages, said = played("tool-execution")

    assert ways(said) == ["user -> counter: query", *TOOLS * 2, "counter -> user: response"]
    assert {each.task_id for each in said} == {"tools"}
    assert [each.tool_results for each in said if each.message_type == "tool_response"] == [
        [{"name": "count_words", "call_id": said[number].tool_calls[0]["id"], "result": 3, "status": "success"}]
        for number in (1, 3)
    ]
    assert [message.kind for message in messages] == ["parts", *["option_call", "option_result"] * 2, "parts"]
    flow = find_flow("tool-execution")
    assert flow.check(messages).state == "complete"
    assert flow.check([messages[0], messages[-1]], tool="count_words").state == "violated"


def test_the_result_of_one_worker_goes_to_another_and_the_last_one_to_the_controller() -> None:
    """AT-046: Worker A → [Intermediate Result] → Worker B → [Final Result] → Controller; one task_id, a reply_to (A20)."""
    messages, said = played("collaboration")

    assert ways(said)[1:6] == [
        "controller -> counter: task",
        *TOOLS,
        "counter -> editor: result",
        "editor -> controller: result",
    ]
    task, step, end = said[1], *said[4:6]
    assert task.task_id == step.task_id == end.task_id
    assert step.metadata["reply_to"] == "controller"
    assert "It has 4 words." in end.content
    flow = find_flow("collaboration")
    inner = messages[1:4]
    assert flow.check(inner, controller="controller").state == "complete"
    assert flow.check(inner[:2]).state == "open"
    assert flow.check([inner[0], inner[2]]).state == "violated"


@pytest.mark.parametrize("name", ["request-response", "task-delegation", "tool-execution", "collaboration"])
async def test_every_call_has_exactly_one_result(name: str) -> None:
    """AT-047, G10: every request in the thread has its answer there."""
    module, ledger = example(), MemoryLedger()
    async with module.workers(ledger) as team:
        thread_id = await module.FLOWS[name](team)
    talk = await conversation(ledger, thread_id, tools=True, reports=True)
    assert not list(talk.open_calls())
    assert not list(talk.orphans())
    assert not await ledger.open_calls(thread_id)


@pytest.mark.slow
def test_the_example_says_that_every_flow_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    run(example().main(None))

    verdicts = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": complete")]
    assert verdicts == [f"{name}: complete" for name in example().FLOWS]
