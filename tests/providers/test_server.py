"""What we give a real SDK reaches the provider as it is, and what the provider answers reaches us as it is."""

from typing import Any

import pytest
from tests.providers.clients import ask
from tests.providers.samples import Kind, Sample, samples
from tests.providers.server import event_stream, send, serving
from tests.providers.types import differences, in_one_spelling

WITH_A_CLIENT = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
REQUESTS = [each for dialect in WITH_A_CLIENT for each in samples(dialect, "request")]
ANSWERS = [each for dialect in WITH_A_CLIENT for kind in ("response", "stream") for each in samples(dialect, kind)]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_is_sent_as_it_was_given(request_: Sample) -> None:
    sent = send(request_.dialect, request_.body).sent.body

    assert _changed(request_.dialect, "request", request_.body, sent) == []


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_an_answer_is_received_as_it_was_sent(answer: Sample) -> None:
    """Vendors' extensions too: they are in a sample."""
    request = samples(answer.dialect, "request")[0].body

    received = send(answer.dialect, request, answer.body).received

    assert _changed(answer.dialect, answer.kind, answer.body, received) == []


def _changed(dialect: str, kind: Kind, before: Any, after: Any) -> list[str]:
    return differences(in_one_spelling(dialect, kind, before), in_one_spelling(dialect, kind, after))


@pytest.mark.parametrize("dialect", WITH_A_CLIENT)
def test_a_stream_is_asked_for_as_such(dialect: str) -> None:
    (stream,) = samples(dialect, "stream")

    path, body = send(dialect, samples(dialect, "request")[0].body, stream.body).sent

    assert body.get("stream") or path.endswith(":streamGenerateContent?alt=sse")


def test_the_openai_client_asks_the_paths_of_both_its_formats() -> None:
    dialects = ("openai-chat", "openai-responses")

    paths = [send(dialect, samples(dialect, "request")[0].body).sent.path for dialect in dialects]

    assert paths == ["/v1/chat/completions", "/v1/responses"]


def test_an_exchange_without_an_answer_fails() -> None:
    """Nobody waits, and no SDK tries again."""
    import openai

    with serving() as provider:
        with pytest.raises(openai.InternalServerError, match="no answer was prepared"):
            ask("openai-chat", samples("openai-chat", "request")[0].body, provider.url)
        assert len(provider.requests) == 1


def test_streams_are_framed_as_each_provider_frames_them() -> None:
    event = {"type": "ping", "text": "å\n"}
    data = b'data: {"type": "ping", "text": "\\u00e5\\n"}\n\n'

    assert event_stream("anthropic-messages", [event, event]) == (b"event: ping\n" + data) * 2
    assert event_stream("openai-responses", [event]) == b"event: ping\n" + data
    assert event_stream("gemini", [event]) == data
    assert event_stream("openai-chat", [event]) == data + b"data: [DONE]\n\n"
