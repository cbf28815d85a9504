"""The views of a team's thread: conversation, agent, team, global; and what each role has before it."""

from typing import Any

import pytest
from pydantic_ai.models.test import TestModel
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.patterns.cast import Cast
from antiphon.patterns.teams import Team, TeamStore


def busy_team() -> Team:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def look(request: str) -> str:
        """Look for something."""
        return f"{request} is here"

    def plans(prompt: str, spoken: int) -> Any:
        return plan(phase("desk", "Find it."), phase("clerk", "Judge it.")) if "Plan in phases" in prompt else "Here it is."

    def steps(prompt: str, spoken: int) -> Any:
        return {"steps": [{"name": "Find", "worker": "ada", "task": "Find it."}]}

    def works(prompt: str, spoken: int) -> Any:
        return [("look", {"request": "the key"})] if spoken == 0 else "Found."

    parts = {"orchestrator": plans, "desk": steps, "ada": works, "clerk": "Good."}
    return team_of(parts, [agent("ada", "look"), agent("clerk")], [manager("desk", "ada")], toolkit=toolkit)


def types(entries: list[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in entries]


@pytest.mark.slow
async def test_a_store_shows_conversation_agent_team_and_global() -> None:
    """AF-061: each view has its messages in the order of the ledger, without the prompts of the agents."""
    async with busy_team() as team:
        await team.run("Where is the key?", thread_id="t")
        store = TeamStore(team.ledger)
        conversation = await store.get_conversation_messages("t")
        assert [(each["type"], each["content"]) for each in conversation] == [
            ("user_message", "Where is the key?"),
            ("assistant_message", "Here it is."),
        ]
        ada = await store.get_agent_messages("t", "ada")
        assert types(ada) == ["task", "injected_context", "action", "observation", "final"]
        assert (ada[2]["tool"], ada[2]["args"], ada[3]["content"]) == ("look", {"request": "the key"}, "the key is here")
        assert ada[2]["call_id"] == ada[3]["call_id"]
        desk = await store.get_team_messages("t", ["desk", "ada"])
        assert types(desk) == ["director_context", "delegation", *types(ada), "observation", "synthesis"]
        everywhere = await store.get_global_messages("t")
        assert [(each["from_manager"], each["phase_id"]) for each in everywhere] == [("desk", 0), ("orchestrator", 1)]
        everything = await store.get_messages("t")
        assert [each for each in everything if "Break the phase" in str(each)] == []
        assert types(await store.get_messages("t", 2)) == types(everything)[-2:]
        assert await store.get_agent_messages("t", "ada", 1) == ada[-1:]
        assert await store.get_conversation_messages("t", 0) == []
        assert await store.get_messages("nowhere") == []


@pytest.mark.slow
async def test_an_agent_has_the_conversation_its_own_that_of_its_subordinates_and_what_is_global_in_one_order() -> None:
    """Not one list after the other: an answer never stands before its question."""
    async with busy_team() as team:
        await team.run("Where is the key?", thread_id="t")
        everything = await team.store.get_messages("t")
        history = await team.store.get_history("t", "desk", ["ada"])
        assert history == [each for each in everything if each in history]
        assert types(history)[0] == "user_message"
        assert types(history)[-1] == "assistant_message"
        assert {each.get("agent_key") for each in history} == {None, "desk", "ada", "orchestrator"}
        assert not any(each.get("agent_key") == "clerk" for each in history)


async def test_messages_of_another_pattern_in_the_same_thread_are_not_shown() -> None:
    async with busy_team() as team:
        toolkit = Toolkit()

        @toolkit.tool(effects="none", to=["stranger"])
        def peek() -> str:
            """Peek."""
            return "seen"

        cast = Cast(team.ledger, [agent("stranger")], model=TestModel(), toolkit=toolkit)
        async with ledger_run("t", ledger=team.ledger):
            await cast.ask("stranger", "Look around.")
        assert "peek" in str([record.message async for record in team.ledger.read("t")])
        assert await team.store.get_messages("t") == []


@pytest.mark.slow
async def test_each_role_has_its_own_view() -> None:
    """AF-060: the orchestrator the conversation, a manager the synthesis before, a worker its turn with the task in it."""
    async with busy_team() as team:
        for words in ("Where is the key?", "And now?"):
            await team.run(words, thread_id="t")
        store = team.store
        assert types(await store.orchestrator_view("t", 3)) == ["assistant_message", "user_message", "assistant_message"]
        assert await store.manager_view("t", 0) == []
        (before,) = await store.manager_view("t", 1)
        assert (before["content"], before["phase_id"]) == ("Found.", 0)
        assert before == (await store.get_global_messages("t"))[2]
        turn = await store.worker_view("t", "ada")
        assert types(turn) == ["task", "injected_context", "action", "observation", "final"]
        assert turn == (await store.get_agent_messages("t", "ada"))[5:]
        assert await store.worker_view("t", "desk") == []
