"""Connections to a ledger's file: how they are opened, how SQLite's errors become ours, and the reader threads.

Each reader thread has its own connection, so it can read while the writer writes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock, local
from typing import Final, NamedTuple, TypeGuard, TypeVar
from urllib.parse import quote

import apsw

from antiphon.errors import LedgerCorruptError, LedgerError, LedgerFormatError, LedgerFullError, LedgerUnavailableError
from antiphon.ledger._encryption import Keyring
from antiphon.ledger._hosts import LeaseClock
from antiphon.ledger._listing import words_of
from antiphon.ledger.sqlite._schema import APPLICATION_ID, FORMAT, OTHER_FILE, TABLES, check_format, prepare
from antiphon.ledger.sqlite._sql import NO_KEYS, Connection
from antiphon.messages._arguments import ArgumentTypeError

_LEAST = (3, 51, 3)
"""The first SQLite without the WAL-reset bug, by which a commit could be lost (sqlite.org/wal.html#walresetbug)."""

_PAGE = 2048
"""Bytes of a page. A row that is longer than a page fills overflow pages completely, so a small page wastes the least."""

_CACHE = 8 * 1024
"""KiB of pages that a connection may keep."""

_PAUSE = 0.01
"""Seconds before another attempt to turn the write-ahead log on."""

FATAL = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.ProtocolError,
    apsw.InterruptError,
    apsw.NoMemError,
    apsw.CorruptError,
    apsw.NotADBError,
)
"""Errors of the file or the machine, not of one statement."""

_UNEXPECTED = (TypeError, ValueError, AttributeError, ArithmeticError)
"""The errors that Python raises when a row holds a value that the ledger never wrote."""


def is_of_store(exc: BaseException) -> TypeGuard[Exception]:
    """Whether SQLite or a row has caused an error, and not the caller."""
    return isinstance(exc, (apsw.Error, *_UNEXPECTED)) and not isinstance(exc, ArgumentTypeError)


class LedgerFile(NamedTuple):
    """The path of a ledger's file, and how to open it."""

    path: str
    busy_timeout: float
    """Seconds to wait for another process that writes."""
    vfs: str | None = None
    """The SQLite VFS to open the file with; None for the default. Tests inject faults with it."""
    keyring: Keyring = NO_KEYS
    """The keys of encrypted threads."""
    clock: LeaseClock | None = None
    """The clock that measures leases; None for that of the machine."""


def connect(place: LedgerFile, *, create: bool = False, only_read: bool = False) -> Connection:
    """Open a connection with the settings that the ledger's promises need.

    Raises:
        LedgerError: the file cannot be opened, is not a ledger, or SQLite is too old.
    """
    _refuse_old_library(apsw.sqlite_lib_version())
    if not create and place.vfs is None and not Path(place.path).exists():
        raise LedgerUnavailableError(f"there is no file {place.path!r}; check the path, or open it with create=True")
    if Path(place.path).is_dir():
        raise LedgerUnavailableError(f"{place.path!r} is a folder, and a ledger is a file in one; check the path")
    is_protected = place.vfs is None and _is_protected(Path(place.path))
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    try:
        connection = _open_protected(place) if is_protected else Connection(place.path, flags, place.vfs)
    except apsw.Error as exc:
        raise translated(exc, place.path) from exc
    connection.keyring = place.keyring
    if place.clock is not None:
        connection.clock = place.clock
    try:
        _prepare(connection, place, is_protected=is_protected)
        if create:
            prepare(connection, place.path)
        if only_read:
            connection.setting("query_only", True)
    except apsw.Error as exc:
        connection.close(force=True)
        if is_protected and isinstance(exc, apsw.CantOpenError):
            reason = f"the log {f'{place.path}-wal'!r} cannot be read in a folder that cannot be written"
            raise LedgerUnavailableError(f"{reason}; copy both files to another folder, and read them there") from exc
        raise translated(exc, place.path) from exc
    except LedgerError:
        connection.close(force=True)
        raise
    return connection


