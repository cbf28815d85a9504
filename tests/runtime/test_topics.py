"""Topics: messages of all threads by type and address, in order and at least once, from a cursor in the ledger (G5, G18)."""

import asyncio
import signal
import subprocess
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Timer

import apsw
import pytest
from tests import forked
from tests.runtime.actors import Note, Ping, Probe, Via

from antiphon.errors import FencedError, OwnedError, SecretNameError
from antiphon.ledger import Ledger, ThreadFilter, open_ledger, replay
from antiphon.messages import DataPart, Message, MessageBuilder, OptionCallPayload, OptionResultPayload, PartsPayload
from antiphon.runtime import Subscription, System, Topic, subscribe, type_of
from antiphon.runtime._topics import _CURSOR

SUBSCRIBER = Path(__file__).parent / "subscriber.py"


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'ledger.db'}"


def _said(text: str, policy: str = "shop/1") -> Message:
    return MessageBuilder(policy=policy).add_text(text).to_message()


async def _say(ledger: Ledger, *texts: str, thread_id: str = "t") -> None:
    await ledger.append(thread_id, [_said(text) for text in texts])


async def _take(events: Subscription, count: int) -> list[str]:
    found: list[str] = []
    async for event in events:
        found.append(event.record.message.text)
        if len(found) == count:
            break
    return found


async def _all(ledger: Ledger, cursor: str, *topics: Topic) -> list[str]:
    """Return what a subscriber finds that has handled everything and waits."""
    found: list[str] = []

    async def follow() -> None:
        async with subscribe(ledger, *topics, cursor=cursor) as events:
            while True:
                found.extend(await _take(events, 1))

    following = asyncio.create_task(follow())
    while await _stored(ledger, cursor) != await ledger.horizon():
        assert not following.done(), following.exception()
        await asyncio.sleep(0.05)
    following.cancel()
    await asyncio.wait((following,))
    return found


async def _stored(ledger: Ledger, cursor: str) -> str | None:
    """Return the cursor that the ledger has, without taking it over."""
    return await replay(ledger, f"system/cursor/{cursor}", _CURSOR)


# ------------------------------------------------------------ which messages


def _call(name: str, **more: object) -> Message:
    return Message(policy="a/1", payload=OptionCallPayload(invocation_id="i", option_name=name, arguments={}), **more)


def _result(name: str, **more: object) -> Message:
    return Message(policy="b/1", payload=OptionResultPayload(invocation_id="i", option_name=name, **more))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (_said("hi"), "MESSAGE"),
        (_call("PROCESS_PHASE", lane="control"), "PROCESS_PHASE"),
        (_result("PROCESS_PHASE"), "PHASE_PROCESSED"),
        (_result("search"), "search_RESPONSE"),
        (_result("search", is_error=True, error_type="X", error_message="no"), "ERROR"),
        (
            Message(
                policy="a/1",
                lane="control",
                payload=PartsPayload(parts=(DataPart(data={"type": "THREAD_RESULT", "data": {}}),)),
            ),
            "THREAD_RESULT",
        ),
    ],
)
def test_the_type_of_a_message_is_that_of_the_protocol(message: Message, expected: str) -> None:
    assert type_of(message) == expected


@pytest.mark.parametrize(
    ("topic", "fits"),
    [
        (Topic(), True),
        (Topic(type="PROCESS_*"), True),
        (Topic(type="*PHASE"), True),
        (Topic(type="*OC*PH*"), True),
        (Topic(type="PROCESS_PHASE"), True),
        (Topic(type="process_phase"), False),
        (Topic(type="PROCESS_PHASE*E"), False),
        (Topic(type="PHASE_*"), False),
        (Topic(type="*x*"), False),
        (Topic(sender="a/*"), True),
        (Topic(sender="b/*"), False),
        (Topic(receiver="c/2"), True),
        (Topic(receiver="c/3"), False),
        (Topic(thread="user-*"), True),
        (Topic(thread="user"), False),
        (Topic(type="PROCESS_*", sender="b/*"), False),
        (Topic(lanes=frozenset({"talk"})), False),
    ],
)
def test_a_topic_fits_by_every_pattern(topic: Topic, fits: bool) -> None:
    message = _call("PROCESS_PHASE", lane="control", to=("c/1", "c/2"), thread_id="user-1")

    assert topic.fits(message) is fits


