"""The messages between agents as talk in the thread, written and read; and STATUS reports.

The sender of a task records the task and its result, so a task has one result even if its worker fails. Tool calls are
separate rows before a message. A worker that hands on its task answers with that message; the answer of the last worker
answers no task, and is only passed to the caller.

Tools and policies report progress with `report`, within a rate limit. Long work without reports is reported as still running:
after a while, then after twice as long, and so on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects import decode, encode
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.durable import current_run
from antiphon.errors import DecodeError, HistoryMismatchError, RefusedError
from antiphon.ledger import STANDARD_REDACTION, Ledger
from antiphon.ledger._unopened import check_opened
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.patterns.workers._schedule import due_at
from antiphon.protocol import ErrorCode

# ---------------------------------------------------------------- messages


DIALECT: Final = "atlas"

_OF_ROW: Final = ("message_id", "timestamp")
"""The fields that the row itself has."""
_TOOL_USE: Final = (MessageType.TOOL_REQUEST, MessageType.TOOL_RESPONSE)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
TOOLS: Final = "tools"
"""The name of the tool runner in messages of agents."""
HAND_ON: Final = "hand-on"
"""The key of a task that a worker hands on."""
_LINKS: Final = ("in_reply_to", "in_reply_to_message")


def rows_of(message: StructuredMessage, *, is_answer: bool = True) -> list[Message]:
    """Return a message as rows of a thread; a message that is not an answer is a notice.

    Secrets are already removed here, independent of the ledger: in a message between agents, the names of its keys mark
    secrets, and a dialect may write them in another form.
    """
    omitted: tuple[str, ...] = _OF_ROW if message.message_type in _TOOL_USE else (*_OF_ROW, "tool_calls", "tool_results")
    if message.message_type == MessageType.TOOL_RESPONSE and message.has_tool_calls:
        omitted = (*_OF_ROW, "tool_calls")  # the request has recorded them
    fields = message.to_dict(redact=STANDARD_REDACTION.value)
    unit = {name: value for name, value in fields.items() if name not in omitted}
    links = _LINKS[1:] if is_answer else _LINKS
    unit["metadata"] = {name: value for name, value in unit["metadata"].items() if name not in links}
    return list(decode([unit], DIALECT))


def check(message: StructuredMessage) -> None:
    """Check that a message and its tool calls can be stored in a thread."""
    calls = [call["id"] for call in message.tool_calls]
    route: Any = message.metadata.get("route", [])
    twice = next((call_id for call_id in calls if calls.count(call_id) > 1), None)
    problem = None if twice is None else f"two tool calls have the id {twice!r}; give each its own"
    names = cast("list[Any]", route) if isinstance(route, list) else [route]
    if names is not route or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        problem = f"metadata.route: a list of names of workers is expected, not {route!r}"
    if message.message_type == MessageType.TOOL_REQUEST and not message.has_tool_calls:
        problem = "tool_calls: a tool_request needs at least one"
    try:
        due_at(message)
        decode([message.to_dict()], DIALECT)
    except (DecodeError, ValueError) as exc:
        problem = str(exc)
    if problem is not None:
        raise RefusedError(problem, ErrorCode.VALIDATION_ERROR)


async def say(message: StructuredMessage, key: str, *, is_answer: bool = True) -> None:
    """Record a message in the thread of the run once, even if the program runs again; outside a run, do nothing."""
    run = current_run()
    if run is not None:
        for row in rows_of(message, is_answer=is_answer):
            await run.say(row, key=key)


async def say_now(message: StructuredMessage) -> None:
    """Record a progress report. A program that runs again may report other progress, which is also recorded."""
    run = current_run()
    if run is None:
        return
    fields: dict[str, Any] = {"thread_id": run.thread_id, "parent_id": run.course.invocation_id, "created_at": None}
    rows = [row.model_copy(update={**fields, "id": current_port().new_id()}) for row in rows_of(message)]
    with suppress(HistoryMismatchError):  # the run is finished and only replayed: there is no progress
        await run.journal.write(run.thread_id, rows, allow_foreign=True)


async def conversation(ledger: Ledger, thread_id: str, *, tools: bool = False, reports: bool = False) -> Conversation:
    """Return the messages between the agents of a thread.

    With `tools`, also their tool calls and results; with `reports`, also their progress reports.
    """
    check_opened(ledger)
    rows = [record.message async for record in ledger.read(thread_id) if record.message.lane == "talk"]
    return Conversation([row for row in rows if is_between_agents(row, reports=reports) or (tools and row.kind != "parts")])


def is_between_agents(message: Message, *, reports: bool = True) -> bool:
    """Whether a message is between agents, and not between an agent and its model."""
    notes: Any = message.metadata.get(DIALECT)
    if message.lane != "talk" or notes is None or notes.get("tool"):
        return False
    return reports or notes.get("type") != MessageType.STATUS


def structured(messages: Conversation) -> list[StructuredMessage]:
    """Return a conversation as structured messages."""
    units: Any = encode(messages, DIALECT).value
    return [StructuredMessage.from_dict(unit) for unit in units]


# ---------------------------------------------------------------- tools


def is_tool_use(message: Message, agents: Collection[str], except_for: str) -> bool:
    """Whether a row is a tool call of these agents, or its result; the tool `except_for` does not count."""
    payload = message.payload
    if message.lane != "talk" or not isinstance(payload, OptionCallPayload | OptionResultPayload):
        return False
    if payload.option_name == except_for:
        return False
    notes: Any = message.metadata.get(DIALECT)
    return bool(notes.get("tool")) if notes is not None else _asked_by(message.correlation_id or "")[0] in agents


def ended_fields(call: Message) -> dict[str, Any]:
    """Return the fields of the result that closes an open call: of a tool, or of a task."""
    notes: Any = call.metadata.get(DIALECT)
    if notes is not None and not notes.get("tool"):
        return {"metadata": {DIALECT: {"type": MessageType.ERROR.value}}}
    metadata = {DIALECT: {"type": MessageType.TOOL_RESPONSE.value, "tool": True}}
    return {"metadata": metadata, "to": (call.policy,), "correlation_id": call.correlation_id}


def sent(messages: Conversation, thread_id: str) -> list[StructuredMessage]:
    """Return a conversation as structured messages, with tool calls as `tool_request` and results as `tool_response`."""
    structured_messages = structured(messages)
    for message in structured_messages:
        if message.message_type in _TOOL_USE and None in (message.source_agent, message.target_agent):
            _address(message, thread_id)
    return structured_messages


def _address(message: StructuredMessage, thread_id: str) -> None:
    """Add the agent and the task to a tool message. The row of a model's call has them only in its exchange id."""
    agent, task_id = _asked_by(message.task_id)
    if agent:
        message.task_id = f"{thread_id}:{task_id}" if task_id else thread_id
    if message.message_type == MessageType.TOOL_REQUEST:
        message.target_agent = message.target_agent or TOOLS
    else:
        message.source_agent, message.target_agent = TOOLS, message.target_agent or message.source_agent or agent


