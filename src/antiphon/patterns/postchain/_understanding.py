"""The understanding phase: lets go of what is beside the point, and shortens the rest to make room. Never a user's words."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from antiphon.patterns.postchain._intention import ALIGNED, NOISE
from antiphon.patterns.postchain._operations import ChainContext, ContextOperation, Item, Prune, Transform
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._score import quote_of
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, PhaseOutput
from antiphon.runtime import Context

__all__ = ["ROOM", "UnderstandingPhaseActor", "let_go"]

ROOM = 0.7
"""The share of the context limit that is used at most."""


class UnderstandingPhaseActor(PhaseActor):
    """Release: what is kept, what is shortened, what is let go of."""

    phase = "understanding"

    @override
    def prompt(self, work: PhaseWork) -> str:
        return super().prompt(replace(work, context=work.context.after(self._operations(work))))

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        operations = self._operations(work)
        kept = replace(work, context=work.context.after(operations))
        confidence = max((item.priority for item in kept.sources), default=said.confidence or 0.0)
        released = [operation.target for operation in operations if isinstance(operation, Prune)]
        output = self.output(said.response, confidence, retained=[item.id for item in kept.context], released=released)
        return output, operations

    def _operations(self, work: PhaseWork) -> list[ContextOperation]:
        return let_go(work.context, work.question, int(self.workshop.config.context_limit * ROOM))


def let_go(context: ChainContext, question: str, room: int) -> list[ContextOperation]:
    """Return what is to be let go of: what is beside the point; then, the least relevant first, what there is no room for.

    What is not quite what was looked for is shortened before it is let go of. The words of users are not touched.
    """
    operations: list[ContextOperation] = [
        Prune(target=item.id, reason=f"relevance {item.priority:g} is below {NOISE:g}")
        for item in context
        if item.source not in ("user", "agent") and item.priority < NOISE
    ]
    rest = context.after(operations)
    for item in sorted((each for each in rest if each.source != "user"), key=_worth):
        if rest.size <= room:
            break
        operation = _less(item, question)
        operations.append(operation)
        rest = rest.after([operation])
        if rest.size > room and isinstance(operation, Transform):
            operations.append(Prune(target=item.id, reason="there is no room"))
            rest = rest.after(operations[-1:])
    return operations


def _worth(item: Item) -> tuple[bool, float]:
    """Order by what is given up first: what agents have said before what was found, the less relevant first."""
    return item.source != "agent", item.priority


def _less(item: Item, question: str) -> ContextOperation:
    quote = quote_of(question, item.text)
    if item.priority < ALIGNED and len(quote) < len(item.text):
        return Transform(target=item.id, text=quote)
    return Prune(target=item.id, reason="there is no room")
