"""A durable agent behaves as one without a ledger: classes of exceptions and results, models and toolsets of a run, URLs."""

import asyncio
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelMessage, ModelResponse, TextPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RequestUsage
from tests.agents.durability.agents import Desk, call, script

from antiphon import open_ledger
from antiphon.agents import LedgerConversationStore, LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import EffectFailedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload


class StockError(Exception):
    """An error of a program."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.left = left


class Price(BaseModel):
    amount: int
    day: date


@dataclass
class Seat:
    row: int
    taken_on: tuple[date, ...]


DAY = date(2026, 1, 2)


@pytest.mark.parametrize("error", [StockError("pens", 3), KeyError("pens"), ValueError("no pens"), OSError(2, "no file")])
async def test_an_exception_of_a_tool_is_the_same_class_now_and_when_it_comes_from_the_ledger(error: Exception) -> None:
    """A program that handles it goes the same way again."""
    ledger, desk = MemoryLedger(), Desk()
    raised: list[BaseException] = []
    for is_live in (True, False):
        agent: Agent[None, str] = Agent(
            script(desk, [call("buy", "b1")], ["never"]), name="clerk", capabilities=[LedgerDurability(ledger)]
        )

        @agent.tool_plain
        async def buy() -> str:
            desk.note("buy")
            raise error

        async with ledger_run("t") as run:
            with pytest.raises(type(error)) as caught:
                await agent.run("go")
            await run.effect("go on", {}, _nothing)
        raised.append(caught.value)
        assert desk.taken() == (["model 0", "buy"] if is_live else [])
    assert raised[0] is error
    assert (type(raised[1]), raised[1].args) == (type(error), error.args)


@pytest.mark.slow
async def test_an_exception_of_a_class_that_the_program_does_not_have_is_raised_as_text() -> None:
    ledger, desk = MemoryLedger(), Desk()

    async def attempt(expected: type[Exception]) -> None:
        agent: Agent[None, str] = Agent(
            script(desk, [call("buy", "b1")], ["never"]), name="clerk", capabilities=[LedgerDurability(ledger)]
        )

        @agent.tool_plain
        async def buy() -> str:
            raise type("GoneError", (Exception,), {"__module__": "elsewhere"})("no pens")

        async with ledger_run("t") as run:
            with pytest.raises(expected, match="no pens"):
                await agent.run("go")
            await run.effect("go on", {}, _nothing)

    await attempt(Exception)
    import gc

    gc.collect()
    await attempt(EffectFailedError)


async def _nothing(key: str) -> None:
    return None


@pytest.mark.parametrize("value", [Price(amount=3, day=DAY), Seat(7, (DAY,)), DAY, (1, 2), {"a": 1}, "text", None])
async def test_the_return_value_of_a_tool_keeps_its_class_in_the_history(value: Any) -> None:
    ledger, desk, found = MemoryLedger(), Desk(), []
    for _ in range(2):
        agent: Agent[None, str] = Agent(
            script(desk, [call("look", "l1")], ["done"]), name="clerk", capabilities=[LedgerDurability(ledger)]
        )

        async def look():  # type: ignore[no-untyped-def]
            desk.note("look")
            return value

        look.__annotations__["return"] = type(value) if not isinstance(value, tuple) else tuple[int, int]
        agent.tool_plain(look)
        async with ledger_run("t"):
            messages = (await agent.run("go")).all_messages()
        found += [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    assert found == [value, value]
    assert type(found[1]) is type(value)
    assert desk.taken() == ["model 0", "look", "model 1"]


PICTURE = BinaryContent(data=b"\x89PNG", media_type="image/png")


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (PICTURE, None),
        (["see", PICTURE, ImageUrl(url="https://example.org/a.png")], None),
        (["see", PICTURE], list),
        ([PICTURE], list[BinaryContent]),
    ],
)
async def test_a_model_that_is_asked_after_a_crash_gets_the_pictures_of_a_tool_as_pictures(value: Any, declared: Any) -> None:
    """Whatever the function declares: without durability, it is what the tool returns that counts."""
    ledger, desk, told = MemoryLedger(), Desk(), list[Any]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        results = [[file.identifier for file in part.files] for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        told.extend(results)
        if not results:
            return ModelResponse([call("look", "l1")])
        if len(told) == 1:
            raise asyncio.CancelledError  # as if the process were gone
        return ModelResponse([TextPart("done")])

    async def look():  # type: ignore[no-untyped-def]
        desk.note("look")
        return value

    if declared is not None:
        look.__annotations__["return"] = declared
    agent = Agent(FunctionModel(answer), name="clerk", tools=[look], capabilities=[LedgerDurability(ledger)])
    with pytest.raises(asyncio.CancelledError):
        async with ledger_run("t"):
            await agent.run("go")
    async with ledger_run("t"):
        assert (await agent.run("go")).output == "done"
    assert told[0] == told[1] != []
    assert desk.taken() == ["look"]


async def test_a_model_and_a_toolset_that_come_with_a_run_are_recorded() -> None:
    ledger, desk = MemoryLedger(), Desk()

    def look() -> str:
        desk.note("look")
        return "seen"

    agent: Agent[None, str] = Agent(name="clerk", capabilities=[LedgerDurability(ledger)])
    for seen in (["model 0", "look", "model 1"], []):
        async with ledger_run("t"):
            model = script(desk, [call("look", "l1")], ["done"])
            assert (await agent.run("go", model=model, toolsets=[FunctionToolset([look])])).output == "done"
        assert desk.taken() == seen
    calls = [record.message.payload async for record in ledger.read("t") if record.message.lane == "effect"]
    names = [payload.option_name for payload in calls if isinstance(payload, OptionCallPayload)]
    assert "clerk__function_toolset__<toolset>.call_tool:look" in names


@pytest.mark.slow
@pytest.mark.parametrize("is_url_first", [True, False])
async def test_an_agent_with_a_url_joins_a_run_in_an_opened_ledger_of_the_same_file(
    tmp_path: Path, is_url_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_url = Agent(TestModel(), name="url", capabilities=[LedgerDurability("sqlite:///ledger.db")])
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        by_object = Agent(TestModel(), name="object", capabilities=[LedgerDurability(ledger)])
        async with ledger_run("t"):
            for agent in (by_url, by_object) if is_url_first else (by_object, by_url):
                await agent.run("hi")
        asked = [record.message.policy async for record in ledger.read("t") if record.message.role_hint_for_llm == "assistant"]
        assert sorted(asked) == ["object", "url"]
    async with open_ledger(f"sqlite:///{tmp_path}/other.db") as other:
        stranger = Agent(TestModel(), name="other", capabilities=[LedgerDurability(other)])
        with pytest.raises(RuntimeError, match="is written to another ledger"):
            async with ledger_run("u", ledger="sqlite:///ledger.db"):
                await stranger.run("hi")


# ---------------------------------------------------------------- conversations


class Chat:
    """A chat that saves each turn, as a web application does."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.store = LedgerConversationStore(self.ledger)
        self.asked = 0

    def answer(self, messages: list[ModelMessage], info: Any) -> ModelResponse:
        self.asked += 1
        usage = RequestUsage(input_tokens=100, output_tokens=10)
        return ModelResponse([TextPart(f"answer {len(messages)}")], usage=usage, model_name="gpt-4o")

    async def request(self, request_id: str, prompt: str, chat_id: str = "chat") -> str:
        agent = Agent(FunctionModel(self.answer), name="friend", capabilities=[LedgerDurability(self.ledger)])
        conversation = await self.store.load(chat_id) or Conversation(conversation_id=chat_id)
        async with ledger_run(chat_id, id=request_id):
            result = await agent.run(prompt, conversation=conversation)
        await self.store.save(result)
        return result.output

    async def texts(self, chat_id: str = "chat") -> list[str]:
        conversation = await self.store.load(chat_id)
        assert conversation is not None
        return [str(message.parts[0].content) for message in conversation.messages]  # type: ignore[union-attr]


