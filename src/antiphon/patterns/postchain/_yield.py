"""The yield phase: writes the answer with its citations, or says with which phase to go on, as long as that may help."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from antiphon.patterns.postchain._operations import ContextOperation, Item
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._recursion import next_phase, wish_in
from antiphon.patterns.postchain._score import quote_of, relevance
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, PhaseOutput
from antiphon.runtime import Context

__all__ = ["YieldPhaseActor"]


class YieldPhaseActor(PhaseActor):
    """Completion: one voice, with exact citations."""

    phase = "yield"

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        citations = [_citation(number, item, work.question) for number, item in enumerate(work.cited, 1)]
        known = "\n".join((said.response, *(item.text for item in work.cited)))
        confidence = max((item.priority for item in work.cited), default=relevance(work.question, known) * 0.5)
        course = next_phase(work, confidence, self.workshop.config, wish_in(said.tool_calls))
        more: dict[str, Any] = {"citations": citations, "rationale": course.rationale, "cycle": work.cycle}
        if course.seen:
            more["seen"] = list(course.seen)
        response = _with_sources(said.response, citations)
        output = PhaseOutput(response=response, next_phase=course.following, confidence=confidence, **more)
        return output, []


def _citation(number: int, item: Item, question: str) -> dict[str, object]:
    quote = quote_of(question, item.text)
    return {"number": number, "id": item.id, "source": item.title, "quote": quote, "relevance": item.priority}


def _with_sources(text: str, citations: list[dict[str, object]]) -> str:
    if not citations:
        return text
    lines = [f"[{each['number']}] {each['source']} ({each['id']}): {each['quote']}" for each in citations]
    return "\n".join((text, "", "Sources:", *lines))
