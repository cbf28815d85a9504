"""MCP servers: their tools are checked, granted and limited like ours, over both transports, by the real SDK."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.toolkit.kit import call, failure, noted, run_agent, script

from antiphon.agents.toolkit import Toolkit
from antiphon.errors import ParkedError
from antiphon.ledger import open_ledger
from antiphon.messages import MediaPart

PROGRAM = Path(__file__).with_name("mcp_server.py")
COMMAND = (sys.executable, str(PROGRAM))


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    with subprocess.Popen([*COMMAND, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.kill()


async def check_all(toolkit: Toolkit) -> None:
    """Call every kind of tool that the server has."""
    toolkit.grant("ada")
    async with toolkit:
        tools = await toolkit.tools()
        assert list(tools) == ["add", "fail", "picture", "page", "environment", "refuse"]  # not the twin
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
def test_a_server_that_is_started_by_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not get our environment."""
    monkeypatch.setenv("OPENAI_API_KEY_CANARY", "sk-canary")
    toolkit = Toolkit()
    toolkit.add_mcp(COMMAND, env={"GIVEN": "this"})

    async def work() -> None:
        async with toolkit:
            await check_all(toolkit)
            given = await toolkit.call("ada", "environment", {})
            assert given.result == {"given": "this", "keys": []}

    asyncio.run(work())


@pytest.mark.slow
def test_a_server_over_http(url: str) -> None:
    toolkit = Toolkit()
    toolkit.add_mcp(url)

    asyncio.run(check_all(toolkit))


@pytest.mark.slow
def test_two_servers_have_a_prefix_each(url: str) -> None:
    toolkit = Toolkit()
    toolkit.add_mcp(url, prefix="left", effects="none", by_name={"left_add": {"untrusted": False}})
    toolkit.add_mcp(url, prefix="right")
    toolkit.grant("ada", "left_add")

    async def work() -> None:
        async with toolkit:
            assert (await toolkit.call("ada", "left_add", {"a": 1, "b": 2})).result == 3
            assert (await toolkit.call("ada", "right_add", {"a": 1, "b": 2})).error_type == "PERMISSION_DENIED"
            tool = (await toolkit.tools())["left_add"]
            assert (tool.untrusted, tool.effects) == (False, "none")

    asyncio.run(work())


@pytest.mark.slow
def test_what_a_server_says_is_not_trusted_and_its_calls_are_in_the_ledger(url: str) -> None:
    """S4, G9: a page from the web, and then a payment that nobody has approved; what was read is not read again."""
    paid: list[int] = []

    def pay(amount: int) -> None:
        paid.append(amount)

    async def work() -> None:
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

    asyncio.run(work())
    assert paid == []


@pytest.mark.slow
def test_a_server_that_is_not_there_is_an_error_that_is_raised() -> None:
    toolkit = Toolkit()
    toolkit.add_mcp("http://127.0.0.1:9/mcp")

    with pytest.raises(RuntimeError, match="connect"):
        asyncio.run(toolkit.call("ada", "add", {}))
