"""What is said in a thread is written down before it acts; after a crash the thread goes on (G1, G6-G9, G13)."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, SetClock, Via, lease_is_over, rows, virtually

from antiphon.errors import (
    ActorStoppedError,
    AppendRefusedError,
    BudgetExceededError,
    EffectFailedError,
    HistoryMismatchError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
)
from antiphon.ledger import Ledger, replay
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, use_port
from antiphon.protocol import Retry
from antiphon.runtime import (
    Actor,
    ActorState,
    Budget,
    Context,
    Effects,
    Parked,
    Recovered,
    Settings,
    System,
    handles,
)
from antiphon.testing._virtual_time import Node, VirtualLoop, VirtualPort

pytestmark = pytest.mark.virtual_time


async def test_a_request_and_its_answer_are_in_the_thread() -> None:
    async with System() as system:
        system.register("probe", Probe)
        reply = await system.ask("probe/1", Via(to="probe/2", text="hi"), thread_id="t", sender="user")
        call, inner, _, result = [record.message async for record in system.ledger.read("t")]

        assert reply == Pong(text="hi!")
        assert await rows(system.ledger, "t") == ["TEST_VIA", "TEST_PING", "=TEST_PING", "=TEST_VIA"]
        assert (call.policy, call.to, call.lane, call.correlation_id) == ("user", ("probe/1",), "control", call.id)
        assert (inner.policy, inner.to, inner.id) == ("probe/1", ("probe/2",), f"{call.id}/1")
        assert (inner.correlation_id, inner.parent_id) == (call.id, call.id)
        assert (result.policy, result.to, result.in_reply_to) == ("probe/1", ("user",), call.id)
        assert inner.metadata["antiphon"]["hops"] == 1


async def test_a_notice_in_a_thread_is_open_until_it_was_handled() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        await system.tell("probe/1", Note(text="hi"), thread_id="t")
        assert await rows(system.ledger, "t") == ['"', "DELIVER"]
        await system.ask("probe/1", Do(what="list"))

        assert await rows(system.ledger, "t") == ['"', "DELIVER", "=DELIVER"]


async def test_errors_are_in_the_thread_with_their_codes() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        with pytest.raises(RefusedError):
            await system.ask("probe/1", Do(what="refuse"), thread_id="t")
        with pytest.raises(ReplyTimeoutError):
            await system.ask("probe/1", Do(what="wait", seconds=9), thread_id="t", within=1)
        await asyncio.sleep(1)
        await system.ask("probe/1", Ping(text="then"), thread_id="t")

        assert await rows(system.ledger, "t") == [
            "TEST_DO",
            "!NOT_TODAY",
            "TEST_DO",
            "!TIMEOUT",
            "TEST_PING",
            "=TEST_PING",
        ]
        *_, late, _, _ = [record.message async for record in system.ledger.read("t")]
        assert late.policy == "runtime"


# ---------------------------------------------------------------- the same again


@pytest.mark.parametrize("thread_id", [None, "t"])
def test_the_same_id_gets_the_same_answer_and_is_handled_once(thread_id: str | None) -> None:
    """CH-120, C34."""

    async def main() -> None:
        async with System() as system:
            system.spawn("probe/1", Probe)
            first = asyncio.create_task(system.ask("probe/1", Ping(text="a"), thread_id=thread_id, id="m-1"))
            second = asyncio.create_task(system.ask("probe/1", Ping(text="a"), thread_id=thread_id, id="m-1"))

            assert await first == await second == Pong(text="a!")
            assert await system.ask("probe/1", Ping(text="a"), thread_id=thread_id, id="m-1") == Pong(text="a!")
            assert await system.ask("probe/1", Do(what="list")) == Done(said=("a",))

    virtually(main(), seed=3)


async def test_the_same_id_with_something_else_is_refused() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        await system.ask("probe/1", Ping(text="a"), thread_id="t", id="m-1")
        with pytest.raises(HistoryMismatchError, match="'m-1' says TEST_PING here, and something else in thread 't'"):
            await system.ask("probe/1", Ping(text="b"), thread_id="t", id="m-1")


async def test_a_message_with_an_id_that_the_thread_has_elsewhere_is_refused() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        taken = Message(id="x", policy="user", payload=_call("OTHER", "i-1"), to=("user",))
        await system.ledger.append("t", [taken])
        with pytest.raises(AppendRefusedError, match="the id is taken"):
            await system.ask("probe/1", Ping(text="a"), thread_id="t", id="x")


# ---------------------------------------------------------------- crashes


def _crashing(host: Callable[[System], None], *lives: Callable[[System], Any], settings: Settings | None = None) -> Ledger:
    """Let a system live several times on one ledger: each life but the last ends as if the process were killed."""

    async def life(ledger: Ledger, act: Callable[[System], Any]) -> None:
        async with System(ledger, settings=settings or Settings()) as system:
            host(system)
            recovered.append(await system.recover())
            await act(system)

    async def main() -> None:
        ledger = MemoryLedger()
        found.append(ledger)
        for number, act in enumerate(lives):
            node = Node(str(number))
            task = loop.start_in(node, life(ledger, act))
            if number == len(lives) - 1:
                await task
            else:
                await asyncio.sleep(10)
                node.is_alive = False

    found: list[Ledger] = []
    recovered: list[Recovered] = []
    loop = VirtualLoop()
    try:
        with use_port(VirtualPort(loop)):
            loop.run_until_complete(main())
    finally:
        loop.close()
    return found[0]


def test_a_call_that_was_open_when_the_process_died_is_handled_by_the_next() -> None:
    """G13."""

    def host(system: System) -> None:
        system.register("probe", Probe)

    async def dies(system: System) -> None:
        await system.ask("probe/1", Do(what="wait", seconds=30), thread_id="t", within=1000)

    async def goes_on(system: System) -> None:
        await asyncio.sleep(40)
        assert (await system.ledger.thread("t")).open_calls == 0  # type: ignore[union-attr]

    ledger = _crashing(host, dies, goes_on)
    assert asyncio.run(rows(ledger, "t")) == ["TEST_DO", "AGAIN", "=TEST_DO", "=AGAIN"]


def test_unhandled_notices_are_delivered_again_in_order() -> None:
    """G5: at least once, in the order of the thread."""
    heard: list[str] = []

    class Listener(Actor):
        @handles
        async def note(self, note: Note, context: Context) -> None:
            await asyncio.sleep(4)
            heard.append(note.text)

    def host(system: System) -> None:
        system.register("listener", Listener)

    async def dies(system: System) -> None:
        for text in "abcd":
            await system.tell("listener/1", Note(text=text), thread_id="t")

    async def goes_on(system: System) -> None:
        await asyncio.sleep(60)

    ledger = _crashing(host, dies, goes_on)
    assert heard == ["a", "b", "c", "d"]
    assert asyncio.run(rows(ledger, "t")).count("=DELIVER") == 4


def test_a_handler_that_runs_again_asks_nothing_twice() -> None:
    """G9: a finished step never runs again; one that is on its way is waited for."""
    heard: list[str] = []

    class Worker(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            heard.append(f"{ping.text} {context.attempt}")
            await asyncio.sleep(6)
            return Pong(text=f"{ping.text}!")

    class Boss(Actor):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            first = await context.ask("worker/1", Ping(text="first"))
            second = await context.ask("worker/1", Ping(text="second"))
            return Done(said=(first.text, second.text))

    def host(system: System) -> None:
        system.register("worker", Worker)
        system.register("boss", Boss)

    async def dies(system: System) -> None:
        await system.ask("boss/1", Do(what="nothing"), thread_id="t", within=1000, id="go")

    async def goes_on(system: System) -> None:
        assert await system.ask("boss/1", Do(what="nothing"), thread_id="t", within=1000, id="go") == Done(
            said=("first!", "second!")
        )

    ledger = _crashing(host, dies, goes_on)
    assert heard == ["first 1", "second 1", "second 2"]
    found = asyncio.run(rows(ledger, "t"))
    assert found.count("TEST_PING") == found.count("=TEST_PING") == 2


@pytest.mark.parametrize(("effects", "runs", "is_parked"), [("none", 2, False), ("idempotent", 2, False), ("once", 1, True)])
def test_an_effect_whose_outcome_nobody_knows(effects: Effects, runs: int, is_parked: bool) -> None:
    """G6, G7: begun before the crash, and not recorded."""
    keys: list[str] = []

    class Tool(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def run(key: str) -> str:
                keys.append(key)
                await asyncio.sleep(1000 if context.attempt == 1 else 1)
                return f"{ping.text}!"

            return Pong(text=await context.effect("send", {"text": ping.text}, run, effects=effects))

    def host(system: System) -> None:
        system.register("tool", Tool)

    async def dies(system: System) -> None:
        await system.ask("tool/1", Ping(text="x"), thread_id="t", within=5000, id="m")

    async def goes_on(system: System) -> None:
        await asyncio.sleep(5)
        parked = await system.parked()
        if is_parked:
            evidence = {"to": "tool/1", "effect": "m/send", "option": "send"}
            reason = "nobody knows whether 'send' was done, and it must not be done twice"
            assert parked == (Parked("t", "m", reason, evidence),)
            with pytest.raises(ParkedError, match="it waits for a person"):
                await system.ask("tool/1", Ping(text="x"), thread_id="t", id="m")
            await system.settle("t", "m", result="delivered, says the recipient")
            with pytest.raises(ValueError, match="'m' is not parked in thread 't'"):
                await system.settle("t", "m", retry=True)
            expected = "delivered, says the recipient"
        else:
            expected = "x!"
        assert await system.ask("tool/1", Ping(text="x"), thread_id="t", id="m") == Pong(text=expected)

    ledger = _crashing(host, dies, goes_on)
    assert keys == ["m/send"] * runs
    assert asyncio.run(rows(ledger, "t")).count("send") == 1
    assert asyncio.run(_open(ledger, "t")) == 0


def test_an_effect_that_a_person_says_was_not_done_is_done_under_a_new_key() -> None:
    keys: list[str] = []

    class Tool(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def run(key: str) -> str:
                keys.append(key)
                await asyncio.sleep(1000 if context.attempt == 1 else 1)
                return "sent"

            return Pong(text=await context.effect("send", {}, run))

    def host(system: System) -> None:
        system.register("tool", Tool)

    async def dies(system: System) -> None:
        await system.ask("tool/1", Ping(text="x"), thread_id="t", within=5000, id="m")

    async def goes_on(system: System) -> None:
        await asyncio.sleep(5)
        await system.settle("t", "m", retry=True)
        assert await system.ask("tool/1", Ping(text="x"), thread_id="t", id="m") == Pong(text="sent")

    _crashing(host, dies, goes_on)
    assert keys == ["m/send", "m/send"]


def test_an_effect_that_is_recorded_is_never_run_again() -> None:
    """G9, also for one that failed."""
    runs: list[str] = []

    class Tool(Actor):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            async def look(key: str) -> list[int]:
                runs.append(key)
                return [1, 2]

            async def fail(key: str) -> None:
                runs.append(key)
                raise OSError("refused")

            found = await context.effect("look", {"at": "it"}, look, effects="none")
            again = await context.effect("look", {"at": "it"}, look, effects="none")
            with pytest.raises(EffectFailedError, match="OSError: refused"):
                await context.effect("send", {}, fail)
            await asyncio.sleep(20 if context.attempt == 1 else 0)
            return Done(said=(str(found), str(again)))

    def host(system: System) -> None:
        system.register("tool", Tool)

    async def dies(system: System) -> None:
        await system.ask("tool/1", Do(what="nothing"), thread_id="t", within=1000, id="m")

    async def goes_on(system: System) -> None:
        reply = await system.ask("tool/1", Do(what="nothing"), thread_id="t", within=1000, id="m")
        assert reply == Done(said=("[1, 2]", "[1, 2]"))

    _crashing(host, dies, goes_on)
    assert runs == ["m/look", "m/look=2", "m/send"]


def test_code_that_does_something_else_than_the_thread_says_is_stopped() -> None:
    """G11."""

    class Tool(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def run(key: str) -> str:
                return "done"

            amount = 5 if context.attempt == 1 else 6
            await context.effect("pay", {"amount": amount}, run)
            await asyncio.sleep(20 if context.attempt == 1 else 0)
            return Pong(text="")

    def host(system: System) -> None:
        system.register("tool", Tool)

    async def dies(system: System) -> None:
        await system.ask("tool/1", Ping(text="x"), thread_id="t", within=1000, id="m")

    async def goes_on(system: System) -> None:
        with pytest.raises(HistoryMismatchError, match="the handler does 'pay' otherwise than thread 't' says, in 'm/pay'"):
            await system.ask("tool/1", Ping(text="x"), thread_id="t", within=1000, id="m")

    _crashing(host, dies, goes_on)


def test_a_deadline_that_passed_while_nobody_was_there_is_kept() -> None:
    def host(system: System) -> None:
        system.register("probe", Probe)

    async def dies(system: System) -> None:
        await system.ask("probe/1", Do(what="wait", seconds=11), thread_id="t", within=10.5)

    async def too_late(system: System) -> None:
        await asyncio.sleep(5)

    ledger = _crashing(host, dies, too_late, too_late)
    assert asyncio.run(rows(ledger, "t"))[:3] == ["TEST_DO", "AGAIN", "!TIMEOUT"]


def test_a_message_that_is_there_whenever_the_process_dies_is_parked_at_last() -> None:
    """S15: a poison message that kills its process each time."""

    def host(system: System) -> None:
        system.register("probe", Probe)

    async def dies(system: System) -> None:
        if not await rows(system.ledger, "t"):
            await system.ask("probe/1", Do(what="wait", seconds=1000), thread_id="t", within=10_000, id="m")
        await asyncio.sleep(1000)

    async def gives_up(system: System) -> None:
        (parked,) = await system.parked()
        assert (parked.invocation_id, parked.reason) == ("m", "it was delivered 3 times")
        await system.settle("t", "m", error="it is poison")
        with pytest.raises(RefusedError, match="it is poison"):
            await system.ask("probe/1", Do(what="wait", seconds=1000), thread_id="t", id="m")

    _crashing(host, dies, dies, dies, gives_up, settings=Settings(recoveries=2))


def test_timers_ring_after_a_crash_once() -> None:
    rung: list[tuple[str, float]] = []

    class Sleeper(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await context.remind(60, Note(text="wake up"))
            await context.remind(5, Note(text="early"), key="early")
            return Pong(text="good night")

        @handles
        async def note(self, note: Note, context: Context) -> None:
            rung.append((note.text, asyncio.get_running_loop().time()))

    def host(system: System) -> None:
        system.register("sleeper", Sleeper)

    async def dies(system: System) -> None:
        await system.ask("sleeper/1", Ping(text=""), thread_id="t")
        await asyncio.sleep(1000)

    async def goes_on(system: System) -> None:
        await asyncio.sleep(100)

    ledger = _crashing(host, dies, goes_on)
    assert [text for text, _ in rung] == ["early", "wake up"]
    assert asyncio.run(_open(ledger, "t")) == 0


async def test_a_timer_outside_of_a_thread_rings_while_the_system_lives() -> None:
    class Sleeper(Probe):
        @handles
        async def via(self, request: Via, context: Context) -> Pong:
            await context.remind(60, Note(text="wake up"))
            return Pong(text="good night")

    async with System() as system:
        system.spawn("sleeper/1", Sleeper)
        await system.ask("sleeper/1", Via(to="", text=""))
        await asyncio.sleep(61)
        assert await system.ask("sleeper/1", Do(what="list")) == Done(said=("wake up",))


@pytest.mark.parametrize("ahead", [timedelta(days=1), timedelta(days=-1)])
async def test_a_timer_waits_no_longer_than_it_was_set_for(ahead: timedelta) -> None:
    """Set while the clock was a day ahead, it is taken over by a host with the right time; behind, it is late and rings."""
    rung: list[float] = []

    class Sleeper(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await context.remind(60, Note(text="wake up"))
            return Pong(text="good night")

        @handles
        async def note(self, note: Note, context: Context) -> None:
            rung.append(asyncio.get_running_loop().time())

    ledger, clock = MemoryLedger(), SetClock()
    with use_port(clock):
        clock.ahead = ahead
        async with System(ledger) as system:
            system.register("sleeper", Sleeper)
            await system.ask("sleeper/1", Ping(text=""), thread_id="t")
        clock.ahead = timedelta()
        async with System(ledger) as system:
            system.register("sleeper", Sleeper)
            began = asyncio.get_running_loop().time()
            await system.recover("t")
            await asyncio.sleep(61)
    assert [at - began <= 60.1 for at in rung] == [True]


# ---------------------------------------------------------------- owners


async def test_a_system_that_has_lost_a_thread_stops_working_on_it() -> None:
    """G8: another system has claimed it."""
    ledger = MemoryLedger()
    async with System(ledger) as old, System(ledger) as new:
        old.register("probe", Probe)
        new.register("probe", Probe)
        working = asyncio.create_task(old.ask("probe/1", Do(what="wait", seconds=5), thread_id="t", id="m"))
        await asyncio.sleep(1)
        assert await new.recover() == Recovered()  # the owner lives
        await lease_is_over(old)
        assert await new.recover() == Recovered(threads=1, delivered=1)
        assert await working == Done()  # from the ledger: the new owner has written it
        assert await new.ask("probe/1", Do(what="wait", seconds=5), thread_id="t", id="m") == Done()
    assert await rows(ledger, "t") == ["TEST_DO", "AGAIN", "=TEST_DO", "=AGAIN"]


async def test_closing_a_system_leaves_threads_to_the_next_one_and_holds_nothing_against_them() -> None:
    """F16: a shutdown is no crash."""
    ledger = MemoryLedger()
    for _ in range(5):
        async with System(ledger, settings=Settings(recoveries=1)) as system:
            system.spawn("probe/1", Probe, grace=0.1)
            await system.recover()
            if not await rows(ledger, "t"):
                await system.tell("probe/1", Do(what="wait", seconds=50), thread_id="t", within=1000)
            await asyncio.sleep(1)
    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        assert await system.recover() == Recovered(threads=1, delivered=1)
        await asyncio.sleep(60)
    assert await _open(ledger, "t") == 0


@pytest.mark.parametrize("order", [("probe/1", "slow/1"), ("slow/1", "probe/1")])
@pytest.mark.parametrize("is_handled", [True, False])
async def test_a_handler_that_waits_for_another_actor_when_the_system_closes_runs_again(
    order: tuple[str, str], is_handled: bool
) -> None:
    """G13, G16: in either order, the thread gets no answer whose only cause is the end of the system."""
    ledger = MemoryLedger()

    class Slow(Probe):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await asyncio.sleep(1000)
            return Pong(text="too late")

    class Patient(Probe):
        @handles
        async def via(self, request: Via, context: Context) -> Pong:
            await asyncio.sleep(0 if is_handled else 3)  # or it asks when the other has ended already
            try:
                return await context.ask(request.to, Ping(text=request.text))
            except Exception as exc:  # noqa: BLE001 (as programs do)
                return Pong(text=f"failed: {exc}")

    factories = {"probe/1": Patient, "slow/1": Slow}
    async with System(ledger) as system:
        for name in order:
            system.spawn(name, factories[name], grace=5 if name == "probe/1" and not is_handled else 0)
        asking = asyncio.create_task(system.ask("probe/1", Via(to="slow/1", text="hi"), thread_id="t", within=2000, id="v-1"))
        await asyncio.sleep(1)
    with pytest.raises(ActorStoppedError):
        await asking

    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        system.spawn("slow/1", Probe)
        await system.recover()
        assert await system.ask("probe/1", Via(to="slow/1", text="hi"), thread_id="t", id="v-1") == Pong(text="hi!")


async def test_messages_for_actors_that_are_not_here_stay_open() -> None:
    ledger = MemoryLedger()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe, grace=0.1)
        await system.tell("probe/1", Do(what="wait", seconds=50), thread_id="t")
        await asyncio.sleep(1)
    async with System(ledger) as other:
        assert await other.recover() == Recovered()
    assert await _open(ledger, "t") == 1


# ---------------------------------------------------------------- state


def test_state_is_what_the_thread_amounts_to_and_survives_the_actor() -> None:
    """CH-123, G10: with snapshots."""
    counted = ActorState[int](
        name="notes",
        initial=0,
        step=lambda state, message: state + (message.kind == "parts"),
        dump=lambda state: state,
        load=int,
        every=5,
    )

    class Counter(Actor):
        @handles
        async def note(self, note: Note, context: Context) -> None:
            seen.append(await context.state(counted))
            if note.text == "fail" and context.attempt == 1:
                raise ValueError(note.text)

    async def main() -> None:
        async with System() as system:
            system.register("counter", Counter)
            for number in range(12):
                await system.tell("counter/1", Note(text="fail" if number == 6 else "go on"), thread_id="t")
                await asyncio.sleep(2)
            assert await replay(system.ledger, "t", counted.fold()) == 12

    seen: list[int] = []
    virtually(main())
    assert seen == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12]


def test_a_snapshot_of_an_older_version_is_migrated_step_by_step() -> None:
    def state(version: int, migrations: dict[int, Callable[[Any], Any]]) -> ActorState[Any]:
        return ActorState("s", None, lambda old, _: old, lambda value: value, lambda value: value, version, migrations)

    old = state(1, {}).fold().dump({"name": "x"})
    newer = state(3, {1: lambda form: {**form, "age": 0}, 2: lambda form: {**form, "tags": []}})

    assert newer.fold().load(old) == {"name": "x", "age": 0, "tags": []}
    with pytest.raises(ValueError, match="no migration of 's' from version 1 to 2"):
        state(2, {}).fold().load(old)
    with pytest.raises(ValueError, match="is of version 3, later than 1"):
        state(1, {}).fold().load(newer.fold().dump({}))


# ---------------------------------------------------------------- retry and budgets


def test_a_message_that_failed_can_be_retried_and_is_answered_as_it_would_have_been() -> None:
    """CH-094, C26, C27: found in the ledger; tries are counted there."""

    class Flaky(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            tries.append(ping.text)
            if len(tries) < 3:
                raise RefusedError("rate limit", "AGENT_ERROR", retryable=True)
            return Pong(text=f"{ping.text}!")

    async def main() -> None:
        async with System() as system:
            system.spawn("flaky/1", Flaky)
            with pytest.raises(RefusedError) as refused:
                await system.ask("flaky/1", Ping(text="hi"), thread_id="t", id="m")
            assert refused.value.message_id == "m"
            with pytest.raises(RefusedError, match="rate limit"):
                await system.ask("flaky/1", _retry(attempt=2), thread_id="t")
            assert await system.ask("flaky/1", _retry(attempt=3), thread_id="t") == Pong(text="hi!")
            with pytest.raises(RefusedError, match="it was tried 3 times") as exhausted:
                await system.ask("flaky/1", _retry(attempt=2), thread_id="t")

            assert exhausted.value.code == "RETRY_EXHAUSTED"
            assert await rows(system.ledger, "t") == [
                "TEST_PING",
                "!AGENT_ERROR",
                "RETRY",
                "!AGENT_ERROR",
                "RETRY",
                "=RETRY",
                "RETRY",
                "!RETRY_EXHAUSTED",
            ]

    def _retry(attempt: int) -> Retry:
        return Retry(original_message_id="m", attempt=attempt, max_attempts=3)

    tries: list[str] = []
    virtually(main())
    assert tries == ["hi", "hi", "hi"]


async def test_a_retry_of_what_nobody_has_is_refused() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        with pytest.raises(RefusedError, match="nobody has message 'lost'"):
            await system.ask("probe/1", Retry(original_message_id="lost", attempt=1, max_attempts=3))
        original = {"type": "TEST_PING", "data": {"text": "brought along"}}
        again = await system.ask(
            "probe/1", Retry(original_message_id="lost", attempt=1, max_attempts=3, original_message=original)
        )
        assert again == Pong(text="brought along!")


async def test_a_thread_keeps_to_its_budget() -> None:
    """S15."""
    async with System(settings=Settings(budget=Budget(messages=4))) as system:
        system.spawn("probe/1", Probe)
        for _ in range(2):
            await system.ask("probe/1", Ping(text="a"), thread_id="t")
        with pytest.raises(BudgetExceededError, match="thread 't' has used up its 4 messages"):
            await system.ask("probe/1", Ping(text="a"), thread_id="t")
        await system.ask("probe/1", Ping(text="a"), thread_id="u")


async def _open(ledger: Ledger, thread_id: str) -> int:
    return len(await ledger.open_calls(thread_id))


def _call(option: str, invocation_id: str) -> OptionCallPayload:
    return OptionCallPayload(invocation_id=invocation_id, option_name=option, arguments={})
