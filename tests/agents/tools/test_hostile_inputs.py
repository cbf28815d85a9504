"""G21: nothing that a file, a page, a sender or a model says keeps the event loop, or a call beyond its time.

Each row is an input of at most 100 kB for a tool. Measured is the processor time of this process: how much of it passes
between two turns of the event loop, and during the whole call. The clock on the wall would measure how busy the machine is.
What was in memory before is kept from the garbage collector: how long it takes over that is nothing that an input can change.
`pytest -s` prints the table.
"""

import asyncio
import gc
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from pydantic_ai import _ssrf
from typing_extensions import override

from antiphon.agents._config import WebConfig
from antiphon.agents.toolkit import Toolkit
from antiphon.agents.tools import calculator, file_tools, web_fetch
from antiphon.agents.tools._formats import text_in

STALL = 0.1
"""Seconds that the event loop may be kept."""
TIMEOUT = 20
KB = 1000
PUBLIC = "http://93.184.215.14/"


class Row(NamedTuple):
    name: str
    tool: str
    arguments: Mapping[str, Any]
    files: Mapping[str, bytes] = {}
    page: bytes = b""
    media_type: str = "text/html"


def markdown(name: str, text: str, **more: str) -> Row:
    files = {"page.md": text.encode(), **{f"{each}.md": said.encode() for each, said in more.items()}}
    return Row(f"Markdown, {name}", "check_markdown", {"path": "page.md"}, files)


def table(name: str, text: str, **group: str) -> Row:
    tool = "csv_group" if group else "csv_columns"
    return Row(f"CSV, {name}", tool, {"path": "t.csv", **group}, {"t.csv": text.encode()})


def mailbox(name: str, text: str, words: str | None = None) -> Row:
    arguments: dict[str, Any] = {"path": "in.mbox"} | ({"number": 1} if words is None else {"words": words})
    tool = "read_letter" if words is None else "list_letters"
    return Row(f"mailbox, {name}", tool, arguments, {"in.mbox": b"From a\n" + text.encode()})


def listed(name: str, pattern: str, depth: int = 0) -> Row:
    return Row(f"pattern, {name}", "list_files", {"pattern": pattern}, {f"{'a/' * depth}a": b""})


def read(name: str, path: str) -> Row:
    return Row(f"path, {name}", "read_file", {"path": path}, {"line": b"x" * 100 * KB})


def sum_of(name: str, expression: str) -> Row:
    return Row(f"sum, {name}", "calculator", {"expression": expression})


def web(name: str, page: str | bytes, media_type: str = "text/html", url: str = PUBLIC) -> Row:
    return Row(f"web, {name}", "web_fetch", {"url": url}, {}, page if isinstance(page, bytes) else page.encode(), media_type)


def nested_letter(depth: int) -> str:
    heads = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(depth))
    return heads + "\n" * (100 * KB - len(heads) - 10)


