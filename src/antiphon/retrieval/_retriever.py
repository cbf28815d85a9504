"""Retrievers: the protocol, and `KnowledgeBase`, which needs only a ledger.

`KnowledgeBase` keeps documents in a ledger, cut into passages. A passage is a message, so it is durable, verified,
redacted and backed up like all messages, and is cited by its message id. Each document has its own thread, `knowledge/kb-…`:
deleting the thread deletes only the bytes of that document.

A document that is added again replaces its earlier text, and a removed one leaves a message about the removal. In both cases
the earlier passages stay in the ledger and are no longer found.

The ranking is BM25 over terms (see `_language`), where a term of a heading counts for every passage below it. The ledger gives
the candidates, and this module scores them: a question's word counts once, whichever of its stems a passage has, and half if
the passage has a synonym; words that follow each other in the question and in the passage count more; and so does a
passage with most of the words. With an embedder, the passages whose vectors are nearest to the question's are a second
ranking, and the sum of the reciprocal ranks decides.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from math import log
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from antiphon.errors import AppendConflictError, AppendRefusedError, NotSearchableError, UnknownThreadError
from antiphon.ledger import Ledger, Record, TermEntry, TermIndex, TermMatch, TermMatches, ThreadFilter
from antiphon.ledger._terms import MOST_TERMS
from antiphon.messages import Json, JsonArray, Message, PartsPayload, TextPart
from antiphon.retrieval._documents import KINDS, Kind, TextPiece, kind_of, passages_of
from antiphon.retrieval._language import analysis_version, concepts_in, detect_language, related_stems, telling_words, terms_in
from antiphon.retrieval._vectors import Vectors

if TYPE_CHECKING:
    from pydantic_ai import Embedder

ResultT = TypeVar("ResultT")
THREAD: Final = "knowledge"
_NAMESPACE: Final = "knowledge"
_LONGEST_QUESTION: Final = 20_000
"""The maximum length of a question, in characters."""
_MOST_CONCEPTS: Final = 64
"""The maximum number of words of a question that are searched."""
_CANDIDATES: Final = 60
"""The least number of passages that are scored."""
_DIGITS: Final = 10
"""The number of digits of a source's digest in the id of its thread."""
_DUPLICATE_ID: Final = "AP108"
"""The code of a refusal: the id of a message is taken."""
_ENCRYPTED: Final = (
    "this ledger encrypts new threads, and an index of their passages would be readable; "
    "keep documents in a ledger without encryption"
)
_ATTEMPTS: Final = 10
"""How often adding a document is retried, if another process has changed it meanwhile."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document, and its origin."""

    id: str
    """The id of its message, by which it is cited."""
    source: str
    """The document: a path or a name."""
    text: str
    heading: tuple[str, ...] = ()
    """The headings above it, from the title to the nearest one."""
    lines: tuple[int, int] | None = None
    """Its first and its last line in the document, from 1; None if its place is unknown."""
    language: str | None = None
    kind: Kind = "markdown"
    version: int = 0
    """The version of the document."""
    digest: str = ""
    """SHA-256 of the document's text."""
    score: float = 0.0
    """How well it matches the question. Only scores of the same search can be compared."""
    coverage: float = 0.0
    """The share of the question's words that it has, from 0 to 1; rare words count more."""


class Passages(tuple[Passage, ...]):
    """The results of a search, the best first."""

    is_cut: bool = False
    """Whether the question was too long: only its beginning was searched."""


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """Conditions on passages. A field that is None sets no condition."""

    source: str | None = None
    """A pattern for the document, with `*`, `?` and `[...]`; case matters: `docs/*.md`."""
    language: str | None = None


@dataclass(frozen=True, slots=True)
class AddedDocument:
    """The result of adding a document."""

    source: str
    passages: int
    version: int
    """How many versions the source has had."""
    is_new: bool
    """Whether anything was written. A known text is not written again, unless another language is given for it."""
    new_language: str | None = None
    """The language that was given for a known text; None if it was not known, or had that language."""


class Retriever(Protocol):
    """Finds passages of documents. `antiphon.retrieval.open_retriever` opens one by name."""

    async def add(self, source: str, text: str, *, kind: Kind | None = None, language: str | None = None) -> AddedDocument:
        """Add a document, or a new text of a known source, atomically.

        Raises:
            ValueError: it has no text.
        """
        ...

    async def search(self, query: str, limit: int = 5, filter: PassageFilter | None = None) -> Passages:
        """Return the passages that answer a question best. A document that was removed before the call is not found."""
        ...

    async def remove(self, source: str) -> bool:
        """Remove a document, and return whether there was one."""
        ...


