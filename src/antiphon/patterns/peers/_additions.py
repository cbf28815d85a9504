"""Additions: messages that a program adds to a memory, as rows of the thread, and in prompts.

An addition is one row of the control lane, addressed to the memory, with its messages as data. They are not separate rows, for
two reasons. A thread has an owner, and other processes may only post one message at a time. And an addition is history: as a
row, a call would be open, and a result would answer a call of the thread.

Prompts are recorded in the thread, so an addition in a prompt would be in the thread a second time. It has a mark, in metadata
that no model sees: a memory skips marked messages, and the mark shows which exchange already has them. Pydantic AI joins
adjacent requests, and drops their metadata, but not the metadata of their parts. So a request is marked part by part. A
response is marked as a whole; it has the name of a model, so that it is not joined with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from antiphon.dialects import decode, encode, marsys
from antiphon.ledger import Ledger, Record
from antiphon.messages import (
    Conversation,
    DataPart,
    JsonObject,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    thaw,
)
from antiphon.messages._json_values import canonical
from antiphon.patterns.cast._handling import request_key
from antiphon.patterns.cast._pattern import user_content
from antiphon.patterns.peers._letters import for_model, marsys_form, role_of, text_of
from antiphon.runtime._rows import notice_in

# ---------------------------------------------------------------- rows


MEMORY: Final = "memory"
"""The kind of the address and the thread of a shared memory."""
_ADDED: Final = "MEMORY_ADDED"
_IN_BODY: Final = b'"MEMORY_ADDED"'
"""A string that every addition has, and almost no other row: a cheap test before the row is parsed."""
_MOST: Final = 256 * 1024
"""The maximum size of the messages in one row, in bytes: a message of the ledger has at most a MiB."""


class Addition(NamedTuple):
    """Added messages, in the form of MARSYS."""

    units: list[dict[str, Any]]
    untrusted: str | None
    """The source of untrusted content in them, if any."""


def memory_address(name: str) -> str:
    """Return the address, which is also the thread, of a shared memory."""
    return f"{MEMORY}/{name}"


def units_of(messages: Iterable[marsys.Message | Message]) -> list[dict[str, Any]]:
    """Return messages in the form of MARSYS."""
    units: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, marsys.Message):
            units.append(message.to_dict())
        else:
            units += cast("list[dict[str, Any]]", encode(Conversation([message]), "marsys").value)
    return units


async def post_additions(
    ledger: Ledger, thread_id: str, address: str, units: Sequence[dict[str, Any]], untrusted: str | None
) -> None:
    """Write units to a memory; the same units are written once."""
    for portion in _portions(units):
        await ledger.post(thread_id, _row(address, portion, untrusted))


def addition_in(record: Record) -> Addition | None:
    """Return the messages that a row adds to its memory."""
    return _addition(record.message) if _IN_BODY in record.body else None


def _addition(message: Message) -> Addition | None:
    kind, content = notice_in(message) or ("", None)
    if kind != _ADDED:
        return None
    data: Any = thaw(content)
    return Addition(data["messages"], data.get("untrusted"))


async def stored_units(ledger: Ledger, thread_id: str, units: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return units in their stored form: without secrets, unless the thread keeps them."""
    redaction = await ledger.redaction.of(thread_id)
    if redaction is None:
        return units
    additions = (_addition(redaction.message(_row(MEMORY, portion, None))) for portion in _portions(units))
    return [unit for addition in additions if addition is not None for unit in addition.units]


def read_units(units: Sequence[dict[str, Any]], calls: Mapping[str, Message]) -> list[Message]:
    """Return units as messages; a unit that answers an earlier call becomes its result."""
    answered = {calls[name].id: calls[name] for unit in units for name in _answers(unit) if name in calls}
    call_units: list[Any] = encode(Conversation(answered.values()), "marsys").value
    return list(decode([*call_units, *units], "marsys"))[len(answered) :]