ROWS = [
    markdown("open brackets", "[" * 40 * KB),
    markdown("open images", "![" * 20 * KB),
    markdown("open links", "[a](" * 10 * KB),
    markdown("links", "[a](b) " * 5 * KB),
    markdown("links of one line to one page with many headings", "[a](other.md#x) " * 2 * KB, other="# a b\n\n" * 3 * KB),
    markdown("links that climb", f"[a]({'../' * 30 * KB})"),
    markdown("stars", "*a " * 13 * KB),
    markdown("stars and lines", "a_b*" * 10 * KB),
    markdown("backticks", "".join("`" * n + "x" for n in range(280))),
    markdown("quotes inside quotes", ">" * 40 * KB),
    markdown("lists inside lists", "".join(" " * n + "- a\n" for n in range(280))),
    markdown("lazy lines", ">" * 20 + "a\n" + "a\n" * 5 * KB),
    markdown("open tags", "<a " * 13 * KB),
    markdown("open comments", "<!--" * 10 * KB),
    markdown("entities", "&#1" * 13 * KB),
    markdown("fences", "```\n" * 10 * KB),
    markdown("references", "".join(f"[a{n}]: b\n" for n in range(3 * KB)) + "[a1]" * 3 * KB),
    markdown("things to do", "TODO\n" * 10 * KB),
    markdown("headings", "# a\n" * 10 * KB),
    markdown("one long heading", "# " + "a" * 98 * KB),
    table("4,000 columns", ",".join(f"c{n}" for n in range(4 * KB)) + "\n1" * 5 * KB),
    table("500 columns above empty lines", ",".join("c" * 500) + "\n1" * 40 * KB),
    table("commas", "," * 99 * KB),
    table("quotes", '"' * 99 * KB),
    table("quotes that begin and do not end", 'a,"b\n' * 16 * KB),
    table("a sum too long to write", "a,b\n" + "x,1e999999\n" * 9 * KB, by="a", column="b"),
    table("one number", "a\n" + "9" * 99 * KB),
    table("groups", "a,b\n" + "".join(f"{n},{n}\n" for n in range(8 * KB)), by="a", column="b"),
    mailbox("letters", "From a\n" * 4 * KB, words="a"),
    mailbox("encoded words in a subject", "Subject: " + "=?a?q?" * 16 * KB + "\n\nHello.\n"),
    mailbox("parameters of a type", "Content-Type: text/plain" + ";" * 98 * KB + "\n\nHello.\n"),
    mailbox("quotes in parameters", 'Content-Type: text/plain; a="' + ";" * 98 * KB + "\n\nHello.\n"),
    mailbox("parts inside parts", nested_letter(900)),
    mailbox("parts", "Content-Type: multipart/mixed; boundary=b\n\n" + "--b\n" * 24 * KB),
    mailbox("a slow charset", 'Content-Type: text/plain; charset="punycode"\n\n' + "a-" + "z" * 98 * KB),
    mailbox("words to look for", "\nHello.\n", words="ab " * 33 * KB),
    listed("stars inside stars", "**/" * 20 + "*", depth=30),
    listed("too many stars", "**/" * 33 * KB),
    listed("letters between stars", "*a" * 200 + "b"),
    listed("out of the folder", "../" * 30 + "**/*"),
    listed("from the root", "/**/*"),
    listed("sets", "[" * 450),
    read("a pipe", "pipe"),
    read("a device behind a link", "zero"),
    read("a file of the system behind a link", "environ"),
    read("up and down", "a/../" * 20 * KB + "line"),
    read("one long name", "a" * 100 * KB),
    read("nothing", "\0" * 100 * KB),
    read("one long line", "line"),
    sum_of("parentheses", "(" * 100 * KB),
    sum_of("parentheses that fit", "(" * 49 + "1" + ")" * 49),
    sum_of("spaces", " " * 100 * KB + "1"),
    sum_of("powers of powers", "9^9^9^9"),
    sum_of("powers", "^".join(["1.0000001"] * 45)),
    sum_of("roots", "sqrt(2)^999.9+" * 70 + "1"),
    sum_of("the largest of many", f"max({'1,' * 480}1)"),
    web("tags inside tags", "<div>" * 8 * KB),
    web("open angles", "<" * 100 * KB),
    web("open tags", "<a" * 45 * KB),
    web("open comments", "<p>hi" + "<!--" * 24 * KB),
    web("tags without a word", "<ul><li>" * 12 * KB),
    web("attributes", "<a " + "b " * 49 * KB + ">"),
    web("spaces", "<pre>" + " " * 99 * KB + "x</pre>"),
    web("lists inside lists", "<ol><li>" * 300 + "a\n" * 10 * KB),
    web("entities", "&" * 100 * KB),
    web("brackets inside brackets", "[" * 100 * KB, "application/json"),
    web("a slow charset", b"a-" + b"z" * 99 * KB, "text/plain; charset=punycode"),
    web("a charset that is none", b"a", "text/plain; charset=iso-8859-99"),
    web("no charset", b"a" * 99 * KB, "text/plain; charset=idna"),
    web("an address", "", url="http://" + "a." * 49 * KB),
    web("an address that is no number", "", url="http://" + "1" * 99 * KB),
]


