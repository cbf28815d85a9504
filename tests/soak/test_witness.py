"""The checker finds each of 22 planted corruptions by the rule it breaks, and nothing in a history that is whole."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.ledger.histories import answered, called, everything, said
from tools.soak.witness import Evidence, Row, Witness, check_witness, gather_evidence, read_events

from antiphon import Message
from antiphon.errors import FencedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.testing import Event
from antiphon.testing._events import content_of

# ---------------------------------------------------------------- a run that is whole


class Run(NamedTuple):
    events: list[Event]
    evidence: Evidence

    def with_rows(self, rows: list[Row]) -> "Run":
        return Run(self.events, Evidence(rows, self.evidence.statuses))

    def with_events(self, events: list[Event]) -> "Run":
        return Run(events, self.evidence)


class Client:
    """Does things with a ledger and writes them down."""

    def __init__(self, ledger: MemoryLedger, witness: Witness) -> None:
        self.ledger = ledger
        self.witness = witness

    async def append(self, thread: str, message: Message, *, epoch: int | None = None) -> None:
        self.witness.say("inv", thread=thread, id=message.id, content=content_of(message), epoch=epoch or 0)
        try:
            await self.ledger.append(thread, [message], epoch=epoch)
        except FencedError:
            self.witness.say("fail", thread=thread, id=message.id)
        else:
            self.witness.say("ok", thread=thread, id=message.id)

    async def claim(self, thread: str) -> int:
        epoch = await self.ledger.claim(thread)
        self.witness.say("claim", thread=thread, epoch=epoch)
        return epoch

    async def read(self, thread: str) -> None:
        began = self.witness.now()
        ids = tuple([record.message.id for record in await everything(self.ledger, thread)])
        self.witness.say("read", thread=thread, began=began, ids=ids)

    async def effect(self, thread: str, epoch: int) -> None:
        """Intent, effect, receipt."""
        intent = called(lane="effect")
        receipt = answered(intent, {"paid": True})
        await self.append(thread, intent, epoch=epoch)
        name: Any = intent.invocation_id
        self.witness.say("fx", thread=thread, id=name, key=f"key-{name}", epoch=epoch, is_once=True)
        self.witness.say("fxend", thread=thread, id=name, content=content_of(receipt))
        await self.append(thread, receipt, epoch=epoch)

    async def follow(self) -> None:
        """Get everything that is there, some of it twice: as after a crash, from a cursor that was kept before."""
        last = await self.ledger.horizon()
        async for tailed in self.ledger.tail():
            message = tailed.record.message
            for _ in range(1 + tailed.record.seq % 2):
                self.witness.say("rx", thread=message.thread_id, id=message.id)
            if tailed.cursor == last:
                return


async def whole_run(folder: Path) -> Run:
    ledger = MemoryLedger()
    one, other = (Client(ledger, Witness(folder / f"{name}.jsonl", name)) for name in ("one", "other"))
    for thread in ("a", "b"):
        first = await one.claim(thread)
        for number in range(5):
            await one.append(thread, said(str(number)), epoch=first)
            await other.read(thread)
        await one.effect(thread, first)
        second = await other.claim(thread)
        await one.append(thread, said("too late"), epoch=first)
        await other.effect(thread, second)
        other.witness.say("pause", thread=thread)
        other.witness.say("resume", thread=thread)
        await other.effect(thread, second)
        lost = called()
        await other.append(thread, lost, epoch=second)
        other.witness.say("park", thread=thread, id=lost.invocation_id)
        await one.read(thread)
        other.witness.say("terminate", thread=thread)
        await ledger.append(thread, [], epoch=second, status="done")
    await other.follow()
    one.witness.say("fault", content="SIGKILL")
    for client in (one, other):
        client.witness.close()
    return Run(read_events([folder / "one.jsonl", folder / "other.jsonl"]), await gather_evidence(ledger))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return asyncio.run(whole_run(tmp_path_factory.mktemp("witness")))


def test_a_whole_run_has_no_breach_and_counts(run: Run) -> None:
    report = check_witness(run.events, run.evidence, least_acknowledged=20, least_faults=1)

    assert report.breaches == ()
    assert report.counts == {
        "attempted": 26,
        "acknowledged": 24,
        "present": 24,
        "recovered": 0,
        "effects": 6,
        "parked": 2,
        "fault SIGKILL": 1,
    }


# ---------------------------------------------------------------- 22 corruptions


def rows_of(run: Run, thread: str = "a") -> tuple[list[Row], list[Row]]:
    rows = list(run.evidence.rows)
    return [row for row in rows if row.thread == thread], [row for row in rows if row.thread != thread]


def seen(run: Run, *kinds: str) -> list[Event]:
    return [event for event in run.events if event.what in kinds and event.thread == "a"]


def without(run: Run, event: Event) -> Run:
    return run.with_events([each for each in run.events if each is not event])


def changed(run: Run, event: Event, **fields: Any) -> Run:
    return run.with_events([replace(each, **fields) if each is event else each for each in run.events])


def lost_one(run: Run, random: Random) -> Run:
    mine, others = rows_of(run)
    mine.remove(random.choice(mine))
    return run.with_rows(others + mine)


def lost_tail(run: Run, random: Random) -> Run:
    mine, others = rows_of(run)
    return run.with_rows(others + mine[: -random.randint(1, 3)])


def altered(run: Run, random: Random) -> Run:
    mine, others = rows_of(run)
    place = random.randrange(len(mine))
    mine[place] = replace(mine[place], content="something else")
    return run.with_rows(others + mine)


def phantom(run: Run, random: Random) -> Run:
    mine, others = rows_of(run)
    return run.with_rows([*others, *mine, replace(mine[-1], seq=len(mine) + 1, id="never said", kind="parts")])


def swapped(run: Run, random: Random) -> Run:
    mine, others = rows_of(run)
    place = random.randrange(len(mine) - 1)
    one, two = mine[place : place + 2]
    mine[place : place + 2] = [replace(two, seq=one.seq), replace(one, seq=two.seq)]
    return run.with_rows(others + mine)


def duplicated(run: Run, random: Random) -> Run:
    mine, others = rows_of(run)
    return run.with_rows([*others, *mine, replace(random.choice(mine), seq=len(mine) + 1)])


def started_twice(run: Run, random: Random) -> Run:
    event = random.choice(seen(run, "fx"))
    return run.with_events([*run.events, replace(event, at=event.at + 1e-9)])


def no_intent(run: Run, random: Random) -> Run:
    event = random.choice(seen(run, "fx"))
    return changed(run, event, at=0.0)


def other_key(run: Run, random: Random) -> Run:
    event = random.choice(seen(run, "fx"))
    more = replace(event, at=event.at + 1e-9, key="another", is_once=False)
    return changed(run.with_events([*run.events, more]), event, is_once=False)


def stale_epoch(run: Run, random: Random) -> Run:
    last = [event for event in seen(run, "inv") if event.epoch == 2][-1]
    return changed(run, last, epoch=1)


def fenced_effect(run: Run, random: Random) -> Run:
    late = [event for event in seen(run, "fx") if event.epoch == 2]
    return changed(run, random.choice(late), epoch=1)


def woken_owner(run: Run, random: Random) -> Run:
    """The first owner starts an effect after the second has claimed the thread. Tools do not know epochs."""
    unaware = run.with_events([replace(each, epoch=0) if each.what == "fx" else each for each in run.events])
    late = [event for event in seen(unaware, "fx") if event.who == "other"]
    return changed(unaware, random.choice(late), who="one")


def stale_read(run: Run, random: Random) -> Run:
    event = random.choice(seen(run, "read")[1:])
    return changed(run, event, ids=event.ids[:-1])


def reordered_read(run: Run, random: Random) -> Run:
    event = random.choice(seen(run, "read")[2:])
    return changed(run, event, ids=(event.ids[1], event.ids[0], *event.ids[2:]))


def undelivered(run: Run, random: Random) -> Run:
    gone = random.choice(seen(run, "rx")).id
    return run.with_events([event for event in run.events if not (event.what == "rx" and event.id == gone)])


def out_of_order_delivery(run: Run, random: Random) -> Run:
    got = seen(run, "rx")
    first, last = got[0], got[-1]
    early = replace(last, at=first.at - 1e-9)
    return run.with_events([*run.events, early])


def work_in_pause(run: Run, random: Random) -> Run:
    return without(run, seen(run, "resume")[0])


def work_after_terminate(run: Run, random: Random) -> Run:
    event = seen(run, "terminate")[0]
    return changed(run, event, at=min(each.at for each in seen(run, "fx")) - 1e-9)


def open_call(run: Run, random: Random) -> Run:
    return without(run, seen(run, "park")[0])


def result_with_no_effect(run: Run, random: Random) -> Run:
    return without(run, random.choice(seen(run, "fxend")))


def stuck(run: Run, random: Random) -> Run:
    return Run(run.events, Evidence(run.evidence.rows, {**run.evidence.statuses, "a": "running"}))


def failed_but_present(run: Run, random: Random) -> Run:
    refused = seen(run, "fail")[0]
    mine, others = rows_of(run)
    more = replace(mine[-1], seq=len(mine) + 1, id=refused.id, kind="parts", content=content_of(said("too late")))
    return run.with_rows([*others, *mine, more])


PLANTED: dict[Callable[[Run, Random], Run], set[str]] = {
    lost_one: {"R1"},
    lost_tail: {"R1"},
    altered: {"R1"},
    phantom: {"R2"},
    swapped: {"R4", "R12"},
    duplicated: {"R3"},
    started_twice: {"R6"},
    no_intent: {"R6"},
    other_key: {"R6"},
    stale_epoch: {"R8"},
    fenced_effect: {"R8"},
    woken_owner: {"R8"},
    stale_read: {"R5"},
    reordered_read: {"R5"},
    undelivered: {"R9"},
    out_of_order_delivery: {"R9"},
    work_in_pause: {"R11"},
    work_after_terminate: {"R11"},
    open_call: {"R10"},
    result_with_no_effect: {"R7"},
    stuck: {"R10"},
    failed_but_present: {"R2"},
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_corruption_is_found(plant: Callable[[Run, Random], Run], run: Run) -> None:
    for seed in range(10):
        broken = plant(run, Random(seed))
        found = {breach.rule for breach in check_witness(broken.events, broken.evidence).breaches}
        assert PLANTED[plant] <= found, (plant.__name__, seed, found)


def test_there_are_twenty_two_of_them() -> None:
    assert len(PLANTED) == 22


def test_an_owner_that_does_not_know_its_epoch_has_the_last_one_that_it_has_claimed(run: Run) -> None:
    """R8: effects of tools, which say no epoch, are right if their process has not lost the thread."""
    unaware = run.with_events([replace(each, epoch=0) if each.what == "fx" else each for each in run.events])
    assert check_witness(unaware.events, unaware.evidence).breaches == ()


def test_a_run_in_which_nothing_happened_proves_nothing(run: Run) -> None:
    """R0: neither appends nor faults."""
    report = check_witness([], Evidence([]), least_acknowledged=1, least_faults=1)

    assert [breach.rule for breach in report.breaches] == ["R0", "R0"]


def test_a_changed_byte_breaks_the_chain(run: Run) -> None:
    """R12: computed from the rows alone."""
    mine, others = rows_of(run)
    mine[3] = replace(mine[3], body=mine[3].body + b" ")

    report = check_witness(run.events, Evidence(others + mine, run.evidence.statuses))

    assert [(breach.rule, breach.id) for breach in report.breaches] == [("R12", mine[3].id)]


def test_a_line_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    witness = Witness(path, "me")
    witness.say("inv", thread="t", id="1", ids=("x",))
    witness.say("ok", thread="t", id="1")
    witness.close()
    path.write_bytes(path.read_bytes()[:-3])

    (event,) = read_events([path])
    assert (event.what, event.who, event.ids) == ("inv", "me", ("x",))
    with pytest.raises(ValueError, match="give ids and digests"):
        Witness(path, "me").say("read", ids=tuple(map(str, range(2000))))


@pytest.mark.slow
def test_the_checker_is_quick_enough_for_long_runs() -> None:
    """Linear: forty times the events take about forty times as long."""
    rows, events = [], []
    for number in range(20_000):
        name = f"m{number}"
        events += [
            Event(what="inv", at=number, thread="t", id=name, content="c"),
            Event(what="ok", at=number + 0.5, thread="t", id=name),
        ]
        rows.append(Row(thread="t", seq=number + 1, id=name, content="c"))

    assert check_witness(events, Evidence(rows)).breaches == ()