def _answers(unit: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids by which a unit may name the call that it answers."""
    metadata: Mapping[str, Any] = unit.get("metadata") or {}
    for name in (unit.get("tool_call_id"), metadata.get("interaction_id"), metadata.get("task_id")):
        if isinstance(name, str):
            yield name


def _portions(units: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    portion: list[dict[str, Any]] = []
    size = 0
    for unit in units:
        unit_size = len(canonical(unit))
        if portion and size + unit_size > _MOST:
            yield portion
            portion, size = [], 0
        portion.append(unit)
        size += unit_size
    if portion:
        yield portion


def _row(address: str, units: list[dict[str, Any]], untrusted: str | None) -> Message:
    data: dict[str, Any] = {"messages": units}
    if untrusted is not None:
        data["untrusted"] = untrusted
    return Message(
        policy="user",
        payload=PartsPayload(parts=(DataPart(data={"type": _ADDED, "data": data}),)),
        id=request_key(MEMORY, address, canonical(data).decode()),
        to=(address,),
        lane="control",
    )


# ---------------------------------------------------------------- repeated additions


_NAMESPACE: Final = "antiphon"
_MARK: Final = "remembered"
_MARK_IN_BODY: Final = b'"remembered":'
_MODEL: Final = "memory"
_LETTERS: Final = ("agent_call", "agent_response", "error")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RequestPart: TypeAlias = SystemPromptPart | UserPromptPart | ToolReturnPart
_ResponsePart: TypeAlias = TextPart | ToolCallPart


def repeated_ids(row: Message) -> Iterator[str]:
    """Yield the ids of the added messages that a row repeats."""
    yield from _marks(thaw(row.metadata))
    for part in row.parts:
        yield from _marks(thaw(part.metadata))


def _marks(value: Any) -> Iterator[str]:
    match value:
        case {"antiphon": {"remembered": list()}}:
            yield from cast("list[str]", value[_NAMESPACE][_MARK])
        case dict():
            for member in cast("dict[str, Any]", value).values():
                yield from _marks(member)
        case list():
            for item in cast("list[Any]", value):
                yield from _marks(item)
        case _:
            pass


def begins_unit(row: Message) -> bool:
    """Whether a row is the first of a request or an answer."""
    metadata = row.metadata.get(_NAMESPACE)
    return isinstance(metadata, JsonObject) and "unit" in metadata


class RepetitionReader:
    """Reads a thread, and finds the rows that repeat added messages."""

    def __init__(self) -> None:
        self._answers: set[str] = set()
        """Exchanges with a repeated answer that has more rows; only its first row is marked."""

    def copy(self) -> RepetitionReader:
        """Return a copy, to continue from here."""
        copy = RepetitionReader()
        copy._answers = {*self._answers}
        return copy

    def take(self, record: Record) -> bool:
        """Read the next row of the thread; return whether it repeats an added message."""
        row = record.message
        exchange = row.correlation_id or ""
        if begins_unit(row):
            self._answers.discard(exchange)
        is_marked = _MARK_IN_BODY in record.body and any(True for _ in repeated_ids(row))
        if is_marked and row.role_hint_for_llm == "assistant":
            self._answers.add(exchange)
        return is_marked or (exchange in self._answers and row.role_hint_for_llm == "assistant")


# ---------------------------------------------------------------- prompts


def added_prompt(
    messages: Sequence[Message], name: str, policies: frozenset[str], untrusted: Mapping[str, str]
) -> list[ModelMessage]:
    """Return added messages as a prompt of the peer's model; the peer's own messages have one of the `policies`.

    `untrusted` maps messages to the source of untrusted content in them.
    """
    calls = {
        message.invocation_id for message in messages if message.policy in policies and role_of(message) == "assistant"
    } - {None}
    prompt: list[ModelMessage] = []
    for message in messages:
        source = untrusted.get(message.id)
        if source is None and (response_part := _response_part(message, name, policies)) is not None:
            _add_to_response(prompt, response_part, message)
            continue
        payload = message.payload
        part: _RequestPart
        if source is None and isinstance(payload, OptionResultPayload) and payload.invocation_id in calls:
            part = _tool_return(message, payload)
        else:
            part = _prompt_part(message, name, source)
        if prompt and isinstance(last := prompt[-1], ModelRequest):
            last.parts = [*last.parts, part]
        else:
            prompt.append(ModelRequest([part]))
    return prompt


def _add_to_response(prompt: list[ModelMessage], part: _ResponsePart, message: Message) -> None:
    """Add a message of the peer itself, joined with its previous message to one answer."""
    if prompt and isinstance(last := prompt[-1], ModelResponse):
        last.parts = [*last.parts, part]
        last.metadata = _mark(*_marks(last.metadata), message.id)
    else:
        time = message.created_at or _EPOCH
        prompt.append(ModelResponse([part], model_name=_MODEL, timestamp=time, metadata=_mark(message.id)))


def _response_part(message: Message, name: str, policies: frozenset[str]) -> _ResponsePart | None:
    """Return the text or call of the peer itself; None: it is another agent's message."""
    if message.policy not in policies:
        return None
    match role_of(message), message.payload:
        case "assistant", OptionCallPayload() as call:
            arguments = call.arguments_text or cast("dict[str, Any]", thaw(call.arguments))
            return ToolCallPart(call.option_name, arguments, tool_call_id=call.invocation_id)
        case (("assistant" | "agent_call"), _):
            return TextPart(_text(message, name) or "[an attachment]")
        case _:
            return None


def _tool_return(message: Message, result: OptionResultPayload) -> ToolReturnPart:
    """Return the result of a tool that the peer has called."""
    text, media = text_of(message), _media(message)
    return ToolReturnPart(
        result.option_name,
        [text, *media] if media else text,
        tool_call_id=result.invocation_id,
        metadata=_mark(message.id),
        timestamp=message.created_at or _EPOCH,
    )


def _prompt_part(message: Message, name: str, untrusted: str | None) -> SystemPromptPart | UserPromptPart:
    """Return a message of the system, the user or another agent; an agent's name is put before its text."""
    mark, time = _mark(message.id), message.created_at or _EPOCH
    if untrusted is None and role_of(message) == "system":
        return SystemPromptPart(text_of(message), metadata=mark, timestamp=time)
    text, media = _text(message, name), _media(message)
    if untrusted is not None:
        mark[_NAMESPACE]["untrusted"] = untrusted
        text = f"[Message {message.id} from {message.policy}]: {text}"
    elif message.policy != "user" and role_of(message) not in _LETTERS:
        text = f"[Message from {message.policy}]: {text}"
    return UserPromptPart([TextContent(text or "Attached:", metadata=mark), *media], timestamp=time)


def _mark(*ids: str) -> dict[str, Any]:
    return {_NAMESPACE: {_MARK: list(ids)}}


def _text(message: Message, name: str) -> str:
    """Return the text of a message; for messages between agents, from the point of view of one."""
    if role_of(message) not in _LETTERS:
        return text_of(message)
    (form,) = marsys_form(Conversation([message]))
    return str(for_model(name, form.replace(content=form.text))["content"])


def _media(message: Message) -> Sequence[UserContent]:
    """Return the media and data of a message for Pydantic AI."""
    payload = message.payload
    parts = () if isinstance(payload, OptionCallPayload) else payload.parts
    shown = tuple(part for part in parts if isinstance(part, MediaPart | DataPart))
    return user_content(Message(policy="user", payload=PartsPayload(parts=shown))) if shown else ()
