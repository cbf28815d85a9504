"""What a CSV file says: its columns, and sums by group, exact to six digits after the point."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias

from pydantic_ai import ModelRetry

__all__ = ["How", "columns_of", "grouped"]

How: TypeAlias = Literal["count", "sum", "mean", "min", "max"]

_MOST_GROUPS = 100
_MOST_SHOWN = 10

_HOW: Mapping[How, Callable[[Sequence[Decimal]], Decimal]] = {
    "count": lambda values: Decimal(len(values)),
    "sum": lambda values: sum(values, Decimal(0)),
    "mean": lambda values: sum(values, Decimal(0)) / len(values),
    "min": min,
    "max": max,
}


def columns_of(text: str) -> dict[str, Any]:
    """Return how many rows there are, and of each column what is in it.

    Raises:
        ModelRetry: it is no table.
    """
    rows, names = _rows(text)
    return {"rows": len(rows), "columns": {name: _column([row[name] for row in rows]) for name in names}}


def grouped(text: str, by: str, column: str, how: How) -> dict[str, str]:
    """Return a number for each value of one column: of all the numbers in another, how many, the sum, and so on.

    Raises:
        ModelRetry: it is no table, or there is no such column.
    """
    rows, names = _rows(text)
    for name in (by, column):
        if name not in names:
            raise ModelRetry(f"there is no column {name!r}; there are {', '.join(names)}")
    values: dict[str, list[Decimal]] = {}
    for row in rows:
        number = Decimal(1) if how == "count" and row[column] else _number(row[column])
        if number is not None:
            values.setdefault(row[by], []).append(number)
    found = {group: _HOW[how](numbers) for group, numbers in values.items()}
    largest = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_MOST_GROUPS]
    return {group: _shown(number) for group, number in largest}


def _rows(text: str) -> tuple[list[dict[str, str]], list[str]]:
    try:
        dialect: Any = csv.Sniffer().sniff(text[:10_000], delimiters=",;\t|")
    except csv.Error:
        dialect = csv.excel
    reader = csv.DictReader(io.StringIO(text, newline=""), dialect=dialect, restkey="", restval="")
    try:
        rows = [{name: value for name, value in row.items() if name} for row in reader]
    except csv.Error as exc:
        raise ModelRetry(f"this is no table: {exc}") from exc
    names = [name for name in reader.fieldnames or () if name]
    if not names:
        raise ModelRetry("this is no table: its first line has no names")
    return rows, names


def _column(values: list[str]) -> dict[str, Any]:
    there = [value for value in values if value]
    numbers = [number for value in there if (number := _number(value)) is not None]
    about: dict[str, Any] = {"empty": len(values) - len(there), "different": len(set(there))}
    if numbers and len(numbers) == len(there):
        return about | {how: _shown(_HOW[how](numbers)) for how in ("sum", "mean", "min", "max")}
    if len(set(there)) <= _MOST_SHOWN:
        about["values"] = sorted(set(there))
    return about


def _number(value: str) -> Decimal | None:
    try:
        number = Decimal(value.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _shown(number: Decimal) -> str:
    return f"{round(number, 6).normalize():f}"
