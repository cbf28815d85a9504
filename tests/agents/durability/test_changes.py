"""A changed program meets an open run: it stops with the reason, continues, or restarts, by its setting. G9, G11."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import Tool
from tests.agents.durability.agents import Desk, call, script

from antiphon.agents import LedgerDurability
from antiphon.durable import LedgerRun, current_run, ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import DataPart, Message, thaw
from antiphon.service import allow_change, thread_status


class CutError(Exception):
    """What ends the program."""


class Program:
    """A program with one agent, which can be changed and cut."""

    def __init__(self, ledger: MemoryLedger | None = None, *, effects: str = "none", turns: int = 3) -> None:
        self.ledger = ledger or MemoryLedger()
        self.desk = Desk()
        self.effects = effects
        self.turns = [[call("look", f"c{number}", what=str(number))] for number in range(1, turns)]

    def agent(self, *, cut_at: int | None = None, **change: Any) -> Agent[None, Any]:
        turns: list[Any] = [*self.turns, ["done"]]
        if cut_at is not None:
            turns[cut_at] = CutError()
        tools = change.pop("tools", [self.tool(**{name: change.pop(name) for name in ("about", "of") if name in change})])
        durability = LedgerDurability(self.ledger, on_change=change.pop("of_agent", None))
        model = script(self.desk, *turns, name=change.pop("model", "script"))
        instructions = change.pop("instructions", "Be kind.\nBe brief.")
        return Agent(model, name="clerk", tools=tools, instructions=instructions, capabilities=[durability], **change)

    def tool(self, about: str = "Looks.", of: type = str) -> Tool[None]:
        async def look(what: Any) -> str:
            self.desk.note(f"look {what}")
            return f"saw {what}"

        look.__annotations__["what"] = of
        return Tool(look, description=about, metadata={"antiphon": {"effects": self.effects}})

    async def cut(self, at: int = 2, **more: Any) -> list[str]:
        """Run it until a model request fails, and return what was done."""
        with pytest.raises(CutError):
            async with ledger_run("t"):
                await self.agent(cut_at=at, **more).run("go")
        return self.desk.taken()

    async def go_on(self, on_change: Any = None, *, prompt: str = "go", **change: Any) -> tuple[Any, list[str]]:
        async with ledger_run("t", on_change=on_change):
            result = await self.agent(**change).run(prompt)
        return result, self.desk.taken()

    async def choices(self) -> list[dict[str, Any]]:
        rows = [record.message async for record in self.ledger.read("t")]
        return [data for row in rows if (data := _data(row)).get("type") == "RUN_CHANGED"]


def _data(row: Message) -> dict[str, Any]:
    match row.parts:
        case (DataPart(data=data),) if row.lane == "control":
            return thaw(data)  # type: ignore[no-any-return]
        case _:
            return {}


CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "instructions": (
        {"instructions": "Be kind.\nBe long."},
        ["the prompt differs from the one", "instructions:\n  - Be brief.\n  + Be long.\n"],
    ),
    "a system prompt": ({"system_prompt": "Think."}, ["the prompt differs from the one", "system prompt:\n  + Think.\n"]),
    "a description": (
        {"about": "Looks well."},
        ["the tools differ", "description of tool 'look':\n  - Looks.\n  + Looks well."],
    ),
    "a schema": ({"of": int}, ["the tools differ", "parameters of tool 'look':", '  -    "type": "string"', '"integer"']),
    "another tool": ({"tools": []}, ["the tools differ", "tool 'look' is gone"]),
    "settings": ({"model_settings": {"temperature": 0.5}}, ["the settings differ", "setting 'temperature': None, now 0.5"]),
    "the model": ({"model": "other"}, ["the model differs from the one", "model: 'script', now 'other'"]),
    "the form of the answer": ({"output_type": int}, ["the tools differ", "tool 'final_result' is new"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_program_stops_and_says_what_has_changed_and_how_to_go_on(name: str) -> None:
    change, expected = CHANGES[name]
    program = Program()
    await program.cut()
    with pytest.raises(HistoryMismatchError) as caught:
        await program.go_on(**change)
    for text in (*expected, "that thread 't' records, in 't/run/clerk/model'", "`antiphon resume t --on-change continue`"):
        assert text in str(caught.value)
    assert program.desk.taken() == []
    assert await program.choices() == []
    summary = await program.ledger.thread("t")
    assert summary is not None
    assert summary.status == "stopped"
    assert expected[0] in (await thread_status(program.ledger, "t")).unfit[0]
    assert (await program.go_on())[0].output == "done"  # the program as it was goes on


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHANGES if name != "the form of the answer"])
async def test_a_program_that_continues_takes_what_is_recorded_and_goes_on_under_the_new_code(name: str) -> None:
    change, expected = CHANGES[name]
    program = Program()
    assert await program.cut() == ["model 0", "look 1", "model 1", "look 2", "model 2"]
    result, done = await program.go_on("continue", **change)
    assert (result.output, done) == ("done", ["model 2"])
    rows = [row for row in await program.choices() if "/model" in row["step"]]
    assert [(row["step"], row["choice"], row["by"]) for row in rows] == [
        (f"t/run/clerk/model{number}", "continue", "program") for number in ("", "=2", "=3")
    ]
    assert expected[1].splitlines()[0] in rows[0]["differences"]
    asked = [row.message.parts[0] async for row in program.ledger.read("t") if row.message.role_hint_for_llm == "user"]
    assert len(asked) == 1  # the question is in the thread once
    # The same program again, which does not say it any more, is covered by the rows; another one is not.
    assert (await program.go_on(**change))[0].output == "done"


async def test_new_instructions_are_in_the_talk_from_where_they_hold() -> None:
    program = Program(turns=4)
    await program.cut()  # this request is recorded, with the old ones; the next one is new
    await program.go_on("continue", instructions="Be long.")
    talk = [row.message async for row in program.ledger.read("t") if row.message.lane == "talk"]
    said = [row.parts[0].text for row in talk if row.role_hint_for_llm == "system"]  # type: ignore[union-attr]
    assert said == ["Be kind.\nBe brief.", "Be long."]


@pytest.mark.slow
async def test_a_row_covers_the_program_that_chose_and_no_other() -> None:
    program = Program(turns=4)
    await program.cut(2)
    with pytest.raises(CutError):
        async with ledger_run("t", on_change="continue"):
            await program.agent(cut_at=3, instructions="Be long.").run("go")
    program.desk.taken()
    with pytest.raises(HistoryMismatchError, match=r"instructions:\n  - Be kind.*\n.*\n  \+ Be short"):
        await program.go_on(instructions="Be short.")
    with pytest.raises(
        HistoryMismatchError, match="in 't/run/clerk/model=3~2'"
    ):  # the old program does not fit any more either
        await program.go_on()
    result, done = await program.go_on(instructions="Be long.")
    assert (result.output, done) == ("done", ["model 3"])


@pytest.mark.parametrize("name", CHANGES)
async def test_a_finished_run_is_readable_whatever_has_changed(name: str) -> None:
    change, _ = CHANGES[name]
    program = Program(turns=2)
    await program.go_on()
    program.desk.taken()
    if name == "the form of the answer":
        with pytest.raises(HistoryMismatchError, match="this program does more"):  # the recorded answer is not of that form
            await program.go_on(**change)
        return
    result, done = await program.go_on(**change)
    assert (result.output, done) == ("done", [])
    assert await program.choices() == []


@pytest.mark.slow
async def test_another_question_is_another_run() -> None:
    """A thread without ids must not answer the second question as the first."""
    program = Program(turns=1)
    await program.go_on()
    with pytest.raises(HistoryMismatchError, match=r"question:\n  - go\n  \+ stay\nthe run is finished: .* another id"):
        await program.go_on(prompt="stay")
    assert (await program.go_on("continue", prompt="stay"))[0].output == "done"


@pytest.mark.slow
@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize("change", [{"tools": []}, {"of": int}])
async def test_recorded_calls_keep_their_outcomes_if_their_tool_is_gone_or_takes_other_arguments(
    change: dict[str, Any], is_finished: bool
) -> None:
    """More of them than a model may call wrongly."""
    program = Program(turns=5)
    program.turns = [[call("look", f"c{number}", what="that")] for number in range(1, 5)]
    if is_finished:
        result, _ = await program.go_on()
    else:
        await program.cut(4)
    again, done = await program.go_on(None if is_finished else "continue", **change)
    assert (again.output, done) == ("done", [] if is_finished else ["model 4"])
    returned = [part.content for message in again.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    assert returned == ["saw that"] * 4
    if is_finished:
        assert [type(message) for message in again.all_messages()] == [type(message) for message in result.all_messages()]
    assert not await program.ledger.open_calls("t")


@pytest.mark.slow
async def test_a_tool_that_is_gone_is_not_offered_and_not_called() -> None:
    """A model that calls it nevertheless is told that there is none."""
    program = Program(turns=4)
    await program.cut(2)
    offered: list[list[str]] = []
    base = script(program.desk, *program.turns[:2], [call("look", "c9", what="9")], ["done"])
    assert base.function is not None
    answer = base.function

    def seen(messages: Any, info: AgentInfo) -> Any:
        offered.append([tool.name for tool in info.function_tools])
        return answer(messages, info)

    agent: Agent[None, str] = Agent(
        FunctionModel(seen, model_name="script"),
        name="clerk",
        instructions="Be kind.\nBe brief.",
        capabilities=[LedgerDurability(program.ledger, on_change="continue")],
    )
    async with ledger_run("t"):
        result = await agent.run("go")
    assert (result.output, offered) == ("done", [[], []])
    assert program.desk.taken() == ["model 2", "model 3"]
    assert any("Unknown tool name: 'look'" in str(part) for message in result.all_messages() for part in message.parts)


@pytest.mark.parametrize("change", [{"tools": []}, {"of": int}])
async def test_continue_is_refused_if_a_call_is_open_whose_tool_is_gone_or_takes_other_arguments(change: Any) -> None:
    """The model would be told that a call failed that may have been made."""
    program = Program(effects="idempotent")
    program.turns[0] = [call("look", "c1", what="one")]

    async def look(what: str) -> str:
        program.desk.note(f"look {what}")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await program.go_on(tools=[Tool(look, description="Looks.", metadata={"antiphon": {"effects": "idempotent"}})])
    program.desk.taken()
    gone = "calls tool 'look', and it is gone. Keep the tool until the run has ended"
    with pytest.raises(
        HistoryMismatchError, match=gone if "tools" in change else "does not repeat the recorded call .* Keep its tool"
    ):
        await program.go_on("continue", **change)
    assert program.desk.taken() == []
    assert (await program.go_on())[0].output == "done"


@pytest.mark.parametrize(("before", "after"), [("once", "none"), ("none", "once"), ("once", "idempotent")])
async def test_an_interrupted_call_is_not_made_again_if_it_was_or_is_once(before: str, after: str) -> None:
    program = Program(effects=before)

    async def look(what: str) -> str:
        program.desk.note(f"look {what}")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await program.go_on(tools=[Tool(look, description="Looks.", metadata={"antiphon": {"effects": before}})])
    assert program.desk.taken() == ["model 0", "look 1"]
    program.effects = after
    with pytest.raises(ParkedError, match="antiphon settle t t/run/clerk/look:c1"):
        await program.go_on("continue")
    assert program.desk.taken() == []


@pytest.mark.slow
async def test_a_permission_of_a_person_covers_what_was_recorded_before_it() -> None:
    program = Program(turns=4)
    await program.cut(2)
    with pytest.raises(HistoryMismatchError):
        await program.go_on(instructions="Be long.")
    assert await allow_change(program.ledger, "t", "continue") == ("t/run",)
    with pytest.raises(CutError):
        async with ledger_run("t"):
            await program.agent(cut_at=3, instructions="Be long.").run("go")
    assert {row["by"] for row in await program.choices()} == {"person"}
    program.desk.taken()
    with pytest.raises(HistoryMismatchError, match="in 't/run/clerk/model=3~2'"):  # a second change is another decision
        await program.go_on(instructions="Be short.")
    assert program.desk.taken() == []
    result, done = await program.go_on(instructions="Be long.")
    assert (result.output, done) == ("done", ["model 3"])


@pytest.mark.slow
async def test_a_restart_does_the_changed_agent_anew_and_can_be_continued_itself() -> None:
    program = Program()
    await program.cut(2)
    with pytest.raises(CutError):
        async with ledger_run("t", on_change="restart"):
            await program.agent(cut_at=1, instructions="Be long.").run("go")
    assert program.desk.taken() == ["model 0", "look 1", "model 1"]
    for on_change in ("restart", None):  # the second time, the run has ended
        result, done = await program.go_on(on_change, instructions="Be long.")
        assert result.output == "done"
        assert done == (["model 1", "look 2", "model 2"] if on_change else [])
    (row,) = await program.choices()
    assert (row["step"], row["choice"]) == ("t/run/clerk/model", "restart")
    assert not await program.ledger.open_calls("t")


@pytest.mark.slow
async def test_a_restart_is_refused_once_a_once_effect_has_an_intent() -> None:
    program = Program(effects="once")
    await program.cut(1)
    with pytest.raises(HistoryMismatchError, match="it cannot restart: 't/run/clerk/look:c1' must not be done twice"):
        await program.go_on("restart", instructions="Be long.")
    assert program.desk.taken() == []
    assert (await program.go_on("continue", instructions="Be long."))[0].output == "done"


@pytest.mark.parametrize("of_run", [None, "stop"])
async def test_an_agent_says_what_its_runs_do_and_a_run_overrules_it(of_run: Any) -> None:
    program = Program()
    await program.cut()
    if of_run is None:
        assert (await program.go_on(instructions="Be long.", of_agent="continue"))[0].output == "done"
    else:
        with pytest.raises(HistoryMismatchError):
            await program.go_on(of_run, instructions="Be long.", of_agent="continue")


# ---------------------------------------------------------------- effects of the program


async def _pay(key: str) -> str:
    return key


@pytest.mark.parametrize(("on_change", "paid"), [("continue", "t/run/pay"), ("restart", "t/run/pay~2"), ("stop", None)])
async def test_an_effect_of_the_program_itself(on_change: Any, paid: str | None) -> None:
    ledger = MemoryLedger()

    async def work(amount: int, then: Callable[[str], Awaitable[None]], choice: Any = None) -> None:
        async with ledger_run("t", ledger=ledger, on_change=choice) as run:
            await then(await run.effect("pay", {"amount": amount}, _pay, effects="idempotent"))

    async def cut(paid: str) -> None:
        raise CutError

    seen: list[str] = []

    async def see(paid: str) -> None:
        seen.append(paid)

    with pytest.raises(CutError):
        await work(1, cut)
    if paid is None:
        with pytest.raises(HistoryMismatchError, match="argument 'amount' has changed"):
            await work(2, see, on_change)
        return
    await work(2, see, on_change)
    assert seen == [paid]


async def test_an_interrupted_effect_is_not_done_again_with_other_arguments() -> None:
    ledger = MemoryLedger()

    async def broken(key: str) -> str:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("pay", {"amount": 1}, broken, effects="idempotent")
    with pytest.raises(HistoryMismatchError, match="it would be done again with other arguments"):
        async with ledger_run("t", ledger=ledger, on_change="continue") as run:
            await run.effect("pay", {"amount": 2}, _pay, effects="idempotent")


# ---------------------------------------------------------------- patches


async def _steps(run: LedgerRun, *names: str) -> None:
    async def done(key: str) -> str:
        return key

    for name in names:
        await run.effect(name, {}, done, effects="none")


async def _branched(ledger: MemoryLedger, *, ends: bool = True) -> bool:
    """Run the new program, in which a step before and a step after the branch are as they were."""
    async with ledger_run("t", ledger=ledger) as run:
        await _steps(run, "first")
        is_new = await run.patched("better")
        assert is_new == await run.patched("better")
        await _steps(run, "better" if is_new else "worse")
        await _steps(run, "last")
        if not ends:
            raise CutError
    return is_new


@pytest.mark.parametrize(
    ("recorded", "is_new"), [(None, True), (["first"], True), (["first", "worse"], False), (["first", "worse", "last"], False)]
)
async def test_a_run_that_has_passed_a_branch_takes_the_old_one_and_others_the_new(
    recorded: list[str] | None, is_new: bool
) -> None:
    ledger = MemoryLedger()

    async def work(*names: str) -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await _steps(run, *names)
            raise CutError

    if recorded is not None:
        with pytest.raises(CutError):
            await work(*recorded)
    with pytest.raises(CutError):
        await _branched(ledger, ends=False)
    assert [await _branched(ledger) for _ in range(2)] == [is_new] * 2  # goes on, and is read
    rows = [_data(record.message).get("type") async for record in ledger.read("t")]
    assert rows.count("RUN_PATCHED") == is_new


async def test_a_finished_run_of_the_old_program_is_read_on_the_old_branch() -> None:
    ledger = MemoryLedger()
    async with ledger_run("t", ledger=ledger) as run:
        await _steps(run, "first", "worse", "last")
    assert not await _branched(ledger)
    async with ledger_run("t", ledger=ledger) as run:
        await _steps(run, "first", "worse", "last")
        assert not await run.patched("later")  # at the end, where an open run would begin something new


async def test_work_inside_of_a_tool_that_is_not_called_again_is_passed() -> None:
    """What a recorded tool did inside is not done again: it does not keep the run on the old branch."""
    ledger, desk = MemoryLedger(), Desk()

    async def work(*, is_new: bool) -> bool | None:
        agent: Agent[None, str] = Agent(
            script(desk, [call("look", "c1")], ["done"]), name="clerk", capabilities=[LedgerDurability(ledger)]
        )

        @agent.tool_plain
        async def look() -> str:
            run = current_run()
            assert run is not None
            await _steps(run, "inside")
            return "seen"

        async with ledger_run("t", ledger=ledger) as run:
            await agent.run("go")
            if not is_new:
                raise CutError
            return await run.patched("better")

    with pytest.raises(CutError):
        await work(is_new=False)
    assert await work(is_new=True) is True
