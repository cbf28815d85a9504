"""FilePattern: which files are meant, such as `docs/**/*.md`.

A pattern is followed part by part on the way down, by the set of places in it that fit so far. So a folder is looked into
once, however many `**` there are. The usual way, a search for each `**` inside the one before, takes time without end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from pathlib import PureWindowsPath
from typing import Final

from pydantic_ai import ModelRetry

__all__ = ["FilePattern"]

_LONGEST: Final = 500
_MOST_PARTS: Final = 50
_SHOWN: Final = 100


class FilePattern:
    """A pattern for paths: `*`, `?` and `[abc]` inside a name, `**` for any number of folders."""

    def __init__(self, pattern: str) -> None:
        """Take a pattern.

        Raises:
            ModelRetry: it is none, is too long, or leads out of the folder.
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
        """Return how far the pattern fits, one name further down."""
        further: list[int] = []
        for place in places:
            part = self._parts[place] if place < len(self._parts) else _NOTHING
            if part is None:
                further.append(place)
            elif part.match(name):
                further.append(place + 1)
        return self._closed(further)

    def fits(self, places: frozenset[int]) -> bool:
        """Whether a file that was reached so is meant."""
        return len(self._parts) in places

    def goes_on(self, places: frozenset[int]) -> bool:
        """Whether something inside a folder that was reached so may be meant."""
        return any(place < len(self._parts) for place in places)

    def _closed(self, places: Iterable[int]) -> frozenset[int]:
        """Return places with those that are reached for nothing: `**` is also no folder at all."""
        reached: set[int] = set()
        for start in places:
            place = start
            reached.add(place)
            while place < len(self._parts) and self._parts[place] is None:
                place += 1
                reached.add(place)
        return frozenset(reached)


_NOTHING: Final = re.compile(r"(?!)")