def _is_protected(path: Path) -> bool:
    """Whether a file exists and this process may only read it: by its mode, or because its folder or disk is read-only."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _open_protected(place: LedgerFile) -> Connection:
    """Open a file that this process must not write.

    SQLite reads a write-ahead log with the help of a shared-memory file, which it cannot create here. If there is no log, the
    whole ledger is in the file, and `immutable` tells SQLite so. If there is a log, a process with write access uses or has
    used the ledger, and its files are used: with `immutable`, SQLite would ignore rows that are only in the log.
    """
    path = os.path.abspath(place.path)
    has_log = Path(f"{path}-wal").exists() and Path(f"{path}-wal").stat().st_size > 0
    uri = f"file:{quote(path)}?mode=ro" + ("" if has_log else "&immutable=1")
    return Connection(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _refuse_old_library(version: str) -> None:
    if tuple(int(number) for number in version.split(".")) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise LedgerUnavailableError(
            f"SQLite {version} can lose what was committed (its WAL-reset bug); get a later one: pip install 'apsw>={least}'"
        )


def _prepare(connection: Connection, place: LedgerFile, *, is_protected: bool) -> None:
    connection.set_busy_timeout(int(place.busy_timeout * 1000))
    _configure(connection)
    connection.setting("page_size", _PAGE)
    connection.setting("cache_size", -_CACHE)
    connection.setting("synchronous", "FULL")
    connection.setting("secure_delete", True)
    connection.setting("temp_store", "MEMORY")
    if is_protected:
        connection.setting("query_only", True)
        return
    if _journal_mode(connection, place.busy_timeout) != "wal":
        raise LedgerUnavailableError(f"{place.path!r} is where SQLite cannot keep a write-ahead log; use a local disk")


def _configure(connection: Connection) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # otherwise SQLite prepares a statement again for other values
    connection.define("words_of", _words)


def _journal_mode(connection: Connection, patience: float) -> object:
    """Turn the write-ahead log on, and return the mode that the file has then.

    If two processes do so for a new file, SQLite refuses one of them at once, without the busy timeout. So it tries again.
    """
    give_up_at = time.monotonic() + patience  # noqa: TID251 (as SQLite measures its busy timeout)
    while True:
        try:
            return connection.setting("journal_mode", "WAL")
        except apsw.BusyError:
            if time.monotonic() > give_up_at:  # noqa: TID251
                raise
        time.sleep(_PAUSE)


def _words(body: object) -> str:
    return words_of(body) if isinstance(body, bytes) else ""


def translated(exc: Exception, path: str) -> LedgerError:
    """Map an error of SQLite, or one that a row causes, to a ledger error."""
    match exc:
        case apsw.BusyError() | apsw.LockedError():
            return LedgerUnavailableError(f"{path!r} is locked by another process for too long; try again")
        case apsw.FullError():
            return LedgerFullError(f"there is no space left for {path!r}; make some, then try again")
        case apsw.NotADBError():
            return LedgerFormatError(f"{path!r} is not a SQLite file, so not a ledger; {OTHER_FILE}")
        case apsw.ReadOnlyError():
            return LedgerUnavailableError(
                f"{path!r} cannot be written to: {exc}; look at who may write the file and its folder"
            )
        case apsw.CantOpenError():
            return LedgerUnavailableError(f"{path!r} cannot be opened: {exc}; check the path and its permissions")
        case apsw.CorruptError():
            return LedgerCorruptError(f"{path!r} is damaged: {exc}; restore a backup, and run verify on it")
        case _ if isinstance(exc, FATAL):
            return LedgerUnavailableError(f"{path!r} cannot be used at present: {exc}")
        case _:
            return LedgerCorruptError(f"{path!r} is not as a ledger should be: {type(exc).__name__}: {exc}")


# ---------------------------------------------------------------- readers

_THREADS = 4

ResultT = TypeVar("ResultT")


class InlineReader:
    """Reads at once, in the thread that calls, over the connection that writes: for a database in memory."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def do(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """Run a function over the connection, and return its result."""
        return work(self._connection)


_COPYING: Final = Lock()
"""Held while the empty ledger is copied: ledgers may be made in several threads, and a connection serves one at a time."""


def in_memory(place: LedgerFile) -> Connection:
    """Open a database that is lost with its connection."""
    connection = Connection(":memory:", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    connection.keyring = place.keyring
    connection.clock = place.clock or connection.clock
    _configure(connection)
    with _COPYING, connection.backup("main", _empty(), "main") as copying:
        copying.step()
    return connection


@lru_cache(maxsize=1)
def _empty() -> Connection:
    """Return an empty ledger. A copy of it takes a tenth of the time that its statements take."""
    connection = Connection(":memory:", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    connection.run(TABLES)
    connection.setting("application_id", APPLICATION_ID)
    connection.setting("user_version", FORMAT)
    return connection


class Readers:
    """Runs reads in threads, each read in one transaction, so it sees one consistent state of the file."""

    def __init__(self, place: LedgerFile) -> None:
        self._place = place
        self._local = local()
        self._connections: set[Connection] = set()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="antiphon-ledger-reader")

    async def do(self, work: Callable[[Connection], ResultT], *, anew: bool = False) -> ResultT:
        """Run a function over a connection, and return its result; `anew`, over a fresh connection that is closed afterwards.

        Raises:
            LedgerError: the store cannot be used, or the data that was read has been altered.
        """
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed; open it again")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._look, work, anew)

    def _look(self, work: Callable[[Connection], ResultT], anew: bool) -> ResultT:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None and anew:
            self._discard(connection)
        if connection is None or anew:
            connection = self._local.connection = connect(self._place, only_read=True)
            self._connections.add(connection)
        try:
            connection.run("BEGIN")
            check_format(connection, self._place.path)  # on the snapshot that is read
            result = work(connection)
            if anew:
                self._discard(connection)
            else:
                connection.run("COMMIT")
        except BaseException as exc:
            # After any error, close the connection: an open read transaction would keep the write-ahead log growing.
            self._discard(connection)
            if is_of_store(exc):
                raise translated(exc, self._place.path) from exc
            raise
        return result

    def _discard(self, connection: Connection) -> None:
        self._local.connection = None
        self._connections.discard(connection)
        with suppress(apsw.Error):
            connection.close(force=True)

    async def close(self) -> None:
        """Wait for running reads, and close the connections."""
        self._is_closed = True
        await asyncio.to_thread(self._pool.shutdown)  # before the connections are closed: reads still use them
        for connection in self._connections:
            connection.close()
        self._connections.clear()
