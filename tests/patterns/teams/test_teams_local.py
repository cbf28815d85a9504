"""A team on the real local model: what is looked at is protocol and schema, never its words."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.patterns.teams.crews import QUICK

from antiphon.agents import Toolkit
from antiphon.agents.models import LocalModel, WeightsError, model
from antiphon.dialects.agent_framework import ScriptStep, validation_errors
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.teams import TEAM_FLOWS, ManagerSpec, Team


@pytest.fixture
def local() -> Iterator[LocalModel]:
    try:
        found = model("local")
    except (WeightsError, ModuleNotFoundError) as exc:
        pytest.skip(f"test_teams_local was not run: {exc}")
    assert isinstance(found, LocalModel)
    yield found
    found.server.stop()


@pytest.mark.slow
def test_a_team_runs_on_the_local_model(local: LocalModel) -> None:
    """Of few words: a plan that is cut off cannot be read, so the first of the team gets the request, and has a script."""

    async def main() -> None:
        toolkit = Toolkit()

        @toolkit.tool(effects="none")
        def count(text: str) -> int:
            """Count the words of a text."""
            return len(text.split())

        script = (ScriptStep(name="Count", worker="counter", tool_name="count", args={"text": "What is tea?"}),)
        team = Team(
            orchestrator=AgentSpec(name="orchestrator", max_tokens=6),
            managers=[ManagerSpec(name="desk", workers=("counter",), script=script)],
            workers=[AgentSpec(name="counter", tools=("count",))],
            toolkit=toolkit,
            model=local,
            patience=QUICK,
        )
        async with team:
            outcome = await team.run("How long is it?", thread_id="t")
            entries = await team.store.get_messages("t")
            rows = [record.message async for record in team.ledger.read("t")]
        assert (outcome.status, outcome.response) == ("completed", "Count: 3")
        assert [each for entry in entries for each in validation_errors(entry)] == []
        assert {row.usage.output_tokens for row in rows if row.usage is not None} == {6}
        assert TEAM_FLOWS[0].check(rows).state == "complete"

    asyncio.run(main())
