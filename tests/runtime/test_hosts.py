"""Several systems on one ledger, each a host of threads: whom a message reaches, and what a host does that lost a thread."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, left_by_the_dead, rows, taken_by_another

from antiphon.errors import (
    ActorStoppedError,
    FencedError,
    HistoryMismatchError,
    HostError,
    LedgerCorruptError,
    LedgerUnavailableError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
    UndeliverableError,
    WithdrawnError,
)
from antiphon.ledger import Epoch, Host, Record, TakenThread, ThreadJournal, heads_of
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.protocol import ErrorNotification, Stop
from antiphon.runtime import Actor, Context, Settings, System, handles
from antiphon.runtime import _lease as lease_module
from antiphon.runtime._elsewhere import RemoteAnswers
from antiphon.runtime._hosting import read_take_overs
from antiphon.runtime._lease import Lease

pytestmark = pytest.mark.virtual_time

LEASE = 6.0
"""Seconds: three beats."""


class Counted(MemoryLedger):
    """A ledger that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in {
            "append",
            "by_invocation",
            "claim",
            "take",
            "woken",
            "release",
            "beat",
            "open_calls",
            "thread",
            "threads",
            "post",
        }:
            object.__getattribute__(self, "calls")[name] += 1
        return object.__getattribute__(self, name)


def _system(ledger: MemoryLedger, name: str, **more: Any) -> System:
    return System(ledger, settings=Settings(host=name, build="1", **more))


@asynccontextmanager
async def _two(ledger: MemoryLedger) -> AsyncGenerator[tuple[System, System], None]:
    """Yield the owner of thread `t`, and another system, with the same actors."""
    async with _system(ledger, "owner") as owner, _system(ledger, "other") as other:
        for system in (owner, other):
            system.register("probe", Probe)
        await owner.ask("probe/1", Ping(text="first"), thread_id="t", id="first")
        yield owner, other


async def _owner(ledger: MemoryLedger, thread_id: str = "t") -> str | None:
    found = await ledger.thread(thread_id)
    return None if found is None else found.owner


@asynccontextmanager
async def _hosted(system: System) -> AsyncGenerator[None, None]:
    hosting = asyncio.ensure_future(system.host())
    try:
        await asyncio.sleep(0.01)  # the first take raises what is wrong; later ones are tried again
        yield
    finally:
        hosting.cancel()
        with suppress(asyncio.CancelledError):
            await hosting


# ---------------------------------------------------------------- messages for another host


async def test_a_question_into_a_thread_of_another_host_is_answered_there() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (_, other):
        epoch = (await ledger.head("t")).epoch
        assert await other.ask("probe/1", Ping(text="x"), thread_id="t", id="m") == Pong(text="x!")
        heard = await other.ask("probe/1", Do(what="list"), thread_id="t", id="l")

        assert heard == Done(said=("first", "x"))  # by the actor of the owner
        assert ((await ledger.head("t")).epoch, await _owner(ledger)) == (epoch, "owner")
        assert await ledger.open_calls("t") == ()


async def test_the_same_id_gets_the_same_answer_over_every_host_and_is_handled_once() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, other):
        at_once = await asyncio.gather(
            *(system.ask("probe/1", Ping(text="x"), thread_id="t", id="m") for system in (other, owner, other, other))
        )
        later = await other.ask("probe/1", Ping(text="x"), thread_id="t", id="m")

        assert {*at_once, later} == {Pong(text="x!")}
        assert (await owner.ask("probe/1", Do(what="list"), thread_id="t")).said == ("first", "x")


async def test_the_same_id_with_something_else_is_refused() -> None:
    async with _two(MemoryLedger()) as (_, other):
        await other.ask("probe/1", Ping(text="x"), thread_id="t", id="m")
        with pytest.raises(HistoryMismatchError):
            await other.ask("probe/1", Ping(text="y"), thread_id="t", id="m")


class Unready(MemoryLedger):
    """A ledger whose answers take a while, and that cannot be posted to when it is told so."""

    is_late = has_failed = False

    async def find(self, **names: Any) -> tuple[Record, ...]:
        found = await super().find(**names)
        await asyncio.sleep(self.is_late)
        return found

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        await asyncio.sleep(self.is_late)
        return await super().append(thread_id, messages, **more)

    async def post(self, thread_id: str, message: Message, **more: Any) -> Record:
        if self.has_failed:
            raise LedgerUnavailableError("simulated")
        return await super().post(thread_id, message, **more)


async def test_two_copies_of_a_question_that_look_before_either_is_posted_get_one_answer() -> None:
    """Each has its own timestamp: the second was refused, as if it said something else."""
    ledger = Unready()
    async with _two(ledger) as (owner, other):
        ledger.is_late = True
        asking = [asyncio.ensure_future(other.ask("probe/1", Ping(text="x"), thread_id="t", id="m", within=60))]
        await asyncio.sleep(0.5)
        asking += [asyncio.ensure_future(other.ask("probe/1", Ping(text="x"), thread_id="t", id="m", within=60))]

        assert await asyncio.gather(*asking) == [Pong(text="x!")] * 2
        assert (await owner.ask("probe/1", Do(what="list"), thread_id="t")).said == ("first", "x")


async def test_a_copy_of_a_question_that_cannot_be_posted_fails_with_it() -> None:
    """The thread is lost while the first copy is appended, and then the ledger fails: the second waited for ever."""
    ledger = Unready()
    async with _two(ledger) as (owner, _):
        await taken_by_another(ledger, "t")
        ledger.is_late = ledger.has_failed = True
        asking = []
        for _ in range(2):
            asking += [asyncio.ensure_future(owner.ask("probe/1", Ping(text="x"), thread_id="t", id="m", within=1e6))]
            await asyncio.sleep(1.5)  # the first has looked, and is being appended
        outcomes = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 60)

        assert [type(each) for each in outcomes] == [LedgerUnavailableError] * 2


