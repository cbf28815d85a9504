"""Who may ask the server what: tokens, sessions, hosts, origins, bodies and limits. S8, S11, S12, G21, G23."""

import asyncio
import logging
import stat
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from tests.server.running import say, served

from antiphon import service
from antiphon.errors import NotWaitingError, SetupError
from antiphon.ledger import open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import DataPart, Message, PartsPayload
from antiphon.server import ServerLimits, ServeSettings, serving
from antiphon.server._access import Access, Caller
from antiphon.server._answers import HEADERS, Problem
from antiphon.service import TOKENS_THREAD, Scope

pytestmark = pytest.mark.slow


async def test_a_token_is_always_needed_and_every_answer_has_the_headers(tmp_path: Path) -> None:
    """S12: no token, a wrong one, an empty one, one in the query or of another kind: one answer, which tells nothing."""
    async with served(tmp_path, limits=ServerLimits(failures_per_second=100)) as server:
        wrong = server.token[:-1] + ("A" if server.token[-1] != "A" else "B")
        answers = []
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": f"Bearer {wrong}"},
            {"authorization": f"Bearer aph_aaaaaaaa_{'a' * 43}"},
            {"authorization": f"Basic {server.token}"},
            {"authorization": f"Bearer {'x' * 8000}"},
            {"cookie": f"antiphon-{server.port}={server.token}"},
            {"cookie": "a=b; antiphon=c"},
        ):
            async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
                paths = (
                    "/api/threads",
                    f"/api/threads?token={server.token}",
                    "/page/0/app.js",
                    "/api/nothing",
                    "/api/openapi.json",
                )
                answers += [await client.get(path) for path in paths]
        assert {(each.status_code, each.text) for each in answers} == {(401, answers[0].text)}
        right = [await server.client.get("/api/health"), await server.client.get("/nothing")]
        assert [each.status_code for each in right] == [200, 404]
        for each in (*answers, *right):
            assert {name: each.headers[name.decode()].encode() for name, _ in HEADERS} == dict(HEADERS)


async def test_a_token_of_a_megabyte_is_refused(tmp_path: Path) -> None:
    """S12: the headers of a request have a limit, before anything is compared."""
    async with served(tmp_path) as server:
        status, _ = await server.raw(
            "GET /api/health HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {'x' * 1_000_000}"
        )
        assert status in (0, 400, 431)
        assert (await server.client.get("/api/health")).status_code == 200


async def test_tries_without_a_token_are_limited_and_disturb_no_other_caller(tmp_path: Path) -> None:
    """S12: guessing is slow, and a caller with a token does not notice it."""
    async with served(tmp_path, limits=ServerLimits(failures_per_second=5)) as server:
        async with httpx2.AsyncClient(base_url=server.url) as stranger:
            tries = [401]
            while tries[-1] == 401 and len(tries) < 1000:  # on a slow machine, more are allowed meanwhile
                tries.append((await stranger.get("/api/health")).status_code)
        assert tries[:10] == [401] * 10
        assert tries[-1] == 429
        assert (await server.client.get("/api/health")).status_code == 200


async def test_requests_of_one_token_are_limited(tmp_path: Path) -> None:
    """G18: overload is a typed refusal, for that token only."""
    async with served(tmp_path, limits=ServerLimits(requests_per_second=5)) as server:
        made = await service.make_token(server.ledger, "ada")
        answers = [await server.client.get("/api/health")]
        while answers[-1].status_code == 200 and len(answers) < 1000:  # on a slow machine, more are allowed meanwhile
            answers.append(await server.client.get("/api/health"))
        assert [each.status_code for each in answers[:10]] == [200] * 10
        assert answers[-1].status_code == 429
        assert (answers[-1].json()["code"], answers[-1].headers["retry-after"]) == ("too_many", "1")
        async with server.as_token(made.text) as other:
            assert (await other.get("/api/health")).status_code == 200


