"""Earlier place of `price_of`, until the patterns import it from `antiphon.agents.extending`."""

from antiphon.agents.durability._model_request import price_of

__all__ = ["price_of"]
