"""The cluster on the page: hosts of other processes, one of which is killed, what is stuck and why, and limits."""

import os
import re
import signal
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from tests.page.browsing import opened
from tests.page.test_elsewhere import only_thread, other, requests, until
from tests.server.running import served

from antiphon.ledger import Host, Ledger, Limit
from antiphon.messages import current_port
from antiphon.service import add_schedule
from antiphon.service._cluster import STUCK_AFTER

pytestmark = pytest.mark.slow


TAKEN = re.compile("[12]")
"""The thread that ran; and that of its schedule, if the host had not released it yet."""


async def figure(page: Page, name: str, value: str | re.Pattern[str], note: str) -> None:
    """Wait until a figure of the cluster has a value, and a note below it."""
    shown = page.get_by_test_id("cluster").locator(".figure").filter(has_text=name)
    await expect(shown.locator("b")).to_have_text(value, timeout=30_000)
    await expect(shown.locator("small")).to_contain_text(note, timeout=30_000)


async def test_a_host_that_is_killed_is_seen_with_the_threads_that_were_taken_over(chromium: Browser, tmp_path: Path) -> None:
    """Two hosts are alive; the one with a thread is killed. The other has it then, and the page says so without a reload."""
    (tmp_path / "hold").touch()
    async with served(tmp_path) as server, opened(chromium, server, "/#/overview") as page:
        await expect(page.get_by_test_id("no-hosts")).to_contain_text("antiphon up --hosts 3")
        alive = page.get_by_test_id("hosts").locator("tr[data-alive=true]")
        with other(tmp_path, "host"), other(tmp_path, "host"):
            await expect(alive).to_have_count(2, timeout=30_000)
            await figure(page, "Taken over", "0", "from hosts that died")
            at = current_port().now() + timedelta(seconds=0.5)
            await add_schedule(server.ledger, "report", "What is 17 * 23?", at=at)
            await until(lambda: requests(tmp_path) == 1)
            thread_id = await only_thread(server)
            killed = (await server.client.get(f"/api/threads/{thread_id}")).json()["owner"]
            os.kill(int(killed.split("-")[-2]), signal.SIGKILL)
            await expect(alive).to_have_count(1, timeout=30_000)
            await expect(alive).not_to_contain_text(killed)
            await figure(page, "Taken over", TAKEN, "the last ")
            await figure(page, "Threads in hand", TAKEN, "of 1 living host")


async def test_stuck_threads_are_listed_with_the_reason_and_limits_with_their_use(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await _leave_stuck(server.ledger)
        await server.ledger.limits.set(Limit("*", cost_per_day=Decimal(20)))
        await server.ledger.limits.set(Limit("openai:gpt-5", at_once=8, per_minute=500))
        async with opened(chromium, server, "/#/overview") as page:
            await figure(page, "Threads due", "1", "the oldest for 5 min")
            await figure(page, "Threads stuck", "1", f"due for more than {STUCK_AFTER:.0f} s")
            await figure(page, "Event stream", "0 s", "behind the last commit")
            stuck = page.get_by_test_id("stuck").get_by_role("listitem")
            await expect(stuck).to_contain_text("no living host has the kind 'other': start one that has it")
            limits = page.get_by_test_id("limits").locator("tbody tr")
            await expect(limits).to_have_count(2)
            await expect(limits.nth(0)).to_contain_text("all models")
            await expect(limits.nth(0)).to_contain_text("$0 of $20")
            await expect(limits.nth(1)).to_contain_text("0 of 500")
            await stuck.get_by_role("link").click()
            await expect(page).to_have_url(f"{server.url}/#/thread/homeless")


async def _leave_stuck(ledger: Ledger) -> None:
    """Leave a thread that has been due for five minutes, of a kind that no host has."""
    host = Host("gone", "1", ("other",), 600.0, "gone/1")
    await ledger.beat(host)
    epoch = await ledger.claim("homeless", by=host, kind="other")
    await ledger.release("homeless", epoch=epoch, wake_at=current_port().now() - timedelta(minutes=5))
    await ledger.leave(host)
