"""Typed outputs: the agent's judgement counts, code checks it, and the output of the phase names who decided."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError
from tests.patterns.chains import QUESTION, Witness, chain_on, enclosed, known, said_in

from antiphon.messages import DataPart, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.cast._cast import TextPieces
from antiphon.patterns.postchain import Add, ChainConfig, ChainContext, ChainResult, Item, Observations, _phases
from antiphon.patterns.postchain._outputs import (
    ActionOutput,
    ExperienceOutput,
    IntentionOutput,
    NumberedSources,
    ObservationOutput,
    UnderstandingOutput,
    YieldOutput,
    checked,
    marked,
    without_marks,
)
from antiphon.protocol import PHASES, AgentConfig
from antiphon.retrieval import KnowledgeBase
from antiphon.service import phase_talk

TEA = "Green tea is steeped at 80 degrees for two minutes."
POT = "An iron pot keeps water warm for an hour."


async def _run(
    witness: Witness, question: str = QUESTION, **settings: Any
) -> tuple[ChainResult, list[Message], dict[str, str]]:
    """Run a turn without tools over two documents; return its result, its rows and the ids of the documents."""
    ledger = await known()
    await KnowledgeBase(ledger).add("docs/pot.md", f"{POT} Green tea is made in it.")
    ids = {each.source: each.id for each in await KnowledgeBase(ledger).search("green tea")}
    config = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())}, **settings)
    async with chain_on(ledger, witness, config) as chain:
        result = await chain.run(question)
        return result, await said_in(ledger, result.thread_id), ids


def _asked(rows: list[Message], option: str) -> list[dict[str, Any]]:
    return [
        thaw(row.payload.arguments)
        for row in rows
        if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == option
    ]


# ---------------------------------------------------------------- the checks, as arithmetic

SOURCES = NumberedSources(("kb-1", "kb-2"), (f"# Tea\n\n{TEA}", POT))


def test_a_source_is_named_by_its_number_or_by_its_id() -> None:
    assert [SOURCES.id_of(name) for name in ("1", "[2]", " 2 ", "kb-1")] == ["kb-1", "kb-2", "kb-2", "kb-1"]
    assert [SOURCES.id_of(name) for name in ("0", "3", "kb-3", "", "²", "9" * 5000)] == [None] * 6


def test_an_unknown_source_is_a_problem_and_is_left_out() -> None:
    used, problems = checked(ExperienceOutput(synthesis="s", used=("1", "7", "1")), SOURCES)
    assert used == ExperienceOutput(synthesis="s", used=("kb-1",))
    assert problems == ("used: there is no source '7'; there are [1] to [2]",)

    scores: Any = [{"source": 2, "score": 0.9, "reason": "so"}, {"source": "x", "score": 0.1}]
    scored, problems = checked(IntentionOutput(summary="s", scores=scores), SOURCES)
    assert [(each.source, each.score, each.reason) for each in scored.scores] == [("kb-2", 0.9, "so")]  # type: ignore[attr-defined]
    assert problems == ("scores: there is no source 'x'; there are [1] to [2]",)

    links: Any = [{"source": "3", "relationship": "answers", "strength": 1.0}]
    linked, problems = checked(ObservationOutput(notes="n", links=links), NumberedSources())
    assert linked == ObservationOutput(notes="n")
    assert problems == ("links: there is no source '3'; there are none",)


def test_the_words_of_a_user_are_no_source_that_could_be_released() -> None:
    output = UnderstandingOutput(summary="s", keep=("1",), release=("user-1", "1", "2"))
    kept, problems = checked(output, SOURCES)

    assert kept == UnderstandingOutput(summary="s", keep=("kb-1",), release=("kb-2",))
    assert problems == ("release: the words of the user are no source, and are never released", "release: kb-1 is kept too")


def test_a_quote_must_be_in_its_source_word_for_word() -> None:
    """Line breaks count as spaces; other words, another source or no words do not."""
    good: Any = {"source": "1", "text": "Green tea is steeped\nat 80 degrees"}
    other: Any = {"source": "2", "text": "An iron pot keeps water hot"}
    kept, problems = checked(YieldOutput(answer="a", quotes=(good, other)), SOURCES)
    assert [each.source for each in kept.quotes] == ["kb-1"]  # type: ignore[attr-defined]
    assert problems == ("quotes: source [2] does not say 'An iron pot keeps water hot'; quote it word for word",)
    assert not SOURCES.says("kb-1", " ")


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "much"])
def test_a_score_is_between_0_and_1(wrong: Any) -> None:
    for form, more in ((ActionOutput, {"response": "r"}), (YieldOutput, {"answer": "a"})):
        with pytest.raises(ValidationError):
            form.model_validate({**more, "confidence": wrong})
    with pytest.raises(ValidationError):
        IntentionOutput.model_validate({"summary": "s", "scores": [{"source": "1", "score": wrong}]})


def test_marks_are_numbers_in_brackets_outside_of_code() -> None:
    text = "Hot [1], warm[2] and cold [7][7]; `a[3]` is code, [x] is no mark."
    assert marked(text) == (1, 2, 7)
    assert without_marks(text, [7]) == "Hot [1], warm[2] and cold; `a[3]` is code, [x] is no mark."


def test_of_json_in_pieces_the_text_of_one_field_is_heard() -> None:
    """Piece by piece, whatever the pieces are; text that is no JSON is heard as it is."""
    for size in (1, 3, 100):
        heard: list[str] = []
        pieces = TextPieces(heard.append, "answer")
        text = '  {"confidence": 0.5, "answer": "80\\u00b0 \\"hot\\" [1]", "answers": "no"}'
        for start in range(0, len(text), size):
            pieces.take(text[start : start + size])
        assert "".join(heard) == '80° "hot" [1]'
    heard = []
    pieces = TextPieces(heard.append, "answer")
    for piece in (" ", "So it", " is. {", "}"):
        pieces.take(piece)
    assert "".join(heard) == " So it is. {}"


def test_room_is_never_made_of_the_words_of_a_user() -> None:
    words = Item(id="user-1", source="user", text="How hot is tea? " * 20)
    context = ChainContext().after([Add(item=words), Add(item=Item(id="kb-1", source="knowledge", text=TEA, priority=0.9))])

    assert [operation.target for operation in _phases.make_room(context, "tea", 10)] == ["kb-1"]


# ---------------------------------------------------------------- in a chain


@pytest.mark.slow
@pytest.mark.parametrize("text", ["So it is.", "80 degrees", "[1]", "null"])
async def test_text_is_taken_as_it_is_and_code_decides(text: str) -> None:
    """A model that does not give the form is asked once, and every phase says that code has decided."""
    result, _, _ = await _run(witness := Witness(text=text))

    assert witness.asked == list(PHASES)
    assert result.outputs["action"]["response"] == text
    assert {phase: output["by"] for phase, output in result.outputs.items()} == dict.fromkeys(PHASES, "code")


@pytest.mark.slow
async def test_the_judgement_of_each_agent_counts() -> None:
    """Confidence, sources, goals, scores, names, releases and quotes are those of the agents, and so is the answer."""
    witness = Witness(
        judged={
            "action": [{"response": "80 degrees.", "confidence": 0.6}],
            "experience": [{"synthesis": "It is in [1].", "used": ["1"]}],
            "intention": [
                {
                    "summary": "A hot tea.",
                    "goals": ["Know the temperature."],
                    "scores": [{"source": 1, "score": 0.9, "reason": "says it"}, {"source": 2, "score": 0.4}],
                }
            ],
            "observation": [
                {
                    "notes": "Green tea needs 80 degrees.",
                    "entities": ["green tea"],
                    "links": [{"source": "1", "relationship": "answers", "strength": 0.9}],
                }
            ],
            "understanding": [
                {"summary": "s", "keep": ["1"], "release": ["2"], "reasons": [{"source": "2", "reason": "about pots"}]}
            ],
            "yield": [
                {
                    "answer": "At 80 degrees [1].",
                    "confidence": 0.95,
                    "quotes": [{"source": "1", "text": "steeped at 80 degrees"}],
                }
            ],
        }
    )
    result, rows, ids = await _run(witness)
    tea, pot = ids["docs/tea.md"], ids["docs/pot.md"]
    outputs = result.outputs

    assert witness.asked == list(PHASES)
    assert {phase: output["by"] for phase, output in outputs.items()} == dict.fromkeys(PHASES, "agent")
    assert (outputs["action"]["response"], outputs["action"]["confidence"]) == ("80 degrees.", 0.6)
    assert outputs["experience"]["used"] == [tea]
    assert (outputs["intention"]["goals"], outputs["intention"]["scores"]) == (
        ["Know the temperature."],
        {tea: 0.9, pot: 0.4},
    )
    assert (outputs["intention"]["reasons"], outputs["intention"]["by_code"]) == ({tea: "says it"}, [])
    assert outputs["observation"]["entities"] == ["green tea"]
    assert (outputs["understanding"]["released"], outputs["understanding"]["reasons"]) == ([pot], {pot: "about pots"})
    assert (outputs["yield"]["confidence"], [each["quote"] for each in result.citations]) == (0.95, ["steeped at 80 degrees"])
    assert result.response == f"At 80 degrees [1].\n\nSources:\n[1] docs/tea.md > Tea, line 3 ({tea}): steeped at 80 degrees"
    assert [message.text for message in result.messages] == ["At 80 degrees [1]."]
    # The goals are in the prompts of the phases after intention, and the released source is in none after understanding.
    assert "Goals:" not in witness.told["intention"][0]
    assert "Goals:\n- Know the temperature." in witness.told["observation"][0]
    assert "docs/pot.md" in witness.told["understanding"][0]
    assert "docs/pot.md" not in witness.told["yield"][0]
    (observed,) = [each for each in rows if each.text.startswith("Observed in answer to")]
    assert "Green tea needs 80 degrees. It is about green tea." in observed.text


@pytest.mark.slow
async def test_a_wrong_output_is_sent_back_with_what_is_wrong() -> None:
    """The model is told which source there is not, and its second output counts."""
    outputs = [{"synthesis": "first", "used": ["9"]}, {"synthesis": "second", "used": ["2"]}]
    result, rows, ids = await _run(witness := Witness(judged={"experience": outputs}))

    assert witness.asked.count("experience") == 2
    assert (result.outputs["experience"]["response"], len(result.outputs["experience"]["used"])) == ("second", 1)
    assert "dropped" not in result.outputs["experience"]
    refused = [row.payload for row in rows if isinstance(row.payload, OptionResultPayload) and row.lane == "talk"]
    assert "there is no source '9'; there are [1] to [2]" in str(refused)
    assert set(ids.values()) >= set(result.outputs["experience"]["used"])


@pytest.mark.slow
async def test_wrong_entries_are_dropped_and_reported_and_the_rest_counts() -> None:
    judged = {
        "experience": [{"synthesis": "s", "used": ["9", "1"]}],
        "understanding": [{"summary": "s", "release": ["user-1", "2"]}],
        "yield": [{"answer": "80 [1]", "quotes": [{"source": "1", "text": "at 90 degrees"}]}],
    }
    result, _, ids = await _run(witness := Witness(judged=judged))
    outputs = result.outputs

    assert [witness.asked.count(phase) for phase in judged] == [2, 2, 2]
    assert (len(outputs["experience"]["used"]), outputs["experience"]["by"]) == (1, "agent")
    assert outputs["experience"]["dropped"] == ["used: there is no source '9'; there are [1] to [2]"]
    assert outputs["understanding"]["dropped"] == ["release: the words of the user are no source, and are never released"]
    assert len(outputs["understanding"]["released"]) == 1
    assert "user-1" in outputs["understanding"]["retained"]
    assert outputs["yield"]["dropped"] == ["quotes: source [1] does not say 'at 90 degrees'; quote it word for word"]
    assert ids["docs/tea.md"] == result.citations[0]["id"]
    assert result.citations[0]["quote"] == TEA


@pytest.mark.slow
async def test_an_output_that_never_validates_is_taken_as_text_after_a_bounded_number_of_requests() -> None:
    judged: dict[str, list[Any]] = {
        "action": [{"response": "80", "confidence": 7}],
        "intention": [{"goal": "no such field"}],
        "yield": [{"answer": "80 it is", "confidence": "high"}],
    }
    result, _, _ = await _run(witness := Witness(judged=judged))

    assert result.status == "completed"
    assert [witness.asked.count(phase) for phase in judged] == [2, 2, 2]
    assert {
        phase: (result.outputs[phase]["response"].partition("\n")[0], result.outputs[phase]["by"]) for phase in judged
    } == {
        "action": ("80", "code"),
        "intention": ("no such field", "code"),
        "yield": ("80 it is", "code"),
    }


async def test_an_output_without_any_text_is_an_error_that_ends_the_turn() -> None:
    result, _, _ = await _run(Witness(judged={"action": [{"confidence": 0.5}]}), attempts=1, restarts=0)

    assert (result.status, result.error_code) == ("failed", "PHASE_PROCESSING_ERROR")


@pytest.mark.slow
async def test_with_text_the_agents_are_not_asked_for_forms() -> None:
    witness = Witness(judged={"yield": [{"answer": "typed", "confidence": 1.0}]})
    result, rows, _ = await _run(witness, outputs="text")

    assert (result.outputs["yield"]["by"], "the yield phase says so" in (result.response or "")) == ("code", True)
    assert all("outputs" not in each["agent"] for each in enclosed(rows, "PROCESS_WITH_AGENT"))


# ---------------------------------------------------------------- what a judgement changes


@pytest.mark.slow
@pytest.mark.parametrize(("confidence", "cycles", "why"), [(0.95, 1, "is enough"), (0.2, 2, "cycle 2 of 2 was the last")])
async def test_the_confidence_of_the_agent_decides_whether_a_turn_goes_on(confidence: float, cycles: int, why: str) -> None:
    """The source has all words of the question: by arithmetic alone, one cycle would be enough."""
    witness = Witness(judged={"yield": [{"answer": "80 [1]", "confidence": confidence}]})
    result, _, _ = await _run(witness, "Is green tea steeped?", max_cycles=2, least_change=0.0)

    assert (witness.asked.count("yield"), why in result.outputs["yield"]["rationale"]) == (cycles, True)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "again"), [("understanding", 2), ("intention", 4)])
async def test_the_agent_of_the_last_phase_chooses_the_phase_to_go_on_with(phase: str, again: int) -> None:
    witness = Witness(
        judged={"yield": [{"answer": "no", "confidence": 0.1, "next_phase": phase}, {"answer": "80", "confidence": 1}]}
    )
    result, _, _ = await _run(witness, max_cycles=3)

    assert witness.asked == [*PHASES, *PHASES[-again:]]
    assert result.outputs["yield"]["confidence"] == 1


@pytest.mark.slow
async def test_a_further_cycle_searches_for_what_the_last_one_has_said_is_missing() -> None:
    """It finds a document that has no word of the question; without a word of an agent, it searches for the uncovered ones."""
    ledger = await known()
    await KnowledgeBase(ledger).add("docs/kettle.md", "A kettle whistles at a hundred.")
    config = ChainConfig(backoff=0, max_cycles=2, least_change=0.0, phases={"action": AgentConfig(tools=())})
    searched: list[list[str | None]] = []
    for judged in (
        {"yield": [{"answer": "no", "confidence": 0.1, "search_for": "kettle"}, {"answer": "100 [1]", "confidence": 0.9}]},
        {"experience": [{"synthesis": "no", "missing": "kettle whistles"}], "yield": [{"answer": "no", "confidence": 0.1}]},
        {},
    ):
        async with chain_on(ledger, Witness(judged=judged), config) as chain:
            result = await chain.run("Where is the water for tea so loud?")
            rows = await said_in(ledger, result.thread_id)
        retrieved = [row.payload for row in rows if isinstance(row.payload, OptionCallPayload) and row.lane == "effect"]
        asked = [thaw(each.arguments)["arguments"] for each in retrieved if each.option_name == "retrieve"]
        searched.append([each.get("search_for") for each in asked])
        found = [each["source"] for each in result.outputs["experience"]["citations"]]
        assert ("docs/kettle.md" in found) is bool(judged)

    assert searched == [[None, "kettle"], [None, "kettle whistles"], [None, "water loud"]]


@pytest.mark.slow
@pytest.mark.parametrize(("score", "cited"), [(0.9, ["docs/pot.md"]), (0.1, ["docs/tea.md"])])
async def test_the_scores_of_the_agent_decide_what_is_cited(score: float, cited: list[str]) -> None:
    """By the words of the question, the other source is the better one in one of the cases."""
    ledger = await known()
    await KnowledgeBase(ledger).add("docs/pot.md", f"{POT} Green tea is made in it.")
    witness = Witness()

    def scored(id: str) -> dict[str, Any]:
        return {"summary": "s", "scores": [{"source": id, "score": score}, {"source": tea, "score": 1 - score}]}

    ids = {each.source: each.id for each in await KnowledgeBase(ledger).search("green tea")}
    tea = ids["docs/tea.md"]
    witness.judged = {"intention": [scored(ids["docs/pot.md"])]}
    config = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())})
    async with chain_on(ledger, witness, config) as chain:
        result = await chain.run(QUESTION)

    assert [each["source"] for each in result.citations] == cited
    assert result.outputs["intention"]["by"] == "agent"


@pytest.mark.slow
async def test_the_goals_of_the_agent_decide_the_scores_that_code_gives() -> None:
    goals = [{"summary": "s", "goals": ["An iron pot for an hour."]}]
    result, _, ids = await _run(Witness(judged={"intention": goals}))

    assert result.outputs["intention"]["scores"] == {ids["docs/tea.md"]: 0.0, ids["docs/pot.md"]: 1.0}
    assert result.outputs["intention"]["by"] == "agent"


@pytest.mark.slow
async def test_a_source_that_an_agent_relies_on_is_not_taken_for_noise() -> None:
    """A question in other words: by words alone the source would be released."""
    question = "Which warmth suits delicate pale leaves, such as green ones?"
    kept: list[bool] = []
    for used in (["1"], []):
        witness = Witness(judged={"experience": [{"synthesis": "s", "used": used, "missing": None if used else "x"}]})
        result, _, ids = await _run(witness, question, max_sources=1)
        assert result.outputs["experience"]["citations"][0]["relevance"] < 0.3
        kept.append(bool({*ids.values()} & {*result.outputs["understanding"]["retained"]}))
    assert kept == [True, False]


@pytest.mark.slow
async def test_a_first_answer_that_its_agent_doubts_is_not_passed_on() -> None:
    told: list[bool] = []
    for confidence in (0.9, 0.1):
        witness = Witness(judged={"action": [{"response": "Ninety degrees.", "confidence": confidence}]})
        await _run(witness)
        told.append("So far: Ninety degrees." in witness.told["experience"][0])
    assert told == [True, False]


# ---------------------------------------------------------------- citations


@pytest.mark.slow
async def test_a_mark_without_a_citation_is_removed_and_reported() -> None:
    for judged in ({"yield": [{"answer": "80 [1][8] degrees [7].", "confidence": 0.9}]}, {}):
        witness = Witness(judged=judged)
        result, _, _ = await _run(witness)
        text = (result.response or "").partition("\n\nSources:")[0]
        if judged:
            assert (text, result.outputs["yield"].get("removed_marks")) == ("80 [1] degrees.", [8, 7])
            assert [each["number"] for each in result.citations] == [1]
        else:
            assert "removed_marks" not in result.outputs["yield"]


@pytest.mark.slow
async def test_only_the_sources_with_a_mark_are_cited_by_an_agent() -> None:
    result, _, _ = await _run(Witness(judged={"yield": [{"answer": "In iron [2].", "confidence": 0.9}]}), "Is green tea made?")
    assert [each["number"] for each in result.citations] == [2]


@pytest.mark.slow
async def test_observations_of_earlier_threads_are_separate_and_never_cited() -> None:
    """Neither an earlier question nor the words of a model are a source."""
    ledger = await known()
    notes = [{"notes": "Ninety degrees are too hot for green tea.", "entities": ["green tea"]}]
    witness = Witness(judged={"observation": notes})
    config = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())})
    async with chain_on(ledger, witness, config) as chain:
        first = await chain.run("Is ninety degrees too hot for green tea?", user_id="ada")
        (observed,) = await Observations(ledger).search("ninety", user_id="ada")
        second = await chain.run("Is ninety degrees too hot for green tea?", user_id="ada")

    assert second.outputs["experience"]["observations"] == [{"id": observed.id, "from": f"observed in {first.thread_id}"}]
    assert {each["source"] for each in second.outputs["experience"]["citations"]} == {"docs/tea.md"}
    assert "Observed before; this is no source:\n- Observed in answer to" in witness.told["experience"][1]
    assert {each["source"] for each in second.citations} <= {"docs/tea.md"}
    assert "observed" not in (second.response or "").casefold()


# ---------------------------------------------------------------- while it runs, and after


@pytest.mark.slow
async def test_the_words_of_a_typed_output_are_heard_as_text() -> None:
    witness = Witness(judged={"yield": [{"answer": "At 80 degrees [1].", "confidence": 0.9}]})
    async with chain_on(await known(), witness) as chain:
        thread_id = await chain.create(QUESTION)

        async def follow() -> list[Any]:
            return [event async for event in chain.events(thread_id)]

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await chain.start(thread_id)
        events = await following
    words = [event.text for event in events if event.kind == "text" and event.phase == "yield"]
    assert len(words) > 1
    assert "".join(words) == "At 80 degrees [1]."
    assert [event.text for event in events if event.kind.startswith("tool")] == ["knowledge_base"] * 2


@pytest.mark.slow
async def test_a_phase_that_has_begun_with_text_goes_on_with_text() -> None:
    """The thread says how an agent was asked: a phase without an entry for typed outputs is asked for text again."""
    ledger = await known()
    judged = {"action": [{"response": "typed", "confidence": 1.0}], "yield": [{"answer": "typed", "confidence": 1.0}]}
    witness = Witness(judged=judged)
    text = ChainConfig(backoff=0, outputs="text", phases={"action": AgentConfig(tools=())})
    held = asyncio.Event()

    async def hold(phase: str) -> None:
        if phase == "intention":
            held.set()
            await asyncio.Event().wait()

    witness.on_request = hold
    async with chain_on(ledger, witness, text) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.wait()
    witness.on_request = None
    async with chain_on(ledger, witness, ChainConfig(backoff=0)) as chain:
        result = await chain.wait(thread_id)

    assert result.status == "completed"
    assert witness.asked == [*PHASES[:3], *PHASES[2:]]
    assert {phase: output["by"] for phase, output in result.outputs.items()} == {
        **dict.fromkeys(PHASES[:5], "code"),
        "yield": "agent",
    }
    asked = enclosed(await said_in(ledger, thread_id), "PROCESS_WITH_AGENT")
    assert ["outputs" in each["agent"] for each in asked] == [False] * 3 + [True] * 3
    assert ["sources" in each for each in asked] == [False] + [True] * 5


@pytest.mark.slow
async def test_typed_outputs_are_read_as_text_and_judgement() -> None:
    """The last answer is the one with its marks checked; a refused output stays a call with its refusal."""
    judged: dict[str, list[Any]] = {
        "experience": [{"synthesis": "first", "used": ["9"]}, {"synthesis": "second", "used": ["1"]}],
        "yield": [{"answer": "80 [1][8].", "confidence": 0.9}],
    }
    _, rows, _ = await _run(Witness(judged=judged))
    talk = phase_talk(row for row in rows if row.lane == "talk")

    said = [(message.policy, message.kind, message.text) for message in talk]
    assert said[:2] == [("user", "parts", QUESTION), ("action", "parts", "the action phase says so")]
    assert [(policy, kind) for policy, kind, _ in said[2:5]] == [
        ("experience", "option_call"),
        ("final_result", "option_result"),
        ("experience", "parts"),
    ]
    assert (said[4][2], talk[4].parts[1]) == ("second", DataPart(data={"used": ["1"]}))
    assert [policy for policy, _, _ in said[5:]] == ["intention", "observation", "understanding", "yield"]
    assert (talk[-1].text, talk[-1].parts[1]) == ("80 [1].", DataPart(data={"confidence": 0.9}))
