"""The task of a pattern: a text, a message, or a conversation that began elsewhere and continues here.

A conversation is split into the *request*, which is its last message if a user wrote it, and the *history* before it.
`TaskInput.hand_over` writes both to the thread before any agent is asked. The ledger stores them like all messages from
outside: as talk that triggers nothing. A call that is open in them gets an error result and is never executed.

An agent then reads the thread's history: the talk that no call of the thread has produced. Messages that were imported into
a thread are history too, so a text is enough to continue an imported thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, TypeAlias, cast

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, UserContent, UserPromptPart

from antiphon.dialects import decode, encode
from antiphon.ledger import Ledger, Record, is_foreign
from antiphon.messages import (
    Conversation,
    DataPart,
    JsonObject,
    MediaPart,
    Message,
    OptionCallPayload,
    PartsPayload,
    TextPart,
    dumps,
)
from antiphon.messages.keys import parent_of
from antiphon.runtime import System

Task: TypeAlias = str | Message | Conversation
"""The input of `run`."""
MessageHistory: TypeAlias = Iterable[Message] | Sequence[ModelMessage]
"""Earlier messages: of the core, or of Pydantic AI."""

GO_ON: Final = "Go on."
"""The request if a conversation does not end with one."""
ATTACHED: Final = "See the attached message."
"""The text of a request that has none."""
_DIALECT: Final = "pydantic-ai"
_SHOWN: Final = (TextPart, DataPart, MediaPart)


# ---------------------------------------------------------------- the request


@dataclass(frozen=True, slots=True)
class TaskInput:
    """A task, split into the request and the history before it."""

    text: str
    """The text of the request."""
    message: Message | None = None
    """The request, if it is more than text."""
    history: tuple[Message, ...] = ()

    @classmethod
    def of(cls, task: Task, message_history: MessageHistory = ()) -> TaskInput:
        """Read a task.

        Raises:
            ValueError: the conversation is empty.
            DecodeError: the history is not a history of Pydantic AI.
        """
        before = as_messages(message_history)
        if isinstance(task, str):
            return cls(task, None, before)
        said = (*before, *((task,) if isinstance(task, Message) else task))
        if not said:
            raise ValueError("the conversation is empty: give it at least one message")
        *earlier, last = said
        if not _is_request(last):
            return cls(GO_ON, None, said)
        text = "\n".join(part.text for part in last.parts if isinstance(part, TextPart))
        return cls(text or ATTACHED, None if _is_plain(last) else last, tuple(earlier))

    @property
    def identity(self) -> tuple[str, ...]:
        """The identity of the task; it does not depend on the ids of the messages."""
        said = [*self.history, *(() if self.message is None else (self.message,))]
        bare = {"id": "-", "thread_id": None, "created_at": None}
        digests = (sha256(dumps(each.model_copy(update=bare))).hexdigest() for each in said)
        return (self.text, *digests)

    async def hand_over(self, system: System, thread_id: str, request_id: str) -> str | None:
        """Write the history, and a request that is more than text, to the thread; return the id of the request there.

        If the thread already has the request `request_id`, nothing is written: the task continues.

        Raises:
            LedgerError: it cannot be written.
        """
        own_id = None if self.message is None else f"{request_id}.given"
        rows = [each.model_copy(update={"thread_id": thread_id}) for each in self.history]
        if self.message is not None:
            rows.append(self.message.model_copy(update={"thread_id": thread_id, "id": own_id}))
        if rows and not await system.ledger.by_invocation(request_id, thread_id=thread_id):
            await system.append_history(thread_id, rows)
        return own_id


def as_messages(history: MessageHistory) -> tuple[Message, ...]:
    """Return a history as messages.

    Raises:
        DecodeError: it is not a history of Pydantic AI.
    """
    given = list(cast("Iterable[Message | ModelMessage]", history))
    if all(isinstance(each, Message) for each in given):
        return tuple(cast("list[Message]", given))
    units = ModelMessagesTypeAdapter.dump_python(cast("list[ModelMessage]", given), mode="json")
    return tuple(decode(units, _DIALECT))


def _is_request(message: Message) -> bool:
    """Whether a message is from a user."""
    is_shown = any(isinstance(part, _SHOWN) for part in message.parts)
    return message.kind == "parts" and is_shown and (message.role_hint_for_llm or message.policy) == "user"


def _is_plain(message: Message) -> bool:
    """Whether a request is only a user's text: then it is the same task as the text itself."""
    is_text = len(message.parts) == 1 and isinstance(message.parts[0], TextPart)
    return is_text and message.policy == "user" and untrusted_source(message) is None