async def test_a_copy_of_a_question_gets_the_answer_of_the_new_owner_when_the_first_caller_is_gone() -> None:
    """The copy shared the wait of the first caller, and was forgotten with it."""
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _):
        asking = []
        for _ in range(2):
            do = Do(what="wait", seconds=20)
            asking += [asyncio.ensure_future(owner.ask("probe/1", do, thread_id="t", id="m", within=1e6))]
            await asyncio.sleep(1)
        epoch = await taken_by_another(ledger, "t")
        with suppress(ReplyTimeoutError):
            await owner.tell("probe/1", Note(text="refused"), thread_id="t", within=5)  # so the owner learns it
        asking[0].cancel()
        await asyncio.sleep(1)
        (call,) = [record.message for record in await ledger.open_calls("t") if record.message.invocation_id == "m"]
        payload = OptionResultPayload(invocation_id="m", option_name=Do.message_type, result=Done(said=("there",)).to_data())
        reply = Message(policy="probe/1", payload=payload, to=("client",), lane="control", correlation_id=call.correlation_id)
        await ledger.append("t", [reply], epoch=epoch)

        assert await asyncio.wait_for(asking[1], 60) == Done(said=("there",))


async def test_a_notice_for_a_thread_of_another_host_arrives_there_once() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, other):
        for _ in range(2):
            await other.tell("probe/1", Note(text="hello"), thread_id="t", id="n")
            await asyncio.sleep(1)

        assert (await owner.ask("probe/1", Do(what="list"), thread_id="t")).said == ("first", "hello")
        assert await ledger.open_calls("t") == ()


async def test_a_system_without_the_actor_asks_and_tells_the_host_that_has_it() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _), _system(ledger, "asker") as asker:
        assert await asker.ask("probe/1", Ping(text="x"), thread_id="t", id="m") == Pong(text="x!")
        await asker.tell("probe/1", Note(text="hello"), thread_id="t", id="n")
        await asyncio.sleep(1)

        assert (await owner.ask("probe/1", Do(what="list"), thread_id="t")).said == ("first", "x", "hello")
        assert await _owner(ledger) == "owner"


async def test_an_actor_that_the_owner_has_made_since_its_last_beat_is_asked_too() -> None:
    """The ledger knows of it with the next beat of the owner."""
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _), _system(ledger, "asker") as asker:
        owner.spawn("fresh/1", Probe)
        assert await asker.ask("fresh/1", Ping(text="x"), thread_id="t") == Pong(text="x!")
        began = asyncio.get_running_loop().time()
        with pytest.raises(UndeliverableError, match="start a host that has the kind 'missing'"):
            await asker.ask("missing/1", Ping(text="x"), thread_id="t")
        assert asyncio.get_running_loop().time() - began < 2.5  # one beat


async def test_a_new_thread_goes_to_the_host_that_has_the_actor() -> None:
    ledger = MemoryLedger()
    async with _system(ledger, "able") as able, _system(ledger, "asker") as asker:
        able.register("probe", Probe)
        async with _hosted(able):
            assert await asker.ask("probe/1", Ping(text="x"), thread_id="new") == Pong(text="x!")
            assert await _owner(ledger, "new") == "able"


async def test_without_a_living_host_that_has_the_actor_a_message_is_undeliverable() -> None:
    ledger = MemoryLedger()
    async with _system(ledger, "able") as able:
        able.register("probe", Probe)
        await able.ask("probe/1", Ping(text="first"), thread_id="t")
    async with _system(ledger, "asker") as asker:
        with pytest.raises(UndeliverableError, match="start a host that has the kind 'probe'"):
            await asker.ask("probe/1", Ping(text="x"), thread_id="t")
        with pytest.raises(UndeliverableError, match="start a host"):
            await asker.tell("probe/1", Note(text="x"), thread_id="t")
        assert [letter.to for letter in asker.dead_letters] == ["probe/1", "probe/1"]
    assert await ledger.open_calls("t") == ()


class PostedTo(MemoryLedger):
    """A ledger in which a message is posted to a thread at the moment at which `by` has claimed it."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by

    async def claim(self, thread_id: str, *, by: Host | None = None, **more: Any) -> Epoch:
        epoch = await super().claim(thread_id, by=by, **more)
        if by is not None and by.name == self.by:
            payload = _call("posted", Ping(text="posted"))
            await self.post(thread_id, Message(policy="client", payload=payload, to=("probe/1",), lane="control", id="posted"))
        return epoch


async def test_a_message_posted_while_a_host_claims_the_thread_is_delivered_at_once() -> None:
    """The thread had another owner. Its open work is not this host's; a message that is posted from now on is."""
    ledger = PostedTo("second")
    async with _system(ledger, "first") as first:
        first.register("probe", Probe)
        await first.ask("probe/1", Ping(text="first"), thread_id="t")
    async with _system(ledger, "second") as second:
        second.register("probe", Probe)
        await second.ask("probe/1", Ping(text="x"), thread_id="t")
        await asyncio.sleep(1)
        assert await ledger.open_calls("t") == ()
        assert (await second.ask("probe/1", Do(what="list"), thread_id="t")).said == ("x", "posted")


class Late(MemoryLedger):
    """A ledger that is slow: a claim and a take of one host overlap."""

    async def claim(self, thread_id: str, **more: Any) -> Epoch:
        await asyncio.sleep(1.5)
        return await super().claim(thread_id, **more)

    async def take(self, by: Host, **more: Any) -> tuple[TakenThread, ...]:
        taken = await super().take(by, **more)
        await asyncio.sleep(1.0)
        return taken

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        await asyncio.sleep(0.5)
        return await super().append(thread_id, messages, **more)


async def test_a_claim_that_overlaps_with_a_take_of_the_same_host_fences_nobody() -> None:
    """Both give the host the thread. The claim is later, and has the later epoch."""
    ledger, wait = Late(), Do(what="wait", seconds=0.2)
    payload = OptionCallPayload(invocation_id="m", option_name=Do.message_type, arguments=wait.to_data())
    await ledger.post("t", Message(policy="client", payload=payload, to=("probe/1",), lane="control", id="m"))
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        hosting = asyncio.ensure_future(system.host())
        await asyncio.sleep(0.5)  # it is taken, and the host does not know yet
        other = asyncio.ensure_future(system.ask("probe/2", Ping(text="n"), thread_id="t", id="n"))
        await asyncio.sleep(0.7)
        same = system.ask("probe/1", wait, thread_id="t", id="m", sender="client")
        assert await asyncio.gather(same, other) == [Done(said=()), Pong(text="n!")]
        assert await ledger.open_calls("t") == ()
        hosting.cancel()


class OneClaim(Counted):
    """A ledger whose claims take a second, and may fail then."""

    is_unavailable = False

    async def claim(self, thread_id: str, **more: Any) -> Epoch:
        await asyncio.sleep(1)
        if self.is_unavailable:
            raise LedgerUnavailableError("the disk is gone")
        return await super().claim(thread_id, **more)


