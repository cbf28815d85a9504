"""Acts on threads that another process runs: the page asks, and the process that has the thread does it.

The other process is a real one: a host, a chat at its prompt, or a program with its own tools. Its model counts its requests
in a file, so a test sees who has asked. The server's own model does not count.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from tests.cli.running import PLAIN
from tests.forked import Forked
from tests.page.browsing import confirmed, opened
from tests.server.running import Served, served

from antiphon import OptionCallPayload

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@contextmanager
def other(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command with the model that counts and can be held, until the end of the block."""
    environment = {**PLAIN, "ANTIPHON_TEST_HELD": str(folder), "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-m", "tests.patterns.held_command", *command, "--model", "scripted"]
    with Forked(
        [*arguments, "--ledger", str(folder / "ledger.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def requests(folder: Path) -> int:
    """Return how often the model of the other process was asked."""
    path = folder / "requests"
    return len(path.read_text().split()) if path.exists() else 0


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not true():  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.02)


async def only_thread(server: Served) -> str:
    """Return the thread of the other process, once it is there and has an owner."""
    async with asyncio.timeout(40):
        while True:
            found = (await server.client.get("/api/threads")).json()["threads"]
            if found and found[0]["owner"]:
                return str(found[0]["thread_id"])
            await asyncio.sleep(0.05)


async def turn_of(server: Served, thread_id: str) -> tuple[str, int]:
    found = (await server.client.get(f"/api/threads/{thread_id}/status")).json()
    return found["status"], found["turn"]


async def calls(server: Served, thread_id: str) -> list[str]:
    found = [record.message.payload async for record in server.ledger.read(thread_id)]
    return [each.option_name for each in found if isinstance(each, OptionCallPayload)]


async def has_status(page: Page, wanted: str) -> None:
    await expect(page.locator(".thread-head .status")).to_have_text(wanted, timeout=40_000)


async def test_a_thread_of_a_host_is_paused_resumed_and_terminated(chromium: Browser, tmp_path: Path) -> None:
    """A command was killed; a host has its thread, and each view says so. Only the host asks the model."""
    hold = tmp_path / "hold"
    hold.touch()
    async with served(tmp_path) as server:
        with other(tmp_path, "run", "What is 17 * 23?"):
            await until(lambda: requests(tmp_path) == 1)
            thread_id = await only_thread(server)
            killed = (await server.client.get(f"/api/threads/{thread_id}")).json()["owner"]
        with other(tmp_path, "host"):
            await until(lambda: requests(tmp_path) == 2)
            async with opened(chromium, server, f"/#/thread/{thread_id}") as page:
                owner = (await server.client.get(f"/api/threads/{thread_id}")).json()["owner"]
                await expect(page.locator(".facts-line")).to_contain_text(f"on {owner}")
                for view, row in (("sequence", "arrow"), ("timeline", "span"), ("conversation", "message")):
                    await page.get_by_test_id(f"view-{view}").click()
                    marked = page.locator(f"[data-testid={row}][data-mark=taken_over]").first
                    await expect(marked).to_contain_text(f"taken over from {killed} by {owner}")
                await page.get_by_test_id("act-pause").click()
                await confirmed(page, "pause", "PAUSE_THREAD")
                await has_status(page, "paused")
                hold.unlink()
                await page.get_by_test_id("toast").get_by_role("button", name="Resume").click()
                hold.touch()
                before = requests(tmp_path)
                await confirmed(page, "resume", "RESUME_THREAD")
                await until(lambda: requests(tmp_path) > before)
                assert (await server.client.get(f"/api/threads/{thread_id}")).json()["owner"] == owner
                await page.get_by_test_id("act-terminate").click()
                await page.get_by_label("Reason").fill("enough")
                await confirmed(page, "terminate", "TERMINATE_THREAD with the reason “enough”")
                await has_status(page, "terminated")
                asked = requests(tmp_path)
                hold.unlink()
                await expect(page.get_by_test_id("act-continue")).to_be_visible()
            assert requests(tmp_path) == asked  # the call that ran was cancelled, and none came after it
        names = await calls(server, thread_id)
        assert {"PAUSE_THREAD", "RESUME_THREAD", "TERMINATE_THREAD"} <= set(names)


async def test_a_thread_at_the_prompt_of_a_chat_is_continued_there(chromium: Browser, tmp_path: Path) -> None:
    """The chat has the thread: the question goes to it, and its model answers, while the page shows it."""
    async with served(tmp_path) as server:
        with other(tmp_path, "chat") as chat:
            assert chat.stdin is not None
            chat.stdin.write("How hot is green tea?\n")
            chat.stdin.flush()
            thread_id = await only_thread(server)
            async with opened(chromium, server, f"/#/thread/{thread_id}") as page:
                await has_status(page, "completed")
                before = requests(tmp_path)
                await page.get_by_test_id("act-continue").click()
                await page.get_by_label("Question").fill("And coffee?")
                await confirmed(page, "continue", "START_THREAD")
                await until(lambda: requests(tmp_path) > before)
                await page.keyboard.press("End")
                await expect(page.get_by_test_id("rows")).to_contain_text("And coffee?", timeout=40_000)
                async with asyncio.timeout(40):
                    while await turn_of(server, thread_id) != ("completed", 2):  # noqa: ASYNC110 (over HTTP)
                        await asyncio.sleep(0.05)
                await has_status(page, "completed")


@contextmanager
def program(name: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.page.programs", name, f"sqlite:///{folder / 'ledger.db'}", *arguments]
    with Forked(command, stdout=subprocess.PIPE, text=True, env={**PLAIN, "PYTHONPATH": str(ROOT)}) as process:
        try:
            yield process
        finally:
            process.kill()


async def printed(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(40):
        return (await asyncio.to_thread(process.stdout.read)).strip()


@pytest.mark.parametrize(("button", "outcome"), [("approve", "paid 5 to the shop"), ("deny", "too dear")])
async def test_a_program_that_waits_for_an_approval_gets_it(
    chromium: Browser, tmp_path: Path, button: str, outcome: str
) -> None:
    """The program runs all the time, and has the thread: it continues as soon as the page has answered."""
    async with served(tmp_path) as server:
        principal = (await server.client.get("/api/session")).json()["principal"]
        with program("clerk", tmp_path, principal) as running:
            async with opened(chromium, server, "/#/waiting") as page:
                await expect(page.get_by_test_id("approval")).to_contain_text('"to": "the shop"', timeout=40_000)
                assert (await server.client.get("/api/threads/order")).json()["owner"]
                await page.get_by_test_id(button).click()
                await page.get_by_label("Reason").fill("too dear")
                await confirmed(page, button, f"{'approved' if button == 'approve' else 'denied'} by {principal}")
                assert outcome in await printed(running)
                await expect(page.get_by_test_id("no-approvals")).to_be_visible()


@pytest.mark.parametrize(
    ("outcome", "printed_line"), [("result", "a card 1 True"), ("error", ""), ("retry", "the second try 2 True")]
)
async def test_a_program_with_a_parked_call_gets_its_outcome(
    chromium: Browser, tmp_path: Path, outcome: str, printed_line: str
) -> None:
    """The program keeps the thread. With `retry` it makes the call again, and only then."""
    async with served(tmp_path) as server:
        with program("till", tmp_path) as running:
            async with opened(chromium, server, "/#/waiting") as page:
                await expect(page.get_by_test_id("parked")).to_contain_text("the line went dead", timeout=40_000)
                await page.get_by_test_id(f"settle-{outcome}").click()
                if outcome == "retry":
                    await confirmed(page, "settle", "that the call did not run. Then it runs again.")
                else:
                    await page.locator("textarea[name=said]").fill("a card")
                    await confirmed(page, "settle", f"the {outcome} of the call, a card")
                assert await printed(running) == printed_line
                await expect(page.get_by_test_id("no-parked")).to_be_visible()
