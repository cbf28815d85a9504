"""LiteLLM: messages of Chat Completions, which are its own form, to those of others. Only messages, not the whole request."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import asks the network for a list of prices

from litellm.litellm_core_utils.prompt_templates.factory import anthropic_messages_pt
from litellm.llms.vertex_ai.gemini.transformation import _gemini_convert_messages_with_history

__all__ = ["conversion"]


def conversion(chat: list[dict[str, Any]], target: str) -> Callable[[], object]:
    """Return the conversion from Chat Completions to a provider's form."""
    if target == "gemini":
        return lambda: _gemini_convert_messages_with_history(chat, model="gemini-2.5-flash")
    return lambda: anthropic_messages_pt(chat, model="claude-sonnet-4-0", llm_provider="anthropic")
