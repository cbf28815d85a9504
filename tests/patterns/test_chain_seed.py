"""The values of Choir's document, not only its shapes: states, actors at their addresses, the rules of recursion."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError, ToolFailed
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import QUESTION, Witness, chain_on, said_in
from tests.patterns.test_life import Held

from antiphon.agents.models import Rule, Script, ScriptedModel, Turn
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionResultPayload, thaw
from antiphon.patterns.postchain import ChainConfig, ChainContext, Item, PostChain
from antiphon.patterns.postchain._context import PhaseWork
from antiphon.patterns.postchain._phases import next_phase
from antiphon.patterns.postchain._postchain import PHASE_ACTORS
from antiphon.protocol import PHASES, AgentConfig


def _is_time(text: str) -> bool:
    return datetime.fromisoformat(text).tzinfo is not None


@pytest.mark.slow
async def test_moves_are_answered_with_the_states_and_times_of_the_seed() -> None:
    """CH-057, CH-059, CH-061, CH-063, CH-065: the values, and that each names the thread and the message that it answers."""
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


@pytest.mark.slow
async def test_agents_and_cells_are_answered_with_the_values_of_the_seed() -> None:
    """CH-072, CH-082, CH-084, CH-086, CH-088, CH-090, CH-093."""
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


@pytest.mark.parametrize("phase", PHASES)
async def test_each_phase_has_an_actor_that_does_its_own_phase_and_no_other(phase: str) -> None:
    """CH-096 to CH-101, CH-051, CH-069: the class of its name, at its address, with its agent."""
    (actor,) = [each for each in PHASE_ACTORS if each.phase == phase]
    assert actor.__name__ == f"{phase.capitalize()}PhaseActor"

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


# ---------------------------------------------------------------- CH-070, CH-080: what phases and agents answer, by value

TAKES = 0.75
"""Seconds that the model takes to answer, in virtual time."""


async def _answers(chain: PostChain, thread_id: str, option: str) -> list[dict[str, Any]]:
    """Return the data of all answers to one kind of request in a thread, as the ledger has them."""
    payloads = [row.payload for row in await said_in(chain.ledger, thread_id)]
    found = [each for each in payloads if isinstance(each, OptionResultPayload) and each.option_name == option]
    return [thaw(each.result) for each in found]


# Mutant: PhaseActor.process (_phase.py) answers with another phase's `phase_type`, with `processing_time=0.0`, or with an
# output whose `response`, `next_phase` or `confidence` is not the phase's own -> this test is red.
@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_phase_answers_with_its_thread_its_output_and_the_time_that_it_took() -> None:
    """CH-070: all six in a thread: the action phase asks its model twice, as it uses a tool; the last has no next phase."""
    async with chain_on(witness=Witness(delay=TAKES)) as chain:
        result = await chain.run(QUESTION)
        answers = await _answers(chain, result.thread_id, "PROCESS_PHASE")
    assert [set(each) for each in answers] == [{"thread_id", "phase_type", "output", "processing_time"}] * 6
    assert {each["thread_id"] for each in answers} == {result.thread_id}
    assert [each["phase_type"] for each in answers] == list(PHASES)
    assert [each["processing_time"] for each in answers] == [2 * TAKES, *[TAKES] * 5]
    outputs = [each["output"] for each in answers]
    assert [each["response"].partition("\n")[0] for each in outputs] == [f"the {phase} phase says so" for phase in PHASES]
    assert [each["next_phase"] for each in outputs] == [*PHASES[1:], None]
    # A tool stands behind the first answer, by three of the four words of the question; the passage that was found has a
    # temperature, which the fourth word asks for.
    assert [each["confidence"] for each in outputs] == [0.75, *[1.0] * 5]


# Mutant: PhaseActor.output or YieldPhaseActor.conclude gives a fixed `confidence`, or the yield phase no `next_phase` when a
# turn goes on -> this test is red.
@pytest.mark.slow
@pytest.mark.virtual_time
async def test_the_confidence_of_a_phase_reflects_its_sources_and_the_last_one_names_the_next_cycle() -> None:
    """CH-070: without sources, the experience phase has no confidence, and the last phase continues with it."""
    config = ChainConfig(backoff=0, max_cycles=2, least_change=0.0)
    async with chain_on(config=config) as chain:
        result = await chain.run("What is the airspeed of a swallow?")
        outputs = [each["output"] for each in await _answers(chain, result.thread_id, "PROCESS_PHASE")]
    first, second = outputs[:6], outputs[6:]
    assert [each["next_phase"] for each in first] == [*PHASES[1:], "experience"]
    assert [each["next_phase"] for each in second] == [*PHASES[2:], None]
    assert [each["confidence"] for each in first[1:]] == [0.0] * 5


async def thermometer(place: str) -> str:
    """Find out how warm it is somewhere."""
    if place == "nowhere":
        raise ToolFailed("there is no such place")
    return f"4 degrees in {place}"


def _calling(*places: str) -> Script:
    """Return a script that calls the tool for each place, and then reports the last result."""
    turns = [Turn(calls=({"tool": "thermometer", "arguments": {"place": place}},)) for place in places]
    return Script(rules=(Rule(turns=(*turns, Turn(text="It is cold."))),))


# Mutant: `_result` (_agent.py) has no `tool_calls`, only the last ones, or a fixed `confidence` -> this test is red.
@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("places", "given", "confidence"),
    [
        ((), [], 0.5),
        (("Oslo",), ["4 degrees in Oslo"], 0.8),
        (("Oslo", "Rome"), ["4 degrees in Oslo", "4 degrees in Rome"], 0.8),
        (("nowhere",), [None], 0.5),
        (("nowhere", "Rome"), [None, "4 degrees in Rome"], 0.8),
    ],
    ids=["no tool", "one", "two", "failed", "failed, then not"],
)
async def test_an_agent_answers_with_its_words_its_tool_calls_and_how_sure_it_is(
    places: tuple[str, ...], given: list[str | None], confidence: float
) -> None:
    """CH-080, CH-077: a tool that failed gave nothing, and makes nobody surer. Either message gets the same answer."""
    config = ChainConfig(backoff=0, phases={"intention": AgentConfig(tools=("thermometer",))})
    model = ScriptedModel(_calling(*places))
    async with PostChain(MemoryLedger(), model=model, config=config, tools=[thermometer]) as chain:
        ask = {"agent_id": "agent/intention", "input": "How warm is it?", "context": {"user_id": "u"}}
        answered = await chain.send({"id": "m-1", "type": "PROCESS_WITH_AGENT", "data": ask})
        invoked = await chain.send({"id": "m-2", "type": "INVOKE_AGENT", "data": {**ask, "stream": False}})
    assert (answered["type"], answered["message_id"]) == ("AGENT_RESPONSE", "m-1")
    assert set(answered["data"]) == {"result", "processing_time"}
    for result in (answered["data"]["result"], invoked["data"]["result"]):
        assert (result["response"], result["confidence"]) == ("It is cold.", confidence)
        calls = [(each["name"], each["arguments"], each.get("result")) for each in result["tool_calls"]]
        assert calls == [("thermometer", {"place": place}, gave) for place, gave in zip(places, given, strict=True)]
        assert len({each["id"] for each in result["tool_calls"]}) == len(places)


# Mutant: `_calls` (_agent.py) looks results up by their id alone -> this test is red.
@pytest.mark.virtual_time
async def test_calls_have_their_own_results_where_a_model_uses_an_id_again() -> None:
    """CH-080: some models number the calls of each answer from 1."""

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = sum(isinstance(each, ModelResponse) for each in messages)
        places = ("Oslo", "Rome")[said : said + 1]
        parts = [ToolCallPart("thermometer", {"place": place}, tool_call_id="call-1") for place in places]
        return ModelResponse(parts or [TextPart("It is cold.")])

    config = ChainConfig(backoff=0, phases={"intention": AgentConfig(tools=("thermometer",))})
    async with PostChain(MemoryLedger(), model=FunctionModel(model), config=config, tools=[thermometer]) as chain:
        ask = {"agent_id": "agent/intention", "input": "How warm is it?"}
        answered = await chain.send({"type": "PROCESS_WITH_AGENT", "data": ask})
    calls = answered["data"]["result"]["tool_calls"]
    assert [each["result"] for each in calls] == ["4 degrees in Oslo", "4 degrees in Rome"]


# Mutant: AgentManagerActor.process or invoke (_agent.py) answers with `processing_time=0.0` -> this test is red.
@pytest.mark.virtual_time
async def test_the_processing_time_of_an_agent_is_what_its_models_and_the_waits_between_them_took() -> None:
    """CH-080, CH-077: two requests and a tool; then one that is busy, half a second of waiting, and another try."""
    witness = Witness(delay=TAKES)
    async with chain_on(witness=witness, config=ChainConfig(backoff=0.5)) as chain:
        first = await chain.send({"type": "PROCESS_WITH_AGENT", "data": {"input": QUESTION}})
        witness.failures.append(ModelHTTPError(503, "teller"))
        ask = {"input": QUESTION, "agent_id": "agent/yield"}
        second = await chain.send({"type": "PROCESS_WITH_AGENT", "data": ask})
        invoked = await chain.send({"type": "INVOKE_AGENT", "data": {**ask, "stream": False}})
    assert first["data"]["processing_time"] == 2 * TAKES
    assert second["data"]["processing_time"] == 2 * TAKES + 0.5
    assert invoked["data"]["processing_time"] == TAKES


@pytest.mark.slow
async def test_a_phase_whose_actor_is_restarted_in_the_middle_of_a_thread_goes_on() -> None:
    """CH-123, CH-087, CH-103: its state is in the ledger; the thread completes, and no model request is repeated."""
    witness = Witness(on_request=(held := Held("observation")))
    async with chain_on(witness=witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        restarted = await chain.send({"type": "RESTART", "data": {"actor_id": "observation/1", "reason": "error_recovery"}})
        assert restarted["type"] == "RESTART_COMPLETE"
        held.released.set()
        assert (await chain.wait(thread_id)).status == "completed"
        assert witness.asked == ["action", *PHASES]


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
