"""What is wrong with a page of Markdown: links that lead nowhere, headings out of order, fences left open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

__all__ = ["problems_of"]

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(\s*<?([^\s)>]+)>?[^)]*\)")
_FENCE = re.compile(r"\s{0,3}(```+|~~~+)")
_CODE = re.compile(r"`[^`]*`")
_OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//|/", re.IGNORECASE)
_TODO = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


@dataclass
class _Page:
    headings: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """Line, level, text."""
    links: list[tuple[int, bool, str, str]] = field(default_factory=list[tuple[int, bool, str, str]])
    """Line, whether it is an image, text, target."""
    todos: list[int] = field(default_factory=list[int])
    open_fence: int | None = None


def problems_of(text: str, says: Callable[[str], str | None]) -> list[str]:
    """Return what is wrong with a page, line by line.

    `says` is given where a link leads and returns the text of that page: None if there is none.
    """
    page = _read(text)
    found = sorted((*_headings(page), *_links(page, says), *_rest(page)))
    return [f"line {line}: {what}" for line, what in found]


def _read(text: str) -> _Page:
    page, fence = _Page(), ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence, page.open_fence = ("", None) if fence else (mark[1], number)
            continue
        if fence:
            continue
        plain = _CODE.sub("", line)
        if heading := _HEADING.match(line):
            page.headings.append((number, len(heading[1]), heading[2]))
        page.links += [(number, bool(image), said, target) for image, said, target in _LINK.findall(plain)]
        if _TODO.search(plain):
            page.todos.append(number)
    return page


def _headings(page: _Page) -> Iterator[tuple[int, str]]:
    if not page.headings or page.headings[0][1] != 1:
        yield 1, "the page does not begin with a title"
    last, seen = 0, set[str]()
    for line, level, title in page.headings:
        if last and level > last + 1:
            yield line, f"heading {title!r} is {level - last} levels below the one before it"
        if title in seen:
            yield line, f"heading {title!r} is there twice"
        last = level
        seen.add(title)


def _links(page: _Page, says: Callable[[str], str | None]) -> Iterator[tuple[int, str]]:
    for line, is_image, text, target in page.links:
        if is_image and not text.strip():
            yield line, f"image {target} has no description"
        if _OUTSIDE.match(target):
            continue
        name, _, anchor = unquote(target).partition("#")
        there = None if not name else says(name)
        if name and there is None:
            yield line, f"link to {name} leads nowhere"
        elif anchor and anchor not in _anchors(page if not name else _read(there or "")):
            yield line, f"link to {target} names a heading that is not there"


def _rest(page: _Page) -> Iterator[tuple[int, str]]:
    if page.open_fence is not None:
        yield page.open_fence, "the code block that begins here does not end"
    for line in page.todos:
        yield line, "something is left to do"


def _anchors(page: _Page) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for _, _, title in page.headings}
