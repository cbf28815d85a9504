"""Live text deltas of threads, whichever process runs them. The code calls deltas *words*, as the option `--words` does.

A host serves the deltas of its threads on a loopback port. The port and a token are in a file that only its user can read,
named after the host. A process that watches a thread looks up the thread's host in the ledger, connects to it, and passes the
deltas on. It checks the owner every half second, so it follows the thread to another host. It connects only while a caller
watches.

A watcher never slows the host down: deltas wait in a bounded queue that drops the oldest. The host disconnects a watcher that
does not read. Deltas are optional: if a host cannot serve them, or a watcher cannot get them, both continue without.

If the ledger sends signals over NATS (`--signals nats://…`), deltas travel the same way, also to other machines: a watcher
tells the host every half second which thread it watches, and the host publishes the deltas of that thread for as long as it
hears so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets  # noqa: TID251 (must be unpredictable, also where a test replaces the port)
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from antiphon._tasks import beside
from antiphon.errors import LedgerError, SetupError
from antiphon.ledger._signals import signal_subject
from antiphon.messages._names import is_name
from antiphon.service._following import MOST_DELTAS, OnText, TextDelta, TextQueue, TextSource
from antiphon.service._trust import read_private, trust_list, write_private

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Signals

_log: Final = logging.getLogger("antiphon.service")
_LOOK: Final = 0.5
"""Seconds between two looks at the host of a watched thread."""
_MOST_WATCHERS: Final = 100
"""Connections to one host. A process has one for each thread that it watches."""
_LINE: Final = 64 * 1024
_HELLO_SECONDS: Final = 5.0
_WRITE_SECONDS: Final = 5.0
_WATCHED_SECONDS: Final = 3 * _LOOK
"""How long words are sent after a watcher has said that it watches: two of its signals may be lost."""
_PIECE: Final = 8 * 1024
"""Characters of a piece that is sent; a longer one is divided."""


# ---------------------------------------------------------------- the host


class _Offered(NamedTuple):
    loop: asyncio.AbstractEventLoop
    source: TextSource


_offered: dict[str, _Offered] = {}
"""The hosts of this process."""


def both(first: TextSource, second: TextSource) -> TextSource:
    """Return a source that has the words of two sources."""

    @asynccontextmanager
    async def listening(thread_id: str, on_text: OnText) -> AsyncGenerator[None]:
        async with first(thread_id, on_text), second(thread_id, on_text):
            yield

    return listening


@asynccontextmanager
async def offering_text(name: str, source: TextSource, ledger: Ledger | None = None) -> AsyncGenerator[None]:
    """Serve the words of a host to the processes of this user, while the block lasts.

    Other machines get them over the ledger's signals, if it has any.
    """
    _offered[name] = _Offered(asyncio.get_running_loop(), source)
    offer = _Offer(source)
    signals = None if ledger is None else ledger.hints.signals
    path: Path | None = None
    try:
        path = await offer.open(name)
    except (OSError, SetupError) as exc:
        _log.info("other processes cannot get the live text of host %s: %s", name, type(exc).__name__)
    try:
        async with nullcontext() if signals is None else beside(_Publisher(source, signals).send(name)):
            yield
    finally:
        del _offered[name]
        if path is not None:
            with suppress(OSError):
                path.unlink()
        await offer.close()


class _Offer:
    """The listening port of a host, and the connected watchers."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._token = secrets.token_urlsafe(32)
        self._server: asyncio.Server | None = None
        self._watchers: set[asyncio.Task[None]] = set()

    async def open(self, name: str) -> Path:
        """Listen on loopback, and write the file with the port and the token."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=_LINE)
        place = {"port": self._server.sockets[0].getsockname()[1], "token": self._token}
        await asyncio.to_thread(write_private, _place(name), json.dumps(place))
        return _place(name)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._watchers):
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._watchers) >= _MOST_WATCHERS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._watched(reader, writer))
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _watched(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            thread_id = await _hello(reader, self._token)
            if thread_id is not None:
                queue = TextQueue(MOST_DELTAS)
                async with self._source(thread_id, queue.put):
                    await _send(queue, reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, RecursionError) as exc:  # it ends, or says nonsense
            _log.debug("a watcher was disconnected: %s", type(exc).__name__)
        finally:
            writer.transport.abort()  # closing it politely would wait for a reader that does not read


async def _hello(reader: asyncio.StreamReader, expected: str) -> str | None:
    """Return the thread that a watcher asks for; None if its token is wrong."""
    async with asyncio.timeout(_HELLO_SECONDS):
        hello: Any = json.loads(await reader.readuntil(b"\n"))
    match hello:
        case {"token": str(token), "thread_id": str(thread_id)} if compare_digest(token.encode(), expected.encode()):
            return thread_id
        case _:
            return None


async def _send(queue: TextQueue, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send words until the watcher disconnects."""
    writer.transport.set_write_buffer_limits(high=_LINE)
    async with beside(reader.read(1)) as (gone,):
        while True:
            await queue.or_until(gone)
            if gone.done():
                return
            words = queue.take()
            for piece in _pieces(words):
                writer.write(json.dumps(piece).encode() + b"\n")
            async with asyncio.timeout(_WRITE_SECONDS):
                await writer.drain()


