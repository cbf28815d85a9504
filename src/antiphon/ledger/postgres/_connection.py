"""Connections to PostgreSQL: a pool for one tenant, transactions with retries, and the mapping of errors.

A statement that fails because a connection broke may have been committed: only the answer is lost. `Pool.change` then runs its
function again. So such a function must detect what an earlier attempt has stored: appends do, by the ids of their messages.
`Pool.change_once` is for all others: it asks the server whether the transaction was committed.

**Reused numbers.** After a crash or an asynchronous failover, a server may give the number of a lost transaction to another
one, and then its answer is about that one. So the start time of the server is read with the number. If another server answers,
"committed" is not trusted: the data decides (`is_stored`), or the caller gets the error that the outcome is unknown. A server
that replaces crashed processes of its own keeps its start time. There, the answer is wrong only if nothing of the lost
transaction was on the disk, and another client has used the number before this one asks again, some milliseconds later.

**Poolers.** The tenant of row-level security and `synchronous_commit` are settings of a connection, which costs nothing per
statement. A pooler in transaction mode, such as PgBouncer, gives each transaction another connection of the server, so such
settings are lost. `open_pool` detects that. Then every call is a transaction of its own that starts with its settings, no
statement is prepared, and LISTEN is not used (see `Pool.is_pooled`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from antiphon.errors import LedgerCorruptError, LedgerError, LedgerFormatError, LedgerFullError, LedgerUnavailableError
from antiphon.ledger._encryption import Keyring
from antiphon.ledger._hosts import LeaseClock
from antiphon.ledger._secrets import without_password
from antiphon.messages._names import is_name

if TYPE_CHECKING:
    Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection[asyncpg.Record]"
    _AsyncpgPool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
    _PoolConnection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
else:
    Connection = asyncpg.Connection
    _AsyncpgPool = asyncpg.Pool
    _PoolConnection = asyncpg.pool.PoolConnectionProxy

Row: TypeAlias = asyncpg.Record
ResultT = TypeVar("ResultT")
_Isolation: TypeAlias = Literal["read_committed", "repeatable_read"]

_NO_KEYS = Keyring()
_MOST_CONNECTIONS = 10
_CHANNEL = "antiphon"
_LISTEN_AGAIN = 1.0
_RETAINED_FOR = 60.0
"""Seconds after which a connection that `Pool.fetch` has kept is returned to the pool. Until then, its statements stay
prepared: the first use of one on a connection takes several times as long."""
_IDLE_FOR = 30.0
"""Seconds after which the server ends a transaction whose process says nothing. A process that was suspended in the middle of
a transaction would otherwise keep its locks, and hold every `tail` back, until it continues."""
_CHECKED_FOR = 1.0
"""Seconds between two checks of the format of the tables, each of which is a round trip. A newer antiphon may raise the format
while this process runs. In between, an append notices by itself (see `ERA`), and an error leads to a check at once."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds before the next attempt; the pause doubles each time."""

_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The transaction was rolled back, and another attempt may succeed."""
_BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,  # the connection was lost while a statement was being sent
    ConnectionError,
    TimeoutError,
)
"""The connection ended, and whether the transaction was committed is unknown."""

_FOREIGN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop log records of asyncpg's pool, with tracebacks, while a server restarts: calls that need the server report it."""
    return "pool connection floor" not in str(record.msg)


logging.getLogger("asyncpg.pool").addFilter(_is_news)


async def _keep(connection: Connection) -> None:
    """Return a connection to the pool without a reset: it has no state of its own, and a reset takes a round trip."""


def _end_if_unfinished(connection: Connection, exc: BaseException) -> None:
    """End a connection whose statement may be prepared and not run, because of an error.

    asyncpg prepares a statement without a `Sync`. So until the statement runs, the server is in a transaction that is unknown
    to asyncpg, and the next transaction on the connection would be refused.
    """
    if isinstance(exc, (asyncio.CancelledError, asyncpg.InterfaceError)):
        with suppress(asyncpg.InterfaceError):  # it is closed already
            connection.terminate()


