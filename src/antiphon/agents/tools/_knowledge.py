"""KnowledgeBase: documents in a ledger, passage by passage, found by their words and cited by id.

They are messages of one thread: so they are durable, verified, redacted and backed up like everything else that is said. A
passage's message id is what it is cited by. A document that is added again replaces what its source said before; what was said
before stays in the ledger, and is not found any more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from antiphon.agents.tools._passages import passages_of
from antiphon.agents.tools._retrieval import retrieve
from antiphon.ledger import Ledger, Record
from antiphon.messages import Message, PartsPayload, TextPart

__all__ = ["THREAD", "Added", "KnowledgeBase", "Passage"]

THREAD = "knowledge"
_NAMESPACE = "knowledge"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document."""

    id: str
    """What it is cited by: the id of its message in the ledger."""
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a document that was added."""

    source: str
    passages: int
    version: int
    """How many texts this source has had."""
    is_new: bool
    """Whether anything was written; what is there already is not written again."""


class KnowledgeBase:
    """The documents in a ledger."""

    def __init__(self, ledger: Ledger, *, thread_id: str = THREAD) -> None:
        self._ledger = ledger
        self._thread_id = thread_id

    async def add(self, source: str, text: str) -> Added:
        """Add a document, or a new text of one that is there under the same source; all of it or nothing.

        Raises:
            LedgerError: it could not be written.
            ValueError: there is nothing in it.
        """
        passages = passages_of(text)
        if not passages:
            raise ValueError(f"there is no text in {source!r}")
        digest = hashlib.sha256(text.encode()).hexdigest()
        version, before = await self._latest(source)
        if before == digest:
            return Added(source, len(passages), version, is_new=False)
        messages = [_message(source, version + 1, number, passage, digest) for number, passage in enumerate(passages, start=1)]
        await self._ledger.append(self._thread_id, messages, pattern=_NAMESPACE)
        return Added(source, len(passages), version + 1, is_new=True)

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
        """Return the number and the digest of the latest text of a source; 0 if there is none."""
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
    """Return the source, version and digest of the document that a message is a passage of; version -1, if it is none."""
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
