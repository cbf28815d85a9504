"""What is in a ledger's file after a fault: read without the ledger's threads, thousands of times."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tools.soak.witness import Evidence, Row, WitnessReport, check_witness

from antiphon.ledger import Record
from antiphon.ledger._sql import verify
from antiphon.ledger._sql.rows import find_thread, page_of_thread
from antiphon.ledger._stored import PageRequest, Subject
from antiphon.ledger.sqlite import _verify
from antiphon.ledger.sqlite._connection import Connection, LedgerFile, connect
from antiphon.ledger.sqlite._driver import run
from antiphon.testing import Event
from antiphon.testing._events import content_of


def restored(folder: Path, image: dict[str, bytes]) -> Path:
    """Write what was on a disk into a folder."""
    for old in folder.iterdir():
        old.unlink()
    for name, content in image.items():
        if not name.endswith("-shm"):
            (folder / name).write_bytes(content)
    return folder / "ledger.db"


def evidence_of(path: Path) -> Evidence:
    """Read and verify everything; what is damaged raises."""
    connection = connect(LedgerFile(str(path), 5), create=True)
    try:
        names, _ = run(connection, verify.names())
        for name in names:
            _examine(connection, name)
        assert _verify.damages_of_file(connection) == []
        return Evidence([row for name in names for row in _rows(connection, name)])
    finally:
        connection.close()


def _examine(connection: Connection, name: str) -> None:
    subject = run(connection, verify.begin(name))
    assert isinstance(subject, Subject), subject
    after: object = subject.thread.base_seq
    while isinstance(after, int):
        after = run(connection, verify.look(subject, after, {}, None))
    assert after is None, after


def _rows(connection: Connection, name: str) -> list[Row]:
    rows: list[Row] = []
    thread = run(connection, find_thread(name))
    while page := run(connection, page_of_thread(thread, PageRequest(None, len(rows) + 1))):
        rows += [_row(name, each.record) for each in page]
    return rows


@lru_cache(maxsize=10_000)
def _row(name: str, record: Record) -> Row:
    """Return a record as evidence; after most faults it is the same as after the one before."""
    message = record.message
    return Row(
        thread=name,
        seq=record.seq,
        id=message.id,
        content=content_of(message),
        kind=message.kind,
        lane=message.lane,
        invocation=message.invocation_id or "",
        recorded_at=round(record.recorded_at.timestamp() * 1_000_000),
        body=record.body,
        hash=record.hash,
    )


RULES = ("R1", "R2", "R3", "R4", "R5", "R8", "R12")
"""Those that are about the ledger alone: the others need a runtime that goes on after the fault."""


def judged(events: Sequence[Event], evidence: Evidence) -> WitnessReport:
    """Check what was seen against what is there, by the rules that apply."""
    report = check_witness(events, evidence, least_acknowledged=0)
    return WitnessReport(report.counts, tuple(breach for breach in report.breaches if breach.rule in RULES))
