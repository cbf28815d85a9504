"""Anthropic Messages: requests, responses and bare lists of messages."""

from antiphon.dialects.anthropic_messages._dialect import DIALECT

__all__ = ["DIALECT"]
