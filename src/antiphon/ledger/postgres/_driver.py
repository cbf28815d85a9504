"""Runs verbs in a transaction: the requests that are not plain statements, and their answers.

**Locks.** All transactions lock names in the same order, so there is no deadlock. An advisory lock is taken before anything is
written, and kept until the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

from antiphon.ledger._encryption import Keyring
from antiphon.ledger._hosts import LeaseClock
from antiphon.ledger._sql.rows import CommitPlace
from antiphon.ledger._sql.statements import (
    ChangeThreads,
    Lock,
    PutMessages,
    PutThread,
    Read,
    ReadClock,
    ReadKeyring,
    RemoveMessages,
    Sql,
    Verb,
    Write,
    WriteMany,
)
from antiphon.ledger._stored import changed_columns
from antiphon.ledger.postgres._connection import TRANSACTION, Session
from antiphon.ledger.postgres._schema import ERA

ResultT = TypeVar("ResultT")


async def answered(session: Session, verb: Verb[ResultT]) -> ResultT:
    """Run a verb, and return its result."""
    answer: Any = None
    try:
        while True:
            request = verb.send(answer)
            answer = await _ANSWERS[type(request)](session, request)
    except StopIteration as end:
        result: ResultT = end.value
        return result


def running(make: Callable[[], Verb[ResultT]]) -> Callable[[Session], Awaitable[ResultT]]:
    """Return the function over a session that runs a verb."""

    async def work(session: Session) -> ResultT:
        return await answered(session, make())

    return work


def _text(sql: Sql) -> str:
    return sql if isinstance(sql, str) else sql.postgres


# ---------------------------------------------------------------- locks and time


@lru_cache(maxsize=10_000)
def lock_of(tenant: str, thread_id: str) -> int:
    """Return the advisory lock of a thread. If two threads have the same number, they only wait for each other."""
    return int.from_bytes(blake2b(f"{tenant}\n{thread_id}".encode(), digest_size=8).digest(), "big", signed=True)


async def _lock(session: Session, request: Lock) -> None:
    locks = sorted({lock_of(session.tenant, name) for name in request.names})
    function = "pg_advisory_xact_lock_shared" if request.is_shared else "pg_advisory_xact_lock"
    sql = f"SELECT {function}(lock) FROM unnest($1::bigint[]) AS lock"  # noqa: S608 (a name of ours)
    await session.connection.execute(sql, locks)


INDEXES = "\nindexes"
"""In the place of a thread, whose name it cannot be: the lock of the indexes of words and terms.

Whoever indexes messages shares it, and a deletion waits for them before it removes words. Otherwise the words of a message
that is deleted meanwhile would stay in the index.
"""


# ---------------------------------------------------------------- threads

_NEW_THREAD = f"""
INSERT INTO antiphon.threads (
    tenant, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens,
    cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)
RETURNING key, {TRANSACTION}
"""  # noqa: S608 (text of ours)
_THREAD = f"""
UPDATE antiphon.threads SET seq = $3, hash = $4, epoch = $5, run = $6, open_from = $7, status = $8, pattern = $9,
    updated_at = $10, input_tokens = $11, output_tokens = $12, cost = $13, owner = $14, kind = $15, due_at = $16, posted = $17,
    unfit = $18, open_calls = $19
WHERE tenant = $1 AND key = $2
RETURNING {TRANSACTION}
"""  # noqa: S608 (text of ours)


async def _put_thread(session: Session, request: PutThread) -> int:
    thread = request.thread
    columns = await session.fetchrow(_NEW_THREAD, *thread.state, thread.open_calls, thread.base, thread.base_seq)
    assert columns is not None  # noqa: S101 (one row is inserted)
    key, session.transaction = columns
    return int(key)


async def _change_threads(session: Session, request: ChangeThreads) -> None:
    """Write the rows of threads. Several are sent together and cost one round trip."""
    if len(request.threads) == 1:
        session.transaction = await session.fetchval(_THREAD, request.threads[0].key, *changed_columns(request.threads[0]))
    elif request.threads:
        values = [(session.tenant, thread.key, *changed_columns(thread)) for thread in request.threads]
        await session.connection.executemany(_THREAD, values)


# ---------------------------------------------------------------- messages

_MESSAGES = """
INSERT INTO antiphon.messages (
    tenant, thread, seq, era, xid, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body
)
SELECT $1, $2, m.seq, <era>, pg_current_xact_id()::text::bigint, m.ord, m.id_key, m.invocation_key,
    m.correlation_key, m.open_from, m.recorded_at, m.hash, m.media, m.body
FROM unnest(
    $3::bigint[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[],
    $11::integer[], $12::bytea[]
) AS m (seq, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body)
RETURNING era, xid
""".replace("<era>", ERA)


async def _put_messages(session: Session, request: PutMessages) -> dict[int, CommitPlace]:
    numbers = range(session.written + 1, session.written + 1 + len(request.rows))
    session.written = numbers[-1] if numbers else session.written
    seqs, *columns = map(list, zip(*request.rows, strict=True))
    first = await session.fetchrow(_MESSAGES, request.thread, seqs, list(numbers), *columns)
    assert first is not None  # noqa: S101 (as many rows as were given)
    return {seq: CommitPlace(first["era"], first["xid"], number) for seq, number in zip(seqs, numbers, strict=True)}


_REMOVED = ("words", "term_entries")


async def _remove_messages(session: Session, request: RemoveMessages) -> None:
    keys = list(request.threads)
    await session.execute("DELETE FROM antiphon.messages WHERE tenant = $1 AND thread = ANY($2::bigint[])", keys)
    # After the messages, which take most of the time: searches wait for this lock. Those that have just indexed some of the
    # messages are waited for, and their words are deleted; later ones find no messages.
    await _lock(session, Lock([INDEXES]))
    for table in _REMOVED:
        sql = f"DELETE FROM antiphon.{table} WHERE tenant = $1 AND thread = ANY($2::bigint[])"  # noqa: S608 (names of ours)
        await session.execute(sql, keys)


async def _clock(session: Session, request: ReadClock) -> LeaseClock | None:
    return session.clock


async def _keyring(session: Session, request: ReadKeyring) -> Keyring:
    return session.keyring


_ANSWERS: dict[type, Callable[[Session, Any], Awaitable[Any]]] = {
    Read: lambda session, request: session.fetch(_text(request.sql), *request.values),
    Write: lambda session, request: session.execute(_text(request.sql), *request.values),
    WriteMany: lambda session, request: session.connection.executemany(
        _text(request.sql), [(session.tenant, *values) for values in request.rows]
    ),
    Lock: _lock,
    ReadClock: _clock,
    ReadKeyring: _keyring,
    PutThread: _put_thread,
    ChangeThreads: _change_threads,
    PutMessages: _put_messages,
    RemoveMessages: _remove_messages,
}
