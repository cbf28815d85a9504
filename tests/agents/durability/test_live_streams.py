"""Streams are live while they are recorded, and whole when they are replayed; tools that cancel; missing durability."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from tests.agents.durability.agents import Desk, call, script

from antiphon.agents import AgentBudget, LedgerDurability, agent_program, listen
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import DurabilityWarning, current_effect, durable_stream, ledger_run, runs
from antiphon.errors import BudgetExceededError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionResultPayload
from antiphon.runtime._journal import Journal


class Speaker:
    """A model that says three words, the next one when it is asked for."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def stream(self, messages: Any, info: Any) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            self.said.append(word)
            yield word

    def answer(self, messages: Any, info: Any) -> ModelResponse:
        return ModelResponse([TextPart("one two three")])

    def agent(self, ledger: MemoryLedger, **more: Any) -> Agent[None, str]:
        model = FunctionModel(self.answer, stream_function=self.stream)
        return Agent(model, name="speaker", capabilities=[LedgerDurability(ledger, **more)])


async def outcomes(ledger: MemoryLedger) -> list[str]:
    rows = [record.message.payload async for record in ledger.read("t")]
    results = [row for row in rows if isinstance(row, OptionResultPayload) and "model.request" in row.option_name]
    return [row.error_type or "answered" for row in results]


@pytest.mark.parametrize("way", ["run_stream", "run_stream_events", "iter", "handler", "capability"])
async def test_a_program_gets_each_delta_while_the_model_speaks_and_the_whole_answer_from_the_ledger(way: str) -> None:
    """When the program has the first word, the model has not said the last one."""
    ledger, speaker = MemoryLedger(), Speaker()
    seen: list[tuple[str, int]] = []

    async def handle(ctx: Any, events: Any) -> None:
        async for event in events:
            note(event)

    def note(event: Any) -> None:
        words = getattr(getattr(event, "part", None) or getattr(event, "delta", None), "content_delta", None)
        words = words or (event.part.content if type(event).__name__ == "PartStartEvent" else None)
        if words:
            seen.append((words, len(speaker.said)))

    agent = speaker.agent(ledger, event_stream_handler=handle if way == "capability" else None)
    for _ in range(2):
        async with ledger_run("t"):
            if way == "run_stream":
                async with agent.run_stream("speak") as result:
                    texts = result.stream_text(delta=True, debounce_by=None)
                    seen.extend([(words, len(speaker.said)) async for words in texts])
            elif way == "run_stream_events":
                async with agent.run_stream_events("speak") as events:
                    async for event in events:
                        note(event)
            elif way == "iter":
                async with agent.iter("speak") as run:
                    async for node in run:
                        if Agent.is_model_request_node(node):
                            async with node.stream(run.ctx) as stream:
                                async for event in stream:
                                    note(event)
            else:
                await agent.run("speak", event_stream_handler=handle if way == "handler" else None)
    live, whole = seen[:-1], seen[-1]
    assert [words for words, _ in live] == ["one ", "two ", "three"]
    assert live[0][1] < 3
    assert whole[0] == "one two three"
    assert len(speaker.said) == 3


@pytest.mark.slow
async def test_the_end_of_a_stream_comes_after_its_outcome_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """To record it takes time here: an end that does not wait for it would come before it."""
    ledger, speaker, write = MemoryLedger(), Speaker(), Journal.write_soon

    async def write_slowly(*given: Any, **more: Any) -> Any:
        await asyncio.sleep(0.02)
        return await write(*given, **more)

    monkeypatch.setattr(Journal, "write_soon", write_slowly)
    async with ledger_run("t"), speaker.agent(ledger).iter("speak") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        assert await outcomes(ledger) == []
                    await asyncio.sleep(0.01)  # an outcome is written with the next rows, or soon
                    assert await outcomes(ledger) == ["answered"]


async def test_a_stream_that_is_left_without_an_error_is_recorded_as_far_as_it_was_read() -> None:
    ledger, speaker = MemoryLedger(), Speaker()
    for _ in range(2):
        async with ledger_run("t"), speaker.agent(ledger).run_stream("speak") as result:
            async for words in result.stream_text(delta=True, debounce_by=None):
                assert words.startswith("one ")
                break
    assert len(speaker.said) < 3
    assert await outcomes(ledger) == ["answered"]


