"""Earlier place of `as_key`, until the patterns import it from `antiphon.agents`."""

from antiphon.messages.keys import as_key

__all__ = ["as_key"]
