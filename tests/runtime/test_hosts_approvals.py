"""Approvals on several hosts: what waits for a person rests, and an answer, a denial or the expiry continues it (G8, G16)."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, cast

import pytest
from tests.runtime.actors import Ping, Pong, rows
from tests.runtime.counts import count
from tools.soak.witness import Evidence, check_witness, gather_evidence
from typing_extensions import override

from antiphon.agents.toolkit import Approval, answer, pending_approvals
from antiphon.durable import LedgerRun, ledger_run
from antiphon.durable._approvals import approval_id, find_approval
from antiphon.errors import DeliveryError, LedgerUnavailableError, NotWaitingError, ParkedError
from antiphon.ledger import Ledger, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.patterns.cast._handling import left_open
from antiphon.protocol import PauseThread, ResumeThread, TerminateThread
from antiphon.runtime import Actor, Context, Effects, Settings, System, handles
from antiphon.runtime import _recovery as recovery_module
from antiphon.testing import Event, Faults, Simulated, World, simulate
from antiphon.testing._simulate import RELEASED_BY_ANOTHER, TAKEN_FROM_THE_LIVING
from antiphon.testing._virtual_time import VirtualLoop

DAY = 86400.0
LIFE = "system/life"


class Payer(Actor):
    """Pays what a person approves. `a+b 60` has two questions, one after the other, which expire after 60 seconds."""

    def __init__(self, paid: list[str], world: World | None = None, system: System | None = None) -> None:
        self._paid, self._world, self._system = paid, world, system

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        names, _, expires = ping.text.partition(" ")
        async with left_open(context), ledger_run(context) as run:
            for name in filter(None, names.split("+")):
                decision = await _decision(run, name, float(expires or DAY))
                if decision != "approved":
                    return Pong(text=decision)
        # One whose handler asks would rest for ever beside a payment that is parked.
        effects: Effects = "once" if context.message.parent_id is None else "idempotent"
        await context.effect("pay", {"what": names}, partial(self._pay, context, effects), effects=effects)
        return Pong(text="paid")

    async def _pay(self, context: Context, effects: str, key: str) -> str:
        thread = context.thread_id or ""
        self._paid.append(thread)
        if self._world is not None and self._system is not None:
            epoch = self._system._kernel.journal.epoch(thread)
            self._world.say("fx", thread=thread, id=key, key=key, epoch=epoch, is_once=effects == "once")
            await asyncio.sleep(0.5)
            self._world.say("fxend", thread=thread, id=key)
        return "done"


class Clerk(Actor):
    """Has the payer pay, and waits with it."""

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async with left_open(context):
            return await context.ask("payer/1", ping, within=DAY)


async def _decision(run: LedgerRun, name: str, expires: float) -> str:
    """Ask a person about a payment, unless the question is there; return the decision, as a toolkit does."""
    digest = sha256(f"{run.thread_id} {name}".encode()).hexdigest()
    found = await find_approval(run.ledger, approval_id(digest), thread_id=run.thread_id)
    if found is None:
        until = current_port().now() + timedelta(seconds=expires)
        found = Approval(approval_id(digest), run.thread_id, "payer", "pay", {"what": name}, digest, "it is money", until)
        await run.note(found.question(), key=found.id)
    elif found.answer is None and found.is_late(current_port().now()):
        with suppress(DeliveryError):  # an answer was quicker
            await run.note(found.expiry(), key=f"{found.id}:expired")
        found = cast("Approval", await find_approval(run.ledger, found.id, thread_id=run.thread_id))
    standing = found.standing(digest)
    if standing == "open":
        raise ParkedError("it waits for a person")
    return standing


def _system(ledger: Ledger, name: str, **more: Any) -> System:
    return System(ledger, settings=Settings(host=name, build="1", **more))


@asynccontextmanager
async def _hosts(ledger: Ledger, paid: list[str], *names: str, **more: Any) -> AsyncGenerator[list[System]]:
    """Yield systems that take threads."""
    systems = [_system(ledger, name, **more) for name in names]
    for system in systems:
        await system.__aenter__()
        system.register("payer", lambda: Payer(paid))
        system.register("clerk", Clerk)
    hosting = [asyncio.create_task(system.host()) for system in systems]
    try:
        yield systems
    finally:
        for task in hosting:
            task.cancel()
        await asyncio.gather(*hosting, return_exceptions=True)
        for system in systems:
            await system.close()


def _asked(text: str, id: str, to: str = "payer/1") -> Message:
    ping = Ping(text=text)
    payload = OptionCallPayload(invocation_id=id, option_name=ping.message_type, arguments=ping.to_data())
    return Message(policy="client", payload=payload, to=(to,), lane="control", id=id)


async def _result(ledger: Ledger, id: str) -> str | None:
    payloads = [each.message.payload for each in await ledger.find(invocation_id=id)]
    found = [each for each in payloads if isinstance(each, OptionResultPayload)]
    if not found:
        return None
    return str(found[0].error_type if found[0].is_error else cast("Any", found[0].result)["text"])


async def _redelivered(ledger: Ledger, thread_id: str) -> int:
    return (await rows(ledger, thread_id)).count("AGAIN")


# ---------------------------------------------------------------- how often a handler runs


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_caller_on_another_host_makes_no_host_repeat_what_waits_for_a_person() -> None:
    """The hosts took the thread in turns every few seconds, each time only to wait; after 50 times it was parked."""
    ledger, paid = MemoryLedger(), list[str]()
    async with _hosts(ledger, paid, "a", "b") as (first, second):
        await first.ask("payer/1", Ping(text=""), thread_id="t", id="begin")
        asking = asyncio.create_task(second.ask("payer/1", Ping(text="x"), thread_id="t", id="m", within=DAY))
        await asyncio.sleep(1200)
        assert await _redelivered(ledger, "t") <= 3  # one host may ask for the thread just when the other releases it
        (waiting,) = await pending_approvals(ledger)
        await answer(ledger, waiting.id, principal="grace", approved=True)
        assert await asking == Pong(text="paid")
    assert paid == ["t", "t"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("after", [1.0, 30.0], ids=["while the host has the thread", "after the host has released it"])
async def test_a_message_with_many_questions_is_delivered_once_for_each_answer_and_never_parked(after: float) -> None:
    """No process has died: an answer is no recovery. It was parked after 50 deliveries, which are 25 answers."""
    ledger, paid = MemoryLedger(), list[str]()
    async with _hosts(ledger, paid, "a", "b", recoveries=3):
        await ledger.post("t", _asked("+".join("abcdefgh"), "m"))
        for _ in range(8):
            await asyncio.sleep(after)
            (waiting,) = await pending_approvals(ledger)
            await answer(ledger, waiting.id, principal="grace", approved=True)
        await asyncio.sleep(30)
        assert await _result(ledger, "m") == "paid"
        assert await _redelivered(ledger, "t") == 8
    assert paid == ["t"]


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_the_same_question_may_be_asked_often_while_it_waits_for_a_person() -> None:
    """A program that asks again every minute whether somebody has answered parked the message after 50 minutes."""
    ledger, paid = MemoryLedger(), list[str]()
    async with _hosts(ledger, paid, "a", recoveries=3) as (system,):
        for _ in range(10):
            with pytest.raises(ParkedError, match="it waits for a person"):
                await system.ask("payer/1", Ping(text="x"), thread_id="t", id="m", within=DAY)
            await asyncio.sleep(60)
        (waiting,) = await pending_approvals(ledger)
        await answer(ledger, waiting.id, principal="grace", approved=True)
        assert await system.ask("payer/1", Ping(text="x"), thread_id="t", id="m", within=DAY) == Pong(text="paid")


# ---------------------------------------------------------------- moments


class Late:
    """A port whose time passes a moment between two readings."""

    def __init__(self, moment: datetime) -> None:
        self._moment, self._has_passed = moment, False

    def now(self) -> datetime:
        now = current_port().now()
        if now < self._moment or self._has_passed:
            return now
        self._has_passed = True
        return self._moment - timedelta(microseconds=1)


@pytest.mark.virtual_time
async def test_a_question_that_expires_while_its_thread_is_released_makes_it_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """It rested by the first reading of the clock, and had expired by the second: the thread was never due."""
    ledger, paid = MemoryLedger(), list[str]()
    async with _hosts(ledger, paid, "a"):
        await ledger.post("t", _asked("x 6", "m"))
        await asyncio.sleep(2)
        (waiting,) = await pending_approvals(ledger)
        port = Late(waiting.expires_at)
        monkeypatch.setattr(recovery_module, "current_port", lambda: port)
        await asyncio.sleep(60)
        assert port._has_passed
        assert await _result(ledger, "m") == "expired"
        assert await ledger.open_calls("t") == ()


class Slow(MemoryLedger):
    """A ledger in which something happens while a thread is being released, before or after it is written."""

    how: str = ""
    happened = 0

    @override
    async def release(self, thread_id: str, **more: Any) -> None:
        if self.how == "before":
            await self._answer()
        await super().release(thread_id, **more)
        if self.how == "after":
            await self._answer()

    async def _answer(self) -> None:
        for waiting in await pending_approvals(self):
            await answer(self, waiting.id, principal="grace", approved=True)
            self.happened += 1
        await asyncio.sleep(1)


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["before", "after"])
async def test_an_answer_that_comes_while_the_host_releases_the_thread_is_not_missed(how: str) -> None:
    ledger, paid = Slow(), list[str]()
    ledger.how = how
    async with _hosts(ledger, paid, "a", "b"):
        await ledger.post("t", _asked("x", "m"))
        await asyncio.sleep(60)
        assert ledger.happened == 1
        assert await _result(ledger, "m") == "paid"
    assert paid == ["t"]


@pytest.mark.virtual_time
async def test_of_two_people_who_answer_at_once_one_counts_and_the_other_is_told() -> None:
    ledger, paid = MemoryLedger(), list[str]()
    async with _hosts(ledger, paid, "a"):
        await ledger.post("t", _asked("x", "m"))
        await asyncio.sleep(20)
        (waiting,) = await pending_approvals(ledger)
        said = await asyncio.gather(
            answer(ledger, waiting.id, principal="grace", approved=False),
            answer(ledger, waiting.id, principal="ada", approved=True),
            return_exceptions=True,
        )
        await asyncio.sleep(20)
        decided = cast("Approval", await find_approval(ledger, waiting.id)).standing(waiting.digest)
        (told,) = [each for each in said if isinstance(each, NotWaitingError)]
        assert (told.thread_id, told.code, told.decision) == ("t", "ALREADY_ANSWERED", decided)
        assert told.by == ("ada" if decided == "approved" else "grace")
        assert str(told) == f"{waiting.id!r} is answered already: {told.by!r} {decided} it"
        assert await _result(ledger, "m") == ("paid" if decided == "approved" else "denied")


@pytest.mark.virtual_time
@pytest.mark.parametrize("to", ["payer/1", "clerk/1"])
async def test_an_answer_that_comes_when_no_host_lives_is_taken_by_the_next_one(to: str) -> None:
    """Also if the actor that waits for the person was asked by another one, which waits with it."""
    ledger, paid = MemoryLedger(), list[str]()
    async with _hosts(ledger, paid, "a"):
        await ledger.post("t", _asked("x", "m", to))
        await asyncio.sleep(20)
    (waiting,) = await pending_approvals(ledger)
    await answer(ledger, waiting.id, principal="grace", approved=True)
    async with _hosts(ledger, paid, "b"):
        await asyncio.sleep(5)
        assert await _result(ledger, "m") == "paid"


# ---------------------------------------------------------------- worlds

SEEDS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else count("approvals")
GROUPS = 5
_ENOUGH = 200
"""Worlds in which each fault happens."""
SYSTEMS = 3
THREADS = ("posted 600", "posted 20", "asked 20", "twice 100", "via 60")
FAULTS = Faults(crashes=2, uptime=8.0, downtime=4.0)


class Story:
    """Threads with approvals, and a person beside the hosts who answers at any moment, twice, or not at all."""

    world: World

    def __init__(self, seed: int) -> None:
        self.paid: list[str] = []
        self.counts: Counter[str] = Counter()
        self.random = Random(f"people {seed}")

    def host(self, system: System) -> None:
        system.register("payer", lambda: Payer(self.paid, self.world, system), grace=2, concurrency=8)
        system.register("clerk", Clerk, grace=2, concurrency=8)

    async def drive(self, world: World) -> None:
        self.world = world
        people = [asyncio.create_task(self._person(name)) for name in ("grace", "ada")]
        try:
            await asyncio.gather(*map(self._thread, THREADS), self._life(THREADS[0]))
        finally:
            for person in people:
                person.cancel()
            await asyncio.gather(*people, return_exceptions=True)

    async def _thread(self, name: str) -> None:
        how, _, expires = name.partition(" ")
        text = f"{'a+b' if how == 'twice' else 'a'} {expires}"
        await asyncio.sleep(self.random.random() * 10)
        if how != "asked":  # nobody asks again: a lost wake-up would show
            to = "clerk/1" if how == "via" else "payer/1"
            await _until_stored(self.world.beside, name, _asked(text, name, to))
        while await _result(self.world.ledger, name) is None and not await _is_parked(self.world.ledger, name):
            if how == "asked":
                with suppress(DeliveryError, TimeoutError):
                    async with asyncio.timeout(30):
                        await self.world.ask("payer/1", Ping(text=text), thread_id=name, id=name)
            await asyncio.sleep(1)
        self.counts[await _result(self.world.ledger, name) or "parked"] += 1

    async def _person(self, name: str) -> None:
        """Look now and then at what waits, and answer some of it: soon, or at the moment of its expiry."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / 15))
            for waiting in await pending_approvals(self.world.ledger):
                left = (waiting.expires_at - current_port().now()).total_seconds()
                if left < 60 and self.random.random() < 0.2:
                    await asyncio.sleep(max(0.0, left - self.random.choice((0.0, 1e-6, 0.01))))
                if self.random.random() < 0.5:
                    await self._answer(waiting, name)

    async def _answer(self, waiting: Approval, name: str) -> None:
        approved = self.random.random() < 0.8
        while True:
            try:
                await answer(self.world.beside, waiting.id, principal=name, approved=approved)
                self.counts["answered"] += 1
            except LedgerUnavailableError:
                continue
            except NotWaitingError as exc:
                self.counts["too late" if exc.code == "EXPIRED" else "answered before"] += 1
            return

    async def _life(self, thread: str) -> None:
        """Pause the thread and resume it, or end it, at any moment: also while it rests."""
        await asyncio.sleep(12 + self.random.random() * 60)
        if self.random.random() < 0.3:
            with suppress(DeliveryError):
                await self.world.ask(LIFE, TerminateThread(thread_id=thread, reason="enough"), thread_id=thread)
                self.world.say("terminate", thread=thread)
            return
        for _ in range(2):
            with suppress(DeliveryError):
                await self.world.ask(LIFE, PauseThread(thread_id=thread), thread_id=thread)
                self.world.say("pause", thread=thread)
            await asyncio.sleep(self.random.random() * 40)
            self.world.say("resume", thread=thread)
            with suppress(DeliveryError):
                await self.world.ask(LIFE, ResumeThread(thread_id=thread), thread_id=thread)


