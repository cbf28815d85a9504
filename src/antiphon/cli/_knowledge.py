"""`antiphon knowledge`: documents that agents search, kept in a ledger."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._live import typed
from antiphon.cli._output import UNUSABLE, print_json, print_list
from antiphon.cli._screen import bar, fail, note, open_console, print_table, styled, wheel
from antiphon.errors import DocumentError

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import AddedDocument, AddedFiles, Document, Passage

STDIN = Path("-")
"""As the name of a file: what is piped into the command."""

knowledge = typer.Typer(
    name="knowledge", no_args_is_help=True, rich_markup_mode=None, help="Manage the documents that agents search."
)


_SHOWN = 40
"""Documents that a table lists; of more, it is said how many there are."""


@knowledge.command()
def add(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Files, and folders with subfolders: Markdown, text, HTML, PDF, DOCX, CSV, source code; - reads stdin.",
        ),
    ],
    *,
    encoding: Annotated[str, typer.Option("--encoding", metavar="NAME", help="The encoding of text files.")] = "utf-8",
    language: Annotated[
        str | None, typer.Option("--language", metavar="CODE", help="en, de, fr, es, it, nl or pt; default: detected.")
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Add documents to a ledger. A document of the same name is replaced. A missing ledger is created."""
    if language is not None:
        _check_language(language)
    # Named files are read before the ledger is created: one that cannot be read creates none. The files of a folder are read
    # one after the other, and those that cannot be read are left out.
    named = {document_name(path): read_document(path, encoding) for path in files if not os.path.isdir(path)}
    in_folders = [file for path in files if os.path.isdir(path) for file in service.files_in(path)]
    if not named and not in_folders:
        fail(f"{files[0]}: no file in this folder can be read as a document", code=2)
    added = with_ledger(
        ledger, partial(_add, named=named, paths=in_folders, encoding=encoding, language=language), create=True
    )
    for reason in added.left_out:
        note(f"left out: {reason}", style="warning")
    if for_programs:
        print_json(added.documents)
        return
    if len(added.documents) > _SHOWN:
        new = sum(document.is_new for document in added.documents)
        again = sum(document.new_language is not None for document in added.documents)
        changed = f", {again} indexed again as {language}" if again else ""
        open_console().print(f"{new - again} documents added{changed}, {len(added.documents) - new} as they were")
        return
    rows = [
        (document.source, str(document.passages), str(document.version), _outcome(document)) for document in added.documents
    ]
    print_table(open_console(), ("source", "passages", "version", ""), rows)


def _outcome(added: AddedDocument) -> str:
    if added.new_language is not None:
        return f"indexed again as {added.new_language}"
    return "added" if added.is_new else "as it was"


