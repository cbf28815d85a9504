"""Statements: a connection that finishes what it runs, with rows that type checkers understand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import apsw

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Connection(apsw.Connection):
    """A connection whose statements are finished when they return, but for `each`."""

    def __init__(self, path: str, flags: int, vfs: str | None = None) -> None:
        super().__init__(path, flags=flags, vfs=vfs)
        # What is unknown to the type checker here stays here: the package's own types are not all there on each Python.
        cursor = self.cursor()  # one for all that are finished: to make one takes as long as to run a short statement
        self._run = cast("Callable[[str, Values], Iterator[tuple[Any, ...]]]", cursor.execute)
        self._run_all = cast("Callable[[str, Sequence[Values]], object]", cursor.executemany)

    def run(self, sql: str, values: Values = ()) -> None:
        """Run a statement whose rows, if any, do not matter."""
        for _ in self._run(sql, values):
            pass

    def run_all(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that gives no rows, for each of many values."""
        if len(values) == 1:
            self._run(sql, values[0])
        else:
            self._run_all(sql, values)

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return list(self._run(sql, values))

    def row(self, sql: str, values: Values = ()) -> tuple[Any, ...] | None:
        """Return the first row, if there is one."""
        return next(iter(self.rows(sql, values)), None)

    def value(self, sql: str, values: Values = ()) -> Any:
        """Return the first value of the first row, if there is one."""
        row = self.row(sql, values)
        return None if row is None else row[0]

    def setting(self, name: str, value: object = None) -> Any:
        """Change one of SQLite's settings, or look at it."""
        pragma = cast("Callable[..., Any]", self.pragma)
        return pragma(name) if value is None else pragma(name, value)

    def define(self, name: str, function: Callable[[Any], Any]) -> None:
        """Make a pure function of one value known to statements, also to those inside views."""
        make = cast("Callable[..., None]", self.create_scalar_function)
        make(name, function, 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)

    def each(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Return rows as they are wanted."""
        found = self.execute(sql, values)  # pyright: ignore[reportUnknownMemberType]
        return cast("Iterator[tuple[Any, ...]]", found)
