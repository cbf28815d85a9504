"""The work of the phases that no model does: find, score, remember, release, cite, start another cycle."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patterns.chains import QUESTION, Witness, chain_on, enclosed, known, said_in

from antiphon.errors import ConfigError
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.postchain import (
    Add,
    ChainConfig,
    ChainContext,
    ChainResult,
    Item,
    Link,
    Observations,
    PostChain,
    Prioritize,
    Prune,
    Tag,
    Transform,
)
from antiphon.patterns.postchain._config import prompt_of
from antiphon.patterns.postchain._context import operations_from, operations_to
from antiphon.patterns.postchain._phases import let_go
from antiphon.patterns.postchain._retrieval import entities_in, goals_in, quote_of, relevance
from antiphon.protocol import PHASES, AgentConfig
from antiphon.retrieval import KnowledgeBase


def _asked(rows: list[Message], option: str) -> list[dict[str, Any]]:
    return [
        thaw(row.payload.arguments)
        for row in rows
        if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == option
    ]


def _answers(rows: list[Message], option: str) -> list[dict[str, Any]]:
    return [
        thaw(row.payload.result)
        for row in rows
        if isinstance(row.payload, OptionResultPayload) and row.payload.option_name == option
    ]


# ---------------------------------------------------------------- CH-124: what each phase does

BOTH = f"{QUESTION} For how many minutes?"
MORE = "How hot is green tea steeped in winter?"
"""What the sources answer three quarters of."""
SOUP = "Soup is served hot."
PASSAGE = "# Tea\n\nGreen tea is steeped at 80 degrees for two minutes."
"""What the knowledge base has about green tea, as `known` put it there."""


@dataclass(frozen=True)
class _Turn:
    """A turn in which the action phase has no tools: what is found, the other phases have found."""

    chain: PostChain
    result: ChainResult
    rows: list[Message]
    told: dict[str, list[str]]
    tea: str
    """The id of the passage that has the answer."""
    soup: str
    """The id of one that has a word of the question, and nothing to do with it."""

    def operations(self, phase: str) -> list[Any]:
        said = [each for each in _answers(self.rows, "PROCESS_PHASE") if each["phase_type"] == phase]
        return list(operations_from(said[0]["output"]["context_operations"]))

    def given_to(self, phase: str) -> dict[str, str]:
        """Return what a phase is given to go by: texts by id."""
        place = [each["phase_type"] for each in _asked(self.rows, "PROCESS_PHASE")].index(phase)
        return {each["id"]: each["text"] for each in enclosed(self.rows, "PROCESS_PHASE")[place]["items"]}


@asynccontextmanager
async def _turn(question: str = BOTH, more: Mapping[str, str] | None = None, **settings: Any) -> AsyncIterator[_Turn]:
    ledger = await known()
    for source, text in {"docs/soup.md": SOUP, **(more or {})}.items():
        await KnowledgeBase(ledger).add(source, text)
    (tea,) = await KnowledgeBase(ledger).search("steeped")
    (soup,) = await KnowledgeBase(ledger).search("soup")
    witness = Witness()
    config = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())}, **settings)
    async with chain_on(ledger, witness, config) as chain:
        result = await chain.run(question)
        rows = await said_in(ledger, result.thread_id)
        yield _Turn(chain, result, rows, witness.told, tea.id, soup.id)


# Mutant: ActionPhaseActor (_action.py) has no `prompt` of its own, or adds a changed or no user item -> this test is red.
@pytest.mark.slow
async def test_action_answers_the_bare_question_and_keeps_the_words_of_the_user() -> None:
    """CH-124: at once: also in a second cycle, when sources are known, its model is asked the question and nothing else."""
    async with _turn(MORE, max_cycles=2, least_change=0.0) as turn:
        assert turn.told["action"] == [MORE, MORE]
        assert turn.result.outputs["action"]["response"] == "the action phase says so"
        words, answer = [each.item for each in turn.operations("action")]
        assert (words.source, words.text) == ("user", MORE)
        assert (answer.source, answer.text) == ("agent", "the action phase says so")


# Mutant: ExperiencePhaseActor (_experience.py) has no `gather` of its own, or its `conclude` cites nothing, or adds nothing
# -> this test is red.
@pytest.mark.slow
async def test_experience_finds_what_is_known_before_its_model_is_asked_and_cites_it() -> None:
    """CH-124: by the ids that the knowledge base has, the best first; the model is told the best ones word for word."""
    async with _turn() as turn:
        assert turn.result.outputs["experience"]["citations"] == [
            {"id": turn.tea, "source": "docs/tea.md", "heading": ["Tea"], "lines": [3, 3], "relevance": 1.0},
            {"id": turn.soup, "source": "docs/soup.md", "lines": [1, 1], "relevance": 0.0},
        ]
        (told,) = turn.told["experience"]
        assert told.startswith(f"{BOTH}\n\nSources:\n[1] docs/tea.md: {PASSAGE}")
        found = [each for each in turn.operations("experience") if isinstance(each, Add)]
        assert [(each.item.id, each.item.text) for each in found] == [(turn.tea, PASSAGE), (turn.soup, SOUP)]


# Mutant: IntentionPhaseActor.conclude (_intention.py) has the whole question as its only goal, or scores nothing, or tags
# nothing -> this test is red.
@pytest.mark.slow
async def test_intention_names_the_goals_and_scores_each_source_by_the_one_that_it_serves_best() -> None:
    """CH-124: a sentence each. The passage says all of the second one; the soup is beside the point."""
    async with _turn() as turn:
        output = turn.result.outputs["intention"]
        assert output["goals"] == [QUESTION, "For how many minutes?"]
        assert output["scores"] == {turn.tea: 1.0, turn.soup: 0.0}
        assert [each for each in turn.operations("intention") if isinstance(each, Tag)] == [
            Tag(target=turn.tea, tags=("aligned",)),
            Tag(target=turn.soup, tags=("low_relevance",)),
        ]
        ranked = [each for each in turn.operations("intention") if isinstance(each, Prioritize)]
        assert [(each.target, each.priority) for each in ranked] == [(turn.tea, 1.0), (turn.soup, 0.0)]


# Mutant: ObservationPhaseActor.conclude (_observation.py) does not write its message down, or links nothing, or links what is
# weak too -> this test is red.
@pytest.mark.slow
async def test_observation_records_in_the_ledger_which_source_answers_the_question() -> None:
    """CH-124: as a message of the thread, under the id that its output has; what is weakly related is not linked."""
    async with _turn() as turn:
        (observed,) = await Observations(turn.chain.ledger).in_thread(turn.result.thread_id)
        link = Link(target="user-1", linked_to=turn.tea, relationship="is answered by", strength=1.0)
        assert observed.links == (link,)
        assert (observed.id, observed.question) == (turn.result.outputs["observation"]["observation"], BOTH)
        assert observed.entities == tuple(turn.result.outputs["observation"]["entities"]) == ("Tea", "Green")
        assert observed.id in {row.id for row in turn.rows}
        assert turn.operations("observation") == [link, Tag(target=turn.tea, tags=("persist",))]


# Mutant: let_go (_understanding.py) returns nothing, or UnderstandingPhaseActor.conclude no operations -> this test is red.
@pytest.mark.slow
async def test_understanding_lets_go_of_what_is_beside_the_point_and_keeps_the_rest() -> None:
    """CH-124: it was given the soup, says that it let it go, and the last phase is not given it any more."""
    async with _turn() as turn:
        output = turn.result.outputs["understanding"]
        assert (output["retained"], output["released"]) == (["user-1", "action", turn.tea], [turn.soup])
        assert turn.operations("understanding") == [Prune(target=turn.soup, reason="relevance 0 is below 0.3")]
        assert list(turn.given_to("understanding")) == ["user-1", "action", turn.tea, turn.soup]
        assert list(turn.given_to("yield")) == ["user-1", "action", turn.tea]


# Mutant: let_go (_understanding.py) prunes only what is beside the point, or never shortens -> this test is red.
@pytest.mark.slow
async def test_understanding_makes_room_and_never_at_the_cost_of_the_users_words() -> None:
    """CH-124: text of agents is released first; then a source that covers half is shortened to its best sentence."""
    pots = "Green tea pots are hot at 80 degrees."

    more = {"docs/pots.md": f"{pots} {'They last for long. ' * 10}".strip()}
    async with _turn(QUESTION, more, context_limit=200) as turn:
        (kept,) = await KnowledgeBase(turn.chain.ledger).search("pots")
        assert turn.given_to("understanding")[kept.id] == more["docs/pots.md"]
        assert turn.given_to("yield") == {"user-1": QUESTION, turn.tea: PASSAGE, kept.id: pots}
    long = f"{QUESTION} {'Please, please tell me. ' * 20}".strip()
    async with _turn(long, context_limit=200) as turn:
        assert turn.given_to("yield") == {"user-1": long}


# Mutant: YieldPhaseActor.conclude (_yield.py) answers without `_with_sources`, or `_citation` quotes the whole passage
# -> this test is red.
@pytest.mark.slow
async def test_yield_answers_in_the_words_of_its_model_with_sources_that_say_what_is_quoted() -> None:
    """CH-124: the answer of the turn is its own, each source by number, name, id and a sentence that is in the ledger."""
    async with _turn() as turn:
        quote = "Green tea is steeped at 80 degrees for two minutes."
        place = f"docs/tea.md > Tea, line 3 ({turn.tea})"
        assert turn.result.response == f"the yield phase says so\n\nSources:\n[1] {place}: {quote}"
        cited = {"number": 1, "id": turn.tea, "source": "docs/tea.md", "quote": quote, "relevance": 1.0}
        assert turn.result.citations == ({**cited, "heading": ["Tea"], "lines": [3, 3]},)
        assert turn.result.outputs["yield"]["next_phase"] is None
        thread = f"knowledge/{turn.tea.rsplit('-', 2)[0]}"
        (passage,) = [row for row in await said_in(turn.chain.ledger, thread) if row.id == turn.tea]
        assert quote in passage.text


# Mutant: next_phase (_recursion.py) always answers -> this test is red.
@pytest.mark.slow
async def test_yield_goes_on_with_another_phase_instead_of_answering_while_that_may_help() -> None:
    """CH-124, CH-125: a source that says less than the threshold of it is not enough; the answer is that of the last cycle."""
    async with _turn(MORE, max_cycles=2, least_change=0.0) as turn:
        first, second = [each["output"] for each in _answers(turn.rows, "PROCESS_PHASE") if each["phase_type"] == "yield"]
        assert (first["next_phase"], first["rationale"]) == ("action", "a confidence of 0.73 is not enough")
        assert (second["next_phase"], second["rationale"]) == (None, "cycle 2 of 2 was the last")
        assert [each["phase_type"] for each in _asked(turn.rows, "PROCESS_PHASE")] == [*PHASES, *PHASES]
        assert turn.result.response == second["response"]


@pytest.mark.slow
async def test_later_threads_of_the_same_user_find_what_a_thread_observed() -> None:
    """CH-124: a store on the ledger that can be queried; observations of other users are not in it."""
    ledger = await known()
    async with chain_on(ledger) as chain:
        first = await chain.run(QUESTION, user_id="ada")
        (found,) = await Observations(ledger).search("green tea", user_id="ada")
        assert (found.thread_id, found.question) == (first.thread_id, QUESTION)
        assert found.links[0].linked_to == first.citations[0]["id"]
        assert await Observations(ledger).in_thread(first.thread_id) == (found,)
        assert await Observations(ledger).search("green tea", user_id="bob") == ()
        second = await chain.run("Is green tea steeped longer than that?", user_id="ada")
        found_again = [each["from"] for each in second.outputs["experience"]["observations"]]
        assert found_again == [f"observed in {first.thread_id}"]
        third = await chain.run("Is green tea steeped longer than that?", user_id="bob")
        assert "observed" not in str(third.outputs["experience"])


# ---------------------------------------------------------------- context operations

ITEM = Item(id="kb-1", source="knowledge", title="docs", text="tea is hot", priority=0.5)
WORDS = Item(id="user-1", source="user", text="How hot is tea?", priority=1.0)


def test_operations_do_what_they_say() -> None:
    """CH-126: ADD, TAG, PRIORITIZE, TRANSFORM, LINK, PRUNE."""
    context = ChainContext().after([Add(item=ITEM), Add(item=WORDS)])
    link = Link(target="kb-1", linked_to="user-1", relationship="answers", strength=0.9)
    changed = context.after(
        [
            Tag(target="kb-1", tags=("seen",)),
            Prioritize(target="kb-1", priority=0.9),
            Transform(target="kb-1", text="hot"),
            link,
        ]
    )

    assert changed.items["kb-1"] == ITEM.model_copy(update={"tags": ("seen", "summarize"), "priority": 0.9, "text": "hot"})
    assert changed.links == (link,)
    assert list(changed.after([Prune(target="kb-1", reason="no room")]).items) == ["user-1"]
    assert context.items["kb-1"] == ITEM  # nothing was changed, something was made


@pytest.mark.parametrize("operation", [Prune(target="user-1", reason="long"), Transform(target="user-1", text="Hot?")])
def test_a_users_words_are_not_touched_without_consent(operation: Any) -> None:
    context = ChainContext().after([Add(item=WORDS)])

    assert context.after([operation]).items == context.items
    assert context.after([operation]).declined == (operation,)
    assert context.after([operation.model_copy(update={"consent": True})]).items != context.items


_TEXT = st.text(alphabet="abc. \n", min_size=1, max_size=300)
_ITEMS = st.lists(
    st.builds(
        Item,
        id=st.sampled_from([f"i{number}" for number in range(8)]),
        source=st.sampled_from(["user", "agent", "knowledge", "observation"]),
        text=_TEXT,
        priority=st.floats(0, 1),
    ),
    max_size=8,
)


@given(_ITEMS, st.integers(10, 600))
def test_the_context_keeps_within_the_limit_and_has_every_word_of_users(items: list[Item], room: int) -> None:
    """CH-124: understanding keeps within the limit, unless the users' words alone are more; and only changes what it says."""
    context = ChainContext().after(Add(item=item) for item in items)
    left = context.after(let_go(context, "abc", room))
    words = {item.id: item for item in context if item.source == "user"}

    assert {item.id: item for item in left if item.source == "user"} == words
    assert left.size <= max(room, sum(len(item.text) for item in words.values()))
    assert left.declined == ()


