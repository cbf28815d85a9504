"""The ledger in PostgreSQL: one writer, a hundred, and encrypted, beside asyncpg, LangGraph's saver and DBOS on one server.

The server is of the tests, with `fsync` on, in a folder of its own. Wall clock, because a round trip and the wait for the disk
count; what the machine does otherwise comes in bursts, so samples are short and rounds are many.

The raw baseline stores what any store of conversations must: the bytes of a message at its place in its thread, by a prepared
statement that is its own transaction. Together, it writes what waits as one `INSERT … SELECT FROM unnest`, as the ledger does.
It keeps no state of a thread, no chain, no order for readers, and looks up no ids. A second baseline writes the same rows: it
compares and changes the row of a thread, and has the same indexes. Threads of the ledger are claimed before, as those of the
runtime are. All connect as a superuser, to whom row-level security does not apply; it takes a twentieth of the server's time.

One writer is measured twice: with commits as quick as the disk allows, and with commits that take two milliseconds longer, as
on a disk in the network. `commit_delay` does that. The ledger's own work is the same in both.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from typing import Any, Protocol

import asyncpg
from dbos import DBOS, DBOSConfig
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver
from tests.postgres import Server, running_postgres

from antiphon import Message, dumps
from antiphon.ledger import MasterKey, open_ledger
from benchmarks._harness import Goal, Sample, Table, waited
from benchmarks._messages import Said, as_text
from benchmarks.stores._store import talk
from benchmarks.stores.antiphon_ import messages_of

__all__ = ["tables"]

ANTIPHON, RAW, LANGGRAPH, DBOS_NAME = "antiphon", "raw asyncpg", "LangGraph", "DBOS"
SAME = "the same in raw asyncpg"
ALONE, UNREDACTED = "antiphon, one writer", "antiphon, redaction off"
PLAIN, SEALED = "antiphon, plain", "antiphon, encrypted"
SHORT = 10
"""Messages of a conversation."""
DELAY = 2000
"""Microseconds by which commits take longer in the second table."""
WRITERS = 100
ROUNDS = 15
"""As many as end within a few minutes, also where a table is measured twice."""


class PostgresStore(Protocol):
    """A way to keep conversations in a database."""

    def begin(self, threads: Sequence[str]) -> None:
        """Get ready for threads: what need not be done again for each message."""
        ...

    def append(self, thread: str) -> None:
        """Append the messages to a new thread, each durable before the next."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one."""
    makers = {
        "append, one writer": _one_writer,
        f"append, one writer, commits longer by {DELAY / 1000:g} ms": _slow_commits,
        f"append, {WRITERS} conversations at once": _many_writers,
        "append, encrypted": _encrypted,
    }
    for name, make in makers.items():
        if part in name:
            with running_postgres(fsync=True) as server, ExitStack() as stores:
                table = make(name, server, stores)
                gc.collect()
                gc.freeze()
                yield table


def _one_writer(name: str, server: Server, stores: ExitStack) -> Table:
    said = talk(SHORT)
    kept: dict[str, PostgresStore] = {
        ANTIPHON: stores.enter_context(closing(LedgerInPostgres(server.url, said))),
        RAW: stores.enter_context(closing(RawPostgres(server, said))),
        SAME: stores.enter_context(closing(SameRows(server, said))),
        LANGGRAPH: stores.enter_context(closing(LangGraphInPostgres(server, said))),
        DBOS_NAME: stores.enter_context(closing(DbosInPostgres(server, said))),
    }
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=RAW,
        candidates={each: _alone(store) for each, store in kept.items()},
        goals=(Goal(ANTIPHON, 1.3, RAW), Goal(ANTIPHON, 1.1, LANGGRAPH)),
        against=(SAME, LANGGRAPH, DBOS_NAME),
        notes=(
            "every message is committed before the next is given: fsync and synchronous_commit on; owned threads",
            f"{RAW}: one prepared INSERT a message, which keeps no state, chain or order",
            f"{SAME}: one prepared statement a message, which changes the row of its thread, with the same indexes",
        ),
        rounds=ROUNDS,
    )


def _slow_commits(name: str, server: Server, stores: ExitStack) -> Table:
    for setting, value in (("commit_delay", DELAY), ("commit_siblings", 0)):
        server.sql(f"ALTER SYSTEM SET {setting} = {value}")
    server.sql("SELECT pg_reload_conf()")
    said = talk(SHORT)
    ledger = stores.enter_context(closing(LedgerInPostgres(server.url, said)))
    raw = stores.enter_context(closing(RawPostgres(server, said)))
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=RAW,
        candidates={ANTIPHON: _alone(ledger), RAW: _alone(raw)},
        goals=(Goal(ANTIPHON, 1.3, RAW),),
        notes=("as the table before; the server waits before each flush of its log (commit_delay)",),
        rounds=ROUNDS,
    )


