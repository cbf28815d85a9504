"""Scripts: tool calls that a manager wrote down, checked before the first of them runs, and cut into segments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from antiphon.dialects.agent_framework import ScriptPlanContent, ScriptStep
from antiphon.messages import thaw
from antiphon.patterns.cast import Cast

__all__ = ["Segment", "problems_of", "segments_of"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that follow each other, of the same worker and in the same mode."""

    worker: str
    is_direct: bool
    steps: tuple[ScriptStep, ...]

    @property
    def task(self) -> str:
        """What the worker is to do, in words."""
        return "; ".join(step.name for step in self.steps)

    def script(self) -> list[dict[str, Any]]:
        """Return the steps as they are to be run."""
        return [step.to_dict() for step in self.steps]

    def suggested(self) -> list[dict[str, Any]]:
        """Return the steps as a suggestion: which tools, and how, is for the worker to find."""
        return [{"name": step.name, **({"notes": step.notes} if step.notes else {})} for step in self.steps]


def segments_of(script: ScriptPlanContent) -> list[Segment]:
    """Cut a script where the worker or the mode changes."""
    cut = groupby(script.steps, key=lambda step: (step.worker, step.execution_mode == "direct"))
    return [Segment(worker, is_direct, tuple(steps)) for (worker, is_direct), steps in cut]


async def problems_of(script: ScriptPlanContent, workers: Collection[str], cast: Cast) -> list[str]:
    """Return what is wrong with a script, a sentence each: workers, tools and arguments that are none."""
    found: list[str] = []
    for number, step in enumerate(script.steps):
        found += [f"step {number} ({step.name}): {each}" for each in await _problems(step, workers, cast)]
    return found


async def _problems(step: ScriptStep, workers: Collection[str], cast: Cast) -> Sequence[str]:
    if step.worker not in workers:
        return [f"there is no worker {step.worker!r}; there are {', '.join(workers)}"]
    tools = await cast.toolkit.tools_of(step.worker)
    if step.tool_name not in tools:
        return [f"{step.worker!r} has no tool {step.tool_name!r}; it has {', '.join(tools) or 'none'}"]
    if step.execution_mode == "guided":
        return []  # the worker chooses its arguments itself
    tool, arguments = tools[step.tool_name], thaw(step.args)
    return tool.check.problems(arguments) or (tool.types(arguments) if tool.types is not None else [])
