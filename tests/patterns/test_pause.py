"""Pause, resume and terminate, with a kill between any two rows: nothing begins, is lost, or is done again (F32)."""

import asyncio
import os
from collections.abc import Sequence

import pytest
from tests.patterns.chains import QUESTION, NotingLedger, Witness, branch, chain_on, known, said_in
from tests.patterns.test_life import Held

from antiphon.ledger import Ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.patterns.postchain import ChainResult, PostChain
from antiphon.protocol import PHASES
from antiphon.service import ChainRunner

EVERY = {"": 9, "ci": 1, "nightly": 1}[os.environ.get("ANTIPHON_CHAOS", "")]
"""Of the places where a process can die, which share is tried."""
SOME_PHASES = PHASES if os.environ.get("ANTIPHON_CHAOS") else ("action", "observation")


def _begun(rows: Sequence[Message]) -> list[int]:
    """Return the places of rows that start a model request, a tool or a search."""
    own = ("model.request", "call_tool", "retrieve", "config")
    return [
        place for place, row in enumerate(rows) if _option(row, OptionCallPayload) and any(name in _name(row) for name in own)
    ]


def _option(row: Message, kind: type) -> bool:
    return row.lane == "effect" and isinstance(row.payload, kind)


def _name(row: Message) -> str:
    return str(getattr(row.payload, "option_name", ""))


def _answers(rows: Sequence[Message]) -> int:
    """Return how many answers of models are recorded."""
    return sum(
        _option(row, OptionResultPayload) and "model.request" in _name(row) and not row.payload.is_error for row in rows
    )


def check_nothing_begins_while_it_rests(rows: Sequence[Message]) -> None:
    """G12, from the ledger alone: nothing starts between the answer to a pause and the resume, or after a termination."""
    resting = False
    for row in rows:
        if isinstance(row.payload, OptionResultPayload) and row.lane == "control" and not row.payload.is_error:
            name = row.payload.option_name
            resting = True if name in ("PAUSE_THREAD", "TERMINATE_THREAD") else False if name == "RESUME_THREAD" else resting
        assert not (resting and _begun([row])), row


