"""Phases of the program between the six: a class of ten lines, durable like the others, and unknown to the protocol."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.patterns.chains import QUESTION, Teller, Witness, branch, chain_on, known, said_in

from antiphon.errors import ConfigError, UnguardedToolError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload
from antiphon.patterns.postchain import ChainConfig, Contribution, OwnPhase, PhaseWork, PostChain, Prune, rerun
from antiphon.protocol import PHASES, AgentConfig

QUIET = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())})


class Verdict(BaseModel):
    """What a critic says."""

    verdict: str
    stars: int = Field(ge=0, le=5)


class Critique(OwnPhase):
    """Says what is weak, and has no patience with sources."""

    name = "critique"
    prompt = "You are the critique phase. Say what is weak in the answer so far."
    output_type = Verdict

    def conclude(self, work: PhaseWork, output: Verdict) -> Contribution:  # type: ignore[override]
        gone = [Prune(target=item.id, reason="the critic") for item in work.sources if output.stars < 3]
        return Contribution(output.verdict, output.stars / 5, gone, {"stars": output.stars})


class Plain(OwnPhase):
    """As little as possible."""

    name = "plain"
    prompt = "You are the plain phase."


ORDER = ("action", "experience", Critique, "intention", "understanding", "yield")
NAMES = ["action", "experience", "critique", "intention", "understanding", "yield"]


@pytest.mark.slow
@pytest.mark.parametrize(("stars", "cited"), [(5, ["docs/tea.md"]), (1, [])])
async def test_a_phase_of_the_program_takes_its_place(stars: int, cited: list[str]) -> None:
    """It gets the same input as the others, its output is typed, and its operations take effect."""
    witness = Witness(judged={"critique": [{"verdict": "Vague.", "stars": stars}]})
    async with chain_on(witness=witness, config=QUIET, phases=ORDER) as chain:
        thread_id = await chain.create(QUESTION)
        events: list[Any] = []
        with chain.listening(thread_id, events.append):
            await chain.start(thread_id)
            result = await chain.wait(thread_id)
        life = await chain.life(thread_id)

    assert (result.status, witness.asked) == ("completed", NAMES)
    assert witness.told["critique"][0].startswith(f"{QUESTION}\n\nSources:\n[1] docs/tea.md: ")
    assert ("So far: Vague." in witness.told["intention"][0]) is (stars == 5)  # a doubted answer is not passed on
    output = result.outputs["critique"]
    assert (output["response"], output["confidence"], output["stars"]) == ("Vague.", stars / 5, stars)
    assert [each["source"] for each in result.citations] == cited
    assert [event.phase for event in events if event.kind == "phase_ended"] == NAMES
    assert (life.order, life.completed) == (tuple(NAMES), tuple(NAMES))


@pytest.mark.slow
async def test_a_phase_without_a_conclusion_gives_its_text() -> None:
    async with chain_on(witness=(witness := Witness()), config=QUIET, phases=["action", Plain, "yield"]) as chain:
        result = await chain.run(QUESTION)
        again = await chain.run("And coffee?", thread_id=result.thread_id)
        status = await chain.status(result.thread_id)

    assert witness.asked == ["action", "plain", "yield"] * 2
    assert again.outputs["plain"]["response"] == "the plain phase says so"
    assert (status.phases_completed, status.phases_remaining) == (("action", "yield"), ())


@pytest.mark.slow
async def test_it_goes_round_only_through_phases_that_there_are() -> None:
    """The rule would go on with experience, and the agent with observation: this chain has neither."""
    config = QUIET.model_copy(update={"max_cycles": 2, "least_change": 0.0})
    for judged in ({}, {"yield": [{"answer": "no", "confidence": 0.1, "next_phase": "observation"}]}):
        witness = Witness(judged=judged)
        async with chain_on(witness=witness, config=config, phases=["action", Plain, "yield"]) as chain:
            assert (await chain.run("What is the airspeed of a swallow?")).status == "completed"
        assert witness.asked == ["action", "plain", "yield"] * 2


@pytest.mark.slow
async def test_a_thread_is_cut_off_at_each_row_and_ends_as_a_whole_one() -> None:
    """Its agent is asked once for each answer that is recorded; a chain without the phase leaves the thread alone."""
    phases = ["action", Plain, "yield"]
    async with chain_on(ledger := await known(), witness := Witness(), QUIET, phases=phases) as chain:
        whole = await chain.run(QUESTION)
    rows = await said_in(ledger, whole.thread_id)
    begun = next(
        number
        for number, row in enumerate(rows, 1)
        if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == "PROCESS_OWN_PHASE"
    )
    assert witness.asked == ["action", "plain", "yield"]
    for upto in [end for end in ledger.ends[whole.thread_id] if end >= begun][::3]:
        left = await branch(ledger, whole.thread_id, upto)
        async with chain_on(left, Witness(), QUIET, recover=False) as chain:
            if (await chain.life(whole.thread_id)).status == "processing":
                with pytest.raises(UnguardedToolError, match="the program that the thread is of: 'plain'"):
                    await chain.resume(whole.thread_id)
        async with chain_on(left, again := Witness(), QUIET, phases=phases) as chain:
            result = await chain.wait(whole.thread_id)
        assert (result.status, result.response) == (whole.status, whole.response), (upto, result.error_message)
        assert len(again.asked) <= 2


@pytest.mark.slow
async def test_a_chain_without_the_phase_pauses_the_thread() -> None:
    async with chain_on(ledger := await known(), Witness(), QUIET, phases=["action", Plain, "yield"]) as chain:
        whole = await chain.run(QUESTION)
    left = await branch(ledger, whole.thread_id, ledger.ends[whole.thread_id][8])
    async with chain_on(left, witness := Witness(), QUIET) as chain:
        result = await chain.wait(whole.thread_id)
    assert (result.status, result.error_code, witness.asked) == ("paused", "UNGUARDED_TOOL", [])
    async with chain_on(left, Witness(), QUIET, phases=["action", Plain, "yield"]) as chain:
        await chain.resume(whole.thread_id)
        assert (await chain.wait(whole.thread_id)).response == whole.response


async def test_the_protocol_refuses_such_a_chain() -> None:
    """It knows six phases. A chain that leaves some of them out is no chain of the protocol, either."""
    for phases in (ORDER, ["action", "yield"]):
        async with chain_on(MemoryLedger(), config=QUIET, phases=phases) as chain:
            data = {"user_id": "ada", "initial_input": "Hello"}
            refused = await chain.send({"type": "CREATE_THREAD", "data": data})
            assert (refused["type"], refused["data"].get("error_code")) == ("ERROR", "VALIDATION_ERROR")
            assert "use it from Python" in refused["data"]["error_message"]


async def test_phases_are_checked_when_the_chain_is_made(tmp_path: Path) -> None:
    def own(**more: Any) -> type[OwnPhase]:
        return type("Mine", (OwnPhase,), {"name": "mine", "prompt": "Say.", **more})

    for phases, why in (
        (["action", "ending", "yield"], "there is no phase 'ending'"),
        (["action"], "the last one is 'yield'"),
        ([], "the last one is 'yield'"),
        (["action", "action", "yield"], "'action' is there twice"),
        ([own(name="thread"), "yield"], r"Mine.name is 'thread'"),
        ([own(name="Bad Name"), "yield"], r"Mine.name is 'Bad Name'"),
        ([own(prompt=tmp_path / "none.md"), "yield"], r"prompts.mine: .*none.md: No such file"),
        ([own(tools=("hammer",)), "yield"], "there is no tool 'hammer'"),
    ):
        with pytest.raises(ConfigError, match=why):
            PostChain(phases=phases)
    (tmp_path / "mine.md").write_text("You are the mine phase.\n")
    async with chain_on(
        witness=(witness := Witness()), config=QUIET, phases=[own(prompt=tmp_path / "mine.md"), "yield"]
    ) as chain:
        assert (await chain.run(QUESTION)).status == "completed"
    assert witness.asked == ["mine", "yield"]


@pytest.mark.slow
async def test_the_six_phases_are_nothing_that_a_thread_records() -> None:
    """A thread of the six has the rows that it had before there were others."""
    async with chain_on(config=QUIET, phases=PHASES) as chain:
        result = await chain.run(QUESTION)
        rows = await said_in(chain.ledger, result.thread_id)
        assert (await chain.life(result.thread_id)).phases is None
        assert "phases" not in rows[0].payload.arguments  # type: ignore[union-attr]


@pytest.mark.slow
async def test_a_thread_with_phases_of_the_program_is_run_again() -> None:
    """With the program's phases it comes out the same; with a phase that concludes otherwise, there it diverges."""
    witness = Witness(judged={"critique": [{"verdict": "Vague.", "stars": 5}]})
    ledger = MemoryLedger()
    async with chain_on(ledger, witness=witness, config=QUIET, phases=ORDER) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await chain.wait(thread_id)
    asked = list(witness.asked)

    class Milder(Critique):
        """The same phase, with another conclusion."""

        def conclude(self, work: PhaseWork, output: Verdict) -> Contribution:  # type: ignore[override]
            return Contribution(output.verdict, 1.0, (), {"stars": output.stars + 1})

    given: dict[str, Any] = {"config": QUIET, "make_model": lambda name: Teller(witness)}
    assert await rerun(ledger, thread_id, phases=ORDER, **given) is None
    found = await rerun(ledger, thread_id, phases=tuple(Milder if each is Critique else each for each in ORDER), **given)
    assert found is not None
    assert ("critique" in found.what, "stars" in found.reason) == (True, True)
    assert witness.asked == asked


async def test_the_text_of_a_prompt_is_recorded_once_and_said_to_the_model_once() -> None:
    """Elsewhere, its name stands for it, which has its hash. The prompt of a phase of ours is in its prepared context too."""
    ledger = MemoryLedger()
    async with chain_on(ledger, witness=Witness(), config=QUIET, phases=("action", Plain, "yield")) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await chain.wait(thread_id)

    rows = [record.message async for record in ledger.read(thread_id)]
    for text, lanes in ((str(Plain.prompt), ["talk"]), ("You are the action phase", ["control", "talk"])):
        assert [row.lane for row in rows if text in row.model_dump_json()] == lanes
