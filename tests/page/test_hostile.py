"""S10: texts that would run as code are text in every view: no dialog, no request elsewhere, no report of the policy."""

import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page
from tests.page import hostile
from tests.page.browsing import opened, read_rows
from tests.server.running import served

pytestmark = pytest.mark.slow

PLAIN = tuple(each for each in hostile.PAYLOADS if each.isascii() and each.isprintable() and each == " ".join(each.split()))
"""Payloads that are shown as they are. Of the others, the page names the characters that cannot be seen."""
FOREIGN = """() => [...document.querySelectorAll("#app *")].map((each) => each.localName).filter((name) =>
  ["script", "iframe", "object", "embed", "style", "base", "meta", "link", "video", "audio", "img", "image", "math", "marquee",
   "form", "foreignobject", "template", "portal", "bgsound", "animate", "use"].includes(name.toLowerCase()))"""
"""Elements that the page itself has nowhere in these views."""


def missing(shown: str) -> list[str]:
    return [each for each in PLAIN if each not in shown]


async def test_payloads_in_messages_are_text_in_every_view_of_a_thread(chromium: Browser, tmp_path: Path) -> None:
    """Text, authors, receivers, tools, arguments, errors, citations, media, data and foreign parts, metadata."""
    async with served(tmp_path) as server:
        await hostile.fill(server.ledger)
        async with opened(chromium, server, "/#/thread/all?seq=1", size=(1280, 3000)) as page:
            for view in ("conversation", "sequence", "timeline"):
                await page.get_by_test_id(f"view-{view}").click()
                assert missing(await read_rows(page)) == [], view
                assert await page.evaluate(FOREIGN) == []


async def test_payloads_are_text_in_everything_that_is_stored_about_a_message(chromium: Browser, tmp_path: Path) -> None:
    payloads = hostile.PAYLOADS if "ANTIPHON_CHAOS" in os.environ else hostile.PAYLOADS[::25]
    async with served(tmp_path) as server:
        await hostile.fill(server.ledger, payloads)
        async with opened(chromium, server, "/#/thread/all?seq=1", size=(1280, 3000)) as page:
            for number, payload in enumerate(payloads):
                for seq in range(1, 4):
                    await page.evaluate(f"location.hash = '#/thread/all?seq={3 * number + seq}'")
                    await inspect(page, 3 * number + seq, payload)


async def inspect(page: Page, seq: int, payload: str) -> None:
    inspector = page.get_by_test_id("inspector")
    await inspector.get_by_role("heading", name=f"#{seq}", exact=True).wait_for()
    for form in ("content", "raw", "dialect"):
        await page.get_by_test_id(f"form-{form}").click()
        await inspector.locator(".facts, [role=group], .problem").first.wait_for()
        if form == "content" and payload in PLAIN:
            assert payload in await inspector.inner_text()
        for each in await inspector.get_by_role("button", name="Show").all():
            await each.click()
    assert await page.evaluate(FOREIGN) == []


async def test_payloads_in_threads_searches_approvals_models_and_hosts_are_text(chromium: Browser, tmp_path: Path) -> None:
    """Ids, statuses and patterns of threads; tools, agents, arguments and reasons of approvals; models; hosts and builds."""
    async with served(tmp_path) as server:
        await hostile.fill(server.ledger)
        async with opened(chromium, server, size=(1280, 3000)) as page:
            shown = await read_rows(page, "threads", patience=2)
            assert missing(shown) == []
            await page.get_by_test_id("search").fill("alert")
            await page.keyboard.press("Enter")
            await page.get_by_test_id("hits").locator("mark, a").first.wait_for()
            await page.goto("/#/waiting")
            await page.get_by_test_id("approval").nth(len(hostile.PAYLOADS) - 1).wait_for()
            assert missing(await page.locator("main").inner_text()) == []
            await page.get_by_test_id("approve").first.click()
            await page.get_by_test_id("writes").wait_for()
            await page.keyboard.press("Escape")
            await page.goto("/#/overview")
            await page.get_by_test_id("hosts").wait_for()
            assert missing(await page.locator("main").inner_text()) == []
            assert await page.evaluate(FOREIGN) == []
