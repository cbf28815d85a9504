"""A program does not run in a thread that is paused or terminated (G12)."""

import pytest

from antiphon.durable import ledger_run
from antiphon.errors import RefusedError, WithdrawnError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import System


async def test_a_run_refuses_a_thread_that_is_paused_or_terminated() -> None:
    ledger, done = MemoryLedger(), list[str]()

    async def work(key: str) -> str:
        done.append(key)
        return "done"

    async def run(id: str) -> None:
        async with ledger_run("t", ledger=ledger, id=id) as run:
            await run.effect("work", {}, work)

    await run("first")
    async with System(ledger) as system:
        await system.pause("t")
    with pytest.raises(RefusedError, match="'t' is paused: resume it first"):
        await run("second")
    async with System(ledger) as system:
        await system.resume("t")
    await run("second")
    async with System(ledger) as system:
        await system.terminate("t")
    with pytest.raises(WithdrawnError, match="'t' is terminated"):
        await run("third")
    assert len(done) == 2
