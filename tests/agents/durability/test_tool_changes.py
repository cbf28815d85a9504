"""What a tool changes besides its result: usage is restored, dependencies are if the program says how. G9."""

import asyncio
import copy
import pickle
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import UsageLimitExceeded, UserError
from pydantic_ai.usage import RunUsage, UsageLimits
from tests.agents.durability.agents import Desk, call, script

from antiphon.agents import LedgerDurability
from antiphon.agents._tool_changes import CountedUsage
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import DepsState, current_run, ledger_run
from antiphon.durable._state import StoredState
from antiphon.errors import EffectFailedError, HistoryMismatchError, SetupError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionResultPayload, thaw


class DiedError(BaseException):
    """Ends the program as a kill does."""


NONE = {"antiphon": {"effects": "none"}}
AGAIN = {"antiphon": {"effects": "none", "replay": "run"}}

# ---------------------------------------------------------------- usage


def boss(ledger: Ledger, desk: Desk, *turns: Any, is_helper_durable: bool = True) -> Agent[None, str]:
    """Return an agent whose tools have another agent do the work."""
    more: dict[str, Any] = {"capabilities": [LedgerDurability(ledger)]} if is_helper_durable else {}
    helper: Agent[None, str] = Agent(script(desk, ["a joke"]), name="helper", **more)
    agent: Agent[None, str] = Agent(script(desk, *turns), name="boss", capabilities=[LedgerDurability(ledger)])

    @agent.tool
    async def delegate(ctx: RunContext[None]) -> str:
        desk.note("delegate")
        result = await helper.run("tell one", usage=ctx.usage)
        await asyncio.sleep(0)
        ctx.usage.details["jokes"] = ctx.usage.details.get("jokes", 0) + 1
        ctx.usage.cost = (ctx.usage.cost or 0) + Decimal("0.01")
        return result.output

    @agent.tool
    async def refuse(ctx: RunContext[None]) -> str:
        await helper.run("tell one", usage=ctx.usage)
        raise ModelRetry("not funny")

    @agent.tool
    async def fail(ctx: RunContext[None]) -> str:
        await helper.run("tell one", usage=ctx.usage)
        raise RuntimeError("not funny at all")

    return agent


TWICE = [call("delegate", "d1"), call("delegate", "d2")]


@pytest.mark.slow
@pytest.mark.parametrize("is_helper_durable", [True, False])
async def test_usage_of_recorded_calls_is_restored_exactly(is_helper_durable: bool) -> None:
    """Two calls at the same time share the usage of the run, and each is counted once."""
    bare = await boss(MemoryLedger(), Desk(), TWICE, ["Here it is."], is_helper_durable=is_helper_durable).run("jokes")
    assert (bare.usage.requests, bare.usage.tool_calls, bare.usage.input_tokens) == (4, 2, 400)
    assert (bare.usage.details, bare.usage.cost) == ({"jokes": 2}, Decimal("0.02"))
    ledger, desk = MemoryLedger(), Desk()
    with pytest.raises(DiedError):
        async with ledger_run("t"):
            await boss(ledger, desk, TWICE, DiedError(), is_helper_durable=is_helper_durable).run("jokes")
    desk.taken()
    for seen in (["model 1"], []):  # the run goes on; then all of it is recorded
        async with ledger_run("t"):
            agent = boss(ledger, desk, TWICE, ["Here it is."], is_helper_durable=is_helper_durable)
            assert (await agent.run("jokes")).usage == bare.usage
        assert desk.taken() == seen


async def test_a_usage_limit_counts_recorded_calls() -> None:
    ledger, desk, limits = MemoryLedger(), Desk(), UsageLimits(request_limit=2)
    with pytest.raises(UsageLimitExceeded):
        async with ledger_run("bare"):
            await boss(MemoryLedger(), desk, TWICE[:1], ["Here it is."], is_helper_durable=False).run(
                "joke", usage_limits=limits
            )
    with pytest.raises(DiedError):
        async with ledger_run("t"):
            await boss(ledger, desk, TWICE[:1], DiedError()).run("joke")
    desk.taken()
    with pytest.raises(UsageLimitExceeded):
        async with ledger_run("t"):
            await boss(ledger, desk, TWICE[:1], ["Here it is."]).run("joke", usage_limits=limits)
    assert desk.taken() == []


