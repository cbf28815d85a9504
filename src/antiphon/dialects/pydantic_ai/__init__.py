"""Pydantic AI: message histories as its `ModelMessagesTypeAdapter` stores them."""

from antiphon.dialects.pydantic_ai._dialect import DIALECT

__all__ = ["DIALECT"]
