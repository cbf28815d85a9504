"""`--open`: the page of a thread in a browser, by a server of the ledger that runs already, or by one of this process.

The address has a one-time code in its fragment, which a browser does not send: the page trades it for a session. The server of
this process runs in a thread with an event loop of its own, so it does not slow the run; it ends with the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self, TypeAlias
from urllib.parse import urlencode

import typer

from antiphon import service
from antiphon.cli._ledger import ledger_in_use, with_ledger
from antiphon.cli._screen import note
from antiphon.errors import AntiphonError, SetupError

_SECONDS: Final = 3.0
_START_SECONDS: Final = 30.0

OpenOption: TypeAlias = Annotated[
    bool, typer.Option("--open", help="Open the page in a browser, or print its address if there is none.")
]


class PageServer(NamedTuple):
    """A server of a ledger, and a token for it."""

    url: str
    token: str
    token_file: Path
    """The file of the token."""

    @classmethod
    def of(cls, url: str, token_file: Path) -> Self:
        """Return a server by the file of its token."""
        return cls(url, token_file.read_text(encoding="ascii").strip(), token_file)

    def address(self, thread_id: str | None = None) -> str:
        """Return the address of the page, or of a thread in it, with a code that opens one session within a minute."""
        code = self.ask("/api/codes", {})["code"]
        place = {"code": code} if thread_id is None else {"code": code, "thread": thread_id}
        return f"{self.url}/#{urlencode(place)}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer to a request."""
        from urllib.request import ProxyHandler, Request, build_opener  # noqa: PLC0415 (only where a page is opened)

        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        # Without a proxy: it would see the token.
        with build_opener(ProxyHandler({})).open(Request(self.url + path, data, headers), timeout=_SECONDS) as answer:  # noqa: S310 (http)
            return json.load(answer)


def show_page(server: PageServer, thread_id: str | None = None) -> None:
    """Open the page in a browser; without one, print its address. A page that cannot be shown is no reason to stop."""
    try:
        address = server.address(thread_id)
    except (OSError, ValueError) as exc:
        note(f"the page cannot be opened: {exc}", style="bad")
        return
    # A browser without a screen would run in the terminal, and cover what the command prints.
    screens = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    has_screen = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in screens)
    if has_screen and _opened(address):
        note(f"the page is open in a browser, at {server.url}")
    else:
        _print_link(address, server)


def link_page(server: PageServer) -> None:
    """Print the address of the page, with a code that opens one session; without an answer of the server, nothing."""
    with suppress(OSError, ValueError):
        _print_link(server.address(), server)


def _print_link(address: str, server: PageServer) -> None:
    signing_in = f"afterwards, sign in with the token in {server.token_file}"
    note(f"the page, for one visit within a minute; {signing_in}:", command=address)


def _opened(address: str) -> bool:
    import webbrowser  # noqa: PLC0415 (only where a page is opened)

    with suppress(webbrowser.Error, OSError):
        return webbrowser.open(address)
    return False


# ---------------------------------------------------------------- a server


def _running_server(name: str) -> PageServer | None:
    """Return a server of this user for the ledger of a name; None if none runs."""
    for file in sorted(service.trust_list().parent.glob("server-*.token")):
        server = _server_of(file)
        if server is not None:
            with suppress(OSError, ValueError, LookupError):
                if server.ask("/api/health")["ledger"] == name:
                    return server
    return None


def _server_of(file: Path) -> PageServer | None:
    port, token = file.stem.removeprefix("server-"), service.read_private(file)
    return PageServer(f"http://127.0.0.1:{port}", token.strip(), file) if token is not None and port.isdigit() else None


class _OwnServer(threading.Thread):
    """A server in a thread of this process."""

    def __init__(self, place: str) -> None:
        super().__init__(daemon=True, name="antiphon-page")
        self._place = place
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: asyncio.Event | None = None
        self.server: PageServer | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (AntiphonError, OSError, ModuleNotFoundError) as exc:
            self.error = exc
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from antiphon.ledger import open_ledger  # noqa: PLC0415 (only where a ledger is used)
        from antiphon.server import ServeSettings, serving  # noqa: PLC0415 (needs the extra `server`)

        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        async with open_ledger(self._place) as ledger, serving(ledger, ServeSettings(port=0)) as server:
            if server.token_file is not None:
                self.server = PageServer.of(server.url, server.token_file)
            self._ready.set()
            await self._ends.wait()

    def wait(self) -> PageServer:
        """Return the server once it answers."""
        self._ready.wait(_START_SECONDS)
        if self.server is None:
            raise SetupError(f"the server of the page does not start: {self.error or 'it takes too long'}")
        return self.server

    def close(self) -> None:
        if self._loop is not None and self._ends is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._ends.set)
            self.join(_START_SECONDS)


class Page:
    """The page of the thread that a command runs."""

    def __init__(self, ledger: str | None) -> None:
        self._place = ledger_in_use(ledger)
        server = _running_server(with_ledger(ledger, service.EventCursors.of, create=True).name)
        self._own = None if server is not None else _OwnServer(self._place)
        self._found = server
        self._showing: threading.Thread | None = None
        self.was_interrupted = False
        """Whether the person has stopped the run: then the page does not stay."""
        if self._own is not None:
            self._own.start()

    def show(self, thread_id: str) -> None:
        """Show the page of a thread, as soon as the server answers; this does not wait for it."""
        if self._showing is None:
            self._showing = threading.Thread(target=self._show, args=(thread_id,), daemon=True)
            self._showing.start()

    def _show(self, thread_id: str) -> None:
        try:
            server = self._found or (self._own.wait() if self._own is not None else None)
        except SetupError as exc:
            note(str(exc), style="bad")
            return
        if server is not None:
            show_page(server, thread_id)

    def close(self) -> None:
        """End the server of this process, after Ctrl-C: the person looks at the page meanwhile."""
        if self._showing is not None:
            self._showing.join(_START_SECONDS)
        if self._own is None:
            return
        if self._showing is not None and self._own.server is not None and not self.was_interrupted:
            # The line is printed inside: a person may press Ctrl-C as soon as it can be read.
            with suppress(KeyboardInterrupt):
                note(f"the page stays at {self._own.server.url} until Ctrl-C; `antiphon serve` keeps one for longer")
                _until_interrupted()
        self._own.close()


def _until_interrupted() -> None:
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        while not ended.wait(0.5):  # with a limit, so that Ctrl-C is seen on every system
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def page_of(ledger: str | None, *, is_wanted: bool) -> Generator[Page | None]:
    """Give the page for a run, if it is wanted; at the end it stays until Ctrl-C, if its server is of this process."""
    page = Page(ledger) if is_wanted else None
    try:
        yield page
    except BaseException as exc:
        if page is not None and not isinstance(exc, typer.Exit):
            page.was_interrupted = True
        raise
    finally:
        if page is not None:
            page.close()


def telling(page: Page | None, tell: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Return a function that is called with the thread of a run, and shows its page."""
    if page is None:
        return tell

    def both(thread_id: str) -> None:
        if tell is not None:
            tell(thread_id)
        page.show(thread_id)

    return both
