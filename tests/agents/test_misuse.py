"""Misuse of durable agents is refused with what to do instead."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset
from tests.agents.toolkit.kit import script
from tests.ledger.histories import said

from antiphon import Conversation, System, Toolkit, check, handles, open_ledger, repair
from antiphon.agents import LedgerDurability, listen
from antiphon.agents.toolkit import ApprovalRule, answer, pending_approvals
from antiphon.durable import LedgerRun, allow_change, check_runs, durable_stream, ledger_run, program, runs
from antiphon.durable._approvals import find_approval
from antiphon.durable._programs import programs_by_name
from antiphon.errors import ConfigError, HistoryMismatchError, ParkedError, SetupError
from antiphon.ledger import heads_of, record_reward, replay, rewards_of
from antiphon.ledger._open import command_line
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns._decisions import decisions_of
from antiphon.patterns.cast import AgentSpec, Cast
from antiphon.patterns.options import Executor, Options
from antiphon.patterns.peers import Peers
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import Workers, conversation
from antiphon.protocol import AgentConfig


def _search(word: str) -> str:
    """Search."""
    return word


@pytest.mark.parametrize("use", [LedgerDurability, System])
def test_a_ledger_that_was_not_entered_is_refused(use: Any) -> None:
    with pytest.raises(TypeError, match=r"not open; write `async with open_ledger\('memory:'\) as ledger:`"):
        use(open_ledger("memory:"))


async def test_a_run_in_a_ledger_that_was_not_entered_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not open; write `async with open_ledger\('memory:'\) as ledger:`"):
        async with ledger_run("t", ledger=open_ledger("memory:")):  # type: ignore[arg-type]
            pass
    with pytest.raises(TypeError, match="expected an open ledger, got"):
        async with ledger_run("t", ledger=7):  # type: ignore[arg-type]
            pass


async def test_a_verb_of_a_ledger_that_was_not_entered_says_so() -> None:
    ledger: Any = open_ledger("memory:")
    with pytest.raises(AttributeError, match=r"'head': the ledger is not open; write `async with open_ledger"):
        await ledger.head("t")
    assert repr(ledger) == "<open_ledger('memory:'), not entered: use `async with`>"


_NO_LEDGER: list[Callable[[Any], Any]] = [
    lambda ledger: Cast(ledger, [AgentSpec(name="ada")]),
    runs,
    lambda ledger: check_runs(ledger, []),
    lambda ledger: allow_change(ledger, "t", "continue"),
    lambda ledger: find_approval(ledger, "approval-1"),
    pending_approvals,
    lambda ledger: answer(ledger, "approval-1", principal="ada", approved=True),
    lambda ledger: listen(ledger, "t").__aenter__(),
    lambda ledger: record_reward(ledger, "t", "m", 1.0, by="ada"),
    lambda ledger: rewards_of(ledger, "t"),
    lambda ledger: decisions_of(ledger, "t"),
    lambda ledger: conversation(ledger, "t"),
]


@pytest.mark.parametrize("ask", _NO_LEDGER)
async def test_g21_the_address_of_a_ledger_is_no_ledger(ask: Callable[[Any], Any]) -> None:
    """G21: `ledger_run` takes an address, so one tries it everywhere."""
    with pytest.raises(TypeError, match="expected an open ledger, got 'sqlite:///ledger.db'; `async with open_ledger"):
        await ask("sqlite:///ledger.db")


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/ledger.db"])
async def test_g21_a_wrong_argument_is_no_damage_of_the_ledger(url: str, tmp_path: Path) -> None:
    """G21, G20: who is told that the ledger is damaged restores a backup."""
    wrong: Any
    async with open_ledger(url.format(tmp_path)) as ledger:
        for wrong in (None, 5, b"t", {"a": 1}):
            for ask in (ledger.head, ledger.thread, ledger.open_calls, ledger.delete, partial(replay, ledger)):
                with pytest.raises(TypeError, match="a thread's id is a str, such as 'order-42', not"):
                    await ask(wrong)
        wrong = 5
        with pytest.raises(TypeError, match=r"names\[0\] is a str, such as 'call-1', not 5"):
            await ledger.find(invocation_id=wrong)
        with pytest.raises(TypeError, match="the text of a search is a str"):
            await ledger.search(wrong)
        with pytest.raises(TypeError, match="a limit is an int, such as 50, not 'ten'"):
            await ledger.threads(limit=cast("Any", "ten"))
        with pytest.raises(TypeError, match=r"an append takes a list of messages, such as \[message\], not a Message"):
            await ledger.append("t", cast("Any", said()))


_OTHERS: list[tuple[Callable[[Any], Any], object, str]] = [
    (check, [{"role": "user", "content": "hi"}], r"a conversation\[0\] is a Message, such as a message of decode\(\)"),
    (repair, "hi", "a conversation is a list"),
    (lambda name: check(Conversation(), name), ["openai"], "a target is a str, such as 'openai'"),
    (handles, "PING", "what @handles marks is a function, such as a method"),
    (lambda observer: System(observer=observer), 5, "an observer is an Observer, such as Telemetry"),
    (ledger_run, 5, "a run is of a thread, by its id, or of a handler's context, and not of 5"),
    (programs_by_name, 5, r"programs is a list, such as \[a @program\], not 5"),
]


@pytest.mark.parametrize(("use", "wrong", "sentence"), _OTHERS)
async def test_g21_a_wrong_argument_is_refused_with_a_sentence(
    use: Callable[[Any], Any], wrong: object, sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        use(wrong)


async def test_effects_of_a_tool_that_the_agent_does_not_have_are_refused() -> None:
    ledger = MemoryLedger()
    durability = LedgerDurability[None](ledger, effects={"serch": "none"})
    agent = Agent(script(), name="clerk", tools=[_search], capabilities=[durability])
    with pytest.raises(
        SetupError, match=r"effects= names tool 'serch', and agent 'clerk' has none of that name; is it '_search'\?"
    ):
        async with ledger_run("t"):
            await agent.run("Go.")
    assert not await ledger.open_calls("t")


async def test_effects_of_tools_that_are_added_later_or_renamed_are_fine() -> None:
    ledger = MemoryLedger()
    durability = LedgerDurability[None](ledger, effects={"look": "none", "web_find": "none"})
    web = FunctionToolset[None](id="web")
    web.add_function(_search, name="find")
    agent = Agent(script(), name="clerk", toolsets=[web.prefixed("web")], capabilities=[durability])

    @agent.tool_plain
    def look() -> str:
        return "seen"

    async with ledger_run("t"):
        assert (await agent.run("Go.")).output == "done"


def test_effects_are_one_of_three_words() -> None:
    with pytest.raises(ValueError, match="effects of tool 'search' are 'none', 'idempotent' or 'once', not 'never'"):
        LedgerDurability(MemoryLedger(), effects={"search": "never"})  # type: ignore[dict-item]


def test_choices_of_a_run_are_one_of_their_words() -> None:
    with pytest.raises(ValueError, match="on_change is 'stop', 'continue' or 'restart', not 'go'"):
        ledger_run("t", on_change="go")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_busy is 'join' or 'raise', not 'wait'"):
        ledger_run("t", on_busy="wait")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_change is 'stop', 'continue' or 'restart', not 'go'"):
        LedgerDurability(MemoryLedger(), on_change="go")  # type: ignore[arg-type]


async def test_effects_of_a_step_of_the_program_are_one_of_three_words() -> None:
    """Otherwise a step that must not be done twice could be done twice, for a typing error."""

    async def pay(key: str) -> str:
        return "paid"

    ledger = MemoryLedger()
    with pytest.raises(ValueError, match="effects is 'none', 'idempotent' or 'once', not 'one'"):
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("pay", {}, pay, effects="one")  # type: ignore[arg-type]
    assert [row.message.invocation_id for row in await ledger.open_calls("t")] == ["t/run", "t/run#failed"]


async def test_a_step_of_the_program_may_be_a_plain_function() -> None:
    """It has run by the time that its result cannot be awaited: it must not be recorded as failed."""
    ledger = MemoryLedger()
    for _ in range(2):
        async with ledger_run("t", ledger=ledger) as run:
            assert await run.effect("count", {}, lambda key: 7) == 7


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"effect": "none"}, r"the metadata of tool '_search' has the setting 'effect'; is it 'effects'\?"),
        ({"approval": True}, "the metadata of tool '_search' has the setting 'approval', which only a Toolkit observes"),
        ({"sensitive": ["word"]}, "has the setting 'sensitive', which only a Toolkit observes: add the tool to one"),
    ],
)
async def test_settings_in_the_metadata_of_a_tool_are_known_and_observed(settings: dict[str, Any], match: str) -> None:
    """Otherwise a tool that only reads is parked after a crash, or one that must be approved is called."""
    ledger = MemoryLedger()
    with pytest.raises(UserError, match=match):
        Agent(script(), tools=[Tool(_search, metadata={"antiphon": settings})], capabilities=[LedgerDurability(ledger)])
    agent = Agent(script(), name="clerk", capabilities=[LedgerDurability(ledger)])
    agent.tool_plain(metadata={"antiphon": settings})(_search)
    with pytest.raises(UserError, match=match):
        async with ledger_run("t"):
            await agent.run("Go.")


def test_a_toolkit_refuses_an_unknown_setting_in_the_metadata_of_a_tool() -> None:
    """Otherwise the tool would run, and nobody would be asked."""
    with pytest.raises(ValueError, match=r"the metadata of tool '_search' has the setting 'aproval'; is it 'approval'\?"):
        Toolkit([Tool(_search, metadata={"antiphon": {"aproval": True}})])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"retry": 3}, r"retry is a RetryPolicy, such as RetryPolicy\(retries=3\), not 3"),
        ({"budget": 5}, r"budget is an AgentBudget, such as AgentBudget\(requests=20\), not 5"),
        ({"thread_budget": 5}, "thread_budget is an AgentBudget"),
    ],
)
def test_a_policy_that_is_none_is_refused_when_the_agent_is_made(given: dict[str, Any], match: str) -> None:
    """Otherwise it fails in the middle of a run, when the first tool does."""
    with pytest.raises(TypeError, match=match):
        LedgerDurability(MemoryLedger(), **given)


def test_a_state_that_is_no_deps_state_is_refused() -> None:
    with pytest.raises(TypeError, match=r"state is a DepsState, such as DepsState\(deps\), not \[1\]"):
        ledger_run("t", state=[1])  # type: ignore[arg-type]


def test_the_id_of_a_run_is_a_text() -> None:
    with pytest.raises(TypeError, match="the id of a run is a text, such as '7', not 7"):
        ledger_run("t", id=7)  # type: ignore[arg-type]


async def test_a_program_has_a_name_and_is_async() -> None:
    def work(run: LedgerRun) -> Any:
        return 1

    with pytest.raises(TypeError, match=r"write @program\('work'\), with the name of the program, above the function"):
        program(work)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the function of program 'desk' is not async: write `async def`"):
        await program("desk")(work).run("t", ledger=MemoryLedger())


async def test_a_stream_that_is_no_generator_is_refused_before_a_response_begins() -> None:
    async def words() -> str:
        return "one"

    with pytest.raises(TypeError, match="durable_stream takes a function that yields"):
        durable_stream("t", words)  # type: ignore[arg-type]


async def test_an_agent_that_does_not_run_again_is_named_with_what_to_do() -> None:
    ledger = MemoryLedger()
    first, second = (Agent(TestModel(), name=name, capabilities=[LedgerDurability(ledger)]) for name in ("first", "second"))

    async def live(agent: Agent[None, str]) -> None:
        async with ledger_run("t"):
            await agent.run("Go.")
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await live(first)
    with pytest.raises(HistoryMismatchError, match="'t/run/first' ran before that.* run.effect.* give the run another id"):
        await live(second)


async def test_an_agent_in_another_event_loop_than_its_run_is_refused() -> None:
    """It could not be recorded: the ledger belongs to the loop of the block, which would wait for it for ever."""
    agent = Agent(TestModel(), name="clerk", capabilities=[LedgerDurability(MemoryLedger())])
    match = r"agent 'clerk' runs in another event loop than ledger_run\('t'\).*`await agent.run\(…\)`"
    with pytest.raises(RuntimeError, match=match):
        async with ledger_run("t"):
            await asyncio.to_thread(lambda: asyncio.run(agent.run("Go.")))  # as `run_sync` does in a thread


async def test_a_grant_of_an_unknown_tool_is_refused_when_the_tools_are_used() -> None:
    """It may be granted before the tool is added."""
    toolkit = Toolkit()
    toolkit.grant("clerk", "search")
    with pytest.raises(SetupError, match="names tool 'search', and toolkit 'toolkit' has none of that name; it has no tool"):
        await toolkit.tools_of("clerk")
    toolkit.add(_search, name="searches")
    with pytest.raises(SetupError, match="is it 'searches'"):
        await toolkit.tools_of("clerk")
    toolkit.add(_search, name="search")
    assert set(await toolkit.tools_of("clerk")) == {"search"}


async def test_a_rule_for_an_unknown_tool_is_refused_when_the_tools_are_used() -> None:
    """Otherwise the tool would run, and nobody would be asked."""
    toolkit = Toolkit([_search], rules=[ApprovalRule("_serch")])
    toolkit.grant("clerk", "_search")
    match = r"an approval rule names tool '_serch', and toolkit 'toolkit' has none of that name; is it '_search'\?"
    with pytest.raises(SetupError, match=match):
        await toolkit.tools_of("clerk")
    with pytest.raises(SetupError, match=match):
        await toolkit.call("clerk", "_search", {"word": "x"})
    with pytest.raises(SetupError, match=match):
        toolkit.check_names()


async def test_a_rule_may_be_about_all_tools_and_about_a_built_in_tool() -> None:
    toolkit = Toolkit([_search], rules=[ApprovalRule(agent="clerk"), ApprovalRule("web_fetch")])
    assert set(await toolkit.tools()) == {"_search"}


async def test_a_revocation_of_an_unknown_tool_is_refused() -> None:
    """Otherwise the agent would keep the tool."""
    toolkit = Toolkit([_search])
    toolkit.grant("clerk")
    toolkit.revoke("clerk", "_serach")
    with pytest.raises(SetupError, match=r"the revocation for agent 'clerk' names tool '_serach', .* is it '_search'\?"):
        await toolkit.tools_of("clerk")


async def test_settings_of_an_unknown_tool_of_a_toolset_are_refused() -> None:
    """Otherwise the tool would run without them, such as without an approval."""
    web = FunctionToolset[None](id="web")
    web.add_function(_search, name="find")
    toolkit = Toolkit()
    toolkit.add_toolset(web.prefixed("web"), by_name={"web_fnd": {"approval": True}}, name="the web")
    with pytest.raises(SetupError, match=r"by_name= has settings for tool 'web_fnd', .* is it 'web_find'\?"):
        await toolkit.tools()


async def test_a_toolset_with_unknown_tools_may_have_any() -> None:
    """Pydantic AI's toolsets may offer a tool at times only, or rename it."""
    web = FunctionToolset[None](id="web")
    web.add_function(_search, name="find")
    renamed = Toolkit(rules=[ApprovalRule("look")])
    renamed.add_toolset(web.renamed({"look": "find"}))
    assert set(await renamed.tools()) == {"look"}
    never = Toolkit(rules=[ApprovalRule("find")])
    never.add_toolset(web.filtered(lambda _ctx, _tool: False))
    assert not await never.tools()


