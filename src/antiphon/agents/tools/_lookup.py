"""`knowledge_base`: documents, looked up by agents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic_ai import Tool

from antiphon.agents.tools._effects import READS
from antiphon.agents.tools._knowledge import KnowledgeBase
from antiphon.ledger import Ledger

__all__ = ["knowledge_base"]

_MOST_FOUND = 20


def knowledge_base(ledger: Ledger) -> Tool[Any]:
    """Return the tool that looks things up in the documents of a ledger."""
    documents = KnowledgeBase(ledger)

    async def look_up(query: str, limit: int = 5) -> list[dict[str, str]]:
        """Search the knowledge base: documents that were added for you. Cite what you use by the `id` of its passage.

        Args:
            query: A question, or the words to look for.
            limit: How many passages to return, 20 at most.
        """
        found = await documents.search(query, limit=max(1, min(limit, _MOST_FOUND)))
        return [asdict(passage) for passage in found]

    return Tool[Any](look_up, name="knowledge_base", metadata=READS)
