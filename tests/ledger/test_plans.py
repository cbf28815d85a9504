"""How SQLite finds threads, open calls and due threads: by an index, in the order that is asked for.

A plan says so without a clock: `SCAN threads` alone reads every thread, and a temporary B-tree sorts what was found.
"""

from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from tests.ledger.histories import called, said, with_ledger

from antiphon.ledger import Host, Ledger, ThreadFilter
from antiphon.ledger._sql import hosts, lists
from antiphon.ledger._sql.statements import Sql, spelled
from antiphon.ledger._sql.threads import Plan, threads_statement
from antiphon.ledger.sqlite import _queries
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._ledger import SqliteLedger

ORDERS: tuple[Any, ...] = ("-updated_at", "updated_at", "-created_at", "created_at")
HOST = Host("h", "1", ("agent",), 600.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "ledger.db"

    async def work(ledger: Ledger) -> None:
        await ledger.beat(HOST)
        for number in range(20):
            await ledger.append(f"t{number}", [said(), called("APPROVE")], status="working")
            await ledger.post(f"p{number}", said(to=("agent/1",)))
            await ledger.claim(f"o{number}", by=HOST)
        await cast("SqliteLedger", ledger)._change(_queries.add_indexes)

    with_ledger(path, work)
    return path


def list_plan(path: Path, filter: ThreadFilter, order: Any, page: str | None, plan: Plan) -> list[str]:
    sql, values = threads_statement(filter, order, page, 50, plan)
    return plan_of(path, spelled(sql), (None, *values) if values else ())


def few(path: Path, filter: ThreadFilter) -> str | None:
    connection = connect(LedgerFile(str(path), 5.0))
    try:
        return run(connection, _queries.field_with_few(filter))
    finally:
        connection.close()


def plan_of(path: Path, sql: str, values: Any) -> list[str]:
    connection = connect(LedgerFile(str(path), 5.0))
    try:
        return [row[3] for row in connection.rows(f"EXPLAIN QUERY PLAN {sql}", values)]
    finally:
        connection.close()


def is_by_index(plan: list[str]) -> bool:
    """Whether no table is read as a whole. An index may be, in its order, for then the page's end stops it."""
    return all("USING" in step for step in plan if step.startswith("SCAN"))


def sorts(plan: list[str]) -> bool:
    return any("TEMP B-TREE" in step for step in plan)


@pytest.mark.parametrize("page", [None, "1000.5"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_page_of_threads_is_read_in_the_order_of_an_index(path: Path, order: Any, page: str | None) -> None:
    index = f"threads_by_{'update' if 'updated' in order else 'creation'}"
    for wanted in (ThreadFilter(), ThreadFilter(status="x"), ThreadFilter(min_tokens=5), ThreadFilter(open_calls=True)):
        plan = list_plan(path, wanted, order, page, _queries.plan_by(None, order))
        assert is_by_index(plan), plan
        assert not sorts(plan), plan
        assert any(index in step for step in plan), plan
        assert page is None or any(step.startswith("SEARCH t ") for step in plan), plan


@pytest.mark.parametrize("order", ORDERS)
def test_threads_of_a_host_and_few_with_open_calls_are_looked_up(path: Path, order: Any) -> None:
    """Only what was found is sorted."""
    plan = list_plan(path, ThreadFilter(owner="h"), order, None, _queries.plan_by("owner", order))
    assert any(step.startswith("SEARCH t USING INDEX threads_owned") for step in plan), plan
    plan = list_plan(path, ThreadFilter(open_calls=True), order, None, Plan("NOT INDEXED"))
    assert is_by_index(plan), plan
    assert any(step.startswith("SEARCH t USING INTEGER PRIMARY KEY") for step in plan), plan


NOW = datetime(2026, 1, 2, tzinfo=UTC)
FILTERS: dict[str, Any] = {
    "status": "x",
    "pattern": "x",
    "system": True,
    "kind": "x",
    "forked_from": "x",
    "unfit": True,
    "due_before": NOW,
    "owner": "x",
    "min_tokens": 7,
    "min_cost": Decimal(7),
    "created_after": NOW,
    "created_before": NOW,
    "updated_after": NOW,
    "updated_before": NOW,
}


@pytest.mark.parametrize("name", FILTERS)
def test_few_threads_that_fit_a_filter_are_looked_up(path: Path, name: str) -> None:
    """Each field of a filter has an index, but for `open_calls`, which has a table."""
    assert FILTERS.keys() | {"open_calls"} == {each.name for each in fields(ThreadFilter)}
    wanted = ThreadFilter(**{name: FILTERS[name]})
    for order in ORDERS:
        plan = list_plan(path, wanted, order, None, _queries.plan_by(name, order))
        found = f"t USING INDEX {_queries._INDEXES[name]}"
        # The index of due threads has only those that wait: it is read as a whole, for all kinds.
        assert any(
            step.startswith((f"SEARCH {found} (", f"SCAN {found}" if name == "due_before" else "-")) for step in plan
        ), plan
    assert few(path, wanted) == name


def test_threads_that_many_fit_are_read_in_their_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field that few fit counts, wherever it stands; a least value of 0 fits all."""
    monkeypatch.setattr(_queries, "_FEW_THREADS", 10)
    assert few(path, ThreadFilter(status="working")) is None
    assert few(path, ThreadFilter(status="working", min_tokens=1)) == "min_tokens"
    for wanted in (ThreadFilter(min_tokens=0), ThreadFilter(min_cost=Decimal(0)), ThreadFilter(system=False, unfit=False)):
        assert few(path, wanted) is None


def test_indexes_for_filters_are_made_when_there_are_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files stay small. A list is the same with and without them, and the schema is the ledger's."""
    path = tmp_path / "ledger.db"
    rare = ThreadFilter(status="rare")

    def indexes() -> int:
        connection = connect(LedgerFile(str(path), 5.0))
        try:
            return int(
                connection.value("SELECT count(*) FROM sqlite_schema WHERE name IN ('threads_by_status', 'threads_unfit')")
            )
        finally:
            connection.close()

    async def work(ledger: Ledger) -> None:
        for number in range(6):
            await ledger.append(f"t{number}", [said()], status="rare" if number == 3 else "usual")
        before = await ledger.threads(rare)
        assert indexes() == 0
        monkeypatch.setattr(_queries, "_FEW_THREADS", 5)
        await ledger.threads(ThreadFilter(system=False, updated_after=NOW, open_calls=True, owner="h"))
        assert indexes() == 0
        assert await ledger.threads(rare) == before
        assert indexes() == 2
        await ledger.append("t4", [said()], status="rare")
        assert [each.thread_id for each in (await ledger.threads(rare)).threads] == ["t4", "t3"]
        assert (await ledger.verify()).is_whole

    with_ledger(path, work)
    with_ledger(path, lambda ledger: ledger.verify())


@pytest.mark.parametrize("sql", [lists.CALLS, lists.CALLS_BACK])
def test_open_calls_of_an_option_are_looked_up_in_order(path: Path, sql: Sql) -> None:
    plan = plan_of(path, spelled(sql), (None, 1, 0, 0, 5, 50))
    assert all(step.startswith("SEARCH") for step in plan), plan
    assert any("open_calls_by_option" in step for step in plan), plan


def test_due_threads_and_woken_ones_are_looked_up(path: Path) -> None:
    """Of each kind only as many due threads as are asked for, so the sort has few."""
    asked = (None, 1, "1", '["agent"]', 0)
    due = plan_of(path, spelled(hosts.DUE), (*asked, 10))
    assert any("threads_due (kind=? AND due_at>? AND due_at<?)" in step for step in due), due
    assert sum("TEMP B-TREE" in step for step in due) == 1, due
    assert not any(step.startswith("SCAN t") for step in due), due
    posted = spelled(hosts.POSTED)
    for sql, values in ((spelled(hosts.ABANDONED), (*asked, "[1]", 10)), (posted, (None, "h", "i"))):
        plan = plan_of(path, sql, values)
        assert any("USING INDEX threads_owned (owner=?" in step for step in plan), plan
    assert any("posted>?" in step for step in plan_of(path, posted, (None, "h", "i")))


def test_a_look_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    """`take` and `woken` may be repeated every second by every host."""
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> None:
        await ledger.beat(HOST)
        await ledger.claim("t", by=HOST)
        before = path.with_name("ledger.db-wal").read_bytes()
        for _ in range(3):
            assert await ledger.take(HOST) == ()
            assert await ledger.woken(HOST) == ()
        assert path.with_name("ledger.db-wal").read_bytes() == before

    with_ledger(path, work)
