"""Verifies a ledger's file: every thread, row by row, then the data outside of threads, then the file itself.

`diagnose` checks the settings and the environment of the file: durability, disk space, and who may read it.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from antiphon.errors import NoMasterKeyError
from antiphon.ledger._records import OpenCall, Pairing, snapshot_hash
from antiphon.ledger._redaction import is_digest
from antiphon.ledger._stored import Subject, Thread, join
from antiphon.ledger._values import Damage, Diagnosis, Head
from antiphon.ledger._verification import Examination, StoredRow, add_row, row_opener
from antiphon.ledger.sqlite._checksums import COUNTERS, host_checksum, message_checksum, state_checksum, thread_checksum
from antiphon.ledger.sqlite._keys import complaints_about_keys, find_key
from antiphon.ledger.sqlite._rows import (
    find_open_calls,
    find_thread,
    key_of,
    lineage,
    link_at,
    media_at,
    name_of,
    number_of,
)
from antiphon.ledger.sqlite._schema import differences
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._terms import TERM_COPY, complaints_about_terms
from antiphon.messages import Message

_STEP = 1000
"""Rows that are checked in one transaction: a longer transaction would keep the write-ahead log growing."""

_USED = "SELECT media.hash, media.text FROM media_uses JOIN media ON media.key = media_uses.media WHERE position = ?"

_ROWS = """
SELECT position, seq, id_key, invocation_number, correlation_number, open_from, recorded_at, hash, media, body, checksum
FROM messages WHERE thread = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""

_COUNTS = {
    "messages": "SELECT count(*), coalesce(max(position), 0) FROM messages",
    "threads": "SELECT count(*), coalesce(max(key), 0) FROM threads",
    "hosts": "SELECT count(*), coalesce(max(key), 0) FROM hosts",
}
"""The number of rows and the largest key of each table that never reuses a key."""

_GIVEN = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"

_STRAYS = {
    "threads": {
        "SELECT 1 FROM open_calls LEFT JOIN threads ON key = thread WHERE coalesce(threads.open_calls, 0) = 0": (
            "an open call belongs to a thread that has none"
        ),
        "SELECT 1 FROM snapshots WHERE thread NOT IN (SELECT key FROM threads)": "a snapshot belongs to no thread",
        "SELECT 1 FROM threads WHERE owner IS NOT NULL AND owner NOT IN (SELECT key FROM hosts)": (
            "a thread has an owner that does not exist"
        ),
        """SELECT 1 FROM open_calls JOIN messages USING (thread, seq) WHERE open_calls.position <> messages.position""": (
            "an open call has another position than its message"
        ),
    },
    "media": {
        "SELECT 1 FROM media_uses WHERE position NOT IN (SELECT position FROM messages WHERE media IS NOT NULL)": (
            "a medium belongs to a message that has none"
        ),
        "SELECT 1 FROM media WHERE key NOT IN (SELECT media FROM media_uses)": "a medium belongs to no message",
    },
    "terms": {
        "SELECT 1 FROM terms_idx WHERE segid NOT IN (SELECT id >> 37 FROM terms_data)": (
            "an index of terms names a segment that it does not have"
        ),
    },
    "search": {  # a segment's pages are numbered from its own number times 2 ** 37 on
        "SELECT 1 FROM search_idx WHERE segid NOT IN (SELECT id >> 37 FROM search_data)": (
            "the index of words names a segment that it does not have"
        ),
    },
}
"""Queries for stray rows that the check of threads does not reach, by the table that they need, with the damage to report."""

_COPY = """
CREATE TEMP VIEW indexed AS SELECT position, words_of(body) AS words FROM main.messages
    WHERE position <= (SELECT value FROM main.counters WHERE name = 'searchable');
CREATE VIRTUAL TABLE temp.copy USING fts5 (
    words, content = 'indexed', content_rowid = 'position', tokenize = 'unicode61 remove_diacritics 2'
);
DELETE FROM copy_data;
DELETE FROM copy_config;
INSERT INTO copy_data SELECT * FROM main.search_data;
INSERT INTO copy_idx SELECT * FROM main.search_idx;
INSERT INTO copy_docsize SELECT * FROM main.search_docsize;
INSERT INTO copy_config SELECT * FROM main.search_config;
PRAGMA writable_schema = RESET;
INSERT INTO copy (copy, rank) VALUES ('integrity-check', 1);
"""
"""FTS5 compares an index with its messages only on a connection that may write, and a write would block other writers. So the
index is copied into a temporary table, read again (hence the RESET), and compared there."""


