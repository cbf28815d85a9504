"""Writes plain histories in one loop: the contents that `write` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson

from antiphon.dialects._content import arguments_object
from antiphon.dialects._order import Content, NotPlainError, follows_words, only_text, words
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.gemini._outcome import write_outcome
from antiphon.dialects.gemini._write import ROLES, STAND_IN, write
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload

__all__ = ["write_plain"]


def write_plain(messages: Sequence[Message], contents: Sequence[Content], writing: BodyWriting) -> list[Any]:
    """Return the units of a plain history; raise a `NotPlainError` if something must be said before one of them."""
    units: list[Any] = []
    parts: list[Any] = []
    last: Message | None = None
    last_kind = ""
    options = writing.aliases.options
    called: dict[str, str] = {}
    for message, content in zip(messages, contents, strict=True):
        kind = content["kind"]
        if kind == "option_result":
            if kind != last_kind:
                units.append({"role": "user", "parts": (parts := [])})
            response = write_outcome(cast("OptionResultPayload", message.payload), [], None)
            invocation = content["invocation_id"]
            held = {"name": called[invocation], "response": response, "id": invocation}
            parts.append({"functionResponse": held})
        elif kind == "option_call":
            kept = content["arguments"]
            is_text = type(kept) is bytes and content["arguments_text"] is None
            given = orjson.loads(kept) if is_text else arguments_object(cast("OptionCallPayload", message.payload))
            name = called[content["invocation_id"]] = options[content["option_name"]]
            held = {"name": name, "args": given, "id": content["invocation_id"]}
            call: dict[str, Any] = {"functionCall": held}
            if kind != last_kind:
                parts = _begin_calls(units, message, last)
                call["thoughtSignature"] = STAND_IN
            parts.append(call)
        else:
            units.append(_words(message, content, writing))
        last, last_kind = message, kind
    if units and units[0]["role"] != "user":
        raise NotPlainError
    return units


def _words(message: Message, content: Content, writing: BodyWriting) -> Any:
    said, role = only_text(content), ROLES.get(writing.role(message))
    if not said or role is None:
        return words(message, write, writing)
    return {"role": role, "parts": [{"text": said}]}


def _begin_calls(units: list[Any], first: Message, last: Message | None) -> list[Any]:
    """Return the list that calls go into: in a content of their own, or in that of the words they were said with."""
    unit: dict[str, Any] = units.pop() if follows_words(first, last) else {"role": "model", "parts": []}
    if unit["role"] != "model" or not units or units[-1]["role"] != "user":
        raise NotPlainError
    units.append(unit)
    parts: list[Any] = unit["parts"]
    return parts
