"""The hosts of a ledger together: `service.cluster_status` and `antiphon status --all`, on all stores."""

import asyncio
import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from tests.cli.running import run
from tests.postgres import Server

from antiphon import open_ledger, protocol
from antiphon.ledger import Host, Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.ledger.postgres._ledger import PostgresLedger
from antiphon.messages import Message, PartsPayload, TextPart, current_port
from antiphon.runtime._exchange import from_wire
from antiphon.service import answer_approval, cluster_status, list_approvals, pause_thread

pytest.importorskip("apsw")


def _host(name: str, *kinds: str, build: str = "1", lease: float = 600.0) -> Host:
    return Host(name, build, kinds or ("agent",), lease, f"{name}/1")


def _to(address: str = "agent/1") -> Message:
    return Message(policy="user/1", payload=PartsPayload(parts=(TextPart(text="hello"),)), to=(address,))


async def _left_work(ledger: Ledger) -> None:
    """Leave a thread in hand, one that is due for long with no host for its kind, one that is new, one of a dead host."""
    living = _host("living")
    await ledger.beat(living)
    await ledger.claim("in-hand", by=living)
    long_ago = current_port().now() - timedelta(minutes=5)
    for name, kind in (("homeless", "other"), ("busy", "agent")):
        epoch = await ledger.claim(name, by=living, kind=kind)
        await ledger.release(name, epoch=epoch, wake_at=long_ago)
    epoch = await ledger.claim("later", by=living, kind="agent")
    await ledger.release("later", epoch=epoch, wake_at=current_port().now() + timedelta(days=1))
    await ledger.post("new", _to())


async def _checked(ledger: Ledger) -> None:
    await _left_work(ledger)
    found = await cluster_status(ledger)
    assert [each.name for each in found.hosts] == ["living"]
    assert (found.in_hand, found.due, found.stuck, found.take_overs, found.tail_lag) == (1, 3, 2, 0, 0.0)
    assert 299 < (found.oldest_age or 0) < 400
    reasons = {each.thread_id: each.reason for each in found.stuck_threads}
    assert reasons.keys() == {"homeless", "busy"}
    assert reasons["homeless"].startswith("no living host has the kind 'other'")
    assert reasons["busy"].startswith("its hosts have no room")
    (taken,) = await ledger.take(_host("living"), kinds=("agent",), limit=1)
    await ledger.release(taken.thread_id, epoch=taken.epoch, unfit="1", reason="the prompt has changed")
    assert (await cluster_status(ledger)).due == 3


async def test_hosts_and_what_waits_are_counted_in_memory() -> None:
    await _checked(MemoryLedger())


async def test_hosts_and_what_waits_are_counted_in_a_file(tmp_path: Path) -> None:
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        await _checked(ledger)


@pytest.mark.slow
async def test_hosts_and_what_waits_are_counted_in_postgresql(postgres: Server) -> None:
    async with PostgresLedger.open(postgres.url, tenant="counted") as ledger:
        await _checked(ledger)


async def test_a_thread_that_no_living_build_can_continue_is_reported_as_stuck() -> None:
    ledger, host = MemoryLedger(), _host("living")
    await ledger.beat(host)
    epoch = await ledger.claim("t", by=host, kind="agent")
    past = current_port().now() - timedelta(minutes=1)
    await ledger.release("t", epoch=epoch, wake_at=past, unfit="1", reason="the prompt has changed")
    (stuck,) = (await cluster_status(ledger)).stuck_threads
    assert stuck.reason.startswith("no living build can continue it (the prompt has changed)")


@pytest.mark.slow
async def test_a_thread_that_waits_for_a_person_is_not_stuck(tmp_path: Path, demonstration: Path) -> None:
    """A process asked for an approval and ended, another parked a call: a host is no help. Without the question it is."""
    shutil.copy(demonstration, tmp_path / "ledger.db")
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        found = await cluster_status(ledger)
        assert (found.due, found.stuck, found.oldest_due) == (0, 0, None)
        (asked,) = await list_approvals(ledger)
        await answer_approval(ledger, asked.id, principal="ada", approved=True)
        assert (await cluster_status(ledger)).due == 1