@pytest.mark.parametrize("error", [ValueError("the client is gone"), asyncio.CancelledError()])
async def test_a_stream_that_is_left_by_an_error_is_not_recorded_and_is_asked_for_again(error: BaseException) -> None:
    """A part of an answer must not be taken for the whole one."""
    ledger, speaker = MemoryLedger(), Speaker()

    async def leave() -> None:
        async with ledger_run("t"), speaker.agent(ledger).run_stream("speak") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                raise error

    with pytest.raises(type(error)):
        await leave()
    assert await outcomes(ledger) == []
    async with ledger_run("t"):
        assert (await speaker.agent(ledger).run("speak")).output == "one two three"  # also without a stream


@pytest.mark.virtual_time
@pytest.mark.parametrize("does_ignore", [False, True])
async def test_a_stream_whose_time_ends_while_the_program_waits_for_an_event_fails_there(does_ignore: bool) -> None:
    """The program itself is not cancelled. A model that ignores the cancellation once says nothing more to it."""
    ledger, speaker, seen = MemoryLedger(), Speaker(), list[str]()

    async def stream(messages: Any, info: Any) -> AsyncIterator[str]:
        yield "one "
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not does_ignore:
                raise
        yield "two "

    limit = asyncio.timeout(3600)

    async def read() -> None:
        agent, model = speaker.agent(ledger, budget=AgentBudget(seconds=60)), FunctionModel(stream_function=stream)
        async with limit, ledger_run("t"), agent.run_stream("speak", model=model) as result:
            async for words in result.stream_text(delta=True, debounce_by=None):
                seen.append(words)

    with pytest.raises(BudgetExceededError):
        await read()
    assert not limit.expired()
    assert seen == ["one "]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_stream_runs_in_the_context_of_its_effect_to_its_end() -> None:
    """A variable that a model sets before an event has its value after it, and the effect has its key."""
    ledger, speaker, seen = MemoryLedger(), Speaker(), list[Any]()
    own = ContextVar("own", default="nothing")

    async def stream(messages: Any, info: Any) -> AsyncIterator[str]:
        token = own.set("mine")
        for word in ("one ", "two "):
            yield word
            seen.append((own.get(), current_effect()))
        own.reset(token)

    agent = speaker.agent(ledger)
    async with ledger_run("t"), agent.run_stream("speak", model=FunctionModel(stream_function=stream)) as result:
        assert await result.get_output() == "one two "
    assert own.get() == "nothing"
    assert [(value, effect and effect.key) for value, effect in seen] == [("mine", "t/run/speaker/model")] * 2


async def test_a_listener_of_a_thread_ends_with_the_run() -> None:
    ledger, speaker = MemoryLedger(), Speaker()

    async def hear() -> list[str]:
        return [delta.event.event_kind async for delta in deltas]

    async with listen(ledger, "t") as deltas:
        listening = asyncio.create_task(hear())
        async with ledger_run("t"):
            await speaker.agent(ledger, live=True).run("speak")
        heard = await asyncio.wait_for(listening, 5)
    assert heard[0] == "part_start"
    assert heard.count("part_delta") == 2


# ---------------------------------------------------------------- streams that outlive a function


async def test_a_stream_that_is_read_after_its_function_has_returned_is_recorded() -> None:
    """As a web framework reads it: each item in a task of its own."""
    ledger, speaker = MemoryLedger(), Speaker()

    async def words() -> AsyncIterator[str]:
        async with speaker.agent(ledger).run_stream("speak") as result:
            async for each in result.stream_text(delta=True, debounce_by=None):
                yield each

    for expected in (["one ", "two ", "three"], ["one two three"]):
        stream = durable_stream("t", words)
        items: list[str] = []
        while (item := await asyncio.create_task(anext(stream, None))) is not None:  # type: ignore[arg-type]
            items.append(item)
        assert items == expected
    assert await outcomes(ledger) == ["answered"]
    assert not await ledger.open_calls("t")


async def test_a_stream_that_cannot_be_read_is_refused_before_a_response_begins() -> None:
    async def words() -> AsyncIterator[str]:
        yield "one"

    with pytest.raises(TypeError, match="takes the function that makes the stream, not the stream"):
        durable_stream("t", words())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_bussy'"):
        durable_stream("t", words, on_bussy="raise")


async def test_a_reader_who_goes_away_leaves_the_run_open_and_the_same_request_continues_it() -> None:
    ledger, speaker = MemoryLedger(), Speaker()

    async def words() -> AsyncIterator[str]:
        async with speaker.agent(ledger).run_stream("speak") as result:
            async for each in result.stream_text(delta=True, debounce_by=None):
                yield each

    stream = durable_stream("t", words)
    assert await anext(stream) == "one "
    await stream.aclose()
    assert "t/run" in [row.message.invocation_id for row in await ledger.open_calls("t")]
    assert [item async for item in durable_stream("t", words)] == ["one ", "two ", "three"]
    assert not await ledger.open_calls("t")


