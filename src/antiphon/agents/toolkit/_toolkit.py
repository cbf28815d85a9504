"""The toolkit: shared tools, their permissions, and calls of them; and the capability of an agent.

With the toolset alone, a call that needs an approval stops the run at once, including the other calls of the step. The
capability lets these end first, and then waits for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import is_
from typing import Any, ClassVar, Final, Self, TypeVar, Unpack

from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import AbstractToolset
from typing_extensions import override

from antiphon.agents._config import known_names
from antiphon.agents._tool_names import name_among
from antiphon.agents.toolkit._decision import ApprovalRule, Grant, Permissions, begin_under
from antiphon.agents.toolkit._guard import Guard, GuardedCall, ToolkitPolicy, waits_for
from antiphon.agents.toolkit._servers import (
    NAME_TAKEN,
    ForeignTools,
    ToolWarning,
    bare_context,
    mcp_toolset,
    raise_if_required,
    server_name,
    warn,
)
from antiphon.agents.toolkit._taint import Taint, current_taint
from antiphon.agents.toolkit._tool import (
    UNKNOWN_TOOL,
    InvalidArguments,
    Schema,
    ToolkitTool,
    ToolOutcome,
    ToolRefusal,
    ToolSettings,
    canonical,
    check_tool,
    function_tool,
)
from antiphon.agents.toolkit._toolset import PARKED, WAITS, AgentToolset, parked_error
from antiphon.agents.tools._builtin import BUILTIN_TOOLS
from antiphon.durable._approvals import ANY, check_agent, find_approval
from antiphon.durable._run import LedgerRun, current_run
from antiphon.errors import SetupError
from antiphon.ledger import STANDARD_REDACTION, Redaction
from antiphon.messages import JsonObject, OptionResultPayload, current_port, thaw
from antiphon.messages._arguments import check_each, check_type

_WITHIN: Final = 10.0
"""The default time limit of a server to start, and to list its tools, in seconds."""
_TAKEN: Final = "another tool has this name; give the server a prefix"

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Toolkit:
    """Tools that agents share. An agent may use only the tools that were granted to it.

    `rules` select the calls that a person must approve, besides those of tools that always need it. `approvers` are the people
    who may approve (empty: everybody who can write to the ledger). `approval_expires` is how long a question and its answer
    are valid. `approval_wait` is how many seconds a run waits for an answer before it stops (None: no limit). `redaction` has
    the rules for the error messages of tools.

    Raises:
        ValueError: a name is not valid, two tools have the same name, or a time is not positive.
    """

    def __init__(
        self,
        tools: Iterable[Callable[..., Any] | Tool[Any]] = (),
        *,
        name: str = "toolkit",
        rules: Sequence[ApprovalRule] = (),
        approvers: Sequence[str] = (),
        approval_expires: timedelta = timedelta(days=1),
        approval_wait: float | None = 0.0,
        redaction: Redaction = STANDARD_REDACTION,
    ) -> None:
        self.name = check_tool(name)
        approval_rules = check_each("rules", rules, ApprovalRule, "ApprovalRule('pay')")
        people = check_each("approvers", approvers, str, "'ada'")
        self.policy = ToolkitPolicy(approval_rules, people, approval_expires, approval_wait, redaction)
        self._local: dict[str, ToolkitTool] = {}
        self._foreign: list[ForeignTools] = []
        self._entered: list[AsyncExitStack] = []
        self._checked: tuple[object, ...] = ()
        """The permissions, the rules and the lists of the servers whose names were checked."""
        for tool in check_each("tools", tools, Callable | Tool, "a function"):
            self.add(tool)

    # ------------------------------------------------------------ tools

    def add(
        self,
        function: Callable[..., Any] | Tool[Any],
        *,
        name: str | None = None,
        description: str | None = None,
        to: Sequence[str] = (),
        **settings: Unpack[ToolSettings],
    ) -> ToolkitTool:
        """Add a function, or a tool of Pydantic AI; `to` are the agents that get a grant.

        Raises:
            ValueError: the name or a setting is not valid, or another tool has the name.
        """
        tool = function_tool(function, name=name, description=description, **settings)
        if tool.name in self._local:
            raise ValueError(f"there is a tool {tool.name!r} already; give this one another name")
        self._local[tool.name] = tool
        for agent in to:
            self.grant(agent, tool.name)
        return tool

    def tool(
        self, *, name: str | None = None, to: Sequence[str] = (), **settings: Unpack[ToolSettings]
    ) -> Callable[[FunctionT], FunctionT]:
        """Add the decorated function.

        Raises:
            ValueError: as `add`.
        """

        def added(function: FunctionT) -> FunctionT:
            self.add(function, name=name, to=to, **settings)
            return function

        return added

    def add_toolset(
        self,
        toolset: AbstractToolset[Any],
        *,
        by_name: Mapping[str, ToolSettings] | None = None,
        name: str | None = None,
        required: bool = False,
        within: float | None = None,
        **settings: Unpack[ToolSettings],
    ) -> None:
        """Add a toolset of Pydantic AI. The settings are for all its tools; `by_name` has more for some.

        It has `within` seconds to start, and to list its tools (default: the `timeout` of its tools, or 10). If it fails, it
        is left out, with a warning about its `name`; if it is `required`, that is an error.

        Raises:
            ValueError: `within` is not positive.
        """
        check_type("a toolset", toolset, AbstractToolset, "FunctionToolset([pay])")
        seconds = within if within is not None else settings.get("timeout") or _WITHIN
        if seconds <= 0:
            raise ValueError(f"within must be positive, not {seconds:g} s")
        shown = self.policy.clean(name or toolset.label)
        self._foreign.append(ForeignTools(toolset, settings, self.policy.clean, by_name or {}, shown, required, seconds))

    def add_mcp(
        self,
        server: str | Sequence[str],
        *,
        prefix: str | None = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        by_name: Mapping[str, ToolSettings] | None = None,
        required: bool = False,
        within: float | None = None,
        **settings: Unpack[ToolSettings],
    ) -> None:
        """Add a server that speaks the Model Context Protocol: a URL, or the command that starts it.

        The results of its tools are untrusted, unless you pass `untrusted=False`. For `required` and `within`, see
        `add_toolset`.

        Raises:
            ModuleNotFoundError: a package that it needs is not installed.
            ValueError: `within` is not positive.
        """
        toolset = mcp_toolset(server, env=env, headers=headers)
        prefixed = toolset.prefixed(prefix) if prefix else toolset
        name = prefix or server_name(server)
        trusted: ToolSettings = {"untrusted": True, **settings}
        self.add_toolset(prefixed, by_name=by_name, name=name, required=required, within=within, **trusted)
        self._foreign[-1].lists_all = True

    async def tools(self, ctx: RunContext[object] | None = None, run: LedgerRun | None = None) -> dict[str, ToolkitTool]:
        """Return all tools; in a continued `run`, the recorded ones.

        A server that fails is left out, and so is a server's tool whose name is taken: those of the toolkit come first,
        then the servers in the order in which they were added.

        Raises:
            SetupError: a grant, a revocation or a rule names a tool that does not exist.
            ToolServerError: a required server has a problem.
        """
        self.check_names()
        tools = dict(self._local)
        for number, foreign in enumerate(self._foreign, 1):
            offered, warnings = await foreign.tools(ctx or bare_context(), run, f"tools:{self.name}:{number}")
            taken = [ToolWarning(foreign.name, NAME_TAKEN, _TAKEN, name) for name in offered if name in tools]
            if foreign.required:
                raise_if_required(taken)
            await warn([*warnings, *taken], run)
            tools |= {name: tool for name, tool in offered.items() if name not in tools}
        self.check_names()  # once more: now the servers have listed their tools
        return tools

    async def tools_of(
        self, agent: str, ctx: RunContext[object] | None = None, run: LedgerRun | None = None
    ) -> dict[str, ToolkitTool]:
        """Return the tools that an agent may use.

        Raises:
            SetupError, ToolServerError, LedgerError: as `tools`.
        """
        permissions = self.policy.permissions
        return {name: tool for name, tool in (await self.tools(ctx, run)).items() if permissions.knows(agent, name)}

    def check_names(self) -> None:
        """Refuse a grant, a revocation or a rule for a tool that does not exist: a misspelled rule would ask nobody.

        Every use of the tools checks the names; patterns do so as soon as they are opened.
        """
        permissions, rules = self.policy.permissions, self.policy.rules
        now = (permissions, rules, *(foreign.names for foreign in self._foreign))
        if len(now) == len(self._checked) and all(map(is_, now, self._checked)):
            return
        for change in permissions.changes:
            is_grant = isinstance(change, Grant)
            what = f"the {'grant' if is_grant else 'revocation'} for agent {change.agent!r}"
            self.check_name(change.tool, what, or_built_in=not is_grant)
        for rule in rules:
            self.check_name(rule.tool, "an approval rule", or_built_in=True)
        self._checked = now

    def check_name(self, tool: str, what: str, *, or_built_in: bool = False) -> None:
        """Refuse the name of a tool that does not exist; `what` describes where it is named.

        A name that a server may have is not refused before the server has listed its tools. With `or_built_in`, the name of a
        built-in tool that no agent has yet is accepted.
        """
        check_type("the name of a tool", tool, str, "'calculator'")
        also = BUILTIN_TOOLS if or_built_in else ()
        if tool in (ANY, *also) or tool in self._local or any(foreign.may_have(tool) for foreign in self._foreign):
            return
        names = {*self._local, *(name for foreign in self._foreign for name in foreign.names or ())}
        hint = known_names(tool, names, also=also)
        raise SetupError(f"{what} names tool {tool!r}, and toolkit {self.name!r} has none of that name{hint}")

    async def check(self) -> None:
        """Refuse names of tools that do not exist, including those that only a server can have: this requests its tools.

        Raises:
            SetupError: there is no such tool; the text has the name that was probably meant.
            ToolServerError: a required server has a problem.
        """
        self.check_names()
        named = {*(change.tool for change in self.permissions.changes), *(rule.tool for rule in self.policy.rules)}
        if self._foreign and not named <= {ANY, *self._local, *BUILTIN_TOOLS}:
            async with await self.connect():
                await self.tools()

    # ------------------------------------------------------------ permissions

    @property
    def permissions(self) -> Permissions:
        """The grants and revocations."""
        return self.policy.permissions

    def grant(
        self,
        agent: str,
        tool: str = ANY,
        *,
        where: Mapping[str, object] | None = None,
        calls: int | None = None,
        until: datetime | None = None,
    ) -> Grant:
        """Let an agent use a tool, or all of them; `where` is a JSON schema that the arguments must match.

        Raises:
            ValueError: a name, the schema, the number or the time is not valid.
        """
        grant = Grant(agent, tool, None if where is None else Schema(where), calls, until)
        self.policy.grant(grant)
        return grant

    def revoke(self, agent: str, tool: str = ANY) -> None:
        """Revoke a tool, or all tools, for an agent. Calls that are not started yet are refused.

        Raises:
            ValueError: a name is not valid.
        """
        self.policy.revoke(agent, tool)

    # ------------------------------------------------------------ use

    def guard(self, agent: str) -> Guard:
        """Return the guard of an agent's calls."""
        return Guard(self.policy, check_agent(agent))

    def for_agent(self, agent: str) -> AgentToolset:
        """Return the tools of an agent as a toolset of Pydantic AI.

        Raises:
            ValueError: the name of the agent is not valid.
        """
        return AgentToolset(self, check_agent(agent))

    def capability(self, agent: str) -> ToolkitCapability:
        """Return the tools of an agent as a capability of Pydantic AI, which also waits for people.

        Raises:
            ValueError: the name of the agent is not valid.
        """
        return ToolkitCapability(self, check_agent(agent))

    async def call(
        self, agent: str, tool: str, arguments: Mapping[str, object], *, invocation_id: str | None = None
    ) -> OptionResultPayload:
        """Call a tool for an agent, and return the outcome: a refusal or a failure is also an outcome.

        In a run, give each call an `invocation_id` if several run at the same time.

        Raises:
            ValueError: the name of the agent is not valid.
            ParkedError: a person must approve it, or settle its outcome.
        """
        run = current_run()
        new_id = current_port().new_id() if run is None else run.next_call(tool)
        invocation_id = invocation_id or new_id
        try:
            async with await self.connect():
                outcome = await self._called(agent, tool, arguments, invocation_id)
        except ToolRefusal as exc:
            return OptionResultPayload(
                invocation_id=invocation_id,
                option_name=tool,
                result=exc.details,
                is_error=True,
                error_type=exc.code,
                error_message=exc.reason,
                retryable=exc.retryable,
            )
        return outcome.payload(invocation_id, tool)

    async def _called(self, agent: str, name: str, arguments: Mapping[str, object], id: str) -> ToolOutcome:
        check_type("the name of a tool", name, str, "'calculator'")
        check_type("arguments", arguments, Mapping, "{'amount': 5}")
        guard = self.guard(agent)
        run = current_run()
        tools = await self.tools(run=run)
        tool = tools.get(name_among(tools, name))
        if tool is None:
            missing = "".join(f"; {foreign.down.sentence}" for foreign in self._foreign if foreign.down is not None)
            raise ToolRefusal(UNKNOWN_TOOL, f"there is no tool {name!r}{missing}")
        if run is not None:
            await begin_under(run, self.policy.cover(self.name, agent, tools))
        asked = GuardedCall(
            tool=tool,
            arguments=_plain(arguments),
            ctx=bare_context(),
            invocation=id,
            taint=current_taint() or (Taint() if run is None else run.opened.share(Taint)),
            run=run,
            parent_id=id,
        )
        return await guard.call_and_wait(asked)

    async def connect(self) -> AsyncExitStack:
        """Connect to the servers, and return a stack that disconnects. A failure is reported when the tools are listed."""
        async with AsyncExitStack() as stack:
            for foreign in self._foreign:
                await stack.enter_async_context(foreign.connected())
            return stack.pop_all()

    async def __aenter__(self) -> Self:
        """Connect to the servers for the duration of the block; without it, each call connects again.

        Raises:
            ToolServerError: the connection to a required server failed.
        """
        async with await self.connect() as stack:
            for foreign in self._foreign:
                foreign.check()
            self._entered.append(stack.pop_all())
        return self

    async def __aexit__(self, *args: object) -> None:
        await self._entered.pop().aclose()


