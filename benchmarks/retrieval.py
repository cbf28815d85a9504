"""Retrieval beside rank-bm25, bm25s and SQLite FTS5 alone: what is found of the questions in `answers`, and how long it takes.

All have the same passages, with their headings as the first line, and answer the same questions. The peers are used as their
manuals show: rank-bm25 on the words in lower case, bm25s with its own tokenizer and its stop words, FTS5 with `unicode61` and
the words of the question joined by OR. Quality is nDCG@10 over the questions that have an answer: a passage is right if it has
a gold sentence. Times are of one query, with the index built and warm; antiphon and FTS5 have theirs in a file.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import apsw
import bm25s
from rank_bm25 import BM25Okapi

from antiphon.ledger import open_ledger
from antiphon.retrieval import KnowledgeBase
from antiphon.retrieval._documents import kind_of, passages_of
from benchmarks._harness import Sample, Table
from benchmarks.answers._questions import Question, plain, read_documents, read_questions

__all__ = ["tables"]

ANTIPHON, RANK, BM25S, FTS5 = "antiphon", "rank-bm25", "bm25s", "SQLite FTS5 alone"
SIZES = (100, 10_000, 100_000)
FOUND = 10
PASSAGES_OF_A_DOCUMENT = 100
WORDS_OF_A_PASSAGE = 40
QUERIES = 20
_WORD = re.compile(r"\w+")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Plain:
    """A passage as the peers get it."""

    source: str
    text: str


Search = Callable[[str], Sequence[Plain]]


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one."""
    for name, make in {
        "nDCG@10 of the questions with an answer": _quality,
        **{f"a query over {size:,} passages": _times(size) for size in SIZES},
    }.items():
        if part in name:
            with ExitStack() as stack:
                yield make(name, stack)


# ---------------------------------------------------------------- candidates


class Ours:
    """A knowledge base in a file, and the event loop that it belongs to."""

    def __init__(self, documents: dict[str, str], stack: ExitStack) -> None:
        folder = stack.enter_context(TemporaryDirectory())
        self._loop = asyncio.Runner()
        stack.enter_context(self._loop)
        opened = AsyncExitStack()
        stack.callback(lambda: self._run(opened.aclose()))
        ledger = self._run(opened.enter_async_context(open_ledger(f"sqlite:///{folder}/ledger.db")))
        self._base = KnowledgeBase(ledger)
        self._run(self._fill(documents))

    def _run(self, work: Awaitable[ResultT]) -> ResultT:
        async def waited() -> ResultT:
            return await work

        return self._loop.run(waited())

    async def _fill(self, documents: dict[str, str]) -> None:
        for source, text in documents.items():
            await self._base.add(source, text)
        await self._base.refresh()

    def search(self, question: str) -> Sequence[Plain]:
        return [Plain(each.source, each.text) for each in self._run(self._base.search(question, FOUND))]


def rank_bm25(passages: Sequence[Plain]) -> Search:
    index = BM25Okapi([_words(each.text) for each in passages])

    def search(question: str) -> Sequence[Plain]:
        found: list[Plain] = index.get_top_n(_words(question), list(passages), n=FOUND)
        return found

    return search


def bm25s_search(passages: Sequence[Plain]) -> Search:
    index = bm25s.BM25()
    index.index(bm25s.tokenize([each.text for each in passages], show_progress=False), show_progress=False)
    count = min(FOUND, len(passages))

    def search(question: str) -> Sequence[Plain]:
        tokens = bm25s.tokenize(question, show_progress=False, return_ids=False)
        places, _ = index.retrieve(tokens, k=count, show_progress=False)
        return [passages[int(place)] for place in places[0]]

    return search


