"""Earlier place of `as_key`, until the patterns import it from `antiphon.agents.extending`."""

from antiphon.messages.keys import as_key

__all__ = ["as_key"]