def _cancellations() -> int:
    """Return how often the current task was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _mapped(exc: BaseException, cancellations: int) -> BaseException:
    """Map an error of asyncpg; `cancellations` is how often the task had been cancelled before the call.

    If the caller is cancelled while its connection is broken, asyncpg fails to roll back, and that error replaces the
    cancellation. A retry would then ignore the cancellation.
    """
    return asyncio.CancelledError() if _cancellations() > cancellations else translated(exc)


class Session:
    """A connection, as one tenant: the tenant is the first value (`$1`) of every statement."""

    def __init__(
        self, connection: Connection, tenant: str, keyring: Keyring | None = None, clock: LeaseClock | None = None
    ) -> None:
        self.connection = connection
        """For the few statements that do not depend on a tenant."""
        self.tenant = tenant
        self.keyring = _NO_KEYS if keyring is None else keyring
        """The keys of encrypted threads."""
        self.clock = clock
        """The clock that measures leases; None for that of the database."""
        self.transaction: str | None = None
        """The transaction as `TRANSACTION` names it, if a statement has returned it."""
        self.written = 0
        """How many messages it has written in its transaction, which numbers them."""

    async def fetch(self, sql: str, *values: object) -> list[Row]:
        """Return all rows."""
        return await self.connection.fetch(sql, self.tenant, *values)

    async def fetchrow(self, sql: str, *values: object) -> Row | None:
        """Return the first row, if there is one."""
        return await self.connection.fetchrow(sql, self.tenant, *values)

    async def fetchval(self, sql: str, *values: object) -> Any:
        """Return the first value of the first row, if there is one."""
        return await self.connection.fetchval(sql, self.tenant, *values)

    async def execute(self, sql: str, *values: object) -> int:
        """Run a statement, and return how many rows it has written."""
        status = await self.connection.execute(sql, self.tenant, *values)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0


_SETTINGS = """
SELECT set_config('antiphon.tenant', $1, true), set_config('synchronous_commit', 'on', true),
    set_config('lock_timeout', $2, true), set_config('idle_in_transaction_session_timeout', $3, true)
"""
_SERVER = "extract(epoch FROM pg_postmaster_start_time())::text"
TRANSACTION = f"pg_current_xact_id()::text || ' ' || {_SERVER}"
"""The number of the transaction, and the start time of the server that gave it."""
_TRANSACTION = f"SELECT pg_current_xact_id_if_assigned()::text || ' ' || {_SERVER}"
_STATUS = f"""
SELECT CASE WHEN $1::text::xid8 < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status($1::text::xid8) END,
    {_SERVER} = $2
