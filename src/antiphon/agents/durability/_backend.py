"""The backend: each operation of an agent as an effect in the thread of its run.

| operation | in the journal |
|---|---|
| a model request | `none`: hashes of prompt and tools; the messages and the answer are talk |
| a tool call | the effects that the tool declares, by default `once` |
| listing tools or instructions, validating arguments | `none` |
| cancelling a suspended answer | `idempotent` |
| compacting a history | `none` |
| any other operation of a capability | `once` |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from inspect import isawaitable
from math import inf
from typing import Any, Final, Generic, TypeVar, cast

from pydantic_ai._function_schema import FunctionSchema
from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    DynamicToolsetCallToolParams,
    JournalOperationNamer,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.durable_exec._toolset import toolset_for_unit
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.function import FunctionToolsetTool
from pydantic_core import to_jsonable_python
from typing_extensions import override

from antiphon.agents._deeds import note_deed
from antiphon.agents._observers import count_step, is_observed
from antiphon.agents._tool_changes import ToolChanges
from antiphon.agents.durability._failures import ModelOutages, RetryPolicy, mark_failed_call, tool_errors, with_stored_errors
from antiphon.agents.durability._model_request import ModelRequestEffect, note_price, permitted, price_of
from antiphon.agents.durability._streaming import current_relay
from antiphon.agents.durability._talk import guards_of
from antiphon.agents.durability._tool_call import (
    CallNotes,
    NotDone,
    Reconcile,
    RecordedLists,
    ToolCallEffect,
    Unsettled,
    call_key,
    change_since_offered,
    check_repeated,
    check_settings,
    effects_of,
    is_repeated,
    plain_arguments,
    typed_result,
)
from antiphon.agents.toolkit._tool import confirmed_in_thread
from antiphon.durable._budget import BudgetLimits
from antiphon.durable._changes import short_hash
from antiphon.durable._opened import OnChange
from antiphon.durable._run import CurrentEffect, LedgerRun, current_effect, current_run, effect_scope, run_scope
from antiphon.errors import HistoryMismatchError, RefusedError, UnknownOutcomeError
from antiphon.ledger import Owners
from antiphon.messages import Json
from antiphon.messages._json_values import copy_checked
from antiphon.messages._settings import current_limits
from antiphon.runtime import Effects, ToolOperation
from antiphon.runtime._effects import Run, confirmed
from antiphon.runtime._rows import cut_result, says_the_same_value

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

_EFFECTS: dict[type[Any], Effects] = {
    ModelCancelSuspendedResponseId: "idempotent",
    ModelCompactMessagesId: "none",
    ToolsetGetInstructionsId: "none",
    ToolsetGetToolsId: "none",
    ToolsetValidateToolArgumentsId: "none",
}


_UNNAMED: Final = "<toolset>"
"""The name in the journal of a toolset without an id."""
_RETURNED: Final = "returned"


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """The configuration of a tool: its effects."""

    effects: Effects


@dataclass(frozen=True, slots=True)
class DurabilityOptions:
    """What a program has set for the runs of an agent: see `LedgerDurability`."""

    effects: Mapping[str, Effects]
    reconcile: Reconcile | None
    limits: BudgetLimits
    retry: RetryPolicy | None
    on_change: OnChange | None
    outages: ModelOutages | None


class LedgerBackend(DurableOperationBackend[ToolConfig]):
    """Runs an agent's operations as effects."""

    def __init__(self, agent: str, ledger: Owners | str, options: DurabilityOptions) -> None:
        self.agent = agent
        self.ledger = ledger
        self.options = options
        self.namer = JournalOperationNamer(agent)

    @override
    def bind(self, operation: DurableOperation[ParamsT, WireT, ResultT]) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        of: Any = operation.operation_id
        if getattr(of, "toolset_id", "") is None:  # the tool's own name distinguishes its calls
            operation = replace(operation, operation_id=replace(of, toolset_id=_UNNAMED))
        return _Bound(self, operation)

    @override
    def config_for_tool(
        self, operation: DurableOperation[ParamsT, WireT, ResultT], *, tool: object | None, tool_name: str
    ) -> ToolConfig:
        definition = tool.tool_def if isinstance(tool, ToolsetTool) else None
        return ToolConfig(effects_of(definition, tool_name, self.options.effects))

    @override
    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()