class _Publisher:
    """Publishes the words of a host as signals, while a process watches."""

    def __init__(self, source: TextSource, signals: Signals) -> None:
        self._source = source
        self._signals = signals
        self._until: dict[str, float] = {}
        """For each thread, the time until which its words are sent."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, name: str) -> None:
        """Send the words of the threads that others watch, until this is cancelled."""
        try:
            async with self._signals.hear(signal_subject("watch", name), self._watched):
                await asyncio.Event().wait()
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watched(self, data: bytes) -> None:
        thread_id = data[:_LINE].decode(errors="replace")
        until, is_new = asyncio.get_running_loop().time() + _WATCHED_SECONDS, thread_id not in self._until
        if is_new and (len(self._until) >= _MOST_WATCHERS or not is_name(thread_id)):
            return
        self._until[thread_id] = until
        if is_new:
            task = asyncio.ensure_future(self._send_thread(thread_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_thread(self, thread_id: str) -> None:
        subject, numbers, sender = signal_subject("words", thread_id), count(1), secrets.token_hex(8)

        def say(words: TextDelta) -> None:
            for piece in _pieces(words):
                self._signals.send(subject, json.dumps({**piece, "sender": sender, "number": next(numbers)}).encode())

        loop = asyncio.get_running_loop()
        try:
            async with self._source(thread_id, say):
                while (remaining := self._until[thread_id] - loop.time()) > 0:  # noqa: ASYNC110 (watchers extend it)
                    await asyncio.sleep(remaining)
        finally:
            del self._until[thread_id]


class _SignalReader:
    """Receives words from signals, drops repeated ones, and counts lost ones."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._last: tuple[str, int] = ("", 0)

    def take(self, data: bytes) -> None:
        """Pass words on; ignore data that is not a signal of words."""
        try:
            fields = cast("dict[str, Any]", json.loads(data))
            sender, number = str(fields["sender"]), int(fields["number"])
            words = TextDelta(str(fields["speaker"]), str(fields["text"]), int(fields["missed"]))
        except (ValueError, LookupError, TypeError):
            return
        last_sender, last_number = self._last
        if sender != last_sender:
            last_number = number - 1  # what it said before is unknown
        if number > last_number:  # otherwise it was doubled, or overtaken by a later one
            self._last = sender, number
            self._on_text(replace(words, missed=words.missed + number - last_number - 1))


def _pieces(words: TextDelta) -> Iterator[dict[str, Any]]:
    """Yield words as JSON objects, divided into pieces of limited length."""
    missed = words.missed
    for start in range(0, len(words.text) or 1, _PIECE):
        yield {"speaker": words.speaker, "text": words.text[start : start + _PIECE], "missed": missed}
        missed = 0