async def _until_stored(ledger: Ledger, thread_id: str, message: Message) -> None:
    while True:
        with suppress(LedgerUnavailableError):
            await ledger.post(thread_id, message)
            return


async def _is_parked(ledger: Ledger, thread_id: str) -> bool:
    return any(_option(each) == "PARK" for each in await ledger.open_calls(thread_id))


def _option(record: Record) -> str:
    return str(getattr(record.message.payload, "option_name", ""))


def _simulate(seed: int, story: Story) -> Simulated:
    faults = replace(FAULTS, crashes=seed % 3)
    settings = Settings(poll=2, within=DAY)
    return simulate(seed, host=story.host, drive=story.drive, faults=faults, settings=settings, systems=SYSTEMS)


def _check(seed: int, landed: Counter[str], counts: Counter[str]) -> None:
    story = Story(seed)
    simulated = _simulate(seed, story)
    wrong = {what: simulated.landed[what] for what in (TAKEN_FROM_THE_LIVING, RELEASED_BY_ANOTHER)}
    assert not any(wrong.values()), (seed, wrong)  # G15
    loop = VirtualLoop()
    try:
        loop.run_until_complete(_check_ledger(seed, simulated, story))
    finally:
        loop.close()
    landed += simulated.landed
    counts += story.counts


