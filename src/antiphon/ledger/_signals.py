"""Signals: hints between the processes of one ledger, such as a wake-up ("there is new work") or a live text delta.

A signal may be lost, repeated, late or out of order: that costs time, never a message. A process that waits for a signal also
polls at least once a second. So a carrier stores nothing, acknowledges nothing, and never makes a sender wait.

`NatsSignals` sends signals over NATS, with core subjects. Without it, a ledger in PostgreSQL sends wake-ups by LISTEN/NOTIFY.

**Addressees.** If every host polled at each hint, a message to one thread would cost the database as many queries as there are
hosts. So a hint about work names the owners of the threads, and only they poll. For threads without an owner, each host
computes a number from the hint, and about sixteen hosts poll. If none of them has room, another host finds the thread at its
next regular poll. With each beat, hosts learn how many hosts there are.

**Rate.** A process sends the first hint at once, and combines the hints of the next 20 milliseconds. PostgreSQL carries a few
thousand signals a second for all processes together. If there are many hosts, each waits longer between two hints about
commits, at most a second: readers of `tail` poll that often anyway.
"""

from __future__ import annotations

import asyncio
import logging
import secrets  # noqa: TID251 (tells processes apart, also where a test replaces the port)
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit
from zlib import crc32

from antiphon.errors import SetupError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from antiphon.ledger._hosts import Host

_LOG: Final = logging.getLogger("antiphon.ledger")

TakeSignal: TypeAlias = Callable[[bytes], None]
"""A function that takes the content of a signal. It returns at once."""


class Signals(Protocol):
    """Carries signals between processes."""

    def send(self, subject: str, data: bytes) -> None:
        """Send a signal, or drop it. It never waits and never raises."""
        ...

    def hear(self, subject: str, take: TakeSignal) -> AbstractAsyncContextManager[None]:
        """Call a function with the signals of a subject that arrive during the block."""
        ...


class NoSignals:
    """Drops every signal: all processes poll."""

    def send(self, subject: str, data: bytes) -> None:
        """Drop it."""

    @asynccontextmanager
    async def hear(self, subject: str, take: TakeSignal) -> AsyncGenerator[None]:
        yield


class ScopedSignals:
    """The signals of one ledger and tenant, on a shared carrier."""

    def __init__(self, carrier: Signals, scope: str) -> None:
        self._carrier, self._scope = carrier, scope

    def send(self, subject: str, data: bytes) -> None:
        self._carrier.send(f"{self._scope}.{subject}", data)

    def hear(self, subject: str, take: TakeSignal) -> AbstractAsyncContextManager[None]:
        return self._carrier.hear(f"{self._scope}.{subject}", take)


Signalling: TypeAlias = "Signals | str | Literal['off'] | None"
"""The argument `signals` of a ledger: a carrier, the URL of one, `off`, or None for the default of the store."""

SIGNALS_VARIABLE: Final = "ANTIPHON_SIGNALS"


def signal_subject(what: str, *names: str) -> str:
    """Return the subject of signals about something. Names may have characters that a subject may not, so they are hashed."""
    return ".".join((what, *(sha256(name.encode()).hexdigest()[:24] for name in names)))


@asynccontextmanager
async def carrying(signals: Signalling) -> AsyncGenerator[Signals | None]:
    """Provide the given carrier, or the one that a URL names; None: the store's own.

    Raises:
        SetupError: the URL is wrong, or the server refuses the user or the password.
        ModuleNotFoundError: a package that the carrier needs is not installed.
    """
    if not isinstance(signals, str):
        yield signals
    elif signals == "off":
        yield NoSignals()
    else:
        async with NatsSignals.open(signals) as opened:
            yield opened


# ---------------------------------------------------------------- hints

ANYBODY: Final = "*"
"""A thread without an owner has work: some hosts poll."""
EVERYBODY: Final = "!"
"""All hosts poll: only few of them may be able to take the thread, or its owner is unknown."""

_COMMITTED, _WORK = b"c", b"w"
"""The first byte of a hint: messages were committed; a thread has work for a host."""
_HINT_EVERY: Final = 0.02
_HINT_AT_LEAST: Final = 1.0
"""The least and the largest number of seconds between two hints of a process."""
_FEW: Final = 16
"""The number of hosts that poll when a thread has no owner. Also: up to this many hosts, commits are announced as often as
work."""
_MOST_NAMED: Final = 100
"""The largest number of owners in one hint. A signal of PostgreSQL has at most 8,000 bytes."""