def _alone(store: PostgresStore) -> Sample:
    return waited(lambda number: store.append(f"alone-{number}"), SHORT, lambda number: store.begin([f"alone-{number}"]))


def _many_writers(name: str, server: Server, stores: ExitStack) -> Table:
    said = talk(SHORT)
    ledger = stores.enter_context(closing(LedgerInPostgres(server.url, said)))
    unredacted = stores.enter_context(closing(LedgerInPostgres(server.url, said, redaction="off")))
    raw = stores.enter_context(closing(RawPostgres(server, said)))
    same = stores.enter_context(closing(SameRows(server, said)))
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=SAME,
        candidates={
            ANTIPHON: _together(ledger),
            SAME: _together(same),
            UNREDACTED: _together(unredacted),
            RAW: _together(raw),
            ALONE: _alone(ledger),
        },
        goals=(Goal(ANTIPHON, 1 / 0.6, SAME), Goal(ANTIPHON, 1 / 4, ALONE)),
        against=(RAW,),
        notes=(
            f"{SAME}: one statement that changes a row for each thread, and inserts messages with the same indexes",
            f"{RAW}: one INSERT into a table of bytes",
        ),
        rounds=ROUNDS,
    )


def _together(store: LedgerInPostgres | RawPostgres) -> Sample:
    return waited(
        lambda number: store.append_together(_names(number)),
        WRITERS * SHORT,
        lambda number: store.begin(_names(number)),
    )


def _encrypted(name: str, server: Server, stores: ExitStack) -> Table:
    said = talk(SHORT)
    key = MasterKey.from_text(MasterKey.generate())
    plain = stores.enter_context(closing(LedgerInPostgres(server.new_database("plain"), said)))
    sealed = stores.enter_context(closing(LedgerInPostgres(server.new_database("sealed"), said, master_key=key)))
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=PLAIN,
        candidates={PLAIN: _going_on(plain), SEALED: _going_on(sealed)},
        goals=(Goal(SEALED, 1.15, PLAIN),),
        notes=("one writer; the first message of a thread, with which its key is made, is not timed",),
        rounds=2 * ROUNDS,
    )


def _going_on(ledger: LedgerInPostgres) -> Sample:
    return waited(
        lambda number: ledger.append(f"on-{number}", first=1), SHORT - 1, lambda number: ledger.begin_with_one(f"on-{number}")
    )


def _names(number: int) -> list[str]:
    return [f"t{number}-{each}" for each in range(WRITERS)]


# ---------------------------------------------------------------- antiphon


class LedgerInPostgres:
    """The ledger, through its public functions. Each thread has an owner, as the runtime's have."""

    def __init__(self, url: str, said: Sequence[Said], **options: Any) -> None:
        self._messages: list[Message] = messages_of(said)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._ledger = self._runner.run(self._open(url, options))

    async def _open(self, url: str, options: dict[str, Any]) -> Any:
        return await self._stack.enter_async_context(open_ledger(url, **options))

    def begin(self, threads: Sequence[str]) -> None:
        self._runner.run(self._claim(threads))

    async def _claim(self, threads: Sequence[str]) -> None:
        epochs = await asyncio.gather(*map(self._ledger.claim, threads))
        self._epochs = dict(zip(threads, epochs, strict=True))

    def begin_with_one(self, thread: str) -> None:
        """Claim a thread, and append its first message."""
        self.begin([thread])
        self._runner.run(self._append(thread, last=1))

    def append(self, thread: str, first: int = 0) -> None:
        self._runner.run(self._append(thread, first))

    async def _append(self, thread: str, first: int = 0, last: int | None = None) -> None:
        epoch = self._epochs[thread]
        for message in self._messages[first:last]:
            await self._ledger.append(thread, (message,), epoch=epoch)

    def append_together(self, threads: Sequence[str]) -> None:
        self._runner.run(self._together(threads))

    async def _together(self, threads: Sequence[str]) -> None:
        await asyncio.gather(*map(self._append, threads))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


# ---------------------------------------------------------------- asyncpg


class RawPostgres:
    """A table of bytes; appends that arrive while others are written form the next group."""

    _TABLES = "CREATE TABLE raw (thread text, seq integer, body bytea NOT NULL, PRIMARY KEY (thread, seq))"
    _ONE = "INSERT INTO raw VALUES ($1, $2, $3)"
    _GROUP = "INSERT INTO raw SELECT * FROM unnest($1::text[], $2::integer[], $3::bytea[])"

    def __init__(self, server: Server, said: Sequence[Said]) -> None:
        self._bodies = [dumps(message) for message in messages_of(said)]
        self._runner = asyncio.Runner()
        self._runner.run(self._open(server.url))
        self._waiting: list[tuple[str, int, bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def _open(self, url: str) -> None:
        self._connection: Any = await asyncpg.connect(url)
        await self._connection.execute(self._TABLES)
        self._one = await self._connection.prepare(self._ONE)
        self._group = await self._connection.prepare(self._GROUP)

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str) -> None:
        self._runner.run(self._alone(thread))

    async def _alone(self, thread: str) -> None:
        for seq, body in enumerate(self._bodies):
            await self._one.fetch(thread, seq, body)

    def append_together(self, threads: Sequence[str]) -> None:
        self._runner.run(self._together(threads))

    async def _together(self, threads: Sequence[str]) -> None:
        await asyncio.gather(*map(self._appended, threads))

    async def _appended(self, thread: str) -> None:
        loop = asyncio.get_running_loop()
        for seq, body in enumerate(self._bodies):
            done: asyncio.Future[None] = loop.create_future()
            self._waiting.append((thread, seq, body, done))
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._work())
            await done

    async def _work(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:200], self._waiting[200:]
            threads, seqs, bodies, waiting = zip(*group, strict=True)
            await self._group.fetch(list(threads), list(seqs), list(bodies))
            for each in waiting:
                each.set_result(None)

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


