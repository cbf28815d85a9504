"""Access control: which requests the server accepts, and how often.

The server checks a request in this order, and the first failed check answers it:

1. **Host.** There is exactly one Host header, and it is a name of this server. This stops DNS rebinding: a site whose name
   was pointed at this machine.
2. **Origin.** If the request has an Origin, it is this server's. A browser sends it with each request that could change
   something and with each that another site's page reads; programs send none. `Sec-Fetch-Site` covers the rest, such as
   images. Other sites may only link to the page itself.
3. **Form.** Only GET, POST and DELETE; the body of a POST has the type JSON, is not compressed, and is within the size limit.
   An HTML form of another site cannot send that type.
4. **Token.** In the header `Authorization: Bearer`, or behind a session cookie; never in a URL. A POST with a session cookie
   must have an Origin, because a browser attaches the cookie automatically.
5. **Rate.** A limit of requests per second for each token, and one for all requests without a valid token together.

A session is a random text in the memory of this process that maps to a token. Revoking the token ends the session.
"""

from __future__ import annotations

import asyncio
import secrets  # noqa: TID251 (must be unpredictable, also where a test replaces the port)
from collections import OrderedDict
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from antiphon.server._answers import HEADERS, Problem
from antiphon.service import EXCHANGE, Token, TokenBook

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import ASGIApp, Message, Receive, Send
    from starlette.types import Scope as Request

_OWN_SITE: Final = frozenset({"same-origin", "none"})
_SESSION_SECONDS: Final = 12 * 3600
_CODE_SECONDS: Final = 60
_MOST_KNOWN: Final = 1000
"""Sessions, codes and rates that are kept; the oldest is dropped for a new one."""
_MOST_OF_ONE: Final = 50
"""Sessions, and codes, of one token: no caller ends the sessions of all others by opening many."""
_MOST_REQUESTS: Final = 10_000
"""Requests with a key that are known."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server takes of a caller, and of all callers."""

    body_bytes: int = 1024 * 1024
    depth: int = 64
    """How deep containers may be nested in a body."""
    nodes: int = 10_000
    """The most values in a body."""
    head_seconds: float = 10.0
    """In which the head of a request must be there, from the connection or from its first byte on."""
    body_seconds: float = 10.0
    """In which a body must be there."""
    requests_per_second: float = 100.0
    """Of one token; twice as many at once."""
    failures_per_second: float = 10.0
    """Requests without a valid token, of all callers together; twice as many at once."""
    streams_per_token: int = 100
    streams: int = 2000
    """Event streams in all."""
    runs: int = 100
    """Threads that this server runs at once."""
    connections: int = 4000
    write_seconds: float = 10.0
    """In which a reader of a stream must take the next piece."""
    check_seconds: float = 5.0
    """Between two looks at the token of a stream."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    token: Token
    is_session: bool
    """Whether a cookie says so."""


class _Bucket:
    """So many a second, and twice as many at once."""

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._left = 2 * rate
        self._at = now

    def take(self, now: float) -> bool:
        self._left = min(2 * self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Brief:
    """Texts that stand for a token for some time, by their hash: the time of a look says nothing about a text."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def add(self, token_id: str) -> str:
        text = secrets.token_urlsafe(32)
        owned = [key for key, (owner, _) in self._known.items() if owner == token_id]
        for key in owned[: len(owned) + 1 - _MOST_OF_ONE]:
            del self._known[key]
        while len(self._known) >= _MOST_KNOWN:
            self._known.popitem(last=False)
        self._known[_key(text)] = token_id, _now() + self._seconds
        return text

    def find(self, text: str) -> str | None:
        token_id, until = self._known.get(_key(text), ("", 0.0))
        return token_id if _now() < until else None

    def remove(self, text: str) -> str | None:
        token_id = self.find(text)
        self._known.pop(_key(text), None)
        return token_id


