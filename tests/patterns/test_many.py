"""Many threads in one process: all end with every guarantee, and nothing of those that ended is kept (G12, G14, G18)."""

import asyncio
import gc
import os
from collections import Counter
from heapq import heapify
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.chains import QUESTION, Witness, chain_on, said_in

from antiphon.agents.durability._talk import ThreadTalk
from antiphon.durable import LedgerRun
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, PartsPayload, TextPart
from antiphon.patterns.postchain import ChainConfig, ChainResult, PostChain
from antiphon.protocol import PHASES
from antiphon.protocol.flows import find_flow
from antiphon.runtime import Settings

pytest.importorskip("apsw")

THREADS = {"": 60, "ci": 1_000, "nightly": 10_000}[os.environ.get("ANTIPHON_CHAOS", "")]
QUIET = Settings(block_limit=None)  # counting blocks the event loop
FLOWS = [find_flow(name) for name in ("thread-execution", "phase-processing", "error-handling")]


async def _run(chain: PostChain, number: int) -> list[ChainResult]:
    return await asyncio.gather(*(chain.run(f"{QUESTION} {each}") for each in range(number)))


async def _check(ledger: Ledger, thread_id: str) -> None:
    rows = await said_in(ledger, thread_id)
    assert [flow.check(rows).state for flow in FLOWS] == ["complete"] * 3
    assert not await ledger.open_calls(thread_id)
    summary = await ledger.thread(thread_id)
    assert summary is not None
    assert summary.status == "completed"


@pytest.mark.slow
async def test_all_of_many_threads_on_one_file_end_with_every_guarantee(tmp_path: Path) -> None:
    """One process, SQLite: each thread completed, conforms to the flows, left nothing open, and the chain verifies."""
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        async with chain_on(ledger, witness := Witness(), ChainConfig(max_sources=0), grace=5) as chain:
            results = await _run(chain, THREADS)
            await _idle(chain)
        assert {result.status for result in results} == {"completed"}
        assert len({result.thread_id for result in results}) == THREADS
        assert len(witness.asked) == THREADS * (len(PHASES) + 1)  # action looks something up first
        for result in results:
            await _check(ledger, result.thread_id)
        assert (await ledger.verify()).is_whole


# ---------------------------------------------------------------- what is kept


def _objects() -> Counter[str]:
    """Count the objects of our classes; the ledger's own apart, which knows a limited number of threads by heart."""
    loop: Any = asyncio.get_running_loop()  # it keeps cancelled timers, with what they would run in, until there are a hundred
    loop._scheduled[:] = [timer for timer in loop._scheduled if not timer.cancelled()]
    loop._timer_cancelled_count = 0
    heapify(loop._scheduled)
    gc.collect()
    # Not every class of others has a string there.
    ours = (type(each) for each in gc.get_objects() if str(type(each).__module__).startswith("antiphon."))
    return Counter(cls.__qualname__ for cls in ours if not cls.__module__.startswith("antiphon.ledger."))


def _kept(chain: PostChain) -> dict[str, int]:
    """Return how much each thing keeps that knows threads by their ids; the journal remembers whom it owns, up to a limit."""
    kernel, shop = chain.system._kernel, chain._chain
    known: dict[str, Any] = {
        "cells": [address for address in kernel.tree.cells if address.partition("/")[0] in ("thread", "agent")],
        "children": kernel.tree.children("supervisor/agents"),
        "locks": kernel.tree._locks,
        "in flight": kernel.in_flight,
        "doubts": kernel.recovery._doubts,
        "writing": kernel.journal._writing,
        "claims": kernel.journal._claims,
        "gates": shop.gates._gates,
        "looking": shop.gates._looking,
        "at work": shop.at_work,
        "talks": shop.talks._talks,
        "new talks": shop.talks._new,
        "listeners": shop.events._listeners,
        "readers": shop.events._readers,
        "phases": shop.events._phases,
    }
    return {name: len(each) for name, each in known.items() if len(each)}


async def _idle(chain: PostChain) -> None:
    """Wait until the last handlers have written down that they ended: their answers came before."""
    while chain.system._kernel.in_flight:  # noqa: ASYNC110 (the runtime tells nobody)
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_nothing_is_kept_of_threads_that_have_ended(tmp_path: Path) -> None:
    """Objects are counted after twenty threads, and after sixty: there are no more. One that is needed again comes back."""
    async with (
        open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger,
        chain_on(ledger, config=ChainConfig(max_sources=0), settings=QUIET) as chain,
    ):
        first, *_ = await _run(chain, 20)
        await _run(chain, 1)  # alone: the ledger keeps its last batch, perhaps of many threads, until the next one
        await _idle(chain)
        assert _kept(chain) == {}
        before = _objects()
        await _run(chain, 40)
        await _run(chain, 1)
        await _idle(chain)
        assert _kept(chain) == {}
        grown = _objects() - before
        assert sum(grown.values()) < 40, grown  # less than one for each thread
        assert (await chain.status(first.thread_id)).status == "completed"
        again = await chain.run("And for how long?", thread_id=first.thread_id)
        assert again.status == "completed"
        await _idle(chain)
        assert _kept(chain) == {}