def test_a_pattern_takes_linear_time_for_any_text() -> None:
    """G21."""
    topic = Topic(sender="*a" * 200 + "b")

    assert not topic.fits(_said("x", policy="a" * 512))


# ------------------------------------------------------------ order, cursors


async def test_messages_of_all_threads_come_in_the_order_of_commits_also_of_new_threads(url: str) -> None:
    """G5."""
    async with open_ledger(url) as ledger:
        await _say(ledger, "1", thread_id="a")
        await _say(ledger, "2", thread_id="b")
        async with subscribe(ledger, Topic(sender="shop/*")) as events:
            assert await _take(events, 2) == ["1", "2"]
            taking = asyncio.create_task(_take(events, 3))
            await asyncio.sleep(0)
            await ledger.append("c", [_said("not this", policy="office/1")])
            for number, thread in enumerate(("c", "a", "d"), 3):
                await _say(ledger, str(number), thread_id=thread)
            assert await taking == ["3", "4", "5"]


async def test_nothing_is_lost_between_catching_up_and_following(url: str) -> None:
    """G5: threads are written while the subscriber catches up, and each message comes once."""
    async with open_ledger(url) as ledger:
        await _say(ledger, *(f"0-{number}" for number in range(50)), thread_id="t0")

        async def write(thread: int) -> None:
            for number in range(50):
                await _say(ledger, f"{thread}-{number}", thread_id=f"t{thread}")

        async with asyncio.TaskGroup() as group, subscribe(ledger, cursor="all") as events:
            for thread in range(1, 4):
                group.create_task(write(thread))
            found = await _take(events, 200)
        for thread in range(4):
            mine = [text for text in found if text.startswith(f"{thread}-")]
            assert mine == [f"{thread}-{number}" for number in range(50)]


@pytest.mark.slow
async def test_a_subscriber_goes_on_after_what_it_has_handled(url: str) -> None:
    """G5: a message counts as handled when the next one is asked for, or when it is committed."""
    async with open_ledger(url) as ledger:
        await _say(ledger, "1", "2", "3", "4", "5")
        async with subscribe(ledger, cursor="bills") as events:
            assert await _take(events, 2) == ["1", "2"]  # 2 is in hand
        async with subscribe(ledger, cursor="bills") as events:
            assert await _take(events, 2) == ["2", "3"]
            await events.commit()
        with pytest.raises(ZeroDivisionError):
            await _fail_at(ledger, "4")
        assert await _all(ledger, "bills") == ["4", "5"]
        async with subscribe(ledger, cursor="other") as events:  # another name, another subscriber
            assert await _take(events, 1) == ["1"]


async def _fail_at(ledger: Ledger, text: str) -> None:
    async with subscribe(ledger, cursor="bills") as events:
        async for event in events:
            assert event.record.message.text == text
            _ = 1 / 0


async def test_a_cursor_that_begins_now_misses_nothing_from_then_on(url: str) -> None:
    """G5: also what is said before its first message was handled."""
    async with open_ledger(url) as ledger:
        await _say(ledger, "before")
        async with subscribe(ledger, cursor="new", start="now"):
            assert await _stored(ledger, "new") == await ledger.horizon()  # should it be killed now
        await _say(ledger, "after")
        async with subscribe(ledger, cursor="new", start="now") as events:
            assert await _take(events, 1) == ["after"]


@pytest.mark.slow
async def test_a_cursor_moves_over_messages_of_other_topics_and_is_stored_while_nothing_comes(url: str) -> None:
    async with open_ledger(url) as ledger:
        await _say(ledger, *map(str, range(20)))
        assert await _all(ledger, "quiet", Topic(type="NOTHING")) == []
        assert await _stored(ledger, "quiet") == await ledger.horizon()


async def test_a_wait_that_was_cancelled_loses_nothing(url: str) -> None:
    async with open_ledger(url) as ledger, subscribe(ledger, cursor="patient") as events:
        for number in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.01)
            await _say(ledger, str(number))
            assert await _take(events, 1) == [str(number)]


