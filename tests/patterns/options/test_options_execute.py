"""Calls completed without a policy; messages that stay what they are; decisions as training data; faults in virtual time."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests import strategies
from tests.patterns.chains import run

from antiphon import decode, dumps, encode, loads
from antiphon.errors import BudgetExceededError, HistoryMismatchError, ParkedError, RefusedError
from antiphon.ledger import Ledger, is_not_executed, transitions
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, Message, MessageBuilder, OptionCallPayload, OptionResultPayload, use_port
from antiphon.patterns.cast import AgentSpec, Cast
from antiphon.patterns.options import (
    Choices,
    CompleteCalls,
    Executor,
    ExecutorLimits,
    FirstSuccess,
    Options,
    RunPolicy,
    export_transitions,
    under,
)
from antiphon.runtime import System
from antiphon.testing import CountingPort, Faults, World, simulate

SEEDS = range({"": 12, "ci": 300, "nightly": 5_000}[os.environ.get("ANTIPHON_CHAOS", "")])
SEARCH = 0.0
"""Seconds that a search takes."""
FAULTS = Faults(crashes=4, uptime=1.5, ledger_failure=0.03)
HOUSE = Path(__file__).parents[2] / "messages" / "house" / "v1.jsonl"


def searching(started: list[str]) -> Options:
    options = Options()

    @options.option(effects="none")
    async def search_web(query: str) -> list[str]:
        """Search the web."""
        started.append(query)
        await asyncio.sleep(SEARCH)
        return [f"about {query}"]

    return options


def seed_builder() -> MessageBuilder:
    """Return the seed's example up to where it says that the executor runs the call."""
    last_message = MessageBuilder.next_step(None).add_text("What is the hobbit movie?").to_message()
    return MessageBuilder.continue_step(last_message).add_option_call("search_web", {"query": "hobbit movie"})


# ---------------------------------------------------------------- without a policy


async def test_the_executor_completes_the_calls_of_a_conversation() -> None:
    """OP-067, OP-038, OP-047: as the seed's example has it: ids, step and names are those of the call."""
    started: list[str] = []
    async with Executor(None, searching(started)) as executor:
        builder = seed_builder()
        done = await executor.execute(builder.to_messages(), thread_id="t")
        again = await executor.execute(builder.to_messages(), thread_id="t")
    call, result = done
    assert isinstance(result.payload, OptionResultPayload)
    assert (result.payload.invocation_id, result.payload.option_name) == (call.invocation_id, "search_web")
    assert (result.step_num, result.policy, result.role_hint_for_llm, result.in_reply_to) == (
        1,
        "search_web",
        "tool",
        call.id,
    )
    assert again == done
    assert started == ["hobbit movie"]


async def test_the_executor_completes_the_calls_of_a_stored_thread() -> None:
    """OP-067: calls of any policy, once; a policy with an invalid name gets PERMISSION_DENIED."""
    started: list[str] = []
    ledger = MemoryLedger()
    odd = MessageBuilder(policy="Ада и Боб").add_option_call("search_web", {"query": "tea"}).last_option_call
    await ledger.append("t", [*seed_builder().to_messages(), odd])
    async with Executor(ledger, searching(started)) as executor:
        done = await executor.execute(thread_id="t")
        assert await executor.execute(thread_id="t") == done
    assert [getattr(each.payload, "error_type", None) for each in done.results()] == [None, "PERMISSION_DENIED"]
    assert (started, done.open_calls()) == (["hobbit movie"], ())


