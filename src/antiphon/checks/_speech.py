"""Moved to `antiphon.checks`."""

from antiphon.checks._view import PLACEHOLDER, same_breath, usual_role

__all__ = ["PLACEHOLDER", "same_breath", "usual_role"]
