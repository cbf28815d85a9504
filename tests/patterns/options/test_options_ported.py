"""Programs of the options design, ported as their authors would: the builder's steps, structured results, rewards, steps."""

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from tests.patterns.chains import run

from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, Message, MessageBuilder, OptionResultPayload, thaw
from antiphon.patterns.options import Choices, Executor, Options


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


def test_the_steps_that_a_policy_numbers_with_the_builder_are_kept() -> None:
    """OP-020, OP-028, OP-029: `next_step` and `continue_step` decide; results take the step of their call."""

    async def main() -> None:
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

    run(main())


def test_what_a_policy_does_not_number_goes_on_after_the_last_step() -> None:
    """OP-020: also after a step that a policy or a user has numbered; what is said beside a numbered call is of its step."""

    async def main() -> None:
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

    run(main())


def test_a_run_that_is_taken_up_numbers_its_steps_as_one_that_was_not_cut_off() -> None:
    """G13: the numbers come from the thread, so they are the same wherever a process died."""

    async def main() -> None:
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

    run(main())


# ---------------------------------------------------------------- structured results


def test_what_an_option_returns_stays_data_for_whoever_reads_it() -> None:
    """OP-025: models, lists and objects are JSON values in observations, in transitions and in the answer."""

    async def main() -> None:
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
        _, transition = await ledger.transitions("t")  # the first is that the run was asked for
        assert values(transition.results) == [[{"title": "hobbit", "year": 2012}], {"title": "hobbit", "stars": 4}]

    run(main())


def test_a_policy_that_answers_with_data_gives_data_to_the_policy_that_called_it() -> None:
    """OP-025, OP-050: data between texts is a list; media stand beside it."""

    async def main() -> None:
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

    run(main())
