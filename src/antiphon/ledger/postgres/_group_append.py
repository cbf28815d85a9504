"""The statements of appends: one for a group, and one for a group of one message.

Each writes the rows of the threads that are as this process knows them, and answers with the keys of these threads. A
statement is its own transaction (see `_appends`).

**Columns.** A row type below names its columns once, in the order of the values, each with its kind. The statements are made
from these names: `:seq` becomes the number of the value.

**One message** has a statement of its own, without arrays. In the statement of a group, a single append takes 80 % more of the
server's time (ADR 0041).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

import orjson

from antiphon.ledger._admission import Admission
from antiphon.ledger._encryption import Keyring
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._sql.appends import CachedThread, message_keys
from antiphon.ledger.postgres._driver import lock_of
from antiphon.ledger.postgres._schema import ERA


class PreparedAppend(NamedTuple):
    """An admitted append: its thread, the request in the form for the thread, and the admission."""

    cached: CachedThread
    request: AppendRequest
    admission: Admission


# ---------------------------------------------------------------- kinds of columns


def _numbers(values: Sequence[int | None]) -> str:
    """Return whole numbers as the text of an array. PostgreSQL reads `null`, `true` and `false` as JSON spells them."""
    return f"{{{orjson.dumps(values)[1:-1].decode()}}}"


def _texts(values: Iterable[str | None]) -> str:
    """Return texts as the text of an array."""
    return f"{{{','.join(['NULL' if value is None else _quoted(value) for value in values])}}}"


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class Kind:
    """The type of a column, the type of an array of its values as they are sent, and the function that makes the array.

    Arrays are sent as text, which takes asyncpg a sixth of the time of a list.
    """

    one: str
    many: str
    array: Callable[[Any], Any]


Number: TypeAlias = Annotated[int, Kind("bigint", "text::bigint[]", _numbers)]
OptionalNumber: TypeAlias = Annotated[int | None, Kind("bigint", "text::bigint[]", _numbers)]
Small: TypeAlias = Annotated[int, Kind("integer", "text::integer[]", _numbers)]
Flag: TypeAlias = Annotated[bool, Kind("boolean", "text::boolean[]", _numbers)]
Text: TypeAlias = Annotated[str, Kind("text", "text::text[]", _texts)]
OptionalText: TypeAlias = Annotated[str | None, Kind("text", "text::text[]", _texts)]
Bytes: TypeAlias = Annotated[bytes, Kind("bytea", "bytea[]", list)]
Link: TypeAlias = Annotated[bytes, Kind("bytea", "bytea", b"".join)]
"""32 bytes: the links of all rows are one value."""


class ThreadChange(NamedTuple):
    """A thread: its state as it must be, and then its state as it becomes."""

    key: Number
    old_seq: Number
    old_hash: Link
    epoch: Number
    seq: Number
    hash: Link
    run: Number
    open_from: OptionalNumber
    status: OptionalText
    pattern: OptionalText
    updated_at: Number
    input_tokens: Number
    output_tokens: Number
    cost: Text
    kind: OptionalText
    due_at: OptionalNumber
    posted: Number
    open_calls: Number
    is_sure: Flag
    """Whether no other process can have encrypted it."""


class MessageRow(NamedTuple):
    """A message of a group."""

    thread: Number
    seq: Number
    id_key: Number
    invocation_key: OptionalNumber
    correlation_key: OptionalNumber
    open_from: OptionalNumber
    recorded_at: Number
    place: Small
    """Where its bytes begin in the bytes of all."""
    length: Small
    hash: Link


class OnlyMessage(NamedTuple):
    """The message of a group of one. The row of its thread has its place, link and time."""

    id_key: Number
    invocation_key: OptionalNumber
    correlation_key: OptionalNumber
    body: Bytes


class OpenedCall(NamedTuple):
    thread: Number
    call_seq: Number
    option_key: Number
    call: Bytes
    ord: Small


class ClosedCall(NamedTuple):
    thread: Number
    call_seq: Number


class SnapshotRow(NamedTuple):
    thread: Number
    fold: Text
    at_seq: Number
    state_hash: Bytes
    state: Bytes


@lru_cache(maxsize=16)
def _kinds(row: Any) -> dict[str, Kind]:
    """Return the kind of each column of a row type."""
    hints = get_type_hints(row, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in row._fields}


def _arrays(row: Any, rows: Collection[tuple[Any, ...]]) -> list[Any]:
    """Return rows as the values of a statement: one for each column."""
    columns = zip(*rows, strict=True) if rows else [()] * len(row._fields)
    return [kind.array(column) for kind, column in zip(_kinds(row).values(), columns, strict=True)]


def _unnest(row: Any, alias: str, number: str = "", prefix: str = "") -> str:
    """Return the arrays of a row type as a table, without its links. `prefix` precedes the names of the values."""
    kinds = {name: kind for name, kind in _kinds(row).items() if kind.many != "bytea"}
    arrays = ", ".join(f":{prefix}{name}::{kind.many}" for name, kind in kinds.items())
    names = ", ".join([*kinds, *([number] if number else [])])
    return f"unnest({arrays}) {'WITH ORDINALITY ' if number else ''}AS {alias} ({names})"


def _link(name: str, number: str) -> str:
    """Return the link of a row from the links of all."""
    return f"substring(:{name}::bytea FROM 32 * {number}::integer - 31 FOR 32)"


# ---------------------------------------------------------------- statements


class Part(NamedTuple):
    """A part of a statement, and the names of the values that it adds. It may also name values of the first part."""

    sql: str
    names: tuple[str, ...]


@lru_cache(maxsize=64)
def assembled(first: Part, parts: tuple[Part, ...], last: str) -> str:
    """Return a statement with some of the optional parts: each costs the server time, even without a row."""
    shared = {name: number for number, name in enumerate(first.names, 1)}
    used, pieces = len(shared), [_numbered(first.sql, shared)]
    for part in parts:
        numbers = {name: number for number, name in enumerate(part.names, used + 1)}
        used += len(numbers)
        pieces.append(_numbered(part.sql, shared | numbers))
    return "".join((*pieces, _numbered(last, shared)))


def _numbered(sql: str, numbers: dict[str, int]) -> str:
    return re.sub(r"(?<!:):([a-z_]+)", lambda match: f"${numbers[match[1]]}", sql)


_SET = ", ".join(
    f"{name} = {{}}{name}" for name in ThreadChange._fields if name not in ("key", "old_seq", "old_hash", "epoch", "is_sure")
)
"""The columns of a thread that an append changes."""
_MESSAGE = """antiphon.messages (
    tenant, thread, seq, era, xid, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body
)"""
_XID = "pg_current_xact_id()::text::bigint"
_OPEN_CALL = "antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)"
_SNAPSHOT = "antiphon.snapshots (tenant, thread, fold, seq, hash, state)"
_REPLACED = """
    ON CONFLICT (tenant, thread, fold) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, state = excluded.state"""


def _unencrypted(key: str, old_seq: str) -> str:
    """Return the condition that no other process has encrypted a thread meanwhile."""
    return f"""NOT EXISTS (
        SELECT 1 FROM antiphon.thread_keys AS k
        WHERE k.tenant = :tenant AND k.thread = ANY(ARRAY[{key}, CASE WHEN {old_seq} = 0 THEN 0 ELSE {key} END])
    )"""  # noqa: S608


_OF_CHANGED = "= ANY(ARRAY(SELECT key FROM changed))"
GROUP = Part(
    f"""