# ---------------------------------------------------------------- third parties

_GROUP: Final = "antiphon.retrievers"


def open_retriever(name: str, ledger: Ledger) -> Retriever:
    """Return the retriever of a name: `knowledge`, or one that an installed package offers.

    A package offers one with an entry point in the group `antiphon.retrievers`: a function that takes a ledger and returns a
    `Retriever`. The caller names it; no name that is stored in a ledger is ever imported.

    Raises:
        ValueError: there is no retriever with that name.
    """
    if name == THREAD:
        return KnowledgeBase(ledger)
    offered = {point.name: point for point in entry_points(group=_GROUP)}
    if name not in offered:
        there = ", ".join([THREAD, *sorted(offered)])
        raise ValueError(
            f"no retriever is called {name!r}; there are {there}. A package offers one by an entry point in {_GROUP}"
        )
    make: Callable[[Ledger], Retriever] = offered[name].load()
    return make(ledger)


# ---------------------------------------------------------------- documents in a ledger


@dataclass(frozen=True, slots=True)
class _Document:
    """The thread of a document, and its latest version."""

    thread_id: str
    id: str
    """The prefix of the ids of its passages."""
    length: int
    """The number of messages in its thread."""
    version: int = 0
    digest: str = ""
    """Empty if it was removed, or was never there."""
    language: str | None = None

    @property
    def is_there(self) -> bool:
        return bool(self.digest)


