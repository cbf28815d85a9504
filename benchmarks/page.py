"""The page in a browser: a thread of 50,000 messages, a list of 10,000 threads, and how soon an append is on the screen.

The server is a process of its own, the ledger is on the disk, the browser is a real one, and another process appends. Times
are on the clock on the wall. What is measured:

- *first paint*: from the beginning of the navigation, with nothing in the browser's cache, to the first picture with content;
- *first messages*: from the same beginning until the last messages of the thread can be read;
- *a jump*: from the Enter key in the field for a number until that message can be read, far away each time;
- *the list*: from the beginning of the navigation until the first threads can be read;
- *append to screen*: from the append that another process was told is on the disk until the text is on the screen;
- *memory*: what the process of the tab has for itself after all this, and how much of it is the page's own heap.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import time
from urllib.request import Request, urlopen

from playwright.async_api import Browser, BrowserContext, CDPSession, Page, async_playwright
from tools.browser import FLAGS, browser

from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart, Usage
from antiphon.server import ServeSettings, serving

__all__ = ["report"]

MESSAGES, THREADS = 50_000, 10_000
OPENINGS, JUMPS, APPENDS = 7, 30, 200
GOALS = {
    "first paint": 1000,
    "first messages": 1000,
    "a jump": 200,
    "the list": 500,
    "append to screen": 250,
    "memory of the tab, MB": 150,
}
"""Milliseconds, except for the memory: of the slowest opening, the slowest jump, and the 95th percentile of the appends."""
_TEXTS = ("The quay is closed on Sundays.", "I have looked at the table, and found three cities with sales in March. " * 4)

_UNTIL_SHOWN = """([selector, text]) => new Promise((done) => {
  const look = () => {
    const found = [...document.querySelectorAll(selector)].some((each) => each.innerText.includes(text));
    if (found) requestAnimationFrame(() => done([performance.now(), Date.now()]));
    else requestAnimationFrame(look);
  };
  look();
})"""
_PAINT = """() => performance.getEntriesByName("first-contentful-paint")[0].startTime"""
_JUMP = """(seq) => new Promise((done) => {
  const field = document.getElementById("go-to");
  field.value = seq;
  const began = performance.now();
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  const look = () => {
    const row = document.querySelector(`[data-testid=message][data-seq="${seq}"]`);
    if (row) requestAnimationFrame(() => done(performance.now() - began));
    else requestAnimationFrame(look);
  };
  look();
})"""


def report(part: str = "") -> None:
    """Print the table; it has no parts."""
    asyncio.run(_report())


async def _report() -> None:
    with TemporaryDirectory() as folder:
        place = f"sqlite:///{Path(folder) / 'ledger.db'}"
        async with open_ledger(place, create=True) as ledger:
            await _fill(ledger)
            async with _server(place) as (url, token), async_playwright() as playwright:
                found = browser()
                chromium = await playwright.chromium.launch(
                    executable_path=found.path, args=list(FLAGS), env={**os.environ, **found.environment}
                )
                print(f"\nthe page: {MESSAGES:,} messages, {THREADS:,} threads; Chromium {chromium.version}\n")
                print(f"| {'':22} | {'median':>8} | {'95 %':>8} | {'most':>8} | goal |")
                print(f"|{'-' * 24}{3 * ('|' + '-' * 9 + ':')}|---|")
                await _counted(url, token)
                await _measure(chromium, ledger, url, token)
                await chromium.close()


async def _fill(ledger: Ledger) -> None:
    for begin in range(0, MESSAGES, 500):
        await ledger.append("long", [each for number in range(begin, begin + 500, 4) for each in _four(number)])
    await ledger.append("long", [], status="running", pattern="workers")
    for number in range(THREADS):
        await ledger.append(f"thread-{number:05}", [_said(number)], status="completed", pattern="peers")


def _four(number: int) -> list[Message]:
    """Return a question, a call with its result, and an answer."""
    call = OptionCallPayload(
        invocation_id=f"c{number}", option_name="csv_totals", arguments={"path": "sales.csv", "row": number}
    )
    result = OptionResultPayload(
        invocation_id=f"c{number}", option_name="csv_totals", result={"total": number, "city": "Oslo"}
    )
    return [
        _said(number),
        Message(policy=f"agent-{number % 7}", payload=call),
        Message(policy="csv_totals", payload=result),
        Message(
            policy=f"agent-{number % 7}", payload=PartsPayload(parts=(TextPart(text=_TEXTS[1]),)), usage=Usage(input_tokens=90)
        ),
    ]


def _said(number: int) -> Message:
    return Message(policy="ada", payload=PartsPayload(parts=(TextPart(text=f"{number}: {_TEXTS[0]}"),)))


async def _counted(url: str, token: str) -> None:
    """Wait until the new server has read the ledger once, for its sums."""
    request = Request(f"{url}/api/overview", headers={"authorization": f"Bearer {token}"})
    while True:
        with await asyncio.to_thread(urlopen, request) as answer:
            if json.load(answer)["total"]["messages"] >= MESSAGES + THREADS:
                return
        await asyncio.sleep(1)


async def _measure(chromium: Browser, ledger: Ledger, url: str, token: str) -> None:
    paints, firsts, lists = [], [], []
    for _ in range(OPENINGS):
        async with _tab(chromium, url, token) as (page, _cdp):
            await page.goto(f"{url}/#/thread/long")
            firsts.append((await page.evaluate(_UNTIL_SHOWN, ["[data-testid=message]", _TEXTS[1][:40]]))[0])
            paints.append(await page.evaluate(_PAINT))
        async with _tab(chromium, url, token) as (page, _cdp):
            await page.goto(f"{url}/")
            lists.append((await page.evaluate(_UNTIL_SHOWN, ["[data-testid=thread-row]", _TEXTS[0]]))[0])
    _row("first paint", paints)
    _row("first messages", firsts)
    _row("the list", lists)
    async with _tab(chromium, url, token) as (page, cdp):
        await page.goto(f"{url}/#/thread/long")
        await page.evaluate(_UNTIL_SHOWN, ["[data-testid=message]", _TEXTS[1][:40]])
        step = MESSAGES // 2 - 997
        _row("a jump", [await page.evaluate(_JUMP, 1 + (number * step) % MESSAGES) for number in range(1, JUMPS + 1)])
        await page.goto(f"{url}/#/thread/long")
        await page.reload()
        await page.evaluate(_UNTIL_SHOWN, ["[data-testid=message]", _TEXTS[1][:40]])
        _row("append to screen", [await _append(page, ledger, number) for number in range(APPENDS)])
        await _memory(page, cdp)


async def _append(page: Page, ledger: Ledger, number: int) -> float:
    """Append a message, and return the milliseconds until it is on the screen."""
    text = f"appended {number}."
    shown = asyncio.ensure_future(page.evaluate(_UNTIL_SHOWN, ["[data-testid=message]", text]))
    await asyncio.sleep(0.05)
    await ledger.append("long", [Message(policy="ada", payload=PartsPayload(parts=(TextPart(text=text),)))])
    began = time() * 1000
    return max(0.0, (await shown)[1] - began)


async def _memory(page: Page, cdp: CDPSession) -> None:
    """Walk through the whole thread, and print what the tab has for itself then."""
    for number in range(1, 200):
        await page.evaluate(_JUMP, 1 + number * (MESSAGES // 200))
    await cdp.send("HeapProfiler.collectGarbage")
    heap = (await cdp.send("Runtime.getHeapUsage"))["usedSize"] / 2**20
    tabs = (await (await page.context.browser.new_browser_cdp_session()).send("SystemInfo.getProcessInfo"))["processInfo"]
    private = [_private(each["id"]) for each in tabs if each["type"] == "renderer"]
    _row("memory of the tab, MB", [max(private, default=0.0)])
    print(f"\nof it, the heap of the page has {heap:.0f} MB")


def _private(pid: int) -> float:
    """Return the megabytes that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024


