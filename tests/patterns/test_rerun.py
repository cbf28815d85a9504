"""Stored threads on the installed code: what still goes as it went, and the first place where it does not."""

import pytest
from tests.patterns.chains import QUESTION, Teller, Witness, chain_on, known

from antiphon.patterns.postchain import ChainConfig, rerun
from antiphon.patterns.postchain import _phases as phases
from antiphon.patterns.postchain._context import PhasePrompt
from antiphon.patterns.postchain._phases import IntentionPhaseActor
from antiphon.protocol import AgentConfig


def _told(name: str) -> Teller:
    return Teller()


@pytest.mark.slow
async def test_the_same_code_does_the_same_and_asks_no_model() -> None:
    """Also the second turn of a thread, and one whose agent had to be begun anew."""
    ledger = await known()
    async with chain_on(ledger, witness := Witness(blanks=2), ChainConfig(attempts=1)) as chain:
        first = await chain.run(QUESTION)
        second = await chain.run("And coffee?", thread_id=first.thread_id)
        asked = len(witness.asked)
        assert await rerun(ledger, first.thread_id, config=ChainConfig(attempts=1), make_model=_told) is None
        assert len(witness.asked) == asked
        assert await chain.result(second.thread_id) == second  # the thread itself is as it was
        created = await chain.create("later")
        with pytest.raises(ValueError, match="is created; only one that has ended"):
            await rerun(ledger, created, make_model=_told)


@pytest.mark.slow
async def test_the_first_divergence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = await known()
    async with chain_on(ledger) as chain:
        result = await chain.run(QUESTION)
    prompt = ChainConfig(phases={"observation": AgentConfig(system_prompt="You are somebody else.")})
    found = await rerun(ledger, result.thread_id, config=prompt, make_model=_told)
    assert found is not None
    assert found.what == "PREPARE_CONTEXT to observation/1"
    assert "another context.metadata.prompt" in found.reason

    monkeypatch.setattr(phases, "ALIGNED", 0.1)
    monkeypatch.setattr(IntentionPhaseActor, "prompt", lambda self, work: PhasePrompt(work.question))
    found = await rerun(ledger, result.thread_id, make_model=_told)
    assert found is not None
    assert found.what == "PROCESS_PHASE to intention/1"
    assert "says PROCESS_WITH_AGENT here, and something else in thread" in found.reason
