"""What the views show: filters, lanes, selection, other formats, hidden characters, keys, links; and pictures for the docs.

`ANTIPHON_PICTURES=1 pytest tests/page/test_views.py -k picture` writes the pictures of docs/page.md anew.
"""

import asyncio
import os
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, expect
from tests.page.browsing import opened
from tests.server.running import Served, say, served
from tools.demo import fill

from antiphon import MediaPart, Message, MessageBuilder, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.ledger import MasterKey
from antiphon.service import make_token

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).parent.parent.parent / "docs" / "pictures"
_DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def _lookup(server: Served, thread_id: str = "t") -> None:
    """Append a question, a call in the talk lane with an effect in it, and a failed call."""
    call = OptionCallPayload(invocation_id="i", option_name="search", arguments={"query": "sky"})
    effect = OptionCallPayload(invocation_id="e", option_name="fetch", arguments={})
    broken = OptionCallPayload(invocation_id="b", option_name="write", arguments={})
    failed = OptionResultPayload(
        invocation_id="b", option_name="write", is_error=True, error_type="FULL", error_message="no room", retryable=True
    )
    found = OptionResultPayload(invocation_id="i", option_name="search", result="scattering")
    await server.ledger.append(
        thread_id,
        [
            MessageBuilder(policy="user").add_text("Look up why the sky is blue.").to_message(),
            Message(policy="planner", payload=call),
            Message(policy="runtime", lane="effect", payload=effect, parent_id="i"),
            Message(policy="runtime", lane="effect", payload=OptionResultPayload(invocation_id="e", option_name="fetch")),
            Message(policy="search", payload=found),
            Message(policy="planner", payload=broken),
            Message(policy="write", payload=failed),
        ],
    )


async def test_a_code_in_the_fragment_signs_in_and_leaves_the_address(chromium: Browser, tmp_path: Path) -> None:
    """`run --open` makes such a link. The code works once, and is in no history."""
    async with served(tmp_path) as server:
        await say(server.ledger, "a thread/1", "hello")
        code = (await server.client.post("/api/codes", json={})).json()["code"]
        async with opened(chromium, server, f"/#code={code}&thread=a%20thread%2F1", token=None) as page:
            await expect(page.get_by_test_id("message")).to_contain_text("hello")
            assert page.url.endswith("/#/thread/a%20thread%2F1")
            looked = "['approvals', 'parked'].every(each => names().some(name => name.endsWith(`/api/${each}`)))"
            names = "const names = () => performance.getEntriesByType('resource').map(each => each.name)"
            await page.wait_for_function(f"() => {{ {names}; return {looked}; }}")  # else it may be answered after the end
            await page.get_by_test_id("sign-out").click()
            await expect(page.get_by_test_id("sign-in")).to_be_visible()
        async with opened(chromium, server, f"/#code={code}", token=None, allow=["401"]) as page:
            await expect(page.get_by_role("alert")).to_contain_text("was used already")


