"""Tool results reach the answer: exactly, cited by the call, and whatever a model makes of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.cli.running import start
from tests.patterns.chains import QUESTION, known, run, said_in

from antiphon.ledger import open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionResultPayload, thaw
from antiphon.patterns.postchain import ChainConfig, ChainResult, PostChain
from antiphon.patterns.postchain._retrieval import brief, items_given
from antiphon.protocol import AgentConfig, ToolCall
from antiphon.service._models import ChainOptions, chain_options, expressions_in

ARITHMETIC = "What is 17 * 23?"


def _given_in(rows: list[Message], invocation: str) -> Any:
    """Return what a tool gave, as the thread has it."""
    (found,) = [
        row.payload
        for row in rows
        if row.lane == "talk" and isinstance(row.payload, OptionResultPayload) and row.invocation_id == invocation
    ]
    return thaw(found.result)


def _ask(question: str, *, model: Any = "scripted", **more: Any) -> tuple[ChainResult, list[Message]]:
    async def main() -> tuple[ChainResult, list[Message]]:
        ledger = await known(MemoryLedger())
        async with PostChain(ledger, model=model, grace=5, **more) as chain:
            result = await chain.run(question)
            return result, await said_in(ledger, result.thread_id)

    return run(main())


@pytest.mark.slow
def test_the_result_of_the_calculator_is_in_the_answer_and_cited_by_its_call() -> None:
    """CH-126: an ADD in the phase that called it, word for word what is in the thread under that call."""
    result, rows = _ask(ARITHMETIC)
    (called,) = result.outputs["action"]["tool_calls"]
    (citation,) = result.citations

    assert called == {"id": citation["id"], "name": "calculator", "arguments": {"expression": "17 * 23"}}
    assert _given_in(rows, citation["id"]) == citation["quote"] == "391"
    assert citation["source"] == "calculator(expression='17 * 23')"
    assert result.response == (
        "Scripted answer, no language model was asked. calculator(expression='17 * 23') gave 391 [1].\n\n"
        f"Sources:\n[1] calculator(expression='17 * 23') ({citation['id']}): 391"
    )
    processed = next(row.payload for row in rows if row.policy == "action/1" and row.to and row.to[0].startswith("thread/"))
    added = [each["item"] for each in thaw(processed.result)["output"]["context_operations"] if each["operation"] == "ADD"]
    assert [(item["id"], item["source"], item["text"]) for item in added][-1] == (citation["id"], "tool", "391")


@pytest.mark.slow
def test_the_text_of_a_model_changes_no_cited_result() -> None:
    """A model that has never heard of the result cannot keep it out of the answer."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if info.function_tools and not any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse([ToolCallPart("calculator", {"expression": "17 * 23"}, tool_call_id="c-1")])
        return ModelResponse([TextPart("It is 42, trust me.")])

    result, _ = _ask(ARITHMETIC, model=FunctionModel(answer))

    assert result.response == ("It is 42, trust me.\n\nSources:\n[1] calculator(expression='17 * 23') (c-1): 391")


@pytest.mark.slow
def test_tools_that_find_things_give_them_by_their_own_ids() -> None:
    """What an agent looked up and what a phase found is one source, once."""
    result, rows = _ask(QUESTION)
    (citation,) = result.citations
    (called,) = result.outputs["action"]["tool_calls"]

    assert called["name"] == "knowledge_base"
    assert citation["id"] in [each["id"] for each in _given_in(rows, called["id"])]
    assert citation["quote"] == "Green tea is steeped at 80 degrees for two minutes."


@pytest.mark.slow
def test_a_call_that_failed_or_found_nothing_gives_nothing() -> None:
    """Nobody cites an error, or an empty list."""
    calls = [ToolCall(id="c-1", name="look"), *(ToolCall(id="c-2", name="look", result=nothing) for nothing in ([], "", None))]

    assert items_given(calls, QUESTION) == []

    def broken(query: str) -> str:
        raise ValueError("the shelf fell down")

    broken.__name__ = "knowledge_base"
    result, _ = _ask(QUESTION, tools=[broken], config=ChainConfig(attempts=1, restarts=0, max_sources=0))
    assert result.citations == ()