"""
"""A server that took over without the transaction may not have reached its number, and `pg_xact_status` raises then."""


class Pool:
    """The connections of one tenant."""

    def __init__(
        self,
        pool: _AsyncpgPool,
        tenant: str,
        patience: float,
        keyring: Keyring,
        clock: LeaseClock | None,
        *,
        is_pooled: bool,
    ) -> None:
        self._pool = pool
        self.keyring = keyring
        self.clock = clock
        self.tenant = tenant
        self.is_pooled = is_pooled
        """Whether there is a pooler in front of the server, so that a connection keeps no state between transactions."""
        self._patience = patience
        self._is_closed = False
        self._retained: list[_PoolConnection] = []
        """Connections that `fetch` keeps for its next call."""
        self._timer: asyncio.TimerHandle | None = None
        self._returning: asyncio.Task[None] | None = None
        self._check: Callable[[Connection], Awaitable[None]] | None = None
        self._check_at = 0.0

    def guard_format(self, check: Callable[[Connection], Awaitable[None]]) -> None:
        """Compare the format of the tables with what this program knows, from now on: the tables are there."""
        self._check = check

    async def _check_format(self, connection: Connection) -> None:
        """Raise if a newer antiphon has upgraded the tables, unless they were checked a moment ago."""
        if self._check is not None and (now := asyncio.get_running_loop().time()) >= self._check_at:
            await self._check(connection)
            self._check_at = now + _CHECKED_FOR

    async def _check_format_now(self) -> None:
        """Check the format after an error: what looks altered may be the work of a newer antiphon."""
        self._check_at = 0.0
        async with self.session():
            pass

    async def fetch(self, sql: str, *values: object) -> list[Row]:
        """Run a statement that is a transaction of its own, and return its rows.

        The connection is kept for the next call. Acquiring it from the pool and releasing it takes several iterations of the
        event loop, as long as all other work of this process for one append.
        """
        if self.is_pooled:
            async with self.session() as session:
                return await session.connection.fetch(sql, *values)
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed")
        cancellations = _cancellations()
        try:
            # A kept connection may have broken: then the statement fails, as it does when the connection breaks later.
            connection = self._retained.pop() if self._retained else await self._pool.acquire(timeout=self._patience)
            try:
                await self._check_format(connection)
                rows = await connection.fetch(sql, *values)
            except BaseException as exc:
                _end_if_unfinished(connection, exc)
                await self._pool.release(connection)
                raise
        except _FOREIGN as exc:
            raise _mapped(exc, cancellations) from exc
        await self._retain(connection)
        return rows

    async def _retain(self, connection: _PoolConnection) -> None:
        """Keep a connection for a while; then return it to the pool, where others can use it and it is renewed."""
        if self._is_closed:
            await self._pool.release(connection)  # `close` waits for it
            return
        self._retained.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_RETAINED_FOR, self._start_returning)

    def _start_returning(self) -> None:
        self._timer = None
        self._returning = asyncio.create_task(self._return_retained())

    async def _return_retained(self) -> None:
        while self._retained:
            with suppress(*_FOREIGN):
                await self._pool.release(self._retained.pop())

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session, None]:
        """Lend a connection, without a transaction around its use."""
        async with self._lent("read_committed" if self.is_pooled else None) as session:
            yield session

    @asynccontextmanager
    async def _lent(self, isolation: _Isolation | None, *, readonly: bool = False) -> AsyncGenerator[Session, None]:
        """Lend a connection: for one transaction, if an isolation is given."""
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed")
        cancellations = _cancellations()
        try:
            async with self._pool.acquire(timeout=self._patience) as connection:
                session = Session(connection, self.tenant, self.keyring, self.clock)
                try:
                    if isolation is None:
                        await self._check_format(connection)
                        yield session
                        return
                    async with connection.transaction(isolation=isolation, readonly=readonly):
                        if self.is_pooled:
                            await session.execute(_SETTINGS, _milliseconds(self._patience), _milliseconds(_IDLE_FOR))
                        await self._check_format(connection)
                        yield session
                except BaseException as exc:
                    _end_if_unfinished(connection, exc)
                    raise
        except _FOREIGN as exc:
            raise _mapped(exc, cancellations) from exc

    async def read(self, work: Callable[[Session], Awaitable[ResultT]]) -> ResultT:
        """Run a reading function on one snapshot of the database."""
        return await self._attempt(work, "repeatable_read", readonly=True)

    async def look(self, work: Callable[[Session], Awaitable[ResultT]]) -> ResultT:
        """Run a reading function without a snapshot, which saves two round trips: for rows that never change."""
        try:
            return await self._attempt(work, "read_committed" if self.is_pooled else None, readonly=self.is_pooled)
        except LedgerCorruptError:
            return await self.read(work)  # perhaps a thread was deleted between two statements: a snapshot shows which it is

    async def change(self, work: Callable[[Session], Awaitable[ResultT]]) -> ResultT:
        """Run a writing function in one transaction. It must tolerate that an earlier attempt was committed."""
        return await self._attempt(work, "read_committed")

    async def change_once(
        self,
        work: Callable[[Session], Awaitable[ResultT]],
        is_stored: Callable[[Session, ResultT], Awaitable[bool]] | None = None,
    ) -> ResultT:
        """Run a function that writes, in one transaction; an attempt that was committed is not repeated.

        The id of the transaction is read before the commit: by a statement that returns it, or else by one more round trip.
        That is the last one, after all locks: `_appends` says why. `is_stored` returns whether the data shows the change, for
        a server that was restarted or replaced meanwhile.

        Raises:
            LedgerUnavailableError: the server failed for too long, or was replaced and `is_stored` is not given: whether the
                change is stored is unknown.
        """
        unconfirmed: list[tuple[str, ResultT]] = []
        """The transaction whose commit was not confirmed, and what it has returned."""

        async def once(session: Session) -> ResultT:
            if unconfirmed and await self._is_committed(session, *unconfirmed[0], is_stored):
                return unconfirmed[0][1]
            unconfirmed.clear()
            result = await work(session)
            if (transaction := session.transaction or await session.connection.fetchval(_TRANSACTION)) is not None:
                unconfirmed.append((transaction, result))
            return result

        return await self.change(once)

    async def _is_committed(
        self,
        session: Session,
        transaction: str,
        result: ResultT,
        is_stored: Callable[[Session, ResultT], Awaitable[bool]] | None,
    ) -> bool:
        """Whether a transaction was committed. One that the server has not ended yet is waited for."""
        async with asyncio.timeout(self._patience):
            while True:
                row = await session.connection.fetchrow(_STATUS, *transaction.split(" "))
                status, is_same_server = (None, True) if row is None else tuple(row.values())
                if status != "in progress":
                    break
                await asyncio.sleep(_FIRST_PAUSE)
        if status != "committed" or is_same_server:
            return bool(status == "committed")
        if is_stored is None:
            raise LedgerUnavailableError(
                "PostgreSQL was restarted or replaced before it confirmed the change: look whether the change is stored"
            )
        return await is_stored(session, result)

    async def _attempt(
        self, work: Callable[[Session], Awaitable[ResultT]], isolation: _Isolation | None, *, readonly: bool = False
    ) -> ResultT:
        """Run a function, in a transaction if an isolation is given. Retry if it was rolled back or the connection broke.

        Raises:
            LedgerFormatError: a newer antiphon has upgraded the tables.
            LedgerUnavailableError: it did not succeed within the patience of the ledger.
        """
        loop = asyncio.get_running_loop()
        give_up_at, pause = loop.time() + self._patience, _FIRST_PAUSE
        while True:
            try:
                async with self._lent(isolation, readonly=readonly) as session:
                    return await work(session)
            except LedgerUnavailableError as exc:
                if self._is_closed or not _may_succeed(exc.__cause__) or loop.time() + pause > give_up_at:
                    raise
            except (LedgerCorruptError, LedgerFormatError):
                await self._check_format_now()
                raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def close(self) -> None:
        # First: a call that starts during the waits below would take a connection that nobody returns.
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(5):
                if self._returning is not None:
                    await self._returning
                await self._return_retained()
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()
            await asyncio.sleep(0)  # the loop closes the sockets in its next iteration


_NOTIFY = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, each) FROM unnest($2::text[]) AS each
"""
"""A hint may be lost, so it does not wait for the disk: an append that is committed at the same time would wait with it."""