async def test_scopes_allow_exactly_what_they_name_and_the_rest_is_absent(tmp_path: Path) -> None:
    """S12: a token without the scope gets the answer of a path that does not exist, for threads that exist or not."""
    async with served(tmp_path) as server:
        await say(server.ledger, "chat", "hello")
        missing = (await server.client.get("/api/threads/none")).text
        asked: list[tuple[Scope, str, str]] = [
            ("read", "GET", "/api/threads/chat"),
            ("send", "POST", "/api/threads/chat/fork"),
            ("control", "POST", "/api/threads/chat/terminate"),
            ("admin", "DELETE", "/api/threads/chat-2"),
        ]
        for scope, method, path in asked:
            others = [each for each in service.SCOPES if each != scope]
            without = await service.make_token(server.ledger, "ada", others)
            own = await service.make_token(server.ledger, "bob", [scope])
            body = {"json": {"into": "chat-2"} if scope == "send" else {}} if method == "POST" else {}
            async with server.as_token(without.text) as client:
                answer = await client.request(method, path, **body)
                assert (answer.status_code, answer.text) == (404, missing), scope
            async with server.as_token(own.text) as client:
                answer = await client.request(method, path, **body)
                assert answer.status_code in (200, 201, 409), (scope, answer.text)


async def test_a_revoked_or_expired_token_is_refused_also_in_a_session(tmp_path: Path) -> None:
    """S12: another process revokes it, and the next request is refused; so is the session that was opened with it."""
    async with served(tmp_path) as server:
        made = await service.make_token(server.ledger, "ada", ["read"], expires_in=timedelta(hours=1))
        brief = await service.make_token(server.ledger, "bob", ["read"], expires_in=timedelta(milliseconds=50))
        async with httpx2.AsyncClient(base_url=server.url) as browser, server.as_token(made.text) as client:
            opened = await browser.post("/api/session", json={"token": made.text})
            cookie = opened.headers["set-cookie"]
            assert opened.json()["principal"] == "ada"
            assert all(each in cookie for each in ("HttpOnly", "SameSite=Strict", "Path=/"))
            assert made.text not in cookie
            assert [(await each.get("/api/threads")).status_code for each in (browser, client)] == [200, 200]
            async with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as another:
                await service.revoke_token(another, made.token.id)
            assert [(await each.get("/api/threads")).status_code for each in (browser, client)] == [401, 401]
        await asyncio.sleep(0.06)
        async with server.as_token(brief.text) as client:
            assert (await client.get("/api/threads")).status_code == 401


async def test_a_code_opens_one_session_once(tmp_path: Path) -> None:
    """A code can stand in a URL's fragment: it works once, and a session ends when its browser says so."""
    async with served(tmp_path) as server:
        code = (await server.client.post("/api/codes", json={})).json()["code"]
        async with httpx2.AsyncClient(base_url=server.url, headers={"origin": server.url}) as browser:
            assert (await browser.post("/api/session", json={"code": code})).status_code == 200
            assert (await browser.get("/api/session")).json()["scopes"] == list(service.SCOPES)
            assert (await browser.delete("/api/session")).status_code == 200
            assert (await browser.get("/api/session")).status_code == 401
            assert (await browser.post("/api/session", json={"code": code})).status_code == 401
            assert (await browser.post("/api/session", json={})).status_code == 401
            assert (await browser.post("/api/session", json={"code": "x" * 300})).status_code == 422


async def test_nobody_ends_the_sessions_of_others_by_opening_many() -> None:
    """S12: sessions and codes of one token are limited, and so is how fast it opens sessions."""
    ledger = MemoryLedger()
    ada, bob = [await service.make_token(ledger, name) for name in ("ada", "bob")]
    access = Access(service.TokenBook(ledger), ServerLimits(requests_per_second=10_000), cookie="c", secure=True)
    _, cookie = await access.open_session(token=ada.text, code=None)
    code = access.new_code(Caller(ada.token, is_session=False))
    last = ""
    for _ in range(1001):
        _, last = await access.open_session(token=bob.text, code=None)
        access.new_code(Caller(bob.token, is_session=False))
    for text, name in ((cookie, "ada"), (last, "bob")):
        assert (await access.caller({b"cookie": text.partition(";")[0].encode()})).token.principal == name
    assert (await access.open_session(token=None, code=code))[0].principal == "ada"
    access = Access(service.TokenBook(ledger), ServerLimits(requests_per_second=1), cookie="c", secure=True)
    opening = [access.open_session(token=bob.text, code=None) for _ in range(1001)]
    with pytest.raises(Problem, match="too_many"):
        await asyncio.gather(*opening)