@pytest.mark.parametrize("make", [Team, Workers, Peers])
def test_a_pattern_refuses_names_of_tools_when_it_is_made(make: Any) -> None:
    with pytest.raises(SetupError, match=r"agent 'bob' names tool '_serach', .* is it '_search'\?"):
        make(MemoryLedger(), [AgentSpec(name="bob", tools=("_serach",))], tools=[_search])
    with pytest.raises(SetupError, match=r"agent 'bob' names tool 'calcualtor', .* is it 'calculator'\?"):
        make(MemoryLedger(), [AgentSpec(name="bob", tools=("calcualtor",))])


@pytest.mark.parametrize("make", [Team, Workers, Peers])
@pytest.mark.parametrize(("rule", "tool"), [("_serch", "_search"), ("_search", "_serch")])
async def test_a_pattern_refuses_names_of_tools_when_it_is_opened(make: Any, rule: str, tool: str) -> None:
    """A toolkit may get tools until then."""
    ledger = MemoryLedger()
    toolkit = Toolkit(rules=[ApprovalRule(rule)])
    pattern = make(ledger, [AgentSpec(name="bob", tools=(tool,))], toolkit=toolkit)
    toolkit.add(_search)
    with pytest.raises(SetupError, match=r"names tool '_serch', .* is it '_search'\?"):
        await pattern.__aenter__()
    assert not await heads_of(ledger)
    toolkit.add(_search, name="_serch")
    async with pattern:
        pass