@given(_ITEMS)
def test_operations_survive_being_written_down(items: list[Item]) -> None:
    operations = tuple(Add(item=item) for item in items)

    assert operations_from(operations_to(operations)) == operations


@pytest.mark.slow
async def test_operations_are_journaled_with_the_phase_that_did_them() -> None:
    """CH-126: and the next phase is given what they amount to."""
    async with chain_on() as chain:
        result = await chain.run(QUESTION)
        rows = await said_in(chain.ledger, result.thread_id)
        done = {
            each["phase_type"]: operations_from(each["output"]["context_operations"])
            for each in _answers(rows, "PROCESS_PHASE")
        }
        assert {phase: sorted({each.operation for each in found}) for phase, found in done.items()} == {
            "action": ["ADD"],
            "experience": ["ADD", "TAG"],
            "intention": ["PRIORITIZE", "TAG"],
            "observation": ["LINK", "TAG"],
            "understanding": [],
            "yield": [],
        }
        context = ChainContext().after(each for phase in PHASES[:5] for each in done[phase])
        given_to_yield = enclosed(rows, "PROCESS_PHASE")[-1]["items"]
        assert [Item.model_validate(each) for each in given_to_yield] == list(context)


# ---------------------------------------------------------------- going round again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "config", "cycles", "why"),
    [
        ("What is the airspeed of a swallow?", ChainConfig(), 1, "cycle 1 of 1 was the last"),
        ("What is the airspeed of a swallow?", ChainConfig(max_cycles=2, least_change=0.0), 2, "cycle 2 of 2 was the last"),
        ("What is the airspeed of a swallow?", ChainConfig(max_cycles=3, least_change=0.0), 2, "it would loop"),
        ("What is the airspeed of a swallow?", ChainConfig(max_cycles=9), 2, "changed the confidence by less than 0.1"),
        ("Is tea steeped?", ChainConfig(max_cycles=9), 1, "is enough"),
    ],
)
async def test_the_last_phase_goes_round_again_until_a_rule_says_stop(
    question: str, config: ChainConfig, cycles: int, why: str
) -> None:
    """CH-125: max cycles, loops, enough confidence, convergence; and each cycle is in the ledger."""
    async with chain_on(config=config) as chain:
        result = await chain.run(question)
        assert result.status == "completed"
        assert (result.outputs["yield"]["cycle"], why in result.outputs["yield"]["rationale"]) == (cycles, True)
        asked = [each["phase_type"] for each in _asked(await said_in(chain.ledger, result.thread_id), "PROCESS_PHASE")]
        assert asked == [*PHASES, *PHASES[1:] * (cycles - 1)]  # there was no source: it goes on with experience
        life = await chain.life(result.thread_id)
        assert (life.cycle, life.completed) == (cycles, PHASES)


