"""OpenAI Responses: requests, responses and bare lists of items."""

from antiphon.dialects.openai_responses._dialect import DIALECT

__all__ = ["DIALECT"]