@pytest.mark.parametrize("tool", ["refuse", "fail"])
async def test_usage_of_a_recorded_call_that_failed_is_restored(tool: str) -> None:
    ledger, desk, used = MemoryLedger(), Desk(), list[RunUsage]()
    for _ in range(2):
        usage = RunUsage()
        async with ledger_run("t"):
            try:
                await boss(ledger, desk, [call(tool, "d1")], ["Sorry."]).run("joke", usage=usage)
            except (EffectFailedError, RuntimeError):
                desk.note("failed")
        used.append(usage)
    assert used[0] == used[1]
    assert used[0].requests == (3 if tool == "refuse" else 2)
    assert desk.taken().count("model 0") == 2  # of the boss and of the helper, once each


async def test_usage_of_a_toolkit_s_tool_is_restored() -> None:
    ledger, desk = MemoryLedger(), Desk()

    def agent() -> Agent[None, str]:
        toolkit = Toolkit()
        helper: Agent[None, str] = Agent(script(desk, ["a joke"]), name="helper", capabilities=[LedgerDurability(ledger)])

        @toolkit.tool(to=["boss"])
        async def delegate(ctx: RunContext[None]) -> str:
            """Have another agent tell one."""
            return (await helper.run("tell one", usage=ctx.usage)).output

        capabilities = [LedgerDurability[None](ledger), toolkit.capability("boss")]
        return Agent(script(desk, TWICE, ["Here."]), name="boss", capabilities=capabilities)

    used: list[RunUsage] = []
    for _ in range(2):
        async with ledger_run("t"):
            used.append((await agent().run("jokes")).usage)
    assert used[0] == used[1]
    assert used[0].requests == 4


async def test_a_call_that_adds_nothing_has_the_same_row_as_ever() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("look", "l1")], ["Done."]), name="a", capabilities=[LedgerDurability(ledger)]
    )

    @agent.tool_plain(metadata=NONE)
    def look() -> str:
        return "seen"

    async with ledger_run("t"):
        await agent.run("look")
    records = await ledger.find(invocation_id="t/run/a/look:l1", thread_id="t")
    payload = records[-1].message.payload
    assert isinstance(payload, OptionResultPayload)
    assert thaw(payload.result) == {"returned": {"result": "seen", "kind": "tool_return"}}


def test_a_counted_usage_is_the_usage_of_its_run() -> None:
    whole = RunUsage(requests=1, input_tokens=5, details={"a": 1})
    outer = CountedUsage(whole)
    inner = CountedUsage(outer)
    inner.requests += 2
    inner.incr(RunUsage(tool_calls=1, input_tokens=3, details={"a": 2}, cost=Decimal(1)))
    inner.details["b"] = 4
    outer.output_tokens += 7
    expected = RunUsage(requests=3, tool_calls=1, input_tokens=8, output_tokens=7, details={"a": 3, "b": 4}, cost=Decimal(1))
    for each in (whole, outer, inner):
        assert each == expected
        assert expected == each
        assert repr(each) == repr(expected)
        for same in (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each)), each + RunUsage()):
            assert type(same) is RunUsage
            assert same == expected
    assert inner.added() == RunUsage(requests=2, tool_calls=1, input_tokens=3, details={"a": 2, "b": 4}, cost=Decimal(1))
    assert outer.added() == inner.added() + RunUsage(output_tokens=7)  # type: ignore[operator]
    inner.take_back()
    assert whole == RunUsage(
        requests=1, tool_calls=0, input_tokens=5, output_tokens=7, details={"a": 1, "b": 0}, cost=Decimal(0)
    )
    assert CountedUsage(whole).added() is None


# ---------------------------------------------------------------- dependencies


@dataclass
class Frames:
    rows: dict[str, list[int]] = field(default_factory=dict)
    loads: int = 0


def analyst(ledger: Ledger, desk: Desk, *turns: Any, metadata: Any = None, **more: Any) -> Agent[Frames, str]:
    agent: Agent[Frames, str] = Agent(
        script(desk, *turns), name="analyst", deps_type=Frames, capabilities=[LedgerDurability(ledger, **more)]
    )

    @agent.tool(metadata=metadata)
    async def load(ctx: RunContext[Frames], name: str) -> str:
        desk.note(f"load {name}")
        loads = ctx.deps.loads
        await asyncio.sleep(0)
        ctx.deps.loads = loads + 1
        ctx.deps.rows[name] = [ctx.deps.loads] * 3
        return f"{name} has 3 rows"

    @agent.tool(metadata=NONE)
    def total(ctx: RunContext[Frames]) -> int:
        desk.note("total")
        return sum(sum(rows) for rows in ctx.deps.rows.values())

    return agent