class CommitSignal:
    """Wakes the readers that wait for the next commit.

    A reader takes the count, then reads, then waits with that count. So it misses no commit between its read and its wait.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        """A dict keeps the order of arrival; a set of futures has another order in each run."""

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits."""
        return bool(self._waiting)

    def notify(self) -> None:
        """Wake all readers."""
        self.count += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait(self, count: int) -> None:
        """Wait until there have been more commits than `count`."""
        if self.count > count:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)


def is_chosen(hint: bytes, key: int, hosts: int) -> bool:
    """Whether a host, out of so many, is among the few that poll after a hint about a thread without an owner."""
    return hosts <= _FEW or crc32(b"%b %d" % (hint, key)) % hosts < _FEW


class Hints(Protocol):
    """What a ledger hears from the other processes that use it."""

    @property
    def signals(self) -> Signals | None:
        """The carrier of signals to other processes, such as live text; None: there is none for live text."""
        ...

    async def wait(self, after: int, within: float) -> int:
        """Wait until a host may have work from another process, at most so many seconds; return the number of hints so far.

        Pass that number as `after` the next time. Hints may be lost, repeated or late, so a host also polls for work. A store
        without hints just waits, and returns `after`.
        """
        ...


class NoHints:
    """The hints of a store whose processes tell each other nothing."""

    def __init__(self, signals: Signals | None = None) -> None:
        self.signals = signals

    async def wait(self, after: int, within: float) -> int:
        await asyncio.sleep(within)
        return after

    def note_commit(self) -> None:
        """Tell nobody."""

    def note_work(self, whom: str) -> None:
        """Tell nobody."""

    def note_host(self, host: Host, key: int, hosts: int) -> None:
        """Tell nobody."""

    def forget_host(self, host: Host) -> None:
        """Tell nobody."""


class ProcessHints:
    """The hints that a process sends and receives."""

    def __init__(self, carrier: Signals, subject: str, *, is_scarce: bool = False, signals: Signals | None = None) -> None:
        """Make them; `is_scarce`: the carrier can carry only few signals a second."""
        self.signals = signals
        self.commits = CommitSignal()
        """Notified when messages may have been committed, here or elsewhere."""
        self.work = CommitSignal()
        """Notified when a host of this process may have work."""
        self._carrier, self._subject = carrier, subject
        self._is_scarce = is_scarce
        self._sender = secrets.token_hex(8).encode()
        self._number = 0
        self._whom: dict[str, None] = {}
        self._own: dict[str, int] = {}
        """By instance, the keys of the hosts of this process."""
        self._hosts = 1
        self._of_work = _Announcer(self._tell_work, lambda: _HINT_EVERY)
        self._of_commits = _Announcer(
            lambda: self._carrier.send(self._subject, _COMMITTED + self._sender), self._between_commits
        )
        self._listening: asyncio.Task[None] | None = None

    def note_commit(self) -> None:
        """Notify all readers that messages were committed here."""
        self.commits.notify()
        self._of_commits.begin()

    def note_work(self, whom: str) -> None:
        """Notify hosts that a thread may have work: the key of its owner, `ANYBODY` or `EVERYBODY`."""
        if whom in (ANYBODY, EVERYBODY) or int(whom) in self._own.values():
            self.work.notify()
        self._whom[whom] = None
        self._of_work.begin()

    def note_host(self, host: Host, key: int, hosts: int) -> None:
        """Note a beat of a host of this process, and the number of all hosts."""
        self._own[host.instance] = key
        self._hosts = max(1, hosts)

    def forget_host(self, host: Host) -> None:
        """Note that a host of this process has left."""
        self._own.pop(host.instance, None)

    async def wait(self, after: int, within: float) -> int:
        self.listen()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.work.wait(after)
        return self.work.count

    # ------------------------------------------------------------ sending

    def _tell_work(self) -> None:
        whom, self._whom = list(self._whom), {}
        self._number += 1  # a new number chooses other hosts, and no carrier takes the signal for a repeated one
        named = ",".join(whom) if len(whom) <= _MOST_NAMED else EVERYBODY
        self._carrier.send(self._subject, _WORK + self._sender + f" {self._number} {named}".encode())

    def _between_commits(self) -> float:
        return min(_HINT_AT_LEAST, _HINT_EVERY * max(1.0, self._hosts / _FEW)) if self._is_scarce else _HINT_EVERY

    # ------------------------------------------------------------ receiving

    def listen(self) -> None:
        """Receive hints from now on."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen_until_closed())

    async def _listen_until_closed(self) -> None:
        async with self._carrier.hear(self._subject, self._heard):
            await asyncio.Event().wait()

    def _heard(self, hint: bytes) -> None:
        sender, _, rest = hint[1:].partition(b" ")
        if sender == self._sender:
            return  # its own signal, which comes back
        if hint[:1] != _WORK:
            self.commits.notify()
        elif self._concerns(hint, rest.rpartition(b" ")[2].decode()):
            self.work.notify()

    def _concerns(self, hint: bytes, named: str) -> bool:
        """Whether a host of this process should poll."""
        whom = named.split(",")
        if not self._own or EVERYBODY in whom:
            return True
        keys = self._own.values()
        return any(str(key) in whom for key in keys) or (
            ANYBODY in whom and any(is_chosen(hint, key, self._hosts) for key in keys)
        )

    async def close(self) -> None:
        """Stop sending and receiving, and wake all waiting tasks."""
        tasks = [task for task in (self._listening, self._of_work.task, self._of_commits.task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # they return their connections

    def wake_all(self) -> None:
        """Wake all waiting tasks of this process."""
        self.work.notify()
        self.commits.notify()


class _Announcer:
    """Announces something at once, and combines the announcements that follow shortly after."""

    def __init__(self, tell: Callable[[], None], pause: Callable[[], float]) -> None:
        self._tell, self._pause = tell, pause
        self._has_news = False
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Note that there is something to announce."""
        self._has_news = True
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._has_news:
            self._has_news = False
            self._tell()
            await asyncio.sleep(self._pause())


