"""The seed's practices on chains that run: management and monitoring, bounds, the log, recursion, traces and dead letters."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import QUESTION, Witness, chain_on, known, run, said_in, types_of
from tests.patterns.test_life import Held

from antiphon import open_ledger
from antiphon.agents.models import ScriptedModel
from antiphon.agents.models._script import Rule, Script, Turn
from antiphon.agents.toolkit import Toolkit
from antiphon.errors import RefusedError
from antiphon.ledger import replay
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.postchain import ChainConfig, ChainEvent, PostChain
from antiphon.patterns.postchain._chain import event_of
from antiphon.patterns.postchain._lifecycle import LIFE, history_of
from antiphon.patterns.postchain._lifecycle import PastTurn as LifeTurn
from antiphon.patterns.postchain._retrieval import goals_in
from antiphon.protocol import PHASES, AgentConfig, Phase, ProcessWithAgent
from antiphon.runtime import Settings, system_thread

# ---------------------------------------------------------------- commits


@pytest.mark.slow
async def test_the_last_rows_of_an_agent_are_stored_together_with_the_answer_of_its_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.runtime._journal._FLUSH_AFTER", 60)  # however busy the machine is
    async with chain_on() as chain:
        thread_id = (await chain.run(QUESTION)).thread_id
        rows = await said_in(chain.ledger, thread_id)
        answers = [
            seq
            for seq, row in enumerate(rows, 1)
            if isinstance(row.payload, OptionResultPayload) and row.payload.option_name == ProcessWithAgent.message_type
        ]
        ends = set(chain.ledger.ends[thread_id])  # type: ignore[attr-defined]

    assert len(answers) == len(PHASES)
    assert ends.issuperset(answers)
    assert ends.isdisjoint(seq - 1 for seq in answers)  # no append ends right before an answer


# ---------------------------------------------------------------- CH-110: management and monitoring


@pytest.mark.slow
async def test_every_actor_of_a_running_thread_answers_heartbeats() -> None:
    """CH-110, CH-083, CH-084: also while it works; heartbeats add no row to the thread."""
    witness = Witness(on_request=(held := Held("action")))
    async with chain_on(witness=witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        rows = len(await said_in(chain.ledger, thread_id))
        managed = ["supervisor/agents", f"thread/{thread_id}", f"agent/action:{thread_id}"]
        for address in (*managed, *(f"{phase}/1" for phase in PHASES)):
            alive = await chain.send({"type": "HEARTBEAT", "receiver": address})
            assert (alive["type"], alive["data"]["status"], alive["sender"]) == ("HEARTBEAT_RESPONSE", "alive", address)
            assert 0 <= alive["data"]["load"] <= 1
            assert alive["data"]["uptime"] >= 0
        assert len(await said_in(chain.ledger, thread_id)) == rows
        held.released.set()
        assert (await chain.wait(thread_id)).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("managed", ["agent/action:{}", "action/1", "thread/{}"])
async def test_an_actor_that_is_restarted_while_it_works_goes_on_where_it_was(managed: str) -> None:
    """CH-110, CH-087, CH-088, G13: the thread completes, and what was recorded is not done again."""
    witness = Witness(on_request=(held := Held("intention" if "action" not in managed else "action")))
    async with chain_on(witness=witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        address = managed.format(thread_id)
        data = {"actor_id": address, "reason": "error_recovery"}
        restarted = await chain.send({"type": "RESTART", "data": data})
        assert (restarted["type"], restarted["data"]["actor_id"]) == ("RESTART_COMPLETE", address)
        held.released.set()
        result = await chain.wait(thread_id)
        assert result.status == "completed"
        answered = [row for row in await said_in(chain.ledger, thread_id) if _is_answer(row.payload)]
        assert len(answered) == len(PHASES) + 1  # the first asks for a tool, and again with what it gave
        told = [row.payload async for row in _rows(chain, system_thread(address))]
        assert [each.option_name for each in told] == ["RESTART", "RESTART"]


async def _rows(chain: PostChain, thread_id: str) -> Any:
    async for record in chain.ledger.read(thread_id):
        yield record.message


def _is_answer(payload: Any) -> bool:
    """Whether it is the recorded answer of a model."""
    return isinstance(payload, OptionResultPayload) and "model.request" in payload.option_name and not payload.is_error


async def test_a_stopped_phase_fails_the_threads_that_reach_it_with_the_reason() -> None:
    """CH-110, CH-089, CH-090: the message is a dead letter; the results of earlier phases are kept."""
    async with chain_on() as chain:
        stopped = await chain.send({"type": "STOP", "data": {"actor_id": "intention/1", "reason": "shutdown"}})
        assert stopped["data"]["status"] == "stopped"
        result = await chain.run(QUESTION)
        assert (result.status, result.error_code) == ("failed", "ACTOR_STOPPED")
        assert list(result.outputs) == ["action", "experience"]
        (letter,) = chain.system.dead_letters
        assert (letter.to, letter.code, letter.message.thread_id) == ("intention/1", "ACTOR_STOPPED", result.thread_id)


@pytest.mark.slow
async def test_a_reported_error_of_a_manager_restarts_it() -> None:
    """CH-110, CH-085, CH-086, CH-092, CH-093: an outside monitor reports it; the manager's own thread has the decision."""
    async with chain_on() as chain:
        await chain.send({"type": "HEARTBEAT", "receiver": "agent/yield"})
        watched = await chain.send({"type": "SUPERVISE", "data": {"actor_id": "agent/yield"}})
        assert watched["data"] == {"actor_id": "agent/yield", "status": "supervised"}
        error = {"actor_id": "agent/yield", "error_message": "it hangs", "error_code": "TIMEOUT", "details": "60 s"}
        taken = await chain.send({"type": "ERROR_NOTIFICATION", "data": error})
        assert taken["data"] == {"actor_id": "agent/yield", "action_taken": "restart", "error_logged": True}
        done = [row.payload.option_name async for row in _rows(chain, system_thread("agent/yield"))]
        assert "RESTART" in done
        assert (await chain.run(QUESTION)).status == "completed"