_HOSTS: list[tuple[list[str], int]] = [
    (["Host: evil.test"], 421),
    (["Host: 127.0.0.1.nip.io"], 421),
    (["Host: 127.0.0.1:1"], 421),
    (["Host: {host}", "Host: {host}"], 400),
    (["Host: {host}", "Host: evil.test"], 400),
    ([], 400),
    (["Host: {host}", "Origin: null"], 403),
    (["Host: {host}", "Origin: http://evil.test"], 403),
    (["Host: {host}", "Origin: http://localhost:3000"], 403),
    (["Host: {host}", "Origin: http://{host}.evil.test"], 403),
    (["Host: {host}", "Sec-Fetch-Site: cross-site"], 403),
    (["Host: {host}", "Sec-Fetch-Site: same-site"], 403),
    (["Host: {host}", "Origin: http://{host}", "Sec-Fetch-Site: same-origin"], 200),
    (["Host: localhost:{port}"], 200),
    (["Host: {host}"], 200),
]


async def test_another_host_or_origin_is_refused_even_with_a_token(tmp_path: Path) -> None:
    """S11: DNS rebinding, foreign pages, and pages of other ports of this machine; for the API and for event streams."""
    async with served(tmp_path) as server:
        for lines, status in _HOSTS:
            sent = [each.format(host=server.host, port=server.port) for each in lines]
            token = f"Authorization: Bearer {server.token}"
            for path in ("/api/threads", "/api/events?thread_id=none"):
                got, _ = await server.raw(f"GET {path} HTTP/1.1", *sent, token, "Connection: close")
                assert got == (404 if status == 200 and "events" in path else status), (path, lines)


async def test_a_form_of_another_page_changes_nothing(tmp_path: Path) -> None:
    """S11: types that a foreign page may send, a cookie without an Origin, methods that are not served, GET that changes."""
    async with served(tmp_path) as server:
        await say(server.ledger, "chat", "hello")
        path = "/api/threads/chat/terminate"
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""):
            answer = await server.client.post(path, content=b"{}", headers={"content-type": kind})
            assert (answer.status_code, answer.json()["code"]) == (415, "bad_type")
        for method in ("PUT", "PATCH", "OPTIONS", "HEAD", "TRACE"):
            assert (await server.client.request(method, path)).status_code == 405
        assert (await server.client.get(path)).status_code == 405
        zipped = {"content-type": "application/json", "content-encoding": "gzip"}
        assert (await server.client.post(path, content=b"{}", headers=zipped)).status_code == 415
        async with httpx2.AsyncClient(base_url=server.url) as browser:
            await browser.post("/api/session", json={"token": server.token})
            assert (await browser.post(path, json={})).status_code == 403
            assert (await browser.delete("/api/threads/chat")).status_code == 403
            assert (await browser.get("/api/threads/chat")).json()["status"] is None
            own = {"origin": server.url}
            assert (await browser.delete("/api/threads/chat", headers=own)).status_code == 200


async def test_a_server_that_others_reach_must_be_asked_for_and_needs_tokens() -> None:
    """S11: no bind to all addresses by mistake, none without a name, and none that nobody could use."""
    ledger = MemoryLedger()
    for settings, reason in (
        (ServeSettings("0.0.0.0", 0), "--allow-remote"),
        (ServeSettings("0.0.0.0", 0, allow_remote=True), "--allow-host"),
        (ServeSettings("0.0.0.0", 0, allow_remote=True, allow_hosts=("agents.test",)), "token make"),
    ):
        with pytest.raises(SetupError, match=reason):
            async with serving(ledger, settings):
                pass
    made = await service.make_token(ledger, "ada")
    settings = ServeSettings("0.0.0.0", 0, allow_remote=True, allow_hosts=("agents.test",))
    async with serving(ledger, settings) as server:
        assert server.token_file is None
        port = int(server.url.rpartition(":")[2])
        headers = {"authorization": f"Bearer {made.text}", "host": "agents.test"}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            assert (await client.get("/api/threads")).status_code == 200
            opened = await client.post("/api/session", json={"token": made.text})
            assert "Secure" in opened.headers["set-cookie"]
            assert (await client.get("/api/threads", headers={"host": f"127.0.0.1:{port}"})).status_code == 421