class SameRows(RawPostgres):
    """The same rows: one for each thread, which is compared and changed, and one for each message, with the same indexes."""

    _TABLES = """
CREATE TABLE same_threads (thread text PRIMARY KEY, seq integer NOT NULL, hash bytea NOT NULL) WITH (fillfactor = 80);
CREATE TABLE same_messages (
    thread text, seq integer, xid bigint, ord integer, id_key bigint, invocation_key bigint, correlation_key bigint,
    recorded_at bigint, hash bytea, body bytea NOT NULL, PRIMARY KEY (thread, seq)
);
CREATE UNIQUE INDEX ON same_messages (thread, id_key);
CREATE UNIQUE INDEX ON same_messages (xid, ord);
CREATE INDEX ON same_messages (invocation_key);
CREATE INDEX ON same_messages (correlation_key);
"""
    _ONE = """
WITH changed AS (
    UPDATE same_threads SET seq = $2 + 1, hash = sha256($3) WHERE thread = $1 AND seq = $2 RETURNING thread
)
INSERT INTO same_messages
SELECT $1, $2, pg_current_xact_id()::text::bigint, 1, hashtextextended($1, $2), $2, hashtextextended($1, 0), 0, sha256($3), $3
FROM changed
"""
    _THREAD = "INSERT INTO same_threads VALUES ($1, 0, '')"
    _GROUP = """
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::integer[], $3::bytea[]) WITH ORDINALITY AS w (thread, seq, body, ord)
), changed AS (
    UPDATE same_threads AS t SET seq = w.seq + 1, hash = sha256(w.body) FROM wanted AS w
    WHERE t.thread = w.thread AND t.seq = w.seq RETURNING t.thread
)
INSERT INTO same_messages
SELECT w.thread, w.seq, pg_current_xact_id()::text::bigint, w.ord, hashtextextended(w.thread, w.seq), w.seq,
    hashtextextended(w.thread, 0), 0, sha256(w.body), w.body
FROM changed JOIN wanted AS w ON w.thread = changed.thread
"""

    def begin(self, threads: Sequence[str]) -> None:
        self._runner.run(self._connection.executemany(self._THREAD, [(each,) for each in threads]))


# ---------------------------------------------------------------- peers


class LangGraphInPostgres:
    """LangGraph's saver, given a checkpoint a message, as a graph of one node does; without the graph around it."""

    def __init__(self, server: Server, said: Sequence[Said]) -> None:
        self._messages = [AIMessage(content=as_text(each["content"])) for each in said]
        self._stack = ExitStack()
        self._saver = self._stack.enter_context(PostgresSaver.from_conn_string(server.new_database("langgraph")))
        self._saver.setup()

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str) -> None:
        parent: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        for count in range(1, len(self._messages) + 1):
            checkpoint: Any = {
                **empty_checkpoint(),
                "id": str(uuid6(clock_seq=count)),
                "channel_values": {"messages": self._messages[:count]},
                "channel_versions": {"messages": str(count)},
            }
            metadata: Any = {"source": "loop", "step": count, "parents": {}}
            parent = self._saver.put(parent, checkpoint, metadata, {"messages": str(count)})

    def close(self) -> None:
        self._stack.close()


class DbosInPostgres:
    """DBOS: a workflow with a step a message. A process can have only one."""

    def __init__(self, server: Server, said: Sequence[Said]) -> None:
        contents = [as_text(each["content"]) for each in said]
        url = server.new_database("dbos")
        config: DBOSConfig = {"name": "benchmark", "system_database_url": url, "log_level": "ERROR"}
        DBOS(config=config)

        @DBOS.step()
        def say(number: int) -> Any:
            return contents[number]

        @DBOS.workflow()
        def talk_in_steps() -> None:
            for number in range(len(contents)):
                say(number)

        DBOS.launch()
        self._talk = talk_in_steps

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str) -> None:
        """Run a workflow; the thread is DBOS's own."""
        self._talk()

    def close(self) -> None:
        DBOS.destroy()
