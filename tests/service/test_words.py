"""Words of threads that other processes run: from the host of the thread, over a take-over, without a cost for the host."""

import asyncio
import gc
import json
import os
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.fake_openai import ANSWER, fake_openai
from tests.forked import Forked
from tests.nats import FaultySignals, LocalSignals, running_nats

from antiphon.ledger import Host, Ledger, open_ledger
from antiphon.ledger._signals import NatsSignals, NoHints, signal_subject
from antiphon.ledger.memory import MemoryLedger
from antiphon.service import Followed, ThreadText, follow
from antiphon.service import _live_text as live_text
from antiphon.service._following import OnText, TextDelta
from antiphon.service._live_text import offering_text
from antiphon.service._trust import trust_list

IS_LONG = bool(os.environ.get("ANTIPHON_CHAOS"))
TEAM = """
pattern = "options"
model = "openai-chat:fake"

[[agents]]
name = "ada"
role = "leader"
instructions = "Answer."
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


class Speaker:
    """A host that says what a test has it say."""

    def __init__(self) -> None:
        self.hearing: dict[str, list[OnText]] = {}

    @asynccontextmanager
    async def __call__(self, thread_id: str, hear: OnText) -> AsyncGenerator[None]:
        self.hearing.setdefault(thread_id, []).append(hear)
        try:
            yield
        finally:
            self.hearing[thread_id].remove(hear)

    def say(self, thread_id: str, text: str) -> None:
        for hear in tuple(self.hearing.get(thread_id, ())):
            hear(TextDelta("ada", text))

    def count(self, thread_id: str = "t") -> int:
        return len(self.hearing.get(thread_id, ()))


@contextmanager
def elsewhere(name: str, speaker: Speaker) -> Generator[asyncio.AbstractEventLoop]:
    """Offer the words of a host in another event loop, as another process does: it is heard over its port only."""
    loop, opened, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def offer() -> None:
        async with offering_text(name, speaker):
            opened.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(offer()))
    thread.start()
    assert opened.wait(5)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(5)
        loop.close()


async def _owned(ledger: Ledger, thread_id: str, name: str) -> Host:
    host = Host(name, "build")
    await ledger.beat(host)
    await ledger.claim(thread_id, by=host)
    return host


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (another loop decides)
            await asyncio.sleep(0.01)


def _file() -> Path:
    (found,) = (trust_list().parent / "hosts").iterdir()
    return found


async def test_words_come_from_the_host_of_the_thread_and_only_to_a_watcher() -> None:
    ledger, speaker = MemoryLedger(), Speaker()
    await _owned(ledger, "t", "one")
    words = ThreadText(ledger)
    with elsewhere("one", speaker) as loop:
        assert stat.S_IMODE(_file().stat().st_mode) == 0o600
        first: list[TextDelta] = []
        second: list[TextDelta] = []
        async with words("t", first.append), words("t", second.append):
            await _until(lambda: speaker.count() == 1)  # both share a connection
            loop.call_soon_threadsafe(speaker.say, "t", "hello")
            loop.call_soon_threadsafe(speaker.say, "another", "not for you")
            loop.call_soon_threadsafe(speaker.say, "t", "\u2028" + "x" * 20_000)
            await _until(lambda: sum(len(each.text) for each in second) == 20_006)
        assert first == second
        assert first[0] == TextDelta("ada", "hello")
        await _until(lambda: speaker.count() == 0)
    assert not list((trust_list().parent / "hosts").iterdir())


@pytest.mark.slow
async def test_words_follow_a_thread_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_text, "_LOOK", 0.02)
    ledger, one, two = MemoryLedger(), Speaker(), Speaker()
    host = await _owned(ledger, "t", "one")
    heard: list[str] = []
    with elsewhere("two", two) as second:
        async with ThreadText(ledger)("t", lambda words: heard.append(words.text)):
            with elsewhere("one", one) as first:
                await _until(lambda: one.count() == 1)
                first.call_soon_threadsafe(one.say, "t", "from one")
                await _until(lambda: heard == ["from one"])
            await ledger.leave(host)
            await _owned(ledger, "t", "two")
            await _until(lambda: two.count() == 1)
            second.call_soon_threadsafe(two.say, "t", "from two")
            await _until(lambda: heard == ["from one", "from two"])


@pytest.mark.slow
async def test_a_watcher_that_does_not_read_loses_words_and_costs_the_host_nothing() -> None:
    """G18: a million pieces for a watcher that takes nothing: a queue of limited length, and no wait in the host."""
    speaker = Speaker()
    async with offering_text("one", speaker):
        said = json.loads(_file().read_text())
        reader, writer = await asyncio.open_connection("127.0.0.1", said["port"], limit=1024)
        writer.write(json.dumps({"token": said["token"], "thread_id": "t"}).encode() + b"\n")
        await _until(lambda: speaker.count() == 1)
        for number in range(20_000):
            speaker.say("t", "x" * 500)
            if number % 100 == 0:
                await asyncio.sleep(0)
        seen = missed = 0
        async with asyncio.timeout(10):
            while seen + missed < 20_000:
                piece = json.loads(await reader.readline())
                seen, missed = seen + 1, missed + piece["missed"]
        assert missed > 10_000
        assert seen + missed == 20_000
        writer.close()


@pytest.mark.parametrize(
    "hello",
    [
        *(b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"[]\n", b'{"token": "x", "thread_id": "t"}\n', b"\xff\n"),
        *(b"[" * 70_000, b"[" * 60_000 + b"\n"),
    ],
    ids=lambda hello: repr(hello[:20]),
)
async def test_a_stranger_hears_nothing(hello: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It costs the host nothing, and no line in its log."""
    speaker = Speaker()
    async with offering_text("one", speaker):
        reader, writer = await asyncio.open_connection("127.0.0.1", json.loads(_file().read_text())["port"])
        writer.write(hello)
        if not hello:
            writer.write_eof()
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert speaker.count() == 0
        writer.close()
    gc.collect()  # an error of a task that nothing awaits is logged then
    assert caplog.records == []