async def test_calls_that_came_from_a_provider_are_completed_and_can_be_sent_back() -> None:
    """OP-067, OP-058: an answer with two calls goes in as the provider has written it, and out with both results."""
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "search_web", "arguments": json.dumps({"query": n})}}
        for n in ("tea", "milk")
    ]
    said = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    async with Executor(None, searching([])) as executor:
        done = await executor.execute(decode(said, "openai-chat"))
    sent = encode(done, "openai-chat").value["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "tool"]
    assert [each["tool_call_id"] for each in sent[2:]] == ["call_tea", "call_milk"]


async def test_messages_from_elsewhere_give_no_orders_to_actors() -> None:
    """S8: neither by their lane, nor by their receiver, nor by what they say of the runtime."""
    ledger = MemoryLedger()
    call = seed_builder().last_option_call
    order = call.model_copy(
        update={"lane": "control", "to": ("options/1",), "metadata": {"antiphon": {"enclosure": {}}, "own": {"a": 1}}}
    )
    async with Executor(ledger, searching([])) as executor:
        first = (await executor.execute([order], thread_id="t"))[0]
    assert (first.lane, first.to, list(first.metadata)) == ("talk", (), ["own"])


async def test_a_mark_of_untrusted_content_counts_for_the_calls_of_its_conversation() -> None:
    """S4: also if a program hands over the messages with the calls."""
    started = list[str]()
    marked = seed_builder().last_option_call.model_copy(update={"metadata": {"antiphon": {"untrusted": "a web page"}}})
    async with Executor(None, searching(started)) as executor:
        with pytest.raises(ParkedError, match="a web page"):
            await executor.execute([marked], thread_id="t")
    assert not started


async def test_more_calls_than_are_allowed_are_refused_and_closed() -> None:
    ledger, started = MemoryLedger(), list[str]()
    async with Executor(ledger, searching(started), limits=ExecutorLimits(calls=0)) as executor:
        with pytest.raises(BudgetExceededError, match="0 calls"):
            await executor.execute(seed_builder().to_messages(), thread_id="t")
    assert not started
    assert not await ledger.open_calls("t")


async def test_a_conversation_without_open_calls_is_as_it_was() -> None:
    async with Executor(None, Options()) as executor:
        assert len(await executor.execute(thread_id="empty")) == 0
        said = MessageBuilder(policy="user").add_text("Hello.").to_message()
        assert [each.parts for each in await executor.execute([said])] == [said.parts]


async def test_a_value_that_is_no_message_is_refused() -> None:
    async with Executor(None, Options()) as executor:
        with pytest.raises(RefusedError, match="not JSON") as refused:
            await executor.system.ask("options/1", CompleteCalls(observations=("hello",)), thread_id="t")
    assert refused.value.code == "VALIDATION_ERROR"


async def test_a_call_that_has_a_result_already_is_not_run_and_never_has_two_results() -> None:
    """OP-063, OP-067: a result that arrives while the option runs counts; a second one is refused."""
    ledger, options, started = MemoryLedger(), Options(), list[str]()
    first, second = (MessageBuilder(policy="p").add_option_call(name, {}).last_option_call for name in ("one", "two"))

    @options.option(effects="none")
    async def one() -> str:
        """Get a result from another writer meanwhile."""
        started.append("one")
        await ledger.post("t", _by_others(first))
        return "mine"

    @options.option(effects="none")
    async def two() -> str:
        """Never run."""
        raise AssertionError

    await ledger.append("t", [first, second])
    await ledger.post("t", _by_others(second))
    async with Executor(ledger, options) as executor:
        with pytest.raises(HistoryMismatchError, match="has another result already"):
            await executor.execute(thread_id="t")
        done = await executor.execute(thread_id="t")
    assert [getattr(each.payload, "result", None) for each in done.results()] == ["by others", "by others"]
    assert started == ["one"]


def _by_others(call: Message) -> Message:
    payload = call.payload
    assert isinstance(payload, OptionCallPayload)
    answer = OptionResultPayload(invocation_id=payload.invocation_id, option_name=payload.option_name, result="by others")
    return Message(policy=payload.option_name, payload=answer, to=("p",))


# ---------------------------------------------------------------- the layers above the messages


@pytest.mark.slow
def test_the_layers_are_added_without_changing_the_messages() -> None:
    """OP-066, OP-051: bytes written before there was an executor load as they did, and the core knows nothing of it."""
    program = "import sys, antiphon.ledger, antiphon.dialects; print(*(name for name in sys.modules if 'patterns' in name))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "\n"
    written = HOUSE.read_bytes()
    assert dumps(loads(written)) == written

    async def main() -> None:
        with use_port(CountingPort()):
            conversation = Conversation(seed_builder().to_messages())
        before = dumps(conversation)
        ledger = MemoryLedger()
        async with Executor(ledger, searching([])) as executor:
            done = await executor.execute(conversation, thread_id="t")
        assert dumps(conversation) == before
        kept = Conversation([done[0].model_copy(update={"thread_id": None})])
        assert dumps(kept) == before
        assert {each.kind for each in done} <= {"parts", "option_call", "option_result"}

    run(main())


@pytest.mark.slow
@settings(max_examples=15)
@given(strategies.messages)
def test_any_message_can_be_observed(message: Message) -> None:
    """OP-066: whatever the core can say, a policy can be given."""

    async def main() -> None:
        options = Options()
        seen: list[Message] = []

        @options.policy()
        def clerk(observations: Conversation, choices: Choices) -> str:
            seen.extend(observations)
            return "Seen."

        async with Executor(None, options) as executor:
            assert (await executor.run([message], thread_id="t")).response == "Seen."
        own = {
            "thread_id": "t",
            "lane": "talk",
            "to": (),
            "parent_id": None,
            "metadata": {k: v for k, v in message.metadata.items() if k != "antiphon"},
        }
        assert seen[:1] == [message.model_copy(update=own)]
        assert all(is_not_executed(each) for each in seen[1:])  # a call is shown with the result that closed it

    run(main())


# ---------------------------------------------------------------- training data


async def test_the_decisions_of_a_run_are_training_data() -> None:
    """OP-022: one JSON object each: what was observed, chosen and produced; also of policies that are nested."""
    options, ledger = searching([]), MemoryLedger()

    @options.policy(to=["boss"])
    def clerk(observations: Conversation, choices: Choices) -> Any:
        """Search."""
        return "Found." if observations.calls() else choices.call("search_web", query="tea")

    @options.policy()
    def boss(observations: Conversation, choices: Choices) -> Any:
        if observations.calls():
            return "Done."
        return [choices.say("I ask."), choices.call("clerk", task="Look."), choices.call("search_web", query="milk")]

    async with Executor(ledger, options, policy="boss") as executor:
        await executor.run("Well?", thread_id="t")
    lines = [json.dumps(each) async for each in export_transitions(ledger, "t")]
    first, second = map(json.loads, lines)
    assert list(first) == ["thread_id", "policy", "step", "is_complete", "observations", "actions", "results", "reward"]
    assert [(each["policy"], each["step"], each["reward"]) for each in (first, second)] == [
        ("boss", 1, None),
        ("clerk", 2, None),
    ]
    texts = [[part["text"] for part in each["payload"]["parts"]] for each in (*first["observations"], *second["observations"])]
    assert texts == [["Well?"], ["Look."]]
    assert [each["payload"]["kind"] for each in first["actions"]] == ["parts", "option_call", "option_call"]
    assert [each["payload"]["result"] for each in first["results"]] == ["Found.", ["about milk"]]
    assert loads(json.dumps(second["actions"][0]).encode(), Message).policy == "clerk"
    whole = await transitions(ledger, "t")
    assert [each.step_num for each in whole] == [None, 1, 2]  # the first is that the run was asked for
    assert all(each.is_complete for each in whole)


async def test_decisions_of_an_agent_that_a_policy_asks_are_training_data_too() -> None:
    """OP-022: the requests of one run of an agent are one loop, which observes what the agent was told."""

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("calculator", {"expression": "6*7"}, tool_call_id="c1")])
        return ModelResponse([TextPart("It is 42.")])

    ledger, options = MemoryLedger(), Options()
    cast = Cast(ledger, [AgentSpec(name="ada", tools=("calculator",))], model=FunctionModel(reply))

    @options.policy()
    async def clerk(observations: Conversation, choices: Choices) -> Any:
        return (await cast.ask("ada", "6*7?")).output

    async with Executor(ledger, options) as executor:
        assert (await executor.run("Well?", thread_id="t")).response == "It is 42."
    (found,) = [each async for each in export_transitions(ledger, "t")]
    assert (found["policy"], len(found["observations"]), found["results"][0]["payload"]["invocation_id"]) == (
        "ada",
        1,
        "c1",
    )