class KnowledgeBase:
    """The documents in a ledger. A method raises a `LedgerError` if the ledger cannot be read or written."""

    def __init__(self, ledger: Ledger, *, thread_id: str = THREAD, embedder: Embedder | None = None) -> None:
        """With an embedder, passages are also found by meaning. Each passage is embedded once.

        Raises:
            ValueError: `thread_id` has a slash.
        """
        self._ledger = ledger
        self._index = TermIndex(thread_id, analysis_version(), entry_of)
        self._vectors = None if embedder is None else Vectors(ledger, self._index, embedder)

    @property
    def finds_by_meaning(self) -> bool:
        """Whether there is an embedder."""
        return self._vectors is not None

    async def add(self, source: str, text: str, *, kind: Kind | None = None, language: str | None = None) -> AddedDocument:
        """Add a document, or a new text of a known source, atomically.

        By default, `kind` follows from the source's name, and `language` is detected. A known text is stored again if the
        given language is another one, because the index depends on the language.

        Raises:
            LedgerError: it could not be written.
            NotSearchableError: the ledger encrypts new threads, and an index of their passages would be readable.
            ValueError: it has no text.
        """
        if await self._ledger.keys.status() is not None:
            raise NotSearchableError(_ENCRYPTED)
        chosen_kind = kind or kind_of(source)
        # In threads: the author of a document chooses how long this takes.
        pieces = await _in_thread(passages_of, text, chosen_kind)
        if not pieces:
            raise ValueError(f"there is no text in {source!r}")
        digest = await _in_thread(_digest, text)
        text_language = language or detect_language(text)
        attempt = 0
        while True:
            document = await self._document(source)
            is_known = document.digest == digest
            if is_known and language in (None, document.language):
                return AddedDocument(source, len(pieces), document.version, is_new=False)
            facts: dict[str, Json] = {"source": source, "version": document.version + 1, "digest": digest}
            facts |= {"language": text_language, "kind": chosen_kind}
            messages = await _in_thread(_messages, document, facts, pieces)
            attempt += 1
            if await self._append(document, messages, is_last=attempt == _ATTEMPTS):
                changed = language if is_known else None
                return AddedDocument(source, len(pieces), document.version + 1, is_new=True, new_language=changed)

    async def remove(self, source: str, *, erase: bool = False) -> bool:
        """Remove a document, and return whether there was one. It is no longer found; its passages stay in the ledger.

        With `erase`, the thread of the document is deleted, with all its versions. Copies in backups stay.
        """
        attempt = 0
        while True:
            document = await self._document(source)
            if erase:
                if document.length:
                    await self._ledger.delete(document.thread_id)
                return bool(document.length)
            if not document.is_there:
                return False
            facts: dict[str, Json] = {"source": source, "version": document.version + 1, "digest": ""}
            gone = _message(document, facts, 0, TextPiece("(removed)", (), 0, 0))
            attempt += 1
            if await self._append(document, [gone], is_last=attempt == _ATTEMPTS):
                return True

    async def search(self, query: str, limit: int = 5, filter: PassageFilter | None = None) -> Passages:
        """Return the passages that answer a question best.

        Raises:
            ValueError: the limit is negative.
        """
        conditions = filter or PassageFilter()
        language = detect_language(query)
        every = telling_words(query[:_LONGEST_QUESTION], language)
        concepts = concepts_in(" ".join(every[:_MOST_CONCEPTS]), language)[:_MOST_CONCEPTS]
        terms = list(dict.fromkeys(term for concept in concepts for term in concept))[:MOST_TERMS]
        if limit < 0:
            raise ValueError(f"a search returns 0 passages or more, not {limit}")
        if not terms or not limit:
            return Passages()
        related = [related_stems(concept, language) for concept in concepts]
        matches = await self._matches(
            terms, related, conditions.source, max(_CANDIDATES, 3 * limit) * (1 if conditions.language is None else 5)
        )
        if self._vectors is None:
            best = ranked(concepts, related, matches)
        else:
            near = await self._vectors.nearest(query[:_LONGEST_QUESTION], source=conditions.source, limit=_CANDIDATES)
            by_meaning = ranked(concepts, related, replace(matches, matches=near), is_sorted=True)
            best = fused(ranked(concepts, related, matches), by_meaning)
        candidates = (_passage(match.record, score) for match, score in best)
        fitting = (
            passage for passage in candidates if passage is not None and conditions.language in (None, passage.language)
        )
        passages = Passages(itertools.islice(fitting, limit))  # a message is decoded only if it is returned
        passages.is_cut = len(query) > _LONGEST_QUESTION or len(every) > _MOST_CONCEPTS
        return passages

    async def _matches(
        self, terms: Sequence[str], related: Sequence[frozenset[str]], source: str | None, limit: int
    ) -> TermMatches:
        """Return the candidates of a search: those with its terms, and those with related ones."""
        matches = await self._ledger.terms.find(self._index, terms, source=source, limit=limit)
        related_terms = list(dict.fromkeys(term for stems in related for term in sorted(stems) if term not in terms))[
            :MOST_TERMS
        ]
        if not related_terms:
            return matches
        # A search of its own: the many related terms would otherwise displace the few that were asked for.
        by_related = await self._ledger.terms.find(self._index, related_terms, source=source, limit=limit)
        there = {match.record.hash for match in matches.matches}
        candidates = (*matches.matches, *(match for match in by_related.matches if match.record.hash not in there))
        return replace(matches, matches=candidates, frequency={**by_related.frequency, **matches.frequency})

    async def passage(self, id: str) -> Passage | None:
        """Return the passage of an id, of any version; None if there is none."""
        async for record in self._ledger.read(f"{self._index.name}/{id.rsplit('-', 2)[0]}"):
            if record.message.id == id:
                return _passage(record, _Score(0.0, 0.0))
        return None

    async def around(self, passage: Passage, lines: int = 5) -> tuple[tuple[int, str], ...]:
        """Return the lines of a passage with those before and after it, each with its number, verbatim."""
        if passage.lines is None:
            return ()
        first, last = passage.lines[0] - lines, passage.lines[1] + lines
        text_by_line: dict[int, str] = {}
        async for record in self._ledger.read(f"{self._index.name}/{passage.id.rsplit('-', 2)[0]}"):
            other = _passage(record, _Score(0.0, 0.0))
            if other is not None and other.version == passage.version and other.lines is not None:
                text_by_line.update(enumerate(other.text.split("\n"), start=other.lines[0]))
        return tuple((number, text_by_line[number]) for number in sorted(text_by_line) if first <= number <= last)

    async def documents(self) -> tuple[AddedDocument, ...]:
        """Return all documents, by name."""
        documents: dict[str, AddedDocument] = {}
        page: str | None = None
        while True:
            threads = await self._ledger.threads(ThreadFilter(pattern=_NAMESPACE), "created_at", page)
            for thread in threads.threads:
                if self._index.covers(thread.thread_id):
                    with suppress(UnknownThreadError):  # it was erased during the read
                        document = await self._document_in(thread.thread_id)
                        documents |= {} if document is None else {document.source: document}
            page = threads.next
            if page is None:
                return tuple(documents[source] for source in sorted(documents))

    async def _document_in(self, thread_id: str) -> AddedDocument | None:
        """Return the document of a thread; None if it was removed."""
        passages = [facts async for record in self._ledger.read(thread_id) if (facts := _facts_of(record.message)) is not None]
        if not passages or not passages[-1].digest:
            return None
        last = passages[-1]
        count = sum(passage.version == last.version for passage in passages)
        return AddedDocument(last.source, count, last.version, is_new=False)

    async def rebuild(self) -> int:
        """Rebuild the index, and return how many passages it has. A search does so automatically if necessary."""
        return await self._ledger.terms.rebuild(self._index)

    async def refresh(self) -> None:
        """Add missing passages to the index, so that the next search need not."""
        await self._ledger.terms.find(self._index, (), limit=0)
        if self._vectors is not None:
            await self._vectors.embed_new()

    async def drop_vectors(self) -> None:
        """Drop the vectors of all passages, so that another embedder can be used: the next search computes new ones."""
        await self._ledger.terms.drop_vectors(self._index)

    async def _document(self, source: str) -> _Document:
        """Return the place of a document, existing or new."""
        digest = hashlib.sha256(source.encode(errors="replace")).hexdigest()
        for document_id in (f"kb-{digest[:_DIGITS]}", f"kb-{digest}"):
            thread_id = f"{self._index.name}/{document_id}"
            head = await self._ledger.head(thread_id)
            records = [record async for record in self._ledger.read(thread_id, after=head.seq - 1)] if head.seq else []
            if not records:
                break
            last = records[-1]
            facts = _facts_of(last.message)  # of another source, if its digest starts with the same digits
            if facts is not None and facts.source == source:
                return _Document(thread_id, document_id, last.seq, facts.version, facts.digest, facts.language)
        return _Document(thread_id, document_id, 0)

    async def _append(self, document: _Document, messages: Sequence[Message], *, is_last: bool) -> bool:
        """Append to the thread of a document, and return whether the thread had the expected length."""
        try:
            await self._ledger.append(document.thread_id, messages, expected_version=document.length, pattern=_NAMESPACE)
        except (AppendConflictError, AppendRefusedError) as exc:
            # Another writer has added the same version: its passages have the same ids, and other bytes.
            if is_last or (isinstance(exc, AppendRefusedError) and exc.code != _DUPLICATE_ID):
                raise
            return False
        return True