def _asked_by(exchange: str) -> tuple[str, str]:
    """Return the agent of an exchange with a model, and the key of its task: `QUERY/TASK/AGENT/model=2`."""
    *course, agent, model = exchange.rsplit("/", 2) if exchange.count("/") > 1 else ("", "", "")
    if model.partition("=")[0] != "model":
        return "", ""
    steps = [step for step in course[0].split("/")[1:] if step != HAND_ON]
    return agent.partition("=")[0], steps[-1] if steps else ""


# ---------------------------------------------------------------- reports


OnReport: TypeAlias = Callable[[StructuredMessage], None]
"""A function that is called with each STATUS report."""

_reports: ContextVar[Reports | None] = ContextVar("antiphon.patterns.workers.reports", default=None)


class Reporting(BaseModel):
    """The rate of progress reports."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: float = Field(default=10.0, gt=0)
    """Seconds without a report after which work is reported as running; then twice as many, and so on."""
    most: int = Field(default=20, ge=0)
    """The maximum number of reports for one task; more are dropped."""


def report(text: str) -> None:
    """Report the progress of the current work, from a tool or a policy; elsewhere this does nothing."""
    reports = _reports.get()
    if reports is not None:
        reports.add(text)


def reports_of(
    message: StructuredMessage, worker: str, reporting: Reporting, on_report: OnReport | None = None
) -> AbstractAsyncContextManager[object]:
    """Return the block for work on a message; nested work reports as part of the outer work."""
    return Reports(message, worker, reporting, on_report) if _reports.get() is None else nullcontext()


class Reports:
    """An `async with` block around work that reports progress."""

    def __init__(
        self, message: StructuredMessage, worker: str, reporting: Reporting, on_report: OnReport | None = None
    ) -> None:
        self._message, self._worker, self._reporting, self._on_report = message, worker, reporting, on_report
        self._texts: asyncio.Queue[str | None] = asyncio.Queue(reporting.most + 1)
        self._reports_left = reporting.most

    def add(self, text: str) -> None:
        """Add a report; synchronous tools call this from another OS thread."""

        def put() -> None:
            if self._reports_left:
                self._reports_left -= 1
                self._texts.put_nowait(text)

        self._loop.call_soon_threadsafe(put)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._reporter = self._loop.create_task(self._report())
        self._token = _reports.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _reports.reset(self._token)
        try:
            if error is None:
                await asyncio.sleep(0)  # lets reports from other OS threads arrive
                self._reports_left = 0
                self._texts.put_nowait(None)
                await self._reporter
        finally:
            self._reporter.cancel()
            await asyncio.gather(self._reporter, return_exceptions=True)

    async def _report(self) -> None:
        silence, began = self._reporting.after, self._loop.time()
        while (text := await self._next(silence)) is not None:
            if not text:
                text, silence = f"at work for {self._loop.time() - began:.0f} seconds", silence * 2
            status = StructuredMessage.create_status(text, self._message, source_agent=self._worker)
            await say_now(status)
            if self._on_report is not None:
                self._on_report(status)

    async def _next(self, silence: float) -> str | None:
        """Return the next report; empty: there was none in this time; None: the work has ended."""
        try:
            async with asyncio.timeout(silence if self._reports_left else None):
                return await self._texts.get()
        except TimeoutError:
            self._reports_left -= 1
            return ""
