"""Input that no client should send: many connections, bodies that end early, markup at the doors; and how long each takes.

S8, S10 and S11 for `/api`, `/choir` and `/v1`. Broken cursors are in `test_events.py`, tokens, hosts and sizes in
`test_security.py`, requests that are made from the document in `test_document_cases.py`.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.page.hostile import PAYLOADS
from tests.server.running import SPEAKING, Served, served

from antiphon.server import ServerLimits

CONNECTIONS = 10_000 if "ANTIPHON_CHAOS" in os.environ else 600
SECONDS_FOR_A_MEGABYTE = 1.0
DOORS = {
    "/api/threads": lambda text: {"question": text},
    "/choir": lambda text: {"type": "CREATE_THREAD", "data": {"user_id": text}},
    "/v1/chat/completions": lambda text: {"model": "postchain", "messages": [{"role": "user", "content": text}]},
}
"""By path: a request with a text in it."""


OPEN_MANY = """
import socket, sys
port, count = map(int, sys.argv[1:])
opened = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]
print("open", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def _many_connections(port: int) -> AsyncGenerator[None]:
    """Open connections in another process, which says nothing on them, until the end of the block."""
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    arguments = (sys.executable, "-c", OPEN_MANY, str(port), str(CONNECTIONS))
    process = await asyncio.create_subprocess_exec(*arguments, **pipes)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        yield
    finally:
        await process.communicate(b"")


@pytest.mark.slow
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < CONNECTIONS + 500, reason="needs more open files")
async def test_ten_thousand_connections_leave_the_server_to_others(tmp_path: Path) -> None:
    """Those that say nothing cost nothing but their places; a request among too many is told so at once, and later served."""
    async with served(tmp_path, limits=ServerLimits(connections=CONNECTIONS // 2, head_seconds=600)) as server:
        head = (
            "GET /api/health HTTP/1.1",
            f"Host: {server.host}",
            f"Authorization: Bearer {server.token}",
            "Connection: close",
        )
        assert (await server.raw(*head))[0] == 200
        async with _many_connections(server.port):
            for _ in range(3):
                began = time.perf_counter()
                assert (await server.raw(*head))[0] == 503
                assert time.perf_counter() - began < 5
        async with asyncio.timeout(30):
            while (await server.raw(*head))[0] != 200:  # noqa: ASYNC110 (over HTTP)
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_connections_that_do_not_ask_leave_their_places_to_others(tmp_path: Path) -> None:
    """S11: nobody keeps a place by sending no request, half of one, or half of a second one."""
    async with served(tmp_path, limits=ServerLimits(connections=4, head_seconds=0.5)) as server:
        page = f"GET / HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode()
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        for (_, writer), said in zip(opened, (b"", page[:9], page + page[:9]), strict=True):
            writer.write(said)
        head = ("GET /api/health HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {server.token}")
        async with asyncio.timeout(30):
            for reader, writer in opened:
                with suppress(ConnectionError):
                    await reader.read()  # up to the end of the connection
                writer.close()
            while (await server.raw(*head, "Connection: close"))[0] != 200:  # noqa: ASYNC110 (over HTTP)
                await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a\0b", "\u200b", " a", "a\n", "e\u0301"])
async def test_an_id_that_is_none_is_no_fault_of_the_server(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as server:
        for path, body in (("", {"question": "What?", "thread_id": name}), ("/t/fork", {"into": name})):
            answer = await server.client.post(f"/api/threads{path}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "place")
        assert (await server.client.get("/api/threads")).json()["threads"] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", DOORS)
async def test_a_body_that_ends_early_begins_nothing(tmp_path: Path, path: str) -> None:
    body = json.dumps(DOORS[path]("What is 17 * 23?")).encode()
    async with served(tmp_path) as server:
        head = (f"POST {path} HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {server.token}")
        head += ("Content-Type: application/json", f"Content-Length: {len(body)}")
        for cut in (0, 1, len(body) // 2, len(body) - 1):
            status, _ = await server.raw(*head, body=body[:cut], ends=True)
            assert status in (0, 400), cut
        assert (await server.client.get("/api/threads")).json()["threads"] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", DOORS)
async def test_two_host_headers_are_refused(tmp_path: Path, path: str) -> None:
    """S11: a proxy and a server may each believe another one of them."""
    async with served(tmp_path) as server:
        hosts = (f"Host: {server.host}", "Host: evil.test")
        for each in (hosts, hosts[::-1], hosts[:1] * 2):
            status, _ = await server.raw(f"POST {path} HTTP/1.1", *each, f"Authorization: Bearer {server.token}")
            assert status == 400


def _heavy() -> dict[str, bytes]:
    """Return bodies of about a MiB that cost a parser most, by name."""
    mib = 1024 * 1024 - 200
    return {
        "one text": json.dumps({"question": "a" * mib}).encode()[: mib + 100],
        "escapes": b'{"question": "' + b"\\u0041" * (mib // 6) + b'"}',
        "numbers": b'{"question": [' + b"1," * (mib // 2 - 20) + b"1]}",
        "long numbers": b'{"question": ' + b"9" * mib + b"}",
        "brackets": b"[" * mib,
        "objects": b'{"a":' * (mib // 6) + b"1" + b"}" * (mib // 6),
        "keys": b"{" + b",".join(b'"%06d":1' % each for each in range(mib // 11)) + b"}",
        "same keys": b"{" + b",".join([b'"question":1'] * (mib // 13)) + b"}",
        "not UTF-8": b'{"question": "' + b"\xff" * mib + b'"}',
        "spaces": b" " * mib,
        "many messages": b'{"model":"postchain","messages":[' + b",".join([b'{"role":"x"}'] * (mib // 13)) + b"]}",
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", DOORS)
async def test_no_body_takes_more_than_a_second_per_megabyte(tmp_path: Path, path: str) -> None:
    """S8: in time of the processor, of the server and this client together."""
    async with served(tmp_path) as server:
        slowest: dict[str, float] = {}
        for name, body in _heavy().items():
            began = time.process_time()
            answer = await server.client.post(path, content=body, headers={"content-type": "application/json"})
            slowest[name] = (time.process_time() - began) / max(1.0, len(body) / 2**20)
            assert 400 <= answer.status_code < 500, (name, answer.status_code)
        assert max(slowest.values()) < SECONDS_FOR_A_MEGABYTE, slowest
        assert (await server.client.get("/api/threads")).json()["threads"] == []


async def _check_stored(server: Served, texts: list[str]) -> None:
    """What came in is in the ledger as it was, and comes back as JSON that no browser runs."""
    shown = ""
    for each in (await server.client.get("/api/threads?limit=1000")).json()["threads"]:
        answer = await server.client.get(f"/api/threads/{each['thread_id']}/messages")
        _check_headers(answer)
        shown += json.dumps(answer.json())
    assert [text for text in texts if json.dumps(text)[1:-1] not in shown] == []


def _check_headers(answer: Any) -> None:
    assert answer.headers["content-type"].startswith(("application/json", "application/problem+json"))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/choir", "/v1/chat/completions"])
async def test_markup_at_a_door_is_text_in_every_answer_and_error(tmp_path: Path, path: str) -> None:
    """S10: payloads as the question, the model, the type and the id: JSON with the policy, never HTML, never a header."""
    payloads = [each for each in PAYLOADS if each.strip()][:: 1 if "ANTIPHON_CHAOS" in os.environ else 16]
    async with served(tmp_path, model=SPEAKING) as server:
        for text in payloads:
            bodies = [DOORS[path](text)]
            if path == "/choir":
                bodies += [{"type": text}, {"type": "CREATE_THREAD", "id": text}, {"type": "CREATE_THREAD", "receiver": text}]
                bodies += [{"type": "GET_THREAD_STATUS", "data": {"thread_id": text}}, {text: 1}]
            else:
                question = [{"role": "user", "content": "?"}]
                bodies += [{"model": text, "messages": question}, {"model": "postchain", "messages": [{"role": text}]}]
                bodies += [{"model": "postchain", "messages": question, text or "x": True}]
            for body in bodies:
                answer = await server.client.post(path, json=body)
                _check_headers(answer)
                assert answer.status_code < 500, (answer.status_code, body)
                assert not any(text in value for value in answer.headers.values())
        await _check_stored(server, payloads if path != "/choir" else [])