async def _in_thread(function: Callable[..., ResultT], *arguments: object) -> ResultT:
    """Call a function in a thread, so that the event loop goes on while it works. A simulation has one thread only."""
    if getattr(asyncio.get_running_loop(), "is_virtual", False):
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _messages(document: _Document, facts: dict[str, Json], pieces: Sequence[TextPiece]) -> list[Message]:
    return [_message(document, facts, number, piece) for number, piece in enumerate(pieces, start=1)]


def _message(document: _Document, facts: dict[str, Json], number: int, piece: TextPiece) -> Message:
    position: dict[str, Json] = {} if not number else {"heading": list(piece.heading), "lines": [piece.first, piece.last]}
    return Message(
        id=f"{document.id}-{facts['version']}-{number}",
        policy=_NAMESPACE,
        payload=PartsPayload(parts=(TextPart(text=piece.text),)),
        correlation_id=document.id,
        metadata={_NAMESPACE: {**facts, **position}},
    )


@dataclass(frozen=True, slots=True)
class _PassageFacts:
    """The metadata of a passage in its message."""

    source: str
    version: int
    digest: str
    language: str | None
    kind: Kind
    heading: tuple[str, ...]
    lines: tuple[int, int] | None


def _facts_of(message: Message) -> _PassageFacts | None:
    """Return the metadata of a passage from its message; None if it is not a passage."""
    notes = message.metadata.get(_NAMESPACE, {})
    match notes:
        case {"source": str(source), "version": int(version), "digest": str(digest)}:
            language, heading, lines = notes.get("language"), notes.get("heading"), notes.get("lines")
            stored_kinds: list[Kind] = [kind for kind in KINDS if kind == notes.get("kind")]
            path = tuple(str(title) for title in heading) if isinstance(heading, JsonArray) else ()
            where = tuple(number for number in lines if isinstance(number, int)) if isinstance(lines, JsonArray) else ()
            return _PassageFacts(
                source,
                version,
                digest,
                language if isinstance(language, str) else None,
                stored_kinds[0] if stored_kinds else "markdown",
                path,
                (where[0], where[1]) if len(where) == 2 else None,  # noqa: PLR2004 (the first and the last)
            )
        case _:
            return None


def entry_of(message: Message) -> TermEntry | None:
    """Return the index entry of a message: a pure function, whose version is `analysis_version`."""
    facts = _facts_of(message)
    if facts is None:
        return None
    if not facts.digest:
        return TermEntry(facts.source, facts.version, "", "")
    text = message.text
    language = facts.language or detect_language(text)
    heading = terms_in("\n".join(facts.heading), language)
    return TermEntry(facts.source, facts.version, " ".join(heading), " ".join(terms_in(text, language)))


