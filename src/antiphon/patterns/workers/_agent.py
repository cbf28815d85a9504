"""ToolCapableAgent: an agent of Atlas that answers structured messages and uses tools; and three ready-made workers.

Every method exists twice: one blocks, for programs without an event loop, and one, with the prefix `a`, is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any, Final, TypeVar, Unpack

from pydantic_ai.models import Model

from antiphon.agents import Toolkit, current_run, ledger_run
from antiphon.agents.toolkit import ToolSettings
from antiphon.agents.toolkit.atlas import AgentToolkit, Tool
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.errors import WorkFailedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec, Cast, Patience
from antiphon.patterns.workers._conversation import Hear, Reporting
from antiphon.patterns.workers._protocol import WorkerLimits
from antiphon.patterns.workers._responder import Responder, model_or_script
from antiphon.protocol import ErrorCode

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
        hear: Hear | None = None,
    ) -> None:
        """Make it.

        `model` is a model or its name; the default is the model of the environment. Without any, the agent answers with the
        results of the tools that a message calls; if it calls none, the scripted model answers that no language model was
        asked.

        With a `ledger` (or its URL), the work is recorded in the thread with the id of the task, and the same message
        continues where it stopped. `rounds` is the maximum number of model requests; `hear` is called with each STATUS
        report.

        Raises:
            ValueError: the name is invalid.
        """
        self.worker_id, self.specialization = worker_id, specialization
        self.toolkit = toolkit if isinstance(toolkit, AgentToolkit) else AgentToolkit(toolkit)
        self._model, self._ledger, self._patience = model, ledger, patience
        self._rounds, self._reporting, self._hear = rounds, reporting, hear
        told = f"You are {worker_id}. Your specialization: {specialization}."
        self.spec = AgentSpec(name=worker_id, instructions=told)
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
        told = wait_for(self.responder(MemoryLedger()).instructions)
        return "\n\n".join(filter(None, (self.spec.instructions, told)))

    def responder(self, ledger: Ledger) -> Responder:
        """Return the responder of the agent on a ledger."""
        cast = Cast(
            ledger,
            [self.spec],
            model=self._model,
            toolkit=self.toolkit.toolkit,
            patience=self._patience,
            make_model=model_or_script,
        )
        return Responder(cast, self.worker_id, self._rounds, self._reporting, hear=self._hear)

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
            HistoryMismatchError, LedgerError: as in every run.
        """
        try:
            async with self._opened(message) as ledger:
                return await self._processed(message, ledger)
        except _LateError as exc:
            return exc.answer

    async def _processed(self, message: StructuredMessage, ledger: Ledger) -> StructuredMessage:
        answer, _ = await self.responder(ledger).process(message)
        if answer.metadata.get("code") == ErrorCode.TIMEOUT:
            raise _LateError(answer)
        return answer

    @asynccontextmanager
    async def _opened(self, message: StructuredMessage) -> AsyncGenerator[Ledger]:
        run, ledger = current_run(), self._ledger
        async with AsyncExitStack() as stack:
            if run is not None and run.is_open:
                yield run.ledger
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
        """Answer a text with a text.

        Raises:
            WorkFailedError: the answer is an error.
        """
        query = StructuredMessage.create_query(text, "user", self.worker_id)
        answer = await self.aprocess_structured_message(query)
        if answer.message_type == MessageType.ERROR:
            raise WorkFailedError(answer.content)
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
    if not isinstance(task.get("query"), str):
        raise ValueError("a task needs a `query`, which is text")  # noqa: TRY004 (callers catch one class)
    more = {name: value for name, value in task.items() if name not in ("query", "task_id", "tool_calls")}
    made = StructuredMessage.create_task(task["query"], "controller", worker, more, task_id=task.get("task_id"))
    made.tool_calls = task.get("tool_calls") or ()
    return made
