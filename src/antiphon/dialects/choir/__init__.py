"""Choir: JSON messages between actors. A Choir program imports its envelopes and types from `antiphon.protocol`."""

__all__: list[str] = []