LOADS = [call("load", "l1", name="a"), call("load", "l2", name="b")]
STEPS = (LOADS[:1], LOADS[1:])
TOTAL = [call("total", "t1")]
ALL = Frames({"a": [1, 1, 1], "b": [2, 2, 2]}, 2)


async def analyse(ledger: Ledger, desk: Desk, *turns: Any, metadata: Any = None, **more: Any) -> tuple[Any, Frames]:
    """Run the analyst with fresh dependencies."""
    deps = Frames()
    if more.pop("has_state", False):
        more["state"] = DepsState(deps)
    async with ledger_run("t", **more):
        result = await analyst(ledger, desk, *turns, metadata=metadata).run("load and sum", deps=deps)
    return result.all_messages()[-2].parts[0].content, deps


@pytest.mark.slow
@pytest.mark.parametrize(("metadata", "has_state"), [(AGAIN, False), (None, True), (NONE, True), (AGAIN, True)])
async def test_dependencies_that_tools_change_are_restored(metadata: Any, has_state: bool) -> None:
    ledger, desk = MemoryLedger(), Desk()
    more = {"metadata": metadata, "has_state": has_state}
    with pytest.raises(DiedError):
        await analyse(ledger, desk, *STEPS, DiedError(), **more)
    desk.taken()
    again = [] if metadata is not AGAIN else ["load a", "load b"]
    for own in (["model 2", "total", "model 3"], []):
        assert await analyse(ledger, desk, *STEPS, TOTAL, ["Done."], **more) == (9, ALL)
        assert desk.taken() == again + own


@pytest.mark.slow
async def test_without_either_the_change_is_lost_and_debug_names_the_tool() -> None:
    ledger, desk = MemoryLedger(), Desk()
    with pytest.raises(DiedError):
        await analyse(ledger, desk, LOADS[:1], DiedError())
    assert await analyse(ledger, desk, LOADS[:1], TOTAL, ["Done."]) == (0, Frames())
    with pytest.raises(UserError, match=r"tool 'load' changed deps\.loads and \d+ more, and a run that continues") as caught:
        await analyse(MemoryLedger(), desk, LOADS[:1], TOTAL, ["Done."], debug=True)
    assert "state=" in str(caught.value)
    assert "replay" in str(caught.value)
    desk.taken()
    for more in ({"metadata": AGAIN}, {"has_state": True}):
        assert (await analyse(MemoryLedger(), desk, LOADS, TOTAL, ["Done."], debug=True, **more))[1] == ALL


async def test_calls_of_a_run_with_a_state_wait_for_each_other() -> None:
    """Without the state, both calls read `loads` before either has changed it."""
    desk = Desk()
    assert (await analyse(MemoryLedger(), desk, LOADS, TOTAL, ["Done."]))[1].loads == 1
    assert (await analyse(MemoryLedger(), desk, LOADS, TOTAL, ["Done."], has_state=True))[1].loads == 2


async def test_a_state_belongs_to_the_recorded_calls_and_to_no_other() -> None:
    """One of two calls is recorded, and the process dies in the other one, after it has changed the dependencies."""
    ledger, desk = MemoryLedger(), Desk()

    def agent(*turns: Any, dies: bool) -> Agent[Frames, str]:
        made = analyst(ledger, desk, *turns, metadata=NONE)

        @made.tool(metadata=NONE)
        async def merge(ctx: RunContext[Frames]) -> str:
            ctx.deps.loads += 10
            if dies:
                raise DiedError
            return "merged"

        return made

    step = [LOADS[0], call("merge", "m1")]
    for dies in (True, False):
        deps = Frames()
        try:
            async with ledger_run("t", state=DepsState(deps)):
                await agent(step, ["Done."], dies=dies).run("go", deps=deps)
        except DiedError:
            assert deps.loads == 11
    assert deps == Frames({"a": [1, 1, 1]}, 11)
    assert desk.taken() == ["model 0", "load a", "model 1"]


async def test_a_state_that_was_recorded_must_be_given_again() -> None:
    ledger, desk = MemoryLedger(), Desk()
    await analyse(ledger, desk, LOADS, TOTAL, ["Done."], has_state=True)
    with pytest.raises(
        HistoryMismatchError, match=r"changed the state of the run .* this program gives none: give ledger_run\(state=…\)"
    ):
        await analyse(ledger, desk, LOADS, TOTAL, ["Done."])