# ---------------------------------------------------------------- how phases are set up


@pytest.mark.slow
async def test_a_configuration_is_replaced_merged_and_survives_a_restart() -> None:
    """CH-071, CH-072, CH-081, CH-082: from the next run on; what is not said stays."""
    ledger = await known()
    async with chain_on(ledger) as chain:
        prompt = {"phase_type": "action", "config": {"system_prompt": "You are the pirate phase.", "tools": []}}
        ready = await chain.send({"type": "INITIALIZE_PHASE", "data": prompt})
        update = {"agent_id": ready["data"]["agent_id"], "config": {"temperature": 0.5}}
        assert (await chain.send({"type": "UPDATE_AGENT_CONFIG", "data": update}))["data"]["status"] == "updated"
    async with chain_on(ledger, witness := Witness()) as chain:
        result = await chain.run(QUESTION)
        assert witness.asked == ["pirate", *PHASES[1:]]
        rows = await said_in(ledger, result.thread_id)
        assert any(row.role_hint_for_llm == "system" and row.text == "You are the pirate phase." for row in rows)
        prepared = _answers(rows, "PREPARE_CONTEXT")[0]["context"]
        assert prepared["metadata"]["prompt"].startswith("action@")  # its text is in the talk with the model, once
        assert (prepared["metadata"]["agent"]["temperature"], prepared["tools"]) == (0.5, [])


