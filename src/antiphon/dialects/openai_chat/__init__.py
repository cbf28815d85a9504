"""OpenAI Chat Completions: requests, responses and bare lists of messages."""

from antiphon.dialects.openai_chat._dialect import DIALECT

__all__ = ["DIALECT"]
