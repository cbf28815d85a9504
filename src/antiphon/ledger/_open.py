"""`open_ledger`: from a URL to a ledger."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from antiphon.ledger._contract import Ledger
from antiphon.ledger._redaction import Redacting
from antiphon.ledger.memory import MemoryLedger

_SQLITE = "sqlite:///"


@asynccontextmanager
async def open_ledger(
    url: str, *, create: bool = True, redaction: Redacting = None, busy_timeout: float = 10.0
) -> AsyncGenerator[Ledger, None]:
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
