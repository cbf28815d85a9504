"""The toolset of an agent: the tools of a toolkit that were granted to it. Each call goes through the guard."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol, Self

from pydantic_ai import RunContext
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema
from typing_extensions import override

from antiphon.agents._guards import Secrets
from antiphon.agents._observers import capabilities_of
from antiphon.agents.durability._failures import ToolFailure, ToolFailures
from antiphon.agents.durability._talk import ThreadTalk
from antiphon.agents.toolkit._decision import TaintLog, begin_under
from antiphon.agents.toolkit._execution import as_tool_return
from antiphon.agents.toolkit._guard import Guard, GuardedCall, PendingApproval, ToolkitPolicy
from antiphon.agents.toolkit._taint import Taint, current_taint, enter_taint, untrusted_in
from antiphon.agents.toolkit._tool import ToolkitTool, ToolOutcome, ToolRefusal, declared_settings
from antiphon.durable._approvals import Approval
from antiphon.durable._block import report_missing
from antiphon.durable._run import LedgerRun, current_effect, current_run
from antiphon.errors import ParkedError, StoppedError
from antiphon.ledger import Owners

WAITS: Final = "approval"
PARKED: Final = "parked"
_CAUSE: Final = "cause"
_ROW: Final = "row"
_OBJECT: Final = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))
"""Arguments are only parsed here; the guard checks them against the whole schema."""
_CORRECTIONS: Final = 3
"""How often a model may send arguments that are not JSON."""


class SharedTools(Protocol):
    """The methods of a toolkit that an agent's toolset uses; `Toolkit` has them."""

    name: str
    policy: ToolkitPolicy

    def guard(self, agent: str) -> Guard:
        """Return the guard of an agent's calls."""
        ...

    async def tools_of(
        self, agent: str, ctx: RunContext[object] | None = None, run: LedgerRun | None = None
    ) -> dict[str, ToolkitTool]:
        """Return the tools that were granted to an agent."""
        ...

    async def connect(self) -> AsyncExitStack:
        """Connect to the servers; closing the stack disconnects."""
        ...


