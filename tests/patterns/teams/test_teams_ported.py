"""Programs of the agent_framework design, ported as their authors would: the host's own store, builders, final responses."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.agent_framework import BaseMessageStore, ScriptStep, validation_errors
from antiphon.dialects.agent_framework.constants import CONVERSATION_TYPES, EXECUTION_TRACE_TYPES, FINAL
from antiphon.dialects.agent_framework.message_builder import create_assistant_message, create_user_message
from antiphon.errors import SetupError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.teams import Team, TeamStore


class DatabaseMessageStore(BaseMessageStore):
    """A host's own store: a table of its own, plain methods, written by the host."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, location, agent_key, type, message)")
        self.reads = 0

    def write_message(self, location: str, message: dict[str, Any]) -> None:
        row = (location, message.get("agent_key"), message["type"], json.dumps(message))
        self._database.execute("INSERT INTO messages (location, agent_key, type, message) VALUES (?, ?, ?, ?)", row)

    def get_conversation_messages(self, location: str, limit: int | None = None) -> list[dict[str, Any]]:
        self.reads += 1
        return [each for each in self._all(location) if each["type"] in CONVERSATION_TYPES][:limit]

    def get_agent_messages(self, location: str, agent_key: str, limit: int | None = None) -> list[dict[str, Any]]:
        return self.get_team_messages(location, [agent_key], limit)

    def get_global_messages(self, location: str, limit: int | None = None) -> list[dict[str, Any]]:
        return [each for each in self._all(location) if each.get("is_global")][:limit]

    def get_team_messages(self, location: str, agent_keys: Sequence[str], limit: int | None = None) -> list[dict[str, Any]]:
        return [each for each in self._all(location) if each.get("agent_key") in agent_keys][:limit]

    def _all(self, location: str) -> list[dict[str, Any]]:
        rows = self._database.execute("SELECT message FROM messages WHERE location = ? ORDER BY id", (location,))
        return [json.loads(text) for (text,) in rows]


class FilledStore(DatabaseMessageStore):
    """One that takes what a team says."""

    broken = False

    async def add_message(self, location: str, message: dict[str, Any]) -> None:
        if self.broken:
            raise OSError("the disk is full")
        known = [each.get("message_id") for each in self._all(location)]
        if message["message_id"] not in known:
            self.write_message(location, message)


def kit() -> Toolkit:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def list_tables(schema: str) -> dict[str, Any]:
        """List tables, for a table on the screen."""
        payload = {"tables": ["Users", "Orders"], "schema": schema}
        return {"operation": "display_table", "payload": payload, "human_readable_summary": "Found 2 tables"}

    @toolkit.tool(effects="none")
    def count(schema: str) -> int:
        """Count tables."""
        return 2

    return toolkit


def planning(prompt: str, spoken: int) -> Any:
    return plan(phase("analyst", "List the tables.")) if "Plan in phases" in prompt else "That is all."


def listing(prompt: str, spoken: int) -> Any:
    return [("list_tables", {"schema": "public"})] if spoken == 0 else "There are two."


def analysts(store: Any = None, ledger: Ledger | None = None, works: Any = listing, **more: Any) -> Team:
    parts = {"orchestrator": planning, "analyst": works}
    worker = agent("analyst", "list_tables", "count")
    return team_of(parts, [worker], ledger=ledger, toolkit=kit(), message_store=store, **more)


# ---------------------------------------------------------------- the host's own store


async def brief(team: Team, thread_id: str = "job_123") -> str:
    entries = await team.store.get_messages(thread_id)
    return [str(each["content"]) for each in entries if each["type"] == "director_context"][-1]


@pytest.mark.slow
async def test_a_host_plugs_in_its_own_message_store(tmp_path: Path) -> None:
    """AF-060, AF-061: the orchestrator plans with the conversation that the host keeps, the latest of it, in order."""
    store = DatabaseMessageStore(tmp_path / "messages.db")
    for number in range(6):
        store.write_message("job_123", create_user_message(f"question {number}", metadata={"user_id": "u"}))
        store.write_message("job_123", create_assistant_message(f"answer {number}"))
    store.write_message("job_7", create_user_message("another job"))
    store.write_message("job_123", create_user_message("List all tables"))  # hosts write what is asked before they ask
    async with analysts(store) as team:
        outcome = await team.run("List all tables", thread_id="job_123")
        store.write_message("job_123", create_assistant_message(outcome.response or ""))
        said = await brief(team)
    earlier = [line for line in said.splitlines() if "question" in line or "answer" in line or "List all" in line]
    pairs = [(f"user: question {number}", f"assistant: answer {number}") for number in (2, 3, 4, 5)]
    assert earlier == [*(line for pair in pairs for line in pair), "Request: List all tables"]
    assert "another job" not in said
    assert [each["type"] for each in store.get_conversation_messages("job_123")][-1] == "assistant_message"
    assert store.get_agent_messages("job_123", "analyst") == []  # a host that has no add_message writes for itself


