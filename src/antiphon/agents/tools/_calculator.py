"""`calculator`: arithmetic for agents."""

from __future__ import annotations

from typing import Any

from pydantic_ai import ModelRetry, Tool

from antiphon.agents.tools._arithmetic import CalculationError, calculate
from antiphon.agents.tools._effects import LOOKS

__all__ = ["calculator"]


def calculator() -> Tool[Any]:
    """Return the tool that calculates: exact to fifty digits, and with no way to run anything."""
    return Tool[Any](_calculator, name="calculator", metadata=LOOKS)


async def _calculator(expression: str) -> str:
    """Calculate an arithmetic expression, such as 2 * (3 + 4) ^ 2 or sqrt(2) / 3.

    Args:
        expression: Numbers, + - * / // % ^, parentheses, pi, e, and abs, ceil, cos, exp, floor, ln, log10, max, min,
            round, sin, sqrt, sum, tan.
    """
    try:
        return calculate(expression)
    except CalculationError as exc:
        raise ModelRetry(str(exc)) from exc