class Site(httpx2.AsyncBaseTransport):
    """Answers for every address of the internet with one page."""

    def __init__(self, row: Row) -> None:
        self._row = row

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": self._row.media_type}
        return httpx2.Response(200, content=self._row.page, headers=headers, request=request)


class Measured(NamedTuple):
    stall: float
    """The longest time between two turns of the event loop."""
    call: float


async def measured(toolkit: Toolkit, row: Row) -> Measured:
    """Call a tool, and see how the event loop fares meanwhile."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            last, before = time.process_time(), last
            longest = max(longest, last - before)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    began = time.process_time()
    payload = await toolkit.call("reader", row.tool, row.arguments)
    call = time.process_time() - began
    await asyncio.sleep(0.002)  # the ticker's last turn
    ticking.cancel()
    assert payload.error_type in (None, "TOOL_FAILED"), payload.error_message
    assert not (payload.error_message or "").startswith("it failed with"), payload.error_message
    return Measured(longest, call)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have everything imported and compiled: that is done once, and not by an input."""
    root = tmp_path_factory.mktemp("warm")
    (root / "t.csv").write_text("a\n1\n")
    (root / "in.mbox").write_text("From a\n\nHello.\n")
    (root / "p.md").write_text("# a\n")
    web_fetch(WebConfig(fetch=True))
    toolkit = Toolkit(file_tools(root))
    toolkit.grant("reader")
    for tool, path in (("csv_columns", "t.csv"), ("list_letters", "in.mbox"), ("check_markdown", "p.md")):
        asyncio.run(toolkit.call("reader", tool, {"path": path}))


def prepared(root: Path, row: Row) -> Toolkit:
    for name, data in row.files.items():
        assert len(data) <= 100 * KB
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    os.mkfifo(root / "pipe")
    (root / "zero").symlink_to("/dev/zero")
    (root / "environ").symlink_to("/proc/self/environ")
    tools = [*file_tools(root, timeout=TIMEOUT), calculator(), web_fetch(WebConfig(fetch=True, timeout=TIMEOUT))]
    toolkit = Toolkit(tools)
    toolkit.grant("reader")
    return toolkit


def test_there_are_enough_rows() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 40


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_no_input_keeps_the_event_loop_or_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    """G21. The least of three measurements: what an input takes it takes each time, what the machine takes it does not."""
    monkeypatch.setattr(_ssrf, "create_async_httpx2_client", lambda **_: httpx2.AsyncClient(transport=Site(row)))
    assert len(row.page) + sum(len(str(value)) for value in row.arguments.values()) <= 101 * KB
    toolkit = prepared(tmp_path, row)
    gc.collect()
    gc.freeze()  # and never unfrozen: every later collection would look through all that the tests have imported
    found = asyncio.run(measured(toolkit, row))
    for _ in range(2):
        if found.stall >= STALL:
            found = min(found, asyncio.run(measured(toolkit, row)))
    print(f"{row.name:60} {found.stall * 1000:8.1f} ms {found.call * 1000:8.1f} ms")  # noqa: T201 (the table)
    assert found.stall < STALL
    assert found.call < TIMEOUT


@pytest.mark.slow
@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "utf-7"])
def test_g21_no_charset_takes_time_with_the_square_of_a_page(charset: str) -> None:
    """G21: the largest page that is fetched has 5 MB, fifty times the size of the rows above."""
    began = time.process_time()
    assert text_in(b"a-" + b"zb" * 150 * KB, charset) == "a-" + "zb" * 150 * KB
    assert time.process_time() - began < 0.5