class NotifySignals:
    """Signals over LISTEN/NOTIFY: for wake-ups, which are few and short.

    A `NOTIFY` is a statement of its own: inside an append, it would take a lock that all commits of the server share. Behind a
    pooler in transaction mode, LISTEN does not work.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: dict[str, None] = {}
        self._sending: asyncio.Task[None] | None = None

    def send(self, subject: str, data: bytes) -> None:
        self._waiting[f"{subject} {data.decode('ascii')}"] = None
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        await asyncio.sleep(0)  # the hints of a commit and of its work are one statement
        while self._waiting:
            texts, self._waiting = list(self._waiting), {}
            with suppress(LedgerError):  # readers poll
                await self._pool.fetch(_NOTIFY, _CHANNEL, texts)

    @asynccontextmanager
    async def hear(self, subject: str, take: Callable[[bytes], None]) -> AsyncGenerator[None]:
        listening = asyncio.create_task(self._listen(f"{subject} ", take))
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)  # it returns its connection

    async def _listen(self, prefix: str, take: Callable[[bytes], None]) -> None:
        def heard(_connection: object, _pid: object, _channel: object, payload: object) -> None:
            text = str(payload)
            if text.startswith(prefix):
                take(text.removeprefix(prefix).encode())

        while not self._pool.is_pooled:
            with suppress(LedgerError):
                async with self._pool.session() as session:
                    await session.connection.add_listener(_CHANNEL, heard)
                    try:
                        while not session.connection.is_closed():  # noqa: ASYNC110 (asyncpg has no such event)
                            await asyncio.sleep(_LISTEN_AGAIN)
                    finally:
                        with suppress(Exception):
                            await session.connection.remove_listener(_CHANNEL, heard)
            await asyncio.sleep(_LISTEN_AGAIN)

    async def close(self) -> None:
        """Wait for the statement that is being sent."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