# ---------------------------------------------------------------- the history in the thread


class ThreadHistory:
    """Reads a thread, and selects the talk that no call of the thread has produced."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: set[str] = set()

    def copy(self) -> ThreadHistory:
        """Return a copy, to continue from here."""
        other = ThreadHistory()
        other.messages, other._calls = [*self.messages], {*self._calls}
        return other

    def take(self, message: Message) -> bool:
        """Read the next message of the thread; return whether it is history."""
        payload = message.payload
        if message.lane == "control" and isinstance(payload, OptionCallPayload):
            self._calls.add(payload.invocation_id)
        if message.lane != "talk" or is_foreign(message) or self._is_produced(message.parent_id):
            return False
        self.messages.append(message)
        return True

    def _is_produced(self, parent_id: str | None) -> bool:
        """Whether a call has produced a message: its parent is the call, or a part of the call."""
        place = parent_id or ""
        while place:
            if place in self._calls:
                return True
            place = parent_of(place)
        return False


async def read_history(ledger: Ledger, thread_id: str, *, until: str) -> Conversation:
    """Return the history of a thread before the message with the id `until`.

    Raises:
        LedgerError: it cannot be read.
    """
    history = ThreadHistory()
    async with aclosing(cast("AsyncGenerator[Record]", ledger.read(thread_id))) as records:
        async for record in records:
            if record.message.id == until:
                break
            history.take(record.message)
    return Conversation(history.messages)


async def read_answer(ledger: Ledger, thread_id: str, is_answer: Callable[[Message], bool]) -> tuple[Message, ...]:
    """Return the last answer in the talk of a thread, with the answers right before it.

    Raises:
        LedgerError: it cannot be read.
    """
    found: list[Message] = []
    async with aclosing(cast("AsyncGenerator[Record]", ledger.read(thread_id, reverse=True))) as records:
        async for record in records:
            if record.message.lane == "talk" and is_answer(record.message):
                found.append(record.message)
            elif record.message.lane == "talk" and found:
                break
    return tuple(reversed(found))


def untrusted_source(message: Message) -> str | None:
    """Return the source of a message's content, if the message has the mark of untrusted content."""
    own = message.metadata.get("antiphon")
    source = own.get("untrusted") if isinstance(own, JsonObject) else None
    return source if isinstance(source, str) else None


# ---------------------------------------------------------------- prompts


def model_messages(messages: Iterable[Message], agent: str) -> list[ModelMessage]:
    """Return messages as a prompt for an agent's model.

    Messages of an assistant without a name count as the agent's own; messages of other agents count as a user's.
    """
    own = (_as_own(message, agent) for message in messages)
    units: Any = encode(Conversation(own), _DIALECT, as_policy=agent).value
    return ModelMessagesTypeAdapter.validate_python(units)


def _as_own(message: Message, agent: str) -> Message:
    is_unnamed = message.policy == message.role_hint_for_llm == "assistant"
    return message.model_copy(update={"policy": agent}) if is_unnamed else message


def user_content(message: Message) -> Sequence[UserContent]:
    """Return text, data and media of a message, as the content of a prompt."""
    payload = message.payload
    parts = () if isinstance(payload, OptionCallPayload) else payload.parts
    shown = tuple(part for part in parts if isinstance(part, _SHOWN))
    if not shown:
        return ()
    said = Message(policy="user", payload=PartsPayload(parts=shown), role_hint_for_llm="user")
    (request,) = model_messages([said], "assistant")
    content = cast("UserPromptPart", request.parts[0]).content
    return [content] if isinstance(content, str) else content