async def run_of(context: RunContext[Any] | None, ledger: Owners | str, agent: str) -> LedgerRun:
    """Return the part of the current run that an operation of an agent belongs to."""
    run = current_run()
    assert run is not None  # noqa: S101 (operations are bound to runs)
    await run.open(ledger)
    if context is None or context.run_id is None:
        return run
    # A digest of its question tells agents of one name apart that run side by side.
    question = context.prompt
    digest = None if question is None else short_hash(to_jsonable_python(question, fallback=type))
    return run.of_agent(context.run_id, agent, digest)


class _Bound(BoundDurableOperation[ParamsT, WireT, ResultT], Generic[ParamsT, WireT, ResultT]):
    """One operation, bound to the backend."""

    def __init__(self, backend: LedgerBackend, operation: DurableOperation[ParamsT, WireT, ResultT]) -> None:
        self._backend = backend
        self._operation = operation

    @property
    @override
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._operation

    @override
    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        operation = self._operation
        context = getattr(params, "ctx", None) or getattr(params, "run_context", None)
        run = await run_of(context, self._backend.ledger, self._backend.agent)
        label = None if operation.invocation_label is None else operation.invocation_label(params)
        name = self._backend.namer.invocation_name(operation.operation_id, label=label).operation_name
        if isinstance(params, ModelRequestParams):
            return await self._ask(run, params, name, cast("ModelRequestId", operation.operation_id))
        if isinstance(params, ToolsetCallToolParams | DynamicToolsetCallToolParams):
            return await self._call(run, params, name, config)
        return await self._do(run, params, name, operation.operation_id)

    async def _ask(self, run: LedgerRun, params: ModelRequestParams, name: str, id: ModelRequestId) -> ResultT:
        tools = params.model_request_parameters.function_tools
        check_settings(tools, self._backend.options.effects)
        await _check_guarded(run, params.run_context, (tool.name for tool in tools))
        on_change = self._backend.options.on_change
        asked = ModelRequestEffect(run, params, id, option=name, limits=self._backend.options.limits, on_change=on_change)

        was_done = False

        async def start() -> Any:
            async with permitted(run, params.run_context.model, params.messages, params.model_settings) as permit:
                asking, relay = self._handled(cast("ParamsT", params)), current_relay()
                response = await (asking if relay is None or not id.streaming else relay.answer(asking))
                if isinstance(response, ModelResponse):
                    note_price(permit, response)
                return response

        async def ask(key: str) -> Json:
            nonlocal was_done
            was_done = True
            with effect_scope(CurrentEffect(key, name, "none")):
                response: Any = await asked.attempts(start, self._backend.options.outages)
            cost = price_of(response) if isinstance(response, ModelResponse) else None
            dumped = self._operation.result_codec.dump(cast("ResultT", response))
            return asked.answered(cast("dict[str, Any]", dumped), cost)

        outcome = await with_stored_errors(asked.perform, ask)
        count_step(run, params.run_context, was_done=was_done)
        return self._operation.result_codec.load(await asked.answer(outcome))

    async def _call(
        self, run: LedgerRun, params: ToolsetCallToolParams | DynamicToolsetCallToolParams, name: str, config: object | None
    ) -> ResultT:
        operation = self._operation
        await _check_guarded(run, params.ctx, (params.name,))
        is_call = isinstance(operation.operation_id, ToolsetCallToolId)
        effects: Effects = "none"
        if is_call:
            declared = effects_of(_definition(params), params.name, self._backend.options.effects)
            effects = config.effects if isinstance(config, ToolConfig) else declared
        repeats = is_call and is_repeated(_definition(params), params.name, effects)
        called = self._effect_of(run, params, name, effects, is_call=is_call)
        if effects != "none":
            note_deed(called.id)
        changes = ToolChanges(run.watch, params.name, params.ctx, repeats=repeats)
        notes = CallNotes(params.ctx)

        async def start() -> Json:
            with run_scope(run.part(called.key)), effect_scope(CurrentEffect(called.key, name, effects)), notes.scope():
                begun = replace(params, ctx=changes.begin())
                async with _connected(operation.operation_id, begun):
                    handled = await _started(begun, effects, lambda timed: self._handled(cast("ParamsT", timed)))
                dumped = await self._recordable(run, called, handled, effects)
                returned = self._fitting(dumped)
            notes.result, notes.dumped = handled, dumped if returned is dumped else None
            if repeats:
                check_repeated(params.name, returned)
            return returned

        async def call(key: str) -> Json:
            if (change := await change_since_offered(run, self._operation.operation_id, params)) is not None:
                returned: Json = {"kind": "tool_failed", "message": change}
                called.returned(returned)
                return {_RETURNED: returned}
            with tool_errors(changes.stored):
                returned = await notes.returned(called.attempts(start, self._backend.options.retry))
                called.returned(returned)
                return {_RETURNED: returned, **changes.stored(), **notes.dump()}

        async with run.watch.alone((current_run() or run).invocation_id):
            try:
                # One that a person has settled as failed: the model gets the failure, and the run continues.
                recorded = await with_stored_errors(
                    _restoring(called, changes),
                    call,
                    lambda error: {_RETURNED: {"kind": "tool_failed", "message": error.reason}},
                )
            except Exception as exc:
                called.explain(exc)
                mark_failed_call(exc, called.id, effects)
                raise
            if _is_from_tool(recorded):
                changes.restore(recorded, called.id)
            count_step(run, params.ctx, was_done=changes.did_run)
            if repeats and not changes.did_run and _is_from_tool(recorded):
                await self._repeat(called, start, recorded)
        changes.check()
        await notes.do_again(cast("dict[str, Any]", recorded) if _is_from_tool(recorded) else {})
        # A result that a person has recorded counts as the tool's.
        result = recorded[_RETURNED] if _is_from_tool(recorded) else {"kind": "tool_return", "result": recorded}
        # With its classes, if the tool ran here: the journal has the same value as JSON.
        is_same = notes.dumped is not None and notes.dumped == result
        return cast("ResultT", notes.result) if is_same else self._typed(params, result)

    async def _recordable(self, run: LedgerRun, called: ToolCallEffect, handled: ResultT, effects: Effects) -> Any:
        """Return the result of a tool as JSON.

        Raises:
            UnknownOutcomeError: it cannot be recorded, and the tool must not run twice: a person says what happened.
        """
        try:
            return copy_checked(self._operation.result_codec.dump(handled), current_limits())
        except ValueError as exc:
            if effects != "once":
                raise
            result: object = getattr(handled, "result", handled)
            called.evidence = {"returned": await called.shown(result)}
            raise UnknownOutcomeError(f"it ran, and its {type(result).__qualname__} cannot be recorded: {exc}") from exc

    def _effect_of(
        self,
        run: LedgerRun,
        params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
        name: str,
        effects: Effects,
        *,
        is_call: bool,
    ) -> ToolCallEffect:
        call_id, operation = params.ctx.tool_call_id, None
        if is_call and is_observed(run, params.ctx):
            tool, arguments = _definition(params), plain_arguments(params.tool_args)
            description = None if tool is None else tool.description
            operation = ToolOperation(params.name, call_id, description=description, arguments=arguments)
        return ToolCallEffect(
            run,
            params.name,
            plain_arguments(params.tool_args),
            key=call_key(params.name, call_id if is_call else f"{call_id}:check"),
            option=name,
            effects=effects,
            parent_id=call_id,
            settle=self._settle,
            limits=self._backend.options.limits,
            operation=operation,
            on_change=self._backend.options.on_change,
        )

    def _typed(self, params: ToolsetCallToolParams | DynamicToolsetCallToolParams, recorded: Any) -> ResultT:
        """Return a recorded result, in the class that the tool declares."""
        loaded: Any = self._operation.result_codec.load(recorded)
        tool = params.tool if isinstance(params, ToolsetCallToolParams) else None
        if tool is None or recorded.get("kind") not in ("tool_return", "tool_content_result"):
            return cast("ResultT", loaded)
        return cast("ResultT", replace(loaded, result=typed_result(tool, recorded.get("result"), loaded.result)))

    async def _repeat(self, called: ToolCallEffect, start: Callable[[], Awaitable[Json]], recorded: Any) -> None:
        """Run a tool with a recorded result again, for its changes to dependencies.

        Raises:
            HistoryMismatchError: it returns a different result, so it may have changed something else.
        """
        try:
            again = await start()
        except Exception as exc:
            reason = f"a tool with replay='run' failed when it ran again: {type(exc).__qualname__}: {exc}"
            raise HistoryMismatchError(f"{reason}, in {called.id!r}", called.course.to) from exc
        if not says_the_same_value(recorded[_RETURNED], again):
            reason = f"a tool with replay='run' returned something else than thread {called.thread_id!r} says"
            raise HistoryMismatchError(f"{reason}, in {called.id!r}: it must be pure", called.course.to)

    def _fitting(self, returned: Any) -> Json:
        """Return the result of a tool, cut if it is too large. If it cannot be cut, such as an image, the call fails."""
        shorter = cut_result(returned)
        if shorter is returned:
            return cast("Json", returned)
        with suppress(ValueError):
            if not _has_broken_files(shorter):
                self._operation.result_codec.load(shorter)
                return cast("Json", shorter)
        return {"kind": "tool_failed", "message": "it was done, and what it returned is too large to be written down"}

    async def _do(self, run: LedgerRun, params: ParamsT, name: str, id: DurableOperationId) -> ResultT:
        effects = _EFFECTS.get(type(id), "once")

        async def do(key: str) -> Json:
            value = self._operation.result_codec.dump(await self._handled(params))
            return run.opened.share(RecordedLists).write(name, cast("Json", value))

        async def perform(do: Run) -> Any:
            return await run.effect(name, {}, do, effects=effects)

        value = await run.opened.share(RecordedLists).read(run, await with_stored_errors(perform, do))
        return self._operation.result_codec.load(value)

    async def _handled(self, params: ParamsT) -> ResultT:
        with durable_unit_scope():
            return await self._operation.handler(params)

    async def _settle(self, unsettled: Unsettled) -> Json | NotDone | None:
        """Call `reconcile` for the outcome of a call, and return it in the form of the journal."""
        if self._backend.options.reconcile is None:
            return None
        outcome = await self._backend.options.reconcile(unsettled)
        if outcome is None or isinstance(outcome, NotDone):
            return outcome
        return cast("Json", to_jsonable_python(outcome))


