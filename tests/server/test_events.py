"""The event stream: records by their cursor, words beside them, and readers that are cut. F34, S12, G18."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.server.running import SPEAKING, Served, say, served

from antiphon import service
from antiphon.ledger import open_ledger
from antiphon.server import ServerLimits

pytestmark = pytest.mark.slow


async def _events(server: Served, query: str = "", **headers: str) -> AsyncIterator[tuple[str, str | None, Any]]:
    """Yield the kind, the id and the data of events."""
    async with server.client.stream("GET", f"/api/events{query}", headers=headers) as answer:
        assert answer.status_code == 200
        kind, own_id = "", None
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind, own_id = value, None
            elif name == "id":
                own_id = value
            elif name == "data":
                yield kind, own_id, json.loads(value)


async def _next(server: Served, count: int, query: str = "", **headers: str) -> list[tuple[str, str | None, Any]]:
    found = []
    async with asyncio.timeout(10):
        async for event in _events(server, query, **headers):
            found.append(event)
            if len(found) == count:
                break
    return found


async def _streams(server: Served, count: int) -> None:
    """Wait until the server has so many streams."""
    async with asyncio.timeout(10):
        while (await server.client.get("/api/health")).json()["streams"] != count:  # noqa: ASYNC110 (over HTTP)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)  # the stream is counted just before it begins


async def test_a_reader_that_is_cut_again_and_again_sees_every_record_once_in_order(tmp_path: Path) -> None:
    """F34: 50 cuts while messages are written, by the header that a browser sends; no gap and no repeat."""
    async with served(tmp_path) as server:
        texts = [f"text {number}" for number in range(120)]
        writing = asyncio.ensure_future(say(server.ledger, "chat", *texts))
        seen: list[Any] = []
        last: str | None = None
        for turn in range(50):
            headers = {} if last is None else {"last-event-id": last}
            for _, last, data in await _next(server, 1 + turn % 3, **headers):  # noqa: B007
                seen.append(data)
        seen += [data for _, _, data in await _next(server, len(texts) - len(seen), **{"last-event-id": last or ""})]
        await writing
    assert [each["seq"] for each in seen] == list(range(1, len(texts) + 1))
    assert [each["message"]["payload"]["parts"][0]["text"] for each in seen] == texts


async def test_a_stream_has_one_thread_or_all_and_begins_at_the_given_cursor(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "a", "1")
        await say(server.ledger, "b/c", "2")
        await say(server.ledger, "a", "3")
        everything = await _next(server, 3)
        assert [(data["thread_id"], data["seq"]) for _, _, data in everything] == [("a", 1), ("b/c", 1), ("a", 2)]
        assert [data["seq"] for _, _, data in await _next(server, 2, "?thread_id=a")] == [1, 2]
        assert [data["seq"] for _, _, data in await _next(server, 1, "?thread_id=b%2Fc")] == [1]
        after = everything[0][1]
        assert [data["thread_id"] for _, _, data in await _next(server, 2, f"?after={after}")] == ["b/c", "a"]
        waiting = asyncio.ensure_future(_next(server, 1, "?after=now"))
        await _streams(server, 1)
        await say(server.ledger, "a", "4")
        assert [data["seq"] for _, _, data in await waiting] == [3]


async def test_a_cursor_of_another_ledger_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    """A place in the order of commits means other records elsewhere: the id of an event names its ledger."""
    (tmp_path / "other").mkdir()
    async with served(tmp_path / "other") as other:
        await say(other.ledger, "a", "1", "2")
        ((_, foreign, _),) = await _next(other, 1)
    async with served(tmp_path) as server:
        await say(server.ledger, "a", "1", "2")
        ((_, own, _),) = await _next(server, 1)
        name = (own or "").partition("-")[0]
        for broken in (foreign or "", "1", "x", f"{name}-", f"{name}-x", f"{name}-999999", f"{name}-{'9' * 30}", f"{name}-１"):
            answer = await server.client.get("/api/events", params={"after": broken})
            assert (answer.status_code, answer.json()["code"]) == (422, "place"), broken
        for broken in ("\xff\xfe", "1"):
            status, _ = await server.raw(
                "GET /api/events HTTP/1.1",
                f"Host: {server.host}",
                f"Authorization: Bearer {server.token}",
                f"Last-Event-ID: {broken}",
                "Connection: close",
            )
            assert status == 422
        assert (await server.client.get("/api/events?thread_id=none")).status_code == 404
        assert [data["seq"] for _, _, data in await _next(server, 1, **{"last-event-id": own or ""})] == [2]


async def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    """S12: the token is looked at again while a stream lasts."""
    async with served(tmp_path, limits=ServerLimits(check_seconds=0.05)) as server:
        made = await service.make_token(server.ledger, "ada")
        await say(server.ledger, "a", "1")
        kinds: list[tuple[str, Any]] = []
        async with asyncio.timeout(10):
            async for kind, _, data in _events(server, authorization=f"Bearer {made.text}"):
                kinds.append((kind, data))
                if kind == "record":
                    async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as another:
                        await service.revoke_token(another, made.token.id)
        assert [kind for kind, _ in kinds] == ["record", "end"]
        assert kinds[-1][1] == {"code": "unauthorized"}
        assert made.digest not in str(kinds)


async def test_a_reader_that_does_not_read_is_cut_and_comes_back_by_its_cursor(tmp_path: Path) -> None:
    """G18, F34: its connection is aborted, the stream is counted no longer, and nothing is lost."""
    async with served(tmp_path, limits=ServerLimits(write_seconds=0.2, check_seconds=0.1)) as server:
        texts = ["x" * 900_000] * 20
        await say(server.ledger, "a", *texts)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        lines = ("GET /api/events HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {server.token}", "", "")
        writer.write("\r\n".join(lines).encode())
        first = await reader.readuntil(b"id: ")
        assert b"200 OK" in first
        cursor = (await reader.readline()).decode().strip()
        await _streams(server, 0)
        rest = b""
        with suppress(ConnectionError):
            while piece := await reader.read(1_000_000):
                rest += piece
        assert not rest.endswith(b"\r\n")  # aborted in the middle of a piece: what it did not take is not kept for it
        writer.close()
        seen = await _next(server, len(texts) - 1, **{"last-event-id": cursor})
        assert [data["seq"] for _, _, data in seen] == list(range(2, len(texts) + 1))


async def test_streams_are_limited_for_each_token_and_in_all(tmp_path: Path) -> None:
    async with served(tmp_path, limits=ServerLimits(streams_per_token=1, streams=2)) as server:
        made = [await service.make_token(server.ledger, name) for name in ("ada", "bob", "eve")]
        await say(server.ledger, "a", "1")
        first, second = (_events(server, authorization=f"Bearer {each.text}") for each in made[:2])
        assert (await anext(first))[0] == "record"
        again = await server.client.get("/api/events", headers={"authorization": f"Bearer {made[0].text}"})
        assert (await anext(second))[0] == "record"
        third = await server.client.get("/api/events", headers={"authorization": f"Bearer {made[2].text}"})
        assert [(each.status_code, each.json()["code"]) for each in (again, third)] == [(429, "too_many")] * 2
        await first.aclose()  # type: ignore[attr-defined]
        await _streams(server, 1)
        assert len(await _next(server, 1, authorization=f"Bearer {made[2].text}")) == 1
        await second.aclose()  # type: ignore[attr-defined]


async def test_words_come_beside_the_records_and_have_no_cursor(tmp_path: Path) -> None:
    """Words of a thread that this server runs are marked as not recorded, also for a reader that was there before."""
    async with served(tmp_path, model=SPEAKING) as server:
        asked = await server.client.post("/api/threads", json={"question": "What is 17 * 23?", "thread_id": "sum"})
        assert (asked.status_code, asked.json()) == (202, {"thread_id": "sum"})
        kinds: dict[str, list[Any]] = {"record": [], "words": []}
        async with asyncio.timeout(20):
            async for kind, own_id, data in _events(server, "?thread_id=sum"):
                assert (own_id is None) == (kind == "words")
                kinds[kind].append(data)
                if '"THREAD_RESULT"' in json.dumps(data) or (await server.ledger.thread("sum")).status == "completed":  # type: ignore[union-attr]
                    break
        assert [each["seq"] for each in kinds["record"]] == list(range(1, len(kinds["record"]) + 1))
        assert kinds["words"]
        assert all(each["recorded"] is False and each["speaker"] for each in kinds["words"])


async def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await say(server.ledger, "a", "1")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        lines = ("GET /api/events HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {server.token}", "", "")
        writer.write("\r\n".join(lines).encode())
        await reader.readuntil(b"id: ")
        began = asyncio.get_running_loop().time()
    writer.close()
    assert asyncio.get_running_loop().time() - began < 1.5
    assert (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()
