"""Verifies what only a file has: its counters, its schema, its indexes of words and terms, and its pages.

`diagnose` checks the settings and the environment of the file: durability, disk space, and who may read it.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from antiphon.ledger._redaction import is_digest
from antiphon.ledger._sql.verify import strays
from antiphon.ledger._values import Damage, Diagnosis
from antiphon.ledger.sqlite._checksums import COUNTERS
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._schema import differences
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._terms import TERM_COPY, complaints_about_terms

_COUNTS = {
    "messages": "SELECT count(*), coalesce(max(position), 0) FROM messages",
    "threads": "SELECT count(*), coalesce(max(key), 0) FROM threads",
    "hosts": "SELECT count(*), coalesce(max(key), 0) FROM hosts",
}
"""The number of rows and the largest key of each table that never reuses a key."""

_LAST_POSITION = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"

_STRAYS = {
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


def damages_of_file(connection: Connection) -> list[Damage]:
    """Return the damages outside of threads: rows that belong to no thread, rows after its end, and broken pages."""
    damages = [Damage(None, None, complaint) for complaint in _complaints_about_counters(connection)]
    for table, statements in _STRAYS.items():
        if _has(connection, table):
            damages += [Damage(None, None, complaint) for sql, complaint in statements.items() if connection.value(sql)]
    damages += run(connection, strays())
    if _has(connection, "terms"):
        damages += [Damage(None, None, complaint) for complaint in complaints_about_terms(connection)]
    if connection.value("SELECT count(*) FROM limits") != connection.value("SELECT value FROM counters WHERE name = 'limits'"):
        damages.append(Damage(None, None, "limits were added or taken out"))
    damages += _damages_of_index(connection)
    complaints = connection.rows("PRAGMA integrity_check(10)")
    damages += [Damage(None, None, f"the file: {text}") for (text,) in complaints if text != "ok"]
    return damages


def _complaints_about_counters(connection: Connection) -> Iterator[str]:
    """Yield faults in the counters and in the last assigned keys."""
    counters: dict[str, Any] = dict(connection.rows("SELECT name, value FROM counters"))
    sequences: dict[str, Any] = dict(connection.rows("SELECT name, seq FROM sqlite_sequence"))
    is_known = counters.keys() == set(COUNTERS) and all(isinstance(value, int) for value in counters.values())
    if not is_known or not is_digest(counters["redaction"]):
        yield "the counters are not what they were"
        return
    for table, sql in _COUNTS.items():
        count, last = connection.rows(sql)[0]
        if sequences.pop(table, 0) != count + counters[f"removed {table}"] or last > count + counters[f"removed {table}"]:
            yield f"rows of {table} were added or taken out, or the last number given out is not what it was"
    if sequences:
        yield "numbers are given out to tables that have none"
    if not 0 <= counters["searchable"] <= connection.value(_LAST_POSITION):
        yield "a counter names messages that there never were"


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


def diagnose(connection: Connection, writes_with: int) -> Iterator[Diagnosis]:
    """Examine a file. `writes_with` is the setting `synchronous` of the connection that writes."""
    path = Path(connection.filename)
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
    mounts = [(line[1], line[2]) for line in lines if path.resolve().is_relative_to(line[1])]
    return max(mounts, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