def _may_succeed(exc: BaseException | None) -> bool:
    is_closed_connection = isinstance(exc, asyncpg.InterfaceError) and "closed" in str(exc)
    return isinstance(exc, (*_AGAIN, *_BROKEN)) or is_closed_connection


@asynccontextmanager
async def open_pool(
    url: str, tenant: str, patience: float, keyring: Keyring, clock: LeaseClock | None
) -> AsyncGenerator[Pool, None]:
    """Connect to a database, as one tenant."""
    if not is_name(tenant):
        raise ValueError(f"a tenant is a name of 1 to 512 visible characters, not {tenant!r}")
    connections, is_pooled = await _connected(url, tenant, patience)
    pool = Pool(connections, tenant, patience, keyring, clock, is_pooled=is_pooled)
    try:
        yield pool
    finally:
        await pool.close()


_IS_SET = "SELECT 1 WHERE encode(convert_to(current_setting('antiphon.tenant', true), 'UTF8'), 'hex') = '{}'"
"""Without values, so that nothing is prepared: a pooler keeps prepared statements for the next client of the connection."""


async def _connected(url: str, tenant: str, patience: float) -> tuple[_AsyncpgPool, bool]:
    """Return the connections to a server, and whether they go through a pooler."""
    settings = {
        "antiphon.tenant": tenant,
        "synchronous_commit": "on",
        "lock_timeout": _milliseconds(patience),
        "idle_in_transaction_session_timeout": _milliseconds(_IDLE_FOR),
    }
    try:
        try:
            pool = await _new_pool(url, patience, settings)
        except asyncpg.ProtocolViolationError:  # a pooler refuses settings that it does not know
            return await _new_pool(url, patience, {}, statement_cache_size=0), True
        if await pool.execute(_IS_SET.format(tenant.encode().hex())) == "SELECT 1":
            return pool, False
        await pool.close()  # a pooler may also drop them silently
        return await _new_pool(url, patience, {}, statement_cache_size=0), True
    except _FOREIGN as exc:
        raise translated(exc, shown_url(url)) from exc
    except ValueError as exc:
        raise unreadable(url, exc) from None  # its text and its cause may quote the password


def unreadable(url: str, error: ValueError) -> LedgerUnavailableError:
    """Return the error for a URL that cannot be read."""
    shown = shown_url(url)
    advice = (
        f"{error}" if shown == url else "quote special characters in the user and the password, as %40 for @ and %2F for /"
    )
    return LedgerUnavailableError(f"PostgreSQL at {shown}: the URL cannot be read; {advice}")