async def test_a_second_subscriber_of_a_name_takes_over_its_cursor(url: str) -> None:
    """G8: the first subscriber can move the cursor no longer."""
    async with open_ledger(url) as ledger:
        await _say(ledger, "1", "2")
        async with subscribe(ledger, cursor="one") as first:
            assert await _take(first, 1) == ["1"]
            async with subscribe(ledger, cursor="one") as second:
                assert await _take(second, 1) == ["1"]
                with pytest.raises(FencedError):
                    await first.commit()
                await second.commit()
                with pytest.raises(FencedError):
                    await anext(first)
        async with subscribe(ledger, cursor="one") as third:
            assert await _take(third, 1) == ["2"]


@pytest.mark.virtual_time
async def test_a_subscriber_that_loses_its_cursor_while_it_waits_gets_the_error_with_the_next_message() -> None:
    """G8."""
    async with open_ledger("memory:") as ledger, subscribe(ledger, cursor="one") as first:
        await _say(ledger, "1")
        waiting = asyncio.create_task(_take(first, 2))
        await asyncio.sleep(0.1)  # it has handled 1, and waits
        async with subscribe(ledger, cursor="one"):
            await asyncio.sleep(2)  # the first one has tried to store its cursor
            await _say(ledger, "2")
            with pytest.raises(FencedError):
                await waiting


async def test_a_cursor_is_no_message_and_a_ledger_with_one_is_whole(url: str) -> None:
    """G20: old readers find a thread without messages, which lists of threads may leave out."""
    async with open_ledger(url) as ledger:
        await _say(ledger, "1")
        before = await ledger.horizon()
        async with subscribe(ledger, cursor="bills") as events:
            await _take(events, 1)
            await events.commit()
        listed = await ledger.threads(ThreadFilter(system=False))

        assert await ledger.horizon() == before
        assert (await ledger.verify()).is_whole
        assert [thread.thread_id for thread in listed.threads] == ["t"]
        assert [message async for message in ledger.read("system/cursor/bills")] == []

        await ledger.delete("system/cursor/bills")
        async with subscribe(ledger, cursor="bills") as events:
            assert await _take(events, 1) == ["1"]  # from the beginning
        with pytest.raises(SecretNameError):
            async with subscribe(ledger, cursor="sk-proj-abcdefghijklmnopqrst"):
                pass


async def test_a_message_to_the_thread_of_a_cursor_does_not_move_it(url: str) -> None:
    """G22."""
    async with open_ledger(url) as ledger:
        await _say(ledger, "1")
        async with subscribe(ledger, cursor="bills", start="beginning"):
            pass
        forged = _said("999").model_copy(update={"to": ("cursor",)})
        await ledger.post("system/cursor/bills", forged, by="eve")
        async with subscribe(ledger, cursor="bills") as events:
            assert await _take(events, 2) == ["1", "999"]


@pytest.mark.slow
async def test_an_altered_cursor_is_found(tmp_path: Path) -> None:
    """G20."""
    path = tmp_path / "ledger.db"

    async with open_ledger(f"sqlite:///{path}") as ledger:
        await _say(ledger, "1")
        assert await _all(ledger, "bills") == ["1"]
    file = apsw.Connection(str(path))
    file.execute("UPDATE snapshots SET state = CAST('\"0\"' AS BLOB)")
    file.close()
    async with open_ledger(f"sqlite:///{path}") as ledger:
        (damage,) = (await ledger.verify()).damages
        assert (damage.thread_id, damage.what) == (
            "system/cursor/bills",
            "the snapshot of 'cursor/1' is not what it was",
        )


async def test_a_subscription_is_used_inside_of_its_block() -> None:
    async with open_ledger("memory:") as ledger:
        with pytest.raises(RuntimeError, match="async with block"):
            await anext(subscribe(ledger))


@pytest.mark.slow
def test_a_slow_subscriber_keeps_nothing_in_memory(tmp_path: Path) -> None:
    """G18: 8 MB of messages wait in the ledger, and a page of them is in memory."""

    async def main() -> int:
        async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
            for thread in range(16):
                await _say(ledger, *("x" * 4000 for _ in range(128)), thread_id=f"t{thread}")
            tracemalloc.start()
            try:
                async with subscribe(ledger, cursor="slow") as events:
                    await _take(events, 300)
                    return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    assert asyncio.run(main()) < 5_000_000