async def test_a_caller_that_is_cancelled_cancels_no_claim_that_others_wait_for() -> None:
    ledger = OneClaim()
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        asks = [asyncio.ensure_future(system.ask(f"probe/{n}", Ping(text="x"), thread_id="t")) for n in range(3)]
        await asyncio.sleep(0.5)
        asks[0].cancel()
        assert await asyncio.gather(*asks[1:]) == [Pong(text="x!"), Pong(text="x!")]
        assert asks[0].cancelled()
        assert ledger.calls["claim"] == 1


async def test_a_claim_that_fails_fails_all_that_wait_for_it() -> None:
    ledger = OneClaim()
    ledger.is_unavailable = True
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        asks = [system.ask(f"probe/{n}", Ping(text="x"), thread_id="t") for n in range(2)]
        errors = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(error) for error in errors] == [LedgerUnavailableError] * 2
        assert ledger.calls["claim"] == 1
        ledger.is_unavailable = False
        assert await system.ask("probe/1", Ping(text="y"), thread_id="t") == Pong(text="y!")


class Broken(Probe):
    """An actor whose handler raises until a message has been delivered `times` times."""

    times = 1

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        if context.attempt <= self.times:
            raise RuntimeError("broken")
        return Pong(text="mended")


async def test_a_failed_actor_is_restarted_by_its_own_host() -> None:
    """Every host has an actor of that address. The first to fail owns the system thread of both."""
    ledger = MemoryLedger()
    async with _system(ledger, "first") as first, _system(ledger, "second") as second:
        for number, system in enumerate((first, second, first, second)):
            if number < 2:
                system.register("probe", Broken)
            assert await system.ask("probe/1", Ping(text="x"), thread_id=f"t{number}") == Pong(text="mended")
        assert [_incarnation(system) for system in (first, second)] == [3, 3]


def _incarnation(system: System) -> int:
    return system._kernel.tree.cells["probe/1"].incarnation


async def test_the_caller_of_another_host_learns_that_its_message_is_parked() -> None:
    class NeverMended(Broken):
        times = 100

    ledger = MemoryLedger()
    async with _system(ledger, "owner") as owner, _system(ledger, "other") as other:
        for system in (owner, other):
            system.register("probe", NeverMended)
        await owner.tell("probe/1", Note(text="begins"), thread_id="t")
        for _ in range(2):  # while it waits, and after it was parked
            with pytest.raises(ParkedError, match="it was delivered 4 times"):
                await other.ask("probe/1", Ping(text="x"), thread_id="t", id="m")
        assert await _owner(ledger) == "owner"


async def test_a_message_that_is_recovered_to_a_stopped_actor_is_answered() -> None:
    ledger = MemoryLedger()
    async with _system(ledger, "host") as host:
        host.register("probe", Probe)
        await host.ask("probe/1", Stop(actor_id="probe/1", reason="enough"))
        message = Message(policy="client", payload=_call("m", Ping(text="x")), to=("probe/1",), lane="control", id="m")
        await left_by_the_dead(ledger, "t", "probe", [message])
        await host.recover("t")
        (_, result) = await ledger.find(invocation_id="m", thread_id="t")
        assert isinstance(result.message.payload, OptionResultPayload)
        assert result.message.payload.error_type == ActorStoppedError.code
    assert await ledger.open_calls("t") == ()


async def test_a_host_that_gets_a_lost_thread_again_starts_with_fresh_state() -> None:
    """It slept past its lease, and another host had the thread and released it: the state of its handlers is old."""
    runs: list[str] = []

    class Slow(Probe):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            runs.append("begins")
            try:
                await asyncio.sleep(30 if len(runs) == 1 else 0)
            except asyncio.CancelledError:
                runs.append("cancelled")
                raise
            return Pong(text="done")

    ledger = MemoryLedger()
    async with _system(ledger, "owner") as owner:
        owner.register("probe", Slow)
        asking = asyncio.ensure_future(owner.ask("probe/1", Ping(text="x"), thread_id="t"))
        await asyncio.sleep(0.1)
        epoch = await taken_by_another(ledger, "t")
        await ledger.release("t", epoch=epoch, wake_at=current_port().now())
        async with _hosted(owner):
            assert await asking == Pong(text="done")
    assert runs == ["begins", "cancelled", "begins"]


class Unread(MemoryLedger):
    """A ledger that confirms a post late, and then cannot be read for a moment."""

    is_late = False
    failures = 0

    async def post(self, thread_id: str, message: Message, **more: Any) -> Record:
        record = await super().post(thread_id, message, **more)
        if self.is_late:
            await asyncio.sleep(3)  # the owner answers meanwhile
            self.failures = 1
        return record

    async def find(self, **names: Any) -> tuple[Record, ...]:
        if self.failures:
            self.failures -= 1
            raise LedgerUnavailableError("simulated")
        return await super().find(**names)


async def test_an_answer_that_was_stored_before_its_caller_waits_is_looked_up_until_the_ledger_can_be_read() -> None:
    """The tail had passed it, and the only look-up failed: the caller waited until its time was over."""
    ledger = Unread()
    async with _two(ledger) as (_, other):
        first = asyncio.create_task(other.ask("probe/2", Do(what="wait", seconds=20), thread_id="t", id="w", within=60))
        await asyncio.sleep(1)  # there is a tail from now on
        ledger.is_late = True
        assert await other.ask("probe/1", Ping(text="x"), thread_id="t", id="m", within=40) == Pong(text="x!")
        assert not ledger.failures
        await first


async def test_an_error_answer_of_another_host_is_the_same_error_as_here() -> None:
    async with _two(MemoryLedger()) as (owner, other):
        found = []
        for system in (owner, other):
            with pytest.raises(RefusedError) as caught:
                await system.ask("probe/1", Do(what="refuse"), thread_id="t")
            found.append((caught.value.reason, caught.value.code, caught.value.retryable, caught.value.details))

        assert found[0] == found[1]


async def test_a_deadline_passes_for_a_caller_of_another_host_too() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (_, other):
        began = asyncio.get_running_loop().time()
        with pytest.raises(ReplyTimeoutError):
            await other.ask("probe/1", Do(what="wait", seconds=100), thread_id="t", id="m", within=3)

        assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.3)
        await asyncio.sleep(200)
        assert await ledger.open_calls("t") == ()  # the owner has ended it, whatever the caller does


