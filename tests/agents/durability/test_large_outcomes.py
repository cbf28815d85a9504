"""F31, G7, G21: an outcome that is too large for a row is cut with a mark, and the program gets what the thread says."""

import asyncio
from collections.abc import Awaitable, Callable
from time import process_time
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, Tool
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    FilePart,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.agents.toolkit.kit import call, run_agent, script

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import AntiphonError, EffectFailedError, FailedError, ParkedError, RefusedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionResultPayload

BIG = 50_000_000
MOST = 1024 * 1024


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("nobody can read it")


async def twice(program: Callable[[MemoryLedger], Awaitable[Any]]) -> Any:
    """Return the result of a program. A second run gives the same, and all rows of the thread fit."""
    ledger = MemoryLedger()
    came = [await _came(program, ledger) for _ in range(2)]
    assert came[0] == came[1]
    assert all([len(record.body) < MOST async for record in ledger.read("t")])
    return came[0]


async def _came(program: Callable[[MemoryLedger], Awaitable[Any]], ledger: MemoryLedger) -> Any:
    try:
        return await program(ledger)
    except (AntiphonError, ModelHTTPError, RuntimeError) as exc:
        return type(exc), str(exc)


async def done(ledger: MemoryLedger, do: Callable[[], Any]) -> Any:
    """Do one effect and then another, so that the outcome of the first is final."""

    async def effect(key: str) -> Any:
        return do()

    try:
        async with ledger_run("t", ledger=ledger) as run:
            try:
                return await run.effect("pay", {}, effect)
            except (EffectFailedError, RefusedError) as exc:
                return type(exc), exc.reason, getattr(exc, "details", None)
    except ParkedError as exc:
        return type(exc), exc.reason, None


def raising(error: Exception) -> Callable[[], Any]:
    def do() -> Any:
        raise error

    return do


# ---------------------------------------------------------------- effects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (lambda: RuntimeError("x" * BIG), " of 50,000,014 characters]"),
        (lambda: RuntimeError("\0" * BIG), " of 50,000,014 characters]"),
        (lambda: RuntimeError("\ud800" * BIG), " of 50,000,014 characters]"),
        (MuteError, "MuteError: (its text cannot be read)"),
    ],
    ids=["text", "control characters", "surrogates", "mute"],
)
def test_a_failure_is_recorded_however_long_its_text_is(error: Callable[[], Exception], said: str) -> None:
    """G7, F31: a `once` call is not parked because its error is too long. (50 MB took 23 s.)"""
    failing, began = raising(error()), process_time()
    cls, reason, _ = asyncio.run(twice(lambda ledger: done(ledger, failing)))
    assert process_time() - began < 5
    assert (cls, reason.endswith(said)) == (EffectFailedError, True)


@pytest.mark.slow
def test_a_failure_with_a_code_keeps_its_code_and_what_fits_of_its_details() -> None:
    details = {"status": 500, "body": "y" * BIG}
    failed = FailedError("x" * BIG, "DOWN", details=details)  # type: ignore[arg-type]
    cls, reason, said = asyncio.run(twice(lambda ledger: done(ledger, raising(failed))))
    assert (cls, said["status"], reason.endswith("characters]")) == (RefusedError, 500, True)
    assert said["body"].endswith(" of 50,000,000 characters]")


def test_a_failure_is_recorded_also_if_its_details_are_no_json() -> None:
    odd: Any = {"a": object()}
    came = asyncio.run(twice(lambda ledger: done(ledger, raising(FailedError("no", "DOWN", details=odd)))))
    assert came == (RefusedError, "no", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "mark"),
    [
        (lambda: "x" * BIG, " of 50,000,000 characters]"),
        (lambda: [{"id": number, "name": "n" * 50} for number in range(50_000)], " of 50,000 items]"),
        (lambda: "x" * (MOST - 2000), " of 1,046,576 characters]"),  # it fits into its row, and would not fit into the talk
    ],
    ids=["text", "rows", "just fits"],
)
def test_a_result_is_cut_and_the_program_gets_what_the_thread_says(made: Callable[[], Any], mark: str) -> None:
    value, began = made(), process_time()
    came = asyncio.run(twice(lambda ledger: done(ledger, lambda: value)))
    assert process_time() - began < 5
    assert (came if isinstance(came, str) else came[-1]).endswith(mark)


