"""The life of a thread: which moves are legal, what each is answered, and that saying a thing twice changes nothing."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.patterns.chains import QUESTION, Witness, chain_on, known, run, said_in, types_of

from antiphon.errors import RefusedError
from antiphon.ledger import Ledger, diff
from antiphon.messages import Message, OptionCallPayload, PartsPayload, TextPart
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.postchain._lifecycle import LIFE, ThreadLife
from antiphon.protocol import PHASES

MOVES = ("start", "pause", "resume", "terminate", "status")
LEGAL = {
    "created": {"start", "terminate", "status"},
    "processing": {"pause", "resume", "terminate", "status"},
    "paused": {"pause", "resume", "terminate", "status"},
    "completed": {"terminate", "status"},  # and to be started with a new input
    "failed": {"start", "terminate", "status"},
    "terminated": {"terminate", "status"},
}


class Held:
    """A model that waits in a phase until it may go on."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, phase: str) -> None:
        if phase == self.phase:
            self.reached.set()
            await self.released.wait()


async def _thread_in(state: str, chain: PostChain, held: Held, witness: Witness) -> str:
    """Return a thread in a state."""
    thread_id = await chain.create(QUESTION)
    if state == "created":
        return thread_id
    if state in ("completed", "failed"):
        held.released.set()
        witness.failures = [ValueError("broken")] if state == "failed" else []
        await chain.start(thread_id)
        assert (await chain.wait(thread_id)).status == state
        held.released.clear()
        return thread_id
    await chain.start(thread_id)
    await held.reached.wait()
    if state == "paused":
        await chain.pause(thread_id)
    if state == "terminated":
        await chain.terminate(thread_id)
    return thread_id


@pytest.mark.slow
@pytest.mark.parametrize("state", LEGAL)
async def test_a_move_is_made_where_it_is_legal_and_refused_where_it_is_not(state: str) -> None:
    """CH-068, G13: INVALID_STATE says what the thread is, and when the move would be possible."""
    for move in MOVES:
        held, witness = Held("intention"), Witness()
        witness.on_request = held
        async with chain_on(witness=witness) as chain:
            thread_id = await _thread_in(state, chain, held, witness)
            assert (await chain.life(thread_id)).status == state
            if move in LEGAL[state]:
                await getattr(chain, move)(thread_id)
            else:
                with pytest.raises(RefusedError) as caught:
                    await getattr(chain, move)(thread_id)
                assert caught.value.code == "INVALID_STATE"
                assert caught.value.details["status"] == state
                assert (await chain.life(thread_id)).status == state
            held.released.set()
            await chain.terminate(thread_id)


async def test_of_two_simultaneous_requests_the_second_is_refused() -> None:
    """CH-068, G13: two creators of one thread, two starts, and two turns; the phases run once for each turn."""
    async with chain_on() as chain:

        async def both(*moves: Awaitable[Any]) -> list[str]:
            outcomes = await asyncio.gather(*moves, return_exceptions=True)
            return [getattr(each, "code", "taken") for each in outcomes]

        assert await both(*(chain.create(text, thread_id="t") for text in (QUESTION, "Why?"))) == ["taken", "INVALID_STATE"]
        assert (await chain.life("t")).input == QUESTION
        assert await both(chain.start("t"), chain.start("t")) == ["taken", "INVALID_STATE"]
        await chain.wait("t")
        turns = await both(chain.run("And coffee?", thread_id="t"), chain.run("Or?", thread_id="t"))
        assert turns == ["taken", "INVALID_STATE"]
        assert [turn.input for turn in (await chain.life("t")).turns] == [QUESTION, "And coffee?"]
        assert await _phases_run(chain.ledger, "t") == 2 * len(PHASES)


async def test_the_same_conversation_given_twice_at_once_runs_once() -> None:
    said = [Message(id=each, policy="user", payload=PartsPayload(parts=(TextPart(text=QUESTION),))) for each in "ab"]
    async with chain_on() as chain:
        first, second = await asyncio.gather(*(chain.run(said, thread_id="t") for _ in range(2)))
        assert first.response == second.response
        assert await _phases_run(chain.ledger, "t") == len(PHASES)


@pytest.mark.parametrize("pauses", range(8))
async def test_the_same_conversation_given_again_soon_runs_once(pauses: int) -> None:
    said = [Message(id=each, policy="user", payload=PartsPayload(parts=(TextPart(text=QUESTION),))) for each in "ab"]
    async with chain_on() as chain:
        first = asyncio.create_task(chain.run(said, thread_id="t"))
        for _ in range(pauses):
            await asyncio.sleep(0)
        second = await chain.run(said, thread_id="t")
        assert (await first).response == second.response
        assert await _phases_run(chain.ledger, "t") == len(PHASES)


