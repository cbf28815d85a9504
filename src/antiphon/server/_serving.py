"""The server: routes a request to its endpoint, checks the caller and the parameters, and writes the response.

Order of the checks: `RequestGuard` does those that need no token (`_access.py`). Then the token is checked, before any
response reveals whether a path exists. A token without the scope of an endpoint gets the same response as for a path that does
not exist. Only then are the parameters and the body read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import uvicorn
from pydantic import ValidationError
from starlette.responses import Response
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from antiphon import service
from antiphon.errors import AntiphonError, LedgerError, SetupError
from antiphon.messages import Limits
from antiphon.messages._json_values import JsonError, fits, is_shallow, parse
from antiphon.server import _compatible, _events
from antiphon.server import _values as v
from antiphon.server._access import (
    Access,
    Caller,
    RequestGuard,
    RequestKeys,
    ServerLimits,
    check_form,
    check_unsafe,
    discard,
    too_large,
)
from antiphon.server._answers import Problem, absent, problem_of
from antiphon.server._api import ENDPOINTS, HIDDEN, ApiEndpoint, Ask, Hub, Lines, WithHeaders, answered_before
from antiphon.server._running import Runs
from antiphon.server._static import openapi, page_response

if TYPE_CHECKING:
    from starlette.types import Receive, Send
    from starlette.types import Scope as Request

    from antiphon.ledger import Ledger
    from antiphon.service import NewToken, OverviewBook, ServedModels

_log: Final = logging.getLogger("antiphon.server")
_MOST_QUERY: Final = 8192
_MOST_LOGIN: Final = 4096
"""Bytes of a body that is read before there is a token."""
_SESSION: Final = ("api", "session")
_UNREAD: Final = frozenset({403, 405, 415})
"""Answers to a caller with a token whose body is not looked at: it is read all the same, or the answer could be lost."""


async def _document(_: Ask) -> dict[str, Any]:
    return openapi(ALL)


EVENTS: Final = ApiEndpoint(
    "GET",
    "/api/events",
    "read",
    "Records as they come, as server-sent events",
    answered_before,
    "text/event-stream",
    v.EventQuery,
)
SESSION: Final = ApiEndpoint(
    "POST", "/api/session", None, "Trade a token or a code for a cookie", answered_before, v.SessionValue, body=v.NewSession
)
DOCUMENT: Final = ApiEndpoint("GET", "/api/openapi.json", None, "This document", _document, dict[str, Any])
ALL: Final = (SESSION, EVENTS, DOCUMENT, *ENDPOINTS, *_compatible.ENDPOINTS)


class App:
    """The ASGI app behind the guard."""

    def __init__(self, hub: Hub, limits: ServerLimits) -> None:
        self._hub = hub
        self._limits = limits
        self.stopping = asyncio.Event()
        """Set when the server stops: streams end."""

    async def __call__(self, scope: Request, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = scope["antiphon.headers"]
        started = False

        async def noting(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            response = await self._answered(scope, receive, noting, headers)
        except Exception as exc:  # noqa: BLE001 (every error is an answer)
            if started:  # in the middle of an answer nothing can be said any more; the reader sees that it was cut
                _log.warning("an answer was cut: %s", type(exc).__name__)
                _events.abort(scope)
                return
            problem = _problem_of(exc)
            if problem.status in _UNREAD:
                await discard(receive)
            response = problem.response(scope["raw_path"])
        if response is not None:
            await response(scope, receive, noting)

    async def _answered(self, scope: Request, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> Response | None:
        steps = _steps(scope)
        if steps == _SESSION and scope["method"] == "POST":
            check_form(headers)
            return await self._session(receive)
        if scope["method"] == "GET" and (page := page_response(steps, headers)) is not None:
            return page
        caller = await self._hub.access.caller(headers)
        if scope["method"] != "GET":
            check_unsafe(caller, headers)
        ask, endpoint = await self._ask(scope, receive, caller, steps, headers)
        if endpoint is EVENTS:
            with self._hub.access.stream(caller):
                after = await _events.start(ask)
                await _events.stream(ask, after, self._limits, self.stopping, (scope, receive, send))
            return None
        if endpoint is _compatible.COMPLETIONS:
            return await _compatible.complete(ask, self._limits, self.stopping, (scope, receive, send))
        value = await endpoint.handler(ask)
        if isinstance(value, Lines):
            await _events.write_lines(value.lines, value.kind, self._limits, (scope, receive, send))
            return None
        return _response(value, endpoint)

    async def _session(self, receive: Receive) -> Response:
        login = v.NewSession.model_validate(await self._body(receive, _MOST_LOGIN))
        token, cookie = await self._hub.access.open_session(token=login.token, code=login.code)
        return Response(service.to_json(v.SessionValue.model_validate(token)), 200, {"set-cookie": cookie}, "application/json")

    async def _ask(
        self, scope: Request, receive: Receive, caller: Caller, steps: tuple[str, ...], headers: dict[bytes, bytes]
    ) -> tuple[Ask, ApiEndpoint]:
        endpoint, path = _endpoint(scope["method"], steps, caller)
        if endpoint.method == "POST":
            check_form(headers)
        query = endpoint.query.model_validate(_query(scope["query_string"]))
        body = None
        if endpoint.method == "POST" and endpoint.body is not None:
            body = endpoint.body.model_validate(await self._body(receive))
        named = {*path.values(), getattr(query, "thread_id", None), getattr(body, "thread_id", None)}
        if named & HIDDEN:
            raise absent()
        return Ask(self._hub, caller, path, query, body, headers), endpoint

    async def _body(self, receive: Receive, most: int | None = None) -> Any:
        """Return the body of a request as JSON."""
        data, most, is_whole = bytearray(), most or self._limits.body_bytes, False
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while not is_whole and len(data) <= most:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "bad_body", "the body ends early", ends=True)
                    data += message.get("body", b"")
                    is_whole = not message.get("more_body", False)
        except TimeoutError:
            raise Problem(408, "too_slow", "the body did not come in time", ends=True) from None
        if len(data) > most:
            if not is_whole:
                await discard(receive)
            raise too_large(self._limits)
        return _parsed(bytes(data), Limits(depth=self._limits.depth, nodes=self._limits.nodes))


def _parsed(text: bytes, limits: Limits) -> Any:
    try:
        value = parse(text)
    except JsonError as exc:
        raise Problem(422, "bad_body", f"the body is not JSON: {exc.reason}") from None
    if not is_shallow(text, value, limits.depth):
        raise Problem(422, "bad_body", f"the body is nested deeper than {limits.depth}")
    if not fits(text, value, limits) and _nodes(value) > limits.nodes:
        raise Problem(422, "bad_body", f"the body has more than {limits.nodes} values")
    return value


def _nodes(value: Any) -> int:
    waiting, count = [value], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return count


def _steps(scope: Request) -> tuple[str, ...]:
    """Return the steps of a path. Each is decoded by itself, so the id of a thread may have a slash in it, as %2F."""
    steps = scope["raw_path"].split(b"/")[1:]
    try:
        return tuple(unquote_to_bytes(step).decode() for step in steps)
    except UnicodeDecodeError:
        raise absent() from None


def _endpoint(method: str, steps: tuple[str, ...], caller: Caller) -> tuple[ApiEndpoint, dict[str, str]]:
    """Return the endpoint of a path that the caller may use, with the values in the path."""
    methods: set[str] = set()
    for endpoint in ALL:
        pairs = tuple(zip(endpoint.steps, steps, strict=False))
        if len(endpoint.steps) != len(steps) or not all(
            value if step.startswith("{") else step == value for step, value in pairs
        ):
            continue
        may_use = endpoint.scope is None or endpoint.scope in caller.token.scopes
        if endpoint.method == method:
            if not may_use:
                raise absent()
            return endpoint, {step[1:-1]: value for step, value in pairs if step.startswith("{")}
        if may_use:
            methods.add(endpoint.method)
    if not methods:
        raise absent()
    allowed = ", ".join(sorted(methods))
    raise Problem(405, "bad_method", f"only {allowed} is served here", headers={"allow": allowed}, ends=True)


def _query(text: bytes) -> dict[str, str]:
    if len(text) > _MOST_QUERY:
        raise Problem(414, "too_large", "the query is too long", ends=True)
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise Problem(422, "bad_query", "the query cannot be read") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise Problem(422, "bad_query", "a parameter comes twice")
    return dict(pairs)


def _response(value: Any, endpoint: ApiEndpoint) -> Response:
    if isinstance(value, WithHeaders):
        return Response(service.to_json(value.value), value.status or endpoint.status, value.headers, "application/json")
    if isinstance(value, str):
        return Response(value, endpoint.status, media_type=endpoint.returns)
    return Response(service.to_json(value), endpoint.status, media_type="application/json")


def _problem_of(error: Exception) -> Problem:
    """Return the answer to an error. What is unexpected is logged without its text, which may have messages in it."""
    match error:
        case Problem() | AntiphonError():
            return problem_of(error)
        case ValidationError():
            errors = error.errors(include_url=False, include_input=False, include_context=False)  # without values: secrets
            places = [(".".join(map(str, item["loc"])), item["msg"]) for item in errors[:10]]
            detail = "; ".join(f"{place or 'body'}: {reason}" for place, reason in places)
            return Problem(422, "not_valid", detail, param=places[0][0] or None)
        case ModuleNotFoundError():
            return Problem(503, "missing_extra", 'a package is not installed: pip install "antiphon[all]"')
        case _:
            frames = error.__traceback__
            while frames is not None and frames.tb_next is not None:
                frames = frames.tb_next
            where = "" if frames is None else f"{Path(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno}"
            _log.error("a request failed: %s at %s", type(error).__name__, where)
            return Problem(500, "internal", "the server failed; its log says where")


# ---------------------------------------------------------------- the process


class AbortableConnection(H11Protocol):
    """A connection whose requests can abort it: a reader that does not read would hold up a polite end for ever.

    One that has sent no whole head of a request in time is aborted too. Otherwise a few thousand of them, from anybody, would
    take the places of all others for as long as they like.
    """

    head_seconds = 10.0
    _head: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._head = self.loop.call_later(self.head_seconds, transport.abort)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:  # the head is there
            self._end_wait()
        elif self._head is None:
            self._head = self.loop.call_later(self.head_seconds, self.transport.abort)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def _end_wait(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class _Server(uvicorn.Server):
    """A server that leaves signals to its process, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @override
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where a server listens, and what it allows."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: a free one."""
    allow_remote: bool = False
    """Listen on another address than loopback. Then tokens of the ledger are needed."""
    allow_hosts: tuple[str, ...] = ()
    """Further names of this server, as they are in the Host header: those of a proxy in front of it."""
    model: str | None = None
    """The model of threads that are begun here; by default the best that needs no key."""
    teams: tuple[Path, ...] = ()
    """Team files: each is a model for `/v1`, and a team for new threads. What they run must be trusted."""
    team_model: str | None = None
    """A model that overrides those of the team files."""
    offers: tuple[str, ...] = ()
    """Further models that a request may name, besides `model`. No request can name another one."""
    limits: ServerLimits = field(default_factory=ServerLimits)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers."""

    url: str
    token_file: Path | None
    """The file with the token of this process; None if it listens on another address than loopback."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@asynccontextmanager
