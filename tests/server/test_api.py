"""The API: threads, messages, branches, approvals and parked calls, over a real server and ledger. G12, G21, S10."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import TypeAdapter
from tests.server.running import SPEAKING, Served, say, served

from antiphon import MessageBuilder, OptionResultBuilder, service
from antiphon.agents.models import ScriptedModel
from antiphon.agents.toolkit import Approval
from antiphon.ledger import Host, Limit, MasterKey, open_ledger, replay
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart, Usage, current_port
from antiphon.patterns.postchain import PostChain
from antiphon.server._api import ENDPOINTS, Lines
from antiphon.server._serving import ALL
from antiphon.service._overview import OVERVIEW_THREAD

pytestmark = pytest.mark.slow


async def _get(server: Served, path: str, **params: Any) -> Any:
    answer = await server.client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _until(server: Served, thread_id: str, status: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            found = await _get(server, f"/api/threads/{thread_id}/status")
            if found["status"] == status:
                return found
            await asyncio.sleep(0.03)


async def test_a_thread_from_its_question_to_its_end(tmp_path: Path) -> None:
    """Ask, ask again, compare, replay, run again, branch with another model, export, delete: each by its endpoint."""
    async with served(tmp_path) as server:
        post = server.client.post
        assert (await post("/api/threads", json={"question": "What is 17 * 23?", "thread_id": "sum"})).status_code == 202
        report = await _until(server, "sum", "completed")
        assert (report["is_chain"], report["turn"], report["question"]) == (True, 1, "What is 17 * 23?")
        again = await post("/api/threads", json={"question": "again?", "thread_id": "sum"})
        assert (again.status_code, again.json()["code"]) == (422, "place")
        assert (await post("/api/threads/sum/turns", json={"question": "And twice that?"})).status_code == 202
        while (report := await _until(server, "sum", "completed"))["turn"] < 2:
            pass
        paused = await post("/api/threads/sum/pause", json={})
        assert (paused.status_code, paused.json()["error_code"]) == (409, "INVALID_STATE")
        first = (await _get(server, "/api/threads/sum/messages", limit=1))["messages"][0]
        assert first["message"]["payload"]["arguments"]["user_id"] == (await _get(server, "/api/session"))["principal"]
        events = (await _get(server, "/api/threads/sum/replay"))["events"]
        assert {"action", "yield"} <= {each["phase"] for each in events}
        rerun = await post("/api/threads/sum/rerun", json={})
        assert rerun.json() == {"thread_id": "sum", "parts_at": None, "what": None, "reason": None}
        fork = {"at": "yield", "into": "sum-2", "go_on": True, "model": "scripted"}
        branch = await post("/api/threads/sum/fork", json=fork)
        assert (branch.status_code, branch.json()["forked_from"]) == (201, "sum")
        await _until(server, "sum-2", "completed")
        diff = await _get(server, "/api/threads/sum/diff/sum-2")
        assert diff["common"] == branch.json()["forked_at"]
        assert diff["right_count"] == len(diff["right"]) > 0
        assert [each["phase"] for each in diff["phases"]][-1] == "yield"
        refused = await server.client.delete("/api/threads/sum")
        assert (refused.status_code, refused.json()["code"]) == (409, "has_branches")
        gone = await server.client.delete("/api/threads/sum", params={"with_branches": "true"})
        assert gone.json() == {"deleted": ["sum-2", "sum"]}
        assert (await _get(server, "/api/threads"))["threads"] == []


def _hold_model(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have the scripted model wait for an event before it answers."""
    free, answer = asyncio.Event(), ScriptedModel.request_stream

    @asynccontextmanager
    async def held(self: ScriptedModel, *more: Any) -> AsyncGenerator[Any]:
        await free.wait()
        async with answer(self, *more) as stream:
            yield stream

    monkeypatch.setattr(ScriptedModel, "request_stream", held)
    return free


