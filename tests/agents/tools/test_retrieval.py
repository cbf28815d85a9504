"""Documents and memories are found by a question's words, cited by id, on every ledger."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from antiphon import Message, MessageBuilder, OptionResultBuilder
from antiphon.agents import LedgerDurability
from antiphon.agents.models import Script, ScriptedModel, Turn
from antiphon.agents.tools import builtin_tools, knowledge_base, memory_retrieval
from antiphon.agents.tools._builtin import BUILTIN_TOOLS
from antiphon.durable import ledger_run
from antiphon.ledger import STANDARD_REDACTION, Ledger, open_ledger, replay
from antiphon.retrieval import KnowledgeBase

SHOP = """# Returns

Refunds are paid within 14 days. Send the goods back first.

# Shipping

We ship to France and Spain. Parcels to islands take longer.
"""
GARDEN = "Tomatoes want sun and much water.\n\nCarrots want sand."


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """How to open a ledger of each kind."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db"

    @asynccontextmanager
    async def open_one(**options: Any) -> AsyncIterator[Ledger]:
        async with open_ledger(url, **options) as ledger:
            yield ledger

    return open_one


def within(opened: Callable[..., Any], work: Callable[[Ledger], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with opened(**options) as ledger:
            return await work(ledger)

    return asyncio.run(run())


# ---------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("When are refunds paid?", "Refunds are paid"),
        ("refund", "Refunds are paid"),
        ("Which countries do you ship to?", "We ship to France"),
        ("SPAIN", "We ship to France"),
        ("How much water do tomatoes need?", "Tomatoes want sun"),
        ("What do carrots want?", "Carrots want sand"),
    ],
)
def test_a_question_finds_the_passage_that_answers_it(opened: Any, question: str, expected: str) -> None:
    async def work(ledger: Ledger) -> Any:
        documents = KnowledgeBase(ledger)
        await documents.add("shop.md", SHOP)
        await documents.add("garden.txt", GARDEN)
        return await documents.search(question)

    found = within(opened, work)

    assert expected in found[0].text
    assert found[0].source in ("shop.md", "garden.txt")


@pytest.mark.parametrize("question", ["", "???", "the of and", "xylophone", '"', "OR NOT *", "a" * 5000])
def test_a_question_that_nothing_answers_finds_nothing(opened: Any, question: str) -> None:
    async def work(ledger: Ledger) -> Any:
        await KnowledgeBase(ledger).add("garden.txt", "Carrots want sand.")
        return await KnowledgeBase(ledger).search(question)

    assert within(opened, work) == ()


def test_a_passage_is_cited_by_the_id_of_its_message(opened: Any) -> None:
    async def work(ledger: Ledger) -> Any:
        await KnowledgeBase(ledger).add("shop.md", SHOP)
        (found, *_) = await KnowledgeBase(ledger).search("islands")
        thread = await replay(ledger, f"knowledge/{found.id.rsplit('-', 2)[0]}")
        return found, [message for message in thread if message.id == found.id]

    found, cited = within(opened, work)

    assert len(cited) == 1
    assert cited[0].payload.parts[0].text == found.text


def test_a_document_is_written_once_and_a_new_text_takes_its_place(opened: Any) -> None:
    """Nothing is deleted: the old text is in the ledger, and is no longer found."""

    async def work(ledger: Ledger) -> Any:
        documents = KnowledgeBase(ledger)
        added = [
            await documents.add("rule.txt", text)
            for text in ("14 days pass.", "14 days pass.", "30 days pass.", "14 days pass.")
        ]
        found = await documents.search("how many days pass?")
        thread = f"knowledge/{found[0].id.rsplit('-', 2)[0]}"
        return added, found, (await ledger.head(thread)).seq, (await ledger.verify()).is_whole

    added, found, messages, is_whole = within(opened, work)

    assert [(each.version, each.is_new) for each in added] == [(1, True), (1, False), (2, True), (3, True)]
    assert [passage.text for passage in found] == ["14 days pass."]
    assert (messages, is_whole) == (3, True)


def test_a_document_without_text_is_refused(opened: Any) -> None:
    with pytest.raises(ValueError, match=r"there is no text in 'empty\.txt'"):
        within(opened, lambda ledger: KnowledgeBase(ledger).add("empty.txt", " \n\n "))


def test_a_secret_in_a_document_is_not_stored(opened: Any) -> None:
    """S7: documents pass the same redaction as everything that is said."""
    secret = "sk-ant-" + "a1B2" * 10

    async def work(ledger: Ledger) -> Any:
        await KnowledgeBase(ledger).add("notes.txt", f"The key is {secret} for now.")
        return await KnowledgeBase(ledger).search("what is the key?")

    (found,) = within(opened, work, redaction=STANDARD_REDACTION)

    assert secret not in found.text
    assert "The key is" in found.text


def test_something_else_said_in_the_thread_is_no_passage(opened: Any) -> None:
    async def work(ledger: Ledger) -> Any:
        await ledger.append("knowledge", [said("carrots are great")])
        return await KnowledgeBase(ledger).search("carrots")

    assert within(opened, work) == ()


# ---------------------------------------------------------------- memory


def said(text: str, policy: str = "user", **fields: Any) -> Message:
    return MessageBuilder(policy=policy).add_text(text).to_message().model_copy(update=fields)


