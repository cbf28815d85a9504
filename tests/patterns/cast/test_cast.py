"""Cast: agents by name, asked durably; who is granted what; models that fail."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from antiphon.durable import ledger_run
from antiphon.errors import RefusedError, SetupError, StoppedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionResultPayload, PartsPayload
from antiphon.messages import TextPart as Spoken
from antiphon.patterns.cast import AgentSpec, Answer, Cast, Outcome, Patience, Pattern, together
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, handles

QUICK = Patience(backoff=0, attempts=2)


class Tally(BaseModel):
    words: int


def counting(asked: list[str]) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(messages[-1].parts[-1].part_kind)
        return ModelResponse([TextPart("So it is.")])

    return FunctionModel(answer, model_name="counting")


@pytest.mark.slow
async def test_a_recorded_answer_is_not_asked_for_again() -> None:
    asked: list[str] = []
    ledger = MemoryLedger()
    for _ in range(2):
        cast = Cast(ledger, [AgentSpec(name="ada")], model=counting(asked))
        async with ledger_run("t", ledger=ledger):
            assert (await cast.ask("ada", "Is it so?")).output == "So it is."
    assert asked == ["user-prompt"]


@pytest.mark.slow
async def test_an_answer_has_the_requested_type() -> None:
    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(name="ada")], model=TestModel(custom_output_args={"words": 3}))
    async with ledger_run("t", ledger=ledger):
        answer: Answer[Tally] = await cast.ask("ada", "How many words?", output=Tally)
    assert answer.output == Tally(words=3)


async def _tasks_of(output: type[Any]) -> int:
    """Return how many tasks are made while an agent is asked for an output."""
    made: list[str] = []
    loop = asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **more)

    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(name="ada")], model=TestModel(custom_output_text="Three."))
    if output is Tally:
        cast = Cast(ledger, [AgentSpec(name="ada")], model=TestModel(custom_output_args={"words": 3}))
    async with ledger_run("t", ledger=ledger):
        loop.set_task_factory(make)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        try:
            await cast.ask("ada", "How many words?", output=output)
        finally:
            loop.set_task_factory(None)
    return len(made)


@pytest.mark.slow
async def test_a_typed_output_takes_no_more_tasks_than_text() -> None:
    """If this fails with another version of Pydantic AI, `CastAgent` has no effect any more."""
    # The first runs of a process have a task more, of either kind: pairs are compared.
    pairs = [(await _tasks_of(Tally), await _tasks_of(str)) for _ in range(4)]
    assert any(typed <= text for typed, text in pairs), pairs


async def test_a_tool_with_the_name_of_the_output_is_an_error() -> None:
    async def final_result() -> str:
        """Say something."""
        return "something"

    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(name="ada", tools=("final_result",))], tools=[final_result], model=TestModel())
    with pytest.raises(RefusedError, match="a tool of the agent has the name of its output: final_result"):
        async with ledger_run("t", ledger=ledger):
            await cast.ask("ada", "How many words?", output=Tally)


async def test_an_agent_has_the_tools_that_it_names_and_no_others() -> None:
    offered: dict[str, list[str]] = {}

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        offered[info.instructions or ""] = [tool.name for tool in info.function_tools]
        return ModelResponse([TextPart("Yes.")])

    ledger = MemoryLedger()
    specs = [AgentSpec(name="ada", instructions="ada", tools=("calculator",)), AgentSpec(name="bob", instructions="bob")]
    cast = Cast(ledger, specs, model=FunctionModel(answer))
    async with ledger_run("t", ledger=ledger):
        await cast.ask("ada", "Well?")
        await cast.ask("bob", "Well?")
    assert offered == {"ada": ["calculator"], "bob": []}
    denied = await cast.toolkit.call("bob", "calculator", {"expression": "1+1"})
    assert denied.error_type == "PERMISSION_DENIED"


async def test_tool_calls_are_reported_and_recorded() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("calculator", {"expression": "17*23"}, tool_call_id="c1")])
        return ModelResponse([TextPart(str(messages[-1].parts[0].content))])  # type: ignore[union-attr]

    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(name="ada", tools=("calculator",))], model=FunctionModel(answer))
    async with ledger_run("t", ledger=ledger):
        said: Answer[str] = await cast.ask("ada", "17*23?")
    assert [call.tool_name for call in said.calls] == ["calculator"]
    results = [record.message.payload async for record in ledger.read("t")]
    assert any(isinstance(each, OptionResultPayload) and each.invocation_id == "c1" for each in results)


async def test_a_busy_model_is_asked_again_and_then_the_fallback() -> None:
    asked: list[str] = []

    def busy(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append("busy")
        raise ModelHTTPError(503, "busy")

    models: dict[str | None, Any] = {"busy": FunctionModel(busy, model_name="busy"), "calm": counting(asked)}
    ledger = MemoryLedger()
    spec = AgentSpec(name="ada", model="busy", fallback="calm")
    cast = Cast(ledger, [spec], patience=QUICK, make_model=lambda name: models[name])
    async with ledger_run("t", ledger=ledger):
        assert (await cast.ask("ada", "Is it so?")).output == "So it is."
    assert asked == ["busy", "busy", "user-prompt"]


def test_the_provider_says_how_long_to_wait() -> None:
    """Retry-After counts before the own backoff. If it is longer than the longest wait, the provider is not asked again."""
    named = ModelHTTPError(429, "teller", headers={"Retry-After": "7"})
    busy, many = ModelHTTPError(429, "teller"), Patience(attempts=10)
    assert (many.pause(named, 1), Patience(longest_backoff=5).pause(named, 1)) == (7, None)
    assert [many.pause(busy, attempt) for attempt in (1, 2, 3, 9, 10)] == [0.5, 1, 2, 30, None]


async def test_models_that_never_answer_are_one_error_that_says_whether_to_try_later() -> None:
    def busy(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(503, "busy")

    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(name="ada")], model=FunctionModel(busy), patience=QUICK)
    with pytest.raises(StoppedError, match="the model of 'ada' cannot be asked: .*503") as raised:
        async with ledger_run("t", ledger=ledger):
            await cast.ask("ada", "Is it so?")
    assert (raised.value.code, raised.value.cause) == ("STOPPED", "AGENT_ERROR")


async def test_a_model_has_at_most_so_many_requests_at_once() -> None:
    at_work, most = 0, 0

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        return ModelResponse([TextPart("Yes.")])

    ledger = MemoryLedger()
    cast = Cast(ledger, [AgentSpec(name="ada")], model=FunctionModel(answer), patience=Patience(concurrency=2))

    async def one(number: int) -> None:
        async with ledger_run(f"t{number}", ledger=ledger):
            await cast.ask("ada", "Well?")

    await asyncio.gather(*(one(number) for number in range(6)))
    assert most == 2


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ([AgentSpec(name="ada"), AgentSpec(name="ada")], "two agents are called 'ada'"),
        ([AgentSpec(name="ada", tools=("web_search",))], "web"),
    ],
)
def test_an_invalid_cast_is_refused_with_the_reason(agents: list[AgentSpec], says: str) -> None:
    with pytest.raises(Exception, match=says):
        Cast(MemoryLedger(), agents)


def test_an_unknown_agent_is_named_with_the_known_ones() -> None:
    with pytest.raises(SetupError, match="no agent 'eve'; there are 'ada', 'bob'"):
        Cast(MemoryLedger(), [AgentSpec(name="ada"), AgentSpec(name="bob")]).spec("eve")


async def test_each_message_is_in_the_thread_once() -> None:
    ledger = MemoryLedger()
    for _ in range(2):
        async with ledger_run("t", ledger=ledger) as here:
            await here.say(Message(policy="ada", payload=PartsPayload(parts=(Spoken(text="Hello."),))))
    said = [record.message async for record in ledger.read("t") if record.message.lane == "talk"]
    assert [message.parts[0].text for message in said] == ["Hello."]  # type: ignore[union-attr]


class Greeted(Reply, frozen=True, type="CAST_GREETED"):
    text: str


class Greet(Request[Greeted], frozen=True, type="CAST_GREET"):
    name: str


class Greeter(Actor):
    @handles
    async def greet(self, request: Greet, context: Context) -> Greeted:
        return Greeted(text=f"hello {request.name}")


class Asker(Actor):
    @handles
    async def greet(self, request: Greet, context: Context) -> Greeted:
        return await context.ask("greeter/1", request)


class Greeting(Pattern):
    kind = "greeter"

    async def run(self, text: str, *, thread_id: str | None = None) -> Outcome:
        greeted = await self.system.ask(f"{self.kind}/1", Greet(name=text), thread_id=thread_id)
        return Outcome(thread_id or "", "completed", greeted.text)


class Greeters(Greeting):
    def host(self, system: System) -> None:
        system.register("greeter", Greeter)


class Askers(Greeting):
    kind = "asker"

    def host(self, system: System) -> None:
        system.register("asker", Asker)


async def test_patterns_that_are_opened_together_reach_each_other_in_one_thread() -> None:
    ledger = MemoryLedger()
    askers = Askers(ledger)
    async with together(Greeters(ledger), askers):
        assert (await askers.run("you", thread_id="t")).response == "hello you"
    assert len([record async for record in ledger.read("t")]) == 4


async def test_a_pattern_opens_its_own_system() -> None:
    async with Greeters() as greeters:
        assert (await greeters.run("you")).response == "hello you"


async def test_patterns_on_different_ledgers_cannot_be_opened_together() -> None:
    with pytest.raises(ValueError, match="need the same ledger"):
        async with together(Greeters(), Askers()):
            pass
