"""Source files as syntax trees."""

import ast
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file.

    CPython 3.11 raises SystemError if another thread parses at the same time, as one does that prints a traceback
    (python/cpython#106905). Then the file is parsed again.
    """
    for _ in range(10):
        with suppress(SystemError):
            return ast.parse(path.read_text())
    return ast.parse(path.read_text())
