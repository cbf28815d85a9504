"""A turn of a team, from the request to the answer: the messages of each role, their order, and what each gets."""

from typing import Any

import pytest
from pydantic import ValidationError
from tests.patterns.chains import run
from tests.patterns.teams.crews import agent, manager, phase, plan, play, team_of, types_in

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.agent_framework import ScriptStep, validation_errors
from antiphon.dialects.agent_framework.constants import ALL_TYPES, EXECUTION_TRACE_TYPES
from antiphon.errors import SetupError
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.teams import Team, TeamLimits
from antiphon.patterns.teams._plans import PlanDraft


def kit() -> Toolkit:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    def count(text: str) -> dict[str, int]:
        """Count the words of a text."""
        return {"words": len(text.split())}

    @toolkit.tool(effects="none")
    def fetch(url: str) -> str:
        """Fetch a page."""
        raise ConnectionError(f"{url} is not there")

    return toolkit


def planned(*phases: dict[str, Any], answer: str = "That is all.", **more: Any) -> Any:
    """Return what an orchestrator says that plans so, and answers so."""
    return lambda prompt, spoken: plan(*phases, **more) if "Plan in phases" in prompt else answer


def counting(prompt: str, spoken: int) -> Any:
    return [("count", {"text": "a b c"})] if spoken == 0 else {"summary": "three words", "data": {"words": 3}}


def stepping(*steps: tuple[str, str], **more: Any) -> Any:
    """Return what a manager says that breaks its phase into these steps."""
    found = [{"name": task, "worker": worker, "task": task} for worker, task in steps]
    return lambda prompt, spoken: {"steps": found, **more} if "Break the phase" in prompt else "The desk has it."


@pytest.mark.slow
async def test_a_turn_goes_from_the_request_through_plan_phases_and_tasks_to_the_answer() -> None:
    """AF-053, AF-054, AF-055, AF-056, AF-057: each says what it should, in order, with its agent_key."""
    parts = {
        "orchestrator": planned(phase("desk", "Count it."), phase("clerk", "Judge it.")),
        "desk": stepping(("ada", "Count.")),
        "ada": counting,
        "clerk": "It is fine.",
    }
    workers = [agent("ada", "count"), agent("clerk")]
    async with team_of(parts, workers, [manager("desk", "ada")], toolkit=kit()) as team:
        outcome = await team.run("How long is it?", thread_id="t")
        assert (outcome.status, outcome.response) == ("completed", "That is all.")
        assert await types_in(team, "t") == [
            "-: user_message",
            "orchestrator: director_context",
            "orchestrator: strategic_plan",
            "orchestrator: delegation",
            "desk: director_context",
            "desk: delegation",
            "ada: task",
            "ada: injected_context",
            "ada: action",
            "ada: observation",
            "ada: final",
            "desk: observation",
            "desk: synthesis",
            "orchestrator: observation",
            "orchestrator: delegation",
            "clerk: task",
            "clerk: injected_context",
            "clerk: final",
            "orchestrator: observation",
            "orchestrator: synthesis",
            "-: assistant_message",
        ]


@pytest.mark.slow
async def test_all_fourteen_types_are_said_and_each_message_is_valid() -> None:
    """AF-048 … AF-052 hold for what a team says itself: every type, checked by the format, traces with their agent."""
    script = (
        ScriptStep(name="Count", worker="ada", tool_name="count", args={"text": "a b"}),
        ScriptStep(name="Think about it", worker="ada", tool_name="count", execution_mode="guided"),
        ScriptStep(name="Fetch", worker="ada", tool_name="fetch", args={"url": "http://x"}),
    )
    parts = {"orchestrator": planned(phase("desk", "Count it.")), "desk": "It went wrong.", "ada": counting}
    desk = manager("desk", "ada", script=script)
    async with team_of(parts, [agent("ada", "count", "fetch")], [desk], toolkit=kit()) as team:
        outcome = await team.run("How long is it?", thread_id="t")
        entries = await team.store.get_messages("t")
        assert (outcome.status, outcome.error_code) == ("failed", "SCRIPT_FAILED")
        assert {each["type"] for each in entries} == set(ALL_TYPES)
        assert [validation_errors(each) for each in entries if validation_errors(each)] == []
        assert all("agent_key" in each for each in entries if each["type"] in EXECUTION_TRACE_TYPES)
        assert all("timestamp" in each for each in entries)