@pytest.mark.slow
async def test_a_context_begins_with_the_prompt_of_its_phase_and_records_its_version() -> None:
    """CH-073 to CH-075."""
    async with chain_on() as chain:
        thread_id = await chain.create(QUESTION, user_id="ada", metadata={"session_id": "s-1"})
        await chain.start(thread_id)
        await chain.wait(thread_id)
        rows = await said_in(chain.ledger, thread_id)
        for prepared, phase in zip(_answers(rows, "PREPARE_CONTEXT"), PHASES, strict=True):
            first = prepared["context"]["messages"][0]
            assert (first["role"], first["content"]) == ("system", prompt_of(phase).text)
            assert first["content"].startswith(f"You are the {phase} phase")
            metadata = prepared["context"]["metadata"]
            assert (metadata["prompt"], metadata["user_id"], metadata["session_id"]) == (f"{phase}@2", "ada", "s-1")


def test_a_file_says_how_phases_are_set_up(tmp_path: Path) -> None:
    path = tmp_path / "chain.toml"
    path.write_text('model = "scripted"\nmax_cycles = 2\n\n[phases.action]\ntools = ["calculator"]\ntemperature = 0.1\n')
    config = ChainConfig.read(path)

    assert (config.max_cycles, config.agent("action").tools, config.agent("yield").tools) == (2, ("calculator",), ())
    assert config.agent("action") == AgentConfig(
        model="scripted", max_tokens=800, temperature=0.1, tools=("calculator",), system_prompt=prompt_of("action").text
    )
    path.write_text("max_cycle = 2\n")
    with pytest.raises(ConfigError, match="max_cycle: there is no key 'max_cycle'; is it 'max_cycles'"):
        ChainConfig.read(path)
    path.write_text("max_cycles =\n")
    with pytest.raises(ConfigError, match="not TOML"):
        ChainConfig.read(path)
    with pytest.raises(ConfigError, match="No such file"):
        ChainConfig.read(tmp_path / "none.toml")


