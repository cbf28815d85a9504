"""Vectors: passages by meaning, with an embedder of Pydantic AI, in the ledger next to the index of terms.

An embedder costs money or time, so each passage is embedded once, with its headings. Batches are stored one by one, so a crash
loses at most one. Vectors of two embedders cannot be compared, so the model and the dimension are also stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from antiphon.ledger import Ledger, Record, TermIndex, TermMatch, VectorSpace
from antiphon.messages import JsonArray, PartsPayload, TextPart

if TYPE_CHECKING:
    from pydantic_ai import Embedder

_BATCH: Final = 64
"""Passages in one request to an embedder."""
_LONGEST: Final = 8_000
"""The maximum length of an embedded text, in characters, which most models accept."""


class Vectors:
    """The vectors of the passages of an index."""

    def __init__(self, ledger: Ledger, index: TermIndex, embedder: Embedder) -> None:
        self._terms = ledger.terms
        self._index = index
        self._embedder = embedder

    async def nearest(self, query: str, *, source: str | None, limit: int) -> tuple[TermMatch, ...]:
        """Return the passages whose vectors are nearest to that of a question, the nearest first.

        Raises:
            RetrievalError: the stored vectors are from another embedder.
        """
        result = await self._embedder.embed_query(query[:_LONGEST])
        vector = result.embeddings[0]
        space = VectorSpace(f"{result.provider_name}:{result.model_name}", len(vector))
        await self._embed_new(space)
        return await self._terms.find_vectors(self._index, space, vector, source=source, limit=limit)

    async def embed_new(self) -> None:
        """Embed the passages that have no vector yet."""
        result = await self._embedder.embed_query("dimension")
        await self._embed_new(VectorSpace(f"{result.provider_name}:{result.model_name}", len(result.embeddings[0])))

    async def _embed_new(self, space: VectorSpace) -> None:
        while records := await self._terms.without_vectors(self._index, space, limit=_BATCH):
            result = await self._embedder.embed_documents([_embedded(record) for record in records])
            vectors: dict[str, Sequence[float]] = dict(
                zip((record.hash for record in records), result.embeddings, strict=True)
            )
            await self._terms.store_vectors(self._index, space, vectors)


def _embedded(record: Record) -> str:
    """Return the text of a passage for the embedder: its headings and its text."""
    message = record.message
    payload = message.payload
    parts = payload.parts if isinstance(payload, PartsPayload) else ()
    heading = message.metadata.get("knowledge", {}).get("heading")
    above = [str(title) for title in heading] if isinstance(heading, JsonArray) else []
    return "\n".join((*above, *(part.text for part in parts if isinstance(part, TextPart))))[:_LONGEST]
