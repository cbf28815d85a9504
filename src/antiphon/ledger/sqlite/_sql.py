"""Statements: a connection that finishes what it runs, with rows that type checkers understand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import apsw

__all__ = ["Connection", "Values"]

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Connection(apsw.Connection):
    """A connection whose statements are finished when they return, but for `each`."""

    def run(self, sql: str, values: Values = ()) -> None:
        """Run a statement whose rows, if any, do not matter."""
        for _ in self.each(sql, values):
            pass

    def run_all(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that gives no rows, for each of many values."""
        run = cast("Callable[..., object]", self.executemany)
        run(sql, values)

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return list(self.each(sql, values))

    def row(self, sql: str, values: Values = ()) -> tuple[Any, ...] | None:
        """Return the first row, if there is one."""
        return next(iter(self.rows(sql, values)), None)

    def value(self, sql: str, values: Values = ()) -> Any:
        """Return the first value of the first row, if there is one."""
        row = self.row(sql, values)
        return None if row is None else row[0]

    def setting(self, name: str, value: Any = None) -> Any:
        """Change one of SQLite's settings, or look at it."""
        pragma = cast("Callable[..., Any]", self.pragma)
        return pragma(name) if value is None else pragma(name, value)

    def define(self, name: str, function: Callable[[Any], Any]) -> None:
        """Make a pure function of one value known to statements, also to those inside views."""
        make = cast("Callable[..., None]", self.create_scalar_function)
        make(name, function, 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)

    def each(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Return rows as they are wanted."""
        # What is unknown to the type checker here stays here: the package's own types are not all there on each Python.
        found = self.execute(sql, values)  # pyright: ignore[reportUnknownMemberType]
        return cast("Iterator[tuple[Any, ...]]", found)