@pytest.mark.parametrize(
    ("result", "text"),
    [(0, "0"), (False, "false"), ({"degrees": 4}, '{"degrees":4}'), (["a", "b"], '["a","b"]'), ("x" * 5000, "x" * 600)],
)
def test_any_other_result_of_a_tool_is_one_source_of_bounded_length(result: Any, text: str) -> None:
    """CH-118: the ledger has all of it; the context has a part of bounded size."""
    call = ToolCall(id="c-1", name="look", arguments={"what": "it\nall", "how": "y" * 200}, result=brief(result))
    (item,) = items_given([call], QUESTION)

    assert (item.id, item.source, item.text, item.priority) == ("c-1", "tool", text, 1.0)
    assert len(item.title) <= 120
    assert "\n" not in item.title


def test_an_earlier_message_is_cited_by_its_id() -> None:
    found = [{"id": "m-1", "thread": "t-1", "by": "user", "said_at": "", "text": "Green tea is hot."}]
    (item,) = items_given([ToolCall(id="c-1", name="memory_retrieval", result=brief(found))], QUESTION)

    assert (item.id, item.source, item.title, item.priority) == ("m-1", "memory", "said in t-1", 0.75)


@pytest.mark.slow
def test_a_tool_of_a_later_phase_reaches_the_answer_too() -> None:
    config = ChainConfig(phases={"intention": AgentConfig(tools=("calculator",)), "action": AgentConfig(tools=())})
    result, _ = _ask(ARITHMETIC, config=config)

    assert [each["quote"] for each in result.citations] == ["391"]


# ---------------------------------------------------------------- the small model


@pytest.mark.slow
def test_a_small_model_is_offered_only_expressions_of_the_question() -> None:
    """It copies badly, so it can call the calculator only with these expressions. Code searches the documents."""
    offered: list[dict[str, Any]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered.extend({tool.name: tool.parameters_json_schema["properties"]} for tool in info.function_tools)
        return ModelResponse([ToolCallPart(info.output_tools[0].name, {"source": "none"})])

    for question in (ARITHMETIC, QUESTION):
        options = chain_options("local")
        _ask(question, model=FunctionModel(answer), config=options.config, tools=options.tools)

    assert offered == [{"calculator": {"expression": {"type": "string", "enum": ["17 * 23"]}}}]
    assert expressions_in("From 2024-01-02 (or 3/4) to 4+4, 10 - 3, and (2 + 3) * 4 / 0.") == ["4+4", "10 - 3"]


def test_a_configuration_goes_before_the_settings_for_the_small_model() -> None:
    action = AgentConfig(max_tokens=9)
    given = ChainConfig(attempts=2, max_sources=1, prompts={"experience": Path("own.md")}, phases={"action": action})
    used = chain_options("local", given).config

    assert used is not None
    assert (used.outputs, used.max_tokens, used.fallback, used.attempts, used.max_sources) == ("quotes", 32, "scripted", 2, 1)
    assert (used.phases["action"].tools, used.phases["action"].max_tokens) == (("calculator",), 9)
    assert used.phases["experience"].system_prompt is None, "the file is not read if the phase has a prompt"
    for own in (given, given.model_copy(update={"outputs": "text"})):
        assert chain_options("openai:gpt-4o", own) == ChainOptions(own)
    longer = chain_options("local", ChainConfig(max_tokens=500)).config
    assert longer is not None
    assert [longer.agent(phase).max_tokens for phase in ("action", "yield")] == [500, 500]
    prose = ChainConfig(outputs="typed")
    assert chain_options("local", prose) == ChainOptions(prose)
    assert chain_options("openai:gpt-4o") == ChainOptions(None)


@pytest.mark.slow
def test_the_local_model_calculates_exactly(tmp_path: Path) -> None:
    """`antiphon run` on the real small model: whatever its prose is, the calculator's result is below it."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    done = start("run", ARITHMETIC, "--model", "local", "--quiet", "--ledger", url)

    assert done.returncode == 0, done.stderr.decode()
    (source,) = done.stdout.decode().split("\n\nSources:\n")[1].splitlines()
    assert source.startswith("[1] calculator(expression='17 * 23') (")
    assert source.endswith("): 391")

    async def main() -> Any:
        async with open_ledger(url) as ledger:
            (thread,) = [each for each in (await ledger.threads()).threads if each.pattern == "postchain"]
            return _given_in(await said_in(ledger, thread.thread_id), source.split("(")[2].split(")")[0])

    assert asyncio.run(main()) == "391"