# ------------------------------------------------------------ actors, processes


@pytest.mark.virtual_time
async def test_a_system_gives_what_actors_say_in_any_thread_by_type_and_address() -> None:
    """CH-128."""
    async with System() as system:
        system.register("probe", Probe)
        for number in (1, 2):
            await system.ask("probe/1", Via(to="probe/2", text=f"hi {number}"), thread_id=f"t{number}")
            await system.tell("probe/2", Note(text="noted"), thread_id=f"t{number}")
        topics = Topic(type="TEST_PONG", receiver="probe/1"), Topic(type="TEST_NOTE")
        found: list[tuple[str | None, str]] = []
        async with system.subscribe(*topics, cursor="pongs") as events:
            async for event in events:
                found.append((event.record.message.thread_id, type_of(event.record.message)))
                if len(found) == 4:
                    break
        assert found == [("t1", "TEST_PONG"), ("t1", "TEST_NOTE"), ("t2", "TEST_PONG"), ("t2", "TEST_NOTE")]

        async def ask_back() -> None:
            async with system.subscribe(Topic(type="TEST_PING"), start="now") as events:
                asking.set()
                async for _ in events:
                    return

        asking = asyncio.Event()
        following = asyncio.create_task(ask_back())
        await asking.wait()
        await system.ask("probe/2", Ping(text="live"), thread_id="t3")
        await following


@asynccontextmanager
async def _writing(ledger: Ledger, count: int) -> AsyncGenerator[None, None]:
    """Write messages into more and more threads while something else goes on."""

    async def write() -> None:
        for number in range(count):
            await _say(ledger, str(number), thread_id=f"t{number % 7}-{number // 50}")

    writing = asyncio.create_task(write())
    try:
        yield
        await writing
    finally:
        writing.cancel()


@pytest.mark.slow
def test_a_subscriber_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """G5, F13: SIGKILL while it catches up and while it follows; nothing is missed, and the order stays."""
    path, count, lives = tmp_path / "ledger.db", 400, list[list[int]]()

    async def main() -> None:
        async with open_ledger(f"sqlite:///{path}") as ledger:
            async with _writing(ledger, count):
                for least in (60, 90):
                    lives.append(await asyncio.to_thread(_live, path, least))
            lives.append(await asyncio.to_thread(_live, path, None, str(count - 1)))

    asyncio.run(main())
    assert {number for life in lives for number in life} == set(range(count))
    for before, life in zip([[-1], *lives], lives, strict=False):
        assert life == list(range(life[0], life[-1] + 1))  # in order, nothing passed over
        assert life[0] <= before[-1] + 1
    assert lives[1][0] > 0  # R0: the cursor of the first one was stored


def _live(path: Path, least: int | None, last: str = "") -> list[int]:
    """Let a subscriber handle at least so many messages, or up to one, then kill it; return all that it has handled."""
    process = forked.start(SUBSCRIBER, path, "killed", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    limit = Timer(60, process.terminate)  # then the number of messages fails the test
    limit.start()
    try:
        said = list(_handled(process, least, last))
    finally:
        limit.cancel()
        process.kill()
        assert process.stdout is not None
        rest = process.stdout.read()  # not by `communicate`, which leaves out what was read ahead of the lines above
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    return [*said, *map(int, rest.split())]


def _handled(process: "subprocess.Popen[str]", least: int | None, last: str) -> Iterator[int]:
    assert process.stdout is not None
    assert process.stdin is not None
    for number, line in enumerate(process.stdout, 1):
        yield int(line)
        if number % 20 == 0:
            process.stdin.write("\n")
            process.stdin.flush()
        if line.strip() == last or number == least:
            return


async def test_a_cursor_that_a_subscriber_of_another_process_has_is_refused_until_it_ends(tmp_path: Path) -> None:
    """Two ledgers on one file are two hosts, as two processes are."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with open_ledger(url) as one, open_ledger(url) as other:
        async with subscribe(one, cursor="books"):
            with pytest.raises(OwnedError, match="end that subscriber first, or give this one another cursor"):
                async with subscribe(other, cursor="books"):
                    pass
        async with subscribe(other, cursor="books") as events:
            await events.commit()
