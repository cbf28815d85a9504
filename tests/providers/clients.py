"""The providers' own SDK clients, each asked in one way: send this body there, give back what you received as plain JSON."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["ask", "google_genai"]

_PATIENCE = 60
"""Seconds until a silent server is a failure."""

_OF_THE_SDK = {"sdk_http_response", "automatic_function_calling_history", "parsed"}
"""What google-genai adds to an answer."""


def ask(dialect: str, body: Any, url: str, *, stream: bool = False) -> Any:
    """Send `body` to `url` with the SDK of the dialect's provider, and return what the SDK received.

    A whole answer is one JSON value; a stream is the list of its events. Nothing is retried, and no proxy of the environment
    is asked.
    """
    return _ASK[dialect](body, url, stream)


def _openai_chat(body: Any, url: str, stream: bool) -> Any:
    with _openai(url) as client:
        return _received(client.chat.completions.create(**_asking(body, stream)), _plain, stream)


def _openai_responses(body: Any, url: str, stream: bool) -> Any:
    with _openai(url) as client:
        return _received(client.responses.create(**_asking(body, stream)), _plain, stream)


def _openai(url: str) -> Any:
    import openai

    direct = openai.DefaultHttpxClient(trust_env=False, verify=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=direct, max_retries=0, timeout=_PATIENCE)


def _anthropic_messages(body: Any, url: str, stream: bool) -> Any:
    import anthropic

    direct = anthropic.DefaultHttpxClient(trust_env=False, verify=False)
    with anthropic.Anthropic(base_url=url, api_key="none", http_client=direct, max_retries=0, timeout=_PATIENCE) as client:
        return _received(client.messages.create(**_asking(body, stream)), _plain, stream)


def _gemini(body: Any, url: str, stream: bool) -> Any:
    """Ask as the enterprise endpoint's client does: the other one drops citations and times from what it receives."""
    config = {key: value for key, value in body.items() if key not in {"contents", "generationConfig"}}
    config |= body.get("generationConfig", {})
    direct = {"trust_env": False, "verify": False}
    options = {"base_url": url, "client_args": direct, "timeout": _PATIENCE * 1000}
    with google_genai().Client(vertexai=True, api_key="none", http_options=options) as client:
        create = client.models.generate_content_stream if stream else client.models.generate_content
        return _received(create(model="gemini", contents=body["contents"], config=config), _plain_google, stream)


def _asking(body: Any, stream: bool) -> Any:
    return {**body, "stream": True} if stream else body


def _received(answer: Any, plain: Callable[[Any], Any], stream: bool) -> Any:
    return [plain(event) for event in answer] if stream else plain(answer)


def _plain(answer: Any) -> Any:
    return answer.to_dict(mode="json")


def _plain_google(answer: Any) -> Any:
    return answer.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=_OF_THE_SDK)


@cache
def google_genai() -> Any:
    """Import google-genai. Python warns of an odd escape in its source when it compiles it, and warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google import genai

    return genai


_ASK: dict[str, Callable[[Any, str, bool], Any]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic-messages": _anthropic_messages,
    "gemini": _gemini,
}
