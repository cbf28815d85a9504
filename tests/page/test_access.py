"""The page for everybody: names and roles, contrast, keys, narrow screens, reduced motion, and nothing that jumps."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from tests.page.browsing import opened
from tests.server.running import say, served
from tools.npm import package

pytestmark = pytest.mark.slow

PLACES = {
    "/": "[data-testid=thread-row]",
    "/#/thread/analyse-csv?seq=3": "[data-testid=inspector] .facts",
    "/#/thread/analyse-csv?seq=3&view=sequence": "[data-testid=arrow]",
    "/#/thread/analyse-csv?seq=3&view=timeline": "[data-testid=span]",
    "/#/compare/analyse-csv/waits-for-approval": "[data-testid=side-left]",
    "/#/waiting": "[data-testid=approval]",
    "/#/overview": "[data-testid=cluster]",
}
"""Addresses of the main views, each with what is there when it is loaded."""
SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => list.getEntries().forEach((each) => window.shifts.push([each.value, each.sources.map(
    (source) => source.node?.className ?? "")]))).observe({ type: "layout-shift" });
}"""


async def visit(page: Page, place: str) -> None:
    await page.goto(place)
    await page.locator(PLACES[place]).first.wait_for()


async def faults(page: Page, *rules: str) -> list[str]:
    """Return what axe finds, in one line each."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate((package("axe-core") / "package" / "axe.min.js").read_text())
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    found = await page.evaluate("async (options) => (await axe.run(document, options)).violations", options)
    return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]


async def test_every_view_has_names_roles_and_contrast(chromium: Browser, tmp_path: Path, demonstration: Path) -> None:
    shutil.copy(demonstration, tmp_path / "ledger.db")
    async with served(tmp_path) as server:
        for scheme, rules in (("light", ()), ("dark", ("color-contrast",))):
            async with opened(chromium, server, color_scheme=scheme, reduced_motion="reduce") as page:
                for place in PLACES:
                    await visit(page, place)
                    assert await faults(page, *rules) == [], (scheme, place)
                await page.keyboard.press("?")
                await page.get_by_test_id("help").wait_for()
                assert await faults(page, *rules) == [], (scheme, "?")
        async with opened(chromium, server, token=None, allow=["401"]) as page:
            await page.get_by_test_id("sign-in").wait_for()
            assert await faults(page) == []


async def test_a_narrow_screen_has_no_sideways_scrolling(chromium: Browser, tmp_path: Path, demonstration: Path) -> None:
    shutil.copy(demonstration, tmp_path / "ledger.db")
    async with served(tmp_path) as server, opened(chromium, server, size=(390, 844), has_touch=True) as page:
        for place, content in PLACES.items():
            await page.goto(place)
            await page.locator(content).first.wait_for(state="attached")
            wide = await page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
            assert wide <= 390, (place, wide)
            cut = await page.evaluate(
                """() => [...document.querySelectorAll("main button, main a.button, header button")].filter((each) => {
                      const box = each.getBoundingClientRect();
                      const inside = each.closest(".rows, .thread-tools, .acts, .filters, nav, table");
                      return box.width && !inside && (box.right > innerWidth + 1 || box.left < -1);
                    }).map((each) => each.outerHTML.slice(0, 100))"""
            )
            assert cut == [], place


async def test_everything_is_reached_by_keys(chromium: Browser, tmp_path: Path, demonstration: Path) -> None:
    """Open a thread, read, switch views, act and leave, without a mouse."""
    shutil.copy(demonstration, tmp_path / "ledger.db")
    async with served(tmp_path) as server, opened(chromium, server) as page:
        press = page.keyboard.press
        await visit(page, "/")
        await press("?")
        listed = await page.get_by_test_id("help").inner_text()
        assert all(word in listed for word in ("next thread", "open it", "search all messages", "overview"))
        await press("Escape")
        await expect(page.get_by_test_id("help")).to_have_count(0)
        await press("j")
        await press("j")
        chosen = page.locator("[data-testid=thread-row][data-selected=true]")
        await expect(chosen).to_have_count(1)
        wanted = await chosen.get_attribute("data-thread")
        await press("Enter")
        await page.get_by_test_id("thread").wait_for()
        assert f"/thread/{wanted}" in page.url
        await press("g")
        await press("w")
        await page.get_by_test_id("approval").wait_for()
        assert await tabbed_to(page, "approve")
        await press("Enter")
        await page.get_by_test_id("writes").wait_for()
        assert await page.evaluate("!!document.activeElement.closest('dialog')")
        await press("Escape")
        await expect(page.get_by_test_id("writes")).to_have_count(0)
        await expect(page.get_by_test_id("approve")).to_be_focused()
        await press("/")
        await expect(page.get_by_test_id("search")).to_be_focused()


async def test_a_scroll_event_of_a_list_that_is_gone_does_no_harm(chromium: Browser, tmp_path: Path) -> None:
    """A browser sends the event a frame after the scrolling; by then the reader may be on another page."""
    async with served(tmp_path) as server:
        await say(server.ledger, "talk", "hello")
        async with opened(chromium, server, "/#/thread/talk") as page:
            await page.get_by_test_id("message").wait_for()
            gone = await page.locator(".rows").element_handles()
            assert gone
            await page.goto("/#/overview")
            await page.get_by_test_id("states").wait_for()
            for rows in gone:
                assert not await rows.evaluate("each => each.isConnected")
                await rows.evaluate("each => each.dispatchEvent(new Event('scroll'))")


async def tabbed_to(page: Page, name: str) -> bool:
    """Press Tab until a control has the focus; each one on the way must be visible, and have a name."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        focus = page.locator(":focus")
        if not await focus.count():
            continue  # from the last control to the first, by way of the browser's own
        assert await focus.is_visible()
        if await focus.get_attribute("data-testid") == name:
            return True
    return False