async def test_a_caller_of_another_host_that_is_cancelled_leaves_the_message_to_the_owner() -> None:
    """It asks again under the same id, and gets the answer."""
    ledger = MemoryLedger()
    async with _two(ledger) as (_, other):
        asking = asyncio.ensure_future(other.ask("probe/1", Do(what="wait", seconds=5), thread_id="t", id="m"))
        await asyncio.sleep(2)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        again = other.ask("probe/1", Do(what="wait", seconds=5), thread_id="t", id="m")
        with suppress(WithdrawnError):
            assert await again == Done(said=("first",))
        await asyncio.sleep(10)
        assert await ledger.open_calls("t") == ()


# ---------------------------------------------------------------- the owner goes


@pytest.mark.parametrize("how", ["closes", "dies"])
async def test_a_caller_of_another_system_gets_the_answer_when_the_owner_has_gone(how: str) -> None:
    """G15, G16: the system that waits takes the thread over, without `host()`."""
    ledger = MemoryLedger()
    async with _system(ledger, "other") as other:
        other.register("probe", Probe)
        owner = _system(ledger, "owner")
        owner.register("probe", Probe, grace=0)
        await owner.ask("probe/1", Ping(text="first"), thread_id="t")
        asking = asyncio.ensure_future(other.ask("probe/1", Do(what="wait", seconds=3), thread_id="t", id="m", within=100))
        await asyncio.sleep(1)
        if how == "dies":  # its lease is not renewed, and its rows are refused
            await ledger.leave(await owner._kernel.lease.host())
        else:
            await owner.close()
        assert await asking == Done()
        assert await _owner(ledger) == "other"
        await owner.close()
    assert await ledger.open_calls("t") == ()


# ---------------------------------------------------------------- eviction


class Slow(Actor):
    """Works for a long time: a handler that can be cancelled, or one that ignores it."""

    log: list[str]

    def __init__(self, name: str, log: list[str], *, is_stubborn: bool = False) -> None:
        self._name, self.log, self._is_stubborn = name, log, is_stubborn

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        self.log.append(f"{self._name} begins")
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            self.log.append(f"{self._name} is cancelled")
            if not self._is_stubborn:
                raise
            await asyncio.sleep(20)

        async def pay(key: str) -> str:
            self.log.append(f"{self._name} pays")
            return "paid"

        for wrong in (lambda: context.tell("slow/2", Note(text="late")), lambda: context.remind(1, Note(text="late"))):
            with suppress(Exception):
                await wrong()
        return Pong(text=await context.effect("pay", {}, pay, effects="once"))

    @handles
    async def note(self, note: Note, context: Context) -> None:
        self.log.append(f"{self._name} hears {note.text}")


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_host_that_lost_a_thread_writes_nothing_and_starts_nothing_there(is_stubborn: bool) -> None:
    """G8: the handler is cancelled when a row is refused; one that goes on all the same can write and start nothing."""
    log: list[str] = []
    ledger = MemoryLedger()
    async with _system(ledger, "old") as old:
        old.register("slow", lambda: Slow("old", log, is_stubborn=is_stubborn), concurrency=4)
        asking = asyncio.ensure_future(old.ask("slow/1", Ping(text="x"), thread_id="t", id="m", within=1e6))
        await asyncio.sleep(2)
        await taken_by_another(ledger, "t")
        with suppress(ReplyTimeoutError):
            await old.tell("slow/1", Note(text="in the thread"), thread_id="t", within=5)  # the first row that is refused
        before = await rows(ledger, "t")
        await asyncio.sleep(100)

        assert await rows(ledger, "t") == before
        assert log == ["old begins", "old is cancelled"]
        assert not asking.done()  # the other host has not answered
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        assert await rows(ledger, "t") == before