@pytest.mark.slow
async def test_messages_read_from_the_host_s_store_are_recorded(tmp_path: Path) -> None:
    """G13: a resumed turn plans with the recorded messages, whatever the host has written since."""
    store, ledger = DatabaseMessageStore(tmp_path / "messages.db"), MemoryLedger()
    store.write_message("job_123", create_user_message("Hello"))
    async with analysts(store, ledger) as team:
        await team.run("List all tables", thread_id="job_123")
    rows = [record.message async for record in ledger.read("job_123")]
    (planned,) = [place for place, row in enumerate(rows) if "strategic_plan" in str(row.metadata)]
    half = MemoryLedger()
    await half.append("job_123", rows[:planned])
    store.write_message("job_123", create_user_message("Something else"))
    reads = store.reads
    async with analysts(store, half) as team:
        assert (await team.run("List all tables", thread_id="job_123")).status == "completed"
        assert "user: Hello" in await brief(team)
        assert "Something else" not in await brief(team)
    assert store.reads == reads


@pytest.mark.slow
async def test_a_store_with_add_message_has_all_that_the_team_has_said(tmp_path: Path) -> None:
    """AF-061: when `run` returns; each message at least once, in order, valid, the agents' own tools among them."""
    store = FilledStore(tmp_path / "messages.db")
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger, analysts(store, ledger) as team:
        for words in ("List all tables", "And again?"):
            await team.run(words, thread_id="job_123")
            await team.run(words, thread_id="job_123")  # it is recorded, and handed over again
        said = await team.store.get_messages("job_123")
    kept = store.get_team_messages("job_123", ["analyst"])
    assert [each["type"] for each in kept[:5]] == ["task", "injected_context", "action", "observation", "final"]
    own = [each for each in said if each.get("agent_key") == "analyst"]
    assert [each["message_id"] for each in kept] == [each["message_id"] for each in own]
    asked = [each["content"] for each in store.get_conversation_messages("job_123")][::2]
    assert asked == ["List all tables", "And again?"]
    assert [validation_errors(each) for each in kept if validation_errors(each)] == []
    assert all("agent_key" in each for each in kept if each["type"] in EXECUTION_TRACE_TYPES)


async def test_a_store_that_fails_fails_the_call_and_loses_nothing(tmp_path: Path) -> None:
    """G1: the ledger has the turn; the same words again give its answer, and hand it over."""
    store = FilledStore(tmp_path / "messages.db")
    asked: list[str] = []
    async with analysts(store, asked=asked) as team:
        store.broken = True
        with pytest.raises(OSError, match="the disk is full"):
            await team.run("List all tables", thread_id="job_123")
        before, store.broken = len(asked), False
        assert (await team.run("List all tables", thread_id="job_123")).response == "There are two."
        assert len(asked) == before
    assert [each["type"] for each in store.get_conversation_messages("job_123")] == CONVERSATION_TYPES


async def test_a_store_whose_messages_are_none_fails_the_turn_aloud(tmp_path: Path) -> None:
    """AF-052: what a host gives is checked; a time in seconds, as hosts keep it, is let be."""
    store = DatabaseMessageStore(tmp_path / "messages.db")
    store.write_message("job_1", {"type": "user_message", "content": "Hi", "timestamp": 1705314600.5, "turn_id": None})
    store.write_message("job_2", {"type": "user_message", "text": "no content"})
    async with analysts(store) as team:
        assert (await team.run("List all tables", thread_id="job_1")).status == "completed"
        failed = await team.run("List all tables", thread_id="job_2")
    assert failed.status == "failed"
    assert "content" in (failed.error_message or "")


def test_the_ledger_s_own_views_are_a_message_store() -> None:
    """AF-061: so what is written against the protocol works with both."""

    def typed(store: BaseMessageStore) -> BaseMessageStore:
        return store

    assert typed(TeamStore(MemoryLedger()))


# ---------------------------------------------------------------- final responses


