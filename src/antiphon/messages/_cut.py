"""Moved to `antiphon.messages.truncation`."""

from antiphon.messages.truncation import cut, cut_text

__all__ = ["cut", "cut_text"]
