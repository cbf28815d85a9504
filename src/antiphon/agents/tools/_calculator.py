"""`calculator`: arithmetic for agents, with its own parser, and with limits that keep every calculation fast.

The grammar, from the loosest to the tightest binding:

```
sum     = product (("+" | "-") product)*
product = sign (("*" | "/" | "//" | "%") sign)*
sign    = ("+" | "-") sign | power
power   = primary (("^" | "**") sign)?          so 2^3^2 is 2^9, and -2^2 is -4
primary = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
```

Numbers are decimal, with fifty digits, so that 0.1 + 0.2 is 0.3. Only the names in the two tables below are known.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from pydantic_ai import ModelRetry, Tool

from antiphon.errors import CalculationError

# ---------------------------------------------------------------- arithmetic

_LONGEST = 1000
_DEEPEST = 50
"""The nesting depth of parentheses, signs and powers."""
_MOST_DIGITS = 50
"""Digits of a number in the expression, and of the result."""
_NOUGHTS = 10
"""Zeros after the point before a number is written with an exponent."""
_LARGEST_EXPONENT = 1000
"""The largest exponent of a power, and of ten in a number."""
_CONTEXT = decimal.Context(
    prec=_MOST_DIGITS,
    Emax=9999,
    Emin=-9999,
    traps=[decimal.DivisionByZero, decimal.InvalidOperation, decimal.Overflow],
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|[-+*/%^(),×÷−])|(?P<end>$))",  # noqa: RUF001 (as people type them)
    re.ASCII,
)
_STRANGE = re.compile(r"\s*(\S)", re.ASCII)
_SPELLED = {"**": "^", "×": "*", "÷": "/", "−": "-"}  # noqa: RUF001


class _Token(NamedTuple):
    kind: str
    text: str
    place: int
    """Where it starts, counted from 1."""


def _by_float(function: Callable[[float], float]) -> Callable[[Decimal], Decimal]:
    return lambda value: Decimal(repr(function(float(value))))


_CONSTANTS: Mapping[str, Decimal] = {
    "pi": Decimal("3.1415926535897932384626433832795028841971693993751"),
    "e": Decimal("2.7182818284590452353602874713526624977572470937000"),
}
_OF_ONE: Mapping[str, Callable[[Decimal], Decimal]] = {
    "abs": abs,
    "sqrt": _CONTEXT.sqrt,
    "exp": _CONTEXT.exp,
    "ln": _CONTEXT.ln,
    "log": _CONTEXT.log10,
    "log10": _CONTEXT.log10,
    "floor": lambda value: value.to_integral_value(decimal.ROUND_FLOOR),
    "ceil": lambda value: value.to_integral_value(decimal.ROUND_CEILING),
    "round": lambda value: value.to_integral_value(decimal.ROUND_HALF_EVEN),
    "sin": _by_float(math.sin),
    "cos": _by_float(math.cos),
    "tan": _by_float(math.tan),
}
_OF_SEVERAL: Mapping[str, Callable[[Sequence[Decimal]], Decimal]] = {
    "min": min,
    "max": max,
    "sum": lambda values: sum(values, Decimal()),
}


def calculate(expression: str) -> str:
    """Return the value of an expression, as a decimal number of at most fifty digits.

    Raises:
        CalculationError: it is not an expression, too long or too deep, or has no value.
    """
    if len(expression) > _LONGEST:
        raise CalculationError(f"the expression has {len(expression)} characters; at most {_LONGEST} are calculated")
    with decimal.localcontext(_CONTEXT):
        try:
            return _shown(_Parser(expression).expression())
        except decimal.Overflow:
            raise CalculationError("it becomes too large") from None
        except (decimal.InvalidOperation, decimal.DivisionByZero, ValueError, OverflowError) as exc:
            raise (exc if isinstance(exc, CalculationError) else CalculationError("it has no value")) from None


def _shown(value: Decimal) -> str:
    """Return a number without trailing zeros, and without an exponent unless most digits would be zeros."""
    if not value.is_finite():
        raise CalculationError("it has no value")
    plain = value.normalize()
    if not plain:
        return "0"
    return format(plain, "f" if -_NOUGHTS < plain.adjusted() < _MOST_DIGITS else "E")


class _Parser:
    """A recursive descent parser: one token of lookahead, a method for each rule."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._depth = 0
        self._at = 0
        self._token = self._next()

    def expression(self) -> Decimal:
        value = self._sum()
        if self._token.kind != "end":
            raise self._unexpected()
        return value

    def _sum(self) -> Decimal:
        value = self._product()
        while self._token.text in ("+", "-"):
            is_plus = self._taken().text == "+"
            other = self._product()
            value = value + other if is_plus else value - other
        return value

    def _product(self) -> Decimal:
        value = self._sign()
        while self._token.text in ("*", "/", "//", "%"):
            value = _divided(value, self._taken().text, self._sign())
        return value

    def _sign(self) -> Decimal:
        if self._token.text not in ("+", "-"):
            return self._power()
        is_minus = self._taken().text == "-"
        value = self._within(self._sign)
        return -value if is_minus else value

    def _power(self) -> Decimal:
        base = self._primary()
        if self._token.text != "^":
            return base
        self._taken()
        exponent = self._within(self._sign)
        if abs(exponent) > _LARGEST_EXPONENT:
            raise CalculationError(f"the exponent {_shown(exponent)} is beyond {_LARGEST_EXPONENT}")
        return base**exponent

    def _primary(self) -> Decimal:
        token = self._taken()
        if token.kind == "number":
            return _number(token)
        if token.kind == "name":
            return self._named(token)
        if token.text == "(":
            value = self._within(self._sum)
            self._expect(")")
            return value
        raise self._unexpected(token)

    def _named(self, token: _Token) -> Decimal:
        name = token.text.lower()
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name not in _OF_ONE and name not in _OF_SEVERAL:
            names = ", ".join(sorted([*_CONSTANTS, *_OF_ONE, *_OF_SEVERAL]))
            raise CalculationError(f"{token.text!r} at {token.place} is not known; known are {names}")
        self._expect("(")
        values = [self._within(self._sum)]
        while self._token.text == ",":
            self._taken()
            values.append(self._within(self._sum))
        self._expect(")")
        if name in _OF_SEVERAL:
            return _OF_SEVERAL[name](values)
        if len(values) != 1:
            raise CalculationError(f"{name} at {token.place} takes one number, not {len(values)}")
        return +_OF_ONE[name](values[0])

    def _within(self, rule: Callable[[], Decimal]) -> Decimal:
        """Go one level deeper."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise CalculationError(f"it is nested more than {_DEEPEST} deep at {self._token.place}")
        value = rule()
        self._depth -= 1
        return value

    def _expect(self, text: str) -> None:
        if self._token.text != text:
            raise self._unexpected(expected=text)
        self._taken()

    def _taken(self) -> _Token:
        taken, self._token = self._token, self._next()
        return taken

    def _next(self) -> _Token:
        match = _TOKEN.match(self._expression, self._at)
        if match is None:
            strange = _STRANGE.match(self._expression, self._at)
            place = strange.start(1) if strange is not None else self._at
            raise CalculationError(f"{self._expression[place]!r} at {place + 1} is nothing that can be calculated")
        self._at = match.end()
        kind = match.lastgroup or "end"
        text = match[kind]
        return _Token(kind, _SPELLED.get(text, text), match.start(kind) + 1)

    def _unexpected(self, token: _Token | None = None, expected: str = "a number") -> CalculationError:
        token = token or self._token
        met = "it ends" if token.kind == "end" else f"{token.text!r} stands at {token.place}"
        return CalculationError(f"{met} where {expected} should be")


def _number(token: _Token) -> Decimal:
    digits, _, exponent = token.text.lower().partition("e")
    if len(digits) > _MOST_DIGITS or (exponent and (len(exponent) > len("-9999") or abs(int(exponent)) > _LARGEST_EXPONENT)):
        raise CalculationError(f"the number at {token.place} is too long; at most {_MOST_DIGITS} digits are calculated")
    return Decimal(token.text)


def _divided(value: Decimal, sign: str, other: Decimal) -> Decimal:
    """Return a product, a quotient or a remainder; as in Python, the remainder has the sign of the divisor."""
    if sign == "*":
        return value * other
    if not other:
        raise CalculationError("it divides by zero")
    match sign:
        case "/":
            return value / other
        case "//":
            return ((value - _rest(value, other)) / other).to_integral_value()
        case _:
            return _rest(value, other)


def _rest(value: Decimal, other: Decimal) -> Decimal:
    rest = value % other
    return rest + other if rest and (rest < 0) != (other < 0) else rest


# ---------------------------------------------------------------- the tool


_METADATA: dict[str, Any] = {"antiphon": {"effects": "none", "allows_untrusted": True}}
"""It changes nothing, and its result is trusted."""


def calculator() -> Tool[Any]:
    """Return the calculator tool: exact to fifty digits, and unable to run code."""
    return Tool[Any](_calculator, name="calculator", metadata=_METADATA)


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
