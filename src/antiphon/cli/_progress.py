"""How far long work has got: a bar or a wheel on stderr, where that is a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from antiphon.cli._screen import open_console

__all__ = ["bar", "wheel"]


@contextmanager
def bar(what: str, *, is_beside_output: bool = False) -> Generator[Callable[[int, int], None]]:
    """Show a bar while the block lasts; the function that it is given is told how much is done, and of how much.

    `is_beside_output`: the result goes to stdout meanwhile, so there is no bar if that is the same terminal.
    """
    console = open_console(stderr=True)
    is_hidden = not console.is_terminal or (is_beside_output and sys.stdout.isatty())
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=is_hidden, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def wheel(what: str) -> Generator[None]:
    """Show that something goes on while the block lasts, where nobody can say how far it is."""
    console = open_console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        progress.add_task(what, total=None)
        yield
