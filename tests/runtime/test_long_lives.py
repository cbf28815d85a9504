"""A system that lives long: it frees its memory, wakes the right waiters, and ends in time (G14, G16, G18)."""

import asyncio
import gc
from contextlib import suppress

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, left_by_the_dead, rows
from tests.runtime.test_edges import Broken

from antiphon.errors import ActorFailedError, ActorStoppedError, ParkedError, RefusedError, ReplyTimeoutError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.protocol import Restart
from antiphon.protocol.flows import Flow, Step, Verdict
from antiphon.runtime import Actor, Context, System, _topics, handles, run, system_thread
from antiphon.runtime._delivery import Deadlines, DeliveryState, Envelope
from antiphon.runtime._rows import begun
from antiphon.testing._virtual_time import VirtualLoop

pytestmark = pytest.mark.virtual_time


# ---------------------------------------------------------------- what is forgotten


@pytest.mark.slow
def test_deadlines_that_are_far_away_share_their_buckets() -> None:
    """A day of asks that may take a day: a few thousand buckets, and each deadline is kept to a five-hundredth."""
    loop = VirtualLoop()
    deadlines = Deadlines(loop)
    expired: list[tuple[float, float]] = []

    class Asked(DeliveryState):
        def expire(self) -> None:
            assert self.deadline is not None
            expired.append((self.deadline, loop.time()))

    for number in range(20_000):
        delivery = Asked(Envelope(Ping(text=""), None, "me", "you"), may_be_known=False)
        delivery.deadline = 0.001 + number * 86_400 / 20_000
        deadlines.add(delivery, delivery.deadline, loop.time())
    assert len(deadlines._buckets) < 6_000

    async def wait() -> None:
        await asyncio.sleep(100_000)

    loop.run_until_complete(wait())
    loop.close()
    assert len(expired) == 20_000
    assert all(0 <= at - deadline <= max(0.02, deadline / 250) for deadline, at in expired)


async def test_an_idle_thread_is_released_and_claimed_again() -> None:
    ledger = MemoryLedger()
    async with System(ledger) as system:
        system.register("probe", Probe)
        for _ in range(2):
            for number in range(10):
                await system.ask("probe/1", Ping(text="a"), thread_id=f"t{number}")
            assert len(system._kernel.journal.owned) == 10
            await asyncio.sleep(20)
            assert system._kernel.journal.owned == ()
            assert (await ledger.thread("t0")).owner is None  # type: ignore[union-attr]
        assert await rows(ledger, "t0") == ["TEST_PING", "=TEST_PING"] * 2


async def test_a_flow_is_watched_in_so_many_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_topics, "_MOST_THREADS", 2)
    found: list[str] = []

    def report(thread_id: str, _: Verdict) -> None:
        found.append(thread_id)

    async with System() as system:
        system.watch_flow(Flow("one note", "Only one.", Step("writer", "probe", "TEST_NOTE")), report)
        system.spawn("probe/1", Probe)
        for thread in ("a", "b", "c", "c", "a"):
            await system.tell("probe/1", Note(text=""), thread_id=thread)

    assert found == ["c"]  # the start of "a" is no longer in memory


# ---------------------------------------------------------------- what goes on


class Holding(Actor):
    """Its handler is asked for something that takes time; it may do it in its own course."""

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        with suppress(ReplyTimeoutError):
            await context.ask(context.address, Do(what="wait", seconds=60), within=1)
        return Pong(text="gave up")

    @handles
    async def do(self, request: Do, context: Context) -> Done:
        async def wait(key: str) -> None:
            await asyncio.sleep(request.seconds)

        await context.effect("wait", {}, wait, effects="idempotent")
        return Done()


async def test_a_request_of_an_actor_to_itself_has_a_deadline_and_does_not_stay_open() -> None:
    async with System() as system:
        system.spawn("holding/1", Holding)
        assert await system.ask("holding/1", Ping(text=""), thread_id="t") == Pong(text="gave up")
        assert asyncio.get_running_loop().time() < 2
        expected = ["TEST_PING", "TEST_DO", "wait", "!TIMEOUT", "!CANCELLED", "=TEST_PING"]
        assert await rows(system.ledger, "t") == expected


