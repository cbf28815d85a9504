"""Source files as syntax trees."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def trees_with(paths: Iterable[Path], *words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Parse the files that have one of the words in their text; it takes seconds to parse all."""
    for path in paths:
        text = path.read_text()
        if any(word in text for word in words):
            yield path, tree_of(path)


def tree_of(path: Path) -> ast.Module:
    """Parse a file.

    CPython 3.11 raises SystemError if another thread parses at the same time, as one does that prints a traceback
    (python/cpython#106905). Then the file is parsed again.
    """
    for _ in range(10):
        with suppress(SystemError):
            return ast.parse(path.read_text())
    return ast.parse(path.read_text())