async def serving(ledger: Ledger, settings: ServeSettings = ServeSettings()) -> AsyncGenerator[RunningServer]:  # noqa: B008 (frozen)
    """Serve a ledger while the block lasts.

    Raises:
        SetupError: it may not listen there, the address is in use, or nobody has a token; a team file is wrong.
    """
    is_local = is_loopback(settings.host)
    await _check_remote(ledger, settings, is_local=is_local)
    async with _serving_models(ledger, settings) as models:
        listening = _listen(settings)
        port: int = listening.getsockname()[1]
        hosts = _names(settings, port, is_local=is_local)
        token = _own_token() if is_local else None
        access = Access(service.TokenBook(ledger, token), settings.limits, cookie=f"antiphon-{port}", secure=not is_local)
        runs = Runs(ledger, offer=service.ModelOffer(settings.model, settings.offers), most=settings.limits.runs)
        book = service.OverviewBook(ledger)
        hub = Hub(
            ledger,
            access,
            runs,
            await service.EventCursors.of(ledger),
            book,
            service.ThreadText(ledger),
            models,
            RequestKeys(),
        )
        app = App(hub, settings.limits)
        server = _Server(_config(RequestGuard(app, hosts=lambda: hosts, limits=settings.limits), settings.limits))
        file = None if token is None else _keep(token.text, port)
        task, counting = asyncio.ensure_future(server.serve([listening])), asyncio.ensure_future(_counted(book))
        try:
            ready = asyncio.ensure_future(server.ready.wait())
            await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if task.done():
                task.result()
            name = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield RunningServer(f"http://{name}:{port}", file)
        finally:
            app.stopping.set()
            await runs.close()
            server.should_exit = True
            counting.cancel()
            await asyncio.gather(task, counting, return_exceptions=True)
            with suppress(LedgerError):  # then the next server counts a little more again
                await book.store()
            listening.close()
            if file is not None:
                with suppress(OSError):
                    file.unlink()