async def test_a_thread_is_paused_resumed_and_terminated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G12: while it is paused nothing starts; resumed, it goes on to its end; terminated, it does not go on."""
    free = _hold_model(monkeypatch)
    async with served(tmp_path, model=SPEAKING) as server:
        post = server.client.post
        for name in ("a", "b"):
            await post("/api/threads", json={"question": "What is 17 * 23?", "thread_id": name})
            paused = await post(f"/api/threads/{name}/pause", json={})
            assert paused.status_code == 200, paused.text
            assert paused.json()["response"]["type"] == "THREAD_PAUSED"
            assert (await _get(server, f"/api/threads/{name}/status"))["status"] == "paused"
        free.set()
        busy = await post("/api/threads/a/turns", json={"question": "more?"})
        assert (busy.status_code, busy.json()["code"]) == (409, "thread_busy")
        resumed = await post("/api/threads/a/resume", json={})
        assert (resumed.status_code, resumed.json()) == (202, {"thread_id": "a"})
        await _until(server, "a", "completed")
        ended = await post("/api/threads/b/terminate", json={"reason": "enough"})
        assert ended.json()["response"]["type"] == "THREAD_TERMINATED"
        again = await post("/api/threads/b/resume", json={})
        assert (again.status_code, again.json()["code"]) == (409, "thread_ended")
        for verb in ("pause", "resume", "terminate", "rerun"):
            assert (await post(f"/api/threads/none/{verb}", json={})).status_code == 404


async def test_a_new_thread_can_be_paused_as_soon_as_the_server_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its start takes: before, it would be refused as a thread that is only created."""
    start = PostChain.start

    async def start_slowly(*args: Any, **more: Any) -> Any:
        await asyncio.sleep(0.3)
        return await start(*args, **more)

    monkeypatch.setattr(PostChain, "start", start_slowly)
    free = _hold_model(monkeypatch)
    async with served(tmp_path, model=SPEAKING) as server:
        created = await server.client.post("/api/threads", json={"question": "What is 17 * 23?", "thread_id": "a"})
        assert created.status_code == 202
        paused = await server.client.post("/api/threads/a/pause", json={})
        free.set()
        assert paused.status_code == 200, paused.text


async def test_messages_come_by_windows_raw_and_in_other_formats(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "a/b", *"12345")
        own = "/api/threads/a%2Fb"
        seen, after = [], 0
        while True:
            page = await _get(server, f"{own}/messages", after=after, limit=2)
            seen += [each["seq"] for each in page["messages"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert seen == [1, 2, 3, 4, 5]
        assert (await _get(server, f"{own}/messages", limit=5))["next"] is None
        back = await _get(server, f"{own}/messages", reverse="true", limit=2)
        assert ([each["seq"] for each in back["messages"]], back["next"]) == ([5, 4], 4)
        back = await _get(server, f"{own}/messages", reverse="true", before=4, limit=3)
        assert ([each["seq"] for each in back["messages"]], back["next"]) == ([3, 2, 1], None)
        (record,) = [each async for each in server.ledger.read("a/b", 2, 4)]
        (window,) = (await _get(server, f"{own}/messages", after=2, before=4))["messages"]
        assert window["message"] == json.loads(record.body)
        assert (window["hash"], window["thread_id"]) == (record.hash, "a/b")
        chat = await _get(server, f"{own}/messages", **{"as": "openai-chat", "limit": 2})
        assert [each["content"] for each in chat["value"]["messages"]] == ["1", "2"]
        assert {each["what"] for each in chat["losses"]}
        wrong = await server.client.get(f"{own}/messages", params={"as": "klingon"})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "encode")
        lines = (await server.client.get(f"{own}/export")).text.splitlines()
        assert [json.loads(line)["payload"]["parts"][0]["text"] for line in lines[1:]] == list("12345")
        assert (await server.client.get(f"{own}/export", params={"as": "klingon"})).status_code == 422
        for query in ("limit=0", "limit=9999", "after=-1", "after=x", "nothing=1", "limit=1&limit=2"):
            assert (await server.client.get(f"{own}/messages?{query}")).status_code == 422, query


async def test_encrypted_threads_are_read_not_searched_and_forgotten_s7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No byte beside the answers has their words: not the file, not its log, not the sums, not what the server logs."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ANTIPHON_KEY", MasterKey.generate())
    async with served(tmp_path) as server:
        await say(server.ledger, "a", "the kanarie7c1f word")
        assert "kanarie7c1f" in json.dumps(await _get(server, "/api/threads/a/messages"))
        found = await _get(server, "/api/search", q="kanarie7c1f")
        assert (found["hits"], found["unsearched"] > 0) == ([], True)
        inside = await server.client.get("/api/search", params={"q": "word", "thread_id": "a"})
        assert (inside.status_code, inside.json()["code"]) == (422, "not_searchable")
        await server.ledger.keys.forget("a")
        gone = await server.client.get("/api/threads/a/messages")
        assert (gone.status_code, gone.json()["code"]) == (410, "forgotten")
        assert [each["thread_id"] for each in (await _get(server, "/api/threads"))["threads"]] == ["a"]
        assert b"kanarie7c1f" not in b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
    assert b"kanarie7c1f" not in b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
    assert "kanarie7c1f" not in "".join(line for line in caplog.text.splitlines() if "http" not in line)


