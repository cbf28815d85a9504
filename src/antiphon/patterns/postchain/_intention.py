"""The intention phase: names what is wanted, and how much each source has to do with that."""

from __future__ import annotations

from typing_extensions import override

from antiphon.patterns.postchain._observations import HEARSAY
from antiphon.patterns.postchain._operations import ContextOperation, Item, Prioritize, Tag
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._score import goals_in, relevance
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, PhaseOutput
from antiphon.runtime import Context

__all__ = ["ALIGNED", "NOISE", "IntentionPhaseActor"]

ALIGNED, NOISE = 0.7, 0.3
"""From where on a source is what was looked for; below which it is beside the point."""


class IntentionPhaseActor(PhaseActor):
    """The desired future: goals, and what serves them."""

    phase = "intention"

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        goals = goals_in(work.question)
        scores = {item.id: _score(goals, item) for item in work.found}
        operations: list[ContextOperation] = [
            Prioritize(target=name, priority=score, reason=f"has to do with: {goals[0][:120]}")
            for name, score in scores.items()
        ]
        operations += [Tag(target=name, tags=("aligned",)) for name, score in scores.items() if score >= ALIGNED]
        operations += [Tag(target=name, tags=("low_relevance",)) for name, score in scores.items() if score < NOISE]
        confidence = max(scores.values(), default=said.confidence or 0.0)
        return self.output(said.response, confidence, goals=list(goals), scores=scores), operations


def _score(goals: tuple[str, ...], item: Item) -> float:
    """Return how much an item has to do with the goal that it serves best."""
    best = max(relevance(goal, item.text) for goal in goals)
    return round(best * HEARSAY, 3) if item.source == "observation" else best
