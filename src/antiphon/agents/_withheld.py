"""Earlier place of `SENSITIVE`, until the patterns import it from `antiphon.agents.extending`."""

from antiphon.agents._secrets import SENSITIVE

__all__ = ["SENSITIVE"]
