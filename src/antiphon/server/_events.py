"""The event stream: records as they are committed, as server-sent events, and live text deltas (`words`).

The id of an event is the cursor of its record, so a client that was disconnected continues without gaps or repeats: a browser
sends the id automatically, in `Last-Event-ID`. Deltas have no id, because they are not recorded.

The server reads a record from the ledger when the client has taken the one before it. So a slow client costs a few kilobytes,
however far it is behind. A client that reads nothing for `write_seconds` is disconnected: its connection is aborted, because
a graceful close would wait for the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, cast

from antiphon import service
from antiphon._tasks import beside
from antiphon.errors import AntiphonError
from antiphon.server._answers import error_name
from antiphon.server._api import HIDDEN, Ask
from antiphon.server._values import EventQuery

if TYPE_CHECKING:
    from starlette.types import Receive, Send
    from starlette.types import Scope as Request

    from antiphon.server._access import ServerLimits
    from antiphon.service import Followed

_NOW: Final = "now"
_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


class _Cut(Exception):  # noqa: N818 (not an error: the stream ends)
    """The reader takes nothing."""


async def start(ask: Ask) -> str | None:
    """Return the cursor at which a stream begins; checked before the answer begins, so that an error is a plain answer."""
    query: EventQuery = ask.query
    if query.thread_id is not None:
        await service.find_thread(ask.ledger, query.thread_id)
    last = ask.headers.get(b"last-event-id")
    cursor = query.after if last is None else last.decode("latin-1")
    if cursor == _NOW:
        return await ask.ledger.horizon()
    return None if not cursor else await ask.hub.cursors.read(cursor)


async def stream(
    ask: Ask, after: str | None, limits: ServerLimits, stopping: asyncio.Event, http: tuple[Request, Receive, Send]
) -> None:
    """Write events until the reader goes, does not read, or its token ends; or the server stops."""
    scope, receive, send = http
    followed = service.follow(ask.ledger, ask.query.thread_id, after, live_text=ask.hub.live_text)
    async with beside(ended(receive, stopping)) as (ends,):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            async with aclosing(cast("AsyncGenerator[Followed, None]", followed)) as coming:
                async for piece in _pieces(ask, coming, limits, ends):
                    await _write(send, piece, limits)
            await _write(send, b"", limits, is_last=True)
        except _Cut:
            abort(scope)


async def write_lines(
    lines: AsyncIterator[bytes],
    kind: str,
    limits: ServerLimits,
    http: tuple[Request, Receive, Send],
    extra_headers: Mapping[str, str] | None = None,
) -> None:
    """Write an answer line by line. The first line is there before the answer begins, so that an error is a plain answer.

    `extra_headers` are added to that of the type.
    """
    scope, _, send = http
    headers = [
        (b"content-type", kind.encode()),
        *((name.encode(), value.encode()) for name, value in (extra_headers or {}).items()),
    ]
    async with aclosing(cast("AsyncGenerator[bytes, None]", lines)) as coming:
        first = await anext(coming, b"")
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await _write(send, first, limits)
            async for line in coming:
                await _write(send, line, limits)
            await _write(send, b"", limits, is_last=True)
        except _Cut:
            abort(scope)


async def _pieces(
    ask: Ask, followed: AsyncGenerator[Followed], limits: ServerLimits, ends: asyncio.Future[None]
) -> AsyncIterator[bytes]:
    """Yield events; a comment where there are none, so that a reader that is gone is noticed; at last, why it ends."""
    yield b"retry: 1000\n\n"
    loop = asyncio.get_running_loop()
    checked, coming = loop.time(), asyncio.ensure_future(anext(followed))
    try:
        while True:
            await asyncio.wait((coming, ends), timeout=limits.check_seconds, return_when=asyncio.FIRST_COMPLETED)
            if ends.done():
                return
            if loop.time() - checked >= limits.check_seconds:
                checked = loop.time()
                if not await ask.hub.access.is_valid(ask.caller):
                    yield _event("end", service.to_json({"code": "unauthorized"}))
                    return
                yield b":\n\n"
            if coming.done():
                try:
                    piece = _written(ask, coming.result())
                except AntiphonError as exc:  # the thread was deleted, or the ledger fails
                    yield _event("end", service.to_json({"code": error_name(type(exc))}))
                    return
                coming = asyncio.ensure_future(anext(followed))
                if piece is not None:
                    yield piece
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)  # a generator that runs cannot be closed


def _written(ask: Ask, followed: Followed) -> bytes | None:
    """Return what a reader gets next as an event; None if it may not see it."""
    if (delta := followed.delta) is not None:
        words = {"speaker": delta.speaker, "text": delta.text, "missed": delta.missed}
        return _event("words", service.to_json({"recorded": False, "after": followed.cursor, **words}))
    record = followed.record
    if record is None or followed.cursor is None or service.thread_of(record) in HIDDEN:
        return None
    return _event("record", service.to_json(service.RecordValue.of(record)), ask.hub.cursors.write(followed.cursor))


def _event(kind: str, data: bytes, cursor: str | None = None) -> bytes:
    """Return an event. JSON has no line break in it, so the data is one line."""
    own_id = b"" if cursor is None else f"id: {cursor}\n".encode()
    return b"event: %b\n%bdata: %b\n\n" % (kind.encode(), own_id, data)


async def _write(send: Send, piece: bytes, limits: ServerLimits, *, is_last: bool = False) -> None:
    try:
        async with asyncio.timeout(limits.write_seconds):
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
    except TimeoutError:
        raise _Cut from None


async def ended(receive: Receive, stopping: asyncio.Event) -> None:
    """Return when the reader is gone, or the server stops."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with beside(gone(), stopping.wait()) as waits:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


def abort(scope: Request) -> None:
    """End a connection at once; see `_serving.AbortableConnection`."""
    end: Callable[[], None] | None = scope.get("state", {}).get("abort")
    if end is not None:
        end()