async def test_nobody_gets_the_answer_to_another_question() -> None:
    """Another caller starts the thread with its own question, before the one who created it does."""
    async with chain_on() as chain:
        say, others = chain._say, list[asyncio.Task[Any]]()

        async def late(thread_id: str, request: Any) -> Any:
            if not others:
                others.append(asyncio.create_task(chain.run("Why?", thread_id=thread_id)))
                await asyncio.wait(others)
            return await say(thread_id, request)

        chain._say = late  # type: ignore[assignment]
        with pytest.raises(RefusedError, match="START_THREAD"):
            await chain.run(QUESTION, thread_id="t")
        assert (await others[0]).status == "completed"
        assert await _phases_run(chain.ledger, "t") == len(PHASES)


async def test_a_start_that_is_delivered_again_after_a_later_one_is_refused() -> None:
    """G13: a process died with it; meanwhile another process has started the thread, and it has completed."""
    ledger = await known()
    async with chain_on(ledger, recover=False) as first:
        await first.create(QUESTION, thread_id="t")
    start = OptionCallPayload(option_name="START_THREAD", arguments={"thread_id": "t"}, invocation_id="lost")
    lost = Message(id="lost", policy="client", payload=start, to=("thread/t",), lane="control", thread_id="t")
    await ledger.append("t", [lost], epoch=await ledger.claim("t"))
    async with chain_on(ledger, recover=False) as second:
        await second.start("t")
        assert (await second.wait("t")).status == "completed"
    async with chain_on(ledger) as third:
        await third.wait("t")
        async with asyncio.timeout(10):
            while await ledger.open_calls("t"):  # noqa: ASYNC110 (the ledger has no event)
                await asyncio.sleep(0.01)
    assert await _phases_run(ledger, "t") == len(PHASES)


async def _phases_run(ledger: Ledger, thread_id: str) -> int:
    payloads = [row.payload for row in await said_in(ledger, thread_id)]
    return sum(isinstance(each, OptionCallPayload) and each.option_name == "PROCESS_PHASE" for each in payloads)


async def test_a_thread_that_nobody_created_is_not_found_and_nothing_is_written() -> None:
    """CH-068."""
    async with chain_on() as chain:
        for move in MOVES:
            with pytest.raises(RefusedError, match="create it first") as caught:
                await getattr(chain, move)("nobody")
            assert caught.value.code == "THREAD_NOT_FOUND"
            with pytest.raises(RefusedError, match="create it first"):
                await getattr(chain, move)("knowledge")  # a thread, but none of these
        assert await chain.ledger.thread("nobody") is None


@pytest.mark.slow
async def test_the_status_tells_phases_completed_and_remaining() -> None:
    """CH-066, CH-067: the current phase is the first that remains, and all six are in one of the two."""
    for number, phase in enumerate(PHASES):
        witness = Witness(on_request=(held := Held(phase)))
        async with chain_on(witness=witness) as chain:
            thread_id = await chain.create(QUESTION)
            await chain.start(thread_id)
            await held.reached.wait()
            status = await chain.status(thread_id)
            assert (status.status, status.current_phase) == ("processing", phase)
            assert (status.phases_completed, status.phases_remaining) == (PHASES[:number], PHASES[number:])
            assert status.created_at <= status.updated_at
            held.released.set()
            await chain.wait(thread_id)
            done = await chain.status(thread_id)
            assert (done.status, done.current_phase, done.phases_remaining) == ("completed", None, ())


@pytest.mark.slow
async def test_the_same_message_is_the_same_thread_and_gets_the_same_answer() -> None:
    """CH-120, G13: a client that is not sure about a message sends it again, to this process or the next."""
    ledger = await known()
    create = {"id": "m-1", "type": "CREATE_THREAD", "data": {"user_id": "u", "initial_input": QUESTION}}
    async with chain_on(ledger) as chain:
        first = await chain.send(create)
        again = await chain.send(create)
        assert first["data"] == again["data"]
        start = {"id": "m-2", "type": "START_THREAD", "data": {"thread_id": first["data"]["thread_id"]}}
        started = await chain.send(start)
        result = await chain.wait(first["data"]["thread_id"])
    async with chain_on(ledger, witness := Witness()) as chain:
        assert (await chain.send(create))["data"] == first["data"]
        assert (await chain.send(start))["data"] == started["data"]
        assert await chain.wait(result.thread_id) == result
        rows = await said_in(ledger, result.thread_id)
        assert types_of(rows).count("client -> thread: START_THREAD") == 1
    assert witness.asked == []