@asynccontextmanager
async def _serving_models(ledger: Ledger, settings: ServeSettings) -> AsyncGenerator[ServedModels]:
    await asyncio.to_thread(service.load_agents)  # else the first request would hold up all others meanwhile
    served = service.read_models(settings.teams)
    models = service.ServedModels(ledger, served, model=settings.model, team_model=settings.team_model)
    try:
        await models.open_teams()
        yield models
    finally:
        await models.close()


async def _counted(book: OverviewBook) -> None:
    """Count what is written, for the overview; an error delays it."""
    while True:
        try:
            await book.count()
        except Exception as exc:  # noqa: BLE001 (what is not counted now is counted later; nobody else would tell)
            _log.warning("the overview waits: %s", type(exc).__name__)
        await asyncio.sleep(_COUNT_AGAIN)


_COUNT_AGAIN: Final = 5.0


def _config(app: Any, limits: ServerLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=type("Connection", (AbortableConnection,), {"head_seconds": limits.head_seconds}),
        ws="none",
        lifespan="off",
        access_log=False,  # it would log queries
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nobody is believed because of a header
        limit_concurrency=limits.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )


async def _check_remote(ledger: Ledger, settings: ServeSettings, *, is_local: bool) -> None:
    if is_local:
        return
    if not settings.allow_remote:
        raise SetupError(f"{settings.host} is reachable from other machines; to allow that, add --allow-remote")
    if settings.host in ("0.0.0.0", "::", "") and not settings.allow_hosts:  # noqa: S104 (it is refused)
        raise SetupError(f"{settings.host} is not a host name: add --allow-host NAME for each name that clients use")
    if not any(token.revoked_at is None for token in await service.list_tokens(ledger)):
        raise SetupError("nobody could use the server: make a token first with `antiphon token make NAME`")


