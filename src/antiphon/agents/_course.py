"""Earlier place of `as_key`, until the patterns import it from `antiphon.agents`."""

from antiphon.agents._opening import as_key

__all__ = ["as_key"]