@pytest.mark.slow
async def test_a_killed_host_and_a_file_of_another_user_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_text, "_LOOK", 0.02)
    ledger, speaker = MemoryLedger(), Speaker()
    await _owned(ledger, "t", "one")
    place = live_text._place("one")
    live_text.write_private(place, json.dumps({"port": 1, "token": "dead"}))
    heard: list[str] = []
    async with ThreadText(ledger)("t", lambda words: heard.append(words.text)):
        await _until(lambda: not place.exists())  # nobody listens there: the file of a dead process is removed
        with elsewhere("one", speaker) as loop:
            await _until(lambda: speaker.count() == 1)
            loop.call_soon_threadsafe(speaker.say, "t", "hello")
            await _until(lambda: heard == ["hello"])
    with elsewhere("one", speaker):
        place.chmod(0o644)
        async with ThreadText(ledger)("t", lambda words: heard.append(words.text)):
            await asyncio.sleep(0.1)
            assert speaker.count() == 0
        place.chmod(0o600)


async def test_a_host_runs_where_its_words_cannot_be_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    async with offering_text("one", Speaker()):
        pass


# ---------------------------------------------------------------- by signals


class SignalledLedger(MemoryLedger):
    """A ledger with a carrier of signals."""

    def __init__(self, carrier: Any) -> None:
        super().__init__()
        self._carried = NoHints(carrier)

    @property
    def hints(self) -> NoHints:
        return self._carried