async def test_a_handler_of_a_lost_thread_is_cancelled_even_if_the_answer_is_there_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tail gave it to the caller before the cancellation: the handler waited for ever, and the thread behind it."""
    log: list[str] = []
    ledger = MemoryLedger()
    async with _system(ledger, "old") as old:
        old.register("slow", lambda: Slow("old", log), concurrency=4)
        asking = asyncio.ensure_future(old.ask("slow/1", Ping(text="x"), thread_id="t", id="m", within=1e6))
        await asyncio.sleep(2)
        await taken_by_another(ledger, "t")
        monkeypatch.setattr(RemoteAnswers, "add", lambda self, delivery: delivery.settle(Pong(text="there")))
        with suppress(ReplyTimeoutError):
            await old.tell("slow/1", Note(text="in the thread"), thread_id="t", within=5)  # the first row that is refused
        assert await asking == Pong(text="there")
        await asyncio.sleep(100)

        assert log == ["old begins", "old is cancelled"]


async def test_the_timers_and_the_state_of_a_thread_that_was_lost_are_dropped() -> None:
    ledger, log = MemoryLedger(), list[str]()

    class Clock(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await context.remind(10, Note(text="rings"))
            return Pong(text="set")

        @handles
        async def note(self, note: Note, context: Context) -> None:
            log.append(note.text)

    async with _system(ledger, "old") as old:
        old.register("clock", Clock)
        await old.ask("clock/1", Ping(text="x"), thread_id="t")
        await taken_by_another(ledger, "t")
        await old.tell("clock/1", Note(text="refused here"), thread_id="t")
        assert old._kernel.timers.next_due("t") is None
        before = await rows(ledger, "t")
        await asyncio.sleep(60)
        assert await rows(ledger, "t") == before
    assert log == []


async def test_a_thread_that_was_lost_can_be_claimed_again_when_its_new_owner_has_gone() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _):
        await taken_by_another(ledger, "t")
        with suppress(ReplyTimeoutError):
            await owner.ask("probe/1", Ping(text="posted"), thread_id="t", id="p", within=3)
        await ledger.leave(Host("another", "build", instance="another/1"))
        assert await owner.ask("probe/1", Ping(text="x"), thread_id="t", id="m") == Pong(text="x!")
        assert await owner.ask("probe/1", Ping(text="posted"), thread_id="t", id="p") == Pong(text="posted!")
        assert await ledger.open_calls("t") == ()


# ---------------------------------------------------------------- released, due, taken


async def test_a_thread_that_was_lost_and_is_claimed_again_is_idle_only_from_then_on() -> None:
    """The host remembered since when it had been idle, and released the thread at once."""
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _):
        await asyncio.sleep(3)
        await taken_by_another(ledger, "t")
        with pytest.raises(ReplyTimeoutError):  # the other host lives, and answers nothing
            await owner.ask("probe/1", Ping(text="x"), thread_id="t", within=1)
        another = next(each.host for each in await ledger.hosts() if each.host.name == "another")
        await ledger.leave(another)
        await asyncio.sleep(100)
        await owner.ask("probe/1", Ping(text="y"), thread_id="t")
        await asyncio.sleep(4)
        assert await _owner(ledger) == "owner"


async def test_an_idle_thread_is_released_and_the_next_message_claims_it() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (_, other):
        assert await _owner(ledger) == "owner"
        await asyncio.sleep(15)
        assert await _owner(ledger) is None
        await other.ask("probe/1", Ping(text="x"), thread_id="t")
        assert await _owner(ledger) == "other"


async def test_a_timer_of_a_released_thread_rings_on_another_host() -> None:
    ledger, log = MemoryLedger(), list[str]()

    class Clock(Actor):
        def __init__(self, name: str) -> None:
            self._name = name

        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await context.remind(60, Note(text="rings"))
            return Pong(text="set")

        @handles
        async def note(self, note: Note, context: Context) -> None:
            log.append(f"{self._name} at {asyncio.get_running_loop().time():.0f}")

    async with _system(ledger, "first") as first:
        first.register("clock", lambda: Clock("first"))
        async with _hosted(first):
            await first.ask("clock/1", Ping(text="x"), thread_id="t")
            await asyncio.sleep(20)
            assert await _owner(ledger) is None  # it only waits for the timer
    async with _system(ledger, "second") as second:
        second.register("clock", lambda: Clock("second"))
        async with _hosted(second):
            await asyncio.sleep(100)
    ((word),) = log
    assert word.startswith("second at 6")
    assert await ledger.open_calls("t") == ()


async def test_a_host_takes_what_was_posted_and_what_a_dead_host_left() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _):
        message = Message(
            policy="client", payload=_call("posted", Ping(text="p")), to=("probe/1",), lane="control", id="posted"
        )
        await left_by_the_dead(ledger, "u", "probe", [message])
        async with _hosted(owner):
            await asyncio.sleep(5)
            assert await ledger.open_calls("u") == ()
            assert await _owner(ledger, "u") == "owner"


class Paying(Actor):
    """Pays once for each request. While the bank is `shut`, a payment does not end."""

    def __init__(self, paid: list[str], *, is_shut: bool = False) -> None:
        self._paid, self._is_shut = paid, is_shut

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def pay(key: str) -> str:
            self._paid.append(ping.text)
            if self._is_shut:
                await asyncio.sleep(1e6)
            return "paid"

        return Pong(text=await context.effect("pay", {}, pay, effects="once"))


async def _post_ping(ledger: MemoryLedger) -> None:
    payload = _call("posted", Ping(text="p"))
    await ledger.post("t", Message(policy="client", payload=payload, to=("bank/1",), lane="control", id="posted"))


async def test_a_message_posted_to_a_new_thread_starts_without_a_row_of_its_own() -> None:
    """No effect can have started there, so nothing is looked up."""
    ledger, paid = Counted(), list[str]()
    await _post_ping(ledger)
    async with _system(ledger, "host") as system:
        system.register("bank", lambda: Paying(paid))
        ledger.calls.clear()
        async with _hosted(system):
            await asyncio.sleep(1)
    assert await rows(ledger, "t") == ["TEST_PING", "pay", "=pay", "=TEST_PING"]
    # Open calls are read once, before it begins.
    assert (paid, ledger.calls["by_invocation"], ledger.calls["open_calls"]) == (["p"], 0, 1)


async def test_a_posted_message_taken_by_a_host_that_died_counts_as_a_delivery() -> None:
    """A message that kills its host before it writes anything would otherwise kill one host after the other."""
    ledger, paid = MemoryLedger(), list[str]()
    await _post_ping(ledger)
    dead = Host("dead", "1", ("bank",), instance="dead/1")
    await ledger.beat(dead)
    assert [each.epoch for each in await ledger.take(dead, kinds=("bank",), limit=1)] == [1]
    await ledger.leave(dead)
    async with _system(ledger, "host") as system:
        system.register("bank", lambda: Paying(paid))
        async with _hosted(system):
            await asyncio.sleep(5)
    assert (await rows(ledger, "t"))[:2] == ["TEST_PING", "AGAIN"]
    assert paid == ["p"]


async def test_a_restored_thread_has_no_owner_before_and_starts_nothing_twice() -> None:
    ledger, copy, paid = MemoryLedger(), MemoryLedger(), list[str]()
    await _post_ping(ledger)
    async with _system(ledger, "first") as first:
        first.register("bank", lambda: Paying(paid, is_shut=True))
        async with _hosted(first):
            await asyncio.sleep(1)
            journal = ThreadJournal("t", tuple([record async for record in ledger.read("t")]))
            await copy.restore([journal], await heads_of(ledger))
    async with _system(copy, "second") as second:
        second.register("bank", lambda: Paying(paid))
        async with _hosted(second):
            await asyncio.sleep(5)
            assert [each.thread_id for each in await second.parked()] == ["t"]
    assert paid == ["p"]


async def _post_waits(ledger: MemoryLedger, number: int, seconds: float = 5) -> None:
    """Post to each of so many threads a message whose handler takes five seconds."""
    for each in range(number):
        payload = OptionCallPayload(
            invocation_id="m", option_name=Do.message_type, arguments=Do(what="wait", seconds=seconds).to_data()
        )
        await ledger.post(f"t{each}", Message(policy="client", payload=payload, to=(f"probe/{each}",), lane="control", id="m"))


def _at_work(*systems: System) -> list[int]:
    return [system._kernel.in_flight.thread_count for system in systems]


async def test_two_hosts_share_the_threads_that_are_due() -> None:
    """A host that took all that is due in one round would leave nothing to the other."""
    ledger = MemoryLedger()
    await _post_waits(ledger, 100)
    async with _system(ledger, "one") as one, _system(ledger, "other") as other:
        for system in (one, other):
            system.register("probe", Probe)
        async with _hosted(one), _hosted(other):
            await asyncio.sleep(2)
            shares = _at_work(one, other)
            assert sum(shares) == 100
            assert min(shares) >= 30, shares
            await asyncio.sleep(6)
            assert _at_work(one, other) == [0, 0]


async def test_a_host_takes_no_more_threads_than_its_limit_and_others_take_the_rest() -> None:
    ledger = MemoryLedger()
    await _post_waits(ledger, 10)
    async with _system(ledger, "one", thread_limit=3) as one, _system(ledger, "other") as other:
        for system in (one, other):
            system.register("probe", Probe)
        async with _hosted(one):
            await asyncio.sleep(4)
            assert _at_work(one) == [3]
            await asyncio.sleep(2)  # those have ended, and it has taken the next ones
            assert _at_work(one) == [3]
            assert sum([not (await ledger.open_calls(f"t{each}")) for each in range(10)]) == 3
            async with _hosted(other):
                await asyncio.sleep(1)
                assert _at_work(one, other) == [3, 4]


async def test_a_host_takes_the_next_thread_as_soon_as_one_has_ended() -> None:
    """It need not wait for its next look, of which there are five in a second."""
    ledger = MemoryLedger()
    await _post_waits(ledger, 10, seconds=0)
    async with _system(ledger, "one", thread_limit=1) as one:
        one.register("probe", Probe)
        async with _hosted(one):
            await asyncio.sleep(0.3)
            assert [each for each in range(10) if await ledger.open_calls(f"t{each}")] == []


class FailsOnce(MemoryLedger):
    """Fails the first call of a verb."""

    def __init__(self, verb: str, error: Exception) -> None:
        super().__init__()
        self._call, self.failures = getattr(self, verb), 0
        self._error = error
        setattr(self, verb, self._fail)

    async def _fail(self, *given: Any, **more: Any) -> Any:
        if not self.failures:
            self.failures += 1
            raise self._error
        return await self._call(*given, **more)


@pytest.mark.parametrize(
    ("verb", "error", "logged"),
    [
        ("woken", ValueError(), "the runtime itself has failed: ValueError"),
        ("take", LedgerUnavailableError("restarting"), "this host is late: restarting"),
    ],
)
async def test_a_host_goes_on_after_an_error(
    verb: str, error: Exception, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """G16: one that nobody expected, and a ledger that cannot be reached at the first look."""
    ledger = FailsOnce(verb, error)
    async with _system(ledger, "one") as one:
        one.register("probe", Probe)
        async with _hosted(one):
            await asyncio.sleep(4)
            await _post_waits(ledger, 3, seconds=0)
            await asyncio.sleep(4)
            assert [each for each in range(3) if await ledger.open_calls(f"t{each}")] == []
            assert [each.is_alive for each in await ledger.hosts()] == [True]
    assert ledger.failures == 1
    assert [each.getMessage().split("\n")[0] for each in caplog.records] == [logged]


async def test_a_host_of_some_kinds_takes_and_offers_no_others() -> None:
    ledger = MemoryLedger()
    for kind in ("probe", "other"):
        await ledger.post(kind, Message(policy="user/1", payload=_ping(kind), to=(f"{kind}/1",), lane="control"))
    async with _system(ledger, "one", kinds=("probe", "unknown")) as one:
        for kind in ("probe", "other"):
            one.register(kind, Probe)
        async with _hosted(one):
            await asyncio.sleep(4)
            assert one.kinds == ("probe", "other")
            assert [each.host.kinds for each in await ledger.hosts()] == [("probe",)]
            assert [len(await ledger.open_calls(kind)) for kind in ("probe", "other")] == [0, 1]
    async with _system(ledger, "rest") as rest:
        rest.register("other", Probe)
        async with _hosted(rest):
            await asyncio.sleep(4)
            assert await ledger.open_calls("other") == ()


async def test_threads_that_a_host_has_taken_over_from_a_dead_one_are_counted() -> None:
    """One row for all of them; talk from outside in that thread counts for nothing."""
    ledger = MemoryLedger()
    for number in range(3):
        row = Message(policy="user/1", payload=_ping("x"), to=("probe/1",), lane="control", id=f"m{number}")
        await left_by_the_dead(ledger, f"left-{number}", "probe", [row])
    await _post_waits(ledger, 2)
    assert await read_take_overs(ledger) == (0, None)
    async with _system(ledger, "one") as one:
        one.register("probe", Probe)
        async with _hosted(one):
            await asyncio.sleep(4)
    found = await read_take_overs(ledger)
    assert found.threads == 3
    assert found.last_at is not None
    assert (await ledger.thread("system/take-overs")).messages == 1


def _ping(text: str) -> OptionCallPayload:
    call = Ping(text=text)
    return OptionCallPayload(invocation_id=f"i-{text}", option_name=call.message_type, arguments=call.to_data())


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_host_without_room_for_threads_is_refused(limit: int) -> None:
    async with _system(MemoryLedger(), "host", thread_limit=limit) as system:
        with pytest.raises(ValueError, match="thread_limit is 1 or more"):
            await system.host()


async def test_a_failure_report_of_a_dead_host_is_ended_and_not_carried_out() -> None:
    """Its supervisor had decided to stop the actor. The one here has seen no failure, and would decide otherwise."""
    ledger = MemoryLedger()
    failed = ErrorNotification(
        actor_id="probe/1", error_message="broken", error_code="ACTOR_FAILED", details={"where": "x", "incarnation": 1}
    )
    stop = Stop(actor_id="probe/1", reason="broken")
    asked = OptionCallPayload(invocation_id="f", option_name=failed.message_type, arguments=failed.to_data())
    told = OptionCallPayload(invocation_id="f/1", option_name=stop.message_type, arguments=stop.to_data())
    rows = [
        Message(policy="probe/1", payload=asked, to=("system/root",), lane="control", id="f"),
        Message(policy="system/root", payload=told, to=("probe/1",), lane="control", id="f/1", parent_id="f"),
    ]
    await left_by_the_dead(ledger, "system/probe/1", "probe", rows)
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        assert await system.ask("probe/1", Ping(text="x"), thread_id="t") == Pong(text="x!")
        assert (await system.recover()).delivered == 0
        assert await system.ask("probe/1", Do(what="list"), thread_id="t") == Done(said=("x",))  # the same actor
        assert await ledger.open_calls("system/probe/1") == ()
        results = [record.message.payload async for record in ledger.read("system/probe/1", after=2)]
        errors = [each.error_type for each in results if isinstance(each, OptionResultPayload) and each.is_error]
        assert errors == ["ACTOR_STOPPED", "ACTOR_STOPPED"]
        thread = await ledger.thread("system/probe/1")
        assert thread is not None
        assert (thread.status, thread.unfit) == (None, ())


async def test_recover_takes_nothing_that_another_living_host_has() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, other):
        asking = asyncio.ensure_future(owner.ask("probe/1", Do(what="wait", seconds=5), thread_id="t", id="m"))
        await asyncio.sleep(1)
        assert (await other.recover()).threads == 0
        assert await asking == Done(said=("first",))
        assert await _owner(ledger) == "owner"


@pytest.mark.slow
async def test_a_thread_that_nobody_can_run_is_listed_with_the_reason_and_not_tried_again_and_again() -> None:
    ledger = Counted()
    message = Message(policy="client", payload=_call("m", Ping(text="p")), to=("missing/1",), lane="control", id="m")
    await left_by_the_dead(ledger, "t", "probe", [message])
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        async with _hosted(system):
            await asyncio.sleep(10)
            ledger.calls.clear()
            await asyncio.sleep(600)
            calls = Counter(ledger.calls)
        thread = await ledger.thread("t")
    assert thread is not None
    ((unfit),) = thread.unfit
    assert (unfit.build, thread.owner, thread.open_calls) == ("1", None, 1)
    assert "no actor for 1 message" in unfit.reason
    assert calls["claim"] == calls["release"] == calls["open_calls"] == calls["append"] == 0, calls
    assert calls["take"] <= 3 * 600 / 2 + 2  # at each beat, and twice between two beats


# ---------------------------------------------------------------- bad hosts


async def test_two_hosts_of_one_name_are_refused_while_the_first_lives() -> None:
    ledger = MemoryLedger()
    async with _two(ledger), _system(ledger, "owner") as second:
        second.register("probe", Probe)
        with pytest.raises(HostError, match="choose another name"):
            await second.ask("probe/1", Ping(text="x"), thread_id="u")
        with pytest.raises(HostError, match="choose another name"):
            await second.recover()


async def test_a_name_is_free_again_when_its_host_has_left() -> None:
    ledger = MemoryLedger()
    async with _two(ledger):
        pass
    async with _system(ledger, "owner") as second:
        second.register("probe", Probe)
        assert await second.ask("probe/1", Ping(text="x"), thread_id="u") == Pong(text="x!")


@pytest.mark.parametrize(("failures", "is_there"), [(3, True), (10**6, False)])
async def test_a_starting_host_waits_for_a_while_for_a_ledger_that_cannot_be_reached(failures: int, is_there: bool) -> None:
    """A database that restarted just then ended the host."""
    left = iter(range(failures))

    class Restarting(MemoryLedger):
        async def beat(self, host: Host) -> Any:
            if next(left, None) is not None:
                raise LedgerUnavailableError("it restarts")
            return await super().beat(host)

    async with _system(Restarting(), "h") as system:
        hosting = asyncio.ensure_future(system.host())
        await asyncio.sleep(30)

        assert hosting.done() is not is_there
        hosting.cancel()
        with pytest.raises(asyncio.CancelledError if is_there else LedgerUnavailableError):
            await hosting


@pytest.mark.parametrize("heartbeat", [0, -1, float("nan"), float("inf"), 1e9])
async def test_a_lease_of_no_length_is_refused(heartbeat: float) -> None:
    async with _system(MemoryLedger(), "host", heartbeat=heartbeat) as system:
        system.register("probe", Probe)
        with pytest.raises(ValueError, match="the lease of a host is more than 0"):
            await system.ask("probe/1", Ping(text="x"), thread_id="t")


async def test_a_host_that_is_expired_renews_its_lease_when_it_claims_and_takes() -> None:
    ledger = MemoryLedger()
    async with _two(ledger) as (owner, _):
        await asyncio.sleep(60)  # it has no threads, so it does not beat
        assert not [each for each in await ledger.hosts() if each.host.name == "owner" and each.is_alive]
        assert (await owner.recover()).threads == 0
        await asyncio.sleep(60)
        assert await owner.ask("probe/1", Ping(text="x"), thread_id="u") == Pong(text="x!")


class Sleepy(MemoryLedger):
    """A ledger whose caller is stopped past its lease in the first take."""

    has_slept = False

    async def take(self, by: Host, **more: Any) -> tuple[TakenThread, ...]:
        if not self.has_slept:
            self.has_slept = True
            await asyncio.sleep(2 * LEASE)
        return await super().take(by, **more)


async def test_a_host_that_sleeps_between_its_beat_and_its_take_takes_all_the_same() -> None:
    ledger = Sleepy()
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        assert (await system.recover()).threads == 0
        assert ledger.has_slept


class Forgetful(MemoryLedger):
    """A ledger that executes a call and then says that it is unavailable."""

    def __init__(self, *verbs: str) -> None:
        super().__init__()
        self.verbs = set(verbs)

    def _fail(self, verb: str) -> None:
        if verb in self.verbs:
            self.verbs.remove(verb)
            raise LedgerUnavailableError("as told")

    async def take(self, by: Host, **more: Any) -> tuple[TakenThread, ...]:
        taken = await super().take(by, **more)
        if taken:
            self._fail("take")
        return taken

    async def claim(self, thread_id: str, **more: Any) -> Epoch:
        epoch = await super().claim(thread_id, **more)
        self._fail("claim")
        return epoch

    async def release(self, thread_id: str, **more: Any) -> None:
        self._fail("release")
        await super().release(thread_id, **more)

    async def open_calls(self, thread_id: str | None = None, **more: Any) -> Any:
        self._fail("open_calls")
        return await super().open_calls(thread_id, **more)


@pytest.mark.parametrize("verb", ["take", "open_calls"])
async def test_a_thread_that_the_ledger_gave_to_a_host_without_its_knowledge_goes_on(verb: str) -> None:
    """G16: no other host takes it, because this one lives."""
    ledger = Forgetful()
    message = Message(policy="client", payload=_call("m", Ping(text="p")), to=("probe/1",), lane="control", id="m")
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        async with _hosted(system):
            await left_by_the_dead(ledger, "t", "probe", [message])
            ledger.verbs = {verb}
            await asyncio.sleep(30)
        assert not ledger.verbs
    assert await ledger.open_calls("t") == ()


async def test_a_thread_that_is_given_up_hides_no_other_that_the_ledger_gave_to_a_host() -> None:
    """G16: the error about the first ended the search, and nobody continued the second while the host lived."""
    ledger = Forgetful()
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        async with _hosted(system):
            for name in ("a", "b"):
                call = Message(policy="client", payload=_call(name, Ping(text="p")), to=("probe/1",), lane="control", id=name)
                await left_by_the_dead(ledger, name, "probe", [call])
            system._kernel.journal._lost["a"] = FencedError("a", 1, 2)  # its handlers are ending, and then it is released
            ledger.verbs = {"take"}
            await asyncio.sleep(30)
            system._kernel.journal._lost.clear()
        assert not ledger.verbs
        assert await ledger.open_calls("b") == ()


async def test_a_release_that_was_not_written_is_written_later() -> None:
    ledger = Forgetful("release")
    async with _two(ledger):
        await asyncio.sleep(40)
        assert not ledger.verbs
        assert await _owner(ledger) is None


async def test_a_claim_that_was_not_confirmed_is_found_again() -> None:
    """What a dead host left open in the thread is done, though the caller got an error."""
    ledger = Forgetful("claim")
    message = Message(policy="client", payload=_call("m", Ping(text="p")), to=("probe/1",), lane="control", id="m")
    verbs, ledger.verbs = ledger.verbs, set()
    await left_by_the_dead(ledger, "t", "probe", [message])
    ledger.verbs = verbs
    async with _system(ledger, "host") as system:
        system.register("probe", Probe)
        with pytest.raises(LedgerUnavailableError):
            await system.ask("probe/1", Ping(text="x"), thread_id="t")
        await asyncio.sleep(30)
        assert await _owner(ledger) is None  # the host was not asked to run it
        async with _hosted(system):
            await asyncio.sleep(1)
    assert await ledger.open_calls("t") == ()


def _call(invocation_id: str, ping: Ping) -> OptionCallPayload:
    return OptionCallPayload(invocation_id=invocation_id, option_name=Ping.message_type, arguments=ping.to_data())


# ---------------------------------------------------------------- one thread and the others


class Damaged(MemoryLedger):
    """A ledger in which the open calls of one thread cannot be read, from some moment on."""

    damaged: str | None = None

    async def open_calls(self, thread_id: str | None = None, **options: Any) -> Any:
        if thread_id is not None and thread_id == self.damaged:
            raise LedgerCorruptError("a row was altered", thread_id, 1)
        return await super().open_calls(thread_id, **options)


async def test_a_damaged_thread_keeps_no_other_from_its_host(caplog: pytest.LogCaptureFixture) -> None:
    """What was posted to threads after it waited for seconds, and no idle thread was ever released."""
    ledger = Damaged()
    async with _system(ledger, "owner") as system:
        system.register("probe", Probe)
        hosting = asyncio.create_task(system.host())
        for name in ("a", "b"):
            await system.ask("probe/1", Ping(text="first"), thread_id=name, id=f"first {name}")
        ledger.damaged = "a"
        for name in ("a", "b"):
            await ledger.post(name, _pinged(f"second {name}"))
        await asyncio.sleep(3)
        assert [row.message.kind for row in await ledger.find(invocation_id="second b")] == ["option_call", "option_result"]
        await asyncio.sleep(60)
        assert await _owner(ledger, "b") is None
        assert caplog.text.count("thread a cannot be continued here: thread 'a'") == 1
        ledger.damaged = None
        await asyncio.sleep(10)
        assert [row.message.kind for row in await ledger.find(invocation_id="second a")] == ["option_call", "option_result"]
        hosting.cancel()
        await asyncio.gather(hosting, return_exceptions=True)


def _pinged(invocation_id: str) -> Message:
    data = Ping(text="x")
    payload = OptionCallPayload(invocation_id=invocation_id, option_name=data.message_type, arguments=data.to_data())
    return Message(policy="client", payload=payload, to=("probe/1",), lane="control")


# ---------------------------------------------------------------- clocks


async def test_a_lease_runs_out_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the event loop stands still then. An effect would begin after another host has taken the thread."""
    slept = [1000.0]
    monkeypatch.setattr(lease_module, "slept_seconds", lambda: slept[0])
    lease = Lease(MemoryLedger(), Settings(host="h", build="1"), tuple)
    await lease.host()
    assert not lease.has_lapsed()
    slept[0] += LEASE
    assert lease.has_lapsed()
    await lease.host(renew=True)
    assert (lease.has_lapsed(), lease.beaten.term) == (False, 1)


