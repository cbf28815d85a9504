"""A connection that runs each statement to its end, with typed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import apsw

from antiphon.ledger._encryption import Keyring
from antiphon.ledger._hosts import BootClock, LeaseClock

NO_KEYS = Keyring()
"""Opens no encrypted thread."""

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Connection(apsw.Connection):
    """A connection whose methods return when their statement has ended, except `each`."""

    def __init__(self, path: str, flags: int, vfs: str | None = None) -> None:
        super().__init__(path, flags=flags, vfs=vfs)
        # Only this class has casts: the package does not provide all its types for each version of Python.
        cursor = self.cursor()  # shared by all methods except `each`: making a cursor takes as long as a short statement
        self._run = cast("Callable[[str, Values], Iterator[tuple[Any, ...]]]", cursor.execute)
        self._run_all = cast("Callable[[str, Sequence[Values]], object]", cursor.executemany)
        self.keyring = NO_KEYS
        """The keys of encrypted threads."""
        self.clock: LeaseClock = BootClock()
        """The clock that measures leases."""

    def run(self, sql: str, values: Values = ()) -> None:
        """Run a statement, and ignore its rows."""
        for _ in self._run(sql, values):
            pass

    def run_all(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that returns no rows, once for each of the values."""
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
        """Set one of SQLite's settings, or return it."""
        pragma = cast("Callable[..., Any]", self.pragma)
        return pragma(name) if value is None else pragma(name, value)

    def define(self, name: str, function: Callable[[Any], Any]) -> None:
        """Define a pure function of one value for statements and views."""
        make = cast("Callable[..., None]", self.create_scalar_function)
        make(name, function, 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)

    def each(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Return rows one by one, while the statement runs."""
        cursor = self.execute(sql, values)  # pyright: ignore[reportUnknownMemberType]
        return cast("Iterator[tuple[Any, ...]]", cursor)
