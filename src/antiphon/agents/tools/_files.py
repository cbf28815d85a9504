"""Read-only tools for the files of one folder: texts, pages of Markdown, tables, mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from posixpath import dirname, join, normpath
from time import thread_time
from typing import Any, Final

from pydantic_ai import ModelRetry, Tool

from antiphon.agents.tools._folder import Folder
from antiphon.agents.tools._lookup import READS
from antiphon.agents.tools._mailbox import letter_in, letters_in
from antiphon.agents.tools._markdown import Anchors, anchors_of, problems_of
from antiphon.agents.tools._tables import How, columns_of, grouped, totals

_TIMEOUT: Final = 20.0
_LARGEST_PAGE: Final = 250_000
"""The maximum size of a checked page, in bytes. The worst page of this size takes seconds, an ordinary one a quarter of a
second."""
_MOST_SECONDS: Final = 10.0
"""Seconds of work for all pages of a call."""
_MOST_PROBLEMS: Final = 500


def file_tools(root: Path | str, *, hidden: bool = False, timeout: float | None = _TIMEOUT) -> list[Tool[Any]]:
    """Return tools that read files below a folder, and no others.

    `list_files`, `read_file`, `check_markdown`, `csv_columns`, `csv_totals`, `csv_group`, `list_letters` and `read_letter`.
    Their results are untrusted, and marked as such. Links are not followed. With `hidden`, files and folders whose names start
    with a dot are also read. A call that takes more than `timeout` seconds is cancelled.

    Raises:
        ValueError: there is no such folder, or this system cannot open files relative to a descriptor.
    """
    folder = Folder(root, hidden=hidden)
    functions: tuple[Callable[..., Any], ...] = (*_texts(folder), *_forms(folder))
    return [Tool[Any](function, metadata=READS, timeout=timeout) for function in functions]


def _texts(folder: Folder) -> tuple[Callable[..., Any], ...]:
    def list_files(pattern: str = "**/*") -> list[str]:
        """List the files of the folder, 500 at most.

        Args:
            pattern: Which ones, such as **/*.md.
        """
        return folder.names(pattern)

    def read_file(path: str, first_line: int = 1, lines: int = 200) -> str:
        """Read a text file.

        Args:
            path: Which file, as list_files names it.
            first_line: Where to begin.
            lines: How many lines to read.
        """
        return folder.lines(path, first_line, lines)

    def check_markdown(path: str = "**/*.md") -> dict[str, Any]:
        """Check pages of Markdown, and say by page and line what is wrong: headings, links, code blocks, what is left to do.

        Args:
            path: One page, or a pattern such as **/*.md for all of them.
        """
        names, pages = folder.names(path), _Pages(folder)
        found = [f"{name}, {problem}" for name in names for problem in pages.problems(name)]
        more = {"problems_left_out": len(found) - _MOST_PROBLEMS} if len(found) > _MOST_PROBLEMS else {}
        return {"pages": names, "problems": found[:_MOST_PROBLEMS], **more}

    return list_files, read_file, check_markdown


def _forms(folder: Folder) -> tuple[Callable[..., Any], ...]:
    def csv_columns(path: str) -> dict[str, Any]:
        """Say what is in a CSV file: how many rows, which columns, and of each what its values are.

        Args:
            path: Which file, as list_files names it; or a pattern such as **/*.csv for the first that fits.
        """
        return columns_of(folder.text(_first(folder, path)))

    def csv_totals(path: str) -> str:
        """Add up every column of numbers of a CSV file by every column of words; the largest first.

        Args:
            path: Which file, as list_files names it; or a pattern such as **/*.csv for the first that fits.
        """
        return totals(folder.text(_first(folder, path)))

    def csv_group(path: str, by: str, column: str, how: How = "sum") -> dict[str, str]:
        """Add up the numbers of one column of a CSV file, by the values of another; the largest first.

        Args:
            path: Which file, as list_files names it; or a pattern such as **/*.csv for the first that fits.
            by: The column that says which rows belong together.
            column: The column with the numbers.
            how: What to make of them.
        """
        return grouped(folder.text(_first(folder, path)), by, column, how)

    def list_letters(path: str, words: str = "") -> list[dict[str, Any]]:
        """List the letters of a mailbox file: number, sender, subject, date and length.

        Args:
            path: Which file, as list_files names it; or a pattern such as **/*.mbox for the first that fits.
            words: Only letters that have one of these words in them.
        """
        return letters_in(folder.data(_first(folder, path)), words)

    def read_letter(path: str, number: int) -> dict[str, Any]:
        """Read one letter of a mailbox file.

        Args:
            path: Which file, as list_files names it; or a pattern such as **/*.mbox for the first that fits.
            number: Which letter, as list_letters numbers it.
        """
        return letter_in(folder.data(_first(folder, path)), number)

    return csv_columns, csv_totals, csv_group, list_letters, read_letter


def _first(folder: Folder, path: str) -> str:
    """Return a path, or the first file that matches a pattern.

    Raises:
        ModelRetry: no file matches the pattern.
    """
    if "*" not in path or folder.has(path):
        return path
    if not (names := folder.names(path)):
        raise ModelRetry(f"there is no file like {path!r}; list_files says what there is")
    return names[0]


class _Pages:
    """The pages of one call: each is read once, however many links lead to it."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._anchors: dict[str, Anchors] = {}
        self._began = thread_time()

    def problems(self, name: str) -> list[str]:
        """Return the problems of a page.

        Raises:
            ModelRetry: it is not text, or the pages before it took too long.
        """
        text = self._folder.text(name)
        self._check_time()
        if len(text) > _LARGEST_PAGE:
            return [f"line 1: the page is larger than {_LARGEST_PAGE // 1000} kB, and is not checked"]
        return problems_of(text, lambda target: self._leads_to(normpath(join(dirname(name), target))))

    def _leads_to(self, place: str) -> Anchors:
        if place not in self._anchors:
            self._check_time()
            self._anchors[place] = self._read(place)
        return self._anchors[place]

    def _read(self, place: str) -> Anchors:
        if not self._folder.has(place):
            return None
        try:
            text = self._folder.text(place)
        except ModelRetry:  # a picture, a folder
            return frozenset()
        return "unknown" if len(text) > _LARGEST_PAGE else anchors_of(text)

    def _check_time(self) -> None:
        if thread_time() - self._began > _MOST_SECONDS:
            raise ModelRetry("there is too much to check at once; name fewer pages")
