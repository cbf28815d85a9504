"""What functions of a program say in a prompt, and what a run reads itself, is recorded and given back. G9, ADR 0009."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelRequest, SystemPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.agents.durability.agents import Desk, call, script

from antiphon.agents import LedgerDurability
from antiphon.durable import LedgerRun, ledger_run
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload, dumps, thaw


class CutError(Exception):
    """What ends the program."""


class Office:
    """An agent whose prompts depend on the day, and the prompts that its model got."""

    def __init__(self, ledger: Ledger, *, requests: int = 2, cut_at: int | None = None) -> None:
        self.day = "Monday"
        self.told: list[str] = []
        self.asked: list[str] = []
        self.ledger = ledger
        self.desk = Desk()
        self.requests = requests
        self.cut_at = cut_at

    def agent(self, **more: Any) -> Agent[None, str]:
        looks = [[call("look", f"c{number}", what=str(number))] for number in range(1, self.requests)]
        turns: list[Any] = [*looks, ["done"]]
        if self.cut_at is not None:
            turns[self.cut_at] = CutError()
        model = script(self.desk, *turns)
        assert model.function is not None
        answer = model.function

        def seen(messages: list[ModelMessage], info: AgentInfo) -> Any:
            self.told.append(_words(messages))
            return answer(messages, info)

        agent: Agent[None, str] = Agent(
            FunctionModel(seen, model_name="script"), name="clerk", capabilities=[LedgerDurability(self.ledger)], **more
        )

        @agent.tool_plain(metadata={"antiphon": {"effects": "none"}})
        def look(what: str) -> str:
            return f"saw {what}"

        return agent

    def step(self, ctx: RunContext[None]) -> InstructionPart:
        return InstructionPart(f"Step {ctx.run_step} of {self.day}.", name="step")

    def odd(self, ctx: RunContext[None]) -> str | None:
        return f"Odd {ctx.run_step}." if ctx.run_step % 2 else None

    def rest(self) -> str | None:
        return "Do not work." if self.day == "Sunday" else None

    def today(self) -> str:
        self.asked.append(self.day)
        return f"Today is {self.day}."


def _words(messages: list[ModelMessage]) -> str:
    """Return the system prompts and the last instructions of a prompt."""
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    said = [part.content for request in requests for part in request.parts if isinstance(part, SystemPromptPart)]
    return " | ".join([*said, requests[-1].instructions or ""])


async def cut(office: Office, agent: Agent[None, str], thread_id: str = "t") -> None:
    with pytest.raises(CutError):
        async with ledger_run(thread_id):
            await agent.run("look")


@pytest.mark.parametrize("cut_at", [0, 1, 2])
async def test_a_date_in_the_instructions_does_not_stop_a_run_that_goes_on_the_next_day(cut_at: int) -> None:
    """Recorded requests keep their texts; later requests have the text that the function returns then."""
    ledger = MemoryLedger()
    first = Office(ledger, requests=3, cut_at=cut_at)
    await cut(first, first.agent(instructions=["Be kind.", first.today]))
    second = Office(ledger, requests=3)
    second.day = "Tuesday"
    async with ledger_run("t"):
        result = await second.agent(instructions=["Be kind.", second.today]).run("look")
    assert result.output == "done"
    said = [message.instructions for message in result.all_messages() if isinstance(message, ModelRequest)]
    # The request that failed was recorded, so it is made again with the words that it had.
    days = ["Monday" if number <= cut_at else "Tuesday" for number in range(3)]
    assert said == [f"Be kind.\n\nToday is {day}." for day in days]
    assert second.told == [f"Be kind.\n\nToday is {day}." for day in days[cut_at:]]


@pytest.mark.parametrize("dynamic", [False, True])
async def test_a_system_prompt_function_says_what_it_said_and_is_not_called_again(dynamic: bool) -> None:
    ledger = MemoryLedger()
    offices = [Office(ledger, cut_at=1), Office(ledger)]
    offices[1].day = "Tuesday"
    results = []
    for office in offices:
        agent = office.agent(system_prompt="Be kind.")
        agent.system_prompt(dynamic=dynamic)(office.today)
        if office.cut_at is not None:
            await cut(office, agent)
        else:
            async with ledger_run("t"):
                results.append(await agent.run("look"))
    assert offices[0].asked == ["Monday"]
    assert offices[1].asked == []
    assert offices[1].told == ["Be kind. | Today is Monday. | "]
    (result,) = results
    parts = [part for message in result.all_messages() for part in message.parts if isinstance(part, SystemPromptPart)]
    assert [part.content for part in parts] == ["Be kind.", "Today is Monday."]
    assert (parts[1].dynamic_ref is not None) is dynamic


async def test_a_text_is_stored_once_in_a_run_however_many_requests_say_it() -> None:
    ledger = MemoryLedger()
    office = Office(ledger, requests=6)
    office.day = "x" * 5000
    async with ledger_run("t"):
        await office.agent(instructions=office.today).run("look")
    rows = [record.message async for record in ledger.read("t")]
    stored = [row.lane for row in rows if office.day.encode() in dumps(row)]
    assert sorted(stored) == ["effect", "talk"]  # with the request that says it, and in the conversation
    assert len(office.told) == 6


async def test_a_value_is_recorded_once_in_a_run_and_again_only_when_it_differs() -> None:
    """The second request says the same and records nothing. A text that comes back is a reference to its row."""
    ledger = MemoryLedger()
    days = iter(["Monday", "Monday", "Tuesday", "Monday", ""])
    office = Office(ledger, requests=5)

    def today() -> str | None:
        return next(days) or None

    async with ledger_run("t"):
        await office.agent(instructions=today).run("look")
    assert office.told == ["Monday", "Monday", "Tuesday", "Monday", ""]
    payloads = [record.message.payload async for record in ledger.read("t") if record.message.lane == "effect"]
    arguments: list[Any] = [
        thaw(each.arguments.get("arguments", {})) for each in payloads if isinstance(each, OptionCallPayload)
    ]
    rows = [each.get("new_values", {}).get("instructions") for each in arguments if "model" in each]
    assert [{name: value for name, value in (row or {}).items() if name != "hash"} for row in rows] == [
        {"text": "Monday"},
        {},
        {"text": "Tuesday"},
        {"same_as": "t/run/clerk/model"},
        {"text": None},
    ]


@pytest.mark.parametrize("days", [("Monday", "Sunday"), ("Sunday", "Monday")])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_function_that_says_nothing_on_another_day_does_not_stop_a_run(days: tuple[str, str], is_first: bool) -> None:
    """A function returns a text once and nothing another time: recorded requests keep their texts."""
    ledger, told = MemoryLedger(), list[list[str]]()
    for day, cut_at in zip(days, (2, None), strict=True):
        office = Office(ledger, requests=3, cut_at=cut_at)
        office.day = day
        functions = [office.rest, office.today] if is_first else [office.today, office.rest]
        agent = office.agent(instructions=functions)
        if cut_at is not None:
            await cut(office, agent)
        else:
            async with ledger_run("t"):
                await agent.run("look")
        told.append(office.told)
    assert told[1] == told[0][2:]


async def test_each_request_gets_its_own_texts_back_by_the_names_of_the_instructions() -> None:
    """Functions that say something else each time, of which one has a name, and some say nothing."""
    ledger = MemoryLedger()
    told: list[list[str]] = []
    for cut_at in (2, None):
        office = Office(ledger, requests=3, cut_at=cut_at)

        office.day = f"day {cut_at}"
        agent = office.agent(instructions=[office.step, office.odd, office.today])
        if cut_at is not None:
            await cut(office, agent)
        else:
            async with ledger_run("t"):
                await agent.run("look")
        told.append(office.told)
    assert told[0] == [
        "Step 1 of day 2.\n\nOdd 1.\n\nToday is day 2.",
        "Step 2 of day 2.\n\nToday is day 2.",
        "Step 3 of day 2.\n\nOdd 3.\n\nToday is day 2.",
    ]
    assert told[1] == told[0][2:]


@pytest.mark.slow
async def test_a_text_that_was_redacted_is_compared_with_what_the_function_says() -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    for day, expected in (("Monday", "done"), ("Tuesday", None)):
        ledger = MemoryLedger()
        first = Office(ledger, cut_at=1)
        first.day = f"Monday {secret}"
        await cut(first, first.agent(instructions=first.today))
        rows = [record.message async for record in ledger.read("t")]
        assert not [row for row in rows if secret.encode() in dumps(row)]
        second = Office(ledger)
        second.day = f"{day} {secret}"
        if expected is None:
            with pytest.raises(Exception, match="the prompt differs"):
                async with ledger_run("t"):
                    await second.agent(instructions=second.today).run("look")
        else:
            async with ledger_run("t"):
                assert (await second.agent(instructions=second.today).run("look")).output == expected


async def test_time_random_numbers_and_ids_of_a_run_are_the_same_on_replay() -> None:
    ledger = MemoryLedger()

    async def read(run: LedgerRun) -> list[Any]:
        return [await run.now(), await run.random(), await run.uuid(), await run.now(), await run.random(), await run.uuid()]

    seen: list[list[Any]] = []

    async def work(*, ends: bool) -> None:
        async with ledger_run("t", ledger=ledger) as run:
            seen.append(await read(run))
            if not ends:
                raise CutError

    with pytest.raises(CutError):
        await work(ends=False)
    for _ in range(2):  # goes on, and is read when it has ended
        await work(ends=True)
    assert seen[0] == seen[1] == seen[2]
    now, number, own, later, other, another = seen[0]
    assert now <= later
    assert now.utcoffset().total_seconds() == 0
    assert 0 <= number < 1
    assert (number, own) != (other, another)
    assert own.version == another.version == 4


async def test_random_numbers_are_spread() -> None:
    async with ledger_run("t", ledger=MemoryLedger()) as run:
        numbers = [await run.random() for _ in range(200)]
    assert 0.35 < sum(numbers) / len(numbers) < 0.65
    assert len(set(numbers)) == 200
