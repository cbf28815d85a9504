"""Providers and agents that fail: asked again after a while, then another model is asked, then the supervisor.

An agent that cannot be helped fails its thread. What fails because of something outside is in `test_stopped.py`.
"""

import asyncio
import logging
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from tests.patterns.chains import QUESTION, Teller, Witness, chain_on, run, said_in, types_of

from antiphon.errors import RefusedError
from antiphon.patterns.postchain import ChainConfig
from antiphon.patterns.postchain import _cast as agents
from antiphon.patterns.postchain._agents import AgentManagerActor
from antiphon.protocol import PHASES, ProcessPhase
from antiphon.runtime import Budget, Context, Settings

BUSY = ModelHTTPError(429, "teller", {"error": "slow down"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    [
        BUSY,
        ModelHTTPError(503, "teller"),
        ModelAPIError("teller", "connection reset"),
        UnexpectedModelBehavior("half a JSON object"),
    ],
    ids=["429", "503", "connection", "broken output"],
)
async def test_a_provider_that_fails_for_a_while_is_asked_again(failure: Exception) -> None:
    """CH-121, CH-122: nobody else hears of it."""
    witness = Witness(failures=[failure, failure])
    async with chain_on(witness=witness, config=ChainConfig(backoff=0)) as chain:
        result = await chain.run(QUESTION)
        assert result.status == "completed"
        assert witness.asked == ["action", "action", "action", *PHASES]
        assert "ERROR_NOTIFICATION" not in str(types_of(await said_in(chain.ledger, result.thread_id)))


@pytest.mark.slow
async def test_another_model_is_asked_when_the_first_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Witness()
    monkeypatch.setattr(agents, "named_model", lambda name, **more: Teller(other, name="other"))

    witness = Witness(failures=[ModelHTTPError(401, "teller", "no such key")] * 6)
    async with chain_on(witness=witness, config=ChainConfig(fallback="other", backoff=0)) as chain:
        result = await chain.run(QUESTION)
        assert result.status == "completed"
    assert witness.asked == list(PHASES)  # once for each: another try would not help
    assert other.asked == ["action", *PHASES]
    assert {output["model"] for output in result.outputs.values()} == {"other"}


@pytest.mark.slow
async def test_a_failure_without_recovery_fails_the_thread_with_its_history() -> None:
    """CH-091, CH-114, G14: the client gets the error, finished phases are kept, and the thread may be started again."""
    witness = Witness()
    async with chain_on(witness=witness, config=ChainConfig(backoff=0, attempts=2, restarts=1)) as chain:

        async def break_down(phase: str) -> None:
            if phase == "intention":
                witness.blanks = 1

        witness.on_request = break_down
        result = await chain.run(QUESTION)
        assert (result.status, result.error_code) == ("failed", "PHASE_PROCESSING_ERROR")
        assert "output retries" in str(result.error_message)
        assert list(result.outputs) == ["action", "experience"]
        assert witness.asked.count("intention") == 8  # two runs of two requests, and the same again after the restart
        said = types_of(await said_in(chain.ledger, result.thread_id))
        assert said.count("supervisor -> agent: RESTART") == 1
        assert said[-1] == "thread -> client: THREAD_RESULT"
        witness.on_request, witness.blanks = None, 0
        await chain.start(result.thread_id)
        assert (await chain.wait(result.thread_id)).status == "completed"


# Mutant: PhaseActor.process (_phase.py) does not call log_unexpected, or that leaves the id out -> this test is red.
def test_an_exception_in_a_phase_is_answered_and_logged_with_the_id_of_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """CH-053, CH-055: the answer has the error, the log has the place in the code and no content."""

    async def main() -> None:
        async with chain_on() as chain:
            asked = ProcessPhase(thread_id="t", phase_type="intention", input=QUESTION)
            asked = asked.with_enclosure({"items": [{"source": "the cellar", "text": "a canary"}]})
            with pytest.raises(RefusedError) as failed:
                await chain.system.ask("intention/1", asked, thread_id="t", id="m-1")
            assert (failed.value.code, failed.value.message_id) == ("PHASE_PROCESSING_ERROR", "m-1")
            assert "ValidationError" in str(failed.value.details)

    with caplog.at_level(logging.ERROR, "antiphon.patterns"):
        run(main())
    (logged,) = [each for each in caplog.records if each.name == "antiphon.patterns"]
    assert logged.getMessage().startswith("intention/1 could not process message m-1: ValidationError at ")
    assert (vars(logged)["antiphon.message.id"], vars(logged)["error.type"]) == ("m-1", "ValidationError")
    assert "canary" not in logged.getMessage()


@pytest.mark.slow
async def test_a_model_that_does_not_answer_in_time_is_given_up() -> None:
    """CH-121: a model has a time of its own, whatever the thread has."""
    never = asyncio.Event()

    async def wait(phase: str) -> None:
        await never.wait()

    config = ChainConfig(backoff=0, attempts=1, restarts=0, timeout=0.05)
    async with chain_on(witness=Witness(on_request=wait), config=config) as chain:
        result = await chain.run(QUESTION)
        assert result.status == "stopped"
        assert "no answer within 0.05 seconds" in str(result.error_message)


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_hanging_manager_is_restarted_and_the_thread_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-127, G14, G16: it misses heartbeats; nobody else would notice before the thread's own time is over."""
    begun: list[str] = []

    async def started(self: AgentManagerActor, context: Context) -> None:
        begun.append(context.address)
        if len(begun) == 1:
            await asyncio.Event().wait()

    monkeypatch.setattr(AgentManagerActor, "started", started)
    async with chain_on() as chain:
        result = await chain.run(QUESTION)
    assert result.status == "completed"
    assert asyncio.get_running_loop().time() < 25
    assert len(begun) == len(set(begun)) + 1


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_model_that_takes_its_time_is_not_taken_for_a_manager_that_hangs() -> None:
    """G15: as long as it keeps to `timeout`, however long that is, it is asked once."""
    witness = Witness(delay=100)
    async with chain_on(witness=witness) as chain:
        assert (await chain.run(QUESTION)).status == "completed"
    assert len(witness.asked) == len(PHASES) + 1


@pytest.mark.slow
async def test_a_thread_whose_agent_fails_does_not_hold_up_another() -> None:
    """Each thread has managers of its own: when one is begun anew, nobody else is interrupted."""
    witness = Witness(blanks=2, blank_in=f"{QUESTION} 3")
    async with chain_on(witness=witness, config=ChainConfig(backoff=0, attempts=1)) as chain:
        threads = [await chain.create(f"{QUESTION} {number}") for number in range(5)]
        await asyncio.gather(*map(chain.start, threads))
        results = await asyncio.gather(*map(chain.wait, threads))
        assert {result.status for result in results} == {"completed"}
        assert len(witness.asked) == 5 * (len(PHASES) + 1) + 2


async def test_a_thread_that_has_used_up_its_budget_fails_and_ends() -> None:
    """Whatever it may not say any more, it says that it has ended, and why."""
    async with chain_on(settings=Settings(budget=Budget(messages=40))) as chain:
        result = await chain.run(QUESTION)
        assert (result.status, result.error_code) == ("failed", "BUDGET_EXCEEDED")
        assert (await chain.ledger.thread(result.thread_id)).status == "failed"


@pytest.mark.slow
async def test_many_threads_at_once_all_end_and_a_model_is_not_overrun() -> None:
    """Concurrency is limited for each model; threads are served in turn, so none waits for all the others to end."""
    witness = Witness()
    ended: list[Any] = []
    async with chain_on(witness=witness, config=ChainConfig(concurrency=4, max_sources=0)) as chain:
        threads = [await chain.create(f"{QUESTION} {number}") for number in range(40)]
        await asyncio.gather(*map(chain.start, threads))

        async def wait(thread_id: str) -> None:
            ended.append((await chain.wait(thread_id)).status)

        await asyncio.gather(*map(wait, threads))
    assert ended == ["completed"] * 40
    assert witness.most == 4
    first_yield = witness.asked.index("yield")
    assert witness.asked[:first_yield].count("action") >= 40  # nobody is at the end before everybody has begun
