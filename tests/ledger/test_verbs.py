"""The verbs of a ledger without a database: they get recorded rows, and their requests are looked at (ADR 0041)."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from antiphon import ledger as ledger_package
from antiphon.errors import FencedError, HostError, LedgerCorruptError, OwnedError
from antiphon.ledger import Host
from antiphon.ledger._admission import new_state
from antiphon.ledger._hosts import HostRow
from antiphon.ledger._ownership import Release, claimed
from antiphon.ledger._records import genesis, link, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._sql import appends, branches, hosts, keys, limits, lists, rows, threads, verify
from antiphon.ledger._sql import statements as statements_module
from antiphon.ledger._sql.statements import (
    ChangeThreads,
    Lock,
    PutThread,
    Read,
    ReadClock,
    RemoveMessages,
    Request,
    Spelled,
    Sql,
    Verb,
    Write,
    WriteMany,
    spelled,
)
from antiphon.ledger._stored import PageRequest, Thread, checksum_of
from antiphon.ledger.sqlite._connection import LedgerFile, in_memory

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MICROS = to_micros(NOW)
HOST, OTHER = Host("here", "1", ("agent",), instance="here/1"), Host("there", "1", ("agent",), instance="there/1")


class Clock:
    boot = "b"

    def now(self) -> float:
        return 100.0

    def has_ended(self, instance: str) -> bool:
        return False


AT = Clock()
"""What a database answers that is asked for the clock."""


def replayed(verb: Verb[Any], *answers: Any) -> tuple[Any, list[Request]]:
    """Run a verb with recorded answers; return its result or its error, and what it asked for."""
    asked: list[Request] = []
    left = iter(answers)
    try:
        asked.append(verb.send(None))
        while True:
            asked.append(verb.send(next(left)))
    except StopIteration as end:
        return end.value, asked
    except Exception as exc:
        if isinstance(exc, RuntimeError) and isinstance(exc.__cause__, StopIteration):
            raise AssertionError(f"no answer is left for {asked[-1]!r}") from exc
        return exc, asked


def writes(asked: list[Request]) -> list[Request]:
    return [each for each in asked if isinstance(each, (Write, WriteMany, PutThread, ChangeThreads, RemoveMessages))]


def host_row(key: int, host: Host, ends: float) -> tuple[Any, ...]:
    columns = (key, *HostRow(key, host, "b", ends, MICROS, MICROS, None).columns)
    return (*columns, checksum_of(columns))


def thread_row(owner: int | None = None) -> tuple[Any, ...]:
    state = new_state("t", MICROS)
    return (7, *(state if owner is None else claimed(state, owner)), 0, None, 0)


def claim(by: Host | None) -> Verb[hosts.Claim]:
    return hosts.claim_thread(hosts.ClaimRequest("t", by, None, NOW, LedgerRedaction.of("off")))


def test_a_claim_of_a_free_thread_writes_the_next_epoch_and_its_owner() -> None:
    result, asked = replayed(claim(HOST), [thread_row()], AT, [host_row(3, HOST, 110.0)], [(3,)], None)
    assert (result.thread.state.epoch, result.thread.state.owner, result.taken_from) == (1, 3, None)
    assert writes(asked) == [ChangeThreads((result.thread,))]


def test_a_claim_reads_the_clock_after_it_has_locked() -> None:
    """With a time from before the wait, a lease that was renewed during the wait would look like an old one (G16)."""
    _, asked = replayed(claim(HOST), [], None, [], AT, [host_row(3, HOST, 110.0)], [(3,)], 7)
    kinds = [type(each) for each in asked]
    assert kinds.index(Lock) < kinds.index(ReadClock) < kinds.index(PutThread)
    locked = [each.sql for each in asked if isinstance(each, Read) and "FOR UPDATE" in str(each.sql)]
    assert len(locked) == 2


def test_the_time_is_read_from_the_database_unless_the_ledger_has_a_clock() -> None:
    """Machines share the clock of a server; a file has that of the machine, and a test its own."""
    moment, asked = replayed(statements_module.moment(), None, [(12.5,)])
    assert (moment.boot, moment.now()) == ("database", 12.5)
    assert [type(each) for each in asked] == [ReadClock, Read]
    moment, asked = replayed(statements_module.moment(), AT)
    assert (moment.boot, moment.now()) == ("b", 100.0)
    assert [type(each) for each in asked] == [ReadClock]


@pytest.mark.parametrize("ends", [99.0, 100.0])
def test_a_claim_by_a_host_whose_lease_is_over_is_refused_before_anything_is_written(ends: float) -> None:
    refused, asked = replayed(claim(HOST), [thread_row()], AT, [host_row(3, HOST, ends)])
    assert isinstance(refused, HostError)
    assert refused.code == "HOST_EXPIRED"
    assert writes(asked) == []


def test_a_thread_of_a_living_host_is_not_given_to_another() -> None:
    """G8: and that of a dead one is, with the name of the host that had it."""
    mine, row = host_row(3, HOST, 110.0), thread_row(owner=4)
    refused, asked = replayed(claim(HOST), [row], AT, [mine], [(3,)], [host_row(4, OTHER, 110.0)])
    assert isinstance(refused, OwnedError)
    assert writes(asked) == []
    result, _ = replayed(claim(HOST), [row], AT, [mine], [(3,)], [host_row(4, OTHER, 90.0)], None)
    assert (result.thread.state.epoch, result.taken_from) == (2, "there")


def test_a_release_by_an_earlier_owner_writes_nothing() -> None:
    refused, asked = replayed(hosts.release("t", Release(1, MICROS)), [thread_row()])
    assert isinstance(refused, FencedError)
    assert writes(asked) == []


def test_a_host_whose_row_was_altered_is_not_believed() -> None:
    row = (*host_row(3, HOST, 110.0)[:7], 9e9, *host_row(3, HOST, 110.0)[8:])
    refused, _ = replayed(claim(HOST), [thread_row()], AT, [row])
    assert isinstance(refused, LedgerCorruptError)


def test_a_thread_with_branches_is_not_deleted_by_accident() -> None:
    owned = (*thread_row(), None)
    family = [(7, "t"), (8, "b")]
    refused, asked = replayed(branches.delete("t", with_branches=False), [owned], family, None, family)
    assert isinstance(refused, ValueError)
    assert writes(asked) == []
    locked = [sorted(each.names) for each in asked if isinstance(each, Lock)]
    assert locked == [["b", "t"]]


def test_a_page_ends_before_the_first_altered_row() -> None:
    """G20: what precedes it is returned, and the next page says what is wrong."""
    first = link(genesis("t"), MICROS, b"1")
    good = (7, 1, 0, 0, 1, MICROS, first, None, b"1", None)
    bad = (7, 2, 0, 0, 2, MICROS, b"x" * 32, None, b"2", first)
    thread = Thread(7, new_state("t", MICROS)._replace(seq=2), 0, None, 0)
    line = [(7, None, 0, "t")]
    page, _ = replayed(rows.page_of_thread(thread, PageRequest(None, 1)), [good, bad], line)
    assert [each.record.seq for each in page] == [1]
    refused, _ = replayed(rows.page_of_thread(thread, PageRequest(None, 2)), [bad], [("t",)])
    assert isinstance(refused, LedgerCorruptError)


# ---------------------------------------------------------------- both spellings

_MODULES = (appends, branches, hosts, keys, limits, lists, rows, threads, verify)
_PIECES = re.compile(
    "COLUMNS|_?THREAD|OWNED_THREAD|MESSAGES|_RANGE|BELOW_HORIZON|_FITS|_ABANDONED|_SINCE_PLACE|_OF_THREAD|_COUNTS"
)
"""Pieces of statements, and templates."""


def statements() -> Iterator[tuple[str, Sql]]:
    for module in _MODULES:
        for name, value in vars(module).items():
            if _PIECES.fullmatch(name) or (name == "_CALLS" and module is lists):
                continue
            for each in value if name == "_STRAYS" else value.values() if name == "_BY_NUMBER" else [value]:
                is_statement = isinstance(each, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", each)
                if isinstance(each, Spelled) or is_statement:
                    yield f"{module.__name__}.{name}", each


def test_every_statement_has_a_text_for_sqlite() -> None:
    """It knows the tables and columns, and nothing of PostgreSQL is left."""
    connection = in_memory(LedgerFile(":memory:", 0.0))
    found = dict(statements())
    assert len(found) > 60
    for name, sql in found.items():
        text = spelled(sql)
        assert not re.search(r"\$|::|\btenant\b|antiphon\.|\bxid\b|FOR (UPDATE|SHARE)|ANY\(", text), (name, text)
        count = max([int(each) for each in re.findall(r"\?(\d+)", text)], default=0)
        try:
            connection.rows(f"EXPLAIN {text}", (None,) * count)
        except apsw.Error as exc:
            raise AssertionError(f"{name}: {exc}: {text}") from exc
    connection.close()


# ---------------------------------------------------------------- nothing twice

ALLOWED = {
    "what `SqlLedger` leaves to a driver, because threads of a file and tasks of a server run it": """
        append change change_thread find_terms forgotten look read renew since wait_for_commit
    """,
    "the requests of a verb that a file answers with checksums, positions and FTS5": """
        change_threads put_messages put_thread remove_messages write
    """,
    "a file has a path, pages and a disk; a server has a URL, a pool and settings": """
        attempt backup check_format close connected diagnose open prepare translated url
    """,
    "the tuned path of appends: prepared statements in one thread, or one statement for a group": "changed forget quoted",
    "full text: the statements of FTS5 in a file, and of a tsvector or a GIN index on a server": """
        drop drop_vectors find find_vectors find_words index_words matches sought space_of store_vectors without_vectors
    """,
}
"""The names of functions that both drivers may have, by the reason."""


def test_no_verb_is_written_for_both_databases() -> None:
    """A name that comes back in both drivers is a verb that belongs in `ledger/_sql`, or it is listed with its reason."""
    folder = Path(ledger_package.__file__).parent
    names: dict[str, set[str]] = defaultdict(set)
    for driver in ("sqlite", "postgres"):
        for path in (folder / driver).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
                    names[node.name.strip("_")].add(driver)
    twice = {name for name, drivers in names.items() if len(drivers) > 1}
    allowed = {name for names_of_reason in ALLOWED.values() for name in names_of_reason.split()}
    assert twice - allowed == set(), "move it to ledger/_sql"
    assert allowed - twice == set(), "it is not there twice: take it off the list"