# ---------------------------------------------------------------- NATS

_SCHEMES: Final = ("nats", "tls")
_PORT: Final = 4222
_CONNECT_SECONDS: Final = 2.0
_PAUSE: Final = 0.5
_PING_SECONDS: Final = 5
"""The client disconnects from a server that misses two pings."""
_MOST: Final = 4096
"""Signals that wait to be sent; the oldest are dropped."""


class NatsAddress(NamedTuple):
    """The parsed URL of NATS servers."""

    servers: tuple[str, ...]
    user: str | None
    password: str | None
    tls: bool
    ca: str | None

    @classmethod
    def of(cls, url: str) -> NatsAddress:
        """Parse a URL: `nats://user:password@host:4222`, with commas between several hosts; `tls://` requires TLS.

        Raises:
            SetupError: it is no such URL.
        """
        form = "nats://user:password@host:4222, or tls://… with ?ca=FILE; separate several hosts with commas"
        try:
            parts = urlsplit(url)
            user, _, places = parts.netloc.rpartition("@")
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
            hosts = [urlsplit(f"//{host}") for host in places.split(",")]
            ports = [host.port or _PORT for host in hosts]
        except ValueError:
            raise SetupError(f"the URL of signals is {form}") from None
        name, _, password = user.partition(":")
        is_known = parts.scheme in _SCHEMES and parts.path in ("", "/") and set(options) <= {"ca"}
        if not is_known or not all(host.hostname for host in hosts):
            raise SetupError(f"the URL of signals is {form}")
        if "ca" in options and parts.scheme != "tls":
            raise SetupError("`?ca=FILE` names the authority of a TLS connection; write tls:// instead of nats://")
        servers = tuple(
            f"{parts.scheme}://{f'[{host.hostname}]' if ':' in str(host.hostname) else host.hostname}:{port}"
            for host, port in zip(hosts, ports, strict=True)
        )
        return cls(servers, unquote(name) or None, unquote(password) or None, parts.scheme == "tls", options.get("ca"))

    def context(self) -> ssl.SSLContext | None:
        """Return what verifies the servers; None without TLS.

        Raises:
            SetupError: the file of the authority cannot be read.
        """
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as exc:
            raise SetupError(f"{self.ca}: it has no certificate of an authority ({exc.strerror or exc})") from exc