def _key(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _now() -> float:
    return asyncio.get_running_loop().time()


class RequestKeys:
    """The requests that have an `Idempotency-Key`, for a while."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    def thread_of(self, key: str, digest: str) -> str:
        """Return the thread of a request."""
        if self._known.setdefault(key, digest) != digest:
            raise Problem(400, "idempotency_key_in_use", "another request had this Idempotency-Key; choose a new one")
        self._known.move_to_end(key)
        while len(self._known) > _MOST_REQUESTS:
            self._known.popitem(last=False)
        return f"{EXCHANGE}{sha256(f'{key} {digest}'.encode()).hexdigest()[:32]}"


class Access:
    """Tokens, sessions, one-time codes, rates and streams of one server."""

    def __init__(self, book: TokenBook, limits: ServerLimits, *, cookie: str, secure: bool) -> None:
        self._book = book
        self._limits = limits
        self._cookie = cookie
        self._secure = secure
        self._sessions = _Brief(_SESSION_SECONDS)
        self._codes = _Brief(_CODE_SECONDS)
        self._rates: OrderedDict[str, _Bucket] = OrderedDict()
        self._failures: _Bucket | None = None
        self._streams: dict[str, int] = {}

    async def caller(self, headers: dict[bytes, bytes]) -> Caller:
        """Return who asks."""
        caller = await self._found(headers)
        if caller is None:
            raise self.refused()
        self._count(caller.token.id)
        return caller

    async def _found(self, headers: dict[bytes, bytes]) -> Caller | None:
        if b"authorization" in headers:
            kind, _, text = headers[b"authorization"].decode("latin-1").partition(" ")
            token = await self._book.find(text.strip()) if kind.lower() == "bearer" else None
            return None if token is None else Caller(token, is_session=False)
        token_id = self._sessions.find(self._cookie_in(headers))
        token = None if token_id is None else await self._book.find_id(token_id)
        return None if token is None else Caller(token, is_session=True)

    def _cookie_in(self, headers: dict[bytes, bytes]) -> str:
        pairs = (pair.strip().partition("=") for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"))
        return next((value for name, _, value in pairs if name == self._cookie), "")

    def refused(self) -> Problem:
        """Return the one answer to every request without a valid token, whatever is wrong with it."""
        if self._failures is None:
            self._failures = _Bucket(self._limits.failures_per_second, _now())
        if not self._failures.take(_now()):
            return _too_many("too many requests without a valid token")
        return Problem(401, "unauthorized", "a valid token is needed", headers={"www-authenticate": "Bearer"}, ends=True)

    def _count(self, token_id: str) -> None:
        bucket = self._rates.pop(token_id, None) or _Bucket(self._limits.requests_per_second, _now())
        while len(self._rates) >= _MOST_KNOWN:
            self._rates.popitem(last=False)
        self._rates[token_id] = bucket
        if not bucket.take(_now()):
            raise _too_many("too many requests with this token")

    async def is_valid(self, caller: Caller) -> bool:
        """Whether the token of a stream is still valid."""
        return await self._book.find_id(caller.token.id) is not None

    @contextmanager
    def stream(self, caller: Caller) -> Generator[None]:
        """Count a stream while it lasts."""
        token_id, limits = caller.token.id, self._limits
        if self._streams.get(token_id, 0) >= limits.streams_per_token or self.streams >= limits.streams:
            raise _too_many("too many streams; close one first")
        self._streams[token_id] = self._streams.get(token_id, 0) + 1
        try:
            yield
        finally:
            self._streams[token_id] -= 1
            if not self._streams[token_id]:
                del self._streams[token_id]

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(self._streams.values())

    # ------------------------------------------------------------ sessions

    def new_code(self, caller: Caller) -> str:
        """Return a code that opens one session, once, within a minute."""
        return self._codes.add(caller.token.id)

    async def open_session(self, *, token: str | None, code: str | None) -> tuple[Token, str]:
        """Trade a token or a one-time code for the header that sets a session's cookie."""
        if code is not None:
            token_id = self._codes.remove(code)
            valid = None if token_id is None else await self._book.find_id(token_id)
        else:
            valid = await self._book.find(token or "")
        if valid is None:
            raise self.refused()
        self._count(valid.id)
        return valid, self._header(self._sessions.add(valid.id), _SESSION_SECONDS)

    def end_session(self, headers: dict[bytes, bytes]) -> str:
        """End the session of a request, if it has one, and return the header that removes its cookie."""
        self._sessions.remove(self._cookie_in(headers))
        return self._header("", 0)

    def _header(self, value: str, seconds: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self._cookie}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _too_many(detail: str) -> Problem:
    return Problem(429, "too_many", detail, headers={"retry-after": "1"}, ends=True)


# ---------------------------------------------------------------- the looks that need no token


class RequestGuard:
    """An ASGI app in front of another: it makes the looks 1 to 3, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, *, hosts: Callable[[], frozenset[str]], limits: ServerLimits) -> None:
        self._app = app
        self._hosts = hosts
        """The names of this server; a function, because the port may be known only when it listens."""
        self._limits = limits

    async def __call__(self, scope: Request, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is served here")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in HEADERS if header[0] not in present)]
            await send(message)

        try:
            scope["antiphon.headers"] = self._checked(scope)
        except Problem as problem:
            if problem.status == _TOO_LARGE:
                await discard(receive)
            await problem.response(scope["raw_path"])(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _checked(self, scope: Request) -> dict[bytes, bytes]:
        """Return the headers of a request by name."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in _ONCE:
                raise Problem(400, "bad_request", f"the header {name.decode('latin-1')} comes twice", ends=True)
            headers[name] = value if name not in headers else headers[name] + b", " + value
        hosts = self._hosts()
        if headers.get(b"host", b"").decode("latin-1").lower() not in hosts:
            raise Problem(421, "wrong_host", "this server has another name", ends=True)
        origin = headers.get(b"origin")
        origins = {f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts}
        if origin is not None and origin.decode("latin-1").lower() not in origins:
            raise Problem(403, "wrong_origin", "pages of other sites may not use this server", ends=True)
        is_own = headers.get(b"sec-fetch-site", b"none").decode("latin-1") in _OWN_SITE
        if not is_own and not _opens_page(scope, headers):
            raise Problem(403, "wrong_origin", "pages of other sites may not use this server", ends=True)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > _LONGEST_NUMBER or int(length) > self._limits.body_bytes:
            raise too_large(self._limits)
        return headers


def check_form(headers: dict[bytes, bytes]) -> None:
    """Refuse a body that is not JSON by its type: a form of another page cannot have that type."""
    kind, _, parameters = headers.get(b"content-type", b"").decode("latin-1").lower().partition(";")
    if kind.strip() != "application/json" or parameters.strip() not in ("", "charset=utf-8"):
        raise Problem(415, "bad_type", "the body must be of type application/json", ends=True)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Problem(415, "bad_type", "the body must not be compressed", ends=True)


_ONCE: Final = frozenset({b"host", b"origin", b"authorization", b"content-type", b"content-length", b"cookie"})
_LONGEST_NUMBER: Final = 12


_TOO_LARGE: Final = 413
_MOST_DISCARDED: Final = 16 * 1024 * 1024
_DISCARD_SECONDS: Final = 1.0


async def discard(receive: Receive) -> None:
    """Read the rest of a body that is too large, within limits: a client that is still sending would not see the answer."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while size < _MOST_DISCARDED:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def too_large(limits: ServerLimits) -> Problem:
    """Return the answer to a body that is too large."""
    return Problem(413, "too_large", f"a body has at most {limits.body_bytes} bytes", ends=True)


def _opens_page(scope: Request, headers: dict[bytes, bytes]) -> bool:
    """Whether a person follows a link to the page, from anywhere. It is a file without data, and no other page can read or
    frame it. The cookie does not come along.
    """
    is_whole = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == (b"navigate", b"document")
    return is_whole and scope["method"] == "GET" and scope["raw_path"] == b"/" and not scope["query_string"]


def check_unsafe(caller: Caller, headers: dict[bytes, bytes]) -> None:
    """Refuse a change that only a cookie asks for, without the Origin that a browser sends with it."""
    if caller.is_session and b"origin" not in headers:
        raise Problem(403, "wrong_origin", "a change by a session needs an Origin header", ends=True)
