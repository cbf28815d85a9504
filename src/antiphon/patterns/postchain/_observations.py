"""Observations: what threads have learnt, as messages of their own threads that later threads find by their words.

An observation says what was asked, which things it was about, and which sources have to do with it. Whoever looks sees those
of one user: what one has asked is nobody else's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from antiphon.agents.tools import KnowledgeBase
from antiphon.ledger import Ledger, Record
from antiphon.messages import JsonObject, Message, PartsPayload, TextPart
from antiphon.patterns.postchain._bounds import MENTIONED
from antiphon.patterns.postchain._operations import Item, Link
from antiphon.patterns.postchain._score import relevance, significant

__all__ = ["HEARSAY", "Observation", "Observations", "find_knowledge", "observation_message"]

HEARSAY: Final = 0.5
"""What an observation counts beside a passage that is as relevant: it has the words of a question, and no answer."""

_NAMESPACE: Final = "postchain"
_LOOKED_AT: Final = 50
_WORDS: Final = 50
"""How many words of a question are looked for, each by itself."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a thread has learnt."""

    id: str
    """Of its message in the ledger."""
    thread_id: str
    question: str
    text: str
    entities: tuple[str, ...]
    links: tuple[Link, ...]


class Observations:
    """What was observed in the threads of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def search(
        self, question: str, *, user_id: str, limit: int = 5, without_thread: str | None = None
    ) -> tuple[Observation, ...]:
        """Return what a user's threads have observed about a question, the best first.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        found: dict[str, Observation] = {}
        for word in significant(question)[:_WORDS]:
            for hit in await self._ledger.search(f'"{_MARK}" {word}*', limit=_LOOKED_AT):
                observation = _read(hit.record, user_id)
                if observation is not None and observation.thread_id != without_thread:
                    found[observation.id] = observation
        best = sorted(found.values(), key=lambda each: -relevance(question, each.text))
        return tuple(best[:limit])

    async def in_thread(self, thread_id: str) -> tuple[Observation, ...]:
        """Return what one thread has observed, in order."""
        records = [record async for record in self._ledger.read(thread_id)]
        return tuple(found for record in records if (found := _read(record, None)) is not None)


_MARK: Final = "observed in answer to"
"""What the text of every observation begins with, and few other texts have."""


def observation_message(by: str, user_id: str, question: str, entities: tuple[str, ...], links: tuple[Link, ...]) -> Message:
    """Return what is to be remembered as a message."""
    about = f"It is about {', '.join(entities)}." if entities else ""
    related = " ".join(f"It has to do with {link.linked_to} ({link.strength:g})." for link in links)
    said: dict[str, Any] = {
        "user_id": user_id,
        "question": question,
        "entities": list(entities),
        "links": [link.model_dump(mode="json") for link in links],
    }
    text = " ".join(each for each in (f"Observed in answer to: {question}", about, related) if each)
    return Message(
        policy=by,
        payload=PartsPayload(parts=(TextPart(text=text),)),
        lane="control",
        metadata={_NAMESPACE: {"observation": said}},
    )


def _read(record: Record, user_id: str | None) -> Observation | None:
    message = record.message
    own = message.metadata.get(_NAMESPACE)
    said: Any = own.get("observation") if isinstance(own, JsonObject) else None
    if message.lane != "control" or said is None or user_id not in (None, said["user_id"]):
        return None
    links = tuple(Link.model_validate(dict(link)) for link in said["links"])
    return Observation(message.id, message.thread_id or "", said["question"], message.text, tuple(said["entities"]), links)


async def find_knowledge(ledger: Ledger, question: str, limit: int) -> list[Item]:
    """Return the passages of the knowledge base that are about a question, each with how much it is."""
    passages = await KnowledgeBase(ledger).search(question, limit=limit)
    return [
        Item(
            id=passage.id,
            source="knowledge",
            title=passage.source,
            text=passage.text[:MENTIONED],
            priority=relevance(question, passage.text),
        )
        for passage in passages
    ]
