"""The page does the same work for a long thread as for a short one: rows in the document, requests, and bytes."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Request, expect
from tests.page.browsing import opened
from tests.server.running import served

from antiphon import MessageBuilder
from antiphon.ledger import Ledger

pytestmark = pytest.mark.slow

MESSAGES, THREADS = 3_000, 300
MOST_ROWS = 60
"""Rows that exist in the document at once; a window shows a dozen."""


def requests_of(page: Page) -> list[str]:
    """Return a list to which the requests of a page for data are added from now on."""
    found: list[str] = []

    def note(request: Request) -> None:
        if "/api/" in request.url:
            found.append(request.url.partition("/api/")[2])

    page.on("request", note)
    return found


async def fill(ledger: Ledger) -> None:
    def said(text: str) -> MessageBuilder:
        return MessageBuilder(policy="ada").add_text(text)

    await ledger.append("long", [said(f"message {number}.").to_message() for number in range(1, MESSAGES + 1)])
    for number in range(THREADS):
        await ledger.append(f"thread {number}", [said("hello").to_message()])


async def rows(page: Page) -> int:
    return await page.locator("[data-key]").count()


async def test_a_long_thread_costs_few_rows_and_few_requests(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await fill(server.ledger)
        async with opened(chromium, server, "/#/waiting") as page:
            await page.get_by_test_id("no-approvals").wait_for()
            asked = requests_of(page)
            await page.goto("/#/thread/long")
            await page.locator(f"[data-testid=message][data-seq='{MESSAGES}']").wait_for()
            await page.wait_for_timeout(500)
            windows = [each for each in asked if "/messages" in each or "/sequence" in each]
            assert len(windows) <= 8, windows
            assert len([each for each in asked if "/index" in each]) <= MESSAGES // 500 + 1, asked
            assert len(asked) <= 25, asked
            assert await rows(page) <= MOST_ROWS
            asked.clear()
            await page.get_by_test_id("go-to").fill(str(MESSAGES // 2))
            await page.keyboard.press("Enter")
            await page.locator(f"[data-testid=message][data-seq='{MESSAGES // 2}']").wait_for()
            assert len(asked) <= 6, asked
            assert await rows(page) <= MOST_ROWS
            for view in ("sequence", "timeline"):
                await page.get_by_test_id(f"view-{view}").click()
                await page.get_by_test_id("rows").locator(f"[data-key='{MESSAGES // 2}']").wait_for()
                assert await rows(page) <= MOST_ROWS, view


async def test_a_long_list_of_threads_costs_few_rows_and_few_requests(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await fill(server.ledger)
        async with opened(chromium, server, "/#/waiting") as page:
            await page.get_by_test_id("no-approvals").wait_for()
            asked = requests_of(page)
            await page.goto("/#/")
            await page.get_by_test_id("thread-row").first.wait_for()
            await page.wait_for_timeout(300)
            assert len([each for each in asked if each.startswith("threads")]) <= 2, asked
            assert len(asked) <= 8, asked
            assert await rows(page) <= MOST_ROWS
            asked.clear()
            for number in range(20):
                await server.ledger.append(f"thread {number}", [MessageBuilder(policy="ada").add_text("again").to_message()])
            await expect(page.locator("[data-thread='thread 19']")).to_contain_text("2")
            assert len([each for each in asked if each.startswith("threads")]) <= 8, asked
            assert await rows(page) <= MOST_ROWS