class Basket(BaseModel):
    items: list[str] = []


def test_a_state_is_checked_when_it_is_given() -> None:
    async def enter(state: DepsState[Any]) -> None:
        async with ledger_run("t", ledger=MemoryLedger(), state=state, input="x"):
            pass

    def nothing(deps: Any, value: Any) -> None:
        pass

    basket = Basket(items=["tea"])
    asyncio.run(enter(DepsState(basket)))
    assert basket.items == ["tea"]
    wrong: list[tuple[DepsState[Any], str]] = [
        (DepsState([], dump=list), "dump and load, or neither"),
        (DepsState([]), "'list' needs dump and load"),
        (DepsState([], dump=lambda _: object(), load=nothing), "returned no JSON"),
        (DepsState([1], dump=lambda deps: [*deps, deps.append(0)][:-1], load=nothing), "load does not restore"),
        (
            DepsState([1], dump=list, load=lambda deps, value: value["a"]),
            "load of the state of 'list' failed",
        ),
    ]
    for state, reason in wrong:
        with pytest.raises(SetupError, match=reason):
            asyncio.run(enter(state))


async def test_a_state_that_is_too_large_stops_the_run_and_stays_so() -> None:
    ledger, desk = MemoryLedger(), Desk()

    def agent() -> Agent[Basket, str]:
        made: Agent[Basket, str] = Agent(
            script(desk, [call("fill", "f1")], ["Done."]), name="a", deps_type=Basket, capabilities=[LedgerDurability(ledger)]
        )

        @made.tool
        def fill(ctx: RunContext[Basket]) -> str:
            desk.note("fill")
            ctx.deps.items.append("x" * 1_000_000)
            return "full"

        return made

    for expected in (UserError, HistoryMismatchError):
        basket = Basket()
        with pytest.raises(expected, match="'Basket' has 1,000,.* bytes as JSON: dump less"):
            async with ledger_run("t", state=DepsState(basket)):
                await agent().run("fill it", deps=basket)
    assert desk.taken().count("fill") == 1


@pytest.mark.slow
async def test_a_state_is_whole_when_an_agent_inside_of_a_tool_changes_it_too() -> None:
    """A call waits for the calls beside it, and not for its own outer call."""
    ledger, desk = MemoryLedger(), Desk()

    def boss_of(*turns: Any) -> Agent[Frames, str]:
        inner = analyst(ledger, desk, LOADS, ["Loaded."])
        agent: Agent[Frames, str] = Agent(
            script(desk, *turns), name="boss", deps_type=Frames, capabilities=[LedgerDurability(ledger)]
        )

        @agent.tool
        async def delegate(ctx: RunContext[Frames]) -> str:
            result = await inner.run("load", deps=ctx.deps, usage=ctx.usage)
            ctx.deps.loads += 100
            return result.output

        return agent

    used: list[RunUsage] = []
    for last in (DiedError(), ["Done."], ["Done."]):
        deps = Frames()
        try:
            async with asyncio.timeout(5), ledger_run("t", state=DepsState(deps)):
                used.append((await boss_of([call("delegate", "d1")], last).run("go", deps=deps)).usage)
        except DiedError:
            pass
        assert deps == Frames(ALL.rows, 102)
    assert used[0] == used[1]
    assert used[0].requests == 4


# ---------------------------------------------------------------- tools that run again


async def test_a_tool_that_runs_again_and_returns_something_else_stops_the_run() -> None:
    """G9 as amended: it must be pure, but for its dependencies."""
    ledger, desk = MemoryLedger(), Desk()
    returned = [1, 2]

    def agent(*turns: Any) -> Agent[None, str]:
        made: Agent[None, str] = Agent(script(desk, *turns), name="a", capabilities=[LedgerDurability(ledger)])

        @made.tool_plain(metadata=AGAIN)
        def draw() -> int:
            return returned.pop(0)

        return made

    with pytest.raises(DiedError):
        async with ledger_run("t"):
            await agent([call("draw", "d1")], DiedError()).run("draw")
    for reason in ("returned something else than thread 't' says, in 't/run/a/draw:d1': it must be pure", "IndexError: pop"):
        with pytest.raises(HistoryMismatchError, match=reason):
            async with ledger_run("t"):
                await agent([call("draw", "d1")], ["Done."]).run("draw")