def _listen(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With this protocol asyncio sets TCP_NODELAY. Else the body of an answer waits until its headers are confirmed: 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(1024)
        listening.setblocking(False)
    except (OSError, OverflowError) as exc:
        listening.close()
        reason = getattr(exc, "strerror", None) or exc
        raise SetupError(f"{settings.host}:{settings.port}: {reason}; choose another --host or --port") from exc
    return listening


def _names(settings: ServeSettings, port: int, *, is_local: bool) -> frozenset[str]:
    """Return the Host headers that mean this server."""
    names = {settings.host, *(("127.0.0.1", "localhost", "[::1]") if is_local else ())}
    with_port = {f"[{name}]:{port}" if name.count(":") > 1 and "[" not in name else f"{name}:{port}" for name in names}
    return frozenset(host.lower() for host in (*with_port, *settings.allow_hosts))


def _own_token() -> NewToken:
    """Return the token of this process, under the name of its user."""
    for name in (os.environ.get("USER"), os.environ.get("USERNAME")):
        with suppress(SetupError):  # not every name of a user can be one of a token
            return service.draw_token(name or "", service.SCOPES)
    return service.draw_token("local", service.SCOPES)


def _keep(text: str, port: int) -> Path:
    """Write the token of this process to a file that only its user can read, and return the file."""
    path = service.trust_list().parent / f"server-{port}.token"
    try:
        service.write_private(path, text + "\n")
    except OSError as exc:
        raise SetupError(f"{path}: {exc.strerror or exc}; it keeps the token of the server") from exc
    return path
