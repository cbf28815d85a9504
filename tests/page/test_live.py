"""The page while things happen: a reader that is cut off again and again, a run of another process, a revoked token."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from tests.forked import Forked
from tests.page.browsing import opened, rows_of, show_all_lanes
from tests.server.running import Served, say, served

from antiphon import service
from antiphon.server import ServerLimits

pytestmark = pytest.mark.slow

CUTS = 50 if "ANTIPHON_CHAOS" in os.environ else 6
LOST = ("ERR_", "Failed to load resource")
"""What the browser says of a connection that was cut."""
NOTE_ORDER = """() => {
  window.highest = [];
  new MutationObserver(() => {
    const seqs = [...document.querySelectorAll("[data-testid=message]")].map((each) => Number(each.dataset.seq));
    if (seqs.some((seq, place) => place && seq <= seqs[place - 1])) window.highest.push("out of order: " + seqs);
    const last = seqs.at(-1);
    if (last !== undefined && last !== window.highest.at(-1)) window.highest.push(last);
  }).observe(document.getElementById("app"), { childList: true, subtree: true });
}"""


class Wire:
    """A proxy between a browser and a server; `cut` ends every connection in the middle of what it carries."""

    def __init__(self) -> None:
        self.target = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self.is_used = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other, onward = await asyncio.open_connection("127.0.0.1", self.target)
        self.writers |= {writer, onward}
        self.is_used.set()
        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(self._copy(reader, onward), self._copy(other, writer))
        finally:
            for each in (writer, onward):
                each.close()
            self.writers -= {writer, onward}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    def cut(self) -> None:
        self.is_used.clear()
        for each in tuple(self.writers):
            each.transport.abort()
        self.writers.clear()


@asynccontextmanager
async def wired(folder: Path) -> AsyncGenerator[tuple[Served, Wire]]:
    """Serve a ledger behind a proxy: the address is the proxy's."""
    wire = Wire()
    proxy = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    host = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with proxy, served(folder, allow_hosts=(host,)) as server:
        wire.target = server.port
        yield replace(server, url=f"http://{host}"), wire
        wire.cut()


async def test_a_reader_that_is_cut_off_sees_every_message_once_and_in_order(chromium: Browser, tmp_path: Path) -> None:
    """F34, in a browser: connections are cut while messages are appended, also in the middle of an answer."""
    async with wired(tmp_path) as (server, wire):
        await say(server.ledger, "run", "message 1.")
        async with opened(chromium, server, "/#/thread/run", allow=LOST) as page:
            await expect(page.get_by_test_id("message")).to_have_count(1)
            await page.evaluate(NOTE_ORDER)
            number = 1
            for _ in range(CUTS):
                await wire.is_used.wait()
                for _ in range(3):
                    number += 1
                    await say(server.ledger, "run", f"message {number}.")
                wire.cut()
            await expect(page.get_by_test_id("message").last).to_contain_text(f"message {number}.")
            shown = await rows_of(page)
            assert [key for key, _ in shown] == list(range(1, number + 1))
            assert all(text.count("message ") == 1 and f"message {key}." in text for key, text in shown)
            seen = await page.evaluate("window.highest")
            assert not [each for each in seen if isinstance(each, str)]


RUNS = """
import asyncio, sys
from antiphon import service
from antiphon.ledger import open_ledger

async def main(place):
    async with open_ledger(place) as ledger, service.open_chain(ledger, model="scripted") as chain:
        await chain.ask("What is 17 * 23?", name="elsewhere")

asyncio.run(main(sys.argv[1]))
"""


async def test_a_thread_that_another_process_runs_is_shown_as_it_happens(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server, opened(chromium, server) as page:
        await page.get_by_test_id("empty-ledger").wait_for()
        place = f"sqlite:///{tmp_path / 'ledger.db'}"
        process = Forked([sys.executable, "-c", RUNS, place], stderr=subprocess.DEVNULL)
        try:
            row = page.locator("[data-thread=elsewhere]")
            await row.wait_for(timeout=40_000)
            await row.click()
            await page.get_by_role("heading", name="What is 17 * 23?").wait_for()
            await expect(page.locator(".thread-head .status")).to_contain_text("completed", timeout=40_000)
            assert await asyncio.to_thread(process.wait) == 0
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)
        total = (await server.ledger.head("elsewhere")).seq
        await show_all_lanes(page)
        shown = await rows_of(page)
        assert [key for key, _ in shown] == list(range(1, total + 1))


async def test_a_revoked_token_ends_the_session_and_says_what_to_do(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path, limits=ServerLimits(check_seconds=0.2)) as server:
        await say(server.ledger, "a", "hello")
        made = await service.make_token(server.ledger, "ada", ["read"])
        async with opened(chromium, server, "/#/thread/a", token=made.text, allow=["401"]) as page:
            await page.get_by_test_id("message").wait_for()
            await service.revoke_token(server.ledger, made.token.id)
            await expect(page.get_by_test_id("sign-in")).to_contain_text("session has ended", timeout=15_000)
            await sign_in_again(page, server.token)
            await expect(page.get_by_test_id("message")).to_contain_text("hello")


