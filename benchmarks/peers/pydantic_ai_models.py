"""pydantic-ai: what its models make of its own messages to send them. Nothing in it waits, so it needs no event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks._messages import Case
from benchmarks.peers.pydantic_ai_ import messages

__all__ = ["mapping"]


def mapping(case: Case, target: str) -> Callable[[], object]:
    """Return the mapping to a provider's form, which is private there: it is called wherever a model is."""
    made, parameters = messages(case), ModelRequestParameters()
    openai = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(api_key="none"))
    anthropic = AnthropicModel("claude-sonnet-4-0", provider=AnthropicProvider(api_key="none"))
    google = GoogleModel("gemini-2.5-flash", provider=GoogleProvider(api_key="none"))
    begin: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "openai-chat": lambda: openai._map_messages(made, parameters),
        "anthropic-messages": lambda: anthropic._map_message(made, parameters, {}),
        "gemini": lambda: google._map_messages(made, parameters),
    }
    return lambda: _finished(begin[target]())


def _finished(coroutine: Coroutine[Any, Any, object]) -> object:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the mapping waits for something")