def damages_of_schema(connection: Connection) -> list[Damage]:
    """Return the differences of the schema from the expected one. With an altered schema, queries could give wrong results."""
    return [Damage(None, None, f"the schema: {difference}") for difference in differences(connection)]


def names(connection: Connection) -> tuple[list[str], int]:
    """Return the names of all threads, and how many messages there are."""
    found = [name for (name,) in connection.rows("SELECT thread_id FROM threads ORDER BY key")]
    count: int = connection.value("SELECT count(*) FROM messages")
    return found, count


def begin(connection: Connection, thread_id: str) -> Subject | Damage | None:
    """Begin to verify a thread; None if it was deleted."""
    thread = find_thread(connection, thread_id)
    if thread is None:
        return None
    previous = link_at(connection, thread.key, thread.base_seq)
    if previous is None:
        return Damage(thread_id, thread.base_seq, "the messages that it shares with its origin are missing")
    opener = row_opener(connection.keyring, thread_id, find_key(connection, thread.key))
    shared = _open_at_base(connection, thread)
    open_calls: list[OpenCall] = []
    with suppress(NoMasterKeyError):  # only the chain is checked then
        open_calls = find_open_calls(connection, thread)
    counted: int = connection.value("SELECT count(*) FROM open_calls WHERE thread = ?", (thread.key,))
    if complaint := _complaint_about(connection, thread, counted):
        return Damage(thread_id, None, complaint)
    return Subject(thread, open_calls, Examination(thread_id, thread.base_seq, previous, shared, opener))


def _complaint_about(connection: Connection, thread: Thread, open_calls: int) -> str | None:
    """Return a fault in the row of a thread that can be found without its messages."""
    origin = None if thread.base is None else name_of(connection, thread.base)
    began = None if thread.base is None else thread.base_seq
    if (thread.state.forked_from, thread.state.forked_at) != (origin, began):
        return "its recorded origin is not the thread that it branched from"
    if thread.checksum != thread_checksum(state_checksum(thread.key, thread.state), thread.state.updated_at):
        return "its epoch, status, owner or times are not what they were"
    return None if thread.open_calls == open_calls else "the number of its open calls is wrong"


def _open_at_base(connection: Connection, thread: Thread) -> Pairing | None:
    """Return the calls that were open at the start of a branch; None if there is no key to read them."""
    segments = lineage(connection, thread._replace(state=thread.state._replace(seq=thread.base_seq)))
    if not segments:
        return Pairing()
    last = segments[-1]
    sql = "SELECT open_from FROM messages WHERE thread = ? AND seq = ?"
    first: int | None = connection.value(sql, (last.key, last.last))
    if first is None:
        return Pairing()
    pairing = Pairing(first - 1)
    for key, low, high in segments:
        opener = row_opener(connection.keyring, name_of(connection, key), find_key(connection, key))
        for row in connection.rows(_ROWS, (key, max(low, first) - 1, high, -1)):
            if not add_row(pairing, row[1], _whole(connection, row), opener):
                return None
    return pairing


def look(connection: Connection, subject: Subject, after: int, heads: Mapping[str, Head]) -> int | Damage | None:
    """Check the next rows of a thread. Return where to continue, or the damage, or None at the end."""
    thread, examination = subject.thread, subject.examination
    name = thread.state.thread_id
    found = connection.rows(_ROWS, (thread.key, after, thread.state.seq, _STEP))
    wanted = frozenset({heads[name].seq} if name in heads else ())
    if damage := examination.rows((_stored(connection, thread.key, row) for row in found), wanted):
        return damage
    if len(found) == _STEP:
        return int(found[-1][1])
    return examination.end(thread.state, subject.open_calls, heads) or _snapshot_damage(connection, thread)


def _stored(connection: Connection, thread: int, row: Sequence[Any]) -> StoredRow:
    seq, open_from, recorded_at, digest = row[1], *row[5:8]
    kept = digest if isinstance(digest, bytes) else b""
    when = recorded_at if isinstance(recorded_at, int) else 0
    return StoredRow(seq, when, kept, open_from, _whole(connection, row), partial(_complaint, connection, thread, row))


def _whole(connection: Connection, row: Sequence[Any]) -> bytes:
    position, media, body = row[0], row[8], row[9]
    rest = body if isinstance(body, bytes) else b""
    return join(rest, media_at(connection, position)) if media else rest


