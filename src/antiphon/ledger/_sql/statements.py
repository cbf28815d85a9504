"""What a verb asks of its database: statements, locks and the clock, without a driver.

A verb is a generator. It yields requests, gets the answers, and returns its result. It does no I/O and awaits nothing, so one
text serves a thread with a file and a task with a server, and a test can give it recorded rows. `run` in `ledger.sqlite` and
`ledger.postgres` answer the requests, all of one verb in one transaction.

The statements are written for PostgreSQL. Their first value, `$1`, is always the tenant, and a verb gives the values from `$2`
on. `spelled` makes the text for SQLite: a file has one tenant and one writer, so it drops tenants, schemas, casts and row
locks. Where that does not suffice, a statement has both texts (`Spelled`).

These requests are not statements, because their answers differ for good: the place of a commit (`PutMessages`), the columns of
a thread's row, which a file protects by a checksum (`PutThread`, `ChangeThreads`), and full text (`RemoveMessages`).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._encryption import Keyring
from antiphon.ledger._hosts import BootClock, LeaseClock
from antiphon.ledger._stored import Thread

ResultT = TypeVar("ResultT")
Row: TypeAlias = Sequence[Any]


class Spelled(NamedTuple):
    """A statement with a text of its own for SQLite, in which the values also begin with `$2`."""

    postgres: str
    sqlite: str


Sql: TypeAlias = str | Spelled


class Read(NamedTuple):
    """Answered with the rows. Also for a statement that writes, and returns rows."""

    sql: Sql
    values: tuple[Any, ...]


class Write(NamedTuple):
    """Answered with the number of rows that were written."""

    sql: Sql
    values: tuple[Any, ...]
    table: str | None = None
    """The table, if the rows are counted in a file: `verify` finds rows that were added or taken out."""


class WriteMany(NamedTuple):
    """A statement for each of some rows, in one round trip."""

    sql: Sql
    rows: Sequence[tuple[Any, ...]]


class Lock(NamedTuple):
    """Locks names until the end of the transaction. A file has one writer at a time, and locks nothing."""

    names: Iterable[str]
    is_shared: bool = False


class ReadClock(NamedTuple):
    """Answered with the clock that measures leases; None for that of the database."""


class ReadKeyring(NamedTuple):
    """Answered with the keys of encrypted threads."""


class PutThread(NamedTuple):
    """Inserts a thread; answered with its key."""

    thread: Thread


class ChangeThreads(NamedTuple):
    """Writes the owner of threads, and what they have to do; with `is_whole` also everything else that changes."""

    threads: Sequence[Thread]
    is_whole: bool = False


class MessageRow(NamedTuple):
    """The columns of a message that do not depend on its place in the order of all threads."""

    seq: int
    id_key: int
    invocation_key: int | None
    correlation_key: int | None
    open_from: int | None
    recorded_at: int
    hash: bytes
    media: int | None
    body: bytes


class PutMessages(NamedTuple):
    """Inserts messages of a thread; answered with the place of each, by its number in the thread."""

    thread: int
    rows: Sequence[MessageRow]


class LoadVectors(NamedTuple):
    """Loads what compares vectors into a connection to a file, which has it in no other way."""


class RemoveMessages(NamedTuple):
    """Deletes the messages of threads, and the words and terms of these messages."""

    threads: Sequence[int]


Request: TypeAlias = (
    Read
    | Write
    | WriteMany
    | Lock
    | ReadClock
    | ReadKeyring
    | PutThread
    | ChangeThreads
    | PutMessages
    | RemoveMessages
    | LoadVectors
)
Verb: TypeAlias = Generator[Request, Any, ResultT]


class Moment:
    """A reading of the clock that measures leases."""

    def __init__(self, boot: str, seconds: float, clock: LeaseClock, visible: str | None) -> None:
        self.boot = boot
        self._seconds = seconds
        self._clock = clock
        self.visible = visible
        """The prefix of the instances of hosts whose processes this one can see; None: it sees none."""

    def now(self) -> float:
        return self._seconds

    def has_ended(self, instance: str) -> bool:
        return self._clock.has_ended(instance)


# ---------------------------------------------------------------- requests with typed answers


def rows(sql: Sql, *values: Any) -> Verb[list[Row]]:
    """Return all rows."""
    answer: list[Row] = yield Read(sql, values)
    return answer


def row(sql: Sql, *values: Any) -> Verb[Row | None]:
    """Return the first row, if there is one."""
    answer: list[Row] = yield Read(sql, values)
    return answer[0] if answer else None


def value(sql: Sql, *values: Any) -> Verb[Any]:
    """Return the first value of the first row, if there is one."""
    answer: list[Row] = yield Read(sql, values)
    return answer[0][0] if answer else None


def write(sql: Sql, *values: Any, table: str | None = None) -> Verb[int]:
    """Run a statement, and return how many rows it has written."""
    count: int = yield Write(sql, values, table)
    return count


def write_one(sql: Sql, *values: Any, table: str | None = None) -> Verb[None]:
    """Run a statement that writes one row.

    Raises:
        LedgerCorruptError: it has not; something in the database prevents it, such as a trigger.
    """
    count: int = yield Write(sql, values, table)
    check_written(count, 1)


def check_written(written: int, expected: int) -> None:
    """Check that a database has written the expected number of rows.

    Raises:
        LedgerCorruptError: it has not; something in the database prevents it, such as a trigger.
    """
    if written != expected:
        reason = f"{written} rows were written where {expected} should have been"
        raise LedgerCorruptError(f"{reason}: a trigger swallows or adds rows, or a row is missing; run verify")


def lock(*names: str) -> Verb[None]:
    """Lock names until the end of the transaction. All verbs lock in the same order, so there is no deadlock."""
    yield Lock(names)


_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::double precision WHERE $1::text IS NOT NULL"
_LOCAL = BootClock()
"""It detects which processes of this machine have ended, so that their leases end at once."""


def moment() -> Verb[Moment]:
    """Read the clock that measures leases. A verb that waits for a lock reads it after the lock."""
    clock: LeaseClock | None = yield ReadClock()
    if clock is None:
        return Moment("database", float((yield from value(_CLOCK))), _LOCAL, _LOCAL.visible)
    return Moment(clock.boot, clock.now(), clock, getattr(clock, "visible", ""))


def keyring() -> Verb[Keyring]:
    """Return the keys of encrypted threads."""
    answer: Keyring = yield ReadKeyring()
    return answer


# ---------------------------------------------------------------- SQLite's spelling

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\bantiphon\.", ""),
        (r"::\w+(?: precision)?(?:\[\])?", ""),
        # One tenant: conditions, columns and values of the tenant go.
        (r"(?:\w+\.)?tenant = (?:\$1|\w+\.tenant) AND ", ""),
        (r" AND (?:\w+\.)?tenant = (?:\$1|\w+\.tenant)(?![\w.])", ""),
        (r"\s+WHERE (?:\w+\.)?tenant = (?:\$1|\w+\.tenant)(?![\w.])", " WHERE true"),
        (r"(?<=\()tenant, ", ""),
        (r"(?<=[(] )tenant, |(?<=\n    )tenant, ", ""),
        (r"(?<=VALUES \()\$1, ", ""),
        # One writer: it locks no row.
        (r" FOR (?:KEY SHARE|SHARE|UPDATE)(?: OF \w+)?(?: SKIP LOCKED)?", ""),
        # One number is the place of a message. As a value it is still three.
        (r"\((\w+)\.era, \1\.xid, \1\.ord\) ([<>]=?) \(\$\d+, \$\d+, (\$\d+)\)", r"\1.position \2 \3"),
        (r"(?<=ORDER BY )(\w+)\.era( DESC)?, \1\.xid(?: DESC)?, \1\.ord(?: DESC)?", r"\1.position\2"),
        (r"\b(\w+)\.era, \1\.xid, \1\.ord\b", r"0, 0, \1.position"),
        (r"= ANY\((\$\d+)\)", r"IN (SELECT value FROM json_each(\1))"),
        (r"<> ALL\((\$\d+)\)", r"NOT IN (SELECT value FROM json_each(\1))"),
        (r"\$(\d+)", r"?\1"),
    )
)


@lru_cache(maxsize=512)
def spelled(sql: Sql) -> str:
    """Return the text of a statement for SQLite."""
    text = sql if isinstance(sql, str) else sql.sqlite
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
