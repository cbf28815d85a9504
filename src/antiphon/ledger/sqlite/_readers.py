"""Readers: a few threads, each with a connection of its own, that look at the ledger while the writer writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import local
from typing import TypeVar

import apsw

from antiphon.errors import LedgerUnavailableError
from antiphon.ledger.sqlite._connection import UNEXPECTED, Place, connect, translated
from antiphon.ledger.sqlite._sql import Connection

__all__ = ["Readers"]

_THREADS = 4

ResultT = TypeVar("ResultT")


class Readers:
    """Looks at one consistent state of a ledger's file at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._own = local()
        self._all: set[Connection] = set()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="antiphon-ledger-reader")

    async def do(self, work: Callable[[Connection], ResultT], *, anew: bool = False) -> ResultT:
        """Return what a function over a connection returns; `anew`, over one that remembers nothing and is thrown away after.

        Raises:
            LedgerError: the store cannot be used, or what is there is not what was written.
        """
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed; open it again")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._look, work, anew)

    def _look(self, work: Callable[[Connection], ResultT], anew: bool) -> ResultT:
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is not None and anew:
            self._discard(connection)
        if connection is None or anew:
            connection = self._own.connection = connect(self._place, only_read=True)
            self._all.add(connection)
        try:
            connection.run("BEGIN")
            result = work(connection)
            if anew:
                self._discard(connection)
            else:
                connection.run("COMMIT")
        except BaseException as exc:
            # Whatever it was, no half-read state may stay open: it would keep the log from beginning anew.
            self._discard(connection)
            if isinstance(exc, (apsw.Error, *UNEXPECTED)):
                raise translated(exc, self._place.path) from exc
            raise
        return result

    def _discard(self, connection: Connection) -> None:
        self._own.connection = None
        self._all.discard(connection)
        with suppress(apsw.Error):
            connection.close(force=True)

    async def close(self) -> None:
        """Wait for those who look, and close the connections."""
        self._is_closed = True
        await asyncio.to_thread(self._pool.shutdown)
        for connection in self._all:
            connection.close()
        self._all.clear()
