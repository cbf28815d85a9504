"""A toolkit as a capability of an agent: its tools, and somebody who waits for people when a step has ended.

With the toolset alone, a call that needs an approval stops the run at once, and so the calls beside it. The capability
lets them end first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from typing_extensions import override

from antiphon.agents._run import LedgerRun, current_run
from antiphon.agents.toolkit._approvals import find_approval
from antiphon.agents.toolkit._toolset import PARKED, WAITS, AgentToolset, waits_for
from antiphon.errors import ParkedError

if TYPE_CHECKING:
    from antiphon.agents.toolkit._toolkit import Toolkit

__all__ = ["ToolkitCapability"]


@dataclass
class ToolkitCapability(AbstractCapability[Any]):
    """What one agent may use of a toolkit."""

    toolkit: Toolkit = field(repr=False)
    agent: str
    waits_for_people: ClassVar[bool] = True
    """That a call may be left to `handle_deferred_tool_calls`."""

    @override
    def get_toolset(self) -> AgentToolset:
        return self.toolkit.for_agent(self.agent)

    @override
    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for people, now that the other calls of the step have ended.

        Raises:
            ParkedError: somebody has not answered in time, or must look at a call whose outcome nobody knows.
        """
        waiting = {call: name for call, said in requests.metadata.items() if (name := _own(said, WAITS)) is not None}
        run = current_run()
        if waiting and run is not None:
            await self._wait(run, list(waiting.values()))
        for said in requests.metadata.values():
            if (reason := _own(said, PARKED)) is not None:
                raise ParkedError(reason)
        if not waiting or run is None:
            return None
        # A yes to all: it only means that the guard is asked again, which looks at the answers in the ledger itself.
        return DeferredToolResults(approvals=dict.fromkeys(waiting, True))

    async def _wait(self, run: LedgerRun, approvals: list[str]) -> None:
        guard = self.toolkit.guard(self.agent)
        found = [await find_approval(run.ledger, each, thread_id=run.thread_id) for each in approvals]
        asked = [each for each in found if each is not None]
        answered = await asyncio.gather(*(guard.wait(run.ledger, each) for each in asked))
        missing = [each.id for each, is_there in zip(asked, answered, strict=True) if not is_there]
        if missing:
            raise waits_for(*missing)


def _own(said: dict[str, Any], name: str) -> str | None:
    found = said.get("antiphon", {}).get(name)
    return found if isinstance(found, str) else None
