"""The app: every command by its name, and what holds for all of them."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from antiphon import __version__
from antiphon.cli._approvals import approvals
from antiphon.cli._approve import approve
from antiphon.cli._backup import backup
from antiphon.cli._chat import chat
from antiphon.cli._check import check
from antiphon.cli._convert import convert
from antiphon.cli._delete import delete
from antiphon.cli._deny import deny
from antiphon.cli._dialects import dialects
from antiphon.cli._diff import diff
from antiphon.cli._export import export
from antiphon.cli._fork import fork
from antiphon.cli._heads import heads
from antiphon.cli._import import import_
from antiphon.cli._knowledge import knowledge
from antiphon.cli._local import local
from antiphon.cli._overview import Overview
from antiphon.cli._parked import parked
from antiphon.cli._pause import pause
from antiphon.cli._repair import repair
from antiphon.cli._replay import replay
from antiphon.cli._restore import restore
from antiphon.cli._resume import resume
from antiphon.cli._reward import reward
from antiphon.cli._run import run
from antiphon.cli._search import search
from antiphon.cli._settle import settle
from antiphon.cli._show import show
from antiphon.cli._status import status
from antiphon.cli._tail import tail
from antiphon.cli._terminate import terminate
from antiphon.cli._threads import threads
from antiphon.cli._verify import verify

__all__ = ["app"]

app = typer.Typer(
    name="antiphon",
    cls=Overview,
    epilog='Start with: antiphon run "What is 17 * 23?". Every command has its own --help.',
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help and errors: they are piped and searched as often as they are looked at
    pretty_exceptions_enable=False,  # these print local variables, and so what people have said
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"antiphon {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Run durable agents, maintain the ledger that stores their messages, and check and convert conversations."""
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # it would stand in the middle of what is shown live
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 shows a number, not a traceback


app.command()(approvals)
app.command()(approve)
app.command()(backup)
app.command()(chat)
app.command()(check)
app.command()(convert)
app.command()(delete)
app.command()(deny)
app.command()(dialects)
app.command()(diff)
app.command()(export)
app.command()(fork)
app.command()(heads)
app.command("import")(import_)
app.add_typer(knowledge, name="knowledge")
app.add_typer(local, name="local")
app.command()(parked)
app.command()(pause)
app.command()(repair)
app.command()(replay)
app.command()(restore)
app.command()(resume)
app.command()(reward)
app.command()(run)
app.command()(search)
app.command()(settle)
app.command()(show)
app.command()(status)
app.command()(tail)
app.command()(terminate)
app.command()(threads)
app.command()(verify)