WITH locked AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(lock)) AS locks FROM unnest(:locks::text::bigint[]) AS lock
), wanted AS MATERIALIZED (
    SELECT w.*, {_link("old_hash", "n")} AS old_hash, {_link("hash", "n")} AS hash
    FROM {_unnest(ThreadChange, "w", "n")}
    WHERE w.is_sure OR {_unencrypted("w.key", "w.old_seq")}
    LIMIT :no_limit
), changed AS (
    UPDATE antiphon.threads AS t
    SET {_SET.format(*["w."] * _SET.count("{}"))}
    FROM wanted AS w, locked
    WHERE locked.locks >= 0 AND t.tenant = :tenant AND t.key = w.key
        AND t.seq = w.old_seq AND t.hash = w.old_hash AND t.epoch = w.epoch
    RETURNING t.key
), written AS (
    INSERT INTO {_MESSAGE}
    SELECT :tenant, m.thread, m.seq, {ERA}, {_XID}, m.ord, m.id_key, m.invocation_key, m.correlation_key, m.open_from,
        m.recorded_at, {_link("message_hash", "m.ord")}, NULL, substring(:bodies::bytea FROM m.place FOR m.length)
    FROM {_unnest(MessageRow, "m", "ord", prefix="message_")}
    WHERE m.thread {_OF_CHANGED}
)""",  # noqa: S608 (names of ours)
    (
        "tenant",
        "locks",
        "no_limit",
        *ThreadChange._fields,
        *(f"message_{name}" for name in MessageRow._fields),
        "bodies",
    ),
)
"""Writes threads and messages.

