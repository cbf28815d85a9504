"""A call of a toolkit's tool as an effect: it counts for the budgets of the agents that are at work in its run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic_ai import RunContext
from typing_extensions import override

from antiphon.agents._budget import Bounds
from antiphon.agents._run import CurrentEffect, LedgerRun, effect_scope
from antiphon.agents.durability._operations import is_told
from antiphon.agents.durability._talk import Talk
from antiphon.agents.toolkit._outcome import Outcome
from antiphon.agents.toolkit._tool import ToolkitTool
from antiphon.messages import Json, Message
from antiphon.runtime import Effect, Run, ToolOperation, describe

__all__ = ["ToolEffect"]


class ToolEffect(Effect):
    """One call of a tool, in a run."""

    def __init__(
        self,
        run: LedgerRun,
        tool: ToolkitTool,
        arguments: dict[str, Json],
        *,
        key: str,
        parent_id: str | None,
        ctx: RunContext[Any],
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
        self._first = _without_number(self.id)
        self._is_repeated = self.id != self._first
        if is_told(run, ctx):
            given = arguments["arguments"]
            self.operation = ToolOperation(tool.name, parent_id, description=tool.description or None, arguments=given)

    @override
    async def begin(self) -> Message:
        run = self._run_of
        await Talk.of(run).spend(run, run.opened.share(Bounds).limits, "tool", self.id)
        return await super().begin()

    async def call(self, start: Run) -> Any:
        """Start it, or take the outcome that is recorded, also in this life; as `LedgerRun.effect`."""

        async def inside(key: str) -> Json:
            with effect_scope(CurrentEffect(key, self._tool.name, self._tool.effects)):
                returned = await start(key)
                if isinstance(self.operation, ToolOperation):
                    describe(replace(self.operation, result=Outcome.from_json(returned).result))
                return returned

        if self._is_repeated and not await self._was_repeated():
            self.id = self._first
        return await self.perform(inside)

    async def _was_repeated(self) -> bool:
        """Whether the thread has a second execution under the same id, as antiphon once did: its outcome is given back."""
        run = self._run_of
        return run.is_again and bool(await run.ledger.by_invocation(self.id, thread_id=self.thread_id))

    @override
    def _may_be_recorded(self) -> bool:
        return self._is_repeated or super()._may_be_recorded()


def _without_number(id: str) -> str:
    """Return the id of the first effect of a name: a key has no `=` but for the number of the second, third and so on."""
    first, _, number = id.rpartition("=")
    return first if number.isdigit() else id
