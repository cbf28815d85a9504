"""Tools that read the files of one folder: texts, pages of Markdown, tables, mailboxes. They change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from pydantic_ai import ModelRetry, Tool

from antiphon.agents.tools._effects import READS
from antiphon.agents.tools._folder import Folder
from antiphon.agents.tools._letters import letter_in, letters_in
from antiphon.agents.tools._markdown import problems_of
from antiphon.agents.tools._tables import How, columns_of, grouped

__all__ = ["file_tools"]


def file_tools(root: Path | str) -> list[Tool[Any]]:
    """Return tools that read the files below a folder, and nothing else.

    `list_files`, `read_file`, `check_markdown`, `csv_columns`, `csv_group`, `list_letters` and `read_letter`. What they
    return was written by whoever wrote the files, and is marked so.

    Raises:
        ValueError: there is no such folder.
    """
    functions: tuple[Callable[..., Any], ...] = (*_texts(Folder(root)), *_forms(Folder(root)))
    return [Tool[Any](function, metadata=READS) for function in functions]


def _texts(folder: Folder) -> tuple[Callable[..., Any], ...]:
    def list_files(pattern: str = "**/*") -> list[str]:
        """List the files of the folder.

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
        names = folder.names(path)
        found = [f"{name}, {problem}" for name in names for problem in _problems(folder, name)]
        return {"pages": names, "problems": found}

    return list_files, read_file, check_markdown


def _forms(folder: Folder) -> tuple[Callable[..., Any], ...]:
    def csv_columns(path: str) -> dict[str, Any]:
        """Say what is in a CSV file: how many rows, which columns, and of each what its values are.

        Args:
            path: Which file, as list_files names it.
        """
        return columns_of(folder.text(path))

    def csv_group(path: str, by: str, column: str, how: How = "sum") -> dict[str, str]:
        """Add up the numbers of one column of a CSV file, by the values of another; the largest first.

        Args:
            path: Which file, as list_files names it.
            by: The column that says which rows belong together.
            column: The column with the numbers.
            how: What to make of them.
        """
        return grouped(folder.text(path), by, column, how)

    def list_letters(path: str, words: str = "") -> list[dict[str, Any]]:
        """List the letters of a mailbox file: number, sender, subject, date and length.

        Args:
            path: Which file, as list_files names it.
            words: Only letters that have one of these words in them.
        """
        return letters_in(folder.path(path), words)

    def read_letter(path: str, number: int) -> dict[str, Any]:
        """Read one letter of a mailbox file.

        Args:
            path: Which file, as list_files names it.
            number: Which letter, as list_letters numbers it.
        """
        return letter_in(folder.path(path), number)

    return csv_columns, csv_group, list_letters, read_letter


def _problems(folder: Folder, name: str) -> list[str]:
    def says(target: str) -> str | None:
        place = normpath(join(dirname(name), target))
        if not folder.has(place):
            return None
        try:
            return folder.text(place)
        except ModelRetry:  # a picture, a folder
            return ""

    return problems_of(folder.text(name), says)
