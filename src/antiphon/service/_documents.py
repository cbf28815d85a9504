"""Documents that agents search, kept in a ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.agents.tools import AddedDocument, KnowledgeBase, Passage
from antiphon.ledger import Ledger


async def add_documents(
    ledger: Ledger, texts: Mapping[str, str], progress: Callable[[int, int], None] | None = None
) -> tuple[AddedDocument, ...]:
    """Store documents, by their source. An unchanged one is not stored again; a changed one replaces the earlier text."""
    documents = KnowledgeBase(ledger)
    added: list[AddedDocument] = []
    for source, text in texts.items():
        added.append(await documents.add(source, text))
        if progress is not None:
            progress(len(added), len(texts))
    return tuple(added)


async def search_documents(ledger: Ledger, question: str, *, limit: int = 5) -> tuple[Passage, ...]:
    """Find passages as the tool `knowledge_base` does, the best first."""
    return await KnowledgeBase(ledger).search(question, limit=limit)