class Early(Actor):
    """It asks itself for something, and answers that before the handler ends."""

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        done = await context.ask(context.address, Do(what="nothing"))
        return Pong(text=" ".join(done.said))

    @handles
    async def do(self, request: Do, context: Context) -> Done | None:
        await context.reply(Done(said=("first",)))
        return None


@pytest.mark.parametrize("thread_id", [None, "t"])
async def test_a_request_of_an_actor_to_itself_may_be_answered_early(thread_id: str | None) -> None:
    async with System() as system:
        system.spawn("early/1", Early)
        assert await system.ask("early/1", Ping(text=""), thread_id=thread_id) == Pong(text="first")
        if thread_id is not None:
            assert await rows(system.ledger, thread_id) == ["TEST_PING", "TEST_DO", "=TEST_DO", "=TEST_PING"]


class Sour(Probe):
    @handles
    async def do(self, request: Do, context: Context) -> Done:
        if request.what == "fail":
            raise RefusedError("half a character: \ud83d", "NO")
        raise RefusedError("look at the details", "NO", details=object())  # type: ignore[arg-type]


async def test_a_refusal_with_invalid_text_is_recorded_and_returned_as_recorded() -> None:
    """G14: the caller gets the same text as on a replay."""
    async with System() as system:
        system.spawn("sour/1", Sour)
        for _ in range(2):
            with pytest.raises(RefusedError, match=r"half a character: \?$"):
                await system.ask("sour/1", Do(what="fail"), thread_id="t", id="ask-1")


async def test_a_refusal_that_cannot_be_written_down_is_a_failure_and_the_mailbox_goes_on() -> None:
    """G14: it is seen, and holds up nobody."""
    async with System() as system:
        system.spawn("sour/1", Sour)
        asking = asyncio.create_task(system.ask("sour/1", Do(what="refuse"), thread_id="t"))
        assert await system.ask("sour/1", Ping(text="next"), thread_id="u") == Pong(text="next!")
        with pytest.raises(ParkedError):
            await asking
        await asyncio.sleep(1)
        assert (await rows(system.ledger, system_thread("sour/1"))).count("ERROR_NOTIFICATION") == 3
        assert (await rows(system.ledger, "t"))[-1] == "PARK"