# ---------------------------------------------------------------- CH-118: concise but complete

LIMIT = ChainConfig(input_limit=1000, backoff=0)


@pytest.mark.slow
async def test_an_input_that_is_too_long_is_refused_with_the_limit_before_anything_is_written() -> None:
    """CH-118, CH-117: from Python and over the edge; of a thread that has begun nothing is lost, and it goes on."""
    async with chain_on(config=LIMIT) as chain:
        with pytest.raises(RefusedError, match="the input has 1001 characters, more than 1000: add it to the knowledge"):
            await chain.run("x" * 1001)
        create = {"type": "CREATE_THREAD", "data": {"user_id": "u", "initial_input": "x" * 5_000_000}}
        refused = await chain.send(create)
        assert refused["data"]["error_code"] == "TOO_LARGE"
        assert (refused["data"]["limit"], refused["data"]["size"]) == (1000, 5_000_000)
        assert not [each for each in (await chain.ledger.threads()).threads if each.pattern == "postchain"]

        first = await chain.run("x" * 1000)
        rows = len(await said_in(chain.ledger, first.thread_id))
        start = {"type": "START_THREAD", "data": {"thread_id": first.thread_id, "input": "x" * 1001}}
        assert (await chain.send(start))["data"]["error_code"] == "TOO_LARGE"
        with pytest.raises(RefusedError, match="more than 1000"):
            await chain.run("x" * 1001, thread_id=first.thread_id)
        assert len(await said_in(chain.ledger, first.thread_id)) == rows
        assert (await chain.run("And now?", thread_id=first.thread_id)).status == "completed"


@pytest.mark.parametrize("kind", ["PROCESS_PHASE", "PROCESS_WITH_AGENT", "INVOKE_AGENT"])
async def test_an_input_by_hand_is_bounded_too(kind: str) -> None:
    """CH-118."""
    where = {"thread_id": "t", "phase_type": "action", "agent_id": "agent/action", "stream": False}

    async with chain_on(config=LIMIT) as chain:
        refused = await chain.send({"type": kind, "data": {**where, "input": "x" * 1001}})
        assert (refused["type"], refused["data"]["error_code"]) == ("ERROR", "TOO_LARGE")