async def test_a_reader_who_goes_away_has_the_stream_closed_in_its_own_task() -> None:
    """Otherwise the loop closes it later, in another task: an error in the log of the server for each such reader."""
    ledger, speaker, ends = MemoryLedger(), Speaker(), list[str]()

    async def words() -> AsyncIterator[str]:
        try:
            async with speaker.agent(ledger).run_stream("speak") as result:
                async for each in result.stream_text(delta=True, debounce_by=None):
                    yield each
        except BaseException as exc:
            ends.append(type(exc).__name__)
            raise

    stream = durable_stream("t", words)
    assert await anext(stream) == "one "
    await stream.aclose()
    assert ends == ["CancelledError"]
    assert await outcomes(ledger) == []  # a part of an answer is not taken for the whole one


# ---------------------------------------------------------------- what a tool does to its run


@pytest.mark.parametrize("does_wait", [True, False])
async def test_a_tool_may_cancel_its_run_and_does_so_again_on_replay(does_wait: bool) -> None:
    ledger, desk = MemoryLedger(), Desk()

    def agent() -> Agent[None, str]:
        made: Agent[None, str] = Agent(
            script(desk, [call("stop", "s1")], ["never"]), name="clerk", capabilities=[LedgerDurability(ledger)]
        )

        @made.tool
        async def stop(ctx: RunContext[None]) -> str:
            desk.note("stop")
            ctx.cancel()
            if does_wait:
                await asyncio.Event().wait()
            return "stopped"

        return made

    for seen in (["model 0", "stop"], []):
        async with ledger_run("t"):
            with pytest.raises(RunCancelled):
                await agent().run("go")
        assert desk.taken() == seen
    assert not [row for row in await ledger.open_calls("t") if row.message.lane == "effect"]  # the tool has an outcome


async def test_messages_that_a_tool_enqueues_are_enqueued_again_on_replay() -> None:
    ledger, desk = MemoryLedger(), Desk()
    for is_complete in (False, True):
        agent: Agent[None, str] = Agent(
            script(desk, [call("hint", "h1")], ["done"] if is_complete else ValueError("no answer")),
            name="clerk",
            capabilities=[LedgerDurability(ledger)],
        )

        @agent.tool
        async def hint(ctx: RunContext[None]) -> str:
            desk.note("hint")
            ctx.enqueue("mind the gap")
            return "hinted"

        if not is_complete:
            with pytest.raises(ValueError, match="no answer"):
                async with ledger_run("t"):
                    await agent.run("go")
            continue
        async with ledger_run("t"):
            messages = (await agent.run("go")).all_messages()
    assert desk.taken() == ["model 0", "hint", "model 1", "model 1"]
    prompts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    assert [part.content for part in prompts] == ["go", "mind the gap"]
    assert isinstance(messages[0], ModelRequest)


# ---------------------------------------------------------------- durability that is missing


async def test_a_block_that_records_nothing_is_reported() -> None:
    with pytest.warns(DurabilityWarning, match="the block of ledger_run\\('t'\\) recorded nothing") as warned:
        async with ledger_run("t"):
            pass
    assert [each.filename for each in warned] == [__file__]
    with pytest.raises(RuntimeError, match="recorded nothing"):
        async with ledger_run("t", required=True):
            pass


async def test_an_agent_without_durability_is_reported_where_it_gets_a_toolkit() -> None:
    ledger, toolkit = MemoryLedger(), Toolkit()
    toolkit.add(len, name="length", effects="none", to=["guest"])
    durable = Agent(TestModel(), name="clerk", capabilities=[LedgerDurability(ledger)])
    plain = Agent(TestModel(), name="guest", toolsets=[toolkit.for_agent("guest")])

    async def both(thread_id: str, *, required: bool) -> None:
        async with ledger_run(thread_id, required=required):
            await durable.run("hi")
            await plain.run("hi")

    about = "agent 'guest' runs in ledger_run\\('t'\\) and has no LedgerDurability"
    with pytest.warns(DurabilityWarning, match=about) as warned:
        await both("t", required=False)
    assert len(warned) == 1
    with pytest.raises(RuntimeError, match="agent 'guest'"):
        await both("u", required=True)
    await plain.run("hi")  # outside of a run, nothing is asked of it