def test_a_result_that_is_nested_too_deep_is_cut_there() -> None:
    value: Any = "deep"
    for _ in range(100):
        value = [value]
    assert "[cut: nested too deep]" in str(asyncio.run(twice(lambda ledger: done(ledger, lambda: value))))


def test_a_large_result_that_is_no_json_is_parked_with_its_beginning() -> None:
    """G7: it was done, so it has not failed."""
    cls, reason, _ = asyncio.run(twice(lambda ledger: done(ledger, lambda: [object(), "x" * BIG])))
    assert cls is ParkedError
    assert "result cannot be recorded (object is not JSON" in reason
    assert len(reason) < 1000


# ---------------------------------------------------------------- tools of durable agents


def told(do: Callable[[], Any]) -> Any:
    """Return what a model gets from a tool that returns or raises something."""

    async def program(ledger: MemoryLedger) -> Any:
        tools = [Tool(do, name="do")]
        agent = Agent(script([call("do")]), name="clerk", tools=tools, capabilities=[LedgerDurability(ledger)])
        async with ledger_run("t"):
            messages = (await agent.run("go")).all_messages()
        return [str(part.content)[-60:] for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]

    return asyncio.run(twice(program))


@pytest.mark.slow
def test_a_large_result_or_error_of_a_tool_is_cut() -> None:
    def flood() -> str:
        return "x" * BIG

    def burst() -> str:
        raise RuntimeError("x" * BIG)

    assert told(flood)[0].endswith(" of 50,000,000 characters]")
    cls, reason = told(burst)
    assert (cls, reason.endswith(" of 50,000,000 characters]")) == (RuntimeError, True)


@pytest.mark.slow
def test_an_image_that_is_too_large_is_not_cut_but_told_as_a_failure() -> None:
    def paint() -> BinaryContent:
        return BinaryContent(b"png" * 1_000_000, media_type="image/png")

    assert told(paint) == ["it was done, and what it returned is too large to be written down"[-60:]]


# ---------------------------------------------------------------- toolkits

pytestmark = pytest.mark.filterwarnings("ignore::antiphon.durable.DurabilityWarning")