@pytest.mark.slow
async def test_the_same_request_after_it_was_saved_gets_the_recorded_answer_and_is_not_saved_again() -> None:
    chat = Chat()
    assert await chat.request("r1", "one") == "answer 1"
    assert await chat.request("r1", "one") == "answer 1"
    assert await chat.request("r2", "two") == "answer 3"
    assert await chat.request("r1", "one") == "answer 1"  # also when others came after it
    assert await chat.request("r2", "two") == "answer 3"
    assert chat.asked == 2
    assert await chat.texts() == ["one", "answer 1", "two", "answer 3"]
    loaded = await chat.store.load("chat")
    assert loaded is not None
    assert loaded.usage.requests == 2


@pytest.mark.slow
async def test_a_branch_of_a_conversation_is_a_conversation_under_its_own_id() -> None:
    chat = Chat()
    await chat.request("r1", "one")
    head = await chat.ledger.head("chat")
    await chat.request("r2", "two")
    await chat.ledger.fork("chat", at=head.seq, into="branch")
    assert await chat.texts("branch") == ["one", "answer 1"]
    await chat.request("r3", "three", "branch")
    assert await chat.texts("branch") == ["one", "answer 1", "three", "answer 3"]
    assert await chat.texts() == ["one", "answer 1", "two", "answer 3"]
    record = await chat.store.read_record("branch")
    assert record is not None
    assert (record.conversation_id, record.forked_from) == ("branch", "chat")


@pytest.mark.slow
async def test_a_branch_after_a_saved_answer_is_a_conversation_with_that_answer() -> None:
    """The rows that save an answer belong to its step."""
    chat = Chat()
    for number, prompt in enumerate(("one", "two", "three"), 1):
        await chat.request(f"r{number}", prompt)
    for step, texts in ((1, ["one", "answer 1"]), (2, ["one", "answer 1", "two", "answer 3"])):
        branch = await chat.ledger.fork("chat", at_step=step)
        assert await chat.texts(branch.thread_id) == texts
    await chat.request("r4", "four", branch.thread_id)
    assert await chat.texts(branch.thread_id) == [*texts, "four", "answer 5"]
    assert len(await chat.texts()) == 6


async def test_an_answer_is_stored_once_also_if_it_has_a_price() -> None:
    chat = Chat()
    await chat.request("r1", "a question of this text")
    bodies = b"".join([record.body async for record in chat.ledger.read("chat")])
    assert bodies.count(b"answer 1") == 1
    assert bodies.count(b"a question of this text") == 1


async def test_a_thread_of_an_agent_is_forked_at_a_step() -> None:
    """A step is an answer with the results of its calls."""
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("look", "l1")], ["done"]), name="clerk", capabilities=[LedgerDurability(ledger)]
    )

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    async with ledger_run("t"):
        await agent.run("go")
    kinds = ["parts", "option_call", "option_result", "parts"]
    for step, count in ((1, 3), (2, 4)):
        branch = await ledger.fork("t", at_step=step)
        talk = [record.message async for record in ledger.read(branch.thread_id) if record.message.lane == "talk"]
        assert [message.kind for message in talk] == kinds[:count]
    assert branch.forked_at == (await ledger.head("t")).seq  # also what was recorded after the last answer
    with pytest.raises(ValueError, match="no message of step 3"):
        await ledger.fork("t", at_step=3)
