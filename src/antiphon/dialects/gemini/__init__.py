"""Gemini generateContent: requests, responses and bare lists of contents."""

from antiphon.dialects.gemini._dialect import DIALECT

__all__ = ["DIALECT"]