async def _settled(chain: PostChain, thread_id: str) -> None:
    """Wait until what was asked of the thread itself is answered."""
    moves = {"CREATE_THREAD", "START_THREAD", "PAUSE_THREAD", "RESUME_THREAD", "TERMINATE_THREAD"}
    while any(_name(row.message) in moves for row in await chain.ledger.open_calls(thread_id)):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def _finished(chain: PostChain, thread_id: str) -> None:
    """Wait until nothing is open, which must happen by itself; a tool that a model called may never have started."""
    async with asyncio.timeout(10):
        while any(row.message.lane != "talk" for row in await chain.ledger.open_calls(thread_id)):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _quiet() -> None:
    """Let everything that can run do so."""
    for _ in range(300):
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
async def test_nothing_begins_between_a_pause_and_the_resume(phase: str) -> None:
    """CH-060 to CH-063, G12: what runs ends and is recorded; the resume re-runs nothing; the phase that rests is named."""
    witness = Witness(on_request=(held := Held(phase)))
    async with chain_on(witness=witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        paused = await chain.pause(thread_id)
        assert (paused.status, paused.current_phase) == ("paused", phase)
        asked = list(witness.asked)
        held.released.set()
        await _quiet()
        assert witness.asked == asked
        assert (await chain.status(thread_id)).status == "paused"
        assert (await chain.resume(thread_id)).status == "processing"
        result = await chain.wait(thread_id)
        assert result.status == "completed"
        assert witness.asked == ["action", *PHASES]  # the first asks for a tool, and again with what it gave
        check_nothing_begins_while_it_rests(await said_in(chain.ledger, thread_id))


async def _recorded(phase: str, *moves: str) -> tuple[NotingLedger, str, ChainResult]:
    """Return a thread to which something was done in a phase, up to its end."""
    ledger = await known()
    witness = Witness(on_request=(held := Held(phase)))
    async with chain_on(ledger, witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        for move in moves:
            await getattr(chain, move)(thread_id)
            held.released.set()
            await _quiet()
        result = await chain.wait(thread_id)
        await _finished(chain, thread_id)
        return ledger, thread_id, result


def _places(ledger: NotingLedger, thread_id: str) -> list[int]:
    """Return after how many rows a process can die, from when the thread is started: the last one, and a share of them."""
    ends = [end for end in ledger.ends[thread_id] if end >= 4]
    return [*ends[::EVERY], ends[-1]]


async def _taken_up(left: Ledger, thread_id: str) -> tuple[ChainResult, list[Message], Witness]:
    """Take a thread up that a process has left behind, and let it go on."""
    async with chain_on(left, witness := Witness()) as chain:
        await _settled(chain, thread_id)
        if (await chain.life(thread_id)).status == "paused":
            before = len(witness.asked)
            await _quiet()
            assert len(witness.asked) == before
            await chain.resume(thread_id)
        result = await chain.wait(thread_id)
        await _finished(chain, thread_id)
        return result, await said_in(left, thread_id), witness


@pytest.mark.slow
@pytest.mark.parametrize("phase", SOME_PHASES)
async def test_a_thread_that_was_paused_and_resumed_goes_on_from_wherever_it_was_cut_off(phase: str) -> None:
    """F32, G12, G13, G7: models get only the requests without a recorded answer."""
    ledger, thread_id, whole = await _recorded(phase, "pause", "resume")
    rows = await said_in(ledger, thread_id)
    for place in _places(ledger, thread_id):
        left = await branch(ledger, thread_id, place)
        result, after, witness = await _taken_up(left, thread_id)
        assert (result.status, result.response) == ("completed", whole.response), place
        assert len(witness.asked) == len(PHASES) + 1 - _answers(rows[:place]), place
        check_nothing_begins_while_it_rests(after)


@pytest.mark.slow
async def test_a_resume_outlasts_a_pause_that_a_dead_process_asked_for_before() -> None:
    """Ctrl-C twice: the pause is asked for and not answered. The command that is printed then goes on to the answer."""
    ledger, thread_id, _ = await _recorded("intention", "pause", "resume")
    asked = next(place for place, row in enumerate(await said_in(ledger, thread_id), 1) if _name(row) == "PAUSE_THREAD")
    left = await branch(ledger, thread_id, asked)
    async with chain_on(left, Witness(), recover=False) as chain:
        assert (await ChainRunner(chain).resume(thread_id)).status == "completed"
        await _finished(chain, thread_id)
    rows = await said_in(left, thread_id)
    check_nothing_begins_while_it_rests(rows)

    resumed = next(place for place, row in enumerate(rows, 1) if _name(row) == "RESUME_THREAD" and row.kind == "option_result")
    async with chain_on(
        await branch(left, thread_id, resumed), Witness()
    ) as chain:  # that process died, too, as it resumed it
        async with asyncio.timeout(10):
            assert (await chain.wait(thread_id)).status == "completed"


@pytest.mark.slow
async def test_a_pause_that_is_sent_while_a_resume_is_carried_out_counts() -> None:
    """The answer to the resume is then recorded after the pause was sent."""
    witness = Witness(on_request=(held := Held("intention")))
    async with chain_on(witness=witness) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        await chain.pause(thread_id)
        _, paused = await asyncio.gather(chain.resume(thread_id), chain.pause(thread_id))
        assert paused.status == "paused"
        held.released.set()


@pytest.mark.slow
@pytest.mark.parametrize("phase", SOME_PHASES)
async def test_a_thread_that_is_terminated_stays_so_wherever_it_was_cut_off(phase: str) -> None:
    """F32, CH-064, CH-065, G12, G13: running work was cancelled, nothing starts any more, and nothing is left open."""
    ledger, thread_id, whole = await _recorded(phase, "terminate")
    assert whole.status == "terminated"
    rows = await said_in(ledger, thread_id)
    check_nothing_begins_while_it_rests(rows)
    asked = next(place for place, row in enumerate(rows, 1) if _name(row) == "TERMINATE_THREAD")
    for place in [each for each in ledger.ends[thread_id] if each >= asked][:: max(1, EVERY // 3)]:
        left = await branch(ledger, thread_id, place)
        async with chain_on(left, witness := Witness()) as chain:
            await _settled(chain, thread_id)
            result = await chain.wait(thread_id)
            await _finished(chain, thread_id)
            assert result.status == "terminated"
            if place > asked:
                assert witness.asked == []
        check_nothing_begins_while_it_rests(await said_in(left, thread_id))


@pytest.mark.slow
async def test_a_request_that_waits_for_its_turn_is_not_made_while_its_thread_is_paused() -> None:
    """G12: also if its intent was recorded before the pause; its turn goes to another thread meanwhile."""
    from antiphon.patterns.postchain import ChainConfig

    witness = Witness(on_request=(held := Held("action")))
    async with chain_on(witness=witness, config=ChainConfig(concurrency=1)) as chain:
        first, second, third = [await chain.create(f"{QUESTION} {number}") for number in range(3)]
        await chain.start(first)
        await held.reached.wait()
        await chain.start(second)
        await chain.start(third)
        await _quiet()
        await chain.pause(second)
        held.released.set()
        assert [(await chain.wait(each)).status for each in (first, third)] == ["completed"] * 2
        assert len(witness.asked) == 2 * (len(PHASES) + 1)
        assert witness.most == 1
        await chain.resume(second)
        assert (await chain.wait(second)).status == "completed"
