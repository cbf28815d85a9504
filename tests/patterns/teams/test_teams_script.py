"""Scripts: direct steps run without a model up to the first failure, guided ones are suggested, unfit ones do not begin."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patterns.chains import run
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of, types_in

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.agent_framework import ScriptPlanContent, ScriptStep
from antiphon.patterns.teams._plans import segments_of


def kit(done: list[str]) -> Toolkit:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def look(place: str) -> dict[str, Any]:
        """Look somewhere."""
        done.append(f"look {place}")
        return {"ok": False, "error": "unsuccessful"} if place == "attic" else {"found": place}

    @toolkit.tool()
    def write(text: str, times: int = 1) -> str:
        """Write something down."""
        done.append(f"write {text}")
        if text == "boom":
            raise OSError("the pen is dry")
        return "written"

    return toolkit


def step(name: str, worker: str = "ada", tool: str = "look", *, guided: bool = False, **args: Any) -> ScriptStep:
    mode: Any = "guided" if guided else "direct"
    return ScriptStep(
        name=name, worker=worker, tool_name=tool, args=args, execution_mode=mode, notes="with care" if guided else None
    )


def run_script(*steps: ScriptStep, **parts: Any) -> tuple[Any, list[dict[str, Any]], list[str], list[str]]:
    """Return the outcome of a script, the messages, the starts of tools, and the agents that were asked."""

    async def main() -> Any:
        done: list[str] = []
        asked: list[str] = []
        roles = {
            "orchestrator": lambda prompt, spoken: plan(phase("desk", "Tidy up.")),
            "desk": "Summed up.",
            "ada": "Looked.",
            "bob": "Wrote.",
            **parts,
        }
        workers = [agent("ada", "look", "write"), agent("bob", "write")]
        desk = manager("desk", "ada", "bob", **({"script": steps} if steps else {"plans": "script"}))
        async with team_of(roles, workers, [desk], asked=asked, toolkit=kit(done)) as team:
            outcome = await team.run("Tidy up.", thread_id="t")
            assert await team.ledger.open_calls("t") == ()
            return outcome, await team.store.get_messages("t"), done, asked

    return run(main())


def test_direct_steps_run_tools_in_order_without_a_model() -> None:
    """AF-059: one segment, one delegation, no request to the worker's model."""
    outcome, entries, done, asked = run_script(step("Look", place="hall"), step("Note", tool="write", text="hall"))

    assert outcome.status == "completed"
    assert done == ["look hall", "write hall"]
    assert asked == ["orchestrator"]
    assert [each["type"] for each in entries if each.get("agent_key") == "ada"] == [
        "task",
        "injected_context",
        "action",
        "observation",
        "action",
        "observation",
        "final",
    ]
    (final,) = [each["content"] for each in entries if each["type"] == "final"]
    assert final["payload"]["overall_status"] == "SUCCESS"
    assert [(each["index"], each["tool"], each["status"]) for each in final["payload"]["steps"]] == [
        (0, "look", "SUCCESS"),
        (1, "write", "SUCCESS"),
    ]
    assert outcome.response == 'Look: {"found": "hall"}\nNote: written'


def test_a_long_result_stands_whole_in_its_observation_and_short_in_the_record() -> None:
    _, entries, _, _ = run_script(step("Look", place="x" * 2000))

    (seen,) = [each["content"] for each in entries if each["type"] == "observation" and each["agent_key"] == "ada"]
    (final,) = [each["content"] for each in entries if each["type"] == "final"]
    assert seen == {"found": "x" * 2000}
    assert len(final["payload"]["steps"][0]["result"]) == 501


def test_a_script_stops_at_the_first_step_that_fails_and_says_so() -> None:
    """AF-059, F17: what is raised is an `error`; later steps and segments do not begin."""
    steps = (step("Note", tool="write", text="boom"), step("Look", place="hall"), step("Other", "bob", "write", text="x"))
    outcome, entries, done, _ = run_script(*steps)

    assert (outcome.status, outcome.error_code) == ("failed", "SCRIPT_FAILED")
    assert done == ["write boom"]
    errors = [each for each in entries if each["type"] == "error" and each["agent_key"] == "ada"]
    assert errors[0]["content"]["error_type"] == "OSError"
    assert "the pen is dry" in errors[0]["content"]["error_message"]
    assert errors[1]["content"]["details"]["overall_status"] == "FAILED"
    assert not any(each.get("agent_key") == "bob" for each in entries)


