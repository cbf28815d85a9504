"""The process that reads one PDF or DOCX file: the file on stdin, its text as JSON on stdout.

The packages that read these formats have no limits that hold: a file of a few kilobytes can unpack to gigabytes, repeat a page
thousands of times, or name a table of 100 million columns. So the operating system limits the process: it ends, and nothing
else does.
"""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from antiphon.retrieval._html import table_text

_LARGEST_TEXT: Final = 20_000_000
_LARGEST_UNPACKED: Final = 200_000_000
"""The maximum size of the unpacked parts of a DOCX file, in bytes."""
_MOST_PAGES: Final = 5_000
_MEMORY: Final = 1 << 30
"""The address space of the process, in bytes."""


def _read_pdf(data: bytes) -> dict[str, str]:
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
        if size > _LARGEST_TEXT:
            break
    document = "\n\f\n".join(pages)
    return {"text": document if document.replace("\f", "").strip() else "", "kind": "pages"}


def _read_docx(data: bytes) -> dict[str, str]:
    import docx  # noqa: PLC0415 (an extra)
    from docx.table import Table  # noqa: PLC0415

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_UNPACKED:
            raise ValueError(f"unpacked it has more than {_LARGEST_UNPACKED // 1_000_000} MB")
    blocks = docx.Document(io.BytesIO(data)).iter_inner_content()
    texts = (_table(block) if isinstance(block, Table) else _paragraph(block) for block in blocks)
    return {"text": "\n\n".join(filter(None, texts)), "kind": "markdown"}


def _table(block: Any) -> str:
    return table_text([[str(cell.text) for cell in row.cells] for row in block.rows])


def _paragraph(block: Any) -> str:
    text = str(block.text).strip()
    style = str(block.style.name) if block.style is not None else ""
    match = re.match(r"Heading (\d)", style)
    level = 1 + int(match[1]) if match else {"Title": 1, "Subtitle": 2}.get(style, 0)  # a title stands above all headings
    if text and level:
        return f"{'#' * min(level, 6)} {' '.join(text.split())}"
    return f"- {text}" if text and style.startswith("List") else text


_READERS: Final[dict[str, Callable[[bytes], dict[str, str]]]] = {"pdf": _read_pdf, "docx": _read_docx}


def main(form: str, seconds: int) -> None:
    """Read a file."""
    with suppress(ImportError):  # Windows has no such limits: there the parent stops the process
        import resource  # noqa: PLC0415 (not on Windows)

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        with suppress(ValueError, OSError):  # macOS refuses it
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    data = sys.stdin.buffer.read()
    try:
        answer = _READERS[form](data)
    except (RecursionError, MemoryError):
        answer = {"error": "the file is nested too deeply, or too large when it is unpacked"}
    except Exception as exc:  # noqa: BLE001 (whatever the package raises, the file is the reason)
        answer = {"error": f"the file is damaged, or is not what its name says: {type(exc).__name__}: {exc}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
