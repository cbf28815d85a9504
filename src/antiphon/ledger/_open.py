"""`open_ledger` opens a ledger by its URL; `command_line` returns the command that opens the same ledger."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from shlex import quote
from types import TracebackType
from typing import NoReturn

from typing_extensions import override

from antiphon.ledger._contract import Ledger
from antiphon.ledger._redaction import Redacting
from antiphon.ledger.memory import MemoryLedger

_SQLITE = "sqlite:///"
_VARIABLE = "ANTIPHON_LEDGER"


class _Unopened(AbstractAsyncContextManager[Ledger, None]):
    """The context manager that `open_ledger` returns. If it is used without `async with`, the error names the fix."""

    def __init__(self, url: str, opening: AbstractAsyncContextManager[Ledger, bool | None]) -> None:
        self.hint = f"write `async with open_ledger({url!r}) as ledger:`"
        self._url = url
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
    if isinstance(ledger, _Unopened):
        raise TypeError(f"this ledger is not open; {ledger.hint}")
    if not hasattr(ledger, "by_invocation"):
        raise TypeError(f"expected an open ledger, or a URL such as {_SQLITE}ledger.db, got {ledger!r}")


def command_line(ledger: Ledger, *words: str, options: str = "") -> str:
    """Return the command line of an `antiphon` command on a ledger, to show to a person; `options` are not quoted."""
    url: str | None = getattr(ledger, "url", None)
    place = "" if url is None or url == os.environ.get(_VARIABLE) else f"--ledger {quote(url)}"
    return " ".join(filter(None, (*map(quote, ("antiphon", *words)), options, place)))


def open_ledger(
    url: str, *, create: bool = True, redaction: Redacting = None, busy_timeout: float = 10.0
) -> AbstractAsyncContextManager[Ledger, None]:
    """Open a ledger for an `async with` block.

    `memory:` is a new ledger that ends with the block. `sqlite:///ledger.db` is a file in the current folder,
    `sqlite:////var/ledger.db` a file at an absolute path. A file that does not exist is created, unless `create` is False.
    Well-known shapes of secrets are removed before a message is stored; `redaction` sets other rules, or is "off".
    `busy_timeout` is the number of seconds to wait for another process that writes.

    Raises:
        LedgerCorruptError: the schema of the file was altered.
        LedgerFormatError: the file is not a ledger, or a later version wrote it.
        LedgerUnavailableError: it cannot be opened.
        ModuleNotFoundError: a package that the store needs is not installed.
        TypeError: `redaction` has the wrong type.
        ValueError: the URL is not one of the forms above.
    """
    return _Unopened(url, _opened(url, create, redaction, busy_timeout))


@asynccontextmanager
async def _opened(url: str, create: bool, redaction: Redacting, busy_timeout: float) -> AsyncGenerator[Ledger, None]:
    if url == "memory:":
        async with MemoryLedger.open(redaction=redaction) as memory:
            yield memory
        return
    path = url.removeprefix(_SQLITE)
    if path in ("", url):
        name = url.removeprefix("sqlite:").removeprefix("//")
        hint = f"; for a file, {_SQLITE}{name}" if name.strip("/") and ":" not in name else ""
        raise ValueError(f"a ledger's URL is memory: or {_SQLITE}path, not {url!r}{hint}")
    try:
        from antiphon.ledger.sqlite import SqliteLedger  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError('a ledger on SQLite needs apsw: pip install "antiphon[sqlite]"', name=exc.name) from exc
    async with SqliteLedger.open(path, create=create, redaction=redaction, busy_timeout=busy_timeout) as ledger:
        yield ledger