@pytest.mark.slow
async def test_the_next_phase_receives_what_the_previous_one_came_to() -> None:
    """AF-058, and a manager is told the phase it leads, by its place among all phases of the plan."""
    heard: dict[str, str] = {}

    def judge(prompt: str, spoken: int) -> Any:
        heard["clerk"] = prompt
        return "Fine."

    def lead(prompt: str, spoken: int) -> Any:
        heard.setdefault("late", prompt)
        return {"steps": [{"name": "x", "worker": "ada", "task": "Look."}]}

    parts = {
        "orchestrator": planned(phase("desk", "Find it."), phase("clerk", "Judge it."), phase("late", "Close it.")),
        "desk": stepping(("ada", "Find."), ("ada", "Find more.")),
        "ada": "It was under the sofa.",
        "clerk": judge,
        "late": lead,
    }
    managers = [manager("desk", "ada"), manager("late", "ada")]
    async with team_of(parts, [agent("ada"), agent("clerk")], managers) as team:
        assert (await team.run("Where is it?", thread_id="t")).status == "completed"
        assert "The desk has it." in heard["clerk"]
        assert "Goal of phase 2 (Phase of late): Close it." in heard["late"]
        assert "Phase of clerk: Fine." in heard["late"]
        said = [each["phase_id"] for each in await team.store.get_global_messages("t")]
        assert said == [0, 1, 2]


@pytest.mark.slow
async def test_a_step_receives_what_the_step_before_found() -> None:
    heard: list[str] = []

    def work(prompt: str, spoken: int) -> Any:
        heard.append(prompt)
        return f"found {len(heard)}"

    parts = {
        "orchestrator": planned(phase("desk", "Find it.")),
        "desk": stepping(("ada", "Find."), ("bob", "Find more.")),
        "ada": work,
        "bob": work,
    }
    async with team_of(parts, [agent("ada"), agent("bob")], [manager("desk", "ada", "bob")]) as team:
        await team.run("Where is it?", thread_id="t")
        assert "ada: found 1" not in heard[0]
        assert "ada: found 1" in heard[1]


@pytest.mark.slow
def test_phases_that_do_not_need_each_other_are_done_side_by_side() -> None:
    """`parallel` in a plan, `parallel_workers` in the format's other form: all have begun before the first has ended."""

    async def main(said: dict[str, Any]) -> None:
        parts = {
            "orchestrator": lambda prompt, spoken: said if "Plan in phases" in prompt else "All of it.",
            "ada": counting,
            "bob": counting,
        }
        workers = [agent("ada", "count"), agent("bob", "count")]
        async with team_of(parts, workers, toolkit=kit()) as team:
            assert (await team.run("Count.", thread_id="t")).status == "completed"
            types = await types_in(team, "t")
            assert max(types.index("ada: task"), types.index("bob: task")) < types.index("orchestrator: observation")
            assert types.count("orchestrator: synthesis") == 2

    run(main(plan(phase("ada", "Count."), phase("bob", "Count."), parallel=True)))
    run(main({"plan": {"parallel_workers": ["ada", "bob"], "rationale": "Two see more."}}))


async def test_a_repeated_request_gets_the_recorded_answer_and_asks_nobody() -> None:
    asked: list[str] = []
    ledger = MemoryLedger()
    parts = {"orchestrator": planned(phase("ada", "Count.")), "ada": counting}
    for _ in range(2):
        async with team_of(parts, [agent("ada", "count")], asked=asked, ledger=ledger, toolkit=kit()) as team:
            outcome = await team.run("Count.", thread_id="t")
            assert outcome.response == "three words"
    assert asked == ["orchestrator", "ada", "ada"]
    assert await ledger.open_calls("t") == ()


@pytest.mark.parametrize(
    "wrong", [{"phases": "later"}, plan({"name": "", "worker": "bob"}), plan(phase("not a\x00name", "Do it."))]
)
async def test_a_plan_that_cannot_be_read_is_asked_for_again(wrong: dict[str, Any]) -> None:
    def first_wrong(prompt: str, spoken: int) -> Any:
        return wrong if spoken == 0 else plan(phase("bob", "Do it."))

    async with team_of({"orchestrator": first_wrong, "bob": "Done."}, [agent("ada"), agent("bob")]) as team:
        assert (await team.run("Do it.", thread_id="t")).response == "Done."


def test_a_plan_must_be_an_object() -> None:
    with pytest.raises(ValidationError, match="valid dictionary"):
        PlanDraft.model_validate("first this, then that")


async def test_a_request_without_a_readable_plan_goes_to_the_first_of_the_team_with_the_reason() -> None:
    parts = {"orchestrator": {"phases": []}, "ada": "I did it.", "bob": "Not me."}
    async with team_of(parts, [agent("ada"), agent("bob")]) as team:
        outcome = await team.run("Do it.", thread_id="t")
        assert (outcome.status, outcome.response) == ("completed", "I did it.")
        (said,) = [each for each in await team.store.get_messages("t") if each["type"] == "strategic_plan"]
        assert said["content"]["plan"]["primary_worker"] == "ada"
        assert "No plan could be read" in said["content"]["plan"]["rationale"]


