"""One browser for all tests of the page in a process, and one event loop, which the browser has from start to end."""

import asyncio
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright
from tests.page.browsing import launch
from tools.browser import browser
from tools.npm import CannotFetchError

_SECONDS = 600 if "ANTIPHON_CHAOS" in os.environ else 90
"""In which an async test of the page must end."""


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="session")
def chromium(runner: asyncio.Runner) -> Iterator[Browser]:
    try:
        found = browser()
    except CannotFetchError as exc:
        line = f"the tests of the page need a browser: {exc}"
        if os.environ.get("CI"):
            pytest.fail(line, pytrace=False)
        pytest.skip(line)
    playwright = runner.run(async_playwright().start())
    started = runner.run(launch(playwright, found))
    yield started
    runner.run(started.close())
    runner.run(playwright.stop())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that has a browser in the loop of the browser."""
    if "chromium" not in pyfuncitem.funcargs or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    async def in_time() -> None:
        async with asyncio.timeout(_SECONDS):
            await pyfuncitem.obj(**arguments)

    pyfuncitem.funcargs["runner"].run(in_time())
    return True
