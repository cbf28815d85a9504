"""The flows of the seed, out of the ledger of real runs: what the actors of a thread say to each other, in order."""

import pytest
from tests.patterns.chains import QUESTION, Witness, chain_on, known, run, said_in, types_of

from antiphon.patterns.postchain import ChainConfig
from antiphon.protocol import PHASES
from antiphon.protocol.flows import find_flow

EXECUTION, PROCESSING, ERRORS = map(find_flow, ("thread-execution", "phase-processing", "error-handling"))
ROLES = {"thread": "thread", "client": "client"}


def _run(witness: Witness | None = None, config: ChainConfig | None = None) -> list:
    async def main() -> list:
        async with chain_on(await known(), witness, config) as chain:
            result = await chain.run(QUESTION)
            assert result.status == "completed", result.error_message
            return await said_in(chain.ledger, result.thread_id)

    return run(main())


@pytest.mark.slow
def test_a_thread_runs_through_its_phases_in_the_order_of_the_seed() -> None:
    """CH-111, CH-112, CH-106, CH-107, CH-108: flow 1, to the result that its client is told."""
    messages = _run()
    between = [
        each for each in types_of(messages) if "agent" not in each and "CONTEXT" not in each and "RUN_THREAD" not in each
    ]

    assert between == [
        "client -> thread: CREATE_THREAD",
        "thread -> client: THREAD_CREATED",
        "client -> thread: START_THREAD",
        "thread -> client: THREAD_STARTED",
        *(line for phase in PHASES for line in (f"thread -> {phase}: PROCESS_PHASE", f"{phase} -> thread: PHASE_PROCESSED")),
        "thread -> client: THREAD_RESULT",
    ]
    assert EXECUTION.check(messages, **ROLES).state == "complete"


@pytest.mark.slow
def test_a_phase_prepares_its_context_and_asks_its_agent() -> None:
    """CH-113, CH-109: flow 2, for each of the six."""
    messages = _run()
    said = [each for each in types_of(messages) if "client" not in each and "RUN_THREAD" not in each]

    assert said == [
        line
        for phase in PHASES
        for line in (
            f"thread -> {phase}: PROCESS_PHASE",
            f"{phase} -> {phase}: PREPARE_CONTEXT",
            f"{phase} -> {phase}: CONTEXT_PREPARED",
            f"{phase} -> agent: PROCESS_WITH_AGENT",
            f"agent -> {phase}: AGENT_RESPONSE",
            f"{phase} -> thread: PHASE_PROCESSED",
        )
    ]
    assert PROCESSING.check(messages).state == "complete"


@pytest.mark.slow
def test_a_failed_agent_is_restarted_and_asked_again() -> None:
    """CH-114: flow 3, in the course of the first phase."""
    messages = _run(Witness(blanks=2), ChainConfig(attempts=1))
    said = types_of(messages)
    first = said.index("action -> agent: PROCESS_WITH_AGENT")

    assert said[first : first + 10] == [
        "action -> agent: PROCESS_WITH_AGENT",
        "agent -> action: ERROR",
        "action -> supervisor: ERROR_NOTIFICATION",
        "supervisor -> agent: RESTART",
        "agent -> supervisor: RESTART_COMPLETE",
        "supervisor -> action: ERROR_ACKNOWLEDGED",
        "action -> client: ERROR_NOTIFICATION",
        "action -> agent: RETRY",
        "agent -> action: AGENT_RESPONSE",
        "action -> thread: PHASE_PROCESSED",
    ]
    assert [flow.check(messages).state for flow in (EXECUTION, PROCESSING, ERRORS)] == ["complete"] * 3


@pytest.mark.slow
def test_related_messages_have_one_correlation_id() -> None:
    """CH-116, CH-119, CH-128: everything that a turn consists of is found by the exchange that began it."""
    messages = [message for message in _run() if message.lane == "control" and message.to]
    start = next(message for message in messages if getattr(message.payload, "option_name", "") == "START_THREAD")
    turn = messages[messages.index(start) :]

    assert {message.correlation_id for message in turn} == {start.id}
