"""Problems of a Markdown page: broken links, headings out of order, open fences.

Pages are read by a CommonMark parser that takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

Anchors: TypeAlias = frozenset[str] | Literal["unknown"] | None
"""The anchors of a page, made from its headings; None if there is no such page."""

_OUTSIDE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//|/", re.IGNORECASE)
_TODO: Final = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
_SIGN: Final = re.compile(r"[^\w\- ]")
_LONGEST_SHOWN: Final = 100
"""The maximum length of a shown title or target, in characters."""
_PARSER: Final = MarkdownIt("commonmark")


@dataclass
class _Page:
    headings: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """Line, level, text."""
    links: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Line, target."""
    bare_images: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Line and target of images without a description."""
    todos: set[int] = field(default_factory=set[int])
    open_fence: int | None = None


def problems_of(text: str, anchors: Callable[[str], Anchors]) -> list[str]:
    """Return the problems of a page, line by line. `anchors` returns the anchors of a link's target."""
    page = _read(text)
    found = sorted((*_headings(page), *_links(page, anchors), *_rest(page)))
    return [f"line {line}: {what}" for line, what in found]


def anchors_of(text: str) -> frozenset[str]:
    """Return the anchors of a page."""
    return _anchors(_read(text))


# ---------------------------------------------------------------- reading


def _read(text: str) -> _Page:
    page, level = _Page(), 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # as the parser counts them
    for token in _PARSER.parse(text):
        line = token.map[0] + 1 if token.map else 1
        match token.type:
            case "heading_open":
                level = int(token.tag[1:])
            case "inline":
                if level:
                    page.headings.append((line, level, token.content))
                _read_inline(page, line, token.children or [])
                level = 0
            case "fence":
                page.open_fence = page.open_fence or (None if _is_closed(lines, token) else line)
            case "html_block":
                page.todos |= {line + at for at, said in enumerate(token.content.split("\n")) if _TODO.search(said)}
            case _:
                pass
    return page


def _read_inline(page: _Page, line: int, tokens: list[Token]) -> None:
    """Read the inline content of a paragraph that starts at a line."""
    for token in tokens:
        match token.type:
            case "softbreak" | "hardbreak":
                line += 1
            case "link_open":
                page.links.append((line, str(token.attrGet("href") or "")))
            case "image":
                target = str(token.attrGet("src") or "")
                page.links.append((line, target))
                if not token.content.strip():
                    page.bare_images.append((line, target))
            case "text" | "html_inline":
                page.todos |= {line} if _TODO.search(token.content) else set()
                line += token.content.count("\n")
            case _:
                pass


def _is_closed(lines: list[str], token: Token) -> bool:
    """Whether a code block ends with a fence, and not with the page or its container."""
    first, end = token.map or [0, 0]
    last = lines[end - 1].strip(" \t>") if end - first > 1 else ""
    return last.startswith(token.markup) and not last.strip(token.markup[0])


# ---------------------------------------------------------------- problems


def _headings(page: _Page) -> Iterator[tuple[int, str]]:
    if not page.headings or page.headings[0][1] != 1:
        yield 1, "the page does not begin with a title"
    last, seen = 0, set[str]()
    for line, level, title in page.headings:
        if last and level > last + 1:
            yield line, f"heading {_short(title)!r} is {level - last} levels below the one before it"
        if title in seen:
            yield line, f"heading {_short(title)!r} is there twice"
        last = level
        seen.add(title)


def _links(page: _Page, anchors: Callable[[str], Anchors]) -> Iterator[tuple[int, str]]:
    for line, target in page.bare_images:
        yield line, f"image {_short(unquote(target))} has no description"
    own = _anchors(page)
    for line, target in page.links:
        if _OUTSIDE.match(target):
            continue
        name, _, anchor = unquote(target).partition("#")
        there = anchors(name) if name else own
        if there is None:
            yield line, f"link to {_short(name)} leads nowhere"
        elif anchor and there != "unknown" and anchor not in there:
            yield line, f"link to {_short(unquote(target))} names a heading that is not there"


def _rest(page: _Page) -> Iterator[tuple[int, str]]:
    if page.open_fence is not None:
        yield page.open_fence, "the code block that begins here does not end"
    for line in page.todos:
        yield line, "something is left to do"


def _anchors(page: _Page) -> frozenset[str]:
    return frozenset(_SIGN.sub("", title.lower()).strip().replace(" ", "-") for _, _, title in page.headings)


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"