def remembered(tool: Any, query: str, limit: int = 5) -> Awaitable[Any]:
    return tool.function(query, limit)


def test_a_search_covers_its_own_thread_unless_the_whole_ledger_is_allowed(opened: Any) -> None:
    """The privacy of other threads is the default: a ledger may hold the conversations of several people."""

    async def work(ledger: Ledger) -> Any:
        await ledger.append("ada", [said("My cat is called Tibbles.")])
        await ledger.append("bob", [said("My cat is called Felix.")])
        await KnowledgeBase(ledger).add("cats.txt", "A cat is called.")
        own = await remembered(memory_retrieval(ledger, thread_id="ada"), "What is my cat called?")
        every = await remembered(memory_retrieval(ledger, scope="ledger"), "What is my cat called?")
        return own, every

    own, every = within(opened, work)

    assert [(each["text"], each["thread"], each["by"]) for each in own] == [("My cat is called Tibbles.", "ada", "user")]
    assert {each["thread"] for each in every} == {"ada", "bob"}  # documents are no memories
    assert all(each["id"] and each["said_at"].endswith("Z") for each in every)


def test_only_talk_is_remembered_and_not_the_remembering(opened: Any) -> None:
    async def work(ledger: Ledger) -> Any:
        builder = MessageBuilder(policy="agent")
        builder.add_option_call("get_weather", {"city": "Oslo"})
        builder.add_option_call("memory_retrieval", {"query": "Oslo"})
        weather, memory = builder.to_messages()
        rows = [
            weather,
            OptionResultBuilder.response_to(weather, policy="get_weather").success("Oslo is cold"),
            memory,
            OptionResultBuilder.response_to(memory, policy="memory_retrieval").success("Oslo, Oslo, Oslo"),
            said("Oslo in control", lane="control", to=("someone",)),
        ]
        await ledger.append("trip", rows)
        return await remembered(memory_retrieval(ledger, thread_id="trip"), "Oslo")

    assert [each["text"] for each in within(opened, work)] == ["Oslo is cold"]


def test_without_a_run_or_a_thread_there_is_nothing_to_remember(opened: Any) -> None:
    with pytest.raises(RuntimeError, match="needs a run"):
        within(opened, lambda ledger: remembered(memory_retrieval(ledger), "x"))


@pytest.mark.slow
def test_in_a_durable_run_an_agent_remembers_its_thread_but_not_what_it_was_just_asked(opened: Any) -> None:
    """The whole way: a scripted model, both tools, and a second run that knows what was said in the first."""
    script = Script(
        turns=(
            Turn(calls=({"tool": "memory_retrieval", "arguments": {"query": "{text}"}},)),
            Turn(calls=({"tool": "knowledge_base", "arguments": {"query": "refunds", "limit": 1}},)),
            Turn(text="noted"),
        )
    )

    async def work(ledger: Ledger) -> Any:
        await KnowledgeBase(ledger).add("shop.md", SHOP)
        tools = builtin_tools(["memory_retrieval", "knowledge_base"], ledger=ledger)
        agent = Agent(ScriptedModel(script), name="clerk", tools=tools, capabilities=[LedgerDurability(ledger)])
        heard = []
        for number, text in enumerate(("My cat is called Tibbles.", "What is my cat called?")):
            async with ledger_run("ada", id=f"turn-{number}"):
                heard.append((await agent.run(text)).all_messages())
        return heard

    first, second = within(opened, work)

    assert first[2].parts[0].content == []
    assert [each["text"] for each in second[2].parts[0].content] == ["My cat is called Tibbles."]
    assert second[4].parts[0].content[0]["source"] == "shop.md"


@pytest.mark.parametrize("limit", [-5, 0, 1, 1000])
def test_the_limit_is_kept_between_one_and_twenty(opened: Any, limit: int) -> None:
    async def work(ledger: Ledger) -> Any:
        await ledger.append("t", [said(f"apple number {number}") for number in range(30)])
        return await remembered(memory_retrieval(ledger, thread_id="t"), "apple", limit)

    assert len(within(opened, work)) == max(1, min(limit, 20))


# ---------------------------------------------------------------- by name


def test_tools_are_had_by_name_and_a_wrong_name_gets_the_nearest(opened: Any) -> None:
    async def work(ledger: Ledger) -> Any:
        return builtin_tools(["calculator", "memory_retrieval", "knowledge_base"], ledger=ledger)

    assert [tool.name for tool in within(opened, work)] == ["calculator", "memory_retrieval", "knowledge_base"]
    with pytest.raises(ValueError, match="no built-in tool is called 'calculater'; perhaps 'calculator'"):
        builtin_tools(["calculater"])
    with pytest.raises(ValueError, match=f"there are {', '.join(BUILTIN_TOOLS)}"):
        builtin_tools(["xyz"])
    with pytest.raises(ValueError, match="knowledge_base looks things up in a ledger: give one"):
        builtin_tools(["knowledge_base"])


def test_results_of_searches_are_marked_as_untrusted(opened: Any) -> None:
    """S5: an agent that has read it needs more than the text's own word to act."""

    async def work(ledger: Ledger) -> Any:
        return [knowledge_base(ledger), memory_retrieval(ledger)]

    for tool in within(opened, work):
        assert tool.metadata == {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