@knowledge.command()
def remove(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCES", help="Documents, as `knowledge list` names them.")],
    *,
    erase: Annotated[bool, typer.Option("--erase", help="Delete their text from the ledger too, with all versions.")] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Remove documents from the search. Without --erase, their text stays in the ledger."""
    removed = with_ledger(ledger, partial(service.remove_documents, sources=sources, erase=erase))
    if for_programs:
        print_json(removed)
    else:
        for source in [source for source, was_there in removed.items() if was_there]:
            note(f"{source}: {'erased' if erase else 'removed'}")
    for source in [source for source, was_there in removed.items() if not was_there]:
        listing = typed(ledger, "knowledge", "list")
        note(f"there is no document {source!r}; `{listing}` lists them", style="warning")
    if not all(removed.values()):
        raise typer.Exit(UNUSABLE)


@knowledge.command(name="list")
def list_(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List the documents of a ledger."""
    documents = with_ledger(ledger, service.list_documents)
    fields = ("source", "passages", "version")
    rows = [{name: getattr(document, name) for name in fields} for document in documents]
    otherwise = f"no documents; `{typed(ledger, 'knowledge', 'add', 'FILES')}` adds some"
    print_list(rows, fields, lambda row: tuple(map(str, row.values())), for_programs=for_programs, otherwise=otherwise)


def search_passages(question: str, ledger: str | None, *, limit: int, source: str | None, for_programs: bool) -> None:
    """Print passages, as the tool of agents finds them, best match first."""
    with wheel("searching"):
        passages = with_ledger(ledger, lambda opened: service.search_documents(opened, question, limit=limit, source=source))
    if passages.is_cut:
        note("the question is very long: only its beginning was looked for", style="warning")
    if for_programs:
        print_json(list(passages))
    elif not passages:
        note("nothing found")
    else:
        _print(passages)


def read_document(path: Path, encoding: str = "utf-8") -> Document:
    """Return the text of a file, or of stdin; one without text ends the command with an error."""
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            data = file.read(service.LARGEST_DOCUMENT + 1)  # no more: a device has no size, and no end
    except OSError as exc:
        fail(f"{path}: {exc.strerror or exc}", code=2)
    try:
        return service.read_document(data, str(path), encoding="utf-8-sig" if encoding == "utf-8" else encoding)
    except DocumentError as exc:
        fail(str(exc), code=2)


def _check_language(code: str) -> None:
    from antiphon.retrieval._language import LANGUAGES  # noqa: PLC0415 (needs the extra `retrieval`)

    if code not in LANGUAGES:
        fail(f"--language is one of {', '.join(LANGUAGES)}, not {code!r}; without it, the language is detected", code=2)


def document_name(path: Path) -> str:
    """Return the source that citations of a document name."""
    return "stdin" if path == STDIN else str(path)


async def _add(
    ledger: Ledger, *, named: dict[str, Document], paths: list[Path], encoding: str, language: str | None
) -> AddedFiles:
    with bar("adding") as progress:
        added = await service.add_documents(ledger, named, progress, language=language)
        files = await service.add_files(ledger, paths, progress, encoding=encoding, language=language)
    return replace(files, documents=(*added, *files.documents))


def _print(passages: Sequence[Passage]) -> None:
    console = open_console()
    for number, passage in enumerate(passages):
        if number:
            console.print()
        console.print(styled(f"{passage.id}  {place_of(passage)}", style="heading"), soft_wrap=True)
        console.print(styled(passage.text), soft_wrap=True)


def place_of(passage: Passage) -> str:
    """Return where a passage is, for people: the document, the headings above it, its lines."""
    first, last = passage.lines or (None, None)
    lines = "" if first is None else f", line {first}" if first == last else f", lines {first}-{last}"
    return " > ".join((passage.source, *passage.heading)) + lines


# ---------------------------------------------------------------- the source of a citation

_PASSAGE = re.compile(r"kb-[0-9a-f]{10,64}-\d+-\d+")


def is_passage(name: str) -> bool:
    """Whether a name is the id of a passage."""
    return _PASSAGE.fullmatch(name) is not None


def show_source(id: str, ledger: str | None, *, for_programs: bool) -> None:
    """Print a passage with the lines of its document around it; its own lines are marked."""
    shown = with_ledger(ledger, partial(service.show_passage, id=id))
    if shown is None:
        finding = typed(ledger, "search", "--documents", "WORDS")
        fail(f"{id}: there is no such passage in the ledger; `{finding}` finds some", code=2)
    if for_programs:
        print_json({**asdict(shown.passage), "around": [{"line": number, "text": text} for number, text in shown.lines]})
        return
    console, (first, last) = open_console(), shown.passage.lines or (0, 0)
    console.print(styled(f"{id}  {place_of(shown.passage)}", style="heading"), soft_wrap=True)
    width = len(str(max((number for number, _ in shown.lines), default=0)))
    for number, text in shown.lines:
        mark = ">" if first <= number <= last else " "
        console.print(styled(f"{mark} {number:>{width}}  {text}".rstrip()), soft_wrap=True)
    if not shown.lines:
        console.print(styled(shown.passage.text), soft_wrap=True)
