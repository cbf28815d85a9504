"""Ten times more than an actor can take: bounded, every refusal typed, nothing lost, full speed after (G18)."""

import asyncio
from collections import Counter

import pytest
from tests.runtime.actors import Ping, Pong, virtually
from tests.runtime.counts import count

from antiphon.errors import MailboxFullError, ReplyTimeoutError
from antiphon.runtime import Actor, Context, System, handles

CAPACITY = 20
RATE = 100
SECONDS = 10


class Slow(Actor):
    """Takes a tenth of a second for each message."""

    capacity = CAPACITY

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        loads.append(context.load)
        await asyncio.sleep(0.1)
        handled.append(ping.text)
        return Pong(text=ping.text)


loads: list[float] = []
handled: list[str] = []


def test_overload_is_refused_with_a_typed_error_and_passes() -> None:
    async def send(system: System, text: str) -> None:
        try:
            await system.ask("slow/1", Ping(text=text), within=1.5)
            outcomes["answered"] += 1
        except MailboxFullError:
            outcomes["full"] += 1
        except ReplyTimeoutError:
            outcomes["late"] += 1

    async def main() -> None:
        async with System() as system:
            system.spawn("slow/1", Slow)
            async with asyncio.TaskGroup() as group:
                for number in range(RATE * SECONDS):
                    group.create_task(send(system, str(number)))
                    await asyncio.sleep(1 / RATE)
            after = asyncio.get_running_loop().time()
            for number in range(10):
                await system.ask("slow/1", Ping(text=f"after {number}"))
            assert asyncio.get_running_loop().time() - after < 1.2

    loads.clear()
    handled.clear()
    outcomes: Counter[str] = Counter()
    virtually(main())
    assert outcomes.total() == RATE * SECONDS
    assert outcomes["full"] + outcomes["late"] > RATE * SECONDS / 2
    done = len([text for text in handled if not text.startswith("after")])
    assert 0 <= done - outcomes["answered"] < SECONDS  # some are done in the moment of their deadline
    assert len(handled) == len(set(handled)) >= SECONDS * 8  # it goes on at its own speed all the while
    assert max(loads) <= 1.0


class Steady(Actor):
    """Takes five milliseconds for each message."""

    capacity = CAPACITY

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        await asyncio.sleep(0.005)
        handled.append(ping.text)
        return Pong(text=ping.text)


@pytest.mark.slow
@pytest.mark.parametrize("thread_id", [None, "t"])
def test_overload_in_real_time_takes_no_more_memory_the_longer_it_lasts(thread_id: str | None) -> None:
    """G18: ten times what it can take, in a thread or not; everybody is answered, and then it is as quick as before."""

    async def send(system: System, number: int) -> None:
        try:
            await system.ask("steady/1", Ping(text=str(number)), within=0.2, thread_id=thread_id)
            outcomes["answered"] += 1
        except (MailboxFullError, ReplyTimeoutError) as exc:
            outcomes[exc.code] += 1

    async def seconds_for_twenty(system: System) -> float:
        began = asyncio.get_running_loop().time()
        for number in range(20):
            await system.ask("steady/1", Ping(text=f"alone {number}"))
        return asyncio.get_running_loop().time() - began

    async def main() -> None:
        async with System() as system:
            system.spawn("steady/1", Steady)
            before = await seconds_for_twenty(system)
            async with asyncio.TaskGroup() as group:
                for tick in range(50 * count("overload")):
                    for number in range(40):
                        group.create_task(send(system, 40 * tick + number))
                    sent.append(40)
                    most.append(len(asyncio.all_tasks()))
                    await asyncio.sleep(0.02)
            after = [await seconds_for_twenty(system) for _ in range(5)]  # other programs may take the processor meanwhile
            assert min(after) < 2 * before + 0.1
            assert not [call for call in await system.ledger.open_calls("t") if thread_id]

    handled.clear()
    outcomes: Counter[str] = Counter()
    sent: list[int] = []
    most: list[int] = []
    asyncio.run(main())
    assert outcomes.total() == sum(sent)
    assert outcomes["answered"] < sum(sent) / 2, outcomes
    own = [text for text in handled if not text.startswith("alone")]
    assert len(own) == len(set(own)) >= outcomes["answered"] > 10 * count("overload")  # it goes on at its own speed
    half = len(most) // 2
    assert max(most[half:]) < 1.5 * max(most[:half])  # what waits at once does not grow


@pytest.mark.slow
def test_ten_thousand_threads_wait_for_a_model_at_once() -> None:
    """In one process, with one actor: what waits costs no more than a task."""

    class Model(Actor):
        concurrency = 10_000
        capacity = 10_000

        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            waiting.add(ping.text)
            most.append(len(waiting))
            await asyncio.sleep(60)
            waiting.remove(ping.text)
            return Pong(text=ping.text)

    async def main() -> None:
        async with System() as system:
            system.spawn("model/1", Model)
            asks = (system.ask("model/1", Ping(text=str(n)), sender=f"thread/{n}", within=600) for n in range(10_000))
            answers = await asyncio.gather(*asks)
            assert len(answers) == 10_000
            assert asyncio.get_running_loop().time() < 61

    waiting: set[str] = set()
    most: list[int] = []
    virtually(main())
    assert max(most) == 10_000
