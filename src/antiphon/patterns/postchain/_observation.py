"""The observation phase: writes down what later threads should find: what it was about, and which sources belong to it."""

from __future__ import annotations

from typing_extensions import override

from antiphon.agents import ledger_run
from antiphon.patterns.postchain._observations import observation_message
from antiphon.patterns.postchain._operations import ContextOperation, Link, Tag
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._score import entities_in
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, PhaseOutput
from antiphon.runtime import Context

__all__ = ["ObservationPhaseActor"]

_ENTITIES = 12
_STRONG = 0.5
"""From where on a link is kept."""


class ObservationPhaseActor(PhaseActor):
    """The future's memory: links and names, for later threads."""

    phase = "observation"

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        asked = next((item.id for item in work.context if item.source == "user"), "user")
        links = tuple(
            Link(target=asked, linked_to=item.id, relationship="is answered by", strength=item.priority)
            for item in work.sources
            if item.priority >= _STRONG
        )
        entities = entities_in("\n".join((work.question, *(item.text for item in work.cited))), _ENTITIES)
        async with ledger_run(context) as run:
            note = observation_message(context.address, work.user_id, work.question, entities, links)
            record = await run.note(note, key="observed")
        operations: list[ContextOperation] = [*links, *(Tag(target=link.linked_to, tags=("persist",)) for link in links)]
        confidence = max((link.strength for link in links), default=said.confidence or 0.0)
        output = self.output(said.response, confidence, entities=list(entities), observation=record.message.id)
        return output, operations