def test_the_time_that_the_machine_has_slept_does_not_change_while_it_is_awake() -> None:
    first = lease_module.slept_seconds()
    assert first >= -1
    assert abs(lease_module.slept_seconds() - first) < 1


# ---------------------------------------------------------------- what waits for a person


class Asker(Actor):
    """Asks a person, and waits for the answer; it hears of the time only at the beginning."""

    def __init__(self, times: list[datetime], expires: float) -> None:
        self._times, self._expires = times, timedelta(seconds=expires)

    @handles
    async def ping(self, request: Ping, context: Context) -> Pong:
        self._times.append(current_port().now())
        expiry = self._times[0] + self._expires
        if self._times[-1] >= expiry:
            return Pong(text="expired")
        question = OptionCallPayload(invocation_id="q", option_name="approve", arguments={"expires_at": expiry.isoformat()})
        if len(self._times) == 1:
            await context.journal.write("t", [Message(id="q", policy="asker/1", lane="control", payload=question)])
        await asyncio.sleep(2)
        waits = ParkedError("it waits for a person")
        context.leave_open(waits)
        raise waits


@pytest.mark.parametrize("expires", [1, 100])
async def test_a_question_that_expires_before_its_handler_has_left_it_makes_its_thread_due(expires: float) -> None:
    """It was left open after the expiry, and so it rested for ever."""
    ledger, times = MemoryLedger(), list[datetime]()
    async with _system(ledger, "host") as system, _hosted(system):
        system.register("asker", lambda: Asker(times, expires))
        with pytest.raises(ParkedError):
            await system.ask("asker/1", Ping(text="x"), thread_id="t", id="m", within=1000)
        await asyncio.sleep(200)
        assert len(times) == 2
        assert not any(row.message.invocation_id == "m" for row in await ledger.open_calls("t"))


async def test_a_thread_that_waits_for_a_person_is_not_unfit_because_of_a_message_to_an_unknown_actor() -> None:
    """No host of this build would take it when the person answers."""
    ledger, times = MemoryLedger(), list[datetime]()
    async with _system(ledger, "host") as system, _hosted(system):
        system.register("asker", lambda: Asker(times, 1000))
        with pytest.raises(ParkedError):
            await system.ask("asker/1", Ping(text="x"), thread_id="t", id="m", within=5000)
        call = OptionCallPayload(invocation_id="g", option_name="ping", arguments={"text": "x"})
        await ledger.post("t", Message(id="g", policy="client", to=("ghost/1",), lane="control", payload=call))
        await asyncio.sleep(50)
        found = await ledger.thread("t")
        assert found is not None
        assert (found.unfit, len(times)) == ((), 2)