async def test_threads_are_listed_filtered_and_searched(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for name in ("a", "b", "c"):
            await say(server.ledger, name, f"the {name} word")
        await server.ledger.append("b", [], status="waiting", pattern="chat")
        assert [each["thread_id"] for each in (await _get(server, "/api/threads", order="created_at"))["threads"]] == [
            "a",
            "b",
            "c",
        ]
        for wanted in ({"status": "waiting"}, {"pattern": "chat"}):
            assert [each["thread_id"] for each in (await _get(server, "/api/threads", **wanted))["threads"]] == ["b"]
        page = await _get(server, "/api/threads", limit=2, order="created_at")
        rest = await _get(server, "/api/threads", limit=2, order="created_at", page=page["next"])
        assert ([each["thread_id"] for each in rest["threads"]], rest["next"]) == (["c"], None)
        for wrong in ({"page": "x"}, {"order": "cost"}, {"updated_after": "2026-01-01T00:00:00"}, {"min_cost": "NaN"}):
            assert (await server.client.get("/api/threads", params=wrong)).status_code == 422, wrong
        hits = (await _get(server, "/api/search", q="word"))["hits"]
        assert {each["record"]["thread_id"] for each in hits} == {"a", "b", "c"}
        assert len((await _get(server, "/api/search", q="word", thread_id="a"))["hits"]) == 1
        assert (await server.client.get("/api/search", params={"q": "word", "thread_id": "none"})).status_code == 404
        assert (await server.client.get("/api/threads/a/rerun")).status_code == 405
        other = await server.client.post("/api/threads/a/rerun", json={})
        assert (other.status_code, other.json()["code"]) == (409, "other_pattern")


async def test_a_call_is_a_step_and_a_span(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        asked = MessageBuilder(policy="ada").add_option_call("get_weather", {"city": "Oslo"})
        (call,) = asked.option_calls
        await server.ledger.append("chat", [call, OptionResultBuilder.response_to(call).success("cold")])
        steps = (await _get(server, "/api/threads/chat/sequence"))["window"]["steps"]
        assert [(each["kind"], each["pair"]) for each in steps] == [("called", 2), ("answered", 1)]
        (span,) = (await _get(server, "/api/threads/chat/timeline"))["window"]["spans"]
        assert (span["worker"], span["outcome"]) == ("get_weather", "completed")


async def test_an_export_that_fails_in_the_middle_is_cut_and_logged_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G23: a half answer does not look whole, and the log has no words of messages."""

    async def broken(*_: object) -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise RuntimeError("the secret words")

    async with served(tmp_path) as server:
        await say(server.ledger, "a", "1")
        monkeypatch.setattr(service, "export_lines", broken)
        with pytest.raises(httpx2.TransportError):
            await server.client.get("/api/threads/a/export")
    assert "an answer was cut: RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_text_of_messages_is_data_in_every_answer(tmp_path: Path) -> None:
    """S10: markup comes back as JSON of its type, which no browser runs, with the policy that forbids scripts inline."""
    text = "</script><img src=x onerror=alert(1)>{{7*7}}\r\n\r\nevent: end\ndata: {}"
    async with served(tmp_path) as server:
        await say(server.ledger, "a", text)
        for path in ("/api/threads/a/messages", "/api/threads/a/sequence", "/api/threads/<script>"):
            answer = await server.client.get(path)
            assert answer.headers["content-type"] in ("application/json", "application/problem+json")
            assert "<script>" not in answer.text
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
        async with server.client.stream("GET", "/api/events") as events:
            lines = []
            async for line in events.aiter_lines():
                lines.append(line)
                if line.startswith("data"):
                    break
        assert [line.partition(":")[0] for line in lines] == ["retry", "", "event", "id", "data"]
        assert json.loads(lines[-1][6:])["message"]["payload"]["parts"][0]["text"] == text


# ---------------------------------------------------------------- what waits for a person


async def test_an_approval_is_answered_under_the_name_of_the_token(tmp_path: Path) -> None:
    """G22: the digest of the shown call is needed, and no body says who answers."""
    async with served(tmp_path) as server:
        asked = Approval(
            "q1",
            "a",
            "bot",
            "pay",
            {"to": "eve"},
            "d" * 64,
            "costs money",
            current_port().now() + timedelta(hours=1),
            ("ada",),
        )
        await server.ledger.append("a", [asked.question()])
        (waiting,) = (await _get(server, "/api/approvals"))["approvals"]
        path = f"/api/approvals/{waiting['id']}"
        right = {"approved": True, "digest": waiting["digest"]}
        ada, eve = [await service.make_token(server.ledger, name, ["control"]) for name in ("ada", "eve")]
        async with server.as_token(ada.text) as client, server.as_token(eve.text) as other:
            denied = await other.post(path, json=right)
            assert (denied.status_code, denied.text) == (404, (await other.post("/api/approvals/none", json=right)).text)
            assert (await other.post(path, json={**right, "principal": "ada"})).status_code == 422
            assert (await client.post(path, json={"approved": True})).status_code == 422
            changed = await client.post(path, json={**right, "digest": "0" * 64})
            assert (changed.status_code, changed.json()["code"]) == (409, "other_call")
            assert len((await _get(server, "/api/approvals"))["approvals"]) == 1
            assert (await client.post(path, json=right)).status_code == 200
            assert (await client.post(path, json=right)).status_code == 404
        answers = [each.message async for each in server.ledger.read(waiting["thread_id"]) if "ada" in each.message.policy]
        assert len(answers) == 1


async def test_a_parked_call_is_settled_with_exactly_one_outcome(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        assert await _get(server, "/api/parked") == {"parked": []}
        await say(server.ledger, "a", "1")
        for body in ({}, {"result": 1, "error": "x"}, {"retry": False}, {"error": None}, {"outcome": 1}):
            assert (await server.client.post("/api/parked/a/none", json=body)).status_code == 422, body
        for body in ({"result": None}, {"error": "x"}, {"retry": True}):
            answer = await server.client.post("/api/parked/a/none", json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_waiting"), body


# ---------------------------------------------------------------- the document


async def test_the_document_describes_every_endpoint_and_what_it_returns(tmp_path: Path) -> None:
    """OpenAPI is written from the classes of the values: an answer has exactly the fields that it says."""
    async with served(tmp_path) as server:
        await say(server.ledger, "a", "1")
        document = await _get(server, "/api/openapi.json")
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        assert described == {(each.method, each.path) for each in ALL}
        for endpoint in ENDPOINTS:
            if endpoint.method != "GET" or endpoint.returns is Lines or isinstance(endpoint.returns, str):
                continue
            path = endpoint.path.replace("{thread_id}", "a").replace("{other}", "a")
            answer = await _get(server, path, **({"q": "1"} if path.endswith("search") else {}))
            TypeAdapter(endpoint.returns).validate_python(answer, extra="forbid")


# ---------------------------------------------------------------- sums


def _request(number: int, model: str, **usage: Any) -> list[Message]:
    """Return a request to a model as the journal has it, its answer, and its end."""
    call = OptionCallPayload(
        invocation_id=f"r{number}", option_name="ask", arguments={"arguments": {"model": model, "prompt": "p"}}
    )
    said = PartsPayload(parts=(TextPart(text="hi"),))
    end = OptionResultPayload(invocation_id=f"r{number}", option_name="ask", result={"messages": 1})
    return [
        Message(policy="bot", lane="effect", payload=call),
        Message(policy="bot", payload=said, parent_id=f"r{number}", usage=Usage(**usage)),
        Message(policy="ask", lane="effect", payload=end),
    ]


async def _counted(server: Served, messages: int) -> Any:
    async with asyncio.timeout(10):
        while (found := await _get(server, "/api/overview"))["total"]["messages"] < messages:  # noqa: ASYNC110 (over HTTP)
            await asyncio.sleep(0.02)
    return found


async def test_threads_without_a_status_are_counted_by_whether_calls_are_open(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "said", "hello")
        await server.ledger.append("called", [_request(1, "big")[0]])
        await server.ledger.append("done", [_request(1, "big")[0]], status="completed")
        assert (await _get(server, "/api/overview"))["threads"] == {"": 1, "open": 1, "completed": 1}


async def test_sums_are_counted_once_by_model_and_hour_also_after_a_restart(tmp_path: Path) -> None:
    """Tokens belong to the model that was asked, also if two are asked at once; a restart goes on from its snapshot."""
    one = _request(1, "big", input_tokens=10, output_tokens=1, cost="0.10")
    two = _request(2, 'small"\n', input_tokens=3, output_tokens=2, cost="0.0000000000000000001")
    async with served(tmp_path) as server:
        own = (await _counted(server, 1))["total"]["messages"]  # the ledger has got its name
        await server.ledger.append("a", [one[0], two[0], two[1], two[2], one[1], one[2]], status="completed")
        found = await _counted(server, own + 6)
        assert {name: (each["requests"], each["input_tokens"]) for name, each in found["by_model"].items()} == {
            "big": (1, 10),
            'small"\n': (1, 3),
        }
        assert (found["total"]["requests"], found["total"]["output_tokens"], found["total"]["errors"]) == (2, 3, 0)
        assert (found["total"]["answered"], found["total"]["p50"]) == (2, 0.01)
        assert found["threads"] == {"completed": 1}
        assert found["patterns"] == {"": 1}
        listed = [await _get(server, "/api/threads", model=model) for model in ("big", "other")]
        assert [[each["thread_id"] for each in page["threads"]] for page in listed] == [["a"], []]
        assert sum(each["messages"] for each in found["by_hour"].values()) == found["total"]["messages"]
        text = (await server.client.get("/api/metrics")).text
        assert 'antiphon_cost_dollars_total{model="small\\"\\n"} 0.0000000000000000001\n' in text
        assert 'antiphon_threads{status="completed"} 1\n' in text
        before = found
    async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        await ledger.delete("a")  # what was counted stays counted: a restart does not read it again
    async with served(tmp_path) as server:
        await server.ledger.append("b", _request(3, "big", input_tokens=5))
        found = await _counted(server, before["total"]["messages"] + 3)
        assert found["total"]["messages"] == before["total"]["messages"] + 3
        assert found["by_model"]["big"]["input_tokens"] == 15
        assert [each["thread_id"] for each in (await _get(server, "/api/threads", model="big"))["threads"]] == ["b"]
        kept = await replay(server.ledger, OVERVIEW_THREAD)
        assert len(kept) == 0


async def test_sums_of_a_book_go_on_from_its_snapshot_and_not_from_one_ahead_of_the_ledger() -> None:
    """What the snapshot has is not read again; a snapshot from behind the end of an older copy counts for nothing."""
    ledger = MemoryLedger()
    await say(ledger, "a", "1", "2")
    for _ in range(2):
        book = service.OverviewBook(ledger)
        counting = asyncio.ensure_future(book.count())
        await asyncio.sleep(0.05)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        assert (await book.overview()).total.messages == 2
        await book.store()
        read = service.OverviewBook(ledger)
        await read._restore()
        assert (await read.overview()).total.messages == 2
    older = MemoryLedger()
    book._ledger = older
    await book.store()
    fresh = service.OverviewBook(older)
    await fresh._restore()
    assert (await fresh.overview()).total.messages == 0


async def test_an_effect_with_any_arguments_is_counted() -> None:
    """A program chooses the arguments of its effects; one that is no mapping ended the count for good."""
    ledger = MemoryLedger()
    for number, given in enumerate((5, ["model", "prompt"], "model prompt", {"model": "m"})):
        payload = OptionCallPayload(invocation_id=str(number), option_name="x", arguments={"arguments": given})
        await ledger.append("t", [Message(policy="p", lane="effect", payload=payload)])
    book = service.OverviewBook(ledger)
    async for record in ledger.read("t"):
        book.take(record)
    assert (await book.overview()).total.messages == 4
    assert (await book.overview()).by_model == {}


async def test_the_cluster_is_what_the_service_says(tmp_path: Path) -> None:
    """A thread in hand, one that is due for long, and a limit, with money as a number."""
    async with served(tmp_path) as server:
        host = Host("living", "1", ("agent",), 600.0, "living/1")
        await server.ledger.beat(host)
        await server.ledger.claim("in-hand", by=host)
        epoch = await server.ledger.claim("homeless", by=host, kind="other")
        await server.ledger.release("homeless", epoch=epoch, wake_at=current_port().now() - timedelta(minutes=5))
        await server.ledger.limits.set(Limit("gpt-5", at_once=8, cost_per_day=Decimal("2.50")))
        found = await _get(server, "/api/cluster")
        assert [each["name"] for each in found["hosts"]] == ["living"]
        assert (found["in_hand"], found["due"], found["stuck"], found["take_overs"], found["tail_lag"]) == (1, 1, 1, 0, 0.0)
        assert found["oldest_age"] >= 300
        (stuck,) = found["stuck_threads"]
        assert (stuck["thread_id"], stuck["kind"]) == ("homeless", "other")
        (limit,) = found["limits"]
        assert (limit["at_once"], limit["cost_per_day"], limit["spent"], limit["per_minute"]) == (8, 2.5, 0, None)
        known = service.to_json(await service.cluster_status(server.ledger))
        assert found.keys() == json.loads(known).keys()
        made = await service.make_token(server.ledger, "sender", ["send"])
        async with server.as_token(made.text) as client:
            assert (await client.get("/api/cluster")).status_code == 404
