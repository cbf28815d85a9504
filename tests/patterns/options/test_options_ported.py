"""Programs of the options design, ported as their authors would: the builder's steps, structured results, rewards, steps."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon.ledger import Ledger, Reward, record_reward, rewards_of, transitions
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, Message, MessageBuilder, OptionResultBuilder, OptionResultPayload, thaw
from antiphon.patterns._decisions import DecisionReward
from antiphon.patterns.options import Choices, Executor, Options, export_transitions


class Film(BaseModel):
    """What a search finds."""

    title: str
    year: int


def searching() -> Options:
    options = Options()

    @options.option(effects="none")
    def search_web(query: str) -> list[Film]:
        """Search for films."""
        return [Film(title=query, year=2012)]

    @options.option(effects="none")
    def rate(title: str) -> dict[str, Any]:
        """Rate a film."""
        return {"title": title, "stars": 4}

    return options


async def talk(ledger: Ledger, thread_id: str = "t") -> list[Message]:
    return [record.message async for record in ledger.read(thread_id) if record.message.lane == "talk"]


def steps(messages: list[Message]) -> list[tuple[str, str, int | None]]:
    return [(each.policy, each.kind, each.step_num) for each in messages]


def values(results: Iterable[Message]) -> list[Any]:
    return [thaw(each.payload.result) for each in results if isinstance(each.payload, OptionResultPayload)]


# ---------------------------------------------------------------- step numbers


async def test_the_steps_that_a_policy_numbers_with_the_builder_are_kept() -> None:
    """OP-020, OP-028, OP-029: `next_step` and `continue_step` decide; results take the step of their call."""
    options, ledger = searching(), MemoryLedger()

    @options.policy()
    def critic(observations: Conversation, choices: Choices) -> Any:
        last = observations[-1]
        match len(observations.results()):
            case 0:
                return MessageBuilder.next_step(last).add_option_call("search_web", {"query": "hobbit"}).to_messages()
            case 1:
                return MessageBuilder.continue_step(last).add_option_call("rate", {"title": "hobbit"}).to_messages()
            case _:
                return MessageBuilder.next_step(last).add_text("Four stars.").to_message()

    asked = MessageBuilder(step_num=10).add_text("Is it any good?").to_message()
    async with Executor(ledger, options) as executor:
        outcome = await executor.run([asked], thread_id="t")
    assert outcome.response == "Four stars."
    said = await talk(ledger)
    assert steps(said) == [
        ("user", "parts", 10),
        ("critic", "option_call", 11),
        ("search_web", "option_result", 11),
        ("critic", "option_call", 11),
        ("rate", "option_result", 11),
        ("critic", "parts", 12),
    ]
    (decided,) = Conversation(said).transitions()
    assert (decided.step_num, len(decided.actions), len(decided.results)) == (11, 2, 2)


async def test_unnumbered_messages_of_a_policy_follow_the_last_step() -> None:
    """OP-020: also after a step that a policy or a user has numbered; what is said beside a numbered call is of its step."""
    options, ledger = searching(), MemoryLedger()

    @options.policy()
    def critic(observations: Conversation, choices: Choices) -> Any:
        match len(observations.results()):
            case 0:
                return choices.call("search_web", query="hobbit")
            case 1:
                call = MessageBuilder.next_step(40).add_option_call("rate", {"title": "hobbit"}).last_option_call
                return [choices.say("I rate it."), call]
            case 2:
                return choices.call("rate", title="again")
            case _:
                return "Done."

    asked = MessageBuilder(step_num=7).add_text("Is it any good?").to_message()
    async with Executor(ledger, options) as executor:
        await executor.run([asked], thread_id="t")
    assert [step for policy, _, step in steps(await talk(ledger)) if policy == "critic"] == [8, 41, 41, 42, 43]


@pytest.mark.slow
async def test_a_run_that_is_taken_up_numbers_its_steps_as_one_that_was_not_cut_off() -> None:
    """G13: the numbers come from the thread, so they are the same wherever a process died."""

    def options_of() -> Options:
        options = searching()

        @options.policy()
        def critic(observations: Conversation, choices: Choices) -> Any:
            if not observations.results():
                return choices.call("search_web", query="hobbit")
            return "Done."

        return options

    asked = MessageBuilder(step_num=7).add_text("Is it any good?").to_message()
    whole = MemoryLedger()
    async with Executor(whole, options_of()) as executor:
        await executor.run([asked], thread_id="t")
    expected = steps(await talk(whole))
    rows = [record.message async for record in whole.read("t")]
    whole_appends = [cut for cut in range(2, len(rows)) if rows[cut - 1].turn_id is None]  # a decision is one append
    assert len(whole_appends) > 5
    for cut in whole_appends:
        part = MemoryLedger()
        await part.append("t", rows[:cut])
        async with Executor(part, options_of()) as executor:
            await executor.run([asked], thread_id="t")
        assert steps(await talk(part)) == expected


async def test_the_example_of_the_design_runs_as_a_policy() -> None:
    """OP-044, OP-031, OP-037, OP-045: call, result, two images and a text of one builder, in the step of the last message."""
    options, ledger = searching(), MemoryLedger()

    @options.policy()
    def stylist(observations: Conversation, choices: Choices) -> Any:
        builder = MessageBuilder.continue_step(observations[-1])
        builder.add_option_call("search_web", {"query": "hobbit movie"})
        result = OptionResultBuilder.response_to(builder.last_option_call).success([{"title": "The Hobbit"}])
        builder.add_image("girl wearing a hat", "https://example.com/1.png")
        builder.add_image("fancy dress", "https://example.com/2.png")
        builder.add_text("Take the dress from the second image and apply it to the person in the first image")
        return [builder.last_option_call, result, builder.to_message()]

    asked = MessageBuilder.next_step(4).add_text("Dress her.").to_message()
    async with Executor(ledger, options) as executor:
        outcome = await executor.run([asked], thread_id="t")
    said = await talk(ledger)
    assert steps(said) == [
        ("user", "parts", 5),
        ("stylist", "option_call", 5),
        ("search_web", "option_result", 5),
        ("stylist", "parts", 5),
    ]
    assert values(said) == [[{"title": "The Hobbit"}]]  # its own result: the option was not run
    assert [part.kind for part in said[-1].parts] == ["media", "media", "text"]
    assert (outcome.response or "").splitlines()[:2] == ["https://example.com/1.png", "https://example.com/2.png"]
    (transition,) = Conversation(said).transitions()
    assert (transition.step_num, transition.is_complete) == (5, True)


# ---------------------------------------------------------------- structured results


async def test_the_result_of_an_option_stays_data_for_every_reader() -> None:
    """OP-025: models, lists and objects are JSON values in observations, in transitions and in the answer."""
    options, ledger = searching(), MemoryLedger()

    @options.policy()
    def critic(observations: Conversation, choices: Choices) -> Any:
        if not observations.results():
            return [choices.call("search_web", query="hobbit"), choices.call("rate", title="hobbit")]
        films, rating = values(observations.results())
        return {"film": films[0], "stars": rating["stars"]}

    async with Executor(ledger, options) as executor:
        outcome = await executor.run("Is it any good?", thread_id="t")
        again = await executor.run("Is it any good?", thread_id="t")
    assert outcome.data == {"film": {"title": "hobbit", "year": 2012}, "stars": 4}
    assert json.loads(outcome.response or "") == outcome.data
    assert again == outcome
    assert again.data == outcome.data
    _, transition = await transitions(ledger, "t")  # the first is that the run was asked for
    assert values(transition.results) == [[{"title": "hobbit", "year": 2012}], {"title": "hobbit", "stars": 4}]


async def test_a_policy_that_answers_with_data_gives_data_to_the_policy_that_called_it() -> None:
    """OP-025, OP-050: data between texts is a list; media stand beside it."""
    options, ledger = searching(), MemoryLedger()

    @options.policy(to=["boss"])
    def clerk(observations: Conversation, choices: Choices) -> Any:
        """Find films."""
        said = MessageBuilder().add_text("Found:").add_data({"films": 2})
        return said.add_image("poster", "https://example.com/poster.png").to_message()

    @options.policy()
    def boss(observations: Conversation, choices: Choices) -> Any:
        found = observations.results()
        if not found:
            return choices.call("clerk", task="Look.")
        return {"clerk": values(found)[0], "shown": len(found[0].parts)}

    async with Executor(ledger, options, policy="boss") as executor:
        outcome = await executor.run("Well?", thread_id="t")
    assert outcome.data == {"clerk": ["Found:", {"films": 2}], "shown": 1}


# ---------------------------------------------------------------- rewards


def asking() -> Options:
    options = searching()

    @options.policy()
    def critic(observations: Conversation, choices: Choices) -> Any:
        match len(observations.results()):
            case 0:
                return choices.call("search_web", query="hobbit")
            case 1:
                return choices.call("rate", title="hobbit")
            case _:
                return "Four stars."

    return options


async def exported(ledger: Ledger, reward: DecisionReward | None = None) -> list[tuple[int, float | None]]:
    return [(each["step"], each["reward"]) async for each in export_transitions(ledger, "t", reward=reward)]


async def test_rewards_are_recorded_later_by_message_id_and_are_in_transitions_and_exports() -> None:
    """OP-022: for calls, results and the answer, also while a program owns the thread; the last one for a message counts."""
    ledger = MemoryLedger()
    async with Executor(ledger, asking()) as executor:
        await executor.run("Is it any good?", thread_id="t")
        said = await talk(ledger)
        await record_reward(ledger, "t", said[1].id, 0.25, by="ann", note="the wrong film")
        await record_reward(ledger, "t", said[2].id, 0.5, by="ann")
        await record_reward(ledger, "t", said[-1].id, 1, by="bob")
        await record_reward(ledger, "t", said[1].id, -0.25, by="bob")
        assert await executor.run("Is it any good?", thread_id="t")  # it gives back what is recorded
    assert await exported(ledger) == [(1, 0.25), (2, 1.0)]
    assert [each.reward for each in await transitions(ledger, "t")] == [None, 0.25, 1.0]
    found = await rewards_of(ledger, "t")
    assert found[said[1].id] == Reward(said[1].id, -0.25, "bob")
    assert {each.by for each in found.values()} == {"ann", "bob"}
    rows = [record.message.lane async for record in ledger.read("t") if record.message.policy in {"ann", "bob"}]
    assert rows == ["control"] * 4
    assert (await ledger.verify("t")).is_whole


async def test_a_reward_function_sees_the_decision_with_what_was_recorded() -> None:
    """OP-022: in transitions of the ledger and in the export; it decides."""
    ledger = MemoryLedger()
    async with Executor(ledger, asking()) as executor:
        await executor.run("Is it any good?", thread_id="t")
    await record_reward(ledger, "t", (await talk(ledger))[-1].id, 3, by="ann")
    assert await exported(ledger, lambda each: None if each.reward is None else each.reward * 2) == [(1, None), (2, 6.0)]
    assert await exported(ledger, lambda each: float(len(each.results))) == [(1, 1.0), (2, 1.0)]
    doubled = await transitions(ledger, "t", reward=lambda each: (each.reward or 0) * 2)
    assert [each.reward for each in doubled] == [0, 0, 6.0]
    with pytest.raises(ValueError, match="a reward is a finite number"):
        await exported(ledger, lambda each: float("nan"))


async def test_no_policy_observes_a_reward() -> None:
    """OP-022: the next run in the thread sees what was said, and the exported observations do not change."""
    ledger, seen = MemoryLedger(), list[Conversation]()
    options = asking()

    @options.policy()
    def late(observations: Conversation, choices: Choices) -> Any:
        seen.append(observations)
        return "Seen."

    async with Executor(ledger, options) as executor:
        await executor.run("Is it any good?", thread_id="t", policy="critic")
        said = await talk(ledger)
        before = [each async for each in export_transitions(ledger, "t")]
        await record_reward(ledger, "t", said[1].id, 1, by="ann", note="secretly good")
        await executor.run("Well?", thread_id="t", policy="late")
    assert [each.id for each in seen[0][:-1]] == [each.id for each in said]
    after = [each async for each in export_transitions(ledger, "t")]
    assert [each["observations"] for each in after] == [each["observations"] for each in before]
    assert not any("secretly" in str(list(each.observation)) for each in await transitions(ledger, "t"))


async def test_a_reward_needs_a_message_of_talk_and_an_author() -> None:
    """OP-022, OP-007: a message of talk, a finite number, and a name that is not the runtime's."""
    ledger = MemoryLedger()
    async with Executor(ledger, asking()) as executor:
        await executor.run("Is it any good?", thread_id="t")
    said = await talk(ledger)
    control = [record.message.id async for record in ledger.read("t") if record.message.lane == "control"]
    for each in ("nowhere", control[0]):
        with pytest.raises(ValueError, match=f"has no message '{each}' of the talk lane"):
            await record_reward(ledger, "t", each, 1, by="ann")
    with pytest.raises(ValueError, match="finite"):
        await record_reward(ledger, "t", said[1].id, float("inf"), by="ann")
    with pytest.raises(ValueError, match="'runtime' is reserved for the runtime"):
        await record_reward(ledger, "t", said[1].id, 1, by="runtime")
    assert await rewards_of(ledger, "t") == {}


@pytest.mark.parametrize(
    "said",
    [
        {"type": "REWARD"},
        {"type": "REWARD", "data": {"value": True}},
        {"type": "REWARD", "data": {"value": "1"}},
        {"type": "X"},
    ],
)
async def test_a_row_that_is_not_a_valid_reward_does_not_count(said: dict[str, Any]) -> None:
    """OP-022: whatever its author. A reward in an imported file is talk, and does not count either."""
    ledger = MemoryLedger()
    asked = MessageBuilder().add_text("Well?").to_message()
    row = MessageBuilder(policy="ann").add_data(said).to_message()
    await ledger.append("t", [asked, row.model_copy(update={"lane": "control", "in_reply_to": asked.id})])
    await record_reward(ledger, "t", asked.id, 1, by="ann")
    assert [each.value for each in (await rewards_of(ledger, "t")).values()] == [1.0]
    rows = [record.message.model_copy(update={"thread_id": None}) async for record in ledger.read("t")]
    await ledger.append("copy", rows, outside=True)
    assert await rewards_of(ledger, "copy") == {}
