"""Workers that are ready: one that finds, one that thinks about it, one that writes."""

from __future__ import annotations

from typing import Final

from antiphon.patterns.cast import AgentSpec

__all__ = ["ANALYSIS_WORKER", "DRAFT_WORKER", "RETRIEVAL_WORKER"]

RETRIEVAL_WORKER: Final = AgentSpec(
    name="retrieval_worker",
    instructions="You find what is known. Look it up, and say what you found and where; if there is nothing, say so.",
    tools=("knowledge_base",),
)
ANALYSIS_WORKER: Final = AgentSpec(
    name="analysis_worker",
    instructions="You analyse what you are given: what follows from it, what is missing, what contradicts what. Be exact.",
    tools=("calculator",),
)
DRAFT_WORKER: Final = AgentSpec(
    name="draft_worker",
    instructions="You write the text that you are asked for, from what you are given and nothing else.",
)