def _restoring(called: ToolCallEffect, changes: ToolChanges) -> Callable[[Run], Awaitable[Any]]:
    """Return the function that makes a call, and that restores the changes of a call whose recorded outcome is an error."""

    async def perform(do: Run) -> Any:
        try:
            return await called.perform(do)
        except RefusedError as exc:
            changes.restore(exc.details, called.id)
            raise

    return perform


async def _check_guarded(run: LedgerRun, context: RunContext[object], tools: Iterable[str]) -> None:
    """Refuse plain tools that are guarded by a toolkit in this thread.

    The check is also made with each request, when the tools are offered: before the first of them starts.
    """
    if not run.opened.is_finished:
        (await guards_of(run)).check_plain(context.run_id, tools, run.thread_id)


def _definition(params: ToolsetCallToolParams | DynamicToolsetCallToolParams) -> ToolDefinition | None:
    if isinstance(params, DynamicToolsetCallToolParams):
        return params.tool_def
    return None if params.tool is None else params.tool.tool_def


@asynccontextmanager
async def _connected(
    operation: DurableOperationId, params: ToolsetCallToolParams | DynamicToolsetCallToolParams
) -> AsyncGenerator[None]:
    """Connect to the server of a tool before the check that it may start: that takes longer than a lease may last."""
    is_served = isinstance(operation, ToolsetCallToolId) and operation.toolset_kind == "mcp"
    if not is_served or not isinstance(params, ToolsetCallToolParams) or params.tool is None:
        yield
        return
    async with toolset_for_unit(params.tool.toolset, params.ctx):
        yield


