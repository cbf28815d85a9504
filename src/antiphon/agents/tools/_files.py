"""Read-only tools for the files of one folder: texts, pages of Markdown, tables, mailboxes; and the access to the folder.

A path is walked from the folder downwards, and each part is opened relative to the descriptor of the previous part, unless it
is a link. So a process that moves files or creates links meanwhile can make a file unreadable, but cannot lead out of the
folder. The opened file is then checked by its descriptor: it must be a regular file, and is read only up to the limit,
whatever size it reports. Checking a path first and opening it afterwards would leave time to replace the file.

A pattern such as `docs/**/*.md` is matched part by part during the walk, as the set of its positions that match so far. So a
folder is listed once, however many `**` there are. A nested search for each `**` would take exponential time.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from fnmatch import translate
from pathlib import Path, PureWindowsPath
from posixpath import dirname, join, normpath
from time import thread_time
from typing import Any, Final

from pydantic_ai import ModelRetry, Tool

from antiphon.agents.tools._builtin import READS
from antiphon.agents.tools._formats import (
    Anchors,
    How,
    anchors_of,
    columns_of,
    grouped,
    letter_in,
    letters_in,
    problems_of,
    totals,
)

# ---------------------------------------------------------------- patterns

_LONGEST: Final = 500
_MOST_PARTS: Final = 50
_SHOWN: Final = 100


class FilePattern:
    """A pattern for paths: `*`, `?` and `[abc]` inside a name, `**` for any number of folders."""

    def __init__(self, pattern: str) -> None:
        """Take a pattern.

        Raises:
            ModelRetry: it is not a pattern, is too long, or leads out of the folder.
        """
        shown = repr(pattern[:_SHOWN])
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        as_windows = PureWindowsPath(pattern[:_LONGEST])
        if pattern.startswith("/") or as_windows.drive or as_windows.root or ".." in as_windows.parts:
            raise ModelRetry(f"the pattern {shown} leads out of the folder; begin inside it, such as docs/*.md")
        if not parts or len(pattern) > _LONGEST or len(parts) > _MOST_PARTS:
            raise ModelRetry(f"{shown} is no pattern such as **/*.md of at most {_LONGEST} characters, {_MOST_PARTS} parts")
        self._parts = [None if part == "**" else re.compile(translate(part)) for part in parts]
        self.beginning: Final = self._closed([0])

    def after(self, places: frozenset[int], name: str) -> frozenset[int]:
        """Return the positions of the pattern after one more name."""
        next_places: list[int] = []
        for place in places:
            part = self._parts[place] if place < len(self._parts) else _NOTHING
            if part is None:
                next_places.append(place)
            elif part.match(name):
                next_places.append(place + 1)
        return self._closed(next_places)

    def fits(self, places: frozenset[int]) -> bool:
        """Whether a file at these positions matches."""
        return len(self._parts) in places

    def goes_on(self, places: frozenset[int]) -> bool:
        """Whether a file inside a folder at these positions may match."""
        return any(place < len(self._parts) for place in places)

    def _closed(self, places: Iterable[int]) -> frozenset[int]:
        """Return positions, plus those that are reached without a name: `**` also matches no folder."""
        reached: set[int] = set()
        for start in places:
            place = start
            reached.add(place)
            while place < len(self._parts) and self._parts[place] is None:
                place += 1
                reached.add(place)
        return frozenset(reached)


_NOTHING: Final = re.compile(r"(?!)")


# ---------------------------------------------------------------- the folder

_MOST_FILES: Final = 500
"""The maximum length of a list."""
_MOST_ENTRIES: Final = 50_000
"""The maximum number of files and folders that are visited for a list."""
_DEEPEST: Final = 32
"""The maximum depth of folders that are visited for a list."""
_MOST_BYTES: Final = 5_000_000
_MOST_CHARACTERS: Final = 20_000


class Folder:
    """A folder whose files can be read. Errors about a path are for the model, which can try another."""

    def __init__(self, root: Path | str, *, hidden: bool = False) -> None:
        """Open a folder; with `hidden`, names that start with a dot may also be read.

        Raises:
            ValueError: there is no such folder, or this system cannot open files relative to a descriptor.
        """
        self.root = Path(os.path.realpath(root))
        self._hidden = hidden
        if not os.path.isdir(self.root):  # `Path.is_dir` raises for a name that is too long
            raise ValueError(f"{root} is no folder")
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd or not hasattr(os, "O_NOFOLLOW"):
            raise ValueError("files cannot be read safely here: this system has no openat")

    def names(self, pattern: str) -> list[str]:
        """Return the files that match a pattern such as `**/*.md`, in order, at most 500.

        Raises:
            ModelRetry: it is not a pattern, leads out of the folder, or matches too much.
        """
        walk = _Walk(FilePattern(pattern), hidden=self._hidden)
        try:
            with self._opened(()) as number:
                walk.into(number, "", walk.pattern.beginning, _DEEPEST)
        except OSError as exc:
            raise ModelRetry(f"the folder cannot be read: {exc.strerror}") from exc
        return walk.paths

    def has(self, name: str) -> bool:
        """Whether there is a file or a folder of the name."""
        try:
            with self._opened(self._parts(name)):
                return True
        except (ModelRetry, OSError):
            return False

    def data(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            ModelRetry: it does not exist, is outside, hidden, not a regular file, too large, or behind a link.
        """
        shown = repr(name[:_SHOWN])
        try:
            with self._opened(self._parts(name)) as number:
                if not stat.S_ISREG(os.fstat(number).st_mode):
                    raise ModelRetry(f"there is no file {shown}; list_files says what there is")
                data = _read(number)
        except OSError as exc:
            raise ModelRetry(_complaint(shown, exc)) from exc
        if len(data) > _MOST_BYTES:
            raise ModelRetry(f"{shown} is larger than {_MOST_BYTES // 1_000_000} MB")
        return data

    def text(self, name: str) -> str:
        """Return the text of a file.

        Raises:
            ModelRetry: as `data`; or it is not text.
        """
        try:
            return self.data(name).decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise ModelRetry(f"{name[:_SHOWN]!r} is no text in UTF-8") from exc

    def lines(self, name: str, first: int, count: int) -> str:
        """Return some lines of a file, cut to the limit for a model.

        Raises:
            ModelRetry: as `text`.
        """
        lines = self.text(name).splitlines()[max(first, 1) - 1 :][: max(count, 1)]
        return "\n".join(lines)[:_MOST_CHARACTERS]

    def _parts(self, name: str) -> Sequence[str]:
        """Return the parts of a path.

        Raises:
            ModelRetry: they lead out of the folder, or to something hidden.
        """
        place = normpath(name) if name else "."
        if place == ".." or place.startswith(("/", "../")):
            raise ModelRetry(f"{name[:_SHOWN]!r} is outside of the folder")
        parts = () if place == "." else place.split("/")
        if not self._hidden and any(part.startswith(".") for part in parts):
            raise ModelRetry(f"{name[:_SHOWN]!r} is hidden, and hidden files are not read")
        if "\0" in name or not _is_text(name):
            raise ModelRetry(f"{name[:_SHOWN]!r} is no name of a file")
        return parts

    @contextmanager
    def _opened(self, parts: Sequence[str]) -> Generator[int]:
        """Open a path, part by part, and close it again."""
        number = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                inner = _open_in(number, part)
                os.close(number)
                number = inner
            yield number
        finally:
            os.close(number)


