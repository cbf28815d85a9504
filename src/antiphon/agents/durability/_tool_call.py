"""A tool call as an effect: the effects that a tool declares in its metadata, and the handling of an unknown outcome.

Also the records about the tools of a server. A list that equals the last one is stored as a reference to that row. The offered
tools are recorded, and a continued run offers the same. So the tools of the server are listed again before one is called, and
a changed tool is not called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args, get_type_hints

import orjson
from pydantic import TypeAdapter
from pydantic_ai.durable_exec import CallToolResult, DynamicToolsetCallToolParams, ToolsetCallToolId, ToolsetCallToolParams
from pydantic_ai.exceptions import ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.function import FunctionToolsetTool
from pydantic_core import SchemaValidator, core_schema, to_jsonable_python
from typing_extensions import override

from antiphon.agents.durability._failures import RetryPolicy
from antiphon.agents.durability._talk import ThreadTalk
from antiphon.agents.toolkit._tool import declared_settings, unknown_setting
from antiphon.durable._budget import BudgetLimits
from antiphon.durable._changes import StepChange, short_hash
from antiphon.durable._opened import OnChange, UnrecordedStepError
from antiphon.durable._run import LedgerRun, current_run, is_trial
from antiphon.durable._steps import RunStep
from antiphon.errors import DeliveryError, FailedError, LedgerError, UnknownOutcomeError, WithdrawnError
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._keys import as_key, child_id, is_below
from antiphon.runtime import Effects, ToolOperation, describe
from antiphon.runtime._effects import GivenUp
from antiphon.runtime._rows import error_text, is_too_large

if TYPE_CHECKING:
    from pydantic_ai._enqueue import PendingMessage

# ---------------------------------------------------------------- the effect

_FAILURES: Final = frozenset({"model_retry", "run_cancelled", "tool_failed", "validation_error"})
"""The kinds of results that are failures."""
_DEFERRALS: Final = frozenset({"approval_required", "call_deferred"})
_any: TypeAdapter[Any] = TypeAdapter(Any)

_MOST_WORDS: Final = 2000
"""The maximum length of a stored error text, in characters."""
METADATA_KEY: Final = "antiphon"
"""The key in a tool's metadata for the runtime: `{"antiphon": {"effects": "none", "replay": "run"}}`."""


def effects_of(tool: ToolDefinition | None, name: str, configured: Mapping[str, Effects]) -> Effects:
    """Return the effects of a tool: as configured for the agent, else as the tool declares, else `once`."""
    declared: Any = ((tool.metadata or {}).get(METADATA_KEY) if tool is not None else None) or {}
    effects = configured.get(name) or (
        cast("dict[str, Any]", declared).get("effects", "once") if isinstance(declared, dict) else declared
    )
    if effects not in get_args(Effects):
        raise UserError(f"the effects of tool {name!r} are one of {', '.join(get_args(Effects))}, not {effects!r}")
    return cast("Effects", effects)


def is_repeated(tool: ToolDefinition | None, name: str, effects: Effects) -> bool:
    """Whether a tool runs again when a run continues: its metadata has `{"antiphon": {"effects": "none", "replay": "run"}}`.

    Raises:
        UserError: that is not allowed: it changes something outside, asks for approval, or declares another value.
    """
    declared: Any = ((tool.metadata or {}).get(METADATA_KEY) if tool is not None else None) or {}
    replay = cast("dict[str, Any]", declared).get("replay", "record") if isinstance(declared, dict) else "record"
    if replay not in ("record", "run"):
        raise UserError(f"the replay of tool {name!r} is 'record' or 'run', not {replay!r}")
    if replay == "record":
        return False
    if effects != "none":
        raise UserError(
            f"tool {name!r} has replay='run', and effects {effects!r}: only a tool with effects 'none' may run again"
        )
    if tool is not None and tool.kind != "function":
        raise UserError(f"tool {name!r} has replay='run', and must be approved or deferred: it cannot run again by itself")
    return True


def check_repeated(name: str, returned: Json) -> None:
    """Check the result of a tool with `replay="run"`."""
    if isinstance(returned, dict) and returned.get("kind") in _DEFERRALS:
        raise UserError(f"tool {name!r} has replay='run', and asks to be approved or deferred")


