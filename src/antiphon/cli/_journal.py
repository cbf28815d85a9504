"""Journals, which `antiphon export --journal` writes and `antiphon import --journal` restores: their format."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from antiphon.cli._input import fail_to_read
from antiphon.cli._ledger import ledger_in_use, missing_ledger, with_ledger
from antiphon.cli._output import print_json
from antiphon.cli._screen import fail, open_console, print_table, wheel
from antiphon.cli._verify import read_heads
from antiphon.messages._json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Record, ThreadJournal, ThreadSummary, WrappedKey


def restore(file: Path, heads: Path | None, ledger: str | None, *, for_programs: bool) -> None:
    """Restore threads from a journal, with their times and hashes: all of them or none."""
    journal = list(journals(file))
    proofs = () if heads is None else read_heads(heads)
    with wheel("restoring"):
        if missing_ledger(ledger_in_use(ledger)) is not None:
            from antiphon.ledger.memory import MemoryLedger  # noqa: PLC0415 (only where it is used)

            asyncio.run(_restored(MemoryLedger(), journal=journal, heads=proofs))  # a refused journal creates no ledger
        threads = with_ledger(ledger, partial(_restored, journal=journal, heads=proofs), create=True)
    rows = [
        {"thread_id": thread.thread_id, "messages": thread.messages, "open_calls": thread.open_calls} for thread in threads
    ]
    if for_programs:
        print_json(rows)
    else:
        print_table(open_console(), ("thread", "messages", "open calls"), [tuple(map(str, row.values())) for row in rows])


async def _restored(ledger: Ledger, *, journal: list[ThreadJournal], heads: tuple[Head, ...]) -> tuple[ThreadSummary, ...]:
    try:
        return await ledger.restore(journal, heads)
    except ValueError as exc:
        fail(str(exc))


# ---------------------------------------------------------------- the file


async def journal_lines(ledger: Ledger, thread: ThreadSummary) -> AsyncIterator[tuple[bytes, Record | None]]:
    """Yield a thread as lines: a header, then its own rows, each with its record."""
    header: dict[str, Any] = {"antiphon_journal": 1, "thread_id": thread.thread_id}
    if thread.forked_from is not None:
        header |= {"forked_from": thread.forked_from, "forked_at": thread.forked_at}
    key = await ledger.keys.of(thread.thread_id)
    if key is not None and key.wrapped is not None:
        header["key"] = {"master": key.master, "wrapped": b64encode(key.wrapped).decode()}
    yield write(header) + b"\n", None
    async for record in ledger.read(thread.thread_id, after=thread.forked_at or 0):
        row = {
            "seq": record.seq,
            "recorded_at": record.recorded_at.isoformat(),
            "hash": record.hash,
        }
        # The rows of an encrypted thread stay encrypted.
        row |= {"body": record.body.decode()} if key is None else {"sealed": b64encode(record.stored).decode()}
        yield write(row) + b"\n", record


def journals(path: Path) -> Iterator[ThreadJournal]:
    """Yield the threads of a journal."""
    from antiphon.ledger import ThreadJournal  # noqa: PLC0415 (only where it is used)

    header: dict[str, Any] | None = None
    records: list[Record] = []
    for number, value in _lines(path):
        if (begins := _header(path, number, value)) is not None:
            if header is not None:
                yield ThreadJournal(records=tuple(records), **header)
            header, records = begins, []
        elif header is None:
            fail(f"{path}: line {number}: not the header of a journal; `antiphon export --journal` writes journals")
        else:
            records.append(_record(path, number, value))
    if header is None:
        fail(f"{path}: the file is empty; `antiphon export --journal` writes journals", code=2)
    yield ThreadJournal(records=tuple(records), **header)


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, orjson.loads(line)
    except OSError as exc:
        fail_to_read(str(path), exc)
    except ValueError:
        fail(f"{path}: a line is not JSON; `antiphon export --journal` writes journals", code=2)


def _header(path: Path, number: int, value: Any) -> dict[str, Any] | None:
    """Return the header of a thread; None if the line is a row."""
    match value:
        case {"antiphon_journal": 1, "thread_id": str(name), "forked_from": str(origin), "forked_at": int(at)}:
            return {"thread_id": name, "forked_from": origin, "forked_at": at, "key": _key(path, number, value)}
        case {"antiphon_journal": 1, "thread_id": str(name)} if "forked_from" not in value:
            return {"thread_id": name, "key": _key(path, number, value)}
        case {"antiphon_journal": _}:
            return fail(f"{path}: line {number}: not the header of a thread, or written by a later antiphon")
        case _:
            return None


def _key(path: Path, number: int, header: dict[str, Any]) -> WrappedKey | None:
    from antiphon.ledger import WrappedKey  # noqa: PLC0415 (only where it is used)

    match header.get("key"):
        case None:
            return None
        case {"master": str(master), "wrapped": str(wrapped)}:
            return WrappedKey(master, _bytes(path, number, wrapped))
        case _:
            return fail(f"{path}: line {number}: not the key of a thread")


def _bytes(path: Path, number: int, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return fail(f"{path}: line {number}: not base64")


def _record(path: Path, number: int, value: Any) -> Record:
    from antiphon.ledger import Record  # noqa: PLC0415 (only where it is used)

    match value:
        case {"seq": int(seq), "recorded_at": str(time), "hash": str(link), "body": str(body)}:
            return Record(seq, body.encode(), link, _time(path, number, time))
        case {"seq": int(seq), "recorded_at": str(time), "hash": str(link), "sealed": str(sealed)}:
            return Record(seq, b"", link, _time(path, number, time), stored=_bytes(path, number, sealed))
        case _:
            return fail(f"{path}: line {number}: not a row of a journal")


def _time(path: Path, number: int, text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        fail(f"{path}: line {number}: {text!r} is not a time with a time zone")
    return time
