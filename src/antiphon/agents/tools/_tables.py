"""CSV files: columns, and sums by group, exact to six decimal places.

Rows are kept as written, and not padded to the number of columns: a header of thousands of columns above as many empty lines
would become millions of cells. A table that is too large for a model, or takes too long, is refused.
"""

from __future__ import annotations

import csv
import decimal
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

from pydantic_ai import ModelRetry

How: TypeAlias = Literal["count", "sum", "mean", "min", "max"]

_MOST_COLUMNS: Final = 500
_MOST_CELLS: Final = 1_000_000
_LONGEST_LINE: Final = 100_000
_LONGEST_NUMBER: Final = 50
"""The maximum length of a number in characters, and its largest power of ten in both directions. A longer number is text."""
_MOST_GROUPS: Final = 100
_MOST_SHOWN: Final = 10
_MOST_SUMMED: Final = 20
"""The maximum number of different values of a column by which totals are grouped."""
_MOST_TOTALS: Final = 12
"""The maximum number of lines of totals."""
_LONGEST_SHOWN: Final = 100
"""The maximum length of a shown value or name, in characters."""
_DELIMITERS: Final = ",;\t|"
_QUOTED: Final = re.compile(r'"[^"]*"')
_CONTEXT: Final = decimal.Context(prec=4 * _LONGEST_NUMBER)
"""Sums are exact: numbers have at most 50 digits before the point and 100 after it."""

_HOW: Mapping[How, Callable[[Sequence[Decimal]], Decimal]] = {
    "count": lambda values: Decimal(len(values)),
    "sum": lambda values: sum(values, Decimal(0)),
    "mean": lambda values: sum(values, Decimal(0)) / len(values),
    "min": min,
    "max": max,
}


def columns_of(text: str) -> dict[str, Any]:
    """Return the number of rows, and a summary of each column.

    Raises:
        ModelRetry: it is not a table, or too large.
    """
    rows, names = _rows(text)
    with decimal.localcontext(_CONTEXT):
        about = {_short(name): _column([_cell(row, place) for row in rows]) for name, place in names.items()}
    return {"rows": len(rows), "columns": about}


def grouped(text: str, by: str, column: str, how: How) -> dict[str, str]:
    """Return a number for each value of one column: the count, sum and so on of the numbers in another column.

    Raises:
        ModelRetry: it is not a table, or too large, or there is no such column.
    """
    rows, names = _rows(text)
    for name in (by, column):
        if name not in names:
            there = ", ".join(_short(each) for each in [*names][:_MOST_GROUPS])
            raise ModelRetry(f"there is no column {_short(name)!r}; there are {there}")
    values: dict[str, list[Decimal]] = {}
    for row in rows:
        said = _cell(row, names[column])
        number = Decimal(1) if how == "count" and said else _number(said)
        if number is not None:
            values.setdefault(_cell(row, names[by]), []).append(number)
    with decimal.localcontext(_CONTEXT):
        found = {group: _HOW[how](numbers) for group, numbers in values.items()}
        largest = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_MOST_GROUPS]
        return {_short(group): _shown(number) for group, number in largest}


def totals(text: str) -> str:
    """Return the sums of every column of numbers by every column of words, a line each: `- revenue by city: Oslo 3, Rome 2`.

    A column of words with too many different values has no groups. Without any groups, it is the sum of all rows.

    Raises:
        ModelRetry: it is not a table, too large, or has no column of numbers.
    """
    rows, names = _rows(text)
    cells = {name: [cell for row in rows if (cell := _cell(row, place))] for name, place in names.items()}
    numbers = [name for name, there in cells.items() if there and all(_number(cell) is not None for cell in there)]
    if not numbers:
        there = ", ".join(_short(each) for each in [*names][:_MOST_GROUPS])
        raise ModelRetry(f"there is no column of numbers; there are {there}")
    words = [name for name in names if name not in numbers and 0 < len(set(cells[name])) <= _MOST_SUMMED]
    pairs = [(column, by) for column in numbers for by in words][:_MOST_TOTALS]
    if not pairs:
        with decimal.localcontext(_CONTEXT):
            sums = {name: sum((Decimal(cell.strip()) for cell in cells[name]), Decimal(0)) for name in numbers[:_MOST_TOTALS]}
            return "\n".join(f"- {_short(name)}: {_shown(number)}" for name, number in sums.items())
    return "\n".join(f"- {_short(column)} by {_short(by)}: {_line(grouped(text, by, column, 'sum'))}" for column, by in pairs)


def _line(sums: Mapping[str, str]) -> str:
    return ", ".join(f"{group or '(empty)'} {number}" for group, number in sums.items())


def _rows(text: str) -> tuple[list[list[str]], dict[str, int]]:
    """Return the rows, and the position of each column in a row."""
    lines = _lines(text)
    first = next(lines, "")
    plain = _QUOTED.sub("", first)
    delimiter = max(_DELIMITERS, key=plain.count)
    is_spaced = 0 < plain.count(delimiter) == plain.count(f"{delimiter} ")
    reader = csv.reader(chain([first], lines), delimiter=delimiter, skipinitialspace=is_spaced)
    cells, rows = 0, list[list[str]]()
    try:
        header = next(reader, list[str]())
        for row in reader:
            cells += max(len(row), 1)
            if cells > _MOST_CELLS:
                raise ModelRetry(f"the table has more than {_MOST_CELLS} cells")
            if row:
                rows.append(row)
    except csv.Error as exc:
        raise ModelRetry(f"this is no table: {exc}") from exc
    names = {name: place for place, name in enumerate(header) if name}
    if not names:
        raise ModelRetry("this is no table: its first line has no names")
    if len(names) > _MOST_COLUMNS or len(names) * len(rows) > _MOST_CELLS:
        limits = f"at most {_MOST_COLUMNS} columns and {_MOST_CELLS} cells are read"
        raise ModelRetry(f"the table has {len(names)} columns and {len(rows)} rows; {limits}")
    return rows, names


def _lines(text: str) -> Iterator[str]:
    """Yield lines for the CSV reader. It parses a whole line at once, and blocks the event loop meanwhile."""
    for line in io.StringIO(text, newline=""):
        if len(line) > _LONGEST_LINE:
            raise ModelRetry(f"this is no table: a line has more than {_LONGEST_LINE} characters")
        yield line


def _cell(row: list[str], place: int) -> str:
    return row[place] if place < len(row) else ""


def _column(values: list[str]) -> dict[str, Any]:
    there = [value for value in values if value]
    different = set(there)
    numbers = [number for value in there if (number := _number(value)) is not None]
    about: dict[str, Any] = {"empty": len(values) - len(there), "different": len(different)}
    if numbers and len(numbers) == len(there):
        return about | {how: _shown(_HOW[how](numbers)) for how in ("sum", "mean", "min", "max")}
    if len(different) <= _MOST_SHOWN:
        about["values"] = sorted(_short(value) for value in different)
    return about


def _number(value: str) -> Decimal | None:
    """Return a number; None if it is not one, or if its decimal form would be too long."""
    plain = value.strip()
    if len(plain) > _LONGEST_NUMBER:
        return None
    try:
        number = Decimal(plain)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= _LONGEST_NUMBER else None


def _shown(number: Decimal) -> str:
    return f"{(round(number, 6) + 0).normalize():f}"  # zero has no sign


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"
