"""Moved to `antiphon.messages._settings`."""

from antiphon.messages._settings import current_port, new_id, use_port

__all__ = ["current_port", "new_id", "use_port"]
