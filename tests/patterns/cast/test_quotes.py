"""A history that is handed to agents stays talk of its authors: prompts quote its rows, and nothing is stored again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from tests.patterns.cast.test_history import (
    EVERY_PATTERN,
    Hearing,
    Make,
    Payments,
    a_chain,
    a_team,
    heard,
    some_peers,
    some_workers,
)
from typing_extensions import override

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload, PartsPayload
from antiphon.messages import TextPart as Words
from antiphon.patterns._decisions import decisions_of
from antiphon.patterns.cast import Pattern
from antiphon.patterns.teams import Team
from antiphon.service import transcript

DROP = OptionCallPayload(invocation_id="c1", option_name="drop_table", arguments={"name": "users"})
DROPPED = OptionResultPayload(invocation_id="c1", option_name="drop_table", result="gone")


def said(policy: str, text: str) -> Message:
    role = "user" if policy == "user" else "assistant"
    return Message(policy=policy, payload=PartsPayload(parts=(Words(text=text),)), role_hint_for_llm=role)


HISTORY = (
    said("user", "Hello."),
    said("admin", "Good day."),
    said("user", "Drop the table."),
    Message(policy="admin", payload=DROP, role_hint_for_llm="assistant", turn_id="turn"),
    Message(policy="drop_table", payload=DROPPED, role_hint_for_llm="tool"),
    said("admin", "It is dropped."),
    said("user", "Thanks."),
    said("auditor", "I saw it."),
    said("user", "Who did it?"),
    said("admin", "I did."),
)
Hand = Callable[[Pattern], Awaitable[Any]]


async def as_conversation(pattern: Pattern) -> None:
    await pattern.run(Conversation([*HISTORY, said("user", "What now?")]), thread_id="t")


async def as_an_import(pattern: Pattern) -> None:
    await pattern.ledger.append("t", HISTORY, outside=True)
    await pattern.run("What now?", thread_id="t")


async def as_nothing(pattern: Pattern) -> None:
    await pattern.run("What now?", thread_id="t")


async def threads(make: Make, hand: Hand) -> tuple[MemoryLedger, Hearing, list[dict[str, Any]]]:
    """Return the ledger, the model and the view of a team's store after two tasks in a thread."""
    ledger, model = MemoryLedger(), Hearing()
    async with make(ledger, model, Payments().toolkit()) as pattern:
        await hand(pattern)
        await pattern.run("And then?", thread_id="t")
        return ledger, model, await pattern.store.get_messages("t") if isinstance(pattern, Team) else []


@pytest.mark.slow
@pytest.mark.parametrize(("make", "hand"), [*((each, as_conversation) for each in EVERY_PATTERN), (a_team, as_an_import)])
async def test_a_handed_history_is_stored_once_and_stays_of_its_authors(make: Make, hand: Hand) -> None:
    """S5: rows, `show`, the store of a team and training data name who called a tool; prompts only quote it."""
    ledger, model, stored = await threads(make, hand)
    plain, _, _ = await threads(make, as_nothing)
    rows = [record.message async for record in ledger.read("t")]
    assert len(rows) == (await plain.head("t")).seq + len(HISTORY)
    talk = [row for row in rows if row.lane == "talk"]
    assert [row.policy for row in talk if row.payload == DROP] == ["admin"]
    assert [row.policy for row in talk if row.payload == DROPPED] == ["drop_table"]
    assert [row.policy for row in talk if row.text == "It is dropped."] == ["admin"]
    lines = [line.text for line in transcript(Conversation(talk))]
    assert sum("drop_table" in line for line in lines) == 1
    assert lines[next(number for number, line in enumerate(lines) if "drop_table" in line) - 1].startswith("admin")
    assert not [each for each in stored if each.get("tool") == "drop_table"]

    decisions = await decisions_of(ledger, "t")
    assert [each.policy for each in decisions if DROP in [action.payload for action in each.actions]] == ["admin"]
    others = [each for each in decisions if each.policy != "admin"]
    alone = await decisions_of(plain, "t")
    assert [each.actions[-1].kind for each in others] == [each.actions[-1].kind for each in alone]
    for each in others:
        if getattr(each.actions[-1].payload, "option_name", "") == "final_result":  # the model was shown the history
            assert [one.policy for one in each.observations if one.payload == DROP] == ["admin"]
    assert all(heard(told).count("It is dropped.") == 1 for told in model.told)


class Stuck(Hearing):
    """A model that never answers its third question."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = asyncio.Event()

    @override
    async def request(self, *given: Any) -> ModelResponse:
        answer = await super().request(*given)
        if len(self.told) == 3:
            self.is_stuck.set()
            await asyncio.Event().wait()
        return answer


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("make", [some_peers, a_team, some_workers, a_chain], ids=lambda each: each.__name__)
async def test_a_run_that_continues_after_a_crash_quotes_the_same_history(make: Make) -> None:
    """G6, G7: a later process asks the models the same, and stores nothing of the history."""

    async def main(pattern: Pattern) -> None:
        await as_conversation(pattern)
        for number in range(2):
            await pattern.run(f"{number}?", thread_id="t")

    whole, left = MemoryLedger(), MemoryLedger()
    async with make(whole, (expected := Hearing()), Payments().toolkit()) as pattern:
        await main(pattern)
    async with make(left, (first := Stuck()), Payments().toolkit()) as pattern:
        work = asyncio.create_task(main(pattern))
        await first.is_stuck.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    async with make(left, (again := Hearing()), Payments().toolkit()) as pattern:
        await main(pattern)
    told = [*first.told[:2], *again.told]
    assert [heard(each) for each in told] == [heard(each) for each in expected.told]
    texts = [[row.text async for row in _talk(ledger) if "at work" not in (row.text or "")] for ledger in (whole, left)]
    assert texts[0] == texts[1]


async def _talk(ledger: MemoryLedger) -> Any:
    async for record in ledger.read("t"):
        if record.message.lane == "talk":
            yield record.message


async def test_a_history_handed_to_an_agent_is_no_act_of_that_agent() -> None:
    """It is stored once, without the name of an agent: nobody knows which one it was."""
    history: list[ModelMessage] = [
        ModelRequest([UserPromptPart("Drop the table.")]),
        ModelResponse([TextPart("It is dropped.")]),
    ]
    ledger = MemoryLedger()
    agent = Agent(TestModel(custom_output_text="Nothing."), name="ada", capabilities=[LedgerDurability(ledger)])
    async with ledger_run("t"):
        answer = await agent.run("What now?", message_history=history)
        await agent.run("And then?", message_history=answer.all_messages())
    talk = [(row.policy, row.text) async for row in _talk(ledger)]
    assert talk == [
        ("user", "Drop the table."),
        ("assistant", "It is dropped."),
        ("user", "What now?"),
        ("ada", "Nothing."),
        ("user", "And then?"),
        ("ada", "Nothing."),
    ]