def _open_in(folder: int, name: str) -> int:
    """Open a file or a folder inside a folder. Nothing else: opening a pipe or a device has effects.

    A checked file may be replaced before it is opened: so no link is followed, and opening never blocks.
    """
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "a link")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise FileNotFoundError(errno.ENOENT, "no file")
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)


def _read(number: int) -> bytes:
    """Return the bytes of a file, or one more than the limit. The size that a file reports proves nothing."""
    with open(number, "rb", closefd=False) as file:
        return file.read(_MOST_BYTES + 1) or b""  # None for a file that would block, such as some in /proc


def _complaint(shown: str, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENAMETOOLONG:
            return f"there is no file {shown}; list_files says what there is"
        case errno.ELOOP | errno.EMLINK:  # for a link, Linux raises the first error, FreeBSD the second
            return f"{shown} is reached by a link, and links are not followed"
        case _:
            return f"{shown} cannot be read: {error.strerror}"


def _is_text(name: str) -> bool:
    """Whether a name is text: names that are not UTF-8 on the disk are not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Walk:
    """A walk below a folder. Each folder is listed once, whatever the pattern, and no link is followed."""

    def __init__(self, pattern: FilePattern, *, hidden: bool) -> None:
        self.pattern = pattern
        self.paths: list[str] = []
        self._hidden = hidden
        self._entries_left = _MOST_ENTRIES

    def into(self, folder: int, above: str, before: frozenset[int], depth: int) -> None:
        """Walk an open folder; `before` are the positions of the pattern at it."""
        for name, is_folder in self._entries(folder):
            after = self.pattern.after(before, name)
            if is_folder and depth and self.pattern.goes_on(after):
                self._below(folder, name, above, after, depth - 1)
            elif not is_folder and self.pattern.fits(after):
                self.paths.append(above + name)
            if len(self.paths) == _MOST_FILES:
                return

    def _below(self, folder: int, name: str, above: str, before: frozenset[int], depth: int) -> None:
        try:
            number = _open_in(folder, name)
        except OSError:  # it is gone, or may not be read
            return
        try:
            self.into(number, f"{above}{name}/", before, depth)
        except NotADirectoryError:  # it was a folder when it was listed
            return
        finally:
            os.close(number)

    def _entries(self, folder: int) -> list[tuple[str, bool]]:
        """Return the names in a folder, in order, each with whether it is a folder."""
        shown: list[tuple[str, bool]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._entries_left -= 1
                if self._entries_left < 0:
                    raise ModelRetry(f"there are more than {_MOST_ENTRIES} files; name a folder, such as docs/**/*.md")
                is_shown = (self._hidden or not entry.name.startswith(".")) and _is_text(entry.name)
                if is_shown and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)):
                    shown.append((entry.name, entry.is_dir(follow_symlinks=False)))
        return sorted(shown)


# ---------------------------------------------------------------- the tools

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
        problems = [f"{name}, {problem}" for name in names for problem in pages.problems(name)]
        surplus = {"problems_left_out": len(problems) - _MOST_PROBLEMS} if len(problems) > _MOST_PROBLEMS else {}
        return {"pages": names, "problems": problems[:_MOST_PROBLEMS], **surplus}

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