def _complaint(connection: Connection, thread: int, row: Sequence[Any], message: Message | None) -> str | None:
    position, seq, id_key, invocation_number, correlation_number, _, _, digest, media, _, checksum = row
    if message is not None:
        is_found = _is_found(connection, thread, seq, id_key, message.id)
        is_found = is_found and _is_number_of(invocation_number, message.invocation_id)
        if not is_found or not _is_number_of(correlation_number, message.correlation_id):
            return "its index keys are wrong"
    used = connection.rows(_USED, (position,)) if media else []
    if len(used) != (media or 0) or any(sha256(text).digest() != medium for medium, text in used):
        return "a medium in it is not what it was"
    return None if checksum == message_checksum(position, digest) else "its place in the order of commits is not what it was"


def _is_number_of(number: int | None, name: str | None) -> bool:
    return number == (None if name is None else number_of(name))


def _is_found(connection: Connection, thread: int, seq: int, id_key: int, id: str) -> bool:
    """Whether a lookup of an id finds its row: by its key, or by the next one if earlier rows have that key."""
    taken = "SELECT 1 FROM messages WHERE thread = ? AND id_key = ? AND seq < ?"
    for salt in count():
        key = key_of(id, salt)
        if key == id_key or not connection.value(taken, (thread, key, seq)):
            return key == id_key
    raise AssertionError  # pragma: no cover (the count never ends)


def is_there(connection: Connection, subject: Subject) -> bool:
    """Whether a thread has not been deleted since its check began."""
    return bool(connection.value("SELECT 1 FROM threads WHERE key = ?", (subject.thread.key,)))


def _snapshot_damage(connection: Connection, thread: Thread) -> Damage | None:
    rows = connection.rows("SELECT fold, seq, hash, state FROM snapshots WHERE thread = ?", (thread.key,))
    for fold, seq, digest, state in rows:
        link = link_at(connection, thread.key, seq)
        if link is None or snapshot_hash(link, fold, state) != digest:
            return Damage(thread.state.thread_id, seq, f"the snapshot of {fold!r} is not what it was")
    return None


def damages_of_file(connection: Connection) -> list[Damage]:
    """Return the damages outside of threads: rows that belong to no thread, rows after its end, and broken pages."""
    damages = [Damage(None, None, complaint) for complaint in _complaints_about_counters(connection)]
    damages += [Damage(None, None, complaint) for complaint in _complaints_about_strays(connection)]
    lost = connection.rows("SELECT DISTINCT thread FROM messages WHERE thread NOT IN (SELECT key FROM threads)")
    damages += [Damage(None, None, f"there are messages of a thread {key} that is not there") for (key,) in lost]
    sql = """
SELECT thread_id, min(messages.seq) FROM messages JOIN threads ON threads.key = messages.thread
WHERE messages.seq > threads.seq OR messages.seq <= threads.base_seq GROUP BY thread_id
"""
    damages += [Damage(name, seq, "there is a message outside the thread") for name, seq in connection.rows(sql)]
    altered = [name for name, row, checksum in _hosts(connection) if host_checksum(row) != checksum]
    damages += [Damage(None, None, f"the host {name!r} is not what it was") for name in altered]
    if connection.value("SELECT count(*) FROM limits") != connection.value("SELECT value FROM counters WHERE name = 'limits'"):
        damages.append(Damage(None, None, "limits were added or taken out"))
    rows = connection.rows("SELECT model, state, checksum FROM limits")
    altered = [str(row[0]) for row in rows if host_checksum(row[:-1]) != row[-1]]
    damages += [Damage(None, None, f"the limit of {name!r} is not what it was") for name in altered]
    if _has(connection, "terms"):
        damages += [Damage(None, None, complaint) for complaint in complaints_about_terms(connection)]
    damages += [Damage(None, None, complaint) for complaint in complaints_about_keys(connection)]
    damages += _damages_of_index(connection)
    complaints = connection.rows("PRAGMA integrity_check(10)")
    damages += [Damage(None, None, f"the file: {text}") for (text,) in complaints if text != "ok"]
    return damages


def _hosts(connection: Connection) -> Iterator[tuple[str, tuple[Any, ...], object]]:
    """Yield the name of each host, what its checksum covers, and the checksum."""
    sql = """
SELECT key, name, instance, build, kinds, lease, boot, ends, since, beaten_at, left_at, checksum FROM hosts
"""
    yield from ((str(row[1]), row[:-1], row[-1]) for row in connection.rows(sql))