async def test_the_token_of_the_process_is_in_a_file_of_its_user_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G23: mode 0600, gone when the server ends; not in the ledger, not in a log, whatever is asked."""
    caplog.set_level(logging.DEBUG)
    folder = service.trust_list().parent
    async with served(tmp_path) as server:
        file = folder / f"server-{server.port}.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        made = await service.make_token(server.ledger, "ada")
        own = (
            f"Host: {server.host}",
            f"Authorization: Bearer {made.text}",
            "Connection: close",
        )  # a client would log it itself
        await server.raw(f"GET /api/threads?token={made.text} HTTP/1.1", *own)
        await server.raw(f"GET /api/threads/{made.text}%00 HTTP/1.1", *own)
        body = b'{"token": "%b", "more": "%b"}' % (made.text.encode(), made.text.encode())
        kind = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        status, answer = await server.raw("POST /api/session HTTP/1.1", *own, *kind, body=body)
        assert (status, made.text.encode() in answer) == (422, False)
        texts = [server.token, made.text, made.text.rpartition("_")[2]]
    assert not file.exists()
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    for text in texts:
        assert text.encode() not in stored
        assert text not in caplog.text


async def test_a_port_in_use_is_an_error_with_the_address(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        with pytest.raises(SetupError, match=f"127.0.0.1:{server.port}: "):
            async with serving(server.ledger, ServeSettings(port=server.port)):
                pass
        assert (await server.client.get("/api/health")).status_code == 200


# ---------------------------------------------------------------- the threads of the system


async def test_nobody_reads_or_writes_tokens_over_http(tmp_path: Path) -> None:
    """G22: the thread of the tokens is absent for every token, in every way to read or change a thread."""
    async with served(tmp_path) as server:
        made = await service.make_token(server.ledger, "ada")
        await say(server.ledger, "chat", "hello")
        own = TOKENS_THREAD.replace("/", "%2F")
        missing = (await server.client.get("/api/threads/none")).text
        for sub in ("", "/status", "/messages", "/export", "/sequence", "/timeline", "/replay", "/diff/chat"):
            answer = await server.client.get(f"/api/threads/{own}{sub}")
            assert (answer.status_code, answer.text) == (404, missing), sub
        for sub in ("/turns", "/fork", "/pause", "/resume", "/terminate", "/rerun"):
            body = {"question": "x"} if sub == "/turns" else {}
            assert (await server.client.post(f"/api/threads/{own}{sub}", json=body)).status_code == 404, sub
        assert (await server.client.get(f"/api/threads/chat/diff/{own}")).status_code == 404
        assert (await server.client.get(f"/api/events?thread_id={own}")).status_code == 404
        assert (await server.client.delete(f"/api/threads/{own}")).status_code == 404
        new = await server.client.post("/api/threads", json={"question": "x", "thread_id": "system/more"})
        assert (new.status_code, new.json()["code"]) == (422, "place")
        assert (await server.client.post("/api/threads/chat/fork", json={"into": TOKENS_THREAD})).status_code == 422
        for path in ("/api/threads?system=true", "/api/search?q=digest", f"/api/search?q={made.token.id}"):
            assert made.digest not in (await server.client.get(path)).text
            assert TOKENS_THREAD not in (await server.client.get(path)).text
        assert [each.id for each in await service.list_tokens(server.ledger)] == [made.token.id]


async def test_a_token_is_not_made_by_saying_so() -> None:
    """G22: only the runtime's own rows count. What comes from outside is talk, under another policy."""
    ledger = MemoryLedger()
    made = await service.make_token(ledger, "ada")
    (row,) = [each.message async for each in ledger.read(TOKENS_THREAD)]
    forged = service.draw_token("eve", service.SCOPES)
    value = {"made": forged.token.id, "principal": "eve", "scopes": ["admin"], "digest": forged.digest, "expires_at": None}
    payload = PartsPayload(parts=(DataPart(data=value),))
    for lane, policy in (("talk", "runtime"), ("control", "eve")):
        await ledger.append(TOKENS_THREAD, [Message(policy=policy, lane=lane, payload=payload)])  # type: ignore[arg-type]
    await ledger.append(TOKENS_THREAD, [row.model_copy(update={"id": "again"})], outside=True)
    book = service.TokenBook(ledger)
    assert await book.find(forged.text) is None
    assert (await book.find(made.text)) is not None
    assert [each.id for each in await service.list_tokens(ledger)] == [made.token.id]