The `LIMIT` limits nothing: it makes the planner expect one row. So it finds each thread by the primary key. Otherwise it would
read the whole table, if the plan was made while the table was small (see `_schema` on statistics). All links, and all bodies,
are concatenated to one value.
"""
GROUP_OPENED = Part(
    f""", opened AS (
    INSERT INTO {_OPEN_CALL}
    SELECT :tenant, o.thread, o.call_seq, o.option_key, o.call, {ERA}, {_XID}, o.ord
    FROM {_unnest(OpenedCall, "o")} WHERE o.thread {_OF_CHANGED}
)""",  # noqa: S608
    OpenedCall._fields,
)
GROUP_CLOSED = Part(
    f""", closed AS (
    DELETE FROM antiphon.open_calls AS o
    USING (SELECT * FROM {_unnest(ClosedCall, "u")} LIMIT :no_limit) AS c
    WHERE c.thread {_OF_CHANGED} AND o.tenant = :tenant AND o.thread = c.thread AND o.seq = c.call_seq
)""",  # noqa: S608
    ClosedCall._fields,
)
GROUP_SNAPSHOT = Part(
    f""", kept AS (
    INSERT INTO {_SNAPSHOT}
    SELECT :tenant, s.thread, s.fold, s.at_seq, s.state_hash, s.state
    FROM {_unnest(SnapshotRow, "s")} WHERE s.thread {_OF_CHANGED}{_REPLACED}
)""",  # noqa: S608
    SnapshotRow._fields,
)
GROUP_END = "SELECT key FROM changed"
_NO_LIMIT = 2**31
"""More than the number of rows of a group."""


def _one(condition: str) -> Part:
    # The lock is taken before the row is changed, because the update joins the locked row. The snapshot of the statement is
    # older than the lock, so PostgreSQL compares the row again if another transaction has changed it meanwhile.
    sql = f"""
WITH changed AS (
    UPDATE antiphon.threads AS t
    SET {_SET.format(*[":"] * _SET.count("{}"))}
    FROM (SELECT pg_advisory_xact_lock(:lock) IS NOT NULL AS is_taken OFFSET 0) AS lock
    WHERE lock.is_taken AND t.tenant = :tenant AND t.key = :key AND t.seq = :old_seq AND t.hash = :old_hash
        AND t.epoch = :epoch{condition}
    RETURNING {ERA} AS era, {_XID} AS xid
)"""  # noqa: S608
    return Part(sql, ("tenant", "lock", *ThreadChange._fields[:-1], *OnlyMessage._fields))


ONE = _one("")
ONE_UNSURE = _one(f" AND {_unencrypted(':key', ':old_seq')}")
"""The same for a thread that another process may have encrypted. The further condition takes a tenth of the server's time."""
ONE_OPENED = Part(
    f""", opened AS (
    INSERT INTO {_OPEN_CALL}
    SELECT :tenant, :thread::bigint, :call_seq::bigint, :option_key::bigint, :call::bytea, era, xid, :ord::integer FROM changed
)""",  # noqa: S608
    OpenedCall._fields,
)
ONE_CLOSED = Part(
    """, closed AS (
    DELETE FROM antiphon.open_calls AS o USING changed WHERE o.tenant = :tenant AND o.thread = :thread AND o.seq = :call_seq
)""",
    ClosedCall._fields,
)
ONE_SNAPSHOT = Part(
    f""", kept AS (
    INSERT INTO {_SNAPSHOT}
    SELECT :tenant, :thread::bigint, :fold::text, :at_seq::bigint, :state_hash::bytea, :state::bytea FROM changed{_REPLACED}
)""",  # noqa: S608
    SnapshotRow._fields,
)
ONE_END = f"""
INSERT INTO {_MESSAGE}
SELECT :tenant, :key, :seq, era, xid, 1, :id_key::bigint, :invocation_key::bigint, :correlation_key::bigint, :open_from,
    :updated_at, :hash, NULL, :body::bytea
FROM changed RETURNING thread AS key
"""  # noqa: S608


# ---------------------------------------------------------------- values