def _plain(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return arguments as plain JSON; they may be a view of a message's arguments."""
    plain = thaw(arguments) if isinstance(arguments, JsonObject) else dict(arguments)
    try:
        canonical(plain)
    except (TypeError, ValueError) as exc:
        raise InvalidArguments([f"they are no JSON: {exc}"]) from None
    return plain


# ---------------------------------------------------------------- the capability


@dataclass
class ToolkitCapability(AbstractCapability[object]):
    """The tools of a toolkit that one agent may use, as a capability."""

    toolkit: Toolkit = field(repr=False)
    agent: str
    waits_for_people: ClassVar[bool] = True
    """Whether a call may be deferred to `handle_deferred_tool_calls`."""

    @override
    def get_toolset(self) -> AgentToolset:
        return self.toolkit.for_agent(self.agent)

    @override
    async def handle_deferred_tool_calls(
        self, ctx: RunContext[object], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for people, now that the other calls of the step have ended.

        Raises:
            ParkedError: a person has not answered in time, or must settle a call whose outcome is unknown.
        """
        waiting = {
            call: name for call, metadata in requests.metadata.items() if (name := _note_in(metadata, WAITS)) is not None
        }
        run = current_run()
        if waiting and run is not None:
            await self._wait(run, list(waiting.values()))
        for metadata in requests.metadata.values():
            if _note_in(metadata, PARKED) is not None:
                raise parked_error(metadata["antiphon"])
        if not waiting or run is None:
            return None
        # True for all: it only makes Pydantic AI call the tools again. The guard reads the answers from the ledger.
        return DeferredToolResults(approvals=dict.fromkeys(waiting, True))

    async def _wait(self, run: LedgerRun, approvals: list[str]) -> None:
        guard = self.toolkit.guard(self.agent)
        questions = [await find_approval(run.ledger, approval_id, thread_id=run.thread_id) for approval_id in approvals]
        asked = [approval for approval in questions if approval is not None]
        answered = await asyncio.gather(*(guard.wait(run.ledger, approval) for approval in asked))
        missing = [approval for approval, is_there in zip(asked, answered, strict=True) if not is_there]
        if missing:
            raise waits_for(run.ledger, *missing)


def _note_in(metadata: dict[str, Any], name: str) -> str | None:
    value = metadata.get("antiphon", {}).get(name)
    return value if isinstance(value, str) else None