async def _new_pool(url: str, patience: float, settings: dict[str, str], **options: Any) -> _AsyncpgPool:
    settings["application_name"] = "antiphon"
    return await asyncpg.create_pool(
        url,
        min_size=1,
        max_size=_MOST_CONNECTIONS,
        timeout=patience,
        command_timeout=2 * patience,  # longer than the server's own limit: it is for a server that does not respond
        server_settings=settings,
        reset=_keep,
        **options,
    )


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def tenant_in(url: str) -> tuple[str, str | None]:
    """Return a URL without its parameter `tenant`, and the tenant that it names."""
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise unreadable(url, exc) from None
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    named = [value for name, value in parameters if name == "tenant"]
    rest = urlencode([(name, value) for name, value in parameters if name != "tenant"])
    return (urlunsplit(parts._replace(query=rest)), named[-1]) if named else (url, None)


def shown_url(url: str, tenant: str | None = None) -> str:
    """Return a URL without its password and with its tenant, for display."""
    if tenant is not None:
        url += f"{'&' if urlsplit(url).query else '?'}{urlencode({'tenant': tenant})}"
    return without_password(url)


_ADVICE: dict[type[Exception], str] = {
    asyncpg.InvalidPasswordError: "the password is wrong; check the URL, or PGPASSWORD and ~/.pgpass",
    asyncpg.InvalidAuthorizationSpecificationError: "the user may not log in; check the URL, and pg_hba.conf",
    asyncpg.InvalidCatalogNameError: "there is no such database; create it with createdb, or check the URL",
    asyncpg.ReadOnlySQLTransactionError: "it is a read-only replica; connect to the primary",
    asyncpg.InsufficientPrivilegeError: "the user lacks a privilege on the schema antiphon; grant it, or use its owner",
    asyncpg.LockNotAvailableError: (
        "another transaction has locked the thread for too long; look for it in pg_stat_activity, then try again"
    ),
    asyncpg.TooManyConnectionsError: "the server has no connection left; raise max_connections, or close other programs",
    asyncpg.OutOfMemoryError: "the server has no memory left, perhaps for locks; raise max_locks_per_transaction",
}
"""The advice for errors of PostgreSQL."""


def translated(exc: BaseException, place: str | None = None) -> LedgerError:
    """Map an error of asyncpg or the network to a ledger error."""
    where = "PostgreSQL" if place is None else f"PostgreSQL at {place}"
    for kind, advice in _ADVICE.items():
        if isinstance(exc, kind):
            return LedgerUnavailableError(f"{where}: {advice}")
    match exc:
        case LedgerError():
            return exc
        case asyncpg.DiskFullError():
            return LedgerFullError(f"{where}: no space is left on its disk; make room there, then try again")
        case (
            asyncpg.UndefinedTableError()
            | asyncpg.UndefinedColumnError()
            | asyncpg.UndefinedObjectError()
            | asyncpg.NotNullViolationError()  # a column that this version does not know, or no era: see `ERA`
        ):
            return LedgerFormatError(
                f"{where}: {_line_of(exc)}; the tables are not those of a ledger, or another antiphon made them: "
                "`antiphon export` there, and `antiphon import` here"
            )
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return LedgerCorruptError(f"{where}: {_line_of(exc)}; restore a dump")
        case TimeoutError():
            return LedgerUnavailableError(f"{where} did not answer in time; look at the server, then try again")
        case OSError() if not isinstance(exc, asyncpg.PostgresError):
            return LedgerUnavailableError(f"{where} cannot be reached: {exc}; check the URL, and start the server")
        case _:
            return LedgerUnavailableError(f"{where}: {_line_of(exc)}")


def _line_of(exc: BaseException) -> str:
    """Return an error as one line, without the details: they repeat the row that was refused, and so a message."""
    return " ".join(str(exc.args[0] if exc.args else exc).split())
