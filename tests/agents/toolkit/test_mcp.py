"""MCP servers: their tools are checked, granted and limited like ours, over both transports, by the real SDK."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.agents.toolkit.kit import call, failure, noted, returns, run_agent, script

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import ApprovalRule, Toolkit, answer, pending_approvals
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError, SetupError
from antiphon.ledger import STANDARD_REDACTION, Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import MediaPart
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.peers import Peers

PROGRAM = Path(__file__).with_name("mcp_server.py")
COMMAND = (sys.executable, str(PROGRAM))
WITHIN = 60.0
"""Seconds in which it starts, also on a busy machine: it imports the SDK."""


@contextmanager
def serving(*arguments: str) -> Generator[str]:
    with subprocess.Popen([*COMMAND, "http", *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    with serving() as url:
        yield url


@pytest.fixture(scope="module")
def changed_url() -> Generator[str]:
    """The same server, with changed tools."""
    with serving("changed") as url:
        yield url


@pytest.fixture(params=["stdio", "http"])
def servers(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """What the server is before and after, over both transports."""
    if request.param == "stdio":
        return COMMAND, (*COMMAND, "changed")
    return request.getfixturevalue("url"), request.getfixturevalue("changed_url")


async def check_all(toolkit: Toolkit) -> None:
    """Call every kind of tool that the server has."""
    toolkit.grant("ada")
    async with toolkit:
        tools = await toolkit.tools()
        assert list(tools) == ["add", "login", "fail", "picture", "page", "environment", "transfer", "refuse"]  # not the twin
        assert (tools["add"].description, tools["add"].untrusted, tools["add"].effects) == ("Add two numbers.", True, "once")

        async def called(name: str, **arguments: Any) -> Any:
            return await toolkit.call("ada", name, arguments)

        assert (await called("add", a=1, b=2)).result == 3
        assert failure(await called("add", a=1, b="2"))[0] == "INVALID_ARGUMENTS"
        assert failure(await called("add", a=1))[0] == "INVALID_ARGUMENTS"
        assert failure(await called("аdd", a=1, b=2))[0] == "UNKNOWN_TOOL"
        assert (await called("picture")).parts == (
            MediaPart(modality="image", url="data:image/png;base64,cG5n", mime="image/png"),
        )
        code, reason = failure(await called("fail", secret="canary-1234"))
        assert code == "TOOL_FAILED"
        assert "canary" not in str(reason)
        assert failure(await called("refuse")) == ("TOOL_FAILED", "the till is closed")
        assert (await toolkit.call("bob", "add", {"a": 1, "b": 2})).error_type == "PERMISSION_DENIED"


@pytest.mark.slow
async def test_a_server_that_is_started_by_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not get our environment."""
    monkeypatch.setenv("OPENAI_API_KEY_CANARY", "sk-canary")
    toolkit = Toolkit()
    toolkit.add_mcp(COMMAND, env={"GIVEN": "this"}, within=WITHIN)

    async with toolkit:
        await check_all(toolkit)
        given = await toolkit.call("ada", "environment", {})
        assert given.result == {"given": "this", "keys": []}


@pytest.mark.slow
def test_a_server_over_http(url: str) -> None:
    toolkit = Toolkit()
    toolkit.add_mcp(url)

    asyncio.run(check_all(toolkit))


@pytest.mark.slow
async def test_two_servers_have_a_prefix_each(url: str) -> None:
    toolkit = Toolkit()
    toolkit.add_mcp(url, prefix="left", effects="none", by_name={"left_add": {"untrusted": False}})
    toolkit.add_mcp(url, prefix="right")
    toolkit.grant("ada", "left_add")

    async with toolkit:
        assert (await toolkit.call("ada", "left_add", {"a": 1, "b": 2})).result == 3
        assert (await toolkit.call("ada", "right_add", {"a": 1, "b": 2})).error_type == "PERMISSION_DENIED"
        tool = (await toolkit.tools())["left_add"]
        assert (tool.untrusted, tool.effects) == (False, "none")