class Slow(MemoryLedger):
    """Says a second late that it has written."""

    async def append(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
        records = await super().append(*arguments, **more)  # type: ignore[arg-type]
        await asyncio.sleep(1)
        return records


@pytest.mark.parametrize(("what", "row"), [("nothing", "=TEST_DO"), ("refuse", "!NOT_TODAY")])
async def test_a_deadline_that_passes_while_the_answer_is_written_down_harms_nobody(what: str, row: str) -> None:
    """The answer is stored, and the next message in the mailbox is handled."""
    ledger = Slow()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        late = asyncio.create_task(system.ask("probe/1", Do(what=what), thread_id="t", within=1.5))  # type: ignore[arg-type]
        after = asyncio.create_task(system.ask("probe/1", Ping(text="after"), thread_id="u", within=10))
        with pytest.raises(ReplyTimeoutError):
            await late
        assert await after == Pong(text="after!")
        assert await rows(ledger, "t") == ["TEST_DO", row]


async def test_a_message_that_is_being_written_down_is_not_taken_for_one_that_was_left_open() -> None:
    """G7: a recovery of its thread at that moment does not deliver it a second time."""
    ledger = Slow()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        asking = asyncio.create_task(system.ask("probe/1", Ping(text="a"), thread_id="t"))
        await asyncio.sleep(0.5)
        assert (await system.recover()).delivered == 0
        assert await asking == Pong(text="a!")
        assert await system.ask("probe/1", Do(what="list")) == Done(said=("a",))
        assert await rows(ledger, "t") == ["TEST_PING", "=TEST_PING"]


class Pool(Probe):
    concurrency = 2


async def test_a_message_behind_one_of_a_failed_actor_is_handled_by_the_new_one() -> None:
    """A message fails the actor while it handles another. That one goes on, and the new actor handles the next."""
    async with System() as system:
        system.spawn("pool/1", Pool)
        first = asyncio.create_task(system.ask("pool/1", Do(what="wait", seconds=5), thread_id="t"))
        second = asyncio.create_task(system.ask("pool/1", Ping(text="behind"), thread_id="t"))
        await asyncio.sleep(1)
        with pytest.raises(ActorFailedError):
            await system.ask("pool/1", Do(what="fail"))
        assert await first == Done()
        assert await second == Pong(text="behind!")


def test_an_actor_without_grace_leaves_what_it_did_to_the_next() -> None:
    """In real time, in which it takes a moment to clean up. It has no grace to go on, and yet a moment to notice."""

    class Waiting(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            if context.attempt == 1:
                begun_to_wait.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.01)  # it cleans up
            return Pong(text=f"attempt {context.attempt}")

    async def main() -> None:
        async with System() as system:
            system.spawn("waiting/1", Waiting, grace=0.0)
            asking = asyncio.create_task(system.ask("waiting/1", Ping(text=""), thread_id="t"))
            await begun_to_wait.wait()
            await system.ask("waiting/1", Restart(reason="at once"))
            assert await asking == Pong(text="attempt 2")
            assert await rows(system.ledger, "t") == ["TEST_PING", "AGAIN", "=TEST_PING", "=AGAIN"]

    begun_to_wait = asyncio.Event()
    asyncio.run(main())


class Linked(Probe):
    concurrency = 2

    @handles
    async def bind(self, note: Note, context: Context) -> None:
        context.link(note.text)


async def test_the_messages_of_an_actor_that_fails_with_another_are_delivered_to_the_next() -> None:
    async with System() as system:
        system.register("linked", Linked)
        await system.tell("linked/a", Note(text="linked/b"))
        waiting = asyncio.create_task(system.ask("linked/b", Do(what="wait", seconds=5), thread_id="t"))
        behind = asyncio.create_task(system.ask("linked/b", Ping(text="behind"), thread_id="t"))
        await asyncio.sleep(1)
        with pytest.raises(ActorFailedError):
            await system.ask("linked/a", Do(what="fail"))
        assert await waiting == Done()
        assert await behind == Pong(text="behind!")


class Deep(Actor):
    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def look(key: str) -> str:
            return "the bottom"

        depth = int(ping.text)
        if not depth:
            return Pong(text=await context.effect("x" * 200, {}, look))
        return await context.ask(f"deep/{depth - 1}", Ping(text=str(depth - 1)), key="k" * 200)


async def test_a_course_may_be_deep_and_its_keys_long() -> None:
    """Ids are made of ids, and yet stay names."""
    async with System() as system:
        system.register("deep", Deep)
        assert await system.ask("deep/20", Ping(text="20"), thread_id="t", within=600) == Pong(text="the bottom")


@pytest.mark.parametrize(("effects", "end"), [("idempotent", "!CANCELLED"), ("once", "PARK")])
async def test_an_effect_whose_message_has_ended_is_ended_by_the_recovery(effects: str, end: str) -> None:
    """G7: the system died after the one was written, and before the other."""
    ledger = MemoryLedger()
    call = OptionCallPayload(invocation_id="m", option_name="TEST_PING", arguments={"text": "a"})
    result = OptionResultPayload(invocation_id="m", option_name="TEST_PING", result={"text": "a!"})
    intent = begun("pay", "m/pay", thread_id="t", parent_id="m", arguments={"effects": effects, "arguments": {}})
    said = Message(id="m", policy="client", payload=call, to=("probe/1",), lane="control")
    await left_by_the_dead(ledger, "t", "probe", [said, intent, Message(policy="probe/1", payload=result, lane="control")])
    async with System(ledger) as system:
        system.register("probe", Probe)
        await system.recover()
        assert (await rows(ledger, "t"))[3:] == [end]


# ---------------------------------------------------------------- timers


class Sleeper(Probe):
    @handles
    async def via(self, ping: Ping, context: Context) -> Pong:
        await context.remind(10, Note(text="wake up"))
        return Pong(text="good night")


async def test_a_timer_that_is_due_while_the_ledger_cannot_be_used_rings_when_it_can() -> None:
    ledger = Broken()
    async with System(ledger) as system:
        system.spawn("sleeper/1", Sleeper)
        await system.ask("sleeper/1", Ping(text=""), thread_id="t")
        await asyncio.sleep(9)
        ledger.is_broken = True
        await asyncio.sleep(20)
        ledger.is_broken = False
        await asyncio.sleep(5)
        assert await system.ask("sleeper/1", Do(what="list")) == Done(said=("wake up",))
        assert (await rows(ledger, "t"))[-4:] == ["=TIMER", '"', "DELIVER", "=DELIVER"]


async def test_a_timer_that_was_due_while_nobody_was_there_rings_at_once() -> None:
    ledger = MemoryLedger()
    async with System(ledger) as system:
        system.spawn("sleeper/1", Sleeper)
        await system.ask("sleeper/1", Ping(text=""), thread_id="t")
    await asyncio.sleep(1000)
    async with System(ledger) as system:
        system.spawn("sleeper/1", Sleeper)
        assert (await system.recover()).timers == 1
        await asyncio.sleep(0.1)
        assert await system.ask("sleeper/1", Do(what="list")) == Done(said=("wake up",))


# ---------------------------------------------------------------- the end


async def test_at_the_end_the_grace_of_all_actors_runs_at_once() -> None:
    async with System() as system:
        system.register("probe", Probe)
        asks = [asyncio.create_task(system.ask(f"probe/{n}", Do(what="wait", seconds=600), within=900)) for n in range(50)]
        await asyncio.sleep(1)
    assert 6 <= asyncio.get_running_loop().time() < 7
    await asyncio.gather(*asks, return_exceptions=True)


async def test_after_the_end_no_timer_rings() -> None:
    class Late(Probe):
        @handles
        async def via(self, ping: Ping, context: Context) -> Pong:
            await context.remind(10, Note(text="too late"))
            return Pong(text="")

    async with System() as system:
        system.spawn("late/1", Late)
        await system.ask("late/1", Ping(text=""))
    await asyncio.sleep(20)
    assert not system.dead_letters


@pytest.mark.slow
def test_run_returns_what_the_program_returns_and_raises_what_it_raises() -> None:
    async def answers() -> int:
        return 42

    async def fails() -> None:
        raise LookupError

    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    assert run(answers()) == 42
    with pytest.raises(LookupError):
        run(fails())
    with pytest.raises(asyncio.CancelledError):
        run(is_cancelled())


@pytest.mark.slow
async def test_a_backlog_larger_than_the_mailbox_is_recovered_whole() -> None:
    """What was taken in once is not refused later, however full it is."""
    ledger = MemoryLedger()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe, capacity=1_000, grace=0.0)
        busy = asyncio.create_task(system.ask("probe/1", Do(what="wait", seconds=1_000), within=2_000))
        for number in range(500):
            await system.tell("probe/1", Note(text=str(number)), thread_id=f"t{number}")
    with pytest.raises(ActorStoppedError):
        await busy
    async with System(ledger) as system:
        system.spawn("probe/1", Probe, capacity=10)
        assert (await system.recover()).delivered == 500
        heard = await system.ask("probe/1", Do(what="list"), within=600)
        assert sorted(heard.said, key=int) == [str(number) for number in range(500)]


@pytest.mark.slow
def test_a_program_leaves_frozen_what_was_frozen_before() -> None:
    """A program that runs in tests, or in a server that has forked, does not make each collection slow again."""
    gc.freeze()

    run(asyncio.sleep(0))

    assert gc.get_freeze_count() > 0
