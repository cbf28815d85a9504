"""Answers from quotes: a model that is too small for prose only chooses, and code puts the answer together."""

import json
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.postchain import ChainConfig, ChainResult, Item, PostChain
from antiphon.patterns.postchain._context import ChainContext, PhaseWork
from antiphon.patterns.postchain._retrieval import (
    NOT_IN_SOURCES,
    choice_of,
    choice_prompt,
    contribution,
    likely_items,
    place_of,
    quoted_answer,
)
from antiphon.protocol import PHASES, AgentConfig
from antiphon.retrieval import KnowledgeBase
from antiphon.service import open_chain, phase_talk

TEA = "# Tea\n\nGreen tea is steeped at 80 degrees. It is drunk warm."
POTS = "# Pots\n\nIn a pot, green tea is steeped at 75 degrees."
QUESTION = "At which temperature is green tea steeped?"


class Chooser:
    """A model that gives the number it is told to give, and records what it was asked."""

    def __init__(self, number: str = "1") -> None:
        self.number = number
        self.offered: list[list[str]] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        is_given = any(part.part_kind == "tool-return" for message in messages for part in message.parts)
        if info.function_tools and not is_given:
            return ModelResponse([ToolCallPart("calculator", {"expression": "17 * 23"})])
        (tool,) = info.output_tools
        schema = tool.parameters_json_schema["properties"]["source"]
        numbers = schema.get("enum") or [schema["const"]]
        self.offered.append(numbers)
        return ModelResponse([ToolCallPart(tool.name, {"source": self.number if self.number in numbers else numbers[0]})])


async def ask(question: str, chooser: Chooser, *, tools: tuple[str, ...] = (), **documents: str) -> ChainResult:
    ledger = MemoryLedger()
    for name, text in documents.items():
        await KnowledgeBase(ledger).add(f"{name}.md", text)
    config = ChainConfig(outputs="quotes", backoff=0, phases={"action": AgentConfig(tools=tools)})
    async with PostChain(ledger, model=FunctionModel(chooser), config=config) as chain:
        return await chain.run(question)


# Mutant: `PICKED` is not set, or `likely_items` does not put the chosen one first -> this test is red.
@pytest.mark.slow
@pytest.mark.parametrize(("number", "expected"), [("1", "tea.md"), ("2", "pots.md")])
async def test_the_model_chooses_between_quotes_that_are_as_good_as_each_other(number: str, expected: str) -> None:
    """It is asked once, in the experience phase; the answer is the quote that it has chosen, word for word."""
    chooser = Chooser(number)
    result = await ask(QUESTION, chooser, tea=TEA, pots=POTS)

    assert [len(numbers) for numbers in chooser.offered] == [1, 2, 1, 1, 1, 1]
    first = result.citations[0]
    assert first["source"] == expected
    assert (result.response or "").startswith(f"{first['heading'][-1]}: {first['quote']} [1]\n\nSources:\n[1] {expected} > ")
    assert first["quote"] in {"tea.md": TEA, "pots.md": POTS}[expected]
    assert (result.outputs["experience"]["by"], result.outputs["yield"]["by"]) == ("agent", "agent")


@pytest.mark.slow
async def test_code_decides_where_there_is_nothing_to_choose_and_says_so() -> None:
    chooser = Chooser()
    result = await ask(QUESTION, chooser, tea=TEA, soup="# Soup\n\nSoup is served hot.")

    assert {tuple(numbers) for numbers in chooser.offered} == {("none",), ("1",)}
    assert [result.outputs[phase]["by"] for phase in PHASES] == ["code"] * 6
    assert (result.response or "").startswith(
        "Tea: Green tea is steeped at 80 degrees. [1]\n\nSources:\n[1] tea.md > Tea, line 3 ("
    )
    assert result.citations[0]["lines"] == [3, 3]


# Mutant: `likely_items` does not ask for LIKELY -> this test is red.
@pytest.mark.slow
async def test_a_question_that_no_source_answers_is_refused_without_a_citation() -> None:
    known = await ask("Which company sells green tea in Norway?", Chooser(), tea=TEA)
    unknown = await ask("Who invented the wheel?", Chooser(), soup="Soup.")

    assert known.response == f"{NOT_IN_SOURCES} Nearest:\n- tea.md > Tea, line 3: Green tea is steeped at 80 degrees."
    assert (known.citations, unknown.citations) == ((), ())
    assert unknown.response == NOT_IN_SOURCES
    assert known.status == "completed"


@pytest.mark.slow
async def test_a_refusal_shows_a_long_quote_in_one_short_line() -> None:
    result = await ask(
        "Which company sells green tea in Norway?", Chooser(), tea=f"Green tea is steeped{' and stirred' * 40}."
    )

    first, line = (result.response or "").splitlines()
    assert first == f"{NOT_IN_SOURCES} Nearest:"
    assert line.startswith("- tea.md, line 1: Green tea is steeped and stirred")
    assert line.endswith("…")
    assert len(line) < 200


@pytest.mark.slow
async def test_the_result_of_a_tool_is_the_answer_and_nothing_is_chosen_beside_it() -> None:
    chooser = Chooser()
    result = await ask("What is 17 * 23?", chooser, tools=("calculator",), a="17 * 23 is a product.", b="17 * 23 is a sum.")

    assert (result.response or "").startswith("calculator(expression='17 * 23') gave 391 [1]\n\nSources:\n[1] calculator(")
    assert [each["quote"] for each in result.citations] == ["391"]
    assert {tuple(numbers) for numbers in chooser.offered} == {("none",)}