@pytest.mark.slow
async def test_results_of_a_server_are_untrusted_and_its_calls_are_in_the_ledger(url: str) -> None:
    """S4, G9: a page from the web, and then a payment without an approval; the page is not read again."""
    paid: list[int] = []

    def pay(amount: int) -> None:
        paid.append(amount)

    toolkit = Toolkit([pay])
    toolkit.add_mcp(url, effects="none", allows_untrusted=True)
    toolkit.grant("clerk")
    model = script([call("page", "c1")], [call("add", "c2", a=1, b=2), call("pay", "c3", amount=5)])
    async with open_ledger("memory:") as ledger:
        for _ in range(2):
            with pytest.raises(ParkedError):
                await run_agent(toolkit, model, ledger=ledger)
        verdicts = [(each["tool"], each["verdict"]) for each in await noted(ledger, "TOOL_PERMISSION")]
        assert verdicts == [("page", "allow"), ("add", "allow"), ("pay", "ask")]

    assert paid == []


@pytest.mark.slow
async def test_a_server_gets_the_idempotency_key_of_each_call(servers: tuple[Any, Any]) -> None:
    """G9: it can refuse a second attempt, which no check of ours can exclude. Outside of a run there is no key."""
    toolkit = Toolkit()
    toolkit.add_mcp(servers[0], untrusted=False, within=WITHIN)
    toolkit.grant("clerk")
    model = script([call("transfer", "c1")], [call("transfer", "c2")])
    async with open_ledger("memory:") as ledger:
        keys = [key for _, key in await run_agent(toolkit, model, ledger=ledger)]
        rows = {record.message.id async for record in ledger.read("t")}

    assert len(set(keys)) == 2
    assert {f"{key}@begun" for key in keys} <= rows
    assert (await toolkit.call("clerk", "transfer", {})).result == "None"


# ---------------------------------------------------------------- a server that is another one when the program runs again


def calculating(server: Any, **settings: Any) -> Toolkit:
    toolkit = Toolkit()
    by_name: Any = {"add": settings}
    toolkit.add_mcp(server, effects="none", untrusted=False, by_name=by_name, within=WITHIN)
    toolkit.grant("clerk")
    return toolkit


class Script:
    """A model that calls `add`, and is cut off in its second turn, the first time; it says what tools it was offered."""

    def __init__(self) -> None:
        self.offered: list[list[str]] = []
        self.is_cut_off = True

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.offered.append([tool.name for tool in info.function_tools][:2])
        if len(messages) == 1:
            return ModelResponse([call("add", a=1, b=2)])
        if self.is_cut_off:
            raise asyncio.CancelledError
        later = {3: call("add", "c2", a=3, b=4), 5: call("subtract", "c3", a=3, b=1)}
        return ModelResponse([later.get(len(messages), TextPart("done"))])


@pytest.mark.slow
async def test_a_replayed_program_is_offered_the_recorded_tools_until_its_first_new_step(
    servers: tuple[Any, Any],
) -> None:
    """G9: the server offers other tools meanwhile. Recorded steps keep the old ones; the next step has the new ones."""
    model = Script()

    async def program(ledger: Ledger, server: Any) -> list[tuple[str, Any]]:
        capabilities = [LedgerDurability(ledger), calculating(server).capability("clerk")]
        agent = Agent(FunctionModel(model), name="clerk", capabilities=capabilities)
        async with ledger_run("t"):
            return returns((await agent.run("go")).all_messages())

    before, after = servers
    async with open_ledger("memory:") as ledger:
        with pytest.raises(asyncio.CancelledError):
            await program(ledger, before)
        model.is_cut_off = False
        first, second, third = await program(ledger, after)
        assert (first, third) == (("success", 3), ("success", 2))
        assert second == ("failed", "add: 'add' takes other arguments now, and was not started (TOOL_CHANGED)")

    assert model.offered == [["add", "login"]] * 3 + [["add", "subtract"]] * 2


@pytest.mark.slow
async def test_a_yes_is_not_for_a_tool_that_has_changed_meanwhile(url: str, changed_url: str) -> None:
    """S5: what a person has approved is no longer what would be started, so nothing is; and that is written down."""
    model = script([call("add", a=1, b=2)])
    async with open_ledger("memory:") as ledger:
        with pytest.raises(ParkedError):
            await run_agent(calculating(url, approval=True), model, ledger=ledger)
        (approval,) = await pending_approvals(ledger)
        await answer(ledger, approval.id, principal="ada", approved=True)
        for server in (changed_url, url):
            told = await run_agent(calculating(server, approval=True), model, ledger=ledger)
            assert told == [("failed", "add: 'add' takes other arguments now, and was not started (TOOL_CHANGED)")]