def statement_of(tenant: str, keyring: Keyring, prepared: Sequence[PreparedAppend]) -> tuple[str, list[Any]]:
    """Return the statement of some appends and its values."""
    is_one = len(prepared) == 1 and len(prepared[0].admission.rows) == 1
    return _of_one(tenant, keyring, prepared[0]) if is_one else _of_group(tenant, keyring, prepared)


def _of_one(tenant: str, keyring: Keyring, append: PreparedAppend) -> tuple[str, list[Any]]:
    cached, request, admission = append
    record, message, _, _ = admission.rows[0]
    values: list[Any] = [
        tenant,
        lock_of(tenant, request.thread_id),
        *_changed(cached)[:-1],
        *OnlyMessage(*message_keys(message), record.stored),
    ]
    parts: list[Part] = []
    key, pairing = cached.thread.key, admission.pairing
    for call in pairing.opened.values():
        parts.append(ONE_OPENED)
        values += OpenedCall(key, call.seq, *cached.dump_call(keyring, call), 1)
    for seq in pairing.closed:
        parts.append(ONE_CLOSED)
        values += ClosedCall(key, seq)
    if request.snapshot is not None:
        parts.append(ONE_SNAPSHOT)
        values += cached.snapshot_row(request.snapshot, admission.state.seq, admission.state.hash)
    return assembled(ONE if cached.is_sure else ONE_UNSURE, tuple(parts), ONE_END), values


def _of_group(tenant: str, keyring: Keyring, prepared: Sequence[PreparedAppend]) -> tuple[str, list[Any]]:
    messages: list[tuple[Any, ...]] = []
    bodies: list[bytes] = []
    opened: dict[tuple[int, int], OpenedCall] = {}
    closed: list[ClosedCall] = []
    snapshots: dict[tuple[int, str], SnapshotRow] = {}
    for cached, request, admission in prepared:
        key = cached.thread.key
        before = len(messages) + 1 - admission.rows[0].record.seq if admission.rows else 0
        for record, message, digest, open_from in admission.rows:
            messages.append((key, record.seq, *message_keys(message), open_from, request.micros, digest))
            bodies.append(record.stored)
        for call in admission.pairing.opened.values():
            opened[key, call.seq] = OpenedCall(key, call.seq, *cached.dump_call(keyring, call), before + call.seq)
        # A call that an earlier append of the same group has opened is not in the table yet.
        closed += [ClosedCall(key, seq) for seq in admission.pairing.closed if opened.pop((key, seq), None) is None]
        if request.snapshot is not None:
            row = SnapshotRow(*cached.snapshot_row(request.snapshot, admission.state.seq, admission.state.hash))
            snapshots[key, row.fold] = row
    threads = {append.request.thread_id: append.cached for append in prepared}
    lengths = [len(body) for body in bodies]
    places = accumulate(lengths[:-1], initial=1)
    rows = [
        (*columns[:-1], place, length, columns[-1]) for columns, place, length in zip(messages, places, lengths, strict=False)
    ]
    values: list[Any] = [
        tenant,
        _numbers(sorted({lock_of(tenant, thread_id) for thread_id in threads})),
        _NO_LIMIT,
        *_arrays(ThreadChange, [_changed(cached) for cached in threads.values()]),
        *_arrays(MessageRow, rows),
        b"".join(bodies),
    ]
    parts: list[Part] = []
    optional: tuple[tuple[Part, type[Any], Collection[Any]], ...] = (
        (GROUP_OPENED, OpenedCall, opened.values()),
        (GROUP_CLOSED, ClosedCall, closed),
        (GROUP_SNAPSHOT, SnapshotRow, snapshots.values()),
    )
    for part, row_type, part_rows in optional:
        if part_rows:
            parts.append(part)
            values += _arrays(row_type, part_rows)
    return assembled(GROUP, tuple(parts), GROUP_END), values


def _changed(cached: CachedThread) -> ThreadChange:
    """Return the row of a thread, as it must be and as it becomes."""
    before, after = cached.thread.state, cached.state
    return ThreadChange(
        key=cached.thread.key,
        old_seq=before.seq,
        old_hash=before.hash,
        epoch=before.epoch,
        seq=after.seq,
        hash=after.hash,
        run=after.run,
        open_from=after.open_from,
        status=after.status,
        pattern=after.pattern,
        updated_at=after.updated_at,
        input_tokens=after.input_tokens,
        output_tokens=after.output_tokens,
        cost=after.cost,
        kind=after.kind,
        due_at=after.due_at,
        posted=after.posted,
        open_calls=len(cached.open_calls),
        is_sure=cached.is_sure,
    )
