"""Prompts: what a peer's model is told when the peer is asked, with what is passed on to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai.messages import UserContent

from antiphon.agents.toolkit import quoted
from antiphon.dialects.marsys import Message as MarsysMessage
from antiphon.dialects.marsys import process_for_llm
from antiphon.messages import Message, thaw
from antiphon.patterns.cast import user_content
from antiphon.patterns.peers._additions import addition_in, read_units
from antiphon.patterns.peers._letters import as_known, letter_of, words_of
from antiphon.patterns.peers._protocol import InvokePeer
from antiphon.runtime import Context

__all__ = ["prompt_of"]


async def prompt_of(request: InvokePeer, context: Context, caller: str | None) -> str | Sequence[UserContent]:
    """Return what the model is told: what is passed on, then what is asked; what strangers have written is quoted."""
    if request.message_id is not None:
        return [part for given in await _passed([request.message_id], context) for part in _content(*given)]
    asked = _asked(request.request, caller)
    passed = await _passed(request.context_message_ids, context)
    if not passed and request.untrusted is None:
        return asked
    told: list[UserContent] = [_shown(message, source) for message, source in passed]
    told.append(asked if request.untrusted is None else quoted(asked, request.untrusted))
    return told


def _asked(request: str, caller: str | None) -> str:
    """Return a request as the model hears it: a user's words as they are, another agent's with its name."""
    if caller is None:
        return request
    form = MarsysMessage("agent_call", request, metadata={"caller": caller})
    return str(process_for_llm(form)["content"])


async def _passed(ids: Sequence[str], context: Context) -> list[tuple[Message, str | None]]:
    """Return the messages that are passed on, each with who wrote it if strangers did; they stand before the request."""
    if not ids:
        return []
    ledger, thread_id = context.ledger, context.thread_id or ""
    rows: dict[str, tuple[Message, str | None]] = {}
    async for record in ledger.read(thread_id):
        message = as_known(record.message)
        rows.setdefault(message.id, (message, _untrusted(message)))
        if (addition := addition_in(record)) is not None:
            for each in read_units(addition.units, {}):
                rows.setdefault(each.id, (each, addition.untrusted))
    return [rows[each] for each in ids if each in rows]


def _content(message: Message, source: str | None) -> list[UserContent]:
    """Return what a user's message shows; if strangers wrote it, its words are quoted."""
    content = list(user_content(message))
    return content if source is None else [quoted(each, source) if isinstance(each, str) else each for each in content]


def _shown(message: Message, source: str | None) -> UserContent:
    text = f"[Message {message.id} from {message.policy}]: {words_of(message)}"
    return text if source is None else quoted(text, source)


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
