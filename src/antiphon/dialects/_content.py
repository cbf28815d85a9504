"""Content as text: what formats share whose messages say one string."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson

from antiphon.dialects._meaning import continued, facets_of_parts, joined
from antiphon.dialects._units import Writing, fresh
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, Part, Payload, TextPart
from antiphon.messages._json import plain, write
from antiphon.messages._model import json_text_of, plain_of

__all__ = [
    "arguments_text",
    "fresh",
    "has_words",
    "json_text",
    "lose_option",
    "lose_shown",
    "request_of",
    "result_text",
    "said_as_text",
    "time_text",
]


def request_of(payload: Payload) -> str | None:
    """Return what an agent is asked, if a call asks an agent: its only argument is a `request` in words."""
    if payload.kind != "option_call" or payload.arguments_text is not None:
        return None
    arguments = plain_of(payload, "arguments")
    request = arguments.get("request") if len(arguments) == 1 else None
    return request if isinstance(request, str) else None


def json_text(value: Any) -> str:
    """Return a JSON value as compact text; text as itself."""
    return value if isinstance(value, str) else write(plain(value)).decode()


def arguments_text(call: OptionCallPayload) -> str:
    """Return arguments as text: as it was written, if anyone wrote it."""
    return json_text_of(call, "arguments") if call.arguments_text is None else call.arguments_text


def said_as_text(message: Message, writing: Writing, format_name: str) -> str:
    """Return a message's parts as text, data as JSON text, and report what is not the same in text."""
    parts = message.parts
    text = parts[0].text if len(parts) == 1 and parts[0].kind == "text" else joined(_lines(parts), continued(message))
    if not writing.counts:
        return text
    facets = facets_of_parts(parts)
    for what in facets.keys() - {"text"}:
        writing.lose(message, what, f"{format_name} says plain text")
    words = [(part, part.text) for part in parts if isinstance(part, TextPart)]
    if text != joined(words, continued(message)):
        writing.lose(message, "text", f"in {format_name} it has data in it")
    return text


def _lines(parts: Iterable[Part]) -> list[tuple[Part, str]]:
    return [(part, line) for part in parts if (line := _line(part)) is not None]


def _line(part: Part) -> str | None:
    return part.text if part.kind == "text" else json_text(part.data) if part.kind == "data" else None


def has_words(message: Message) -> bool:
    """Whether a message says anything as text."""
    return any(line for _, line in _lines(message.parts))


def time_text(time: datetime) -> str:
    """Return a time in UTC as ISO 8601: what `isoformat` gives, in a fifth of the time."""
    return orjson.dumps(time)[1:-1].decode()


def lose_shown(message: Message, outcome: OptionResultPayload, writing: Writing, format_name: str) -> None:
    """Report all that a result shows besides."""
    for what in facets_of_parts(outcome.parts) if outcome.parts and writing.counts else ():
        writing.lose(message, what, f"a result in {format_name} shows nothing besides")


def lose_option(message: Message, outcome: OptionResultPayload, writing: Writing, format_name: str) -> str:
    """Return the option that a reader will think a result is of: the one that was called; report it if that is another."""
    call = writing.call_of(message)
    if call is None or call.payload.kind != "option_call" or outcome.option_name in writing.options_of(outcome.invocation_id):
        return outcome.option_name
    writing.lose(message, "option", f"a result in {format_name} is of the option that was called")
    return call.payload.option_name


def result_text(message: Message, outcome: OptionResultPayload, writing: Writing, format_name: str) -> str | None:
    """Return a result as text, JSON as JSON text; None for no result."""
    result = outcome.__dict__["result"]
    if writing.counts:
        lose_shown(message, outcome, writing, format_name)
        if isinstance(result, bool | int | float):
            writing.lose(message, "result", f"a result in {format_name} is text")
    return result if result is None or type(result) is str else json_text_of(outcome, "result")
