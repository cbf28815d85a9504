"""What an answer cost, by the prices of `genai-prices`."""

from __future__ import annotations

from decimal import Decimal

from pydantic_ai.messages import ModelResponse

__all__ = ["price_of"]


def price_of(response: ModelResponse) -> Decimal | None:
    """Return what an answer cost in US dollars; None where no price is known."""
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, ArithmeticError):
        return None
