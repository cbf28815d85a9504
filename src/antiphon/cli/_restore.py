"""`antiphon restore` and `antiphon copy`: threads from a journal, whose format is defined here, or from another ledger."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from antiphon import service
from antiphon.cli._input import fail_to_read
from antiphon.cli._ledger import (
    JsonOption,
    LedgerOption,
    complaints,
    ledger_in_use,
    missing_ledger,
    shown_ledger,
    with_ledger,
    with_ledgers,
)
from antiphon.cli._live import typed
from antiphon.cli._output import print_json
from antiphon.cli._screen import bar, fail, note, open_console, print_table, wheel
from antiphon.cli._verify import read_heads
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Record, ThreadJournal, ThreadSummary, WrappedKey


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A journal that `antiphon export --journal` wrote.")],
    *,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="Heads that were stored elsewhere, to prove the rows."),
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Restore threads from a journal, with their times and hashes. Restores all of them or none."""
    found = list(journals(file))
    known = () if heads is None else read_heads(heads)
    with wheel("restoring"):
        if missing_ledger(ledger_in_use(ledger)) is not None:
            _try_in_memory(found, known)  # so that a refused journal creates no ledger
        made = with_ledger(ledger, partial(_restored, found=found, heads=known), create=True)
    rows = [{"thread_id": each.thread_id, "messages": each.messages, "open_calls": each.open_calls} for each in made]
    if for_programs:
        print_json(rows)
    else:
        print_table(open_console(), ("thread", "messages", "open calls"), [tuple(map(str, row.values())) for row in rows])


async def _restored(ledger: Ledger, *, found: list[ThreadJournal], heads: tuple[Head, ...]) -> tuple[ThreadSummary, ...]:
    try:
        return await ledger.restore(found, heads)
    except ValueError as exc:
        fail(str(exc))


def _try_in_memory(found: list[ThreadJournal], heads: tuple[Head, ...]) -> None:
    import asyncio  # noqa: PLC0415 (only where it is used)

    from antiphon.ledger.memory import MemoryLedger  # noqa: PLC0415

    with complaints():
        asyncio.run(_restored(MemoryLedger(), found=found, heads=heads))


# ---------------------------------------------------------------- from another ledger


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The ledger that has the threads: a path or a URL.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The ledger that receives them; a missing file is created.")],
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="THREAD", help="The ids of threads; default: all except system threads.")
    ] = None,
    *,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="Signed heads of FROM, to prove the rows."),
    ] = None,
    signer: Annotated[
        Path | None,
        typer.Option("--signer", metavar="PUB", help="With --heads: the public key file that must verify their signature."),
    ] = None,
    trust_source: Annotated[
        bool, typer.Option("--trust-source", help="Copy journal rows without signed heads: you trust the writers of FROM.")
    ] = False,
    for_programs: JsonOption = False,
) -> None:
    """Copy threads with their times, hashes, forks and media. FROM marks them as moved; they continue only in TO."""
    if (heads is None) != (signer is None):
        fail("--heads and --signer go together: heads prove rows only if you trust the key that signed them", code=2)
    known = () if heads is None else read_heads(heads, signer)
    names = threads or []
    if (missing := missing_ledger(ledger_in_use(target))) is not None:
        to = f"sqlite:///{missing.absolute()}"
        with_ledger(source, partial(_planned, to=to, names=names, heads=known, trust_source=trust_source))
    found = with_ledgers(source, target, partial(_copied, names=names, heads=known, trust_source=trust_source))
    rows = [{"thread_id": each.thread_id, "messages": each.messages, "was_there": each.was_there} for each in found]
    if for_programs:
        print_json(rows)
        return
    table = [(each.thread_id, str(each.messages), "was there" if each.was_there else "copied") for each in found]
    print_table(open_console(), ("thread", "messages", "result"), table)
    if not found:
        note(f"{shown_ledger(source)} has no threads to copy; `{typed(source, 'threads', '--all')}` lists them")


async def _copied(
    source: Ledger, target: Ledger, *, names: list[str], heads: tuple[Head, ...], trust_source: bool
) -> tuple[service.CopiedThread, ...]:
    chosen = [await service.resolve_thread(source, name) for name in names]
    with bar("copying") as progress:
        return await service.copy_threads(source, target, chosen, heads=heads, trust_source=trust_source, progress=progress)


async def _planned(source: Ledger, *, to: str, names: list[str], heads: tuple[Head, ...], trust_source: bool) -> None:
    """Check everything against an empty ledger, so that a refused copy creates none."""
    from antiphon.ledger.memory import MemoryLedger  # noqa: PLC0415 (only where it is used)

    chosen = [await service.resolve_thread(source, name) for name in names]
    await service.plan_copy(source, MemoryLedger(), chosen, heads=heads, trust_source=trust_source, to=to)


# ---------------------------------------------------------------- the file


async def journal_lines(ledger: Ledger, thread: ThreadSummary) -> AsyncIterator[tuple[bytes, Record | None]]:
    """Yield a thread as lines: a header, then its own rows, each with its record."""
    header: dict[str, Any] = {"antiphon_journal": 1, "thread_id": thread.thread_id}
    if thread.forked_from is not None:
        header |= {"forked_from": thread.forked_from, "forked_at": thread.forked_at}
    key = await ledger.wrapped_key(thread.thread_id)
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