async def test_the_metadata_of_a_thread_and_a_whole_message_are_bounded() -> None:
    """CH-118: metadata goes with every message to a phase; a message has a limit of its own, and the response says it."""
    async with chain_on() as chain:
        with pytest.raises(RefusedError, match="metadata have .* more than 8000: say where to find it"):
            await chain.create(QUESTION, metadata={"page": "x" * 8000})
        data = {"user_id": "u", "initial_input": "Hi.", "metadata": {"page": "x" * 9000}}
        assert (await chain.send({"type": "CREATE_THREAD", "data": data}))["data"]["error_code"] == "TOO_LARGE"
        huge = {"user_id": "u", "initial_input": "Hi.", "metadata": {"page": "x" * 2_000_000}}
        refused = await chain.send({"type": "CREATE_THREAD", "data": huge})
        assert refused["data"]["error_code"] == "VALIDATION_ERROR"
        assert "bytes, more than 1048576" in refused["data"]["error_message"]
        assert len(refused["data"]["error_message"]) < 200


@pytest.mark.slow
async def test_the_longest_input_goes_through_all_phases_whole(tmp_path: Path) -> None:
    """CH-118: of many different words, and of characters that take the most room as JSON; the user's words are not cut."""
    words = " ".join(f"w{number}" for number in range(20_000))[:49_990] + "\x01" * 10

    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger, chain_on(await known(ledger)) as chain:
        result = await chain.run(words)
        assert result.status == "completed", result.error_message
        asked = [row.payload for row in await said_in(ledger, result.thread_id) if _is_phase(row.payload)]
        assert [each.arguments["input"] for each in asked] == [words] * len(PHASES)
        more = await chain.run("And now?", thread_id=result.thread_id)
        assert more.status == "completed"
        life = await chain.life(result.thread_id)
        assert life.turns[0].input == words


def _is_phase(payload: Any) -> bool:
    return isinstance(payload, OptionCallPayload) and payload.option_name == "PROCESS_PHASE"


@pytest.mark.slow
async def test_a_long_answer_of_a_model_is_passed_on_in_part_and_stored_whole() -> None:
    """CH-118: the same for its tool arguments; the thread completes, and names what is missing and where it is stored."""
    argument = "a" * 120_000

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if info.function_tools and not any(isinstance(each, ModelResponse) for each in messages):
            return ModelResponse([ToolCallPart("look", {"at": argument}, tool_call_id="call-1")])
        return ModelResponse([TextPart("y" * 150_000)])

    async def look(at: str) -> str:
        """Look."""
        return at

    phases: dict[Phase, AgentConfig] = {"action": AgentConfig(tools=("look",))}
    config = ChainConfig(phases=phases, max_sources=0)
    tools = [Tool[Any](look, metadata={"antiphon": {"effects": "none"}})]
    async with PostChain(MemoryLedger(), model=FunctionModel(answer), config=config, tools=tools) as chain:
        result = await chain.run(QUESTION)
        assert result.status == "completed", result.error_message
        for phase in PHASES:
            response = result.outputs[phase]["response"].partition("\n\nSources:")[0]
            assert response == "y" * 16_000 + "… (134000 more characters are in the ledger)"
        (call,) = result.outputs["action"]["tool_calls"]
        assert call["arguments"]["at"] == "a" * 600 + "… (119400 more characters are in the ledger)"
        said = [row for row in await said_in(chain.ledger, result.thread_id) if row.lane == "talk"]
        assert sum("y" * 150_000 in row.text for row in said if row.kind == "parts") == len(PHASES)
        assert thaw(next(row.payload for row in said if row.kind == "option_call").arguments) == {"at": argument}


@pytest.mark.slow
async def test_a_model_gets_no_more_sources_and_drafts_than_the_limit() -> None:
    """CH-118: in every phase, the best first; the question is always whole."""
    prompts: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts.append(str(messages[0].parts[-1].content))
        if info.function_tools and not any(isinstance(each, ModelResponse) for each in messages):
            return ModelResponse([ToolCallPart("look", {"at": str(n)}, tool_call_id=f"call-{n}") for n in range(30)])
        return ModelResponse([TextPart("y" * 2000)])

    async def look(at: str) -> str:
        """Look."""
        return at * 300

    config = ChainConfig(phases={"action": AgentConfig(tools=("look",))}, max_sources=0, context_limit=1000)
    tools = [Tool[Any](look, metadata={"antiphon": {"effects": "none"}})]
    async with PostChain(MemoryLedger(), model=FunctionModel(answer), config=config, tools=tools) as chain:
        result = await chain.run(QUESTION)
        assert result.status == "completed", result.error_message

    assert all(prompt.startswith(QUESTION) for prompt in prompts)
    assert max(len(prompt) for prompt in prompts) <= len(QUESTION) + 1000
    assert any("Sources:\n[1] look(at='0'): 000" in prompt for prompt in prompts)


