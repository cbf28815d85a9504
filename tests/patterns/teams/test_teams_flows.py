"""The flows of a team, as automata that check the ledgers of real runs: the order of delegations and messages."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.patterns.chains import run, said_in
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit
from antiphon.messages import DataPart, Message, PartsPayload
from antiphon.patterns.teams import TEAM_FLOWS
from antiphon.protocol.flows import Flow, Step, choice, maybe, repeat, sequence

TURN, SIDE_BY_SIDE = TEAM_FLOWS


def say(type: str) -> Step:
    return Step("one", "all", type)


WORKER = Flow(
    "worker",
    "A worker is given a task and its context, acts, and ends the task.",
    repeat(
        say("task"),
        maybe(say("suggested_plan")),
        say("injected_context"),
        repeat(choice(say("action"), say("observation"), say("error"))),
        choice(say("final"), say("error")),
        least=1,
    ),
)
MANAGER = Flow(
    "manager",
    "A manager has its context, plans, delegates, gets each result, and writes a synthesis.",
    repeat(
        say("director_context"),
        repeat(say("script_plan")),
        repeat(choice(say("delegation"), say("observation"), say("error"))),
        say("synthesis"),
        least=1,
    ),
)
ORCHESTRATOR = Flow(
    "orchestrator",
    "A user speaks; the orchestrator plans, delegates phase after phase, and the assistant answers.",
    repeat(
        say("user_message"),
        say("director_context"),
        say("strategic_plan"),
        repeat(sequence(say("delegation"), choice(say("observation"), say("error")), maybe(say("synthesis")))),
        say("assistant_message"),
        least=1,
    ),
)


def as_events(entries: list[dict[str, Any]]) -> list[Message]:
    """Return entries as a flow sees them: types, told by one to all."""
    return [
        Message(
            policy="one",
            to=("all",),
            lane="control",
            payload=PartsPayload(parts=(DataPart(data={"type": each["type"], "data": {}}),)),
        )
        for each in entries
    ]


def a_run(*, parallel: bool = False, fails: bool = False) -> tuple[list[Message], Callable[[str], list[Message]]]:
    """Return the ledger of a run of two turns, and by agent what it has said."""

    async def main() -> Any:
        toolkit = Toolkit()

        @toolkit.tool(effects="none")
        def look(place: str) -> str:
            """Look somewhere."""
            if place == "dark":
                raise OSError("nothing to be seen")
            return "seen"

        steps = [{"name": "Look", "worker": name, "task": f"Look, {name}."} for name in ("ada", "bob")]
        acts = [("look", {"place": "dark"}), ("look", {"place": "hall"})]
        parts = {
            "orchestrator": lambda prompt, spoken: (
                plan(phase("desk", "Look."), phase("clerk", "Judge.")) if "Plan in phases" in prompt else "Seen."
            ),
            "desk": lambda prompt, spoken: {"steps": steps, "parallel": parallel} if "Break" in prompt else "Both looked.",
            "ada": lambda prompt, spoken: acts if spoken == 0 else "Seen.",
            "bob": {"status": "failed", "summary": "Blind."} if fails else "Seen.",
            "clerk": "Good.",
        }
        workers = [agent("ada", "look"), agent("bob"), agent("clerk")]
        async with team_of(parts, workers, [manager("desk", "ada", "bob")], toolkit=toolkit) as team:
            for words in ("Look.", "Look again."):
                await team.run(words, thread_id="t")
            entries = await team.store.get_messages("t")
            return await said_in(team.ledger, "t"), entries

    messages, entries = run(main())
    return messages, lambda name: as_events([each for each in entries if each.get("agent_key", "orchestrator") == name])


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_phases_and_steps_one_after_the_other_are_a_turn_of_the_flow(fails: bool) -> None:
    """AF-053 … AF-057: orchestrator to manager to worker and back, twice, also where a task fails."""
    messages, of = a_run(fails=fails)

    assert TURN.check(messages).state == "complete"
    assert SIDE_BY_SIDE.check(messages).state == "complete"
    assert WORKER.check(of("ada")).state == "complete"
    assert WORKER.check(of("bob")).state == "complete"
    assert MANAGER.check(of("desk")).state == "complete"
    assert ORCHESTRATOR.check(of("orchestrator")).state == "complete"


@pytest.mark.slow
def test_steps_side_by_side_are_a_turn_of_the_other_flow() -> None:
    messages, of = a_run(parallel=True)

    assert SIDE_BY_SIDE.check(messages).state == "complete"
    assert WORKER.check(of("ada")).state == "complete"
    assert MANAGER.check(of("desk")).state == "complete"


@pytest.mark.slow
def test_the_flows_find_what_is_missing_or_out_of_order() -> None:
    messages, of = a_run()
    asked = [each for each in messages if each.lane == "control" and each.to]

    assert TURN.check(asked[:-1]).state == "open"
    assert not TURN.check([*asked[:3], *asked[4:]]).conforms
    assert not WORKER.check(of("ada")[1:]).conforms
    assert not MANAGER.check(reversed(of("desk"))).conforms
