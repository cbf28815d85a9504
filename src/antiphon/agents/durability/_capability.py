"""`LedgerDurability`: the capability that makes an agent's runs durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import KW_ONLY, dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Self, cast, get_args
from weakref import WeakValueDictionary

from pydantic import ValidationError
from pydantic_ai import UserPromptNode
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities import (
    AbstractCapability,
    AgentNode,
    RawToolArgs,
    ValidatedToolArgs,
    WrapModelRequestHandler,
    WrapRunHandler,
)
from pydantic_ai.durable_exec import JSON_CODEC, BaseDurabilityCapability, DurabilityEngineSpec
from pydantic_ai.durable_exec._toolset import DurableDynamicToolset
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import (
    AgentStreamEvent,
    FinalResultEvent,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset
from pydantic_graph import GraphRunContext
from typing_extensions import override

from antiphon.agents._config import known_names
from antiphon.agents._guards import Secrets
from antiphon.agents._observers import live_publisher, observed_agent
from antiphon.agents.durability._backend import DurabilityOptions, LedgerBackend, run_of, started_toolset
from antiphon.agents.durability._failures import ModelOutages, RetryPolicy, ends_run
from antiphon.agents.durability._prompt import PromptValues
from antiphon.agents.durability._quotes import current_quotation
from antiphon.agents.durability._streaming import TappedModel, current_relay, relay_events, request_streams, with_live_model
from antiphon.agents.durability._talk import TalkPlace, ThreadTalk
from antiphon.agents.durability._tool_call import (
    METADATA_KEY,
    Reconcile,
    RecordedCall,
    RecordedTools,
    check_settings,
    current_notes,
    is_recorded,
)
from antiphon.agents.toolkit._tool import tool_names
from antiphon.durable._budget import AgentBudget, Bounds, BudgetLimits
from antiphon.durable._opened import OnChange, Outages
from antiphon.durable._run import LedgerRun, current_run
from antiphon.errors import SetupError
from antiphon.ledger import Owners
from antiphon.ledger._unopened import check_opened
from antiphon.messages._arguments import check_choice, check_type
from antiphon.messages._keys import end_id
from antiphon.runtime import Effects

_OF_MODELS = (PartStartEvent, PartDeltaEvent, PartEndEvent, FinalResultEvent)
"""The events that come from models."""


class LedgerDurability(BaseDurabilityCapability[AgentDepsT]):
    """Records the steps of an agent inside `ledger_run`, and reuses the records when the program runs again.

    Outside of `ledger_run` it changes nothing.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="antiphon",
        durable_unit_noun="effect",
        durable_container_noun="ledger run",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA_KEY,
    )

    def __init__(
        self,
        ledger: Owners | str,
        *,
        effects: Mapping[str, Effects] | None = None,
        reconcile: Reconcile | None = None,
        budget: AgentBudget | None = None,
        thread_budget: AgentBudget | None = None,
        retry: RetryPolicy | None = None,
        live: bool = False,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        on_change: OnChange | None = None,
        outages: ModelOutages | None = None,
    ) -> None:
        """Make it.

        `ledger` may be a URL, which is opened for each run. `effects` declares, by name, the effects of tools that do not
        declare their own, such as those of an MCP server. `reconcile` determines the outcome of a call that must not be made
        twice, if the process died in the middle; without it, or if it returns None, the call waits for a person. `budget`
        limits a run with all its agents, `thread_budget` all runs in a thread; effects beyond it are refused with
        `BudgetExceededError`. `retry` declares which exceptions of tools are transient: such calls are repeated, and then
        parked. `live` makes models stream their answers, for `listen`. `name` is the name of the agent in the journal, by
        default its own name. `on_change` is the default for the option of `ledger_run`. `outages` decides how often a model is
        asked again inside a request, and whether a request that fails in the end stays open; without it, the failure is the
        outcome.

        Raises:
            TypeError: the ledger is not open, or is not a ledger; `retry` or a budget is of another type.
            ValueError: a value in `effects` is not one of `none`, `idempotent` and `once`, or `on_change` is not one of
                its values.
        """
        if not isinstance(ledger, str):
            check_opened(ledger)
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._ledger = ledger
        for tool, value in (effects or {}).items():
            if value not in get_args(Effects):
                raise ValueError(f"effects of tool {tool!r} are 'none', 'idempotent' or 'once', not {value!r}")
        check_choice("on_change", on_change, OnChange)
        check_type("retry", retry, RetryPolicy | None, "RetryPolicy(retries=3)")
        for argument, limit in (("budget", budget), ("thread_budget", thread_budget)):
            check_type(argument, limit, AgentBudget | None, "AgentBudget(requests=20)")
        self._is_checked = not effects
        """Whether it is checked that `effects` names only tools of the agent, as far as they are known."""
        self._live = live
        self._options = DurabilityOptions(
            effects=dict(effects or {}),
            reconcile=reconcile,
            limits=BudgetLimits(budget or AgentBudget(), thread_budget or AgentBudget()),
            retry=retry,
            on_change=on_change,
            outages=outages,
        )

    @override
    def for_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> AbstractCapability[AgentDepsT]:
        if self.name or agent.name:
            # Those that the agent was constructed with; others are checked when they are offered.
            toolsets = [toolset for toolset in agent.toolsets if isinstance(toolset, FunctionToolset)]
            check_settings((tool.tool_def for toolset in toolsets for tool in toolset.tools.values()), self._options.effects)
            return super().for_agent(agent)
        named = copy(self)
        named.name = "agent"
        return named.for_agent(agent)

    @property
    @override
    def in_durable_context(self) -> bool:
        return current_run() is not None

    @override
    def get_durable_operation_backend(self) -> LedgerBackend:
        return LedgerBackend(self.name, self._ledger, self._options)

    # ------------------------------------------------------------ models and toolsets of a run

    # Other engines run an operation elsewhere, and must find its model and its toolset there by name. Here it runs in the
    # program, and the program that continues a run provides the same ones again.

    @override
    def _bind_models(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        self._unregistered = WeakValueDictionary[int, Model]()
        self._bound: dict[tuple[str | None, str], Any] = {}
        """The operations of models that were used, by their ids and names."""
        if agent.model is not None:
            super()._bind_models(agent)
        else:
            self._models_by_id = dict(self._extra_models)

    @override
    def _bind_model_operations(self, backend: Any, *, model_id: str | None, model_name: str) -> Any:
        """Return the operations of a model. Operations of a model with an id are bound once, not with each request."""
        make = partial(super()._bind_model_operations, backend, model_id=model_id, model_name=model_name)
        if isinstance(model_id, _UnregisteredModelId):
            return make()
        bound = self._bound.get((model_id, model_name))
        if bound is None or bound[0] is not self:  # a copy of this capability has its own operations
            bound = self._bound[model_id, model_name] = (self, make())
        return bound[1]

    @override
    def _registered_model_id(self, model: Model) -> tuple[bool, str | None]:
        if self._unregistered.get(id(model)) is model:
            return True, _UnregisteredModelId(model)
        return super()._registered_model_id(model)

    @override
    def _find_model_id(self, model: Model) -> str | None:
        candidate: Model = model
        while not self._registered_model_id(candidate)[0]:
            if not isinstance(candidate, WrapperModel):
                self._unregistered[id(model)] = model
                return _UnregisteredModelId(model)
            candidate = candidate.wrapped
        return self._registered_model_id(candidate)[1]

    @override
    async def _resolve_model_for_request(self, model_id: str | None, run_context: RunContext[AgentDepsT]) -> Model:
        if isinstance(model_id, _UnregisteredModelId):
            return model_id.model
        return await super()._resolve_model_for_request(model_id, run_context)

    @override
    def _wrap_and_register_leaf(self, ts: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        is_named = ts._explicit_id is not None  # pyright: ignore[reportPrivateUsage]
        return super()._wrap_and_register_leaf(ts) if is_named else ts

    @override
    def _build_dynamic_toolset(self, toolset: DynamicToolset[AgentDepsT]) -> DurableDynamicToolset[AgentDepsT]:
        durable = super()._build_dynamic_toolset(started_toolset(toolset))
        durable.wrapped = toolset
        return durable

    def _recorded(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        """Return a toolset whose calls are effects."""
        registered = self._toolsets_by_id.get(toolset._explicit_id or "")  # pyright: ignore[reportPrivateUsage]
        if registered is not None and registered.wrapped is toolset:
            return registered
        return self._wrap_leaf_toolset(toolset) or toolset

    # ------------------------------------------------------------ side effects of a tool on its run

    @override
    async def before_run(self, ctx: RunContext[AgentDepsT]) -> None:
        """Accept a cancellation token: cancelling a run from outside stops its program, and the run can be continued."""

    @override
    def _durable_run_context(self, ctx: RunContext[AgentDepsT]) -> RunContext[AgentDepsT]:
        notes = current_notes()
        return notes.context(ctx) if notes is not None and notes.is_about(ctx) else super()._durable_run_context(ctx)

    # ------------------------------------------------------------ streams

    @override
    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        if not self.in_durable_context:
            return await handler(request_context)
        async with request_streams():
            return await super().wrap_model_request(
                ctx, request_context=request_context, handler=lambda request: handler(with_live_model(request))
            )

    @override
    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        return with_live_model(await super().prepare_model_request(ctx, request_context))

    @override
    @asynccontextmanager
    async def _durable_model_scope(
        self, model_id: str | None, run_context: RunContext[AgentDepsT], *, serving: bool = False
    ) -> AsyncGenerator[tuple[Model, RunContext[AgentDepsT]]]:
        async with super()._durable_model_scope(model_id, run_context, serving=serving) as (model, ctx):
            yield (model if current_relay() is None else TappedModel(model)), ctx

    @override
    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT]:
        async def handle(ctx: RunContext[AgentDepsT], stream: AsyncIterable[AgentStreamEvent]) -> None:
            await relay_events(None if ctx.agent is None else ctx.agent.name, stream, is_live=self._live)

        return handle

    @property
    @override
    def has_wrap_run_event_stream(self) -> bool:
        return self._live or super().has_wrap_run_event_stream

    @override
    def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        if self._process_event_stream is not None:
            stream = self._process_event_stream.wrap_run_event_stream(ctx, stream=stream)
        return self._published(ctx, stream) if self._live else stream

    async def _published(
        self, ctx: RunContext[AgentDepsT], stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        publish = live_publisher(None if ctx.agent is None else ctx.agent.name)
        try:
            async for event in stream:
                if publish is not None and not isinstance(event, _OF_MODELS):  # these are published while they are streamed
                    publish(event)
                yield event
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    # ------------------------------------------------------------ a run of the agent

    @override
    def get_default_run_id(self) -> str | None:
        """Return a provisional id: the question, by which agents that run side by side are told apart, is not known yet.

        Raises:
            RuntimeError: the agent runs in another event loop than its run, whose ledger it cannot use.
        """
        run = current_run()
        if run is None:
            return None
        if run.loop not in (None, asyncio.get_running_loop()):
            reason = (
                f"agent {self.name!r} runs in another event loop than ledger_run({run.thread_id!r}), and cannot be recorded"
            )
            raise RuntimeError(f"{reason}: use `async with ledger_run(…)` and `await agent.run(…)` in the same loop")
        return run.expect_agent()

    @override
    def get_default_conversation_id(self, run_id: str) -> str | None:
        run = current_run()
        return None if run is None else run.thread_id

    @override
    async def get_run_start_time(self, run_id: str) -> datetime | None:
        run = current_run()
        if run is None:
            return None
        await run.open(self._ledger)
        return await run.now(key=f"start:{self.name}")

    @override
    async def before_node_run(self, ctx: RunContext[AgentDepsT], *, node: AgentNode[AgentDepsT]) -> AgentNode[AgentDepsT]:
        """Give the run its id, and make system-prompt functions return the recorded texts."""
        if current_run() is None or not isinstance(node, UserPromptNode):
            return node
        run = await run_of(ctx, self._ledger, self.name)
        values = {field.name: getattr(node, field.name) for field in fields(node)}
        node = _FirstNode(**values, run_id=run.run_id or "")
        functions, dynamic = node.system_prompt_functions, node.system_prompt_dynamic_functions
        recorded = {id(runner): _recording(run, runner) for runner in (*functions, *dynamic.values())}
        return replace(
            node,
            system_prompt_functions=[recorded[id(runner)] for runner in functions],
            system_prompt_dynamic_functions={ref: recorded[id(runner)] for ref, runner in dynamic.items()},
        )

    @override
    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replace the texts of instruction functions with the recorded texts. This hook is the last one."""
        request_context = with_live_model(await super().before_model_request(ctx, request_context))
        if current_run() is None:
            return request_context
        run = await run_of(ctx, self._ledger, self.name)
        parameters, values = request_context.model_request_parameters, run.opened.share(PromptValues)
        if any(map(is_recorded, parameters.function_tools)):
            offered = [tool for tool in parameters.function_tools if not is_recorded(tool)]
            request_context.model_request_parameters = parameters = replace(parameters, function_tools=offered)
        instructions = await values.instructions(run, parameters.instruction_parts or ())
        if instructions is not None:
            request_context.model_request_parameters = replace(parameters, instruction_parts=instructions)
        return request_context

    @override
    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT] | None:
        if current_run() is None:
            return super().get_wrapper_toolset(toolset)
        return RecordedTools(toolset.visit_and_replace(self._recorded), partial(run_of, ledger=self._ledger, agent=self.name))

    @override
    async def on_tool_validate_error(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: RawToolArgs,
        error: ValidationError | ModelRetry,
    ) -> ValidatedToolArgs:
        """Return the recorded arguments of a call that was made: the tool may take other arguments now."""
        if current_run() is not None:
            run = await run_of(ctx, self._ledger, self.name)
            if (recorded := await RecordedCall.of(run, call.tool_name, call.tool_call_id)) is not None:
                return recorded.arguments
        return await super().on_tool_validate_error(ctx, call=call, tool_def=tool_def, args=args, error=error)

    @override
    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        run = current_run()
        if run is None:
            return await handler()
        self._check_effects()
        part = await run_of(ctx, self._ledger, self.name)
        if part is run:  # it has no id, so nothing of it can be recorded as its own
            return await handler()
        run.opened.share(Bounds).add(self._options.limits)
        run.opened.share(Outages).add(ends_run)
        try:
            with run.agent_at_work(part, ctx.prompt):
                result = await observed_agent(part, ctx, self.name, handler)
            await _write_rest(part, result)
        finally:
            await part.opened.share(ThreadTalk).leave(part)
        return result

    def _check_effects(self) -> None:
        """Refuse effects for a tool that the agent does not have. The tools of a server are unknown here."""
        if self._is_checked or self.agent is None:
            return
        names: set[str] = set()
        for toolset in self.agent.toolsets:
            if (offered := tool_names(toolset)) is None:
                return
            names |= offered
        if unknown := [name for name in self._options.effects if name not in names]:
            who = f"effects= names tool {unknown[0]!r}, and agent {self.name!r} has none of that name"
            raise SetupError(f"{who}{known_names(unknown[0], names)}")
        self._is_checked = True


@dataclass
class _FirstNode(UserPromptNode[Any, Any]):
    """The first node of a run of an agent. It gives the run the id that its part of the ledger run has.

    It also leaves out the messages of an earlier attempt of the same run, and everything after them. A conversation that was
    saved after the run has them, and with them, the same request would be a different one.
    """

    _: KW_ONLY
    run_id: str = ""

    get_node_id = UserPromptNode.get_node_id  # the graph knows nodes by these

    @override
    async def run(self, ctx: GraphRunContext[Any, Any]) -> Any:
        ctx.state.run_id, messages = self.run_id, ctx.state.message_history
        earlier = next((place for place, message in enumerate(messages) if message.run_id == self.run_id), len(messages))
        del messages[earlier:]
        return await super().run(ctx)


class _UnregisteredModelId(str):
    """The id of a model that is not registered, with the model."""

    model: Model

    def __new__(cls, model: Model) -> Self:
        model_id = super().__new__(cls, model.model_id)
        model_id.model = model
        return model_id


def _recording(run: LedgerRun, runner: Any) -> Any:
    """Return the runner of a system-prompt function that returns the recorded text, or notes the new one."""
    function = runner.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    values = run.opened.share(PromptValues)

    async def text(ctx: RunContext[Any]) -> str | None:
        try:
            return await values.system_prompt(run, name)
        except LookupError:
            prompt_text = await runner.run(ctx)
            values.say(run, name, prompt_text)
            return cast("str | None", prompt_text)

    text.__qualname__ = name  # the history refers to a dynamic one by this name
    return replace(runner, function=text)


async def _write_rest(run: LedgerRun, result: AgentRunResult[Any]) -> None:
    """Write the messages after the last model request, such as the result of the output tool call."""
    talk = run.opened.share(ThreadTalk)
    await talk.read(run)
    place = TalkPlace(run.thread_id, end_id(run.course.invocation_id), run.agent or "agent")
    messages = result.new_messages()
    new = talk.prompt(run, messages, current_quotation().parts_in(messages), result.run_id)
    units = [run.opened.share(Secrets).clean_unit(unit) for unit in new.unquoted]
    # Messages before an answer are written as sent to the model, which may differ from the agent's history.
    answered = max((number for number, unit in enumerate(units, 1) if unit["kind"] == "response"), default=0)
    rest = talk.new_rows(units[answered:], new.marks()[answered:], place, result.run_id)
    if rest:
        await run.journal.write(run.thread_id, rest, allow_foreign=True)
