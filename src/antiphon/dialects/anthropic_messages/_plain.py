"""Writes plain histories in one loop: the units that `write` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson

from antiphon.dialects._content import arguments_object
from antiphon.dialects._order import Content, NotPlainError, follows_words, only_text, words
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.anthropic_messages._write import answer, write
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload

__all__ = ["write_plain"]


def write_plain(messages: Sequence[Message], contents: Sequence[Content], writing: BodyWriting) -> list[Any]:
    """Return the units of a plain history; raise a `NotPlainError` if something must be said before one of them."""
    units: list[Any] = []
    blocks: list[Any] = []
    last: Message | None = None
    last_kind = ""
    options = writing.aliases.options
    for message, content in zip(messages, contents, strict=True):
        kind = content["kind"]
        if kind == "option_result":
            if kind != last_kind:
                units.append({"role": "user", "content": (blocks := [])})
            kept = content["result"]
            if type(kept) is bytes and not content["is_error"]:
                blocks.append({"type": "tool_result", "tool_use_id": content["invocation_id"], "content": kept.decode()})
            else:
                blocks.append(answer(message, cast("OptionResultPayload", message.payload), [], writing))
        elif kind == "option_call":
            if kind != last_kind:
                blocks = _begin_calls(units, message, last)
            kept = content["arguments"]
            is_text = type(kept) is bytes and content["arguments_text"] is None
            given = orjson.loads(kept) if is_text else arguments_object(cast("OptionCallPayload", message.payload))
            name = options[content["option_name"]]
            blocks.append({"type": "tool_use", "id": content["invocation_id"], "name": name, "input": given})
        else:
            units.append(_words(message, content, writing))
        last, last_kind = message, kind
    return _begun_by_user(units)


def _begun_by_user(units: list[Any]) -> list[Any]:
    if units and units[0]["role"] != "user":
        raise NotPlainError
    return units


def _words(message: Message, content: Content, writing: BodyWriting) -> Any:
    said, role = only_text(content), writing.role(message)
    if not said or said.isspace() or role == "system":
        return words(message, write, writing)
    return {"role": role, "content": said}


def _begin_calls(units: list[Any], first: Message, last: Message | None) -> list[Any]:
    """Return the list that calls go into: in a unit of their own, or in that of the words they were said with."""
    blocks: list[Any] = []
    if follows_words(first, last):
        unit = units.pop()
        if unit["role"] != "assistant":
            raise NotPlainError
        said = unit["content"]
        blocks += [{"type": "text", "text": said}] if isinstance(said, str) else said
    units.append({"role": "assistant", "content": blocks})
    return blocks