async def _started(
    params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
    effects: Effects,
    call: Callable[[Any], Awaitable[ResultT]],
) -> ResultT:
    """Start the function of a tool, right after a check that it may."""
    timed = _confirmed_in_thread(params)
    return await confirmed(lambda: _in_time(timed, effects, call))


class StartedToolset(WrapperToolset[AgentDepsT]):
    """A toolset that a factory has made. It was made, connected and listed after the effect began, so the check is here."""

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        if (effect := current_effect()) is None:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        params = ToolsetCallToolParams(name, tool_args=tool_args, ctx=ctx, tool=tool)
        return await _started(
            params, effect.effects, lambda timed: self.wrapped.call_tool(timed.name, timed.tool_args, timed.ctx, timed.tool)
        )


def started_toolset(toolset: DynamicToolset[AgentDepsT]) -> DynamicToolset[AgentDepsT]:
    """Return a factory of toolsets whose tools are checked right before they start."""
    last: list[tuple[AbstractToolset[AgentDepsT], AbstractToolset[AgentDepsT]]] = []

    async def make(ctx: RunContext[AgentDepsT]) -> AbstractToolset[AgentDepsT] | None:
        result = toolset.toolset_func(ctx)
        inner = await result if isawaitable(result) else result
        if inner is None:
            return None
        if not last or last[0][0] is not inner:  # the same one stays connected
            last[:] = [(inner, inner.visit_and_replace(StartedToolset))]
        return last[0][1]

    return DynamicToolset(make, per_run_step=toolset.per_run_step, id=toolset.id)