class AgentToolset(AbstractToolset[Any]):
    """The tools of a toolkit that one agent may use, as a toolset."""

    def __init__(self, toolkit: SharedTools, agent: str) -> None:
        self._toolkit = toolkit
        self._agent = agent
        self._guard = toolkit.guard(agent)
        self._taint = Taint()
        self._run: LedgerRun | None = None
        self._tools: dict[str, ToolkitTool] = {}
        self._entered: list[AsyncExitStack] = []
        self._outer: list[Taint | None] = []
        """The taint of the outer turn at each entry: tools outside of toolkits run inside this one."""

    @property
    @override
    def id(self) -> str:
        return f"{self._toolkit.name}:{self._agent}"

    @override
    async def for_run(self, ctx: RunContext[object]) -> AbstractToolset[Any]:
        """Return a copy for one run, with its own taint."""
        mine = copy.copy(self)
        mine._taint = Taint(current_taint())
        mine._run = None
        mine._tools = {}
        mine._entered = []
        mine._outer = []
        return mine

    @override
    async def __aenter__(self) -> Self:
        self._entered.append(await self._toolkit.connect())
        self._outer.append(enter_taint(self._taint))
        return self

    @override
    async def __aexit__(self, *args: object) -> None:
        enter_taint(self._outer.pop())
        await self._entered.pop().aclose()

    @override
    async def get_tools(self, ctx: RunContext[object]) -> dict[str, ToolsetTool[object]]:
        self._read(ctx)
        if self._run is None:
            self._report_missing(ctx)
            self._run = self._part_of_run()
        if self._run is not None:
            await TaintLog(self._run).keep(self._taint, ctx.run_id)
        self._tools = await self._toolkit.tools_of(self._agent, ctx, self._run)
        if self._run is not None:
            stable_run = ctx.run_id if _is_durable(ctx.run_id) else None
            await begin_under(self._run, self._toolkit.policy.cover(self._toolkit.name, self._agent, self._tools, stable_run))
        return {name: self._shown(tool) for name, tool in self._tools.items()}

    def _read(self, ctx: RunContext[object]) -> None:
        """Add the taint of the messages that the model was shown."""
        if self._taint.untrusted is None:
            untrusted = [name for name, tool in ctx.tools.items() if declared_settings(tool.metadata).get("untrusted")]
            self._taint.mark(untrusted_in(ctx.messages, untrusted))

    def _part_of_run(self) -> LedgerRun | None:
        """Return the part of the ledger run for this run of the agent; it is the same when the program runs again."""
        run = current_run()
        if run is None:
            return None
        course = run.course
        part_id = f"{course.invocation_id}/{course.next_key(f'toolkit:{self._agent}')}"
        return run.part(part_id, agent=self._agent, deeper=1)

    def _report_missing(self, ctx: RunContext[object]) -> None:
        """Report an agent without durability, except in an effect, which records it.

        Raises:
            RuntimeError: the run requires that everything is recorded.
        """
        run = current_run()
        is_durable = any(isinstance(capability, BaseDurabilityCapability) for capability in capabilities_of(ctx))
        if run is not None and run.is_of_program and current_effect() is None and not is_durable:
            reason = f"agent {self._agent!r} runs in ledger_run({run.thread_id!r}) and has no LedgerDurability"
            report_missing(f"{reason}: only its calls of this toolkit are recorded", required=run.required)

    def _shown(self, tool: ToolkitTool) -> ToolsetTool[object]:
        definition = ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=dict(tool.parameters),
            metadata=tool.metadata(),
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=_CORRECTIONS, args_validator=_OBJECT)

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, object], ctx: RunContext[object], tool: ToolsetTool[object]
    ) -> Any:
        try:
            return as_tool_return(await self._call(name, tool_args, ctx))
        except ToolRefusal as exc:
            refusals = ToolFailures() if self._run is None else ThreadTalk.of(self._run).refusals
            refusal = ToolFailure(exc.code, exc.reason, exc.retryable)
            raise ToolFailed(refusals.keep(ctx.tool_call_id, name, refusal)) from None
        except ParkedError as exc:
            if _can_wait(ctx):  # let the other calls of this step end first
                raise CallDeferred({"antiphon": {PARKED: exc.reason, **stopped_by(exc)}}) from exc
            raise

    async def _call(self, name: str, tool_args: dict[str, object], ctx: RunContext[object]) -> ToolOutcome:
        self._read(ctx)
        arguments = tool_args
        if self._run is not None:
            arguments = Secrets.of(self._run).put_back(tool_args, ctx.run_id, ctx.tool_call_id)
        asked = GuardedCall(
            tool=self._tools[name],
            arguments=arguments,
            ctx=ctx,
            invocation=f"{ctx.tool_call_id}@{ctx.run_step}",
            taint=self._taint,
            run=self._run,
            parent_id=ctx.tool_call_id,
            is_approved=ctx.tool_call_approved,
        )
        try:
            return await self._guard.call(asked)
        except PendingApproval as exc:
            if _can_wait(ctx) and not ctx.tool_call_approved:
                raise ApprovalRequired({"antiphon": {WAITS: exc.approval.id}}) from None
            if not await self._guard.wait(exc.ledger, exc.approval):
                raise waits_for(exc.ledger, exc.approval) from None
            return await self._guard.call(asked)


def stopped_by(error: ParkedError) -> dict[str, str]:
    """Return the mark that distinguishes a stopped call from a parked one, for `parked_error`."""
    return {_CAUSE: error.cause, _ROW: error.row or ""} if isinstance(error, StoppedError) else {}


def parked_error(metadata: Mapping[str, str]) -> ParkedError:
    """Return the original error of a call that waits for a person."""
    if _CAUSE in metadata:
        return StoppedError(metadata[PARKED], cause=metadata[_CAUSE], row=metadata[_ROW] or None)
    return ParkedError(metadata[PARKED])


def _is_durable(run_id: str | None) -> bool:
    """Whether the id of an agent's run is stable: `LedgerDurability` derives it from the ledger run."""
    run = current_run()
    return run is not None and (run_id or "").startswith(f"{run.invocation_id}/")


def waits_for(ledger: Owners, *approvals: Approval) -> ParkedError:
    """Return the error that names the missing approvals, with the complete commands that give them."""
    how = " and ".join(f"`{approval.command(ledger)}`" for approval in approvals)
    why = "; ".join(dict.fromkeys(approval.reason for approval in approvals))
    return ParkedError(f"it waits for a person, because {why}: {how}, or deny; then run it again")


def _can_wait(ctx: RunContext[object]) -> bool:
    """Whether the run has a capability that waits for people at the end of a step."""
    return any(getattr(capability, "waits_for_people", False) for capability in capabilities_of(ctx))