# ---------------------------------------------------------------- faults


def racing(started: list[str]) -> Options:
    options = searching(started)

    @options.policy(to=["boss"])
    def clerk(observations: Conversation, choices: Choices) -> Any:
        """Search."""
        return "Found." if observations.calls() else choices.call("search_web", query="tea")

    @options.policy()
    def boss(observations: Conversation, choices: Choices) -> Any:
        match len(observations.calls()):
            case 0:
                return [choices.call("clerk", task="Look."), choices.call("clerk", task="Look."), choices.call("fly")]
            case 3:
                return under(FirstSuccess(), [choices.call("search_web", query=query) for query in ("a", "b")])
            case _:
                return "Done."

    return options


@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_of_a_run_ends_exactly_once_whatever_fails(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OP-063, G9: in virtual time, with crashes, lost and doubled messages, and appends that fail."""
    monkeypatch.setattr(sys.modules[__name__], "SEARCH", 0.5)

    async def drive(world: World) -> None:
        request = RunPolicy(policy="boss", input="Well?")
        ran = await world.ask("options/1", request, thread_id="t", id="run-1")
        assert ran.response == "Done."

    found = simulate(seed, host=_host, drive=drive, faults=FAULTS)
    run(_check(found.ledger))


async def _check(ledger: Ledger) -> None:
    said = Conversation([record.message async for record in ledger.read("t") if record.message.lane == "talk"])
    assert not said.open_calls()
    assert not said.orphans()
    assert len(said.calls()) == len(said.results()) == len(said.pairs()) == 7
    for each in said.transitions():
        assert [result.invocation_id for result in each.results] == [call.invocation_id for call in each.actions]


def test_the_same_seed_gives_the_same_ledger() -> None:
    async def drive(world: World) -> None:
        await world.ask("options/1", RunPolicy(policy="boss", input="Well?"), thread_id="t", id="run-1")

    hashes = [simulate(3, host=_host, drive=drive).hash for _ in range(2)]
    assert hashes[0] == hashes[1]


def _host(system: System) -> None:
    Executor(MemoryLedger(), racing([])).host(system)
