"""Retelling: messages that were added to a memory, as a model is told them; and how they are known again in the thread.

What a model is told is said in the thread, as every prompt is. So what was added would stand there a second time, as something
that the peer was told. It has a mark, in metadata that no model sees, by which a memory leaves it out and by which it is known
that an exchange has it already. Pydantic AI joins requests that follow each other, and their own metadata is lost; that of
their parts is not. So a request is marked part by part. A response is marked as a whole; it has the name of a model, so that
it is not joined with another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

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

from antiphon.ledger import Record
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
from antiphon.patterns.cast import user_content
from antiphon.patterns.peers._letters import marsys_form, role_of, words_of
from antiphon.patterns.peers._processors import for_model

__all__ = ["Retold", "begins_unit", "retell", "retold_in"]

_OWN: Final = "antiphon"
_MARK: Final = "remembered"
_IN_BODY: Final = b'"remembered":'
_MODEL: Final = "memory"
_LETTERS: Final = ("agent_call", "agent_response", "error")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Asked: TypeAlias = SystemPromptPart | UserPromptPart | ToolReturnPart
_Answered: TypeAlias = TextPart | ToolCallPart


def retold_in(row: Message) -> Iterator[str]:
    """Yield the ids of the messages that a row tells again."""
    yield from _marks(thaw(row.metadata))
    for part in row.parts:
        yield from _marks(thaw(part.metadata))


def _marks(value: Any) -> Iterator[str]:
    match value:
        case {"antiphon": {"remembered": list()}}:
            yield from cast("list[str]", value[_OWN][_MARK])
        case dict():
            for each in cast("dict[str, Any]", value).values():
                yield from _marks(each)
        case list():
            for each in cast("list[Any]", value):
                yield from _marks(each)
        case _:
            pass


def begins_unit(row: Message) -> bool:
    """Whether a row is the first of those that say one request or one answer."""
    own = row.metadata.get(_OWN)
    return isinstance(own, JsonObject) and "unit" in own


class Retold:
    """Goes through a thread, and knows which rows tell something again."""

    def __init__(self) -> None:
        self._answers: set[str] = set()
        """Exchanges in which an answer is told again whose rows are not over; only its first one is marked."""

    def copy(self) -> Retold:
        """Return the same, to go on from here."""
        other = Retold()
        other._answers = {*self._answers}
        return other

    def has(self, record: Record) -> bool:
        """Whether the next row of the thread does."""
        row = record.message
        exchange = row.correlation_id or ""
        if begins_unit(row):
            self._answers.discard(exchange)
        is_marked = _IN_BODY in record.body and any(True for _ in retold_in(row))
        if is_marked and row.role_hint_for_llm == "assistant":
            self._answers.add(exchange)
        return is_marked or (exchange in self._answers and row.role_hint_for_llm == "assistant")


# ---------------------------------------------------------------- telling


def retell(messages: Sequence[Message], name: str, own: frozenset[str], untrusted: Mapping[str, str]) -> list[ModelMessage]:
    """Return messages as the model of a peer is told them; `own` are those whose words are the peer's.

    `untrusted` is, by message, where it comes from if strangers wrote some of it.
    """
    called = {each.invocation_id for each in messages if each.policy in own and role_of(each) == "assistant"} - {None}
    told: list[ModelMessage] = []
    for message in messages:
        source = untrusted.get(message.id)
        if source is None and (part := _answered(message, name, own)) is not None:
            _answer(told, part, message)
            continue
        if source is None and message.kind == "option_result" and message.invocation_id in called:
            asked: _Asked = _returned(message)
        else:
            asked = _asked(message, name, source)
        if told and isinstance(last := told[-1], ModelRequest):
            last.parts = [*last.parts, asked]
        else:
            told.append(ModelRequest([asked]))
    return told


def _answer(told: list[ModelMessage], part: _Answered, message: Message) -> None:
    """Tell what the peer said itself, in one answer with what it said just before."""
    if told and isinstance(last := told[-1], ModelResponse):
        last.parts = [*last.parts, part]
        last.metadata = _mark(*_marks(last.metadata), message.id)
    else:
        time = message.created_at or _EPOCH
        told.append(ModelResponse([part], model_name=_MODEL, timestamp=time, metadata=_mark(message.id)))


def _answered(message: Message, name: str, own: frozenset[str]) -> _Answered | None:
    """Return what the peer said or called itself; None: somebody else did."""
    if message.policy not in own:
        return None
    match role_of(message), message.payload:
        case "assistant", OptionCallPayload() as call:
            given = call.arguments_text or cast("dict[str, Any]", thaw(call.arguments))
            return ToolCallPart(call.option_name, given, tool_call_id=call.invocation_id)
        case (("assistant" | "agent_call"), _):
            return TextPart(_words(message, name) or "[an attachment]")
        case _:
            return None


def _returned(message: Message) -> ToolReturnPart:
    """Return the result of a tool that the peer has called."""
    words, media = words_of(message), _media(message)
    content = [words, *media] if media else words
    own: dict[str, Any] = {"tool_call_id": message.invocation_id, "metadata": _mark(message.id)}
    assert isinstance(message.payload, OptionResultPayload)  # noqa: S101 (only a result is returned)
    return ToolReturnPart(message.payload.option_name, content, timestamp=message.created_at or _EPOCH, **own)


def _asked(message: Message, name: str, untrusted: str | None) -> SystemPromptPart | UserPromptPart:
    """Return what the system, the user, or anybody else has said; who it was stands before the words of the others."""
    mark, time = _mark(message.id), message.created_at or _EPOCH
    if untrusted is None and role_of(message) == "system":
        return SystemPromptPart(words_of(message), metadata=mark, timestamp=time)
    words, media = _words(message, name), _media(message)
    if untrusted is not None:
        mark[_OWN]["untrusted"] = untrusted
        words = f"[Message {message.id} from {message.policy}]: {words}"
    elif message.policy != "user" and role_of(message) not in _LETTERS:
        words = f"[Message from {message.policy}]: {words}"
    return UserPromptPart([TextContent(words or "Attached:", metadata=mark), *media], timestamp=time)


def _mark(*ids: str) -> dict[str, Any]:
    return {_OWN: {_MARK: list(ids)}}


def _words(message: Message, name: str) -> str:
    """Return what a message says; of what passes between agents, from the side of one."""
    if role_of(message) not in _LETTERS:
        return words_of(message)
    (form,) = marsys_form(Conversation([message]))
    return str(for_model(name, form.replace(content=form.text))["content"])


def _media(message: Message) -> Sequence[UserContent]:
    """Return the media and the data that a message shows, as Pydantic AI has them."""
    payload = message.payload
    parts = () if isinstance(payload, OptionCallPayload) else payload.parts
    shown = tuple(part for part in parts if isinstance(part, MediaPart | DataPart))
    return user_content(Message(policy="user", payload=PartsPayload(parts=shown))) if shown else ()
