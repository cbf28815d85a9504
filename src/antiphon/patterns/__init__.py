"""Patterns: ways in which agents work together, one folder each."""

__all__: list[str] = []