async def test_a_token_signs_in_and_a_wrong_one_does_not(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server, opened(chromium, server, token=None, allow=["401"]) as page:
        await page.get_by_label("Token").fill("aph_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("valid token")
        await page.get_by_label("Token").fill(server.token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_test_id("empty-ledger")).to_be_visible()
        assert "aph_" not in page.url


async def test_a_token_that_may_only_read_sees_no_acts(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "t", "hello")
        made = await make_token(server.ledger, "reader", ["read"])
        async with opened(chromium, server, "/#/thread/t?seq=1", token=made.text) as page:
            await expect(page.get_by_test_id("message")).to_contain_text("hello")
            await expect(page.get_by_test_id("act-export")).to_be_visible()
            await expect(page.get_by_test_id("inspector")).to_contain_text("hello")
            await expect(page.get_by_test_id("fork-here")).to_have_count(0)
            for act in ("continue", "pause", "resume", "fork", "terminate", "delete"):
                await expect(page.get_by_test_id(f"act-{act}")).to_have_count(0)


async def test_threads_are_filtered_searched_and_opened_by_keys(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for number in range(3):
            await say(server.ledger, f"t{number}", f"question {number} about whales")
        await server.ledger.append("done", [], status="completed", pattern="team")
        async with opened(chromium, server) as page:
            rows = page.get_by_test_id("thread-row")
            await expect(rows).to_have_count(4)
            await page.get_by_test_id("filter-status").select_option("completed")
            await expect(rows).to_have_count(1)
            await page.get_by_test_id("no-filters").click()
            await expect(rows).to_have_count(4)
            await page.keyboard.press("j")
            await page.keyboard.press("j")
            chosen = await page.locator("[data-testid=thread-row][data-selected=true]").get_attribute("data-thread")
            await page.keyboard.press("Enter")
            await expect(page.get_by_test_id("thread")).to_be_visible()
            assert page.url.endswith(f"/thread/{chosen}")
            await page.keyboard.press("/")
            await expect(page.get_by_test_id("search")).to_be_focused()
            await page.get_by_test_id("search").fill("whales 2")
            await page.keyboard.press("Enter")
            await expect(page.get_by_test_id("hits").get_by_role("listitem")).to_have_count(1)
            await page.get_by_test_id("hits").get_by_role("link").click()
            await expect(page.locator("[data-testid=message][data-selected=true]")).to_contain_text("question 2")


async def test_a_moved_thread_and_an_unsearchable_thread_are_marked(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moved thread continues in the other ledger: nothing here offers to write to it."""
    monkeypatch.setenv("ANTIPHON_KEY", MasterKey.generate())
    async with served(tmp_path) as server:
        await say(server.ledger, "gone", "a secret word")
        await server.ledger.append("gone", [], status="running")
        await say(server.ledger, "here", "another word")
        await server.ledger.move("gone", to="sqlite:////srv/other.db")
        listed = {each["thread_id"]: each for each in (await server.client.get("/api/threads")).json()["threads"]}
        assert {name: each["moved_to"] for name, each in listed.items()} == {"gone": "sqlite:////srv/other.db", "here": None}
        async with opened(chromium, server) as page:
            await expect(page.locator("[data-thread=gone] .status")).to_have_text("moved")
            await expect(page.locator("[data-thread=here] .status")).not_to_have_text("moved")
            await page.get_by_test_id("search").fill("word")
            await page.keyboard.press("Enter")
            await expect(page.get_by_test_id("unsearched")).to_contain_text("Not searched, because encrypted: ")
            await page.goto("/#/thread/gone")
            await expect(page.get_by_test_id("moved")).to_contain_text("sqlite:////srv/other.db")
            await expect(page.get_by_test_id("act-fork")).to_be_visible()
            for act in ("continue", "pause", "resume", "terminate"):
                await expect(page.get_by_test_id(f"act-{act}")).to_have_count(0)


async def test_three_views_have_one_selection_and_lanes_can_be_hidden(chromium: Browser, tmp_path: Path) -> None:
    """A call and its result lead to each other; a link to a message of a hidden lane shows the lane."""
    async with served(tmp_path) as server:
        await _lookup(server)
        async with opened(chromium, server, "/#/thread/t") as page:
            await expect(page.get_by_test_id("message")).to_have_count(5)
            await page.get_by_test_id("lane-effect").click()
            await expect(page.get_by_test_id("message")).to_have_count(7)
            await page.get_by_test_id("lane-effect").click()
            await page.locator("[data-testid=message][data-seq='2']").click()
            await expect(page.locator("[data-testid=message][data-seq='5']")).to_have_attribute("data-pair", "true")
            await page.keyboard.press("p")
            await expect(page.locator("[data-testid=message][data-seq='5']")).to_have_attribute("data-selected", "true")
            assert page.url.endswith("?seq=5")

            await page.keyboard.press("2")
            await expect(page.locator("[data-testid=arrow][data-seq='5']")).to_have_attribute("data-selected", "true")
            await expect(page.get_by_label("Participants").locator("> div")).to_have_text(
                ["user", "planner", "search", "write"]
            )
            await page.keyboard.press("e")
            await expect(page.locator("[data-testid=arrow][data-seq='7']")).to_have_attribute("data-selected", "true")
            await page.keyboard.press("1")
            await expect(page.locator("[data-testid=message][data-seq='7']")).to_have_attribute("data-selected", "true")
            await page.evaluate("""
                for (const key of ["2", "k"]) document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }))
            """)  # before the page is drawn anew
            await expect(page.locator("[data-testid=arrow][data-seq='6']")).to_have_attribute("data-selected", "true")
            await page.keyboard.press("j")
            await page.keyboard.press("3")
            await expect(page.locator("[data-testid=span][data-seq='7']")).to_have_attribute("data-selected", "true")
            box = await page.get_by_test_id("timeline-canvas").bounding_box()
            assert box is not None
            assert box["height"] > 60
        async with opened(chromium, server, "/#/thread/t?seq=3") as page:
            await expect(page.locator("[data-testid=message][data-seq='3']")).to_have_attribute("data-selected", "true")
            await expect(page.get_by_test_id("lane-effect")).to_have_attribute("aria-pressed", "true")


async def test_a_message_is_shown_raw_and_in_another_format_with_its_losses(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await _lookup(server)
        async with opened(chromium, server, "/#/thread/t?seq=7") as page:
            await page.get_by_test_id("form-raw").click()
            await expect(page.get_by_test_id("inspector")).to_contain_text('"error_type": "FULL"')
            await page.get_by_test_id("form-dialect").click()
            await page.get_by_test_id("dialect").select_option("openai-chat")
            await expect(page.get_by_test_id("losses")).to_contain_text("lost in this format")
            await expect(page.get_by_test_id("inspector")).to_contain_text('"role": "tool"')


async def test_hidden_characters_are_named_and_media_are_shown_on_demand(chromium: Browser, tmp_path: Path) -> None:
    """A picture from elsewhere is never fetched; one in the message is shown when asked for."""
    async with served(tmp_path) as server:
        parts = (
            TextPart(text="pay \u202e05\u202c to\u200b Ada"),
            MediaPart(modality="image", url=_DOT, mime="image/png"),
            MediaPart(modality="image", url="https://elsewhere.example/x.png"),
        )
        await server.ledger.append("t", [Message(policy="mallory", payload=PartsPayload(parts=parts))])
        async with opened(chromium, server, "/#/thread/t") as page:
            row = page.get_by_test_id("message")
            await expect(row.locator(".prose .hidden-char")).to_have_text(["RLO", "PDF", "ZWSP"])
            await expect(row.locator("img")).to_have_count(0)
            await row.get_by_role("button", name="Show the image").click()
            await expect(row.locator("img")).to_have_count(1)
            assert await row.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
            await expect(row).to_contain_text("https://elsewhere.example/x.png")


async def test_keys_are_listed_and_the_overview_links_to_threads(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await server.ledger.append("t", [], status="completed", pattern="team")
        async with opened(chromium, server, "/#/overview") as page:
            await expect(page.get_by_test_id("states")).to_contain_text("completed")
            await page.keyboard.press("?")
            await expect(page.get_by_test_id("help")).to_contain_text("what waits for a person")
            await page.keyboard.press("Escape")
            await expect(page.get_by_test_id("help")).to_have_count(0)
            await page.keyboard.press("g")
            await page.keyboard.press("w")
            await expect(page.get_by_test_id("waiting")).to_be_visible()
            await page.goto("/#/overview")
            await page.get_by_test_id("states").get_by_role("link").click()
            await expect(page.get_by_test_id("thread-row")).to_have_count(1)


async def test_a_thread_is_run_again_on_this_code_and_what_is_gone_says_so(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await server.client.post("/api/threads", json={"question": "Why?", "thread_id": "q"})
        async with asyncio.timeout(40):
            while (await server.client.get("/api/threads/q")).json()["status"] != "completed":  # noqa: ASYNC110 (over HTTP)
                await asyncio.sleep(0.1)
        async with opened(chromium, server, "/#/thread/q", allow=["404"]) as page:
            await page.get_by_test_id("act-rerun").click()
            await expect(page.get_by_test_id("writes")).to_contain_text("Nothing is written")
            await page.get_by_test_id("confirm").click()
            await expect(page.get_by_test_id("toast")).to_contain_text("The same on the installed code.", timeout=40_000)
            await page.goto("/#/thread/gone")
            await expect(page.get_by_test_id("no-thread")).to_be_visible()
            await page.goto("/#/nowhere/%")
            await expect(page.get_by_test_id("nowhere")).to_be_visible()


async def test_a_stream_that_is_cut_goes_on_without_a_gap(chromium: Browser, tmp_path: Path) -> None:
    """While the browser is offline, messages are written; when it is back, they are there, once each."""
    async with served(tmp_path) as server:
        await say(server.ledger, "t", "before")
        async with opened(chromium, server, "/#/thread/t", allow=["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK"]) as page:
            await expect(page.get_by_test_id("connection")).to_have_text("Live")
            await page.context.set_offline(True)
            await say(server.ledger, "t", "meanwhile 1", "meanwhile 2")
            await page.context.set_offline(False)
            await say(server.ledger, "t", "after")
            await expect(page.get_by_test_id("message").last).to_contain_text("after", timeout=30_000)
            texts = await page.get_by_test_id("message").locator(".prose").all_inner_texts()
            assert texts == ["before", "meanwhile 1", "meanwhile 2", "after"]


SHOTS = {
    "threads": "/#/",
    "conversation": "/#/thread/{mailbox}?seq={seq}",
    "sequence": "/#/thread/{mailbox}?view=sequence&seq={seq}",
    "timeline": "/#/thread/{mailbox}?view=timeline&seq={seq}",
    "waiting": "/#/waiting",
    "overview": "/#/overview",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_docs_have_a_picture_of_each_view(theme: str) -> None:
    for name in SHOTS:
        assert (PICTURES / f"page-{name}-{theme}.png").is_file()
        assert f"pictures/page-{name}-{theme}.png" in (PICTURES.parent / "page.md").read_text()


@pytest.mark.skipif("ANTIPHON_PICTURES" not in os.environ, reason="writes the pictures of the docs: ANTIPHON_PICTURES=1")
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_pictures_of_the_views(chromium: Browser, tmp_path: Path, theme: Literal["light", "dark"]) -> None:
    """Of the ledger that `make serve` fills."""
    async with served(tmp_path) as server:
        await fill(server.ledger, tmp_path)
        threads = (await server.client.get("/api/threads", params={"pattern": "peers"})).json()["threads"]
        steps = (await server.client.get(f"/api/threads/{threads[0]['thread_id']}/sequence")).json()["window"]["steps"]
        seq = next(each["seq"] for each in steps if each["kind"] == "called" and each["lane"] == "talk" and each["pair"])
        async with opened(chromium, server, color_scheme=theme, size=(1200, 720), reduced_motion="reduce") as page:
            for name, path in SHOTS.items():
                await page.goto(path.format(mailbox=threads[0]["thread_id"], seq=seq))
                await asyncio.sleep(2)
                await page.mouse.move(1190, 710)
                await page.screenshot(path=PICTURES / f"page-{name}-{theme}.png")
