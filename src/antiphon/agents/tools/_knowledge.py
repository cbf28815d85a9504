"""KnowledgeBase: documents in a ledger, cut into passages, found by their words and cited by id.

Passages are messages of one thread: they are durable, verified, redacted and backed up like all messages. A passage is cited
by its message id. A document that is added again replaces the earlier one of its source; the earlier passages stay in the
ledger and are no longer found.

`retrieve` finds records by a question. A ledger finds records that have all the words of a query; but a question has words
that no answer has. So it queries the ledger several times: for all the words together, and for each word by itself. A record
gets points for its rank in each list, more where the word is rare, and the best records are returned.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from math import log2

from antiphon.ledger import Ledger, Record
from antiphon.messages import Message, PartsPayload, TextPart

# ---------------------------------------------------------------- retrieval

_WORD = re.compile(r"[^\W_]+")
_MOST_WORDS = 12
"""Words of a question that are looked for."""
_LOOKED_AT = 50
"""Records of each list."""
_TOGETHER = 4.0
"""How much more a record counts that has all the words than one that has one."""
_SHORTEST_STEM = 4
_EMPTY = frozenset(
    _WORD.findall(
        "a about an and are as at be by can do does for from has have how i in is it its me my of on or our please tell that"
        " the their there they this to was we were what when where which who whom whose why will with you your"
    )
)
"""Stop words: left out, unless there are no others."""


async def retrieve(
    ledger: Ledger, question: str, *, thread_id: str | None, limit: int, keep: Callable[[Record], Awaitable[bool]]
) -> list[Record]:
    """Return the best records that `keep` accepts, of one thread or all."""
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
    """Return the stem of a word, so that singular and plural find each other."""
    return f"{word.removesuffix('s')}*" if len(word) >= _SHORTEST_STEM else word


# ---------------------------------------------------------------- passages

_USUAL = 1200
"""Characters up to which paragraphs are joined."""
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


# ---------------------------------------------------------------- the knowledge base

THREAD = "knowledge"
_NAMESPACE = "knowledge"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document."""

    id: str
    """The id of its message, by which it is cited."""
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class AddedDocument:
    """The result of adding a document."""

    source: str
    passages: int
    version: int
    """How many versions the source has had."""
    is_new: bool
    """Whether anything was written. A text that is there already is not."""


class KnowledgeBase:
    """The documents in a ledger."""

    def __init__(self, ledger: Ledger, *, thread_id: str = THREAD) -> None:
        self._ledger = ledger
        self._thread_id = thread_id

    async def add(self, source: str, text: str) -> AddedDocument:
        """Add a document, or a new text of one that is there under the same source; all of it or nothing.

        Raises:
            LedgerError: it could not be written.
            ValueError: it is empty.
        """
        passages = passages_of(text)
        if not passages:
            raise ValueError(f"there is no text in {source!r}")
        digest = hashlib.sha256(text.encode()).hexdigest()
        version, before = await self._latest(source)
        if before == digest:
            return AddedDocument(source, len(passages), version, is_new=False)
        messages = [_message(source, version + 1, number, passage, digest) for number, passage in enumerate(passages, start=1)]
        await self._ledger.append(self._thread_id, messages, pattern=_NAMESPACE)
        return AddedDocument(source, len(passages), version + 1, is_new=True)

    async def search(self, question: str, *, limit: int = 5) -> tuple[Passage, ...]:
        """Return the passages that answer a question best."""
        latest: dict[str, int] = {}

        async def is_current(record: Record) -> bool:
            source, version, _ = _about(record.message)
            if source not in latest:
                latest[source], _ = await self._latest(source)
            return version == latest[source]

        records = await retrieve(self._ledger, question, thread_id=self._thread_id, limit=limit, keep=is_current)
        return tuple(_passage(record.message) for record in records)

    async def _latest(self, source: str) -> tuple[int, str]:
        """Return the version and the digest of the latest text of a source; version 0 if there is none."""
        records = await self._ledger.by_correlation(_source_id(source), thread_id=self._thread_id)
        if not records:
            return 0, ""
        _, version, digest = _about(records[-1].message)
        return version, digest


def _message(source: str, version: int, number: int, passage: str, digest: str) -> Message:
    own = _source_id(source)
    return Message(
        id=f"{own}-{version}-{number}",
        policy=_NAMESPACE,
        payload=PartsPayload(parts=(TextPart(text=passage),)),
        correlation_id=own,
        metadata={_NAMESPACE: {"source": source, "version": version, "digest": digest}},
    )


def _source_id(source: str) -> str:
    return f"kb-{hashlib.sha256(source.encode()).hexdigest()[:10]}"


def _about(message: Message) -> tuple[str, int, str]:
    """Return the source, version and digest of the document of a passage; version -1 if the message is not a passage."""
    match message.metadata.get(_NAMESPACE):
        case {"source": str(source), "version": int(version), "digest": str(digest)}:
            return source, version, digest
        case _:
            return "", -1, ""


def _passage(message: Message) -> Passage:
    payload = message.payload
    parts = payload.parts if isinstance(payload, PartsPayload) else ()
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return Passage(message.id, _about(message)[0], text)
