"""Acts of a person on the page, each done in a browser: what the dialog announces is what the ledger gets."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.forked import Forked
from tests.page.browsing import confirmed, opened
from tests.runtime.actors import Ping, Pong
from tests.server.running import Served, say, served

from antiphon import OptionCallPayload, OptionResultPayload, service
from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import ParkedError, UnknownOutcomeError
from antiphon.ledger import Ledger
from antiphon.runtime import Actor, Context, System, handles

pytestmark = pytest.mark.slow


async def _status(server: Served, thread_id: str, wanted: str) -> Any:
    async with asyncio.timeout(40):
        while True:
            found = (await server.client.get(f"/api/threads/{thread_id}/status")).json()
            if found.get("status") == wanted:
                return found
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _answered(folder: Path) -> AsyncGenerator[Served]:
    """A server with a thread `q` of six phases that has ended."""
    async with served(folder) as server:
        await server.client.post("/api/threads", json={"question": "Why is the sky blue?", "thread_id": "q"})
        await _status(server, "q", "completed")
        yield server


async def _calls(ledger: Ledger, thread_id: str) -> list[str]:
    found = [record.message.payload async for record in ledger.read(thread_id)]
    return [each.option_name for each in found if isinstance(each, OptionCallPayload)]


async def test_an_empty_ledger_teaches_and_a_question_is_answered_live(chromium: Browser, tmp_path: Path) -> None:
    """Nothing is reloaded: the thread appears, streams and ends while the page is open."""
    async with served(tmp_path) as server, opened(chromium, server) as page:
        await expect(page.get_by_test_id("empty-ledger")).to_contain_text('antiphon run "Why is the sky blue?"')
        await page.get_by_test_id("act-new-empty").click()
        await page.get_by_label("Question").fill("Why is the sky blue?")
        await confirmed(page, "ask", "START_THREAD")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Why is the sky blue?")
        await expect(page.locator(".thread-head .status")).to_have_text("completed", timeout=40_000)
        await expect(page.get_by_test_id("message").last).to_be_visible()
        assert "Not in the sources." in await page.get_by_test_id("rows").inner_text()


async def test_a_thread_is_continued(chromium: Browser, tmp_path: Path) -> None:
    async with _answered(tmp_path) as server, opened(chromium, server, "/#/thread/q") as page:
        await page.get_by_test_id("act-continue").click()
        await page.get_by_label("Question").fill("And at night?")
        await confirmed(page, "continue", "START_THREAD")
        await expect(page.get_by_test_id("toast")).to_contain_text("Asked.")
        async with asyncio.timeout(40):
            while (await server.client.get("/api/threads/q/status")).json()["turn"] < 2:  # noqa: ASYNC110 (over HTTP)
                await asyncio.sleep(0.1)
        await _status(server, "q", "completed")
        assert (await _calls(server.ledger, "q")).count("START_THREAD") == 2


async def test_a_thread_is_paused_resumed_and_another_terminated(chromium: Browser, tmp_path: Path) -> None:
    """A pause offers its undoing at once."""
    async with _answered(tmp_path) as server:
        for name in ("b", "c"):
            await server.client.post("/api/threads/q/fork", json={"at": "understanding", "into": name})
        async with opened(chromium, server, "/#/thread/b") as page:
            await page.get_by_test_id("act-pause").click()
            await confirmed(page, "pause", "PAUSE_THREAD")
            await expect(page.locator(".thread-head .status")).to_have_text("paused")
            await page.get_by_test_id("toast").get_by_role("button", name="Resume").click()
            await confirmed(page, "resume", "RESUME_THREAD")
            await expect(page.locator(".thread-head .status")).to_have_text("completed", timeout=40_000)

            await page.goto("/#/thread/c")
            await page.get_by_test_id("act-terminate").click()
            await page.get_by_label("Reason").fill("enough")
            await confirmed(page, "terminate", "TERMINATE_THREAD with the reason “enough”")
            await expect(page.locator(".thread-head .status")).to_have_text("terminated")
        assert (await _calls(server.ledger, "b"))[-1:] != []
        assert {"PAUSE_THREAD", "RESUME_THREAD"} <= set(await _calls(server.ledger, "b"))
        assert "TERMINATE_THREAD" in await _calls(server.ledger, "c")


def _program(ledger: Ledger, approvers: list[str]) -> Any:
    """Return a program that must ask a person before it pays."""
    toolkit = Toolkit(approvers=approvers)

    @toolkit.tool(approval=True, to=["clerk"])
    def pay(amount: int, to: str) -> str:
        """Pay somebody."""
        return f"paid {amount} to {to}"

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse(parts=[TextPart(str(last.content))])
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 5, "to": "the shop"}, tool_call_id="call-1")])

    async def run(thread_id: str) -> str:
        capabilities = [LedgerDurability(ledger), toolkit.capability("clerk")]
        agent = Agent(FunctionModel(model), name="clerk", capabilities=capabilities)
        async with ledger_run(thread_id, ledger=ledger):
            return (await agent.run("Pay the bill.")).output

    return run


@pytest.mark.parametrize(("button", "outcome"), [("approve", "paid 5 to the shop"), ("deny", "too dear")])
async def test_exactly_one_call_is_approved_or_denied(chromium: Browser, tmp_path: Path, button: str, outcome: str) -> None:
    """The page shows the arguments; the answer is bound to their digest, and has the name of the token."""
    async with served(tmp_path) as server:
        principal = (await server.client.get("/api/session")).json()["principal"]
        program = _program(server.ledger, [principal])
        with pytest.raises(ParkedError):
            await program("order")
        async with opened(chromium, server, "/#/thread/order") as page:
            await expect(page.get_by_test_id("nav-waiting")).to_contain_text("1")
            await page.get_by_test_id("nav-waiting").click()
            await expect(page.get_by_test_id("approval")).to_contain_text('"to": "the shop"')
            await page.get_by_test_id("approval").get_by_test_id(button).click()
            await page.get_by_label("Reason").fill("too dear")
            await confirmed(page, button, f"{'approved' if button == 'approve' else 'denied'} by {principal}")
            await expect(page.get_by_test_id("no-approvals")).to_be_visible()
        assert outcome in await program("order")


class _Letter(Actor):
    @handles
    async def ping(self, _: Ping, context: Context) -> Pong:
        async def run(_: str) -> str:
            raise UnknownOutcomeError("the line went dead")

        return Pong(text=await context.effect("send", {"letter": "Dear Ada"}, run, effects="once"))


async def _parked(ledger: Ledger) -> None:
    """Leave a call behind whose outcome nobody knows."""
    async with System(ledger) as system:
        system.spawn("tool/1", _Letter)
        with pytest.raises(ParkedError):
            await system.ask("tool/1", Ping(text="send it"), thread_id="letters", id="m")


@pytest.mark.parametrize("outcome", ["result", "error"])
async def test_a_parked_call_is_settled(chromium: Browser, tmp_path: Path, outcome: str) -> None:
    async with served(tmp_path) as server:
        await _parked(server.ledger)
        async with opened(chromium, server, "/#/waiting") as page:
            await expect(page.get_by_test_id("parked")).to_contain_text("Dear Ada")
            await page.get_by_test_id(f"settle-{outcome}").click()
            await page.locator("textarea[name=said]").fill("it had arrived")
            await confirmed(page, "settle", f"the {outcome} of the call, it had arrived")
            await expect(page.get_by_test_id("no-parked")).to_be_visible()
        assert await service.list_parked(server.ledger) == ()
        rows = [record.message.payload async for record in server.ledger.read("letters")]
        (settled,) = [each for each in rows if isinstance(each, OptionResultPayload) and each.invocation_id == "m/send"]
        said = settled.error_message if outcome == "error" else settled.result
        assert (settled.is_error, said) == (outcome == "error", "it had arrived")


async def test_a_thread_is_forked_with_another_model_and_compared_side_by_side(chromium: Browser, tmp_path: Path) -> None:
    async with _answered(tmp_path) as server, opened(chromium, server, "/#/thread/q?seq=10") as page:
        await page.get_by_test_id("fork-here").click()
        await page.get_by_label("Last shared message").fill("yield")
        await page.get_by_label("Name of the branch").fill("other")
        await page.get_by_label("Model of the branch").fill("scripted")
        await confirmed(page, "fork", "with scripted")
        await expect(page.get_by_test_id("compare")).to_be_visible()
        await expect(page.get_by_test_id("common")).to_contain_text("messages shared")
        await _status(server, "other", "completed")
        await expect(page.get_by_test_id("side-right").get_by_role("listitem").first).to_be_visible()
        await expect(page.get_by_role("region", name="Phases")).to_contain_text("action")
        branch = (await server.client.get("/api/threads/other")).json()
        assert branch["forked_from"] == "q"


NOTE_MOMENTS = """() => {
  const at = document.querySelector("[data-testid=replay-at]");
  window.moments = [];
  new MutationObserver(() => {
    const moment = at.textContent.split(",")[0];
    if (moment !== window.moments.at(-1)) window.moments.push(moment);
  }).observe(at, { characterData: true, childList: true, subtree: true });
}"""


async def test_a_replay_shows_the_thread_as_it_was_and_writes_nothing(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "t", *(f"word {number}" for number in range(1, 41)))
        async with opened(chromium, server, "/#/thread/t", reduced_motion="reduce") as page:
            await page.get_by_test_id("act-replay").click()
            await expect(page.get_by_test_id("message")).to_have_count(1)
            await page.get_by_test_id("scrubber").fill("3")
            await expect(page.get_by_test_id("message")).to_have_count(3)
            await expect(page.get_by_test_id("replay-at")).to_contain_text("#3 of 40 messages")
            await page.get_by_role("button", name="One message on").click()
            await expect(page.get_by_test_id("message").last).to_contain_text("word 4")
            await page.evaluate(NOTE_MOMENTS)
            await page.get_by_test_id("play").click()
            await expect(page.get_by_test_id("replay-at")).not_to_contain_text(re.compile("#[45] of"))
            assert (await page.evaluate("window.moments"))[:2] == ["#5 of 40 messages", "#6 of 40 messages"]
            await page.get_by_role("button", name="End the replay").click()
            await expect(page.get_by_test_id("message").last).to_contain_text("word 40")
        assert (await server.ledger.head("t")).seq == 40


async def test_a_thread_is_exported_and_deleted(chromium: Browser, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "t", "one", "two")
        asked = ("/api/threads/t",)  # what was on its way when the thread was deleted finds nothing
        async with opened(chromium, server, "/#/thread/t", allow=asked) as page:
            await page.get_by_test_id("act-export").click()
            async with page.expect_download() as downloading:
                await page.get_by_test_id("confirm").click()
            download = await downloading.value
            lines = Path(await download.path()).read_text().splitlines()
            assert download.suggested_filename == "t.house.jsonl"
            assert [json.loads(line)["payload"]["parts"][0]["text"] for line in lines[1:]] == ["one", "two"]

            await page.get_by_test_id("act-delete").click()
            await confirmed(page, "delete", "removed from the ledger")
            await expect(page.get_by_test_id("empty-ledger")).to_be_visible()
        assert await server.ledger.thread("t") is None


async def test_a_thread_of_another_process_is_seen_live_and_acted_on(chromium: Browser, tmp_path: Path) -> None:
    """Another process writes the ledger: its thread appears in the list, and its messages as they are written."""
    async with served(tmp_path) as server:
        await say(server.ledger, "mine", "hello")
        place = f"sqlite:///{tmp_path / 'ledger.db'}"
        async with opened(chromium, server) as page:
            await expect(page.get_by_test_id("thread-row")).to_have_count(1)
            command = [sys.executable, "-m", "antiphon", "run", "What is a host?", "--model", "scripted", "--ledger", place]
            running = Forked(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                row = page.get_by_test_id("thread-row").filter(has_text="What is a host?")
                await expect(row).to_be_visible(timeout=40_000)
                await row.click()
                await expect(page.locator(".thread-head .status")).to_have_text("completed", timeout=40_000)
                assert await asyncio.to_thread(running.wait, 40) == 0
            finally:
                running.kill()
            await expect(page.get_by_test_id("act-continue")).to_be_visible()
            await expect(page.get_by_test_id("message").first).to_be_visible()


async def test_a_message_of_a_host_that_is_written_while_one_looks_appears(chromium: Browser, tmp_path: Path) -> None:
    """At the end of the list the newest is shown; elsewhere nothing moves, and a button says how many are new."""
    async with served(tmp_path) as server:
        await say(server.ledger, "t", *(f"word {number}" for number in range(1, 61)))
        async with opened(chromium, server, "/#/thread/t") as page:
            await expect(page.get_by_test_id("message").last).to_contain_text("word 60")
            await say(server.ledger, "t", "the newest")
            await expect(page.get_by_test_id("message").last).to_contain_text("the newest")

            await page.keyboard.press("Home")
            await expect(page.get_by_test_id("message").first).to_contain_text("word 1")
            before = await page.get_by_test_id("message").first.bounding_box()
            await say(server.ledger, "t", "newer", "and newer")
            await expect(page.get_by_test_id("newer")).to_have_text("2 new messages ↓")
            assert await page.get_by_test_id("message").first.bounding_box() == before
            await page.get_by_test_id("newer").click()
            await expect(page.get_by_test_id("message").last).to_contain_text("and newer")


def test_every_act_of_the_page_has_a_test() -> None:
    """The dialogs in `acts.js`, and those in other modules."""
    page = Path(__file__).parent.parent.parent / "src" / "antiphon" / "server" / "page"
    ids = set(re.findall(r'^  id: "([a-z]+)"', (page / "acts.js").read_text(), re.MULTILINE)) | {"approve", "deny"}
    tested = set(re.findall(r'confirmed\(page, "([a-z]+)"', Path(__file__).read_text())) | {"approve", "deny"}

    assert ids - tested == {"rerun"}  # it writes nothing, and is tested in test_views.py
