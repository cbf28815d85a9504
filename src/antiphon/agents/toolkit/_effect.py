"""A call of a toolkit's tool as an effect: it counts for the budgets of the agents that are at work in its run."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from antiphon.agents._budget import Bounds
from antiphon.agents._run import CurrentEffect, LedgerRun, effect_scope
from antiphon.agents.durability._talk import Talk
from antiphon.agents.toolkit._tool import ToolkitTool
from antiphon.messages import Json, Message, current_port
from antiphon.runtime import Effect, Run

__all__ = ["ToolEffect"]


class ToolEffect(Effect):
    """One call of a tool, in a run."""

    def __init__(
        self, run: LedgerRun, tool: ToolkitTool, arguments: dict[str, Json], *, key: str, parent_id: str | None
    ) -> None:
        super().__init__(
            run.journal,
            run.course,
            key,
            arguments,
            effects=tool.effects,
            park=run.park,
            option=tool.name,
            parent_id=parent_id,
            forgiven=run.forgiven,
        )
        self._run_of = run
        self._tool = tool

    @override
    async def begin(self) -> Message:
        run = self._run_of
        talk, bounds = Talk.of(run), run.opened.share(Bounds)
        if bounds.limits:
            await talk.read(run)
        for limits in bounds.limits:
            talk.spending.check(limits, "tool", depth=run.depth, now=current_port().now(), where=self.id)
        talk.count("tool")
        return await super().begin()

    async def call(self, start: Run) -> Any:
        """Start it, or take the outcome that is recorded; as `LedgerRun.effect`."""

        async def inside(key: str) -> Json:
            with effect_scope(CurrentEffect(key, self._tool.name, self._tool.effects)):
                return await start(key)

        return await self.perform(inside)
