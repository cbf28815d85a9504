"""Folder: the files that tools may read: those below one folder, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic_ai import ModelRetry

__all__ = ["Folder"]

_MOST_FILES = 500
_MOST_BYTES = 5_000_000
_MOST_CHARACTERS = 20_000


class Folder:
    """A folder that can be looked at. What is wrong with a path is told to the model, which can try another."""

    def __init__(self, root: Path | str) -> None:
        """Take a folder.

        Raises:
            ValueError: there is no such folder.
        """
        self.root = Path(os.path.realpath(root))
        if not os.path.isdir(self.root):  # noqa: PTH112 (`Path.is_dir` raises for a name that is too long)
            raise ValueError(f"{root} is no folder")

    def names(self, pattern: str) -> list[str]:
        """Return the files that a pattern such as `**/*.md` fits, in order; hidden ones are left out.

        Raises:
            ModelRetry: it is no pattern.
        """
        try:
            found = sorted(path for path in self.root.glob(pattern) if path.is_file() and self._is_inside(path))
        except (NotImplementedError, ValueError) as exc:
            raise ModelRetry(f"{pattern!r} is no pattern such as **/*.md: {exc}") from exc
        names = [path.relative_to(self.root) for path in found]
        return [name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)][:_MOST_FILES]

    def has(self, name: str) -> bool:
        """Whether there is a file or a folder of the name."""
        path = self.root / name
        return self._is_inside(path) and path.exists()

    def path(self, name: str) -> Path:
        """Return where a file is.

        Raises:
            ModelRetry: there is none, it is outside, or it is too large.
        """
        path = self.root / name
        if not self._is_inside(path):
            raise ModelRetry(f"{name!r} is outside of the folder")
        if not path.is_file():
            raise ModelRetry(f"there is no file {name!r}; list_files says what there is")
        if path.stat().st_size > _MOST_BYTES:
            raise ModelRetry(f"{name!r} is larger than {_MOST_BYTES // 1_000_000} MB")
        return path

    def text(self, name: str) -> str:
        """Return what a file says.

        Raises:
            ModelRetry: as `path`; or it is no text.
        """
        try:
            return self.path(name).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as exc:
            raise ModelRetry(f"{name!r} is no text in UTF-8") from exc

    def lines(self, name: str, first: int, count: int) -> str:
        """Return some lines of a file, cut where it would be too much for a model.

        Raises:
            ModelRetry: as `text`.
        """
        lines = self.text(name).splitlines()[max(first, 1) - 1 :][: max(count, 1)]
        return "\n".join(lines)[:_MOST_CHARACTERS]

    def _is_inside(self, path: Path) -> bool:
        """Whether a path leads to something below the folder, links and dots followed."""
        return path.resolve().is_relative_to(self.root)
