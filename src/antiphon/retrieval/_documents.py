"""Files as documents: the text of Markdown, plain text, HTML, PDF, DOCX, tables and source code, and the files of a folder.

A reader returns text with the headings that its format has. It runs no code of a file, fetches nothing, and reads a limited
number of bytes, pages and characters. Text is only data. A file that cannot be read raises an error that names the file and
says what to do; the other files of a folder are still read.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.errors import DocumentError, MissingReaderError
from antiphon.retrieval._passages import CODE_SUFFIXES, TABLE_SUFFIXES, Kind

LARGEST_DOCUMENT: Final = 20_000_000
"""The maximum size of a file in bytes, and of its text in characters; a book has one million."""
_LARGEST_UNPACKED: Final = 200_000_000
"""The maximum size of the unpacked parts of a DOCX file, in bytes."""
_MOST_PAGES: Final = 5_000
_INSTALL: Final = 'pip install "antiphon[documents]"'

TEXT_SUFFIXES: Final = frozenset({".md", ".markdown", ".mdx", ".txt", ".text", ".rst", ".adoc", ".org", ".log"})
HTML_SUFFIXES: Final = frozenset({".html", ".htm", ".xhtml"})
DOCUMENT_SUFFIXES: Final = TEXT_SUFFIXES | HTML_SUFFIXES | CODE_SUFFIXES | TABLE_SUFFIXES | {".pdf", ".docx"}
"""The file name suffixes that are read from a folder."""
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules"})
"""Folders without documents; folders whose name starts with a dot are also skipped."""


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file."""

    text: str
    kind: Kind


def read_document(data: bytes, name: str, *, encoding: str = "utf-8-sig") -> Document:
    """Return the text of a file, by its file name suffix.

    Raises:
        DocumentError: it has no text, is too large, is damaged, or is in another encoding.
        MissingReaderError: the package that reads its format is not installed.
    """
    if len(data) > LARGEST_DOCUMENT:
        raise DocumentError(f"more than {LARGEST_DOCUMENT // 1_000_000} MB; divide it", name)
    suffix = Path(name).suffix.casefold()
    if suffix == ".pdf" or data.startswith(b"%PDF-"):
        document = _guarded(_read_pdf, data, name)
    elif suffix == ".docx":
        document = _guarded(_read_docx, data, name)
    else:
        text = _decoded(data, name, encoding)
        if suffix in HTML_SUFFIXES:
            document = _guarded(_read_html, text, name)
        else:
            kind: Kind = "code" if suffix in CODE_SUFFIXES else "table" if suffix in TABLE_SUFFIXES else "markdown"
            document = Document(text, kind)
    if not document.text.strip():
        raise DocumentError(_NO_TEXT.get(suffix, "the file has no text"), name)
    return document if len(document.text) <= LARGEST_DOCUMENT else Document(document.text[:LARGEST_DOCUMENT], document.kind)


_NO_TEXT: Final = {".pdf": "the PDF has no text, perhaps only pictures of pages; recognise the text first (OCR)"}


def _decoded(data: bytes, name: str, encoding: str) -> str:
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as exc:
        asked = "UTF-8" if encoding.startswith("utf-8") else encoding
        raise DocumentError(f"not text in {asked}; convert it first, or name its encoding", name) from exc
    except LookupError as exc:
        raise DocumentError(f"there is no encoding {encoding!r}; utf-8, utf-16 and cp1252 are some", name) from exc
    if "\0" in text:
        raise DocumentError("the file has no text", name)
    return text


def _guarded(read: Callable[[Any], Document], data: Any, name: str) -> Document:
    """Read a file with a package, and turn its exceptions into errors of the file."""
    try:
        return read(data)
    except ImportError as exc:
        raise MissingReaderError(name, exc.name or "a package", _INSTALL) from exc
    except (RecursionError, MemoryError) as exc:
        raise DocumentError("the file is nested too deeply, or too large when it is unpacked", name) from exc
    except Exception as exc:
        raise DocumentError(f"the file is damaged, or is not what its name says: {type(exc).__name__}: {exc}", name) from exc


# ---------------------------------------------------------------- formats


def _read_pdf(data: bytes) -> Document:
    from pypdf import PdfReader  # noqa: PLC0415 (an extra)

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        reader.decrypt("")  # many files have only an owner password, and may be read
    pages: list[str] = []
    size = 0
    for page in reader.pages[:_MOST_PAGES]:
        text = page.extract_text()
        pages.append(text.replace("\f", "\n").strip("\n"))
        size += len(text)
        if size > LARGEST_DOCUMENT:
            break
    whole = "\n\f\n".join(pages)
    return Document(whole if whole.replace("\f", "").strip() else "", "pages")


def _read_html(text: str) -> Document:
    from bs4 import BeautifulSoup  # noqa: PLC0415 (an extra)
    from markdownify import MarkdownConverter  # noqa: PLC0415 (an extra)

    page = BeautifulSoup(text, "html.parser")
    for each in page(["script", "style", "template", "noscript", "svg", "nav", "iframe"]):
        each.decompose()
    body = page.find("main") or page.find("article") or page.body or page
    # Marks are not escaped: the text is searched by words, and quoted unchanged.
    as_it_is: Any = dict.fromkeys(("escape_misc", "escape_underscores", "escape_asterisks"), False)
    made = str(MarkdownConverter(heading_style="ATX", bullets="-", strip=["a", "img"], **as_it_is).convert_soup(body))
    return Document(re.sub(r"\n{3,}", "\n\n", made).strip(), "markdown")


def _read_docx(data: bytes) -> Document:
    import docx  # noqa: PLC0415 (an extra)
    from docx.table import Table  # noqa: PLC0415

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(each.file_size for each in archive.infolist()) > _LARGEST_UNPACKED:
            raise ValueError(f"unpacked it has more than {_LARGEST_UNPACKED // 1_000_000} MB")
    blocks = docx.Document(io.BytesIO(data)).iter_inner_content()
    texts = (_table(block) if isinstance(block, Table) else _paragraph(block) for block in blocks)
    return Document("\n\n".join(filter(None, texts)), "markdown")


def _paragraph(block: Any) -> str:
    text = str(block.text).strip()
    style = str(block.style.name) if block.style is not None else ""
    found = re.match(r"Heading (\d)", style)
    level = 1 + int(found[1]) if found else {"Title": 1, "Subtitle": 2}.get(style, 0)  # a title stands above all headings
    if text and level:
        return f"{'#' * min(level, 6)} {' '.join(text.split())}"
    return f"- {text}" if text and style.startswith("List") else text


def _table(block: Any) -> str:
    rows = [[" ".join(str(cell.text).split()).replace("|", "/") for cell in row.cells] for row in block.rows]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[:1], f"|{'---|' * len(rows[0])}", *lines[1:]]) if rows else ""


# ---------------------------------------------------------------- folders


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its folders that can be read, in order; hidden ones and links are left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _LEFT_OUT)
        for name in sorted(names):
            path = Path(place, name)
            with suppress(OSError):
                if not name.startswith(".") and path.suffix.casefold() in DOCUMENT_SUFFIXES and not path.is_symlink():
                    yield path