@pytest.mark.slow
async def test_nothing_is_kept_of_threads_that_were_terminated_or_failed(tmp_path: Path) -> None:
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        witness = Witness(failures=[ValueError("broken")] * 3)
        config = ChainConfig(max_sources=0, backoff=0, attempts=1, restarts=0)
        async with chain_on(ledger, witness, config) as chain:
            failed = await _run(chain, 3)
            assert {result.status for result in failed} == {"failed"}
            asked = asyncio.Semaphore(0)

            async def hold(phase: str) -> None:
                asked.release()
                await asyncio.sleep(3600)

            witness.on_request = hold
            threads = [await chain.create(QUESTION) for _ in range(3)]
            await asyncio.gather(*map(chain.start, threads))
            for _ in threads:
                await asked.acquire()
            await asyncio.gather(*map(chain.terminate, threads))
            await asyncio.gather(*map(chain.wait, threads))
            await _idle(chain)
            assert {name: each for name, each in _kept(chain).items() if name not in ("cells", "children")} == {}
            threads_left = [address for address in chain.system._kernel.tree.cells if address.startswith("thread/")]
            assert threads_left == []  # managers that did not answer go when they have been idle for a while


@pytest.mark.slow
async def test_prompts_of_long_threads_stay_in_memory_until_another_writer_appends() -> None:
    """So a turn does not read the whole thread again; a row of another process is a gap, and then the thread is read."""
    async with chain_on(config=ChainConfig(max_sources=0), settings=QUIET) as chain:
        talks = chain._chain.talks
        result = await chain.run(QUESTION)
        await _idle(chain)
        assert not talks._talks  # it is short
        for _ in range(3):
            await chain.run(QUESTION, thread_id=result.thread_id)
        await _idle(chain)
        talk = talks._talks[result.thread_id]
        assert talk.seq == (await chain.ledger.head(result.thread_id)).seq
        said = PartsPayload(parts=(TextPart(text="by the way"),))
        note = Message(policy="client/outside", payload=said, to=("client/local",))
        await chain.ledger.post(result.thread_id, note)
        await chain.status(result.thread_id)
        assert not talks._talks


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the threads that agents read, as they read them."""
    threads = list[str]()
    plain = ThreadTalk.read

    async def noted(self: ThreadTalk, run: LedgerRun) -> None:
        if not self._is_read:
            threads.append(run.thread_id)
        await plain(self, run)

    monkeypatch.setattr(ThreadTalk, "read", noted)
    return threads


@pytest.mark.slow
async def test_the_first_agent_of_a_new_thread_does_not_read_it(read: list[str]) -> None:
    """The rows before it were written here. After a row of another process, the thread is read."""
    async with chain_on(config=ChainConfig(max_sources=0), settings=QUIET) as chain:
        await chain.run(QUESTION)
        assert read == []
        thread_id = await chain.create(QUESTION)
        said = PartsPayload(parts=(TextPart(text="by the way"),))
        await chain.ledger.post(thread_id, Message(policy="client/outside", payload=said, to=("client/local",)))
        await chain.start(thread_id)
        assert (await chain.wait(thread_id)).status == "completed"
        assert read == [thread_id]


@pytest.mark.slow
async def test_no_agent_reads_a_thread_whose_last_rows_a_timer_has_written(
    read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written between the end of an agent and the answer of its handler."""
    plain = ThreadTalk.leave

    async def left(self: ThreadTalk, run: LedgerRun) -> None:
        await plain(self, run)
        await run.journal.settle(run.thread_id)

    monkeypatch.setattr(ThreadTalk, "leave", left)
    async with chain_on(config=ChainConfig(max_sources=0), settings=QUIET) as chain:
        assert (await chain.run(QUESTION)).status == "completed"
    assert read == []


@pytest.mark.slow
async def test_a_thread_that_is_created_again_has_nothing_of_the_deleted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its talk was cached because it was long. The first agent of the new one would take it, and conflict for ever."""
    monkeypatch.setattr("antiphon.patterns.postchain._chain._LONG", 50)
    async with chain_on(config=ChainConfig(max_sources=0), settings=QUIET) as chain:
        thread_id = await chain.create(QUESTION, thread_id="order-1")
        await chain.start(thread_id)
        await chain.wait(thread_id)
        await _idle(chain)
        talks = chain._chain.talks
        assert list(talks._talks) == [thread_id]
        await chain.system._kernel.journal.release(thread_id)
        await chain.ledger.delete(thread_id)
        await chain.create(QUESTION, thread_id=thread_id)
        assert (list(talks._talks), list(talks._new)) == ([], [thread_id])
        await chain.start(thread_id)
        assert (await chain.wait(thread_id)).status == "completed"


@pytest.mark.slow
async def test_nothing_is_cached_about_a_thread_that_was_released() -> None:
    """Another host may delete it, and create another one of the same name."""
    async with chain_on(config=ChainConfig(max_sources=0), settings=QUIET) as chain:
        thread_id = await chain.create(QUESTION)
        await _idle(chain)
        assert list(chain._chain.talks._new) == [thread_id]
        await chain.system._kernel.hosting._release(thread_id)
        assert list(chain._chain.talks._new) == []
        await chain.start(thread_id)
        assert (await chain.wait(thread_id)).status == "completed"


@pytest.mark.slow
async def test_of_threads_that_are_never_started_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.patterns.postchain._chain._MOST_CACHED", 2)
    async with chain_on(config=ChainConfig(max_sources=0), settings=QUIET) as chain:
        threads = [await chain.create(QUESTION) for _ in range(3)]
        assert list(chain._chain.talks._new) == threads[1:]
        await chain.start(threads[0])
        assert (await chain.wait(threads[0])).status == "completed"