def _row(name: str, values: Sequence[float]) -> None:
    high = quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
    goal, compared = GOALS[name], high if name == "append to screen" else max(values)
    said = f"{goal}, {'met' if compared < goal else 'MISSED'}"
    print(f"| {name:22} | {median(values):8.0f} | {high:8.0f} | {max(values):8.0f} | {said} |", flush=True)


@asynccontextmanager
async def _tab(chromium: Browser, url: str, token: str) -> AsyncIterator[tuple[Page, CDPSession]]:
    """Open a tab with an empty cache, signed in."""
    context: BrowserContext = await chromium.new_context(base_url=url, viewport={"width": 1280, "height": 800})
    try:
        await context.request.post("/api/session", data={"token": token}, headers={"origin": url})
        page = await context.new_page()
        yield page, await context.new_cdp_session(page)
    finally:
        await context.close()


@asynccontextmanager
async def _server(place: str) -> AsyncIterator[tuple[str, str]]:
    """Serve the ledger in another process; yield the address and a token."""
    process = subprocess.Popen(  # noqa: ASYNC220 (once, at the start)
        [sys.executable, "-m", "benchmarks.page", place], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url, token = (await asyncio.to_thread(process.stdout.readline)).split()
        yield url, token
    finally:
        process.kill()
        process.communicate()


async def _serve(place: str) -> None:
    async with open_ledger(place) as ledger, serving(ledger, ServeSettings(port=0, model="scripted")) as server:
        assert server.token_file is not None
        print(server.url, server.token_file.read_text().strip(), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
