"""Differences between a recorded step and the one of the program, as text for a person."""

from __future__ import annotations

import json
from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from hashlib import sha256
from typing import Any

import orjson


def short_hash(value: Any) -> str:
    """Return a hash of a JSON value, in base 32: hexadecimal digits may look like a card number, and be redacted."""
    words = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return b32encode(sha256(words).digest()).decode()[:26].lower()


_WIDTH = 140
_AROUND = 40
"""The number of characters shown before the first difference in a long line."""
_MOST_LINES = 6


def text_difference(name: str, before: str | None, after: str | None) -> list[str]:
    """Return how a text has changed, as lines of a diff; no lines if it has not."""
    if before == after:
        return []
    return [f"{name}:", *_limited(_diff((before or "").splitlines(), (after or "").splitlines()))]


def _diff(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for tag, start, end, other_start, other_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            old, new = before[start:end], after[other_start:other_end]
            place = _first_difference(old[0], new[0]) if old and new else 0
            yield from (f"  - {_cut(line, place)}" for line in old)
            yield from (f"  + {_cut(line, place)}" for line in new)


def _first_difference(old: str, new: str) -> int:
    return next((place for place, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), 0)


def _cut(line: str, place: int) -> str:
    start = max(0, place - _AROUND) if len(line) > _WIDTH else 0
    shown = line[start : start + _WIDTH]
    return f"{'…' if start else ''}{shown}{'…' if start + _WIDTH < len(line) else ''}"


def _limited(lines: Iterator[str]) -> list[str]:
    found = list(lines)
    left = len(found) - _MOST_LINES
    return found if left <= 0 else [*found[:_MOST_LINES], f"  … and {left} more lines"]


def tools_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which tools have changed, and how. A tool is a JSON object."""
    lines = [f"tool {name!r} is gone" for name in before if name not in after]
    lines += [f"tool {name!r} is new" for name in after if name not in before]
    for name in before:
        if name in after and before[name] != after[name]:
            lines += _tool_difference(name, before[name], after[name])
    return lines


def _tool_difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for field in dict.fromkeys((*before, *after)):
        old, new = (_as_text(each.get(field)) for each in (before, after))
        lines += text_difference(f"{field} of tool {name!r}", old, new)
    return lines or [f"tool {name!r} has changed"]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)


def values_difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which of some settings have changed."""
    changed = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    return [f"{name} {key!r}: {before.get(key)!r}, now {after.get(key)!r}" for key in changed]
