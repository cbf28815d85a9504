"""What `open_ledger` returns before it is entered, and the check that a value is an open ledger."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn

from typing_extensions import override

from antiphon.ledger._contract import Ledger
from antiphon.ledger._secrets import without_password


class Unopened(AbstractAsyncContextManager[Ledger, None]):
    """The context manager that `open_ledger` returns. If it is used without `async with`, the error names the fix."""

    def __init__(self, url: str, opening: AbstractAsyncContextManager[Ledger, bool | None]) -> None:
        self._url = without_password(url)
        self.hint = f"write `async with open_ledger({self._url!r}) as ledger:`"
        self._opening = opening

    @override
    async def __aenter__(self) -> Ledger:
        return await self._opening.__aenter__()

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opening.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r}: the ledger is not open; {self.hint}")

    @override
    def __repr__(self) -> str:
        return f"<open_ledger({self._url!r}), not entered: use `async with`>"


def check_opened(ledger: object) -> None:
    """Refuse a value that is not an open ledger, such as an `open_ledger(…)` that was not entered.

    Raises:
        TypeError: it is not an open ledger.
    """
    if isinstance(ledger, Unopened):
        raise TypeError(f"this ledger is not open; {ledger.hint}")
    if not hasattr(ledger, "horizon"):
        how = "`async with open_ledger('sqlite:///ledger.db') as ledger` opens one"
        raise TypeError(f"expected an open ledger, got {ledger!r}; {how}")
