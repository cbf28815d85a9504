"""`open_ledger`: from a URL to a ledger, and from a ledger back to the command line that opens the same."""

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
    """What `open_ledger` returns: enter it to get the ledger. Used as a ledger itself, it says so."""

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
    """Refuse something that is no ledger, such as an `open_ledger(…)` that was not entered.

    Raises:
        TypeError: it is none.
    """
    if isinstance(ledger, _Unopened):
        raise TypeError(f"this ledger is not open; {ledger.hint}")
    if not hasattr(ledger, "by_invocation"):
        raise TypeError(f"a ledger is given as an opened ledger or as a URL such as {_SQLITE}ledger.db, not as {ledger!r}")


def command_line(ledger: Ledger, *words: str, options: str = "") -> str:
    """Return the command line of an `antiphon` command on a ledger, to be shown to a person; `options` as they are."""
    url: str | None = getattr(ledger, "url", None)
    place = "" if url is None or url == os.environ.get(_VARIABLE) else f"--ledger {quote(url)}"
    return " ".join(filter(None, (*map(quote, ("antiphon", *words)), options, place)))


def open_ledger(
    url: str, *, create: bool = True, redaction: Redacting = None, busy_timeout: float = 10.0
) -> AbstractAsyncContextManager[Ledger, None]:
    """Open a ledger for an `async with` block.

    `memory:` lives as long as the block. `sqlite:///ledger.db` is a file in the current folder, `sqlite:////var/ledger.db`
    one at an absolute path; it is made if it is not there, unless `create` is False. The usual shapes of secrets are
    taken out before anything is stored; `redaction` has other rules for that, or is "off". `busy_timeout` is how many seconds
    to wait for other processes that write.

    Raises:
        LedgerCorruptError: the schema of the file was altered.
        LedgerFormatError: the file is something else, or of a later version.
        LedgerUnavailableError: it cannot be opened.
        ModuleNotFoundError: what the store needs is not installed.
        TypeError: the redaction is none.
        ValueError: the URL is none that is known.
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