async def test_a_paused_thread_is_not_due_until_someone_asks_to_resume_it() -> None:
    ledger, host = MemoryLedger(), _host("gone")
    await ledger.beat(host)
    epoch = await ledger.claim("t", by=host, kind="agent")
    await ledger.append("t", [_to()], epoch=epoch)
    await ledger.release("t", epoch=epoch, wake_at=current_port().now() - timedelta(minutes=1))
    await ledger.leave(host)
    assert (await cluster_status(ledger)).stuck == 1
    await pause_thread(ledger, "t")
    assert (await cluster_status(ledger)).due == 0
    wire = protocol.Message(type="RESUME_THREAD", data={"thread_id": "t"}, sender="user/1", receiver="life/1")
    await ledger.post("t", from_wire(wire, "t"))
    assert (await cluster_status(ledger)).due == 1


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("thread", "antiphon host"),
        ("schedule", "antiphon host"),
        ("controller", "antiphon host --team FILE"),
        ("run/shop", "antiphon host --app MODULE:NAME"),
    ],
)
async def test_a_stuck_thread_names_the_command_for_a_host_of_its_kind(kind: str, command: str) -> None:
    ledger, host = MemoryLedger(), _host("gone")
    await ledger.beat(host)
    epoch = await ledger.claim("t", by=host, kind=kind)
    await ledger.release("t", epoch=epoch, wake_at=current_port().now() - timedelta(minutes=1))
    await ledger.leave(host)
    (stuck,) = (await cluster_status(ledger)).stuck_threads
    assert stuck.reason.endswith(f", with `{command}`")


@pytest.mark.slow
async def test_the_lag_of_tail_is_the_age_of_what_an_open_transaction_holds_back(postgres: Server) -> None:
    import asyncpg

    async with PostgresLedger.open(postgres.url, tenant="lag") as ledger:
        await ledger.append("t", [_to()])
        other = await asyncpg.connect(postgres.url)
        try:
            running = other.transaction()
            await running.start()
            await other.execute("SELECT pg_current_xact_id()")  # it has an id now, so it may write before others
            await ledger.append("t", [_to()])
            await asyncio.sleep(0.05)
            assert 0.04 < (await cluster_status(ledger)).tail_lag < 30
            await running.rollback()
            assert (await cluster_status(ledger)).tail_lag == 0.0
        finally:
            await other.close()


@pytest.mark.slow
def test_the_command_shows_hosts_and_exits_with_1_if_a_thread_is_stuck(tmp_path: Path) -> None:
    path = f"sqlite:///{tmp_path}/ledger.db"

    async def leave() -> None:
        async with open_ledger(path) as ledger:
            await ledger.append("t", [_to()])

    async def leave_more() -> None:
        async with open_ledger(path) as ledger:
            await _left_work(ledger)

    asyncio.run(leave())
    done = run("status", "--all", "--ledger", path)
    assert (done.exit_code, "no host runs threads" in done.stderr) == (0, True)
    assert json.loads(run("status", "--all", "--json", "--ledger", path).stdout)["due"] == 0
    asyncio.run(leave_more())
    done = run("status", "--all", "--ledger", path)
    assert done.exit_code == 1
    assert "living" in done.stdout
    assert "3, the oldest for 5m" in done.stdout
    assert "homeless is stuck: no living host has the kind 'other'" in done.stderr
    assert json.loads(run("status", "--all", "--json", "--ledger", path).stdout)["stuck"] == 2


@pytest.mark.slow
def test_a_host_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    done = run("host", "--model", "scripted", "--kinds", "thread,nothing", "--ledger", str(tmp_path / "ledger.db"))
    assert done.exit_code == 2
    assert "this host runs no threads of kind 'nothing'; it has" in done.stderr
