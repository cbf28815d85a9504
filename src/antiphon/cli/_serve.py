"""`antiphon serve`: the HTTP API of a ledger; `up`: with a database and hosts; `token`: access."""

from __future__ import annotations

import asyncio
import shlex
import sys
import threading
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon import service
from antiphon.cli._hosts import print_line, until_signal
from antiphon.cli._ledger import JsonOption, LedgerOption, SignalsOption, shown_ledger, with_ledger
from antiphon.cli._live import ModelOption, typed
from antiphon.cli._output import print_json, print_list, shown_time
from antiphon.cli._page import OpenOption, PageServer, link_page, show_page
from antiphon.cli._screen import fail, note
from antiphon.errors import NotWaitingError

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.server import RunningServer, ServeSettings
    from antiphon.service import NewToken, Token


def serve(
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="NUMBER", min=0, max=65535, help="The port to listen on; 0 chooses a free one.")
    ] = 8000,
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote", help="Listen on an address that other machines can reach; the ledger must have a token."
        ),
    ] = False,
    allow_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Another host name that clients use, such as that of a proxy; repeatable."
        ),
    ] = None,
    teams: Annotated[
        list[Path] | None,
        typer.Option("--team", metavar="FILE", help="Serve the team of this file too, as a model of /v1; repeatable."),
    ] = None,
    model: ModelOption = None,
    offers: Annotated[
        list[str] | None,
        typer.Option("--offer", metavar="MODEL", help="Another model that a request may name; repeatable."),
    ] = None,
    opens: OpenOption = False,
    signals: SignalsOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Serve the ledger over HTTP until SIGTERM or Ctrl-C. Every request needs a token; the command prints where it is."""
    from antiphon.server import ServeSettings  # noqa: PLC0415 (needs the extra `server`)

    for team in teams or ():
        service.trust_named(team, None)
    names = tuple(allow_hosts or ())
    settings = ServeSettings(host, port, allow_remote, names, model, tuple(teams or ()), model, tuple(offers or ()))
    work = partial(_serve, settings=settings, named=ledger, opens=opens)
    with_ledger(ledger, work, create=True, signals=signals)
    print_line("stopped")


async def _serve(ledger: Ledger, *, settings: ServeSettings, named: str | None, opens: bool) -> None:
    from antiphon.server import serving  # noqa: PLC0415 (needs the extra `server`)

    with until_signal("stopping; threads that run here can be resumed") as stop:
        async with serving(ledger, settings) as server:
            _tell(server, named)
            # A link opens a session: it is shown to a person at a terminal, and written to no file.
            if server.token_file is not None and (opens or sys.stderr.isatty()):
                page = PageServer.of(server.url, server.token_file)
                await asyncio.to_thread(show_page if opens else link_page, page)
            await stop.wait()


def _tell(server: RunningServer, ledger: str | None) -> None:
    print_line(f"serving {shown_ledger(ledger)} at {server.url}")
    if server.token_file is None:
        note(f"every request needs a token: `{typed(ledger, 'token', 'make', 'NAME')}` makes one")
        note("the connection is not encrypted: put a proxy with TLS in front of it")
        return
    print_line(f"token: {server.token_file}")
    file = shlex.quote(str(server.token_file))
    note(_TRY, command=f'curl -H "Authorization: Bearer $(cat {file})" {server.url}/api/threads')


# ---------------------------------------------------------------- a cluster on this machine


def up(
    *,
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", min=1, max=64, help="How many hosts to start.")] = 3,
    folder: Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="The folder of the database; it is kept.")] = Path(
        "antiphon-up"
    ),
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port of the server; 0 chooses a free one.")
    ] = 8000,
    model: ModelOption = None,
) -> None:
    """Start PostgreSQL from a wheel, several hosts and a server on this machine, until SIGTERM or Ctrl-C.

    The next start in the same folder continues the same threads. Needs the extras `up` and `postgres`.
    """
    options = () if model is None else ("--model", model)

    async def work() -> None:
        hurry = asyncio.Event()
        with until_signal("stopping hosts, server and database", hurry=hurry.set) as stop:
            lines = _UpLines(folder)
            await service.run_cluster(
                folder.resolve(), hosts=hosts, options=options, port=port, on_line=lines.tell, stop=stop, hurry=hurry
            )

    asyncio.run(work())
    print_line("stopped")


_TRY = "try:"
"""Before a command that the server prints, to copy."""


class _UpLines:
    """Prints what hosts and server say; and once the server runs, how to use it."""

    def __init__(self, folder: Path) -> None:
        self._url = folder / "url"
        self._server = ""

    def tell(self, name: str, line: str) -> None:
        if line.startswith(_TRY):
            note(f"{name}: {_TRY}", command=line.removeprefix(_TRY).lstrip())
            return
        print_line(f"{name}: {line}")
        if name != "server":
            return
        if line.startswith("serving "):
            self._server = line.rpartition(" at ")[2]
            setting = f"ANTIPHON_LEDGER=$(cat {shlex.quote(str(self._url))})"
            note("use its ledger from another terminal:", command=f"{setting} {typed(None, 'run', 'What is 17 * 23?')}")
        elif line.startswith("token: ") and sys.stderr.isatty():
            page = PageServer.of(self._server, Path(line.removeprefix("token: ")))
            threading.Thread(target=link_page, args=(page,), daemon=True).start()


# ---------------------------------------------------------------- tokens

token = typer.Typer(name="token", no_args_is_help=True, rich_markup_mode=None, help="Manage the access tokens of the server.")


@token.command()
def make(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The user of the token: approvals are recorded under this name.")
    ],
    *,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read, send, control or admin; repeatable; default: read. No scope includes another.",
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", metavar="NUMBER", help="Days until it expires; default: 90; 0: never.")
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Create a token, and print it once. The ledger stores only its hash. A missing ledger is created."""
    lasts = _DEFAULT_DAYS if days is None else days
    new_token = with_ledger(ledger, partial(_make, name=name, scopes=scopes or ["read"], days=lasts), create=True)
    if for_programs:
        print_json({**asdict(new_token.token), "token": new_token.text})
        return
    typer.echo(new_token.text)
    ends = (
        "it does not expire"
        if new_token.token.expires_at is None
        else f"it expires {shown_time(new_token.token.expires_at)} UTC"
    )
    note(f"token {new_token.token.id} of {name} ({', '.join(new_token.token.scopes)}): {ends}; it is not shown again")


