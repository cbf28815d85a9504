"""The index of words: a `tsvector` of each message.

Words are folded in Python (see `_listing`), so they do not depend on the locale of the database; PostgreSQL gets them as a
`tsvector`, which holds the first 16,000 words of a message, up to a megabyte. Appends do not update the index. A search first
adds missing messages. The index records its progress only up to the horizon, because a message of a running transaction may
still appear before those that are already visible. The next search examines the few messages above the horizon again. The
horizon is read before the messages: a message that is committed in between is then above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.ledger._listing import Term, fold_words, snippet, terms_of, words_of
from antiphon.ledger._sql.lists import horizon, searched_segments
from antiphon.ledger._sql.rows import BEGINNING, MESSAGES, CommitPlace, place_in, records_of
from antiphon.ledger._sql.statements import Lock, Verb, row, rows, write
from antiphon.ledger._values import Hit
from antiphon.ledger.postgres._driver import INDEXES

_MOST_WORDS = 16_000
"""PostgreSQL counts the positions of words up to 16,383."""
_MOST_POSITIONS = 250
"""Of one word in one message: PostgreSQL keeps 255."""
_LONGEST_WORD = 500
"""Characters: a `tsvector` takes words below 2 KB."""
_MOST_BYTES = 1_000_000
"""Of all words of a message with their positions: a `tsvector` takes less than 1 MiB."""
_STEP = 2000

WORDS = "words"
"""The name of the index of words among those in `indexed`."""
INDEXED = "SELECT version, era, xid, ord FROM antiphon.indexed WHERE tenant = $1 AND name = $2"
SET_INDEXED = """
INSERT INTO antiphon.indexed (tenant, name, version, era, xid, ord) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, era = excluded.era, xid = excluded.xid, ord = excluded.ord
"""
_UNINDEXED = """
SELECT m.thread, m.seq, m.era, m.xid, m.ord, m.body FROM antiphon.messages AS m
WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4)
ORDER BY m.era, m.xid, m.ord LIMIT $5
"""
_ADD_WORDS = """
INSERT INTO antiphon.words (tenant, thread, seq, words)
SELECT $1, w.thread, w.seq, w.words::tsvector FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS w (thread, seq, words)
ON CONFLICT DO NOTHING
"""
_FIND = f"""
{MESSAGES} JOIN antiphon.words AS w ON w.tenant = m.tenant AND w.thread = m.thread AND w.seq = m.seq
WHERE w.tenant = $1 AND w.words @@ $2::text::tsquery AND ($3::bigint IS NULL OR m.thread = $3 AND m.seq BETWEEN $4 AND $5)
ORDER BY ts_rank(w.words, $2::text::tsquery, 1) DESC, m.era, m.xid, m.ord LIMIT $6
"""


def index_words(after: CommitPlace | None) -> Verb[CommitPlace | None]:
    """Add the next messages to the index of words; return where to continue, or None if it has all of them."""
    yield Lock([INDEXES], is_shared=True)
    safe = yield from horizon()
    progress = yield from row(INDEXED, WORDS)
    indexed = BEGINNING if progress is None else CommitPlace(*progress[1:])
    unindexed = yield from rows(_UNINDEXED, *(after or indexed), _STEP)
    if not unindexed:
        return None
    texts = [(thread, seq, vector_of(fold_words(words_of(body)))) for thread, seq, *_, body in unindexed]
    yield from write(_ADD_WORDS, *map(list, zip(*texts, strict=True)))
    last = place_in(unindexed[-1])
    upto = min(last, safe)
    if progress is None or upto > indexed:
        yield from write(SET_INDEXED, WORDS, "1", *upto)
    return last if len(unindexed) == _STEP else None


def vector_of(words: Sequence[str]) -> str:
    """Return words as the text of a `tsvector`. They have letters and digits only, so nothing needs to be escaped."""
    places: dict[str, list[int]] = {}
    size = 0
    for number, word in enumerate((folded[:_LONGEST_WORD] for folded in words[:_MOST_WORDS]), start=1):
        size += 2 if word in places else len(word.encode()) + 6  # a position; with a new word, also their number and padding
        if size > _MOST_BYTES:
            break
        places.setdefault(word, []).append(number)
    return " ".join(f"'{word}':{','.join(map(str, at[:_MOST_POSITIONS]))}" for word, at in places.items())


def find_words(typed: str, thread_id: str | None, limit: int) -> Verb[tuple[Hit, ...]]:
    """Return the best matches, of all threads or one."""
    terms = terms_of(typed)
    if not terms:
        return ()
    tsquery = " & ".join(map(_sought, terms))
    segments: Iterable[tuple[int | None, int, int]] = [(None, 0, 0)]
    if thread_id is not None:
        segments = yield from searched_segments(thread_id)
    hits: list[Hit] = []
    for key, first, last in segments:
        matches = yield from records_of((yield from rows(_FIND, tsquery, key, first, last, limit)))
        hits += [Hit(match.record, snippet(terms, words_of(match.record.body))) for match in matches]
    return tuple(hits[:limit])


def _sought(term: Term) -> str:
    """Return a term as a `tsquery`: words that follow each other, the last one perhaps as a prefix."""
    words = [f"'{word[:_LONGEST_WORD]}'" for word in term.words]
    if term.is_beginning:
        words[-1] += ":*"
    return f"({' <-> '.join(words)})"