async def test_nothing_jumps_while_messages_arrive(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for number in range(30):
            await say(server.ledger, "talk", f"{number} " + "word " * (number % 40))
            await say(server.ledger, f"thread {number}", "hello")
        for place, rows in (
            ("/", "thread-row"),
            ("/#/thread/talk", "message"),
            ("/#/thread/talk?view=timeline", "span"),
            ("/#/overview", "states"),
        ):
            async with opened(chromium, server, place) as page:
                await page.get_by_test_id(rows).first.wait_for()
                await expect(page.get_by_test_id("connection")).to_contain_text("Live")
                await page.wait_for_timeout(500)
                await page.evaluate(SHIFTS)
                for number in range(10):
                    await say(server.ledger, "talk", f"new {number} " + "word " * (7 * number))
                    await say(server.ledger, f"thread {number}", "again")
                    await asyncio.sleep(0.05)
                await page.wait_for_timeout(700)
                assert await page.evaluate("window.shifts") == [], place


async def test_a_reader_in_the_middle_stays_there_while_messages_arrive(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "talk", *(f"message {number} " + "word " * (number % 50) for number in range(120)))
        async with opened(chromium, server, "/#/thread/talk?seq=60") as page:
            row = page.locator("[data-testid=message][data-seq='60']")
            await row.wait_for()
            await page.wait_for_timeout(300)
            before = await row.bounding_box()
            await say(server.ledger, "talk", *("more " * 30 for _ in range(20)))
            await expect(page.get_by_test_id("newer")).to_contain_text("20 new messages")
            assert await row.bounding_box() == before


async def test_a_reader_that_wants_no_motion_gets_none(chromium: Browser, tmp_path: Path, demonstration: Path) -> None:
    shutil.copy(demonstration, tmp_path / "ledger.db")
    async with served(tmp_path) as server, opened(chromium, server, reduced_motion="reduce") as page:
        for place in PLACES:
            await visit(page, place)
            moving = "document.getAnimations().filter((each) => each.effect.getComputedTiming().activeDuration > 1).length"
            assert await page.evaluate(moving) == 0, place
