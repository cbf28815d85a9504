"""Streams that end in the middle, or never: each request is one row, nothing that was said is lost or said twice. F30."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelConnectionError, UnexpectedModelBehavior
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel

from antiphon.agents import AgentBudget, LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import BudgetExceededError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Limits, OptionResultPayload, use_limits


class DiedError(BaseException):
    """Ends the program as a kill does."""


def speaker(ledger: MemoryLedger, stream: Callable[..., AsyncIterator[Any]], **more: Any) -> Agent[None, str]:
    return Agent(FunctionModel(stream_function=stream), name="speaker", capabilities=[LedgerDurability(ledger, **more)])


async def rows(ledger: MemoryLedger) -> list[Any]:
    """Return the outcomes of the requests, and the texts of the thread."""
    found: list[Any] = []
    async for record in ledger.read("t"):
        message = record.message
        if isinstance(message.payload, OptionResultPayload) and "model.request" in message.payload.option_name:
            found.append(message.payload.error_type or "answered")
        elif message.lane == "talk":
            found.append("".join(getattr(part, "text", "") for part in message.parts))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "nothing", "reasoning", "arguments"])
async def test_a_model_that_does_not_stop_is_given_up(kind: str) -> None:
    """F30, an endless stream: it neither fills the memory nor takes for ever, and is one row."""

    async def endless(messages: Any, info: Any) -> AsyncIterator[Any]:
        words = "x" * 1_000
        while True:
            match kind:
                case "reasoning":
                    yield {0: DeltaThinkingPart(content=words)}
                case "arguments":
                    yield {0: DeltaToolCall("look", words, tool_call_id="c1")}
                case "text":
                    yield words
                case _:
                    yield {0: DeltaThinkingPart(content="")}

    ledger = MemoryLedger()
    with use_limits(Limits(message_bytes=10_000)), pytest.raises(UnexpectedModelBehavior, match="does not stop"):
        async with ledger_run("t"):
            await speaker(ledger, endless, live=True).run("speak")
    assert await rows(ledger) == ["speak", "UNEXPECTED_MODEL_BEHAVIOR"]


@pytest.mark.slow
async def test_a_handler_that_stops_looking_does_not_let_a_model_speak_for_ever() -> None:
    async def endless(messages: Any, info: Any) -> AsyncIterator[str]:
        while True:
            yield "x" * 100_000

    async def blind(ctx: Any, stream: Any) -> None:
        return None

    ledger = MemoryLedger()
    with pytest.raises(UnexpectedModelBehavior, match="does not stop"):
        async with ledger_run("t"):
            await speaker(ledger, endless, event_stream_handler=blind).run("speak")


async def test_outside_of_a_run_a_model_may_speak_as_long_as_it_likes() -> None:
    """Nothing of it is written down, so nothing bounds it."""

    async def speak(messages: Any, info: Any) -> AsyncIterator[str]:
        for _ in range(100):
            yield "x" * 1_000

    with use_limits(Limits(message_bytes=10_000)):
        assert len((await speaker(MemoryLedger(), speak, live=True).run("speak")).output) == 100_000


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_live", [True, False])
async def test_a_model_that_says_nothing_is_given_up_when_the_time_of_the_run_is_over(is_live: bool) -> None:
    """F30, a request that hangs: with more time, the run goes on."""

    def speaking(does_hang: bool) -> Callable[..., AsyncIterator[str]]:
        async def speak(messages: Any, info: Any) -> AsyncIterator[str]:
            yield "one "
            if does_hang:
                await asyncio.Event().wait()
            yield "two"

        return speak

    ledger = MemoryLedger()
    hanging = speaker(ledger, speaking(does_hang=True), live=is_live, budget=AgentBudget(seconds=60))
    with pytest.raises(BudgetExceededError, match="during 't/run/speaker/model'"):
        async with ledger_run("t"), hanging.run_stream("speak") as stream:
            await stream.get_output()
    async with ledger_run("t"):
        assert (await speaker(ledger, speaking(does_hang=False), live=True).run("speak")).output == "one two"
    assert await rows(ledger) == ["speak", "one two", "answered"]


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [(ModelConnectionError("m", "cut off"), ["MODEL_API_ERROR"]), (DiedError(), [])],
    ids=["cut", "killed"],
)
async def test_an_answer_that_is_cut_in_the_middle_is_asked_for_again_and_said_once(
    error: BaseException, outcomes: list[str]
) -> None:
    """F30, a cut stream; and a process that is killed while a model speaks."""
    ledger, cuts, asked = MemoryLedger(), [error], 0

    async def speak(messages: Any, info: Any) -> AsyncIterator[str]:
        nonlocal asked
        asked += 1
        yield "one "
        if cuts:
            raise cuts.pop()
        yield "two"

    with pytest.raises(type(error)):
        async with ledger_run("t"):
            await speaker(ledger, speak, live=True).run("speak")
    for _ in range(2):
        async with ledger_run("t"):
            assert (await speaker(ledger, speak, live=True).run("speak")).output == "one two"
    assert asked == 2
    assert await rows(ledger) == ["speak", *outcomes, "one two", "answered"]


@pytest.mark.parametrize("way", ["run_stream", "run_stream_events", "iter"])
async def test_every_way_to_run_an_agent_gives_the_same_the_second_time(way: str) -> None:
    ledger, asked = MemoryLedger(), 0

    async def speak(messages: Any, info: Any) -> AsyncIterator[str]:
        nonlocal asked
        asked += 1
        yield "one "
        yield "two"

    seen: list[str] = []
    for _ in range(2):
        agent = speaker(ledger, speak, live=True)
        async with ledger_run("t"):
            if way == "run_stream":
                async with agent.run_stream("speak") as stream:
                    seen.append(await stream.get_output())
            elif way == "run_stream_events":
                async with agent.run_stream_events("speak") as events:
                    seen.append(str([type(event).__name__ async for event in events][-1]))
            else:
                async with agent.iter("speak") as run:
                    seen.append(" ".join([type(node).__name__ async for node in run]))
    assert seen[0] == seen[1]
    assert asked == 1
