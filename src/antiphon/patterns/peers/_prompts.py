"""Prompts: what a peer's model is told when the peer is asked, with what is passed on to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai.messages import UserContent

from antiphon.agents.toolkit import quoted
from antiphon.dialects.marsys import Message as MarsysMessage
from antiphon.dialects.marsys import process_for_llm
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, TextPart, thaw
from antiphon.patterns.peers._letters import as_known, letter_of
from antiphon.patterns.peers._protocol import InvokePeer
from antiphon.runtime import Context

__all__ = ["prompt_of"]


async def prompt_of(request: InvokePeer, context: Context, caller: str | None) -> str | Sequence[UserContent]:
    """Return what the model is told: what is passed on, then what is asked; what strangers have written is quoted."""
    asked = _asked(request.request, caller)
    passed = await _passed(request.context_message_ids, context)
    if not passed and request.untrusted is None:
        return asked
    told: list[UserContent] = [_shown(message) for message in passed]
    told.append(asked if request.untrusted is None else quoted(asked, request.untrusted))
    return told


def _asked(request: str, caller: str | None) -> str:
    """Return a request as the model hears it: a user's words as they are, another agent's with its name."""
    if caller is None:
        return request
    form = MarsysMessage("agent_call", request, metadata={"caller": caller})
    return str(process_for_llm(form)["content"])


async def _passed(ids: Sequence[str], context: Context) -> list[Message]:
    """Return the messages that are passed on; they stand in the thread before the request."""
    if not ids:
        return []
    ledger, thread_id = context.ledger, context.thread_id or ""
    rows: dict[str, Message] = {}
    async for record in ledger.read(thread_id):
        message = as_known(record.message)
        rows.setdefault(message.id, message)
    return [rows[each] for each in ids if each in rows]


def _shown(message: Message) -> UserContent:
    text = f"[Message {message.id} from {message.policy}]: {_text(message)}"
    source = _untrusted(message)
    return text if source is None else quoted(text, source)


def _text(message: Message) -> str:
    match message.payload:
        case OptionResultPayload(is_error=True, error_message=why):
            return f"error: {why}"
        case OptionResultPayload(result=result):
            return _words(thaw(result))
        case OptionCallPayload(option_name=option, arguments=arguments):
            return f"{option}({_words(thaw(arguments))})"
        case _:
            return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _words(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _untrusted(message: Message) -> str | None:
    """Return who wrote a message, if strangers did: a letter says so, of a result the toolkit did."""
    letter = letter_of(message)
    return letter.untrusted if letter is not None else _marked(thaw(dict(message.metadata)))


def _marked(value: Any) -> str | None:
    """Return the mark that stands anywhere in what was kept of a result's origin."""
    match value:
        case {"untrusted": str(source)}:
            return source
        case dict():
            inside = list(cast("dict[str, Any]", value).values())
        case list():
            inside = cast("list[Any]", value)
        case _:
            return None
    return next((found for each in inside if (found := _marked(each)) is not None), None)