_DEFAULT_DAYS = 90.0


async def _make(ledger: Ledger, *, name: str, scopes: list[str], days: float) -> NewToken:
    try:
        expires_in = timedelta(days=days) if days else None
    except (OverflowError, ValueError):
        expires_in = timedelta.max  # which is refused, with the reason
    return await service.make_token(ledger, name, scopes, expires_in=expires_in)


@token.command("list")
def list_(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List the tokens of a ledger, without their secrets."""
    otherwise = f"the ledger has no token; `{typed(ledger, 'token', 'make', 'NAME')}` makes one"
    tokens = with_ledger(ledger, service.list_tokens)
    print_list(tokens, ("id", "name", "scopes", "made (UTC)", "state"), _row, for_programs=for_programs, otherwise=otherwise)


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a token: see antiphon token list.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Revoke a token permanently. Servers refuse it at once, and end its streams within seconds."""
    revoked = with_ledger(ledger, partial(_revoke, token_id=token_id, place=ledger))
    note(f"token {revoked.id} of {revoked.principal}: revoked")


async def _revoke(ledger: Ledger, *, token_id: str, place: str | None) -> Token:
    try:
        return await service.revoke_token(ledger, token_id)
    except NotWaitingError as exc:
        fail(f"{exc}; `{typed(place, 'token', 'list')}` lists the tokens")


def _row(token: Token) -> tuple[str, ...]:
    state = "valid" if token.expires_at is None else f"until {shown_time(token.expires_at)}"
    if token.revoked_at is not None:
        state = f"revoked {shown_time(token.revoked_at)}"
    return token.id, token.principal, " ".join(token.scopes), shown_time(token.created_at), state