@pytest.mark.slow
async def test_a_thread_goes_on_with_a_new_input_and_knows_what_was_said() -> None:
    """CH-118: several turns; the history is told to every phase, and is bounded."""
    async with chain_on(config=ChainConfig(history=2)) as chain:
        result = await chain.run(QUESTION)
        for number in range(3):
            result = await chain.run(f"And number {number}?", thread_id=result.thread_id)
            assert result.status == "completed"
        life = await chain.life(result.thread_id)
        assert [turn.input for turn in life.turns] == [QUESTION, *(f"And number {number}?" for number in range(3))]
        assert all(turn.response for turn in life.turns)
        rows = await said_in(chain.ledger, result.thread_id)
        asked = [
            m.payload for m in rows if isinstance(m.payload, OptionCallPayload) and m.payload.option_name == "PROCESS_PHASE"
        ]
        history = asked[-1].arguments["context"]["conversation_history"]
        assert [turn["content"] for turn in history if turn["role"] == "user"] == ["And number 0?", "And number 1?"]
        with pytest.raises(RefusedError, match="give START_THREAD an `input`"):
            await chain.start(result.thread_id)
        sizes = _bytes_by_turn(rows)
        assert max(sizes[2:]) < 1.2 * min(sizes[2:])  # flat: a turn costs the same, however long the thread is


def _bytes_by_turn(rows: list[Message]) -> list[int]:
    sizes: list[int] = []
    for message in rows:
        if getattr(message.payload, "option_name", "") == "START_THREAD" and message.kind == "option_call":
            sizes.append(0)
        if sizes:
            sizes[-1] += len(message.model_dump_json())
    return sizes


@pytest.mark.slow
def test_the_state_of_a_thread_survives_dump_and_load() -> None:
    """CH-123: the state has a version, and what is loaded is what was dumped."""

    async def main() -> ThreadLife:
        async with chain_on() as chain:
            result = await chain.run(QUESTION)
            return await chain.life(result.thread_id)

    life = run(main())
    fold = LIFE.fold()
    assert fold.load(fold.dump(life)) == life


@pytest.mark.slow
async def test_the_ledger_lists_threads_with_their_status() -> None:
    async with chain_on() as chain:
        result = await chain.run(QUESTION)
        created = await chain.create("later")
        found = {each.thread_id: (each.status, each.pattern) for each in (await chain.ledger.threads()).threads}
        assert found[result.thread_id] == ("completed", "postchain")
        assert found[created] == ("created", "postchain")


@pytest.mark.slow
async def test_a_branch_goes_on_from_where_it_parts() -> None:
    """On another model, without what was done before being done again; the thread it parts from stays as it is."""
    ledger = await known()
    async with chain_on(ledger, grace=5) as chain:
        whole = await chain.run(QUESTION)
    rows = await said_in(ledger, whole.thread_id)
    asked = next(seq for seq, row in enumerate(rows, 1) if row.to == ("intention/1",))
    await ledger.fork(whole.thread_id, at=asked, into="branch")
    async with chain_on(ledger, witness := Witness()) as chain:
        await chain.resume("branch")
        result = await chain.wait("branch")
        assert (result.status, witness.asked) == ("completed", list(PHASES[2:]))
        assert (await diff(ledger, whole.thread_id, "branch")).common == asked
        more = await chain.run("And coffee?", thread_id="branch")
        assert more.status == "completed"
        assert await chain.result(whole.thread_id) == whole
        assert len(await said_in(ledger, whole.thread_id)) == len(rows)


@pytest.mark.slow
async def test_a_chain_that_is_left_while_a_model_is_at_work_leaves_its_threads_to_the_next() -> None:
    """G13: it does not fail, what was finished is not asked again, and the next process goes on."""
    ledger, at_work = await known(), asyncio.Event()

    async def never(phase: str) -> None:
        if phase == "intention":
            at_work.set()
            await asyncio.Event().wait()

    async with chain_on(ledger, Witness(on_request=never)) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await at_work.wait()
    assert (await chain.life(thread_id)).status == "processing"
    async with chain_on(ledger, witness := Witness()) as chain:
        assert (await chain.wait(thread_id)).status == "completed"
    assert witness.asked == ["intention", "observation", "understanding", "yield"]
