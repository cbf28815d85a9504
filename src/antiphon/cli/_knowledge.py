"""`antiphon knowledge`: documents that agents search, kept in a ledger."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._output import print_json
from antiphon.cli._screen import bar, fail, note, open_console, print_table, styled, wheel

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import AddedDocument, Passage

_LARGEST = 20_000_000
"""Bytes of a file; a book has one million."""

STDIN = Path("-")
"""As the name of a file: what is piped into the command."""

knowledge = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage the documents that agents search.")


@knowledge.command()
def add(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Text or Markdown, in UTF-8; - reads from stdin.")],
    *,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Add documents to a ledger. A document of the same name is replaced. A missing ledger is created."""
    # Read before the ledger is created: a file that cannot be read creates none.
    texts = {document_name(path): read_document(path) for path in files}
    added = with_ledger(ledger, partial(_add, texts=texts), create=True)
    if for_programs:
        print_json([asdict(each) for each in added])
        return
    rows = [(each.source, str(each.passages), str(each.version), "added" if each.is_new else "as it was") for each in added]
    print_table(open_console(), ("source", "passages", "version", ""), rows)


@knowledge.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="A question, or words to find.")],
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most N passages.")] = 5,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Find passages as agents find them, best match first."""
    with wheel("searching"):
        found = with_ledger(ledger, partial(_search, question=" ".join(words), limit=limit))
    if for_programs:
        print_json([asdict(each) for each in found])
    elif not found:
        note("nothing found")
    else:
        _print(found)


def read_document(path: Path) -> str:
    """Return the text of a file, or of stdin; one without text ends the command with an error."""
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            data = file.read(_LARGEST + 1)  # no more: a device has no size, and no end
        if len(data) > _LARGEST:
            fail(f"{path}: more than {_LARGEST // 1_000_000} MB; divide it", code=2)
        text = data.decode("utf-8-sig")
    except OSError as exc:
        fail(f"{path}: {exc.strerror or exc}", code=2)
    except UnicodeDecodeError:
        fail(f"{path}: not text in UTF-8; convert it first")
    if not text.strip() or "\0" in text:
        fail(f"{path}: the file has no text")
    return text


def document_name(path: Path) -> str:
    """Return the source that citations of a document name."""
    return "stdin" if path == STDIN else str(path)


async def _add(ledger: Ledger, *, texts: dict[str, str]) -> tuple[AddedDocument, ...]:
    with bar("adding") as progress:
        return await service.add_documents(ledger, texts, progress)


async def _search(ledger: Ledger, *, question: str, limit: int) -> tuple[Passage, ...]:
    return await service.search_documents(ledger, question, limit=limit)


def _print(found: Sequence[Passage]) -> None:
    console = open_console()
    for number, passage in enumerate(found):
        if number:
            console.print()
        console.print(styled(f"{passage.id}  {passage.source}", style="heading"), soft_wrap=True)
        console.print(styled(passage.text), soft_wrap=True)
