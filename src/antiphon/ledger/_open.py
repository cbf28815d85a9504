"""`open_ledger` opens a ledger by its URL; `command_line` returns the command that opens the same ledger."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from shlex import quote

from antiphon.ledger._contract import Ledger, Log
from antiphon.ledger._encryption import Mastering
from antiphon.ledger._redaction import Redacting
from antiphon.ledger._secrets import without_password
from antiphon.ledger._signals import SIGNALS_VARIABLE, Signalling
from antiphon.ledger._unopened import Unopened
from antiphon.messages._arguments import check_type

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")
_VARIABLE = "ANTIPHON_LEDGER"


def command_line(ledger: Log | None, *words: str, options: str = "") -> str:
    """Return the command line of an `antiphon` command on a ledger, to show to a person; `options` are not quoted."""
    url: str | None = getattr(ledger, "url", None)
    is_default = url is None or url == without_password(os.environ.get(_VARIABLE, ""))
    place = "" if url is None or is_default else ledger_option(url, has_password=getattr(ledger, "has_password", False))
    return " ".join(filter(None, (*map(quote, ("antiphon", *words)), options, place)))


def ledger_option(url: str, *, has_password: bool = False) -> str:
    """Return the option of a command that names a ledger, as a shell takes it.

    A password is not printed: a URL with one comes from the environment, and the shell says so if it is not set there.
    """
    is_shown = not has_password and url == without_password(url)
    return f"--ledger {quote(url)}" if is_shown else f'--ledger "${{{_VARIABLE}:?}}"'


def open_ledger(
    url: str,
    *,
    create: bool = True,
    redaction: Redacting = None,
    busy_timeout: float = 10.0,
    tenant: str | None = None,
    master_key: Mastering = None,
    signals: Signalling = None,
) -> AbstractAsyncContextManager[Ledger, None]:
    """Open a ledger for an `async with` block.

    `memory:` is a new ledger that ends with the block. `sqlite:///ledger.db` is a file in the current folder,
    `sqlite:////var/ledger.db` a file at an absolute path. A file that does not exist is created, unless `create` is False.
    `postgresql://user@host/database` is a database that many machines share; `tenant`, or `?tenant=NAME`
    in the URL, chooses whose threads are seen there.
    Well-known shapes of secrets are removed before a message is stored; `redaction` sets other rules, or is "off".
    New threads are encrypted if there is a master key: `master_key`, or by default the one that the environment variable
    `ANTIPHON_KEY` holds or `ANTIPHON_KEY_FILE` names. With "off" there is none.
    `signals` carries hints between the processes of a ledger in PostgreSQL: by default LISTEN/NOTIFY, or the URL that the
    environment variable `ANTIPHON_SIGNALS` names. `nats://host:4222` is a NATS server; with "off" there are none.
    `busy_timeout` is the number of seconds to wait for another process that writes, or for a server that cannot be reached.

    Raises:
        LedgerCorruptError: the schema of the file was altered.
        LedgerFormatError: the file is not a ledger, or a later version wrote it.
        LedgerUnavailableError: it cannot be opened.
        ModuleNotFoundError: a package that the store or the signals need is not installed.
        SetupError: the URL of the signals is wrong, or their server refuses the user or the password.
        TypeError: `redaction` or `master_key` has the wrong type.
        EncryptionError: the keys of the ledger are wrapped by another master key.
        ValueError: the URL is not one of the forms above, or it has no tenants and one is given; or the master key is not
            valid.
    """
    check_type("the URL of a ledger", url, str, "'sqlite:///ledger.db'")
    opening = _opened(url, create, redaction, busy_timeout, tenant, master_key=master_key, signals=signals)
    return Unopened(url, opening)


@asynccontextmanager
async def _opened(
    url: str,
    create: bool,
    redaction: Redacting,
    busy_timeout: float,
    tenant: str | None,
    *,
    master_key: Mastering,
    signals: Signalling,
) -> AsyncGenerator[Ledger, None]:
    if url.startswith(_POSTGRES):
        signals = os.environ.get(SIGNALS_VARIABLE) or None if signals is None else signals
        try:
            from antiphon.ledger.postgres._ledger import PostgresLedger  # noqa: PLC0415 (an extra)
        except ModuleNotFoundError as exc:
            text = 'a ledger in PostgreSQL needs asyncpg: pip install "antiphon[postgres]"'
            raise ModuleNotFoundError(text, name=exc.name) from exc
        async with PostgresLedger.open(
            url,
            tenant=tenant,
            create=create,
            redaction=redaction,
            patience=busy_timeout,
            master_key=master_key,
            signals=signals,
        ) as shared:
            yield shared
        return
    shown = without_password(url)
    if signals is not None:
        raise ValueError(f"{shown!r} needs no signals: only a ledger in PostgreSQL is shared by machines; leave --signals out")
    if tenant is not None:
        raise ValueError(f"{shown!r} has no tenants: a tenant has a file of its own, or a database in PostgreSQL")
    if url == "memory:":
        from antiphon.ledger.memory import MemoryLedger  # noqa: PLC0415 (a program that imports antiphon may open no ledger)

        async with MemoryLedger.open(redaction=redaction, master_key=master_key) as memory:
            yield memory
        return
    path = url.removeprefix(_SQLITE)
    if path in ("", url):
        name = shown.removeprefix("sqlite:").removeprefix("//")
        hint = f"; for a file, {_SQLITE}{name}" if name.strip("/") and ":" not in name else ""
        raise ValueError(f"a ledger's URL is memory:, {_SQLITE}path or {_POSTGRES[0]}host/database, not {shown!r}{hint}")
    from antiphon.ledger.sqlite._ledger import SqliteLedger  # noqa: PLC0415 (as above)

    async with SqliteLedger.open(
        path, create=create, redaction=redaction, busy_timeout=busy_timeout, master_key=master_key
    ) as ledger:
        yield ledger