async def sign_in_again(page: Page, token: str) -> None:
    """Sign in at the form, as a person does; the place stays."""
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()


async def test_the_form_refuses_a_wrong_token_and_takes_the_right_one(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server, opened(chromium, server, token=None, allow=["401"]) as page:
        await sign_in_again(page, "aph_nobody_x")
        await expect(page.get_by_role("alert")).to_be_visible()
        await sign_in_again(page, server.token)
        await page.get_by_test_id("empty-ledger").wait_for()
        await page.get_by_test_id("sign-out").click()
        await page.get_by_test_id("sign-in").wait_for()
        assert await page.context.cookies() == []


COME_AND_GO = r"""async (places) => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const isMissing = (place) => /^#\/(thread|$)/.test(place) && !document.querySelector("[data-key]");
  const gone = [];
  for (let turn = 0; turn < 3; turn++) {
    for (const [step, place] of places.entries()) {
      for (const box of document.querySelectorAll(".rows, canvas")) {
        box.scrollTop += 300; // the event of it comes with the next frame, when the list may be gone
        gone.push(box);
      }
      location.hash = place;
      for (let wait = (turn + step) % 4; wait > 0; wait--) await frame(); // none at all, up to three
      // In the last turn each list is there, and scrolled, before it is left.
      for (let wait = 60; wait > 0 && turn === 2 && isMissing(place); wait--) await frame();
    }
  }
  await frame();
  // Also what no frame happened to show: events of lists and canvases that are gone.
  for (const box of gone.filter((each) => !each.isConnected)) {
    for (const name of ["scroll", "click", "keydown"]) box.dispatchEvent(new Event(name, { bubbles: true }));
    box.dispatchEvent(new WheelEvent("wheel", { ctrlKey: true }));
  }
  return gone.length;
}"""


async def test_views_that_come_and_go_leave_no_error_and_no_stream(chromium: Browser, tmp_path: Path) -> None:
    """A view is left before its first answer, in the middle of a scroll, and while messages arrive."""
    ways = ("", "?view=sequence", "?view=timeline", "?seq=9", "?seq=40&view=timeline")
    places = [place for way in ways for place in (f"#/thread/long{way}", "#/", "#/thread/other", "#/overview", "#/waiting")]
    async with served(tmp_path) as server:
        await say(server.ledger, "long", *(f"message {number} " + "word " * (number % 40) for number in range(80)))
        await say(server.ledger, "other", "hello")
        async with opened(chromium, server, "/#/thread/long") as page:
            await page.get_by_test_id("message").last.wait_for()
            going = asyncio.ensure_future(page.evaluate(COME_AND_GO, places))
            while not going.done():
                await say(server.ledger, "long", "more")
                await say(server.ledger, "other", "more")
                await asyncio.sleep(0.02)
            assert await going > 20  # lists and canvases were there, and left
            await page.goto("/#/thread/long")
            await expect(page.get_by_test_id("connection")).to_contain_text("Live")
            async with asyncio.timeout(15):
                while (await server.client.get("/api/health")).json()["streams"] != 1:  # noqa: ASYNC110 (over HTTP)
                    await asyncio.sleep(0.05)


async def test_a_thread_that_begins_while_the_list_is_read_is_listed_too(chromium: Browser, tmp_path: Path) -> None:
    """Its record comes when the answer is made already. Nothing else happens then, so the list must be read once more."""
    async with served(tmp_path) as server:
        await say(server.ledger, "first", "hello")
        async with opened(chromium, server) as page:
            await page.locator("[data-thread=first]").wait_for()
            held: list[Route] = []

            async def answer_late(route: Route) -> None:
                answer = await route.fetch()
                if not held:
                    held.append(route)
                    await say(server.ledger, "third", "hello")
                    await asyncio.sleep(0.5)  # the stream tells of it meanwhile
                await route.fulfill(response=answer)

            await page.route("**/api/threads?*", answer_late)
            await say(server.ledger, "second", "hello")
            await page.locator("[data-thread=second]").wait_for()
            await page.locator("[data-thread=third]").wait_for()
            assert held


async def test_a_thread_that_ends_before_its_stream_opens_is_shown_as_ended(chromium: Browser, tmp_path: Path) -> None:
    """No record comes after that, so the status must be read once more when the stream opens."""
    async with served(tmp_path) as server:
        await say(server.ledger, "t", "hello")
        await server.ledger.append("t", [], status="processing")
        async with opened(chromium, server) as page:
            is_over = asyncio.Event()

            async def open_late(route: Route) -> None:
                await is_over.wait()
                await route.continue_()

            await page.locator("[data-thread=t]").wait_for()
            await page.route("**/api/events?*thread_id=t*", open_late)
            await page.goto("/#/thread/t")
            status = page.locator(".thread-head .status")
            await expect(status).to_have_text("processing")
            await asyncio.sleep(0.5)  # what the page asks for at the beginning is answered
            await say(server.ledger, "t", "bye")
            await server.ledger.append("t", [], status="completed")
            is_over.set()
            await expect(status).to_have_text("completed")
