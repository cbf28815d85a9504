"""The web is off unless it is turned on, and then nothing that is not public can be reached (S6): whatever the address is
written as, wherever a redirect points, whatever a name resolves to the second time.
"""

import asyncio
import contextlib
import gzip
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, ModelRetry, _ssrf
from typing_extensions import override

from antiphon.agents._config import WebConfig
from antiphon.agents.models import Script, ScriptedModel, Turn
from antiphon.agents.tools import builtin_tools, web_fetch, web_search
from antiphon.errors import SetupError

ON = WebConfig(fetch=True, search="duckduckgo", timeout=5, max_bytes=100_000)
PUBLIC = "93.184.215.14"
"""An address of the public internet. Nothing is sent there: see `Internet`."""


def fetch(url: str, config: WebConfig = ON) -> Any:
    return asyncio.run(web_fetch(config).function(url))


# ---------------------------------------------------------------- off


@pytest.fixture(autouse=True)
def nothing_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("make", "line"), [(web_fetch, "fetch = true"), (web_search, 'search = "duckduckgo"')])
def test_the_web_is_off_and_the_error_says_how_to_turn_it_on(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(SetupError, match=f"^{make.__name__} is off, .*`{line}` into the section"):
        make()
    with pytest.raises(SetupError, match="is off"):
        builtin_tools([make.__name__])


@pytest.mark.slow
def test_the_configuration_turns_it_on(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('[web]\nfetch = true\nsearch = "duckduckgo"\ntimeout = 7')

    for tool in builtin_tools(["web_fetch", "web_search"]):
        assert tool.metadata == {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": False}}
        assert tool.timeout == 7
    assert [tool.name for tool in builtin_tools(["web_fetch", "web_search"])] == ["web_fetch", "web_search"]


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai.common_tools.duckduckgo", None)

    with pytest.raises(ModuleNotFoundError, match=r'needs ddgs: pip install "antiphon\[web\]"'):
        web_search(ON)


# ---------------------------------------------------------------- private addresses

PRIVATE = ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0", "224.0.0.1"]


def spelled(address: str) -> Iterator[str]:
    """Give an IPv4 address in the ways that some parser somewhere takes for it."""
    octets = [int(octet) for octet in address.split(".")]
    number = int.from_bytes(bytes(octets))
    high, low = number >> 16, number & 0xFFFF
    yield address
    yield f"{address}."
    yield str(number)
    yield hex(number)
    yield oct(number).replace("0o", "0")
    yield ".".join(hex(octet) for octet in octets)
    yield ".".join(f"0{octet:o}" for octet in octets)
    yield f"{octets[0]}.{number & 0xFFFFFF}"
    yield f"[::ffff:{address}]"
    yield f"[::{high:x}:{low:x}]"
    yield f"[::ffff:{high:x}:{low:x}]"
    yield f"[64:ff9b::{high:x}:{low:x}]"
    yield f"[64:ff9b:1::{high:x}:{low:x}]"
    yield f"[2002:{high:x}:{low:x}::]"
    yield f"[2001:0:0:0:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}]"
    yield f"[fe80::5efe:{high:x}:{low:x}]"
    yield f"user@{address}"
    yield f"example.com@{address}"
    yield address.replace(".", "。")


OTHERS = [
    *(
        f"http://{host}/"
        for host in ("localhost", "localhost.", "LOCALHOST", "[::1]", "[::]", "[fe80::1%25lo]", "[fd00:ec2::254]")
    ),
    *(f"{scheme}://127.0.0.1/x" for scheme in ("file", "ftp", "gopher", "dict", "ldap", "ws", "data")),
    "file:///etc/passwd",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "http:\\\\127.0.0.1/",
    "http:///127.0.0.1",
    "//127.0.0.1/",
    "127.0.0.1",
    "http://",
    "http://[::1",
    "http://127.0.0.1:99999/",
    "http://\x00127.0.0.1/",
    "",
]
ADDRESSES = [f"{scheme}://{host}/" for scheme, address in product(("http", "https"), PRIVATE) for host in spelled(address)]
CASES = [*ADDRESSES, *OTHERS]


@pytest.fixture
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a connection fails the test; names are still resolved, by this machine alone."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(_ssrf, "create_async_httpx2_client", lambda **_: httpx2.AsyncClient(transport=_Refusing()))
    monkeypatch.setattr(socket, "create_connection", refuse)


class _Refusing(httpx2.AsyncBaseTransport):
    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise AssertionError(f"a request was sent to {request.url}")


@pytest.mark.usefixtures("no_connection")
def test_no_spelling_of_a_private_address_is_fetched() -> None:
    """S6: the kept corpus, at least 250 URLs. Each is refused in words that a model can act on, and nothing is sent."""
    assert len(CASES) >= 250

    async def refused() -> list[str]:
        tool: Any = web_fetch(ON)
        let_through = []
        for url in CASES:
            try:
                await tool.function(url)
            except ModelRetry:
                continue
            let_through.append(url)
        return let_through

    assert asyncio.run(refused()) == []


class _Watching(httpx2.AsyncBaseTransport):
    """Answers for every address of the internet, and fails the test where the standard library says that one is not public."""

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert ipaddress.ip_address(request.url.host.strip("[]")).is_global, f"a request was sent to {request.url}"
        return httpx2.Response(200, text="public", request=request)


@pytest.mark.slow
@given(st.sampled_from(ADDRESSES), st.text(alphabet="/:@.[]%#?0x\\ \t", max_size=4), st.integers(7, 40))
def test_no_mutation_of_one_reaches_anything_private(url: str, noise: str, place: int) -> None:
    """Noise from the host on may make a public address of it, but nothing that is private to one reader and not to another."""
    changed = url[:place] + noise + url[place:]
    host = changed.partition("//")[2].split("/")[0].rpartition("@")[2]
    if not host.startswith("[") and any(letter.isalpha() for letter in host.replace("x", "")):
        return  # a name, which would need a resolver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ssrf, "create_async_httpx2_client", lambda **_: httpx2.AsyncClient(transport=_Watching()))
        with contextlib.suppress(ModelRetry):
            fetch(changed)


# ---------------------------------------------------------------- redirects and names


class Internet(httpx2.AsyncBaseTransport):
    """The internet, as far as this test goes: what is sent to the public address goes to a real server on this machine.

    A request to any other address fails the test: it got past the checks.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._inner = httpx2.AsyncHTTPTransport()

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url.host == PUBLIC, f"a request was sent to {request.url}"
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        return await self._inner.handle_async_request(request)

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class Site(BaseHTTPRequestHandler):
    """A public site with bad manners."""

    def do_GET(self) -> None:
        name, _, rest = self.path.lstrip("/").partition("?")
        getattr(self, f"_{name}", self._page)(rest)

    def _page(self, _: str) -> None:
        self._answer(b"<html><title>A page</title><h1>Hello</h1></html>")

    def _to(self, where: str) -> None:
        self.send_response(302)
        self.send_header("Location", where)
        self.end_headers()

    def _again(self, left: str) -> None:
        self._to(f"/again?{int(left) - 1}" if int(left) else "/page")

    def _bomb(self, _: str) -> None:
        self._answer(gzip.compress(bytes(50_000_000)), {"Content-Encoding": "gzip"})

    def _endless(self, _: str) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for block in repeat(b"x" * 10_000):
                self.wfile.write(block)
        except OSError:  # the other side has had enough
            return

    def _drip(self, _: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        try:
            while not self.server.over.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b"x")
        except OSError:
            return

    def _answer(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": "text/html", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            return

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real server under a public name; the name resolves to a public address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.over = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        port = server.server_address[1]
        monkeypatch.setattr(
            _ssrf, "create_async_httpx2_client", lambda **given: httpx2.AsyncClient(transport=Internet(port), **given)
        )
        resolve(monkeypatch, "site.test", repeat(PUBLIC))
        yield "http://site.test"
        server.over.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def resolve(monkeypatch: pytest.MonkeyPatch, name: str, addresses: Any) -> list[str]:
    """Have a name resolve to one address after the other, and return the list of what was given out."""
    given_out: list[str] = []
    left = iter(addresses)
    really = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        if host != name:
            return really(host, *rest, **options)
        given_out.append(next(left))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (given_out[-1], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return given_out


@pytest.mark.slow
def test_a_public_page_is_fetched_as_markdown(site: str) -> None:
    page = fetch(f"{site}/page")

    assert (page["title"], page["url"]) == ("A page", f"{site}/page")
    assert "Hello" in page["content"]
    assert fetch(f"{site}/again?5")["title"] == "A page"


@pytest.mark.parametrize(
    "where",
    ["http://127.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://[::1]/", "//localhost/", "file:///etc/passwd"],
)
def test_a_redirect_to_a_private_address_is_refused(site: str, where: str) -> None:
    with pytest.raises(ModelRetry, match="Failed to fetch"):
        fetch(f"{site}/to?{where}")


@pytest.mark.slow
def test_a_chain_of_redirects_has_an_end(site: str) -> None:
    with pytest.raises(ModelRetry, match="Too many redirects"):
        fetch(f"{site}/again?20")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["bomb", "endless"])
def test_a_page_that_is_too_large_is_not_read(site: str, path: str) -> None:
    with pytest.raises(ModelRetry, match="exceeds the maximum size of 100000 bytes"):
        fetch(f"{site}/{path}")


@pytest.mark.slow
def test_a_page_that_comes_byte_by_byte_is_given_up_after_the_whole_time(site: str) -> None:
    """A slow loris: every byte is in time, and the page never ends. The agent goes on without it."""
    script = Script(turns=(Turn(calls=({"tool": "web_fetch", "arguments": {"url": f"{site}/drip"}},)), Turn(text="I went on")))
    tool = web_fetch(WebConfig(fetch=True, timeout=1))

    assert asyncio.run(Agent(ScriptedModel(script), tools=[tool]).run("?")).output == "I went on"


@pytest.mark.slow
def test_a_name_that_resolves_to_something_private_is_refused(monkeypatch: pytest.MonkeyPatch, site: str) -> None:
    for address in PRIVATE:
        resolve(monkeypatch, "inside.test", [address])
        with pytest.raises(ModelRetry, match="Failed to fetch"):
            fetch("http://inside.test/")


@pytest.mark.slow
def test_a_name_that_changes_its_mind_is_connected_to_where_it_was_checked(monkeypatch: pytest.MonkeyPatch, site: str) -> None:
    """DNS rebinding: public when it is checked, private when it is asked again. It is not asked again."""
    given_out = resolve(monkeypatch, "changing.test", chain([PUBLIC], repeat("127.0.0.1")))

    assert fetch("http://changing.test/page")["title"] == "A page"
    assert given_out == [PUBLIC]
    with pytest.raises(ModelRetry, match="Failed to fetch"):
        fetch("http://changing.test/page")


@pytest.mark.slow
def test_only_domains_that_are_allowed_are_fetched_also_after_redirects(site: str) -> None:
    allowed = WebConfig(fetch=True, allowed_domains=("site.test",))
    elsewhere = WebConfig(fetch=True, allowed_domains=("docs.test",))
    blocked = WebConfig(fetch=True, blocked_domains=("site.test",))

    assert fetch(f"{site}/page", allowed)["title"] == "A page"
    for config in (elsewhere, blocked):
        with pytest.raises(ModelRetry):
            fetch(f"{site}/page", config)
    with pytest.raises(ModelRetry):
        fetch(f"{site}/to?http://docs.test/", allowed)


@pytest.mark.slow
@pytest.mark.usefixtures("no_connection")
def test_an_address_that_nobody_means_is_refused_before_it_is_taken_apart() -> None:
    """G21: to take a long address apart would keep the event loop."""
    call = {"tool": "web_fetch", "arguments": {"url": "http://" + "a." * 50_000}}
    script = Script(turns=(Turn(calls=(call,)), Turn(text="{result}")))

    result = asyncio.run(Agent(ScriptedModel(script), tools=[web_fetch(ON)]).run("?"))

    assert "url has 100007 characters; at most 4000 are sent" in str(result.all_messages()[2].parts[0].content)
