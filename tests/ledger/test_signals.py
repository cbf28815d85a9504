"""Signals between processes: by LISTEN/NOTIFY, by a real NATS cluster, with a password and TLS; and lost ones (F25, G17).

Whatever happens to signals, every message is handled once; without any, each hop between two hosts is at most 1.2 s later.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.nats import Cluster, FaultySignals, LocalSignals, certificates, running_nats
from tests.postgres import Server

import antiphon.ledger._signals as signals_module
import antiphon.ledger.postgres._ledger as ledger_module
import antiphon.runtime._hosting as hosting_module
from antiphon.errors import SetupError
from antiphon.ledger import Host, Ledger, open_ledger
from antiphon.ledger._signals import NatsSignals, NoSignals, Signalling, signal_subject
from antiphon.messages import Message, MessageBuilder, OptionCallPayload
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles

pytest.importorskip("asyncpg")
pytest.importorskip("nats")
pytestmark = pytest.mark.slow

IS_LONG = bool(os.environ.get("ANTIPHON_CHAOS"))
DEFAULTS = Settings()
MOST = 1.2
"""Seconds that a hop between two hosts may take longer without signals."""


class Counted(Reply, frozen=True, type="SIGNALS_COUNTED"):
    number: int


class Count(Request[Counted], frozen=True, type="SIGNALS_COUNT"):
    number: int


class CountingActor(Actor):
    def __init__(self, effects: Counter[int], times: list[float]) -> None:
        self._effects, self._times = effects, times

    @handles
    async def count(self, asked: Count, context: Context) -> Counted:
        self._times.append(time.monotonic())

        async def add(key: str) -> int:
            self._effects[asked.number] += 1
            return asked.number

        return Counted(number=await context.effect("add", {"number": asked.number}, add, effects="once"))


def _asked(number: int) -> Message:
    payload = OptionCallPayload(
        invocation_id=f"m{number}", option_name=Count.message_type, arguments=Count(number=number).to_data()
    )
    return Message(policy="client", payload=payload, to=("counter/1",), lane="control", id=f"m{number}")


class Hosted:
    """A host on a ledger in PostgreSQL, and a client elsewhere that posts to its threads and follows the ledger."""

    def __init__(self, client: Ledger, effects: Counter[int], times: list[float]) -> None:
        self._client, self.effects, self._times = client, effects, times

    async def ask(self, number: int, thread_id: str) -> tuple[float, float]:
        """Post a question; return the seconds until the handler had it, and from there until the answer was here."""
        message = _asked(number)
        handled = len(self._times)
        tail = self._client.tail(await self._client.horizon())
        began = time.monotonic()
        await self._client.post(thread_id, message)
        async for tailed in tail:
            found = tailed.record.message
            if found.kind == "option_result" and found.invocation_id == f"m{number}":
                break
        await tail.aclose()  # type: ignore[attr-defined] # a generator, in fact
        return self._times[handled] - began, time.monotonic() - self._times[handled]


@asynccontextmanager
async def hosted(
    url: str, tenant: str, here: Signalling = None, there: Signalling = None, settings: Settings = DEFAULTS
) -> AsyncGenerator[Hosted]:
    """Start a host on one handle, and give another one to the client."""
    effects, times = Counter[int](), list[float]()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_ledger(url, tenant=tenant, signals=there))
        ledger = await stack.enter_async_context(open_ledger(url, tenant=tenant, signals=here))
        settings = replace(settings, host=f"host-{tenant}", build="1", block_limit=None)
        system = await stack.enter_async_context(System(ledger, settings=settings))
        system.register("counter", lambda: CountingActor(effects, times))
        hosting = asyncio.ensure_future(system.host())
        try:
            await _listening(client, ledger)
            yield Hosted(client, effects, times)
        finally:
            hosting.cancel()
            await asyncio.gather(hosting, return_exceptions=True)


async def _listening(client: Ledger, ledger: Ledger) -> None:
    """Wait until both sides hear each other, if they can: a hint that comes before that is lost."""
    carrier = getattr(ledger, "_carrier")  # noqa: B009 (private)
    if not isinstance(carrier, NoSignals | FaultySignals):
        async with asyncio.timeout(20):
            for left, right in ((client, ledger), (ledger, client)):
                seen = await left.hints.wait(0, 0.01)
                while await left.hints.wait(seen, 0.1) == seen:
                    await right.leave(Host("nobody", "1"))


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    with running_nats(3) as running:
        yield running


def _longest(hops: list[tuple[float, float]]) -> float:
    """Return how long a hop takes: with `make chaos` the longest, otherwise the median, because the machine may be busy."""
    each = sorted(second for hop in hops for second in hop)
    return each[-1 if IS_LONG else len(each) // 2]


# ---------------------------------------------------------------- they hurry


@pytest.mark.parametrize("carrier", ["notify", "nats"])
@pytest.mark.timeout(60)
async def test_a_host_and_a_reader_are_woken_at_once(
    carrier: str,
    postgres: Server,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Nobody looks without a signal here for a minute: a signal that does not come fails the test."""
    monkeypatch.setattr(hosting_module, "_TAKE_EVERY", 60.0)
    monkeypatch.setattr(ledger_module, "_LOOK_AGAIN", 60.0)
    given = {"notify": None, "nats": cluster.url}[carrier]
    async with hosted(postgres.url, f"woken-{carrier}", given, given, Settings(poll=60, heartbeat=60)) as site:
        hops = [await site.ask(number, f"t{number % 10}") for number in range(20)]
    assert site.effects == Counter(range(20))
    handler, answer = (sorted(each[place] for each in hops)[10] * 1000 for place in (0, 1))
    record_property("F25", f"{carrier}: post to handler p50 {handler:.0f} ms, handler to reader p50 {answer:.0f} ms")