def fts5(passages: Sequence[Plain], stack: ExitStack) -> Search:
    connection = apsw.Connection(str(Path(stack.enter_context(TemporaryDirectory()), "fts5.db")))
    stack.callback(connection.close)
    connection.execute("CREATE VIRTUAL TABLE passages USING fts5 (text)")
    with connection:
        connection.executemany("INSERT INTO passages VALUES (?)", [(each.text,) for each in passages])
    sql = f"SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT {FOUND}"

    def search(question: str) -> Sequence[Plain]:
        asked = " OR ".join(f'"{word}"' for word in _words(question))
        return [passages[rowid - 1] for (rowid,) in connection.execute(sql, (asked,))]

    return search


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _all(documents: dict[str, str], stack: ExitStack) -> dict[str, Search]:
    passages = [
        Plain(source, "\n".join((*piece.heading, piece.text)))
        for source, text in documents.items()
        for piece in passages_of(text, kind_of(source))
    ]
    return {
        ANTIPHON: Ours(documents, stack).search,
        FTS5: fts5(passages, stack),
        BM25S: bm25s_search(passages),
        RANK: rank_bm25(passages),
    }


# ---------------------------------------------------------------- quality


def _quality(name: str, stack: ExitStack) -> Table:
    questions = [each for each in read_questions() if each.gold]
    found = _all(read_documents(), stack)
    values = {
        each: sum(ndcg(question, search(question.text)) for question in questions) / len(questions)
        for each, search in found.items()
    }

    def fixed(value: float) -> Sample:
        return lambda: value

    return Table(
        name=name,
        unit="nDCG@10",
        scale=1,
        baseline=FTS5,
        candidates={each: fixed(value) for each, value in values.items()},
        notes=(f"{len(questions)} questions in three languages; more is better",),
        rounds=1,
    )


def ndcg(question: Question, found: Sequence[Plain]) -> float:
    """Return the discounted gain of a ranking, beside the best that is possible: each gold sentence counts once."""
    left = list(question.gold)
    gain = 0.0
    for place, each in enumerate(found[:FOUND]):
        right = [gold for gold in left if gold.document == each.source and plain(gold.sentence) in plain(each.text)]
        left = [gold for gold in left if gold not in right]
        gain += bool(right) / log2(place + 2)
    best = sum(1 / log2(place + 2) for place in range(_places(question)))
    return min(1.0, gain / best)


def _places(question: Question) -> int:
    """Return how many passages are right: gold sentences below one heading are mostly in one passage."""
    return len({(gold.document, gold.heading) for gold in question.gold})


# ---------------------------------------------------------------- times


def _times(size: int) -> Callable[[str, ExitStack], Table]:
    def make(name: str, stack: ExitStack) -> Table:
        documents, queries = made(size)
        searches = _all(documents, stack)

        def sample(search: Search) -> Sample:
            def take() -> float:
                began = perf_counter()
                for query in queries:
                    search(query)
                return (perf_counter() - began) / len(queries)

            return take

        return Table(
            name=name,
            unit="ms a query",
            scale=1_000,
            baseline=FTS5,
            candidates={each: sample(search) for each, search in searches.items()},
            notes=(
                f"passages of {WORDS_OF_A_PASSAGE} words, drawn as words of a language are: few are frequent, most are rare",
            ),
            rounds=3,
        )

    return make


def made(size: int) -> tuple[dict[str, str], list[str]]:
    """Return documents with so many passages, and queries: two frequent words and four rare ones each."""
    chance = random.Random(size)
    words = [
        f"{''.join(chance.choices('bcdfghklmnprst', k=2))}{''.join(chance.choices('aeiou', k=2))}{number}"
        for number in range(50_000)
    ]
    weights = [1 / (place + 1) for place in range(len(words))]
    drawn: Any = iter(chance.choices(words, weights, k=size * WORDS_OF_A_PASSAGE))
    documents: dict[str, str] = {}
    for start in range(0, size, PASSAGES_OF_A_DOCUMENT):
        count = min(PASSAGES_OF_A_DOCUMENT, size - start)
        pieces = [
            f"# {next(drawn)} {start + number}\n\n" + " ".join(next(drawn) for _ in range(WORDS_OF_A_PASSAGE - 1))
            for number in range(count)
        ]
        documents[f"{start}.md"] = "\n\n".join(pieces)
    queries = [" ".join(chance.choices(words[:50], k=2) + chance.choices(words[200:20_000], k=4)) for _ in range(QUERIES)]
    return documents, queries
