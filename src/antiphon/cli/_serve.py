"""`antiphon serve`: the HTTP API of a ledger, until a signal; `antiphon token`: who may use it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon import service
from antiphon.cli._hosts import print_line, until_signal
from antiphon.cli._ledger import JsonOption, LedgerOption, complaints, ledger_in_use, with_ledger
from antiphon.cli._live import ModelOption
from antiphon.cli._output import print_json, shown_time
from antiphon.cli._screen import note, open_console, print_table

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.server import RunningServer, ServeSettings
    from antiphon.service import NewToken, Token


def serve(
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0: a free one.")] = 8000,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen on an address that other machines reach; tokens are needed.")
    ] = False,
    allow_hosts: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name by which the server is called, as of a proxy; repeatable."),
    ] = None,
    model: ModelOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Serve the ledger over HTTP until SIGTERM or Ctrl-C. Every request needs a token; the command prints where it is."""
    with complaints():
        from antiphon.server import ServeSettings  # noqa: PLC0415 (needs the extra `server`)

        settings = ServeSettings(host, port, allow_remote, tuple(allow_hosts or ()), model)
        with_ledger(ledger, partial(_serve, settings=settings, place=ledger_in_use(ledger)), create=True)
    print_line("stopped")


async def _serve(ledger: Ledger, *, settings: ServeSettings, place: str) -> None:
    from antiphon.server import serving  # noqa: PLC0415 (needs the extra `server`)

    with until_signal("stopping; threads that run here can be resumed") as stop:
        async with serving(ledger, settings) as server:
            _tell(server, place)
            await stop.wait()


def _tell(server: RunningServer, place: str) -> None:
    print_line(f"serving {place} at {server.url}")
    if server.token_file is None:
        note("every request needs a token: `antiphon token make NAME` makes one")
        note("the connection is not encrypted: put a proxy with TLS in front of it")
        return
    print_line(f"token: {server.token_file}")
    note(f'try: curl -H "Authorization: Bearer $(cat {server.token_file})" {server.url}/api/threads')


# ---------------------------------------------------------------- tokens

token = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage the tokens for servers of a ledger.")


@token.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who acts with it: the name in approvals.")],
    *,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", metavar="SCOPE", help="read, send, control or admin; repeatable; default: read. None includes another."
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", metavar="NUMBER", help="Days until it expires; default: 90. 0: it does not.")
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Make a token, and print it. It is shown once: the ledger has its hash only. A missing ledger is created."""
    lasts = _DEFAULT_DAYS if days is None else days
    made = with_ledger(ledger, partial(_make, name=name, scopes=scopes or ["read"], days=lasts), create=True)
    if for_programs:
        print_json({**_json(made.token), "token": made.text})
        return
    typer.echo(made.text)
    ends = "it does not expire" if made.token.expires_at is None else f"it expires {shown_time(made.token.expires_at)} UTC"
    note(f"token {made.token.id} of {name} ({', '.join(made.token.scopes)}): {ends}; it is not shown again")


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
    found = with_ledger(ledger, service.list_tokens)
    if for_programs:
        print_json([_json(each) for each in found])
    elif found:
        rows = [(each.id, each.principal, " ".join(each.scopes), shown_time(each.created_at), _state(each)) for each in found]
        print_table(open_console(), ("id", "name", "scopes", "made (UTC)", "state"), rows)
    else:
        note("the ledger has no token; `antiphon token make NAME` makes one")


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a token: see antiphon token list.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Revoke a token for good. Servers refuse it at once, and end its streams within seconds."""
    revoked = with_ledger(ledger, partial(service.revoke_token, token_id=token_id))
    note(f"token {revoked.id} of {revoked.principal}: revoked")


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return f"revoked {shown_time(token.revoked_at)}"
    return "valid" if token.expires_at is None else f"until {shown_time(token.expires_at)}"


def _json(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "principal": token.principal,
        "scopes": list(token.scopes),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
    }