async def test_a_secret_that_a_tool_returns_again_is_the_same() -> None:
    """The recorded result is redacted, and what the tool returns again is not."""
    ledger, desk = MemoryLedger(), Desk()

    def agent(last: Any) -> Agent[None, str]:
        made: Agent[None, str] = Agent(
            script(desk, [call("key", "k1")], last), name="a", capabilities=[LedgerDurability(ledger)]
        )

        @made.tool_plain(metadata=AGAIN)
        def key() -> str:
            return "sk-proj-" + "Zx9" * 16

        return made

    with pytest.raises(DiedError):
        async with ledger_run("t"):
            await agent(DiedError()).run("key")
    async with ledger_run("t"):
        result = await agent(["Done."]).run("key")
    assert "redacted" in str(result.all_messages())


def wrong_tools() -> list[tuple[Tool[Any], str]]:
    def look() -> str:
        """Look."""
        return "seen"

    return [
        (Tool(look, metadata={"antiphon": {"replay": "run"}}), "has replay='run', and effects 'once'"),
        (Tool(look, metadata={"antiphon": {"effects": "idempotent", "replay": "run"}}), "and effects 'idempotent'"),
        (Tool(look, metadata=AGAIN, requires_approval=True), "must be approved or deferred"),
        (Tool(look, metadata={"antiphon": {"effects": "none", "replay": "twice"}}), "is 'record' or 'run', not 'twice'"),
    ]


@pytest.mark.parametrize(("tool", "reason"), wrong_tools())
async def test_only_a_tool_without_effects_and_approval_may_run_again(tool: Tool[Any], reason: str) -> None:
    """It is refused when the agent is made; a tool that is added later, before the first request."""
    desk, ledger = Desk(), MemoryLedger()
    with pytest.raises(UserError, match=reason):
        Agent(script(desk, ["Done."]), name="a", tools=[tool], capabilities=[LedgerDurability(ledger)])
    agent: Agent[None, Any] = Agent(script(desk, ["Done."]), name="a", capabilities=[LedgerDurability(ledger)])
    agent.tool_plain(metadata=tool.metadata, requires_approval=tool.requires_approval)(tool.function)
    with pytest.raises(UserError, match=reason):
        async with ledger_run("t"):
            await agent.run("look", output_type=[str])
    assert desk.taken() == []


async def test_a_tool_that_runs_again_may_not_ask_for_an_approval() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent: Agent[None, str] = Agent(
        script(desk, [call("pay", "p1")], ["Done."]), name="a", capabilities=[LedgerDurability(ledger)]
    )

    @agent.tool_plain(metadata=AGAIN)
    def pay() -> str:
        raise ApprovalRequired

    with pytest.raises(UserError, match="tool 'pay' has replay='run', and asks to be approved or deferred"):
        async with ledger_run("t"):
            await agent.run("pay")


@pytest.mark.slow
async def test_a_tool_that_runs_again_repeats_nothing_of_what_is_recorded_in_it() -> None:
    ledger, desk = MemoryLedger(), Desk()

    def agent(last: Any) -> Agent[list[str], str]:
        made: Agent[list[str], str] = Agent(
            script(desk, [call("sign", "s1")], last), name="a", deps_type=list, capabilities=[LedgerDurability(ledger)]
        )

        @made.tool(metadata=AGAIN)
        async def sign(ctx: RunContext[list[str]]) -> str:
            async def stamp(key: str) -> str:
                desk.note("stamp")
                return "stamped"

            run = current_run()
            assert run is not None
            ctx.deps.append(await run.effect("stamp", {}, stamp))
            return "signed"

        return made

    for last in (DiedError(), ["Done."], ["Done."]):
        deps: list[str] = []
        try:
            async with ledger_run("t"):
                await agent(last).run("sign", deps=deps)
        except DiedError:
            pass
        assert deps == ["stamped"]
    assert desk.taken() == ["model 0", "stamp", "model 1", "model 1"]


def test_of_two_recorded_states_the_later_counts_in_whatever_order_they_come() -> None:
    deps = Frames()
    state = StoredState(DepsState(deps))
    for count, loads in ((2, 20), (1, 10)):
        state.restore({"count": count, "value": {"rows": {}, "loads": loads}}, "call")
    assert deps.loads == 20
