"""`/v1`: the real client of OpenAI on a real server, in its sync and its async form, with streams and without."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.fake_openai import ANSWER, fake_openai
from tests.server.running import SPEAKING, Served, served

from antiphon import service
from antiphon.errors import SetupError
from antiphon.ledger import ThreadFilter, open_ledger
from antiphon.server import ServerLimits, ServeSettings, serving

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = [{"role": "user", "content": "What is 17 * 23?"}]
TEAM = """
pattern = "options"
model = "openai-chat:fake"

[[agents]]
name = "ada"
role = "leader"
instructions = "Answer."
"""


@asynccontextmanager
async def _client(server: Served, token: str | None = None) -> AsyncGenerator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token or server.token, max_retries=0) as client:
        yield client


async def _raised(asked: Any) -> Any:
    with pytest.raises(openai.APIStatusError) as caught:
        await asked
    return caught.value


async def test_an_answer_is_a_thread_whole_and_in_pieces_for_the_sync_and_the_async_client(tmp_path: Path) -> None:
    async with served(tmp_path, model=SPEAKING) as server, _client(server) as client:
        whole = await client.chat.completions.create(model="postchain", messages=QUESTION, temperature=0.5)
        assert "391" in whole.choices[0].message.content
        assert (whole.object, whole.model, whole.choices[0].finish_reason) == ("chat.completion", "postchain", "stop")
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        thread = await server.ledger.thread(whole._request_id)
        assert (thread.pattern, thread.status) == ("postchain", "completed")
        answer = await client.chat.completions.with_raw_response.create(model="postchain", messages=QUESTION)
        assert await server.ledger.thread(answer.headers["x-antiphon-thread"]) is not None

        pieces = [
            each
            async for each in await client.chat.completions.create(
                model="postchain", messages=QUESTION, stream=True, stream_options={"include_usage": True}
            )
        ]
        text = "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
        assert len(pieces) > 4
        assert text.partition("\n\nSources")[0] == whole.choices[0].message.content.partition("\n\nSources")[0]
        assert [each.choices[0].finish_reason for each in pieces if each.choices][-1] == "stop"
        assert pieces[-1].usage.total_tokens == whole.usage.total_tokens
        assert all(each.usage is None for each in pieces[:-1])

        def sync() -> tuple[str, str, list[str]]:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0) as other:
                said = other.chat.completions.create(model="postchain", messages=QUESTION).choices[0].message.content
                stream = other.chat.completions.create(model="postchain", messages=QUESTION, stream=True)
                streamed = "".join(each.choices[0].delta.content or "" for each in stream)
                return said, streamed, [each.id for each in other.models.list()]

        said, streamed, models = await asyncio.to_thread(sync)
        assert ("391" in said, "391" in streamed, models) == (True, True, ["postchain"])


async def test_a_team_file_is_a_model_and_a_team_for_new_threads(tmp_path: Path) -> None:
    """The names are those of the files, or of their folders; no body carries a team."""
    teams = tuple(EXAMPLES / each / "team.toml" for each in ("analyse_csv", "review_markdown", "triage_mailbox"))
    async with served(tmp_path, teams=teams) as server, _client(server) as client:
        names = [each.id async for each in await client.models.list()]
        assert names == ["postchain", "analyse_csv", "review_markdown", "triage_mailbox"]
        assert (await client.models.retrieve("analyse_csv")).id == "analyse_csv"
        answers = [client.chat.completions.create(model=each, messages=QUESTION) for each in names]
        for name, answer in zip(names, await asyncio.gather(*answers), strict=True):
            assert answer.choices[0].message.content, name
            thread = await server.ledger.thread(answer._request_id)
            assert thread.status == "completed", name
        stream = await client.chat.completions.create(model="analyse_csv", messages=QUESTION, stream=True)
        assert "".join([each.choices[0].delta.content or "" async for each in stream])

        body = {"question": "How are the sales?", "team": "analyse_csv", "thread_id": "sales"}
        assert (await server.client.post("/api/threads", json=body)).json() == {"thread_id": "sales"}
        async with asyncio.timeout(20):
            while (await server.client.get("/api/threads/sales")).json()["status"] != "completed":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        again = await server.client.post("/api/threads/sales/turns", json={"question": "And the totals?"})
        assert again.status_code == 202
        refused = await server.client.post("/api/threads", json={"question": "x", "team": "/etc/passwd"})
        assert (refused.status_code, refused.json()["code"]) == (422, "not_valid")
        async with asyncio.timeout(20):
            while (await server.client.get("/api/health")).json()["runs"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_errors_have_the_form_and_the_status_of_the_provider(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "rm", "parameters": {}}}
    async with served(tmp_path, limits=ServerLimits(requests_per_second=200)) as server, _client(server) as client:
        create = client.chat.completions.create
        wrong: list[tuple[dict[str, Any], type[Exception], str, str | None]] = [
            ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found", "model"),
            ({"model": "../team.toml"}, openai.NotFoundError, "model_not_found", "model"),
            ({"tools": [tool]}, openai.BadRequestError, "unsupported_parameter", "tools"),
            ({"functions": [{"name": "f"}]}, openai.BadRequestError, "unsupported_parameter", "functions"),
            ({"extra_body": {"team": TEAM}}, openai.BadRequestError, "unsupported_parameter", "team"),
            ({"n": 2}, openai.BadRequestError, "not_valid", "n"),
            ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "not_valid", "response_format.type"),
            ({"messages": []}, openai.BadRequestError, "not_valid", "messages"),
            ({"messages": [{"role": "king", "content": "x"}]}, openai.BadRequestError, "decode", None),
            ({"messages": [{"role": "user", "content": "x" * 2_000_000}]}, openai.APIStatusError, "too_large", None),
        ]
        for change, kind, code, param in wrong:
            error = await _raised(create(**{"model": "postchain", "messages": QUESTION, **change}))
            assert (type(error) if kind is not openai.APIStatusError else openai.APIStatusError, error.code, error.param) == (
                kind,
                code,
                param,
            )
            assert error.type == "invalid_request_error"
            assert error.body["message"]
        assert not (await server.ledger.threads(ThreadFilter(system=False))).threads  # nothing was begun
        async with _client(server, "aph_none_x") as stranger:
            error = await _raised(stranger.chat.completions.create(model="postchain", messages=QUESTION))
            assert (type(error), error.code) == (openai.AuthenticationError, "invalid_api_key")
        reader = await service.make_token(server.ledger, "ada", ["read"])
        async with _client(server, reader.text) as other:
            error = await _raised(other.chat.completions.create(model="postchain", messages=QUESTION))
            assert (type(error), error.code) == (openai.NotFoundError, "not_found")
    async with served(tmp_path, limits=ServerLimits(requests_per_second=1)) as server, _client(server) as client:
        errors = [await _raised(client.models.retrieve("x")) for _ in range(3)]
        assert [type(each) for each in errors] == [openai.NotFoundError] * 2 + [openai.RateLimitError]
        assert (errors[-1].code, errors[-1].type) == ("rate_limit_exceeded", "rate_limit_error")
    async with served(tmp_path, limits=ServerLimits(runs=0)) as server, _client(server) as client:
        error = await _raised(client.chat.completions.create(model="postchain", messages=QUESTION))
        assert (error.status_code, error.type) == (503, "server_error")


async def test_the_conversation_is_the_history_and_its_open_calls_are_never_executed(tmp_path: Path) -> None:
    """G22: what comes in is talk: a call in it, even of a tool that the phases have, gets no result but an error."""
    call = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1 + 1"}'}}
    earlier: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "assistant", "tool_calls": [call]},
    ]
    async with served(tmp_path) as server, _client(server) as client:
        answer = await client.chat.completions.create(model="postchain", messages=[*earlier, *QUESTION])
        rows = [record.message async for record in server.ledger.read(answer._request_id)]
        assert "391" in answer.choices[0].message.content
        assert [each.policy for each in rows[:4]] == ["system", "user", "assistant", "assistant"]
        assert all(each.lane == "talk" for each in rows[:4])
        results = [each.payload for each in rows if each.kind == "option_result" and each.payload.invocation_id == "c1"]
        assert results
        assert all(each.is_error for each in results)
        begun = [each for each in rows if each.kind == "option_call" and each.lane == "effect"]
        assert "1 + 1" not in str(begun)
        last = await client.chat.completions.create(model="postchain", messages=earlier[:3])
        assert last.choices[0].message.content


async def test_the_same_request_with_a_key_joins_the_first_one(tmp_path: Path) -> None:
    async with served(tmp_path) as server, _client(server) as client:
        key = {"extra_headers": {"Idempotency-Key": "order-1"}}
        ask = client.chat.completions.create
        both = await asyncio.gather(*(ask(model="postchain", messages=QUESTION, **key) for _ in range(5)))
        later = await ask(model="postchain", messages=QUESTION, **key)
        assert len({each._request_id for each in (*both, later)}) == 1
        assert len({each.choices[0].message.content for each in (*both, later)}) == 1
        stream = await ask(model="postchain", messages=QUESTION, stream=True, **key)
        assert "".join([each.choices[0].delta.content or "" async for each in stream]) == later.choices[0].message.content
        error = await _raised(ask(model="postchain", messages=[{"role": "user", "content": "Other?"}], **key))
        assert (error.status_code, error.code) == (400, "idempotency_key_in_use")
        other = await service.make_token(server.ledger, "eve", ["send"])
        async with _client(server, other.text) as eve:
            answer = await eve.chat.completions.create(model="postchain", messages=QUESTION, **key)
        assert answer._request_id != later._request_id
        without = [await ask(model="postchain", messages=QUESTION) for _ in range(2)]
        assert without[0]._request_id != without[1]._request_id
        name = f"{service.EXCHANGE}x"
        refused = await server.client.post("/api/threads", json={"question": "x", "thread_id": name})
        assert refused.status_code == 422


async def test_a_client_that_goes_away_ends_its_thread_unless_it_can_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tea.toml").write_text(TEAM)
    with fake_openai() as fake:
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        async with served(tmp_path, teams=(tmp_path / "tea.toml",)) as server, _client(server) as client:
            ask = client.chat.completions.create
            for number, more in enumerate(({}, {"stream": True})):
                before = {each.thread_id for each in (await server.ledger.threads()).threads}
                fake.pause = 60
                asking = asyncio.ensure_future(ask(model="tea", messages=QUESTION, **more))
                async with asyncio.timeout(20):
                    while len(fake.asked) <= number:  # noqa: ASYNC110 (of another thread)
                        await asyncio.sleep(0.02)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                (own,) = {each.thread_id for each in (await server.ledger.threads()).threads} - before
                async with asyncio.timeout(20):
                    while (await server.ledger.thread(own)).status != "terminated":  # noqa: ASYNC110 (of the server)
                        await asyncio.sleep(0.05)
            fake.pause = 0.2
            key = {"extra_headers": {"Idempotency-Key": "tea"}}
            with pytest.raises(openai.APITimeoutError):
                await ask(model="tea", messages=QUESTION, timeout=0.3, **key)
            answer = await ask(model="tea", messages=QUESTION, **key)
            assert answer.choices[0].message.content.strip() == ANSWER
            assert answer.usage.total_tokens > 0


@pytest.mark.slow
async def test_a_server_closes_the_connections_of_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the six phases, and of a team that stays open for all requests. They were open until the process ended."""
    from pydantic_ai.providers.openai import OpenAIProvider

    (tmp_path / "tea.toml").write_text(TEAM)
    made: list[Any] = []
    create = OpenAIProvider._create_openai_client

    def watched(self: Any, **given: Any) -> Any:
        made.append(self)
        return create(self, **given)

    monkeypatch.setattr(OpenAIProvider, "_create_openai_client", watched)
    with fake_openai() as fake:
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        async with (
            served(tmp_path, model="openai-chat:fake", teams=(tmp_path / "tea.toml",)) as server,
            _client(server) as client,
        ):
            for name in ("postchain", "tea"):
                answer = await client.chat.completions.create(model=name, messages=QUESTION)
                assert answer.choices[0].message.content
    assert len(made) >= 2
    assert all(each.client.is_closed() for each in made)