@pytest.mark.slow
async def test_direct_calls_of_a_program_get_their_recorded_results_again(url: str, changed_url: str) -> None:
    """G9: also the result of a tool that the server no longer offers, and the error for an unknown one."""

    async def program(ledger: Ledger, server: str) -> list[Any]:
        toolkit = calculating(server)
        async with ledger_run("t", ledger=ledger):
            calls = [("login", {"password": "open sesame"}), ("subtract", {"a": 3, "b": 1})]
            results = [await toolkit.call("clerk", name, arguments) for name, arguments in calls]
        return [each.error_type or each.result for each in results]

    async with open_ledger("memory:") as ledger:
        for server in (url, changed_url):
            assert await program(ledger, server) == [True, "UNKNOWN_TOOL"]


@pytest.mark.slow
async def test_a_list_that_a_ledger_has_taken_something_out_of_must_be_the_same_again(url: str, changed_url: str) -> None:
    """What is left of a tool whose description has a secret in it cannot be offered."""
    model = script([call("login", password="open sesame")])
    rules = STANDARD_REDACTION.with_secrets({"said": "Log in with a password."})

    async with open_ledger("memory:", redaction=rules) as ledger:
        for _ in range(2):
            assert await run_agent(calculating(url), model, ledger=ledger) == [("success", True)]
        with pytest.raises(HistoryMismatchError, match="offers other tools than thread 't' says, in 'tools:toolkit:1'"):
            await run_agent(calculating(changed_url), model, ledger=ledger)


@pytest.mark.slow
async def test_a_server_that_is_given_to_a_durable_agent_directly_is_held_to_what_it_offered(
    url: str, changed_url: str
) -> None:
    """G9: without a toolkit too."""
    model = Script()

    async def program(ledger: Ledger, server: str) -> list[tuple[str, Any]]:
        durable: LedgerDurability[Any] = LedgerDurability(ledger, effects={"add": "none", "subtract": "none"})
        agent = Agent(
            FunctionModel(model),
            name="clerk",
            toolsets=[MCPToolset(server, id="server", init_timeout=60)],
            capabilities=[durable],
        )
        async with ledger_run("t"):
            return returns((await agent.run("go")).all_messages())

    async with open_ledger("memory:") as ledger:
        with pytest.raises(asyncio.CancelledError):
            await program(ledger, url)
        model.is_cut_off = False
        first, second, third = await program(ledger, changed_url)
        assert (first, third[0]) == (("success", 3), "retried")  # the list stays the same for a whole run
        assert second == ("failed", "'add' takes other arguments now, and was not called")

    assert model.offered == [["add", "login"]] * 5


@pytest.mark.slow
async def test_names_of_a_server_s_tools_are_checked_when_it_has_listed_them(url: str) -> None:
    """Until then, and if it cannot be reached, a rule may be about any tool of the server, and holds."""

    def made(server: str) -> Toolkit:
        toolkit = Toolkit(rules=[ApprovalRule("shop_lgoin")])
        toolkit.add_mcp(server, prefix="shop", within=5.0)
        toolkit.check_names()
        return toolkit

    with pytest.raises(SetupError, match=r"names tool 'shop_lgoin', .* is it 'shop_login'\?"):
        await made(url).check()
    with pytest.raises(SetupError, match=r"names tool 'shop_lgoin', .* is it 'shop_login'\?"):
        async with Peers(MemoryLedger(), [AgentSpec(name="ada")], toolkit=made(url)):
            pass
    assert not await made("http://127.0.0.1:9/mcp").tools()
    toolkit = made(url)
    toolkit.grant("ada")
    with pytest.raises(SetupError, match="an approval rule names tool 'shop_lgoin'"):
        await toolkit.call("ada", "shop_login", {"password": "open sesame"})


@pytest.mark.slow
async def test_settings_of_a_tool_that_a_server_does_not_have_are_refused(url: str) -> None:
    toolkit = Toolkit()
    toolkit.add_mcp(url, by_name={"lgoin": {"approval": True}})
    with pytest.raises(SetupError, match=r"by_name= has settings for tool 'lgoin', .* is it 'login'\?"):
        async with toolkit:
            await toolkit.tools()