@pytest.mark.slow
def test_the_goals_of_a_very_long_question_are_bounded() -> None:
    """CH-118: of ten thousand sentences, the first ones count as goals; the rest is still the question."""
    assert len(goals_in(" ".join(f"Do thing {number}." for number in range(3000)))) == 20


def test_a_history_has_the_latest_turns_and_never_half_of_what_a_user_said() -> None:
    """CH-118: what there is no room for is left out, the earliest first; answers are shortened before."""
    turns = [
        LifeTurn("first " * 10, "one"),
        LifeTurn("second " * 10, "two " * 50),
        LifeTurn("third", "three\n\nSources:\n[1]"),
    ]

    def told(room: int, most: int = 6) -> list[tuple[str, str]]:
        return [(each.role, each.content) for each in history_of(turns, most, room)]

    assert told(1000) == [
        ("user", "first " * 10),
        ("assistant", "one"),
        ("user", "second " * 10),
        ("assistant", "two " * 50),
        ("user", "third"),
        ("assistant", "three"),
    ]
    assert told(1000, most=1) == [("user", "third"), ("assistant", "three")]
    assert told(1000, most=0) == []
    assert told(200) == [
        ("user", "second " * 10),
        ("assistant", "two " * 30 + "… (80 more characters are in the ledger)"),
        ("user", "third"),
        ("assistant", "three"),
    ]
    assert told(60) == [("user", "third"), ("assistant", "three")]
    assert told(3) == []


# ---------------------------------------------------------------- CH-119: message flows are logged


@pytest.mark.slow
def test_the_log_of_a_run_is_its_message_flow_without_any_content(caplog: pytest.LogCaptureFixture) -> None:
    """CH-119: sender, receiver and type of each message, in order, with its ids; an error has its code, one level higher."""
    caplog.set_level(logging.DEBUG, logger="antiphon.postchain")

    async def main() -> list[str]:
        witness = Witness(blanks=2)
        async with chain_on(witness=witness, config=ChainConfig(attempts=1)) as chain:
            result = await chain.run(QUESTION)
            rows = await said_in(chain.ledger, result.thread_id)
            logged = [each for each in caplog.records if each.__dict__["antiphon.thread.id"] == result.thread_id]
            said = [row for row in rows if row.lane == "control" and row.to and types_of([row])]
            assert [each.__dict__["antiphon.message.id"] for each in logged] == [row.id for row in said]
            assert [each.__dict__["antiphon.correlation.id"] for each in logged] == [row.correlation_id for row in said]
            assert [_flow(each.getMessage()) for each in logged] == types_of(said)
            return [each.getMessage() for each in logged if each.levelno == logging.INFO]

    (error,) = run(main())
    assert "agent/action:" in error
    assert error.endswith("-> action/1: ERROR AGENT_ERROR")
    assert not any(word in caplog.text for word in ("tea", "steeped", "says so", "overloaded"))


def _flow(line: str) -> str:
    """Return a line of the log as flows are written: kinds of actors, and the type without a code."""
    _, sender, _, receiver, kind = line.split()[:5]
    return f"{sender.partition('/')[0]} -> {receiver.rstrip(':').partition('/')[0]}: {kind}"


# ---------------------------------------------------------------- CH-125: recursion

SWALLOW = "What is the airspeed of a swallow?"


