"""Guards: loops, stagnation and endless work end as failures; a worker that finishes in time is not stopped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from tests.patterns.chains import run
from tests.patterns.teams.crews import agent, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit
from antiphon.errors import RefusedError
from antiphon.patterns.teams import TeamLimits
from antiphon.patterns.teams._members import Deed, deeds_in, judge


def work(part: Any, limits: TeamLimits = TeamLimits()) -> tuple[Any, list[dict[str, Any]], int]:  # noqa: B008 (frozen)
    """Run a worker; return its outcome, its messages, and how often the tool was started."""
    calls = 0

    async def main() -> Any:
        toolkit = Toolkit()

        @toolkit.tool(effects="none")
        def look(place: str) -> str:
            """Look somewhere."""
            nonlocal calls
            calls += 1
            if place.startswith("bad"):
                raise OSError("it is dark")
            return f"done: {place}" if place.startswith("new") else "done, success"

        parts = {"orchestrator": lambda prompt, spoken: plan(phase("ada", "Find it.")), "ada": part}
        async with team_of(parts, [agent("ada", "look")], toolkit=toolkit, limits=limits) as team:
            outcome = await team.run("Find it.", thread_id="t")
            assert await team.ledger.open_calls("t") == ()
            return outcome, await team.store.get_agent_messages("t", "ada")

    outcome, entries = run(main())
    return outcome, entries, calls


def test_the_same_action_with_the_same_result_three_times_is_a_loop() -> None:
    outcome, entries, calls = work(lambda prompt, spoken: [("look", {"place": "here"})])

    assert (outcome.status, outcome.error_code, calls) == ("failed", "LOOP", 3)
    assert [each["type"] for each in entries][2:] == ["action", "observation"] * 3 + ["action", "error", "error"]
    assert entries[-1]["content"]["error_type"] == "LOOP"
    assert "assistant" not in str(entries)


def test_a_worker_that_finishes_after_the_third_time_has_finished() -> None:
    outcome, _, calls = work(lambda prompt, spoken: [("look", {"place": "here"})] if spoken < 3 else "There.")

    assert (outcome.status, outcome.response, calls) == ("completed", "There.", 3)


@pytest.mark.slow
def test_actions_that_tell_nothing_new_are_stagnation() -> None:
    limits = TeamLimits(stagnation=4, repeats=5)
    outcome, _, calls = work(lambda prompt, spoken: [("look", {"place": f"bad {spoken}"})], limits)

    assert (outcome.error_code, calls) == ("STAGNATION", 4)


@pytest.mark.slow
def test_work_without_end_is_ended_as_a_failure_and_never_as_completed() -> None:
    """The limit of iterations is no way to complete a task."""
    limits = TeamLimits(iterations=4)
    outcome, entries, calls = work(lambda prompt, spoken: [("look", {"place": f"new {spoken}"})], limits)

    assert (outcome.status, outcome.error_code, calls) == ("failed", "ITERATION_LIMIT", 4)
    assert not any(each["type"] == "final" for each in entries)


def test_words_like_done_or_success_in_an_observation_end_nothing() -> None:
    """Completion is decided by structure: the first result says `done, success`, and the worker goes on."""
    outcome, entries, calls = work(
        lambda prompt, spoken: [("look", {"place": f"new {spoken}"})] if spoken < 3 else "Unsuccessful."
    )

    assert (outcome.status, calls) == ("completed", 3)
    assert entries[-1]["content"]["human_readable_summary"] == "Unsuccessful."


def test_a_worker_that_says_it_has_failed_has_failed_whatever_its_words() -> None:
    outcome, entries, _ = work({"status": "failed", "summary": "Successfully done!", "data": {"tried": 2}})

    assert (outcome.status, outcome.error_code) == ("failed", "TASK_FAILED")
    assert entries[-1]["type"] == "error"
    assert entries[-1]["content"]["details"] == {"tried": 2}


def test_an_exception_of_a_tool_is_an_error_and_what_it_returns_an_observation() -> None:
    """F17, AF-055, AF-026: the error says which tool."""

    def part(prompt: str, spoken: int) -> Any:
        return [("look", {"place": ["bad", "old"][spoken]})] if spoken < 2 else "Found."

    outcome, entries, _ = work(part)

    assert outcome.status == "completed"
    assert [each["type"] for each in entries][2:] == ["action", "error", "action", "observation", "final"]
    assert entries[3]["content"]["tool"] == "look"
    assert "it is dark" in entries[3]["content"]["error_message"]


def test_actions_are_told_apart_where_a_model_uses_an_id_again() -> None:
    """Three places with the same result are no loop, whatever the calls are named."""
    messages: list[ModelMessage] = []
    for place in ("attic", "cellar", "roof"):
        messages.append(ModelResponse([ToolCallPart("look", {"place": place}, tool_call_id="call-1")]))
        messages.append(ModelRequest([ToolReturnPart("look", "nothing", tool_call_id="call-1")]))

    deeds = deeds_in(messages, {"look"})

    assert [each.action for each in deeds] == [f'look {{"place": "{place}"}}' for place in ("attic", "cellar", "roof")]


DEEDS = st.lists(st.builds(Deed, st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()), max_size=12)
LIMITS = st.builds(
    TeamLimits,
    window=st.integers(1, 6),
    repeats=st.integers(2, 4),
    stagnation=st.integers(2, 5),
    iterations=st.integers(1, 12),
)


def verdict(deeds: list[Deed], limits: TeamLimits) -> str | None:
    try:
        judge(deeds, len(deeds), limits)
    except RefusedError as exc:
        return exc.code
    return None


@given(DEEDS, LIMITS)
def test_a_worker_is_stopped_exactly_if_it_breaks_a_limit(deeds: list[Deed], limits: TeamLimits) -> None:
    code, latest = verdict(deeds, limits), deeds[-limits.window :]

    loops = any(latest.count(deed) >= limits.repeats for deed in latest)
    assert (code == "LOOP") == loops
    assert code is not None or len(deeds) < limits.iterations
    if code == "ITERATION_LIMIT":
        assert len(deeds) >= limits.iterations
    if code == "STAGNATION":
        known = {deed.result for deed in deeds[: -limits.stagnation]}
        in_vain = deeds[-limits.stagnation :]
        assert all(each.has_failed or each.result in known | {e.result for e in in_vain[:n]} for n, each in enumerate(in_vain))


@given(st.integers(2, 30))
def test_a_worker_with_new_results_is_stopped_only_by_the_limit_of_iterations(count: int) -> None:
    deeds = [Deed("look", str(number)) for number in range(count)]
    judge(deeds, count, TeamLimits(iterations=count + 1))
    with pytest.raises(RefusedError, match="is not through"):
        judge(deeds, count, TeamLimits(iterations=count))