@asynccontextmanager
async def _said_by_signals(ledger: Ledger, thread_id: str, heard: list[TextDelta], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a host speak that this process does not know by any other way than signals."""
    monkeypatch.setattr(live_text, "_offered", {})
    monkeypatch.setattr(live_text, "_LOOK", 0.02)
    speaker = Speaker()
    async with offering_text("one", speaker, ledger):
        live_text._offered.clear()  # as in another process
        _file().unlink()  # as on another machine
        try:
            async with ThreadText(ledger)(thread_id, heard.append):
                await _until(lambda: speaker.count() == 1)
                yield speaker
            await _until(lambda: speaker.count() == 0)  # no watcher announces itself any more
        finally:
            live_text._offered["one"] = live_text._Offered(asyncio.get_running_loop(), speaker)


@pytest.mark.slow
async def test_words_are_sent_as_signals_only_to_a_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, heard = SignalledLedger(LocalSignals()), list[TextDelta]()
    monkeypatch.setattr(live_text, "_WATCHED_SECONDS", 0.2)
    await _owned(ledger, "t", "one")
    async with _said_by_signals(ledger, "t", heard, monkeypatch) as speaker:
        speaker.say("t", "hello")
        speaker.say("another", "not for you")
        speaker.say("t", "x" * 20_000)
        assert [len(each.text) for each in heard] == [5, 8192, 8192, 3616]
        assert heard[0] == TextDelta("ada", "hello")


@pytest.mark.slow
async def test_F25_words_that_are_doubled_come_once_and_lost_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[TextDelta] = []
    monkeypatch.setattr(live_text, "_WATCHED_SECONDS", 0.2)
    ledger = SignalledLedger(FaultySignals(LocalSignals(), dropped=0.3, doubled=0.5, seed=4))
    await _owned(ledger, "t", "one")
    async with _said_by_signals(ledger, "t", heard, monkeypatch) as speaker:
        speaker.say("t", "0")
        for number in range(1, 200):
            speaker.say("t", str(number))
    numbers = [int(each.text) for each in heard]
    assert numbers == sorted(set(numbers))
    assert len(heard) + sum(each.missed for each in heard[1:]) == numbers[-1] - numbers[0] + 1
    assert sum(each.missed for each in heard) > 20


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b"\xff", b'{"sender": 1, "number": "x"}', b'{"number": 1}'])
async def test_a_signal_that_is_none_of_words_is_ignored(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_text, "_WATCHED_SECONDS", 0.1)
    carrier, heard = LocalSignals(), list[TextDelta]()
    ledger = SignalledLedger(carrier)
    await _owned(ledger, "t", "one")
    async with _said_by_signals(ledger, "t", heard, monkeypatch) as speaker:
        carrier.send(signal_subject("words", "t"), data)
        carrier.send(signal_subject("watch", "one"), data)
        speaker.say("t", "hello")
    assert heard == [TextDelta("ada", "hello")]


@pytest.mark.slow
async def test_words_go_by_a_real_nats_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_text, "_WATCHED_SECONDS", 0.5)
    heard: list[TextDelta] = []
    with running_nats() as nats:
        async with NatsSignals.open(nats.url) as carrier:
            ledger = SignalledLedger(carrier)
            await _owned(ledger, "t", "one")
            async with _said_by_signals(ledger, "t", heard, monkeypatch) as speaker:
                for number in range(500):
                    speaker.say("t", str(number))
                await _until(lambda: len(heard) == 500)
    assert [each.text for each in heard] == [str(number) for number in range(500)]
    assert not any(each.missed for each in heard)


# ---------------------------------------------------------------- real processes


@asynccontextmanager
async def _process(*arguments: object, folder: Path, environment: dict[str, str]) -> Any:
    given = [sys.executable, "-m", "antiphon", *map(str, arguments)]
    process = Forked(given, stdout=-3, stderr=-3, cwd=folder, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_words_of_a_run_and_of_the_host_that_takes_it_over_are_followed(tmp_path: Path) -> None:
    """`antiphon run`, killed in the middle of an answer, and `antiphon host`, which continues it."""
    (tmp_path / "team.toml").write_text(TEAM)
    url = f"sqlite:///{tmp_path}/ledger.db"
    found: list[Followed] = []
    with fake_openai() as fake:
        fake.pause = 0.2
        environment = {**fake.environment(), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        how: Any = {"folder": tmp_path, "environment": environment}
        place = ("--team", "team.toml", "--ledger", "ledger.db")

        async def watch(ledger: Ledger) -> None:
            async for each in follow(ledger, "tea", live_text=ThreadText(ledger)):
                found.append(each)  # noqa: PERF401 (while they come)

        def speaking() -> str:
            return "".join(each.delta.text for each in found if each.delta is not None)

        async with open_ledger(url) as ledger:
            async with _process("run", "How hot?", "--name", "tea", *place, "--quiet", **how) as run:
                while await ledger.thread("tea") is None:  # noqa: ASYNC110 (another process decides)
                    await asyncio.sleep(0.02)
                watching = asyncio.ensure_future(watch(ledger))
                await _until(lambda: len(speaking()) > 3)
                run.kill()
                await asyncio.to_thread(run.wait, 20)
            before = len(found)
            if not IS_LONG:  # the lease of a killed process lasts ten seconds
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                return
            async with _process("host", *place, "--model", "openai-chat:fake", **how):
                async with asyncio.timeout(20):
                    while (await ledger.thread("tea")).status != "completed":  # type: ignore[union-attr] # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    later = "".join(each.delta.text for each in found[before:] if each.delta is not None)
    assert later.strip() == ANSWER
    seen = [each.record.seq for each in found if each.record is not None]
    assert seen == list(range(1, len(seen) + 1))