@pytest.mark.slow
async def test_each_phase_says_in_a_line_what_it_has_contributed() -> None:
    result = await ask(QUESTION, Chooser("2"), tea=TEA, pots=POTS)

    said = {phase: contribution(phase, result.outputs[phase]) for phase in PHASES}
    assert said["action"] == "no tool fits the question"
    assert said["experience"].startswith("2 passages found; the best is tea.md > Tea, line 3 (1.00); chosen by ")
    assert said["intention"] == "1 goal; scores 1.00, 0.96"
    assert said["observation"].startswith("recorded for later threads: Tea")
    assert said["understanding"] == "2 sources kept, 0 released"
    assert said["yield"].startswith("2 citations; confidence 1.00; chosen by ")
    assert [result.outputs[phase]["response"] for phase in PHASES[:-1]] == [said[phase] for phase in PHASES[:-1]]


class Teller(Chooser):
    """Gives its choice as JSON text."""

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        chosen = super().__call__(messages, info)
        return ModelResponse([TextPart('{"source":"none"}')]) if chosen.tool_calls[0].tool_name != "calculator" else chosen


@pytest.mark.slow
@pytest.mark.parametrize("chooser", [Chooser(), Teller()], ids=["call", "text"])
async def test_a_phase_that_only_chose_a_source_is_read_as_what_it_contributed(chooser: Chooser) -> None:
    """The choice is for the program. A reader sees the result of the phase, and the question without what came before."""
    ledger = MemoryLedger()
    config = ChainConfig(outputs="quotes", backoff=0, phases={"action": AgentConfig(tools=("calculator",))})
    async with PostChain(ledger, model=FunctionModel(chooser), config=config) as chain:
        first = await chain.run("What is 17 * 23?")
        await chain.run("And once more?", thread_id=first.thread_id)
    rows = [record.message async for record in ledger.read(first.thread_id)]

    read = [(message.policy, message.text or "") for message in phase_talk(rows) if message.kind == "parts"]
    assert [policy for policy, _ in read] == ["user", *PHASES] * 2
    assert [read[0][1], read[7][1]] == ["What is 17 * 23?", "And once more?"]
    assert [text for _, text in read[1:3]] == ["called calculator", "0 passages found"]
    assert read[6][1].startswith("calculator(expression='17 * 23') gave 391 [1]")


async def test_a_model_that_ignores_the_form_leaves_the_choice_to_code() -> None:
    """It gives prose instead of a number, however often it is asked: the thread fails with its error, or code decides."""

    def talk(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("I would say it depends.")])

    ledger = MemoryLedger()
    await KnowledgeBase(ledger).add("tea.md", TEA)
    config = ChainConfig(outputs="quotes", backoff=0, attempts=1, restarts=0, phases={"action": AgentConfig(tools=())})
    async with PostChain(ledger, model=FunctionModel(talk), config=config) as chain:
        result = await chain.run(QUESTION)

    assert result.status == "failed"
    assert result.error_code == "PHASE_PROCESSING_ERROR"


# ---------------------------------------------------------------- the parts


def work_of(*items: Item) -> PhaseWork:
    context = ChainContext({item.id: item for item in items})
    return PhaseWork("t", QUESTION, "ada", (), context, None, 1, (), {}, is_quoted=True)


def item(name: str, priority: float, *tags: str) -> Item:
    more: Any = {"heading": ("Top", name.upper()), "quote": f"Quote of {name}.", "lines": (2, 3), "tags": tags}
    return Item(id=name, source="knowledge", title=f"{name}.md", text=f"Text. Quote of {name}.", priority=priority, **more)


def test_only_quotes_near_the_best_are_to_choose_from_and_a_little_further_ones_are_cited() -> None:
    work = work_of(item("a", 0.9), item("b", 0.85), item("c", 0.8), item("d", 0.6), item("e", 0.5))

    prompt = choice_prompt(work, is_choosing=True)
    assert prompt.text == f"{QUESTION}\n\nSources:\n[1] Top > A: Quote of a.\n[2] Top > B: Quote of b."
    assert [prompt.text[begin:end] for _, begin, end in prompt.places] == ["Quote of a.", "Quote of b."]
    assert choice_prompt(work, is_choosing=False).places == prompt.places[:1]
    assert [each.id for each in likely_items(work)] == ["a", "b", "c", "d"]
    text, citations = quoted_answer(work)
    assert text == "A: Quote of a. [1]"
    assert [each["id"] for each in citations] == ["a", "b", "c"]


def test_the_one_that_was_picked_comes_first() -> None:
    work = work_of(item("a", 0.9), item("b", 0.85, "picked"))

    assert [each["id"] for each in quoted_answer(work)[1]] == ["b", "a"]


def test_a_choice_allows_its_numbers_and_nothing_else() -> None:
    assert choice_of(2) is choice_of(2)
    schema = json.dumps(choice_of(3).model_json_schema())
    assert '"enum": ["1", "2", "3"]' in schema
    assert '"const": "none"' in json.dumps(choice_of(0).model_json_schema())


def test_a_place_names_what_is_known_of_it() -> None:
    assert place_of({"source": "a.md"}) == "a.md"
    assert place_of({"source": "a.md", "heading": ["Top", "B"], "lines": [4, 4]}) == "a.md > B, line 4"
    assert place_of({"source": "a.md", "lines": [4, 6]}) == "a.md, lines 4-6"


@pytest.mark.slow
async def test_the_script_calculates_what_was_asked_last() -> None:
    """Its prompt begins with the earlier turns, and they have expressions, too."""
    async with open_chain(MemoryLedger(), model="scripted") as runner:
        first = await runner.ask("What is 17 * 23?", user_id="ada")
        second = await runner.ask("And what is 5 * 7?", thread_id=first.thread_id, user_id="ada")
    assert [(each.answer or "").split(" [1]")[0] for each in (first, second)] == [
        "calculator(expression='17 * 23') gave 391",
        "calculator(expression='5 * 7') gave 35",
    ]
