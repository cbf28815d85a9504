"""`antiphon backup`: a copy of a ledger, made while others go on with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from antiphon.cli._ledger import LedgerOption, with_ledger
from antiphon.cli._progress import wheel
from antiphon.cli._screen import fail, note

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["backup"]


def backup(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; it must not exist.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Write a consistent copy of a ledger to a new file."""
    if not out.parent.is_dir():
        fail(f"{out}: there is no such folder", code=2)
    with wheel("copying"):
        with_ledger(ledger, partial(_copy, out=out))
    note(f"{out}: {decimal(out.stat().st_size)}; a ledger like the other, to be opened as sqlite:///{out}")


async def _copy(ledger: Ledger, *, out: Path) -> None:
    try:
        await ledger.backup(out)
    except (OSError, ValueError) as exc:
        fail(f"{out}: {exc.strerror}" if isinstance(exc, OSError) and exc.strerror else str(exc), code=2)
