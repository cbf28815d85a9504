"""What the phases do by themselves, whatever a model says: find, score, remember, let go, cite, go round again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patterns.chains import QUESTION, Witness, chain_on, known, run, said_in

from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.postchain import (
    Add,
    ChainConfig,
    ChainConfigError,
    ChainContext,
    Item,
    Link,
    Observations,
    Prioritize,
    Prune,
    Tag,
    Transform,
)
from antiphon.patterns.postchain._operations import operations_from, operations_to
from antiphon.patterns.postchain._prompts import prompt_of
from antiphon.patterns.postchain._score import entities_in, goals_in, quote_of, relevance
from antiphon.patterns.postchain._understanding import let_go
from antiphon.protocol import PHASES, AgentConfig


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


def test_each_phase_does_its_part() -> None:
    """CH-124: A answers, E retrieves and cites, I names the goal, O records links, U lets go, Y cites word for word."""

    async def main() -> None:
        async with chain_on() as chain:
            result = await chain.run(QUESTION)
            output = result.outputs
            assert output["action"]["tool_calls"][0]["name"] == "knowledge_base"
            assert [each["source"] for each in output["experience"]["citations"]] == ["docs/tea.md"]
            assert output["intention"]["goals"] == [QUESTION]
            assert output["observation"]["entities"]
            assert set(output["understanding"]["retained"]) >= {"user-1", output["experience"]["citations"][0]["id"]}
            (citation,) = result.citations
            assert citation["quote"] == "Green tea is steeped at 80 degrees for two minutes."
            cited = [record.message async for record in chain.ledger.read("knowledge") if record.message.id == citation["id"]]
            assert citation["quote"] in cited[0].text
            assert result.response.endswith(f"[1] docs/tea.md ({citation['id']}): {citation['quote']}")

    run(main())


def test_what_one_thread_observed_later_threads_of_the_same_user_find() -> None:
    """CH-124: a store on the ledger that can be asked; what somebody else has asked is not in it."""

    async def main() -> None:
        ledger = await known()
        async with chain_on(ledger) as chain:
            first = await chain.run(QUESTION, user_id="ada")
            (found,) = await Observations(ledger).search("green tea", user_id="ada")
            assert (found.thread_id, found.question) == (first.thread_id, QUESTION)
            assert found.links[0].linked_to == first.citations[0]["id"]
            assert await Observations(ledger).in_thread(first.thread_id) == (found,)
            assert await Observations(ledger).search("green tea", user_id="bob") == ()
            second = await chain.run("Is green tea steeped longer than that?", user_id="ada")
            sources = [each["source"] for each in second.outputs["experience"]["citations"]]
            assert f"observed in {first.thread_id}" in sources
            third = await chain.run("Is green tea steeped longer than that?", user_id="bob")
            assert "observed" not in str(third.outputs["experience"]["citations"])

    run(main())


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
def test_what_is_left_has_room_and_every_word_of_users(items: list[Item], room: int) -> None:
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


def test_operations_are_journaled_with_the_phase_that_did_them() -> None:
    """CH-126: and the next phase is given what they amount to."""

    async def main() -> None:
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
            given_to_yield = _asked(rows, "PROCESS_PHASE")[-1]["context"]["items"]
            assert [Item.model_validate(each) for each in given_to_yield] == list(context)

    run(main())


# ---------------------------------------------------------------- going round again


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
def test_the_last_phase_goes_round_again_until_a_rule_says_stop(
    question: str, config: ChainConfig, cycles: int, why: str
) -> None:
    """CH-125: max cycles, loops, enough confidence, convergence; and each cycle is in the ledger."""

    async def main() -> None:
        async with chain_on(config=config) as chain:
            result = await chain.run(question)
            assert result.status == "completed"
            assert (result.outputs["yield"]["cycle"], why in result.outputs["yield"]["rationale"]) == (cycles, True)
            asked = [each["phase_type"] for each in _asked(await said_in(chain.ledger, result.thread_id), "PROCESS_PHASE")]
            assert asked == [*PHASES, *PHASES[1:] * (cycles - 1)]  # there was no source: it goes on with experience
            life = await chain.life(result.thread_id)
            assert (life.cycle, life.completed) == (cycles, PHASES)

    run(main())


# ---------------------------------------------------------------- how phases are set up


def test_a_configuration_is_replaced_merged_and_survives_a_restart() -> None:
    """CH-071, CH-072, CH-081, CH-082: from the next run on; what is not said stays."""

    async def main() -> None:
        ledger = await known()
        async with chain_on(ledger) as chain:
            prompt = {"phase_type": "action", "config": {"system_prompt": "You are the pirate phase.", "tools": []}}
            ready = await chain.send({"type": "INITIALIZE_PHASE", "data": prompt})
            update = {"agent_id": ready["data"]["agent_id"], "config": {"temperature": 0.5}}
            assert (await chain.send({"type": "UPDATE_AGENT_CONFIG", "data": update}))["data"]["status"] == "updated"
        async with chain_on(ledger, witness := Witness()) as chain:
            result = await chain.run(QUESTION)
            assert witness.asked == ["pirate", *PHASES[1:]]
            prepared = _answers(await said_in(ledger, result.thread_id), "PREPARE_CONTEXT")[0]["context"]
            assert prepared["messages"][0] == {"role": "system", "content": "You are the pirate phase."}
            assert (prepared["metadata"]["agent"]["temperature"], prepared["tools"]) == (0.5, [])

    run(main())


def test_a_context_begins_with_the_prompt_of_its_phase_and_records_its_version() -> None:
    """CH-073 to CH-075."""

    async def main() -> None:
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
                assert (metadata["prompt"], metadata["user_id"], metadata["session_id"]) == (f"{phase}@1", "ada", "s-1")

    run(main())


def test_a_file_says_how_phases_are_set_up(tmp_path: Path) -> None:
    path = tmp_path / "chain.toml"
    path.write_text('model = "scripted"\nmax_cycles = 2\n\n[phases.action]\ntools = ["calculator"]\ntemperature = 0.1\n')
    config = ChainConfig.read(path)

    assert (config.max_cycles, config.agent("action").tools, config.agent("yield").tools) == (2, ("calculator",), ())
    assert config.agent("action") == AgentConfig(
        model="scripted", max_tokens=400, temperature=0.1, tools=("calculator",), system_prompt=prompt_of("action").text
    )
    path.write_text("max_cycle = 2\n")
    with pytest.raises(ChainConfigError, match="max_cycle: Extra inputs"):
        ChainConfig.read(path)
    path.write_text("max_cycles =\n")
    with pytest.raises(ChainConfigError, match="not TOML"):
        ChainConfig.read(path)
    with pytest.raises(ChainConfigError, match="No such file"):
        ChainConfig.read(tmp_path / "none.toml")


def test_an_agent_uses_a_function_that_it_was_given() -> None:
    """A tool that is named in the configuration; what it does is recorded once."""
    called: list[str] = []

    def knowledge_base(query: str) -> str:
        """Look something up."""
        called.append(query)
        return "80 degrees"

    async def main() -> None:
        async with chain_on(tools=[knowledge_base]) as chain:
            assert (await chain.run(QUESTION)).status == "completed"

    run(main())
    assert called == [QUESTION]


def test_what_happens_is_seen_while_it_happens() -> None:
    """Phases, tools and words in order; the words of the last phase are those of its answer."""

    async def main() -> None:
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

    run(main())


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