@pytest.mark.parametrize(
    ("name", "scopes", "days"),
    [
        *((name, ["read"], 1) for name in ("", "-x", "a b", "ä", "x" * 65)),
        *(("ada", scopes, 1) for scopes in ([], ["write"])),
        *(("ada", ["read"], days) for days in (0, -1, 10**8)),
    ],
)
async def test_a_token_has_a_name_scopes_and_a_time(name: str, scopes: list[str], days: int) -> None:
    ledger = MemoryLedger()
    with pytest.raises(SetupError):
        await service.make_token(ledger, name, scopes, expires_in=timedelta(days=days))
    assert await service.list_tokens(ledger) == ()
    with pytest.raises(NotWaitingError):
        await service.revoke_token(ledger, "none")


async def test_tokens_follow_a_thread_that_was_written_anew() -> None:
    """A thread of the same length with other tokens is another one: its hash says so."""
    ledger = MemoryLedger()
    first = await service.make_token(ledger, "ada")
    book = service.TokenBook(ledger)
    assert await book.find(first.text) is not None
    await ledger.delete(TOKENS_THREAD)
    assert await book.find(first.text) is None
    second = await service.make_token(ledger, "bob")
    assert await book.find(first.text) is None
    assert await book.find(second.text) is not None


# ---------------------------------------------------------------- bodies


def _deep(levels: int) -> bytes:
    return b'{"result":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


_STRANGE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b'{"question": "a", "question": "b"}',
    b'{"question": NaN}',
    b'{"question": 1e400}',
    b'{"question": "\\ud800"}',
    b'{"question": "\xff"}',
    b'\xef\xbb\xbf{"question": "a"}',
    '{"question": "a"}'.encode("utf-16"),
    b'{"question": "a"} more',
    b'{"question": "a", "model": 3}',
    b'{"question": "a", "team": "x.toml"}',
    b'{"question": ""}',
    b'{"question": ' + b"1" * 5000 + b"}",
    b"[" * 100_000,
    _deep(65),
    _deep(200),
    _deep(1_000),
    b"[" + b"1," * 500_000 + b"1]",
    b"{" + b",".join(b'"%d":1' % each for each in range(60_000)) + b"}",
]


async def test_strange_json_is_refused_with_a_typed_answer(tmp_path: Path) -> None:
    """S8, G21: each within a second, and nothing is begun."""
    async with served(tmp_path) as server:
        for body in _STRANGE:
            async with asyncio.timeout(2):
                answer = await server.client.post("/api/threads", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 422, body[:40]
            assert answer.json()["code"] in ("bad_body", "not_valid")
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await server.client.get("/api/threads")).json()["threads"] == []


async def test_a_body_has_limits_of_size_and_time(tmp_path: Path) -> None:
    """S8: too large by its length or in fact, a length that lies, a body that ends early, chunks without end."""
    async with served(tmp_path, limits=ServerLimits(body_seconds=0.3)) as server:
        head = ["POST /api/threads HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {server.token}"]
        head.append("Content-Type: application/json")
        megabyte = 1024 * 1024
        assert (await server.raw(*head, f"Content-Length: {megabyte + 1}"))[0] == 413
        assert (await server.raw(*head, "Content-Length: 99999999999999999999"))[0] in (400, 413)
        assert (await server.raw(*head, "Content-Length: 5", "Content-Length: 6", body=b"12345"))[0] == 400
        assert (await server.raw(*head, "Content-Length: -1"))[0] == 400
        chunked = b"%x\r\n%b\r\n" % (megabyte + 1, b" " * (megabyte + 1))
        assert (await server.raw(*head, "Transfer-Encoding: chunked", body=chunked))[0] == 413
        assert (await server.raw(*head, "Transfer-Encoding: chunked", body=b"1\r\n{\r\n"))[0] == 408
        assert (await server.raw(*head, "Content-Length: 100", body=b'{"question"'))[0] == 408
        assert (await server.raw(*head, "Content-Length: 100", body=b'{"question"', ends=True))[0] in (0, 400)
        login = ["POST /api/session HTTP/1.1", f"Host: {server.host}", "Content-Type: application/json"]
        assert (await server.raw(*login, "Content-Length: 5000", body=b" " * 5000))[0] == 413
        assert (await server.client.get("/api/health")).status_code == 200
        assert (await server.client.get("/api/threads")).json()["threads"] == []


async def test_a_fault_of_the_server_is_logged_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G23: the text of an unexpected error may have messages in it."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret words")

    async with served(tmp_path) as server:
        monkeypatch.setattr(service, "list_hosts", broken)
        answer = await server.client.get("/api/hosts")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text + caplog.text
    assert "RuntimeError at test_security.py" in caplog.text
