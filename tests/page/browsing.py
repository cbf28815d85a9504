"""A real browser at a real server: windows that note every fault of the page, and fail the test that has any.

A fault is an error or a warning in the console, an exception that nobody caught, a dialog, a report of the content security
policy, and a request to another origin. A test that means to cause one says so: `opened(..., allow=["401"])`.
"""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Playwright, Request, expect
from tests.server.running import Served
from tools import browser

expect.set_options(timeout=15_000)  # the machine of a test may be busy

_NOTE_REPORTS = """
document.addEventListener("securitypolicyviolation", (event) => {
  antiphonReport(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`);
});
"""


async def launch(playwright: Playwright, found: browser.Browser) -> Browser:
    return await playwright.chromium.launch(
        executable_path=found.path, args=list(browser.FLAGS), env={**os.environ, **found.environment}, timeout=60_000
    )


class Faults:
    """What has gone wrong in the windows of a context."""

    def __init__(self, origin: str, found: list[str]) -> None:
        self.found = found
        self._origin = origin

    async def watch(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda error: self.found.append(f"exception: {error.error}"))
        context.on("request", self._request)
        context.on("dialog", self._dialog)
        await context.expose_binding("antiphonReport", self._report)
        await context.add_init_script(_NOTE_REPORTS)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if f"{parts.scheme}://{parts.netloc}" != self._origin and parts.scheme not in ("data", "blob"):
            self.found.append(f"outside request: {request.method} {request.url}")

    async def _dialog(self, dialog: Dialog) -> None:
        self.found.append(f"dialog: {dialog.type} {dialog.message}")
        await dialog.dismiss()

    def _report(self, _: Any, text: str) -> None:
        self.found.append(f"policy: {text}")

    def other_than(self, allowed: Sequence[str]) -> list[str]:
        return [each for each in self.found if not any(word in each for word in allowed)]


@asynccontextmanager
async def opened(
    chromium: Browser,
    server: Served,
    path: str = "/",
    *,
    token: str | None = "",
    allow: Sequence[str] = (),
    size: tuple[int, int] = (1280, 800),
    noted: list[str] | None = None,
    **options: Any,
) -> AsyncGenerator[Page]:
    """Open a page of the server in a new window, signed in with the token (None: not at all); no fault may come of it.

    `noted` gets the faults as they come.
    """
    context = await chromium.new_context(
        base_url=server.url, viewport={"width": size[0], "height": size[1]}, locale="en-GB", timezone_id="UTC", **options
    )
    faults = Faults(server.url, [] if noted is None else noted)
    try:
        await faults.watch(context)
        if token is not None:
            await sign_in(context, server, token or server.token)
        page = await context.new_page()
        page.set_default_timeout(15_000)
        await page.goto(path)
        yield page
    finally:
        await context.close()
    found = faults.other_than(allow)
    assert not found, "\n".join(found)


async def sign_in(context: BrowserContext, server: Served, token: str) -> None:
    """Trade a token for the cookie of a session, as the page does."""
    answer = await context.request.post("/api/session", data={"token": token}, headers={"origin": server.url})
    assert answer.ok, await answer.text()


_READ_ROWS = """async (box, patience) => {
  const seen = new Map();
  const settle = async () => {
    for (let tries = 0; tries < 200; tries++) {
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 5)));
      if (!box.querySelector("[aria-busy=true]")) return;
    }
  };
  let before = -1;
  let since = 0;
  box.scrollTop = 0;
  for (;;) {
    await settle();
    for (const row of box.querySelectorAll("[data-key]")) seen.set(Number(row.dataset.key), row.innerText);
    if (box.scrollTop !== before) since = performance.now();
    else if (performance.now() - since > patience) break;
    before = box.scrollTop;
    box.scrollTop += box.clientHeight * 0.9;
  }
  return [...seen].sort((a, b) => a[0] - b[0]);
}"""


async def rows_of(page: Page, name: str = "rows", *, patience: float = 0.2) -> list[tuple[int, str]]:
    """Scroll through a list from the top, and return the key and the text of every row that was shown.

    `patience` is the seconds to wait at the end for a list that may grow.
    """
    box = page.get_by_test_id(name)
    await box.locator("[data-key]").first.wait_for()
    found: list[list[Any]] = await box.evaluate(_READ_ROWS, 1000 * patience)
    return [(key, text) for key, text in found]


async def read_rows(page: Page, name: str = "rows", *, patience: float = 0.2) -> str:
    """Scroll through a list, and return the text of all rows, with single spaces."""
    return "\n".join(" ".join(text.split()) for _, text in await rows_of(page, name, patience=patience))


async def show_all_lanes(page: Page) -> None:
    hidden = page.get_by_role("group", name="Lanes").get_by_role("button", pressed=False)
    while await hidden.count():
        await hidden.first.click()


async def confirmed(page: Page, act: str, wording: str) -> None:
    """Check what the dialog of an act says it will write, and confirm it."""
    dialog = page.get_by_test_id(f"act-{act}").and_(page.get_by_role("dialog"))
    await expect(dialog.get_by_test_id("writes")).to_contain_text(wording)
    await dialog.get_by_test_id("confirm").click()
    await expect(dialog).to_have_count(0)
