"""Finding records by a question. A ledger finds what has all the words; a question has words that no answer has.

So the ledger is asked several times: for all the words together, and for each by itself. Whatever stands high in these lists
gets points for it, more where a word is rare, and the best are taken.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from math import log2

from antiphon.ledger import Ledger, Record

__all__ = ["retrieve"]

_WORD = re.compile(r"[^\W_]+")
_MOST_WORDS = 12
"""Words of a question that are looked for."""
_LOOKED_AT = 50
"""Records of each list."""
_TOGETHER = 4.0
"""How much more it counts to have all the words than to have one."""
_SHORTEST_STEM = 4
_EMPTY = frozenset(
    _WORD.findall(
        "a about an and are as at be by can do does for from has have how i in is it its me my of on or our please tell that"
        " the their there they this to was we were what when where which who whom whose why will with you your"
    )
)
"""Words that say nothing about what is looked for; left out, unless there are no others."""


async def retrieve(
    ledger: Ledger, question: str, *, thread_id: str | None, limit: int, keep: Callable[[Record], Awaitable[bool]]
) -> list[Record]:
    """Return the records that answer best, of all threads or one, and that are to be kept."""
    said = list(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    words = [word for word in said if word not in _EMPTY][:_MOST_WORDS] or said[:_MOST_WORDS]
    if not words:
        return []
    points: dict[str, float] = {}
    found: dict[str, Record] = {}
    for typed, weight in [(" ".join(map(_stem, words)), _TOGETHER), *((_stem(word), 1.0) for word in words)]:
        hits = await ledger.search(typed, thread_id=thread_id, limit=_LOOKED_AT)
        for place, hit in enumerate(hits):
            found[hit.record.hash] = hit.record
            rarity = 1 / (1 + log2(1 + len(hits)))
            points[hit.record.hash] = points.get(hit.record.hash, 0.0) + weight * rarity / (1 + place)
    best: list[Record] = []
    for key in sorted(found, key=lambda each: -points[each]):
        if len(best) == limit:
            break
        if await keep(found[key]):
            best.append(found[key])
    return best


def _stem(word: str) -> str:
    """Return what to look for, so that one of several is found by several and the other way round."""
    return f"{word.removesuffix('s')}*" if len(word) >= _SHORTEST_STEM else word
