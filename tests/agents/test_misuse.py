"""Misuse of durable agents is refused with what to do instead."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.toolsets import FunctionToolset
from tests.agents.toolkit.kit import script

from antiphon import System, Toolkit, open_ledger
from antiphon.agents import LedgerDurability, ledger_run
from antiphon.errors import ParkedError, SetupError
from antiphon.ledger import command_line
from antiphon.ledger.memory import MemoryLedger


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
    with pytest.raises(TypeError, match="a ledger is given as an opened ledger or as a URL"):
        async with ledger_run("t", ledger=7):  # type: ignore[arg-type]
            pass


async def test_a_verb_of_a_ledger_that_was_not_entered_says_so() -> None:
    ledger: Any = open_ledger("memory:")
    with pytest.raises(AttributeError, match=r"'head': the ledger is not open; write `async with open_ledger"):
        await ledger.head("t")
    assert repr(ledger) == "<open_ledger('memory:'), not entered: use `async with`>"


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


async def test_hints_for_a_person_name_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apsw")
    monkeypatch.delenv("ANTIPHON_LEDGER", raising=False)
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        place = f"--ledger sqlite:///{tmp_path}/ledger.db"
        assert command_line(ledger, "settle", "a thread", "x") == f"antiphon settle 'a thread' x {place}"
        toolkit = Toolkit()
        toolkit.add(_search, name="search", approval=True, to=["clerk"])
        with pytest.raises(ParkedError, match=f"`antiphon approve approval-[a-z0-9]+ {place}`"):
            async with ledger_run("t", ledger=ledger):
                await toolkit.call("clerk", "search", {"word": "x"})
        monkeypatch.setenv("ANTIPHON_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
        assert command_line(ledger, "parked") == "antiphon parked"
    assert command_line(MemoryLedger(), "parked") == "antiphon parked"
