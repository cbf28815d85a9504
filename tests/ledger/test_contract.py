"""All stores keep every promise of the contract (G1-G5, G8, G10, G18), and the check finds a store that does not."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import Server
from typing_extensions import get_protocol_members

from antiphon.ledger import Head, Ledger, Log, MasterKey, Owners, Record, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import current_port
from antiphon.testing import check_ledger
from antiphon.testing._ledger import LEDGER_CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("check", LEDGER_CHECKS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_store_keeps_a_promise(store: str, check: str, tmp_path: Path) -> None:
    def make(name: str) -> AbstractAsyncContextManager[Ledger]:
        return open_ledger("memory:" if store == "memory" else f"sqlite:///{tmp_path}/{name}.db")

    asyncio.run(check_ledger(make, is_durable=store != "memory", only=check))


@pytest.mark.slow
@pytest.mark.parametrize("check", LEDGER_CHECKS)
def test_postgresql_keeps_a_promise(check: str, postgres: Server) -> None:
    def make(name: str) -> AbstractAsyncContextManager[Ledger]:
        return open_ledger(postgres.url, tenant=name)

    asyncio.run(check_ledger(make, only=check))


@pytest.mark.slow
@pytest.mark.parametrize("check", LEDGER_CHECKS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_an_encrypted_store_keeps_a_promise_s7(store: str, check: str, tmp_path: Path) -> None:
    key = MasterKey.from_text(MasterKey.generate())

    def make(name: str) -> AbstractAsyncContextManager[Ledger]:
        return open_ledger("memory:" if store == "memory" else f"sqlite:///{tmp_path}/{name}.db", master_key=key)

    asyncio.run(check_ledger(make, is_durable=store != "memory", only=check))


@pytest.mark.slow
@pytest.mark.parametrize("check", LEDGER_CHECKS)
def test_encrypted_postgresql_keeps_a_promise_s7(check: str, postgres: Server) -> None:
    key = MasterKey.from_text(MasterKey.generate())

    def make(name: str) -> AbstractAsyncContextManager[Ledger]:
        return open_ledger(postgres.url, tenant=f"encrypted {name}", master_key=key)

    asyncio.run(check_ledger(make, only=check))


def test_the_grades_are_small() -> None:
    """ADR 0045: what follows from other members is a function, and what belongs together is one member."""
    log, owners, ledger = (get_protocol_members(grade) for grade in (Log, Owners, Ledger))
    assert log < owners < ledger
    assert (len(log), len(owners), len(ledger)) == (11, 22, 32)


# ---------------------------------------------------------------- the check finds what it is there to find


class Forgetful(MemoryLedger):
    """Takes the same message again and again."""

    async def append(self, thread_id: str, messages: Any, **options: Any) -> Any:
        fresh = [message.model_copy(update={"id": current_port().new_id()}) for message in messages]
        return await super().append(thread_id, fresh, **options)


class Unfenced(MemoryLedger):
    """Takes appends of any epoch."""

    async def append(self, thread_id: str, messages: Any, *, epoch: Any = None, **options: Any) -> Any:
        current = (await self.head(thread_id)).epoch or None
        return await super().append(thread_id, messages, epoch=current, **options)


class Lenient(MemoryLedger):
    """Has no door."""

    async def append(self, thread_id: str, messages: Any, **options: Any) -> Any:
        return await super().append(thread_id, messages, **{**options, "allow_foreign": True})


class Trusting(MemoryLedger):
    """Takes rows from outside as they are."""

    async def append(self, thread_id: str, messages: Any, *, outside: bool = False, **options: Any) -> Any:
        return await super().append(thread_id, messages, **options)

    async def post(self, thread_id: str, message: Any, *, by: str | None = None) -> Any:
        return await super().post(thread_id, message)


class Piecemeal(MemoryLedger):
    """Appends message by message."""

    async def append(self, thread_id: str, messages: Any, **options: Any) -> Any:
        records: list[Record] = []
        for message in messages:
            records += await super().append(thread_id, [message], **options)
        return tuple(records)


class Hasty(MemoryLedger):
    """Gives out one message too few."""

    async def read(self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False) -> Any:
        found = [record async for record in super().read(thread_id, after, before, reverse)]
        for record in found[:599]:
            yield record


class Stuttering(MemoryLedger):
    """Gives out the message of the cursor again."""

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> Any:
        before = str(int(after) - 1) if after not in (None, "0") and after.isdigit() else after
        async for tailed in super().tail(before, thread_id=thread_id):
            yield tailed


class Careless(MemoryLedger):
    """Leaves calls open in a branch."""

    async def branch(self, head: Any, at: int, pairing: Any, closing: Any) -> Any:
        return await super().branch(head, at, pairing, closing._replace(entries=()))


class Blind(MemoryLedger):
    """Does not look at heads from before."""

    async def verify(self, thread_id: str | None = None, *, heads: Any = (), progress: Any = None) -> Any:
        return await super().verify(thread_id, progress=progress)


class Believing(MemoryLedger):
    """Believes the kinds that rows claim for themselves."""

    async def restore(self, journals: Any, heads: Any) -> Any:
        ends = [(journal.thread_id, journal.records[-1]) for journal in journals if journal.records]
        return await super().restore(journals, [Head(name, record.seq, record.hash) for name, record in ends])


class Miscounting(MemoryLedger):
    """Counts the threads of the runtime among the others."""

    async def count_threads(self, *, system: bool | None = None) -> Any:
        return await super().count_threads()


BROKEN = {
    Miscounting: "threads are listed by page order and filter",
    Forgetful: "the same message again is no news",
    Unfenced: "a claimed thread takes only its owners appends",
    Lenient: "a result without its call is refused",
    Trusting: "what comes from outside is talk",
    Piecemeal: "an append is there as a whole or not at all",
    Hasty: "a stretch can be read from both ends",
    Stuttering: "a tail has everything once and in order",
    Careless: "a branch shares what was before and closes what was open",
    Believing: "what no head proves is not restored",
    Blind: "heads from before prove that nothing was cut off",
}


@pytest.mark.parametrize(
    "sentence",
    [
        "an open call from outside gets an error result",
        "a call from outside cannot hide behind its result",
        "what somebody outside posts is talk under their name",
    ],
)
def test_a_store_that_trusts_a_file_is_found(sentence: str) -> None:
    """G22: each of the promises about what comes from outside is looked at."""

    @asynccontextmanager
    async def make(name: str) -> AsyncGenerator[Ledger, None]:
        yield Trusting()

    with pytest.raises(AssertionError, match=f"not so: {sentence}"):
        asyncio.run(check_ledger(make, is_durable=False, only=sentence.replace(" ", "_")))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_store_that_breaks_a_promise_is_found(broken: type[MemoryLedger]) -> None:
    @asynccontextmanager
    async def make(name: str) -> AsyncGenerator[Ledger, None]:
        yield broken()

    sentence = BROKEN[broken]
    with pytest.raises(AssertionError, match=f"not so: {sentence}"):
        asyncio.run(check_ledger(make, is_durable=False, only=sentence.replace(" ", "_")))


@pytest.mark.slow
def test_the_whole_check_passes_at_once() -> None:
    asyncio.run(check_ledger(lambda name: open_ledger("memory:"), is_durable=False))