def _place(name: str) -> Path:
    """Return the file of a host."""
    return trust_list().parent / "hosts" / f"{sha256(name.encode()).hexdigest()[:32]}.json"


# ---------------------------------------------------------------- the watcher


class ThreadText:
    """The live text of a ledger's threads: a `TextSource` for `follow`. Callers of one thread share a connection."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._listeners: dict[str, list[OnText]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def __call__(self, thread_id: str, on_text: OnText) -> AsyncGenerator[None]:
        """Call a function with the words of a thread while the block lasts."""
        listeners = self._listeners.setdefault(thread_id, [])
        listeners.append(on_text)
        if thread_id not in self._tasks:
            self._tasks[thread_id] = asyncio.ensure_future(self._follow(thread_id, partial(_say, listeners)))
        try:
            yield
        finally:
            listeners.remove(on_text)
            if not listeners:
                del self._listeners[thread_id]
                task = self._tasks.pop(thread_id)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, thread_id: str, on_text: OnText) -> None:
        """Pass words on from the current host of the thread, and from each later one, until cancelled."""
        while True:
            owner = await self._owner(thread_id)
            if owner is not None:
                await self._from_host(thread_id, owner, on_text)
            await asyncio.sleep(_LOOK)

    async def _from_host(self, thread_id: str, owner: str, on_text: OnText) -> None:
        """Pass on the words of a host until it no longer owns the thread, or cannot be reached."""
        offered = _offered.get(owner)
        if offered is not None and offered.loop is asyncio.get_running_loop():
            async with offered.source(thread_id, on_text):
                await self._until_moved(thread_id, owner)
            return
        if (signals := self._ledger.hints.signals) is not None:
            async with signals.hear(signal_subject("words", thread_id), _SignalReader(on_text).take):
                await self._until_moved(
                    thread_id, owner, partial(signals.send, signal_subject("watch", owner), thread_id.encode())
                )
            return
        place = _read(owner)
        if place is None:
            return
        async with beside(_receive(place, thread_id, on_text), self._until_moved(thread_id, owner)) as tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (exc := task.exception()) is not None:
                    _log.debug("cannot get the live text of host %s: %s: %s", owner, type(exc).__name__, exc)
                if isinstance(exc, ConnectionRefusedError):  # it was killed: others need not try
                    with suppress(OSError):
                        _place(owner).unlink()

    async def _owner(self, thread_id: str) -> str | None:
        try:
            summary = await self._ledger.thread(thread_id)
        except LedgerError:  # the reader of the records hears of it
            return None
        return None if summary is None else summary.owner

    async def _until_moved(self, thread_id: str, owner: str, say: Callable[[], None] = lambda: None) -> None:
        """Return when a thread has another host; until then, call a function every half second."""
        while await self._owner(thread_id) == owner:
            say()
            await asyncio.sleep(_LOOK)


def _say(listeners: list[OnText], words: TextDelta) -> None:
    for hear in tuple(listeners):
        hear(words)


class _Place(NamedTuple):
    """Where to connect for the words of a host: a port of this machine."""

    token: str
    port: int


def _read(name: str) -> _Place | None:
    """Return the port and the token of a host; None if there is no file that only this user can write."""
    try:
        fields: Any = json.loads(read_private(_place(name)) or "")
        return _Place(str(fields["token"]), int(fields["port"]))
    except (ValueError, LookupError, TypeError):
        return None


async def _receive(place: _Place, thread_id: str, on_text: OnText) -> None:
    """Pass on the words of a host, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port, limit=2 * _LINE)
    try:
        writer.write(json.dumps({"token": place.token, "thread_id": thread_id}).encode() + b"\n")
        await writer.drain()
        while line := await reader.readline():
            fields = cast("dict[str, Any]", json.loads(line))
            on_text(TextDelta(str(fields["speaker"]), str(fields["text"]), int(fields["missed"])))
    finally:
        writer.transport.abort()
