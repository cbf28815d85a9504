"""Indexes of terms: a store keeps them beside the messages, so that a retriever finds messages by their words.

An index is derived. It covers a *collection* of threads: the thread of its name, and the threads whose names begin with that
name and a slash. A pure function of the caller returns the terms of a message: a store knows nothing about stems and headings.
The store calls it for the messages that are not in the index yet, at each search. The index records the version of the
function. Another version drops the index and builds it again.

Entries belong to a source. An entry of a later version of its source removes those of earlier versions, and an entry without
terms removes them and adds nothing. So the next search does not find replaced or removed entries.

A store returns candidates, the terms that they have, and how frequent each term is. The caller ranks them.

An index can keep a vector for each entry, too, and find the nearest. All vectors come from one embedder, because vectors
of two embedders cannot be compared. A vector is removed with its entry, so a removed passage is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Protocol

from antiphon.errors import DecodeError, RetrievalError
from antiphon.ledger._records import Record
from antiphon.messages import Message, loads
from antiphon.messages._settings import NO_LIMITS

MOST_TERMS = 400
"""Terms of one search: the statement of a store has a limit. A caller chooses the best of a longer question."""
HEADING_WEIGHT = 3.0
"""The weight of a term of a heading, relative to a term of the text, when a store chooses candidates."""


@dataclass(frozen=True, slots=True)
class TermEntry:
    """The entry of a message in an index. Terms contain no white space, and are separated by one space."""

    source: str
    """The source that the message belongs to; the entries of a source are replaced and removed together."""
    version: int
    """Of the source."""
    heading: str
    body: str

    @property
    def is_empty(self) -> bool:
        """Whether it adds nothing: it only removes the earlier versions of its source."""
        return not self.heading and not self.body

    @property
    def length(self) -> int:
        """How many terms it has."""
        return len(self.heading.split()) + len(self.body.split())


@dataclass(frozen=True, slots=True)
class TermIndex:
    """An index: which threads it covers, and which terms a message has."""

    name: str
    """The name of the collection: of one thread, and the beginning of the names of the others; without a slash."""
    version: str
    """Changes whenever `entry_of` returns other terms for the same message."""
    entry_of: Callable[[Message], TermEntry | None]
    """A pure function; None for a message that is not in the index."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(f"the name of an index is the name of a thread without a slash, not {self.name!r}")

    def covers(self, thread_id: str) -> bool:
        """Whether a thread is in the collection."""
        return thread_id == self.name or thread_id.startswith(f"{self.name}/")

    def entry_in(self, body: bytes) -> TermEntry | None:
        """Return the entry of a stored message; None if it cannot be decoded, which `verify` reports."""
        try:
            return self.entry_of(loads(body, Message, limits=NO_LIMITS))
        except DecodeError:
            return None


@dataclass(frozen=True, slots=True)
class TermMatch:
    """A message that has one of the terms, and all terms that it has."""

    record: Record
    entry: TermEntry


@dataclass(frozen=True, slots=True)
class TermMatches:
    """The best matches, the best first, and the figures of the index that a ranking needs."""

    matches: tuple[TermMatch, ...]
    entries: int
    """How many messages the index has."""
    length: int
    """How many terms they have together."""
    frequency: Mapping[str, int]
    """In how many messages each term of the search is."""


@dataclass(frozen=True, slots=True)
class VectorSpace:
    """Which vectors can be compared with each other: those of one model, with the same number of dimensions."""

    model: str
    dimension: int

    def __str__(self) -> str:
        return f"{self.model} ({self.dimension} dimensions)"


class Terms(Protocol):
    """The indexes of terms of a ledger, and the vectors beside them."""

    async def find(
        self, index: TermIndex, terms: Iterable[str], *, source: str | None = None, limit: int = 100
    ) -> TermMatches:
        """Find messages of an index that have at least one of the terms; those with the most and the rarest terms first.

        Messages that were committed before the call are in the index, and those of removed sources are not. `source` is a
        pattern with `*`, `?` and `[...]`, which the source of an entry must match; case matters.

        Raises:
            NotSearchableError: the index covers an encrypted thread.
            ValueError: there are too many terms, or one has white space.
        """
        ...

    async def rebuild(self, index: TermIndex) -> int:
        """Drop an index, build it again from the messages, and return how many messages it has.

        A search does this automatically if the version of the index has changed. Use it for an index that `verify` finds
        damaged.
        """
        ...

    async def without_vectors(self, index: TermIndex, space: VectorSpace, *, limit: int = 100) -> tuple[Record, ...]:
        """Return messages of an index that have no vector yet.

        Raises:
            RetrievalError: there are vectors of another space.
        """
        ...

    async def store_vectors(self, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> None:
        """Store vectors, each by the hash of its record; one of a message that is gone is ignored.

        Raises:
            RetrievalError: there are vectors of another space, or one has another dimension.
        """
        ...

    async def find_vectors(
        self, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None = None, limit: int = 100
    ) -> tuple[TermMatch, ...]:
        """Return the messages whose vectors are nearest by cosine, the nearest first.

        Raises:
            RetrievalError: there are vectors of another space.
        """
        ...

    async def drop_vectors(self, index: TermIndex) -> None:
        """Drop all vectors of an index, so that another embedder can be used."""
        ...


def check_vector(space: VectorSpace, stored: VectorSpace | None, vectors: Iterable[Sequence[float]] = ()) -> None:
    """Check that vectors can be compared with those that are stored."""
    if stored not in (None, space):
        raise _other_embedder(str(stored), str(space))
    for vector in vectors:
        if len(vector) != space.dimension:
            raise _other_embedder(str(space), str(VectorSpace(space.model, len(vector))))


def _other_embedder(stored: str, space: str) -> RetrievalError:
    reason = f"the vectors of the documents are of {stored}, and this embedder is {space}"
    advice = "use that embedder, or drop them with `KnowledgeBase.drop_vectors` and pay for new ones"
    return RetrievalError(f"{reason}; {advice}", code="OTHER_EMBEDDER")


def check_terms(terms: Iterable[str]) -> tuple[str, ...]:
    """Return the terms of a search, each once."""
    unique = tuple(dict.fromkeys(terms))
    if len(unique) > MOST_TERMS:
        raise ValueError(f"a search has at most {MOST_TERMS} terms, not {len(unique)}")
    for term in unique:
        if not term or len(term.split()) != 1 or '"' in term or "\0" in term:
            raise ValueError(f"{term!r} is not a term: it is empty, or has white space or a quotation mark")
    return unique


_COMMON = 0.2
"""The share of all entries from which on a term is common: it selects no candidates if another term can."""
_MANY = 2000
"""The number of entries up to which common terms select candidates, too: all of them are scored in a few milliseconds."""


def selectors_of(frequency: Mapping[str, int], entries: int) -> list[str]:
    """Return the terms that select the candidates: those in the index, without the common ones if others can select."""
    indexed = [term for term, count in frequency.items() if count]
    rare = [term for term in indexed if frequency[term] <= _COMMON * entries]
    return rare if rare and entries > _MANY else indexed


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    length = hypot(*one) * hypot(*other)
    return sum(left * right for left, right in zip(one, other, strict=True)) / length if length else 0.0