async def _phases_and_why(chain: PostChain, text: str) -> tuple[list[str], str]:
    """Return which phases a turn has gone through, and why it ended, both from the ledger."""
    result = await chain.run(text)
    assert result.status == "completed", result.error_message
    rows = await said_in(chain.ledger, result.thread_id)
    asked = [row.payload.arguments["phase_type"] for row in rows if _is_phase(row.payload)]
    done = [
        thaw(row.payload.result)
        for row in rows
        if getattr(row.payload, "option_name", "") == "PROCESS_PHASE" and row.kind == "option_result"
    ]
    return asked, done[-1]["output"]["rationale"]


@pytest.mark.slow
async def test_a_turn_that_goes_round_without_anything_new_ends_and_the_ledger_says_why() -> None:
    """CH-125: loop detection, by itself: convergence is off, and there are cycles left."""
    async with chain_on(config=ChainConfig(max_cycles=9, least_change=0.0)) as chain:
        asked, why = await _phases_and_why(chain, SWALLOW)
        assert asked == [*PHASES, *PHASES[1:]]
        assert why == "it would loop: since cycle 1 went on with experience, nothing new was found"


def _news() -> Iterator[int]:
    yield from range(100)


@pytest.mark.slow
async def test_a_turn_that_finds_something_new_each_time_goes_on_to_the_last_cycle() -> None:
    """CH-125: max cycles, by itself: it neither converges nor loops."""
    news = _news()

    async def wire() -> str:
        """Give the news."""
        return f"item {next(news)}"

    config = ChainConfig(max_cycles=4, least_change=0.0, enough_confidence=1.0, phases=_going_on("action", tool="wire"))
    tools = [Tool[Any](wire, metadata={"antiphon": {"effects": "none"}})]
    async with PostChain(MemoryLedger(), model=ScriptedModel(_script("action")), config=config, tools=tools) as chain:
        asked, why = await _phases_and_why(chain, SWALLOW)
        assert asked == [*PHASES] * 4
        assert why == "cycle 4 of 4 was the last"


def _going_on(phase: Phase, tool: str | None = None) -> dict[Phase, AgentConfig]:
    more: dict[Phase, AgentConfig] = {"action": AgentConfig(tools=() if tool is None else (tool,))}
    return {**more, "yield": AgentConfig(tools=("go_on_with",))}


