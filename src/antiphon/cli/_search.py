"""`antiphon search`: which messages of a ledger have these words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli._ledger import JsonOption, LedgerOption, complaints, known_thread, with_ledger
from antiphon.cli._progress import wheel
from antiphon.cli._rows import as_json, print_json, thread_of
from antiphon.cli._screen import note, open_console, print_table

if TYPE_CHECKING:
    from antiphon.ledger import Hit, Ledger

__all__ = ["search"]


def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORDS", help='Words to find; "a phrase" in quotes; begin* for a prefix.')
    ],
    *,
    thread: Annotated[str | None, typer.Option("--thread", metavar="THREAD", help="Only messages of this thread.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most N messages.")] = 20,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Find messages that contain all the words, best match first."""
    with wheel("searching"):
        hits = with_ledger(ledger, partial(_find, text=_typed(words), thread=thread, limit=limit))
    if not hits and not for_programs:
        note("nothing found")
        return
    with complaints():
        if for_programs:
            print_json([{"snippet": hit.snippet, **as_json(hit.record)} for hit in hits])
        else:
            _print(hits)


def _typed(words: list[str]) -> str:
    """Return the words as they were typed: the shell has taken away the quotes around those with a space in them."""
    return " ".join(f'"{word}"' if " " in word and '"' not in word else word for word in words)


async def _find(ledger: Ledger, *, text: str, thread: str | None, limit: int) -> tuple[Hit, ...]:
    if thread is not None:
        await known_thread(ledger, thread)
    return await ledger.search(text, thread_id=thread, limit=limit)


def _print(hits: Sequence[Hit]) -> None:
    rows = [(thread_of(hit.record), str(hit.record.seq), hit.record.message.policy, _shown(hit)) for hit in hits]
    print_table(open_console(), ("thread", "seq", "by", "found"), rows)


def _shown(hit: Hit) -> str:
    return " ".join(hit.snippet.split())
