"""The action phase: answers at once, with the tools that it has, and leaves the user's words as they are."""

from __future__ import annotations

from typing_extensions import override

from antiphon.patterns.postchain._bounds import MENTIONED
from antiphon.patterns.postchain._operations import Add, ContextOperation, Item
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import AgentResult, PhaseOutput
from antiphon.runtime import Context

__all__ = ["ActionPhaseActor"]


class ActionPhaseActor(PhaseActor):
    """The immediate present: a first answer."""

    phase = "action"

    @override
    def prompt(self, work: PhaseWork) -> str:
        return work.question

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        asked = Add(item=Item(id="user-1", source="user", title="user", text=work.question, priority=1.0))
        answer = Add(item=Item(id="action", source="agent", title="first answer", text=said.response[:MENTIONED]))
        return self.output(said.response, said.confidence or 0.0), [asked, answer]