def _script(phase: str) -> Script:
    """Return a script in which the last phase asks to go on with some phase, whenever it is asked."""
    calls = ({"tool": "go_on_with", "arguments": {"phase": phase, "reason": "it is not clear"}},)
    return Script(
        rules=(
            Rule(tools=("go_on_with",), turns=(Turn(calls=calls), Turn(text="not yet"))),
            Rule(tools=("wire",), turns=(Turn(calls=({"tool": "wire"},)), Turn(text="{result}"))),
            Rule(turns=(Turn(text="so be it"),)),
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
async def test_the_last_phase_may_go_on_with_any_phase(phase: Phase) -> None:
    """CH-125, CH-070: where its agent asks for it by its tool; the phases after it follow, and a second time is a loop."""
    toolkit = Toolkit() if phase == "observation" else None  # with one or without one, it is the same

    config = ChainConfig(max_cycles=9, phases=_going_on(phase), max_sources=0)
    model = ScriptedModel(_script(phase))
    async with PostChain(MemoryLedger(), model=model, config=config, toolkit=toolkit) as chain:
        asked, why = await _phases_and_why(chain, SWALLOW)
        assert asked == [*PHASES, *PHASES[PHASES.index(phase) :]]
        assert why == f"it would loop: since cycle 1 went on with {phase}, nothing new was found"


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["dessert", "ACTION", ""])
async def test_a_phase_that_there_is_not_is_nothing_to_go_on_with(phase: str) -> None:
    """CH-125, CH-040: the tool takes the six names; its agent is told, and the turn ends as without it."""
    config = ChainConfig(max_cycles=9, phases=_going_on("action"), max_sources=0, attempts=1, restarts=0)
    async with PostChain(MemoryLedger(), model=ScriptedModel(_script(phase)), config=config) as chain:
        asked, why = await _phases_and_why(chain, SWALLOW)
        assert asked == [*PHASES, *PHASES[1:]]
        assert why == "another cycle changed the confidence by less than 0.1"


# ---------------------------------------------------------------- CH-128: traces, dead letters, hops, replay


@pytest.mark.slow
async def test_a_turn_is_traced_by_its_correlation_id_and_another_turn_is_not_in_it() -> None:
    """CH-128, CH-116: all of a turn, in order, and nothing else of the thread."""
    async with chain_on() as chain:
        first = await chain.run(QUESTION)
        await chain.run("And coffee?", thread_id=first.thread_id)
        rows = [row for row in await said_in(chain.ledger, first.thread_id) if row.lane == "control" and row.to]
        starts = [
            row for row in rows if getattr(row.payload, "option_name", "") == "START_THREAD" and row.kind == "option_call"
        ]
        assert len(starts) == 2
        traces = [
            [record.message for record in await chain.ledger.find(correlation_id=start.id, thread_id=first.thread_id)]
            for start in starts
        ]
        for trace in traces:
            said = types_of(trace)
            assert said[0] == "client -> thread: START_THREAD"
            assert said[-1] == "thread -> client: THREAD_RESULT"
            assert [each for each in said if "PROCESS_PHASE" in each] == [f"thread -> {p}: PROCESS_PHASE" for p in PHASES]
        assert not {row.id for row in traces[0]} & {row.id for row in traces[1]}
        create = len([row for row in rows if row.correlation_id not in {start.id for start in starts}])
        assert sum(len([row for row in trace if row.lane == "control" and row.to]) for trace in traces) + create == len(rows)


@pytest.mark.slow
async def test_an_unknown_subscriber_gets_a_dead_letter_and_the_others_their_result() -> None:
    """CH-128, CH-112: the thread ends as it would have, and nothing of it is left open."""
    heard: list[str] = []
    async with chain_on() as chain:
        chain.on_message(lambda client, said: heard.append(client))
        thread_id = await chain.create(QUESTION)
        for subscriber in ("nobody/1", "client/eve"):
            await chain.send({"type": "SUBSCRIBE_THREAD", "sender": subscriber, "data": {"thread_id": thread_id}})
        await chain.start(thread_id)
        assert (await chain.wait(thread_id)).status == "completed"
        await _nothing_open(chain, thread_id)
        assert heard == ["client/local", "client/eve"]
        (letter,) = chain.system.dead_letters
        assert (letter.to, letter.code, letter.message.thread_id) == ("nobody/1", "ACTOR_NOT_FOUND", thread_id)


async def _nothing_open(chain: PostChain, thread_id: str) -> None:
    from tests.patterns.test_pause import _finished

    await _finished(chain, thread_id)


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_thread_whose_messages_follow_from_too_many_others_fails_and_is_over(limit: int) -> None:
    """CH-128: the hop limit, wherever it bites; what could not be sent is with the dead letters, the thread says why."""
    async with chain_on(settings=Settings(hop_limit=limit)) as chain:
        result = await chain.run(QUESTION)
        assert (result.status, result.error_code) == ("failed", "HOP_LIMIT")
        assert chain.system.dead_letters[0].code == "HOP_LIMIT"
        assert (await chain.status(result.thread_id)).status == "failed"
        await _nothing_open(chain, result.thread_id)


@pytest.mark.slow
async def test_a_stored_thread_is_replayed_as_it_was_seen_and_step_by_step() -> None:
    """CH-128: the same events, in the same order, without a model; and where the thread was after each row."""
    seen: list[ChainEvent] = []
    async with chain_on(witness=(witness := Witness())) as chain:
        thread_id = await chain.create(QUESTION)
        with chain._chain.events.listening(thread_id, seen.append, with_text=False):
            await chain.start(thread_id)
            await chain.wait(thread_id)
        asked = len(witness.asked)
        played: list[ChainEvent] = []
        async for record in chain.ledger.read(thread_id):
            phase = played[-1].phase if played and played[-1].kind != "status" else None
            if (event := event_of(record.message, record.seq, phase)) is not None:
                played.append(event)
        assert [(e.kind, e.seq, e.text) for e in played[1:]] == [(e.kind, e.seq, e.text) for e in seen]
        head = (await chain.ledger.head(thread_id)).seq
        states = [(await replay(chain.ledger, thread_id, LIFE.fold(), upto=seq)).status for seq in range(1, head + 1)]
        assert list(dict.fromkeys(states)) == ["none", "created", "processing", "completed"]
        assert len(witness.asked) == asked
