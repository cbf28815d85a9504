"""ToolCapableAgent: an agent of Atlas that answers structured messages and uses tools; and three ready-made workers.

Every method exists twice: one blocks, for programs without an event loop, and one, with the prefix `a`, is awaited.

`Responder` answers a message for an agent. The calls in the message run first, in order. Then the model gets their results,
and its own calls run, for a limited number of rounds. The answer has all calls and results, each result with the id of its
call. A failure becomes an ERROR message; an error is raised only if a person must decide, or the ledger fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from contextvars import Context
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final, TypeVar, Unpack, cast

from pydantic_ai import capture_run_messages
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_core import to_jsonable_python

from antiphon._listeners import listener
from antiphon.agents._guards import SENSITIVE
from antiphon.agents.models import ScriptedModel
from antiphon.agents.models import model as named_model
from antiphon.agents.toolkit import Toolkit, ToolkitTool, ToolSettings
from antiphon.agents.toolkit._atlas import AgentToolkit, Tool
from antiphon.agents.toolkit._taint import Taint, current_taint, taint_scope
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.durable import current_run, ledger_run
from antiphon.errors import AntiphonError, BudgetExceededError, RefusedError, UnknownModelError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import thaw
from antiphon.messages._arguments import check_type
from antiphon.patterns.cast import AgentSpec, Answer, Cast, Patience
from antiphon.patterns.cast._cast import tool_uses
from antiphon.patterns.cast._pattern import ThreadHistory, json_text
from antiphon.patterns.workers._conversation import TOOLS, OnReport, Reporting, check, reports_of, say
from antiphon.patterns.workers._schedule import Ticket, WorkerLimits, within_deadline
from antiphon.protocol import ErrorCode

# ---------------------------------------------------------------- the responder

_OF_TASKS: Final = (MessageType.TASK, MessageType.RESULT)
_ENVELOPE: Final = frozenset({"type", "in_reply_to", "in_reply_to_message", "reply_to", "route", "code"})
"""Metadata about the message itself, not about its task."""
_NO_TOOLS: Final[Mapping[str, ToolkitTool]] = MappingProxyType({})


class Responder:
    """An agent of a cast that answers structured messages."""

    def __init__(
        self,
        cast: Cast,
        name: str,
        rounds: int,
        reporting: Reporting,
        *,
        on_report: OnReport | None = None,
    ) -> None:
        self.cast, self.name = cast, name
        self._rounds, self._reporting, self._on_report = rounds, reporting, listener(on_report)

    async def process(
        self,
        message: StructuredMessage,
        untrusted: str | None,
        *,
        is_recorded: bool = False,
        ticket: Ticket | None = None,
        history: ThreadHistory | None = None,
    ) -> tuple[StructuredMessage, str | None]:
        """Answer a message; return the answer, and the source of untrusted content that was read for it, if any.

        `untrusted` is the source of such content that the sender has read. With `is_recorded`, the caller records the message
        and its answer in the thread. The work starts when the `ticket` has a slot. The model reads the `history` first.
        """
        answer = answer_to(message, self.name)
        with taint_scope(Taint(current_taint())) as taint:
            taint.mark(untrusted)
            taint.mark(None if history is None else history.untrusted)
            try:
                check(message)
                # Reports start with the slot: a waiting task does not run.
                reports = reports_of(message, self.name, self._reporting, self._on_report)
                async with _deadline_of(message), ticket or nullcontext(), reports:
                    await self._work(message, answer, is_recorded=is_recorded, history=history)
            except (RefusedError, BudgetExceededError) as exc:
                if isinstance(exc, BudgetExceededError) and exc.limit is not None:
                    raise  # it continues with a new budget
                answer = error_to(message, self.name, exc, of=answer)
        return answer, taint.untrusted

    async def _work(
        self, message: StructuredMessage, answer: StructuredMessage, *, is_recorded: bool, history: ThreadHistory | None
    ) -> None:
        """Run the tool calls of a message. For a tool request that is the answer; other messages are answered by the model."""
        if message.has_tool_calls:
            # A tool request and its answer already record the calls.
            await self._run_calls(message, answer, is_recorded=is_recorded and is_tool_request(message))
        if is_tool_request(message):
            answer.content = _results_text(answer.tool_results)
        else:
            await self._think(message, answer, history)

    async def instructions(self) -> str | None:
        """Return the description of the tools that it may use now; empty without tools."""
        lines = [f"- {tool.name}: {tool.description or ''}" for tool in (await self.tools()).values()]
        return "\n".join(["## Available Tools", *lines]) if lines else None

    async def tools(self) -> Mapping[str, ToolkitTool]:
        """Return the tools that it may use now."""
        toolkit = self.cast.toolkit
        async with await toolkit.connect():
            return await toolkit.tools_of(self.name)

    # ------------------------------------------------------------ the calls of the message

    async def _run_calls(self, message: StructuredMessage, answer: StructuredMessage, *, is_recorded: bool) -> None:
        shown_calls = without_sensitive(message.tool_calls, await self.tools())
        agent, task_id = self.name, message.task_id
        if not is_recorded:
            request = StructuredMessage.create_tool_request(
                tool_calls=shown_calls, source_agent=agent, target_agent=TOOLS, task_id=task_id
            )
            await say(request, "calls")
        for call, shown_call in zip(message.tool_calls, shown_calls, strict=True):
            payload = await self.cast.toolkit.call(agent, call["name"], call["arguments"], invocation_id=call["id"])
            answer.add_tool_call(call["name"], shown_call["arguments"], call["id"])
            if payload.is_error:
                error = f"{payload.error_type}: {payload.error_message}"
                answer.add_tool_result(call["name"], None, call["id"], status="error", error=error)
            else:
                answer.add_tool_result(call["name"], thaw(payload.result), call["id"], status="success")
        if not is_recorded:
            response = StructuredMessage.create_tool_response(
                tool_results=answer.tool_results, source_agent=agent, task_id=task_id
            )
            await say(response, "results")

    # ------------------------------------------------------------ the model

    async def _think(self, message: StructuredMessage, answer: StructuredMessage, history: ThreadHistory | None) -> None:
        """Ask the model; without one, answer with the results of the tools."""
        if answer.has_tool_results and not self._has_model():
            answer.content = _results_text(answer.tool_results)
            return
        tools, instructions = await self.tools(), await self.instructions()
        with capture_run_messages() as messages:
            try:
                model_answer: Answer[str] = await self.cast.ask(
                    self.name,
                    _prompt(message, answer),
                    history=(history or ThreadHistory()).quoted(self.name),
                    instructions=instructions,
                    requests=self._rounds,
                )
            except RefusedError:
                _add_calls(answer, messages, tools)
                raise
        answer.content = model_answer.output
        _add_calls(answer, model_answer.run.new_messages(), tools)

    def _has_model(self) -> bool:
        try:
            model = self.cast.model(self.cast.spec(self.name).model)
        except UnknownModelError as exc:
            return bool(exc.model)
        except AntiphonError:
            return True  # the model exists but cannot be loaded: a request raises the reason
        return not isinstance(model.wrapped, NoModel)


class NoModel(ScriptedModel):
    """The model if none is named: its scripted answer is that no language model was asked."""


def model_or_script(name: str | None) -> Model:
    """Return a model by name, or the model of the environment; without any, the scripted model."""
    try:
        return named_model(name)
    except UnknownModelError as exc:
        if exc.model:
            raise
        return NoModel()


def _deadline_of(message: StructuredMessage) -> AbstractAsyncContextManager[None]:
    """Return the block that ends at the deadline of a message. Recorded work has no deadline: it is only read."""
    run = current_run()
    is_done = run is not None and run.is_open and run.opened.is_finished
    return nullcontext() if is_done else within_deadline(message)


# ---------------------------------------------------------------- answers


def answer_to(message: StructuredMessage, name: str, content: str = "") -> StructuredMessage:
    """Return the answer of an agent: to a task its result, to a tool request a tool response, else a response."""
    if is_tool_request(message):
        return StructuredMessage.create_tool_response(content, message, source_agent=name)
    create = StructuredMessage.create_response
    if message.message_type in _OF_TASKS:
        create = StructuredMessage.create_result
    return create(content, message, source_agent=name)


def is_tool_request(message: StructuredMessage) -> bool:
    """Whether a message only calls tools: by its type, or because it has no type and no text."""
    return message.message_type == MessageType.TOOL_REQUEST and ("type" in message.metadata or not message.content)


def error_to(
    message: StructuredMessage, name: str, error: RefusedError | Exception, *, of: StructuredMessage | None = None
) -> StructuredMessage:
    """Return the error that answers a message, with its code; `of` is the answer that it replaces."""
    code, reason = getattr(error, "code", type(error).__name__), getattr(error, "reason", str(error))
    message = StructuredMessage.create_error(reason, message, source_agent=name, metadata={"code": code})
    if of is not None:
        message.tool_calls, message.tool_results = of.tool_calls, of.tool_results
    return message


def without_sensitive(calls: Iterable[dict[str, Any]], tools: Mapping[str, ToolkitTool]) -> list[dict[str, Any]]:
    """Return the calls of a message without sensitive arguments."""
    return [{**call, "arguments": _shown(call["arguments"], tools.get(call["name"]))} for call in calls]


def _shown(arguments: dict[str, Any], tool: ToolkitTool | None) -> dict[str, Any]:
    sensitive = () if tool is None else tool.sensitive
    return {name: SENSITIVE if name in sensitive else value for name, value in arguments.items()}


def _add_calls(
    answer: StructuredMessage, messages: Sequence[ModelMessage], tools: Mapping[str, ToolkitTool] = _NO_TOOLS
) -> None:
    """Add the calls of a model and their results to an answer, in order; an id that the answer has already is changed."""
    taken = {call["id"] for call in answer.tool_calls}
    for call, result in tool_uses(messages):
        numbered = (f"{call.tool_call_id}@{number}" for number in count(2))
        call_id = next(name for name in chain((call.tool_call_id,), numbered) if name not in taken)
        taken.add(call_id)
        answer.add_tool_call(call.tool_name, _shown(call.args_as_dict(), tools.get(call.tool_name)), call_id)
        if result is not None and result.outcome == "success":
            content = to_jsonable_python(result.content, fallback=str)
            answer.add_tool_result(call.tool_name, content, call_id, status="success")
        elif result is not None:
            error = result.model_response_str(wrap_if_error=False) or result.outcome
            answer.add_tool_result(call.tool_name, None, call_id, status="error", error=error)


# ---------------------------------------------------------------- prompts


def _prompt(message: StructuredMessage, answer: StructuredMessage) -> str:
    """Return the prompt: the text of a message, its metadata about the task (such as the priority), and results of tools."""
    sections = [message.content] if message.content else []
    lines = [f"- {name}: {json_text(value)}" for name, value in message.metadata.items() if name not in _ENVELOPE]
    if lines:
        sections.append("\n".join(["Given with it:", *lines]))
    if results := [*message.tool_results, *answer.tool_results]:
        sections.append(f"What the tools gave:\n{_results_text(results)}")
    return "\n\n".join(sections)


def _results_text(results: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"- {result['name']}: {result['error'] if result['status'] == 'error' else json_text(result['result'])}"
        for result in results
    )


# ---------------------------------------------------------------- ready-made workers

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


# ---------------------------------------------------------------- waiting without an event loop

ResultT = TypeVar("ResultT")


def wait_for(work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run a coroutine in a new event loop, and wait for it; this also works in a running loop, which is blocked meanwhile.

    It starts with an empty context: an enclosing run belongs to another loop, and must not be used here.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return Context().run(_run, work)
    with ThreadPoolExecutor(1, thread_name_prefix="antiphon-worker") as pool:
        return pool.submit(Context().run, _run, work).result()


def _run(work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    return asyncio.run(work())


# ---------------------------------------------------------------- the agent


class _LateError(Exception):
    """The deadline has passed. The run stays open, because the outcome of a stopped tool is unknown."""

    def __init__(self, answer: StructuredMessage) -> None:
        super().__init__(answer.content)
        self.answer = answer


class ToolCapableAgent:
    """An agent with a name, a specialization, and permissions in a toolkit."""

    def __init__(
        self,
        worker_id: str,
        specialization: str,
        toolkit: AgentToolkit | Toolkit | None = None,
        *,
        model: Model | str | None = None,
        ledger: Ledger | str | None = None,
        rounds: int = WorkerLimits().rounds,
        patience: Patience = Patience(),  # noqa: B008 (frozen)
        reporting: Reporting = Reporting(),  # noqa: B008 (frozen)
        on_report: OnReport | None = None,
    ) -> None:
        """Make it.

        `model` is a model or its name; the default is the model of the environment. Without any, the agent answers with the
        results of the tools that a message calls; if it calls none, the scripted model answers that no language model was
        asked.

        With a `ledger` (or its URL), the work is recorded in the thread with the id of the task, and the same message
        continues where it stopped. `rounds` is the maximum number of model requests; `on_report` is called with each STATUS
        report.

        Raises:
            ValueError: the name is invalid.
        """
        self.worker_id, self.specialization = worker_id, specialization
        self.toolkit = toolkit if isinstance(toolkit, AgentToolkit) else AgentToolkit(toolkit)
        self._model, self._ledger, self._patience = model, ledger, patience
        self._rounds, self._reporting, self._on_report = rounds, reporting, listener(on_report)
        instructions = f"You are {worker_id}. Your specialization: {specialization}."
        self.spec = AgentSpec(name=worker_id, instructions=instructions)
        """Its configuration, for a cast."""

    def register_tool(self, tool: Tool | Callable[..., Any], **settings: Unpack[ToolSettings]) -> str:
        """Add a tool to the toolkit, and grant it to this agent.

        Raises:
            ValueError: the toolkit has a tool with this name.
        """
        name = self.toolkit.register_tool(tool, **settings)
        self.toolkit.grant_permission(self.worker_id, name)
        return name

    @property
    def system_prompt(self) -> str:
        """The instructions of the agent, with the tools that it may use now."""
        tools = wait_for(self.responder(MemoryLedger()).instructions)
        return "\n\n".join(filter(None, (self.spec.instructions, tools)))

    def responder(self, ledger: Ledger) -> Responder:
        """Return the responder of the agent on a ledger."""
        cast = Cast(
            ledger,
            [self.spec],
            model=self._model,
            toolkit=self.toolkit.toolkit,
            patience=self._patience,
            make_model=model_or_script,
        ).closing_models(except_for=self._model)
        return Responder(cast, self.worker_id, self._rounds, self._reporting, on_report=self._on_report)

    # ------------------------------------------------------------ structured messages

    def process_structured_message(self, message: StructuredMessage) -> StructuredMessage:
        """Answer a message; blocks. See `aprocess_structured_message`."""
        return wait_for(lambda: self.aprocess_structured_message(message))

    async def aprocess_structured_message(self, message: StructuredMessage) -> StructuredMessage:
        """Answer a message. Its tool calls are run first, then the model is asked, and the tool calls of the model are run.

        A TOOL_REQUEST is answered by a TOOL_RESPONSE, without a model. Work stops at the `deadline` of the message. The
        answer has all calls and results. A tool that fails, or is not permitted, is a result with an error; if the model
        does not answer, the answer is an ERROR message. Inside a `ledger_run`, the work is part of that run.

        Raises:
            ParkedError: a person must settle or approve something; then pass the same message again.
        """
        check_type("a message", message, StructuredMessage, 'StructuredMessage(content="Hello")')
        try:
            async with self._opened(message) as ledger:
                return await self._processed(message, ledger)
        except _LateError as exc:
            return exc.answer

    async def _processed(self, message: StructuredMessage, ledger: Ledger) -> StructuredMessage:
        responder = self.responder(ledger)
        try:
            answer, _ = await responder.process(message, None)
        finally:
            await responder.cast.close()
        if answer.metadata.get("code") == ErrorCode.TIMEOUT:
            raise _LateError(answer)
        return answer

    @asynccontextmanager
    async def _opened(self, message: StructuredMessage) -> AsyncGenerator[Ledger]:
        run, ledger = current_run(), self._ledger
        async with AsyncExitStack() as stack:
            if run is not None and run.is_open:
                yield cast("Ledger", run.ledger)  # a tool that searches needs more than `Owners`, and says so
                return
            if isinstance(ledger, str):
                ledger = await stack.enter_async_context(open_ledger(ledger))
            if ledger is not None:
                await stack.enter_async_context(ledger_run(message.task_id, id=message.message_id, ledger=ledger))
            yield ledger or MemoryLedger()

    # ------------------------------------------------------------ text and dicts instead of structured messages

    def process_message(self, text: str) -> str:
        """Answer a text; blocks. See `aprocess_message`."""
        return wait_for(lambda: self.aprocess_message(text))

    async def aprocess_message(self, text: str) -> str:
        """Answer a text with a text."""
        query = StructuredMessage.create_query(text, "user", self.worker_id)
        answer = await self.aprocess_structured_message(query)
        if answer.message_type == MessageType.ERROR:
            raise RefusedError(answer.content, "AGENT_ERROR")
        return answer.content

    def process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a task; blocks. See `aprocess_task`."""
        return wait_for(lambda: self.aprocess_task(task))

    async def aprocess_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a task: a dict with a `query`, and optionally a `task_id`, `tool_calls` and other data.

        The result has `worker_id`, `task_id`, `status` (`completed` or `error`), `result`, `tool_results`, and `error`.
        """
        try:
            message = _task_message(task, self.worker_id)
        except ValueError as exc:
            return {"worker_id": self.worker_id, "task_id": task.get("task_id"), "status": "error", "error": str(exc)}
        answer = await self.aprocess_structured_message(message)
        done = {"worker_id": self.worker_id, "task_id": answer.task_id, "tool_results": answer.tool_results}
        if answer.message_type == MessageType.ERROR:
            return {**done, "status": "error", "result": None, "error": answer.content}
        return {**done, "status": "completed", "result": answer.content}


def _task_message(task: Mapping[str, Any], worker: str) -> StructuredMessage:
    check_type("a task", task, Mapping, '{"query": "What is new?"}')
    if not isinstance(task.get("query"), str):
        raise ValueError("a task needs a `query`, which is text")  # noqa: TRY004 (callers catch one class)
    task_data = {name: value for name, value in task.items() if name not in ("query", "task_id", "tool_calls")}
    message = StructuredMessage.create_task(task["query"], "controller", worker, task_data, task_id=task.get("task_id"))
    message.tool_calls = task.get("tool_calls") or ()
    return message
