"""Another program against the same history is stopped and told what differs, before anything is paid for again. G9."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon.agents import LedgerDurability
from antiphon.agents.durability._tool_call import plain_arguments
from antiphon.durable import ledger_run, runs
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger.memory import MemoryLedger


class CutError(Exception):
    """Ends the program in the middle."""


def named(ledger: MemoryLedger, desk: Desk, name: str, **durability: Any) -> Agent[None, str]:
    turns = ([call("pay", "c1", amount=1)], ["paid"])
    agent: Agent[None, str] = Agent(script(desk, *turns), name=name, capabilities=[LedgerDurability(ledger, **durability)])

    @agent.tool_plain
    async def pay(amount: int) -> str:
        desk.note(f"{name} pays {amount}")
        return "ok"

    return agent


async def cut(*agents: Agent[None, str]) -> None:
    """Run a program that ends in the middle, after its agents."""

    async def work() -> None:
        for agent in agents:
            await agent.run("pay")

    await cut_after(work)


async def cut_after(work: Callable[[], Awaitable[None]]) -> None:
    async def program() -> None:
        async with ledger_run("t"):
            await work()
            raise CutError

    with pytest.raises(CutError):
        await program()


@pytest.mark.slow
async def test_an_agent_of_another_name_does_not_pay_again() -> None:
    ledger, desk = MemoryLedger(), Desk()
    await cut(named(ledger, desk, "clerk"))
    desk.taken()
    with pytest.raises(HistoryMismatchError, match=r"runs agent 't/run/teller', and thread 't' says that 't/run/clerk' ran"):
        async with ledger_run("t"):
            await named(ledger, desk, "teller").run("pay")
    assert desk.taken() == []
    await cut(named(ledger, desk, "clerk"), named(ledger, desk, "teller"))
    assert desk.taken() == ["model 0", "teller pays 1", "model 1"]


@pytest.mark.slow
async def test_a_program_that_leaves_an_agent_out_does_not_end() -> None:
    ledger, desk = MemoryLedger(), Desk()
    both = named(ledger, desk, "clerk"), named(ledger, desk, "teller")
    await cut(*both)
    with pytest.raises(HistoryMismatchError, match=r"the program ends, and .* 't/run/teller' ran"):
        async with ledger_run("t"):
            await both[0].run("pay")
    await cut(*both)


@pytest.mark.slow
async def test_agents_that_ran_side_by_side_may_have_come_to_different_points() -> None:
    """One agent still replays its records, another is past them, and a third one is new."""
    ledger, desk = MemoryLedger(), Desk()

    async def work(*names: str) -> None:
        for name in names:
            await named(ledger, desk, name).run("pay")

    async def both() -> None:
        await asyncio.gather(work("a"), work("b", "c"))

    await cut_after(both)
    assert len(desk.taken()) == 9
    async with ledger_run("t"):
        await asyncio.gather(work("a", "d"), work("b", "c"))
    assert desk.taken() == ["model 0", "d pays 1", "model 1"]


async def test_a_tool_with_other_effects_is_another_tool() -> None:
    ledger, desk = MemoryLedger(), Desk()
    await cut(named(ledger, desk, "clerk"))
    with pytest.raises(HistoryMismatchError, match=r"tool 'pay' with other effects \('none', not 'once'\) .*clerk/pay:c1'"):
        await cut(named(ledger, desk, "clerk", effects={"pay": "none"}))
    assert desk.taken() == ["model 0", "clerk pays 1", "model 1"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"more": 1}, "with other arguments than thread"),
        ({"toolset": "b"}, r"with another name \('clerk__.*b.*', not 'clerk__.*a"),
    ],
)
async def test_a_call_of_other_arguments_or_of_another_toolset_is_another_call(change: dict[str, Any], told: str) -> None:
    ledger, desk = MemoryLedger(), Desk()

    def paying(more: int = 0, toolset: str = "a") -> Agent[None, str]:
        async def pay(amount: Annotated[int, AfterValidator(lambda amount: amount + more)]) -> str:
            desk.note(f"pay {amount}")
            return "ok"

        turns = ([call("pay", "c1", amount=1)], ["paid"])
        tools: FunctionToolset[None] = FunctionToolset([pay], id=toolset)
        return Agent(script(desk, *turns), name="clerk", toolsets=[tools], capabilities=[LedgerDurability(ledger)])

    await cut(paying())
    with pytest.raises(HistoryMismatchError, match=f"tool 'pay' {told}"):
        await cut(paying(**change))
    assert desk.taken() == ["model 0", "pay 1", "model 1"]


class Tags(BaseModel):
    names: frozenset[str]


class Odd:
    """What is no JSON, and shows its address."""


def test_arguments_are_written_down_the_same_in_every_process() -> None:
    """The order of a set and the address of an object differ from process to process."""
    letters = list("hgfedcba")
    told = plain_arguments({"tags": Tags(names=frozenset(letters)), "more": [{*letters}, ({2, 10, 1},)], "odd": Odd()})
    assert told == {"tags": {"names": sorted(letters)}, "more": [sorted(letters), [[1, 10, 2]]], "odd": "Odd"}


@pytest.mark.parametrize(("text", "told"), [("NaN", "nan"), ("-Infinity", "-inf"), (str(10**30), 10**30)])
async def test_a_number_that_is_odd_reaches_the_tool_as_it_is_and_is_the_same_the_second_time(text: str, told: Any) -> None:
    ledger, desk = MemoryLedger(), Desk()
    turns = ([ToolCallPart("weigh", f'{{"what": {text}}}', tool_call_id="c1")], ["done"])
    for seen in (["model 0", f"weigh {told}", "model 1"], []):
        agent = clerk(ledger, desk, script(desk, *turns))

        @agent.tool_plain
        async def weigh(what: int | float) -> Any:
            desk.note(f"weigh {what}")
            return what

        await cut(agent)
        assert desk.taken() == seen
    rows = [row.message async for row in ledger.read("t") if row.message.invocation_id == "t/run/clerk/weigh:c1"]
    assert rows[0].payload.arguments["arguments"]["arguments"]["what"] == told  # type: ignore[union-attr, index, call-overload]


# ---------------------------------------------------------------- agents of one name


def speaking(ledger: MemoryLedger, who: str, desk: Desk, *, until: int | None = None) -> Agent[None, str]:
    """Return an agent whose name others have, too. Its instructions are its own, and its answer says them."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        desk.note(f"{who} asks {number}")
        if number == until:
            await asyncio.Event().wait()
        if number == 0:
            return ModelResponse([call("look", f"look-{who}", who=who)])
        return ModelResponse([TextPart(f"I am {info.instructions}, and saw {messages[-1].parts[0].content}")])  # type: ignore[union-attr]

    agent: Agent[None, str] = Agent(
        FunctionModel(answer, model_name="script"),
        name="clerk",
        instructions=who,
        capabilities=[LedgerDurability(ledger)],
    )

    @agent.tool_plain
    async def look(who: str) -> str:
        desk.note(f"{who} looks")
        return who

    return agent


