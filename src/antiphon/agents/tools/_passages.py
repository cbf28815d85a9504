"""Passages: a document cut where it can be cut, into pieces that can be found and cited one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["passages_of"]

_USUAL = 1200
"""Characters that paragraphs are put together to."""
_LONGEST = 2000
_BREAK = re.compile(r"\n\s*\n")
_HEADING = re.compile(r"#{1,6}\s|.+\n[=-]{3,}\s*$", re.DOTALL)


def passages_of(text: str) -> list[str]:
    """Return the passages of a text. A heading begins one; nothing of the text is left out but the space between."""
    passages: list[str] = []
    for paragraph in _paragraphs(text):
        is_new = not passages or bool(_HEADING.match(paragraph))
        if is_new or len(passages[-1]) + len(paragraph) > _USUAL:
            passages.append(paragraph)
        else:
            passages[-1] += f"\n\n{paragraph}"
    return passages


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in _BREAK.split(text.replace("\r\n", "\n")):
        yield from _pieces(paragraph.strip())


def _pieces(paragraph: str) -> Iterator[str]:
    """Yield a paragraph in pieces that are short enough. The rest is not copied for each: it may be a whole book."""
    start = 0
    while start < len(paragraph):
        end = start + _LONGEST
        if end < len(paragraph):
            cut = max(paragraph.rfind(" ", start, end), paragraph.rfind("\n", start, end))
            end = cut if cut > start else end
        yield paragraph[start:end].rstrip()
        start = end
        while paragraph[start : start + 1].isspace():
            start += 1