def test_a_failure_that_a_tool_reports_is_an_observation_and_no_end() -> None:
    """F17, and completion is no matter of words: `unsuccessful` neither completes nor fails anything."""
    outcome, entries, done, _ = run_script(step("Look", place="attic"), step("Look again", place="hall"))

    assert outcome.status == "completed"
    assert done == ["look attic", "look hall"]
    (first, _) = [each["content"] for each in entries if each["type"] == "observation" and each["agent_key"] == "ada"]
    assert first == {"ok": False, "error": "unsuccessful"}


def test_guided_steps_become_a_suggested_plan_without_tools_and_arguments() -> None:
    """AF-059: the worker reasons for itself."""
    outcome, entries, done, asked = run_script(step("Look around", guided=True, place="hall"), step("Think", guided=True))

    assert outcome.response == "Looked."
    assert (done, asked) == ([], ["orchestrator", "ada"])
    (said,) = [each for each in entries if each["type"] == "suggested_plan"]
    assert said["agent_key"] == "ada"
    assert said["content"] == {
        "steps": [{"name": "Look around", "notes": "with care"}, {"name": "Think", "notes": "with care"}]
    }
    (context,) = [each["content"] for each in entries if each["type"] == "injected_context"]
    assert "1. Look around (with care)" in context["assembled_context"]
    assert context["suggested_plan"] == said["content"]


@pytest.mark.parametrize(
    ("unfit", "says"),
    [
        (step("x", tool="fly"), "'ada' has no tool 'fly'; it has look, write"),
        (step("x", "bob", "look", place="y"), "'bob' has no tool 'look'; it has write"),
        (step("x", tool="write", text="y", times="often"), "times"),
        (step("x", tool="write"), "text"),
    ],
)
def test_an_unfit_script_is_not_begun(unfit: ScriptStep, says: str) -> None:
    """AF-059: worker known, tool known, arguments as the schema has them; nothing is done before all is checked."""
    outcome, entries, done, _ = run_script(step("First", place="hall"), unfit)

    assert (outcome.status, outcome.error_code) == ("failed", "INVALID_SCRIPT")
    assert done == []
    assert any(each["type"] == "error" and says in each["content"]["error_message"] for each in entries)
    assert not any(each.get("agent_key") == "ada" for each in entries)


@pytest.mark.slow
def test_a_script_that_a_model_wrote_wrong_is_written_again_knowing_why() -> None:
    def write(prompt: str, spoken: int) -> Any:
        tool = "look" if "has no tool 'fly'" in prompt else "fly"
        return {"goal": "Look.", "steps": [{"name": "Look", "worker": "ada", "tool_name": tool, "args": {"place": "hall"}}]}

    outcome, entries, done, _ = run_script(desk=write)

    assert (outcome.status, done) == ("completed", ["look hall"])
    assert len([each for each in entries if each["type"] == "script_plan"]) == 2


def test_a_model_that_writes_no_script_that_can_be_run_fails_its_phase() -> None:
    wrong = {"steps": [{"name": "x", "worker": "eve", "tool_name": "look"}]}
    outcome, entries, done, _ = run_script(desk=wrong)

    assert (outcome.status, outcome.error_code, done) == ("failed", "INVALID_SCRIPT", [])
    assert "there is no worker 'eve'; there are ada, bob" in str([each for each in entries if each["type"] == "error"])


STEPS = st.lists(st.builds(step, st.just("x"), st.sampled_from(["ada", "bob"]), guided=st.booleans()), min_size=1, max_size=12)


@given(STEPS)
def test_segments_are_the_longest_runs_of_one_worker_in_one_mode(steps: list[ScriptStep]) -> None:
    segments = segments_of(ScriptPlanContent(steps=tuple(steps)))

    assert [each for segment in segments for each in segment.steps] == steps
    assert all(
        (each.worker, each.execution_mode == "direct") == (segment.worker, segment.is_direct)
        for segment in segments
        for each in segment.steps
    )
    assert all((a.worker, a.is_direct) != (b.worker, b.is_direct) for a, b in pairwise(segments))


def test_segments_of_several_workers_are_delegated_one_after_the_other() -> None:
    async def main() -> list[str]:
        done: list[str] = []
        script = (step("Look", place="hall"), step("Note", "bob", "write", text="hall"), step("Again", place="yard"))
        parts = {"orchestrator": lambda prompt, spoken: plan(phase("desk", "Tidy up.")), "desk": "Summed up."}
        workers = [agent("ada", "look"), agent("bob", "write")]
        desk = manager("desk", "ada", "bob", script=script)
        async with team_of(parts, workers, [desk], toolkit=kit(done)) as team:
            assert (await team.run("Tidy up.", thread_id="t")).response == "Summed up."
            assert done == ["look hall", "write hall", "look yard"]
            return [each for each in await types_in(team, "t") if each.endswith("task")]

    assert run(main()) == ["ada: task", "bob: task", "ada: task"]
