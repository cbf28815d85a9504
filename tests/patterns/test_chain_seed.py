"""What the seed says, by value and not by shape alone: states, actors at their places, the rules of recursion."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from tests.patterns.chains import QUESTION, Witness, chain_on, run
from tests.patterns.test_life import Held

from antiphon.patterns import postchain
from antiphon.patterns.postchain import ChainConfig, ChainContext, Item
from antiphon.patterns.postchain._chain import PHASE_ACTORS
from antiphon.patterns.postchain._recursion import next_phase
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import PHASES


def _is_time(text: str) -> bool:
    return datetime.fromisoformat(text).tzinfo is not None


def test_moves_are_answered_with_the_states_and_times_of_the_seed() -> None:
    """CH-057, CH-059, CH-061, CH-063, CH-065: the values, and that each names the thread and the message that it answers."""

    async def main() -> None:
        async with chain_on(witness=Witness(on_request=(held := Held("action")))) as chain:

            async def send(kind: str, id: str, **data: Any) -> dict[str, Any]:
                response = await chain.send({"id": id, "type": kind, "data": data})
                assert response["message_id"] == id, response
                return dict(response["data"])

            made = await send("CREATE_THREAD", "m-1", user_id="u", initial_input=QUESTION, metadata={"source": "web"})
            own = {"thread_id": made["thread_id"]}
            assert made == {**own, "status": "created"}
            started = await send("START_THREAD", "m-2", **own)
            assert _is_time(started.pop("started_at"))
            assert started == {**own, "status": "processing"}
            await held.reached.wait()
            paused = await send("PAUSE_THREAD", "m-3", **own)
            assert _is_time(paused.pop("paused_at"))
            assert paused == {**own, "status": "paused", "current_phase": "action"}
            resumed = await send("RESUME_THREAD", "m-4", **own)
            assert _is_time(resumed.pop("resumed_at"))
            assert resumed == {**own, "status": "processing", "current_phase": "action"}
            ended = await send("TERMINATE_THREAD", "m-5", **own, reason="user_request")
            assert _is_time(ended.pop("terminated_at"))
            assert ended == {**own, "status": "terminated", "reason": "user_request"}

    run(main())


def test_agents_and_cells_are_answered_with_the_values_of_the_seed() -> None:
    """CH-072, CH-082, CH-084, CH-086, CH-088, CH-090, CH-093."""

    async def main() -> None:
        async with chain_on() as chain:

            async def send(kind: str, **data: Any) -> dict[str, Any]:
                return dict((await chain.send({"type": kind, "data": data}))["data"])

            ready = await send("INITIALIZE_PHASE", phase_type="action", config={"temperature": 0.7, "max_tokens": 1000})
            assert ready == {"phase_type": "action", "status": "ready", "agent_id": "agent/action"}
            updated = await send("UPDATE_AGENT_CONFIG", agent_id="agent/action", config={"temperature": 0.5})
            assert updated == {"agent_id": "agent/action", "status": "updated"}
            alive = (await chain.send({"type": "HEARTBEAT", "receiver": "agent/action"}))["data"]
            assert alive["status"] == "alive"
            assert alive["uptime"] >= 0
            assert 0 <= alive["load"] <= 1
            actor = {"actor_id": "agent/action"}
            assert await send("SUPERVISE", **actor) == {**actor, "status": "supervised"}
            restarted = await send("RESTART", **actor, reason="error_recovery")
            assert _is_time(restarted.pop("restarted_at"))
            assert restarted == {**actor, "status": "restarted"}
            noted = await send("ERROR_NOTIFICATION", **actor, error_message="it broke", error_code="AGENT_ERROR", details={})
            assert (noted["actor_id"], noted["action_taken"], noted["error_logged"]) == ("agent/action", "restart", True)
            stopped = await send("STOP", **actor, reason="shutdown")
            assert _is_time(stopped.pop("stopped_at"))
            assert stopped == {**actor, "status": "stopped"}

    run(main())


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_has_an_actor_that_does_its_own_phase_and_no_other(phase: str) -> None:
    """CH-096 to CH-101, CH-051, CH-069, CH-070: the class of its name, at its address, with its agent."""
    (actor,) = [each for each in PHASE_ACTORS if each.phase == phase]
    assert actor is getattr(postchain, f"{phase.capitalize()}PhaseActor")

    async def main() -> None:
        witness = Witness()
        async with chain_on(witness=witness) as chain:
            ask = {"thread_id": "by-hand", "phase_type": phase, "input": QUESTION, "context": {"user_id": "u"}}
            done = await chain.send({"type": "PROCESS_PHASE", "data": ask})
            assert (done["type"], done["sender"]) == ("PHASE_PROCESSED", f"{phase}/1")
            assert set(witness.asked) == {phase}
            output = done["data"]["output"]
            assert f"the {phase} phase says so" in output["response"]
            following = PHASES[PHASES.index(phase) + 1 :]
            assert output.get("next_phase") == (following[0] if following else None)
            assert 0 <= output["confidence"] <= 1
            assert done["data"]["processing_time"] >= 0
            other = PHASES[PHASES.index(phase) - 1]
            refused = await chain.send({"type": "PROCESS_PHASE", "receiver": f"{other}/1", "data": ask})
            assert refused["data"]["error_code"] == "VALIDATION_ERROR"
            assert f"this is the {other} phase" in refused["data"]["error_message"]

    run(main())


def test_a_phase_whose_actor_is_restarted_in_the_middle_of_a_thread_goes_on() -> None:
    """CH-123, CH-087, CH-103: what it knows is in the ledger; the thread completes, and models are asked for nothing twice."""

    async def main() -> None:
        witness = Witness(on_request=(held := Held("observation")))
        async with chain_on(witness=witness) as chain:
            thread_id = await chain.create(QUESTION)
            await chain.start(thread_id)
            await held.reached.wait()
            restarted = await chain.send(
                {"type": "RESTART", "data": {"actor_id": "observation/1", "reason": "error_recovery"}}
            )
            assert restarted["type"] == "RESTART_COMPLETE"
            held.released.set()
            assert (await chain.wait(thread_id)).status == "completed"
            assert witness.asked == ["action", *PHASES]

    run(main())


# ---------------------------------------------------------------- recursion

FOUND = Item(id="kb-1", source="knowledge", text="tea is hot", priority=0.5)
WORK = PhaseWork("t", QUESTION, "u", (), ChainContext({"kb-1": FOUND}), None, 1, (), {})
MANY = ChainConfig(max_cycles=5)


@pytest.mark.parametrize(
    ("work", "confidence", "config", "following"),
    [
        (replace(WORK, cycle=5), 0.5, MANY, None),
        (WORK, 0.9, MANY, None),
        (WORK, 0.89, MANY, "action"),
        (replace(WORK, cycle=2, confidences=(0.45,)), 0.5, MANY, None),
        (replace(WORK, cycle=2, confidences=(0.3,)), 0.5, MANY, "action"),
        (replace(WORK, context=ChainContext()), 0.5, MANY, "experience"),
        (
            replace(WORK, context=ChainContext({"kb-1": FOUND.model_copy(update={"text": "x" * 4001})})),
            0.5,
            MANY,
            "understanding",
        ),
    ],
    ids=["last cycle", "confident", "not quite", "converged", "not yet", "no source", "no room"],
)
def test_the_first_rule_that_holds_says_with_which_phase_to_go_on(
    work: PhaseWork, confidence: float, config: ChainConfig, following: str | None
) -> None:
    """CH-125: max cycles, confidence, convergence; then experience, understanding or action, by what is missing."""
    assert next_phase(work, confidence, config).following == following