async def final(team: Team, thread_id: str = "job_123") -> dict[str, Any]:
    (found,) = [each["content"] for each in await team.store.get_messages(thread_id) if each["type"] == FINAL]
    content: dict[str, Any] = found
    return content


async def test_a_final_response_has_the_operation_of_the_tool_that_made_it() -> None:
    """AF-027: with the tool's payload; the worker's words are the summary. It is what `run` returns as data."""
    async with analysts() as team:
        outcome = await team.run("List all tables", thread_id="job_123")
        content = await final(team)
    assert content == {
        "operation": "display_table",
        "payload": {"message": "There are two.", "tables": ["Users", "Orders"], "schema": "public"},
        "human_readable_summary": "There are two.",
    }
    assert outcome.data == content


async def test_a_worker_chooses_among_the_operations_of_its_team() -> None:
    """AF-027: its word counts more than the tool's; an operation that the host does not know is asked for again."""

    def works(prompt: str, spoken: int) -> Any:
        if spoken == 0:
            return [("list_tables", {"schema": "public"})]
        return {"summary": "Added.", "data": {"measure": "Total"}, "operation": "fly" if spoken == 1 else "model_ops"}

    async with analysts(works=works, operations=("display_message", "display_table", "model_ops")) as team:
        await team.run("Add a measure", thread_id="job_123")
        assert await final(team) == {
            "operation": "model_ops",
            "payload": {"message": "Added.", "measure": "Total"},
            "human_readable_summary": "Added.",
        }


def test_a_team_without_an_operation_is_refused() -> None:
    """AF-027: a final response must say one."""
    with pytest.raises(SetupError, match="a team has operations"):
        analysts(operations=())


async def test_a_final_response_is_a_message_to_display_where_nobody_says_otherwise() -> None:
    """AF-027: also where a tool before the last one has said an operation."""

    def works(prompt: str, spoken: int) -> Any:
        calls = [("list_tables", {"schema": "public"}), ("count", {"schema": "public"})]
        return [calls[spoken]] if spoken < len(calls) else "Two."

    async with analysts(works=works) as team:
        outcome = await team.run("How many tables?", thread_id="job_123")
        content = await final(team)
    assert content == {"operation": "display_message", "payload": {"message": "Two."}, "human_readable_summary": "Two."}
    assert outcome.data == content


async def test_a_script_ends_with_the_operation_of_its_last_tool() -> None:
    """AF-027, AF-059: with the tool's payload beside the records of the steps."""
    steps = (
        ScriptStep(name="Count", worker="analyst", tool_name="count", args={"schema": "public"}),
        ScriptStep(name="List", worker="analyst", tool_name="list_tables", args={"schema": "public"}),
    )

    def plans(prompt: str, spoken: int) -> Any:
        return plan(phase("desk", "List the tables."))

    parts: dict[str, Any] = {"orchestrator": plans, "desk": "Done.", "analyst": "never asked"}
    workers = [agent("analyst", "list_tables", "count")]
    async with team_of(parts, workers, [manager("desk", "analyst", script=steps)], toolkit=kit()) as team:
        outcome = await team.run("List all tables", thread_id="job_123")
        content = await final(team)
    assert (content["operation"], content["payload"]["tables"]) == ("display_table", ["Users", "Orders"])
    assert [each["status"] for each in content["payload"]["steps"]] == ["SUCCESS", "SUCCESS"]
    assert outcome.data == content


@pytest.mark.slow
async def test_a_turn_that_is_cut_off_anywhere_has_the_same_final_response(tmp_path: Path) -> None:
    """G13: after every append, with a store that says something else by then; the tool's result is read from the ledger."""
    store, whole = DatabaseMessageStore(tmp_path / "messages.db"), MemoryLedger()
    store.write_message("job_123", create_user_message("Hello"))
    async with analysts(store, whole) as team:
        expected = (await team.run("List all tables", thread_id="job_123")).data
    store.write_message("job_123", create_user_message("Something else"))
    rows = [record.message async for record in whole.read("job_123")]
    (read,) = [place for place, row in enumerate(rows) if row.kind == "option_result" and "read-store" in str(row.payload)]
    cuts = [cut for cut in range(read + 1, len(rows)) if "@answer" not in rows[cut - 1].id]  # an answer is one append
    for cut in cuts[::2]:
        part = MemoryLedger()
        await part.append("job_123", rows[:cut])
        async with analysts(store, part) as team:
            assert (await team.run("List all tables", thread_id="job_123")).data == expected
            assert await final(team) == expected
