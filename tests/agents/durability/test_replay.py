"""An agent's run is written down before it acts, and the same program gets back what is recorded. G6, G9."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from inline_snapshot import snapshot
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults, ModelRetry, Tool
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, PartDeltaEvent, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon.agents import LedgerDurability, listen
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import ForeignPart, OptionCallPayload


async def rows(ledger: Ledger, thread_id: str = "t") -> list[Any]:
    return [record.message async for record in ledger.read(thread_id)]


class Receipt(BaseModel):
    total: int


EVERYTHING = (
    ["one moment", call("refund", "c1", amount=3), call("look", "c2", what="x"), call("reserve", "c3", what="y")],
    [call("flaky", "c4", number=1)],
    [call("flaky", "c5", number=2)],
    [call("final_result", "c6", total=3)],
)


def test_a_run_is_a_call_and_a_result_for_each_thing_done_and_the_talk_between() -> None:
    """G6: the intent stands before the thing, the outcome after; names and invocations are the same in every release."""

    async def main() -> list[str]:
        ledger, desk = MemoryLedger(), Desk()
        agent = clerk(ledger, desk, script(desk, *EVERYTHING), output_type=Receipt, instructions="be kind")
        async with ledger_run("order-42"):
            assert (await agent.run("refund me")).output == Receipt(total=3)
        assert desk.keys["refund 3"] == "order-42/run/clerk/refund:c1"
        return [
            f"{message.lane} {message.kind} {message.id} < {message.parent_id}: "
            f"{getattr(message.payload, 'option_name', '').removeprefix('clerk__function_toolset__') or message.parts[0].text}"
            for message in await rows(ledger, "order-42")
        ]

    assert asyncio.run(main()) == snapshot(
        [
            "effect option_call order-42/run@begun < None: RUN",
            "talk parts order-42/run/clerk/model@said1 < order-42/run/clerk/model: be kind",
            "talk parts order-42/run/clerk/model@said2 < order-42/run/clerk/model: refund me",
            "effect option_call order-42/run/clerk/model@begun < order-42/run/clerk: clerk__model.request",
            "talk parts order-42/run/clerk/model@answer1 < order-42/run/clerk/model: one moment",
            "talk option_call order-42/run/clerk/model@answer2 < order-42/run/clerk/model: refund",
            "talk option_call order-42/run/clerk/model@answer3 < order-42/run/clerk/model: look",
            "talk option_call order-42/run/clerk/model@answer4 < order-42/run/clerk/model: reserve",
            "effect option_result order-42/run/clerk/model@ended < order-42/run/clerk: clerk__model.request",
            "effect option_call order-42/run/clerk/refund:c1@begun < c1: <agent>.call_tool:refund",
            "effect option_result order-42/run/clerk/refund:c1@ended < c1: <agent>.call_tool:refund",
            "effect option_call order-42/run/clerk/look:c2@begun < c2: <agent>.call_tool:look",
            "effect option_call order-42/run/clerk/reserve:c3@begun < c3: <agent>.call_tool:reserve",
            "effect option_result order-42/run/clerk/reserve:c3@ended < c3: <agent>.call_tool:reserve",
            "effect option_result order-42/run/clerk/look:c2@ended < c2: <agent>.call_tool:look",
            "talk option_result order-42/run/clerk/model=2@said1 < order-42/run/clerk/model=2: refund",
            "talk option_result order-42/run/clerk/model=2@said2 < order-42/run/clerk/model=2: look",
            "talk option_result order-42/run/clerk/model=2@said3 < order-42/run/clerk/model=2: reserve",
            "effect option_call order-42/run/clerk/model=2@begun < order-42/run/clerk: clerk__model.request",
            "talk option_call order-42/run/clerk/model=2@answer1 < order-42/run/clerk/model=2: flaky",
            "effect option_result order-42/run/clerk/model=2@ended < order-42/run/clerk: clerk__model.request",
            "effect option_call order-42/run/clerk/flaky:c4@begun < c4: <agent>.call_tool:flaky",
            "effect option_result order-42/run/clerk/flaky:c4@ended < c4: <agent>.call_tool:flaky",
            "talk option_result order-42/run/clerk/model=3@said1 < order-42/run/clerk/model=3: flaky",
            "effect option_call order-42/run/clerk/model=3@begun < order-42/run/clerk: clerk__model.request",
            "talk option_call order-42/run/clerk/model=3@answer1 < order-42/run/clerk/model=3: flaky",
            "effect option_result order-42/run/clerk/model=3@ended < order-42/run/clerk: clerk__model.request",
            "effect option_call order-42/run/clerk/flaky:c5@begun < c5: <agent>.call_tool:flaky",
            "effect option_result order-42/run/clerk/flaky:c5@ended < c5: <agent>.call_tool:flaky",
            "talk option_result order-42/run/clerk/model=4@said1 < order-42/run/clerk/model=4: flaky",
            "effect option_call order-42/run/clerk/model=4@begun < order-42/run/clerk: clerk__model.request",
            "talk option_call order-42/run/clerk/model=4@answer1 < order-42/run/clerk/model=4: final_result",
            "effect option_result order-42/run/clerk/model=4@ended < order-42/run/clerk: clerk__model.request",
            "talk option_result order-42/run/clerk@end@said1 < order-42/run/clerk@end: final_result",
            "effect option_result order-42/run@ended < None: RUN",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("answers", [0, 1, 2, 3])
async def test_a_program_that_ended_in_the_middle_goes_on_there_and_pays_for_nothing_twice(answers: int) -> None:
    """G9."""
    ledger, desk = MemoryLedger(), Desk()
    cut = [*EVERYTHING[:answers], CutError()]
    with pytest.raises(CutError):
        async with ledger_run("t"):
            await clerk(ledger, desk, script(desk, *cut), output_type=Receipt).run("refund me")
    first = desk.taken()
    async with ledger_run("t"):
        result = await clerk(ledger, desk, script(desk, *EVERYTHING), output_type=Receipt).run("refund me")
    second = desk.taken()
    assert result.output == Receipt(total=3)
    assert sorted(set(first) & set(second)) == [f"model {answers}"]  # the failed request
    async with ledger_run("t"):
        again = await clerk(ledger, desk, script(desk, *EVERYTHING), output_type=Receipt).run("refund me")
    assert again.output == result.output
    assert [type(message) for message in again.all_messages()] == [type(message) for message in result.all_messages()]
    assert again.usage.input_tokens == result.usage.input_tokens == 400
    assert desk.taken() == []
    assert not await ledger.open_calls("t")


class CutError(Exception):
    """What ends the program."""


@pytest.mark.slow
def test_another_program_against_the_same_history_is_stopped_and_told_what_differs() -> None:
    async def main(prompt: str, expected: str, **more: Any) -> None:
        ledger, desk = MemoryLedger(), Desk()
        turns = ([call("look", "c1", what="x")], ["done"])
        with pytest.raises(CutError):
            async with ledger_run("t"):
                await clerk(ledger, desk, script(desk, turns[0], CutError())).run("look")
        desk.taken()
        with pytest.raises(HistoryMismatchError, match=expected):
            async with ledger_run("t"):
                await clerk(ledger, desk, script(desk, *turns, name=more.pop("name", "script")), **more).run(prompt)
        assert desk.taken() == []

    asyncio.run(main("look again", "the prompt differs from the one that thread 't' records, in 't/run/clerk/model'"))
    asyncio.run(main("look", "the settings differ", model_settings={"temperature": 0.5}))
    asyncio.run(main("look", "the tools differ", tools=[_is_request]))
    asyncio.run(main("look", "the prompt differs", instructions="be kind"))


async def test_a_finished_run_takes_nothing_more() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent = clerk(ledger, desk, script(desk, ["hello"]))
    async with ledger_run("t"):
        await agent.run("hi")
    async with ledger_run("t"):
        await agent.run("hi")
        with pytest.raises(HistoryMismatchError, match="the run is finished in thread 't', and this program does more"):
            await agent.run("hi")
    async with ledger_run("t", id="another"):
        await agent.run("hi")


@pytest.mark.slow
async def test_agents_in_parallel_are_distinguished() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent = clerk(ledger, desk, script(desk, [call("look", "c1", what="x")], ["done"]))
    for _ in range(2):
        async with ledger_run("t"):
            results = await asyncio.gather(*(agent.run(f"look {number}") for number in range(5)))
        assert [result.output for result in results] == ["done"] * 5
    assert len(desk.taken()) == 15
    begun = [row.payload.arguments["arguments"] for row in await rows(ledger) if _is_request(row)]
    assert len(begun) == 10


def _is_request(row: Any) -> bool:
    return isinstance(row.payload, OptionCallPayload) and row.payload.option_name == "clerk__model.request"


async def test_a_request_says_up_to_where_the_thread_is_its_prompt() -> None:
    ledger, desk = MemoryLedger(), Desk()
    async with ledger_run("t"):
        await clerk(ledger, desk, script(desk, *EVERYTHING), output_type=Receipt).run("a prompt that is nowhere twice")
    said = await rows(ledger)
    for position, row in enumerate(said):
        if _is_request(row):
            assert row.payload.arguments["arguments"]["upto_seq"] == position
            own = set(row.payload.arguments["arguments"]) - {"offered"}  # the first one has the tools that it offers
            assert own == {"model", "settings", "prompt", "tools", "upto_seq"}
    assert sum("a prompt that is nowhere twice" in row.model_dump_json() for row in said) == 1


async def test_answers_of_the_same_time_are_said_once_each() -> None:
    """Some providers give times in seconds, and an answer is known by its time."""
    ledger, when = MemoryLedger(), datetime(2026, 1, 1, tzinfo=UTC)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse([call("step", f"c{number}") if number < 3 else TextPart("done")], timestamp=when)

    agent: Agent[None, str] = Agent(FunctionModel(answer), name="clerk", capabilities=[LedgerDurability(ledger)])

    @agent.tool_plain
    def step() -> str:
        return "ok"

    for _ in range(2):
        async with ledger_run("t"):
            assert (await agent.run("go")).output == "done"
    talk = [row.message async for row in ledger.read("t") if row.message.lane == "talk"]
    pair = [("option_call", "clerk"), ("option_result", "step")]
    assert [(row.kind, row.policy) for row in talk] == [("parts", "user"), *pair, *pair, *pair, ("parts", "clerk")]


@pytest.mark.slow
async def test_an_agent_that_a_tool_runs_is_durable_too() -> None:
    """The tool only delegates, so it may run again; the recorded steps of its agent are not repeated."""
    ledger, desk = MemoryLedger(), Desk()

    def agents(*turns: Any) -> Agent[None, str]:
        helper = clerk(ledger, desk, script(desk, *turns))
        boss = Agent(
            script(desk, [call("delegate", "b1")], ["well done"]), name="boss", capabilities=[LedgerDurability(ledger)]
        )

        @boss.tool_plain(metadata={"antiphon": {"effects": "none"}})
        async def delegate() -> str:
            desk.note("delegate")
            return str((await helper.run("refund")).output)

        return boss

    with pytest.raises(CutError):
        async with ledger_run("t"):
            await agents([call("refund", "c1", amount=1)], CutError()).run("go")
    assert desk.taken() == ["model 0", "delegate", "model 0", "refund 1", "model 1"]
    async with ledger_run("t"):
        assert (await agents([call("refund", "c1", amount=1)], ["refunded"]).run("go")).output == "well done"
    assert desk.taken() == ["delegate", "model 1", "model 1"]
    assert desk.keys["refund 1"] == "t/run/boss/delegate:b1/clerk/refund:c1"


@pytest.mark.slow
async def test_streams_are_live_the_first_time_and_whole_the_second() -> None:
    ledger, desk = MemoryLedger(), Desk()
    events: list[AgentStreamEvent] = []

    async def handler(ctx: Any, stream: Any) -> None:
        events.extend([event async for event in stream])

    agent = clerk(ledger, desk, script(desk, [call("look", "c1", what="x")], ["it is there"]), event_stream_handler=handler)
    for deltas in (2, 0):
        async with ledger_run("t"):
            assert (await agent.run("look")).output.strip() == "it is there"
        assert sum(isinstance(event, PartDeltaEvent) for event in events) == deltas
        events.clear()
    assert desk.taken() == ["model 0", "look x", "model 1"]
    async with ledger_run("t", id="stream"), agent.run_stream("look") as stream:
        assert [text async for text in stream.stream_text(debounce_by=None)][-1].strip() == "it is there"


@pytest.mark.slow
async def test_a_deferred_call_is_answered_by_a_later_run() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent = clerk(ledger, desk, script(desk, [call("later", "d1")], ["all done"]), output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    async def later() -> str:
        desk.note("later")
        raise CallDeferred

    for _ in range(2):
        async with ledger_run("t"):
            asked = await agent.run("go")
        assert isinstance(asked.output, DeferredToolRequests)
        assert [each.tool_call_id for each in asked.output.calls] == ["d1"]
    assert [row.message.invocation_id for row in await ledger.open_calls("t")] == ["d1"]
    for _ in range(2):
        async with ledger_run("t", id="answer"):
            results = DeferredToolResults(calls={"d1": "it came"})
            result = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results)
        assert result.output == "all done"
    assert desk.taken() == ["model 0", "later", "model 1"]
    assert not await ledger.open_calls("t")
    assert len([row for row in await rows(ledger) if row.lane == "talk"]) == 4


async def test_a_fallback_is_used_again_and_a_request_that_ended_the_run_is_repeated() -> None:
    """F30: an error of the model is one row, comes back as the same error, and is not final."""
    ledger, desk = MemoryLedger(), Desk()
    busy = ModelHTTPError(429, "busy", {"error": "slow down"})
    models = {"busy": script(desk, busy, name="busy"), "calm": script(desk, ["at last"], name="calm")}
    agent: Agent[None, str] = Agent(
        models["busy"], name="clerk", capabilities=[ModelFallback(models["calm"]), LedgerDurability(ledger, models=models)]
    )
    for seen in (["model 0", "model 0"], []):
        async with ledger_run("t"):
            assert (await agent.run("hi")).output == "at last"
        assert desk.taken() == seen

    failing = clerk(ledger, desk, models["busy"])
    for _ in range(2):
        with pytest.raises(ModelHTTPError, match="429") as caught:
            async with ledger_run("u"):
                await failing.run("hi")
        assert caught.value.body == {"error": "slow down"}
    async with ledger_run("u"):
        assert (await clerk(ledger, desk, script(desk, ["hello"], name="busy")).run("hi")).output == "hello"


async def test_outside_of_a_run_an_agent_is_as_it_was() -> None:
    ledger, desk = MemoryLedger(), Desk()
    result = await clerk(ledger, desk, script(desk, *EVERYTHING), output_type=Receipt).run("refund me")
    assert result.output == Receipt(total=3)
    assert desk.keys == {}
    assert (await ledger.threads()).threads == ()


async def test_a_listener_gets_each_word_and_the_ledger_has_the_answer_once() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, ["it is there"]), name="clerk", capabilities=[LedgerDurability(ledger, live=True)]
    )
    async with listen(ledger, "t") as deltas:
        async with ledger_run("t"):
            assert (await agent.run("look")).output.strip() == "it is there"
        heard = [await anext(deltas) for _ in range(4)]
    assert {(delta.agent, delta.invocation_id) for delta in heard} == {("clerk", "t/run/clerk/model")}
    assert [delta.event.event_kind for delta in heard] == ["part_start", "final_result", "part_delta", "part_delta"]
    said = [row for row in await rows(ledger) if row.lane == "talk"]
    assert [part.text for row in said for part in row.parts] == ["look", "it is there "]


@pytest.mark.slow
def test_the_tools_of_an_mcp_server_are_durable_and_looked_up_once(tmp_path: Path) -> None:
    """What the server offers is taken from the journal, so it need not even be there when all was done before."""

    async def main() -> None:
        ledger, desk, witness = MemoryLedger(), Desk(), tmp_path / "lent"

        def agent(command: str) -> Agent[None, Any]:
            server = StdioTransport(command, [str(Path(__file__).parent / "books.py"), str(witness)])
            books: MCPToolset[None] = MCPToolset(
                server, id="books", include_instructions=True, cache_tools=False, init_timeout=60
            )
            turns = ([call("borrow", "c1", title="Emma")], ["here you are"])
            return clerk(ledger, desk, script(desk, *turns), toolsets=[books], effects={"borrow": "idempotent"})

        for command in (sys.executable, "no-such-command"):
            async with ledger_run("t"):
                result = await agent(command).run("Emma, please")
            assert "Emma is yours" in str(result.all_messages())
        assert desk.taken() == ["model 0", "model 1"]
        assert witness.read_text() == "Emma\n"
        options = {row.payload.option_name for row in await rows(ledger) if row.lane == "effect"}
        assert {option for option in options if "mcp" in option} == {
            "clerk__mcp_server__books.get_tools",
            "clerk__mcp_server__books.get_instructions",
            "clerk__mcp_server__books.call_tool",
        }
        found = [row for row in await rows(ledger) if row.policy == "clerk__mcp_server__books.get_tools"]
        assert [set(row.payload.result) for row in found] == [{"found"}, {"same_as"}]

    asyncio.run(main())


@pytest.mark.slow
async def test_agents_may_name_their_ledger_and_share_it(tmp_path: Path) -> None:
    """For agents that are made where nothing can be awaited: the file is open while any run needs it."""
    desk, url = Desk(), f"sqlite:///{tmp_path}/ledger.db"
    helper = clerk(url, desk, script(desk, [call("refund", "c1", amount=1)], ["refunded"]))
    boss: Agent[None, str] = Agent(
        script(desk, [call("delegate", "b1")], ["well done"]), name="boss", capabilities=[LedgerDurability(url)]
    )

    @boss.tool_plain
    async def delegate() -> str:
        return str((await helper.run("refund")).output)

    async def work(id: str) -> str:
        async with ledger_run("t", id=id):
            return (await boss.run("go")).output

    for refunds in (3, 0):
        assert await asyncio.gather(*(work(f"r{number}") for number in range(3))) == ["well done"] * 3
        assert desk.taken().count("refund 1") == refunds
    with pytest.raises(RuntimeError, match="is written to another ledger"):
        async with ledger_run("t", id="other", ledger=MemoryLedger()):
            await boss.run("go")
    async with open_ledger(url) as ledger:
        assert (await ledger.verify()).is_whole
        assert not await ledger.open_calls("t")


@pytest.mark.slow
async def test_tools_that_a_factory_makes_and_checks_of_arguments_are_durable() -> None:
    ledger, desk = MemoryLedger(), Desk()

    def check(ctx: Any, amount: int) -> None:
        desk.note(f"check {amount}")
        if amount > 10:
            raise ModelRetry("at most 10")

    async def pay(amount: int) -> str:
        desk.note(f"pay {amount}")
        return "paid"

    tools: FunctionToolset[None] = FunctionToolset([Tool(pay, args_validator=check)], id="bank")
    turns = ([call("pay", "p1", amount=50)], [call("pay", "p2", amount=5)], ["done"])
    for toolset in (DynamicToolset(lambda ctx: tools, id="dynamic"), tools):
        thread = toolset.id or ""
        agent: Agent[None, str] = Agent(script(desk, *turns), toolsets=[toolset], capabilities=[LedgerDurability(ledger)])
        for seen in (["model 0", "check 50", "model 1", "check 5", "pay 5", "model 2"], []):
            async with ledger_run(thread):
                assert (await agent.run("pay", timeout=60)).output == "done"
            assert desk.taken() == seen
        begun = [row.id for row in await rows(ledger, thread) if row.kind == "option_call" and row.lane == "effect"]
        assert f"{thread}/run/start:agent@begun" in begun  # an agent without a name is `agent`; its time began once
        assert f"{thread}/run/agent/pay:p2:check@begun" in begun


async def test_an_answer_that_the_dialect_cannot_say_is_kept_whole() -> None:
    """F30: a call of what is no name is kept as it came, the model is told, and the run goes on and comes back the same."""
    ledger, desk = MemoryLedger(), Desk()
    for seen in (["model 0", "model 1"], []):
        async with ledger_run("t"):
            said = script(desk, [call("re\u200bfund", id="call-1")], ["hello"])
            assert (await clerk(ledger, desk, said).run("hi")).output == "hello"
        assert desk.taken() == seen
    found = {row.id: row for row in await rows(ledger)}
    (foreign,) = found["t/run/clerk/model@answer1"].parts
    assert isinstance(foreign, ForeignPart)
    kept = found["t/run/clerk/model@ended"].payload.result["response"]
    assert kept["parts"] == foreign.value
    assert kept["parts"][0]["tool_name"] == "re\u200bfund"