async def test_a_model_that_fails_is_an_error_before_the_first_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tea.toml").write_text(TEAM)
    with fake_openai() as fake:
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        fake.failure = "401"
        async with served(tmp_path, teams=(tmp_path / "tea.toml",)) as server, _client(server) as client:
            for more in ({}, {"stream": True}):
                error = await _raised(client.chat.completions.create(model="tea", messages=QUESTION, **more))
                assert error.status_code in (500, 503)
                assert error.type == "server_error"
                assert error.response.headers["x-should-retry"] == "false"
                assert error.response.headers["x-antiphon-thread"] in str(error)


async def test_a_model_that_is_cut_off_is_an_error_in_the_middle_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has words; then its iteration raises, with the code and the thread. No chunk says that the answer ended.

    Each of the three attempts of the phase asks three times. An answer that is begun anew follows after an empty line.
    """
    with fake_openai() as fake:
        for name, value in fake.environment().items():
            monkeypatch.setenv(name, value)
        async with served(tmp_path, model="openai-chat:fake") as server, _client(server) as client:
            fake.failure, fake.fails_after = "cut", 5  # the last of six phases
            stream = await client.chat.completions.create(model="postchain", messages=QUESTION, stream=True)
            chunks: list[Any] = []

            async def read() -> None:
                async for chunk in stream:
                    chunks.append(chunk)  # noqa: PERF401 (an error ends it)

            with pytest.raises(openai.APIError) as caught:
                await read()
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert said.split("\n\n") == [ANSWER] * 9
            assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * len(chunks)
            assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
            assert stream.response.headers["x-antiphon-thread"] in str(caught.value)
            assert (caught.value.type, caught.value.code) == ("server_error", "agent_error")
            fake.failure = None  # the same client gets the next answer
            again = await client.chat.completions.create(model="postchain", messages=QUESTION)
            assert again.choices[0].message.content.strip() == ANSWER


async def test_two_teams_of_one_name_and_a_wrong_file_are_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "postchain.toml").write_text(TEAM)
    (tmp_path / "wrong.toml").write_text("pattern = 1")
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db", create=True) as ledger:
        for name in ("postchain.toml", "wrong.toml", "absent.toml"):
            with pytest.raises(SetupError):
                async with serving(ledger, ServeSettings(port=0, teams=(tmp_path / name,))):
                    pass