def _confirmed_in_thread(
    params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
) -> ToolsetCallToolParams | DynamicToolsetCallToolParams:
    """Return a call whose function, if it is not `async`, checks in its own thread that it may start."""
    tool = params.tool if isinstance(params, ToolsetCallToolParams) else None
    schema = getattr(tool.call_func, "__self__", None) if isinstance(tool, FunctionToolsetTool) else None
    if not isinstance(schema, FunctionSchema):
        return params
    call = confirmed_in_thread(schema).call
    return replace(cast("ToolsetCallToolParams", params), tool=replace(cast("Any", tool), call_func=call))


async def _in_time(
    params: ToolsetCallToolParams | DynamicToolsetCallToolParams,
    effects: Effects,
    call: Callable[[Any], Awaitable[ResultT]],
) -> ResultT:
    """Call a tool. If one with effects `once` exceeds its time limit, its outcome is unknown.

    Pydantic AI would tell the model to try again.
    """
    tool = params.tool if isinstance(params, ToolsetCallToolParams) else None
    if effects != "once" or not isinstance(tool, FunctionToolsetTool):
        return await call(params)
    timeout = tool.tool_def.timeout if tool.tool_def.timeout is not None else getattr(tool.toolset, "timeout", None)
    if timeout is None:
        return await call(params)
    # Without end, not None: for None, Pydantic AI takes the time limit of the toolset.
    untimed = replace(tool, timeout=None, tool_def=replace(tool.tool_def, timeout=inf))
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await call(replace(cast("ToolsetCallToolParams", params), tool=untimed))
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise UnknownOutcomeError(f"it took more than {timeout} s") from exc


def _has_broken_files(value: Any) -> bool:
    """Whether a file in a result was cut: the mark is not base64."""
    if isinstance(value, list):
        return any(_has_broken_files(item) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    if fields.get("kind") == "binary":
        return "]" in str(fields.get("data", "]"))
    return any(_has_broken_files(field) for field in fields.values())


def _is_from_tool(payload: Any) -> bool:
    """Whether a recorded result comes from the tool; otherwise a person has recorded it."""
    return isinstance(payload, dict) and _RETURNED in payload
