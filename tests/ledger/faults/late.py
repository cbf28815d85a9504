"""A transaction of another process that begins early and ends late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from tests.ledger.histories import said

from antiphon.ledger._request import make_request
from antiphon.ledger._sql.appends import CarefulAppends
from antiphon.ledger.postgres._connection import Session
from antiphon.ledger.postgres._driver import answered


@asynccontextmanager
async def uncommitted(url: str, tenant: str, thread_id: str) -> AsyncIterator[None]:
    """Another process is just writing to a thread: it has begun its transaction, and commits at the end of the block."""
    connection = await asyncpg.connect(url, server_settings={"antiphon.tenant": tenant})
    try:
        async with connection.transaction():
            await answered(Session(connection, tenant), CarefulAppends().write([make_request(thread_id, [said("late")])]))
            yield
    finally:
        await connection.close()
