"""What agents say to each other, as talk in the thread; and the thread read back as what they said.

Whoever gives a task says it, and says what came of it, so a task has one result whatever happens to its worker. Tool calls
are not said with a message: they stand in the thread before it, as calls and results of their own. What a worker hands
on to another is the answer to its task; what the last one says is no answer to that, but told to whoever waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final, cast

from antiphon.agents import current_run
from antiphon.dialects import decode, encode
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.errors import DecodeError, HistoryMismatchError, RefusedError
from antiphon.ledger import STANDARD_REDACTION, Ledger
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.patterns.workers._schedule import due_at
from antiphon.protocol import ErrorCode

__all__ = [
    "DIALECT",
    "HAND_ON",
    "TOOLS",
    "check",
    "conversation",
    "ended_fields",
    "is_said",
    "is_tool_use",
    "rows_of",
    "say",
    "say_now",
    "sent",
    "structured",
]

DIALECT: Final = "atlas"

_OF_ROW: Final = ("message_id", "timestamp")
"""What the row itself says."""
_TOOL_USE: Final = (MessageType.TOOL_REQUEST, MessageType.TOOL_RESPONSE)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
TOOLS: Final = "tools"
"""Who runs tools, in what agents say about it."""
HAND_ON: Final = "hand-on"
"""The key under which a worker hands a task on."""
_LINKS: Final = ("in_reply_to", "in_reply_to_message")


def rows_of(message: StructuredMessage, *, is_answer: bool = True) -> list[Message]:
    """Return a message as rows of a thread; one that is no answer is only told.

    What must not be written down is taken out here already, whatever the ledger does: a message between agents says where
    a secret is by the names of its keys, which a dialect may write otherwise.
    """
    left: tuple[str, ...] = _OF_ROW if message.message_type in _TOOL_USE else (*_OF_ROW, "tool_calls", "tool_results")
    if message.message_type == MessageType.TOOL_RESPONSE and message.has_tool_calls:
        left = (*_OF_ROW, "tool_calls")  # the request has said them
    whole = message.to_dict(redact=STANDARD_REDACTION.value)
    data = {name: value for name, value in whole.items() if name not in left}
    left_out = _LINKS[1:] if is_answer else _LINKS
    data["metadata"] = {name: value for name, value in data["metadata"].items() if name not in left_out}
    return list(decode([data], DIALECT))


def check(message: StructuredMessage) -> None:
    """See to it that a message, and what it asks for, can be said in a thread.

    Raises:
        RefusedError: it cannot; the text says where and why.
    """
    calls = [call["id"] for call in message.tool_calls]
    route: Any = message.metadata.get("route", [])
    twice = next((each for each in calls if calls.count(each) > 1), None)
    problem = None if twice is None else f"two tool calls have the id {twice!r}; give each its own"
    names = cast("list[Any]", route) if isinstance(route, list) else [route]
    if names is not route or not all(isinstance(each, str) and _NAME.fullmatch(each) for each in names):
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
    """Say a message in the thread of the run; when the program runs again, not twice. Outside of a run, nothing.

    Raises:
        HistoryMismatchError: the program said something else here the last time it ran.
        LedgerError: it could not be written down.
    """
    run = current_run()
    if run is not None:
        for row in rows_of(message, is_answer=is_answer):
            await run.say(row, key=key)


async def say_now(message: StructuredMessage) -> None:
    """Say how far something has come. A program that runs again may have come another way, and says that too.

    Raises:
        LedgerError: it could not be written down.
    """
    run = current_run()
    if run is None:
        return
    own: dict[str, Any] = {"thread_id": run.thread_id, "parent_id": run.course.invocation_id, "created_at": None}
    rows = [row.model_copy(update={**own, "id": current_port().new_id()}) for row in rows_of(message)]
    with suppress(HistoryMismatchError):  # the run is finished, and gives back what is recorded: nothing is at work
        await run.journal.write(run.thread_id, rows, allow_foreign=True)


async def conversation(ledger: Ledger, thread_id: str, *, tools: bool = False, reports: bool = False) -> Conversation:
    """Return what the agents of a thread have said to each other.

    With `tools`, also what they called and got; with `reports`, also how far they said that they had come.

    Raises:
        LedgerError: it cannot be read.
    """
    rows = [record.message async for record in ledger.read(thread_id) if record.message.lane == "talk"]
    return Conversation([row for row in rows if is_said(row, reports=reports) or (tools and row.kind != "parts")])


def is_said(message: Message, *, reports: bool = True) -> bool:
    """Whether agents say it to each other; what they say to their models, and these to them, is not."""
    notes: Any = message.metadata.get(DIALECT)
    if message.lane != "talk" or notes is None or notes.get("tool"):
        return False
    return reports or notes.get("type") != MessageType.STATUS


def structured(messages: Conversation) -> list[StructuredMessage]:
    """Return a conversation as structured messages."""
    written: Any = encode(messages, DIALECT).value
    return [StructuredMessage.from_dict(unit) for unit in written]


# ---------------------------------------------------------------- tools


def is_tool_use(message: Message, agents: Collection[str], besides: str) -> bool:
    """Whether a row is the call of a tool by one of these agents, or its result; `besides` is a tool that does not count."""
    payload = message.payload
    if message.lane != "talk" or not isinstance(payload, OptionCallPayload | OptionResultPayload):
        return False
    if payload.option_name == besides:
        return False
    notes: Any = message.metadata.get(DIALECT)
    return bool(notes.get("tool")) if notes is not None else _asked_by(message.correlation_id or "")[0] in agents


def ended_fields(call: Message) -> dict[str, Any]:
    """Return how the result is written that ends an open call: as what a tool answers, or as the error of a task."""
    notes: Any = call.metadata.get(DIALECT)
    if notes is not None and not notes.get("tool"):
        return {"metadata": {DIALECT: {"type": MessageType.ERROR.value}}}
    noted = {"type": MessageType.TOOL_RESPONSE.value, "tool": True}
    return {"metadata": {DIALECT: noted}, "to": (call.policy,), "correlation_id": call.correlation_id}


def sent(messages: Conversation, thread_id: str) -> list[StructuredMessage]:
    """Return a conversation as structured messages, in which tools are asked by `tool_request` and answer an agent."""
    written = structured(messages)
    for message in written:
        if message.message_type in _TOOL_USE and None in (message.source_agent, message.target_agent):
            _address(message, thread_id)
    return written


def _address(message: StructuredMessage, thread_id: str) -> None:
    """Say who asks tools or is answered by them, and in which task. What a model calls, its row says by the exchange alone."""
    agent, task_id = _asked_by(message.task_id)
    if agent:
        message.task_id = f"{thread_id}:{task_id}" if task_id else thread_id
    if message.message_type == MessageType.TOOL_REQUEST:
        message.target_agent = message.target_agent or TOOLS
    else:
        message.source_agent, message.target_agent = TOOLS, message.target_agent or message.source_agent or agent


def _asked_by(exchange: str) -> tuple[str, str]:
    """Return the agent whose model an exchange is with, and the key of its task: `QUERY/TASK/AGENT/model=2`."""
    *course, agent, model = exchange.rsplit("/", 2) if exchange.count("/") > 1 else ("", "", "")
    if model.partition("=")[0] != "model":
        return "", ""
    steps = [each for each in course[0].split("/")[1:] if each != HAND_ON]
    return agent.partition("=")[0], steps[-1] if steps else ""
