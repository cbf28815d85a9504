"""Moved to `antiphon.messages._settings`."""

from antiphon.messages._settings import DEFAULT_LIMITS, NO_LIMITS, Limits, current_limits, use_limits

__all__ = ["DEFAULT_LIMITS", "NO_LIMITS", "Limits", "current_limits", "use_limits"]
