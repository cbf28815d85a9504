"""The contents of a turn's messages, word for word: contexts, traces and syntheses, compared with the real prompts."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.patterns.chains import run
from tests.patterns.teams.crews import Part, agent, manager, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.patterns.teams import ManagerSpec, Team

Heard = dict[str, list[str]]
Entry = dict[str, Any]

_OF_ROW = ("timestamp", "turn_id", "message_id")
PLANNING = "Plan in phases"


def hearing(heard: Heard, parts: dict[str, Part]) -> dict[str, Part]:
    """Return parts that note, by name, everything they are asked."""

    def heard_by(name: str, part: Any) -> Callable[[str, int], Any]:
        def answer(prompt: str, spoken: int) -> Any:
            heard.setdefault(name, []).append(prompt)
            return part(prompt, spoken) if callable(part) else part

        return answer

    return {name: heard_by(name, part) for name, part in parts.items()}


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


def planning(*phases: dict[str, Any]) -> Any:
    return lambda prompt, spoken: plan(*phases) if PLANNING in prompt else "That is all."


def steps(*tasks: tuple[str, str], says: str = "All in all, five.") -> Any:
    """Return a manager that gives these tasks, and sums up so."""
    found = [{"name": task, "worker": worker, "task": task} for worker, task in tasks]
    return lambda prompt, spoken: {"steps": found} if "Break the phase" in prompt else says


async def said(team: Team, type: str | None = None, by: str | None = None) -> list[Entry]:
    """Return the messages of a type and of an agent, without what every row has."""
    found = await team.store.get_messages("t")
    kept = [each for each in found if type in (None, each["type"]) and by in (None, each.get("agent_key"))]
    return [{name: value for name, value in each.items() if name not in _OF_ROW} for each in kept]


async def places(team: Team, words: str) -> dict[int, bytes]:
    """Return the rows with some words, by their place in the thread: rows of every lane."""
    return {record.seq: record.body async for record in team.ledger.read("t") if words.encode() in record.body}


async def place(team: Team, words: str) -> int:
    """Return where in the thread some words stand first."""
    return min(await places(team, words))


# ---------------------------------------------------------------- director_context


@pytest.mark.slow
async def test_the_orchestrator_plans_with_the_assembled_text_that_was_recorded_before() -> None:
    """AF-032: the team with its tools, the earlier conversation, the request; the prompt is exactly that text."""
    # Mutant: `_orchestrator._Turn.take` does not say `director_context`, or says it after the plan -> red.
    # Mutant: `_orchestrator._Turn._plan` asks with the request alone instead of `brief` -> red.
    # Mutant: `_Turn._director_context` leaves out `described(...)`, or the lines of the conversation, or the request -> red.
    heard: Heard = {}
    parts = hearing(heard, {"orchestrator": planning(phase("clerk", "Look.")), "clerk": "Under the sofa."})
    workers = [agent("clerk", "fetch"), agent("ada", "count")]
    async with team_of(parts, workers, [manager("desk", "ada")], toolkit=kit()) as team:
        await team.run("Hello?", thread_id="t")
        first = await place(team, "director_context")
        assert first < await place(team, PLANNING) < await place(team, "strategic_plan")
        await team.run("Where is it?", thread_id="t")
        contexts = await said(team, "director_context", "orchestrator")
    who = "Your team:\n- desk (manager of ada): You are desk.\n- clerk: You are clerk. [tools: fetch]"
    earlier = "Earlier in this conversation:\nuser: Hello?\nassistant: Under the sofa."
    assert [each["content"] for each in contexts] == [
        f"{who}\n\nRequest: Hello?",
        f"{who}\n\n{earlier}\n\nRequest: Where is it?",
    ]
    asked = [prompt for prompt in heard["orchestrator"] if PLANNING in prompt]
    assert [prompt.partition(f"\n\n{PLANNING}")[0] for prompt in asked] == [each["content"] for each in contexts]


STEP = ScriptStep(name="Count", worker="ada", tool_name="count", args={"text": "a b"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("desk", "asks"),
    [
        (manager("desk", "ada", "bob"), "Break the phase into steps"),
        (manager("desk", "ada", "bob", plans="script"), "Write the phase as a script"),
        (manager("desk", "ada", "bob", plans="whole"), None),
        (manager("desk", "ada", "bob", script=(STEP,)), None),
    ],
    ids=["steps", "script", "whole", "given script"],
)
async def test_a_manager_plans_with_the_assembled_text_that_was_recorded_before(desk: ManagerSpec, asks: str | None) -> None:
    """AF-032: the goal and its notes, its workers with their tools, the outcome of the previous phase; for each `plans`."""
    # Mutant: `_manager._Phase.lead` does not say `director_context`, or says it after `_assignments` -> red.
    # Mutant: `_Phase._director_context` leaves out the goal, the notes, the workers or the previous phase -> red.
    # Mutant: `_Phase._assignments` or `_written` asks with `self._request.goals` instead of `brief` -> red.

    def leads(prompt: str, spoken: int) -> Any:
        if "Sum up" in prompt:
            return "Two."
        step = {"name": "Count", "worker": "ada", "task": "Count.", "tool_name": "count", "args": {"text": "a b"}}
        return {"steps": [step]}

    heard: Heard = {}
    phases = phase("clerk", "Look.", "Find"), phase("desk", "Count it.", "Count", notes="Use your fingers.")
    parts: dict[str, Part] = {
        "orchestrator": planning(*phases),
        "clerk": "Under the sofa.",
        "desk": leads,
        "ada": "Two.",
        "bob": "Two.",
    }
    workers = [agent("ada", "count"), agent("bob"), agent("clerk")]
    async with team_of(hearing(heard, parts), workers, [desk], toolkit=kit()) as team:
        assert (await team.run("How many are there?", thread_id="t")).status == "completed"
        (context,) = await said(team, "director_context", "desk")
        types = [each["type"] for each in await said(team, by="desk")]
        if asks is not None:
            assert await place(team, "Goal of phase 1") < await place(team, asks)
    assert context["content"] == (
        "Goal of phase 1 (Count): Count it.\n\nNotes: Use your fingers.\n\n"
        "Your workers:\n- ada: You are ada. [tools: count]\n- bob: You are bob.\n\n"
        "Outcome of the previous phase:\nFind: Under the sofa."
    )
    assert types[0] == "director_context"
    first = heard.get("desk", [""])[0]
    assert first.startswith(f"{context['content']}\n\n{asks}" if asks else context["content"] if first else "")


# ---------------------------------------------------------------- injected_context


async def test_a_worker_gets_exactly_the_bundle_that_is_written_down() -> None:
    """AF-033: goal, task, worker, suggested steps and what was found; its model is asked with `assembled_context`."""
    # Mutant: `_worker.TeamWorkerActor._begin` leaves out `injected_context`, or one of its keys -> red.
    # Mutant: `_worker.TeamWorkerActor._think` asks with `request.task` instead of the assembled text -> red.
    # Mutant: `_manager._Phase._delegated` gives another goal, or nothing of the step before -> red.
    heard: Heard = {}
    guided = ScriptStep(name="Think", worker="bob", tool_name="count", notes="slowly", execution_mode="guided")
    parts: dict[str, Part] = {"orchestrator": planning(phase("desk", "Count it.")), "desk": "Two.", "bob": "Two."}
    workers = [agent("ada", "count"), agent("bob", "count")]
    desk = manager("desk", "ada", "bob", script=(STEP, guided))
    async with team_of(hearing(heard, parts), workers, [desk], toolkit=kit()) as team:
        assert (await team.run("How many?", thread_id="t")).status == "completed"
        (direct,) = await said(team, "injected_context", "ada")
        (thought,) = await said(team, "injected_context", "bob")
        assert [each["type"] for each in await said(team, by="ada")][:3] == ["task", "injected_context", "action"]
        mine = [each["type"] for each in await said(team, by="bob")]
        assert mine == ["task", "suggested_plan", "injected_context", "final"]
        bundle, *later = (await places(team, "1. Think (slowly)")).values()
        assert b"injected_context" in bundle
        assert any(b"injected_context" not in each for each in later)  # what the model is asked comes after it
    assert direct["content"] == {
        "manager_goal": "Count it.",
        "worker_task": "Count",
        "worker_key": "ada",
        "script_steps": [STEP.to_dict()],
        "assembled_context": "Task: Count\n\nIt is part of: Count it.",
    }
    assert thought["content"] == {
        "manager_goal": "Count it.",
        "worker_task": "Think",
        "worker_key": "bob",
        "suggested_plan": {"steps": [{"name": "Think", "notes": "slowly"}]},
        "assembled_context": (
            "Task: Think\n\nIt is part of: Count it.\n\nSuggested plan:\n1. Think (slowly)\n\n"
            'Found so far:\nada: Count: {"words": 2}'
        ),
    }
    assert heard["bob"] == [thought["content"]["assembled_context"]]
    assert "ada" not in heard  # its steps were run without a model


# ---------------------------------------------------------------- what a worker says


async def traced(part: Any, *tools: str, script: tuple[ScriptStep, ...] | None = None) -> tuple[list[Entry], str]:
    """Return the messages of a worker that does this in a phase of its manager, and the outcome of the turn."""
    desk = manager("desk", "ada", **({"plans": "whole"} if script is None else {"script": script}))
    parts: dict[str, Part] = {"orchestrator": planning(phase("desk", "Count it.")), "ada": part}
    async with team_of(parts, [agent("ada", *tools)], [desk], toolkit=kit()) as team:
        outcome = await team.run("How many?", thread_id="t")
        return await said(team, by="ada"), outcome.status


def unlike(entries: list[Entry], *types: str) -> list[Entry]:
    return [each for each in entries if each["type"] not in types]


def test_a_worker_records_its_task_each_action_with_its_result_and_the_end() -> None:
    """AF-055: every field of each; a call and its answer share a `call_id`, and so do the task and its end."""
    # Mutant: `_worker.TeamWorkerActor.do_task` says no `final`, or one that is no answer to the task -> red.
    # Mutant: `_worker.TeamWorkerActor._begin` leaves out the task, or who gave it -> red.
    # Mutant: `_store._Seen._kind_of_trace` shows no action -> red.

    def works(prompt: str, spoken: int) -> Any:
        acts = [("count", {"text": "a b c"})], [("fetch", {"url": "http://x"})]
        return acts[spoken] if spoken < len(acts) else {"summary": "three words", "data": {"words": 3}}

    entries, status = run(traced(works, "count", "fetch"))
    task, counted, three, fetched, failed, final = unlike(entries, "injected_context")

    assert status == "completed"
    own = {"agent_key": "ada"}
    assert task == {"type": "task", "content": "Count it.", "from_manager": "desk", "call_id": task["call_id"], **own}
    assert counted == {"type": "action", "tool": "count", "args": {"text": "a b c"}, "call_id": counted["call_id"], **own}
    assert three == {"type": "observation", "content": {"words": 3}, "call_id": counted["call_id"], **own}
    assert fetched == {"type": "action", "tool": "fetch", "args": {"url": "http://x"}, "call_id": fetched["call_id"], **own}
    assert (failed["type"], failed["agent_key"], failed["call_id"]) == ("error", "ada", fetched["call_id"])
    assert failed["content"]["tool"] == "fetch"
    assert "ConnectionError: http://x is not there" in failed["content"]["error_message"]
    assert failed["content"]["error_type"] == "ConnectionError"
    assert final == {
        "type": "final",
        "content": {
            "operation": "display_message",
            "payload": {"message": "three words", "words": 3},
            "human_readable_summary": "three words",
        },
        "call_id": task["call_id"],
        **own,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "code", "details"),
    [
        ({"status": "failed", "summary": "I cannot.", "data": {"tried": 2}}, "TASK_FAILED", {"tried": 2}),
        (RuntimeError("the model is gone"), "AGENT_ERROR", None),
    ],
)
def test_a_worker_that_fails_ends_its_task_with_an_error_and_says_no_final(part: Any, code: str, details: Any) -> None:
    """AF-055: an error in the place of the final, as the answer to the task; never both."""
    # Mutant: `_worker.TeamWorkerActor._fail` does not answer the task, or answers it with a `final` -> red.
    entries, status = run(traced(part))
    task, end = unlike(entries, "injected_context")

    assert (status, task["type"], end["type"]) == ("failed", "task", "error")
    assert (end["call_id"], end["agent_key"], end["content"]["error_type"]) == (task["call_id"], "ada", code)
    assert details in (None, end["content"].get("details"))


def test_a_script_is_recorded_step_by_step_up_to_the_first_failure() -> None:
    """AF-055: without a model, the same trace; the error of a step has the code, the text and the tool."""
    # Mutant: `_worker.TeamWorkerActor._step` answers a failure with an `observation`, or `_run` goes on after it -> red.
    late = ScriptStep(name="Fetch", worker="ada", tool_name="fetch", args={"url": "http://x"})
    entries, status = run(traced(AssertionError("nobody asks it"), "count", "fetch", script=(STEP, late, STEP)))
    _, counted, two, fetched, failed, end = unlike(entries, "injected_context")

    assert status == "failed"
    assert (counted["tool"], counted["args"], two["content"]) == ("count", {"text": "a b"}, {"words": 2})
    assert (counted["call_id"], fetched["call_id"]) == (two["call_id"], failed["call_id"])
    assert (two["type"], failed["type"]) == ("observation", "error")
    assert failed["content"] == {
        "error_message": "it failed with ConnectionError: http://x is not there",
        "error_type": "ConnectionError",
        "tool": "fetch",
    }
    assert (end["type"], end["content"]["error_type"]) == ("error", "SCRIPT_FAILED")
    assert [each["status"] for each in end["content"]["details"]["steps"]] == ["SUCCESS", "FAILED"]


@pytest.mark.parametrize("is_scripted", [True, False], ids=["script", "model"])
async def test_an_action_is_written_down_before_its_tool_starts(is_scripted: bool) -> None:
    """AF-055: a reader sees the task and the action while the tool runs, and neither result nor final."""
    # Mutant: `_worker.TeamWorkerActor._step` says the action after `toolkit.call` -> red.
    seen: list[list[str]] = []
    toolkit = Toolkit()
    teams: list[Team] = []

    @toolkit.tool(effects="none")
    async def look() -> str:
        """Look into the thread."""
        seen.append([each["type"] for each in unlike(await said(teams[0], by="ada"), "injected_context")])
        return "seen"

    script = (ScriptStep(name="Look", worker="ada", tool_name="look"),) if is_scripted else None
    desk = manager("desk", "ada", **({"script": script} if script else {"plans": "whole"}))
    parts: dict[str, Part] = {
        "orchestrator": planning(phase("desk", "Look.")),
        "ada": lambda prompt, spoken: [("look", {})] if spoken == 0 else "Looked.",
    }
    async with team_of(parts, [agent("ada", "look")], [desk], toolkit=toolkit) as team:
        teams.append(team)
        assert (await team.run("Look.", thread_id="t")).status == "completed"
        after = [each["type"] for each in unlike(await said(team, by="ada"), "injected_context")]
    assert seen == [["task", "action"]]
    assert after == ["task", "action", "observation", "final"]


# ---------------------------------------------------------------- synthesis


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "content"),
    [
        ("Three, and no page.", "Three, and no page."),
        (RuntimeError("the model is gone"), "ada: three | bob: failure: No page. | cyd: nothing"),
    ],
)
async def test_a_manager_makes_one_synthesis_of_the_results_of_all_its_workers(says: Any, content: str) -> None:
    """AF-056: its prompt has the result of each, failures too; without a model they are joined."""
    # Mutant: `_manager._Phase._summary` gives the words of the last worker alone, or leaves out those who failed -> red.
    # Mutant: `_manager._Phase._synthesise` says no `phase_id` or another `from_manager`, or is called for each worker -> red.
    heard: Heard = {}
    parts: dict[str, Part] = {
        "orchestrator": planning(phase("clerk", "Begin."), phase("desk", "Count it.")),
        "clerk": "Begun.",
        "desk": says,
        "ada": "three",
        "bob": {"status": "failed", "summary": "No page."},
        "cyd": "nothing",
    }
    workers = [agent(name) for name in ("ada", "bob", "cyd", "clerk")]
    desk = manager("desk", "ada", "bob", "cyd", plans="whole")
    async with team_of(hearing(heard, parts), workers, [desk]) as team:
        assert (await team.run("How many?", thread_id="t")).error_code == "TASK_FAILED"
        (synthesis,) = await said(team, "synthesis", "desk")
        mine = [each["type"] for each in await said(team, by="desk")]
    assert synthesis == {
        "type": "synthesis",
        "content": content,
        "from_manager": "desk",
        "agent_key": "desk",
        "phase_id": 1,
        "is_global": True,
    }
    assert mine[-1] == "synthesis"
    assert sorted(mine[1:-1]) == ["delegation"] * 3 + ["error"] + ["observation"] * 2  # done side by side
    told = heard["desk"][0].partition("Your workers say:\n")[2].partition("\n\n")[0]
    assert told == "ada: three | bob: failure: No page. | cyd: nothing"


@pytest.mark.slow
@pytest.mark.parametrize("is_global", [True, False])
async def test_a_synthesis_is_broadcast_if_it_is_global_and_is_the_orchestrators_alone_if_not(is_global: bool) -> None:
    """AF-056: every agent sees it and the next phase is told; or none of that, and the answer has it all the same."""
    # Mutant: `_manager._Phase._synthesise` does not say `is_global` -> red.
    # Mutant: `_orchestrator._Turn._phase` tells the next phase whatever came before, or never -> red.
    # Mutant: `_store.TeamStore.get_global_messages`, `get_history` or `manager_view` does not look at `is_global` -> red.
    heard: Heard = {}
    parts: dict[str, Part] = {
        "orchestrator": planning(phase("desk", "Find it."), phase("late", "Close it."), phase("clerk", "Judge it.")),
        "desk": steps(("ada", "Find.")),
        "late": steps(("bob", "Close.")),
        "ada": "Under the sofa.",
        "bob": "Closed.",
        "clerk": "Good.",
    }
    workers = [agent("ada"), agent("bob"), agent("clerk")]
    managers = [manager("desk", "ada", is_global=is_global), manager("late", "bob")]
    async with team_of(hearing(heard, parts), workers, managers) as team:
        assert (await team.run("Where is it?", thread_id="t")).status == "completed"
        store = team.store
        own = await store.get_history("t", "desk")
        seen = {
            "global": await store.get_global_messages("t"),
            "bob": await store.get_history("t", "bob"),
            "clerk": await store.get_history("t", "clerk"),
            "late": await store.get_history("t", "late", ["bob"]),
            "next manager": await store.manager_view("t", 1),
        }
    (synthesis,) = [each for each in own if each["type"] == "synthesis" and each["from_manager"] == "desk"]
    assert (synthesis["content"], synthesis["is_global"]) == ("Under the sofa.", is_global)
    assert {name for name, view in seen.items() if synthesis in view} == (set(seen) if is_global else set())
    assert ("Under the sofa." in heard["late"][0]) is is_global
    assert ("Under the sofa." in heard["bob"][0]) is is_global
    assert "Closed." in heard["clerk"][0]  # broadcasts of the others are passed on as before
    assert "Phase of desk: Under the sofa." in heard["orchestrator"][-1]