@pytest.mark.slow
async def test_an_agent_uses_a_function_that_it_was_given() -> None:
    """A tool that is named in the configuration; what it does is recorded once."""
    called: list[str] = []

    def knowledge_base(query: str) -> str:
        """Look something up."""
        called.append(query)
        return "80 degrees"

    async with chain_on(tools=[knowledge_base]) as chain:
        assert (await chain.run(QUESTION)).status == "completed"

    assert called == [QUESTION]


@pytest.mark.slow
async def test_events_are_seen_while_they_happen() -> None:
    """Phases, tools and words in order; the words of the last phase are those of its answer."""
    async with chain_on() as chain:
        thread_id = await chain.create(QUESTION)

        async def follow() -> list[Any]:
            return [event async for event in chain.events(thread_id)]

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await chain.start(thread_id)
        events = await following
        assert [event.phase for event in events if event.kind == "phase_began"] == list(PHASES)
        assert [event.phase for event in events if event.kind == "phase_ended"] == list(PHASES)
        assert [event.text for event in events if event.kind.startswith("tool")] == ["knowledge_base"] * 2
        words = "".join(event.text for event in events if event.kind == "text" and event.phase == "yield")
        assert events[-1].data["response"].startswith(words.strip())
        assert (events[-1].kind, events[-1].text) == ("ended", "completed")


# ---------------------------------------------------------------- relevance


def test_relevance_is_the_share_of_a_questions_words() -> None:
    assert relevance("How hot is green tea?", "Green teas are hot.") == 1.0
    assert relevance("How hot is green tea?", "Coffee is hot.") == 0.333
    assert relevance("How is it?", "whatever") == 0.0
    assert goals_in("Is it hot? Tell me why.\nThanks") == ("Is it hot?", "Thanks")
    assert entities_in("`apsw` carries SQLite. SQLite is small, says Ada Lovelace of open_ledger.", 4)[0] == "SQLite"
    assert (
        quote_of("green tea", "# Tea\n\nCoffee is brewed. Green tea is\nsteeped for long.") == "Green tea is steeped for long."
    )
