"""A team on the real local model: what is looked at is protocol and schema, never its words."""

from collections.abc import Iterator

import pytest
from tests.patterns.chains import run

from antiphon.agents.models import LocalModel, WeightsError, model
from antiphon.dialects.agent_framework import validation_errors
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
    """It names only those who are there, because the schema does; what it says is valid and in order, whatever it is."""

    async def main() -> None:
        workers = [AgentSpec(name="writer", instructions="Answer in one sentence.", max_tokens=60)]
        desk = ManagerSpec(name="desk", workers=("writer",), plans="whole", max_tokens=60)
        boss = AgentSpec(name="orchestrator", max_tokens=120)
        async with Team(orchestrator=boss, workers=workers, managers=[desk], model=local) as team:
            outcome = await team.run("What is tea?", thread_id="t")
            entries = await team.store.get_messages("t")
            rows = [record.message async for record in team.ledger.read("t")]
        print(outcome, [(e["type"], e.get("content")) for e in entries])
        assert outcome.response
        assert [each for entry in entries for each in validation_errors(entry)] == []
        assert {"strategic_plan", "delegation", "synthesis", "assistant_message"} <= {each["type"] for each in entries}
        assert {each["worker"] for each in entries if each["type"] == "delegation"} <= {"desk", "writer"}
        assert TEAM_FLOWS[1].check(rows).state == "complete"

    run(main())
