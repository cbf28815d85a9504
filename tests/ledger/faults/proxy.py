"""Proxies between a ledger and PostgreSQL: one that cuts connections, and one that pools them by transaction.

Both read the frames of the protocol: a type of one byte, a length of four, the rest. The first frame of a client has no type.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from urllib.parse import urlsplit

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_SSL, _CANCEL = 80877103, 80877102
_ENDS_A_REQUEST = b"SQ"
"""Sync and Query: the server answers with ReadyForQuery."""


async def first_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack("!I", size)[0] - 4)


async def frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Return the next frames of a server, up to ReadyForQuery."""
    found = b""
    while True:
        each = await frame(reader)
        found += each
        if each[:1] == b"Z":
            return found


@asynccontextmanager
async def listening(handle: Callable[[Streams], Awaitable[None]]) -> AsyncIterator[int]:
    """Serve connections on a free port, and yield the port. The end closes them all."""
    tasks: dict[asyncio.Task[None], None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks[task] = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await handle((reader, writer))
        finally:
            writer.transport.abort()
            del tasks[task]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def through(url: str, port: int) -> str:
    """Return a URL that leads through a proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()


async def connect(url: str) -> Streams:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def startup(client: Streams) -> bytes:
    """Return the first frame of a client that is no request for encryption.

    Raises:
        ConnectionAbortedError: it asks to cancel a statement; its statement simply ends.
    """
    reader, writer = client
    while True:
        begin = await first_frame(reader)
        code = struct.unpack("!I", begin[4:8])[0]
        if code == _CANCEL:
            raise ConnectionAbortedError
        if code != _SSL:
            return begin
        writer.write(b"N")


# ---------------------------------------------------------------- cuts


class Cuts:
    """When to cut a connection: at the n-th request from now, before the server gets it or after it has answered."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.is_answered = False
        self.landed = 0
        self.is_at_commit = False
        """Whether to cut at the next COMMIT of a transaction that may write."""
        self.is_silent = False
        """Whether nothing passes any longer, and no connection is closed: as behind a firewall that drops packets."""

    def arm(self, requests: int, *, is_answered: bool) -> None:
        self.left, self.is_answered = requests, is_answered

    def arm_commit(self, *, is_answered: bool) -> None:
        self.is_at_commit, self.is_answered = True, is_answered

    def is_now(self, *, is_commit: bool = False) -> bool:
        if self.is_at_commit and is_commit:
            self.is_at_commit = False
            self.landed += 1
            return True
        if self.left is None:
            return False
        self.left -= 1
        if self.left > 0:
            return False
        self.left = None
        self.landed += 1
        return True


@asynccontextmanager
async def cutting(url: str) -> AsyncIterator[tuple[str, Cuts]]:
    """A proxy that passes everything on, and cuts connections when it is told to (F7)."""
    cuts = Cuts()

    async def handle(client: Streams) -> None:
        begin = await startup(client)
        server = await connect(url)
        is_cut, may_write = False, True

        async def give_back() -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                while each := await frame(server[0]):
                    if not is_cut:
                        client[1].write(each)
                    elif each[:1] == b"Z":
                        break
            client[1].transport.abort()

        server[1].write(begin)
        back = asyncio.create_task(give_back())
        try:
            while (each := await frame(client[0]))[:1] != b"X":
                while cuts.is_silent:  # noqa: ASYNC110 (a flag of the test)
                    await asyncio.sleep(0.01)
                if b"BEGIN" in each:
                    may_write = b"READ ONLY" not in each
                is_commit = b"COMMIT;" in each and may_write
                is_cut = each[:1] in _ENDS_A_REQUEST and cuts.is_now(is_commit=is_commit)
                if is_cut and not cuts.is_answered:
                    return
                server[1].write(each)
                if is_cut:
                    await back
                    return
        finally:
            back.cancel()
            server[1].transport.abort()

    async with listening(handle) as port:
        yield through(url, port), cuts


# ---------------------------------------------------------------- a pooler in transaction mode


@asynccontextmanager
async def pooling(url: str, *, connections: int = 3, is_strict: bool = True) -> AsyncIterator[str]:
    """A pooler: each transaction of a client gets any of a few connections of the server, which then forgets everything.

    Settings that a client asks for when it connects are refused (`is_strict`), or dropped, as PgBouncer does it. There,
    no connection forgets by itself: what a client leaves behind, the next one has. So that fails the test.
    """
    names = f"user\0{urlsplit(url).username}\0database\0{urlsplit(url).path[1:]}\0\0".encode()
    begin = struct.pack("!II", 8 + len(names), 196608) + names
    free: asyncio.Queue[Streams] = asyncio.Queue()
    greeting = b""
    opened: list[Streams] = []
    clean: list[bool] = []
    for _ in range(connections):
        server = await connect(url)
        server[1].write(begin)
        greeting = await answer_of(server[0])
        opened.append(server)
        free.put_nowait(server)

    async def handle(client: Streams) -> None:
        asked = (await startup(client))[8:].split(b"\0")[::2]
        if is_strict and any(b"." in name or name == b"lock_timeout" for name in asked):
            client[1].write(_refusal("unsupported startup parameter: antiphon.tenant"))
            await client[1].drain()
            return
        client[1].write(greeting)
        lent: list[Streams] = []
        """The connection of the transaction that runs, if one does."""

        async def give_back(server: Streams) -> None:
            while True:
                each = await frame(server[0])
                is_over = each[:1] == b"Z" and each[5:6] == b"I"
                if is_over:
                    lent.clear()  # before the client knows: its next frame begins another transaction
                client[1].write(each)
                if is_over:
                    break
            clean.append(await _is_clean(server))
            free.put_nowait(server)

        running: list[asyncio.Task[None]] = []
        try:
            while (each := await frame(client[0]))[:1] != b"X":
                if not lent:
                    lent.append(await free.get())
                    # The earlier ones too: a transaction is over for its client before its connection is free.
                    running = [task for task in running if not task.done()] + [asyncio.create_task(give_back(lent[0]))]
                lent[0][1].write(each)
        finally:  # a client that was cut off has its transaction ended as well
            await asyncio.gather(*running, return_exceptions=True)

    try:
        async with listening(handle) as port:
            yield through(url, port)
    finally:
        for _, writer in opened:
            writer.transport.abort()
    assert all(clean), f"{clean.count(False)} of {len(clean)} transactions left something behind"


_LEFT_BEHIND = """
SELECT 1 WHERE current_setting('antiphon.tenant', true) <> '' OR EXISTS (SELECT pg_listening_channels())
    OR EXISTS (SELECT 1 FROM pg_prepared_statements)
    OR EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""
"""What outlives a transaction: the tenant, a channel, a prepared statement, a lock."""


async def _is_clean(server: Streams) -> bool:
    """Whether a transaction has left nothing behind; then the connection forgets everything."""
    server[1].write(_query(_LEFT_BEHIND))
    found = await answer_of(server[0])
    server[1].write(_query("DISCARD ALL"))
    await answer_of(server[0])
    return b"SELECT 0\0" in found


def _query(text: str) -> bytes:
    return b"Q" + struct.pack("!I", len(text) + 5) + text.encode() + b"\0"


def _refusal(text: str) -> bytes:
    fields = b"SFATAL\0C08P01\0M" + text.encode() + b"\0\0"
    return b"E" + struct.pack("!I", 4 + len(fields)) + fields