async def test_a_manager_without_readable_steps_gives_the_phase_to_its_first_worker() -> None:
    parts = {"orchestrator": planned(phase("desk", "Do it.")), "desk": {"steps": 3}, "bob": "I did it."}
    async with team_of(parts, [agent("ada"), agent("bob")], [manager("desk", "bob")]) as team:
        assert (await team.run("Do it.", thread_id="t")).response == "I did it."


async def test_a_phase_for_an_unknown_agent_fails_and_the_others_run() -> None:
    """Not skipped in silence: the delegation ends as a failure, and so does the turn."""
    parts = {"orchestrator": planned(phase("eve", "Spy."), phase("ada", "Work.")), "ada": "Worked."}
    async with team_of(parts, [agent("ada")]) as team:
        outcome = await team.run("Do it.", thread_id="t")
        assert (outcome.status, outcome.error_code) == ("failed", "UNKNOWN_WORKER")
        assert "there is no 'eve' to delegate to; there are ada" in (outcome.error_message or "")
        assert outcome.response == "That is all."
        assert "ada: final" in await types_in(team, "t")
        said = await team.store.get_global_messages("t")
        assert [each["phase_id"] for each in said] == [0, 1]


async def test_a_manager_can_give_the_whole_to_all_of_its_workers() -> None:
    parts = {"orchestrator": planned(phase("desk", "Vote.")), "desk": "Two votes.", "ada": "Yes.", "bob": "No."}
    desk = manager("desk", "ada", "bob", plans="whole")
    async with team_of(parts, [agent("ada"), agent("bob")], [desk]) as team:
        assert (await team.run("Vote.", thread_id="t")).response == "Two votes."
        tasks = [each for each in await team.store.get_messages("t") if each["type"] == "task"]
        assert sorted((each["agent_key"], each["content"]) for each in tasks) == [("ada", "Vote."), ("bob", "Vote.")]


@pytest.mark.slow
async def test_the_orchestrator_sees_the_last_messages_of_the_conversation_before_the_request() -> None:
    """AF-060: eight messages, not eight turns; the recorded context is what the model got."""
    prompts: list[str] = []

    def planning(prompt: str, spoken: int) -> Any:
        prompts.append(prompt)
        return plan(phase("ada", "Answer."))

    limits = TeamLimits(conversation=3)
    parts = {"orchestrator": planning, "ada": lambda prompt, spoken: "Answer."}
    async with team_of(parts, [agent("ada")], limits=limits) as team:
        for number in range(3):
            await team.run(f"Question {number}?", thread_id="t")
        assert "Earlier" not in prompts[0]
        assert prompts[2].partition("Earlier in this conversation:\n")[2].splitlines()[:3] == [
            "assistant: Answer.",
            "user: Question 1?",
            "assistant: Answer.",
        ]


async def test_an_orchestrator_may_have_any_name() -> None:
    """Who orchestrates is said, not read off a name: a worker may be called `orchestrator_2`."""
    boss, worker = agent("maestro"), agent("orchestrator_2")
    model = play({"maestro": planned(phase("orchestrator_2", "Play.")), "orchestrator_2": "Played."})
    async with Team(orchestrator=boss, workers=[worker], model=model) as team:
        assert (await team.run("Play.", thread_id="t")).response == "Played."
        assert "maestro: strategic_plan" in await types_in(team, "t")


@pytest.mark.slow
def test_a_plan_with_as_many_phases_as_may_be_is_run_to_the_end() -> None:
    async def main(limit: int) -> str:
        phases = [phase("ada", f"Part {number}.") for number in range(3)]
        parts = {"orchestrator": planned(*phases), "ada": "Done."}
        async with team_of(parts, [agent("ada")], limits=TeamLimits(phases=limit)) as team:
            await team.run("Do it.", thread_id="t")
            return " ".join(await types_in(team, "t"))

    assert run(main(3)).count("ada: final") == 3
    assert run(main(2)).count("ada: final") == 1  # no such plan may be: the first gets the whole


@pytest.mark.parametrize(
    ("workers", "managers", "says"),
    [
        ([agent("ada"), agent("ada")], [], "two agents are called 'ada'"),
        ([agent("ada")], [manager("desk", "bob")], "manager 'desk' has no worker 'bob'; there are 'ada'"),
        ([], [], "at least one"),
        (
            [agent("ada"), agent("bob")],
            [manager("desk", "ada", script=(ScriptStep(name="x", worker="bob", tool_name="y"),))],
            "names 'bob', who is no worker of its own",
        ),
    ],
)
def test_a_team_that_cannot_be_says_why(workers: list[AgentSpec], managers: list[Any], says: str) -> None:
    with pytest.raises(SetupError, match=says):
        team_of({}, workers, managers)