def check_settings(tools: Iterable[ToolDefinition], configured: Mapping[str, Effects]) -> None:
    """Check the settings in the metadata of tools before they are offered.

    Raises:
        UserError: one of them has a setting that is unknown, that would have no effect, or that is not allowed for it.
    """
    for tool in tools:
        if (tool.metadata or {}).get(METADATA_KEY):
            is_repeated(tool, tool.name, effects_of(tool, tool.name, configured))
            reason, settings = unknown_setting(tool.name, tool.metadata), declared_settings(tool.metadata)
            for name in ("approval", "sensitive"):
                if settings.get(name):
                    reason = f"the metadata of tool {tool.name!r} has the setting {name!r}, which only a Toolkit observes"
                    reason = f"{reason}: add the tool to one"
            if reason is not None:
                raise UserError(reason)


def plain_arguments(arguments: Mapping[str, object]) -> dict[str, Json]:
    """Return the arguments of a call as JSON that is the same in every process.

    A set is sorted, because its order differs between processes. For an object that is not JSON, only its type is stored,
    because its text has an address. NaN is stored as text.
    """
    if all(type(value) in _PLAIN for value in arguments.values()):
        return cast("dict[str, Json]", dict(arguments))
    plain = to_jsonable_python(_steady(_any.dump_python(dict(arguments), fallback=_type_of)), fallback=_type_of)
    return cast("dict[str, Json]", plain)


_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""The JSON types of most arguments."""


def _type_of(value: Any) -> str:
    return type(value).__qualname__


def _steady(value: Any) -> Any:
    match value:
        case dict():
            return {key: _steady(item) for key, item in cast("dict[Any, Any]", value).items()}
        case set() | frozenset():
            members = cast("set[Any]", value)
            return sorted((_steady(member) for member in members), key=_place)
        case list() | tuple():
            return [_steady(item) for item in cast("list[Any]", value)]
        case float() if not isfinite(value):
            return str(value)
        case _:
            return value


def _place(value: Any) -> bytes:
    return orjson.dumps(to_jsonable_python(value, fallback=_type_of), option=orjson.OPT_NON_STR_KEYS, default=str)


def call_key(tool: str, call_id: str | None) -> str:
    """Return the key of the effect of a call, from the id that the model gave it: the same when the program runs again."""
    return f"{tool}:{call_id}"


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A call that was started, and whose outcome is unknown."""

    thread_id: str
    invocation_id: str
    tool: str
    arguments: dict[str, Any]
    key: str
    """The idempotency key that the tool got."""
    reason: str


@dataclass(frozen=True, slots=True)
class NotDone:
    """Returned by `reconcile` if the call was not executed: it is started again."""


Reconcile: TypeAlias = Callable[[Unsettled], Awaitable[Any]]
"""Determines the outcome of a call: returns its result, `NotDone()`, or None if it is unknown; then a person decides."""


