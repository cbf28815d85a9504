"""The yield phase: writes the answer with its citations, or says with which phase to go on, as long as that may help."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._operations import ContextOperation, Item
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._score import quote_of, relevance
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, Phase, PhaseOutput
from antiphon.runtime import Context

__all__ = ["YieldPhaseActor", "next_phase"]


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
        following, rationale = next_phase(work, confidence, self.workshop.config)
        more: dict[str, Any] = {"citations": citations, "rationale": rationale, "cycle": work.cycle}
        response = _with_sources(said.response, citations)
        output = PhaseOutput(response=response, next_phase=following, confidence=confidence, **more)
        return output, []


def next_phase(work: PhaseWork, confidence: float, config: ChainConfig) -> tuple[Phase | None, str]:
    """Return with which phase to go on, None to answer; and why. The first rule that holds decides."""
    if work.cycle >= config.max_cycles:
        return None, f"cycle {work.cycle} of {config.max_cycles} was the last"
    if confidence >= config.enough_confidence:
        return None, f"a confidence of {confidence:g} is enough"
    if work.confidences and abs(confidence - work.confidences[-1]) < config.least_change:
        return None, f"another cycle changed the confidence by less than {config.least_change:g}"
    if not work.cited:
        return "experience", "there is no source to rely on"
    if work.context.size > config.context_limit:
        return "understanding", "there is more in the context than there is room for"
    return "action", f"a confidence of {confidence:g} is not enough"


def _citation(number: int, item: Item, question: str) -> dict[str, object]:
    quote = quote_of(question, item.text)
    return {"number": number, "id": item.id, "source": item.title, "quote": quote, "relevance": item.priority}


def _with_sources(text: str, citations: list[dict[str, object]]) -> str:
    if not citations:
        return text
    lines = [f"[{each['number']}] {each['source']} ({each['id']}): {each['quote']}" for each in citations]
    return "\n".join((text, "", "Sources:", *lines))
