"""The experience phase: finds what is known, in documents and in what was observed before, and cites it by id."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from antiphon.messages import Json
from antiphon.patterns.postchain._bounds import MENTIONED
from antiphon.patterns.postchain._observations import HEARSAY, Observations, find_knowledge
from antiphon.patterns.postchain._operations import Add, ContextOperation, Item, Tag
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._score import relevance
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, PhaseOutput
from antiphon.runtime import Context

__all__ = ["ExperiencePhaseActor"]


class ExperiencePhaseActor(PhaseActor):
    """The remembered past: what was found, before the model is asked."""

    phase = "experience"

    @override
    async def gather(self, work: PhaseWork, context: Context) -> PhaseWork:
        async def look(key: str) -> Json:
            return [item.model_dump(mode="json", exclude_defaults=True) for item in await self._found(work)]

        found: list[Any] = await context.effect("retrieve", {"question": work.question}, look, effects="none")
        return work.with_found(tuple(Item.model_validate(each) for each in found))

    async def _found(self, work: PhaseWork) -> list[Item]:
        ledger, limit = self.workshop.ledger, self.workshop.config.found
        if not limit:
            return []
        observed = await Observations(ledger).search(
            work.question, user_id=work.user_id, limit=limit, without_thread=work.thread_id
        )
        remembered = [
            Item(
                id=each.id,
                source="observation",
                title=f"observed in {each.thread_id}",
                text=each.text[:MENTIONED],
                priority=relevance(work.question, each.text) * HEARSAY,
            )
            for each in observed
        ]
        known = await find_knowledge(ledger, work.question, limit)
        return sorted((*known, *remembered), key=lambda item: -item.priority)[:limit]

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        sources = work.found
        operations: list[ContextOperation] = [Add(item=item) for item in sources]
        operations += [Tag(target=item.id, tags=("retrieved",)) for item in sources]
        best = max((item.priority for item in sources), default=0.0)
        citations = [{"id": item.id, "source": item.title, "relevance": item.priority} for item in sources]
        return self.output(said.response, best, citations=citations), operations