def kit_told(do: Callable[[], Any]) -> Any:
    async def program(ledger: MemoryLedger) -> Any:
        toolkit = Toolkit()
        toolkit.add(do, name="do", to=["clerk"])
        return [str(content)[-60:] for _, content in await run_agent(toolkit, script([call("do")]), ledger=ledger)]

    return asyncio.run(twice(program))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (lambda: RuntimeError("x" * BIG), "xxx… [cut] (RuntimeError)"),
        (lambda: RuntimeError("\n" + "a line\n" * (BIG // 7)), "RuntimeError: a line (RuntimeError)"),
        (MuteError, "MuteError: (its text cannot be read) (MuteError)"),
    ],
    ids=["text", "lines", "mute"],
)
def test_a_large_error_of_a_toolkit_tool_is_cut_in_linear_time(error: Callable[[], Exception], said: str) -> None:
    """G7: it is recorded, so nothing is parked."""
    (words,) = kit_told(raising(error()))
    assert words.endswith(said)


def test_a_picture_in_a_run_that_is_larger_than_a_row_is_refused_with_a_code() -> None:
    def paint() -> BinaryContent:
        return BinaryContent(b"png" * 1_000_000, media_type="image/png")

    (words,) = kit_told(paint)
    assert words.endswith("are taken; ask for less (RESULT_TOO_LARGE)")


def test_arguments_that_are_too_large_to_be_written_down_are_refused() -> None:
    """A call is written down before it is made, and half a call must not be made."""
    ran: list[int] = []

    def keep(text: str) -> None:
        ran.append(len(text))

    async def program(ledger: MemoryLedger) -> Any:
        toolkit = Toolkit()
        toolkit.add(keep, to=["clerk"])
        async with ledger_run("t", ledger=ledger):
            came = await toolkit.call("clerk", "keep", {"text": "x" * 2_000_000})
        return came.error_type, came.error_message

    assert asyncio.run(twice(program))[0] == "INVALID_ARGUMENTS"
    assert ran == []


# ---------------------------------------------------------------- answers of models


def answering(parts: list[ModelResponsePart], seen: list[int]) -> Callable[[MemoryLedger], Awaitable[Any]]:
    """Return a program whose model gives an answer, and then ends."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts) if len(messages) == 1 else ModelResponse([TextPart("done")])

    async def program(ledger: MemoryLedger) -> Any:
        agent = Agent(FunctionModel(answer), name="clerk", capabilities=[LedgerDurability(ledger)])

        @agent.tool_plain
        def keep(text: str) -> None:
            seen.append(len(text))

        async with ledger_run("t"):
            messages = (await agent.run("go")).all_messages()
        return [(type(part), str(getattr(part, "content", ""))[-60:]) for message in messages for part in message.parts]

    return program


@pytest.mark.slow
def test_a_large_answer_is_cut_and_the_run_continues_with_the_stored_text() -> None:
    thought = ThinkingPart("t" * 2_000_000, signature="proof")
    came = asyncio.run(twice(answering([thought, TextPart("x" * 2_000_000), TextPart("end")], [])))
    _, (_, thinking), (_, text), end = came
    assert [words.endswith(" of 2,000,000 characters]") for words in (thinking, text)] == [True, True]
    assert end == (TextPart, "end")


@pytest.mark.slow
def test_a_call_whose_arguments_were_cut_is_not_made() -> None:
    seen: list[int] = []
    for given in ({"text": "x" * 2_000_000}, '{"text": "' + "x" * 2_000_000 + '"}'):
        came = asyncio.run(twice(answering([ToolCallPart("keep", given, tool_call_id="c1")], seen)))
        assert came[-1] == (TextPart, "done")  # after it was told that it is no JSON
    assert seen == []


@pytest.mark.slow
def test_an_answer_of_very_many_parts_is_cut() -> None:
    came = asyncio.run(twice(answering([TextPart("x") for _ in range(8000)], [])))
    assert came[-1][1].endswith(" of 8,000 items]")


@pytest.mark.slow
def test_an_answer_that_cannot_be_cut_is_an_error_with_a_code() -> None:
    image: Any = FilePart(BinaryContent(b"png" * 1_000_000, media_type="image/png"))
    cls, reason = asyncio.run(twice(answering([image], [])))
    assert (cls, "cannot be cut" in reason) == (UnexpectedModelBehavior, True)


def test_an_error_of_a_model_is_the_same_the_second_time_also_where_it_was_cut() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(500, "m", {"error": "x" * 2_000_000})

    async def program(ledger: MemoryLedger) -> Any:
        agent = Agent(FunctionModel(answer), name="clerk", capabilities=[LedgerDurability(ledger)])
        async with ledger_run("t") as run:
            try:
                await agent.run("go")
            except ModelHTTPError as exc:
                await run.effect("go on", {}, _nothing)
                return exc.status_code, str(exc.body)[-30:]

    status, body = asyncio.run(twice(program))
    assert (status, body.endswith(" of 2,000,000 characters]'}")) == (500, True)


async def _nothing(key: str) -> None:
    return None


# ---------------------------------------------------------------- all that was recorded


@pytest.mark.slow
async def test_every_outcome_of_a_run_with_large_ones_is_an_outcome() -> None:
    """G7: no effect is left open."""
    ledger = MemoryLedger()

    await done(ledger, raising(RuntimeError("x" * BIG)))
    assert await ledger.open_calls("t") == ()
    rows = [record.message.payload async for record in ledger.read("t")]
    assert sum(isinstance(row, OptionResultPayload) and row.is_error for row in rows) == 1