async def _check_ledger(seed: int, simulated: Simulated, story: Story) -> None:
    ledger = simulated.ledger
    assert (await ledger.verify()).is_whole
    evidence, parked = await gather_evidence(ledger), list[Event]()
    effects = [row if row.invocation.endswith("/pay") else replace(row, lane="runtime") for row in evidence.rows]
    for name in THREADS:
        records = [record async for record in ledger.read(name)]
        open_calls = await ledger.open_calls(name)
        parked += [Event(what="park", at=0, thread=name, id=each.message.invocation_id or "") for each in open_calls]
        asked = [each for each in records if _option(each) == "APPROVE" and each.message.kind == "option_call"]
        ids = {each.message.invocation_id or "" for each in asked}
        found = [await find_approval(ledger, each, thread_id=name) for each in sorted(ids)]
        said = {each.standing(each.digest) for each in found if each is not None}
        if name in story.paid:
            assert said == {"approved"}, (seed, name, said)
            assert len(ids) == (2 if name.startswith("twice") else 1), (seed, name)
        if await _result(ledger, name) in ("denied", "expired"):
            assert name not in story.paid, (seed, name)
        again = sum(_option(each) == "AGAIN" and each.message.kind == "option_call" for each in records)
        assert again <= 30, (seed, name, again)
    judged = check_witness([*simulated.events, *parked], Evidence(effects, evidence.statuses))
    breaches = [each for each in judged.breaches if "after it had lost the thread" not in each.what]
    assert not breaches, (seed, breaches)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_thread_with_approvals_ends_though_hosts_die_and_people_answer_at_any_moment(group: int) -> None:
    """R10, R11: each world has three hosts that are killed, sleep and close, two people, and pauses. None stays open."""
    landed, counts = Counter[str](), Counter[str]()
    for seed in range(group, SEEDS, GROUPS):
        _check(seed, landed, counts)
    assert counts["paid"] > 0, counts
    if SEEDS < _ENOUGH:
        return
    faults = ("crash", "sleep", "closed", "wake-up lost", "taken over: abandoned", "taken over: posted", "taken over: due")
    assert min(landed[fault] for fault in faults) > 0, landed  # R0: the faults were there
    assert min(counts[each] for each in ("denied", "expired", "answered", "answered before")) > 0, counts
