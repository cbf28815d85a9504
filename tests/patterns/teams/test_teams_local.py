"""A team on the real local model: what is looked at is protocol and schema, never its words."""

from collections.abc import Iterator

import pytest

from antiphon.agents.models import model
from antiphon.agents.models._local import LocalModel
from antiphon.dialects.agent_framework import validation_errors
from antiphon.errors import LocalModelError
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.teams import TEAM_FLOWS, ManagerSpec, Team, TeamLimits


@pytest.fixture
def local() -> Iterator[LocalModel]:
    try:
        found = model("local")
    except (LocalModelError, ModuleNotFoundError) as exc:
        pytest.skip(f"test_teams_local was not run: {exc}")
    assert isinstance(found, LocalModel)
    yield found
    found.server.stop()


@pytest.mark.slow
async def test_a_team_runs_on_the_local_model(local: LocalModel) -> None:
    """The documented example: the schema has the model name only those who are there, and everything else follows."""
    workers = [AgentSpec(name="writer", instructions="Answer in one sentence.")]
    desk = ManagerSpec(name="desk", workers=("writer",), plans="whole")
    async with Team(workers=workers, managers=[desk], model=local, limits=TeamLimits(phases=1)) as team:
        outcome = await team.run("What is tea?", thread_id="t")
        entries = await team.store.get_messages("t")
        rows = [record.message async for record in team.ledger.read("t")]
    assert outcome.response
    assert [each for entry in entries for each in validation_errors(entry)] == []
    assert [each["worker"] for each in entries if each["type"] == "delegation"] == ["desk", "writer"]
    (plan,) = [each["content"]["plan"] for each in entries if each["type"] == "strategic_plan"]
    assert "No plan could be read" not in plan.get("rationale", "")
    assert [flow.check(rows).state for flow in TEAM_FLOWS] == ["complete", "complete"]
