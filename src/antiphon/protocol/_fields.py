"""Moved to `antiphon.protocol`."""

from antiphon.protocol._values import Object

__all__ = ["Object"]