class NatsSignals:
    """Signals over NATS. If no server can be reached, signals are dropped, and it reconnects automatically."""

    def __init__(self, address: NatsAddress) -> None:
        self._address = address
        self._client: Client | None = None
        self._takers: dict[str, list[TakeSignal]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=_MOST)
        self._arrival = asyncio.Event()
        self._last_reason: str | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[NatsSignals]:
        """Connect to NATS for the duration of the block. A server that cannot be reached yet is retried.

        Raises:
            SetupError: the URL is wrong, or the server refuses the user or the password.
            ModuleNotFoundError: nats-py is not installed.
        """
        signals = cls(NatsAddress.of(url))
        tasks: list[asyncio.Task[None]] = []
        try:
            await signals._connect()
            tasks += [asyncio.create_task(signals._keep_connected()), asyncio.create_task(signals._send_waiting())]
            yield signals
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await signals._close()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._client is not None and self._client.is_connected

    # ------------------------------------------------------------ sending

    def send(self, subject: str, data: bytes) -> None:
        if self.is_connected:
            self._waiting.append((subject, data))
            self._arrival.set()

    async def _send_waiting(self) -> None:
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            while self._waiting and (client := self._client) is not None:
                subject, data = self._waiting.popleft()
                with suppress(Exception):  # a signal that cannot be sent is dropped
                    await client.publish(subject, data)

    # ------------------------------------------------------------ receiving

    @asynccontextmanager
    async def hear(self, subject: str, take: TakeSignal) -> AsyncGenerator[None]:
        takers = self._takers.setdefault(subject, [])
        takers.append(take)
        try:
            if len(takers) == 1:
                await self._subscribe(subject)
            yield
        finally:
            takers.remove(take)
            if not takers and self._takers.get(subject) is takers:
                del self._takers[subject]
                await self._unsubscribe(subject)

    async def _subscribe(self, subject: str) -> None:
        async def heard(message: Msg) -> None:
            for take in tuple(self._takers.get(subject, ())):
                take(message.data)

        client = self._client
        if client is not None:
            with suppress(Exception):  # the next connection subscribes
                subscription = await client.subscribe(subject, cb=heard)  # pyright: ignore[reportUnknownMemberType]
                self._subscriptions[subject] = subscription

    async def _unsubscribe(self, subject: str) -> None:
        subscription = self._subscriptions.pop(subject, None)
        if subscription is not None:
            with suppress(Exception):  # the connection has ended, and the subscription with it
                await subscription.unsubscribe()

    # ------------------------------------------------------------ the connection

    async def _keep_connected(self) -> None:
        """Reconnect whenever there is no connection: nats-py gives up in some cases, such as a refused password."""
        while True:
            await asyncio.sleep(_PAUSE)
            if self._client is None or self._client.is_closed:
                try:
                    await self._connect()
                except SetupError as exc:  # it worked before: perhaps the password was changed
                    self._note(exc)

    async def _connect(self) -> None:
        """Connect once, and subscribe to all subjects with a listener.

        Raises:
            SetupError: the server refuses the user or the password, or the certificate cannot be verified.
        """
        try:
            import nats  # noqa: PLC0415 (an extra)
        except ModuleNotFoundError as exc:
            raise ModuleNotFoundError('signals by NATS need nats-py: pip install "antiphon[nats]"', name=exc.name) from exc

        await self._close()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS * len(self._address.servers)):
                self._client = await nats.connect(**self._options())  # pyright: ignore[reportUnknownMemberType]
        except Exception as exc:  # noqa: BLE001 (nats-py raises many kinds; without a connection signals are dropped)
            self._tell(exc)
            return
        self._last_reason = None
        for subject in tuple(self._takers):
            await self._subscribe(subject)

    def _options(self) -> dict[str, Any]:
        address = self._address

        async def failed(exc: Exception) -> None:
            _LOG.debug("NATS: %s: %s", type(exc).__name__, exc)  # nats-py prints a traceback otherwise

        options: dict[str, Any] = {
            "servers": list(address.servers),
            "connect_timeout": _CONNECT_SECONDS,
            "error_cb": failed,
            "allow_reconnect": False,  # `_keep_connected` does, even where nats-py would give up
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.1,
            "ping_interval": _PING_SECONDS,
            "name": "antiphon",
        }
        if (context := address.context()) is not None:
            options["tls"] = context
        if address.user is not None:
            options |= {"user": address.user, "password": address.password or ""}
        return options

    def _tell(self, exc: Exception) -> None:
        """Report why there is no connection.

        Raises:
            SetupError: another attempt would not help.
        """
        text = f"{type(exc).__name__} {exc}".lower()
        if "authorization" in text or "authentication" in text:
            raise SetupError("NATS refuses the user or the password; check the URL of the signals") from exc
        if isinstance(exc, ssl.SSLCertVerificationError) or "certificate" in text:
            raise SetupError(
                f"the certificate of NATS cannot be verified; name its certificate authority with ?ca=FILE ({exc})"
            ) from exc
        self._note(exc)

    def _note(self, exc: Exception) -> None:
        if self._last_reason != (reason := f"{type(exc).__name__}: {exc}"):  # logged once: it repeats at every attempt
            self._last_reason = reason
            _LOG.warning("no connection to NATS; signals are lost, and work starts up to a second later: %s", reason)

    async def _close(self) -> None:
        client, self._client = self._client, None
        self._subscriptions = {}
        if client is not None:
            with suppress(Exception):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await client.close()
            for _ in range(3):  # its tasks are cancelled by now, and end in the next rounds of the loop
                await asyncio.sleep(0)