def _complaints_about_counters(connection: Connection) -> Iterator[str]:
    """Yield faults in the counters and in the last assigned keys."""
    counters: dict[str, Any] = dict(connection.rows("SELECT name, value FROM counters"))
    given: dict[str, Any] = dict(connection.rows("SELECT name, seq FROM sqlite_sequence"))
    is_known = counters.keys() == set(COUNTERS) and all(isinstance(value, int) for value in counters.values())
    if not is_known or not is_digest(counters["redaction"]):
        yield "the counters are not what they were"
        return
    for table, sql in _COUNTS.items():
        count, last = connection.rows(sql)[0]
        if given.pop(table, 0) != count + counters[f"removed {table}"] or last > count + counters[f"removed {table}"]:
            yield f"rows of {table} were added or taken out, or the last number given out is not what it was"
    if given:
        yield "numbers are given out to tables that have none"
    if not 0 <= counters["searchable"] <= connection.value(_GIVEN):
        yield "a counter names messages that there never were"


def _complaints_about_strays(connection: Connection) -> Iterator[str]:
    for table, strays in _STRAYS.items():
        if _has(connection, table):
            yield from (complaint for sql, complaint in strays.items() if connection.value(sql))


def _has(connection: Connection, table: str) -> bool:
    return bool(connection.value("SELECT count(*) FROM sqlite_schema WHERE name = ?", (table,)))


def _damages_of_index(connection: Connection) -> list[Damage]:
    """Return whether the words, the messages or the collation of an index differ from the expected ones.

    It changes the connection, which must be discarded afterwards.
    """
    damages: list[Damage] = []
    for table, copy, what in (("search", _COPY, "the index of words"), ("terms", TERM_COPY, "an index of terms")):
        if not _has(connection, table):
            continue
        settings = dict(connection.rows(f"SELECT k, v FROM {table}_config"))  # noqa: S608 (a name of ours)
        if settings.keys() != {"version", "secure-delete"} or settings["secure-delete"] != 1:
            damages.append(Damage(None, None, f"the settings of {what} are not what they were"))
            continue
        connection.setting("query_only", False)
        connection.setting("temp_store", "FILE")
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        try:
            connection.run(copy)
        except apsw.CorruptError:
            damages.append(Damage(None, None, f"{what} does not have the words that it should"))
    return damages


# ---------------------------------------------------------------- settings and environment

_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p")
_LITTLE = 500 * 1024 * 1024
"""Bytes: with less, a long run may fill the disk."""
_MOUNTS = Path("/proc/mounts")


def diagnose(connection: Connection, writes_with: int) -> tuple[Diagnosis, ...]:
    """Examine a file. `writes_with` is the setting `synchronous` of the connection that writes."""
    return tuple(_diagnoses(connection, writes_with, Path(connection.filename)))


def _diagnoses(connection: Connection, writes_with: int, path: Path) -> Iterator[Diagnosis]:
    yield Diagnosis("SQLite", apsw.sqlite_lib_version())  # an affected version is refused when the file is opened
    name = _SYNCHRONOUS.get(writes_with, str(writes_with))
    yield Diagnosis("synchronous", name, None if writes_with >= 2 else "a power cut loses appends that were acknowledged")  # noqa: PLR2004
    mode = str(connection.setting("journal_mode"))
    yield Diagnosis("journal mode", mode, None if mode == "wal" else "open the ledger once with a program that may write it")
    kind = _file_system(path)
    is_remote = kind in _NETWORK
    yield Diagnosis(
        "file system", kind, "move the file to a local disk: locks do not work on a network drive" if is_remote else None
    )
    free = shutil.disk_usage(path.parent).free
    yield Diagnosis("free space", f"{free / 1e9:.1f} GB", "make space on the disk" if free < _LITTLE else None)
    rights = stat.S_IMODE(path.stat().st_mode)
    readers = ", other users can read it" if rights & 0o044 else ""
    danger = f"other users can change the file; chmod 600 {path}" if rights & 0o022 else None
    yield Diagnosis("permissions", f"{rights:04o}{readers}", danger)


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds a file; `unknown` if the operating system does not tell."""
    try:
        lines = [line.split() for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return "unknown"
    holding = [(line[1], line[2]) for line in lines if path.resolve().is_relative_to(line[1])]
    return max(holding, key=lambda each: len(each[0]), default=("", "unknown"))[1]