async def both(*agents: Agent[None, str], question: str = "Who are you?", **options: Any) -> list[str]:
    async with ledger_run("t", **options):
        return [result.output for result in await asyncio.gather(*(agent.run(question) for agent in agents))]


async def killed(program: Coroutine[Any, Any, Any], desk: Desk, *awaited: str) -> None:
    """Run a program until its models were asked, and end it there."""
    running = asyncio.create_task(program)
    for _ in range(10_000):
        if sorted(each for each in desk.seen if each in awaited) == sorted(awaited):
            break
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    desk.taken()


@pytest.mark.slow
@pytest.mark.parametrize("on_change", ["stop", "continue", "restart"])
@pytest.mark.parametrize("until", [(1, 1), (1, 0), (None, 1)], ids=["both", "one", "ended"])
async def test_agents_of_one_name_never_get_each_others_answers(on_change: Any, until: tuple[int | None, int]) -> None:
    """Both ran at the same time, and begin in the other order when the program runs again. F13."""
    ledger, desk = MemoryLedger(), Desk()
    agents = speaking(ledger, "ada", desk, until=until[0]), speaking(ledger, "bob", desk, until=until[1])
    await killed(both(*agents), desk, "ada asks 1", f"bob asks {until[1]}")
    in_other_order = speaking(ledger, "bob", desk), speaking(ledger, "ada", desk)
    with pytest.raises(HistoryMismatchError, match="began in another order. Give agents .* different names"):
        await both(*in_other_order, on_change=on_change)
    assert not [said for said in desk.taken() if "looks" in said]
    (run,) = await runs(ledger)
    assert run.status == "stopped"
    assert await both(*reversed(in_other_order)) == ["I am ada, and saw ada", "I am bob, and saw bob"]
    with pytest.raises(HistoryMismatchError, match="began in another order"):  # a finished run, too
        await both(*in_other_order, on_change=on_change)


@pytest.mark.slow
async def test_concurrent_runs_of_an_agent_continue_under_other_instructions() -> None:
    """Their questions identify the runs, also in another order; runs with equal questions are interchangeable."""
    ledger, desk = MemoryLedger(), Desk()

    async def ask(who: str, *questions: str, **more: Any) -> list[str]:
        until = more.pop("until", None)
        async with ledger_run("t", **more):
            agent = speaking(ledger, who, desk, until=until)
            return [result.output for result in await asyncio.gather(*map(agent.run, questions))]

    questions = "one", "two", "two", "three"
    await killed(ask("ada", *questions, until=1), desk, *["ada asks 1"] * len(questions))
    assert await ask("Ada", *reversed(questions), on_change="continue") == ["I am Ada, and saw ada"] * 4
    assert desk.taken() == ["Ada asks 1"] * 4


async def test_a_mismatch_in_a_task_group_stops_the_run_like_any_other() -> None:
    ledger, desk = MemoryLedger(), Desk()
    await cut(named(ledger, desk, "clerk"))

    async def grouped(work: Callable[[], Awaitable[Any]]) -> None:
        async with ledger_run("t", ledger=ledger), asyncio.TaskGroup() as group:
            group.create_task(work())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportUnknownMemberType]

    with pytest.raises(ExceptionGroup):
        await grouped(lambda: named(ledger, desk, "clerk").run("pay more"))
    assert [run.status for run in await runs(ledger)] == ["stopped"]

    async def wait_for_person() -> None:
        raise ParkedError("a person must look")

    with pytest.raises(ExceptionGroup):
        await grouped(wait_for_person)
    assert [run.status for run in await runs(ledger)] == ["waiting"]

    async def fail() -> None:
        raise CutError

    with pytest.raises(ExceptionGroup):
        await grouped(fail)
    assert [run.status for run in await runs(ledger)] == ["failed"]