class ToolCallEffect(RunStep):
    """A call of a tool."""

    does_read_finished = True

    def __init__(
        self,
        run: LedgerRun,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        key: str,
        option: str,
        effects: Effects,
        parent_id: str | None,
        settle: Callable[[Unsettled], Awaitable[Json | NotDone | None]] | None,
        limits: BudgetLimits,
        operation: ToolOperation | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        super().__init__(
            run.opened,
            key,
            {"tool": tool, "arguments": dict(arguments)},
            effects=effects,
            option=option,
            parent_id=parent_id,
            on_change=on_change,
        )
        self.operation = operation
        self._run_of = run
        self._talk = run.opened.share(ThreadTalk)
        self._tool = tool
        self._settle = settle
        self._limits = limits

    @override
    async def begin(self) -> Message:
        await self._talk.spend(self._run_of, [self._limits], "tool", self.id)
        (record,) = await self.journal.write(self.thread_id, [self.intent()])
        self._talk.reach(record.seq)
        return record.message

    @override
    async def end(self, outcome: Message) -> Message:
        (stored,) = await self.journal.write_soon(self.thread_id, [outcome])
        return stored

    def returned(self, value: Any) -> None:
        """Report the outcome to observers. A failure is a returned value, too."""
        operation = self.operation
        if isinstance(operation, ToolOperation):
            kind = value["kind"]
            if kind in _FAILURES:
                describe(replace(operation, error_type=kind.upper()))
            else:
                describe(replace(operation, result=value.get("result")))

    @override
    async def change(self, intent: Message) -> StepChange:
        recorded, repeated = cast("OptionCallPayload", intent.payload), cast("OptionCallPayload", self.intent().payload)
        before, now = recorded.arguments.get("effects"), repeated.arguments.get("effects")
        difference = "other arguments" if before == now else f"other effects ({now!r}, not {before!r})"
        if recorded.option_name != repeated.option_name:
            difference = f"another name ({repeated.option_name!r}, not {recorded.option_name!r})"
        what = f"the program calls tool {self._tool!r} with {difference} than thread {self.thread_id!r} says"
        digest = short_hash([self._option, self._effects, self.arguments])
        return StepChange(f"{what}, in {self.id!r}", self.changed_arguments(intent), digest)

    @property
    @override
    def shown_name(self) -> str:
        return self._tool

    async def attempts(self, start: Callable[[], Awaitable[Any]], policy: RetryPolicy | None) -> Any:
        """Start the tool, and start it again after transient errors. Each further start follows a row.

        Raises:
            GivenUp: a person must decide.
        """
        failures = 0
        while True:
            try:
                return await start()
            except (DeliveryError, LedgerError, UnknownOutcomeError):
                raise
            except Exception as exc:
                failures += 1
                pause = None if policy is None else policy.decide(exc, self._effects, failures)
                if pause is None:
                    raise
                failure = error_text(exc)
                if pause == "park":
                    times = f" {failures} times, at last" if failures > 1 else ""
                    is_not_done = policy is not None and isinstance(exc, policy.not_done)
                    doubt = "; it may have been done" if self._effects == "once" and not is_not_done else ""
                    raise GivenUp(f"{self._tool!r} failed{times} with {failure[:_MOST_WORDS]}{doubt}") from exc
            await asyncio.sleep(pause)
            await self.begin_after(failure)

    @override
    async def unknown(self, reason: str) -> Message:
        if self._settle is None or is_trial():
            return await super().unknown(reason)
        arguments = cast("dict[str, Any]", thaw(self.arguments["arguments"]))
        outcome = await self._settle(Unsettled(self.thread_id, self.id, self._tool, arguments, self.key, reason))
        if outcome is None:
            return await super().unknown(reason)
        if isinstance(outcome, NotDone):
            reason = "it was not done, as was found out"
            return self.outcome(is_error=True, error_type=WithdrawnError.code, error_message=reason, retryable=True)
        return self.outcome(result=outcome)


# ---------------------------------------------------------------- side effects on the run


class CallNotes:
    """Side effects of a tool on its run: it enqueues messages, or cancels the run.

    These are recorded with the result, and repeated when the result comes from the journal.
    """

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx = ctx
        self._enqueued: list[PendingMessage] = []
        self._is_live = False
        self.is_cancelled = False
        self._interrupted: asyncio.CancelledError | None = None
        """The cancellation of the tool itself, after it had cancelled the run."""
        self.result: Any = None
        """The return value of the tool in this process, with its classes."""
        self.dumped: Json = None
        """Its recorded form; None if it is recorded in another one, such as cut."""

    def is_about(self, ctx: RunContext[Any]) -> bool:
        """Whether a context belongs to this call, and not to an agent that runs in it."""
        return ctx.run_id == self._ctx.run_id and ctx.tool_call_id == self._ctx.tool_call_id

    def context(self, ctx: RunContext[AgentDepsT]) -> RunContext[AgentDepsT]:
        """Return the context for the tool."""
        tool_context: Any = copy(ctx)  # `replace` would rebuild it from its fifty fields
        tool_context._cancellation = _NotedCancellation(self, getattr(ctx, "_cancellation", None))
        if ctx.pending_messages is not None:
            tool_context.pending_messages = _NotedQueue(self._enqueued, ctx.pending_messages)
        return cast("RunContext[AgentDepsT]", tool_context)

    @contextmanager
    def scope(self) -> Generator[None, None, None]:
        """Make this call the current one while its tool runs."""
        self._is_live = True
        token = _notes.set(self)
        try:
            yield
        finally:
            _notes.reset(token)

    async def returned(self, call: Awaitable[Json]) -> Json:
        """Make a call, and return its result. If the tool has cancelled its own run, that is a result, too."""
        try:
            return await call
        except asyncio.CancelledError as exc:
            if not self.is_cancelled:
                raise
            self._interrupted = exc  # raised after the outcome is recorded
            return {"kind": "tool_failed", "message": "it has cancelled the run"}

    def dump(self) -> dict[str, Json]:
        """Return the fields that are recorded with the result."""
        fields: dict[str, Json] = {}
        if self._enqueued:
            fields["enqueued"] = [
                {
                    "messages": cast("Json", ModelMessagesTypeAdapter.dump_python(pending.messages, mode="json")),
                    "priority": pending.priority,
                    "is_beside_result": getattr(pending, "_tool_call", None) is not None,
                }
                for pending in self._enqueued
            ]
        if self.is_cancelled:
            fields["cancelled"] = True
        return fields

    async def do_again(self, outcome: Mapping[str, Any]) -> None:
        """Repeat the side effects of a recorded call. If it has cancelled the run, this waits until the run stops."""
        if self._is_live:
            if self._interrupted is not None:
                raise self._interrupted
            return
        for pending in outcome.get("enqueued", ()):
            messages = ModelMessagesTypeAdapter.validate_python(pending["messages"])
            content = [part for message in messages for part in message.parts] if pending["is_beside_result"] else messages
            self._ctx.enqueue(*cast("list[ModelMessage]", content), priority=pending["priority"])
        if outcome.get("cancelled"):
            self._ctx.cancel()
            await asyncio.Event().wait()


_notes: ContextVar[CallNotes | None] = ContextVar("antiphon.agents.call_notes", default=None)


def current_notes() -> CallNotes | None:
    """Return the notes of the call that is being executed; None outside of one."""
    return _notes.get()


class _NotedQueue(list["PendingMessage"]):
    """A run's queue of messages, for a tool."""

    def __init__(self, noted: list[PendingMessage], queue: list[PendingMessage]) -> None:
        super().__init__()
        self._noted = noted
        self._queue = queue

    @override
    def append(self, pending: PendingMessage) -> None:
        self._queue.append(pending)
        self._noted.append(pending)


class _NotedCancellation:
    """The cancellation of a run, for a tool."""

    def __init__(self, notes: CallNotes, cancellation: Any) -> None:
        self._notes = notes
        self._cancellation = cancellation

    def cancel(self) -> None:
        if self._cancellation is None:
            raise UserError("this context has no run to cancel")
        self._notes.is_cancelled = True
        self._cancellation.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cancellation, name)