# ---------------------------------------------------------------- ranking

_K1: Final = 1.2
_B: Final = 0.5
"""The influence of the length of a passage: passages are about equally long."""
_IN_HEADING: Final = 2.0
"""The weight of a term of a heading, relative to a term of the text."""
_NEIGHBOURS: Final = 0.3
"""The additional weight of two adjacent words."""
_WHOLE: Final = 0.5
"""The penalty of a passage without any of the words; others lose in proportion."""


_RELATED: Final = 0.5
"""The weight of a synonym or an irregular form, relative to the word itself."""


@dataclass(frozen=True, slots=True)
class _Score:
    value: float
    coverage: float


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a question, with its weight."""

    terms: tuple[str, ...]
    related: frozenset[str]
    weight: float
    related_weight: float


def ranked(
    concepts: Sequence[tuple[str, ...]],
    related: Sequence[frozenset[str]],
    matches: TermMatches,
    *,
    is_sorted: bool = False,
) -> list[tuple[TermMatch, _Score]]:
    """Return candidates with their scores, the best first; `is_sorted`: in the order in which they come."""
    words = [
        _Word(concept, stems, _rarity(concept, matches), _RELATED * _rarity(stems, matches))
        for concept, stems in zip(concepts, related, strict=True)
    ]
    average = matches.length / matches.entries if matches.entries else 1.0
    scored = [(match, _score(words, match.entry, average)) for match in matches.matches]
    # The sort is stable: equal ones stay in the ledger's order.
    return scored if is_sorted else sorted(scored, key=lambda pair: -pair[1].value)


_RANKS: Final = 60
"""The offset of reciprocal ranks, as in the paper that introduced them: the first places do not decide alone."""


def fused(*lists: Sequence[tuple[TermMatch, _Score]]) -> list[tuple[TermMatch, _Score]]:
    """Return the candidates of several rankings, by the sum of their reciprocal ranks, which is their score."""
    points: dict[str, float] = {}
    candidates: dict[str, tuple[TermMatch, _Score]] = {}
    for ranking in lists:
        for rank, (match, score) in enumerate(ranking, start=1):
            points[match.record.hash] = points.get(match.record.hash, 0.0) + 1 / (_RANKS + rank)
            candidates.setdefault(match.record.hash, (match, score))
    best = sorted(candidates, key=lambda digest: -points[digest])
    return [(candidates[digest][0], _Score(points[digest], candidates[digest][1].coverage)) for digest in best]


def _rarity(terms: Iterable[str], matches: TermMatches) -> float:
    """Return what a word counts: the fewer passages have it, the more."""
    count = max((matches.frequency.get(term, 0) for term in terms), default=0)
    return log(1 + (matches.entries - min(count, matches.entries) + 0.5) / (count + 0.5))


def _score(words: Sequence[_Word], entry: TermEntry, average: float) -> _Score:
    body, heading = entry.body.split(), entry.heading.split()
    norm = _K1 * (1 - _B + _B * (len(body) + len(heading)) / average)
    total = covered = 0.0
    for word in words:
        weight, count = word.weight, _count(word.terms, body, heading)
        if not count:
            weight, count = min(word.related_weight, weight), _count(word.related, body, heading)
        total += weight * count * (_K1 + 1) / (count + norm)
        covered += weight if count else 0.0
    total += _NEIGHBOURS * _neighbours(words, body)
    coverage = covered / sum(word.weight for word in words) if words else 0.0
    return _Score(total * (1 - _WHOLE + _WHOLE * coverage), round(coverage, 4))


def _count(terms: Iterable[str], body: Sequence[str], heading: Sequence[str]) -> float:
    return max((body.count(term) + _IN_HEADING * heading.count(term) for term in terms), default=0.0)


def _neighbours(words: Sequence[_Word], body: Sequence[str]) -> float:
    """Return what the pairs of words count that follow each other in the question and in the passage."""
    pairs = set(itertools.pairwise(body))
    return sum(
        (one.weight + other.weight) / 2
        for one, other in itertools.pairwise(words)
        if any((term, next_term) in pairs for term in one.terms for next_term in other.terms)
    )


def _passage(record: Record, score: _Score) -> Passage | None:
    message = record.message
    facts = _facts_of(message)
    if facts is None or not facts.digest:
        return None
    return Passage(
        id=message.id,
        source=facts.source,
        text=message.text,
        heading=facts.heading,
        lines=facts.lines,
        language=facts.language,
        kind=facts.kind,
        version=facts.version,
        digest=facts.digest,
        score=round(score.value, 4),
        coverage=score.coverage,
    )
