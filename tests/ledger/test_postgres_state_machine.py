"""Whatever is done in whatever order: PostgreSQL answers as the ledger in memory does (G8, G15). See `test_state_machine`."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from tests.ledger.test_state_machine import Ledgers
from tests.postgres import Server

from antiphon.ledger import Ledger, Record, Tailed
from antiphon.ledger.postgres._ledger import PostgresLedger


class PostgresLedgers(Ledgers):
    """One ledger in memory and one in PostgreSQL. Their cursors differ, so what they read is compared, not where it is."""

    url: ClassVar[str] = ""

    async def _open(self) -> Any:
        opening = PostgresLedger.open(self.url, tenant=self.folder.name, clock=self.clock)
        return await self.stack.enter_async_context(opening)

    @initialize()
    def begin(self) -> None:
        assert self.run(self.sqlite.horizon) == "0"

    @rule()
    def horizon(self) -> None:
        """Both have read everything when they begin at the horizon."""
        for ledger in (self.memory, self.sqlite):
            assert self.run(lambda ledger=ledger: _rest(ledger, "now")) == []

    @rule()
    def tail(self) -> None:
        """From the beginning: each message once, each thread in its own order, and the same threads as in memory."""
        found = [self.run(lambda ledger=ledger: _rest(ledger, None)) for ledger in (self.memory, self.sqlite)]
        ours, theirs = [[(record.message.thread_id, record.seq) for record in each] for each in found]
        assert sorted(ours) == sorted(theirs)
        for name in {name for name, _ in ours}:
            seqs = [seq for each, seq in theirs if each == name]
            assert seqs == sorted(seqs)


async def _rest(ledger: Ledger, after: str | None) -> list[Record]:
    """Return all records that a tail gives out at once."""
    expected = 0
    if after is None:
        page = await ledger.threads(limit=1000)
        for summary in page.threads:
            own = [record async for record in ledger.read(summary.thread_id, after=summary.forked_at or 0)]
            expected += len(own)
    tail = cast("AsyncGenerator[Tailed, None]", ledger.tail(await ledger.horizon() if after == "now" else None))
    found: list[Record] = []
    try:
        async with asyncio.timeout(20 if expected else 0.05):
            while len(found) < expected or not expected:
                found.append((await anext(tail)).record)
    except TimeoutError:
        assert not expected, f"{len(found)} of {expected} records were there"
    finally:
        await tail.aclose()
    return found


@pytest.mark.slow
def test_postgresql_answers_as_the_ledger_in_memory(postgres: Server) -> None:
    PostgresLedgers.url = postgres.url
    few = settings(max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(PostgresLedgers, settings=few)