async def test_an_agent_without_durability_is_reported_where_it_becomes_a_program() -> None:
    with pytest.warns(DurabilityWarning, match="agent 'guest' is a program and has no LedgerDurability") as warned:
        agent_program(Agent(TestModel(), name="guest"))
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.slow
def test_no_class_of_pydantic_ai_is_changed_by_a_run() -> None:
    code = """
import asyncio
from pydantic_ai import Agent, UserPromptNode
from pydantic_ai.models.test import TestModel

classes = [each for each in (*Agent.__mro__, *UserPromptNode.__mro__) if each.__module__.startswith("pydantic")]
before = [dict(vars(each)) for each in classes]

from antiphon import LedgerDurability, ledger_run, open_ledger

async def main():
    async with open_ledger("memory:") as ledger, ledger_run("t"):
        agent = Agent(TestModel(), name="clerk", capabilities=[LedgerDurability(ledger)])
        await agent.run("hi")
        assert "iter" not in vars(agent)

asyncio.run(main())
assert [dict(vars(each)) for each in classes] == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_an_agent_without_durability_in_a_recorded_tool_is_recorded_with_the_tool() -> None:
    ledger, desk = MemoryLedger(), Desk()
    durable: Agent[None, str] = Agent(
        script(desk, [call("ask", "a1")], ["done"]), name="clerk", capabilities=[LedgerDurability(ledger)]
    )

    @durable.tool_plain
    async def ask() -> str:
        return (await Agent(TestModel(custom_output_text="yes"), name="guest").run("?")).output

    async with ledger_run("t", required=True):
        assert (await durable.run("go")).output == "done"


@pytest.mark.filterwarnings("default::antiphon.durable.DurabilityWarning")
def test_a_block_that_is_never_entered_is_reported() -> None:
    with pytest.warns(DurabilityWarning, match="ledger_run\\('t'\\) was never entered"):
        ledger_run("t")


async def test_nothing_is_recorded_after_the_block_has_ended() -> None:
    """A task that outlives the block must not write to a thread that this process has given up."""
    ledger, began = MemoryLedger(), asyncio.Event()
    agent = Agent(TestModel(), name="clerk", capabilities=[LedgerDurability(ledger)])

    async def late() -> None:
        await began.wait()
        await agent.run("late")

    async with ledger_run("t"):
        await agent.run("in time")
        task = asyncio.create_task(late())
    began.set()
    with pytest.raises(RuntimeError, match="the block of ledger_run\\('t'\\) has ended"):
        await task


@pytest.mark.parametrize("required", [False, True])
async def test_a_stream_that_is_open_at_the_end_of_the_block_is_reported_and_the_run_stays_open(required: bool) -> None:
    """Its answer is not recorded, so the run has not ended; and a late reader must not take the thread again."""
    ledger, speaker = MemoryLedger(), Speaker()
    late = AsyncExitStack()

    async def begin() -> Any:
        async with ledger_run("t", required=required):
            return await late.enter_async_context(speaker.agent(ledger).run_stream("go"))

    if required:
        with pytest.raises(RuntimeError, match="ends while a stream of agent 'speaker' is open"):
            await begin()
    else:
        with pytest.warns(DurabilityWarning, match="ends while a stream of agent 'speaker' is open"):
            result = await begin()
        with pytest.raises(RuntimeError, match="the block of ledger_run\\('t'\\) has ended"):
            await result.get_output()
    with suppress(RuntimeError):
        await late.aclose()
    assert not any(each.is_alive for each in await ledger.hosts())
    (run,) = await runs(ledger)
    assert (run.status, run.is_left) == (("failed", False) if required else ("waiting", True))
    async with ledger_run("t"):
        assert (await speaker.agent(ledger).run("go")).output == "one two three"
    assert await runs(ledger) == ()


def test_a_program_without_an_event_loop_uses_run_sync() -> None:
    ledger, desk = MemoryLedger(), Desk()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        for seen in (["model 0"], []):
            with ledger_run("t"):
                agent = Agent(script(desk, ["hello"]), name="clerk", capabilities=[LedgerDurability(ledger)])
                assert agent.run_sync("hi").output == "hello"
            assert desk.taken() == seen
        with pytest.warns(DurabilityWarning, match="recorded nothing") as warned, ledger_run("u"):
            pass
        assert [each.filename for each in warned] == [__file__]
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_a_new_event_loop_in_a_block_without_one_is_refused() -> None:
    agent = Speaker().agent(MemoryLedger())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with (
            pytest.raises(RuntimeError, match=r"agent 'speaker' runs in another event loop than ledger_run\('t'\)"),
            ledger_run("t"),
        ):
            asyncio.run(agent.run("hi"))
    finally:
        loop.close()
        asyncio.set_event_loop(None)