class _Sent(NoSignals):
    """Notes the first byte of each signal."""

    def __init__(self) -> None:
        self.kinds: list[bytes] = []

    def send(self, subject: str, data: bytes) -> None:
        self.kinds.append(data[:1])


async def test_the_wake_up_of_a_post_does_not_wait_behind_that_of_its_commit(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals of one kind are sent at most every 20 ms; here every hour."""
    monkeypatch.setattr(signals_module, "_HINT_EVERY", 3600.0)
    sent = _Sent()
    async with open_ledger(postgres.url, tenant="both-kinds", signals=sent) as ledger, asyncio.timeout(20):
        for number in range(3):
            await ledger.post(f"t{number}", _asked(number))
        while len(sent.kinds) < 2:  # noqa: ASYNC110 (a carrier tells nobody)
            await asyncio.sleep(0.01)
    assert sorted(sent.kinds) == [b"c", b"w"]


# ---------------------------------------------------------------- F25, G17: they are lost, doubled, late


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("lost", {"dropped": 1.0}),
        ("some-lost", {"dropped": 0.5}),
        ("doubled", {"doubled": 1.0}),
        ("late", {"latest": 3.0}),
        ("all", {"dropped": 0.2, "doubled": 0.3, "latest": 1.0}),
    ],
)
@pytest.mark.timeout(120)
async def test_F25_signals_that_are_lost_doubled_or_late_cost_time_only(
    name: str, faults: dict[str, float], postgres: Server, record_property: Callable[[str, object], None]
) -> None:
    local = LocalSignals()
    carrier = FaultySignals(local, **faults)
    number = 100 if IS_LONG else 6
    async with hosted(postgres.url, f"f25-{name}", carrier, carrier) as site:
        # A new thread waits for `take`, a thread that the host has for `woken`, and each answer for `tail`.
        hops = [await site.ask(each, f"t{each % (number // 2)}") for each in range(number)]
    assert site.effects == Counter(range(number))
    longest = max(second for hop in hops for second in hop)
    record_property("F25", f"signals {name}: {carrier.lost} of {carrier.sent} lost, the longest hop {longest:.2f} s")
    assert carrier.sent
    assert (carrier.lost > 0) == ("dropped" in faults)
    assert _longest(hops) < MOST, hops


@pytest.mark.timeout(60)
async def test_G17_with_every_node_killed_everything_ends_and_comes_back_by_itself(
    postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """F4, F21 to F24 in one: NATS has nothing to lose. One node, two nodes and all are killed while questions are asked."""
    with running_nats(3) as nats:
        async with hosted(postgres.url, "killed", nats.url, nats.url) as site:
            hops = []
            for number, killed in enumerate([(0,), (1,), (2,)]):
                await asyncio.to_thread(nats.kill, *killed)
                hops += [await site.ask(2 * number + each, f"t{each}") for each in (0, 1)]
            assert _longest(hops) < MOST, hops
            with caplog.at_level(logging.WARNING, "antiphon.ledger"):
                await until(lambda: "no connection to NATS" in caplog.text)
            await asyncio.to_thread(nats.start)
            async with asyncio.timeout(30):
                number, quick = 6, False
                while not quick:
                    quick = sum(await site.ask(number, f"t{number}")) < 0.25
                    number += 1
    assert site.effects == Counter(range(number))


@pytest.mark.timeout(60)
async def test_with_signals_off_everything_ends(postgres: Server) -> None:
    async with hosted(postgres.url, "off", "off", "off") as site:
        hops = [await site.ask(number, f"t{number % 2}") for number in range(4)]
    assert site.effects == Counter(range(4))
    assert _longest(hops) < MOST, hops


async def test_a_signal_that_cannot_be_sent_is_dropped_and_the_sender_does_not_wait(cluster: Cluster) -> None:
    with running_nats() as nats:
        async with open_signals(nats.url) as signals:
            heard: list[bytes] = []
            async with signals.hear(signal_subject("a"), heard.append):
                await until(lambda: signals.is_connected)
                for number in range(100):
                    signals.send(signal_subject("a"), b"%d" % number)
                    signals.send(signal_subject("b"), b"not for you")
                await until(lambda: len(heard) == 100)
                assert heard == [b"%d" % number for number in range(100)]
                await asyncio.to_thread(nats.kill)
                began = time.process_time()
                for _ in range(100_000):
                    signals.send(signal_subject("a"), b"x" * 100)
                assert time.process_time() - began < 2
                assert len(signals._waiting) <= 4096


# ---------------------------------------------------------------- passwords, TLS, wrong input


@asynccontextmanager
async def open_signals(url: str):  # type: ignore[no-untyped-def]

    async with NatsSignals.open(url) as signals:
        yield signals


async def until(condition):  # type: ignore[no-untyped-def]
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("user", ["", "antiphon:wrong@", "other:secret@"])
async def test_a_wrong_password_is_refused_in_one_line(user: str) -> None:
    with running_nats(options=("--user", "antiphon", "--pass", "s:cr@t")) as nats:
        with pytest.raises(SetupError, match="NATS refuses the user or the password") as refused:
            async with open_signals(nats.url.replace("//", f"//{user}")):
                pass
        assert "\n" not in str(refused.value)
        assert "wrong" not in str(refused.value)
        async with open_signals(nats.url.replace("//", "//antiphon:s%3Acr%40t@")) as signals:
            assert signals.is_connected


def _documented_nats() -> str:
    """Return the configuration of a server that the docs show."""
    page = Path(__file__).parents[2] / "docs" / "ledger.md"
    return page.read_text("utf-8").partition("# nats.conf")[2].partition("\n```")[0].partition("\n")[2]


async def test_the_documented_permissions_keep_live_text_from_other_clients(tmp_path: Path, postgres: Server) -> None:
    """A client of the same account hears it; one of another account, or without the permission, hears nothing."""
    import nats

    (tmp_path / "nats.conf").write_text(_documented_nats())
    with running_nats(options=("-c", str(tmp_path / "nats.conf"))) as server:
        heard: dict[str, list[bytes]] = {}
        async with AsyncExitStack() as stack:
            for user, password, subject in (
                ("antiphon-acme", "change-me-1", "antiphon.>"),
                ("antiphon-other", "change-me-2", "antiphon.>"),
                ("monitor", "change-me-3", ">"),
            ):
                client = await nats.connect(server.url, user=user, password=password)
                stack.push_async_callback(client.close)
                kept = heard.setdefault(user, [])

                async def take(message: Any, kept: list[bytes] = kept) -> None:
                    kept.append(message.data)

                await client.subscribe(subject, cb=take)
                await client.flush()
            for user in ("antiphon-acme:change-me-1", "antiphon-other:change-me-2"):
                url = server.url.replace("//", f"//{user}@")
                ledger = await stack.enter_async_context(open_ledger(postgres.url, tenant=user[:14], signals=url))
                assert ledger.hints.signals is not None
                ledger.hints.signals.send(signal_subject("words", "t"), user.encode())
            await until(lambda: all(any(b"change" in each for each in heard[f"antiphon-{own}"]) for own in ("acme", "other")))
        assert b"antiphon-acme:change-me-1" not in heard["antiphon-other"]
        assert b"antiphon-other:change-me-2" not in heard["antiphon-acme"]
        assert heard["monitor"] == []


async def test_a_password_that_is_changed_later_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with running_nats(options=("--user", "antiphon", "--pass", "first")) as nats:
        async with open_signals(nats.url.replace("//", "//antiphon:first@")) as signals:
            nats.kill()
            nats._options = ("--user", "antiphon", "--pass", "second")
            nats.start()
            await until(lambda: "NATS refuses the user or the password" in caplog.text)
            assert not signals.is_connected
    assert "first" not in caplog.text


async def test_a_listener_that_is_cancelled_at_the_beginning_leaves_others_hearing(cluster: Cluster) -> None:
    heard: list[bytes] = []
    async with open_signals(cluster.url) as signals, open_signals(cluster.url) as sender:
        subscribe, begun = signals._subscribe, asyncio.Event()

        async def hang(subject: str) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def listen() -> None:
            async with signals.hear("a", heard.append):
                await asyncio.Event().wait()

        signals._subscribe = hang  # type: ignore[method-assign]
        first = asyncio.ensure_future(listen())
        await begun.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        signals._subscribe = subscribe  # type: ignore[method-assign]
        async with signals.hear("a", heard.append), asyncio.timeout(15):
            while not heard:  # a server may not know the listener yet
                sender.send("a", b"x")
                await asyncio.sleep(0.02)


async def test_tls_is_verified(tmp_path: Path) -> None:
    authority, certificate, key = certificates(tmp_path)
    options = ("--tls", "--tlscert", str(certificate), "--tlskey", str(key))
    with running_nats(options=options, scheme="tls") as nats:
        async with open_signals(f"{nats.url}?ca={authority}") as signals:
            assert signals.is_connected
        with pytest.raises(SetupError, match="cannot be verified; name its certificate authority with"):
            async with open_signals(nats.url):
                pass
        with pytest.raises(SetupError, match=r"no-such\.pem: it has no certificate of an authority"):
            async with open_signals(f"{nats.url}?ca={tmp_path / 'no-such.pem'}"):
                pass


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nats:",
        "nats://",
        "http://a",
        "nats://a:b:c",
        "nats://a:99999",
        "nats://a/path",
        "nats://a?x=1",
        "nats://a?ca=f",
        "tls://a,",
    ],
)
async def test_a_wrong_url_says_how_to_write_it(url: str, postgres: Server) -> None:
    with pytest.raises(SetupError, match=r"nats://"):
        async with open_signals(url):
            pass


async def test_an_unreachable_server_is_reported_and_the_ledger_works(
    postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "antiphon.ledger"):
        async with open_ledger(postgres.url, tenant="nowhere", signals="nats://127.0.0.1:1") as ledger:
            await ledger.append("t", [MessageBuilder().add_text("hello").to_message()])
    (told,) = [each for each in caplog.records if each.name == "antiphon.ledger"]
    assert "work starts up to a second later" in told.message


async def test_only_a_ledger_that_machines_share_takes_signals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs no signals"):
        async with open_ledger("memory:", signals=NoSignals()):
            pass
