"""Moved to `antiphon.messages._content`."""

from antiphon.messages._content import Count, Part, Text

__all__ = ["Count", "Part", "Text"]