def typed_result(tool: object, value: Any, loaded: Any) -> Any:
    """Return a recorded result as the declared return type of a tool; as it was loaded, if it declares no matching type.

    `value` is the stored form. The loaded result has files in it, such as pictures, as objects, whatever the tool declares.
    """
    toolset: Any = getattr(tool, "toolset", None)
    if not isinstance(tool, FunctionToolsetTool) or not isinstance(toolset, FunctionToolset):
        return loaded
    function_tool = cast("FunctionToolset[Any]", toolset).tools.get(tool.original_name or tool.tool_def.name)
    try:
        declared = (
            TypeAdapter[Any](get_type_hints(function_tool.function).get("return", Any)) if function_tool is not None else _any
        )
        typed = declared.validate_python(loaded)
        return typed if declared.dump_python(typed, mode="json") == value else loaded
    except Exception:  # noqa: BLE001 (any annotation, and any validator of a class in it)
        return loaded


# ---------------------------------------------------------------- calls of a changed program


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a plain tool that has ended."""

    arguments: dict[str, Any]
    outcome: Any
    """The outcome in the form of the journal."""

    @classmethod
    async def of(cls, run: LedgerRun, tool: str, call_id: str | None) -> RecordedCall | None:
        """Return the recorded call; None if the thread has none, or it has not ended."""
        if not (run.is_again or run.journal.has_had_owners(run.thread_id)):
            return None
        await run.journal.settle(run.thread_id)
        id = child_id(run.course.invocation_id, as_key(call_key(tool, call_id)))  # noqa: A001 (that of the effect)
        records = await run.ledger.find(invocation_id=id, thread_id=run.thread_id)
        rows = [record.message.payload for record in records if record.message.lane == "effect"]
        match rows:
            case [OptionCallPayload() as begun, OptionResultPayload(is_error=False) as ended]:
                intent: Any = thaw(begun.arguments)
                return cls(intent["arguments"].get("arguments", {}), thaw(ended.result))
            case _:
                return None


@dataclass
class RecordedTools(WrapperToolset[AgentDepsT]):
    """A toolset plus tools that the thread has offered and the program no longer has: recorded calls keep their outcome.

    Such tools are not offered to a model.
    """

    run_of: Callable[[RunContext[AgentDepsT]], Awaitable[LedgerRun]]

    @override
    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        tools, run = await super().get_tools(ctx), current_run()
        if run is None or (run.is_open and not run.is_again):
            return tools
        run = await self.run_of(ctx)
        if not run.is_again:
            return tools
        talk = run.opened.share(ThreadTalk)
        await talk.read(run)
        offered = talk.offered.all()
        return tools | {name: self._recorded(name, offered[name]) for name in offered if name not in tools}

    def _recorded(self, name: str, tool: Mapping[str, Any]) -> ToolsetTool[AgentDepsT]:
        schema: dict[str, Any] = tool.get("parameters") or {"type": "object", "properties": {}}
        definition = ToolDefinition(name=name, parameters_json_schema=schema, metadata={METADATA_KEY: {"recorded": True}})
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=_ANYTHING)

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        if current_run() is None or not is_recorded(tool.tool_def):
            try:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except UnrecordedStepError:
                if current_run() is None or not (await self.run_of(ctx)).opened.is_finished:
                    raise  # otherwise the tool was moved into a toolkit since, or out of one
        run = await self.run_of(ctx)
        recorded = await RecordedCall.of(run, name, ctx.tool_call_id)
        if recorded is None and run.opened.is_finished:
            return await _result_in_talk(run, name, ctx.tool_call_id)
        if recorded is None:
            raise ModelRetry(f"Unknown tool name: {name!r}.")
        run.course.next_key(call_key(name, ctx.tool_call_id))  # the program has reached it
        return _returned(recorded.outcome)


async def _result_in_talk(run: LedgerRun, tool: str, call_id: str | None) -> Any:
    """Return the result of a call that the model of a finished run got. A toolkit records its own calls."""
    records = await run.ledger.find(invocation_id=call_id or "", thread_id=run.thread_id)
    messages = [
        row.message for row in records if row.message.lane == "talk" and is_below(row.message.id, run.course.invocation_id)
    ]
    results = [row.payload for row in messages if isinstance(row.payload, OptionResultPayload)]
    if not results:
        raise ModelRetry(f"Unknown tool name: {tool!r}.")
    if results[-1].is_error:
        raise ToolFailed(results[-1].error_message or "")
    return thaw(results[-1].result)


def is_recorded(tool: ToolDefinition) -> bool:
    """Whether a tool does not exist in the program: it only has recorded outcomes."""
    declared: Any = (tool.metadata or {}).get(METADATA_KEY)
    return isinstance(declared, dict) and cast("dict[str, Any]", declared).get("recorded") is True


_ANYTHING: Final = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
_result: TypeAdapter[Any] = TypeAdapter(CallToolResult)


def _returned(outcome: Any) -> Any:
    """Return the result of a tool, or raise its error, from its recorded outcome."""
    if not isinstance(outcome, dict) or "returned" not in outcome:
        return cast("Any", outcome)  # settled by a person
    returned = cast("dict[str, dict[str, Any]]", outcome)["returned"]
    if returned["kind"] == "model_retry":
        raise ModelRetry(returned["message"])
    if returned["kind"] == "tool_failed":
        raise ToolFailed(returned["message"])
    return getattr(_result.validate_python(returned), "result", None)


# ---------------------------------------------------------------- lists of tools


class RecordedLists:
    """The recorded lists of a run, by operation: a list that equals the previous one is stored as a reference."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Json]] = {}
        self._values: dict[str, Json] = {}

    def write(self, name: str, value: Json) -> Json:
        """Return a list in its stored form, in the effect that finds it.

        Raises:
            FailedError: it is too large to be stored. It is not cut, because a partial list is useless.
        """
        before = self._last.get(name)
        if before is not None and before[1] == value:
            return {"same_as": before[0]}
        if is_too_large(value):
            raise FailedError(f"what {name!r} found is too large to be written down", "TOO_LARGE")
        part = current_run()
        assert part is not None  # noqa: S101 (an effect of a run is a part of it)
        effect_id = part.course.invocation_id
        self._last[name] = (effect_id, value)
        self._values[effect_id] = value
        return {"found": value}

    async def read(self, run: LedgerRun, stored: Any) -> Any:
        """Return a list from its stored form."""
        if "found" in stored:
            return stored["found"]
        first = stored["same_as"]
        if first not in self._values:
            records = await run.ledger.find(invocation_id=first, thread_id=run.thread_id)
            rows = [row.message for row in records if row.message.lane == "effect"]
            (payload,) = [row.payload for row in rows if isinstance(row.payload, OptionResultPayload)]
            self._values[first] = thaw(payload.result)["found"]
        return self._values[first]


async def change_since_offered(
    run: LedgerRun, id: object, params: ToolsetCallToolParams | DynamicToolsetCallToolParams
) -> str | None:
    """Return how a server's tool has changed since it was offered; None if its arguments are the same."""
    is_served = isinstance(id, ToolsetCallToolId) and id.toolset_kind == "mcp"
    if not run.is_again or not is_served or not isinstance(params, ToolsetCallToolParams) or params.tool is None:
        return None
    async with params.tool.toolset as toolset:
        tools: dict[str, Any] = await toolset.get_tools(params.ctx)
    now = tools.get(params.name)
    if now is None:
        return f"{params.name!r} is offered no more, and was not called"
    if now.tool_def.parameters_json_schema != params.tool.tool_def.parameters_json_schema:
        return f"{params.name!r} takes other arguments now, and was not called"
    return None