async def test_an_executor_refuses_names_of_tools_when_it_is_opened() -> None:
    """Options may be added after it was made."""
    options = Options(Toolkit([_search], rules=[ApprovalRule("_serch")]))
    options.add_agent(AgentSpec(name="bob"))
    executor = Executor(MemoryLedger(), options, policy="bob")
    with pytest.raises(SetupError, match=r"an approval rule names tool '_serch', .* is it '_search'\?"):
        async with executor:
            pass
    with pytest.raises(ValueError, match=r"there is no policy 'bbo'; is it 'bob'\?"):
        Executor(MemoryLedger(), options, policy="bbo")


async def test_a_chain_refuses_names_of_tools(tmp_path: Path) -> None:
    """Without a toolkit when it is made, otherwise when it is opened."""
    config = ChainConfig(phases={"action": AgentConfig(tools=("calcualtor",))})
    with pytest.raises(ConfigError, match=r"^phases.action.tools: there is no tool 'calcualtor'; is it 'calculator'\?"):
        PostChain(MemoryLedger(), config)
    with pytest.raises(SetupError, match="the grant for agent 'action' names tool 'calcualtor', and"):
        await PostChain(MemoryLedger(), config, toolkit=Toolkit()).__aenter__()
    with pytest.raises(SetupError, match=r"an approval rule names tool '_serch', .* is it '_search'\?"):
        await PostChain(MemoryLedger(), toolkit=Toolkit([_search], rules=[ApprovalRule("_serch")])).__aenter__()
    path = tmp_path / "chain.toml"
    path.write_text('[phases.yield]\ntools = ["go_on_wiht"]\n')
    with pytest.raises(ConfigError, match=r"chain.toml: phases.yield.tools: .* is it 'go_on_with'\?"):
        PostChain(MemoryLedger(), path)
    path.write_text("[phases.yield]\ntool = []\n")
    with pytest.raises(ConfigError, match=r"chain.toml: phases: yield: there is no key 'tool'; is it 'tools'\?"):
        PostChain(MemoryLedger(), path)


async def test_hints_for_a_person_name_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apsw")
    monkeypatch.delenv("ANTIPHON_LEDGER", raising=False)
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        place = f"--ledger sqlite:///{tmp_path}/ledger.db"
        assert command_line(ledger, "settle", "a thread", "x") == f"antiphon settle 'a thread' x {place}"
        toolkit = Toolkit()
        toolkit.add(_search, name="search", approval=True, to=["clerk"])
        with pytest.raises(ParkedError, match=f"`antiphon approve approval-[a-z0-9]+ --as NAME {place}`"):
            async with ledger_run("t", ledger=ledger):
                await toolkit.call("clerk", "search", {"word": "x"})
        monkeypatch.setenv("ANTIPHON_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
        assert command_line(ledger, "parked") == "antiphon parked"
    assert command_line(MemoryLedger(), "parked") == "antiphon parked"
