"""Large media: taken out of a message's bytes, kept once by content, and put back where they were.

What is taken out is the inside of a JSON text that begins with `data:`, wherever it stands, by its place in the bytes. The
bytes never say that something is missing: the table of uses does. So nobody can forge a reference in a message, and what
remains is still JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from antiphon.ledger.sqlite._sql import Connection

__all__ = ["MEDIA_TABLES", "Hole", "forget_media", "join", "keep_media", "media_at", "split"]

_LARGE = 8192
"""Bytes from which on a text is kept outside the row: as much as a page."""
MEDIA_TABLES = """
CREATE TABLE IF NOT EXISTS media (key INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, text BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS media_uses (
    position INTEGER NOT NULL, place INTEGER NOT NULL, media INTEGER NOT NULL, PRIMARY KEY (position, place)
) WITHOUT ROWID;
"""
"""Made when the first medium comes; a row that has none is never looked up in them."""
_DATA = re.compile(rb'"(data:[^"\\]{%d,})"' % _LARGE, re.IGNORECASE)


class Hole(NamedTuple):
    """Where something was taken out, in the bytes that remain, and what."""

    place: int
    text: bytes


def split(body: bytes) -> tuple[bytes, list[Hole]]:
    """Return the bytes of a message without its large media, and these."""
    if len(body) < _LARGE:
        return body, []
    pieces: list[bytes] = []
    holes: list[Hole] = []
    end = taken = 0
    for match in _DATA.finditer(body):
        start, stop = match.span(1)
        pieces.append(body[end:start])
        holes.append(Hole(start - taken, body[start:stop]))
        taken += stop - start
        end = stop
    return (b"".join((*pieces, body[end:])), holes) if holes else (body, [])


def join(rest: bytes, holes: Iterable[Hole]) -> bytes:
    """Return what `split` was given."""
    pieces: list[bytes] = []
    end = 0
    for place, text in holes:
        pieces += (rest[end:place], text)
        end = place
    return b"".join((*pieces, rest[end:]))


def keep_media(connection: Connection, position: int, holes: Iterable[Hole]) -> None:
    """Keep what was taken out of a row."""
    connection.run(MEDIA_TABLES)
    for place, text in holes:
        digest = sha256(text).digest()
        connection.run("INSERT INTO media (hash, text) VALUES (?, ?) ON CONFLICT DO NOTHING", (digest, text))
        key = connection.value("SELECT key FROM media WHERE hash = ?", (digest,))
        connection.run("INSERT INTO media_uses VALUES (?, ?, ?)", (position, place, key))


def forget_media(connection: Connection, positions: Iterable[int]) -> None:
    """Forget what was taken out of rows, as far as no other row uses it."""
    connection.run(MEDIA_TABLES)
    for position in positions:
        connection.run("DELETE FROM media_uses WHERE position = ?", (position,))
    connection.run("DELETE FROM media WHERE key NOT IN (SELECT media FROM media_uses)")


def media_at(connection: Connection, position: int) -> list[Hole]:
    """Return what was taken out of a row, as far as it is there."""
    found = connection.rows(
        "SELECT place, text FROM media_uses JOIN media ON media.key = media_uses.media WHERE position = ? ORDER BY place",
        (position,),
    )
    return [Hole(place, text) for place, text in found if isinstance(place, int) and isinstance(text, bytes)]
